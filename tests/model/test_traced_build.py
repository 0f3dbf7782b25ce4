"""Models built of traced numbers are those built of the same numbers, and differentiate."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn

VALUES = (0.5, 1.2, 0.02, 9.81, 0.9, 0.1)


def arm(length, mass, radius, gravity, tilt, damping):
    """Two links, one of them with a body welded on, with everything a description has."""

    def rod(length):
        return kn.shapes.capsule(radius, length / 2 - radius, position=(0, 0, -length / 2), friction=(damping,))

    first = kn.revolute((0, tilt, 0.1), damping=damping, lower=-100 * radius, reference=radius)
    return kn.build(
        [
            kn.Link("a", joints=first, mass=mass, shapes=rod(length)),
            kn.Link(
                "b", "a", kn.ball(damping=[damping, 0.1, damping]), (0, 0, -length), mass=2 * mass, shapes=rod(0.3)
            ),
            kn.Link("c", "b", (), (0, 0, -length), (1.0, radius, 0, 0), mass=mass, inertia=[radius] * 3),
            kn.Link(
                "d",
                joints=[kn.prismatic("z"), kn.planar(friction=damping)],
                mass=mass,
                com=(length, 0, 0),
                inertia=[mass] * 3,
            ),
        ],
        gravity=(0, 0, -gravity),
        actuators=[kn.motor("a_joint", gear=length), kn.position_servo("d_joint0", kp=mass)],
        equalities=[kn.Weld("c", "d", (0, 0, radius), position_b=(length, 0, 0), torque_scale=mass, active=False)],
    )


def test_traced_numbers_build_the_same_model():
    traced = jax.jit(lambda x: arm(*x))(jnp.array(VALUES))
    plain = arm(*VALUES)
    assert traced.topology == plain.topology
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-14, atol=1e-16), traced, plain)


def test_the_derivative_by_description_is_that_of_differences():
    q, qd, tau = (np.random.default_rng(k).normal(size=n) for k, n in enumerate((9, 8, 8)))

    def motion(x):
        model = arm(*x)
        return jnp.sum(kn.dynamics.aba(model, q, qd, tau)) + jnp.sum(kn.kinematics.poses(model, q).position)

    x = np.array(VALUES)
    slopes = jax.jit(jax.grad(motion))(x)
    value = jax.jit(motion)
    h = 1e-6  # central: cut at 1e-12 of third derivatives, rounded at 1e-10 of values of order 100
    for k, direction in enumerate(np.eye(len(x))):
        difference = (value(x + h * direction) - value(x - h * direction)) / (2 * h)
        np.testing.assert_allclose(slopes[k], difference, rtol=1e-6, atol=1e-6)


def test_what_is_topology_is_refused_by_name():
    link = kn.Link("a", joints=kn.revolute("y"), mass=1.0, inertia=(1, 1, 1))
    with pytest.raises(ValueError, match="keyframe 'up' is part of the topology"):
        jax.jit(lambda x: kn.build([link], keyframes={"up": [x]}))(1.0)
    with pytest.raises(ValueError, match="timestep is part of the topology"):
        jax.jit(lambda x: kn.build([link], timestep=x))(1.0)
    with pytest.raises(TypeError, match="vertices cannot be traced"):
        jax.jit(lambda x: kn.shapes.points([[x, 0.0, 0.0]]).size[0])(1.0)
    with pytest.raises(ValueError, match="link 'stand': its mass is traced, but it stands on the world"):
        jax.jit(lambda x: kn.build([link, kn.Link("stand", mass=x)]))(1.0)


def test_shapes_of_wrong_size_are_refused_though_traced():
    with pytest.raises(ValueError, match=r"link 'a': position must be 3 finite numbers"):
        jax.jit(lambda x: kn.build([kn.Link("a", joints=kn.revolute(), position=(x, x))]))(1.0)
