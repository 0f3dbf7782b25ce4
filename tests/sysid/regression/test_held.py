"""Arms with a gripper whose fingers were not logged, or are coupled by a mimic: the arm is fitted all the same."""

from __future__ import annotations

import numpy as np
import pytest

import knuckle as kn
from knuckle import sysid
from knuckle.sysid.regression.held import coupled, unlogged

from .driven import fourier, rubbing, torques

ARM, FINGERS = [0, 1], [2, 3]


def gripper(hand: float) -> kn.Model:
    """Two links that swing, and two fingers that slide, the second as the first."""
    links = [
        kn.Link("upper", joints=kn.revolute("y", name="shoulder"), mass=2.0, com=(0, 0, -0.2), inertia=(0.03,) * 3),
        kn.Link(
            "hand", "upper", kn.revolute("y", name="elbow"), position=(0, 0, -0.4), mass=hand, com=(0, 0, -0.15),
            inertia=(0.02,) * 3,
        ),
        *(
            kn.Link(
                side, "hand", kn.prismatic("x", name=f"{side}_joint"), position=(0, y, -0.3), mass=0.2,
                inertia=(1e-4,) * 3,
            )
            for side, y in (("left", 0.05), ("right", -0.05))
        ),
    ]  # fmt: skip
    motors = [kn.motor(name) for name in ("shoulder", "elbow", "left_joint", "right_joint")]
    return kn.build(links, equalities=[kn.Mimic("right_joint", "left_joint", name="gear")], actuators=motors)


DESCRIBED, TRUE = gripper(1.0), rubbing(gripper(1.4))


@pytest.fixture(scope="module")
def motion():
    """The arm moves, the fingers are stationary; effort with 1 % noise."""
    time, rng = np.arange(1200) / 100, np.random.default_rng(0)
    q, qd, qdd = fourier(TRUE, time, 0)
    q[:, FINGERS], qd[:, FINGERS], qdd[:, FINGERS] = np.asarray(TRUE.reference)[FINGERS], 0.0, 0.0
    tau = torques(TRUE, q, qd, qdd)
    return time, q, qd, tau + 0.01 * tau.std(axis=0) * rng.normal(size=tau.shape)


def log(motion, fingers: bool) -> sysid.Recording:
    time, q, qd, tau = (np.array(x) for x in motion)
    if not fingers:
        for x in (q, qd, tau):
            x[:, FINGERS] = np.nan
    return sysid.Recording.of(DESCRIBED, time, q=q, qd=qd, tau=tau, name="run")


@pytest.mark.parametrize("fingers", [False, True])
def test_an_arm_is_fitted_though_its_fingers_are_not_logged_or_coupled(motion, fingers):
    """First moment of the hand with its fingers about the elbow: 1.4 * 0.15 + 0.4 * 0.3 kg m, here to 2 %."""
    run = log(motion, fingers)
    np.testing.assert_array_equal(unlogged(DESCRIBED, run), np.isin(np.arange(4), FINGERS) & (not fingers))
    np.testing.assert_array_equal(coupled(DESCRIBED), np.isin(np.arange(4), FINGERS))
    found = sysid.regress(DESCRIBED, run, terms=())
    inertia = found.model.inertia
    moment = inertia.mass[1] * inertia.com[1, 2] + np.sum(inertia.mass[2:] * (inertia.com[2:, 2] - 0.3))
    np.testing.assert_allclose(moment, -(1.4 * 0.15 + 0.4 * 0.3), rtol=0.02)
    np.testing.assert_allclose(found["elbow.friction"].value, 0.4, rtol=0.05)
    said = "a mimic couples left_joint, right_joint" if fingers else "nothing was measured at left_joint, right_joint"
    assert any(said in note for note in found.notes), found.notes
    assert [e.joint for e in found.errors] == ["shoulder", "elbow"]


def test_the_default_fit_is_that_regression_and_says_that_nothing_is_simulated(motion):
    found = kn.fit(DESCRIBED, log(motion, fingers=False))
    assert found.regression is not None and found.held_out is None
    assert any("roll-outs: forces at left_joint, right_joint are not known" in line for line in found.left_out)


def test_a_joint_with_effort_but_without_position_is_refused(motion):
    time, q, _, tau = (np.array(x) for x in motion)
    q[:, FINGERS[0]] = np.nan
    run = sysid.Recording.of(DESCRIBED, time, q=q, tau=tau, name="run")
    with pytest.raises(ValueError, match="positions of left_joint were never measured"):
        sysid.regress(DESCRIBED, run)


def test_what_is_heavy_or_commanded_is_not_taken_as_stationary(motion):
    """The hand is no finger; a finger whose command was logged may move."""
    time, q, qd, tau = (np.array(x) for x in motion)
    for x in (q, qd, tau):
        x[:, 1] = np.nan
    assert not unlogged(DESCRIBED, sysid.Recording.of(DESCRIBED, time, q=q, qd=qd, tau=tau, name="run"))[1]
    q[:, FINGERS] = np.nan
    run = sysid.Recording.of(DESCRIBED, time, q=q, control=np.zeros_like(q), name="run")
    assert not unlogged(DESCRIBED, run).any()
    with pytest.raises(ValueError, match="were never measured"):
        sysid.regress(DESCRIBED, run)
