"""Lengths of links, and arms from Denavit-Hartenberg parameters."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn


def boxes(length, density=1000.0):
    """A solid box of that length, with a second one on its end; both hang along -z, y across."""
    mass = density * 0.04 * 0.06 * length
    box = kn.shapes.box(0.02, 0.03, length / 2, position=(0, 0, -length / 2))
    tip = kn.Frame("tip", (0, 0, -0.3))
    small = kn.shapes.capsule(0.02, 0.1, position=(0, 0, -0.15))
    return kn.build(
        [
            kn.Link(
                "upper", joints=kn.revolute("y"), mass=mass, shapes=box, frames=[kn.Frame("mid", (0, 0, -length / 2))]
            ),
            kn.Link("lower", "upper", kn.revolute("y"), (0, 0, -length), mass=1.0, shapes=small, frames=[tip]),
        ],
        equalities=[kn.Connect("upper", "world", (0, 0, -length), name="pin", active=False)],
    )


@pytest.fixture(scope="module")
def model():
    return boxes(0.4)


def test_a_stretched_box_is_the_longer_box(model):
    """A box stays a box under a stretch, so all its numbers are known."""
    made = kn.set_length(model, "upper", 0.7, mass="scale")
    wanted = boxes(0.7)
    assert made.topology == wanted.topology
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-15), made, wanted)
    np.testing.assert_allclose(kn.link_length(made, "upper"), 0.7, rtol=1e-14)


def test_a_length_set_back_is_the_model_and_mass_is_kept(model):
    kept = kn.set_length(model, "upper", 0.7)
    np.testing.assert_array_equal(kept.inertia.mass, model.inertia.mass)
    back = kn.set_length(kept, "upper", 0.4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-15), back, model)


def test_the_last_link_has_the_length_to_its_frame(model):
    made = kn.set_length(model, "lower", 0.6)  # twice
    np.testing.assert_allclose(made.frames.position[made.frames.names.index("tip")], [0, 0, -0.6], atol=1e-15)
    np.testing.assert_allclose(made.geometry.size[1], [0.02, 0.2, 0], atol=1e-15)  # the radius stays
    np.testing.assert_allclose(made.inertia.com[1], [0, 0, -0.3], atol=1e-15)


def test_the_derivative_by_length_is_that_of_differences(model):
    q = np.array([0.4, -0.7])

    def weight(length):
        made = kn.set_length(model, "upper", length, mass="scale")
        return jnp.sum(kn.dynamics.crba(made, q)) + kn.dynamics.potential_energy(made, q)

    value, h = jax.jit(weight), 1e-6
    slope = jax.jit(jax.grad(weight))(0.4)
    # values of order 1: central differences round at 1e-10
    np.testing.assert_allclose(slope, (value(0.4 + h) - value(0.4 - h)) / (2 * h), rtol=1e-8)


def test_what_is_not_clear_is_refused(model):
    fork = kn.build(
        [
            kn.Link("a", joints=kn.revolute("y"), mass=1.0, inertia=(1, 1, 1)),
            kn.Link("b", "a", kn.revolute("y"), (0, 0, 1), mass=1.0, inertia=(1, 1, 1)),
            kn.Link("c", "a", kn.revolute("y"), (1, 0, 1), mass=1.0, inertia=(1, 1, 1)),
        ]
    )
    with pytest.raises(ValueError, match="which end of link 'a' is meant; there are b, c"):
        kn.set_length(fork, "a", 2.0)
    up = kn.set_length(fork, "a", 2.0, along=(0, 0, 1))
    np.testing.assert_allclose(up.position[1:], [[0, 0, 2], [1, 0, 2]], atol=1e-15)
    with pytest.raises(ValueError, match="must be positive and finite, got -1"):
        kn.set_length(model, "upper", -1.0)
    with pytest.raises(ValueError, match="no link 'elbow'"):
        kn.set_length(model, "elbow", 1.0)
    askew = eqx.tree_at(lambda m: m.geometry.rotation, model, np.array([[1, 0.1, 0, 0], [1.0, 0, 0, 0]]))
    with pytest.raises(ValueError, match="stands askew"):
        kn.set_length(askew, "upper", 1.0)


def turn(axis, angle):
    c, s, T = np.cos(angle), np.sin(angle), np.eye(4)
    i, j = ((1, 2), (2, 0), (0, 1))[axis]
    T[i, i] = T[j, j] = c
    T[i, j], T[j, i] = -s, s
    return T


def shift(axis, distance):
    T = np.eye(4)
    T[axis, 3] = distance
    return T


@pytest.mark.parametrize("convention", ["standard", "modified"])
def test_an_arm_stands_where_its_dh_transforms_put_it(convention):
    a, alpha, d, theta = np.random.default_rng(0).normal(size=(4, 5))
    kinds = ("revolute", "prismatic", "revolute", "revolute", "prismatic")
    arm = kn.from_dh(a, alpha, d, theta, convention=convention, kind=kinds)
    q = np.random.default_rng(1).normal(size=5)
    T = np.eye(4)
    for i, kind in enumerate(kinds):
        Z = turn(2, theta[i] + q[i] * (kind == "revolute")) @ shift(2, d[i] + q[i] * (kind == "prismatic"))
        X = shift(0, a[i]) @ turn(0, alpha[i])
        T = T @ (Z @ X if convention == "standard" else X @ Z)
    pose = jax.jit(lambda q: kn.kinematics.frame_pose(arm, q, "tool"))(q)
    np.testing.assert_allclose(pose.rotation, T[:3, :3], atol=1e-14)
    np.testing.assert_allclose(pose.position, T[:3, 3], atol=1e-14)
    for found, wanted in zip(kn.dh_parameters(arm, convention), (a, alpha, d, theta), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-14)


def test_dh_parameters_differentiate_and_come_back_as_identity():
    rows = np.random.default_rng(2).normal(size=(4, 3))

    def round_trip(rows):
        return jnp.stack(kn.dh_parameters(kn.from_dh(*rows)))

    J = jax.jit(jax.jacfwd(round_trip))(rows)
    np.testing.assert_allclose(np.asarray(J).reshape(12, 12), np.eye(12), atol=1e-13)


def test_arms_that_are_not_in_dh_form_are_refused(model):
    with pytest.raises(ValueError, match="no frame 'tool'"):
        kn.dh_parameters(model)
    arm = kn.from_dh([0.3, 0.2], 0.0, 0.1)
    bent = eqx.tree_at(lambda m: m.position, arm, np.array([[0.0, 0, 0], [0.3, 0.2, 0.1]]))
    with pytest.raises(ValueError, match="what follows link 'link1' does not stand"):
        kn.dh_parameters(bent)
    with pytest.raises(ValueError, match="one number, or one per joint, got a"):
        kn.from_dh([0.1, 0.2], [0.1], 0.0)
    with pytest.raises(ValueError, match="'standard' or 'modified', got 'craig'"):
        kn.from_dh([0.1], 0.0, 0.0, convention="craig")  # type: ignore[arg-type]
