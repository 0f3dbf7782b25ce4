"""Derivatives of a step with respect to every class of parameter, against central differences; and never a NaN."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.test_util import check_grads

import knuckle as kn
from tests.derivatives import by_columns, by_rows
from tests.random_models import Body, quick_jit, random_model, random_q, random_quaternion, random_state

EVERYTHING = (
    Body(-1, ("free",)),
    Body(0, ("revolute", "prismatic")),
    Body(1, ("ball",)),
    Body(0, ("planar",)),
)
DT = 0.05

LEAVES = {
    "mass": lambda m: m.inertia.mass,
    "com": lambda m: m.inertia.com,
    "moment": lambda m: m.inertia.moment,
    "placement position": lambda m: m.position,
    "placement rotation": lambda m: m.rotation,
    "axis": lambda m: m.axis,
    "anchor": lambda m: m.anchor,
    "reference": lambda m: m.reference,
    "stiffness": lambda m: m.stiffness,
    "rest": lambda m: m.rest,
    "damping": lambda m: m.damping,
    "armature": lambda m: m.armature,
    "friction": lambda m: m.friction,
    "friction speed": lambda m: m.friction_speed,
    "gravity": lambda m: m.gravity,
    "actuator gain": lambda m: m.actuators.gain,
    "actuator bias": lambda m: m.actuators.bias,
    "actuator gear": lambda m: m.actuators.gear,
}
STATE = ("q", "qd", "control", "wrench", "dt")


@pytest.fixture(scope="module")
def model():
    """Friction is felt at speed 1, and all actuators are servos: a gain of zero is a kink of Implicit."""
    model = random_model(np.random.default_rng(0), EVERYTHING, actuated=True)
    smooth = np.full(model.nv, 0.5), model.actuators.bias - 0.3
    return eqx.tree_at(lambda m: (m.friction_speed, m.actuators.bias), model, smooth)


def no_change(model):
    """Zeros for every class of parameter; adding to them changes the step."""
    zeros = {name: np.zeros_like(leaf(model)) for name, leaf in LEAVES.items()}
    sizes = {"q": model.nv, "qd": model.nv, "control": model.nu, "wrench": (len(model.link_names), 6), "dt": ()}
    return zeros | {name: np.zeros(sizes[name]) for name in STATE}


def stepper(model, state, integrator):
    """The step as a function of a flat vector of changes."""
    control, wrench = np.full(model.nu, 0.4), np.ones((len(model.link_names), 6))
    _, unflatten = ravel_pytree(no_change(model))

    def after(flat):
        change = unflatten(flat)
        changed = eqx.tree_at(
            lambda m: [leaf(m) for leaf in LEAVES.values()],
            model,
            [leaf(model) + change[name] for name, leaf in LEAVES.items()],
        )
        start = kn.State(kn.retract(model, jnp.asarray(state.q), change["q"]), state.qd + change["qd"])
        options = {"dt": DT + change["dt"], "wrench": wrench + change["wrench"], "integrator": integrator}
        end = kn.step(changed, start, control + change["control"], contact=None, **options)
        return jnp.concatenate([end.q, end.qd])

    return after


def central_differences(function, size, h=1e-4):
    """Columns of the Jacobian at zero by the five-point rule.

    Cut off at h^4 f''''' / 30, about 1e-17; rounding 1e-16 / h, about 1e-12; so h = 1e-4 leaves six digits to spare
    for columns of size dt^2 and more.
    """
    step = h * np.eye(size)
    values = kn.native.vmap(function)
    near, far = (np.asarray(values(k * step)) - np.asarray(values(-k * step)) for k in (1, 2))
    return (8 * near - far).T / (12 * h)


@pytest.mark.parametrize("integrator", [kn.SemiImplicitEuler(), kn.Implicit()], ids=["semi-implicit", "implicit"])
def test_derivatives_by_every_class_of_parameter_are_central_differences(model, integrator):
    state = random_state(np.random.default_rng(1), model)
    function = stepper(model, state, integrator)
    zero, unflatten = ravel_pytree(no_change(model))
    forward, reverse = by_columns(function)(zero), by_rows(function, model.nq + model.nv)(zero)
    expected = central_differences(function, len(zero))
    classes = jax.tree.map(np.asarray, unflatten(jnp.arange(len(zero)).astype(float)))
    for name, columns in classes.items():
        index = np.ravel(columns).astype(int)
        for part in (slice(0, model.nq), slice(model.nq, None)):  # coordinates are smaller by dt: each by its own size
            size = np.abs(expected[part, index]).max()
            assert size > 1e-6, f"{name} does nothing in this step, so there is nothing to test"
            error = np.abs(forward[part, index] - expected[part, index]).max() / size
            assert error < 1e-6, f"{name}: forward mode is off by {error:.1e}"
            error = np.abs(reverse[part, index] - forward[part, index]).max() / size
            assert error < 1e-11, f"{name}: reverse mode differs from forward mode by {error:.1e}"


SMALL = (Body(-1, ("free",)), Body(0, ("ball",)))


@pytest.fixture(scope="module")
def small():
    model = random_model(np.random.default_rng(2), SMALL, actuated=True)
    return model, random_state(np.random.default_rng(3), model)


def scalar_of_step(model, state, integrator):
    def scalar(u, qd, mass):
        heavier = eqx.tree_at(lambda m: m.inertia.mass, model, mass)
        end = kn.step(heavier, kn.State(kn.retract(model, state.q, u), qd), dt=DT, integrator=integrator, contact=None)
        return jnp.sum(jnp.sin(end.q)) + jnp.sum(jnp.cos(end.qd))

    return scalar, (jnp.zeros(model.nv), jnp.asarray(state.qd), jnp.asarray(model.inertia.mass))


@pytest.mark.parametrize("integrator", [kn.SemiImplicitEuler(), kn.RK4()], ids=["semi-implicit", "rk4"])
def test_check_grads_in_both_modes(small, integrator):
    model, state = small
    scalar, at = scalar_of_step(model, state, integrator)
    check_grads(kn.native.jit(scalar), at, order=1, modes=("fwd", "rev"), atol=1e-7, rtol=1e-7, eps=1e-5)


def test_second_derivatives_are_differences_of_gradients(small):
    model, state = small
    scalar, at = scalar_of_step(model, state, kn.SemiImplicitEuler())
    flat, unflatten = ravel_pytree(at)
    gradient = jax.grad(lambda x: scalar(*unflatten(x)))
    H = by_columns(gradient)(flat)
    expected = central_differences(lambda x: gradient(flat + x), len(flat))
    np.testing.assert_allclose(H, expected, atol=1e-6 * np.abs(expected).max())
    np.testing.assert_allclose(H, H.T, atol=1e-10 * np.abs(H).max())


def states_that_break_formulas(rng, model, count):
    """Random states in which, by a coin each, quaternions are the identity or close, speeds zero, joints straight."""
    q = np.stack([random_q(rng, model) for _ in range(count)])
    qd = rng.normal(size=(count, model.nv))
    is_quaternion = np.zeros(model.nq, bool)
    for kind in ("ball", "free"):
        for row in model.topology.q_index(kind):
            is_quaternion[row[-4:]] = True
            q[:, row[-4:]] = identity_or_near(rng, q[:, row[-4:]])
    q[np.ix_(rng.random(count) < 0.3, ~is_quaternion)] = 0.0
    q[rng.random(count) < 0.1] = model.reference
    qd[rng.random(count) < 0.3] = 0.0
    qd[rng.random(qd.shape) < 0.2] = 0.0
    qd[rng.random(count) < 0.1] *= 1e-9
    return q, qd


def identity_or_near(rng, quaternions):
    count = len(quaternions)
    one = np.array([1.0, 0, 0, 0])
    near = one + rng.normal(size=(count, 4)) * 10.0 ** rng.uniform(-17, -1, (count, 1))
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    half_turn = np.concatenate([np.zeros((count, 1)), random_quaternion(rng, count)[:, 1:]], axis=1)
    half_turn /= np.linalg.norm(half_turn, axis=1, keepdims=True)
    choices = np.stack([quaternions, np.tile(one, (count, 1)), np.tile(-one, (count, 1)), near, half_turn])
    return choices[rng.integers(len(choices), size=count), np.arange(count)]


def test_no_nan_in_values_or_gradients_over_ten_thousand_states(model):
    rng = np.random.default_rng(4)
    q, qd = states_that_break_formulas(rng, model, 10_000)
    control = rng.normal(size=(10_000, model.nu)) * (rng.random((10_000, 1)) < 0.7)
    parameters, static = eqx.partition(model, eqx.is_array)

    def loss(parameters, q, qd, control):
        model = eqx.combine(parameters, static)
        ends = [
            kn.step(model, kn.State(q, qd), control, dt=0.01, integrator=i, contact=None)
            for i in (kn.SemiImplicitEuler(), kn.Implicit())
        ]
        return sum(jnp.sum(jnp.sin(end.q)) + jnp.sum(jnp.sin(end.qd)) for end in ends), ends

    @quick_jit
    def finite(q, qd, control):
        def one(q, qd, control):
            result = jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(parameters, q, qd, control)
            return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(result)]))

        return jax.vmap(one)(q, qd, control)

    for k in range(0, 10_000, 500):
        part = slice(k, k + 500)
        good = np.asarray(finite(q[part], qd[part], control[part]))
        assert good.all(), f"not finite at q, qd = {q[part][~good][0]}, {qd[part][~good][0]}"
