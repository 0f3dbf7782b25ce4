"""The report of a fit leads with the answer: order, units, worst segments, base parameters, folded parameters."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import numpy as np
import pytest

import knuckle as kn
from knuckle import robots, sysid
from knuckle.cli_show import show
from knuckle.sysid.findings import Finding
from knuckle.sysid.report import summarise, write_report
from knuckle.sysid.report.combinations import inertial_slopes
from knuckle.sysid.report.regression import write_regression
from knuckle.sysid.report.segments import segment_errors
from knuckle.sysid.torque_errors import Simulated, check_torques
from tests.sysid.regression.driven import log, rubbing
from tests.test_cli_fit import check_page

MOTOR = '<motor name="hinge_motor" joint="hinge"/></actuator>'
WORDS = ("looks", "foretold", "foretell", "mended", "told", "what is left", "pieces?", "deviations")
BANNED = re.compile("N m or N|" + "|".join(rf"\b{word}\b" for word in WORDS))
TRUE_MASSES = np.array([1.3, 0.8])


def heavier(model: kn.Model) -> kn.Model:
    return eqx.tree_at(lambda m: m.inertia.mass, model, np.asarray(model.inertia.mass) * TRUE_MASSES)


@pytest.fixture(scope="module")
def passive():
    """A double pendulum without motors: whatever is fitted, forces have no scale."""
    model = robots.load("double_pendulum")
    truth, rng, runs = heavier(model), np.random.default_rng(0), []
    for n in range(3):
        options = {"dt": 0.002, "steps": 500, "integrator": kn.RK4(), "contact": None, "native": True}
        motion = kn.rollout(truth, model.state(rng.normal(size=2)), **options)
        q = np.asarray(motion.q[4::5]) + 1e-3 * rng.normal(size=(100, 2))
        runs.append(kn.Recording.of(model, np.asarray(motion.time[4::5]), q=q, name=f"run {n}"))
    return kn.fit(model, runs), runs, truth


@pytest.fixture(scope="module")
def driven(tmp_path_factory):
    """A cart, which slides, with a pole, which turns: both driven, with measured efforts."""
    path = tmp_path_factory.mktemp("driven") / "cartpole.xml"
    path.write_text(Path(robots.path("cartpole")).read_text().replace("</actuator>", MOTOR))
    model = kn.load(path)
    truth = rubbing(heavier(model), armature=0.0, damping=0.1, friction=0.05)
    runs = [log(truth, seed=k, seconds=6, noise=0.01) for k in range(3)]
    return kn.fit(model, runs, loss="multiple shooting"), runs, truth


def text_of(page: Path) -> str:
    return re.sub(r"<[^>]*>", " ", re.sub(r"<style>.*?</style>|src=\"[^\"]*\"", "", page.read_text(), flags=re.S))


def titles(page: Path) -> list[str]:
    return re.findall(r"<h2>([^<]*)</h2>", page.read_text())


def test_the_page_leads_with_the_answer(driven, tmp_path):
    fit, runs, _ = driven
    finding = Finding("gaps", "q shoulder", 3, "note", "a detail that is long " * 20, "run 0")
    write_report(tmp_path, fit, recordings=runs, findings=[finding])
    found = titles(tmp_path / "report.html")
    order = ["Usable", "Fit quality", "Torque error by joint", "Worst and median segments", "Base parameters"]
    assert found[: len(order)] == order and found[len(order)] == "Single parameters", found
    assert found[-1] == "Found in the logs"
    check_page(tmp_path / "report.html", "Converged. Held-out error over", finding.detail.strip())
    assert not BANNED.search(text_of(tmp_path / "report.html")), BANNED.search(text_of(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text()
    assert "<table" not in page[page.index("Found in the logs") :]  # nothing to scroll, nothing cut


def test_quality_is_in_units_of_each_kind_of_joint_beside_the_noise_of_the_log(driven):
    """A slide and a hinge in one channel are two rows, each with its own unit."""
    fit, runs, _ = driven
    answer = summarise(fit, runs)
    units = [("q", "m"), ("q", "rad"), ("qd", "m/s"), ("qd", "rad/s")]
    assert [(q.channel, q.unit) for q in answer.quality] == units
    for row, name in zip(answer.quality, ("slider", "hinge") * 2, strict=True):
        assert row.worst == name and row.worst_error == row.after and row.ratio == row.after / row.noise
    noise = {q.channel: q.noise for q in answer.quality}
    assert noise["qd"] == pytest.approx(1e-4, rel=0.5)  # that of the log; a motion of 1 rad/s is not quite smooth
    units = {e.name: e.unit for e in fit.estimates}
    assert units["slider.damping"] == "N s/m" and units["hinge.damping"] == "N m s/rad"
    assert units["slider.friction"] == "N" and units["hinge.friction"] == "N m"
    assert answer.torques is not None and [e.unit for e in answer.torques.errors] == ["N", "N m"]


def test_the_worst_and_the_median_segments_are_drawn(driven):
    fit, runs, _ = driven
    answer = summarise(fit, runs)
    noise = {key: np.array([q.noise for q in answer.quality if q.channel == key]) for key in ("q", "qd")}  # m, rad
    off = {key: part[:, fit.held_out.seen :] / noise[key] for key, part in fit.held_out.off_after.items()}
    errors = np.sqrt(np.max([np.nanmean(part**2, axis=(1, 2)) for part in off.values()], axis=0))
    order = np.argsort(-errors)
    held_out = [s for s in answer.segments if s.is_held_out]
    assert [s.index for s in held_out] == [order[0], order[1], order[len(order) // 2]]
    assert [s.label for s in held_out] == ["worst", "2nd worst", "median"]
    np.testing.assert_allclose([s.error for s in held_out], errors[[s.index for s in held_out]], rtol=1e-9)
    (training,) = [s for s in answer.segments if not s.is_held_out]
    assert training.source == "training" and training.recording in {r.name for r in runs}
    assert [c.ratio for c in answer.curves] == sorted((c.ratio for c in answer.curves), reverse=True)


def test_errors_of_segments_count_what_was_measured_and_what_diverged():
    off = np.ones((3, 4, 1))
    off[0, 2:], off[1], off[2, 1] = np.nan, np.nan, np.inf
    errors = segment_errors({"q": off}, {"q": 0.5})
    assert errors[0] == 2.0 and np.isnan(errors[1]) and np.isinf(errors[2])


def test_base_parameters_are_determined_where_single_ones_are_not(driven):
    """Mass and centre of the pole are not determined, m c and J are."""
    fit, runs, truth = driven
    answer = summarise(fit, runs)
    rows = {row.name: row for row in answer.base}
    assert not answer.scale and {"cart.m + pole.m", "pole.mz", "pole.Iyy"} <= set(rows)
    mass, com = np.asarray(truth.inertia.mass), np.asarray(truth.inertia.com)[:, 2]
    for name, value, unit in (("cart.m + pole.m", mass.sum(), "kg"), ("pole.mz", mass[1] * com[1], "kg m")):
        assert rows[name].verdict == "determined" and rows[name].has_interval
        assert rows[name].value == pytest.approx(value, rel=0.01) and rows[name].unit == unit  # effort noise of 1 %
    assert any(e.verdict != "determined" for e in answer.parameters)


def test_without_forces_ratios_are_determined(passive):
    fit, runs, truth = passive
    answer = summarise(fit, runs)
    assert answer.scale and all(row.name.endswith(" / S") for row in answer.base)
    inertial = np.concatenate([np.asarray(truth.inertia.mass)[:, None], np.asarray(truth.inertia.com)], axis=1)
    moved = np.asarray(truth.inertia.moment)[:, 1] + inertial[:, 0] * (inertial[:, 1] ** 2 + inertial[:, 3] ** 2)
    rows = {row.name: row for row in answer.base}
    assert answer.scale == "upper.Iyy + 0.25 lower.m"
    scale = moved[0] + 0.25 * inertial[1, 0]
    true = {"lower.Iyy / S": moved[1] / scale, "lower.mz / S": np.prod(inertial[1, [0, 3]]) / scale}
    for name, value in true.items():
        row = rows[name]
        assert row.verdict == "determined" and abs(row.value - value) < 4 * row.deviation, name
    assert rows["lower.mz / S"].unit == "1/m" and rows["elbow.damping / S"].unit == "1/s"


def test_parameters_that_cannot_matter_are_one_line(passive, tmp_path):
    fit, runs, _ = passive
    answer = summarise(fit, runs)
    out_of_plane = {f"{link}.{entry}" for link in ("upper", "lower") for entry in (
        "com.y", "inertia.xx", "inertia.zz", "inertia.xy", "inertia.xz", "inertia.yz")}  # fmt: skip
    assert set(answer.no_effect) == out_of_plane
    assert not out_of_plane & {e.name for e in answer.parameters}
    write_report(tmp_path, fit, recordings=runs, answer=answer)
    text = text_of(tmp_path / "report.html")
    assert text.count("upper.inertia.zz") == 1 and "12 parameters have no effect on any motion" in text


def test_slopes_of_inertial_parameters_are_those_of_differences():
    model = robots.load("double_pendulum")
    slopes = inertial_slopes(model)
    moved = eqx.tree_at(lambda m: m.inertia.com, model, np.asarray(model.inertia.com) + 1e-6 * np.eye(2, 3))
    change = _inertial(moved) - _inertial(model)
    np.testing.assert_allclose(slopes[:, 1] + slopes[:, 12], change / 1e-6, atol=1e-5)


def _inertial(model: kn.Model) -> np.ndarray:
    from knuckle.sysid.base_parameters import inertial

    return np.asarray(inertial(model), float)


def test_torque_errors_are_those_of_the_simulator_on_held_out_data(driven):
    fit, runs, truth = driven
    answer = summarise(fit, runs)
    assert answer.torques is not None and not answer.torques.is_commanded
    for error in answer.torques.errors:
        assert error.held_out < 0.02 * error.effort < error.described
    assert all(curve.is_held_out for curve in answer.torques.curves)
    exact = check_torques(Simulated(fit.task.model, None, 0.01), Simulated(truth, None, 0.01), runs[:2], runs[2:])
    assert exact is not None
    for error in exact.errors:  # of effort noise of 1 %, white at 100 Hz, what passes the filter of some Hz
        assert error.held_out < 0.01 * error.effort


def test_wrong_inertia_with_the_right_motion_is_warned_of(driven, capsys):
    """Ten times the rotor inertia: the torque error shows it, and the verdict says so."""
    fit, runs, _ = driven
    wrong = replace(fit, model=eqx.tree_at(lambda m: m.armature, fit.model, np.array([5.0, 5.0])))
    answer = summarise(wrong, runs)
    assert answer.level == "bad" and answer.verdict == "Do not use"
    assert any("torques are predicted worse than by the description" in line for line in answer.warnings)
    show(wrong, answer)
    said = capsys.readouterr()
    assert said.out.startswith("Do not use.") and "warning: torques are predicted worse" in said.err
    assert not BANNED.search(said.out)


def test_a_prediction_that_diverges_is_not_called_usable(driven, tmp_path):
    fit, runs, _ = driven
    off = {key: np.where(np.isnan(part), part, 1e3) for key, part in fit.held_out.off_after.items()}
    off["q"][:, -1] = np.inf
    lost = replace(fit, held_out=replace(fit.held_out, off_after=off, after={"q": np.inf, "qd": 1e3}))
    answer = summarise(lost, runs)
    assert answer.level == "bad" and any("worse than no motion at all" in line for line in answer.warnings)
    write_report(tmp_path, lost, recordings=runs, answer=answer)
    check_page(tmp_path / "report.html", "Do not use")


def test_a_regression_has_the_same_sections_and_a_fit_with_one_shows_both_errors(driven, tmp_path):
    model, runs = driven[0].task.model, driven[1]
    write_regression(tmp_path, sysid.regress(model, runs))
    order = ["Usable", "Torque error by joint", "Base parameters", "Single parameters", "Found in the logs"]
    assert [title for title in titles(tmp_path / "report.html") if title != "Notes"] == order
    assert not BANNED.search(text_of(tmp_path / "report.html"))
    check_page(tmp_path / "report.html", "Torque error on held-out data", "determined")
    both = kn.fit(model, runs)
    assert both.regression is not None
    write_report(tmp_path, both, recordings=runs)
    order.insert(2, "Motion error on held-out data")
    assert [title for title in titles(tmp_path / "report.html") if title != "Notes"] == order
    assert "error before -> after: q" in " ".join(summarise(both, runs).sentences)


def test_whether_a_network_helped_is_in_the_answer(passive):
    fit, runs, _ = passive
    note = "the network at joint/passive_force is left out; held-out error: q 0.02 without, 0.03 with"
    answer = summarise(replace(fit, notes=[note, "another note"]), runs)
    assert answer.sentences[-1] == f"T{note[1:]}." and not any("another" in line for line in answer.sentences)


def test_without_a_held_out_error_nothing_is_called_usable(passive):
    fit, runs, _ = passive
    answer = summarise(replace(fit, held_out=None), runs)
    assert answer.level == "care" and "no held-out error" in answer.sentences[0]
    assert all(np.isnan(q.after) and q.error == q.training for q in answer.quality)
    assert {s.source for s in answer.segments} == {"training"}
