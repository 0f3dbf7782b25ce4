"""Instruments, actuators, lengths and contact, fitted to recordings of a known truth: within 1 %."""

import equinox as eqx
import numpy as np
import pytest

import knuckle as kn
from knuckle import robots
from knuckle.contact import Compliant, Impulse, PerPair, Rule
from tests.sysid.test_fit import MODEL, recorded

PENDULUM = eqx.tree_at(lambda m: m.damping, MODEL, np.array([0.05, 0.02]))


def test_gains_of_sensors_are_found():
    """Two encoders whose scales are wrong; the swings are wide enough for the period to tell the true angle."""
    scale = np.array([1.06, 0.95])
    runs = [
        kn.Recording.of(PENDULUM, r.time, q=scale * r.q, name=r.name) for r in recorded(PENDULUM, runs=2, noise=1e-4)
    ]
    fit = kn.fit(PENDULUM, runs, [], gains=["q"], held_out=0)
    for k, gain in enumerate(scale):
        estimate = fit[f"sensor.q.gain[{k}]"]
        assert estimate.value == pytest.approx(gain, rel=0.01) and estimate.before == 1.0
        assert estimate.verdict == "determined" and abs(estimate.value - gain) < 4 * estimate.deviation
    with pytest.raises(ValueError, match="must be of channels that are compared"):
        kn.fit(PENDULUM, runs, [], gains=["qd"])


def test_a_quaternion_has_no_gain():
    body = kn.build([kn.Link("body", joints=kn.free(), mass=1.0)])
    still = np.tile(np.asarray(body.state().q), (50, 1))
    with pytest.raises(ValueError, match="gains: q holds quaternions"):
        kn.fit(body, kn.Recording.of(body, 0.01 * np.arange(50), q=still), ["*.mass"], gains=["q"], held_out=0)


def test_the_gain_of_an_actuator_is_found():
    cart = robots.load("cartpole")
    truth = eqx.tree_at(lambda m: m.actuators.gain, cart, 1.25 * np.asarray(cart.actuators.gain))
    pushes = lambda rng, n: np.repeat(5 * rng.normal(size=(n // 20, 1)), 20, axis=0)  # noqa: E731
    fit = kn.fit(cart, recorded(truth, control=pushes), ["*.gain"], held_out=0)
    (estimate,) = fit.estimates
    assert estimate.value == pytest.approx(1.25 * estimate.before, rel=0.01)
    assert fit.model.actuators.gain == pytest.approx(np.asarray(truth.actuators.gain), rel=0.01)


def test_the_length_of_a_link_is_found_as_the_placement_of_the_next_joint():
    placed = np.array(PENDULUM.position)
    placed[1] *= 1.08
    truth = eqx.tree_at(lambda m: m.position, PENDULUM, placed)
    fit = kn.fit(PENDULUM, recorded(truth, runs=2), ["elbow.placement"], held_out=0)
    along = int(np.argmax(np.abs(placed[1])))
    estimate = fit[f"elbow.placement.{'xyz'[along]}"]
    assert estimate.value == pytest.approx(placed[1, along], rel=0.01) and estimate.verdict == "determined"
    assert fit["elbow.placement.y"].verdict == "not determined"  # along the axes of both joints


def touching(*joints):
    """A puck of 1 kg that moves along these axes over the ground."""
    puck = kn.Link("puck", joints=joints, mass=1.0, shapes=kn.shapes.sphere(0.1))
    return kn.build([puck], world_shapes=[kn.shapes.plane()])


def logged(model, contact, starts, speeds, steps):
    rng, found = np.random.default_rng(0), []
    for k, (q, qd) in enumerate(zip(starts, speeds, strict=True)):
        run = kn.rollout(
            model, model.state(np.array(q), np.array(qd)), dt=2e-3, steps=steps, contact=contact, native=True
        )
        measured = np.asarray(run.q)[4::5] + 1e-4 * rng.normal(size=(steps // 5, model.nq))
        found.append(kn.Recording.of(model, 0.01 * np.arange(len(measured)), q=measured, name=f"run {k}"))
    return found


def test_friction_of_contact_is_found_from_sliding():
    model = touching(kn.prismatic("x"), kn.prismatic("z"))
    runs = logged(model, Impulse(friction=0.35), [(0.0, 0.1)] * 2, [(2.0, 0.0), (1.2, 0.0)], 250)
    fit = kn.fit(model, runs, ["contact.friction"], contact=Impulse(), held_out=0)
    assert fit["contact.friction"].value == pytest.approx(0.35, rel=0.01)
    assert fit["contact.friction"].verdict == "determined"
    assert fit["contact.friction"].before == 1.0  # that of the shapes
    assert isinstance(fit.contact, Impulse) and fit.contact.friction == pytest.approx(0.35, rel=0.01)


def test_restitution_is_found_from_bounces():
    model = touching(kn.prismatic("z"))
    runs = logged(model, Impulse(restitution=0.65), [(0.6,), (0.9,)], [(0.0,), (-1.0,)], 300)
    fit = kn.fit(model, runs, ["contact.restitution"], contact=Impulse(restitution=0.5), held_out=0)
    assert fit["contact.restitution"].value == pytest.approx(0.65, rel=0.01)


def test_friction_of_each_rule_is_found_from_sliding():
    """Two pucks slide side by side, one rigid and one on springs; of each the friction that its rule has."""
    axes = kn.prismatic("x"), kn.prismatic("z")
    pucks = [
        kn.Link(name, joints=axes, mass=1.0, position=(0, y, 0), shapes=kn.shapes.sphere(0.1, name=name, conaffinity=0))
        for name, y in (("hard", 0.0), ("soft", 1.0))
    ]
    model = kn.build(pucks, world_shapes=[kn.shapes.plane(name="ground")])

    def contact(hard, soft):
        return PerPair(hard=Rule("hard|ground", Impulse(friction=hard)), soft=Rule("*", Compliant(friction=soft)))

    runs = logged(model, contact(0.35, 0.2), [(0, 0.1, 0, 0.0995)] * 2, [(1.6, 0, 0.8, 0), (1.0, 0, 1.4, 0)], 200)
    fit = kn.fit(model, runs, ["contact.*.friction"], contact=contact(None, 0.5), held_out=0)
    found = {estimate.name: estimate.value for estimate in fit.estimates}
    assert found == pytest.approx({"contact.hard.friction": 0.35, "contact.soft.friction": 0.2}, rel=0.01)
    assert fit["contact.hard.friction"].before == 1.0  # that of the shapes
    assert isinstance(fit.contact, PerPair)
    assert fit.contact["soft"].friction == pytest.approx(0.2, rel=0.01)
