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
from typer.testing import CliRunner

from knuckle import cli_run
from knuckle.cli import app
from tests.test_cli_fit import FILES, log  # noqa: F401  # a fixture

ROUNDS = "checkpoint.rounds.npz"


def words_of(log: Path, folder: Path, *more: object) -> list[str]:  # noqa: F811
    return ["fit", "double_pendulum", str(log), "--free=*.mass=0.05:20", "--out", str(folder), *map(str, more)]


def started(words: list[str]) -> subprocess.Popen:
    script = "from knuckle.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", script, *words], stderr=subprocess.PIPE, text=True)


def rounds_in(folder: Path, least: int, run: subprocess.Popen) -> int:
    """Waits until so many rounds of a global search are on disk."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and run.poll() is None:
        if (folder / ROUNDS).exists() and (made := len(np.load(folder / ROUNDS)["best"])) >= least:
            return made
        time.sleep(0.05)
    raise AssertionError(f"no {least} rounds in {folder}: {run.communicate()[1]}")


def test_killed_it_goes_on_from_its_rounds_and_ctrl_c_then_writes_the_best(log, tmp_path):  # noqa: F811
    folder = tmp_path / "out"
    words = words_of(log, folder, "--search=basin-hopping", "--workers=0", "--starts=4000")
    run = started(words)
    made = rounds_in(folder, 1, run)
    run.kill()
    run.communicate()
    assert {path.name for path in folder.iterdir()} <= {ROUNDS, f"{ROUNDS}.{run.pid}.part"}
    kept = np.load(folder / ROUNDS)["value"].min()

    run = started([*words, "--resume"])
    rounds_in(folder, made + 1, run)
    run.send_signal(signal.SIGINT)
    _, text = run.communicate(timeout=60)
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

    def impatient(self, look):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(cli_run.Display, "watch", impatient)
        run = CliRunner().invoke(app, words)
    assert run.exit_code == 130 and "stopped: nothing new is written" in run.stderr, run.output
    assert contents(folder) | before == contents(folder)

    def full(path: Path, text: str, encoding: str):
        if path.name == ".report.html.part":
            path.write_bytes(text[:1000].encode())
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return path.write_bytes(text.encode())

    monkeypatch.setattr(Path, "write_text", full)
    run = CliRunner().invoke(app, words)
    assert run.exit_code == 1 and isinstance(run.exception, SystemExit), run.output
    assert "No space left on device" in run.stderr and "what was there before is whole" in run.stderr
    after = contents(folder)
    assert {name: after[name] for name in before} == before
    assert set(after) == FILES | {"checkpoint.npz"}
