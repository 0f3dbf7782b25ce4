"""Workers that do independent tasks: this process, or processes of this machine. One that dies costs its own task only.

A job is `build()`, called once by each worker, and `work(problem, payload, seconds)`, called for each task with the
time that is left. Both must be picklable. `distributed.py` has the same on many machines.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, TypeAlias

from knuckle.optim.problem import pickled

Work: TypeAlias = Callable[[Any, Any, float | None], Any]
TRIES = 2  # how often a task is handed out when workers die over it
GRACE = 5.0  # seconds that tasks get to end by themselves when the time is up
MOST_FALSE_STARTS = 4  # deaths of workers before they were ready
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class WorkersLost(RuntimeError):
    """No worker can be had any more."""


@dataclass(frozen=True)
class Outcome:
    """What became of a task: a value, or why there is none."""

    value: Any = None
    failure: str | None = None


class Workers(Protocol):
    """Does tasks and hands back their numbers and outcomes as they end; those not begun when the time is up never."""

    def run(self, payloads: Sequence[Any], seconds: float | None = None) -> Iterator[tuple[int, Outcome]]: ...

    def close(self) -> None: ...


class WorkerPlan(Protocol):
    """Where tasks are to be done."""

    def open(self, build: Callable[[], Any], work: Work) -> Workers: ...


@contextmanager
def opened(plan: int | WorkerPlan, build: Callable[[], Any], work: Work) -> Iterator[Workers]:
    """Workers for a job: 0 for this process, a number of processes, or a plan such as `distributed.Ray`."""
    if isinstance(plan, int):
        if plan < 0:
            raise ValueError(f"workers: expected 0 (this process), a number of processes or a plan, got {plan}")
        workers: Workers = Processes(build, work, plan) if plan else InProcess(build, work)
    else:
        workers = plan.open(build, work)
    try:
        yield workers
    finally:
        workers.close()


def attempt(work: Work, problem: Any, payload: Any, seconds: float | None) -> Outcome:
    """Do a task; an error is an outcome."""
    try:
        return Outcome(work(problem, payload, seconds))
    except Exception:
        return Outcome(failure=traceback.format_exc())


def time_left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def deadline_in(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


class InProcess:
    """Tasks one after the other, here."""

    def __init__(self, build: Callable[[], Any], work: Work):
        self._problem, self._work = build(), work

    def run(self, payloads: Sequence[Any], seconds: float | None = None) -> Iterator[tuple[int, Outcome]]:
        deadline = deadline_in(seconds)
        for number, payload in enumerate(payloads):
            left = time_left(deadline)
            if left == 0:
                return
            yield number, attempt(self._work, self._problem, payload, left)

    def close(self) -> None:
        """Nothing to close."""


class _Member:
    """A worker process and the task it is at."""

    def __init__(self, context, job: bytes):
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, job, double_precision()), daemon=True)
        with _one_thread():
            self.process.start()
        theirs.close()
        self.ready = False
        self.task: int | None = None

    def death(self) -> str:
        self.process.join(1.0)
        code = self.process.exitcode
        cause = (
            f"signal {-code} ({signal.Signals(-code).name})" if code is not None and code < 0 else f"exit code {code}"
        )
        return f"the worker process ended by {cause}"

    def end(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join(1.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class Processes:
    """Tasks in processes that are started afresh (spawn), each given its next task when it is done with the last."""

    def __init__(self, build: Callable[[], Any], work: Work, count: int):
        self._job = pickled((build, work), "what workers do")
        self._context = multiprocessing.get_context("spawn")
        self._count, self._false_starts = count, 0
        self._members: list[_Member] = []

    def run(self, payloads: Sequence[Any], seconds: float | None = None) -> Iterator[tuple[int, Outcome]]:
        waiting, tries, deadline = deque(range(len(payloads))), [0] * len(payloads), deadline_in(seconds)
        try:
            while waiting or self._busy():
                left = time_left(deadline)
                if left == 0:
                    waiting.clear()
                    if time.monotonic() > (deadline or 0) + GRACE:
                        return
                self._hand_out(waiting, payloads, left)
                for member in self._reporting(left):
                    yield from self._hear(member, waiting, tries)
        finally:
            for member in self._busy():  # at tasks that nobody waits for any more
                self._drop(member)

    def _busy(self) -> list[_Member]:
        return [member for member in self._members if member.task is not None]

    def _hand_out(self, waiting: deque[int], payloads: Sequence[Any], left: float | None) -> None:
        while len(self._members) < min(self._count, len(waiting) + len(self._busy())):
            self._members.append(_Member(self._context, self._job))
        for member in self._members:
            if waiting and member.ready and member.task is None:
                member.task = waiting.popleft()
                with suppress(OSError):  # it is dead: its end of the pipe will say so
                    member.connection.send((payloads[member.task], left))

    def _reporting(self, left: float | None) -> list[_Member]:
        """The members that have something to say: done, ready, or dead."""
        patience = 0.1 if left == 0 else left
        heard = set(wait([member.connection for member in self._members], patience))
        return [member for member in self._members if member.connection in heard]

    def _hear(self, member: _Member, waiting: deque[int], tries: list[int]) -> Iterator[tuple[int, Outcome]]:
        try:
            outcome = member.connection.recv()
        except (EOFError, OSError):
            yield from self._bury(member, waiting, tries)
            return
        if member.task is not None:
            task, member.task = member.task, None
            yield task, outcome
        elif outcome.failure is not None:
            raise RuntimeError(f"a worker process could not build the problem:\n{outcome.failure}")
        else:
            member.ready, self._false_starts = True, 0

    def _bury(self, member: _Member, waiting: deque[int], tries: list[int]) -> Iterator[tuple[int, Outcome]]:
        task, death = member.task, member.death()
        self._drop(member)
        if task is None:
            self._false_starts += not member.ready
            if self._false_starts >= MOST_FALSE_STARTS:
                raise WorkersLost(
                    f"{death} before it was ready, {MOST_FALSE_STARTS} times in a row. A script that uses workers "
                    "needs `if __name__ == '__main__':` around what it runs"
                )
            return
        tries[task] += 1
        if tries[task] < TRIES:
            waiting.appendleft(task)
        else:
            yield task, Outcome(failure=f"{death}, {TRIES} times over this task")

    def _drop(self, member: _Member) -> None:
        self._members.remove(member)
        member.end()

    def close(self) -> None:
        while self._members:
            self._drop(self._members[-1])


def _serve(connection: Connection, job: bytes, double: bool) -> None:
    """The life of a worker process: build once, then tasks until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for the result
    with precision(double):
        try:
            build, work = pickle.loads(job)
            problem = build()
        except Exception:
            connection.send(Outcome(failure=traceback.format_exc()))
            return
        connection.send(Outcome())
        while True:
            try:
                payload, seconds = connection.recv()
            except EOFError:
                return
            outcome = attempt(work, problem, payload, seconds)
            try:
                connection.send(outcome)
            except (pickle.PicklingError, AttributeError, TypeError, ValueError) as error:
                connection.send(Outcome(failure=f"the outcome of a task cannot be sent back: {error}"))


def double_precision() -> bool:
    """Whether JAX computes in float64 here; workers do as their parent does."""
    jax = sys.modules.get("jax")
    return bool(jax and jax.config.jax_enable_x64)


def precision(double: bool) -> AbstractContextManager:
    """JAX in float64, if so wished."""
    if not double:
        return nullcontext()
    import jax

    return jax.enable_x64(True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes started here use one thread each for linear algebra: all cores have a process already."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update({name: "1" for name in ONE_THREAD if before[name] is None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
