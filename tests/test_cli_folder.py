"""Folders of results: what a command did not write it does not replace, unless it is told to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from knuckle.cli import app
from knuckle.cli_folder import MARK, all_or_nothing, made_folder, mark_written, written_in
from knuckle.cli_results import names_of_results

SIMULATE = ["simulate", "double_pendulum", "--time=0.01", "--out", "out"]


@pytest.fixture
def knuckle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def strange(tmp_path) -> Path:
    """A folder of somebody else's."""
    folder = tmp_path / "out"
    folder.mkdir()
    for name in ("report.html", "fit.json", "trajectory.csv", "checkpoint.npz", "checkpoint.pt"):
        (folder / name).write_text("precious")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(errors="replace") for path in folder.iterdir()}


@pytest.mark.parametrize("command", ["fit", "fit --loss=torque", "demo"])
def test_a_fit_does_not_replace_a_strangers_files(knuckle, strange, command):
    (strange.parent / "log.csv").write_text("time,shoulder,elbow\n" + "".join(f"{i},{i},{i}\n" for i in range(30)))
    words = [] if command == "demo" else ["double_pendulum", "log.csv"]
    before = contents(strange)
    run = knuckle(*command.split(), *words, "--out", strange)
    assert run.exit_code == 1 and isinstance(run.exception, SystemExit)
    for word in ("fit.json", "report.html", "not written by knuckle", "--force"):
        assert word in run.stderr
    assert contents(strange) == before


def test_a_simulation_does_not_replace_a_strangers_files_unless_forced(knuckle, strange):
    before = contents(strange)
    run = knuckle(*SIMULATE)
    assert run.exit_code == 1 and "trajectory.csv, not written by knuckle" in run.stderr
    assert contents(strange) == before
    assert knuckle(*SIMULATE, "--force").exit_code == 0
    after = contents(strange)
    assert after["trajectory.csv"].startswith("time") and after["report.html"] == "precious"
    assert knuckle(*SIMULATE).exit_code == 0  # now it is ours
    assert written_in(strange) == {"trajectory.npz", "trajectory.csv", "motion.png"}


@pytest.mark.parametrize(
    ("target", "name"), [("arm.xml", "arm.xml"), ("step.c", "CMakeLists.txt"), ("step.c", "step.h")]
)
def test_an_export_does_not_replace_a_strangers_files(knuckle, tmp_path, target, name):
    (tmp_path / name).write_text("precious")
    run = knuckle("export", "cartpole", target)
    assert run.exit_code == 1 and f"{name}, not written by knuckle" in run.stderr
    assert contents(tmp_path) == {name: "precious"}


def test_an_export_replaces_its_own_files_and_others_if_forced(knuckle, tmp_path):
    (tmp_path / "arm.xml").write_text("precious")
    assert knuckle("export", "cartpole", "arm.xml", "--force").exit_code == 0
    assert knuckle("export", "cartpole", "arm.xml").exit_code == 0
    assert (tmp_path / "arm.xml").read_text() != "precious"


def test_links_in_the_folder_are_not_followed(knuckle, tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "trajectory.csv").symlink_to(tmp_path / "victim")
    (tmp_path / "out" / "motion.png").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"motion\.png, trajectory\.csv"):
        made_folder(tmp_path / "out", ["motion.png", "trajectory.csv"])
    assert knuckle(*SIMULATE, "--force").exit_code == 0
    assert (tmp_path / "victim").read_text() == "precious" and not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    "mark", ["", "[]", "{}", '{"files": 3}', '{"files": [3, null]}', "[" * 100_000, "\xff", '{"files": "fit.json"}']
)
def test_a_broken_mark_counts_as_none(tmp_path, mark):
    (tmp_path / MARK).write_text(mark)
    (tmp_path / "fit.json").write_text("precious")
    assert written_in(tmp_path) == set()
    with pytest.raises(ValueError, match="not written by knuckle"):
        made_folder(tmp_path, ["fit.json"])
    mark_written(tmp_path, ["fit.json"])
    assert made_folder(tmp_path, ["fit.json"]) == tmp_path
    assert json.loads((tmp_path / MARK).read_text())["files"] == ["fit.json"]


def test_a_robot_in_the_folder_of_results_is_not_among_them(tmp_path):
    robot = tmp_path / "arm.urdf"
    robot.write_text("<robot/>")
    assert {"arm.xml", "arm_fitted.urdf", "fit.json"} <= set(names_of_results(str(robot), tmp_path))
    assert "arm.urdf" not in names_of_results(str(robot), tmp_path)
    assert "arm.urdf" in names_of_results(str(robot), tmp_path / "elsewhere")


def test_a_failure_leaves_the_folder_as_it_was(tmp_path):
    (tmp_path / "fit.json").write_text("before")
    with pytest.raises(OSError, match="what was there before is whole"), all_or_nothing(tmp_path) as (part, _):
        (part / "fit.json").write_text("after")
        raise OSError("No space left on device")
    assert contents(tmp_path) == {"fit.json": "before"}
