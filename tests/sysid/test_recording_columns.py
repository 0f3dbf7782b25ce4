"""Columns named by ranges and patterns, tables without a header, and columns of motor currents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from knuckle import robots
from knuckle.sysid import RecordingError, read_recordings
from tests.sysid.logs import columns, pendulum, swing, write_csv

MODEL, ARM = pendulum(), robots.load("arm")


def arm_table(*keys: str) -> dict[str, np.ndarray]:
    t, q, qd = swing(joints=7)
    parts = {"q": q, "qd": qd, "tau": np.cos(q)}
    return {"t": t} | {f"{key}|{j}": parts[key][:, j] for key in keys for j in range(7)}


def without_header(path: Path, table: dict[str, np.ndarray]) -> Path:
    lines = write_csv(path, table).read_text().splitlines()
    path.write_text("\n".join(lines[1:]) + "\n")
    return path


def test_ranges_name_the_columns_of_a_table_without_header(tmp_path: Path):
    path = without_header(tmp_path / "log.csv", arm_table("q", "qd", "tau"))
    meaning = {"time": "1", "q": "2:8", "qd": "9:15", "tau [mN m]": "16:22"}
    got = read_recordings(path, ARM, columns=meaning)
    t, q, qd = swing(joints=7)
    for found, wanted in ((got[0].time, t), (got[0].q, q), (got[0].qd, qd), (got[0].tau, 1e-3 * np.cos(q))):
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=0, atol=1e-15)
    assert {f.detail for f in got.report.of("matched") if "q " in f.detail} >= {
        f"q {ARM.joint_names[0]}: in the order of the columns"
    }
    assert [c.channel for c in got.columns][:2] == ["time", "q"]


def test_a_table_without_header_is_refused_with_the_ranges_that_its_values_suggest(tmp_path: Path):
    with pytest.raises(RecordingError) as error:
        read_recordings(without_header(tmp_path / "log.csv", arm_table("q", "qd", "tau")), ARM)
    wanted = "--column 'time=1' --column 'q=2:8' --column 'qd=9:15' --column 'tau=16:22'"
    assert "the log has no header" in str(error.value) and wanted in str(error.value)
    with pytest.raises(RecordingError) as error:
        read_recordings(without_header(tmp_path / "log.csv", arm_table("q", "tau")), ARM)
    assert "--column 'time=1' --column 'q=2:8' --column 'tau=9:15'" in str(error.value)


@pytest.mark.parametrize("meaning", [{"q": "enc_*_raw"}, {"enc_*_raw": "q"}, {"q": "enc_?_raw"}, {"q": "2:3"}])
def test_patterns_find_joints_by_name_not_by_order(meaning: dict[str, str], tmp_path: Path):
    t, q, _ = swing()
    by_name = {"t": t, "enc_elbow_raw": q[:, 1], "enc_shoulder_raw": q[:, 0]}
    by_number = {"t": t, "enc_2_raw": q[:, 1], "enc_1_raw": q[:, 0]}
    for table in (by_name, by_number):
        if "?" in str(meaning) and table is by_name:
            continue
        got = read_recordings(write_csv(tmp_path / "log.csv", table), MODEL, columns=meaning)
        np.testing.assert_array_equal(np.asarray(got[0].q), q)


@pytest.mark.parametrize(
    ("meaning", "said"),
    [
        ({"q": "2:4"}, "2:4 matches 3 columns (a, b, c); q has 2 entries: shoulder, elbow"),
        ({"q": "2:9"}, "names q=2:9; columns found: a, b, c, t (columns are counted from 1 to 4, both ends included)"),
        ({"q": "0:1"}, "names q=0:1"),
        ({"q": "x_*"}, "names q=x_*; columns found: a, b, c, t"),
        ({"q elbow": "?"}, "? matches 4 columns (t, a, b, c); q elbow takes one"),
        ({"q": "2:3", "b": "q elbow"}, "says twice what it is: b=q elbow"),
    ],
)
def test_a_group_that_does_not_fit_is_refused_with_what_it_matches(meaning: dict[str, str], said: str, tmp_path: Path):
    t, q, _ = swing()
    path = write_csv(tmp_path / "log.csv", {"t": t, "a": q[:, 0], "b": q[:, 1], "c": t})
    with pytest.raises(RecordingError) as error:
        read_recordings(path, MODEL, columns=meaning, ignore="c")
    assert said in str(error.value)


@pytest.mark.parametrize("title", ["{}_current", "current_{}", "i_{} [A]", "{} [A]", "tau_{} [mA]"])
def test_currents_need_gains_and_become_torques(title: str, tmp_path: Path):
    t, q, qd = swing()
    table = columns(t, q, qd) | {title.format(joint): 0 * t + k + 1 for k, joint in enumerate(MODEL.joint_names)}
    path = write_csv(tmp_path / "log.csv", table)
    with pytest.raises(RecordingError) as error:
        read_recordings(path, MODEL, gains={"elbow": 2.0})
    assert "motor currents" in str(error.value) and "--gain shoulder=8.4" in str(error.value)
    got = read_recordings(path, MODEL, gains={"elbow": 2.0, "shoulder": 10.0})
    unit = 1e-3 if "mA" in title else 1.0
    np.testing.assert_allclose(np.asarray(got[0].tau), unit * np.tile([10.0, 4.0], (len(t), 1)), rtol=1e-14)
    assert got.drive_gains == {"elbow": 2.0, "shoulder": 10.0}


def test_efforts_are_currents_only_if_the_user_says_so(tmp_path: Path):
    t, q, qd = swing()
    efforts = {"shoulder_effort": np.cos(t), "elbow_effort": np.sin(t)}
    path, gains = write_csv(tmp_path / "log.csv", columns(t, q, qd) | efforts), {"shoulder": 3.0, "elbow": 2.0}
    got = read_recordings(path, MODEL, gains=gains, currents=True)
    np.testing.assert_allclose(np.asarray(got[0].tau), np.stack([3 * np.cos(t), 2 * np.sin(t)], 1), rtol=1e-14)
    kept = read_recordings(path, MODEL, gains=gains)
    np.testing.assert_array_equal(np.asarray(kept[0].tau), np.stack([np.cos(t), np.sin(t)], 1))
    assert "--currents" in kept.report.of("gains not used")[0].detail and kept.drive_gains == {}


def test_currents_beside_torques_are_not_read(tmp_path: Path):
    t, q, _ = swing()
    more = {f"{joint}_{what}": t for joint in MODEL.joint_names for what in ("torque", "current")}
    got = read_recordings(write_csv(tmp_path / "log.csv", columns(t, q) | more), MODEL)
    assert [f.place for f in got.report.of("currents")] == ["shoulder_current", "elbow_current"]


@pytest.mark.parametrize(
    ("title", "advice"),
    [
        ("joint_current_x", "--column 'joint_current_x=current shoulder [A]'"),
        ("motor_temperature", "leave out what is not needed with ignore=['motor_temperature']"),
        ("velocity_a", "--column 'velocity_a=qd shoulder'"),
    ],
)
def test_what_is_suggested_fits_the_name_of_the_column(title: str, advice: str, tmp_path: Path):
    t, q, _ = swing()
    with pytest.raises(RecordingError) as error:
        read_recordings(write_csv(tmp_path / "log.csv", columns(t, q) | {title: t}), MODEL)
    assert advice in str(error.value)


def test_the_present_position_is_no_current(tmp_path: Path):
    t, q, _ = swing()
    table = {"t": t, "shoulder_current_position": q[:, 0], "elbow_current_position": q[:, 1]}
    np.testing.assert_array_equal(np.asarray(read_recordings(write_csv(tmp_path / "l.csv", table), MODEL)[0].q), q)


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ({"knee": 1.0}, "there is no joint 'knee'"),
        ({"elbow": 0.0}, "finite gain other than 0"),
        ({"elbow": "x"}, "got x"),
    ],
)
def test_wrong_gains_are_refused(gains: dict, said: str, tmp_path: Path):
    t, q, _ = swing()
    with pytest.raises(ValueError, match=said):
        read_recordings(write_csv(tmp_path / "log.csv", columns(t, q)), MODEL, gains=gains)
