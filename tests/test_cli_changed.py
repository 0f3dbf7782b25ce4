"""`knuckle fit --changed` from the command line."""

import json
import time

import numpy as np
from typer.testing import CliRunner

from knuckle import sysid
from knuckle.cli import app
from tests.contention import Watch
from tests.sysid.changes.test_find_changes import MASS, TRUE, loaded, run

RUN = CliRunner()


def written(path, recording):
    """The log as a CSV file with columns by name."""
    names = recording["q"].names
    head = ["time", *(f"{n}_{kind}" for kind in ("pos", "vel", "effort") for n in names)]
    table = np.column_stack([recording.time, *(recording[key].values for key in ("q", "qd", "tau"))])
    np.savetxt(path, table, delimiter=",", header=",".join(head), comments="", fmt="%.9g")
    return str(path)


def test_two_logs_give_the_payload_and_the_gains(tmp_path):
    before, after = written(tmp_path / "a.csv", run(TRUE, 0)), written(tmp_path / "b.csv", run(loaded(), 1))
    out = tmp_path / "fit"
    options = ["--changed", after, "--load", f"lower={MASS}", "--out", str(out)]
    result = RUN.invoke(app, ["fit", "double_pendulum", before, *options])
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "A payload on lower: 0.3" in said and "true effort over recorded effort" in said
    changed = json.loads((out / "fit.json").read_text())["changed"]
    assert [(c["kind"], c["place"]) for c in changed["changes"]] == [("payload", "lower")]
    assert [g["joint"] for g in changed["gains"]] == ["shoulder", "elbow"] and changed["logs"] == [after]
    assert "<h2>What changed</h2>" in (out / "report.html").read_text()


def test_a_comparison_obeys_the_time_and_says_what_is_missing(tmp_path, monkeypatch):
    """The comparison would take a minute; the whole command takes the seconds that it was given, and a reserve."""
    before, after = written(tmp_path / "a.csv", run(TRUE, 0)), written(tmp_path / "b.csv", run(loaded(), 1))
    monkeypatch.setattr(sysid, "find_changes", lambda *arguments, **options: time.sleep(60))
    words = ["fit", "double_pendulum", before, "--changed", after, "--seconds", "12", "--out", str(tmp_path / "fit")]
    with Watch() as watch:
        result = RUN.invoke(app, words)
    assert watch.within(12 * 1.1, 5), result.output
    assert result.exit_code == 0 and "what changed: the time was over" in " ".join(result.output.split())
    data = json.loads((tmp_path / "fit" / "fit.json").read_text())
    assert "what changed: the time was over" in data["left_out"] and "changed" not in data


def test_options_that_do_not_fit_together_are_refused(tmp_path):
    log = written(tmp_path / "a.csv", run(TRUE, 0))
    for options, words in (
        (["--load", "lower=1"], "give --changed too"),
        (["--changed", log], "among the logs"),
        (["--changed", "other.csv", "--load", "lower"], "LINK=KILOGRAMS"),
        (["--changed", "other.csv", "--network", "joint/force"], "--network"),
    ):
        result = RUN.invoke(app, ["fit", "double_pendulum", log, *options, "--out", str(tmp_path / "out")])
        assert result.exit_code == 1 and words in " ".join(result.output.split()), (options, result.output)
