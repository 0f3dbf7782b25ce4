"""Steps for which no contact model is chosen."""

from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Impulse
from knuckle.hybrid import Hybrid, load_hybrid, save_hybrid

BALL = kn.build(
    [kn.Link("ball", joints=kn.free(), mass=1.0, shapes=kn.shapes.sphere(0.1))], world_shapes=[kn.shapes.plane()]
)
LIMITED = kn.build([kn.Link("arm", joints=kn.revolute("y", lower=-0.5, upper=0.5), mass=1.0, com=(0, 0, -0.3))])
FREE = kn.build([kn.Link("arm", joints=kn.revolute("y"), mass=1.0, com=(0, 0, -0.3))])
FAST = kn.State(np.zeros(1), np.array([8.0]))


def test_a_ball_rests_on_its_plane_unless_contact_is_none():
    state = BALL.state(np.array([0, 0, 0.1, 1.0, 0, 0, 0]))
    runs = {name: kn.rollout(BALL, state, dt=0.01, steps=20, native=True, **given) for name, given in CHOICES.items()}
    np.testing.assert_array_equal(runs["default"].q, runs["impulse"].q)
    assert abs(runs["default"].q[-1, 2] - 0.1) < 1e-6  # rests, to the tolerance of contact and its mixing
    assert runs["none"].q[-1, 2] < 0.1 - 0.19  # g t^2 / 2 = 0.196 m
    assert runs["none"].contact is None


CHOICES = {"default": {}, "impulse": {"contact": Impulse()}, "none": {"contact": None}}


def test_a_joint_stops_at_its_limit_in_every_function_that_steps():
    assert kn.rollout(LIMITED, FAST, dt=0.01, steps=30, native=True).q.max() < 0.51
    assert kn.rollout(LIMITED, FAST, dt=0.01, steps=30, native=True, contact=None).q.max() > 1.0
    at_limit = kn.State(np.array([0.5]), np.array([1.0]))
    assert float(kn.step(LIMITED, at_limit, dt=0.01).qd[0]) <= 1e-8  # the residual of a step
    A, _ = kn.native.jit(lambda: kn.linearize(LIMITED, at_limit, dt=0.01))()
    free, _ = kn.native.jit(lambda: kn.linearize(LIMITED, at_limit, dt=0.01, contact=None))()
    assert abs(A[1, 1]) < 1e-6 < 0.9 < free[1, 1]  # the limit takes all of the velocity
    taps = {kind: [tap.name for tap in kn.list_taps(BALL, **given)] for kind, given in CHOICES.items()}
    assert taps["default"] == taps["impulse"] != taps["none"]


def test_what_was_described_with_nothing_to_hold_is_stepped_without():
    run = kn.rollout(FREE, FAST, dt=0.01, steps=5, integrator=kn.RK4())
    assert run.contact is None
    np.testing.assert_array_equal(run.q, kn.rollout(FREE, FAST, dt=0.01, steps=5, integrator=kn.RK4(), contact=None).q)


def test_an_integrator_without_contact_is_refused_and_the_error_says_how_to_go_on():
    with pytest.raises(ValueError, match="contact needs SemiImplicitEuler or Implicit, not RK4; contact=None"):
        kn.rollout(LIMITED, FAST, dt=0.01, steps=5, integrator=kn.RK4())
    assert np.isfinite(kn.rollout(LIMITED, FAST, dt=0.01, steps=5, integrator=kn.RK4(), contact=None).q).all()
    with pytest.raises(ValueError, match=r"dt must be positive, got -0\.01; contact=None"):
        kn.step(LIMITED, FAST, dt=-0.01)


@pytest.mark.parametrize("wrong", ["impulse", Impulse, 0, True, {}])
def test_anything_else_is_refused(wrong):
    with pytest.raises(TypeError, match="contact: expected a contact model such as"):
        kn.step(BALL, BALL.state(), dt=0.01, contact=wrong)


def test_limits_that_are_traced_or_taken_away_do_not_change_the_choice():
    """What was described counts, so the same model as an argument steps as the constant one does."""
    constant = kn.rollout(LIMITED, FAST, dt=0.01, steps=30)
    traced = jax.jit(lambda model: kn.rollout(model, FAST, dt=0.01, steps=30))(LIMITED)
    np.testing.assert_allclose(traced.q, constant.q, rtol=0, atol=1e-12)
    wide = eqx.tree_at(lambda m: (m.lower, m.upper), LIMITED, (np.array([-np.inf]), np.array([np.inf])))
    free = kn.rollout(FREE, FAST, dt=0.01, steps=30).q
    np.testing.assert_allclose(kn.rollout(wide, FAST, dt=0.01, steps=30).q, free, rtol=0, atol=1e-12)


def test_a_hybrid_keeps_its_choice_in_its_file(tmp_path: Path):
    for name, given in CHOICES.items():
        save_hybrid(tmp_path / "a.knuckle", BALL, dt=0.01, **given)
        hybrid = load_hybrid(tmp_path / "a.knuckle")
        assert hybrid.contact == (None if name == "none" else Impulse())
        assert hybrid.options["contact"] == hybrid.contact
        fallen = hybrid.rollout(BALL.state(np.array([0, 0, 0.1, 1.0, 0, 0, 0])), steps=20).q[-1, 2]
        assert (fallen < 0) == (name == "none")
    assert Hybrid(FREE).contact is None and Hybrid(LIMITED).contact == Impulse()
