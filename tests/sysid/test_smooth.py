"""State estimation: against a textbook smoother, against ground truth, and on input that it must refuse."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import equinox as eqx
import numpy as np
import pytest
from scipy.linalg import expm
from scipy.stats import chi2

import knuckle as kn
from knuckle import native, robots, sysid
from knuckle.kinematics import frame_pose
from knuckle.sysid.smoothing.iterate import linearise
from knuckle.sysid.smoothing.likelihood import Free, Noise, _packed, _slope, _unpacked
from knuckle.sysid.smoothing.linear import smooth_linear
from knuckle.sysid.smoothing.problem import make_problem

PERIOD = 0.01
NOISE = {"q": 5e-4, "qd": 1e-2}
EFFORT = np.array([0.5, 0.05])


def slider(stiffness: float = 20.0) -> kn.Model:
    """A mass of 2 kg on a spring with a damper: linear."""
    joint = kn.prismatic("x", stiffness=stiffness, damping=0.7)
    return kn.build([kn.Link("mass", joints=joint, mass=2.0, inertia=(1, 1, 1))], actuators=[kn.motor("mass_joint")])


def simulated(model: kn.Model, start: np.ndarray, control: np.ndarray, error: np.ndarray, stamps: np.ndarray):
    """True states at stamps under controls and errors of the effort that are held between them."""

    def step(q, qd, u, e, span):
        blueprint = kn.Blueprint({"actuator/force": kn.Augment(_Constant(e), "qd")})
        options = {"dt": span / 8, "integrator": kn.RK4(), "contact": None, "blueprint": blueprint}
        after = kn.rollout(model, kn.State(q, qd), u, steps=8, **options).last
        return after.q, after.qd

    fast, (q, qd) = native.jit(step), np.split(start, [model.nq])
    rows = [(q, qd)]
    for k, span in enumerate(np.diff(stamps)):
        q, qd = (np.asarray(x) for x in fast(q, qd, control[k], error[k], np.asarray(span)))
        rows.append((q, qd))
    return tuple(np.array(part) for part in zip(*rows, strict=True))


class _Constant(eqx.Module):
    value: np.ndarray
    starts_at_zero = True

    def __call__(self, x):
        return self.value


def textbook(F, G, H, Q, R, measured, mean, covariance, drive):
    """Kalman filter and Rauch-Tung-Striebel smoother as textbooks have them (Sarkka 2013, 4.2 and 8.2)."""
    means, covariances, predicted, density = [], [], [], 0.0
    for k, y in enumerate(measured):
        if k:
            mean, covariance = F @ mean + G @ drive[k - 1], F @ covariance @ F.T + Q
        predicted.append((mean, covariance))
        seen = np.isfinite(y)
        if seen.any():
            h, r = H[seen], R[np.ix_(seen, seen)]
            S = h @ covariance @ h.T + r
            K, off = covariance @ h.T @ np.linalg.inv(S), y[seen] - h @ mean
            density -= 0.5 * (off @ np.linalg.solve(S, off) + np.linalg.slogdet(2 * np.pi * S)[1])
            mean, covariance = mean + K @ off, covariance - K @ S @ K.T
        means.append(mean)
        covariances.append(covariance)
    for k in range(len(measured) - 2, -1, -1):
        G_k = covariances[k] @ F.T @ np.linalg.inv(predicted[k + 1][1])
        means[k] = means[k] + G_k @ (means[k + 1] - predicted[k + 1][0])
        covariances[k] = covariances[k] + G_k @ (covariances[k + 1] - predicted[k + 1][1]) @ G_k.T
    return np.array(means), np.array(covariances), density


def test_a_linear_system_is_smoothed_as_by_a_textbook():
    """To 1e-9 in units of the standard deviation; RK4 at 0.1 ms integrates the spring to about 1e-13."""
    model, rng, count = slider(), np.random.default_rng(0), 80
    continuous = np.array([[0, 1, 0], [-10.0, -0.35, 0.5], [0, 0, 0]])
    F = expm(continuous * PERIOD)
    drive, measured = rng.normal(size=(count, 1)) * 5, rng.normal(size=(count, 2)) * [0.01, 0.1]
    measured[rng.random((count, 2)) < 0.2] = np.nan
    measured[40:44] = np.nan
    recording = sysid.Recording.of(
        model, PERIOD * np.arange(count), q=measured[:, :1], qd=measured[:, 1:], control=drive
    )
    initial = (kn.State(np.array([0.1]), np.array([-0.2])), np.array([0.3, 0.5]))
    options = {"noise": {"q": 0.01, "qd": 0.1}, "effort_noise": 3.0, "correlation": 0.0, "step": 1e-4}
    found = sysid.smooth(model, recording, initial=initial, **options)
    G = F[:2, 2:]
    mean, covariance, density = textbook(
        F[:2, :2], G, np.eye(2), 9.0 * G @ G.T, np.diag([1e-4, 1e-2]), measured, np.array([0.1, -0.2]),
        np.diag([0.09, 0.25]), drive,
    )  # fmt: skip
    deviation = np.sqrt(np.einsum("kii->ki", covariance))
    assert found.converged
    np.testing.assert_allclose(np.concatenate([found.q, found.qd], axis=1) / deviation, mean / deviation, atol=1e-9)
    scale = deviation[:, :, None] * deviation[:, None]
    np.testing.assert_allclose(found.covariance / scale, covariance / scale, atol=1e-9)
    assert abs(found.log_likelihood - density) < 1e-8 * abs(density)


def cartpole_log(model: kn.Model, seed: int, count: int = 250, late: float = 0.0, lost: float = 0.0):
    """A cart pushed by noisy controls: true states and a log of them."""
    rng = np.random.default_rng(seed)
    stamps = PERIOD * (np.arange(count) + late * rng.uniform(-1, 1, size=count))
    control = np.repeat(4 * rng.normal(size=(count // 10 + 1, 1)), 10, axis=0)[:count]
    error = EFFORT * rng.normal(size=(count, 2))
    q, qd = simulated(model, np.array([0.0, rng.uniform(-3, 3), 0.0, 0.0]), control, error, stamps)
    noisy = [x + NOISE[key] * rng.normal(size=x.shape) for key, x in (("q", q), ("qd", qd))]
    for x in noisy:
        x[rng.random(x.shape) < lost] = np.nan
    return q, qd, control, error, sysid.Recording.of(model, stamps, q=noisy[0], qd=noisy[1], control=control)


@pytest.fixture(scope="module")
def cartpole() -> kn.Model:
    return robots.load("cartpole")


def test_errors_are_as_large_as_their_covariances_say(cartpole):
    """NEES of 8 runs, 6 stamps each that are 0.4 s apart: chi-square with 4 * 48 degrees of freedom, 99.9 % bounds.

    Stamps are uneven and a tenth of the samples is missing; the runs are one log with gaps. Efforts count by their own
    variances.
    """
    runs: list[Any] = [cartpole_log(cartpole, seed, late=0.25, lost=0.1) for seed in range(8)]
    stamps = np.concatenate([10.0 * k + run[-1].time for k, run in enumerate(runs)])
    q, qd, control, error = (np.concatenate([run[k] for run in runs]) for k in range(4))
    seen: dict[str, Any] = {
        key: np.concatenate([np.where(r[-1][key].valid, r[-1][key].values, np.nan) for r in runs])
        for key in ("q", "qd")
    }
    log = sysid.Recording.of(cartpole, stamps, control=control, **seen)
    found = sysid.smooth(cartpole, log, noise=NOISE, effort_noise=EFFORT, correlation=0.0)
    assert found.converged and found.q.shape == q.shape and "7 gaps" in found.notes[0]
    off = np.concatenate([found.q - q, found.qd - qd], axis=1)
    chosen = np.add.outer(250 * np.arange(8), np.arange(20, 250, 40)).ravel()
    total = sum(off[k] @ np.linalg.solve(found.covariance[k], off[k]) for k in chosen)
    lower, upper = chi2.ppf([5e-4, 1 - 5e-4], 4 * len(chosen))
    assert len(chosen) == 48 and lower < total < upper, total / len(chosen)
    true = error + control * [1, 0]
    within = np.arange(len(stamps)) % 250 != 249  # the error of the last effort of a run has no effect
    assert 0.85 < np.mean(((found.effort - true) / found.effort_deviation)[within] ** 2) < 1.15  # of 4000, correlated


def test_noise_is_recovered_by_maximum_likelihood(cartpole):
    """From 300 stamps: 20 % is about four standard errors of measurement noise, and five of that of efforts is 40 %."""
    found = sysid.smooth(cartpole, cartpole_log(cartpole, 3, count=300)[-1])
    np.testing.assert_allclose(found.noise["q"], NOISE["q"], rtol=0.2)
    np.testing.assert_allclose(found.noise["qd"], NOISE["qd"], rtol=0.2)
    np.testing.assert_allclose(found.effort_noise.deviation, EFFORT, rtol=0.4)
    assert found.effort_noise.correlation < PERIOD
    white = np.concatenate([x[10:].ravel() for x in found.innovations.values()])
    assert 0.9 < np.std(white) < 1.1


def test_the_slope_of_the_likelihood_is_that_of_differences(cartpole):
    """Fisher's identity against central differences, which err by about 1e-6 of the slope."""
    log = cartpole_log(cartpole, 1, count=40)[-1]
    problem = make_problem(cartpole, log, None, None, kn.RK4(), None, {}, None, None)
    block = linearise(problem, 0, problem.nominal[0])
    noise = Noise(np.array([5e-4, 1e-3, 1e-2, 2e-2]), 2 * EFFORT, 0.03)
    free = Free(np.ones(4, bool), np.ones(2, bool), True)
    slope = _slope(block, noise, smooth_linear(block.linear(noise)), free)
    x = _packed(noise, free)
    for k in range(len(x)):
        ends = [_unpacked(x + sign * 1e-4 * (np.arange(len(x)) == k), noise, free) for sign in (1, -1)]
        up, down = (smooth_linear(block.linear(end)).log_likelihood for end in ends)
        assert abs((up - down) / 2e-4 - slope[k]) < 1e-4 * (1 + abs(slope[k])), k


def test_quaternions_and_points_are_estimated_in_the_tangent_space():
    """A free body seen by three markers only: its pose to a few times the noise of 1 mm over its size of 0.2 m."""
    frames = [kn.Frame(name, place) for name, place in (("a", (0.2, 0, 0)), ("b", (0, 0.2, 0)), ("c", (0, 0, 0.2)))]
    body = kn.build([kn.Link("body", joints=kn.free(), mass=1.0, inertia=(0.01, 0.02, 0.025), frames=frames)])
    rng, stamps = np.random.default_rng(0), PERIOD * np.arange(60)
    start = np.array([0, 0, 1, 1, 0, 0, 0, 0.5, 0, 2, 1, 2, 3], float)
    q, qd = simulated(body, start, np.zeros((60, 0)), np.zeros((60, 6)), stamps)
    place = native.vmap(lambda q: {f.name: frame_pose(body, q, f.name).position for f in frames})
    points = {name: np.asarray(p) + 1e-3 * rng.normal(size=(60, 3)) for name, p in place(q).items()}
    log = sysid.Recording.of(body, stamps, points=points)
    found = sysid.smooth(body, log, noise={f"point/{f.name}": 1e-3 for f in frames}, effort_noise=1e-3, correlation=0.0)
    assert found.converged
    apart = native.vmap(lambda a, b: kn.difference(body, a, b))
    off = np.concatenate([np.asarray(apart(q, found.q)), found.qd - qd], axis=1)
    squares = [off[k] @ np.linalg.solve(found.covariance[k], off[k]) for k in (5, 30, 55)]
    assert np.sum(squares) < chi2.ppf(0.9999, 36) and np.abs(off[:, :6]).max() < 0.01


def test_stiff_friction_gaps_and_single_samples_are_handled():
    """Friction of width 1 mm/s needs steps far below the sampling period; a gap splits the log, one sample stays."""
    model = eqx.tree_at(lambda m: (m.friction, m.friction_speed), slider(), (np.array([1.0]), np.array([1e-3])))
    stamps = np.concatenate([PERIOD * np.arange(60), [2.0], 3 + PERIOD * np.arange(40)])
    q = 0.1 * np.sin(3 * stamps)[:, None]
    log = sysid.Recording.of(model, stamps, q=q, control=np.zeros((101, 1)))
    found = sysid.smooth(model, log, noise={"q": 1e-4})
    assert np.isfinite(found.covariance).all() and found.q.shape == (101, 1)
    assert "2 gaps" in found.notes[0]
    assert np.abs(found.q - q).max() < 1e-3


def test_damaged_input_is_refused_with_words(cartpole):
    log = cartpole_log(cartpole, 0, count=30)[-1]
    smooth: Any = sysid.smooth
    bad = [
        (TypeError, "expected a Model", lambda: smooth("robot.urdf", log)),
        (TypeError, "expected one Recording", lambda: smooth(cartpole, [log])),
        (ValueError, "measures no motion", lambda: smooth(cartpole, log.replace(q=None, qd=None))),
        (ValueError, "noise: q must be positive", lambda: smooth(cartpole, log, noise={"q": 0.0})),
        (ValueError, "qdd is not measured", lambda: smooth(cartpole, log, noise={"qdd": 1.0})),
        (ValueError, "effort_noise must be a number or 2", lambda: smooth(cartpole, log, effort_noise=[1, 2, 3])),
        (ValueError, "0 for all joints", lambda: smooth(cartpole, log, effort_noise=0.0)),
        (ValueError, "correlation must be a time", lambda: smooth(cartpole, log, correlation=-1.0)),
        (ValueError, "step must be positive", lambda: smooth(cartpole, log, step=0.0)),
        (ValueError, "expected held or linear", lambda: smooth(cartpole, log, drive="cubic")),
        (ValueError, "initial must be a State", lambda: smooth(cartpole, log, initial=(log, 3))),
    ]
    for kind, words, call in bad:
        with pytest.raises(kind, match=words):
            call()


def test_noise_over_a_time_is_that_of_averages():
    """An autoregression of 200 s, correlated over 0.1 s: 1000 independent values give its deviation to about 5 %."""
    rng, count, keep = np.random.default_rng(0), 20000, np.exp(-0.1)
    error = np.zeros((count, 2))
    for k in range(1, count):
        error[k] = keep * error[k - 1] + np.sqrt(1 - keep**2) * rng.normal(size=2) * [2.0, 0.5]
    nothing: Any = None
    others = dict.fromkeys((f.name for f in fields(sysid.Smoothed)), nothing)
    known = {"time": PERIOD * np.arange(count), "effort_error": error, "effort_noise": sysid.EffortNoise(np.ones(2))}
    states = sysid.Smoothed(**{**others, **known})
    found = states.noise_over(0.5)
    np.testing.assert_allclose(found.deviation, [2.0, 0.5], rtol=0.15)
    assert found.correlation == pytest.approx(0.1, rel=0.3)
    for seconds, words in ((0.01, "at least five samples"), (100.0, "too short")):
        with pytest.raises(ValueError, match=words):
            states.noise_over(seconds)


def rubbing_slider(reach: float, count: int, noise: dict[str, float], push: float = 0.0, seed: int = 0):
    """A slider with pre-sliding friction of that reach [m]: model, blueprint, its motion and a noisy log."""
    law = kn.neural.JointFriction((0,), (0,), 1, 1, (True,))
    numbers = (np.array([2.0]), np.array([0.01]), np.array([reach]))
    law = eqx.tree_at(lambda m: (m.coulomb, m.speed, m.reach), law, numbers)
    blueprint = kn.Blueprint({"joint/force": kn.Augment(law, ("q", "qd", "joint/force"))})
    model, rng = slider(stiffness=0.0), np.random.default_rng(seed)
    control = 6 * np.sin(0.08 * np.arange(count))[:, None]
    error = np.random.default_rng(seed + 1).normal(size=control.shape)
    acts = np.repeat(control + push * error, 10, axis=0)
    options = {"integrator": kn.RK4(), "contact": None, "blueprint": blueprint, "native": True}
    run = kn.rollout(model, kn.State(np.zeros(1), np.zeros(1)), acts, dt=1e-3, **options)
    q, qd = (np.concatenate([np.zeros((1, 1)), np.asarray(x)[9::10]])[:count] for x in (run.q, run.qd))
    seen = [x + noise[key] * rng.normal(size=x.shape) for key, x in (("q", q), ("qd", qd))]
    log = sysid.Recording.of(model, PERIOD * np.arange(count), control=control, q=seen[0], qd=seen[1])
    return model, blueprint, q, qd, log


def test_friction_that_remembers_is_followed():
    """Pre-sliding friction in a blueprint is part of the state; positions and speeds lie within five deviations."""
    noise = {"q": 1e-4, "qd": 1e-2}
    model, blueprint, q, qd, log = rubbing_slider(2e-3, 150, noise)
    given = {"noise": noise, "effort_noise": 0.05, "correlation": 0.0}
    found = sysid.smooth(model, log, blueprint=blueprint, **given)
    plain = sysid.smooth(model, log, **given)
    off = np.concatenate([found.q - q, found.qd - qd], axis=1) / found.deviation
    assert found.converged and np.abs(off).max() < 5, (found, np.abs(off).max())
    assert found.state(100).memory is not None and plain.state(100).memory is None
    assert plain.log_likelihood < found.log_likelihood - 100  # without the law the log is far less probable


def test_kinks_of_friction_within_the_uncertainty_of_the_state_do_not_keep_it_from_converging():
    """The reach of pre-sliding is half of the noise of the position. Jacobians alone moved 2.7 % of the states by more
    than 0.1 standard deviations for ever; slopes across one standard deviation let all of them settle."""
    noise = {"q": 1e-4, "qd": 5e-3}
    model, blueprint, q, qd, log = rubbing_slider(5e-5, 300, noise, push=0.3, seed=1)
    found = sysid.smooth(model, log, blueprint=blueprint, noise=noise, effort_noise=0.3, correlation=0.0)
    assert found.converged and found.iterations < 20
    off = np.concatenate([found.q - q, found.qd - qd], axis=1) / found.deviation
    assert 0.8 < np.sqrt(np.mean(off**2)) < 1.25  # 600 errors, correlated over some ten


def test_secants_are_jacobians_where_a_step_is_smooth(cartpole):
    """Divided differences over 1e-4 to either side differ from slopes by the third derivative times 1e-8 / 6."""
    log = cartpole_log(cartpole, 0, count=20)[-1]
    problem = make_problem(cartpole, log, None, None, kn.RK4(), None, {}, None, None)
    system, run, nominal = problem.system, problem.runs[0], problem.nominal[0]
    some = np.array([0, 5, 17])
    found = system.secants(nominal, run, some, np.full((len(nominal.q), system.size), 1e-4))
    np.testing.assert_allclose(found, system.steps(nominal, run)[1][some], atol=1e-6)


def test_a_start_from_rest_does_not_end_in_a_wrong_optimum():
    """The slider begins at rest, where noise of the velocity decides which way friction points at first.

    From the first guess alone seed 2 ends more than ten standard deviations off, and innovations contradict it.
    """
    noise = {"q": 1e-4, "qd": 1e-2}
    for seed, several in ((0, False), (2, True)):
        model, blueprint, q, _, log = rubbing_slider(2e-3, 150, noise, seed=seed)
        found = sysid.smooth(model, log, blueprint=blueprint, noise=noise, effort_noise=0.05, correlation=0.0)
        assert found.converged and np.abs(found.q - q).max() < 5 * noise["q"]
        assert not any("innovations exceed" in note for note in found.notes), found.notes
        assert any("starts" in note for note in found.notes) == several


def test_an_estimate_that_innovations_contradict_says_so():
    """Noise that is given ten times too small: no start explains the log."""
    noise = {"q": 1e-4, "qd": 1e-2}
    model, blueprint, _, _, log = rubbing_slider(2e-3, 150, noise)
    small = {key: value / 10 for key, value in noise.items()}
    found = sysid.smooth(model, log, blueprint=blueprint, noise=small, effort_noise=0.05, correlation=0.0)
    assert any("innovations exceed" in note for note in found.notes)
