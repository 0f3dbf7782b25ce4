"""What a regression cannot do is refused with the reason, and notes name what it left out."""

import numpy as np
import pytest

import knuckle as kn
from knuckle import robots, sysid
from knuckle.dynamics import crba
from knuckle.sysid.base_parameters import inertial
from knuckle.sysid.regression.prior import pseudo_inertia
from knuckle.sysid.report.regression import summarise_regression

from .driven import log, rubbing

ARM = robots.load("arm")
RUN = log(rubbing(ARM), seconds=10)


def test_a_stationary_robot_is_refused():
    still = kn.Recording.of(ARM, RUN.time, q=np.tile(RUN["q"].values[:1], (len(RUN), 1)), tau=RUN["tau"].values)
    with pytest.raises(ValueError, match="stationary"):
        sysid.regress(ARM, still)


def test_missing_channels_short_logs_and_wrong_options_are_refused():
    with pytest.raises(ValueError, match="neither measured joint torques"):
        sysid.regress(ARM, RUN.replace(tau=None))
    with pytest.raises(ValueError, match="no positions"):
        sysid.regress(ARM, RUN.replace(q=None))
    with pytest.raises(ValueError, match="20 samples"):
        sysid.regress(ARM, RUN.at(0, 12))
    with pytest.raises(ValueError, match="s of motion are too few"):
        sysid.regress(ARM, RUN.at(0, 60))
    with pytest.raises(ValueError, match="at least one recording"):
        sysid.regress(ARM, [])
    with pytest.raises(ValueError, match="no joint 'nobody'"):
        sysid.regress(ARM, RUN, gains={"nobody": 2.0})
    with pytest.raises(ValueError, match="terms must be among"):
        sysid.regress(ARM, RUN, terms=("backlash",))
    with pytest.raises(ValueError, match="prior must be positive"):
        sysid.regress(ARM, RUN, prior=0.0)


def test_equality_constraints_are_refused_by_name():
    links = [
        kn.Link("upper", joints=kn.revolute("y", name="shoulder"), mass=1.0, com=(0, 0, -0.2)),
        kn.Link("lower", "upper", kn.revolute("y", name="elbow"), position=(0, 0, -0.4), mass=1.0, com=(0, 0, -0.2)),
    ]
    model = kn.build(links, equalities=[kn.Mimic("elbow", "shoulder", name="belt")], actuators=[kn.motor("shoulder")])
    time = np.arange(100) / 100
    run = kn.Recording.of(model, time, q=np.zeros((100, 2)), tau=np.zeros((100, 2)))
    with pytest.raises(ValueError, match=r"equality constraints \(belt\)"):
        sysid.regress(model, run)


def test_a_joint_without_effort_keeps_its_friction_and_a_note_says_so():
    tau = RUN["tau"].values.copy()
    tau[:, 1] = np.nan
    found = sysid.regress(
        ARM, kn.Recording.of(ARM, RUN.time, q=RUN["q"].values, qd=RUN["qd"].values, tau=tau), terms=()
    )
    name = ARM.joint_names[1]
    assert any(name in note for note in found.notes)
    assert name not in found.terms
    assert np.asarray(found.model.damping)[1] == np.asarray(ARM.damping)[1]
    assert np.all(np.isfinite(found.theta))


def with_effort(change):
    tau = RUN["tau"].values.copy()
    change(tau)
    return kn.Recording.of(ARM, RUN.time, q=RUN["q"].values, qd=RUN["qd"].values, tau=tau)


def test_a_reversed_sign_and_currents_for_torques_are_noted_and_clean_logs_are_not():
    def flip(tau):
        tau[:, 1] *= -1

    def as_currents(tau):
        tau /= 9.0

    name = ARM.joint_names[1]
    assert not sysid.regress(ARM, RUN, terms=(), delay=0.0).notes
    flipped = sysid.regress(ARM, with_effort(flip), terms=(), delay=0.0)
    assert any("sign" in note and name in note for note in flipped.notes)
    currents = sysid.regress(ARM, with_effort(as_currents), terms=(), delay=0.0)
    assert any("scale" in note and "gains" in note for note in currents.notes)


def test_torques_that_have_nothing_to_do_with_the_motion_are_noted():
    def shuffle(tau):
        tau[:] = tau[np.random.default_rng(0).permutation(len(tau))]

    found = sysid.regress(ARM, with_effort(shuffle), terms=(), delay=0.0)
    assert any("not explained by the motion" in note for note in found.notes)
    assert np.all(np.isfinite(found.theta))


def test_links_without_mass_or_extent_get_a_consistent_fit():
    """A description with a massless link, a point mass and a rod, as files often have them."""
    links = [
        kn.Link("carriage", joints=kn.prismatic("x", name="rail")),
        kn.Link("column", "carriage", kn.prismatic("z", name="lift"), mass=2.0, com=(0, 0, 0.1)),
        kn.Link("arm", "column", kn.revolute("z", name="turn"), mass=1.0, com=(0.3, 0, 0), inertia=(0, 0.03, 0.03)),
    ]
    model = kn.build(links, actuators=[kn.motor(n, gear=5.0, name=n) for n in ("rail", "lift", "turn")])
    heavier = kn.build(
        [
            kn.Link("carriage", joints=kn.prismatic("x", name="rail"), mass=3.0),
            kn.Link("column", "carriage", kn.prismatic("z", name="lift"), mass=2.5, com=(0, 0, 0.1)),
            kn.Link("arm", "column", kn.revolute("z", name="turn"), mass=1.2, com=(0.3, 0, 0), inertia=(0, 0.04, 0.04)),
        ],
        actuators=[kn.motor(n, gear=5.0, name=n) for n in ("rail", "lift", "turn")],
    )
    run = log(rubbing(heavier), seconds=20)
    found = sysid.regress(model, run, terms=())
    J = pseudo_inertia(np.asarray(inertial(found.model)).reshape(-1, 10))
    assert np.all(np.linalg.eigvalsh(J) > -1e-12)
    at = np.zeros(3)
    ratio = np.diag(np.asarray(crba(found.model, at))) / np.diag(np.asarray(crba(rubbing(heavier), at)))
    np.testing.assert_allclose(ratio, 1.0, atol=0.02)
    assert {e.unit for e in found.errors} == {"N", "N m"}
    assert found["rail.damping"].unit == "N s/m" and found["turn.damping"].unit == "N m s/rad"


def test_a_frozen_effort_is_left_out_and_frozen_efforts_are_refused():
    def freeze_one(tau):
        tau[:, 2] = 1.5

    def freeze_all(tau):
        tau[:] = 0.0

    found = sysid.regress(ARM, with_effort(freeze_one), terms=(), delay=0.0)
    assert any("constant" in note and ARM.joint_names[2] in note for note in found.notes)
    assert ARM.joint_names[2] not in found.terms
    with pytest.raises(ValueError, match="effort that changes"):
        sysid.regress(ARM, with_effort(freeze_all))


def test_torques_that_are_explained_in_part_are_to_be_used_with_care():
    """A third of the effort is noise below the cut-off: 32 % of its spread are left."""
    noisy = sysid.regress(ARM, log(rubbing(ARM), seconds=10, noise=0.35, correlation=0.1), terms=(), delay=0.0)
    assert any("explained only in part" in note for note in noisy.notes) and summarise_regression(noisy).level == "care"
    clear = sysid.regress(ARM, log(rubbing(ARM), seconds=10, noise=0.05, correlation=0.1), terms=(), delay=0.0)
    assert summarise_regression(clear).level == "good"
