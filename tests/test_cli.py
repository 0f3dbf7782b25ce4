"""The command line, as a user meets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import knuckle as kn
from knuckle import robots
from knuckle.cli import app
from knuckle.cli_write import column_names

HELD = {"arm": "joint limits", "cartpole": "joint limits", "quadruped": "contact, joint limits"}


@pytest.fixture
def knuckle(tmp_path, monkeypatch):
    """Runs the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def results(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "trajectory.npz") as archive:
        return dict(archive)


def test_version(knuckle):
    assert knuckle("--version").output.strip() == f"knuckle {kn.__version__}"


def test_the_package_runs_as_a_module():
    """In a process of its own: a command ends its process at once if a phase that was given up still runs in it."""
    run = subprocess.run([sys.executable, "-m", "knuckle", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == f"knuckle {kn.__version__}"


@pytest.mark.parametrize("robot", ["arm", "cartpole", "double_pendulum", "quadruped"])
def test_a_built_in_robot_is_simulated(knuckle, tmp_path, robot):
    run = knuckle("simulate", robot, "--time", 0.05)
    assert run.exit_code == 0, run.output
    assert ("contact by Impulse" if robot in HELD else "no contact") in run.output
    servos = "the file asks for the integrator Euler; here joint springs and servos are taken implicitly"
    assert (servos in run.output) is (robot == "quadruped") is ("note" in run.output)
    model, folder = robots.load(robot), tmp_path / "runs" / robot
    kept = results(folder)
    assert kept["q"].shape == (51, model.nq) and kept["qd"].shape == (51, model.nv)
    assert kept["control"].shape == (51, model.nu)
    assert (folder / "motion.png").read_bytes().startswith(b"\x89PNG")
    check_table(folder / "trajectory.csv", kept)


def check_table(path: Path, kept: dict[str, np.ndarray]) -> None:
    with path.open() as file:
        columns = file.readline().strip().split(",")
        table = np.loadtxt(file, delimiter=",")
    assert columns == list(kept["columns"]) and len(set(columns)) == len(columns) == table.shape[1]
    width = kept["q"].shape[1]
    np.testing.assert_allclose(table[:, 1 : 1 + width], kept["q"], rtol=1e-11, atol=1e-14)  # 12 digits are written


def test_columns_are_named_by_joint_and_part():
    names = column_names(robots.load("quadruped"))
    assert names[:8] == [*(f"q base.{part}" for part in ("x", "y", "z", "qw", "qx", "qy", "qz")), "q front_left_roll"]
    assert names[19:26] == [*(f"qd base.{part}" for part in ("vx", "vy", "vz", "wx", "wy", "wz")), "qd front_left_roll"]
    assert names[37] == "u front_left_roll" and len(names) == 19 + 18 + 12


def test_what_is_written_is_the_rollout_of_the_file(knuckle, tmp_path):
    """107 steps make 53 whole pieces and one that is cut, so a piece too many or too few would show."""
    start = ["--q=0.1,0.2", "--qd=-0.3,0.4", "--control=2"]
    options = [*start, "--integrator=rk4", "--contact=none", "--time=0.107"]
    run = knuckle("simulate", robots.path("cartpole"), *options)
    assert run.exit_code == 0, run.output
    model = robots.load("cartpole")
    start = model.state(np.array([0.1, 0.2]), np.array([-0.3, 0.4]))
    push = jax.numpy.array([2.0])
    motion = jax.jit(lambda s: kn.rollout(model, s, push, dt=0.001, steps=107, integrator=kn.RK4(), contact=None))(
        start
    )
    kept = results(tmp_path / "runs" / "cartpole")
    np.testing.assert_allclose(kept["q"], np.vstack([start.q, motion.q]), rtol=0, atol=1e-13)  # one rounding per step
    np.testing.assert_allclose(kept["time"], np.arange(108) * 0.001, rtol=1e-15)
    energy = jax.jit(kn.dynamics.energy)(model, motion.q[-1], motion.qd[-1])
    np.testing.assert_allclose(kept["total"][-1], energy, rtol=1e-12)


def test_position_servos_hold_the_start(knuckle, tmp_path):
    """With the base fixed, legs sag under their own weight by no more than torque over gain: 10 N m / 80 N m/rad."""
    assert knuckle("simulate", "quadruped", "--fixed", "--time=0.3").exit_code == 0
    q = results(tmp_path / "runs" / "quadruped")["q"]
    assert q.shape[1] == 12
    assert 0 < np.abs(q - q[0]).max() < 0.125


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hexapod"], "built in are acrobot, arm, cartpole, double_cartpole, double_pendulum, hopper, "),
        (["missing.urdf"], "no file"),
        (["--dt=0"], "--dt must be a positive number of seconds, got 0"),
        (["--dt=1e-9"], "1 to 1,000,000 steps"),
        (["--time=-1"], "--time must be a positive"),
        (["--time=nan"], "--time must be a positive"),
        (["--time=1e-9"], "1 to 1,000,000 steps"),
        (["--q=1,two"], "--q takes numbers"),
        (["--q=1,inf"], "--q takes finite numbers"),
        (["--q=1,2,3"], "--q takes 2 numbers for joints shoulder, elbow, got 3"),
        (["--qd=1"], "--qd takes 2 numbers"),
        (["--q=1,2", "--keyframe=raised"], "give one of them"),
        (["--keyframe=nowhere"], "there are raised, hanging"),
        (["arm", "--control=1,2"], "--control takes hold, 1 or 7 numbers"),
        (["--control=1"], "--control 1: double_pendulum has no actuators"),
        (["broken.xml"], "cannot load broken.xml"),
        (["."], ". is a folder; expected a URDF or MJCF file"),
        (["--out=broken.xml"], "--out: cannot make the folder broken.xml (File exists)"),
    ],
)
def test_bad_input_is_explained_without_a_traceback(knuckle, tmp_path, words, message):
    (tmp_path / "broken.xml").write_text("<mujoco><worldbody>")
    run = knuckle("simulate", *words)
    assert run.exit_code == 1 and isinstance(run.exception, SystemExit)
    assert message in run.stderr and "Traceback" not in run.output
    assert not (tmp_path / "runs").exists()


def test_impossible_inertia_is_mended_on_request(knuckle, tmp_path):
    moments = '<inertia ixx="1" iyy="1" izz="3" ixy="0" ixz="0" iyz="0"/>'
    (tmp_path / "arm.urdf").write_text(
        f"""<robot name="arm"><link name="base"/><link name="rod"><inertial><mass value="2"/>{moments}</inertial></link>
        <joint name="hinge" type="continuous"><parent link="base"/><child link="rod"/></joint></robot>"""
    )
    run = knuckle("simulate", "arm.urdf", "--time=0.01")
    assert run.exit_code == 1 and "link 'rod'" in run.stderr and "it loads with --repair-inertia" in run.stderr
    run = knuckle("simulate", "arm.urdf", "--time=0.01", "--repair-inertia")
    assert run.exit_code == 0 and "link 'rod' (line 1): repaired" in run.stderr


def test_a_simulation_that_diverges_keeps_what_was_finite(knuckle, tmp_path):
    """Explicit Euler at 1e6 rad/s squares the speed at each step, so that it overflows after a few."""
    run = knuckle("simulate", "double_pendulum", "--qd=1e6,-1e6", "--time=100", "--dt=0.1", "--integrator=explicit")
    assert run.exit_code == 1 and "diverged" in run.stderr
    assert "of joint" in run.stderr and " at step " in run.stderr
    kept = results(tmp_path / "runs" / "double_pendulum")
    assert 2 <= len(kept["q"]) < 20
    assert np.isfinite(kept["q"]).all() and np.isfinite(kept["qd"]).all()


MASSLESS = """<robot name="bare"><link name="base"/><link name="tip"/>
<joint name="hinge" type="continuous"><parent link="base"/><child link="tip"/></joint></robot>"""


def test_a_joint_that_moves_nothing_is_named(knuckle, tmp_path):
    (tmp_path / "bare.urdf").write_text(MASSLESS)
    run = knuckle("simulate", "bare.urdf", "--time=0.01")
    assert run.exit_code == 0
    assert "no mass or inertia hangs on joint hinge: it does not accelerate" in run.stdout


INTERRUPT_AT_THE_THIRD_PIECE = """
import os, signal
from knuckle import cli, cli_simulate

pieces, first_not_finite = [], cli_simulate.first_not_finite

def look(model, q, qd):
    pieces.append(q)
    if len(pieces) == 3:
        os.kill(os.getpid(), signal.SIGINT)
    return first_not_finite(model, q, qd)

cli_simulate.first_not_finite = look
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
cli.main()
"""


def test_interrupted_it_writes_what_there_is(tmp_path):
    """In a process of its own, which also shows that float64 does not depend on this one's settings."""
    words = ["simulate", "cartpole", "--keyframe=hanging", "--time=10", "--out", str(tmp_path)]
    run = subprocess.run([sys.executable, "-c", INTERRUPT_AT_THE_THIRD_PIECE, *words], capture_output=True, text=True)
    assert run.returncode == 130 and "Traceback" not in run.stderr
    assert "interrupted; written is what was simulated until 0.2 s of 10 s" in run.stderr
    q = results(tmp_path)["q"]
    assert q.dtype == np.float64 and len(q) == 201  # the start and two pieces of a hundredth of 10,000 steps
    np.testing.assert_array_equal(q[0], [0, np.pi])


def test_help_does_not_load_what_it_does_not_need():
    script = "import sys; from typer.testing import CliRunner; from knuckle.cli import app\n"
    script += "assert CliRunner().invoke(app, ['simulate', '--help']).exit_code == 0\n"
    script += "print([m for m in ('mujoco', 'yourdfpy', 'matplotlib', 'llvmlite') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


def test_the_quadruped_stands_unless_contact_is_switched_off(knuckle, tmp_path):
    """Its base sinks less than 3 cm into the springs of its servos; without contact it falls by g t^2 / 2 = 1.2 m."""
    result = knuckle("simulate", "quadruped", "--time", "0.5", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    motion = np.load(tmp_path / "trajectory.npz")
    assert motion["q"][-1, 2] > motion["q"][0, 2] - 0.03
    for options in (["--contact", "impulse"], []):
        refused = knuckle("simulate", "quadruped", *options, "--integrator", "rk4", "--out", str(tmp_path))
        assert refused.exit_code == 1 and "semi-implicit or implicit" in refused.output
        assert "or --contact none" in refused.output
    falling = knuckle("simulate", "quadruped", "--contact", "none", "--time", "0.5", "--out", str(tmp_path))
    assert f"without contact these do not hold: {HELD['quadruped']}" in falling.output
    assert np.load(tmp_path / "trajectory.npz")["q"][-1, 2] < motion["q"][0, 2] - 1.0


SOFT = """<mujoco model="soft"><worldbody><geom name="floor" type="plane" size="1 1 1"/><body pos="0 0 0.1"><freejoint/>
<geom name="ball" size="0.1" priority="1" solimp="0.015 1 0.03"/></body></worldbody>
<contact><pair geom1="floor" geom2="ball" solimp="0.015 1 0.03"/></contact></mujoco>"""


def test_contact_that_is_soft_in_mujoco_is_reported(knuckle, tmp_path):
    (tmp_path / "soft.xml").write_text(SOFT)
    told = "the file's solref and solimp let a body rest about 13 mm deep in MuJoCo; contact here is rigid"
    shown = knuckle("info", "soft.xml").output
    assert told in shown and "contact pairs with settings of their own: floor|ball" in shown
    assert f"note: {told}" in knuckle("simulate", "soft.xml", "--time=0.01").output
    assert "rigid" not in knuckle("simulate", "soft.xml", "--time=0.01", "--contact=compliant").output
    assert "rigid" not in knuckle("info", "quadruped").output


STEPPED = """<mujoco model="stepped"><option timestep="0.004" integrator="RK4"/><worldbody>
<body><joint axis="0 1 0" damping="0.1"/><geom size="0.1" pos="0 0 -1"{0}/></body></worldbody></mujoco>"""


def test_steps_are_those_that_the_file_asks_for_unless_options_say_otherwise(knuckle, tmp_path):
    (tmp_path / "smooth.xml").write_text(STEPPED.format(""))
    (tmp_path / "rough.xml").write_text(STEPPED.format("").replace("damping", 'frictionloss="0.1" damping'))
    run = knuckle("simulate", "smooth.xml", "--time=0.02")
    assert "RK4, dt = 0.004 s, no contact" in run.output and "note" not in run.output
    np.testing.assert_allclose(results(tmp_path / "runs" / "smooth")["time"], 0.004 * np.arange(6), rtol=1e-15)
    run = knuckle("simulate", "rough.xml", "--time=0.02")
    assert "Implicit, dt = 0.004 s, contact by Impulse" in run.output
    assert "the file asks for the integrator RK4; here RK4 has no contact" in run.output
    options = ["--dt=0.001", "--integrator=semi-implicit", "--contact=none"]
    run = knuckle("simulate", "rough.xml", "--time=0.02", *options)
    assert "SemiImplicitEuler, dt = 0.001 s, no contact" in run.output
    assert "dry joint friction (smooth instead)" in run.output and "asks for" not in run.output
    assert "the file asks for steps of 0.004 s by RK4" in knuckle("info", "smooth.xml").output


def test_a_hybrid_model_is_simulated_with_its_networks_and_what_they_remember(knuckle, tmp_path):
    """Over many pieces of a roll-out as over one: memory and time go on."""
    model = robots.load("cartpole")
    network = kn.neural.Recurrent(5, 2, 3, "gru", key=jax.random.key(0))
    shaken = jax.tree.map(lambda w: w + 0.3, network)
    blueprint = kn.Blueprint({"joint/force": kn.Augment(shaken, ("q", "qd", "time"))})
    with jax.enable_x64(True):
        kn.save_hybrid(tmp_path / "mine.knuckle", model, blueprint, integrator=kn.RK4(), contact=None, dt=0.002)
        saved = kn.load_hybrid(tmp_path / "mine.knuckle")
        expected = saved.rollout(model.state("hanging"), steps=250, native=True)
    run = knuckle("simulate", "mine.knuckle", "--keyframe", "hanging", "--time", 0.5)
    assert run.exit_code == 0 and "joint/force" in run.output
    kept = results(tmp_path / "runs" / "mine")
    np.testing.assert_allclose(kept["q"][1:], expected.q, atol=1e-9)
    assert np.abs(kept["q"][-1] - kept["q"][0]).max() > 0.01
    assert knuckle("simulate", "mine.knuckle", "--floating").exit_code == 1
    assert "no file nothing.knuckle" in knuckle("simulate", "nothing.knuckle").output


def test_a_log_is_done_again(knuckle, tmp_path):
    """Controls change every 10 ms and the log has as many samples; the same step then gives the same motion."""
    model = robots.load("cartpole")
    control = np.random.default_rng(0).normal(size=(50, 1))
    with jax.enable_x64(True):
        first = model.state(np.array([0.1, 3.0]), np.array([0.2, -0.3]))
        commands, integrator = np.repeat(control, 10, axis=0), kn.Implicit()  # the nearest to what the file asks for
        motion = kn.rollout(model, first, commands, dt=1e-3, integrator=integrator, native=True)
    q, qd = (np.concatenate([a[None], b[9::10]]) for a, b in ((first.q, motion.q), (first.qd, motion.qd)))
    log = kn.sysid.Recording.of(model, 0.01 * np.arange(51), q=q, qd=qd, control=np.concatenate([control, [[0.0]]]))
    kn.sysid.save(log, tmp_path / "log.csv")
    run = knuckle("simulate", "cartpole", "--control", "log.csv")
    assert run.exit_code == 0, run.output
    kept = results(tmp_path / "runs" / "cartpole")
    np.testing.assert_allclose(kept["q"][10::10], q[1:], atol=1e-8)
    off = float(run.output.split("off the recorded positions: ")[1].split()[0])
    assert off < 1e-8
    again = knuckle("simulate", "cartpole", "--control", "runs/cartpole/trajectory.csv", "--out", "twice")
    assert again.exit_code == 0, again.output
    np.testing.assert_allclose(results(tmp_path / "twice")["q"], kept["q"], atol=1e-8)
    other = knuckle("simulate", "cartpole", "--control", "log.csv", "--q", "0,0", "--time", "0.1")
    np.testing.assert_array_equal(results(tmp_path / "runs" / "cartpole")["q"][0], [0, 0])
    assert other.exit_code == 0
    (tmp_path / "hold").mkdir()
    assert knuckle("simulate", "cartpole", "--control", "hold", "--time", "0.01").exit_code == 0
    turned = knuckle("simulate", "cartpole", "--control", "log.csv", "--qd", "0,0", "--time", "0.1")
    assert turned.exit_code == 0, turned.output
    start = results(tmp_path / "runs" / "cartpole")
    np.testing.assert_allclose([*start["q"][0], *start["qd"][0]], [0.1, 3.0, 0, 0], atol=1e-12)
    missing = knuckle("simulate", "cartpole", "--control", "nothing.csv")
    assert missing.exit_code == 1 and "there is no such file" in missing.output


def test_a_log_is_done_again_from_where_it_is_known(knuckle, tmp_path):
    """Positions begin after one sample, controls after two and pause; in the end the pole is not measured."""
    model, time, number = robots.load("cartpole"), 0.01 * np.arange(40), np.arange(40)[:, None]
    control = np.where((number < 2) | ((number > 9) & (number < 20)), np.nan, 0.1 * number)
    q = np.where(number < 1, np.nan, np.column_stack([0.1 * time, 3.0 + time]))
    q[30:, 1] = np.nan
    kn.sysid.save(kn.sysid.Recording.of(model, time, q=q, control=control), tmp_path / "late.csv")
    run = knuckle("simulate", "cartpole", "--control", "late.csv")
    assert run.exit_code == 0, run.output
    assert (
        "late.csv: begun at 0.02 s" in run.output
        and "10 values of control are missing; commands are held" in run.output
    )
    kept = results(tmp_path / "runs" / "cartpole")
    np.testing.assert_allclose(kept["q"][0], q[2], atol=1e-12)
    np.testing.assert_allclose(kept["control"][[0, 75, 179, 185], 0], [0.2, 0.9, 0.9, 2.0], atol=1e-12)
    here = 10 * np.arange(38)
    off = (kept["q"][np.minimum(here, len(kept["q"]) - 1)] - q[2:])[np.isfinite(q[2:])]
    assert float(run.output.split("off the recorded positions: ")[1].split()[0]) == pytest.approx(
        np.sqrt(np.mean(off**2)), rel=1e-3
    )
    kn.sysid.save(kn.sysid.Recording.of(model, time, q=q), tmp_path / "none.csv")
    kn.sysid.save(kn.sysid.Recording.of(model, time, q=q * [1, np.nan], control=number), tmp_path / "never.csv")
    assert "neither controls nor torques" in knuckle("simulate", "cartpole", "--control", "none.csv").output
    assert "--q and --qd say where to start" in knuckle("simulate", "cartpole", "--control", "never.csv").output
    assert "takes finite numbers" in knuckle("simulate", "cartpole", "--control", "0.5,nan").output


def test_measured_torques_are_done_again_linear_between_samples(knuckle, tmp_path):
    model, time = robots.load("cartpole"), 0.01 * np.arange(20)
    log = kn.sysid.Recording.of(model, time, q=np.zeros((20, 2)), tau=np.column_stack([time, 0 * time]))
    kn.sysid.save(log, tmp_path / "log.csv")
    run = knuckle("simulate", "cartpole", "--control", "log.csv")
    assert run.exit_code == 0, run.output
    kept = results(tmp_path / "runs" / "cartpole")["control"][:-1, 0] * float(model.actuators.gear[0])
    np.testing.assert_allclose(kept * float(model.actuators.gain[0]), 1e-3 * (np.arange(len(kept)) + 0.5), atol=1e-12)
