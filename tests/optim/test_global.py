"""Global searches: they find what local ones miss, always the same way, and go on from where they were stopped."""

import resource
import sys
import time
from contextlib import contextmanager

import jax.numpy as jnp
import numpy as np
import pytest

from knuckle.optim import (
    LBFGSB,
    BasinHopping,
    LeastSquares,
    LevenbergMarquardt,
    Population,
    Result,
    Status,
    basin_hopping,
    population_search,
)
from knuckle.optim.population import imported_pygmo
from tests.optim.landscapes import build_wavy, build_wrong, differentiated, wavy

START = [8.0, -8.0]


def islands(*arguments, **options) -> Result:
    pytest.importorskip("pygmo")
    return population_search(*arguments, **{"islands": 3, "members": 8, "refined": 2, "searches": 24, **options})


def hops(*arguments, **options) -> Result:
    return basin_hopping(*arguments, **{"searches": 24, "per_round": 6, **options})


methods = pytest.mark.parametrize("method", [hops, islands])


def same(a: Result, b: Result) -> bool:
    assert a.searches is not None and b.searches is not None
    pairs = [(getattr(a.searches, f), getattr(b.searches, f)) for f in ("start", "x", "value", "status", "evaluations")]
    return all(np.array_equal(x, y) for x, y in pairs) and a.status == b.status and np.array_equal(a.x, b.x)


@pytest.mark.parametrize("options", [{}, {"restart": "anywhere"}, {"local": LBFGSB()}])
def test_hops_find_the_minimum_that_a_local_search_misses(options):
    assert LevenbergMarquardt()(build_wavy(), START).value > 1
    found = basin_hopping(build_wavy, START, target=1e-9, **options)
    assert found.status is Status.TARGET_REACHED and found.value <= 1e-9
    np.testing.assert_allclose(found.x, 1, atol=1e-4)
    assert found.residuals is not None and found.jacobian is not None and found.jacobian.shape == (4, 2)
    np.testing.assert_array_equal(found.searches.start[0], START)  # type: ignore[union-attr]


@pytest.mark.parametrize("algorithm", ["sade", "cmaes"])
def test_islands_find_it_too(algorithm):
    found = islands(build_wavy, START, algorithm=algorithm, target=1e-9, searches=60)
    assert found.status is Status.TARGET_REACHED
    np.testing.assert_allclose(found.x, 1, atol=1e-4)


@methods
def test_the_seed_decides_not_the_number_of_workers(method):
    alone = method(build_wavy, START, seed=3)
    assert alone.status is Status.SEARCHES_DONE and len(alone.searches) == 24
    assert not np.array_equal(alone.searches.x, method(build_wavy, START, seed=4).searches.x)
    assert same(alone, method(build_wavy, START, seed=3, workers=2))


@methods
def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(method, tmp_path):
    whole, rounds = method(build_wavy, START, seed=5), []

    def stop(progress):
        rounds.append(progress)
        if len(rounds) == 2:
            raise KeyboardInterrupt

    file = tmp_path / "deep" / "state.npz"
    stopped = method(build_wavy, START, seed=5, progress=stop, save=file)
    assert stopped.status is Status.INTERRUPTED and stopped.iterations == 2 and len(stopped.searches) == 12
    assert stopped.value == rounds[-1].best == whole.history[1]
    assert [p.name for p in file.parent.iterdir()] == ["state.npz"]
    assert same(whole, method(build_wavy, START, seed=5, save=file, resume=True))
    more = method(build_wavy, START, seed=5, save=file, resume=True, searches=30)
    assert same(more, method(build_wavy, START, seed=5, searches=30))
    part = method(build_wavy, START, seed=5, save=file, resume=True, searches=34)  # a last round that is not whole
    assert len(part.searches) == 34
    assert same(
        method(build_wavy, START, seed=5, save=file, resume=True, searches=36),
        method(build_wavy, START, seed=5, searches=36),
    )


def test_a_search_that_ran_out_of_time_goes_on_too(tmp_path, monkeypatch):
    """Searches that were cut short count for the best so far, but not for what is resumed."""
    calls, file = [], tmp_path / "state.npz"
    for clock in ("monotonic", "perf_counter"):
        monkeypatch.setattr(time, clock, lambda: float(len(calls)))

    def slow(x):
        """Takes a second of the clock above."""
        calls.append(x)
        return differentiated(wavy)(x)

    def build():
        return LeastSquares(slow, 2, lower=-10, upper=10, names=("a", "b"))

    timed = hops(build, START, seconds=100, save=file)
    least = min(0.5 * np.sum(wavy(x) ** 2) for x in calls)
    assert timed.status is Status.TIME_LIMIT and 6 < len(timed.searches) < 24 and timed.iterations == 1  # type: ignore
    assert timed.value == pytest.approx(least, rel=1e-12)
    assert same(hops(build, START), hops(build, START, save=file, resume=True))


def test_ctrl_c_within_a_local_search_keeps_what_the_round_has_found_so_far():
    calls = []

    def stops(x):
        calls.append(x)
        if len(calls) == 60:
            raise KeyboardInterrupt
        return differentiated(wavy)(x)

    found = hops(lambda: LeastSquares(stops, 2, lower=-10, upper=10), START)
    least = min(0.5 * np.sum(wavy(x) ** 2) for x in calls[:59])
    assert found.status is Status.INTERRUPTED
    assert found.value == pytest.approx(least, rel=1e-12)  # of a search, or of the best point of the one cut short


def test_progress_says_where_the_search_stands():
    seen = []
    found = hops(build_wavy, START, progress=seen.append, seconds=1e6)
    assert [p.rounds for p in seen] == [1, 2, 3, 4] and [p.searches for p in seen] == [6, 12, 18, 24]
    assert [p.best for p in seen] == found.history.tolist()
    assert [p.loss for p in seen] == [found.searches.value[i : i + 6].min() for i in range(0, 24, 6)]  # type: ignore
    assert seen[0].seconds_left > 0 and seen[-1].seconds_left == 0
    assert all(0 < p.seconds_left < 1e3 for p in seen[:-1])


def test_a_broken_progress_report_does_not_end_the_search():
    def broken(progress):
        raise ZeroDivisionError("bar")

    with pytest.warns(UserWarning, match="without its progress report.*bar"):
        assert hops(build_wavy, START, progress=broken).status is Status.SEARCHES_DONE


def test_patience_time_and_number_of_searches_end_a_search():
    found = hops(build_wavy, START, searches=600, patience=4, radius=1e-6)
    assert found.status is Status.CONVERGED and found.iterations < 20
    part = hops(build_wavy, START, searches=29)
    assert part.iterations == 5 and len(part.searches) == 29  # type: ignore[arg-type]
    timed = hops(build_wavy, START, searches=10**6, seconds=0.5)
    assert timed.status is Status.TIME_LIMIT and 0.5 <= timed.seconds < 5 and timed.value < 100
    none = hops(build_wavy, START, seconds=0.0)
    assert none.status is Status.TIME_LIMIT and len(none.searches) == 0  # type: ignore[arg-type]
    np.testing.assert_array_equal(none.x, START)


@contextmanager
def full_disk():
    """No file may grow beyond 100 bytes: writing fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_costs_the_saved_state_but_not_the_run(tmp_path):
    file = tmp_path / "state.npz"
    hops(build_wavy, START, searches=6, save=file)
    saved = file.read_bytes()
    with (
        full_disk(),
        pytest.warns(UserWarning, match=r"the search goes on, but its state could not be saved to .*state"),
    ):
        found = hops(build_wavy, START, save=file)
    assert same(found, hops(build_wavy, START))
    assert file.read_bytes() == saved and list(tmp_path.iterdir()) == [file]


def test_the_state_of_another_search_and_a_damaged_one_are_refused(tmp_path):
    file = tmp_path / "state.npz"
    with pytest.raises(FileNotFoundError, match="no saved search at"):
        hops(build_wavy, START, save=file, resume=True)
    hops(build_wavy, START, save=file)
    with pytest.raises(ValueError, match="from another search: seed was '0', is '7'"):
        hops(build_wavy, START, save=file, resume=True, seed=7)
    with pytest.raises(ValueError, match="from another search: local was"):
        hops(build_wavy, START, save=file, resume=True, local=LevenbergMarquardt(loss="huber"))
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ValueError, match="is not a saved search, or is damaged"):
        hops(build_wavy, START, save=file, resume=True)
    with pytest.raises(ValueError, match="resume=True needs save="):
        hops(build_wavy, START, resume=True)


def test_a_function_may_return_jax_arrays_of_single_precision():
    def function(x):
        return jnp.asarray(x - 1, jnp.float32), jnp.eye(2, dtype=jnp.float32)

    found = hops(lambda: LeastSquares(function, 2, lower=-10, upper=10), START)
    assert isinstance(found.residuals, np.ndarray) and found.gradient.dtype == np.float64
    np.testing.assert_allclose(found.x, 1, atol=1e-6)


def test_values_that_are_never_finite_are_said_to_be_so():
    def nowhere(x):
        return np.full(2, np.nan), np.full((2, 2), np.nan)

    found = hops(lambda: LeastSquares(nowhere, 2, lower=-1, upper=1), [0.0, 0.0])
    assert found.status is Status.NON_FINITE_START and not found.successful


def test_a_function_that_always_fails_is_an_error_with_its_traceback():
    with pytest.raises(RuntimeError, match=r"every task of the first round failed(.|\n)*wheels came off"):
        hops(build_wrong, START)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hops(build_wavy, START, searches=0), "searches: expected at least 1, got 0"),
        (lambda: hops(build_wavy, START, restart="nowhere"), "restart: expected one of best, anywhere, got 'nowhere'"),
        (lambda: hops(build_wavy, START, workers=-1), "workers: expected 0"),
        (lambda: hops(lambda: 3, START), "must return a LeastSquares, Smooth or Stochastic problem, got <class 'int'>"),
        (lambda: hops(lambda: build_wavy(), START, workers=1), "must be picklable: a function at the top of a module"),
        (
            lambda: hops(lambda: LeastSquares(differentiated(wavy), 2, lower=[0, -np.inf], names=["m", "l"])),
            "a search without a start needs finite bounds; these parameters have none: m, l",
        ),
        (lambda: islands(build_wavy, START, algorithm="magic"), "algorithm: expected one of de, sade"),
        (lambda: BasinHopping(restart="nowhere"), "restart: expected one of best, anywhere"),  # pyright: ignore
        (lambda: BasinHopping(patience=0), "patience: expected at least 1 round or None, got 0"),
        (lambda: Population(members=3), "members: expected at least 8"),
        (lambda: islands(build_wavy, START, members=3), "members: expected at least 8"),
    ],
)
def test_mistakes_are_refused_with_what_was_expected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_hops_stay_within_bounds_and_reach_all_of_them():
    problem = build_wavy()
    points = np.random.default_rng(0).standard_cauchy((2000, 2)) * 50
    inside = np.array([problem.into_bounds(x) for x in points])
    assert np.all(np.abs(inside) <= 10) and np.ptp(inside[:, 0]) > 19
    one_sided = LeastSquares(differentiated(wavy), 2, lower=[0, -np.inf], upper=[np.inf, 3])
    np.testing.assert_allclose(one_sided.into_bounds(np.array([-2.0, 5.0])), [2.0, 1.0])


def test_a_missing_pygmo_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygmo", None)
    with pytest.raises(ImportError, match=r'pip install "knuckle\[global\]"'):
        imported_pygmo()
