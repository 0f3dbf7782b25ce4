"""Workers on many machines through Ray. One that dies, or a whole node, costs its own tasks one more try.

A cluster that is started here (address None) is for this machine alone: its servers listen on the loopback interface,
and there is no dashboard.

The modules that the job is pickled from must be importable on every node (install them there, or give Ray a
`runtime_env` with a `working_dir`).
"""

from __future__ import annotations

import hashlib
import os
import pickle
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from knuckle.optim.problem import pickled
from knuckle.optim.workers import (
    GRACE,
    TRIES,
    Outcome,
    Work,
    WorkersLost,
    attempt,
    deadline_in,
    double_precision,
    precision,
    time_left,
)

NODE_TRIES = 5  # how often a task is handed out when nodes die: it may go to one that is not yet known to be dead
NO_CLUSTER = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_built: dict[str, tuple[Any, Work]] = {}  # in a worker process of Ray: the job that it was given last


@dataclass(frozen=True)
class Ray:
    """A Ray cluster: its address ("auto" for the one of this machine, None to start one here).

    A process that has called ray.init already stays with the cluster it is connected to.
    """

    address: str | None = "auto"
    cpus: float = 1.0  # that a task takes
    options: dict[str, Any] = field(default_factory=dict)  # of ray.init, such as runtime_env

    def open(self, build: Callable[[], Any], work: Work) -> RayWorkers:
        return RayWorkers(self, build, work)


class RayWorkers:
    """Tasks of a Ray cluster, as many at a time as it has processors at that moment."""

    def __init__(self, plan: Ray, build: Callable[[], Any], work: Work):
        self._ray, self._plan = imported_ray(), plan
        job = pickled((build, work), "what workers do")
        self._started = not self._ray.is_initialized()
        if self._started:
            if plan.address is None:
                _start_here(self._ray, plan.options)
            else:
                _connect(self._ray, plan.address, plan.options)
        self._key, self._double = hashlib.sha256(job).hexdigest(), double_precision()
        self._job = self._ray.put(job)
        self._task = self._ray.remote(num_cpus=plan.cpus, max_retries=0)(_serve)

    def run(self, payloads: Sequence[Any], seconds: float | None = None) -> Iterator[tuple[int, Outcome]]:
        waiting, tries, deadline = deque(range(len(payloads))), [0] * len(payloads), deadline_in(seconds)
        under_way: dict[Any, int] = {}
        try:
            while waiting or under_way:
                left = time_left(deadline)
                if left == 0:
                    waiting.clear()
                    if time.monotonic() > (deadline or 0) + GRACE:
                        return
                while waiting and len(under_way) < self._places():
                    task = waiting.popleft()
                    arguments = (self._key, self._job, self._double, payloads[task], left)
                    under_way[self._task.remote(*arguments)] = task
                done, _ = self._ray.wait(list(under_way), timeout=0.1 if left == 0 else min(left or 1.0, 1.0))
                for reference in done:
                    yield from self._collect(reference, under_way.pop(reference), waiting, tries)
        except (ConnectionError, self._ray.exceptions.RaySystemError) as error:
            raise WorkersLost(f"the connection to Ray is lost: {error}") from error
        except self._ray.exceptions.LocalRayletDiedError as error:
            raise WorkersLost(
                f"Ray's own process on this machine (the raylet) died, and its workers with it; the logs in "
                f"/tmp/ray/session_latest/logs say why, often for lack of memory ({_first_line(error)})"
            ) from error
        finally:
            for reference in under_way:
                with suppress(Exception):  # without a raylet nothing can be taken back
                    self._ray.cancel(reference, force=True)

    def _places(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 0) // self._plan.cpus))

    def _collect(self, reference: Any, task: int, waiting: deque[int], tries: list[int]):
        errors = self._ray.exceptions
        try:
            outcome = self._ray.get(reference)
        except errors.RayTaskError as error:
            raise RuntimeError(f"a worker of Ray could not build the problem:\n{error}") from error
        except (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.ObjectLostError,
            errors.OutOfMemoryError,
        ) as error:
            tries[task] += 1
            if tries[task] < (NODE_TRIES if isinstance(error, errors.NodeDiedError) else TRIES):
                waiting.appendleft(task)
                return
            outcome = Outcome(failure=f"the worker died {tries[task]} times over this task: {error}")
        yield task, outcome

    def close(self) -> None:
        if self._started and self._ray.is_initialized():
            self._ray.shutdown()


def _connect(ray: Any, address: str, options: dict[str, Any]) -> None:
    try:
        ray.init(address=address, log_to_driver=False, **options)
    except ConnectionError as error:
        raise ConnectionError(f"there is no Ray cluster at {address!r}: {error}") from error


def _start_here(ray: Any, options: dict[str, Any]) -> None:
    """A cluster of this machine alone, whatever RAY_ADDRESS says."""
    with _on_loopback():
        ray.init(**{"address": "local", "log_to_driver": False, "include_dashboard": False, **options})
    address = ray.util.get_node_ip_address()
    if not address.startswith("127.") and "_node_ip_address" not in options:
        warnings.warn(f"Ray's servers listen on {address}, open to other machines", stacklevel=4)


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Has Ray bind its servers to 127.0.0.1, as it does where it knows no clusters (macOS and Windows).

    ray.init replaces 127.0.0.1 by an address of the network on Linux. Ray reads the switch when it is imported, which
    may have been before; processes that it starts read it from the environment.
    """
    from ray._private import ray_constants

    before, known = os.environ.get(NO_CLUSTER), getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    os.environ[NO_CLUSTER] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = known
        if before is None:
            del os.environ[NO_CLUSTER]
        else:
            os.environ[NO_CLUSTER] = before


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _serve(key: str, job: bytes, double: bool, payload: Any, seconds: float | None) -> Outcome:
    """A task in a worker process of Ray, which builds a problem once for all tasks of it."""
    with precision(double):
        if key not in _built:
            build, work = pickle.loads(job)
            _built.clear()
            _built[key] = build(), work
        problem, work = _built[key]
        return attempt(work, problem, payload, seconds)


def imported_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ImportError('workers on many machines need Ray: pip install "knuckle[distributed]"') from error
    return ray
