"""Pictures against areas and centres in closed form, and their derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.render import Capsule, Disc, Polygon, View, model_items, render

VIEW = View(100, 120, center=(0.1, -0.05), span=2.0)
CORNERS = np.array([[0.5, -0.3], [0.2, 0.6], [-0.4, 0.1]])


def area(picture) -> float:
    return float(jnp.sum(picture)) * VIEW.pixel**2


def triangle_area():
    (a, b), (c, d) = CORNERS[1] - CORNERS[0], CORNERS[2] - CORNERS[0]
    return 0.5 * abs(a * d - b * c)


@pytest.mark.parametrize(
    ("item", "wanted"),
    [
        (Disc(np.array([0.2, -0.1]), 0.4), np.pi * 0.16),
        (Capsule(np.array([-0.3, -0.2]), np.array([0.4, 0.5]), 0.15), np.pi * 0.0225 + 0.3 * np.hypot(0.7, 0.7)),
        (Polygon(CORNERS), triangle_area()),
    ],
    ids=["disc", "capsule", "polygon"],
)
def test_areas_are_those_of_the_shapes(item, wanted):
    # An edge is right on average over pixels, and pixels are 0.02 m: 1e-3 of areas of about half a square metre.
    assert area(render([item], VIEW)) == pytest.approx(wanted, rel=2e-3)


def test_derivatives_are_those_of_differences_and_near_those_of_the_area():
    def size(center, radius):
        return jnp.sum(render([Disc(center, radius)], VIEW)) * VIEW.pixel**2

    value, slope = jax.jit(size), jax.jit(jax.grad(size, (0, 1)))
    rng, h = np.random.default_rng(0), 1e-6
    for _ in range(5):
        center, radius = rng.uniform(-0.2, 0.2, 2), rng.uniform(0.2, 0.5)
        by_center, by_radius = slope(center, radius)
        # Central differences: the cover has a second derivative of 1e4 / m^2 with corners, over 1e-6 m.
        difference = (value(center, radius + h) - value(center, radius - h)) / (2 * h)
        np.testing.assert_allclose(by_radius, difference, rtol=1e-4)
        # Pixels sample the edge: over 200 random discs of this size the derivative of the area was within 2.5 %.
        np.testing.assert_allclose(by_radius, 2 * np.pi * radius, rtol=0.04)
        np.testing.assert_allclose(by_center, 0.0, atol=0.04 * 2 * np.pi * radius)


def test_gradients_are_finite_at_centres_and_without_length():
    view = View(5, 5, span=1.0)  # its middle pixel is at the origin

    def total(center, radius):
        items = [Disc(center, radius), Capsule(center, center, radius)]
        return jnp.sum(render(items, view) ** 2)

    value, slopes = jax.value_and_grad(total, (0, 1))(jnp.zeros(2), 0.05)
    assert np.isfinite(value) and all(np.isfinite(s).all() for s in slopes)


def test_later_items_cover_earlier_ones_and_colours_have_channels():
    red, blue = np.array([1.0, 0, 0]), np.array([0, 0, 1.0])
    items = [Disc(np.zeros(2), 0.5, red), Disc(np.zeros(2), 0.2, blue)]
    picture = render(items, View(41, 41), background=0.5)
    assert picture.shape == (41, 41, 3)
    np.testing.assert_allclose(picture[20, 20], blue)
    np.testing.assert_allclose(picture[20, 27], red)
    np.testing.assert_allclose(picture[0, 0], [0.5] * 3)
    with pytest.raises(ValueError, match="colours must be one number"):
        render([Disc(np.zeros(2), 0.1, red)], VIEW, background=np.zeros(2))
    with pytest.raises(ValueError, match="at least one pixel"):
        View(0, 3)


@pytest.fixture(scope="module")
def pendulum():
    rod = kn.shapes.capsule(0.05, 0.25, position=(0, 0, -0.25), rgba=(0.9, 0.6, 0.3, 1))
    bob = kn.shapes.box(0.1, 0.03, 0.05, position=(0, 0, -0.6))
    links = [
        kn.Link("a", joints=kn.revolute("y"), mass=1.0, shapes=rod),
        kn.Link("b", "a", kn.revolute("y"), (0, 0, -0.5), mass=1.0, inertia=(1, 1, 1), shapes=[rod, bob]),
    ]
    return kn.build(links, world_shapes=[kn.shapes.plane(position=(0, 0, -2))])


def test_a_model_is_drawn_where_its_links_are(pendulum):
    q = np.array([0.5, 0.7])
    items = model_items(pendulum, q)
    assert [type(item) for item in items] == [Capsule, Capsule, Polygon]
    pose = kn.kinematics.poses(pendulum, q)
    end = pose.position[0] + pose.rotation[0] @ np.array([0, 0, -0.5])
    np.testing.assert_allclose(np.asarray(items[0].start), np.asarray(end)[[0, 2]], atol=1e-12)  # type: ignore[union-attr]
    middle = np.asarray(pose.position[1] + pose.rotation[1] @ np.array([0, 0, -0.6]))[[0, 2]]
    np.testing.assert_allclose(np.mean(items[2].corners, axis=0), middle, atol=1e-12)  # type: ignore[union-attr]
    picture = render(items[2:], View(200, 200, span=4.0))
    assert float(jnp.sum(picture[..., 0])) * 0.02**2 == pytest.approx(0.5 * 0.02, rel=0.02)  # grey 0.5 over 0.2 x 0.1 m


def test_native_pictures_over_a_batch_are_those_of_jax():
    view = View(5, 6, span=2.4)

    def picture(x):
        return render([Capsule(jnp.zeros(2), x, 0.2, 0.5), Disc(x, 0.4)], view)

    def loss(x):
        return jnp.sum(picture(x) ** 2)

    x = np.random.default_rng(0).normal(size=(3, 2))
    np.testing.assert_allclose(kn.native.vmap(picture)(x), jax.jit(jax.vmap(picture))(x), atol=1e-12)
    np.testing.assert_allclose(kn.native.vmap(jax.grad(loss))(x), jax.jit(jax.vmap(jax.grad(loss)))(x), atol=1e-9)


def test_shapes_without_outline_are_refused_by_name():
    egg = kn.shapes.ellipsoid(0.1, 0.2, 0.3, name="egg")
    model = kn.build([kn.Link("a", joints=kn.revolute("y"), mass=1.0, shapes=egg)])
    with pytest.raises(ValueError, match="shape 'egg' is a ellipsoid; drawn are sphere, "):
        model_items(model, np.zeros(1))
