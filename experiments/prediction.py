"""Coverage of prediction intervals on held-out data: a simulated arm whose truth is known, and a real UR10e.

Simulated arm: regressions on logs whose efforts have correlated noise (`torque_noise.py`), with a description that is
up to 30 % off. Windows of another log start at known states and are driven by the measured, noisy efforts; errors of
the effort are drawn as the residuals of the regression have them. UR10e: trained on one log. The noise of the effort is
estimated by `smooth` and `calibrate` on that log. Windows of other logs start at filtered states, which know only what
was measured before (linearised about the smoothed trajectory). Counted: how often positions after 0.2 and 0.5 s lie
within their 95 % intervals.
Run: python experiments/prediction.py [--quick]. Writes experiments/results/prediction.{md,json}.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import knuckle as kn
from knuckle import robots, sysid
from knuckle.model.report import LoadWarning
from knuckle.sysid import datasets
from knuckle.sysid.prediction.sources import residual_noise

RESULTS = Path(__file__).parent / "results"
TRAIN, OTHERS = "20_02_12-40sec_12harm", ("20_02_05-20sec_12harm", "20_02_10-30sec_12harm")
AFTER = (0.2, 0.5)  # [s]
ARM_LOGS, ARM_WINDOWS, UR10E_WINDOWS, SAMPLES = 6, 12, 24, 100
STEP = 0.002  # of roll-outs [s]
MOVING = 0.02  # [rad/s]
PART = 8.0  # seconds of each log of the UR10e that are smoothed


class Windows(NamedTuple):
    """Where windows begin, with efforts of each step and positions measured at the ends of interest."""

    first: np.ndarray  # samples
    effort: np.ndarray  # (window, step, nu)
    measured: np.ndarray  # (window, time, joint)


def shares(rows: dict[str, Any]) -> str:
    return ", ".join(f"{row['covered']:.3f} after {after}" for after, row in rows.items())


def windows(model: kn.Model, run: sysid.Recording, count: int, positions: sysid.Recording | None = None) -> Windows:
    """Windows of 0.5 s spread over the moving part; efforts linear between samples, positions interpolated."""
    q, tau, seconds = (positions or run)["q"].values, run["tau"].values, run.time
    longest = AFTER[-1]
    moving = np.any(np.abs(run["qd"].values) > MOVING, axis=1)
    able = [
        k
        for k in range(10, len(seconds))
        if seconds[-1] - seconds[k] > longest + 0.05 and moving[k : k + round(longest / run.period)].all()
    ]
    first = np.array(able)[np.unique(np.linspace(0, len(able) - 1, count).astype(int))]
    middle = (np.arange(round(longest / STEP)) + 0.5) * STEP
    factor = np.asarray(model.actuators.gear) * np.asarray(model.actuators.gain)

    def between(values: np.ndarray, at: np.ndarray) -> np.ndarray:
        return np.stack([np.interp(at, seconds, x) for x in values.T], axis=-1)

    effort = np.array([between(tau, seconds[k] + middle) / factor for k in first])
    measured = np.array([between(q, seconds[k] + np.array(AFTER)) for k in first])
    return Windows(first, effort, measured)


def covered(found: Sequence[sysid.MotionPrediction], measured: np.ndarray) -> dict[str, Any]:
    """Shares within intervals and half widths, after each time."""
    rows = {}
    for number, after in enumerate(AFTER):
        k = round(after / STEP) - 1
        inside = np.array(
            [(p.q.lower[k] <= y[number]) & (y[number] <= p.q.upper[k]) for p, y in zip(found, measured, strict=True)]
        )
        half = np.array([(p.q.upper[k] - p.q.lower[k]) / 2 for p in found])
        off = np.array([p.q.value[k] - y[number] for p, y in zip(found, measured, strict=True)])
        rows[f"{after:g} s"] = {
            "cases": int(inside.size),
            "covered": float(inside.mean()),
            "by joint": inside.mean(axis=0).tolist(),
            "half width": float(np.median(half)),
            "error": float(np.sqrt(np.mean(off**2))),
            "diverged": int(sum(p.diverged for p in found)),
        }
    return rows


def simulated_arm(logs: int, count: int) -> dict[str, Any]:
    """Regressions of descriptions whose masses are off, predictions of logs that they have not seen."""
    noise = importlib.import_module("torque_noise" if __package__ in (None, "") else "experiments.torque_noise")
    described = robots.load("arm")
    rows = []
    for seed in range(logs):
        true = noise.true_arm(described)
        training, nothing = noise.log(true, seed), np.zeros(described.nv)
        found = sysid.regress(described, training)
        level = np.std(training["tau"].values - noise.log(true, seed, nothing)["tau"].values, axis=0)
        unseen, exact = noise.log(true, 1000 + seed, level), noise.log(true, 1000 + seed, nothing)
        chosen = windows(found.model, unseen, count, exact)
        drawn = sysid.draws(found, SAMPLES, seed)
        error = residual_noise(found)
        predicted = []
        for n, (k, u) in enumerate(zip(chosen.first, chosen.effort, strict=True)):
            state = kn.State(exact["q"].values[k], exact["qd"].values[k])
            predicted.append(drawn.rollout(state, u, dt=STEP, effort_noise=error, seed=100 * seed + n))
        rows.append(covered(predicted, chosen.measured))
        print(f"arm {seed}: {shares(rows[-1])}", flush=True)
    return merged(rows)


def merged(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over logs of equally many cases."""
    found = {}
    for key in rows[0]:
        parts = [row[key] for row in rows]
        found[key] = {
            "cases": sum(p["cases"] for p in parts),
            "covered": float(np.average([p["covered"] for p in parts], weights=[p["cases"] for p in parts])),
            "by joint": np.mean([p["by joint"] for p in parts], axis=0).tolist(),
            "half width": float(np.median([p["half width"] for p in parts])),
            "error": float(np.sqrt(np.mean([p["error"] ** 2 for p in parts]))),
            "diverged": sum(p["diverged"] for p in parts),
        }
    return found


def ur10e(others: Sequence[str], count: int, seconds: float | None = None) -> dict[str, Any]:
    """Predictions of logs of a real arm, from a regression on one log and the noise of the effort there."""
    folder = datasets.find("ur10e")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoadWarning)
        model = kn.load(folder / "ur10e.urdf")

    def read(name: str) -> sysid.Recording:
        run = sysid.read_recordings(folder / f"{name}.csv", model)[0]
        return sysid.shift(run, "tau", -found.delay) if found is not None and found.delay else run

    found = None
    found = sysid.regress(model, read(TRAIN))
    began = time.perf_counter()
    training = sysid.smooth(found.model, cut(read(TRAIN), seconds), blueprint=found.blueprint)
    print(f"{training}\n{time.perf_counter() - began:.0f} s", flush=True)
    noise, drawn = dict(training.noise), sysid.draws(found, SAMPLES)
    efforts = {
        told: sysid.calibrate(drawn, cut(read(TRAIN), seconds), training, AFTER[-1], dt=STEP, known_error=told)
        for told in (True, False)
    }
    print(f"calibrated: {efforts}", flush=True)
    rows: dict[str, list] = {"with the error known": [], "without": []}
    converged = {TRAIN: training.converged}
    for name in others:
        run = cut(read(name), seconds)
        given: dict[str, Any] = {"noise": noise, "effort_noise": training.effort_noise}
        states = sysid.smooth(found.model, run, blueprint=found.blueprint, **given)
        converged[name] = states.converged
        print(f"{name}: {states.iterations} iterations, converged {states.converged}", flush=True)
        chosen = windows(found.model, run, count)
        for key, told in (("with the error known", True), ("without", False)):
            predicted = [
                drawn.rollout(
                    states.state(k, filtered=True), u, dt=STEP, covariance=states.filtered.covariance[k],
                    effort_noise=efforts[told], seed=n, measurement_noise=noise,
                    effort_error=(states.filtered.error[k], states.filtered.error_covariance[k]) if told else None,
                )
                for n, (k, u) in enumerate(zip(chosen.first, chosen.effort, strict=True))
            ]  # fmt: skip
            rows[key].append(covered(predicted, chosen.measured))
            print(f"{name}, {key}: {shares(rows[key][-1])}", flush=True)
    return {key: merged(parts) for key, parts in rows.items()} | {
        "converged": converged,
        "noise": {
            "effort": efforts[False].deviation.tolist(),
            "effort, with the error known": efforts[True].deviation.tolist(),
            "correlation": efforts[False].correlation,
            **{key: value.tolist() for key, value in noise.items()},
        },
    }


def cut(run: sysid.Recording, seconds: float | None) -> sysid.Recording:
    """The part from where the robot begins to move, of at most so many seconds."""
    first = max(int(np.argmax(np.any(np.abs(run["qd"].values) > MOVING, axis=1))) - 50, 0)
    end = len(run) if seconds is None else int(np.searchsorted(run.time, run.time[first] + seconds))
    return run.at(first, end)


def claims(found: dict[str, Any]) -> list[dict[str, Any]]:
    """On simulated truth coverage must be near 95 %; on real data it is measured."""
    made = []
    for key, row in found["arm"].items():
        held = row["covered"]
        made.append(
            {"what": f"simulated arm, after {key}: coverage of 95 % intervals", "measured": held,
             "wanted": "0.90 to 0.98", "holds": bool(0.90 <= held <= 0.98)}
        )  # fmt: skip
    for key in ("with the error known", "without"):
        for after, row in found.get("ur10e", {}).get(key, {}).items():
            held = row["covered"]
            made.append(
                {"what": f"UR10e, {key}, after {after}: coverage of 95 % intervals", "measured": held,
                 "wanted": "0.90 to 0.98", "holds": bool(0.90 <= held <= 0.98)}
            )  # fmt: skip
    return made


def table(found: dict[str, Any]) -> str:
    lines = [
        "| data | after | cases | covered | median half width [rad] | RMS error of the fitted model [rad] | diverged |",
        "|---|" + "--:|" * 6,
    ]
    sets = {"simulated arm": found["arm"]}
    sets |= {f"UR10e, {key}": found["ur10e"][key] for key in ("with the error known", "without") if "ur10e" in found}
    for name, rows in sets.items():
        for after, r in rows.items():
            cells = (
                f"{r['cases']}",
                f"{r['covered']:.1%}",
                f"{r['half width']:.4f}",
                f"{r['error']:.4f}",
                f"{r['diverged']}",
            )
            lines.append(f"| {name} | {after} | " + " | ".join(cells) + " |")
    lines += ["", str(__doc__).partition("\n")[2].partition("Run:")[0].strip()]
    if "ur10e" in found:
        noise = found["ur10e"]["noise"]
        efforts = ", ".join(f"{x:.2f}" for x in noise["effort"])
        lines += ["", f"UR10e: noise of the effort {efforts} N m, correlated over {noise['correlation']:.2f} s."]
        settled = found["ur10e"]["converged"].values()
        lines += [f"The smoother converged on {sum(settled)} of {len(settled)} logs."]
        lines += ["\"With the error known\": the filter's estimate of the effort's error at the start is used."]
        for key in ("with the error known", "without"):
            by_joint = ", ".join(f"{x:.0%}" for x in found["ur10e"][key]["0.5 s"]["by joint"])
            lines.append(f"Coverage by joint after 0.5 s, {key}: {by_joint}.")
    lines += ["", "| claim | measured | wanted | holds |", "|---|--:|---|---|"]
    for c in claims(found):
        lines.append(f"| {c['what']} | {c['measured']:.3f} | {c['wanted']} | {'yes' if c['holds'] else 'no'} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one simulated log, nothing written")
    options = parser.parse_args(arguments)
    with jax.enable_x64(True):
        found: dict[str, Any] = {"arm": simulated_arm(*((1, 6) if options.quick else (ARM_LOGS, ARM_WINDOWS)))}
        if not options.quick:
            found["ur10e"] = ur10e(OTHERS, UR10E_WINDOWS, PART)
    print(table(found))
    if not options.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "prediction.md").write_text(table(found))
        (RESULTS / "prediction.json").write_text(json.dumps({**found, "claims": claims(found)}, indent=1))
    return found


if __name__ == "__main__":
    main()
