"""Faults put into clean logs, and whether reading them finds the right one; clean logs must give no alarm.

Real logs of a UR10e arm and of a pendulum (DFKI), and simulated arms and pendulums whose masses, friction and rotors
the description does not know. Each log gets faults of units, signs, zeros, clocks, currents, exchanged joints, frozen
channels, outliers, lost and doubled samples, a missing header, and a robot that stands still. What is the right finding
stands beside each fault in faulty_logs_variants.py. Thresholds were chosen with the logs of `tuning_sources` in view.
Those of `fresh_sources` were not read before the checks were written; they judge.
Run: python experiments/faulty_logs.py [--quick]. Writes experiments/results/faulty_logs.{md,json}.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faulty_logs_variants as made
import jax
import numpy as np
from faulty_logs_variants import Log, Outcome, Variant

import knuckle as kn
from knuckle import robots, sysid
from knuckle.sysid import datasets
from knuckle.sysid.findings import RecordingError

RESULTS = Path(__file__).parent / "results"
SEED = 1
LEAST = 0.9  # share of right findings
KNOWN = {"20_02_19_14harm50secLoad": ("spikes", "tau shoulder_lift_joint")}  # -139.7 N m in one sample: a real outlier
REAL_PENDULUM = "control_method_ddp/data_measured"
FRESH_SEEDS = (20, 21, 22)
FRESH_UR10E = ("20_02_06-20sec_5harm", "20_02_10-30sec_12harm")
FRESH_PENDULUMS = ("control_method_energy_shaping/data_measured", "control_method_ilqr/data_measured")


def read(log: Log, folder: Path) -> Outcome:
    """What a reader says of a log, which is written as a file first."""
    path = folder / "log.csv"
    path.write_text(log.text())
    try:
        return list(sysid.read_recordings(path, log.model).report), None
    except RecordingError as error:
        return [], error


def tuning_sources() -> list[Log]:
    """Clean logs that faults are put into, with which thresholds were chosen: real ones where they are there."""
    found = [made.simulated_arm(0), made.simulated_arm(1), made.simulated_pendulum(0), made.simulated_pendulum(1)]
    if _there("ur10e"):
        found += [made.moving_part(log) for log in made.ur10e() if log.name in made.UR10E]
    if _there("dfki_simple_pendulum"):
        found += [log for log in made.dfki() if log.name == REAL_PENDULUM]
    return found


def fresh_sources() -> list[Log]:
    """Clean logs that faults are put into, which no threshold was chosen by."""
    found = [made.simulated_arm(k) for k in FRESH_SEEDS[:2]] + [made.simulated_double_pendulum(FRESH_SEEDS[0])]
    found += [made.simulated_pendulum(FRESH_SEEDS[0])]
    if _there("ur10e"):
        found += [made.moving_part(log) for log in made.ur10e() if log.name in FRESH_UR10E]
    if _there("dfki_simple_pendulum"):
        found += [log for log in made.dfki() if log.name in FRESH_PENDULUMS]
    return found


def _there(name: str) -> bool:
    try:
        return bool(datasets.find(name))
    except FileNotFoundError:
        return False


def clean_logs(quick: bool) -> list[Log]:
    """All real logs in full, simulated ones, and those of the robots that come with the package."""
    found = [made.simulated_pendulum(2)] if quick else []
    if not quick:
        for seeds in (range(5), FRESH_SEEDS):
            found += [made.simulated_arm(k) for k in seeds] + [made.simulated_pendulum(k) for k in seeds]
        found += [made.simulated_double_pendulum(k) for k in FRESH_SEEDS] + [
            made.simulated_scara(k) for k in FRESH_SEEDS
        ]
        found += made.ur10e() if _there("ur10e") else []
        found += made.dfki() if _there("dfki_simple_pendulum") else []
    return found


def judged(variants: Sequence[Variant], folder: Path, half: str) -> list[dict[str, Any]]:
    rows = []
    for variant in variants:
        outcome = read(variant.log, folder)
        findings = [f"{f.place}: {f.what}: {f.detail}" for f in outcome[0] if f.action != "note"]
        said = findings if outcome[1] is None else [str(outcome[1]).splitlines()[0]]
        rows.append({
            "log": variant.log.name, "fault": variant.kind, "wanted": variant.wanted,
            "right": bool(variant.right(outcome)), "half": half,
            "alarms": len(findings), "said": [text[:300] for text in said[:6]],
        })  # fmt: skip
        print(f"{'right' if rows[-1]['right'] else 'WRONG'}  {variant.log.name}: {variant.kind}", flush=True)
    return rows


def alarms(log: Log, folder: Path) -> list[str]:
    """What is said of a clean log beyond notes, but for faults that it really has."""
    findings, error = read(log, folder)
    known = KNOWN.get(log.name)
    said = [f for f in findings if f.action != "note" and (f.what, f.place) != known]
    return [str(f) for f in said] + ([] if error is None else [str(error)])


def built_in_alarms(name: str, folder: Path) -> list[str]:
    """Those of a built-in robot that moves by itself, or with controls that change slowly."""
    model, rng = robots.load(name), np.random.default_rng(0)
    time = 0.002 * np.arange(4000)
    waves = np.sin(np.outer(time, rng.uniform(1, 4, model.nu)) + rng.uniform(0, 6, model.nu))
    start = model.state(next(iter(model.keyframes), None))
    servos = np.asarray(model.actuators.bias)[:, 1:].any()
    hold = np.asarray(model.holding_control(np.asarray(start.q)))
    controls = hold + (0.1 if servos else 1.0) * waves
    with jax.enable_x64(True):
        contact = kn.contact.Impulse() if name == "quadruped" else None
        motion = kn.rollout(model, start, controls, dt=0.002, contact=contact, native=True)
    rows = slice(4, None, 5)
    q, qd = (np.asarray(x)[rows] for x in (motion.q, motion.qd))
    run = sysid.Recording.of(model, time[rows], q=q, qd=qd, control=controls[rows] if model.nu else None, name=name)
    path = folder / f"{name}.csv"
    text = sysid.save(run, path).read_text().splitlines()
    path.write_text("\n".join(text[1:]) + "\n")  # without the mark of our own files, so that all is checked
    return [str(f) for f in sysid.read_recordings(path, model).report if f.action != "note"]


def experiment(quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name), []
        if quick:
            for log in (made.simulated_arm(0), made.simulated_pendulum(0)):
                rows += judged(made.variants_of(log, SEED)[::6], folder, "tuning")
        else:
            for half, logs in (("fresh", fresh_sources()), ("tuning", tuning_sources())):
                for log in logs:
                    rows += judged(made.variants_of(log, SEED), folder, half)
        clean = {log.name: alarms(log, folder) for log in clean_logs(quick)}
        clean |= {name: built_in_alarms(name, folder) for name in ("cartpole",) if quick}
        clean |= {} if quick else {name: built_in_alarms(name, folder) for name in robots.names()}
    return {"variants": rows, "clean": clean}


def claims(found: dict[str, Any], quick: bool) -> list[dict[str, Any]]:
    rows = found["variants"] if quick else [row for row in found["variants"] if row["half"] == "fresh"]
    share = float(np.mean([row["right"] for row in rows]))
    false = {name: said for name, said in found["clean"].items() if said}
    counted = [
        {"what": "clean logs that give an alarm", "measured": len(false), "wanted": "0", "holds": not false},
        {
            "what": f"right finding in {len(rows)} faulty variants of logs that no threshold was chosen by",
            "measured": share,
            "wanted": f"at least {LEAST}",
            "holds": share >= LEAST,
        },
    ]
    if not quick:
        total = len(rows)
        what = "faulty variants of such logs"
        counted.append({"what": what, "measured": total, "wanted": "at least 200", "holds": total >= 200})
    return counted


def report(found: dict[str, Any], stated: list[dict[str, Any]]) -> str:
    rows = found["variants"]
    lines = ["# Faulty logs", "", f"{len(rows)} faulty variants, {len(found['clean'])} clean logs.", ""]
    lines += ["| claim | measured | wanted | holds |", "|---|---|---|---|"]
    lines += [
        f"| {c['what']} | {c['measured']:.3g} | {c['wanted']} | {'yes' if c['holds'] else 'no'} |" for c in stated
    ]
    lines += ["", "| log | thresholds chosen with it | right |", "|---|---|---|"]
    for log in dict.fromkeys(row["log"] for row in rows):
        seen = any(row["half"] == "tuning" for row in rows if row["log"] == log)
        lines.append(f"| {log} | {'yes' if seen else 'no'} | {_count(rows, None, log=log)} |")
    lines += ["", "| fault | right, logs not in view | right, logs in view |", "|---|---|---|"]
    for kind in dict.fromkeys(row["fault"] for row in rows):
        lines.append(f"| {kind} | " + " | ".join(_count(rows, half, fault=kind) for half in ("fresh", "tuning")) + " |")
    for name, said in found["clean"].items():
        lines += [f"\nClean log {name}: {text}" for text in said]
    wrong = [row for row in rows if not row["right"]]
    lines += ["", "Not found, or found as something else:", ""] if wrong else []
    lines += [
        f"- {r['log']}, {r['fault']} (wanted: {r['wanted']}): {'; '.join(r['said'][:2]) or 'nothing'}" for r in wrong
    ]
    extra = sum(row["alarms"] > 1 and row["right"] for row in rows)
    lines += ["", f"Beside the right finding, {extra} variants have further alarms, most of them of the same fault."]
    return "\n".join(lines) + "\n"


def _count(rows: Sequence[dict[str, Any]], half: str | None, **wanted: str) -> str:
    own = [r for r in rows if half in (None, r["half"]) and all(r[key] == value for key, value in wanted.items())]
    return f"{sum(r['right'] for r in own)} of {len(own)}"


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few variants of simulated logs; writes nothing")
    quick = parser.parse_args(arguments).quick
    found = experiment(quick)
    found["claims"] = claims(found, quick)
    if not quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "faulty_logs.json").write_text(json.dumps(found, indent=1) + "\n")
        (RESULTS / "faulty_logs.md").write_text(report(found, found["claims"]))
    for claim in found["claims"]:
        print(f"{claim['what']}: {claim['measured']:.3g} ({claim['wanted']}), holds: {claim['holds']}")
    return found


if __name__ == "__main__":
    main()
