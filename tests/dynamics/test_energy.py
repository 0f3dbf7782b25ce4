"""Work and impulse: energy changes by the power of the forces, momentum by gravity alone."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.dynamics import aba, energy, kinetic_energy, momentum, potential_energy
from knuckle.forces import passive_force
from knuckle.kinematics import center_of_mass
from tests.random_models import Body, quick_jit, random_model, random_state, stack

FLOATING = (Body(-1, ("free",)), Body(0, ("revolute", "prismatic")), Body(0, ("ball",)), Body(2, ("planar",)))
FIXED = (Body(-1, ("ball",)), Body(0, ("revolute", "revolute")), Body(1, ("prismatic",)))
TOLERANCE = 1e-10


def draws(skeleton, count=20):
    """Conservative models; rotors on a free joint would hold momentum that no link has, so there are none."""
    rng = np.random.default_rng(0)
    models = [random_model(rng, skeleton, conservative=True) for _ in range(count)]
    state = stack([random_state(rng, m) for m in models])
    model = stack(models)
    is_free = np.isin(np.arange(models[0].nv), models[0].topology.v_index("free"))
    return eqx.tree_at(lambda m: m.armature, model, np.where(is_free, 0.0, model.armature)), state, rng


@quick_jit
@jax.vmap
def rates(model, q, qd, tau):
    """d/dt of energy and momentum under joint forces tau and the springs, and the weight's wrench about the origin."""
    qdd = aba(model, q, qd, tau + passive_force(model, q, qd))

    def after(t):
        moved = kn.retract(model, q, t * qd), qd + t * qdd
        return energy(model, *moved), momentum(model, *moved)

    weight = model.mass * model.gravity
    pull = jnp.concatenate([kn.spatial.cross(center_of_mass(model, q), weight), weight])
    return *jax.jvp(after, (0.0,), (1.0,))[1], pull


@pytest.mark.parametrize("skeleton", [FLOATING, FIXED], ids=["floating", "fixed"])
def test_energy_changes_by_the_power_of_the_joint_forces(skeleton):
    model, state, rng = draws(skeleton)
    tau = rng.normal(size=state.qd.shape) * 5
    power, _, _ = rates(model, state.q, state.qd, tau)
    exchanged = 100.0  # W: what kinetic and potential energy trade here, which cancels in their sum
    np.testing.assert_allclose(power, np.sum(tau * state.qd, axis=1), atol=TOLERANCE * exchanged)


@pytest.mark.parametrize("pull", [1.0, 0.0], ids=["gravity", "weightless"])
def test_momentum_of_a_floating_tree_changes_by_gravity_alone(pull):
    model, state, rng = draws(FLOATING)
    model = eqx.tree_at(lambda m: m.gravity, model, pull * model.gravity)
    tau = rng.normal(size=state.qd.shape) * 5
    tau[:, :6] = 0.0  # a force on the free joint comes from outside
    _, rate, weight = rates(model, state.q, state.qd, tau)
    assert bool(np.any(weight)) == bool(pull)
    np.testing.assert_allclose(rate, weight, atol=TOLERANCE * 100)


def test_energies_of_a_swinging_and_a_stretched_mass_by_hand():
    joints = [kn.prismatic("z", stiffness=50.0, rest=0.1), kn.revolute("y", armature=0.3)]
    model = kn.build([kn.Link("bob", joints=joints, mass=2.0, com=(0, 0, -1.5))])
    q, qd = np.array([0.4, np.pi / 3]), np.array([0.0, 2.0])
    np.testing.assert_allclose(kinetic_energy(model, q, qd), 0.5 * (2.0 * 1.5**2 + 0.3) * 4)
    height = 0.4 - 1.5 * np.cos(np.pi / 3)
    np.testing.assert_allclose(potential_energy(model, q), 2.0 * 9.81 * height + 25 * 0.3**2)
    np.testing.assert_allclose(energy(model, q, qd), kinetic_energy(model, q, qd) + potential_energy(model, q))
