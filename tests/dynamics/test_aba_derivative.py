"""The derivative rule of forward dynamics equals differentiating straight through the recursion, to second order."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.interpreters.partial_eval import dce_jaxpr

import knuckle as kn
from knuckle.dynamics.aba import _solve_with_factor, aba
from tests.derivatives import by_columns, by_rows
from tests.random_models import Body, quick_jit, random_model, random_state

TREE = (Body(-1, ("free",)), Body(0, ("revolute", "prismatic")), Body(0, ("ball",)))


def straight_through(model, q, qd, tau, wrench):
    """The same recursion without its derivative rule."""
    return _solve_with_factor(model, q, qd, tau, wrench)[0]


@pytest.fixture(scope="module")
def problem():
    """A flat point, and a maker of functions of it: (mass, com, axis, q in the tangent space, qd, tau, wrench)."""
    model = random_model(np.random.default_rng(0), TREE)
    state = random_state(np.random.default_rng(1), model)
    rng = np.random.default_rng(2)
    leaves = lambda m: (m.inertia.mass, m.inertia.com, m.axis, m.armature)  # noqa: E731
    at = (leaves(model), np.zeros(model.nv), state.qd, rng.normal(size=model.nv), rng.normal(size=(4, 6)))
    flat, unflatten = ravel_pytree(at)

    def function_of(solve):
        def accelerations(flat):
            values, u, qd, tau, wrench = unflatten(flat)
            return solve(eqx.tree_at(leaves, model, values), kn.retract(model, state.q, u), qd, tau, wrench)

        return accelerations

    return flat, function_of


def test_the_rule_equals_differentiating_straight_through(problem):
    flat, function_of = problem
    plain = by_columns(function_of(straight_through))(flat)
    scale = np.abs(plain).max()
    for by_rule in (by_columns(function_of(aba)), by_rows(function_of(aba), len(plain))):
        np.testing.assert_allclose(by_rule(flat), plain, rtol=0, atol=1e-11 * scale)


def test_second_derivatives_by_the_rule_too(problem):
    flat, function_of = problem
    rng = np.random.default_rng(3)
    direction, weights = rng.normal(size=len(flat)), rng.normal(size=11)

    def curvature(solve):
        """Hessian of a weighted sum of accelerations, times a direction: forward over reverse."""
        gradient = jax.grad(lambda x: jnp.dot(weights, function_of(solve)(x)))
        return kn.native.jit(lambda x: jax.jvp(gradient, (x,), (direction,))[1])(flat)

    plain, by_rule = (np.asarray(curvature(solve)) for solve in (straight_through, aba))
    np.testing.assert_allclose(by_rule, plain, rtol=0, atol=1e-10 * np.abs(plain).max())


def test_the_derivative_by_joint_forces_is_the_inverse_mass_matrix(problem):
    model = random_model(np.random.default_rng(4), TREE)
    state = random_state(np.random.default_rng(5), model)

    @quick_jit
    def both(q, qd):
        by_tau = jax.jacrev(lambda tau: aba(model, q, qd, tau))(jnp.zeros(model.nv))
        return by_tau, kn.dynamics.inverse_mass_matrix(model, q)

    by_tau, inverse = (np.asarray(x) for x in both(state.q, state.qd))
    np.testing.assert_allclose(by_tau, inverse, rtol=0, atol=1e-12 * np.abs(inverse).max())


def test_arguments_held_fixed_cost_no_derivative():
    """Differentiating by tau alone leaves one more solution, not the derivative of the recursion by q."""
    model = random_model(np.random.default_rng(6), TREE)
    state = random_state(np.random.default_rng(7), model)
    arguments = [model, jnp.asarray(state.q), jnp.asarray(state.qd), jnp.zeros(model.nv)]

    def operations_of_derivative(k):
        def tangent(x):
            return jax.jvp(lambda y: aba(*[y if i == k else a for i, a in enumerate(arguments)]), (x,), (x,))[1]

        return operations(jax.make_jaxpr(tangent)(arguments[k]).jaxpr)

    value = operations(jax.make_jaxpr(aba)(*arguments).jaxpr)
    assert operations_of_derivative(3) < value < operations_of_derivative(1)


def operations(jaxpr) -> int:
    """How many there are once those without effect on the result are dropped."""
    return count(dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0])


def count(jaxpr) -> int:
    """Operations, those inside calls included."""
    parameters = [p for eqn in jaxpr.eqns for p in jax.tree.leaves(list(eqn.params.values()), is_leaf=is_jaxpr)]
    return len(jaxpr.eqns) + sum(count(getattr(p, "jaxpr", p)) for p in parameters if is_jaxpr(p))


def is_jaxpr(value):
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")
