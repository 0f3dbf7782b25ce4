"""The command `knuckle control`, as a user meets it."""

import numpy as np
import pytest
from typer.testing import CliRunner

import knuckle as kn
from knuckle.cli import app
from tests.control.robots import pendulum


@pytest.fixture
def knuckle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, ["control", *(str(word) for word in words)])


def test_a_fitted_model_swings_up_and_its_files_are_written(knuckle, tmp_path):
    kn.save_hybrid(tmp_path / "model.knuckle", pendulum(limit=3.0), dt=0.01)
    run = knuckle("model.knuckle", "--time", 2.5, "--knot", 0.05, "--out", "up")
    assert run.exit_code == 0, run.output
    assert "plan: converged" in run.output
    with np.load(tmp_path / "up" / "trajectory.npz") as kept:
        assert kept["q"].shape == (251, 1) and np.abs(kept["control"]).max() <= 3.0
        assert abs(np.cos(kept["q"][-1, 0]) + 1) < 0.01  # it hangs at zero
    with np.load(tmp_path / "up" / "plan.npz") as kept:
        assert kept["control"].shape == (50, 1) and kept["gain"].shape == (50, 1, 2)
    assert (tmp_path / "up" / "motion.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("cartpole", "--task", "reach"), "--task reach needs --target x,y,z"),
        (("cartpole", "--target", "1,2,3"), "--target and --frame are for --task reach"),
        (("arm", "--task", "reach", "--target", "1,2"), "--target takes 3 numbers, got 2"),
        (("arm", "--task", "reach", "--target", "1,2,3", "--frame", "hook"), "no link or frame 'hook'"),
        (("cartpole", "--time", "0"), "--time must be a positive number of seconds"),
        (("cartpole", "--knot", "1e-6"), "must give 1 to 5000 knots"),
        (("cartpole", "--goal", "1"), "--goal takes 2 numbers, got 1"),
        (("double_pendulum",), "has no actuators"),
        (("nowhere.xml",), "no file and no built-in robot"),
    ],
)
def test_bad_options_are_refused(knuckle, words, message):
    run = knuckle(*words)
    assert run.exit_code == 1
    assert message in " ".join(run.output.split())
