"""Which contacts are solved: those within reach, or, if they are too many, the nearest."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import collide, contact_pairs
from knuckle.contact.nearest import Nearest, nearest
from knuckle.contact.rows import (
    contact_frames,
    picked_sides,
    picked_speeds,
    picked_wrenches,
    point_speeds,
    point_wrenches,
)
from knuckle.kinematics import articulation


@pytest.mark.parametrize("jit", [jax.jit, kn.native.jit])
def test_contacts_within_reach_come_first_and_no_one_twice(jit):
    rng = np.random.default_rng(0)
    pick = jit(lambda gap, reach: nearest(gap, 8, reach).index)
    for count in range(13):
        gap = rng.permutation(np.concatenate([rng.uniform(-1, 0.5, count), rng.uniform(0.6, 9, 40 - count)]))
        index = np.asarray(pick(gap, 0.55))
        within = np.flatnonzero(gap <= 0.55)
        assert len(set(index)) == 8
        if count <= 8:
            np.testing.assert_array_equal(index[:count], within)
        else:
            assert set(index) == set(np.argsort(gap)[:8])


def test_all_are_solved_if_they_fit():
    assert nearest(jnp.zeros(8), 8, jnp.zeros(())).index is None


def balls(count: int) -> kn.Model:
    """Small balls on sliders of their own, over the ground."""
    ball = kn.shapes.sphere(0.1)
    links = [
        kn.Link(f"b{k}", joints=kn.prismatic("z"), mass=1.0, position=(k, 0, 0), shapes=ball) for k in range(count)
    ]
    return kn.build(links, world_shapes=[kn.shapes.plane()])


def test_a_contact_that_comes_and_goes_keeps_its_impulse_and_overflow_is_said():
    """12 balls, of which few touch at a time: a capacity of 4 gives the same motion; 5 at a time do not fit."""
    model = balls(12)
    height = np.full(12, 5.0)
    height[[3, 7, 11]] = [0.1, 0.11, 0.15]
    options: Any = {"dt": 0.004, "steps": 50, "native": True}
    few, every = (
        kn.rollout(model, kn.State(height, np.zeros(12)), contact=contact, **options)
        for contact in (kn.contact.Impulse(most_contacts=4), kn.contact.Impulse())
    )
    assert few.contact is not None and every.contact is not None
    pushing = (few.contact.impulse[:, :, 0] > 0).sum(axis=1)
    assert bool(few.contact.converged.all()) and pushing[0] == 1 and pushing[-1] == 3
    np.testing.assert_allclose(few.q, every.q, atol=1e-10)
    np.testing.assert_array_equal(few.contact.iterations, every.contact.iterations)  # starts are those of the same ball
    height[:5] = 0.1
    with pytest.raises(ArithmeticError):
        kn.rollout(
            model, kn.State(height, np.zeros(12)), contact=kn.contact.Impulse(most_contacts=4), check=True, **options
        )


def test_picked_contacts_move_and_push_links_as_all_do():
    """Velocities and wrenches of picked contacts between links, and with the world, equal those of all of them."""
    ball = kn.shapes.sphere(0.3)
    links = [
        kn.Link("a", joints=kn.free(), mass=1.0, shapes=ball),
        kn.Link("b", parent="a", joints=kn.revolute("y"), mass=1.0, position=(0.5, 0, 0)),
        kn.Link("c", parent="b", joints=kn.revolute("x"), mass=1.0, position=(0.5, 0, 0), shapes=ball),
        kn.Link("d", joints=kn.free(), mass=1.0, shapes=ball),
    ]
    model = kn.build(links, world_shapes=[kn.shapes.plane()])
    rng = np.random.default_rng(3)
    move, qd, impulse = rng.normal(size=model.nv), rng.normal(size=model.nv), rng.normal(size=(4, 3))

    @kn.native.jit
    def both_ways(move, qd, impulse):
        q = kn.retract(model, model.reference, move)
        contacts = collide(model, q, contact_pairs(model, self_collision=True))
        body, frame = articulation(model, q), contact_frames(contacts.normal, None)
        near = Nearest(jnp.array([4, 0, 2, 5], jnp.int32))
        assert len(contacts) == 6 and {-1, 0, 2, 3} == {*contacts.link_a, *contacts.link_b}
        sides, point, own = picked_sides(model, contacts, near), near.pick(contacts.point), near.pick(frame)
        speeds = near.pick(point_speeds(model, body, contacts, frame, qd))
        wrenches = point_wrenches(model, body, contacts, frame, near.put_back(impulse, 6))
        picked = picked_speeds(model, body, sides, point, own, qd)
        return (picked, speeds), (picked_wrenches(model, body, sides, point, own, impulse), wrenches)

    for found, expected in both_ways(move, qd, impulse):
        assert np.abs(expected).max() > 0
        np.testing.assert_allclose(found, expected, atol=1e-13)
