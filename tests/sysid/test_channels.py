"""What is compared: accelerations, poses, and channels that only some recordings have."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import knuckle as kn
from knuckle import robots, spatial, sysid
from knuckle.contact import Impulse
from knuckle.neural import Recurrent, each
from knuckle.sysid.parameters import choose
from knuckle.sysid.shooting import Instruments, Simulator
from knuckle.sysid.shots import make_shots

CART = robots.load("cartpole")
HEAVY = eqx.tree_at(lambda m: m.inertia.mass, CART, np.asarray(CART.inertia.mass) * [1.2, 0.9])
PERIOD = 0.01


def driven(rng, samples=60, noise=(1e-4, 1e-3, 1e-2), truth=HEAVY):
    """A cart that is pushed: coordinates, velocities and accelerations with noise, at 100 Hz; controls are held."""
    control = np.repeat(4 * rng.normal(size=(samples // 5, 1)), 5, axis=0)

    def sample(state, u):
        after = kn.rollout(truth, state, jnp.stack([u] * 4), dt=PERIOD / 4, integrator=kn.RK4(), contact=None).last
        return after, (state.q, state.qd, kn.dynamics.aba(truth, state.q, state.qd, force(state, u)))

    def force(state, u):
        return kn.forces.actuator_force(truth, state.q, state.qd, u) + kn.forces.passive_force(truth, state.q, state.qd)

    start = kn.State(jnp.array([0.0, rng.uniform(-2, 2)]), jnp.zeros(2))
    values = kn.native.jit(lambda c: jax.lax.scan(sample, start, c)[1])(control)
    names, noisy = (
        ("q", "qd", "qdd"),
        [np.asarray(v) + n * rng.normal(size=v.shape) for v, n in zip(values, noise, strict=True)],
    )
    return {"control": control, **dict(zip(names, noisy, strict=True))}


def log(channels, *kept, name=""):
    time = PERIOD * np.arange(len(channels["control"]))
    return kn.Recording.of(CART, time, name=name, **{key: channels[key] for key in kept})


def test_measured_accelerations_tell_as_much_as_they_are_sharp():
    """Of a short log, accelerations with a noise of 0.01 m/s^2 tell more than positions with one of 0.1 mm."""
    channels = driven(np.random.default_rng(0))
    fits = [
        kn.fit(CART, log(channels, *kept), ["*.mass"], held_out=0)
        for kept in (("q", "control"), ("q", "qdd", "control"))
    ]
    for estimate, value in zip(fits[1].estimates, HEAVY.inertia.mass, strict=True):
        assert abs(estimate.value - value) < 3.5 * estimate.deviation
    assert fits[1].noise["qdd"] == pytest.approx(1e-2, rel=0.25)  # 120 numbers: 6 % is one deviation
    assert fits[1]["cart.mass"].deviation < 0.7 * fits[0]["cart.mass"].deviation


def moving(simulator, z, shot):
    """Velocities and accelerations at the samples of a piece, from where it starts."""
    nv = simulator.model.nv

    def both(z):
        states = simulator.states(z, jnp.zeros(2 * nv), shot)
        return states.qd, simulator.accelerations(z, states, shot)

    return [np.asarray(part) for part in kn.native.jit(both)(np.asarray(z, float))]


@pytest.mark.parametrize(
    ("integrator", "drive"), [(kn.RK4(), "held"), (kn.RK4(), "linear"), (kn.SemiImplicitEuler(), "held")]
)
def test_accelerations_are_those_of_the_steps(integrator, drive):
    channels = driven(np.random.default_rng(0), samples=10, noise=(0, 0, 0))
    logs = [log(channels, "q", "qd", "qdd", "control")]
    shots = make_shots(CART, logs, length=None, noise=dict.fromkeys(("q", "qd", "qdd"), 1.0), drive=drive)
    shot = jax.tree.map(lambda part: part[0], shots)
    simulator = Simulator(HEAVY, choose(HEAVY, ["*.mass"]), None, integrator, None, 1, {}, Instruments())
    qd, found = moving(simulator, np.zeros(2), shot)
    if isinstance(integrator, kn.RK4):
        np.testing.assert_allclose(found[0], channels["qdd"][0], atol=1e-9)
        assert (np.abs(found - channels["qdd"]).max() < 1e-3) == (drive == "held")  # RK4 in 10 ms against 2.5 ms
    else:
        np.testing.assert_allclose(found[:-1], np.diff(qd, axis=0) / PERIOD, atol=1e-9)


def test_accelerations_know_contact():
    puck = kn.Link("puck", joints=kn.prismatic("z"), mass=1.0, shapes=kn.shapes.sphere(0.1))
    model = kn.build([puck], world_shapes=[kn.shapes.plane()])
    rest = kn.Recording.of(
        model, PERIOD * np.arange(8), q=np.full((8, 1), 0.1), qd=np.zeros((8, 1)), qdd=np.zeros((8, 1))
    )
    shots = make_shots(model, [rest], length=None, noise=dict.fromkeys(("q", "qd", "qdd"), 1.0))
    shot, parameters = jax.tree.map(lambda part: part[0], shots), choose(model, ["*.mass"])
    for contact, expected in ((Impulse(), 0.0), (None, -9.81)):
        simulator = Simulator(model, parameters, contact, kn.SemiImplicitEuler(), None, 5, {}, Instruments())
        _, found = moving(simulator, np.zeros(1), shot)
        np.testing.assert_allclose(
            found[:, 0], expected, atol=1e-3
        )  # impulses are found to 1e-5 of those of the weight


def test_accelerations_of_recurrent_networks_follow_their_memory():
    network = each(2, lambda key: Recurrent(1, 1, 3, key=key), jax.random.key(0))
    blueprint = kn.Blueprint({"joint/force": kn.Augment(network, "qd", share="each")})
    channels = driven(np.random.default_rng(0), samples=10, noise=(0, 0, 0))
    shots = make_shots(CART, [log(channels, "q", "qd", "qdd", "control")], length=None,
                       noise=dict.fromkeys(("q", "qd", "qdd"), 1.0))  # fmt: skip
    shot = jax.tree.map(lambda part: part[0], shots)
    simulator = Simulator(CART, choose(CART, []), None, kn.SemiImplicitEuler(), blueprint, 1, {}, Instruments())
    z = simulator.first + 0.3  # heads begin at zero
    qd, found = moving(simulator, z, shot)
    np.testing.assert_allclose(found[:-1], np.diff(qd, axis=0) / PERIOD, atol=1e-9)
    qd, found = moving(simulator, simulator.first, shot)
    assert np.abs(found[:-1] - np.diff(qd, axis=0) / PERIOD).max() < 1e-9 and np.abs(qd).max() > 0.1


def test_a_log_with_accelerations_is_read_to_be_compared(tmp_path):
    channels = driven(np.random.default_rng(0))
    table = np.column_stack([PERIOD * np.arange(60), *(channels[k] for k in ("q", "qdd", "control"))])
    header = "time,q_slider,q_hinge,ddq_slider,ddq_hinge,ctrl_" + CART.actuators.names[0]
    names = dict(zip(("slider", "hinge"), CART.joint_names, strict=True))
    for old, new in names.items():
        header = header.replace(old, new)
    np.savetxt(tmp_path / "log.csv", table, delimiter=",", header=header, comments="")
    (run,) = sysid.read_recordings(tmp_path / "log.csv", CART)
    assert run["qdd"].names == CART.joint_names and run["qdd"].valid.all()
    assert set(make_shots(CART, [run], length=None, noise={"q": 1.0, "qdd": 1.0}).weight) == {"q", "qdd"}


def test_a_channel_of_ones_own_that_nothing_explains_is_refused_with_what_to_do():
    seen = kn.Recording.of(CART, PERIOD * np.arange(30), q=np.zeros((30, 2)), observed={"pixels": np.zeros((30, 1))})
    with pytest.raises(
        ValueError, match=r"'pixels' observes: give observe=.* --observe pixels=FILE.py:FUNCTION, or --ig"
    ):
        kn.fit(CART, seen, ["*.mass"], held_out=0)


@pytest.mark.parametrize("first", ["q", "qd"])
def test_what_only_some_recordings_have_counts_where_they_have_it(first):
    """Logs of other sensors together: no channel is dropped, whichever comes first, and none is made up."""
    rng = np.random.default_rng(0)
    runs = [driven(rng) for _ in range(3)]
    logs = [log(runs[0], "q", "control"), log(runs[1], "q", "qd", "control"), log(runs[2], "q", "qdd", "control")]
    shots = make_shots(
        CART, logs if first == "q" else logs[::-1], length=0.3, noise=dict.fromkeys(("q", "qd", "qdd"), 1.0)
    )
    counted = {key: int((np.asarray(w)[..., 0] > 0).sum()) for key, w in shots.weight.items()}
    assert counted["q"] == 3 * counted["qd"] == 3 * counted["qdd"] > 0
    if first == "qd":
        fit = kn.fit(CART, logs[:2], ["*.mass"], held_out=[logs[2]])
        assert set(fit.noise) == {"q", "qd"} and fit.noise["qd"] == pytest.approx(1e-3, rel=0.25)
        assert fit.held_out is not None and set(fit.held_out.after) == {"q"}
        for estimate, value in zip(fit.estimates, HEAVY.inertia.mass, strict=True):
            assert abs(estimate.value - value) < 3.5 * estimate.deviation


def test_a_recording_without_joints_beside_one_with_them_has_its_starts_sought():
    """The tip of a pendulum alone in one log, its joints in another: elbow and shoulder of the first are found."""
    model, rng, runs = robots.load("double_pendulum"), np.random.default_rng(3), []
    for _ in range(2):
        run = kn.rollout(
            model,
            model.state(rng.uniform(-2, 2, 2)),
            dt=5e-3,
            steps=120,
            integrator=kn.RK4(),
            contact=None,
            native=True,
        )
        runs.append(np.asarray(run.q)[1::2])
    noise = 1e-4 * rng.normal(size=(60, 5))
    tip = np.asarray(jax.vmap(lambda q: kn.kinematics.frame_pose(model, q, "tip").position)(runs[1]))
    time = PERIOD * np.arange(60)
    logs = [kn.Recording.of(model, time, q=runs[0] + noise[:, :2])]
    logs.append(kn.Recording.of(model, time, points={"tip": tip + noise[:, 2:]}))
    fit = kn.fit(model, logs, ["lower.mass"], held_out=0)
    off = np.asarray(fit.shots.q)[[0, -2]] - [runs[0][0], runs[1][0]]
    assert np.abs((off + np.pi) % (2 * np.pi) - np.pi).max() < 0.01
    assert fit["lower.mass"].value == pytest.approx(fit["lower.mass"].before, rel=1e-3)


def test_controls_and_torques_together_must_be_said_to_be_held_or_linear():
    runs = driven(np.random.default_rng(0))
    torques = np.concatenate([runs["control"], 0 * runs["control"]], 1)
    both = [
        log(runs, "q", "control", name="a"),
        kn.Recording.of(CART, PERIOD * np.arange(60), q=runs["q"], tau=torques, name="b"),
    ]
    idle = log(runs, "q", name="c")
    options = {"length": None, "noise": {"q": 1.0}}
    for order in (both, both[::-1]):
        with pytest.raises(ValueError, match=r"'a' has controls, .* and 'b' only torques, .*--drive"):
            make_shots(CART, order, **options)
    assert make_shots(CART, both, drive="linear", **options).linear
    assert (
        make_shots(CART, [both[1], idle], **options).linear and not make_shots(CART, [both[0], idle], **options).linear
    )


def test_a_joint_that_was_not_measured_may_start_anywhere():
    runs = driven(np.random.default_rng(0))
    runs["q"][:, 1] = np.nan
    known = np.asarray(make_shots(CART, [log(runs, "q", "control")], length=None, noise={"q": 1e-3}).known)[0]
    assert known[1] > 3 and known[3] >= 10 and known[0] == pytest.approx(0.01)


ARM = kn.build(
    [
        kn.Link("upper", joints=kn.revolute("y", name="shoulder"), mass=1.0, com=(0, 0, -0.2),
                inertia=(0.02, 0.02, 0.01)),
        kn.Link("lower", "upper", kn.revolute("x", name="elbow"), (0, 0, -0.4), mass=0.7, com=(0, 0, -0.15),
                inertia=(0.01, 0.01, 0.005)),
    ]
)  # fmt: skip


def test_a_mass_and_a_length_are_found_from_the_pose_of_a_hand():
    """Position and rotation of the last link alone, with noise; it begins more than a quarter of a turn away."""
    place = np.array(ARM.position)
    place[1, 2] *= 1.05
    truth = eqx.tree_at(lambda m: (m.inertia.mass, m.position), ARM, (np.array([1.0, 0.56]), place))
    rng, state = np.random.default_rng(0), truth.state(np.array([1.9, -0.8]))
    run = kn.rollout(truth, state, dt=5e-3, steps=240, integrator=kn.RK4(), contact=None, native=True)
    seen = jax.vmap(lambda q: tuple(kn.kinematics.frame_pose(truth, q, "lower")))(np.asarray(run.q)[1::2])
    rotation, position = np.asarray(seen[0]), np.asarray(seen[1])
    turned = Rotation.from_matrix(rotation) * Rotation.from_rotvec(1e-3 * rng.normal(size=(120, 3)))
    pose = np.concatenate([position + 1e-3 * rng.normal(size=(120, 3)), turned.as_quat(scalar_first=True)], axis=1)
    log = kn.Recording.of(ARM, PERIOD * np.arange(120), poses={"lower": pose})
    fit = kn.fit(ARM, log, ["lower.mass", "elbow.placement.z"], held_out=0)
    for name, value in {"lower.mass": 0.56, "elbow.placement.z": -0.42}.items():
        assert abs(fit[name].value - value) < 3.5 * fit[name].deviation, name
        assert fit[name].verdict == "determined" and fit[name].deviation < 0.02 * abs(value)
    assert fit.noise["pose/lower"] == pytest.approx(1e-3, rel=0.12)  # 720 numbers: 3 % is one deviation


def test_rotations_that_differ_by_half_a_turn_differ_and_have_a_slope():
    """The residual grows with the angle up to pi; what it was before, its sine, is zero there."""
    simulator = Simulator(ARM, choose(ARM, ["*.mass"]), None, kn.RK4(), None, 1, {}, Instruments())
    off = lambda q: simulator.difference(ARM, "pose/lower", kn.State(q, jnp.zeros(2)), measured)[3:]  # noqa: E731
    measured = jnp.array([0.0, 0, -0.4, 1, 0, 0, 0])
    both = kn.native.jit(lambda q: (off(q), kn.native.jacfwd(off)(q)))
    for angle in (0.0, 1e-9, 0.3, 2.0, np.pi - 1e-6, np.pi):
        value, slope = (np.asarray(part) for part in both(np.array([angle, 0.0])))
        np.testing.assert_allclose(np.linalg.norm(value), angle, atol=1e-7)
        assert np.isfinite(slope).all() and np.linalg.norm(slope[:, 0]) == pytest.approx(1.0, abs=1e-6)


def test_quaternions_of_rotations():
    q = np.concatenate([np.eye(4), np.random.default_rng(0).normal(size=(50, 4))])
    found = jax.vmap(lambda x: spatial.quaternion_of_rotation(spatial.rotation_of_quaternion(x)))(jnp.asarray(q))
    expected = q / np.linalg.norm(q, axis=1, keepdims=True)
    np.testing.assert_allclose(np.abs(np.sum(np.asarray(found) * expected, axis=1)), 1.0, atol=1e-12)
