"""A cluster of Ray that is started here listens to this machine alone, and its end is told in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from knuckle.optim import Ray, Status, basin_hopping
from knuckle.optim.distributed import RayWorkers
from knuckle.optim.workers import WorkersLost, attempt
from tests.optim.landscapes import build_wavy

ray = pytest.importorskip("ray")
ROOT = Path(__file__).parents[2]
LISTENING = "0A"  # state of a socket in /proc/net/tcp


def descendants(pid: int) -> set[int]:
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # gone in the meantime
            parents[int(file.parent.name)] = int(file.read_text().rsplit(")", 1)[1].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listening(pids: set[int]) -> list[str]:
    """Addresses, in hexadecimals as the kernel gives them, on which these processes wait for connections."""
    sockets = set()
    for link in (link for pid in pids for link in Path(f"/proc/{pid}/fd").glob("*")):
        with suppress(OSError):
            sockets.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [row[1].partition(":")[0] for row in rows if row[3] == LISTENING and row[9] in sockets]


def main() -> None:
    """Runs tasks on a new cluster, although RAY_ADDRESS names another, and prints where its processes listen."""
    found = []

    def note(progress) -> None:
        found.extend(listening(descendants(os.getpid())))

    options = {"num_cpus": 1, "runtime_env": {"env_vars": {"PYTHONPATH": ":".join(sys.path)}}}
    result = basin_hopping(
        build_wavy, [8.0, -8.0], searches=2, per_round=2, workers=Ray(None, options=options), progress=note
    )
    print(json.dumps({"done": result.status is Status.SEARCHES_DONE, "listening": found}))


@pytest.mark.skipif(sys.platform != "linux", reason="sockets by /proc")
def test_a_cluster_that_is_started_here_listens_on_loopback_only():
    environment = {**os.environ, "RAY_ADDRESS": "192.0.2.1:6379", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-m", "tests.optim.test_ray_local"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith('{"done"')]
    assert run.returncode == 0 and lines, run.stderr[-3000:]
    found = json.loads(lines[0])
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert found["done"] and len(found["listening"]) >= 4  # gcs_server, raylet, worker, driver
    assert set(found["listening"]) <= loopback


def dead_raylet() -> RayWorkers:
    """Workers of a cluster whose raylet has died: each task ends with the error that Ray gives then."""

    def died(*_, **__):
        raise ray.exceptions.LocalRayletDiedError

    workers: Any = object.__new__(RayWorkers)
    workers._plan, workers._key, workers._double, workers._job, workers._started = Ray(None), "", True, None, False
    workers._task = SimpleNamespace(remote=lambda *_: object())
    workers._ray = SimpleNamespace(
        exceptions=ray.exceptions,
        wait=lambda references, timeout: (references, []),
        get=died,
        cancel=died,
        cluster_resources=lambda: {"CPU": 2.0},
    )
    return workers


def test_a_raylet_that_dies_is_told_in_words():
    with pytest.raises(WorkersLost, match=r"the raylet.* died.*logs"):
        list(dead_raylet().run([1, 2, 3]))


class Lost:
    """A plan whose workers do the first round here and then lose their raylet."""

    def open(self, build, work) -> Any:
        problem, rounds, workers = build(), [], dead_raylet()

        def run(payloads, seconds=None):
            rounds.append(1)
            if len(rounds) > 1:
                yield from workers.run(payloads, seconds)
            for task, payload in enumerate(payloads):
                yield task, attempt(work, problem, payload, seconds)

        return SimpleNamespace(run=run, close=lambda: None)


def test_what_was_found_before_the_raylet_died_is_kept():
    with pytest.warns(UserWarning, match="ends early.*raylet"):
        found = basin_hopping(build_wavy, [8.0, -8.0], searches=40, per_round=4, workers=Lost())
    assert found.status is Status.WORKERS_LOST
    assert found.value < build_wavy().value_and_gradient(np.array([8.0, -8.0]))[0]


if __name__ == "__main__":
    main()
