"""Knuckle's own dynamics in native code: equal to `jax.jit`, parameters free or closed over."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import native
from knuckle.native import compile as native_compiler
from tests.random_models import quick_jit

ARM = """
<robot name="arm">
  <link name="base"/>
  {links}
</robot>
"""
LINK = """
  <link name="l{i}"><inertial><origin xyz="0.02 0.01 0.2"/><mass value="{mass}"/>
    <inertia ixx="0.02" iyy="0.03" izz="0.02" ixy="0.001" ixz="0" iyz="0"/></inertial></link>
  <joint name="j{i}" type="continuous"><parent link="{parent}"/><child link="l{i}"/>
    <origin xyz="0 0 0.4" rpy="0.1 0.2 0.3"/><axis xyz="{axis}"/><dynamics damping="0.1"/></joint>
"""
AXES = ("1 0 0", "0 1 0", "0 0 1")


@pytest.fixture(scope="module")
def arm(tmp_path_factory) -> kn.Model:
    """Five links, the last two on a fork."""
    parents = ["base", "l0", "l1", "l2", "l2"]
    links = [LINK.format(i=i, parent=p, mass=1 + i / 2, axis=AXES[i % 3]) for i, p in enumerate(parents)]
    path = Path(tmp_path_factory.mktemp("arm")) / "arm.urdf"
    path.write_text(ARM.format(links="".join(links)))
    return kn.load(path)


Q, QD, TAU = np.random.default_rng(0).normal(size=(3, 5))


def agree(found, expected, tolerance=1e-12):
    """To 1e-12 of the largest entry: what cancels in a sum is lost on both sides."""
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        theirs = np.asarray(theirs)
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * max(1.0, np.abs(theirs).max(initial=0)))


def test_forward_and_inverse_dynamics(arm):
    def both(q, qd, tau):
        qdd = kn.dynamics.aba(arm, q, qd, tau)
        return qdd, kn.dynamics.rnea(arm, q, qd, qdd), kn.dynamics.crba(arm, q)

    agree(native.jit(both)(Q, QD, TAU), quick_jit(both)(Q, QD, TAU))


def test_all_parameters_free_and_closed_over(arm):
    arrays, rest = eqx.partition(arm, eqx.is_inexact_array)
    arrays = jax.tree.map(np.asarray, arrays)

    def free(arrays, q, qd, tau):
        return kn.dynamics.aba(eqx.combine(arrays, rest), q, qd, tau)

    def closed_over(q, qd, tau):
        return kn.dynamics.aba(arm, q, qd, tau)

    agree(native.jit(free)(arrays, Q, QD, TAU), native.jit(closed_over)(Q, QD, TAU))
    more = native.jit(free).compiled(arrays, Q, QD, TAU).operations["order"]
    fewer = native.jit(closed_over).compiled(Q, QD, TAU).operations["order"]
    assert fewer < 0.9 * more  # placements and inertias fold


def test_jacobians(arm):
    jacobian = jax.jacfwd(lambda q, qd, tau: kn.dynamics.aba(arm, q, qd, tau), argnums=(0, 1, 2))
    agree(native.jit(jacobian)(Q, QD, TAU), quick_jit(jacobian)(Q, QD, TAU))


@pytest.mark.parametrize("integrator", [kn.SemiImplicitEuler(), kn.Implicit()])
def test_rollout_and_its_gradient(arm, integrator):
    def loss(q, qd, masses):
        model = eqx.tree_at(lambda m: m.inertia.mass, arm, masses)
        path = kn.rollout(model, kn.State(q, qd), dt=0.01, steps=20, integrator=integrator)
        return jnp.sum(path.q[-1] ** 2), path

    gradient = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    masses = np.asarray(arm.inertia.mass)
    agree(native.jit(gradient)(Q, QD, masses), quick_jit(gradient)(Q, QD, masses), 1e-11)  # 20 steps amplify rounding


def test_a_batch_of_rollouts_has_the_bits_of_each(arm):
    def end(q, qd):
        return kn.rollout(arm, kn.State(q, qd), dt=0.01, steps=10).last

    rows = np.random.default_rng(1).normal(size=(2, 9, 5))
    together = native.vmap(end)(*rows)
    alone = native.jit(end)
    for k in range(9):
        one = alone(np.array(rows[0, k]), np.array(rows[1, k]))
        assert np.array_equal(together.q[k], one.q) and np.array_equal(together.qd[k], one.qd)


def test_code_without_optimisations_has_the_same_bits(arm, monkeypatch):
    """Of a gradient, alone and over lanes, so that tests may compile quickly; and it is other code indeed."""

    def loss(q, qd):
        return jnp.sum(kn.rollout(arm, kn.State(q, qd), dt=0.01, steps=10).q[-1] ** 2)

    def at_level(level: int):
        monkeypatch.setattr(native_compiler, "CODEGEN_LEVEL", level)
        alone, together = native.jit(jax.grad(loss)), native.vmap(jax.grad(loss))
        return alone(Q, QD), together(*rows), alone.compiled(Q, QD).object_code

    rows = np.random.default_rng(2).normal(size=(2, 9, 5))
    (*quick, quick_code), (*usual, usual_code) = at_level(0), at_level(1)
    assert all(np.array_equal(a, b) for a, b in zip(quick, usual, strict=True)) and quick_code != usual_code


def test_a_step_of_a_long_gradient_costs_what_one_of_a_short_gradient_does(arm):
    """Arrays over all steps are large; the rows of one step are small and stay in registers."""

    def code(steps: int):
        def end(q):
            return jnp.sum(kn.rollout(arm, kn.State(q, QD), dt=1e-3, steps=steps).q[-1] ** 2)

        return native.jit(jax.grad(end)).compiled(Q)

    short, long = code(20), code(1000)
    assert (long.operations["order"], long.kinds["loop"]) == (short.operations["order"], short.kinds["loop"])
