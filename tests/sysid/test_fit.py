"""Fits to recordings of a known truth."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import knuckle as kn
from knuckle import robots, sysid
from knuckle.model.inertia import matrix_of
from knuckle.neural import MLP, each
from knuckle.sysid import first_weights, solve
from knuckle.sysid.families import to_value
from knuckle.sysid.held_out import _with_known_starts
from knuckle.sysid.many import Pieces
from knuckle.sysid.objective import Objective, Regularise
from knuckle.sysid.parameters import Prior, choose, fittable
from knuckle.sysid.shooting import Instruments, Simulator
from knuckle.sysid.shots import make_shots, measured_start, steady_start

DT, PERIOD = 2e-3, 0.01
MODEL = robots.load("double_pendulum")
TRUTH = eqx.tree_at(
    lambda m: (m.inertia.mass, m.damping), MODEL, (MODEL.inertia.mass * np.array([1.3, 0.8]), np.array([0.05, 0.02]))
)
FREE = ["*.mass", "*.damping"]


def recorded(truth, runs=3, steps=500, noise=1e-3, seed=0, control=None, late=0, offset=0.0):
    """Runs of a model with noise on its coordinates, sampled every five steps."""
    rng = np.random.default_rng(seed)
    found = []
    for k in range(runs):
        state = truth.state(rng.normal(size=truth.nq))
        inputs = None if control is None else np.repeat(control(rng, steps // 5), 5, axis=0)
        run = kn.rollout(truth, state, inputs, dt=DT, steps=steps, integrator=kn.RK4(), contact=None, native=True)
        q = np.concatenate([np.asarray(state.q)[None], np.asarray(run.q)[4::5]])
        q = np.concatenate([np.repeat(q[:1], late, axis=0), q[: len(q) - late]]) + offset
        q = q + noise * rng.normal(size=q.shape)
        drive = None if inputs is None else np.concatenate([inputs[::5], inputs[-1:]])
        found.append(sysid.Recording.of(truth, PERIOD * np.arange(len(q)), q=q, control=drive, name=f"run {k}"))
    return found


def spoiled(recordings, share=0.05, seed=0):
    """The same with gross outliers of about 1 rad in place of a share of the samples."""
    rng, found = np.random.default_rng(seed), []
    for r in recordings:
        off = rng.normal(size=r.q.shape) * (rng.random(r.q.shape) < share)
        found.append(kn.Recording.of(MODEL, r.time, q=r.q + off, name=r.name))
    return found


def objective(free=FREE, blueprint=None, instruments=Instruments(), **options):
    shots = make_shots(MODEL, recorded(TRUTH, runs=1), length=0.4, noise={"q": 1e-3}, latest=0.05)
    integrator = kn.SemiImplicitEuler()
    simulator = Simulator(MODEL, choose(MODEL, free), None, integrator, blueprint, 5, {}, instruments)
    return Objective(simulator, shots, **options)


def test_the_bias_of_an_actuator_is_its_constant_part():
    arm = robots.load("arm")
    (parameter,) = choose(arm, [f"{arm.actuators.names[1]}.bias"])
    (changed, _), before = choose(arm, [parameter.name]).applied(arm, None, jnp.array([3.0])), arm.actuators.bias
    expected = np.array(before)
    expected[1, 0] += 3.0 * parameter.scale
    np.testing.assert_array_equal(changed.actuators.bias, expected)


def test_single_coordinates_of_vectors_can_be_free():
    found = choose(MODEL, ["lower.com.z", "world.gravity.x"])
    model, _ = found.applied(MODEL, None, jnp.array([2.0, 3.0]))
    com, gravity = np.array(MODEL.inertia.com), np.array(MODEL.gravity)
    com[MODEL.link_names.index("lower"), 2] += 2.0 * found[0].scale
    gravity[0] += 3.0 * found[1].scale
    np.testing.assert_array_equal(model.inertia.com, com)
    np.testing.assert_array_equal(model.gravity, gravity)
    assert [p.name for p in choose(MODEL, ["*.com"])] == ["upper.com", "lower.com"]
    with pytest.raises(ValueError, match=r"upper\.com\.x, upper\.com\.y, upper\.com\.z would be free twice"):
        choose(MODEL, ["upper.com*"])


def small_networks():
    networks = each(2, lambda key: MLP((2, 3, 1), key=key), jax.random.key(0))
    return kn.Blueprint({"joint/force": kn.Augment(networks, ("q", "qd"), share="each")})


LASSO = Regularise(2.0, group_lasso=30.0, lasso=10.0)


@pytest.mark.parametrize(
    ("free", "options"),
    [
        (["*.mass", "*.com", "*.inertia"], {"instruments": Instruments((("q", 2),), True, True)}),
        (["lower.mass"], {"blueprint": small_networks(), "robust": "cauchy", "regularise": LASSO}),
    ],
)
def test_jacobian_and_gradient_are_those_of_the_residuals(free, options):
    made = objective(free, **options)
    rng = np.random.default_rng(0)
    x = 0.01 * np.abs(rng.normal(size=made.size + made.start_size))
    step = 1e-6 * rng.normal(size=len(x))
    r, J = made(x)
    (above, _), (below, _) = made(x + step), made(x - step)
    np.testing.assert_allclose((above - below) / 2, J @ step, atol=1e-6 * np.abs(J @ step).max())
    np.testing.assert_allclose(made.look(x), r, rtol=1e-12, atol=1e-12)
    own = step[made.size :]
    np.testing.assert_allclose(made.by_own(x)[1] @ own, J.of_own() @ own, rtol=1e-9, atol=1e-12)
    pieces = Pieces(made)
    z = pieces.start(x)
    value, gradient = pieces.value_and_gradient(z)
    r, J = made(pieces.point(z))
    assert value == pytest.approx(0.5 * r @ r, rel=1e-10)
    slope = J.transposed(r)
    np.testing.assert_allclose(gradient, slope[: made.size], rtol=1e-7, atol=1e-7 * np.abs(slope).max())


@pytest.fixture(scope="module")
def clean():
    return kn.fit(MODEL, recorded(TRUTH), FREE, held_out=0)


@pytest.mark.parametrize("robust", ["huber", "cauchy"])
def test_one_in_twenty_gross_outliers_costs_next_to_nothing(robust, clean):
    fit = kn.fit(MODEL, spoiled(recorded(TRUTH)), FREE, robust=robust, held_out=0)
    assert fit.noise["q"] == pytest.approx(1e-3, rel=0.15)
    for name, value in {"upper.mass": 1.495, "lower.mass": 0.6}.items():
        assert fit[name].value == pytest.approx(value, rel=0.01)
    for a, b in zip(clean.estimates, fit.estimates, strict=True):
        assert abs(a.value - b.value) < 2 * a.deviation
        assert 0.9 < b.deviation / a.deviation < 1.4  # some sharpness is lost; the noise is known to 5 %


def test_squares_are_led_astray_by_gross_outliers():
    """What the robust losses are for, as docs/fit.md says."""
    fit = kn.fit(MODEL, spoiled(recorded(TRUTH)), FREE, held_out=0)
    off = [abs(fit[name].value / value - 1) for name, value in {"upper.mass": 1.495, "lower.mass": 0.6}.items()]
    assert max(off) > 0.1


def test_a_start_is_found_among_outliers():
    run = recorded(TRUTH, runs=1, noise=1e-4)[0]
    q = np.array(run.q)
    q[[0, 3, 7, 8]] += 1.0
    found = steady_start(MODEL, kn.Recording.of(MODEL, run.time, q=q), {"q": 1e-4})
    expected = measured_start(MODEL, run, {"q": 1e-4})
    np.testing.assert_allclose(found[0], expected[0], atol=1e-3)
    assert np.all(np.abs(found[1] - expected[1]) < expected[2][2:])


def test_the_lasso_takes_away_an_input_that_is_not_needed():
    rubbing = eqx.tree_at(lambda m: m.damping, MODEL, np.array([0.08, 0.05]))
    smooth = eqx.tree_at(lambda m: m.damping, MODEL, np.zeros(2))
    runs, sparse = recorded(rubbing, runs=1), Regularise(group_lasso=30.0)
    fit = kn.fit(smooth, runs, [], blueprint=small_networks(), held_out=0, regularise=sparse)

    def of_inputs(blueprint):
        """Norms of the weights on angle and speed, for both networks."""
        (augment,) = blueprint.augments["joint/force"]
        return np.linalg.norm(np.asarray(augment.network.weights[0]), axis=-2)

    assert np.all(of_inputs(small_networks()) > 0.3)
    angle, speed = of_inputs(fit.blueprint).T
    assert np.all(angle < 0.01) and np.all(speed > 0.04)  # ten times the norm that counts as zero
    assert fit.noise["q"] == pytest.approx(1e-3, rel=0.15)  # and nothing is left to learn


@pytest.mark.parametrize("loss", ["multiple shooting", "single shooting"])
def test_a_known_truth_is_found_within_its_intervals(loss):
    fit = sysid.fit(MODEL, recorded(TRUTH), FREE, loss=loss)
    for name, value in {
        "upper.mass": 1.495,
        "lower.mass": 0.6,
        "shoulder.damping": 0.05,
        "elbow.damping": 0.02,
    }.items():
        estimate = fit[name]
        assert estimate.verdict == "determined"
        assert abs(estimate.value - value) < 4 * estimate.deviation  # one in 16,000
        assert estimate.deviation < 0.03 * value
    assert fit.noise["q"] == pytest.approx(1e-3, rel=0.1)
    assert fit.held_out is not None
    assert fit.held_out.after["q"] < 0.1 * fit.held_out.before["q"]
    assert "upper.mass" in repr(fit)


def states(lost: slice) -> list[sysid.Recording]:
    """Positions and velocities with little noise; some velocities of the elbow were not measured."""
    rng, found = np.random.default_rng(0), []
    for k in range(2):
        run = kn.rollout(
            TRUTH, TRUTH.state(rng.normal(size=2)), dt=DT, steps=500, integrator=kn.RK4(), contact=None, native=True
        )
        q, qd = (np.asarray(a)[4::5] for a in (run.q, run.qd))
        q, qd = q + 1e-5 * rng.normal(size=q.shape), qd + 1e-4 * rng.normal(size=q.shape)
        qd[lost, 1] = np.nan
        found.append(sysid.Recording.of(TRUTH, PERIOD * np.arange(len(q)), q=q, qd=qd, name=f"run {k}"))
    return found


def test_from_each_measured_state_to_the_next():
    """The workshop paper's equation 1: states as measured, so their noise must be small."""
    fit = sysid.fit(MODEL, states(slice(10, 30)), FREE, loss="one step", held_out=0)
    truth = {"upper.mass": 1.495, "lower.mass": 0.6, "shoulder.damping": 0.05, "elbow.damping": 0.02}
    for name, value in truth.items():
        assert abs(fit[name].value - value) < min(4 * fit[name].deviation, 0.01 * value)
    with pytest.raises(ValueError, match="'run 0' has no qd; \"multiple shooting\" finds"):
        sysid.fit(MODEL, recorded(TRUTH, runs=1), FREE, loss="one step")
    with pytest.raises(ValueError, match="'run 0' has no qd of elbow"):
        sysid.fit(MODEL, states(slice(None)), FREE, loss="one step", held_out=0)
    with pytest.raises(ValueError, match="no delay of the sensor"):
        sysid.fit(MODEL, states(slice(10, 30)), FREE, loss="one step", delays=["sensor"], held_out=0)
    even = np.arange(40)[:, None] % 2 == 0
    q, qd = np.where(even, 1.0, np.nan) * np.ones(2), np.where(even, np.nan, 1.0) * np.ones(2)
    apart = sysid.Recording.of(MODEL, 0.01 * np.arange(40), q=q, qd=qd)
    with pytest.raises(ValueError, match="nothing to compare: no sample after one"):
        sysid.fit(MODEL, apart, FREE, loss="one step", held_out=0)


def test_from_each_measured_state_to_the_next_with_quaternions():
    """A tumbling body: nq is 7, nv 6."""
    body = kn.build([kn.Link("body", joints=kn.free(), mass=2.0, inertia=(0.02, 0.03, 0.04))], gravity=(0, 0, 0))
    heavier = eqx.tree_at(lambda m: m.inertia.moment, body, np.array([[0.02, 0.036, 0.04, 0, 0, 0]]))
    with jax.enable_x64(True):
        start = heavier.state(np.array([0, 0, 0, 1.0, 0, 0, 0]), np.array([0, 0, 0, 3.0, 2.0, 1.0]))
        motion = kn.rollout(heavier, start, dt=0.01, steps=100, integrator=kn.RK4(), contact=None, native=True)
    noise = 1e-5 * np.random.default_rng(0).normal(size=(100, 13))
    log = sysid.Recording.of(body, motion.time, q=motion.q + noise[:, :7], qd=motion.qd + noise[:, 7:])
    fit = sysid.fit(body, log, ["body.inertia"], loss="one step", held_out=0)
    values = [fit[f"body.inertia.{axes}"].value for axes in ("xx", "yy", "zz")]
    np.testing.assert_allclose(np.array(values) / values[0], [1.0, 1.8, 2.0], atol=5e-3)  # turning freely: no scale


def test_a_passive_pendulum_does_not_tell_its_mass():
    fit = sysid.fit(MODEL, recorded(TRUTH, runs=2), ["*.mass", "*.inertia", "*.damping", "*.com"], held_out=0)
    assert fit["upper.mass"].verdict == fit["lower.mass"].verdict == "not determined"
    words = " ".join(fit.certainty.untold())
    assert "the data do not depend on" in words and "upper.com.y" in words.split("depend on")[1].split(" a change")[0]
    assert "lower.mass" in words
    unseen = fit.certainty.untold()[0].partition("depend on ")[2].split(", ")
    assert {f"upper.inertia.{k}" for k in ("xx", "zz", "xy", "xz", "yz")} <= set(unseen)  # both turn about y
    assert "upper.inertia.yy" not in unseen and "upper.com" not in unseen
    ratio = fit["upper.mass"].value * fit["upper.com.z"].value / (fit["lower.mass"].value * fit["lower.com.z"].value)
    assert np.isfinite(ratio)


def test_offsets_and_delays_are_found():
    cart = robots.load("cartpole")
    pushes = lambda rng, n: np.repeat(5 * rng.normal(size=(n // 20, 1)), 20, axis=0)  # noqa: E731
    runs = recorded(cart, control=pushes, late=2, offset=0.03)
    fit = sysid.fit(cart, runs, ["*.damping"], offsets=["q"], delays=["sensor"], held_out=0)
    assert fit["sensor.delay"].value == pytest.approx(0.02, abs=2e-3) and fit["sensor.delay"].unit == "s"
    assert fit["sensor.q.offset[1]"].value == pytest.approx(0.03, abs=3e-3)
    assert fit["sensor.delay"].verdict == fit["sensor.q.offset[1]"].verdict == "determined"


def test_points_poses_and_observations_of_ones_own_are_compared():
    run = recorded(TRUTH, runs=1, noise=0.0)[0]
    tip = jax.vmap(lambda q: kn.kinematics.frame_pose(MODEL, q, "tip").position)(run.q)
    height = {"height": np.asarray(tip)[:, 2:]}
    seen = sysid.Recording.of(MODEL, run.time, q=run.q, points={"tip": np.asarray(tip)}, observed=height)
    options = {"noise": {"q": 1e-5, "point/tip": 1e-5, "height": 1e-5}, "held_out": 0}

    def observed(model, state):
        return kn.kinematics.frame_pose(model, state.q, "tip").position[2:]

    fit = sysid.fit(MODEL, seen, FREE, observe={"height": observed}, **options)
    assert fit["lower.mass"].value == pytest.approx(0.6, rel=1e-4)
    with pytest.raises(ValueError, match="nothing says what 'height' observes"):
        sysid.fit(MODEL, seen, FREE, **options)
    wrong = {
        "higth is not compared; compared are": {"observe": {"height": observed}, "noise": {"higth": 1.0}},
        "that of height must be a positive deviation, got 0": {"observe": {"height": observed}, "noise": {"height": 0}},
        "q is no channel of one's own; the recordings have point/tip, height": {"observe": {"q": observed}},
        r"must give the 1 numbers of height as one array, got shape \(2,\)": {"observe": {"height": lambda m, s: s.q}},
        r"fails: TypeError: .* \(.*test_fit.py, line": {"observe": {"height": lambda m, s: None + s.q}},
    }
    for message, mistake in wrong.items():
        with pytest.raises(ValueError, match=message):
            sysid.fit(MODEL, seen, FREE, **options | mistake)
    with pytest.raises(ValueError, match=r"the spread of '\*.mass' must be positive, got -1"):
        sysid.fit(MODEL, seen, {"*.mass": Prior(spread=-1)}, observe={"height": observed}, **options)


def test_a_network_learns_what_the_model_leaves_out():
    rubbing = eqx.tree_at(lambda m: m.damping, MODEL, np.array([0.08, 0.05]))
    smooth = eqx.tree_at(lambda m: m.damping, MODEL, np.zeros(2))
    networks = each(2, lambda key: MLP((1, 4, 1), key=key), jax.random.key(0))
    blueprint = kn.Blueprint({"joint/force": kn.Augment(networks, "qd", share="each")})
    fit = sysid.fit(smooth, recorded(rubbing), ["lower.mass"], blueprint=blueprint)
    assert fit.held_out is not None
    assert fit.held_out.after["q"] < 0.1 * fit.held_out.before["q"]
    assert fit.blueprint is not None
    learnt = fit.blueprint.augments["joint/force"][0].network
    force = jax.vmap(lambda network: network(jnp.array([1.0]))[0] - network(jnp.array([-1.0]))[0])(learnt)
    np.testing.assert_allclose(force / 2, [-0.08, -0.05], rtol=0.2)


def test_first_weights_are_drawn_again_until_a_fit_holds_and_the_most_probable_end_stays(monkeypatch):
    ends = []
    monkeypatch.setattr(solve, "holds", lambda *_: False)
    monkeypatch.setattr(solve, "end", lambda *given: ends.append(first_weights.end(*given)) or ends[-1])
    monkeypatch.setattr(solve, "SURE", 0.0)  # no two ends are alike
    smooth, log = eqx.tree_at(lambda m: m.damping, MODEL, np.zeros(2)), recorded(TRUTH, runs=1)
    fit = kn.fit(smooth, log, [], blueprint=small_networks(), held_out=0, draws=3)
    first, second, best, third = ends
    assert len({end.last.value for end in (first, second, third)}) == 3  # each from weights of its own
    assert best.probability == max(first.probability, second.probability)
    kept = max(ends, key=lambda end: end.probability)
    np.testing.assert_array_equal(fit.result.x, kept.last.x)
    assert fit.objective.continuity == kept.continuity and fit.noise == kept.noise
    ends.clear()
    monkeypatch.setattr(solve, "SURE", np.inf)  # all are: two suffice
    fit.again(log)
    assert len(ends) == 2


def test_weights_drawn_again_have_the_spread_of_the_first_and_leave_zeros():
    problem = objective([], small_networks())
    again = first_weights.redrawn(problem, problem.first, (0, 1))
    before, after = (problem.simulator.networks(jnp.asarray(x[: problem.size])).weights for x in (problem.first, again))
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert np.any(old != 0) == np.all(old != new)
        assert np.std(new) < 3 * np.std(old) or np.all(old == new)
    np.testing.assert_array_equal(problem.first[problem.size :], again[problem.size :])
    trained = kn.Blueprint(small_networks().augments).with_weights(jax.tree.map(lambda w: w + 0.1, before))
    assert first_weights.untrained(problem) and not first_weights.untrained(objective([], trained))
    both = objective(
        [], kn.Blueprint({"joint/force": (*trained.augments["joint/force"], *small_networks().augments["joint/force"])})
    )
    first, again = both.first[: both.size], first_weights.redrawn(both, both.first, (0, 1))[: both.size]
    old, new = (both.simulator.networks(jnp.asarray(x)).weights for x in (first, again))
    same = [jax.tree.all(jax.tree.map(np.array_equal, old[key], new[key])) for key in ("joint/force", "joint/force#1")]
    assert first_weights.untrained(both) and same == [True, False]  # trained ones stay as they are


@given(st.lists(st.floats(-3, 3), min_size=6, max_size=6), st.integers(0, 99))
def test_moments_stay_those_of_a_body(z, seed):
    thin = np.random.default_rng(seed).random(3) * np.array([1, 1, 0])  # a plate: on the edge of what can be
    start = np.array([thin[1], thin[0], thin[0] + thin[1], 0, 0, 0])
    moments = matrix_of(np.asarray(to_value("moments", start, 1.0, jnp.asarray(z))))
    a, b, c = np.linalg.eigvalsh(moments)
    assert a > 0 and a + b >= c * (1 - 1e-9)


def test_what_can_be_fitted_has_names_and_what_cannot_is_refused():
    contact = kn.contact.Compliant()
    assert {"upper.mass", "elbow.damping", "world.gravity"} <= set(fittable(MODEL, contact))
    assert "contact.stiffness" in fittable(robots.load("quadruped"), contact)
    assert "contact.stiffness" not in fittable(MODEL, contact)  # it has nothing that could touch
    with pytest.raises(ValueError, match=r"nothing is called 'upper.colour'; there are mass, com, inertia of upper"):
        choose(MODEL, ["upper.colour"])
    with pytest.raises(ValueError, match="lower < upper"):
        choose(MODEL, {"upper.mass": Prior(2.0, 1.0)})
    with pytest.raises(ValueError, match=r"needs kn.Prior"):
        choose(MODEL, {"upper.mass": 3.0})  # pyright: ignore[reportArgumentType]
    chosen = choose(MODEL, {"*.mass": (0.5, 3.0)})
    model, _ = chosen.applied(MODEL, None, jnp.asarray(chosen.upper))
    np.testing.assert_allclose(model.inertia.mass, 3.0)
    with pytest.raises(ValueError, match="there is no recording"):
        sysid.fit(MODEL, [], FREE)
    with pytest.raises(ValueError, match="robust: expected one of squares, huber, soft_l1, cauchy, got 'tukey'"):
        sysid.fit(MODEL, [], FREE, robust="tukey")  # pyright: ignore[reportArgumentType]


def test_pieces_whose_start_was_not_measured_are_not_foretold():
    time, q = 0.01 * np.arange(200), np.zeros((200, 2))
    q[100:110] = np.nan  # most of the first quarter of the third piece
    log = sysid.Recording.of(MODEL, time, q=q)
    shots = make_shots(MODEL, [log], length=0.5, noise={"q": 1e-3})
    kept = _with_known_starts(shots, 12)
    assert (shots.count, kept.count) == (4, 3)
    assert np.all(np.asarray(kept.weight["q"])[:, :12] > 0)
    hidden = jax.tree.map(lambda part: np.asarray(part)[2:3], shots)
    assert _with_known_starts(hidden, 12).count == 1  # rather than none


def test_what_is_no_model_no_recording_and_no_bound_is_refused_with_what_to_give():
    log = sysid.Recording.of(MODEL, 0.01 * np.arange(20), q=np.zeros((20, 2)))
    for wrong in ("log.csv", ["log.csv"], np.zeros((20, 2))):
        with pytest.raises(TypeError, match=r"expected Recordings, got .*read_recordings\(path, model\) reads logs"):
            sysid.fit(MODEL, wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"expected a Model, got str; kn.load\(path\)"):
        sysid.fit("arm.urdf", log)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"upper.mass is positive, so its bounds must be too, got -1.0 and 1.0"):
        sysid.fit(MODEL, log, {"*.mass": (-1.0, 1.0)})
    assert [p.name for p in choose(MODEL, "*.mass")] == ["upper.mass", "lower.mass"]
    assert np.all(np.isfinite(choose(MODEL, {"*.mass": (0.0, 3.0)}).lower))


class Swell(eqx.Module):
    """A force on each joint that comes and goes with time."""

    size: jax.Array

    def __call__(self, time):
        return self.size * jnp.sin(3 * time)


def test_networks_see_the_time_of_the_recording_in_every_piece():
    swelling = lambda size: kn.Blueprint({"joint/force": kn.Augment(Swell(size), "time", zero_start=False)})  # noqa: E731
    with jax.enable_x64(True):
        real, start = swelling(jnp.array([0.5, -0.2])), MODEL.state(np.array([0.5, 0.2]))
        options = {"dt": 0.005, "steps": 400, "integrator": kn.RK4(), "contact": None, "native": True}
        motion = kn.rollout(MODEL, start, blueprint=real, **options)
        q = np.asarray(motion.q)[1::2] + 1e-4 * np.random.default_rng(0).normal(size=(200, 2))
        log = sysid.Recording.of(MODEL, np.asarray(motion.time)[1::2], q=q)
        fit = sysid.fit(MODEL, log, [], blueprint=swelling(jnp.array([0.1, 0.1])), held_out=0)
        again = kn.rollout(MODEL, start, blueprint=fit.blueprint, **options)
    np.testing.assert_allclose(again.q, motion.q, atol=1e-3)  # with times that begin anew in each piece 0.07
