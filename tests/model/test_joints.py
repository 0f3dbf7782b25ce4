"""What each kind of joint does: poses, axes and steps on the manifold, each checked against the others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import spatial
from knuckle.model.inertia import rotation_matrix
from knuckle.model.joints import difference, joint_poses, motion_axes, neutral, plane_axes, retract, tangent_rate
from tests.random_models import Body, chain, quick_jit, random_model, random_q, special_states, stack

ALL_KINDS = chain(("free", "revolute", "prismatic", "planar", "ball"))
TOLERANCE = 1e-12  # some tens of operations on numbers of size one


@pytest.fixture(scope="module")
def draws():
    """Twenty models of all kinds of joint, with coordinates."""
    rng = np.random.default_rng(0)
    models = [random_model(rng, ALL_KINDS) for _ in range(20)]
    return stack(models), np.stack([random_q(rng, m) for m in models])


@pytest.fixture(scope="module")
def model():
    return random_model(np.random.default_rng(1), ALL_KINDS)


def test_axes_are_the_velocity_of_the_pose(draws):
    """R' = R [w] and p' = R v along retract(q, t e_k), for every degree of freedom k."""

    @quick_jit
    @jax.vmap
    def both(model, q):
        def pose(u):
            return joint_poses(model, retract(model, q, u))

        (R, _), rates = pose(jnp.zeros(model.nv)), jax.jacfwd(pose)(jnp.zeros(model.nv))
        link = np.array(model.topology.dof_link)
        dR, dp = (jnp.moveaxis(d, -1, 0)[np.arange(model.nv), link] for d in rates)
        turning = spatial.compose(jnp.swapaxes(R, 1, 2)[link], dR)
        w = jnp.stack([turning[:, 2, 1], turning[:, 0, 2], turning[:, 1, 0]], axis=1)
        return motion_axes(model, R), jnp.concatenate([w, spatial.apply_transpose(R[link], dp)], axis=1), turning

    axes, found, turning = both(*draws)
    np.testing.assert_allclose(axes, found, atol=TOLERANCE)
    np.testing.assert_allclose(turning, -np.swapaxes(turning, -1, -2), atol=TOLERANCE)


def test_a_joint_moves_only_its_own_link(draws):
    rates = quick_jit(jax.vmap(lambda m, q: jax.jacfwd(lambda u: joint_poses(m, retract(m, q, u)))(jnp.zeros(m.nv))))(
        *draws
    )
    link = np.array(draws[0].topology.dof_link)
    for rate in rates:
        moved = np.moveaxis(np.asarray(rate), -1, 1)
        for dof, own in enumerate(link):
            assert not np.delete(moved[:, dof], own, axis=1).any()


def test_retract_and_difference_undo_each_other(draws):
    rng = np.random.default_rng(2)
    steps = rng.uniform(
        -1.5, 1.5, (20, draws[0].topology.nv)
    )  # a rotation vector stays below half a turn: 1.5 sqrt 3 < pi
    retract_all, difference_all = (quick_jit(jax.vmap(f)) for f in (retract, difference))
    there = retract_all(*draws, steps)
    np.testing.assert_allclose(difference_all(*draws, there), steps, atol=TOLERANCE)
    other = np.stack([random_q(rng, draws[0]) for _ in range(20)])
    back = retract_all(*draws, difference_all(*draws, other))
    for kind in ("ball", "free"):
        (row,) = draws[0].topology.q_index(kind)
        quaternion = np.asarray(back)[:, row[-4:]]
        sign = np.sign(np.sum(quaternion * other[:, row[-4:]], axis=1))  # q and -q are one rotation
        other[:, row[-4:]] *= sign[:, None]
    np.testing.assert_allclose(back, other, atol=TOLERANCE)


def test_manifold_steps_leave_the_quaternion_of_unit_length_even_from_one_that_is_not(model):
    q = random_q(np.random.default_rng(3), model)
    (row,) = model.topology.q_index("ball")
    q[row] *= 1.01
    after = np.asarray(retract(model, q, np.ones(model.nv)))
    np.testing.assert_allclose(np.linalg.norm(after[row]), 1, rtol=1e-15)


def test_derivatives_of_difference_and_retract_are_identities_at_special_states(model):
    jacobian = quick_jit(
        lambda q: (
            jax.jacfwd(lambda u: difference(model, q, retract(model, q, u)))(jnp.zeros(model.nv)),
            jax.jacrev(lambda u: difference(model, q, retract(model, q, u)))(jnp.zeros(model.nv)),
        )
    )
    for state in special_states(model):
        for J in jacobian(jnp.asarray(state.q)):
            np.testing.assert_allclose(J, np.eye(model.nv), atol=TOLERANCE)


def test_tangent_rate_is_that_of_the_tangent_vector(model):
    """u(t) with retract(q0, u(t)) moving at qd: the series is cut after |u|^2, the next term is |u|^4 / 720."""
    rng = np.random.default_rng(4)
    q0, qd, u = random_q(rng, model), rng.normal(size=model.nv), 0.05 * rng.normal(size=model.nv)
    at = retract(model, q0, u)
    _, expected = jax.jvp(lambda t: difference(model, q0, retract(model, at, t * qd)), (0.0,), (1.0,))
    np.testing.assert_allclose(tangent_rate(model, u, qd), expected, atol=1e-7)
    without_correction = np.abs(qd - expected).max()
    assert without_correction > 1e-3, "the correction must matter for this test to mean something"


@pytest.mark.parametrize("normal", [(0, 0, 1), (0, 0, -1), (1, 0, 0), (0.6, -0.48, 0.64), (0.6, 0.48, -0.64)])
def test_plane_axes_are_right_handed_and_unit(normal):
    normal = np.array(normal, float)
    first, second = plane_axes(jnp.asarray(normal))
    np.testing.assert_allclose(
        np.stack([first, second, normal]) @ np.stack([first, second, normal]).T, np.eye(3), atol=1e-15
    )
    np.testing.assert_allclose(np.cross(first, second), normal, atol=1e-15)


def test_a_planar_joint_about_z_slides_along_x_and_y():
    first, second = plane_axes(jnp.array([0.0, 0, 1]))
    assert np.array_equal(first, [1, 0, 0]) and np.array_equal(second, [0, 1, 0])


def test_links_stand_at_their_placement_at_the_reference():
    model = random_model(np.random.default_rng(5), chain(("revolute", "prismatic", "planar", "ball")))
    R, p = joint_poses(model, jnp.asarray(model.reference))
    np.testing.assert_allclose(R, np.broadcast_to(np.eye(3), R.shape), atol=1e-15)
    np.testing.assert_allclose(p, np.zeros(p.shape), atol=1e-15)


def test_the_reference_of_a_ball_joint_is_where_it_starts():
    """Its pose is that of its quaternion, whatever the reference, as a free joint's is."""
    turned = (0.6, 0.8, 0, 0)
    model = kn.build([kn.Link("head", joints=kn.ball(reference=turned), mass=1.0, inertia=(1, 1, 1))])
    R, _ = kn.kinematics.poses(model, model.state().q)
    np.testing.assert_allclose(R[0], rotation_matrix(turned), atol=1e-15)
    R, _ = kn.kinematics.poses(model, np.array([1.0, 0, 0, 0]))
    np.testing.assert_array_equal(R[0], np.eye(3))


def test_anchored_joints_keep_their_anchor_in_place():
    model = random_model(np.random.default_rng(6), chain(("revolute", "ball")))
    R, p = joint_poses(model, random_q(np.random.default_rng(7), model))
    np.testing.assert_allclose(p + spatial.apply(R, jnp.asarray(model.anchor)), model.anchor, atol=1e-15)


def test_joints_of_a_body_act_in_the_order_given():
    """Slide along x, then turn about z by a right angle, then slide along (what is now) y."""
    joints = [kn.prismatic("x"), kn.revolute("z"), kn.prismatic("x")]
    model = kn.build([kn.Link("body", joints=joints, mass=1.0, inertia=(1, 1, 1))])
    R, p = kn.kinematics.poses(model, np.array([2.0, np.pi / 2, 1.0]))
    np.testing.assert_allclose(p[-1], [2, 1, 0], atol=1e-15)
    np.testing.assert_allclose(R[-1], [[0, -1, 0], [1, 0, 0], [0, 0, 1]], atol=1e-15)


def test_velocities_of_a_free_joint_are_linear_in_the_world_and_angular_in_the_body():
    model = kn.build([kn.Link("body", joints=kn.free(), mass=1.0, inertia=(1, 1, 1))])
    half = np.sqrt(0.5)
    q = np.array([0, 0, 0, half, half, 0, 0])  # a right angle about x: the body's y is the world's z
    after = np.asarray(retract(model, q, np.array([1.0, 2, 3, 0, 1e-3, 0])))
    np.testing.assert_allclose(after[:3], [1, 2, 3])
    R, _ = kn.kinematics.poses(model, after)
    turn = spatial.rotation_about(jnp.array([0.0, 0, 1]), jnp.asarray(1e-3))
    np.testing.assert_allclose(R[0], turn @ rotation_matrix(q[3:]), atol=TOLERANCE)


def test_neutral_coordinates_are_zeros_and_identities():
    model = random_model(np.random.default_rng(8), (Body(-1, ("free",)), Body(0, ("ball",)), Body(1, ("planar",))))
    np.testing.assert_array_equal(neutral(model.topology), [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0])
