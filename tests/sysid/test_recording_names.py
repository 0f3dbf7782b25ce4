"""Columns find their joints, actuators and bodies by name; what finds none is an error that lists both sides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import knuckle as kn
from knuckle import robots
from knuckle.sysid import RecordingError, read_recordings
from knuckle.sysid.entries import names_of
from knuckle.sysid.findings import Finding, Report, together
from knuckle.sysid.match import Lexicon, place
from knuckle.sysid.raw import Column
from tests.sysid.logs import columns, pendulum, swing, write_csv

MODEL = pendulum()
CART = robots.load("cartpole")
ARM = robots.load("arm")
QUADRUPED = robots.load("quadruped")
CHAIN = kn.build(
    [
        kn.Link(
            f"link{i}",
            f"link{i - 1}" if i else "world",
            kn.revolute("y", name=f"bot_joint{i + 1}"),
            mass=1.0,
            inertia=(1.0,) * 3,
        )
        for i in range(12)
    ],
    actuators=[kn.motor(f"bot_joint{i + 1}", name=f"motor{i + 1}") for i in range(12)],
    name="bot",
)


def placed(title: str, model: kn.Model, width: int | None = None) -> tuple[str, str | None, str | None] | None:
    values = np.zeros(3) if width is None else np.zeros((3, width))
    found = place(Column(title, values), Lexicon(model))
    return None if found is None else (found.channel, found.entry, found.unit)


@pytest.mark.parametrize(
    ("title", "channel", "entry", "unit"),
    [
        ("bot_joint1", "q", "bot_joint1", None),
        ("bot_joint12", "q", "bot_joint12", None),
        ("joint1", "q", "bot_joint1", None),
        ("joint1_pos", "q", "bot_joint1", None),
        ("q_joint1", "q", "bot_joint1", None),
        ("pos/joint1", "q", "bot_joint1", None),
        ("joint1/position", "q", "bot_joint1", None),
        ("Joint1.Position", "q", "bot_joint1", None),
        ("q_joint11 [deg]", "q", "bot_joint11", "deg"),
        ("joint2_pos_deg", "q", "bot_joint2", "deg"),
        ("joint1/velocity", "qd", "bot_joint1", None),
        ("dq_joint1", "qd", "bot_joint1", None),
        ("qd bot_joint3", "qd", "bot_joint3", None),
        ("qDot_joint1", "qd", "bot_joint1", None),
        ("theta_dot_joint1 (rad/s)", "qd", "bot_joint1", "rad/s"),
        ("joint1_vel_deg_s", "qd", "bot_joint1", "deg/s"),
        ("ddq_joint4", "qdd", "bot_joint4", None),
        ("tau_joint1", "tau", "bot_joint1", None),
        ("joint1_effort [N m]", "tau", "bot_joint1", "N m"),
        ("joint1 measured torque", "tau", "bot_joint1", None),
        ("ctrl_motor1", "control", "motor1", None),
        ("motor10", "control", "motor10", None),
        ("u motor2", "control", "motor2", None),
        ("joint1_cmd", "control", "motor1", None),
        ("link3_x", "pose/link3", "px", None),
        ("link3.qw", "pose/link3", "qw", None),
        ("pose/link11/orientation/w", "pose/link11", "qw", None),
        ("link3_pos_z [mm]", "pose/link3", "pz", "mm"),
        ("t", "time", None, None),
        ("timestamp", "time", None, None),
        ("time_ms", "time", None, "ms"),
        ("Time [us]", "time", None, "us"),
        ("header.stamp.nanosec", "time", None, "nanosec"),
        ("/joint_states/header/stamp", "time", None, None),
        ("episode_index", "episode", None, None),
    ],
)
def test_usual_titles(title: str, channel: str, entry: str | None, unit: str | None):
    assert placed(title, CHAIN) == (channel, entry, unit)


@pytest.mark.parametrize(
    "title", ["joint13", "foo", "temperature_joint1", "joint1_joint2", "joint1_desired_position", "joint1.x"]
)
def test_titles_that_say_something_else_are_not_taken(title: str):
    assert placed(title, CHAIN) is None


def test_the_desired_position_is_the_control_of_a_servo():
    assert placed("front_left_knee_pos_cmd", QUADRUPED) == ("control", "front_left_knee", None)


@pytest.mark.parametrize("model", [MODEL, CART, ARM, QUADRUPED, CHAIN], ids=lambda m: m.name)
def test_the_names_that_the_simulator_writes_are_read(model: kn.Model):
    for channel in ("q", "qd", "qdd", "tau", "control"):
        for entry in names_of(model, channel):
            assert placed(f"{channel} {entry}", model) == (channel, entry, None)


@pytest.mark.parametrize(
    ("title", "width", "channel"),
    [
        ("qpos", 19, "q"),
        ("observations/qvel", 18, "qd"),
        ("action", 12, "control"),
        ("joint_torques", 18, "tau"),
        ("observation.state", 19, "q"),
        ("pose/imu", 7, "pose/imu"),
        ("imu position", 3, "point/imu"),
    ],
)
def test_arrays_as_wide_as_the_model(title: str, width: int, channel: str):
    assert placed(title, QUADRUPED, width) == (channel, None, None)
    assert placed(title, QUADRUPED, width + 1) is None


@pytest.mark.parametrize(
    ("title", "model", "where"),
    [
        ("shoulder_dps", MODEL, ("qd", "shoulder", "dps")),
        ("shoulder [rad/s]", MODEL, ("qd", "shoulder", "rad/s")),
        ("elbow_Nm", MODEL, ("tau", "elbow", "nm")),
        ("elbow (A)", MODEL, ("current", "elbow", "A")),
        ("elbow_deg", MODEL, ("q", "elbow", "deg")),
        ("elbow_eff", MODEL, ("tau", "elbow", None)),
        ("slider_force_N", CART, ("tau", "slider", "n")),
        ("slider_N", CART, ("tau", "slider", "n")),
        ("slider_mm", CART, ("q", "slider", "mm")),
        ("elbow [kg]", MODEL, ("q", "elbow", "kg")),  # refused later, as a unit of no position
    ],
)
def test_a_unit_says_which_quantity_a_joint_s_column_is(title: str, model: kn.Model, where):
    assert placed(title, model) == where


def test_columns_without_a_place_are_listed_with_what_there_is(tmp_path: Path):
    t, q, _ = swing()
    path = write_csv(tmp_path / "log.csv", columns(t, q, knee=q[:, 0], volts=q[:, 0]))
    with pytest.raises(RecordingError) as error:
        read_recordings(path, MODEL)
    text = str(error.value)
    assert text.startswith(f"{path}: no place for 2 of 5 columns: knee, volts\n")
    assert "columns found: time [s], shoulder, elbow, knee, volts" in text
    assert "joints of the model: shoulder, elbow (nq = 2, nv = 2)" in text
    assert "columns={'knee': 'q shoulder'}" in text and "ignore=['knee']" in text
    assert "on the command line --column 'knee=q shoulder' or --ignore 'knee'" in text
    with pytest.raises(RecordingError, match=r"--column 'Zeit=time \[s\]'"):
        read_recordings(write_csv(tmp_path / "other.csv", {"Zeit": t, "shoulder": t, "elbow": t}), MODEL)


def test_columns_that_are_ignored_are_reported(tmp_path: Path):
    t, q, _ = swing()
    path = write_csv(tmp_path / "log.csv", columns(t, q, cam_a=q[:, 0], cam_b=q[:, 0], volts=q[:, 0]))
    got = read_recordings(path, MODEL, ignore=["cam_*", "volts"])
    assert [f.place for f in got.report.of("ignored")] == ["cam_a", "cam_b", "volts"]
    unused = read_recordings(path, MODEL, ignore=["cam_*", "volts", "amps"]).report.of("ignored")[-1]
    assert (unused.place, unused.action, unused.count) == ("amps", "suspect", 0)


def test_like_findings_stand_in_one_row():
    alike = [Finding("degrees", f"q {j}", 5, "repaired", "turned", r) for r in ("a", "b") for j in ("hip", "knee")]
    report = Report([*alike, Finding("gaps", "time", 1, "note", "long", "a")])
    rows = [(f.recording, f.place, f.count) for f in together(report)]
    assert rows == [("a, b", "q hip, knee", 20), ("a", "time", 1)]
    assert report.table().row_count == 2 and report.table(most=1).row_count == 2 and len(report) == 5
    assert "1 more rows" in str(list(report.table(most=1).columns[2].cells))


def test_a_mapping_overrides_names(tmp_path: Path):
    t, q, _ = swing()
    table = {"clk": 1e3 * t, "shoulder": q[:, 1], "enc": np.degrees(q[:, 0]), "cam/u": q[:, 0], "cam/v": q[:, 1]}
    mapping = {
        "clk": "time [ms]",
        "shoulder": "q elbow",
        "enc": "q shoulder [deg]",
        "cam/u": "pixels u",
        "cam/v": "pixels v",
    }
    got = read_recordings(write_csv(tmp_path / "log.csv", table), MODEL, columns=mapping)[0]
    np.testing.assert_allclose(got.time, t, atol=1e-12)
    np.testing.assert_allclose(got.q, q, atol=1e-12)
    assert got["pixels"].names == ("u", "v")
    np.testing.assert_array_equal(got["pixels"].values, q)


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ({"nothing": "q elbow"}, "columns= (--column) names nothing; columns found: elbow, shoulder, time"),
        ({"elbow": "q knee"}, "q has shoulder, elbow"),
        ({"elbow": "pose/hand px"}, "no link or frame 'hand'; there are upper, lower, tip"),
        ({"elbow": "q shoulder"}, "'shoulder' and 'elbow' both are q shoulder"),
        ({"elbow": "q elbow [kg]"}, "unit 'kg' is none of q elbow; there are rad"),
        ({"elbow": " "}, "empty target"),
    ],
)
def test_a_wrong_mapping_is_refused(mapping: dict[str, str], said: str, tmp_path: Path):
    t, q, _ = swing()
    with pytest.raises(RecordingError) as error:
        read_recordings(write_csv(tmp_path / "log.csv", columns(t, q)), MODEL, columns=mapping)
    assert said in str(error.value)


@pytest.mark.parametrize("first", [0, 1])
def test_counted_columns_stand_in_the_model_s_order(first: int, tmp_path: Path):
    t, q, qd = swing(joints=7)
    table = {"t": t} | {f"q{j + first}": q[:, j] for j in range(7)} | {f"dq[{j + first}]": qd[:, j] for j in range(7)}
    got = read_recordings(write_csv(tmp_path / "log.csv", table), ARM)
    np.testing.assert_array_equal(got[0].q, q)
    np.testing.assert_array_equal(got[0].qd, qd)
    assert len(got.report.of("matched")) == 14
    names = ARM.joint_names
    assert [f.detail for f in together(got.report) if f.what == "matched"] == [
        f"{key} {names[0]} .. {names[6]}: counted from {first}" for key in ("q", "qd")
    ]
    del table[f"q{3 + first}"]
    with pytest.raises(RecordingError, match="no place for 6"):
        read_recordings(write_csv(tmp_path / "log.csv", table), ARM)


def test_units_of_headers_are_taken(tmp_path: Path):
    t, q, qd = swing()
    table = {
        "t [ms]": 1e3 * t,
        "slider [mm]": 1e3 * q[:, 0],
        "hinge [°]": np.degrees(q[:, 1]),
        "slider_vel [cm/s]": 1e2 * qd[:, 0],
        "hinge_vel (rpm)": qd[:, 1] * 60 / 2 / np.pi,
        "tau hinge [mN m]": 1e3 * q[:, 1],
        "drive [V]": q[:, 0],
    }
    got = read_recordings(write_csv(tmp_path / "log.csv", table), CART)[0]
    for found, wanted in ((got.time, t), (got.q, q), (got.qd, qd), (got.control, q[:, :1])):
        assert found is not None
        np.testing.assert_allclose(found, wanted, atol=1e-12)
    assert got.tau is not None
    np.testing.assert_allclose(got.tau[:, 1], q[:, 1], atol=1e-12)
    assert got["tau"].valid.any(axis=0).tolist() == [False, True]


@pytest.mark.parametrize(
    ("stamps", "unit"),
    [
        (lambda t: t, "s"),
        (lambda t: 1e3 * t, "ms"),
        (lambda t: 1e6 * t, "us"),
        (lambda t: 1e9 * t, "ns"),
        (lambda t: 1.7e9 + t, "s"),
        (lambda t: 1.7e12 + 1e3 * t, "ms"),
        (lambda t: 1.7e15 + 1e6 * t, "us"),
        (lambda t: np.round(1.7e18 + 1e9 * t), "ns"),
    ],
)
@pytest.mark.parametrize("rate", [20.0, 250.0, 1000.0])
def test_the_unit_of_times_is_plausible_and_reported(stamps, unit: str, rate: float, tmp_path: Path):
    t, q, _ = swing(5.0, rate)
    table = {"stamp": stamps(t), "shoulder": q[:, 0], "elbow": q[:, 1]}
    got = read_recordings(write_csv(tmp_path / "log.csv", table), MODEL)
    assert got.report.of("time unit")[0].detail.endswith(f"taken as {unit}")
    np.testing.assert_allclose(got[0].time, t, atol=1e-6)  # float64 holds the epoch to 0.24 us


def test_without_times_the_rate_must_be_said(tmp_path: Path):
    t, q, _ = swing()
    path = write_csv(tmp_path / "log.csv", {"shoulder": q[:, 0], "elbow": q[:, 1]})
    with pytest.raises(
        RecordingError, match=r"no column of times in log; say how often it was sampled with rate= \(--rate\) \[Hz\]"
    ):
        read_recordings(path, MODEL)
    np.testing.assert_allclose(read_recordings(path, MODEL, rate=250.0)[0].time, t, atol=1e-12)


def test_positions_of_bodies_are_points_and_with_rotations_poses(tmp_path: Path):
    t, q, _ = swing()
    table = {"time [s]": t, "tip_x": q[:, 0], "tip_y": 0 * t, "tip_z": q[:, 1]}
    point = read_recordings(write_csv(tmp_path / "log.csv", table), MODEL)[0]
    np.testing.assert_array_equal(point["point/tip"].values[:, 2], q[:, 1])
    table |= {f"tip_q{a}": np.full(len(t), float(a == "w")) for a in "xyzw"}
    pose = read_recordings(write_csv(tmp_path / "log.csv", table), MODEL)[0]
    np.testing.assert_array_equal(pose.poses["tip"][:, 3:], np.tile([1.0, 0, 0, 0], (len(t), 1)))
