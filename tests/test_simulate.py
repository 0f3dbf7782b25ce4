"""Steps and roll-outs: a reference run to all its digits, kinds of control, checkpointing, linear maps, float32."""

# pyright: reportArgumentType=false
# NumPy arrays go in wherever JAX arrays do, which the signatures do not say.

import json
import subprocess
import sys
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
import knuckle.robots
from knuckle.model.load import load
from tests.quick_xla import QUICK_XLA
from tests.random_models import Body, quick_jit, random_model, random_state, stack

ROD = {"mass": 1.0, "com": (0, 0, -0.25), "inertia": (0.0208333333, 0.0208333333, 0.001)}
BODY = '<inertial pos="0 0 -0.25" mass="1.0" diaginertia="0.0208333333 0.0208333333 0.001"/>'
MJCF = f"""<mujoco model="dp"><worldbody>
<body name="link0">{BODY}<joint name="j0" type="hinge" axis="0 1 0"/>
<body name="link1" pos="0 0 -0.5">{BODY}<joint name="j1" type="hinge" axis="0 1 0"/></body></body>
</worldbody></mujoco>"""


def double_pendulum():
    return kn.build(
        [
            kn.Link("link0", joints=kn.revolute("y"), **ROD),
            kn.Link("link1", parent="link0", joints=kn.revolute("y"), position=(0, 0, -0.5), **ROD),
        ]
    )


@pytest.mark.parametrize("make", [double_pendulum, lambda: load(MJCF)], ids=["by hand", "MJCF"])
def test_double_pendulum_ends_where_six_other_engines_end_with_the_same_gradients(make):
    model = make()

    def run(q, qd, masses):
        moved = eqx.tree_at(lambda m: m.inertia.mass, model, masses)
        end = kn.rollout(moved, kn.State(q, qd), dt=1e-3, steps=500).last
        return end.q @ end.q + 0.1 * end.qd @ end.qd, end

    value = quick_jit(jax.value_and_grad(run, argnums=(0, 1, 2), has_aux=True))
    (loss, end), (by_q, by_qd, by_mass) = value(jnp.array([1.0, 0.5]), jnp.zeros(2), jnp.ones(2))
    digits = {"rtol": 0, "atol": 0.5000001e-8}
    np.testing.assert_allclose(end.q, [-0.10931730, -0.29640137], **digits)
    np.testing.assert_allclose(end.qd, [-4.50540550, 1.43699933], **digits)
    np.testing.assert_allclose(loss, 2.336169, rtol=0, atol=0.5000001e-6)
    np.testing.assert_allclose(by_q, [2.95410318, 5.07306325], **digits)
    np.testing.assert_allclose(by_qd, [-1.82449974, -0.39974640], **digits)
    np.testing.assert_allclose(by_mass, [-1.98286112, 5.75674176], **digits)


@pytest.fixture(scope="module")
def cart():
    """A cart with a swinging mass, a motor on the cart and a servo on the hinge."""
    links = [
        kn.Link("cart", joints=kn.prismatic("x", name="rail", damping=0.1), mass=1.0),
        kn.Link("bob", "cart", kn.revolute("y", name="pivot"), mass=0.5, com=(0, 0, -0.5), inertia=(0.01, 0.01, 0.001)),
    ]
    return kn.build(links, actuators=[kn.motor("rail"), kn.position_servo("pivot", kp=2.0, kv=0.1)])


START = kn.State(np.array([0.1, 0.4]), np.array([0.0, -0.3]))
DT = 0.01


def test_a_rollout_is_its_steps_one_after_the_other(cart):
    controls = np.random.default_rng(0).normal(size=(5, 2))
    path = quick_jit(lambda u: kn.rollout(cart, START, u, dt=DT))(controls)
    state, advance = START, quick_jit(lambda s, u: kn.step(cart, s, u, dt=DT))
    for k, control in enumerate(controls):
        state = advance(state, control)
        np.testing.assert_allclose(path.q[k], state.q, rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(path.qd[k], state.qd, rtol=1e-13, atol=1e-15)
    np.testing.assert_array_equal(path.control, controls)
    np.testing.assert_allclose(path.time, DT * np.arange(1, 6), rtol=1e-14)
    np.testing.assert_array_equal(path.last.q, path.q[-1])
    assert path.q.shape == (5, 2) and path.qd.shape == (5, 2)


def test_controls_as_table_held_policy_and_none_agree_where_they_mean_the_same(cart):
    held = np.array([0.7, -0.2])
    kinds = (np.tile(held, (8, 1)), held, lambda time, state: jnp.asarray(held), None, np.zeros(2))
    paths = quick_jit(lambda: [kn.rollout(cart, START, kind, dt=DT, steps=8) for kind in kinds])()
    by_table, by_value, by_policy, nothing, zeros = paths
    same = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-15)  # noqa: E731
    for path in (by_value, by_policy):
        jax.tree.map(same, by_table, path)
    jax.tree.map(same, nothing, zeros)
    assert np.any(nothing.q != by_table.q)


def test_a_policy_sees_the_time_and_state_before_each_step(cart):
    def policy(time, state):
        return jnp.stack([time, state.q[1]])

    path = kn.rollout(cart, START, policy, dt=DT, steps=6)
    np.testing.assert_allclose(path.control[:, 0], DT * np.arange(6), atol=1e-16)
    np.testing.assert_array_equal(path.control[1:, 1], path.q[:-1, 1])
    assert path.control[0, 1] == START.q[1]


@pytest.mark.parametrize("steps", [3, 23])
def test_checkpointing_changes_neither_values_nor_gradients(cart, steps):
    controls = np.random.default_rng(1).normal(size=(steps, 2))

    def loss(controls, masses, mode):
        model = eqx.tree_at(lambda m: m.inertia.mass, cart, masses)
        path = kn.rollout(model, START, controls, dt=DT, checkpoint=mode)
        return jnp.sum(path.q**2) + jnp.sum(path.time * path.qd[:, 0]), path

    run = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    modes = ("none", "step", "sqrt")
    results = quick_jit(lambda *at: [run(*at, mode) for mode in modes])(controls, jnp.asarray(cart.inertia.mass))
    assert all(np.all(np.asarray(g) != 0) for g in results[0][1])
    for other in results[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-14), results[0], other)


BAD_ROLLOUTS = {
    "no length": ({"controls": None}, "steps=... is needed"),
    "held without length": ({"controls": np.zeros(2)}, r"controls must have shape \(steps, 2\).*got \(2,\)"),
    "too wide": ({"controls": np.zeros((4, 3))}, r"controls must have shape \(steps, 2\).*got \(4, 3\)"),
    "of another length": ({"controls": np.zeros((4, 2)), "steps": 5}, r"\(5, 2\).*got \(4, 2\)"),
    "three axes": ({"controls": np.zeros((4, 2, 1))}, r"got \(4, 2, 1\)"),
    "policy of wrong size": ({"controls": lambda t, s: jnp.zeros(3), "steps": 2}, r"shape \(2,\).*got \(3,\)"),
    "checkpoint": ({"steps": 9, "checkpoint": "all"}, "checkpoint must be 'none', 'step' or 'sqrt', got 'all'"),
    "checkpoint of a short run": ({"steps": 2, "checkpoint": "all"}, "got 'all'"),
    "negative length": ({"steps": -1}, "steps must .*-1"),
    "wrench": ({"steps": 2, "wrench": np.zeros((1, 6))}, r"wrench must have shape \(2, 6\), got \(1, 6\)"),
}


@pytest.mark.parametrize("name", BAD_ROLLOUTS)
def test_bad_rollouts_are_refused(cart, name):
    options, said = BAD_ROLLOUTS[name]
    with pytest.raises(ValueError, match=said):
        kn.rollout(cart, START, **({"controls": None} | options), dt=DT)


def test_a_step_refuses_a_control_or_state_of_the_wrong_size(cart):
    with pytest.raises(ValueError, match=r"control must have shape \(2,\).*got \(3,\)"):
        kn.step(cart, START, np.zeros(3), dt=DT)
    with pytest.raises(ValueError, match=r"q.*2.*got.*\(3,\)"):
        kn.step(cart, kn.State(np.zeros(3), np.zeros(2)), dt=DT)
    with pytest.raises(ValueError, match=r"qd.*2.*got.*\(1,\)"):
        kn.rollout(cart, kn.State(np.zeros(2), np.zeros(1)), dt=DT, steps=2)


def test_a_wrench_pushes_throughout_a_rollout():
    model = kn.build([kn.Link("ball", joints=kn.free(), mass=2.0, inertia=(1, 1, 1))], gravity=(0, 0, 0))
    push = np.array([[0, 0, 3.0, 4.0, 0, 0]])
    end = kn.rollout(model, model.state(), dt=0.1, steps=10, wrench=push).last
    np.testing.assert_allclose(end.qd, [2, 0, 0, 0, 0, 3], rtol=1e-12, atol=1e-15)


def test_steps_run_under_jit_vmap_and_scan(cart):
    qs = np.random.default_rng(2).normal(size=(4, 2))
    one = lambda q: kn.step(cart, kn.State(q, jnp.asarray(START.qd)), dt=DT).q  # noqa: E731
    expected = np.stack([one(jnp.asarray(q)) for q in qs])
    np.testing.assert_allclose(quick_jit(jax.vmap(one))(qs), expected, rtol=1e-13)
    _, scanned = jax.lax.scan(lambda _, q: (None, one(q)), None, qs)
    np.testing.assert_allclose(scanned, expected, rtol=1e-13)
    models = stack([cart, eqx.tree_at(lambda m: m.inertia.mass, cart, 2 * cart.inertia.mass)])
    run = quick_jit(jax.vmap(lambda m: kn.rollout(m, START, dt=DT, steps=5).q))
    paths = run(models)
    np.testing.assert_allclose(paths[0], kn.rollout(cart, START, dt=DT, steps=5).q, rtol=1e-13)


def test_linear_maps_predict_small_changes_in_the_tangent_space():
    skeleton = (Body(-1, ("free",)), Body(0, ("ball",)), Body(1, ("revolute",)))
    model = random_model(np.random.default_rng(3), skeleton, actuated=True)
    state, control = random_state(np.random.default_rng(4), model), np.full(model.nu, 0.3)
    A, B = quick_jit(lambda q, qd: kn.linearize(model, kn.State(q, qd), control, dt=DT))(state.q, state.qd)
    assert A.shape == (2 * model.nv, 2 * model.nv) and B.shape == (2 * model.nv, model.nu)
    advance = quick_jit(lambda q, qd, u: kn.step(model, kn.State(q, qd), u, dt=DT))
    rng = np.random.default_rng(5)
    before, push = 1e-6 * rng.normal(size=2 * model.nv), 1e-6 * rng.normal(size=model.nu)

    def after(sign):
        q = kn.retract(model, state.q, sign * before[: model.nv])
        return advance(q, state.qd + sign * before[model.nv :], control + sign * push)

    plus, minus = after(1.0), after(-1.0)
    change = np.concatenate([kn.difference(model, minus.q, plus.q), plus.qd - minus.qd]) / 2
    # Central differences over 1e-6 cut at 1e-12 relative and round at 1e-10; the tangent spaces differ by 1e-6.
    np.testing.assert_allclose(A @ before + B @ push, change, rtol=1e-5, atol=1e-14)


FLOATS = (Body(-1, ("free",)), Body(0, ("revolute", "prismatic")), Body(0, ("planar",)))


def probe(strict=False):
    """Results of a run in whatever precision is on, and the types they came in; strict: a warning is an error."""
    if strict:
        warnings.simplefilter("error")
    model = random_model(np.random.default_rng(0), FLOATS, actuated=True)
    start = random_state(np.random.default_rng(1), model)

    def run(q, qd):
        def loss(qd):
            end = kn.rollout(model, kn.State(q, qd), dt=0.01, steps=20, integrator=kn.Implicit(), contact=None).last
            return jnp.sum(end.q**2), end

        frames = kn.kinematics.frame_pose(model, q, "tip1"), kn.kinematics.frame_poses(model, q)
        return jax.value_and_grad(loss, has_aux=True)(qd), frames, kn.dynamics.crba(model, q)

    found = jax.tree.leaves(quick_jit(run)(jnp.asarray(start.q), jnp.asarray(start.qd)))
    return [np.asarray(x, float).tolist() for x in found], sorted({str(x.dtype) for x in found})


SINGLE = "import json; from tests.test_simulate import probe; print(json.dumps(probe(strict=True)))"


def test_everything_runs_in_float32_without_a_warning_and_close_to_float64():
    environment = {"JAX_ENABLE_X64": "0", "JAX_PLATFORMS": "cpu", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", SINGLE], capture_output=True, text=True, env=environment | QUICK_XLA)
    assert done.returncode == 0, done.stderr
    (single, single_types), (double, double_types) = json.loads(done.stdout), probe()
    assert single_types == ["float32"] and double_types == ["float64"]
    for found, expected in zip(single, double, strict=True):
        # 6e-8 times a condition number of about 1e3, over 20 steps.
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * np.abs(expected).max())


def spinning_ball_joint() -> tuple[kn.Model, kn.State]:
    """A rotor on a ball joint at 30 rad/s: with 10 ms steps of the default integrator it gains energy until it ends."""
    rotor = kn.Link("rotor", joints=kn.ball(), mass=1.0, com=(0, 0, 0.5), inertia=(0.1, 0.2, 0.15))
    return kn.build([rotor]), kn.State(np.array([1.0, 0, 0, 0]), np.array([30.0, 1, 2]))


@pytest.mark.parametrize("contact", [None, kn.contact.Impulse()], ids=["without contact", "with contact"])
def test_a_state_that_is_not_finite_is_no_result(contact):
    model, start = spinning_ball_joint()
    run = kn.rollout(model, start, dt=0.01, steps=20_000, contact=contact, native=True)
    finite = np.isfinite(np.asarray(run.q)).all(axis=1) & np.isfinite(np.asarray(run.qd)).all(axis=1)
    first = int(np.argmin(finite))
    assert 0 < first < 20_000
    if run.contact is not None:
        np.testing.assert_array_equal(run.contact.converged, finite)
    with pytest.raises(ArithmeticError, match=f"not finite from step {first} on, .* joint 'rotor_joint'"):
        kn.rollout(model, start, dt=0.01, steps=20_000, contact=contact, native=True, check=True)


def test_a_single_step_names_the_joint_whose_state_is_not_finite():
    model = kn.build([kn.Link("a", joints=kn.prismatic("x"), mass=1.0), kn.Link("b", "a", kn.prismatic("y"), mass=1.0)])
    with pytest.raises(ArithmeticError, match="the given state is not finite: the velocity of joint 'b_joint'"):
        kn.step(model, kn.State(np.zeros(2), np.array([1.0, np.nan])), dt=0.01, check=True)


def test_an_outcome_that_is_not_finite_does_not_pass_its_check():
    from tests.contact.scenes import ball, pose

    start = kn.State(pose([0, 0, 0.1]), np.zeros(6))
    outcome = kn.rollout(ball(), start, dt=1e-3, steps=3, contact=kn.contact.Impulse(), native=True).contact
    for name in ("impulse", "residual", "slack"):
        value = getattr(outcome, name)
        spoilt = eqx.tree_at(
            lambda o, name=name: getattr(o, name), outcome, np.where(np.arange(3) == 1, np.nan, value.T).T
        )
        with pytest.raises(ArithmeticError, match="not finite from step 1 on"):
            spoilt.check()


def test_outcomes_of_no_step_and_of_a_batch_are_checked():
    from tests.contact.scenes import ball, pose

    def run(height, steps=3) -> Any:
        start = kn.State(jnp.asarray(pose([0, 0, 0.1])).at[2].set(height), jnp.zeros(6))
        return kn.rollout(ball(), start, dt=1e-3, steps=steps, contact=kn.contact.Impulse()).contact

    run(0.2, steps=0).check()
    batch = jax.vmap(run)
    batch(jnp.array([0.11, 0.2])).check()
    with pytest.raises(ArithmeticError, match="not finite from step 3 on"):  # the first of the second roll-out
        batch(jnp.array([0.11, np.nan])).check()


def test_limits_and_restitution_that_are_not_numbers_are_no_absence():
    from tests.contact.scenes import ball, pose

    arm = kn.build([kn.Link("a", joints=kn.revolute("y"), mass=1.0, com=(0, 0, -0.5), inertia=(0.1, 0.1, 0.01))])
    still, hard = kn.State(np.zeros(1), np.zeros(1)), kn.contact.Impulse()
    cases: list = [(eqx.tree_at(lambda m: m.lower, arm, np.array([np.nan])), still, hard)]
    cases.append((eqx.tree_at(lambda m: m.upper, arm, np.array([np.nan])), still, hard))
    bouncy = eqx.tree_at(lambda c: c.restitution, kn.contact.Impulse(), np.nan)
    cases.append((ball(), kn.State(pose([0, 0, 0.1]), np.array([0.0, 0, -1, 0, 0, 0])), bouncy))
    for model, start, contact in cases:
        with pytest.raises(ArithmeticError, match="not finite"):
            kn.rollout(model, start, dt=1e-3, steps=2, contact=contact, check=True)


SERVO = """<mujoco><option timestep="0.002" integrator="Euler"><flag constraint="disable"/></option><worldbody>
<body name="arm"><joint name="j" axis="0 1 0"/><geom type="capsule" size="0.05" fromto="0 0 0 0.5 0 0"/>
<body name="fore" pos="0.5 0 0"><joint name="k" axis="0 1 0"/><geom type="capsule" size="0.04" fromto="0 0 0 0.4 0 0"/>
</body></body></worldbody>
<actuator><position joint="j" kp="40" kv="2"/><motor joint="k"/></actuator>
<keyframe><key name="driven" qpos="0.3 -0.2" qvel="0.5 -1" ctrl="0.7 0.4"/>
<key name="silent" qpos="0.3 -0.2"/></keyframe>
</mujoco>"""


def test_a_named_state_moves_as_the_keyframe_does_in_mujoco():
    """Velocities and controls are those of mj_resetDataKeyframe, and hold through steps and roll-outs."""
    import mujoco

    theirs = mujoco.MjModel.from_xml_string(SERVO)
    data = mujoco.MjData(theirs)
    mujoco.mj_resetDataKeyframe(theirs, data, 0)
    model, states = load(SERVO), []
    for _ in range(60):
        mujoco.mj_step(theirs, data)
        states.append(np.concatenate([data.qpos, data.qvel]))
    first = kn.rollout(model, model.state("driven"), dt=0.002, steps=20, native=True)
    later = kn.rollout(model, first.last, dt=0.002, steps=40, native=True)
    ours = np.concatenate([np.concatenate([run.q, run.qd], axis=1) for run in (first, later)])
    np.testing.assert_allclose(ours, np.array(states), atol=1e-9)
    np.testing.assert_array_equal(first.control, np.tile([0.7, 0.4], (20, 1)))
    np.testing.assert_array_equal(later.control, np.tile([0.7, 0.4], (40, 1)))
    after = kn.step(model, kn.step(model, model.state("driven"), dt=0.002), dt=0.002)
    np.testing.assert_array_equal(after.control, [0.7, 0.4])
    np.testing.assert_array_equal(model.state("driven", np.zeros(2)).qd, 0)
    assert model.state(np.zeros(2)).control is None  # as after mj_resetData: zero


def test_servos_hold_the_pose_of_a_keyframe_that_gives_no_control():
    model = load(SERVO)
    np.testing.assert_allclose(np.asarray(model.state("silent").control), [0.3, 0.0], atol=1e-15)
    traced = jax.jit(lambda m: m.state("silent").control)(model)
    np.testing.assert_allclose(traced, [0.3, 0.0], atol=1e-15)


def test_the_named_state_of_the_quadruped_holds_its_pose_as_the_command_line_does():
    """Servos were driven to zero: after half a second its feet were 8 cm under the ground."""
    from knuckle.cli_begin import controls

    model = kn.robots.load("quadruped")
    standing = model.state("standing")
    pose = model.keyframes["standing"][7:]
    held = kn.rollout(model, standing, dt=0.002, steps=2, native=True)
    np.testing.assert_allclose(held.control, np.tile(pose, (2, 1)), atol=1e-15)
    assert standing.control is not None
    np.testing.assert_allclose(standing.control, pose, atol=1e-15)
    np.testing.assert_array_equal(controls(model, standing, None), standing.control)
    np.testing.assert_array_equal(controls(model, standing, "hold"), standing.control)
