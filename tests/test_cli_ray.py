"""`knuckle fit --ray` on two nodes, where a worker and then a whole node die in mid-run: the result is the same."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

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


def busy_worker(node) -> int:
    """A process of this node that is at a task."""
    import psutil

    raylet = node.all_processes["raylet"][0].process.pid
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for child in psutil.Process(raylet).children(recursive=True):
            if child.name().startswith("ray::_serve"):
                return child.pid
        time.sleep(0.02)
    raise AssertionError("no worker is at a task")


def test_a_worker_and_a_node_that_die_do_not_change_the_result(cluster, log, tmp_path, monkeypatch):  # noqa: F811
    cluster, node = cluster
    collect, tries, done = RayWorkers._collect, {}, []

    def noted(self, reference, task, waiting, counts):
        yield from collect(self, reference, task, waiting, counts)
        tries[id(counts)] = counts

    def fault(look):
        if look.searches == 8:
            os.kill(busy_worker(cluster.head_node), signal.SIGKILL)
            done.append("worker")
        elif look.searches == 16:
            cluster.remove_node(node, allow_graceful=False)
            done.append("node")

    watch = cli_run.Display.watch

    def watched(self, look):
        watch(self, look)
        threading.Timer(0.1, fault, [look]).start()  # in the midst of the next round

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
