"""Ray: the same results as here, and a worker or a whole node that dies costs its own tasks one more try."""

import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from knuckle.optim import Ray, Status, basin_hopping, opened
from knuckle.optim.distributed import RayWorkers, imported_ray
from tests.optim.landscapes import Deadly, Doomed, build_broken, build_wavy, value_at

ray = pytest.importorskip("ray")
POINTS = [np.array([x, 0.5]) for x in (4.0, -7.0, 2.0, -3.0)]
EXACT = [value_at(build_wavy(), x, None) for x in POINTS]


@pytest.fixture(scope="module")
def cluster():
    """A head with one processor and a node with one more, on this machine."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    ray.init(address=cluster.address, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": ":".join(sys.path)}})
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_ray_gives_the_same_result_as_this_process(cluster):
    here = basin_hopping(build_wavy, [8.0, -8.0], searches=12, per_round=6)
    there = basin_hopping(build_wavy, [8.0, -8.0], searches=12, per_round=6, workers=Ray(cluster.address))
    assert here.searches is not None and there.searches is not None
    np.testing.assert_array_equal(here.searches.x, there.searches.x)


def test_a_worker_that_dies_costs_one_more_try_and_a_deadly_task_is_recorded(cluster, tmp_path):
    once, always = tmp_path / "once", tmp_path / "always"
    once.mkdir()
    always.mkdir()
    with opened(Ray(cluster.address), Deadly(str(once), deaths=1), value_at) as team:
        done = dict(team.run(POINTS))
    assert [done[i].value for i in range(4)] == EXACT and len(list(once.iterdir())) == 1
    with opened(Ray(cluster.address), Deadly(str(always)), value_at) as team:
        done = dict(team.run(POINTS))
    assert "died 2 times over this task" in str(done[1].failure) and len(list(always.iterdir())) == 2
    assert [done[i].value for i in (0, 2, 3)] == [EXACT[i] for i in (0, 2, 3)]


def test_a_problem_that_cannot_be_built_is_an_error(cluster):
    with (
        opened(Ray(cluster.address), build_broken, value_at) as team,
        pytest.raises(RuntimeError, match=r"could not build the problem(.|\n)*no such robot"),
    ):
        list(team.run(POINTS))


def processors_become(number: int) -> bool:
    """Whether the cluster gets to have so many processors within a minute."""
    deadline = time.monotonic() + 600
    while ray.cluster_resources().get("CPU") != number and time.monotonic() < deadline:
        time.sleep(0.2)
    return ray.cluster_resources().get("CPU") == number


def test_a_node_that_dies_in_mid_run_costs_its_own_tasks_one_more_try(cluster, monkeypatch, tmp_path):
    """A task that has begun on the doomed node waits there until it is lost: nothing depends on how fast it all is."""
    collect, tries = RayWorkers._collect, {}

    def noted(self, reference, task, waiting, counts):
        yield from collect(self, reference, task, waiting, counts)
        tries[id(counts)] = counts

    monkeypatch.setattr(RayWorkers, "_collect", noted)
    node = cluster.add_node(num_cpus=1)
    assert processors_become(2)
    doomed = Doomed(str(tmp_path))

    def kill():
        doomed.wait_for_a_task()
        cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)

    def after_round(progress):
        if progress.rounds == 1:
            doomed.condemn(node.node_id)
            killer.start()

    options: dict[str, Any] = {"searches": 16, "per_round": 8}
    found = basin_hopping(doomed, [8.0, -8.0], workers=Ray(cluster.address), progress=after_round, **options)
    plain = basin_hopping(build_wavy, [8.0, -8.0], **options)
    killer.join(60)
    assert found.status is Status.SEARCHES_DONE and found.failures == ()
    assert sum(map(sum, tries.values())) == 1  # the node had a task, which was lost with it
    assert found.searches is not None and plain.searches is not None
    np.testing.assert_array_equal(found.searches.x, plain.searches.x)
    assert processors_become(1)


def test_a_missing_ray_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'pip install "knuckle\[distributed\]"'):
        imported_ray()
