"""What changed between two logs of a robot whose changes are known."""

from typing import Any

import equinox as eqx
import numpy as np
import pytest

from knuckle import robots, sysid
from knuckle.sysid.base_parameters import inertial
from knuckle.sysid.regression.fitted import with_inertial
from knuckle.sysid.report.changed import changed_section, data

from ..regression.driven import fourier, log, rubbing

MODEL = robots.load("double_pendulum")
TRUE = rubbing(MODEL, armature=0.02, damping=0.1, friction=0.05)
MASS, CENTRE = 0.3, np.array([0.05, 0.0, -0.3])


def run(model, seed):
    return log(model, seed, seconds=12, noise=0.02, correlation=0.05)


def loaded(link=1):
    """The pendulum with a ball of 0.3 kg on a link."""
    away = (CENTRE @ CENTRE) * np.eye(3) - np.outer(CENTRE, CENTRE) + 1e-3 * np.eye(3)
    second = [away[0, 0], away[1, 1], away[2, 2], away[0, 1], away[0, 2], away[1, 2]]
    pi = np.array(inertial(TRUE)).reshape(-1, 10)
    pi[link] += MASS * np.array([1, *CENTRE, *second])
    return with_inertial(TRUE, pi)


def moved(recording, q=None, tau=None):
    """The recording with other positions or efforts."""
    q, tau = (recording[key].values if new is None else new for key, new in (("q", q), ("tau", tau)))
    return sysid.Recording.of(MODEL, recording.time, q=q, qd=recording["qd"].values, tau=tau, name="changed")


@pytest.fixture(scope="module")
def before():
    return run(TRUE, 0)


@pytest.fixture(scope="module")
def fitted(before):
    return sysid.regress(MODEL, before)


@pytest.fixture(scope="module")
def with_load(before, fitted):
    return sysid.find_changes(MODEL, before, run(loaded(), 1), regression=fitted, load={"lower": MASS})


def test_a_payload_is_found_with_its_mass_and_centre(with_load):
    (change,) = with_load.changes
    assert (change.kind, change.place) == ("payload", "lower") and change.sure and change.share > 0.8
    mass, centre = change["mass"], change["centre z"]
    assert mass.lower <= MASS <= mass.upper and mass.upper - mass.lower < 0.2 * MASS
    assert abs(centre.value - CENTRE[2]) < 0.02
    assert not change["centre y"].determined  # the pendulum moves in the plane x z
    assert "rests on the drive gains" not in str(with_load) and "A payload on lower: 0.3" in str(with_load)


def test_a_known_load_gives_the_drive_gains(before, fitted, with_load):
    """Recorded efforts are true ones: scales of 1; efforts recorded 20 % too small: 1.25, within what noise leaves."""
    assert all(g.determined and g.lower <= 1 <= g.upper for g in with_load.gains)
    first, second = (moved(r, tau=0.8 * r["tau"].values) for r in (before, run(loaded(), 1)))
    found = sysid.find_changes(MODEL, first, second, load={"lower": MASS})
    for gain, true in zip(found.gains, with_load.gains, strict=True):
        assert abs(gain.scale / true.scale - 1.25) < 0.02
    assert abs(found.changes[0]["mass"].value / with_load.changes[0]["mass"].value - 0.8) < 0.02


def test_a_payload_that_was_taken_off_is_negative(before):
    found = sysid.find_changes(MODEL, run(loaded(), 1), before)
    (change,) = found.changes
    assert change["mass"].lower <= -MASS <= change["mass"].upper
    assert "taken off lower: 0.3" in str(change) and "rests on the drive gains" in str(found)


def test_nothing_changed_and_a_payload_that_would_have_been_seen(before, fitted):
    found = sysid.find_changes(MODEL, before, run(TRUE, 2), regression=fitted)
    assert found.nothing and "Nothing changed" in str(found)
    assert found.excluded is not None and found.excluded[0] == "lower" and 0 < found.excluded[1] < 0.1


@pytest.mark.parametrize("joint", [0, 1])
def test_friction_of_one_joint(before, fitted, joint):
    more = np.array(TRUE.damping)
    more[joint] *= 1.5
    friction = np.array(TRUE.friction) * more / np.asarray(TRUE.damping)
    rough = eqx.tree_at(lambda m: (m.damping, m.friction), TRUE, (more, friction))
    found = sysid.find_changes(MODEL, before, run(rough, 3), regression=fitted)
    (change,) = found.changes
    assert (change.kind, change.place) == ("friction", MODEL.joint_names[joint])
    assert abs(change["relative"].value - 0.5) < 0.15 and "up by" in str(change)


def test_an_offset_of_a_motor(before, fitted):
    after = run(TRUE, 4)
    tau = after["tau"].values + np.array([0.0, 0.1])
    found = sysid.find_changes(MODEL, before, moved(after, tau=tau), regression=fitted)
    (change,) = found.changes
    assert (change.kind, change.place) == ("offset", "elbow")
    assert change["offset"].lower <= 0.1 <= change["offset"].upper


def test_a_moved_zero(before, fitted):
    after = run(TRUE, 5)
    q = after["q"].values + np.array([0.1, 0.0])
    found = sysid.find_changes(MODEL, before, moved(after, q=q), regression=fitted)
    (change,) = found.changes
    assert (change.kind, change.place) == ("zero", "shoulder")
    assert abs(change["zero"].value - 0.1) < 0.01  # the effect is linearised


def test_a_zero_that_moved_little_is_found_and_explanations_as_good_are_named(before, fitted):
    """0.03 rad at the elbow. Of ties each names another explanation, never the one that was chosen."""
    after = run(TRUE, 8)
    found = sysid.find_changes(
        MODEL, before, moved(after, q=after["q"].values + np.array([0.0, 0.03])), regression=fitted
    )
    (change,) = found.changes
    assert ("zero", "elbow") in {(change.kind, change.place), *change.ties}
    assert (change.kind, change.place) not in change.ties and len(change.alternatives) == len(change.ties)
    assert all(words in str(change) for words in change.alternatives)


def test_efforts_with_the_other_sign_are_doubted(before, fitted):
    after = run(TRUE, 6)
    found = sysid.find_changes(MODEL, before, moved(after, tau=-after["tau"].values), regression=fitted)
    assert any("logs after: the sign of the effort" in note for note in found.notes)


def test_the_page_says_what_the_console_says(with_load):
    plain = data(with_load)
    html = changed_section(plain)
    assert plain["answer"][0].split(":")[0] in html and "shoulder" in html
    undetermined = [q for q in plain["changes"][0]["quantities"] if q["name"] == "centre y"]
    assert undetermined[0]["lower"] is None
    assert changed_section(None) == ""


def test_what_does_not_fit_is_refused(before, fitted):
    with pytest.raises(ValueError, match="is in both sets"):
        sysid.find_changes(MODEL, before, moved(before), regression=fitted)
    with pytest.raises(ValueError, match="at least one recording after"):
        sysid.find_changes(MODEL, before, [], regression=fitted)
    wrong: Any
    for wrong in ("log.csv", None):
        with pytest.raises(TypeError, match="after must be recordings"):
            sysid.find_changes(MODEL, before, wrong, regression=fitted)
    for load, words in (
        ({"tool": 1.0}, "no link or frame 'tool'"),
        ({"lower": -1.0}, "must be positive"),
        ({"lower": np.nan}, "must be positive"),
        ({}, "one link"),
    ):
        with pytest.raises(ValueError, match=words):
            sysid.find_changes(MODEL, before, run(TRUE, 2), load=load, regression=fitted)
    still = fourier(MODEL, np.zeros(1200), 0)
    standing = sysid.Recording.of(MODEL, np.arange(1200) / 100, q=still[0], qd=0 * still[1], tau=still[1], name="still")
    with pytest.raises(ValueError, match="moves for at least 2 s in both sets"):
        sysid.find_changes(MODEL, before, standing, regression=fitted)
    with pytest.raises(ValueError, match="do not show a load on lower"):
        sysid.find_changes(MODEL, run(loaded(), 1), before, load={"lower": MASS})
