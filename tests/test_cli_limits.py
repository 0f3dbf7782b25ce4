"""`knuckle fit` within its time, and without what brings nothing."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time

from typer.testing import CliRunner

import knuckle as kn
from knuckle.cli import app
from knuckle.sysid.objective import Objective
from tests.contention import Watch
from tests.test_cli_fit import log  # noqa: F401  # a fixture


def test_a_limit_of_time_holds_for_the_whole_command(log, tmp_path, monkeypatch):  # noqa: F811
    """A compiler that takes ten minutes: the description is written with a status, and no interval."""
    monkeypatch.setattr(Objective, "look", lambda self, x: time.sleep(600))
    words = ["fit", "double_pendulum", str(log), "--free=*.mass", "--seconds", "4", "--out", str(tmp_path / "out")]
    with Watch() as watch:
        run = CliRunner().invoke(app, words)
    assert watch.within(1.1 * 4, work=5)
    assert run.exit_code == 3 and "nothing was fitted" in run.output, run.output
    data = json.loads((tmp_path / "out" / "fit.json").read_text())
    assert data["status"] == "time limit" and data["converged"] is False and "compiling" in data["left_out"][0]
    assert all(row["lower"] is None and row["value"] == row["before"] for row in data["parameters"])
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"fit.json", "report.html", "model.knuckle"}


def test_a_network_that_brings_nothing_is_left_out_unless_it_is_asked_for(log, tmp_path):  # noqa: F811
    """The log is that of the model with other masses: there is nothing to learn."""
    words = ["fit", "double_pendulum", str(log), "--free=*.mass", "--network", "joint/passive_force", "--draws=1"]
    run = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert run.exit_code == 0 and "brought nothing and is left out" in run.output, run.output
    data = json.loads((tmp_path / "out" / "fit.json").read_text())
    assert data["networks"] == [] and "without" in data["notes"][0] and "with" in data["notes"][0]
    assert kn.load_hybrid(tmp_path / "out" / "model.knuckle").blueprint is None
    text = (tmp_path / "out" / "report.html").read_text()
    assert "brought nothing" in text


def test_the_age_of_a_shell_that_becomes_the_command_does_not_count():
    """bash -c 'a && b' turns into b: what was installed before took the time of the demo."""
    age = "time.monotonic() - c.began() - time.process_time()"
    script = f"import time; from knuckle import cli_common as c; c.process_begins(); print({age})"
    command = f"sleep 3 && exec {shlex.quote(sys.executable)} -c {shlex.quote(script)}"
    assert (
        float(subprocess.check_output(["bash", "-c", command], text=True)) < 1.0
    )  # 3 s and more by the kernel's clock
