"""Offsets, gains and delays that a fit found travel with the model; files without them stay as they were."""

import json
import zipfile

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import knuckle as kn
from knuckle import robots
from knuckle.cli import app
from knuckle.hybrid import Calibration, Hybrid, HybridFileError, load_hybrid, save_hybrid
from knuckle.hybrid.container import MANIFEST, packed
from knuckle.hybrid.file import difference
from tests.hybrid.examples import PENDULUM

FOUND = Calibration.of(
    offsets={"q": [0.1, -0.2], "pixels": [3.0]},
    gains={"qd": [1.1, 0.9]},
    drive_gains={"shoulder": 8.4},
    sensor_delay=0.003,
    actuator_delay=-0.001,
    effort_delay=0.0056,
)


def test_a_calibration_comes_back_bit_for_bit(tmp_path):
    save_hybrid(tmp_path / "a.knuckle", PENDULUM, calibration=FOUND)
    again = load_hybrid(tmp_path / "a.knuckle")
    assert again.calibration == FOUND and difference(Hybrid(PENDULUM, calibration=FOUND), again) is None
    said = " ".join(FOUND.in_words())
    assert "delay of actuators: -0.001 s" in said and "offsets of q: 0.1, -0.2" in said and "shoulder 8.4" in said


def test_a_file_without_one_has_the_version_that_older_programs_read(tmp_path):
    save_hybrid(tmp_path / "a.knuckle", PENDULUM)
    with zipfile.ZipFile(tmp_path / "a.knuckle") as file:
        manifest = json.loads(file.read(MANIFEST))
    assert manifest["version"] == 1 and "calibration" not in manifest
    again = load_hybrid(tmp_path / "a.knuckle")
    assert not again.calibration and again.calibration.in_words() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"offsets": {"q": [1.0]}}, "offsets of q: expected 2 numbers, got 1"),
        ({"gains": {"q": [1.0, 0.0]}}, "gains not 0"),
        ({"sensor_delay": 100.0}, "sensor_delay: expected less than 10 s"),
        ({"sensor_delay": "x"}, "sensor_delay: expected a finite number"),
        ({"drive_gains": [1.0]}, "drive_gains: expected names and numbers"),
        ({"drive_gains": {"shoulder": True}}, "shoulder: expected a finite number"),
        ({"offsets": {"q": "ab"}}, "q: expected a list of finite numbers"),
        ({"more": 1}, "calibration: expected actuator_delay"),
    ],
)
def test_a_damaged_calibration_is_refused_with_its_place(change, said, tmp_path):
    path = tmp_path / "a.knuckle"
    save_hybrid(path, PENDULUM, calibration=FOUND)
    with zipfile.ZipFile(path) as file:
        manifest = json.loads(file.read(MANIFEST))
        arrays = {name.removesuffix(".npy"): file.read(name) for name in file.namelist() if name != MANIFEST}
    manifest["calibration"] |= change
    path.write_bytes(packed(manifest, arrays))
    with pytest.raises(HybridFileError, match=said):
        load_hybrid(path)


def test_what_no_model_can_have_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="drive gain of elbow: expected a finite number other than 0"):
        save_hybrid(tmp_path / "a.knuckle", PENDULUM, calibration=Calibration.of(drive_gains={"elbow": 0.0}))


def test_a_rollout_acts_as_late_as_the_actuators_do():
    model, dt = robots.load("cartpole"), 0.01
    controls = np.cumsum(np.random.default_rng(0).normal(size=(60, 1)), axis=0)
    with jax.enable_x64(True):
        for delay, acting in (
            (0.03, np.concatenate([np.repeat(controls[:1], 3, axis=0), controls[:-3]])),
            (-0.02, np.concatenate([controls[2:], np.repeat(controls[-1:], 2, axis=0)])),
        ):
            hybrid = Hybrid(model, contact=None, dt=dt, calibration=Calibration.of(actuator_delay=delay))
            found = hybrid.rollout(model.state(), controls)
            np.testing.assert_allclose(
                found.q, kn.rollout(model, model.state(), acting, dt=dt, contact=None).q, rtol=0, atol=1e-9
            )
        half = Hybrid(model, contact=None, dt=dt, calibration=Calibration.of(actuator_delay=0.005))
        mean = (controls + np.concatenate([controls[:1], controls[:-1]])) / 2  # half of each step acts as before
        wanted = kn.rollout(model, model.state(), mean, dt=dt, contact=None).q
        np.testing.assert_allclose(half.rollout(model.state(), controls).q, wanted, rtol=0, atol=1e-9)
        with pytest.raises(ValueError, match=r"act 0\.005 s late, which a policy cannot know"):
            half.rollout(model.state(), lambda time, state: np.zeros(1), steps=5)


def test_exports_that_hold_no_delay_refuse_it_by_name(tmp_path):
    model = robots.load("cartpole")
    save_hybrid(tmp_path / "a.knuckle", model, dt=0.01, calibration=Calibration.of(actuator_delay=0.02))
    for name in ("step.c", "robot.xml"):
        words = ["export", str(tmp_path / "a.knuckle"), str(tmp_path / name)]
        refused = CliRunner().invoke(app, words)
        assert refused.exit_code == 1 and "act 0.02 s late" in " ".join(refused.output.split()), refused.output
        assert CliRunner().invoke(app, [*words, "--without-delay"]).exit_code == 0 and (tmp_path / name).exists()
