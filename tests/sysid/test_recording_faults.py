"""Faults that are put into clean logs are found, counted, and repaired, left out or reported; clean logs give none."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import equinox as eqx
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import knuckle as kn
from knuckle import native, robots
from knuckle.dynamics import rnea
from knuckle.sysid import Recordings, read_recordings
from tests.sysid.logs import columns, pendulum, swing, write_csv

MODEL = pendulum()
ARM = robots.load("arm")
DISK = kn.build(
    [kn.Link("disk", joints=kn.revolute("z", name="axle"), mass=1.0, shapes=kn.shapes.sphere(0.1))],
    actuators=[kn.motor("axle", name="drive")],
)
inverse_dynamics = native.vmap(rnea, in_axes=(None, 0, 0, 0))
BODY = kn.build([kn.Link("body", joints=kn.free(name="root"), mass=1.0, shapes=kn.shapes.sphere(0.1))])


def found(read: Recordings, what: str) -> list[tuple[str, int, str]]:
    return [(f.place, f.count, f.action) for f in read.report.of(what)]


def serious(read: Recordings) -> list[str]:
    return [str(f) for f in read.report if f.action != "note"]


def read(path: Path, table: dict[str, np.ndarray], **options) -> Recordings:
    return read_recordings(write_csv(path / "log.csv", table), MODEL, **options)


def test_a_clean_log_gives_nothing_but_itself(tmp_path: Path):
    t, q, qd = swing()
    got = read(tmp_path, columns(t, q, qd))
    assert serious(got) == []
    np.testing.assert_array_equal(got[0].time, t)
    np.testing.assert_array_equal(got[0].q, q)
    np.testing.assert_array_equal(got[0].qd, qd)


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_uneven_times_are_no_faults(seed: int, tmp_path: Path):
    t, q, qd = swing()
    rng = np.random.default_rng(seed)
    keep = rng.random(len(t)) < 0.8
    q, qd = q + 0.002 * rng.normal(size=q.shape), qd + 0.1 * rng.normal(size=qd.shape)
    assert serious(read(tmp_path, columns(t[keep], q[keep], qd[keep]))) == []


def test_a_coarse_encoder_at_rest_is_no_fault(tmp_path: Path):
    t, q, _ = swing()
    q = np.round(q * np.clip(t - 4, 0, 1)[:, None] / 0.01) * 0.01
    assert serious(read(tmp_path, columns(t, q))) == []


def test_gaps_are_counted_and_stay(tmp_path: Path):
    t, q, qd = swing()
    keep = np.ones(len(t), bool)
    keep[100:150] = keep[400:600] = False
    got = read(tmp_path, columns(t[keep], q[keep], qd[keep]))
    assert found(got, "gaps") == [("time", 2, "note")]
    assert "longest 0.804 s after 1.596 s" in got.report.of("gaps")[0].detail
    assert got[0].gaps.tolist() == [99, 349]


def test_time_that_goes_back_begins_another_recording(tmp_path: Path):
    t, q, qd = swing(4.0)
    again = np.concatenate([t, t, t + 0.01])
    got = read(tmp_path, columns(again, np.tile(q, (3, 1)), np.tile(qd, (3, 1))))
    assert [len(run) for run in got] == [1000] * 3 and [run.name for run in got] == ["log#0", "log#1", "log#2"]
    assert [count for _, count, _ in found(got, "resets")] == [2]
    np.testing.assert_array_equal(got[2].time, t + 0.01)


def test_episodes_become_recordings(tmp_path: Path):
    t, q, _ = swing(4.0)
    got = read(tmp_path, columns(t, q, episode_index=np.repeat([0, 1, 7], [300, 500, 200])))
    assert [len(run) for run in got] == [300, 500, 200]


def test_samples_out_of_order_are_sorted(tmp_path: Path):
    t, q, qd = swing(4.0)
    order = np.arange(len(t))
    for i in (50, 300, 700):
        order[[i, i + 1]] = order[[i + 1, i]]
    got = read(tmp_path, columns(t[order], q[order], qd[order]))
    assert [count for _, count, _ in found(got, "out of order")] == [3]
    assert len(got) == 1 and found(got, "resets") == []
    np.testing.assert_array_equal(got[0].q, q)


def test_of_equal_stamps_the_first_is_kept(tmp_path: Path):
    t, q, qd = swing(4.0)
    rows = np.sort(np.concatenate([np.arange(len(t)), [10, 20, 20]]))
    got = read(tmp_path, columns(t[rows], q[rows], qd[rows]))
    assert [(count, action) for _, count, action in found(got, "duplicate stamps")] == [(3, "left out")]
    np.testing.assert_array_equal(got[0].time, t)


def test_stamps_of_a_coarse_clock_are_spread(tmp_path: Path):
    t, q, qd = swing(4.0, 1000.0)
    got = read(tmp_path, columns(np.floor(t * 100 + 1e-9) / 100, q, qd))
    assert found(got, "coarse clock")[0][1:] == (3600, "repaired")
    np.testing.assert_allclose(got[0].time, t, atol=1e-9)


def test_stamps_that_stand_for_many_samples_are_suspect(tmp_path: Path):
    t, q, _ = swing()
    got = read_recordings(write_csv(tmp_path / "log.csv", columns(np.floor(t / 0.5) * 0.5, q)), MODEL)
    ((_, count, action),) = found(got, "clock resolution")
    assert (count, action) == (len(t), "suspect")
    fine = read_recordings(write_csv(tmp_path / "fine.csv", columns(t, q)), MODEL)
    assert not found(fine, "clock resolution")


def test_nan_and_infinity_are_left_out(tmp_path: Path):
    t, q, qd = swing()
    broken = q.copy()
    broken[[5, 6, 900], 0] = np.nan
    broken[7, 1] = -np.inf
    got = read(tmp_path, columns(t, broken, qd))
    assert found(got, "not finite") == [("q shoulder", 3, "left out"), ("q elbow", 1, "left out")]
    np.testing.assert_array_equal(got[0]["q"].valid, np.isfinite(broken))
    np.testing.assert_allclose(got[0].q, q, atol=1e-3)  # interpolated over at most three steps of 4 ms


@pytest.mark.parametrize("low", [-np.pi, 0.0])
def test_wrapped_angles_are_laid_out(low: float, tmp_path: Path):
    t, q, qd = swing()
    q, qd = q + np.outer(t, [3.0, -2.0]), qd + np.array([3.0, -2.0])
    wrapped = (q - low) % (2 * np.pi) + low
    jumps = np.count_nonzero(np.abs(np.diff(wrapped, axis=0)) > np.pi, axis=0)
    for speeds in (qd, None):
        got = read(tmp_path, columns(t, wrapped, speeds))
        assert found(got, "wrapped angle") == [
            (f"q {n}", c, "repaired") for n, c in zip(["shoulder", "elbow"], jumps, strict=True)
        ]
        assert got[0].q is not None
        np.testing.assert_allclose(got[0].q - got[0].q[0], q - q[0], atol=1e-12)


def test_velocities_say_which_way_a_fast_angle_wrapped(tmp_path: Path):
    t = np.arange(400) / 50.0
    speed = 190.0 + 20 * np.sin(t)  # more than half a turn between samples
    angle = 190.0 * t - 20 * np.cos(t)
    table = {"time [s]": t, "axle": (angle + np.pi) % (2 * np.pi) - np.pi, "axle_vel": speed}
    got = read_recordings(write_csv(tmp_path / "log.csv", table), DISK)
    assert got[0].q is not None
    np.testing.assert_allclose(got[0].q[:, 0] - got[0].q[0, 0], angle - angle[0], atol=1e-9)


def test_degrees_are_seen_by_velocities_in_radians(tmp_path: Path):
    t, q, qd = swing()
    got = read(tmp_path, columns(t, np.degrees(q), qd))
    assert found(got, "degrees") == [("q shoulder", len(t), "repaired"), ("q elbow", len(t), "repaired")]
    np.testing.assert_allclose(got[0].q, q, atol=1e-12)
    np.testing.assert_array_equal(got[0].qd, qd)


def test_velocities_in_degrees_are_seen_by_positions(tmp_path: Path):
    t, q, qd = swing()
    got = read(tmp_path, columns(t, q, np.degrees(qd)))
    assert found(got, "degrees") == [("qd shoulder", len(t), "repaired"), ("qd elbow", len(t), "repaired")]
    np.testing.assert_allclose(got[0].qd, qd, atol=1e-12)


def test_degrees_are_seen_by_turns_of_360(tmp_path: Path):
    t, q, qd = swing()
    q, qd = q + 3 * t[:, None], qd + 3.0
    got = read(tmp_path, columns(t, np.degrees(q) % 360, np.degrees(qd)))
    assert {place for place, _, action in found(got, "degrees") if action == "repaired"} == {
        "q shoulder",
        "q elbow",
        "qd shoulder",
        "qd elbow",
    }
    assert got[0].q is not None
    np.testing.assert_allclose(got[0].q - got[0].q[0], q - q[0], atol=1e-9)
    np.testing.assert_allclose(got[0].qd, qd, atol=1e-12)


def test_degrees_are_seen_by_the_limits_of_joints(tmp_path: Path):
    t, q, qd = swing(joints=7)
    table = {"time [s]": t} | {name: np.degrees(q[:, j]) for j, name in enumerate(ARM.joint_names)}
    table |= {f"{name}_vel": np.degrees(qd[:, j]) for j, name in enumerate(ARM.joint_names)}
    got = read_recordings(write_csv(tmp_path / "log.csv", table), ARM)
    np.testing.assert_allclose(got[0].q, q, atol=1e-12)
    np.testing.assert_allclose(got[0].qd, qd, atol=1e-12)
    assert "limits" in got.report.of("degrees")[0].detail


def test_degrees_are_seen_by_the_model_s_own_dynamics(tmp_path: Path):
    motion = kn.rollout(MODEL, MODEL.state("raised"), dt=0.002, steps=2000, native=True)
    t, q, qd = (np.asarray(x) for x in (motion.time, motion.q, motion.qd))
    assert np.ptp(q, axis=0).max() > 3.0
    got = read(tmp_path, columns(t, np.degrees(q), np.degrees(qd)))
    np.testing.assert_allclose(got[0].q, q, atol=1e-12)
    np.testing.assert_allclose(got[0].qd, qd, atol=1e-12)
    assert "acceleration" in got.report.of("degrees")[0].detail
    assert serious(read(tmp_path, columns(t, q, qd))) == []


def test_units_that_the_user_gives_are_taken(tmp_path: Path):
    t, q, qd = swing()
    got = read(tmp_path, columns(t, np.degrees(q), np.degrees(qd)), units="deg")
    np.testing.assert_allclose(got[0].q, q, atol=1e-12)
    kept = read(tmp_path, columns(t, np.degrees(q)), units="rad")
    np.testing.assert_array_equal(kept[0].q, np.degrees(q))


@pytest.mark.parametrize(
    ("scale", "what"), [(-1.0, "opposite sign"), (3.0, "wrong scale"), (0.25, "wrong scale"), (-0.3, "wrong scale")]
)
def test_velocities_of_another_sign_or_scale_are_left_out(scale: float, what: str, tmp_path: Path):
    t, q, qd = swing()
    wrong = qd * [1.0, scale]
    got = read(tmp_path, columns(t, q, wrong))
    assert found(got, what) == [("qd elbow", len(t), "left out")]
    assert got[0]["qd"].valid.all(axis=0).tolist() == [True, False]
    assert not got[0]["qd"].valid[:, 1].any()


def test_velocities_of_another_joint_are_left_out(tmp_path: Path):
    t, q, qd = swing(20.0)
    got = read(tmp_path, columns(t, q, qd[:, ::-1]))
    assert [place for place, _, _ in found(got, "foreign velocity")] == ["qd shoulder", "qd elbow"]


@pytest.mark.parametrize("samples", [-7, -3, 3, 12])
def test_late_velocities_are_reported_with_their_offset(samples: int, tmp_path: Path):
    t, q, qd = swing(12.0)
    a, b = 50, 2500
    got = read(tmp_path, columns(t[a:b], q[a:b], qd[a - samples : b - samples]))
    finding = got.report.of("clock offset")[0]
    assert (finding.place, finding.action) == ("qd", "suspect")
    assert f"{abs(samples) * 4:.4g} ms" in finding.detail or f"({abs(samples)}.0 samples)" in finding.detail
    assert ("after" if samples > 0 else "before") in finding.detail


@pytest.mark.parametrize("samples", [0, 5, -4])
def test_late_torques_are_reported_with_their_offset(samples: int, tmp_path: Path):
    t, q, qd = (x[:, 0] if x.ndim == 2 else x for x in swing(12.0, joints=1))
    torque = 0.06 * np.gradient(qd, t) + 0.05 * qd + 0.2 * np.tanh(20 * qd) + np.sin(q)
    torque += 0.05 * np.random.default_rng(0).normal(size=len(t))
    a, b = 50, 2500
    table = {"time [s]": t[a:b], "position": q[a:b], "velocity": qd[a:b], "torque": torque[a - samples : b - samples]}
    got = read_recordings(write_csv(tmp_path / "log.csv", table), DISK)
    if samples == 0:
        assert found(got, "clock offset") == []
        return
    finding = got.report.of("clock offset")[0]
    assert finding.place == "tau" and f"{4 * abs(samples)} ms ({abs(samples)}.0 samples)" in finding.detail
    assert ("after" if samples > 0 else "before") in finding.detail


def arm_log() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, positions and torques of an arm whose masses are not those of the description, and which rubs."""
    t, q, qd = swing(12.0, joints=7)
    rng = np.random.default_rng(1)
    heavier = eqx.tree_at(lambda m: m.inertia.mass, ARM, ARM.inertia.mass * rng.uniform(0.6, 1.6, len(ARM.link_names)))
    qdd = np.gradient(qd, t, axis=0)
    torque = np.asarray(inverse_dynamics(heavier, q, qd, qdd)) + 0.1 * qd + 0.3 * np.tanh(20 * qd)
    torque += 0.05 * np.std(torque, axis=0) * rng.normal(size=torque.shape)
    return t, q + 1e-4 * rng.normal(size=q.shape), torque


def read_arm(folder: Path, t: np.ndarray, q: np.ndarray, torque: np.ndarray):
    table = {"time [s]": t}
    for k, joint in enumerate(ARM.joint_names):
        table[f"{joint} position"] = q[:, k]
        table[f"{joint} torque"] = torque[:, k]
    return read_recordings(write_csv(folder / "log.csv", table), ARM).report


@pytest.mark.parametrize("samples", [0, 3, -8])
def test_late_torques_of_an_arm_of_other_masses_are_reported_with_their_offset(samples: int, tmp_path: Path):
    t, q, torque = arm_log()
    a, b = 50, 2500
    findings = read_arm(tmp_path, t[a:b], q[a:b], torque[a - samples : b - samples]).of("clock offset")
    if samples == 0:
        assert not findings
        return
    assert findings[0].place == "tau" and f"({abs(samples)}.0 samples)" in findings[0].detail
    assert ("after" if samples > 0 else "before") in findings[0].detail


def test_torques_in_another_order_of_opposite_sign_or_in_other_units_are_suspect(tmp_path: Path):
    t, q, torque = arm_log()
    right = read_arm(tmp_path, t, q, torque)
    assert [str(f) for f in right if f.action != "note"] == []
    swapped = read_arm(tmp_path, t, q, torque[:, [0, 3, 2, 1, 4, 5, 6]]).of("exchanged joints")
    second, fourth = ARM.joint_names[1], ARM.joint_names[3]
    assert [(f.place, f.action) for f in swapped] == [(f"tau {second}, {fourth}", "suspect")]
    assert f"tau of {second} and {fourth} are exchanged" in swapped[0].detail
    turned = read_arm(tmp_path, t, q, torque * np.where(np.arange(7) == 1, -1, 1)).of("opposite force")
    assert [f.place for f in turned] == [f"tau {second}"]
    small = read_arm(tmp_path, t, q, torque * np.where(np.arange(7) == 3, 1000, 1)).of("force scale")
    assert [f.place for f in small] == [f"tau {fourth}"] and "times what the description needs" in small[0].detail


@pytest.mark.parametrize(("joint", "degrees"), [(1, 90), (3, -60)])
def test_the_zero_of_a_joint_is_found_by_the_description_s_forces(joint: int, degrees: float, tmp_path: Path):
    """To 15 degrees: centres of mass of the description are off too."""
    t, q, torque = arm_log()
    q[:, joint] += np.radians(degrees)
    (finding,) = read_arm(tmp_path, t, q, torque).of("zero offset")
    assert finding.place == f"q {ARM.joint_names[joint]}" and finding.action == "suspect"
    assert abs(float(finding.detail.split("is about ")[1].split()[0]) - degrees) <= 15
    assert "--offset q" in finding.detail


def test_joints_that_are_exchanged_or_move_the_other_way_are_suspect(tmp_path: Path):
    t, q, torque = arm_log()
    order, second, fourth = [0, 3, 2, 1, 4, 5, 6], ARM.joint_names[1], ARM.joint_names[3]
    for other in (torque, torque[:, order]):
        (finding,) = read_arm(tmp_path, t, q[:, order], other).of("exchanged joints")
        assert second in finding.place and fourth in finding.place and "--column" in finding.detail
    turned = read_arm(tmp_path, t, q * np.where(np.arange(7) == 3, -1, 1), torque).of("opposite motion")
    assert [f.place for f in turned] == [f"q {fourth}"]


def test_currents_in_place_of_torques_are_suspect_at_every_joint(tmp_path: Path):
    t, q, torque = arm_log()
    found = read_arm(tmp_path, t, q, torque / np.linspace(8, 11, 7)).of("force scale")
    assert [f.place for f in found] == [f"tau {name}" for name in ARM.joint_names]
    assert all(f"--currents --gain {name}=" in f.detail for f, name in zip(found, ARM.joint_names, strict=True))


def test_a_payload_that_the_description_lacks_is_no_fault(tmp_path: Path):
    t, q, qd = swing(12.0, joints=7)
    mass = np.asarray(ARM.inertia.mass) + np.where(np.arange(len(ARM.link_names)) == len(ARM.link_names) - 1, 2.0, 0)
    loaded = eqx.tree_at(lambda m: m.inertia.mass, ARM, mass)
    torque = np.asarray(inverse_dynamics(loaded, q, qd, np.gradient(qd, t, axis=0))) + 0.3 * np.tanh(20 * qd)
    assert [str(f) for f in read_arm(tmp_path, t, q, torque) if f.action != "note"] == []


def test_a_robot_that_stands_still_is_kept_and_said_to_stand_still(tmp_path: Path):
    """Encoders flicker by a digit; then it sets off, which is no leap of a frozen channel."""
    rng, (t, q, qd) = np.random.default_rng(0), swing()
    still = np.tile(q[400], (len(t), 1)) + 1e-4 * rng.integers(0, 2, q.shape)
    for speeds in (np.zeros_like(qd), None):
        got = read(tmp_path, columns(t, still, speeds))
        assert serious(got) == [] and [f.place for f in got.report.of("stationary")] == ["q"]
        assert got[0]["q"].valid.all() and "no joint moves" in got.report.of("stationary")[0].detail
    begin = np.clip((t - 4) / 0.5, 0, None)[:, None] ** 2
    moved = np.round(q[:1] + np.minimum(begin, 1) * (q - q[:1]), 4)
    got = read(tmp_path, columns(t, moved, np.round(np.gradient(moved, t, axis=0), 3)))
    assert serious(got) == [] and "first from 0 s to 4" in got.report.of("stationary")[0].detail


def test_a_position_that_stays_while_its_velocity_goes_on_is_frozen(tmp_path: Path):
    t, q, qd = swing()
    stuck = q.copy()
    stuck[1500:, 1] = stuck[1499, 1]  # until the end: there is no leap
    got = read(tmp_path, columns(t, stuck, qd))
    assert found(got, "frozen") == [("q elbow", 500, "left out")]
    speeds = qd.copy()
    speeds[300:400, 0] = speeds[299, 0]
    assert found(read(tmp_path, columns(t, q, speeds)), "frozen") == [("qd shoulder", 100, "left out")]


def test_stamps_in_another_unit_than_the_header_says_are_suspect(tmp_path: Path):
    t, q, qd = swing()
    got = read(tmp_path, columns(1e3 * t, q, qd))
    (finding,) = [f for f in got.report.of("time unit") if "velocities" in f.detail]
    assert finding.action == "suspect" and "look like ms" in finding.detail
    assert got[0]["qd"].valid.all()  # times are wrong, not velocities


def test_single_lost_samples_are_counted(tmp_path: Path):
    t, q, qd = swing()
    keep = np.ones(len(t), bool)
    keep[[100, 400, 401, 900]] = False
    got = read(tmp_path, columns(t[keep], q[keep], qd[keep]))
    assert found(got, "lost samples") == [("time", 4, "note")] and serious(got) == []


def test_outliers_of_forces_are_left_out(tmp_path: Path):
    t, q, torque = arm_log()
    torque[[300, 1200], 2] += 3 * np.ptp(torque[:, 2])
    found = read_arm(tmp_path, t, q, torque)
    assert [(f.place, f.count) for f in found.of("spikes")] == [(f"tau {ARM.joint_names[2]}", 2)]


def test_spikes_are_left_out(tmp_path: Path):
    t, q, qd = swing()
    broken = q.copy()
    broken[[100, 900], 1] += 5.0
    got = read(tmp_path, columns(t, broken, qd))
    assert found(got, "spikes") == [("q elbow", 2, "left out")]
    np.testing.assert_array_equal(np.flatnonzero(~got[0]["q"].valid[:, 1]), [100, 900])


def test_a_jump_of_the_position_begins_another_recording(tmp_path: Path):
    t, q, qd = swing()
    moved = q.copy()
    moved[800:] += [1.5, 0.0]
    got = read(tmp_path, columns(t, moved, qd))
    assert found(got, "jumps") == [("q shoulder", 1, "repaired")]
    assert [len(run) for run in got] == [800, 1200]


def test_a_channel_that_freezes_is_left_out_until_it_leaps(tmp_path: Path):
    t, q, qd = swing()
    broken = q.copy()
    broken[500:560, 0] = broken[499, 0]
    got = read(tmp_path, columns(t, broken, qd))
    assert found(got, "frozen") == [("q shoulder", 60, "left out")]
    assert np.flatnonzero(~got[0]["q"].valid[:, 0]).tolist() == list(range(500, 560))


def test_a_constant_channel_is_suspect(tmp_path: Path):
    t, q, _ = swing()
    q[:, 1] = 0.7
    assert ("q elbow", len(t), "suspect") in found(read(tmp_path, columns(t, q)), "constant")


def tumbling(seconds: float = 4.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, q and qd of a free body that turns in a changing way."""
    t = np.arange(round(seconds * 200)) / 200
    rate = np.stack([2 * np.sin(t), 1.5 * np.cos(1.7 * t), 1 + np.sin(0.6 * t)], 1)
    turned = [Rotation.from_euler("xyz", [0.3, 0.2, 0.1])]
    for w0, w1 in pairwise(rate):
        turned.append(turned[-1] * Rotation.from_rotvec(0.5 * (w0 + w1) / 200))
    quaternion = np.array([r.as_quat() for r in turned])[:, [3, 0, 1, 2]]
    place, speed = np.stack([np.sin(t), t, np.cos(t)], 1), np.stack([np.cos(t), t**0, -np.sin(t)], 1)
    return t, np.concatenate([place, quaternion], 1), np.concatenate([speed, rate], 1)


def read_body(path: Path, t, q, qd=None, **options) -> Recordings:
    np.savez(path / "log.npz", allow_pickle=False, time=t, q=q, **({} if qd is None else {"qd": qd}))
    return read_recordings(path / "log.npz", BODY, **options)


def test_quaternions_get_one_sign_and_unit_length(tmp_path: Path):
    t, q, qd = tumbling()
    continuous = read_body(tmp_path, t, q, qd)
    assert serious(continuous) == []
    broken = q.copy()
    broken[100:200, 3:] *= -1
    broken[300:310, 3:] *= 1.01
    broken[400, 3:] = 0
    got = read_body(tmp_path, t, broken, qd)
    assert found(got, "quaternion sign") == [("q root", 2, "repaired")]
    assert found(got, "norm") == [("q root", 10, "repaired")]
    assert found(got, "no quaternion") == [("q root", 1, "left out")]
    assert got[0].q is not None
    rest = np.arange(len(t)) != 400
    np.testing.assert_allclose(got[0].q[rest], q[rest], atol=1e-12)
    assert not got[0]["q"].valid[400, 3:].any()


def test_quaternions_with_w_last_are_seen_by_their_rates(tmp_path: Path):
    t, q, qd = tumbling()
    turned = q[:, [0, 1, 2, 4, 5, 6, 3]]
    got = read_body(tmp_path, t, turned, qd)
    assert found(got, "quaternion order") == [("q root", len(t), "repaired")]
    np.testing.assert_allclose(got[0].q, q, atol=1e-12)
    told = read_body(tmp_path, t, turned, quaternion="xyzw")
    np.testing.assert_allclose(told[0].q, q, atol=1e-12)


def test_angular_velocity_in_world_axes_is_suspect(tmp_path: Path):
    t, q, qd = tumbling()
    world = Rotation.from_quat(q[:, [4, 5, 6, 3]]).apply(qd[:, 3:])
    got = read_body(tmp_path, t, q, np.concatenate([qd[:, :3], world], 1))
    assert found(got, "angular velocity") == [("q root", len(t), "suspect")]


def test_a_quaternion_that_begins_with_w_last_is_suspect_without_rates(tmp_path: Path):
    t, q, _ = tumbling()
    assert found(read_body(tmp_path, t, q[:, [0, 1, 2, 4, 5, 6, 3]]), "quaternion order")[0][2] == "suspect"
