"""Whether `knuckle fit --seconds T` ends in time, with code in the cache and without, on long logs and on a real arm.

A driven cartpole of other masses is logged at 200 Hz (20,000 and 1,000,000 rows, noise 0.5 mm and 0.5 mrad). The UR10e
is `20_02_12-40sec_12harm` beside its URDF, if KNUCKLE_DATA (or ../shared/data) has them. Wall time is that of the
whole process; memory is its largest resident set. The bound, 10 % and 5 s more than T, was set before any measurement.
Run: python benchmarks/fit_limits.py [--quick]. Writes results/fit_limits.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import equinox as eqx
import jax
import numpy as np

import knuckle as kn
from knuckle import robots

RESULTS = Path(__file__).parent / "results" / "fit_limits.json"
UR10E = Path(os.environ.get("KNUCKLE_DATA", Path(__file__).parents[2] / "shared" / "data")) / "ur10e"
COMMAND = "from knuckle.cli import main; main()"


def write_cartpole(path: Path, rows: int) -> Path:
    model = robots.load("cartpole")
    other = eqx.tree_at(lambda m: m.inertia.mass, model, model.inertia.mass * np.array([1.2, 0.9]))
    t = 0.005 * np.arange(rows)
    u = (np.sin(1.3 * t) + 0.75 * np.sin(3.1 * t + 1) + 0.5 * np.sin(0.99 * t))[:, None]
    start, options = (
        model.state(np.array([0.0, 3.0])),
        {"dt": 0.005, "steps": rows - 1, "integrator": kn.RK4(), "contact": None},
    )
    motion = kn.rollout(other, start, u[:-1], native=True, **options)
    q = np.concatenate([np.asarray(start.q)[None], np.asarray(motion.q)])
    q = q + 5e-4 * np.random.default_rng(0).normal(size=q.shape)
    head = "time [s],q slider,q hinge,control drive"
    np.savetxt(path, np.column_stack([t, q, u]), delimiter=",", header=head, comments="", fmt="%.7g")
    return path


def run(folder: Path, cache: Path, words: list[str], seconds: float) -> dict:
    """One command: wall time, memory, and what it wrote."""
    environment = os.environ | {"KNUCKLE_CACHE": str(cache)}
    began = time.monotonic()
    arguments = ["fit", *words, "--seconds", f"{seconds:g}", "--out", str(folder)]
    with Path(f"{folder}.log").open("w") as told:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *arguments], env=environment, stdout=told, stderr=told
        )
        _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - began
    data = json.loads((folder / "fit.json").read_text()) if (folder / "fit.json").exists() else {}
    return {
        "seconds": seconds,
        "wall": round(wall, 1),
        "megabytes": round(usage.ru_maxrss / 1e3),
        "exit": os.waitstatus_to_exitcode(status),
        "status": data.get("status"),
        "held_out": (data.get("held_out") or {}).get("after"),
        "left_out": data.get("left_out"),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="the short log only, nothing is written")
    quick = parser.parse_args().quick
    jax.config.update("jax_enable_x64", True)
    measured, claims = {}, list[dict]()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        cases: dict[str, tuple[list[str], tuple[float, ...]]] = {}
        cases |= {"cartpole, 20,000 rows": (["cartpole", str(write_cartpole(folder / "short.csv", 20_000))], (20.0,))}
        if not quick:
            cases["cartpole, 1,000,000 rows"] = (
                ["cartpole", str(write_cartpole(folder / "long.csv", 1_000_000))],
                (30.0,),
            )
            if UR10E.is_dir():
                cases["UR10e"] = ([str(UR10E / "ur10e.urdf"), str(UR10E / "20_02_12-40sec_12harm.csv")], (20.0, 60.0))
        for number, (name, (words, limits)) in enumerate(cases.items()):
            cache = folder / f"cache {number}"
            for seconds, state in [(limits[0], "cold"), *((limit, "warm") for limit in limits)]:
                what = f"{name}, {seconds:g} s, cache {state}"
                found = measured[what] = run(folder / f"out {len(measured)}", cache, words, seconds)
                bound = 1.1 * seconds + 5
                claims.append({"what": f"{what}: wall time [s]", "measured": found["wall"], "wanted": f"<= {bound:g}",
                               "holds": found["wall"] <= bound})  # fmt: skip
                claims.append({"what": f"{what}: fit.json has a status", "measured": found["status"], "wanted": "any",
                               "holds": found["status"] is not None})  # fmt: skip
                print(what, json.dumps(found), flush=True)
    if not quick:
        RESULTS.write_text(json.dumps({"measured": measured, "claims": claims}, indent=1) + "\n")
    failed = [claim for claim in claims if not claim["holds"]]
    sys.exit(f"{len(failed)} claims do not hold: {failed}" if failed else 0)


if __name__ == "__main__":
    main()
