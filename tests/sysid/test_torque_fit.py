"""The default fit where torques were measured: which way it takes, how roll-outs judge it, and when it is refined."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from dataclasses import replace

import jax
import numpy as np
import pytest

import knuckle as kn
from knuckle import sysid
from knuckle.contact import Impulse
from knuckle.dynamics import crba
from knuckle.interrupt import Interrupts
from knuckle.sysid import datasets, torque_fit
from knuckle.sysid.parameters import choose
from knuckle.sysid.regression.refine import refine, responses
from knuckle.sysid.regression.rollouts import Rollouts
from knuckle.sysid.split import thinned
from knuckle.sysid.task import noise_in
from knuckle.sysid.torque_fit import segment_squares

from .regression.driven import log, rubbing


def arm(mass: float = 1.0) -> kn.Model:
    links = [
        kn.Link("upper", joints=kn.revolute("y", name="shoulder"), mass=mass, com=(0, 0, -0.2), inertia=(0.02,) * 3),
        kn.Link("lower", "upper", kn.revolute("y", name="elbow"), position=(0, 0, -0.4), mass=0.7 * mass,
                com=(0, 0, -0.15), inertia=(0.01,) * 3),
    ]  # fmt: skip
    return kn.build(links, actuators=[kn.motor(n, name=n) for n in ("shoulder", "elbow")], name="two links")


MODEL = arm()
TRUE = rubbing(arm(1.2), armature=0.05, damping=0.3, friction=0.3)
RUN = log(TRUE, seconds=12, noise=0.02)


@pytest.fixture(scope="module")
def made() -> sysid.Fit:
    return kn.fit(MODEL, RUN)


def test_measured_torques_are_regressed_by_default_and_judged_by_roll_outs(made):
    """Two per cent of noise on the effort: friction and damping to 10 %, held-out positions at least twice as near."""
    assert made.method.startswith("torque regression: positions and efforts")
    assert made.regression is not None and made.converged and made.evaluated and not made.is_doubtful
    for name, value in (("shoulder.damping", 0.3), ("elbow.damping", 0.3), ("elbow.friction", 0.3)):
        assert abs(made[name].value - value) < 0.1 * value, name
    assert made.held_out is not None and made.held_out.after["q"] < 0.5 * made.held_out.before["q"]
    assert all(e.held_out < 0.1 * e.effort for e in made.regression.errors)
    for function in (sysid.posterior, sysid.excite):
        with pytest.raises(ValueError, match="multiple shooting"):
            function(made)
    text = repr(made)
    assert "torque regression" in text and "held out" in text and "refine" in text
    span = made.interval(lambda m: crba(m, np.zeros(2)))
    true = np.asarray(crba(TRUE, np.zeros(2))).ravel()
    assert np.all(span.lower < true) and np.all(true < span.upper) and np.all(span.deviation < 0.1 * true)


def test_other_ways_are_taken_for_a_reason_that_is_said():
    still = kn.Recording.of(MODEL, RUN.time, q=np.tile(RUN["q"].values[:1], (len(RUN), 1)), tau=RUN["tau"].values)
    half = RUN["tau"].values.copy()
    half[:, 1] = np.nan
    cases = [
        (RUN.replace(tau=None), {}, "neither joint torques nor controls"),
        (still, {}, "stationary"),
        (RUN.replace(tau=None).replace(tau=kn.sysid.Channel(np.nan_to_num(half), np.isfinite(half), RUN["tau"].names)),
         {}, "no effort of elbow"),
        (RUN, {"free": ["*.damping"]}, "free given"),
        (RUN, {"robust": "huber"}, "robust"),
    ]  # fmt: skip
    for run, options, why in cases:
        found = kn.fit(MODEL, run.at(0, 300), segment=0.2, seconds=3.0, **options)
        assert found.regression is None and found.method.startswith("multiple shooting: "), why
        assert why in found.method, (why, found.method)


def test_regression_alone_simulates_nothing_and_refuses_what_it_has_not():
    found = kn.fit(MODEL, RUN, loss="torque")
    assert found.regression is not None and found.held_out is None and found.method.endswith("as asked for")
    with pytest.raises(ValueError, match="it has no free"):
        kn.fit(MODEL, RUN, free=["*.mass"], loss="torque")
    with pytest.raises(ValueError, match="neither measured joint torques"):
        kn.fit(MODEL, RUN.replace(tau=None), loss="torque")
    with pytest.raises(ValueError, match="loss: expected one of"):
        kn.fit(MODEL, RUN, loss="torques")  # type: ignore[arg-type]


def displaced(found: sysid.Regression) -> sysid.Regression:
    """A regression whose damping is wrong by half, and which says so in its covariance."""
    by = np.array(
        [0.5 * t if name.endswith(".damping") else 0.0 for name, t in zip(found.layout.names, found.theta, strict=True)]
    )
    return replace(found.moved(found.theta + by), directions=np.column_stack([found.directions, by]))


def test_a_refinement_that_helps_on_held_out_data_is_taken(monkeypatch):
    regress, refit = torque_fit.regress, torque_fit.refit
    monkeypatch.setattr(torque_fit, "regress", lambda *a, **k: displaced(regress(*a, **k)))
    monkeypatch.setattr(torque_fit, "refit", lambda *a: displaced(refit(*a)))
    found = kn.fit(MODEL, RUN)
    assert found.regression is not None and found.regression.refined
    assert any(note.startswith("refined by roll-outs") for note in found.notes)
    assert abs(found["elbow.damping"].value - 0.3) < 0.06  # it began at 0.45


def test_a_refinement_that_does_harm_is_refused(monkeypatch):
    def worse(found, *args, **kwargs):
        by = np.array([0.3 if name.endswith(".armature") else 0.0 for name in found.layout.names])
        return replace(found.moved(found.theta + by), refined=True)

    monkeypatch.setattr(torque_fit, "refine", worse)
    found = kn.fit(MODEL, RUN)
    assert found.regression is not None and not found.regression.refined
    assert any("refused, the regression stands" in note for note in found.notes)
    assert abs(found["elbow.armature"].value - 0.05) < 0.02


def test_refinement_does_not_make_links_heavier():
    """A tenth of the effort is noise, correlated over 0.2 s: errors of positions alone add some 10 % to the masses."""
    ratios = []
    for seed in range(3):
        run = log(TRUE, seed=seed, seconds=15, noise=0.1, correlation=0.2)
        found = sysid.regress(MODEL, run, terms=(), delay=0.0)
        with jax.enable_x64(True):
            moved = refine(found, Rollouts(found, [run], noise=noise_in(MODEL, [run]), segment=0.5))
            mass = [np.diag(np.asarray(crba(m.model, np.zeros(2)))) for m in (found, moved)]
        assert moved.refined
        ratios.append(mass[1] / mass[0])
    assert np.all(np.abs(np.mean(ratios, axis=0) - 1) < 0.05), ratios


def test_a_constant_force_moves_links_as_in_closed_form():
    """x = (t - (1 - exp(-b t / m)) m / b) / b, and t^2 / 2 m without damping; 40 steps of Euler err by 2 %."""
    m, b, t = 0.8, 0.5, 0.7
    moved = responses(np.array([[[m]]]), np.array([b]), t)[0, 0, 0]
    assert abs(moved / ((t - (1 - np.exp(-b * t / m)) * m / b) / b) - 1) < 0.03
    assert abs(responses(np.array([[[m]]]), np.zeros(1), t)[0, 0, 0] / (t**2 / (2 * m)) - 1) < 0.03


def test_one_diverging_segment_does_not_outweigh_all_others():
    before, after = np.ones((4, 5, 2)), np.full((4, 5, 2), 0.5)
    after[2] = np.inf
    before[1, 1] = np.nan  # not measured
    first, second = segment_squares(before, after)
    np.testing.assert_allclose(first, 1.0)
    assert np.isfinite(second).all() and second[2] > 100 and np.all(second[[0, 1, 3]] == 0.25)


def test_a_description_that_diverges_begins_with_measured_friction():
    """Light links without friction, driven by torques that overcome the friction of heavy gears."""
    light = arm(0.02)
    geared = rubbing(light, armature=0.5, damping=4.0, friction=4.0)
    run = log(geared, seconds=8, noise=0.01)
    found = kn.fit(light, run, free=["*.damping"], segment=0.25)
    assert any("begin at those of a regression" in note for note in found.notes)
    assert found.evaluated and np.allclose(np.asarray(found.model.armature), 0.5, rtol=0.1)
    assert found.held_out is not None and found.held_out.after["q"] < 0.1


def test_ctrl_c_keeps_the_regression(monkeypatch):
    def asked(*args, **kwargs):
        kept.count = 1
        raise KeyboardInterrupt

    kept = Interrupts()
    monkeypatch.setattr(sys.modules["knuckle.sysid.fit"], "interrupts", lambda: nullcontext(kept))
    monkeypatch.setattr(torque_fit, "Rollouts", asked)
    found = kn.fit(MODEL, RUN)
    assert found.regression is not None and str(found.result.status) == "interrupted"
    assert any("stopped by Ctrl-C" in line for line in found.left_out)


def test_contact_friction_is_not_free_where_nothing_touches():
    names = [p.name for p in choose(MODEL, ["*.friction"], Impulse())]
    assert names == ["shoulder.friction", "elbow.friction"]


def test_a_real_arm_with_default_settings():
    """A log of 20 s of a UR10e: the description diverges; torques of another log are a third of the description's."""
    try:
        folder = datasets.find("ur10e")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    model = kn.load(folder / "ur10e.urdf")
    runs = [sysid.read_recordings(folder / f"{name}.csv", model)[0] for name in (
        "20_02_05-20sec_12harm", "20_02_06-20sec_5harm")]  # fmt: skip
    found = kn.fit(model, runs[0])
    assert found.regression is not None and found.held_out is not None
    assert found.held_out.diverges("q", found.held_out.before["q"]) and "diverges ->" in repr(found)
    assert found.held_out.after["q"] < 0.02
    errors = found.regression.torque_errors(runs[1])
    described = {e.joint: e.described for e in found.regression.errors}
    assert all(errors[joint] < described[joint] / 3 for joint in errors)


def test_of_a_million_samples_as_many_are_used_as_the_time_allows():
    """tau = I qdd + m g c sin q + d qd in closed form, 0.01 N m of noise, 15 s: once nothing was found in 100 s."""
    t = 0.002 * np.arange(1_000_000)
    size, rate = np.array([1.0, 0.5, 0.4]), np.array([1.3, 3.1, 0.99])
    q, qd, qdd = ((size * rate**k) @ np.sin(rate[:, None] * t + k * np.pi / 2) for k in range(3))
    tau = 0.08 * qdd + 9.81 * 0.25 * np.sin(q) + 0.1 * qd + 0.01 * np.random.default_rng(0).normal(size=len(t))
    link = kn.Link("rod", joints=kn.revolute("y", name="hinge"), mass=1.0, com=(0, 0, -0.2), inertia=(0.01,) * 3)
    rod = kn.build([link], actuators=[kn.motor("hinge", name="drive")])
    run = kn.Recording.of(rod, t, q=q[:, None], qd=qd[:, None], tau=tau[:, None])
    began = time.monotonic()
    made = kn.fit(rod, run, seconds=15.0, loss="torque")
    assert time.monotonic() - began < 1.1 * 15 + 5
    assert made.converged and any("spread over the recordings" in words for words in made.left_out)
    assert abs(made["hinge.damping"].value - 0.1) < 0.01
    moment = made.model.inertia.mass[0] * made.model.inertia.com[0, 2]
    assert abs(moment + 0.25) < 0.0025  # kg m: 1 %


def test_pieces_are_spread_over_each_recording_and_short_ones_stay_whole():
    long, short = (kn.Recording.of(MODEL, 0.01 * np.arange(n), q=np.zeros((n, 2))) for n in (100_000, 5_000))
    pieces = thinned([long, short], 0.2)
    assert pieces[-1] is short and sum(map(len, pieces)) == pytest.approx(0.2 * 100_000 + 5_000, rel=0.05)
    starts = np.array([piece.time[0] for piece in pieces[:-1]])
    assert len(starts) == 5 and np.ptp(np.diff(starts)) < 1e-6 and starts[0] > 0 and pieces[-2].time[-1] < long.time[-1]
