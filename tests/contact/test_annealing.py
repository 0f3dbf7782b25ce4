"""Contact that hardens level by level."""

from __future__ import annotations

import numpy as np
import pytest

import knuckle as kn


def test_smoothing_shrinks_by_one_factor():
    widths = [
        c.smoothing for c in kn.contact.anneal(kn.contact.Impulse(friction=0.3), widest=1.0, narrowest=1e-2, levels=3)
    ]
    np.testing.assert_allclose(np.array(widths, float), [1.0, 0.1, 0.01], rtol=1e-12)
    rules = kn.contact.PerPair(push=kn.contact.Rule("tip", kn.contact.Impulse()), rest=kn.contact.Compliant())
    (only,) = kn.contact.anneal(rules, widest=0.5, narrowest=0.5, levels=1)
    push = only["push"]
    assert isinstance(push, kn.contact.Impulse) and push.smoothing == 0.5 and only["rest"] is rules["rest"]


def test_one_compiled_program_serves_all_levels_and_ends_near_rigid_contact():
    ball = kn.Link("ball", joints=kn.prismatic("z"), mass=1.0, shapes=kn.shapes.sphere(0.1))
    scene = kn.build([ball], world_shapes=[kn.shapes.plane()])
    start = scene.state(np.array([0.12]))
    traced = 0

    def height(contact):
        nonlocal traced
        traced += 1
        return kn.rollout(scene, start, dt=0.01, steps=20, contact=contact).q[-1, 0]

    run = kn.native.jit(height)
    heights = [float(run(contact)) for contact in kn.contact.anneal(kn.contact.Impulse(), levels=3)]
    assert traced == 1
    errors = np.abs(np.array(heights) - 0.1)
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-3  # width 1e-3 m/s over 0.2 s moves less than 0.2 mm


def test_what_has_no_smoothing_is_refused():
    with pytest.raises(ValueError, match="with smoothing, such as Impulse, got Compliant"):
        next(kn.contact.anneal(kn.contact.Compliant()))
    with pytest.raises(ValueError, match="widest >= narrowest > 0"):
        next(kn.contact.anneal(kn.contact.Impulse(), widest=1e-4))
