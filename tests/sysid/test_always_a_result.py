"""A fit always has a result: whatever fails or takes too long is left out and named, and nothing is made up."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import robots, sysid
from knuckle.deadline import Deadline, OutOfTime, bounded
from knuckle.interrupt import Interrupts
from knuckle.optim import LevenbergMarquardt, Status
from knuckle.sysid import selection, solve, task
from knuckle.sysid.chunks import in_chunks
from knuckle.sysid.objective import Objective
from knuckle.sysid.parameters import choose
from knuckle.sysid.plausibility import implausible
from knuckle.sysid.report import write_report
from knuckle.sysid.selection import blocks_in_spread_order, spread_out, subset
from knuckle.sysid.shots import choose_shots, make_shots
from tests.contention import Watch
from tests.sysid.logs import columns, pendulum, swing, write_csv

MODEL = robots.load("double_pendulum")
MASSES = np.array([1.3, 0.6])
ARM = """<robot name="arm"><link name="world"/>
<link name="upper"><inertial><origin xyz="0 0 -0.4"/><mass value="1e-4"/>
<inertia ixx="2e-6" iyy="2e-6" izz="1e-6" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="shoulder" type="continuous"><parent link="world"/><child link="upper"/><axis xyz="0 1 0"/></joint>
<link name="lower"><inertial><origin xyz="0 0 -0.4"/><mass value="1e-4"/>
<inertia ixx="2e-6" iyy="2e-6" izz="1e-6" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="elbow" type="continuous"><parent link="upper"/><child link="lower"/><origin xyz="0 0 -0.8"/>
<axis xyz="0 1 0"/></joint></robot>"""


def run(masses, seed: int, name: str, signs=(1.0, 1.0), samples: int = 100) -> kn.Recording:
    """A log of a pendulum of these masses at 100 Hz with a noise of 1 mrad, with other signs if asked for."""
    truth = eqx.tree_at(lambda m: m.inertia.mass, MODEL, np.asarray(masses))
    rng = np.random.default_rng(seed)
    first = MODEL.state(rng.normal(size=2))
    motion = kn.rollout(truth, first, dt=0.002, steps=5 * samples, integrator=kn.RK4(), contact=None, native=True)
    q = np.asarray(motion.q)[4::5] + 1e-3 * rng.normal(size=(samples, 2))
    return kn.Recording.of(MODEL, np.asarray(motion.time)[4::5], q=q * np.asarray(signs), name=name)


@pytest.fixture(scope="module")
def runs() -> list[kn.Recording]:
    return [run(MASSES, seed, f"run {seed}") for seed in range(3)]


def fit(runs, **options) -> sysid.Fit:
    return kn.fit(MODEL, runs, free=["*.mass"], **options)


def test_a_phase_ends_at_its_deadline_whatever_it_does():
    with Watch() as watch, pytest.raises(OutOfTime):
        bounded(lambda: time.sleep(600), Deadline(0.2))
    assert watch.within(0.2, work=1)  # a thread that sleeps costs nothing
    assert bounded(lambda: 3, Deadline(20.0)) == bounded(lambda: 3, Deadline()) == 3
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 / 0, Deadline(20.0))
    stop = Interrupts()
    stop.count = 1  # an earlier Ctrl-C ended an earlier phase
    assert bounded(lambda: 3, Deadline(20.0), stop) == 3
    whole = Deadline(100.0)
    assert whole.share(0.5).left == pytest.approx(50, abs=1) and whole.earlier(90).left == pytest.approx(50, abs=1)
    whole.share(0.5).leave_out("this")
    assert whole.left_out == ["this"] and Deadline().seconds_left is None and math.isinf(Deadline().share(0.1).left)


def test_segments_are_chosen_all_over_the_recordings():
    blocks = list(blocks_in_spread_order([40, 8]))
    assert sorted(place for block in blocks for place in block) == [(0, k) for k in range(40)] + [
        (1, k) for k in range(8)
    ]
    early = (
        {run for block in blocks[:6] for run, _ in block},
        [k for block in blocks[:6] for run, k in block if run == 0],
    )
    assert early[0] == {0, 1} and max(early[1]) - min(early[1]) > 15


def test_chosen_segments_are_tied_only_to_those_that_follow():
    shots = make_shots(MODEL, [run(MASSES, 0, "a", samples=200)], length=0.2, noise={"q": 1e-3})
    np.testing.assert_array_equal(subset(shots, np.array([0, 1, 3])).joined, [1, 0, 0])
    some = spread_out(shots, 4)
    assert some.count == 4 and spread_out(shots, 99) is shots and np.sum(some.joined) == 3


def test_few_segments_at_a_time_give_what_all_of_them_give(runs):
    """A program for a few is called again and again, in threads; the last call has some of them twice."""
    made = fit(runs[:1], held_out=0, segment=0.05)
    objective, x = made.objective, made.result.x
    assert objective.shots.count == 20
    given = x[: objective.size], objective.starts(x), objective.shots
    whole = jax.tree.map(np.asarray, objective._native(*given))
    for threads in (1, 2):
        for a, b in zip(whole, in_chunks(objective._native, 8, threads)(*given), strict=True):
            np.testing.assert_array_equal(a, b)


def test_more_data_than_memory_holds_is_said_and_not_used(runs, monkeypatch):
    monkeypatch.setattr(selection, "MEMORY", 8 * 11 * 2 * 6 * 10)  # ten segments of 11 samples, 2 entries, 6 numbers
    made = fit(runs, segment=0.1)
    assert made.shots.count <= 12  # blocks are whole
    (line,) = [line for line in made.left_out if line.startswith("data:")]
    assert f"{made.shots.count} of 20 segments" in line and "memory" in line
    assert made.converged and made["upper.mass"].lower < MASSES[0] < made["upper.mass"].upper


def test_time_that_suffices_for_nothing_leaves_the_description(runs, monkeypatch):
    """A compiler that takes ten minutes does not hold up a fit of three seconds."""
    monkeypatch.setattr(Objective, "look", lambda self, x: time.sleep(600))
    with Watch() as watch:
        made = fit(runs, seconds=3.0)
    assert watch.within(3 * 1.1, work=5)
    assert made.result.status == Status.TIME_LIMIT and not made.evaluated and made.is_doubtful
    assert made["upper.mass"].value == made["upper.mass"].before and "compiling" in " ".join(made.left_out)
    assert "nothing was fitted" in made.warnings()[0] and made.residuals == {} and made.missing() == []


def test_a_simulation_that_diverges_does_not_end_a_fit(tmp_path: Path):
    """As with a vendor's description, which has neither friction nor rotor inertia, and measured torques."""
    (tmp_path / "arm.urdf").write_text(ARM)
    model, time = kn.load(tmp_path / "arm.urdf"), 0.01 * np.arange(60)
    q = np.stack([np.sin(3 * time), 0.5 * np.cos(4 * time)], axis=1)
    q += 1e-3 * np.random.default_rng(0).normal(size=q.shape)
    tau = np.stack([np.sin(3 * time), np.cos(2 * time)], axis=1)
    log = kn.Recording.of(model, time, q=q, tau=tau, name="pushed")
    made = kn.fit(model, log, free=["*.mass", "*.damping"])
    assert not made.converged and made.warnings() and "nan" not in repr(made)
    folder = tmp_path / "out"
    write_report(folder, made)
    assert {path.name for path in folder.iterdir()} == {"fit.json", "report.html"}


def test_linear_algebra_that_fails_leaves_out_what_it_was_for(runs, monkeypatch):
    def broken(*_, **__):
        raise np.linalg.LinAlgError("SVD did not converge")

    monkeypatch.setattr(sys.modules["knuckle.sysid.fit"], "certainty", broken)
    monkeypatch.setattr(task, "held_out_errors", broken)
    made = fit(runs)
    assert made.left_out == ["intervals: SVD did not converge", "the held-out error: SVD did not converge"]
    assert made.converged and not made.certainty.is_known and made.held_out is None
    assert not any(e.has_interval for e in made.estimates) and made["upper.mass"].value == pytest.approx(1.3, rel=0.05)
    monkeypatch.setattr(solve, "noise_left", broken)
    assert fit(runs).result.status == Status.NUMERICAL_FAILURE


def test_a_search_that_did_not_converge_has_no_intervals(runs, tmp_path: Path):
    made = fit(runs, solver=LevenbergMarquardt(max_iterations=1))
    assert made.result.status == Status.MAX_ITERATIONS and made.next_step > 1 and not made.converged
    row = made["upper.mass"]
    assert row.verdict == "not converged" and math.isnan(row.lower) and row.texts[2] == "unknown"
    assert np.isnan(made.interval(lambda m: jnp.asarray(m.inertia.mass)).upper).all()
    assert "did not converge" in made.warnings()[0] and "unknown" in repr(made)
    write_report(tmp_path, made)
    text = (tmp_path / "fit.json").read_text()
    assert '"converged": false' in text and '"lower": null' in text and '"covariance": null' in text
    assert "unknown" in (tmp_path / "report.html").read_text()
    near = fit(runs, solver=LevenbergMarquardt(max_iterations=20, value_tolerance=0.0, gradient_tolerance=0.0))
    assert near.converged and near.next_step < 0.3 and near["upper.mass"].has_interval


def test_implausible_values_are_flagged():
    parameters = choose(MODEL, {"upper.mass": None, "lower.com": kn.Prior(spread=0.05)})
    z = np.array([0.1, 0.0, 0.0, 400.0])
    fitted, _ = parameters.put(MODEL, None, z)
    far, body = implausible(parameters, MODEL, fitted, z)
    assert "lower.com.z" in far and "standard deviations of the prior" in far
    assert "centre of mass of lower" in body
    assert implausible(parameters, MODEL, MODEL, np.zeros(4)) == []


def test_recordings_that_contradict_are_named_with_numbers(runs):
    """One log has the sign of a joint wrong: it is held out or fitted, and named in both cases."""
    assert fit(runs).warnings() == []
    wrong = run(MASSES, 4, "turned", signs=(1.0, -1.0))
    made = fit([*runs[:2], wrong])  # as many as above, so that the programs are the same
    assert len(made.contradictions) == 1 and made.is_doubtful
    assert made.contradictions[0].startswith("recording turned contradicts ") and "x noise" in made.contradictions[0]
    pair = fit([runs[0], run([0.3, 3.0], 3, "other robot")])
    worse, against = pair.warnings()[:2]
    assert "worse than before the fit" in worse and "->" in worse
    assert "other robot" in against and "run 0" in against and "contradict each other" in against


@pytest.mark.parametrize("present", [(1, 2), (1,)])
def test_recordings_whose_segments_the_time_does_not_allow_are_not_compared(runs, present, monkeypatch):
    """The deadline can leave no segment of a recording; the comparison then uses the others, or none."""
    cut, seen = task.Task.pieces, []

    def some(self, recordings, noise):
        shots, instruments = cut(self, recordings, noise)
        seen.append([recordings[k].name for k in present])
        return subset(shots, np.flatnonzero(np.isin(np.asarray(shots.run), present))), instruments

    monkeypatch.setattr(task.Task, "pieces", some)
    made = fit([*runs[:2], run(MASSES, 4, "turned", signs=(1.0, -1.0))])
    assert seen and not made.left_out
    if len(present) == 1:
        assert made.contradictions == []
    else:
        assert len(made.contradictions) == 1 and all(name in made.contradictions[0] for name in seen[0])


@pytest.mark.parametrize(
    ("channel", "value"),
    [("shoulder", 1e30), ("shoulder", 1e12), ("shoulder_vel", -1e300), ("tau_shoulder", 1e30), ("elbow_acc", np.inf)],
)
def test_absurd_values_are_left_out_at_reading(channel: str, value: float, tmp_path: Path):
    t, q, qd = swing(seconds=2.0)
    table = columns(t, q, qd, tau_shoulder=np.sin(t), tau_elbow=np.cos(t), shoulder_acc=-q[:, 0], elbow_acc=-q[:, 1])
    table = {key: column.copy() for key, column in table.items()}
    table[channel][100:103] = value
    found = sysid.read_recordings(write_csv(tmp_path / "log.csv", table), pendulum())
    (line,) = found.report.of("absurd values" if np.isfinite(value) else "not finite")
    assert (
        line.count == 3
        and line.action == "left out"
        and channel.split("_")[-1 if "tau" in channel else 0] in line.place
    )
    assert all(np.abs(c.values).max() < 1e3 for c in found[0].channels.values())


def test_absurd_values_of_arrays_are_refused_by_name(runs):
    q = np.array(runs[0]["q"].values)
    q[7, 1] = 1e30
    log = kn.Recording.of(MODEL, runs[0].time, q=q, name="bad")
    with pytest.raises(ValueError, match=r"recording 'bad.*q elbow is 1e\+30"):
        fit(log)


def test_fewer_segments_are_the_first_of_more():
    """So a count says which they are, and a fit of some segments can be resumed."""
    logs = [run(MASSES, seed, f"run {seed}", samples=150) for seed in range(2)]
    options = {"length": 0.1, "noise": {"q": 1e-3}}
    more, available, turn = choose_shots(MODEL, logs, most=20, **options)
    fewer, _, _ = choose_shots(MODEL, logs, most=9, **options)
    part = subset(more, np.flatnonzero(turn < 9))
    assert (more.count, fewer.count, available) == (20, 9, 30)
    for name in ("begin", "run", "joined", "q", "qd"):
        np.testing.assert_array_equal(getattr(part, name), getattr(fewer, name))
