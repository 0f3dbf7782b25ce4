"""Derivatives through steps with several laws: by the parameters of each, by masses and velocities."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import knuckle as kn
from knuckle.contact import Compliant, Impulse, PerPair, Rule

DT, STEPS, EXACT = 2e-3, 6, 1e-12  # of the solver, so that differences are exact too
EVERYTHING = {"contype": 3, "conaffinity": 3}
ALONE = {"contype": 2, "conaffinity": 2}


def slid():
    """A tip slides along the edge of a plate and pushes it over a springy table."""
    shape = kn.shapes.box(0.06, 0.05, 0.02, friction=(0.4,), name="plate", **EVERYTHING)
    plate = kn.Link("plate", joints=kn.free(), mass=0.8, shapes=shape)
    ball = kn.shapes.sphere(0.01, friction=(0.4,), name="tip", **ALONE)
    tip = kn.Link("tip", joints=(kn.prismatic("x"), kn.prismatic("y")), mass=0.3, position=(0, 0, 0.02), shapes=ball)
    model = kn.build([plate, tip], world_shapes=[kn.shapes.plane(name="table")])
    q, qd = np.array([0, 0, 0.0197, 1.0, 0, 0, 0, -0.0702, 0.02]), np.array([0.1, 0.02, 0, 0, 0, 0.1, 0.5, 0.3])

    def contact(friction, ground, stiffness, dissipation, mixing):
        return PerPair(
            push=Rule("tip|plate", Impulse(friction=friction, mixing=mixing, tolerance=EXACT)),
            table=Rule(
                "plate|table", Compliant(friction=ground, stiffness=stiffness, dissipation=dissipation, tolerance=EXACT)
            ),
        )

    return model, q, qd, contact, jnp.array([0.25, 0.4, 3e4, 0.7, 1e-3])


def struck():
    """A ball strikes a plate that lies on springs, under a law that adds no energy."""
    shape = kn.shapes.box(0.06, 0.05, 0.02, friction=(0.4,), name="plate", **EVERYTHING)
    plate = kn.Link("plate", joints=kn.free(), mass=0.8, shapes=shape)
    ball = kn.Link("ball", joints=kn.free(), mass=0.3, shapes=kn.shapes.sphere(0.03, name="ball", **ALONE))
    model = kn.build([plate, ball], world_shapes=[kn.shapes.plane(name="table")])
    q = np.array([0, 0, 0.0197, 1.0, 0, 0, 0, 0.02, 0.01, 0.0735, 1.0, 0, 0, 0])
    qd = np.array([0.1, 0.02, 0, 0, 0, 0.1, 2.0, 0.4, -0.8, 0, 2.0, 0])

    def contact(friction, ground, stiffness, dissipation, restitution):
        passive = Impulse(friction=friction, restitution=restitution, restitution_law="passive", tolerance=EXACT)
        springs = Compliant(friction=ground, stiffness=stiffness, dissipation=dissipation, tolerance=EXACT)
        return PerPair(blow=Rule("ball|plate", passive), table=Rule("plate|table", springs))

    return model, q, qd, contact, jnp.array([0.25, 0.4, 3e4, 0.7, 0.6])


@pytest.mark.parametrize("scene", [slid, struck])
def test_derivatives_match_differences(scene):
    """By both frictions, stiffness, dissipation, regularisation or restitution, masses and velocities."""
    model, q, qd, contact, parameters = scene()
    weights = jnp.asarray(np.random.default_rng(0).normal(size=model.nq + model.nv))

    def after(parameters, mass, qd):
        heavier = eqx.tree_at(lambda m: m.inertia.mass, model, mass)
        start = kn.State(jnp.asarray(q), qd)
        run = kn.rollout(heavier, start, dt=DT, steps=STEPS, contact=contact(*parameters))
        assert run.contact is not None
        solved = jnp.all(run.contact.converged) & (jnp.min(run.contact.margin) > 1e-4)
        return jnp.sum(weights * jnp.concatenate([run.q[-1], run.qd[-1]])), (solved, run.contact.impulse)

    at = parameters, jnp.asarray(model.inertia.mass), jnp.asarray(qd)
    flat, restore = ravel_pytree(at)
    slopes = kn.native.jit(
        lambda z: (
            *jax.value_and_grad(lambda z: after(*restore(z)), has_aux=True)(z),
            kn.native.jacfwd(lambda z: after(*restore(z))[0])(z),
        )
    )
    (_, (solved, impulse)), reverse, forward = slopes(flat)
    assert bool(solved)
    pushing = np.asarray(impulse)[:, :, 0] > 0
    assert pushing[:, 0].any() and pushing[:, 1:].any()
    np.testing.assert_allclose(forward, reverse, rtol=1e-9, atol=1e-9 * np.abs(reverse).max())
    only = kn.native.jit(lambda z: after(*restore(z))[0])
    size = 1e-5 * np.maximum(np.abs(np.asarray(flat)), 0.1)
    differences = np.array([(only(flat + e) - only(flat - e)) for e in np.diag(size)]) / (2 * size)
    assert np.all(np.abs(differences[[0, 1, 2, 3, 4]]) * np.asarray(parameters) > 1e-6)  # each of them matters
    np.testing.assert_allclose(reverse, differences, rtol=1e-5, atol=2e-6)  # steps of 1e-6, each solved to 1e-12


def test_traced_and_constant_compiled_and_not_one_and_many_are_the_same():
    model, q, qd, contact, parameters = slid()
    state = kn.State(jnp.asarray(q), jnp.asarray(qd))

    def after(parameters, model):
        run = kn.rollout(model, state, dt=DT, steps=STEPS, contact=contact(*parameters))
        return jnp.concatenate([run.q[-1], run.qd[-1]])

    constant = kn.native.jit(lambda: after(parameters, model))()
    traced = kn.native.jit(after)(parameters, jax.tree.map(jnp.asarray, model))
    several = jnp.stack([parameters, 1.1 * parameters])
    batch = jax.jit(jax.vmap(lambda p: after(p, model)))(several)
    np.testing.assert_allclose(constant, traced, atol=1e-11)
    np.testing.assert_allclose(batch[0], constant, atol=1e-11)
    assert np.abs(batch[1] - batch[0]).max() > 1e-5


def test_it_runs_in_float32():
    model, q, qd, *_ = slid()
    model = jax.tree.map(lambda x: np.asarray(x, np.float32), model)
    loose = PerPair(push=Rule("tip", Impulse(tolerance=1e-4)), table=Rule("*", Compliant(tolerance=1e-4)))
    state = kn.State(np.asarray(q, np.float32), np.asarray(qd, np.float32))
    run = kn.rollout(model, state, dt=jnp.float32(DT), steps=20, contact=loose, native=True)
    assert run.contact is not None and run.q.dtype == np.float32
    assert bool(run.contact.converged.all()) and np.all(np.isfinite(run.q))
