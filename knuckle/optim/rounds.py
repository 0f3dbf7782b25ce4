"""Synchronous rounds of independent tasks: the part that all global searches share.

What a round does depends on the seed, its number and the rounds before it only, never on how many workers there are or
which of them is first. So the same seed gives the same result, and a stopped search goes on as if it had not been.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from knuckle.optim import checkpoint
from knuckle.optim.checkpoint import State
from knuckle.optim.local import LocalSolver
from knuckle.optim.problem import Build, Problem
from knuckle.optim.result import Result, Searches, Status
from knuckle.optim.workers import Outcome, WorkerPlan, Workers, WorkersLost, opened


@dataclass(frozen=True)
class Progress:
    """Where a search stands after a round."""

    rounds: int
    searches: int
    most_searches: int
    loss: float  # the best value of this round
    best: float
    x: np.ndarray  # the best point
    seconds: float
    seconds_left: float  # at most: by the time limit, or by the pace so far


@dataclass(frozen=True)
class Limits:
    """When a search ends and what it does on its way."""

    searches: int  # local searches in all
    target: float = -np.inf  # a value that is good enough
    patience: int | None = None  # rounds without improvement
    seconds: float | None = None  # of this run; earlier runs that it resumes do not count
    progress: Callable[[Progress], None] | None = None
    save: Path | str | None = None  # a file for the state after every round
    resume: bool = False  # go on from that file


@dataclass(frozen=True)
class Found:
    """What a task of a global search hands back: its local searches, where they began, and what else is to be kept."""

    starts: list[np.ndarray]
    results: list[Result]
    kept: Any = None


def light(result: Result) -> Result:
    """A result without what is large, to be sent between processes."""
    return replace(result, residuals=None, jacobian=None, history=result.history[-1:])


class Method(Protocol):
    """A global search: what the tasks of each round are, and what is kept of them."""

    @property
    def local(self) -> LocalSolver: ...

    def searches_per_task(self) -> int: ...

    def searches_per_round(self) -> int: ...

    def settings(self) -> dict:
        """All that must be the same for a search to be resumed."""
        ...

    def first_state(self, problem: Problem) -> State:
        """What the method keeps from round to round, besides the record of its searches."""
        ...

    def tasks(self, problem: Problem, state: State) -> list[Any]: ...

    def work(self, problem: Problem, payload: Any, seconds: float | None) -> Found: ...

    def absorbed(self, state: State, found: dict[int, Found]) -> State: ...


def no_searches(size: int) -> State:
    """The record of local searches before the first of them."""
    return {
        "start": np.zeros((0, size)),
        "x": np.zeros((0, size)),
        "value": np.zeros(0),
        "status": np.zeros(0, dtype="U20"),
        "evaluations": np.zeros(0, dtype=np.int64),
        "best": np.zeros(0),  # the best value after every round
        "seconds": np.zeros(0),  # of every round
        "failures": np.zeros(0, dtype="U4000"),
    }


def recorded(state: State, found: dict[int, Found], failures: list[str]) -> State:
    """The record with the searches of one more round, in the order of the tasks."""
    starts = [start for task in sorted(found) for start in found[task].starts]
    ends = [result for task in sorted(found) for result in found[task].results]
    size = state["x"].shape[1]
    added = {
        "start": np.reshape(starts, (-1, size)),
        "x": np.reshape([end.x for end in ends], (-1, size)),
        "value": np.array([end.value if np.isfinite(end.value) else np.inf for end in ends], dtype=np.float64),
        "status": np.array([str(end.status) for end in ends], dtype="U20"),
        "evaluations": np.array([end.evaluations for end in ends], dtype=np.int64),
        "failures": np.array(failures, dtype="U4000"),
    }
    new = state | {name: np.concatenate([state[name], rows]) for name, rows in added.items()}
    return new | {"best": np.append(state["best"], new["value"].min(initial=np.inf))}


def best(state: State) -> int | None:
    """The number of the best search; the first of equals."""
    values = state["value"]
    return int(np.argmin(values)) if len(values) and np.isfinite(values.min()) else None


def search(
    method: Method, build: Build, problem: Problem, limits: Limits, workers: int | WorkerPlan, fallback: np.ndarray
) -> Result:
    """Rounds until a limit is met; Ctrl-C and lost workers end it with the best so far."""
    run = _Search(method, problem, limits)
    if workers != 0:
        with suppress(
            Exception
        ):  # workers will say what is wrong; this is to have native code on disk before they start
            problem.value_and_gradient(fallback)
    try:
        with opened(workers, build if workers != 0 else lambda: problem, method.work) as team:
            status = run.until_done(team)
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    except WorkersLost as error:
        if best(run.seen()) is None:
            raise
        warnings.warn(f"the search ends early: {error}", stacklevel=3)
        status = Status.WORKERS_LOST
    return run.result(status, fallback)


class _Search:
    """A search under way: the state after the last whole round, and what the round under way has given so far."""

    def __init__(self, method: Method, problem: Problem, limits: Limits):
        self.method, self.problem, self.limits = method, problem, limits
        self.began, self.callback = time.monotonic(), limits.progress
        self.path = None if limits.save is None else Path(limits.save)
        self.settings = method.settings() | {
            "names": list(problem.names),
            "lower": [repr(float(v)) for v in problem.lower],
            "upper": [repr(float(v)) for v in problem.upper],
        }
        if limits.resume and self.path is None:
            raise ValueError("resume=True needs save=, the file that the search was saved to")
        self.state = self._restored() if limits.resume else self._fresh()
        self.earlier = float(self.state["seconds"].sum())
        self.made = 0  # searches before the last whole round
        self.payloads: list[Any] = []
        self.outcomes: dict[int, Outcome] = {}

    def _fresh(self) -> State:
        return no_searches(self.problem.size) | self.method.first_state(self.problem)

    def _restored(self) -> State:
        assert self.path is not None
        state = checkpoint.load(self.path, self.settings)
        missing = sorted(self._fresh().keys() - state.keys())
        if missing:
            raise ValueError(f"{self.path} is not a saved search: it lacks {', '.join(missing)}")
        return state

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def until_done(self, team: Workers) -> Status:
        while (status := self._ended()) is None:
            if not self._whole_round(team):
                return Status.TIME_LIMIT
        return status

    def _ended(self) -> Status | None:
        limits, bests = self.limits, self.state["best"]
        if len(bests) and bests[-1] <= limits.target:
            return Status.TARGET_REACHED
        if limits.patience is not None and len(bests) > limits.patience:
            before, now = bests[-limits.patience - 1], bests[-1]
            if np.isfinite(now) and not now < before - 1e-9 * abs(before):
                return Status.CONVERGED
        if not self._tasks_left():
            return Status.SEARCHES_DONE
        if limits.seconds is not None and self.elapsed >= limits.seconds:
            return Status.TIME_LIMIT
        return None

    def _tasks_left(self) -> int:
        done = len(self.state["best"]) * self.method.searches_per_round()
        return max(0, self.limits.searches - done) // self.method.searches_per_task()

    def _whole_round(self, team: Workers) -> bool:
        """One round; False if the time was up before all of its tasks were done."""
        began = time.monotonic()
        whole, most = self.method.tasks(self.problem, self.state), self._tasks_left()
        self.payloads, self.outcomes = whole[:most], {}
        left = None if self.limits.seconds is None else max(0.0, self.limits.seconds - self.elapsed)
        for number, outcome in team.run(self.payloads, left):
            self.outcomes[number] = outcome
            if _ended_by(outcome, Status.INTERRUPTED):
                raise KeyboardInterrupt
        if len(self.outcomes) < len(self.payloads) or any(
            _ended_by(o, Status.TIME_LIMIT) for o in self.outcomes.values()
        ):
            return False
        self.made, state = len(self.state["value"]), self.seen()
        self.state = state | {"seconds": np.append(state["seconds"], time.monotonic() - began)}
        self.payloads, self.outcomes = [], {}
        self._refuse_failure()
        self._report(save=most >= len(whole))  # a search with more of them would not have cut this round short
        return True

    def seen(self) -> State:
        """The state with all that the round under way has given."""
        if not self.outcomes:
            return self.state
        found = {task: outcome.value for task, outcome in self.outcomes.items() if outcome.failure is None}
        failed = [task for task in sorted(self.outcomes) if task not in found]
        failures = [f"task {task} of round {len(self.state['best'])}: {self.outcomes[task].failure}" for task in failed]
        return recorded(self.method.absorbed(self.state, found), found, failures)

    def _refuse_failure(self) -> None:
        """A first round in which every task ended with an error is a mistake in the problem, not bad luck."""
        failures = self.state["failures"]
        if len(failures) and not len(self.state["value"]):
            raise RuntimeError(f"every task of the first round failed; the first one so:\n{failures[0]}")

    def _report(self, save: bool) -> None:
        if self.path is not None and save:
            checkpoint.save(self.path, self.state, self.settings)
        if self.callback is None:
            return
        try:
            self.callback(self._progress())
        except Exception as error:
            warnings.warn(f"the search goes on without its progress report, which failed: {error!r}", stacklevel=2)
            self.callback = None

    def _progress(self) -> Progress:
        state, limits = self.state, self.limits
        number, size, rounds = best(state), self.method.searches_per_round(), len(state["best"])
        values, done = state["value"], min(rounds * size, limits.searches)
        pace = float(state["seconds"].mean())
        left = pace * -(-(limits.searches - done) // size)
        if limits.seconds is not None:
            left = min(left, max(0.0, limits.seconds - self.elapsed))
        x = state["x"][number] if number is not None else np.full(self.problem.size, np.nan)
        least = np.inf if number is None else float(values[number])
        newest = float(values[self.made :].min(initial=np.inf))
        return Progress(rounds, done, limits.searches, newest, least, x, self.elapsed, left)

    def result(self, status: Status, fallback: np.ndarray) -> Result:
        """The best search, with derivatives at its end; the point that would have come first if there is none."""
        state = self.seen()
        number = best(state)
        x = self.problem.start(fallback) if number is None else state["x"][number]
        if number is None and status is Status.SEARCHES_DONE:
            status = Status.NON_FINITE_START
        return replace(
            self.method.local.at(self.problem, x),
            status=status,
            iterations=len(self.state["best"]),
            evaluations=int(state["evaluations"].sum()),
            seconds=self.earlier + self.elapsed,
            history=state["best"],
            searches=Searches(state["start"], state["x"], state["value"], tuple(state["status"]), state["evaluations"]),
            failures=tuple(str(text) for text in state["failures"]),
        )


def _ended_by(outcome: Outcome, status: Status) -> bool:
    return outcome.failure is None and any(result.status == status for result in outcome.value.results)
