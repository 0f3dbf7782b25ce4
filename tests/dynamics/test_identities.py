"""Forward and inverse dynamics, mass matrix and factors agree with each other on random trees.

Tolerance 1e-10 relative: mass matrices here have condition numbers up to about 1e5, which costs five of sixteen digits.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.dynamics import aba, bias_force, crba, gravity_force, inverse_mass_matrix, kinetic_energy, rnea
from knuckle.kinematics import point_jacobian
from tests.random_models import chain, quick_jit, random_model, random_skeleton, random_state, special_states, stack

TOLERANCE = 1e-10
TOPOLOGIES, MODELS = 12, 84  # 1008 trees; compiling a topology is what costs


def forward_and_inverse(model, q, qd, tau, wrench):
    qdd = aba(model, q, qd, tau, wrench)
    bias = bias_force(model, q, qd, wrench)
    return {"qdd": qdd, "tau": rnea(model, q, qd, qdd, wrench), "mass": crba(model, q), "bias": bias}


def everything(model, q, qd, tau, wrench):
    more = {"inverse": inverse_mass_matrix(model, q), "kinetic": kinetic_energy(model, q, qd)}
    return forward_and_inverse(model, q, qd, tau, wrench) | more


def draws(skeleton, seed, count=MODELS):
    rng = np.random.default_rng(seed)
    models = [random_model(rng, skeleton) for _ in range(count)]
    states = [random_state(rng, model) for model in models]
    tau = rng.normal(size=(count, models[0].nv)) * 10
    wrench = rng.normal(size=(count, len(models[0].link_names), 6)) * 10
    return stack(models), stack(states), tau, wrench


def apply(matrices, vectors):
    return np.einsum("bij,bj->bi", matrices, vectors)


def size(*vectors):
    """Per model, the largest of all entries: what an error is relative to."""
    return np.max([np.abs(v).max(axis=1) for v in vectors], axis=0)[:, None]


def check_identities(result, qd, tau):
    result = {k: np.asarray(v) for k, v in result.items()}
    inertial, bias, M = apply(result["mass"], result["qdd"]), result["bias"], result["mass"]
    terms = size(inertial, bias, tau)
    assert np.all(np.abs(result["tau"] - tau) < TOLERANCE * terms), "RNEA of ABA's accelerations is not tau"
    assert np.all(np.abs(inertial + bias - tau) < TOLERANCE * terms), "M qdd + bias is not tau"
    assert np.array_equal(M, np.swapaxes(M, 1, 2))
    if "inverse" not in result:
        return
    assert np.all(np.abs(result["inverse"] @ M - np.eye(M.shape[1])) < TOLERANCE)
    quadratic = 0.5 * np.einsum("bi,bij,bj->b", qd, M, qd)
    np.testing.assert_allclose(result["kinetic"], quadratic, rtol=1e-12)


@pytest.mark.parametrize("number", range(TOPOLOGIES))
def test_dynamics_agree_on_random_free_floating_trees(number):
    skeleton = random_skeleton(np.random.default_rng(number), 2 + number % 8, floating=True)
    model, state, tau, wrench = draws(skeleton, 100 + number)
    result = quick_jit(jax.vmap(forward_and_inverse))(model, state.q, state.qd, tau, wrench)
    check_identities(result, state.qd, tau)


@pytest.mark.parametrize("number", range(2))
def test_dynamics_agree_on_random_fixed_trees_and_special_states(number):
    skeleton = random_skeleton(np.random.default_rng(50 + number), 3 + 2 * number, floating=False)
    rng = np.random.default_rng(number)
    special = random_model(rng, skeleton)
    model, state, tau, wrench = draws(skeleton, 200 + number, count=len(special_states(special)))
    function = quick_jit(jax.vmap(everything))
    for states in (state, stack(special_states(special))):
        check_identities(function(model, states.q, states.qd, tau, wrench), states.qd, tau)


def test_inverse_dynamics_undoes_forward_dynamics_the_other_way_round():
    skeleton = random_skeleton(np.random.default_rng(7), 6, floating=True)
    model, state, qdd, wrench = draws(skeleton, 300)

    @quick_jit
    @jax.vmap
    def there_and_back(model, q, qd, qdd, wrench):
        return aba(model, q, qd, rnea(model, q, qd, qdd, wrench), wrench)

    found = np.asarray(there_and_back(model, state.q, state.qd, qdd, wrench))
    assert np.all(np.abs(found - qdd) < TOLERANCE * size(qdd))


def test_a_forest_of_two_free_trees_and_one_fixed_has_no_coupling_between_them():
    skeleton = (*chain(("free", "revolute")), *(chain(("revolute", "ball"))), *chain(("free",)))
    shifted = [b if i < 2 or b.parent < 0 else type(b)(b.parent + 2, b.joints) for i, b in enumerate(skeleton)]
    model, state, tau, wrench = draws(tuple(shifted), 400, count=10)
    result = quick_jit(jax.vmap(everything))(model, state.q, state.qd, tau, wrench)
    check_identities(result, state.qd, tau)
    M = np.asarray(result["mass"])
    assert not M[:, :7, 7:].any() and not M[:, 7:11, 11:].any()


def test_a_wrench_on_a_link_acts_as_its_jacobian_transposed():
    skeleton = random_skeleton(np.random.default_rng(3), 5, floating=True)
    model, state, tau, wrench = draws(skeleton, 500, count=20)

    @quick_jit
    @jax.vmap
    def both(model, q, qd, tau, wrench):
        J = [point_jacobian(model, q, link, jnp.zeros(3)) for link in range(len(model.link_names))]
        from_links = sum(J_link.T @ w for J_link, w in zip(J, wrench, strict=True))
        with_wrench = aba(model, q, qd, tau, wrench), rnea(model, q, qd, tau, wrench)
        with_forces = aba(model, q, qd, tau + from_links), rnea(model, q, qd, tau) - from_links
        return with_wrench, with_forces

    for found, expected in zip(*both(model, state.q, state.qd, tau, wrench), strict=True):
        assert np.all(np.abs(found - expected) < TOLERANCE * size(expected))


def test_gravity_force_carries_the_weight_of_every_mass():
    skeleton = random_skeleton(np.random.default_rng(11), 5, floating=True)
    model, state, _, _ = draws(skeleton, 600, count=20)

    @quick_jit
    @jax.vmap
    def both(model, q):
        links = range(len(model.link_names))
        J = [point_jacobian(model, q, link, model.inertia.com[link])[3:] for link in links]
        lifted = -sum(model.inertia.mass[link] * J[link].T @ model.gravity for link in links)
        return gravity_force(model, q), lifted

    found, expected = both(model, state.q)
    assert np.all(np.abs(found - expected) < TOLERANCE * size(expected))


def test_a_joint_that_moves_no_mass_does_not_accelerate_and_leaves_the_rest_alone():
    arm = kn.Link("arm", joints=kn.revolute("y"), mass=1.0, com=(0, 0, -0.5), inertia=(0.1, 0.1, 0.01))
    pointer = kn.Link("pointer", parent="arm", joints=kn.revolute("x"), position=(0, 0, -1.0))
    alone, with_pointer = kn.build([arm]), kn.build([arm, pointer])

    def accelerations_at(model, q):
        return kn.dynamics.aba(model, q, jnp.ones(model.nv), jnp.ones(model.nv))

    accelerations = kn.native.jit(accelerations_at)
    qdd = accelerations(with_pointer, jnp.array([0.3, 0.2]))
    np.testing.assert_allclose(qdd, [*accelerations(alone, jnp.array([0.3])), 0.0], rtol=1e-12)
    assert np.all(np.isfinite(kn.native.jit(jax.jacrev(accelerations_at, 1))(with_pointer, jnp.array([0.3, 0.2]))))
    geared = eqx.tree_at(lambda m: m.armature, with_pointer, jnp.array([0.0, 0.5]))
    np.testing.assert_allclose(accelerations(geared, jnp.array([0.3, 0.2]))[1], 1 / 0.5, rtol=1e-12)
