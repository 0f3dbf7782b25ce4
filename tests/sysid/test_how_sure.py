"""How sure a fit is: intervals, base parameters, posterior samples, and the next experiment."""

from copy import copy
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest, truncnorm

import knuckle as kn
from knuckle import robots, sysid
from knuckle.sysid.motion import Motions
from knuckle.sysid.noise import noise_left
from knuckle.sysid.posterior import Profiled
from knuckle.sysid.stein import stein
from knuckle.sysid.uncertainty import estimates

MODEL = robots.load("cartpole")
NOISE, PERIOD = 5e-4, 0.01
FREE = ["*.mass", "*.damping"]


def recorded(truth, control, seed=0, q=(0.0, 2.0)):
    """A noisy run under controls that are held over samples."""
    rng = np.random.default_rng(seed)
    first = truth.state(np.array(q))
    run = kn.rollout(
        truth,
        first,
        np.repeat(control, 2, axis=0),
        dt=PERIOD / 2,
        steps=2 * len(control),
        integrator=kn.RK4(),
        contact=None,
        native=True,
    )
    path = np.concatenate([np.asarray(first.q)[None], np.asarray(run.q)[1::2]])
    path = path + NOISE * rng.normal(size=path.shape)
    drive = np.concatenate([control, control[-1:]])
    return sysid.Recording.of(truth, PERIOD * np.arange(len(path)), q=path, control=drive, name=f"run {seed}")


@pytest.fixture(scope="module")
def truth():
    mass, damping = np.asarray(MODEL.inertia.mass) * [1.2, 0.9], np.asarray(MODEL.damping) * [0.8, 1.5]
    return eqx.tree_at(lambda m: (m.inertia.mass, m.damping), MODEL, (mass, damping))


@pytest.fixture(scope="module")
def gentle(truth):
    """A fit to a run that hardly moves: the cart's mass and damping show little."""
    push = np.repeat(0.1 * np.random.default_rng(1).normal(size=(15, 1)), 10, axis=0)
    return sysid.fit(MODEL, recorded(truth, push), FREE, held_out=0)


def test_ties_become_firm_and_the_noise_is_found_when_the_model_is_right(gentle):
    assert gentle.objective.continuity >= 100
    assert gentle.noise["q"] == pytest.approx(NOISE, rel=0.15)  # 300 numbers: 4 % is one deviation


def test_no_sample_counts_twice_and_what_the_fit_took_up_is_no_noise(gentle):
    weight = np.asarray(gentle.shots.weight["q"])
    joined = np.asarray(gentle.shots.joined)
    assert np.all(weight[0, 0] > 0) and np.all(weight[1:, 0] == 0) and joined[:-1].all()
    r, chain = gentle.objective(gentle.result.x)
    J = chain.dense()
    rows = gentle.objective.values(gentle.result.x).size
    taken = np.diag(J[:rows] @ np.linalg.inv(J.T @ J) @ J[:rows].T)
    of_joints = [np.arange(rows) % 2 == k for k in range(2)]  # metres and radians have their own noise
    seen = np.count_nonzero(weight, axis=(0, 1))
    left = [
        np.sqrt(np.sum(r[:rows][own] ** 2) / (n - np.sum(taken[own]))) for own, n in zip(of_joints, seen, strict=True)
    ]
    assert noise_left(gentle.objective, gentle.result.x)["q"] == pytest.approx(np.array(left), rel=1e-9)


def test_any_function_of_the_model_has_an_interval(gentle):
    found = gentle.interval(lambda m: m.inertia.mass)
    for k, link in enumerate(MODEL.link_names):
        estimate = gentle[f"{link}.mass"]
        assert found.value[k] == pytest.approx(estimate.value) and found.deviation[k] == pytest.approx(
            estimate.deviation
        )
    total = gentle.interval(lambda m: m.inertia.mass.sum()[None])
    assert total.value[0] == pytest.approx(found.value.sum())


def test_intervals_of_positive_things_are_positive(gentle):
    wide = gentle.certainty._replace(covariance=gentle.certainty.covariance * 1e8)
    for estimate in estimates(gentle.parameters, gentle.result.x, wide):
        assert 0 <= estimate.lower < estimate.value < estimate.upper, estimate.name


@pytest.mark.parametrize(
    ("robot", "count", "sums"),
    [
        ("cartpole", 4, ["cart.m + pole.m"]),
        ("double_pendulum", 6, ["upper.mz - 0.5 lower.m", "upper.Iyy + 0.25 lower.m", "lower.Iyy"]),
        ("arm", 43, ["wrist.mz + 0.09 hand.m + hand.mz", "hand.Izz"]),
    ],
)
def test_base_parameters_are_the_known_ones(robot, count, sums):
    """Closed forms: a pole adds its mass to the cart's, the lower link hangs at 0.5 m; 43 of a seven-joint arm's 70."""
    base = sysid.base_parameters(robots.load(robot))
    assert len(base) == count
    assert set(sums) <= set(base.words())


def test_samples_of_a_normal_density_have_its_mean_and_covariance():
    """Whitened covariance within 5 %, where a Gaussian kernel alone is a third too narrow in 20 dimensions."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(20, 20))
    C, mean = A @ A.T / 20 + 0.1 * np.eye(20), rng.normal(size=20)
    P = np.linalg.inv(C)
    found = stein(lambda k, x: -P @ (x - mean), rng.multivariate_normal(mean + 1, 2 * C, 80), P)
    L = np.linalg.cholesky(P)
    spread = np.linalg.eigvalsh(L.T @ np.cov(found.particles.T, bias=True) @ L)
    assert spread[0] > 0.95 and spread[-1] < 1.05
    assert np.abs(L.T @ (found.particles.mean(axis=0) - mean)).max() < 0.05


def test_samples_whose_motion_diverges_go_back(gentle):
    objective, z = copy(gentle.objective), gentle.result.x[: gentle.objective.size]
    objective.look = lambda x: np.full(3, np.nan) if np.any(np.abs(x[: len(z)] - z) > 1.0) else np.zeros(3)
    target = Profiled(objective, gentle.result.x, 2)
    np.testing.assert_allclose(target(0, z + 2.0), -target.hessian @ np.full(len(z), 2.0))
    assert np.isfinite(target(0, z + 1e-3)).all()


@pytest.mark.parametrize(("centre", "upper"), [(-0.5, np.inf), (0.3, 1.0)])
def test_samples_keep_to_bounds(centre, upper):
    """A normal density cut off at 0 and at `upper`: 200 random samples would differ by about 0.08 at most."""
    first = np.abs(np.random.default_rng(0).normal(size=(200, 1))) * min(upper, 2) / 4
    found = stein(lambda k, x: -(x - centre) / 0.25, first, np.eye(1) / 0.25, lower=0.0, upper=upper, iterations=500)
    cut = truncnorm(-centre / 0.5, (upper - centre) / 0.5, loc=centre, scale=0.5)
    assert found.particles.min() > 0 and found.particles.max() < upper
    assert kstest(found.particles[:, 0], cut.cdf).statistic < 0.05


def test_samples_of_two_modes_are_on_both():
    slope = lambda k, x: -(x**2 - 1) * 2 * x / 0.3**2  # noqa: E731
    first = 1.5 * np.random.default_rng(0).normal(size=(200, 1))
    found = stein(slope, first, np.eye(1) * 4 / 0.3**2, iterations=500).particles
    assert abs(np.mean(found > 0) - 0.5) < 0.1
    x = np.linspace(-3, 3, 6001)
    density = np.exp(-((x**2 - 1) ** 2) / (2 * 0.3**2))
    assert kstest(found[:, 0], lambda v: np.interp(v, x, np.cumsum(density) / density.sum())).statistic < 0.1


def test_samples_of_a_fit_agree_with_its_covariance(gentle, truth):
    found = sysid.posterior(gentle, 50)
    assert found.motion < 0.01
    for k, estimate in enumerate(gentle.estimates):
        if estimate.verdict == "determined":
            assert np.std(found.values[:, k]) == pytest.approx(estimate.deviation, rel=0.2), estimate.name
            assert np.mean(found.values[:, k]) == pytest.approx(estimate.value, abs=0.3 * estimate.deviation)
    assert found.values[:, 2:].min() >= 0
    with pytest.raises(ValueError, match="2 or more"):
        sysid.posterior(gentle, 1)


def test_the_next_experiment_keeps_to_limits_and_shows_what_was_not_known(gentle, truth):
    proposed = sysid.excite(gentle, 1.5, start="hanging", tries=12)
    q, u = proposed.recording["q"].values, proposed.recording["control"].values
    assert np.all(q >= np.asarray(MODEL.lower)) and np.all(q <= np.asarray(MODEL.upper))
    assert np.abs(u).max() <= np.asarray(MODEL.actuators.control_upper).max()
    assert proposed.worst_after < proposed.worst_before / 3
    after = gentle.again(recorded(truth, u[:-1], q=q[0]))
    assert after["cart.mass"].deviation < gentle["cart.mass"].deviation / 3
    assert after["cart.mass"].deviation < 2 * proposed.expected[0].deviation  # of this motion alone, with its own ties


def test_what_cannot_be_excited_is_refused(gentle):
    with pytest.raises(ValueError, match=r"none of .* motions keeps to the limits"):
        sysid.excite(gentle, 1.5, speed=1e-9, tries=2)


def test_a_path_of_an_arm_keeps_to_limits_and_its_torques_lead_along_it():
    """From each sample to the next: within 5e-4 rad of up to 0.01; torques that are held miss the jerk."""
    model = robots.load("arm")
    fit = SimpleNamespace(model=model, shots=SimpleNamespace(period=PERIOD))
    motions = Motions(fit, 1.0, None, speed=3.0, margin=0.1, highest=1.5)  # pyright: ignore[reportArgumentType]
    motion = motions.random(np.random.default_rng(0))
    assert motion is not None
    q, qd, u = (motion.recording[key].values for key in ("q", "qd", "control"))
    assert np.abs(qd).max() <= 0.9 * 3.0 and np.abs(q).max() > 0.1
    assert np.all(np.abs(u) <= 0.9 * np.asarray(model.actuators.control_upper))

    def next_sample(args):
        q, qd, u = args
        steps = jnp.stack([u, u])
        return kn.rollout(model, kn.State(q, qd), steps, dt=PERIOD / 2, integrator=kn.RK4(), contact=None).last.q

    after = np.asarray(kn.native.jit(lambda *path: jax.lax.map(next_sample, path))(q[:-1], qd[:-1], u[:-1]))
    np.testing.assert_allclose(after, q[1:], atol=5e-4)
    assert np.abs(np.diff(q, axis=0)).max() > 0.01


def test_motions_of_joints_without_limits_are_bounded_however_often_they_are_varied():
    """A servo without ranges, as MJCF files have it: half a turn to each side, and finite speeds and controls."""
    link = kn.Link("a", joints=kn.revolute("y", name="hip"), mass=1.0, inertia=(0.1, 0.1, 0.1))
    model = kn.build([link], actuators=[kn.position_servo("hip", kp=20.0, kv=1.0)])
    fit = SimpleNamespace(model=model, shots=SimpleNamespace(period=PERIOD))
    motions = Motions(fit, 1.0, None, speed=None, margin=0.1, highest=1.5)  # pyright: ignore[reportArgumentType]
    rng = np.random.default_rng(0)
    motion = motions.random(rng)
    for _ in range(60):
        assert motion is not None and np.abs(motion.recording["q"].values).max() <= np.pi
        motion = motions.varied(motion, 0.7, rng)
