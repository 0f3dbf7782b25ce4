"""All commands read logs by the same code and options, and simulate uses what a fit found of instruments."""

from __future__ import annotations

from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import knuckle as kn
from knuckle import robots
from knuckle.cli import app
from knuckle.hybrid import Calibration

CART = robots.load("cartpole")
STEP, FINE = 0.01, 10  # between samples [s], and steps in that


@pytest.fixture
def knuckle(tmp_path, monkeypatch):
    """Runs the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def driven_cart(late: int = 0, samples: int = 150) -> tuple[np.ndarray, ...]:
    """Times, positions, velocities and commands of a cart that does what it was told `late` steps of 1 ms before."""
    rng = np.random.default_rng(0)
    control = np.repeat(rng.normal(size=(samples // 5, 1)), 5, axis=0)
    arrived = control[np.maximum(np.arange(samples * FINE) - late, 0) // FINE]
    with jax.enable_x64(True):
        first = CART.state(np.array([0.1, 3.0]))
        run = kn.rollout(CART, first, arrived, dt=STEP / FINE, integrator=kn.RK4(), contact=None, native=True)
    q, qd = (np.concatenate([np.asarray(a)[None], np.asarray(b)[FINE - 1 :: FINE]])[:samples]
             for a, b in ((first.q, run.q), (first.qd, run.qd)))  # fmt: skip
    return STEP * np.arange(samples), q, qd, control


def write(path: Path, header: str, *parts: np.ndarray) -> None:
    np.savetxt(path, np.column_stack(parts), delimiter=",", header=header, comments="", fmt="%.12g")


def off(run) -> float:
    assert run.exit_code == 0, run.output
    return float(run.output.split("off the recorded positions: ")[1].split()[0])


def test_simulate_reads_a_log_by_the_options_of_fit(knuckle, tmp_path):
    """A table without header, in degrees and milliseconds, with a column too many."""
    t, q, qd, u = driven_cart()
    with open(tmp_path / "log.csv", "w") as file:
        table = np.column_stack([1e3 * t, q[:, :1], np.degrees(q[:, 1:]), qd, 0 * t, u])
        np.savetxt(file, table, delimiter=",", fmt="%.12g")
    words = ["--column", "time [ms]=1", "--column", "2=q slider", "--column", "3=q hinge [deg]", "--column", "qd=4:5"]
    words += ["--ignore", "6", "--column", "7=control drive"]
    run = knuckle("simulate", "cartpole", "--control", "log.csv", "--integrator", "rk4", "--contact", "none", *words)
    assert off(run) < 1e-6
    shown = knuckle("info", "cartpole", "log.csv", *words)
    assert shown.exit_code == 0, shown.output
    assert "3       q hinge" in shown.output and "q hinge" in shown.output and "150 samples over 1.49 s" in shown.output
    bare = knuckle("simulate", "cartpole", "--control", "log.csv")
    assert bare.exit_code == 1 and "the log has no header" in bare.output
    unused = knuckle("simulate", "cartpole", "--units", "deg", "--time", "0.01")
    assert unused.exit_code == 1 and "--control names none" in unused.output
    unused = knuckle("info", "cartpole", "--units", "deg")
    assert unused.exit_code == 1 and "name a log" in unused.output


def test_simulate_uses_the_delays_of_a_knuckle_file(knuckle, tmp_path):
    """Controls that act 23 ms late: as a model without the delay has it, the cart goes elsewhere."""
    t, q, qd, u = driven_cart(late=23)
    write(tmp_path / "log.csv", "time [s],q slider,q hinge,qd slider,qd hinge,u drive", t, q, qd, u)
    found = Calibration.of(actuator_delay=0.02, sensor_delay=0.003)  # only their sum shows
    for name, calibration in (("plain", None), ("late", found)):
        kn.save_hybrid(
            tmp_path / f"{name}.knuckle", CART, integrator=kn.RK4(), contact=None, dt=1e-3, calibration=calibration
        )
    right = knuckle("simulate", "late.knuckle", "--control", "log.csv")
    assert off(right) < 1e-6 and "delay of actuators: 0.02 s" in right.output
    assert off(knuckle("simulate", "plain.knuckle", "--control", "log.csv")) > 1e-3
    assert "delay of sensors: 0.003 s" in knuckle("info", "late.knuckle").output


def test_simulate_uses_offsets_gains_and_drive_gains_of_a_knuckle_file(knuckle, tmp_path):
    """The sensors' offset and scale are taken out of the log, and its currents become torques."""
    t, q, qd, u = driven_cart()
    force = u * float(CART.actuators.gear[0]) * float(CART.actuators.gain[0])
    seen = q * [1.0, 1.1] + [0.05, -0.2]
    parts = (t, seen, qd, force / 8.4)
    write(tmp_path / "log.csv", "time [s],q slider,q hinge,qd slider,qd hinge,slider_current", *parts)
    found = Calibration.of(offsets={"q": [0.05, -0.2]}, gains={"q": [1.0, 1.1]}, drive_gains={"slider": 8.4})
    kn.save_hybrid(tmp_path / "seen.knuckle", CART, integrator=kn.RK4(), contact=None, dt=1e-3, calibration=found)
    run = knuckle("simulate", "seen.knuckle", "--control", "log.csv", "--time", "0.04")
    assert off(run) < 1e-4 and "gains of q: 1, 1.1" in run.output  # torques are linear between samples, commands held
    start = np.load(tmp_path / "runs" / "seen" / "trajectory.npz")["q"][0]
    np.testing.assert_allclose(start, q[0], atol=1e-9)
    kn.save_hybrid(tmp_path / "plain.knuckle", CART)
    bare = knuckle("simulate", "plain.knuckle", "--control", "log.csv")
    assert bare.exit_code == 1 and "--gain slider=8.4" in bare.output
    given = knuckle("simulate", "plain.knuckle", "--control", "log.csv", "--gain", "slider=8.4", "--time", "0.02")
    assert given.exit_code == 0, given.output


def test_urdf_has_no_place_for_a_bias_and_says_so(tmp_path):
    bias = np.array(CART.actuators.bias)
    bias[0, 0] = 0.3
    model = eqx.tree_at(lambda m: m.actuators.bias, CART, bias)
    with pytest.raises(ValueError, match=r"URDF has no place for a motor's bias \(0\.3\)"):
        kn.save(model, tmp_path / "cart.urdf")
