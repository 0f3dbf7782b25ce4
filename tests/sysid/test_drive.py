"""Controls between samples: held or linear, and what a fit says where the wrong one is assumed."""

import jax
import numpy as np
import pytest

import knuckle as kn
from knuckle import robots, sysid
from knuckle.integrate import RK4
from knuckle.sysid.left import what_is_missing
from knuckle.sysid.shots import make_shots
from knuckle.sysid.timing import drive as drive_of

MODEL = robots.load("cartpole")
FINE, EVERY = 1e-3, 20  # the truth's step [s], and steps in a sample


def push(t):
    return (4 * np.sin(7 * t) + 2 * np.sin(11 * t + 1))[:, None]


@pytest.fixture(scope="module")
def log() -> sysid.Recording:
    t = FINE * np.arange(4000)
    start, times = MODEL.state(np.array([0.0, 2.5])), FINE * EVERY * np.arange(201)
    between = np.interp(t + FINE / 2, times, push(times)[:, 0])[:, None]
    motion = kn.rollout(MODEL, start, between, dt=FINE, steps=len(t), integrator=RK4(), contact=None, native=True)
    q = np.asarray(motion.q)[EVERY - 1 :: EVERY] + 5e-4 * np.random.default_rng(0).normal(size=(200, 2))
    return sysid.Recording.of(MODEL, times[1:], q=q, control=push(times[1:]))


@pytest.mark.parametrize("drive", ["held", "linear"])
def test_a_smooth_control_is_linear_between_samples_and_not_held(drive, log):
    fit = sysid.fit(MODEL, log, free=["*.damping"], drive=drive, held_out=0.0)
    truth = MODEL.damping[0]
    inside = fit["slider.damping"].lower < truth < fit["slider.damping"].upper
    assert (inside, bool(fit.missing())) == ((True, False) if drive == "linear" else (False, True))
    assert drive == "linear" or 'drive="linear"' in repr(fit)


def test_drives_at_all_steps(log):
    options = {"length": 0.2, "noise": {"q": 1e-3}}
    piece = make_shots(MODEL, [log], **options, drive="linear")
    shot = jax.tree.map(lambda part: part[0], piece)
    middle = np.asarray(drive_of(shot, 0.0, 2))
    expected = np.interp(
        np.arange(0.25, piece.samples - 1, 0.5), np.arange(piece.samples), np.asarray(piece.control)[0, :, 0]
    )
    np.testing.assert_allclose(middle[:, 0], expected, atol=1e-12)
    assert not make_shots(MODEL, [log], **options).linear


def test_noise_is_not_called_a_lack_and_a_slow_wave_is():
    noise = np.random.default_rng(0).normal(size=(10, 50, 2))
    wave = np.sin(np.arange(50) / 5)[None, :, None]
    assert what_is_missing({"q": noise}) == []
    told = what_is_missing({"q": noise + wave, "qd": noise})
    assert len(told) == 1 and "of q " in told[0]


def test_an_unknown_drive_is_refused(log):
    with pytest.raises(ValueError, match="drive: expected one of held, linear, got 'spline'"):
        sysid.fit(MODEL, log, drive="spline")  # pyright: ignore


def arm(*actuators) -> kn.Model:
    first = kn.Link("a", joints=kn.revolute("y", name="j1"), mass=1.0, inertia=(0.1, 0.1, 0.1))
    second = kn.Link("b", "a", kn.revolute("y", name="j2"), (0, 0, -0.3), mass=1.0, inertia=(0.1, 0.1, 0.1))
    return kn.build([first, second], actuators=actuators)


def with_torques(model: kn.Model, tau) -> sysid.Recording:
    time = 0.01 * np.arange(50)
    return sysid.Recording.of(model, time, q=np.zeros((50, 2)), tau=np.tile(tau, (50, 1)))


def test_measured_torques_reach_the_motors_of_their_joints_through_the_gear():
    model = arm(kn.motor("j2", gear=4.0), kn.motor("j1"))  # in another order than the joints
    shots = make_shots(model, [with_torques(model, [3.0, 8.0])], length=None, noise={"q": 1e-3})
    np.testing.assert_allclose(shots.control[0], np.tile([2.0, 3.0], (50, 1)), atol=1e-12)
    control = np.asarray(shots.control[0, 0])
    force = jax.jit(kn.forces.actuator_force)(model, np.zeros(2), np.zeros(2), control)
    np.testing.assert_allclose(force, [3.0, 8.0], atol=1e-6)


@pytest.mark.parametrize("actuators", [(), (kn.motor("j1"), kn.position_servo("j2", kp=10.0)), (kn.motor("j1"),)])
def test_torques_that_no_motor_can_do_are_refused(actuators):
    model = arm(*actuators)
    with pytest.raises(ValueError, match=r"torques of .*j2 were measured, but the model has no motor there"):
        make_shots(model, [with_torques(model, [3.0, 8.0])], length=None, noise={"q": 1e-3})
    idle = make_shots(model, [with_torques(model, [0.0, 0.0])], length=None, noise={"q": 1e-3})
    assert not np.any(idle.control)


def test_a_log_that_does_not_say_what_drove_the_robot_is_suspect(tmp_path):
    model = arm(kn.motor("j1"), kn.motor("j2"))
    rows = "".join(f"{0.01 * k},{np.sin(k / 9)},{np.cos(k / 7)},1\n" for k in range(60))
    (tmp_path / "log.csv").write_text("time,j1,j2,tau_j2\n" + rows)
    found = sysid.read_recordings(tmp_path / "log.csv", model).report.of("not measured")
    assert [(f.place, f.action) for f in found] == [("tau j1", "suspect")] and "takes it as 0" in found[0].detail
    found = sysid.read_recordings(tmp_path / "log.csv", model, ignore="tau_j2").report.of("not driven")
    assert [f.action for f in found] == ["suspect"]
