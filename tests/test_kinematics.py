"""Poses, Jacobians and velocities against derivatives along the manifold of coordinates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.dynamics import momentum
from knuckle.kinematics import (
    center_of_mass,
    frame_pose,
    frame_poses,
    frame_velocity,
    jacobian,
    locate,
    point_jacobian,
    poses,
)
from knuckle.model.inertia import rotation_matrix
from tests.random_models import Body, quick_jit, random_model, random_quaternion, random_state, stack

TREE = (
    Body(-1, ("free",)),
    Body(0, ("revolute", "revolute")),
    Body(1, ("ball",)),
    Body(0, ("planar",)),
    Body(-1, ("prismatic",)),
)
TOLERANCE = 1e-11


@pytest.fixture(scope="module")
def draws():
    rng = np.random.default_rng(0)
    models = [random_model(rng, TREE) for _ in range(20)]
    return stack(models), stack([random_state(rng, m) for m in models])


def spin(R, dR):
    """Angular velocity in world axes of R' = [w] R."""
    W = dR @ R.T
    return jnp.stack([W[2, 1], W[0, 2], W[1, 0]])


def test_jacobians_and_velocities_are_derivatives_of_poses(draws):
    model, state = draws

    @quick_jit
    @jax.vmap
    def both(model, q, qd):
        names = ("body0", "body2", "tip2", "tip3", "body4", "tip4")

        def moved(t):
            return [frame_pose(model, kn.retract(model, q, t * qd), name) for name in names]

        at, rates = jax.jvp(moved, (0.0,), (1.0,))
        expected = [
            jnp.concatenate([spin(pose.rotation, rate.rotation), rate.position])
            for pose, rate in zip(at, rates, strict=True)
        ]
        found = [frame_velocity(model, q, qd, name) for name in names]
        through = [jacobian(model, q, name) @ qd for name in names]
        return jnp.stack(expected), jnp.stack(found), jnp.stack(through)

    expected, found, through = both(model, state.q, state.qd)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    np.testing.assert_allclose(through, expected, atol=TOLERANCE)


def test_a_jacobian_has_columns_only_for_joints_between_the_link_and_the_world(draws):
    model, state = jax.tree.map(lambda a: a[0], draws)
    J = np.asarray(quick_jit(lambda q: jacobian(model, q, "tip3"))(state.q))
    own = np.isin(model.topology.dof_link, [0, model.topology.link("body3")])
    assert not J[:, ~own].any() and np.all(np.any(J[:, own] != 0, axis=0))


def test_the_centre_of_mass_moves_with_momentum_over_mass(draws):
    model, state = draws

    @quick_jit
    @jax.vmap
    def both(model, q, qd):
        _, rate = jax.jvp(lambda t: center_of_mass(model, kn.retract(model, q, t * qd)), (0.0,), (1.0,))
        return rate, momentum(model, q, qd)[3:] / model.mass

    np.testing.assert_allclose(*both(model, state.q, state.qd), atol=TOLERANCE)


def test_frame_poses_are_those_of_the_frames_one_by_one(draws):
    model, state = jax.tree.map(lambda a: a[0], draws)
    names = model.frames.names
    together, one_by_one = quick_jit(lambda q: (frame_poses(model, q), [frame_pose(model, q, n) for n in names]))(
        state.q
    )
    for k, alone in enumerate(one_by_one):
        np.testing.assert_allclose(together.rotation[k], alone.rotation, atol=1e-14)
        np.testing.assert_allclose(together.position[k], alone.position, atol=1e-14)


def test_poses_along_a_chain_by_hand():
    rng = np.random.default_rng(1)
    p, r = rng.normal(size=(2, 3)), random_quaternion(rng, 2)
    links = [kn.Link("a", "world", kn.revolute("z"), position=p[0], rotation=r[0], mass=1.0, com=(1, 0, 0))]
    links += [kn.Link("b", "a", kn.prismatic("y"), position=p[1], rotation=r[1], mass=1.0)]
    R, x = poses(kn.build(links), np.array([0.3, 0.7]))
    turn = np.array([[np.cos(0.3), -np.sin(0.3), 0], [np.sin(0.3), np.cos(0.3), 0], [0, 0, 1]])
    R_a = rotation_matrix(r[0]) @ turn
    R_b = R_a @ rotation_matrix(r[1])
    np.testing.assert_allclose(R, [R_a, R_b], atol=1e-14)
    np.testing.assert_allclose(x, [p[0], p[0] + R_a @ p[1] + R_b @ [0, 0.7, 0]], atol=1e-14)


def test_precision_far_from_the_origin():
    """A robot a million metres away: its mass matrix must not lose digits to the distance."""
    model = random_model(np.random.default_rng(2), TREE[:3])
    state = random_state(np.random.default_rng(3), model)
    far = np.array(state.q)
    far[:3] += 1e6
    near_mass, far_mass = map(quick_jit(lambda q: kn.dynamics.crba(model, q)), (state.q, far))
    np.testing.assert_allclose(far_mass, near_mass, rtol=1e-12, atol=1e-12)


def test_frames_of_the_world_stand_still():
    link = kn.Link("a", joints=kn.revolute(), mass=1.0, com=(1, 0, 0))
    model = kn.build([link], world_frames=[kn.Frame("camera", (1, 2, 3))])
    q, qd = np.array([0.5]), np.array([2.0])
    np.testing.assert_array_equal(frame_pose(model, q, "camera").position, [1, 2, 3])
    assert not np.any(jacobian(model, q, "camera")) and not np.any(frame_velocity(model, q, qd, "camera"))


def test_a_point_off_the_axis_goes_round():
    model = kn.build([kn.Link("a", joints=kn.revolute("z"), mass=1.0, com=(1, 0, 0))])
    J = point_jacobian(model, np.array([np.pi / 2]), 0, jnp.array([2.0, 0, 0]))
    np.testing.assert_allclose(J[:, 0], [0, 0, 1, -2, 0, 0], atol=1e-15)


def test_a_name_that_is_not_there_is_refused_with_those_that_are(draws):
    model, _ = jax.tree.map(lambda a: a[0], draws)
    with pytest.raises(ValueError, match=r"no link or frame 'hand'; there are body0, .*tip4"):
        locate(model, "hand")


def test_a_model_without_frames_has_no_frame_poses():
    model = kn.build([kn.Link("a", joints=kn.revolute(), mass=1.0, com=(1, 0, 0))])
    assert frame_poses(model, np.zeros(1)).rotation.shape == (0, 3, 3)


def test_a_float32_model_keeps_its_precision_where_float64_is_on():
    link = kn.Link("a", joints=kn.revolute(), mass=1.0, com=(1, 0, 0), frames=[kn.Frame("tip", (1, 0, 0))])
    single = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), kn.build([link]))
    q = jnp.ones(1, jnp.float32)
    for name in ("a", "tip"):
        found = *frame_pose(single, q, name), jacobian(single, q, name), frame_velocity(single, q, q, name)
        assert {str(x.dtype) for x in found} == {"float32"}
