"""The folder of a fit: no file differs from the fit without a word, and nothing that was found is left out."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
from rich.console import Console

import knuckle as kn
from knuckle import cli_run, sysid
from knuckle.cli_folder import MARK
from knuckle.cli_results import Results, about_fit
from knuckle.interrupt import Interrupts
from knuckle.neural import MLP
from knuckle.optim.result import Searches
from knuckle.sysid.described import with_contact_friction
from knuckle.sysid.learned import learned
from knuckle.sysid.numbers import as_text, plain_data
from knuckle.sysid.pieces import starts_found
from knuckle.sysid.readers import Recordings
from knuckle.sysid.report import answer as answers
from knuckle.sysid.report import summarise
from knuckle.sysid.solve import Look
from tests.test_cli_fit import _urdf, check_page, log  # noqa: F401  # a fixture

PUCK = """<mujoco model="puck"><worldbody>
  <geom name="floor" type="plane" size="5 5 0.1" friction="0.7"/>
  <body name="puck" pos="0 0 0.1"><joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide" axis="0 0 1"/>
    <geom name="ball" type="sphere" size="0.1" friction="0.9"/>
    <geom name="hat" type="sphere" size="0.05" contype="0" conaffinity="0"/>
  </body></worldbody></mujoco>"""


@pytest.fixture(scope="module")
def arm(log, tmp_path_factory):  # noqa: F811
    """A URDF, a fit of masses, springs and an offset of the sensors, and the recordings."""
    path = tmp_path_factory.mktemp("arm") / "arm.urdf"
    path.write_text(_urdf())
    model = kn.load(path)
    recordings = sysid.read_recordings([log], model)
    options = {"solver": kn.optim.LevenbergMarquardt(max_iterations=6), "offsets": ["q"]}
    return path, sysid.fit(model, list(recordings), ["*.mass", "*.stiffness"], **options), recordings


@pytest.fixture(scope="module")
def touching(tmp_path_factory):
    """A puck on a floor, slid with a friction of 0.35, fitted with networks at gravity and at the friction."""
    path = tmp_path_factory.mktemp("puck") / "puck.xml"
    path.write_text(PUCK)
    with jax.enable_x64(True):
        model, recordings = kn.load(path), []
        for speed in (1.0, 1.5):
            first = model.state(np.zeros(2), np.array([speed, 0.0]))
            options = {"dt": 0.002, "contact": kn.contact.Impulse(friction=0.35)}
            motion = kn.rollout(model, first, steps=150, native=True, **options)
            q = np.concatenate([np.asarray(first.q)[None], np.asarray(motion.q)[4::5]])
            q = q + 1e-4 * np.random.default_rng(0).normal(size=q.shape)
            recordings.append(kn.Recording.of(model, 0.01 * np.arange(len(q)), q=q, name=f"slide {speed}"))
        networks = {
            "gravity": kn.Augment(MLP((4, 3), key=jax.random.key(0)), ("q", "qd")),
            "contact/friction": kn.Augment(MLP((3, 1), key=jax.random.key(1)), ("contact/slip", "contact/depth")),
        }
        free = ["contact.friction", "contact.restitution"]
        options = {"contact": kn.contact.Impulse(restitution=0.1), "blueprint": kn.Blueprint(networks), "draws": 1}
        options["solver"] = kn.optim.LevenbergMarquardt(max_iterations=4)
        found = sysid.fit(model, recordings, free, held_out=0, **options)
    return found, recordings, path.parent / "out", written(path.parent / "out", path, found, recordings)


def written(folder: Path, robot: Path | str, found: sysid.Fit, recordings, **about) -> dict:
    """What is in fit.json after the results were written."""
    folder.mkdir(exist_ok=True)
    recordings = recordings if isinstance(recordings, Recordings) else Recordings(recordings, sysid.Report())
    options = {"contact": found.contact, "blueprint": found.blueprint, **about}
    results = Results(
        folder, str(robot), found, recordings, [(0.1, 2.0)], about_fit(str(robot), recordings, (), options)
    )
    results.write()
    return json.loads((folder / "fit.json").read_text())


def without_springs(found: sysid.Fit) -> sysid.Fit:
    return replace(found, model=eqx.tree_at(lambda m: m.stiffness, found.model, np.zeros(2)))


def test_what_urdf_cannot_hold_is_written_as_mjcf(arm, tmp_path, capsys):
    path, found, recordings = arm
    assert np.any(np.asarray(found.model.stiffness) > 0)
    data = written(tmp_path / "out", path, found, recordings)
    names = {"arm.xml", "fit.json", "model.knuckle", "report.html"}
    assert {p.name for p in (tmp_path / "out").iterdir()} == names | {MARK}
    again = kn.load(tmp_path / "out" / "arm.xml")
    np.testing.assert_allclose(again.stiffness, found.model.stiffness, rtol=1e-12)
    np.testing.assert_allclose(again.inertia.mass, found.model.inertia.mass, rtol=1e-12)
    said = capsys.readouterr()
    assert "no stiffness" in said.err and "written as MJCF, arm.xml" in said.err
    assert data["robot_file"] == "arm.xml" and data["robot_file_lacks"] == ["sensor.q.offset"]
    kept = dict(kn.load_hybrid(tmp_path / "out" / "model.knuckle").calibration.offsets)["q"]
    assert kept == tuple(found[f"sensor.q.offset[{k}]"].value for k in range(len(kept)))
    assert "arm.xml has the parameters of the robot only, without sensor.q.offset" in said.out
    check_page(tmp_path / "out" / "report.html", "without sensor.q.offset", "the fitted robot is MJCF, arm.xml")


def test_the_robot_itself_is_never_overwritten_and_older_files_are_named(arm, tmp_path, capsys):
    path, found, recordings = arm
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "arm.urdf").write_bytes(path.read_bytes())
    (folder / "arm.xml").write_text("of an earlier fit")
    written(folder, folder / "arm.urdf", without_springs(found), recordings)
    assert (folder / "arm.urdf").read_bytes() == path.read_bytes()
    np.testing.assert_allclose(kn.load(folder / "arm_fitted.urdf").inertia.mass, found.model.inertia.mass, rtol=1e-12)
    assert "arm.xml is not of this fit but of an earlier one" in capsys.readouterr().out
    (folder / "model.knuckle").write_text("the robot that was given")
    written(folder, folder / "model.knuckle", found, recordings)
    assert (folder / "model.knuckle").read_text() == "the robot that was given"
    assert (folder / "model.xml").exists() and kn.load_hybrid(folder / "model_fitted.knuckle").model.name == "arm"


def test_fitted_friction_of_contacts_is_in_the_written_shapes(touching):
    """The rougher of two shapes counts: both get it, and a contact model without one of its own then slides alike."""
    found, _, folder, data = touching
    again, fitted = kn.load(folder / "puck.xml"), found["contact.friction"].value
    assert abs(fitted - 0.7) > 1e-3  # not what was described
    np.testing.assert_allclose(again.geometry.friction[:2, 0], fitted, rtol=1e-12)
    assert again.geometry.friction[2, 0] == 1.0  # it touches nothing
    first = again.state(np.zeros(2), np.array([1.0, 0.0]))
    slid = [
        kn.rollout(model, first, dt=0.002, steps=50, contact=contact, native=True).q[-1, 0]
        for model, contact in ((again, kn.contact.Impulse()), (found.model, kn.contact.Impulse(friction=fitted)))
    ]
    np.testing.assert_allclose(*slid, rtol=1e-9)
    assert data["robot_file_lacks"] == [
        *("the network at gravity", "the network at contact/friction", "contact.restitution")
    ]
    each = eqx.tree_at(lambda c: c.friction, found.contact, np.array([0.2]), is_leaf=lambda x: x is None)
    assert with_contact_friction(replace(found, contact=each)).geometry.friction[0, 0] == 0.2  # one contact, one number


def test_networks_at_any_tap_show_what_they_change(touching):
    found, recordings, folder, data = touching
    gravity, friction = learned(found)
    assert (gravity.tap, friction.tap) == ("gravity", "contact/friction") and not gravity.curves
    starts = starts_found(found, recordings)
    assert starts is not None
    network = found.blueprint.augments["gravity"][0]
    for series in gravity.series:
        axis = "xyz".index(series.name)
        np.testing.assert_allclose(series.without, found.model.gravity[axis])
        for row, (q, qd) in enumerate(zip(starts["q"], starts["qd"], strict=True)):  # there the network reads the start
            change = network.network(np.concatenate([q, qd]))[axis]
            np.testing.assert_allclose(series.used[row, 0] - series.without[row, 0], change, rtol=1e-6, atol=1e-12)
    (series,) = friction.series
    assert series.name == "ball|floor#0"
    np.testing.assert_allclose(series.without, found["contact.friction"].value)
    off = (series.used - series.without)[np.isfinite(series.used)]
    assert friction.size == pytest.approx(np.sqrt(np.mean(off**2))) and friction.size > 0
    assert data["networks"][1]["series"][0]["used"][0][0] == pytest.approx(series.used[0, 0], rel=1e-5)
    check_page(folder / "report.html", "contact/friction", "without it (RMS)", "contact.restitution")


def test_starts_of_pieces_have_their_recording_and_time(arm):
    _, found, recordings = arm
    starts, alone = starts_found(found, recordings), starts_found(found)
    assert starts is not None and alone is not None
    offset = [found[f"sensor.q.offset[{k}]"].value for k in range(2)]
    by_name = {r.name: r for r in recordings}
    for name, time, q in zip(starts["recording"], starts["time"], starts["q"], strict=True):
        run = by_name[name]
        np.testing.assert_allclose(q + offset, run.q[np.argmin(np.abs(run.time - time))], atol=0.05)
    assert alone["recording"] is None


def test_failed_tasks_and_all_searches_are_shown(arm, tmp_path, capsys):
    path, found, recordings = arm
    x = np.stack([found.result.x, found.result.x + 1])
    made = Searches(x - 1, x, np.array([1.5, np.inf]), ("converged", "stalled"), np.array([3, 4]))
    text = "task 1 of round 0: Traceback\n  somewhere\nZeroDivisionError: by nothing"
    failed = replace(found, result=replace(found.result, searches=made, failures=(text, "another")))
    cli_run.show(failed, summarise(failed, recordings))
    words = "2 tasks of the global search failed and gave nothing; the first so: ZeroDivisionError: by nothing"
    assert words in capsys.readouterr().out
    data = written(tmp_path / "out", path, failed, recordings)
    assert data["failures"] == [text, "another"]
    known = found.simulator.physical
    assert data["searches"]["free_numbers"] == list(found.objective.labels[:known])
    np.testing.assert_allclose(data["searches"]["end"], x[:, :known], rtol=1e-9)
    assert data["searches"]["half_sum_of_squares"] == [1.5, None]
    check_page(tmp_path / "out" / "report.html", words, "2 local searches; the best ended at 1.5")


def test_every_option_and_curve_is_in_the_json_file(arm, tmp_path, monkeypatch):
    path, found, recordings = arm
    monkeypatch.setattr(answers, "MOST_ENTRIES", 1)
    contact = kn.contact.Compliant(friction=0.25)
    data = written(tmp_path / "out", path, replace(found, contact=contact), recordings, columns={"a": "q"}, rate=None)
    assert "Compliant" in data["options"]["contact"] and "0.25" in data["options"]["contact"]
    assert data["options"]["columns"] == {"a": "q"} and data["options"]["rate"] is None
    (curve,) = data["held_out"]["curves"]
    held_out = found.held_out
    off = np.array(curve["after"], float) - np.array(curve["measured"], float)
    names, segments = ["q shoulder", "q elbow"], data["held_out"]["segments"]
    drawn = [(row, s["index"]) for row, s in enumerate(segments) if s["source"] == "held out"]
    for row, index in drawn:
        expected = held_out.off_after["q"][index, :, names.index(curve["name"])]
        np.testing.assert_allclose(off[row, : len(expected)], expected, atol=1e-5)
    assert len(drawn) >= 2
    check_page(tmp_path / "out" / "report.html", "1 of 2 entries are shown")


def test_json_text_is_json_with_rows_on_lines():
    data = {"a": [[1.5, 2], [3, None]], 'b"': {"c [ 1  ]": "d\n"}, "e": [], "f": {}, "g": [{"h": 1}], "i": "ü"}
    text = as_text(data)
    assert json.loads(text) == data and " [1.5, 2],\n" in text
    given = {1: np.array([np.nan, np.inf, 1.0]), "p": Path("a/b"), "t": (True, None)}
    assert plain_data(given) == {"1": [None, None, 1.0], "p": "a/b", "t": [True, None]}


def test_without_a_terminal_progress_is_lines(monkeypatch):
    file = io.StringIO()
    display = cli_run.Display(60.0, Interrupts(), Console(file=file, width=200))
    clock = iter(np.arange(0.0, 1000.0, 0.5))
    now = [next(clock)]
    monkeypatch.setattr(cli_run.Display, "elapsed", property(lambda self: now[0]))
    display.progress("4 free numbers, compiling")
    for value in range(30):  # a quarter of a minute of looks
        now[0] = next(clock)
        display.watch(Look(100.0 - value, 90.0 - value))
    display.progress("converged after 12 iterations")
    display.progress("converged after 7 iterations")
    display.progress("simulating what the fit has not seen")
    lines = file.getvalue().splitlines()
    assert [re.split(r"\d evaluations +", line)[-1].split(",")[0] for line in lines[:2]] == ["4 free numbers"] * 1 + [
        "loss 100   best 90   4 free numbers"
    ]
    assert len(lines) == 6 and all("s left" in line for line in lines), lines  # two of them while it searches
    assert "searching" in lines[2] and lines[4].endswith("12 iterations") and lines[5].endswith("has not seen")
