"""Discovery on a pendulum: a planted effect is named with its coefficient, and nothing where nothing is missing."""

from __future__ import annotations

import json

import equinox as eqx
import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import knuckle as kn
from knuckle import sysid
from knuckle.cli import app
from knuckle.sysid.discovery.page import page
from knuckle.sysid.discovery.visited import recorded_states
from knuckle.sysid.numbers import plain_data

PENDULUM = """<mujoco><worldbody><body name="rod"><joint name="hinge" axis="0 1 0"/>
<inertial pos="0 0 -0.5" mass="1" diaginertia="0.02 0.02 0.01"/></body></worldbody></mujoco>"""
NOISE = 5e-4


def swings(model: kn.Model, seed: int, runs: int = 6) -> list[sysid.Recording]:
    """Noisy swings from fixed angles, so that all logs share their scales and compiled programs."""
    rng, found = np.random.default_rng(seed), []
    with jax.enable_x64(True):
        for k in range(runs):
            start = model.state(np.array([0.5 + 0.35 * k]))
            run = kn.rollout(model, start, dt=0.0025, steps=480, integrator=kn.RK4(), contact=None, native=True)
            q = np.asarray(run.q)[3::4] + NOISE * rng.normal(size=(120, 1))
            found.append(sysid.Recording.of(model, np.asarray(run.time)[3::4], q=q))
    return found


def planted(model: kn.Model, field: str, value: float) -> kn.Model:
    return eqx.tree_at(lambda m: getattr(m, field), model, np.array([value]))


@pytest.fixture(scope="module")
def pendulum() -> kn.Model:
    return kn.load(PENDULUM)


@pytest.fixture(scope="module")
def damped(pendulum):
    logs = swings(planted(pendulum, "damping", 0.08), 0)
    return logs, sysid.discover(pendulum, logs, resamples=5)


def test_viscous_damping_is_named_with_its_coefficient(damped):
    """Within 5 %, four of its standard deviations; taps that add into the same sum are declared as ties."""
    _, found = damped
    (effect,) = found.effects
    assert (effect.effect, effect.place, effect.tap, effect.inputs) == (
        "viscous damping", "hinge", "joint/force", ("qd_hinge",),
    )  # fmt: skip
    (coefficient,) = found.coefficients
    assert coefficient.value == pytest.approx(-0.08, rel=0.05) and coefficient.unit == "N m s/rad"
    assert coefficient.lower < -0.08 < coefficient.upper
    assert {"joint/passive_force", "actuator/force"} <= set(found.ties[effect.name])
    assert found.formula("c")["joint/force[hinge]"].endswith("*qd_hinge")
    errors = {e.what: e.error for e in found.held_out}
    assert errors["formula"] < 0.5 * errors["model"] and found.is_something_missing and not found.needs_network
    assert found.rows[0].chosen and found.rows[0].stability == 1.0


def test_the_network_reads_the_speed_and_nothing_else(damped):
    """Weights of other inputs are exactly zero."""
    _, found = damped
    assert found.network.names() == {"hinge": ("qd_hinge",)}
    ((_, _, augment),) = found.network.blueprint
    first = np.asarray(augment.network.weights[0])
    assert not first[:, 0].any() and first[:, 1].any()


def test_the_formula_is_an_augmentation_that_predicts(damped, pendulum, tmp_path):
    """A swing that was not recorded is 20 times nearer to the truth than with the described model."""
    _, found = damped
    with jax.enable_x64(True):
        kn.save_hybrid(tmp_path / "found.knuckle", found.model, found.blueprint)
        loaded = kn.load_hybrid(tmp_path / "found.knuckle")
        start = pendulum.state(np.array([-1.3]))

        def swing(model, blueprint=None):
            options = {"dt": 0.0025, "steps": 800, "integrator": kn.RK4(), "contact": None, "native": True}
            return np.asarray(kn.rollout(model, start, blueprint=blueprint, **options).q)

        right = swing(planted(pendulum, "damping", 0.08))
        off, before = (np.abs(x - right).max() for x in (swing(loaded.model, loaded.blueprint), swing(pendulum)))
    assert off < before / 20


def test_nothing_is_missing_where_nothing_is(pendulum):
    found = sysid.discover(pendulum, swings(pendulum, 1), networks=False, resamples=0)
    assert not found.is_something_missing and found.blueprint is None and found.effects == ()
    assert found.answer()[0].startswith("nothing is missing")


def test_dry_friction_is_told_from_viscous(pendulum):
    found = sysid.discover(
        pendulum, swings(planted(pendulum, "friction", 0.1), 2), networks=False, resamples=0, held_out=0
    )
    assert [e.effect for e in found.effects] == ["Coulomb friction"]
    assert "nothing was held out" in found.notes[0] and found.held_out == ()


def test_what_was_found_is_data_and_a_page(damped):
    logs, found = damped
    data = json.loads(json.dumps(plain_data(found.data())))
    assert data["effects"][0]["effect"] == "viscous damping" and data["formula"]["latex"]
    text = page(found, "What it lacks", ["log.csv"], recorded_states(found.described, logs))
    assert text.count("data:image/svg+xml") == 2 and "viscous damping at hinge" in text
    with pytest.raises(ValueError, match="one of text, latex"):
        found.formula("fortran")


def test_the_command_writes_a_page_data_and_a_model(pendulum, damped, tmp_path):
    """With the programs that are compiled already."""
    logs, _ = damped
    (tmp_path / "rod.xml").write_text(PENDULUM)
    paths = []
    for k, log in enumerate(logs):
        paths.append(str(tmp_path / f"log{k}.csv"))
        table = np.column_stack([log.time, log["q"].values])
        np.savetxt(paths[-1], table, delimiter=",", header="time,hinge", comments="")
    folder = tmp_path / "out"
    said = CliRunner().invoke(
        app, ["discover", str(tmp_path / "rod.xml"), *paths, "--no-networks", "--resamples", "2", "--out", str(folder)]
    )
    assert said.exit_code == 0, said.output
    assert "missing: viscous damping at hinge" in said.output
    assert {"discovery.json", "discovery.html", "model.knuckle"} <= {path.name for path in folder.iterdir()}
    blueprint = kn.load_hybrid(folder / "model.knuckle").blueprint
    assert blueprint is not None and blueprint.size == 1
    again = CliRunner().invoke(app, ["discover", str(folder / "model.knuckle"), *paths])
    assert again.exit_code == 1 and "has networks already" in again.output


def test_what_cannot_be_is_refused(pendulum):
    log = swings(pendulum, 3, runs=1)
    with pytest.raises(TypeError, match="expected a Model, got str"):
        sysid.discover("pendulum.xml", log)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="expected Recordings, got str"):
        sysid.discover(pendulum, ["log.csv"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="at least one recording"):
        sysid.discover(pendulum, [])
