"""Randomised smoothing: closed forms of averaged functions, and its own word on its error."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Impulse, randomized_gradient


def test_the_average_of_a_jump_has_its_closed_form_within_the_error_that_is_told():
    """Of step(x_0) + x_1^2: gradient density(x_0 / width) / width and 2 x_1; 4 standard errors (1 in 16,000 fails)."""
    width, x = 0.3, jnp.array([0.2, -0.5])

    def jump(x):
        return jnp.where(x[0] > 0, 1.0, 0.0) + x[1] ** 2

    found = randomized_gradient(jump, x, width=width, samples=4000, key=jax.random.key(1))
    density = np.exp(-0.5 * (0.2 / width) ** 2) / (width * np.sqrt(2 * np.pi))
    assert np.all(np.abs(found.gradient - np.array([density, -1.0])) < 4 * found.gradient_error)
    assert np.all(found.gradient_error < 0.1)


def test_it_sees_ground_that_a_body_has_not_reached():
    """The exact gradient of a step above the ground is 1; in some of the samples the ground stops the ball."""
    link = kn.Link("ball", joints=kn.prismatic("z"), mass=1.0, shapes=kn.shapes.sphere(0.1))
    model = kn.build([link], world_shapes=[kn.shapes.plane()])

    @kn.native.jit
    def height(x):
        return kn.step(model, kn.State(x, jnp.full(1, -1.0)), dt=0.01, contact=Impulse()).q[0]

    found = randomized_gradient(height, jnp.array([0.12]), width=0.02, samples=300, key=jax.random.key(0))
    assert 0.5 < float(found.gradient[0]) < 0.95
    assert float(found.gradient_error[0]) < 0.1


def test_one_sample_is_refused():
    with pytest.raises(ValueError, match="at least 2"):
        randomized_gradient(jnp.sum, jnp.ones(2), width=0.1, samples=1, key=jax.random.key(0))
