"""`knuckle fit` killed, stopped by Ctrl-C, on a full disk: nothing that was found or written before is lost."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from knuckle import cli_run, robots, sysid
from knuckle.cli import app
from knuckle.cli_folder import MARK, mark_written
from knuckle.sysid.report import page
from tests.test_cli_fit import FILES, check_page, log  # noqa: F401  # a fixture

ROUNDS = "checkpoint.rounds.npz"


def words_of(log: Path, folder: Path, *more: object) -> list[str]:  # noqa: F811
    return ["fit", "double_pendulum", str(log), "--free=*.mass=0.05:20", "--out", str(folder), *map(str, more)]


def started(words: list[str]) -> subprocess.Popen:
    script = "from knuckle.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", script, *words], stderr=subprocess.PIPE, text=True)


def rounds_in(folder: Path, least: int, run: subprocess.Popen) -> int:
    """Waits until so many rounds of a global search are on disk."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and run.poll() is None:
        if (folder / ROUNDS).exists() and (made := len(np.load(folder / ROUNDS)["best"])) >= least:
            return made
        time.sleep(0.05)
    raise AssertionError(f"no {least} rounds in {folder}: {run.communicate()[1]}")


def test_killed_it_goes_on_from_its_rounds_and_ctrl_c_then_writes_the_best(log, tmp_path):  # noqa: F811
    folder = tmp_path / "out"
    words = words_of(log, folder, "--search=basin-hopping", "--workers=0", "--starts=40000")
    run = started(words)
    made = rounds_in(folder, 1, run)
    run.kill()
    run.communicate()
    assert {path.name for path in folder.iterdir() if not path.name.endswith(".part")} == {ROUNDS, MARK}
    kept = np.load(folder / ROUNDS)["value"].min()

    run = started([*words, "--resume"])
    rounds_in(folder, made + 1, run)
    run.send_signal(signal.SIGINT)
    _, text = run.communicate(timeout=600)
    assert run.returncode == 130 and "Traceback" not in text and "--resume goes on from there" in text, text
    data = json.loads((folder / "fit.json").read_text())
    assert data["status"] == "interrupted" and data["half_sum_of_squares"] <= kept
    assert {path.name for path in folder.iterdir()} >= FILES


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_earlier_results_stay_whole(log, tmp_path, monkeypatch):  # noqa: F811
    """Whether Ctrl-C comes twice while it searches or the disk is full while it writes."""
    folder = tmp_path / "out"
    words, before = words_of(log, folder, "--held-out=0"), {name: f"an earlier {name}".encode() for name in FILES}
    folder.mkdir()
    for name, content in before.items():
        (folder / name).write_bytes(content)
    mark_written(folder, FILES)

    def impatient(self, look):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(cli_run.Display, "watch", impatient)
        run = CliRunner().invoke(app, words)
    assert run.exit_code == 130 and "stopped: nothing new is written" in run.stderr, run.output
    assert contents(folder) | before == contents(folder)

    def full(path: Path, text: str):
        path.write_text(text[:1000])
        if path.name == "report.html":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(page, "write_whole", full)
    run = CliRunner().invoke(app, words)
    assert run.exit_code == 1 and isinstance(run.exception, SystemExit), run.output
    assert "No space left on device" in run.stderr and "what was there before is whole" in run.stderr
    after = contents(folder)
    assert {name: after[name] for name in before} == before
    assert set(after) == FILES | {"checkpoint.npz", MARK}


@pytest.fixture(scope="module")
def found(log) -> sysid.Fit:  # noqa: F811
    model = robots.load("double_pendulum")
    return sysid.fit(model, list(sysid.read_recordings([log], model)), ["*.mass"], held_out=0)


def interrupted(*_):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(600)


def unlucky(*_):
    raise np.linalg.LinAlgError("a singular matrix")


@pytest.mark.parametrize(
    ("option", "name", "fault", "code", "told"),
    [
        ("--posterior=4", "sampled", unlucky, 1, "--posterior failed: LinAlgError: a singular matrix"),
        ("--posterior=4", "sampled", interrupted, 130, "--posterior was stopped by Ctrl-C"),
        ("--next-experiment=next.csv", "propose", unlucky, 1, "--next-experiment failed: LinAlgError: a singular"),
    ],
)
def test_what_is_asked_for_beside_a_fit_costs_it_nothing(
    log,  # noqa: F811
    found,
    tmp_path,
    monkeypatch,
    option,
    name,
    fault,
    code,
    told,
):
    """The fit is written before samples are drawn; an error or Ctrl-C then is a warning, also in the report."""
    folder = tmp_path / "out"
    monkeypatch.setattr(sysid, "fit", lambda *_, **__: found)
    monkeypatch.setattr(cli_run, name, fault)
    run = CliRunner().invoke(app, words_of(log, folder, option))
    assert run.exit_code == code and isinstance(run.exception, SystemExit), run.output
    assert f"warning: {told}" in run.stderr and f"the fit itself is in {folder}" in run.stderr
    assert {path.name for path in folder.iterdir()} == FILES | {MARK}
    data = json.loads((folder / "fit.json").read_text())
    assert [row["value"] for row in data["parameters"]] == [e.value for e in found.estimates]
    assert data["notes"][0].startswith(told) and told in (folder / "report.html").read_text()


def test_samples_and_the_next_experiment_are_in_the_report(log, found, tmp_path, monkeypatch):  # noqa: F811
    samples = np.array([e.value for e in found.estimates]) * (1 + 0.01 * np.random.default_rng(0).normal(size=(40, 2)))
    names, (recording, *_) = [e.name for e in found.estimates], sysid.read_recordings([log], found.model)
    then = [e._replace(lower=0.5 * (e.lower + e.value), deviation=0.5 * e.deviation) for e in found.estimates]

    def sampled(found, count, path):
        path.write_text("samples")
        return {"posterior": {"names": names, "samples": samples, "motion": 0.01}}

    proposed = sysid.Excitation(recording, then, found.estimates, found.certainty, 6.0, 2.0, 17)
    monkeypatch.setattr(sysid, "fit", lambda *_, **__: found)
    monkeypatch.setattr(cli_run, "sampled", sampled)
    monkeypatch.setattr(cli_run, "propose", lambda *_: proposed)
    run = CliRunner().invoke(app, words_of(log, tmp_path / "out", "--posterior=40", "--next-experiment=next.csv"))
    assert run.exit_code == 0, run.output
    data = json.loads((tmp_path / "out" / "fit.json").read_text())
    np.testing.assert_allclose(data["posterior"]["samples"], samples)
    assert data["next_experiment"]["expected"][0]["lower"] == then[0].lower and data["options"]["posterior"] == 40
    np.testing.assert_allclose(data["next_experiment"]["values"]["q"], recording["q"].values, rtol=1e-9)
    assert (tmp_path / "out" / "posterior.csv").read_text() == "samples"
    words = ("40 samples with equal weights", "would be 3 times smaller", "the best of 17 within the limits")
    check_page(tmp_path / "out" / "report.html", *words)
