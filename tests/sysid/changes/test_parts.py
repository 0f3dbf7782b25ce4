"""Parts of the comparison of two sets of logs: consistent payloads, columns of zeros, words."""

from dataclasses import replace

import numpy as np

from knuckle import robots, sysid
from knuckle.sysid.changes.find import joint_differences
from knuckle.sysid.changes.payloads import consistent_payloads, is_consistent, payload_body
from knuckle.sysid.changes.result import Change, Gain, Measured
from knuckle.sysid.changes.sides import make_side, zero_columns
from knuckle.sysid.regression.design import Layout
from knuckle.sysid.regression.signals import prepare

from ..regression.driven import log, rubbing

BODY = 2.0 * np.diag([0.09, 0.09, 0.09, 1.0])
BALL = np.array([1.0, 0.1, 0.0, -0.2, 0.07, 0.08, 0.04, 0.0, 0.02, 0.0])


def quadratic(target, rng):
    A = rng.normal(size=(30, 10))
    return 1e4 * A.T @ A, 1e4 * A.T @ A @ target


def test_a_body_that_can_exist_is_found_as_it_is():
    H, g = quadratic(BALL, np.random.default_rng(0))
    assert is_consistent(BALL, BODY)
    np.testing.assert_allclose(consistent_payloads(H, g, 0 * BALL, BODY), BALL, atol=1e-5)


def test_a_body_that_cannot_exist_becomes_the_best_one_that_can():
    """No random consistent body nearby explains more, up to the barrier's 0.004."""
    rng = np.random.default_rng(1)
    wrong = BALL.copy()
    wrong[4:7] = [0.001, 0.001, 0.2]  # against the triangle inequality
    H, g = quadratic(wrong, rng)
    found = consistent_payloads(H, g, wrong, BODY)
    assert not is_consistent(wrong, BODY) and is_consistent(found, BODY)

    def value(pi):
        return 0.5 * pi @ H @ pi - g @ pi

    tried = [found + 10.0 ** rng.uniform(-5, -1) * rng.normal(size=10) for _ in range(2000)]
    assert min(value(pi) for pi in tried if is_consistent(pi, BODY)) > value(found) - 0.004
    assert abs(value(consistent_payloads(H, g, found, BODY, near=True)) - value(found)) < 0.008


def test_several_bodies_at_once_and_one_that_nothing_determines():
    rng = np.random.default_rng(2)
    H, g = quadratic(BALL, rng)
    both = np.zeros((20, 20))
    both[:10, :10] = H
    found = consistent_payloads(both + 1e-3 * np.eye(20), np.append(g, np.zeros(10)), np.zeros(20), BODY)
    np.testing.assert_allclose(found[:10], BALL, atol=1e-3)
    assert np.all(np.isfinite(found)) and is_consistent(found[10:], BODY)


def test_columns_of_zeros_are_derivatives_of_the_efforts():
    """The fit of a log whose positions are shifted by 1e-3 rad misses what the columns say, to second order."""
    model = rubbing(robots.load("double_pendulum"), armature=0.02, damping=0.1, friction=0.05)
    run = log(model, 0, seconds=10)
    found = sysid.regress(robots.load("double_pendulum"), run, terms=(), delay=0.0)
    side = make_side(prepare(model, [run]), found.problem, found.layout, found.cutoff, 1.0)
    joints, columns = zero_columns(side, side.theta)
    assert joints == (0, 1)
    for k in joints:
        shift = np.eye(2)[k] * 1e-3
        qd, tau = run["qd"].values, run["tau"].values
        shifted = sysid.Recording.of(model, run.time, q=run["q"].values + shift, qd=qd, tau=tau)
        other = make_side(prepare(model, [shifted]), found.problem, found.layout, found.cutoff, 1.0)
        for rows, after, column in zip(side.solved.rows, other.solved.rows, columns, strict=True):
            missed = after.residuals(side.theta) - rows.residuals(side.theta)
            np.testing.assert_allclose(missed, 1e-3 * column[:, k], atol=2e-3 * 1e-3 * np.abs(column).max())


def test_stationary_joints_do_not_count():
    """Both joints rest for the last 4 s, held by an effort within their friction: its size changes nothing."""
    model = rubbing(robots.load("double_pendulum"), armature=0.02, damping=0.1, friction=0.05)
    run = log(model, 0, seconds=10)
    found = sysid.regress(model, run, terms=(), delay=0.0)
    friction = tuple(replace(f, reach=1e-4) for f in found.layout.friction)
    layout = Layout(model, found.layout.joints, friction)
    held = np.arange(len(run.time)) >= 600
    q, qd = (np.where(held[:, None], rest, run[key].values) for key, rest in (("q", run["q"].values[600]), ("qd", 0.0)))
    sides = []
    for static in (0.0, 0.04):
        tau = run["tau"].values + static * held[:, None]
        part = sysid.Recording.of(model, run.time, q=q, qd=qd, tau=tau)
        sides.append(make_side(prepare(model, [part]), found.problem, layout, found.cutoff, 1.0))
    last = [
        float(s.problem.design.stretches[0].time[k[0]].max()) for s in sides for k in [s.problem.design.kept(layout, 0)]
    ]
    assert max(last) < 6.5
    np.testing.assert_allclose(sides[0].solved.rows[0].effort[:-15], sides[1].solved.rows[0].effort[:-15], atol=2e-3)


def test_differences_of_joints_and_the_scale_of_payloads():
    model = robots.load("double_pendulum")
    found = sysid.regress(model, log(rubbing(model), 0, seconds=10), terms=())
    kinds = [(d.kind, d.place, len(d.columns)) for d in joint_differences(found.layout)]
    assert kinds[:2] == [("friction", "shoulder", 2), ("offset", "shoulder", 1)] and len(kinds) == 4
    body = payload_body(model, np.asarray(found.problem.described))
    assert abs(body[3, 3] - 0.1 * np.asarray(model.inertia.mass).sum()) < 1e-9


def test_changes_in_words():
    nan = float("nan")
    three = [Measured(f"{what} {a}", nan, nan, nan, "m") for what in ("first moment", "centre") for a in "xyz"]
    unknown = Change("payload", "base", (Measured("mass", 1.0, nan, nan, "kg"), *three), 0.5, nan, True)
    assert str(unknown) == "a payload on base, whose mass is not determined by these motions"
    zero = Change("zero", "elbow", (Measured("zero", 0.02, 0.01, 0.03, "rad"),), 0.5, nan, True, (("payload", "hand"),))
    assert str(zero) == (
        "the zero of elbow moved by 0.02 rad (0.01 .. 0.03); these logs do not tell it from a payload on hand"
    )
    assert str(Gain("elbow", 1.0, nan, nan)) == "elbow: not determined by this load"
