"""Worker processes: one that dies, hangs or fails costs its own task only; Ctrl-C keeps the best so far."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knuckle.optim import Status, basin_hopping, opened, workers
from tests.contention import Watch
from tests.optim.landscapes import (
    Deadly,
    Slow,
    build_broken,
    build_fatal,
    build_wavy,
    build_wrong,
    value_at,
    with_file_open,
)

POINTS = [np.array([x, 0.5]) for x in (4.0, -7.0, 2.0, -3.0, 6.0)]
EXACT = [value_at(build_wavy(), x, None) for x in POINTS]


def outcomes(build, count: int, work=value_at) -> dict[int, workers.Outcome]:
    with opened(count, build, work) as team:
        return dict(team.run(POINTS))


def test_a_worker_that_dies_once_costs_one_more_try(tmp_path):
    done = outcomes(Deadly(str(tmp_path), deaths=1), 2)
    assert [done[i].value for i in range(5)] == EXACT and len(list(tmp_path.iterdir())) == 1


def test_a_task_that_kills_its_workers_is_recorded_and_the_others_are_done(tmp_path):
    done = outcomes(Deadly(str(tmp_path)), 2)
    assert len(list(tmp_path.iterdir())) == 2  # tries
    for i, x in enumerate(POINTS):
        if x[0] < -5:
            assert done[i].value is None and "signal 9 (SIGKILL), 2 times over this task" in str(done[i].failure)
        else:
            assert done[i] == workers.Outcome(EXACT[i])


def test_a_search_goes_on_when_workers_die(tmp_path):
    """With this seed one search of eight comes into the deadly region; starts anywhere do not depend on the others."""
    options: dict[str, Any] = {"searches": 8, "per_round": 4, "seed": 1, "restart": "anywhere"}
    found = basin_hopping(Deadly(str(tmp_path), upper=-8.0), [8.0, -8.0], workers=2, **options)
    plain = basin_hopping(build_wavy, [8.0, -8.0], **options)
    assert found.status is Status.SEARCHES_DONE and found.searches is not None and plain.searches is not None
    (failure,) = found.failures
    assert failure.startswith("task ") and " of round " in failure and "SIGKILL" in failure
    task, number = (int(word) for word in failure.replace(":", "").split()[1:5:3])
    np.testing.assert_array_equal(found.searches.x, np.delete(plain.searches.x, 4 * number + task, axis=0))


def test_an_error_in_a_task_is_its_outcome():
    done = outcomes(build_wrong, 1)
    assert len(done) == 5 and all("wheels came off" in str(outcome.failure) for outcome in done.values())


def test_what_cannot_be_sent_back_is_an_outcome_too():
    assert all("cannot be sent back" in str(o.failure) for o in outcomes(build_wavy, 1, with_file_open).values())


def test_a_problem_that_cannot_be_built_is_an_error():
    with pytest.raises(RuntimeError, match=r"could not build the problem:(.|\n)*no such robot"):
        outcomes(build_broken, 1)
    with pytest.raises(workers.WorkersLost, match=r"signal 9 \(SIGKILL\) before it was ready, 4 times in a row"):
        outcomes(build_fatal, 1)


def test_tasks_that_hang_are_ended_when_the_time_is_up(monkeypatch):
    monkeypatch.setattr(workers, "GRACE", 0.2)
    with opened(1, Slow(60.0, below=0.0), value_at) as team:
        assert len(dict(team.run(POINTS[:1]))) == 1  # the worker is there
        with Watch() as watch:
            done = dict(team.run(POINTS, 0.5))
        assert list(done) == [0] and watch.within(0.5 + 0.2, work=4)
        assert not team._members  # type: ignore[attr-defined]


SCRIPT = """
import os, signal, sys, threading, time
sys.path.insert(0, {root!r})
from knuckle.optim import basin_hopping
from tests.optim.landscapes import Slow

def after(progress):
    if progress.rounds == 1:
        print("round", progress.best, flush=True)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
    found = basin_hopping(Slow(0.02), [8.0, -8.0], searches=8000, workers=2, progress=after)
    print(found.status, found.iterations, found.value, flush=True)
"""


def test_ctrl_c_at_the_terminal_returns_the_best_so_far(tmp_path):
    """The signal goes to all processes of the group, as a terminal sends it."""
    script = tmp_path / "search.py"
    script.write_text(textwrap.dedent(SCRIPT.format(root=str(Path(__file__).parents[2]))))
    run = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert run.stdout is not None
    first = run.stdout.readline().split()
    time.sleep(0.3)
    os.killpg(run.pid, signal.SIGINT)
    rest, _ = run.communicate(timeout=600)
    status, rounds, value = rest.split()
    assert run.returncode == 0 and status == "interrupted" and int(rounds) >= 1
    assert float(value) <= float(first[1])
