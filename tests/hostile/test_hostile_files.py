"""Every hostile file is refused by our own error, with the file's name, within 5 s and a bound on memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile import log_files, robot_files
from tests.hostile.runner import SECONDS

ROOT = Path(__file__).parents[2]
LONGEST_MESSAGE = 30_000  # characters

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory by /proc and RLIMIT_AS")


def run(kind: str, folder: Path) -> dict[str, dict]:
    """What came of each case; the process dies of the one that takes too much."""
    environment = {**os.environ, "KNUCKLE_CACHE": "", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.hostile.runner", kind, str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    lines = done.stdout.splitlines()
    found = {f["name"]: f for f in (json.loads(line) for line in lines if line.startswith("{"))}
    assert done.returncode == 0, f"died with {done.returncode} after {lines[-1:]}: {done.stderr[-2000:]}"
    return found


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory) -> dict[str, dict]:
    pytest.importorskip("h5py")
    pytest.importorskip("pyarrow")
    pytest.importorskip("rosbags")
    return run(request.param, tmp_path_factory.mktemp("hostile"))


def check(found: dict, words: tuple[str, ...]) -> None:
    for word in words:
        assert word in found["message"], found
    assert found["length"] < LONGEST_MESSAGE
    assert found["seconds"] < SECONDS


@pytest.mark.parametrize("outcomes", ["robots"], indirect=True)
@pytest.mark.parametrize("case", robot_files.REFUSED)
def test_hostile_robots_are_refused(case, outcomes):
    found = outcomes[case]
    assert found["error"] == "LoadError" and found["value_error"], found
    check(found, robot_files.REFUSED[case][1])


@pytest.mark.parametrize("outcomes", ["meshes"], indirect=True)
@pytest.mark.parametrize("case", robot_files.LEFT_OUT)
def test_hostile_meshes_are_left_out_by_name(case, outcomes):
    found = outcomes[case]
    assert found["error"] is None, found
    check(found, robot_files.LEFT_OUT[case][1])


@pytest.mark.parametrize("outcomes", ["logs"], indirect=True)
@pytest.mark.parametrize("case", log_files.REFUSED)
def test_hostile_logs_are_refused(case, outcomes):
    found = outcomes[case]
    if case in log_files.READ:
        assert found["error"] is None, found
    else:
        assert found["error"] in ("RecordingError", "TooLarge") and found["value_error"], found
    check(found, log_files.REFUSED[case][1])
