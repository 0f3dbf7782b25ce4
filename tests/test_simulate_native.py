"""`rollout(native=True)`: the same motion and gradients as under jax.jit, as NumPy arrays."""

import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn


def cart_and_pole() -> kn.Model:
    cart = kn.Link("cart", joints=kn.prismatic("x", name="slide"), mass=1.0)
    pole = kn.Link(
        "pole", parent="cart", joints=kn.revolute("y"), mass=0.2, com=(0, 0, 0.4), inertia=(0.01, 0.01, 1e-4)
    )
    return kn.build([cart, pole], actuators=[kn.motor("slide")])


def test_native_and_compiled_by_xla_agree_for_every_kind_of_control():
    model = cart_and_pole()
    state = model.state(q=np.array([0.0, 0.3]))
    table = np.sin(np.linspace(0, 3, 60))[:, None]

    def lean(time, state):
        return 2 * state.q[1:] + jnp.sin(time)[None]

    for controls, steps in ((table, None), (np.array([0.5]), 60), (lean, 60), (None, 60)):
        native = kn.rollout(model, state, controls, dt=0.01, steps=steps, native=True)
        plain = kn.rollout(model, state, controls, dt=0.01, steps=steps)
        assert isinstance(native.q, np.ndarray)
        np.testing.assert_allclose(native.q, plain.q, atol=1e-12)  # 60 steps of rounding
        np.testing.assert_allclose(native.control, plain.control, atol=1e-12)


def test_gradients_with_respect_to_the_model_pass_through_native_code():
    model = cart_and_pole()
    state = model.state(q=np.array([0.0, 0.3]))

    def end(model, native):
        return jnp.sum(kn.rollout(model, state, dt=0.01, steps=50, native=native).q[-1] ** 2)

    through, plain = jax.grad(end)(model, True), jax.jit(jax.grad(end), static_argnums=1)(model, False)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), through, plain)
