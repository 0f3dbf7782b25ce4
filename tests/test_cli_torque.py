"""`knuckle fit` from the command line where torques were measured: by default, and `--loss torque`."""

import json

import numpy as np
from typer.testing import CliRunner

import knuckle as kn
from knuckle import robots
from knuckle.cli import app
from tests.sysid.regression.driven import log, rubbing
from tests.sysid.test_torque_fit import arm

RUN = CliRunner()


def written(folder, run):
    """The log as a CSV file with columns by name."""
    names = run["q"].names
    head = ["time", *(f"{n}_{kind}" for kind in ("pos", "vel", "effort") for n in names)]
    table = np.column_stack([run.time, run["q"].values, run["qd"].values, run["tau"].values])
    path = folder / "log.csv"
    np.savetxt(path, table, delimiter=",", header=",".join(head), comments="", fmt="%.9g")
    return path


def test_a_log_with_torques_becomes_a_folder_with_torque_errors(tmp_path):
    model = robots.load("double_pendulum")
    run = log(rubbing(model, armature=0.02, damping=0.1, friction=0.05), seconds=15, noise=0.01)
    out = tmp_path / "fit"
    result = RUN.invoke(
        app, ["fit", "double_pendulum", str(written(tmp_path, run)), "--loss", "torque", "--out", str(out)]
    )
    assert result.exit_code == 0, result.output
    data = json.loads((out / "fit.json").read_text())
    assert data["loss"] == "torque" and data["torque_errors"][0]["unit"] == "N m"
    assert all(e["held_out"] < 0.1 * e["effort"] for e in data["torque_errors"])
    assert "Torque error by joint" in (out / "report.html").read_text()
    fitted = kn.load_hybrid(out / "model.knuckle")
    np.testing.assert_allclose(fitted.model.damping, 0.1, rtol=0.1)
    assert "shoulder" in result.output and "held out" in result.output


def test_options_that_a_regression_does_not_have_are_refused(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("time,shoulder_pos\n0,0\n1,1\n")
    result = RUN.invoke(app, ["fit", "double_pendulum", str(path), "--loss", "torque", "--free", "*.mass"])
    assert result.exit_code == 1 and "--free" in result.output


def test_default_settings_regress_torques_and_say_so(tmp_path):
    model = rubbing(arm(), armature=0.05, damping=0.3, friction=0.3)
    run, out, robot = log(model, seconds=10, noise=0.02), tmp_path / "fit", tmp_path / "robot.xml"
    kn.save(arm(), robot)
    result = RUN.invoke(app, ["fit", str(robot), str(written(tmp_path, run)), "--out", str(out)])
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "torque regression: positions and efforts" in words and "of held-out data, error before" in words
    data = json.loads((out / "fit.json").read_text())
    assert data["method"].startswith("torque regression") and data["status"] == "converged"
    assert data["held_out"]["after"]["q"] < 0.5 * data["held_out"]["before"]["q"]
    assert any("refine" in line for line in data["notes"])
    page = (out / "report.html").read_text()
    assert "Motion error on held-out data" in page and "Torque error by joint" in page
    fitted = kn.load_hybrid(out / "model.knuckle")
    np.testing.assert_allclose(fitted.model.damping, 0.3, rtol=0.1)
    assert fitted.dt is not None and fitted.dt <= 0.002
    np.testing.assert_allclose(kn.load(out / "robot.xml").damping, 0.3, rtol=0.1)
