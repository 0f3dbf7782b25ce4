"""`knuckle fit --ray` on two nodes, where a worker and then a whole node die in mid-run: the result is the same."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from knuckle import cli_run
from knuckle.cli import app
from knuckle.optim.distributed import RayWorkers
from tests.test_cli_fit import log  # noqa: F401  # a fixture

ray = pytest.importorskip("ray")


@pytest.fixture
def cluster():
    """A head and one more node, with a processor each, on this machine."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": ":".join(sys.path)}})
    yield cluster, node
    ray.shutdown()
    cluster.shutdown()


def at_tasks(raylet: int) -> list[int]:
    """Processes that this one has started, or they in turn, and that are at a task now: Ray names them so."""
    parents, names = {}, {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # gone in the meantime
            pid, (before, after) = int(file.parent.name), file.read_text().rsplit(")", 1)
            parents[pid], names[pid] = int(after.split()[1]), before.split("(", 1)[1]
    found = {raylet}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return [pid for pid in found if names.get(pid, "").startswith("ray::_serve")]


def held_worker(node) -> int:
    """A process of this node that is at a task, held there: so that the task is lost with it, however fast it is."""
    raylet, deadline = node.all_processes["raylet"][0].process.pid, time.monotonic() + 300
    while time.monotonic() < deadline:
        for pid in at_tasks(raylet):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.01)
                if pid in at_tasks(raylet):
                    return pid
                os.kill(pid, signal.SIGCONT)
        time.sleep(0.005)
    raise AssertionError("no worker is at a task")


def test_a_worker_and_a_node_that_die_do_not_change_the_result(cluster, log, tmp_path, monkeypatch):  # noqa: F811
    cluster, node = cluster
    collect, tries, done = RayWorkers._collect, {}, []

    def noted(self, reference, task, waiting, counts):
        yield from collect(self, reference, task, waiting, counts)
        tries[id(counts)] = counts

    def fault(look):
        if look.searches == 8:
            os.kill(held_worker(cluster.head_node), signal.SIGKILL)
            done.append("worker")
        elif look.searches == 16:
            held = held_worker(node)
            cluster.remove_node(node, allow_graceful=False)
            with suppress(ProcessLookupError):
                os.kill(held, signal.SIGKILL)  # it cannot end by itself
            done.append("node")

    watch = cli_run.Display.watch

    def watched(self, look):
        watch(self, look)
        threading.Thread(target=fault, args=[look], daemon=True).start()  # in the midst of the next round

    def fitted(folder, *more):
        words = ["--free=*.mass=0.05:20", "--loss=single", "--search=basin-hopping", "--starts=32", "--out", folder]
        run = CliRunner().invoke(app, ["fit", "double_pendulum", str(log), *words, *more])
        assert run.exit_code == 0, run.output
        return json.loads((tmp_path / folder / "fit.json").read_text())

    monkeypatch.chdir(tmp_path)
    plain = fitted("plain", "--workers=1")
    monkeypatch.setattr(RayWorkers, "_collect", noted)
    monkeypatch.setattr(cli_run.Display, "watch", watched)
    found = fitted("ray", "--ray", cluster.address)
    assert done == ["worker", "node"] and sum(map(sum, tries.values())) >= 2  # each had a task, which was lost
    assert found["parameters"] == plain["parameters"] and found["status"] == "converged"
    assert found["half_sum_of_squares"] == plain["half_sum_of_squares"]
