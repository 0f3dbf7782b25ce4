"""What a fit says where it leaves more than noise: wider intervals, and words."""

import equinox as eqx
import numpy as np
import pytest
from scipy.signal import lfilter

import knuckle as kn
from knuckle import robots, sysid
from knuckle.sysid import colour as c
from knuckle.sysid.jumps import SURE, beginning_anew
from knuckle.sysid.left import not_noise, residual_statistics
from knuckle.sysid.uncertainty import _told, certainty
from tests.optim.test_chain import chain

MODEL = robots.load("double_pendulum")
TRUTH = {"upper.mass": 1.2 * 1.15, "lower.mass": 0.85 * 0.75, "shoulder.damping": 0.02, "elbow.damping": 0.015}


def autoregression(rng, shape, correlation: float) -> np.ndarray:
    """Noise of deviation 1 whose neighbours (axis 0) correlate."""
    white = rng.normal(size=(1000 + shape[0], *shape[1:]))
    return np.asarray(lfilter([np.sqrt(1 - correlation**2)], [1.0, -correlation], white, axis=0))[1000:]


def recordings(seed: int, correlation: float = 0.0, friction: float = 0.0) -> list[sysid.Recording]:
    """Four swings of a pendulum with other masses and damping, 2 s each at 100 Hz."""
    changed = (MODEL.inertia.mass * np.array([1.2, 0.85]), np.array([0.02, 0.015]), np.full(2, friction))
    real = eqx.tree_at(lambda m: (m.inertia.mass, m.damping, m.friction), MODEL, changed)
    rng, found = np.random.default_rng(seed), []
    for _ in range(4):
        start = MODEL.state(rng.uniform(-1.2, 1.2, 2))
        q = kn.rollout(real, start, dt=0.005, steps=400, integrator=kn.RK4(), contact=None, native=True).q[1::2]
        q = np.asarray(q) + 2e-3 * autoregression(rng, q.shape, correlation)
        found.append(sysid.Recording.of(MODEL, 0.01 * np.arange(200), q=q))
    return found


@pytest.fixture(scope="module")
def white() -> kn.Fit:
    return kn.fit(MODEL, recordings(0), ["*.mass", "*.damping"], held_out=0)


def test_noise_widens_nothing_and_is_not_spoken_of(white):
    jacobian = white.objective.sensitivity(white.result.x)
    assert c.colours_of(white.objective, white.result.x, jacobian) == {}
    assert white.missing() == []


def test_intervals_hold_the_truth_where_noise_is_not_white(white):
    """Of 48 numbers; experiments/known_truth.py counts more of them."""
    fits = [white.again(recordings(seed, correlation=0.9)) for seed in range(12)]
    held = [e.lower < TRUTH[e.name] < e.upper for fit in fits for e in fit.estimates]
    assert np.mean(held) > 0.75
    for fit in fits:
        jacobian = fit.objective.sensitivity(fit.result.x)
        size = fit.simulator.physical
        plain = certainty(jacobian, size, fit.objective.prior[:size], fit.objective.labels)
        assert np.all(np.diag(fit.certainty.covariance) > 2 * np.diag(plain.covariance))
        assert fit.certainty.singular_values[0] < plain.singular_values[0]
        assert "correlate" in fit.missing()[0]
    lower, upper = sysid.posterior(fits[0], 32, iterations=40).interval()
    widths = (upper - lower) / [e.upper - e.lower for e in fits[0].estimates]
    np.testing.assert_allclose(widths, 1.0, atol=0.35)  # 32 samples; without regard to the colour 0.3


def test_a_lack_that_starts_of_pieces_take_up_is_spoken_of(white):
    """Without dry friction the model must begin anew in each piece; what is left within them looks like noise."""
    fits = [white.again(recordings(seed, friction=0.02)) for seed in range(3)]
    for fit in fits:
        assert beginning_anew(fit.objective, fit.result.x) > 10 * SURE
        assert any("where the last one ended" in line for line in fit.missing())
    assert any("correlate" not in fit.missing()[0] for fit in fits)
    assert all(beginning_anew(f.objective, f.result.x) < SURE for f in [white, white.again(recordings(1))])


def test_what_is_left_of_a_robust_fit_is_judged_as_its_loss_weighs_it(white):
    """Outliers hide the correlation of raw residuals, not that of their slopes, by which intervals are widened."""
    rng, dirty = np.random.default_rng(0), []
    for log in recordings(0, correlation=0.9):
        q = log["q"].values
        hit = rng.uniform(size=q.shape) < 0.03
        dirty.append(sysid.Recording.of(MODEL, log.time, q=q + 0.3 * hit * rng.choice([-1, 1], size=hit.shape)))
    fit = kn.fit(MODEL, dirty, ["*.mass"], held_out=0, robust="cauchy")
    assert not_noise(fit.objective.by_channel(fit.result.x)["q"]) is None
    assert "correlate" in fit.missing()[0]


def test_widening_leaves_what_is_not_told_alone():
    """The data tell one number a billion times better than was known, of another nothing; noise is ten times wider."""
    values, directions = np.array([1e9, 1e3, 0.0]), np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    wide = 3 * directions.T / np.sqrt(values**2 + 1) * (values > 0)
    found, turned = _told(values, directions, wide)
    expected = np.sqrt(np.maximum((values**2 + 1) / 10 - 1, 0.0))  # variances are 10 / (values^2 + 1)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-3)
    np.testing.assert_allclose(np.abs(turned @ directions.T), np.eye(3), atol=1e-3)


def test_exact_logs_of_a_slightly_other_model_keep_what_they_determine():
    """A little dry friction that the model lacks is all that is left of logs without noise, and it is not white."""
    real = eqx.tree_at(lambda m: m.friction, MODEL, np.full(2, 1e-4))
    rng, logs = np.random.default_rng(0), []
    for _ in range(2):
        start = MODEL.state(rng.uniform(-1.2, 1.2, 2))
        q = kn.rollout(real, start, dt=0.001, steps=1000, integrator=kn.RK4(), contact=None, native=True).q[9::10]
        logs.append(sysid.Recording.of(MODEL, 0.01 * np.arange(100), q=np.asarray(q)))
    fit = kn.fit(MODEL, logs, ["*.mass", "*.com.z", "*.damping"], held_out=0)
    assert "correlate" in fit.missing()[0]
    assert fit.certainty.summary().startswith("the data determine 5 of 6")  # of masses and centres all but the scale
    assert np.all(np.isfinite(fit.certainty.covariance))
    assert fit["elbow.damping"].verdict == "determined"


def test_single_steps_speak_of_what_the_model_lacks():
    real = eqx.tree_at(lambda m: (m.damping, m.friction), MODEL, (np.full(2, 0.1), np.full(2, 0.1)))
    motion = kn.rollout(real, MODEL.state(np.array([1.0, 0.5])), dt=0.001, steps=2000, native=True)
    rng, steps = np.random.default_rng(0), slice(9, None, 10)
    q, qd = (np.asarray(a)[steps] + 1e-5 * rng.normal(size=(200, 2)) for a in (motion.q, motion.qd))
    log = sysid.Recording.of(MODEL, 0.01 * np.arange(200), q=q, qd=qd)
    fit = kn.fit(MODEL, log, ["upper.mass"], held_out=0, loss="one step")
    assert "correlate" in fit.missing()[0]
    jacobian = fit.objective.sensitivity(fit.result.x)
    plain = certainty(jacobian, 1, fit.objective.prior[:1], fit.objective.labels)
    assert fit.certainty.covariance[0, 0] > 4 * plain.covariance[0, 0]


def rows(J, entries: int, seed: int = 0) -> c.Rows:
    """Data of a chain as those of one channel, some of them not measured, with residuals that are nothing but noise."""
    rng, (count, data, *_) = np.random.default_rng(seed), J.sizes
    shape = count, data // entries, entries
    own, shared = (a.reshape(*shape, -1) for a in (J.by_own, J.by_shared))
    columns = np.concatenate([own, shared, rng.normal(size=(*shape, 1))], axis=-1)
    return c.Rows(columns, rng.uniform(size=shape) > 0.2, own.shape[-1])


def covariance_of(valid: np.ndarray, colour: c.Colour) -> np.ndarray:
    """Of the samples of one entry; a sample that is missing ends a series."""
    series = np.cumsum(~valid)
    apart = np.abs(np.subtract.outer(np.arange(len(valid)), np.arange(len(valid))))
    alike = series[:, None] == series[None]
    return colour.variance * np.where(alike, colour.correlation**apart, 0.0)[np.ix_(valid, valid)]


def test_products_are_those_with_the_inverse_covariance():
    part, colour = rows(chain(2, 24, 3, 4), 2), c.Colour(0.7, 1.6)
    ours, expected = c._weighed(part.products(), colour), np.zeros((2, 8, 8))
    for piece, entry in np.ndindex(2, 2):
        valid = part.valid[piece, :, entry]
        x = part.columns[piece, valid, entry]
        expected[piece] += x.T @ np.linalg.solve(covariance_of(valid, colour), x)
    np.testing.assert_allclose(ours.own, expected[:, :3], atol=1e-10)
    np.testing.assert_allclose(ours.shared, expected[:, 3:, 3:].sum(axis=0), atol=1e-10)


def test_probability_is_that_of_the_dense_problem():
    J = chain(4, 6, 2, 3)
    r = np.random.default_rng(3).normal(size=J.shape[0])
    left = {"q": J.split(r)[0].reshape(4, 3, 2)}
    whole = c._with(c._without_data(J, r), c._weighed(c._rows_of(J, left)["q"].products(), c.WHITE))
    dense = J.dense()
    best = r - dense @ np.linalg.lstsq(dense, r, rcond=None)[0]
    expected = -0.5 * (best @ best + np.linalg.slogdet(dense.T @ dense)[1])
    assert whole.log_probability() == pytest.approx(expected, abs=1e-9)


def test_added_covariance_is_that_of_least_squares_under_such_noise():
    J, colour = chain(4, 12, 2, 3), c.Colour(0.8, 1.5)
    slow = np.cumsum(J.by_shared.reshape(4, 6, 2, 3), axis=1).reshape(4, 12, 3)
    J = c.replace(J, by_shared=slow)
    joined = np.array([True, False, True, False])
    part = c.Rows(rows(J, 2).columns, np.ones((4, 6, 2), bool), 2)
    part.valid[[1, 3], 0] = False  # samples that end the piece before
    flat = part.valid.reshape(4, 12, 1)
    J = c.replace(J, by_shared=J.by_shared * flat, by_own=J.by_own * flat)
    J = c.replace(J, tie_by_next=J.tie_by_next * joined[:, None])
    dense, R = J.dense(), np.eye(J.shape[0])
    times = np.concatenate([np.arange(6) + 5 * k for k in range(2)])
    for first in (0, 2):
        at = np.arange(24) + 12 * first
        time, entry = np.repeat(times, 2), np.tile([0, 1], 12)
        alike = entry[:, None] == entry[None]
        apart = np.abs(time[:, None] - time[None])
        R[np.ix_(at, at)] = colour.variance * alike * colour.correlation**apart
    inverse = np.linalg.inv(dense.T @ dense)
    expected = inverse @ dense.T @ (R - np.eye(len(R))) @ dense @ inverse
    assert np.linalg.eigvalsh(expected[:3, :3])[0] > 0  # else only what widens would be added
    wide = c._added(J, {"q": part}, {"q": colour}, joined)
    np.testing.assert_allclose(wide @ wide.T, expected[:3, :3], rtol=1e-8)


def test_the_colour_of_noise_is_found_where_a_fit_took_up_much_of_it():
    J, rng = chain(12, 100, 6, 4, tied=False), np.random.default_rng(5)
    smooth = np.stack([np.vander(np.linspace(-1, 1, 50), 6)] * 12).repeat(2, axis=1)
    J = c.replace(J, by_own=100 * smooth, own_alone=0 * J.own_alone)
    noise = np.stack([autoregression(rng, (50, 2), 0.9) for _ in range(12)])
    r = np.concatenate([noise.reshape(-1), np.zeros(J.shape[0] - noise.size)])
    dense = J.dense()
    left = (r - dense @ np.linalg.lstsq(dense, r, rcond=None)[0])[: noise.size].reshape(noise.shape)
    assert residual_statistics(left)["correlation"] < 0.85
    found = c._colours(c._rows_of(J, {"q": left}), ["q"], c._without_data(J, np.zeros_like(r)))["q"]
    assert found.correlation == pytest.approx(0.9, abs=0.04)
    assert found.variance == pytest.approx(1.0, abs=0.4)
