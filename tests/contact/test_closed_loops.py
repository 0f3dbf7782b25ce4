"""Closed loops: coordinates that close them, their derivative, and names in outcomes and errors."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact.closed_loops import limit_excess

CRANK, ROD, ROCKER, BASE = 0.2, 0.5, 0.4, 0.5


def four_bar(rod=ROD, **rocker):
    """Bars along z at rest, turning about y; the rod's end is pinned to the rocker's."""
    bar = {"mass": 1.0, "inertia": (0.01, 0.01, 0.01)}
    links = [
        kn.Link("crank", joints=kn.revolute("y"), **bar),
        kn.Link("rod", "crank", kn.revolute("y"), (0, 0, CRANK), **bar),
        kn.Link("rocker", joints=kn.revolute("y", **rocker), position=(BASE, 0, 0), **bar),
    ]
    pin = kn.Connect("rod", "rocker", (0, 0, rod), (0, 0, ROCKER), name="pin")
    return kn.build(links, equalities=[pin])


@pytest.fixture(scope="module")
def model():
    return four_bar()


def rocker_angle(crank, rod=ROD):
    """The branch with the pin above the base, by the intersection of two circles (closed form)."""
    end = np.array([CRANK * np.sin(crank), CRANK * np.cos(crank)])
    across = np.array([BASE, 0.0]) - end
    distance = np.hypot(*across)
    along = (rod**2 - ROCKER**2 + distance**2) / (2 * distance)
    up = np.sqrt(rod**2 - along**2)
    pin = end + along * across / distance + up * np.array([-across[1], across[0]]) / distance
    return np.arctan2(pin[0] - BASE, pin[1])


def test_a_four_bar_closes_where_circles_meet(model):
    q = kn.assemble(model, np.array([0.3, 1.0, 0.2]), hold=["crank_joint"])
    assert q[0] == 0.3
    # Newton ends at rounding of positions of half a metre; the bars are not near a dead point.
    np.testing.assert_allclose(q[2], rocker_angle(0.3), atol=1e-12)
    assert float(kn.contact.equality_errors(model, q)["pin"]) < 1e-12


def test_derivatives_are_those_of_the_closed_form(model):
    def rocker(crank, model):
        return kn.assemble(model, jnp.array([0.0, 1.0, 0.2]).at[0].set(crank), hold=["crank_joint"])[2]

    def longer(rod):
        point = jnp.asarray(model.equalities.position_a).at[0, 2].set(rod)
        return eqx.tree_at(lambda m: m.equalities.position_a, model, point)

    by_crank, by_rod = jax.jit(jax.grad(lambda c, r: rocker(c, longer(r)), (0, 1)))(0.3, ROD)
    h = 1e-5  # central differences of the closed form: 1e-10 by cutting, 1e-11 by rounding
    np.testing.assert_allclose(by_crank, (rocker_angle(0.3 + h) - rocker_angle(0.3 - h)) / (2 * h), rtol=1e-8)
    np.testing.assert_allclose(by_rod, (rocker_angle(0.3, ROD + h) - rocker_angle(0.3, ROD - h)) / (2 * h), rtol=1e-8)


def test_what_cannot_close_is_refused_by_name_or_is_nan(model):
    with pytest.raises(ValueError, match=r"with crank_joint, rod_joint held: open by equality 'pin' 0\.\d+"):
        kn.assemble(model, np.array([0.3, 1.0, 0.2]), hold=["crank_joint", "rod_joint"])
    with pytest.raises(ValueError, match="no joint 'elbow'; there are crank_joint"):
        kn.assemble(model, hold=["elbow"])
    with pytest.raises(ValueError, match="no active equality"):
        kn.assemble(kn.build([kn.Link("a", joints=kn.revolute("y"), mass=1.0, inertia=(1, 1, 1))]))
    far = eqx.tree_at(lambda m: m.equalities.position_a, model, np.array([[0, 0, 3.0]]))  # longer than all others
    assert np.isnan(np.asarray(jax.jit(lambda m: kn.assemble(m))(far))).all()


def test_limits_are_kept():
    """From the same start the free loop closes at the lower of two branches, which the limit forbids."""
    start = np.array([0.3, 1.0, 0.2])
    free = kn.assemble(four_bar(), start)
    edge = float(free[2]) + 0.05
    held = four_bar(lower=edge)
    q = kn.assemble(held, start)
    assert float(free[2]) < edge <= float(q[2]) + 1e-12
    assert float(jnp.max(limit_excess(held, q))) <= 1e-12
    assert float(kn.contact.equality_errors(held, q)["pin"]) < 1e-9


def test_impulses_of_equalities_have_names():
    """A stationary body pinned to the world at its centre of mass: the pin carries its weight."""
    box = kn.Link("box", joints=kn.free(), mass=2.0, inertia=(0.1, 0.1, 0.1))
    side = kn.Link("side", joints=kn.prismatic("x"), mass=1.0)
    lead = kn.Link("lead", joints=kn.prismatic("x"), mass=1.0)
    ties = [kn.Mimic("side_joint", "lead_joint", name="gear"), kn.Connect("box", name="pin")]
    model = kn.build([box, side, lead], equalities=ties)
    assert kn.contact.equality_rows(model) == {"pin": slice(0, 3), "gear": slice(3, 4)}
    motion = kn.rollout(model, model.state(), dt=0.01, steps=1, native=True)
    assert motion.contact is not None
    impulse = np.asarray(motion.contact.equality[0])
    np.testing.assert_allclose(impulse[kn.contact.equality_rows(model)["pin"]], [0, 0, 2.0 * 9.81 * 0.01], rtol=1e-4)


def test_an_open_loop_and_pins_that_contradict_are_told_apart(model):
    apart = model.state(np.array([0.3, 1.0, 0.2]))
    with pytest.warns(UserWarning, match="violated before the step: equality 'pin' 0.0") as seen:
        kn.rollout(model, apart, dt=0.001, steps=2, native=True, check=True)
    assert "kn.assemble closes loops" in str(seen[0].message)
    body = kn.Link("body", joints=kn.prismatic("x"), mass=1.0)
    ties = [
        kn.Mimic("body_joint", polynomial=(at, 0, 0, 0, 0), name=name) for at, name in ((0, "left"), (1e-4, "right"))
    ]
    twice = kn.build([body], equalities=ties)
    with pytest.raises(ArithmeticError, match=r"contradict each other \(all hold before the step; .*'(left|right)'"):
        kn.rollout(twice, twice.state(), dt=0.001, steps=2, native=True, check=True)
