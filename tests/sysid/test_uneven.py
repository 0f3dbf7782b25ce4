"""Logs whose stamps are uneven, with rows missing and pauses: measurements count at their own times, and only those."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import robots, sysid
from knuckle.sysid.noise import noise_of
from knuckle.sysid.parameters import choose
from knuckle.sysid.shooting import Instruments, Simulator
from knuckle.sysid.shots import make_shots
from knuckle.sysid.timing import drive
from tests.sysid.test_fit import FREE, MODEL, TRUTH

MS = 1e-3  # the truth's step [s]; stamps are whole numbers of it
NOISE = {"q": 1e-3}


def jittered(truth, rng, rows=100, missing=0.0, control=None, noise=1e-3):
    """About 100 Hz, each step 8 to 12 ms; controls are held from stamp to stamp."""
    at = np.concatenate([[0], np.cumsum(rng.integers(8, 13, size=rows - 1))])
    state, inputs = truth.state(rng.normal(size=truth.nq)), None
    if control is not None:
        inputs = control[np.searchsorted(at, np.arange(at[-1]), side="right") - 1]
    run = kn.rollout(truth, state, inputs, dt=MS, steps=int(at[-1]), integrator=kn.RK4(), contact=None, native=True)
    q = np.concatenate([np.asarray(state.q)[None], np.asarray(run.q)])[at] + noise * rng.normal(size=(rows, truth.nq))
    kept = np.flatnonzero(rng.random(rows) >= missing)
    drives = None if control is None else control[kept]
    return kn.Recording.of(truth, MS * at[kept], q=q[kept], control=drives)


def test_a_truth_is_found_from_uneven_stamps_with_missing_rows():
    """Brought to even times by straight lines, such logs gave masses off by three to four deviations."""
    rng = np.random.default_rng(0)
    fit = sysid.fit(MODEL, [jittered(TRUTH, rng, missing=0.1) for _ in range(3)], FREE, held_out=0)
    truth = {"upper.mass": 1.495, "lower.mass": 0.6, "shoulder.damping": 0.05, "elbow.damping": 0.02}
    for name, value in truth.items():
        assert abs(fit[name].value - value) < 3.5 * fit[name].deviation  # one in 2,000
        assert fit[name].deviation < 0.03 * value
    assert fit.noise["q"] == pytest.approx(1e-3, rel=0.12)  # 540 numbers: 3 % is one deviation
    assert not fit.missing()


def test_states_are_those_at_the_stamps():
    cart = robots.load("cartpole")
    control = np.repeat(4 * np.random.default_rng(1).normal(size=(12, 1)), 5, axis=0)
    log = jittered(cart, np.random.default_rng(0), rows=60, control=control, noise=0.0)
    shots = make_shots(cart, [log], length=None, noise=NOISE)
    simulator = Simulator(cart, choose(cart, ["*.mass"]), None, kn.RK4(), None, 3, {}, Instruments())
    shot = jax.tree.map(lambda part: part[0], shots)
    start = np.concatenate([np.zeros(2), -np.asarray(shot.qd)])  # at rest
    states = simulator.states(np.zeros(2), jnp.asarray(start), shot)
    np.testing.assert_allclose(states.q, log["q"].values, atol=1e-6)  # steps of 4 ms against 1 ms by RK4
    late = make_shots(cart, [log], length=None, noise=NOISE, latest=0.1)
    shifted = np.asarray(drive(jax.tree.map(lambda part: part[0], late), 0.004, 2))
    edges = np.interp(np.arange(119) / 2, np.arange(60), log.time) - 0.004
    held = control[np.clip(np.searchsorted(log.time, np.linspace(edges[:-1], edges[1:], 1000)) - 1, 0, None), 0].mean(0)
    np.testing.assert_allclose(shifted[:, 0], held, atol=0.05)  # means over the steps, of 1000 points each


def test_what_was_measured_stays_as_it_was_and_nothing_is_added():
    log = jittered(MODEL, np.random.default_rng(0), missing=0.2)
    shots = make_shots(MODEL, [log], length=0.3, noise=NOISE)
    rows = np.asarray(shots.weight["q"])[..., 0] > 0
    rows[1:, 0] = False  # ends the piece before
    np.testing.assert_array_equal(np.asarray(shots.measured["q"])[rows], log["q"].values)
    ends = [np.asarray(shots.stamps)[k, last] for k, last in enumerate(np.asarray(shots.last))]
    assert shots.joined.sum() == shots.count - 1 and np.sum(ends) == pytest.approx(log.duration)
    assert np.diff(np.asarray(shots.stamps), axis=1).max() <= shots.longest * (1 + 1e-9)


def test_rows_that_are_missing_of_an_even_log_weigh_nothing_and_pauses_cut():
    time = 0.01 * np.delete(np.arange(200), [10, 11, 57, *range(120, 140)])
    log = kn.Recording.of(MODEL, time, q=np.stack([np.sin(3 * time), np.cos(2 * time)], 1))
    shots = make_shots(MODEL, [log], length=0.5, noise=NOISE)
    assert shots.stamps is None  # on a grid, so as fast as a whole log
    seen = np.asarray(shots.weight["q"])[..., 0] > 0
    assert not seen[0, 10:12].any() and not seen[1, 7] and seen[0].sum() == 49
    np.testing.assert_array_equal(shots.joined, [1, 1, 0, 1, 0])  # 0, 0.5, 1.0 to 1.19, then 1.4 and 1.9 s
    np.testing.assert_allclose(np.asarray(shots.q)[3], log["q"].values[np.argmax(time > 1.395)])


def test_commands_hold_over_rows_that_are_missing():
    cart, control = robots.load("cartpole"), np.repeat(np.arange(8.0), 5)[:, None]
    kept = np.delete(np.arange(40), [9, 13, 18, 19])  # some just before the next command
    log = kn.Recording.of(cart, 0.01 * kept, q=np.zeros((36, 2)), control=control[kept])
    np.testing.assert_array_equal(make_shots(cart, [log], length=None, noise=NOISE).control[0], control)


def test_stamps_that_are_rounded_do_not_make_pieces_end_a_sample_late():
    """Of two pieces of 50 steps the first takes 166667 us, the second 166666: one sample more than 1/6 s holds."""
    time = np.round(np.arange(400) / 300, 6)
    log = kn.Recording.of(MODEL, time, q=np.stack([time, -time], 1))
    shots = make_shots(MODEL, [log], length=50 / 300, noise=NOISE)
    assert shots.joined.any() and len(set((np.asarray(shots.weight["q"])[:-1, :, 0] > 0).sum(axis=1))) > 1
    assert shots.last is not None
    for k in np.flatnonzero(shots.joined):
        np.testing.assert_array_equal(np.asarray(shots.measured["q"])[k, shots.last[k]], np.asarray(shots.q)[k + 1])


def test_noise_is_seen_on_uneven_stamps_too():
    rng = np.random.default_rng(0)
    time = 0.01 * (np.arange(2000) + rng.uniform(-0.3, 0.3, 2000))
    values = np.sin(4 * time)[:, None] + 1e-3 * rng.normal(size=(2000, 1))
    assert noise_of(time, values, np.ones((2000, 1), bool)) == pytest.approx(1e-3, rel=0.1)  # 4 deviations


def test_logs_of_different_rates_are_fitted_together_as_they_are():
    rng, logs = np.random.default_rng(0), []
    for every in (10, 4):
        run = kn.rollout(
            TRUTH, TRUTH.state(rng.normal(size=2)), dt=MS, steps=600, integrator=kn.RK4(), contact=None, native=True
        )
        q = np.asarray(run.q)[::every]
        logs.append(kn.Recording.of(MODEL, MS * every * np.arange(len(q)), q=q + 1e-4 * rng.normal(size=q.shape)))
    shots = make_shots(MODEL, logs, length=0.3, noise=NOISE)
    counted = sum((np.asarray(w)[..., 0] > 0).sum() for w in shots.weight.values()) - shots.joined.sum()
    assert counted == sum(map(len, logs))
