"""Global search inside a fit: it finds what a local one misses, always the same way, and goes on when stopped."""

import os
import signal
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import knuckle as kn
from knuckle.interrupt import interrupts
from knuckle.neural import MLP
from tests.sysid.test_fit import MODEL, recorded

MASSES = np.asarray(MODEL.inertia.mass) * np.array([0.4, 2.5])
TRUTH = eqx.tree_at(lambda m: m.inertia.mass, MODEL, MASSES)
OPTIONS: dict[str, Any] = {"free": {"*.mass": (0.05, 20.0)}, "loss": "single shooting", "held_out": 0, "starts": 12}


@pytest.fixture(scope="module")
def runs():
    return recorded(TRUTH, runs=1, steps=1000, noise=1e-4)


@pytest.fixture(scope="module")
def hopped(runs):
    return fitted(runs, search="basin hopping", workers=0)


def fitted(runs, **options: Any):
    return kn.fit(MODEL, runs, **{**OPTIONS, **options})


def searches(fit):
    assert fit.result.searches is not None
    return fit.result.searches


def masses(fit):
    return [e.value for e in fit.estimates]


def test_it_finds_what_a_local_search_misses(runs, hopped):
    local = fitted(runs)
    assert np.abs(masses(local) / MASSES - 1).max() > 0.5
    np.testing.assert_allclose(masses(hopped), MASSES, rtol=0.01)
    made = searches(hopped)
    assert len(made) == 12 and made.value.max() > 100 * made.value.min()  # there are other minima
    np.testing.assert_array_equal(made.start[0], 0.0)  # the description comes first


def test_the_number_of_workers_does_not_matter(runs, hopped):
    there = fitted(runs, search="basin hopping", workers=2)
    np.testing.assert_array_equal(searches(there).x, searches(hopped).x)
    np.testing.assert_array_equal(there.result.x, hopped.result.x)


def test_stopped_in_a_round_it_keeps_the_best_and_goes_on_as_if_it_had_not_been(runs, hopped, tmp_path):
    file, looks = tmp_path / "fit.npz", []

    def stop(look):
        looks.append(look)
        os.kill(os.getpid(), signal.SIGINT)

    options: dict[str, Any] = {"search": "basin hopping", "workers": 0, "save": file}
    stopped = fitted(runs, watch=stop, **options)
    assert stopped.result.status == "interrupted" and len(searches(stopped)) == 8
    assert stopped.result.value == looks[0].best == searches(hopped).value[:8].min()
    assert looks[0].searches == 8 and looks[0].seconds_left > 0
    resumed = fitted(runs, resume=True, **options)
    np.testing.assert_array_equal(resumed.result.x, hopped.result.x)
    with pytest.raises(ValueError, match=r"is from another search: .*recordings"):
        fitted(recorded(TRUTH, runs=1, steps=1000, seed=1), resume=True, **options)


NETWORK = kn.Blueprint({"joint/force": kn.Augment(MLP((2, 1, 2), key=jax.random.key(0)), "qd")})
OTHERS: dict[str, dict[str, Any]] = {
    r"bounds of lower\.mass": {"free": {"*.mass": (0.05, 10.0)}},
    "bounds of upper": {"free": {"upper.mass": kn.Prior(0.05, 20.0, spread=0.1), "lower.mass": (0.05, 20.0)}},
    "free numbers": {"free": {"upper.mass": (0.05, 20.0)}},
    "robust was 'squares', is 'huber'": {"robust": "huber"},
    "regularise": {"regularise": kn.sysid.Regularise(lasso=1.0)},
    "integrator": {"integrator": kn.SemiImplicitEuler()},
    "step was '0.005 s', is '0.0025 s'": {"step": 0.003},
    "drive was 'held', is 'linear'": {"drive": "linear"},
    "noise of q": {"noise": {"q": 2e-4}},
    "pieces": {"loss": "multiple shooting"},
    "contact": {"contact": kn.contact.Impulse()},
    "networks": {"blueprint": NETWORK},
    "seed": {"seed": 1},
}


@pytest.fixture(scope="module")
def kept(runs, tmp_path_factory):
    file = tmp_path_factory.mktemp("saved") / "fit.npz"
    fitted(runs, save=file)
    return file


@pytest.mark.parametrize("name", OTHERS)
def test_a_fit_of_another_problem_is_not_gone_on_with(runs, kept, name):
    with pytest.raises(ValueError, match=rf"is from another search: (.*; )?{name}"):
        fitted(runs, save=kept, resume=True, **OTHERS[name])


def test_more_time_and_another_solver_may_be_given_to_a_fit_that_goes_on(runs, kept):
    told: list[str] = []
    options: dict[str, Any] = {"starts": 20, "seconds": 100, "workers": 1, "solver": kn.optim.LevenbergMarquardt()}
    fitted(runs, save=kept, resume=True, progress=told.append, **options)
    assert any(text.startswith("going on from") for text in told)


def test_searches_may_begin_anywhere_and_end_when_they_find_no_better(runs):
    anywhere = fitted(runs, search=kn.optim.BasinHopping(restart="anywhere", per_round=6), workers=0)
    np.testing.assert_allclose(masses(anywhere), MASSES, rtol=0.01)
    start = searches(anywhere).start[1:, :2]
    assert np.ptp(start, axis=0).min() > 2  # over the range from 0.05 to 20 kg, in logarithms
    near = kn.optim.BasinHopping(radius=1e-9, per_round=2, patience=1)
    assert len(searches(fitted(runs, search=near, workers=0))) == 4


def test_islands_find_it_too(runs):
    pytest.importorskip("pygmo")
    fit = fitted(runs, search="population", workers=0, starts=2)
    np.testing.assert_allclose(masses(fit), MASSES, rtol=0.01)


def test_the_second_ctrl_c_stops_at_once():
    reached, before = [], signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        with interrupts() as inner:
            assert inner is stop and stop.asked
        reached.append("after the first")
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("after the second")
    assert reached == ["after the first"]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"search": "annealing"}, "search: expected one of local, basin hopping, population, .* got 'annealing'"),
        ({"resume": True}, "resume=True needs save="),
        ({"search": "basin hopping", "starts": 0, "workers": 0}, "starts: expected at least 1, got 0"),
    ],
)
def test_mistakes_are_named(runs, options, message):
    with pytest.raises(ValueError, match=message):
        fitted(runs, **options)
