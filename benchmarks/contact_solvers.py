"""The solvers of rigid contact side by side: iterations, time of a step and how many steps each solves.

Run: python benchmarks/contact_solvers.py [--quick]. Each solver simulates the same scenes in native code from the same
start, to the same residual of 1e-8 m/s. Newton's method is the peer: times are ratios to its own in the same run.
Writes benchmarks/results/contact_solvers.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

import knuckle as kn
from knuckle import native, robots
from knuckle.contact import Impulse, InteriorPoint

HERE = Path(__file__).resolve().parent
DT, STEPS = 2e-3, 200
SOLVERS = {
    "newton": Impulse(),
    "gauss_seidel": Impulse(solver="gauss_seidel", most_iterations=2000),
    "interior point": InteriorPoint(),
}
FRICTION = (0.5,)
AGREE = 1e-4  # [m, rad] between solvers of one law after the run, where all steps are solved


def ground() -> list:
    return [kn.shapes.plane(friction=FRICTION)]


def boxes(count: int) -> tuple[kn.Model, kn.State]:
    shape = {"mass": 1.0, "shapes": kn.shapes.box(0.1, 0.1, 0.05, friction=FRICTION)}
    model = kn.build([kn.Link(f"box{k}", joints=kn.free(), **shape) for k in range(count)], world_shapes=ground())
    q = np.concatenate([[0.01 * k, 0, 0.05 + 0.1 * k, 1.0, 0, 0, 0] for k in range(count)])
    return model, kn.State(q, np.tile([0.3, 0.1, 0, 0, 0, 1.0], count))


def balls(count: int) -> tuple[kn.Model, kn.State]:
    shape = {"mass": 1.0, "shapes": kn.shapes.sphere(0.1, friction=FRICTION)}
    model = kn.build([kn.Link(f"ball{k}", joints=kn.free(), **shape) for k in range(count)], world_shapes=ground())
    q = np.concatenate([[0.21 * k, 0.01 * k, 0.1, 1.0, 0, 0, 0] for k in range(count)])
    return model, kn.State(q, np.concatenate([[2.0, 0, 0, 0, 0, 0], np.zeros(6 * (count - 1))]))


def quadruped() -> tuple[kn.Model, kn.State]:
    model = robots.load("quadruped")
    return model, model.state("standing")


SCENES: dict[str, Callable[[], tuple[kn.Model, kn.State]]] = {
    "two balls": lambda: balls(2),
    "four balls in a row": lambda: balls(4),
    "a sliding box": lambda: boxes(1),
    "a stack of three boxes": lambda: boxes(3),
    "a quadruped on its feet": quadruped,
}


def run_scene(name: str, steps: int, calls: int) -> list[dict]:
    model, start = SCENES[name]()
    runs = {title: _native_run(model, start, contact, steps) for title, contact in SOLVERS.items()}
    best = dict.fromkeys(runs, np.inf)
    found = {title: run() for title, run in runs.items()}
    for _ in range(calls):  # in turn, so that all meet the same noise
        for title, run in runs.items():
            began = time.perf_counter()
            run()
            best[title] = min(best[title], time.perf_counter() - began)
    rows = []
    for title, (q, converged, iterations) in found.items():
        rows.append(
            {
                "scene": name,
                "solver": title,
                "iterations": float(np.mean(iterations)),
                "most": int(np.max(iterations)),
                "solved": float(np.mean(converged)),
                "us": 1e6 * best[title] / steps,
                "times_newton": best[title] / best["newton"],
                "from_newton": float(np.abs(q - found["newton"][0]).max()),
            }
        )
    return rows


def _native_run(model: kn.Model, start: kn.State, contact: Impulse, steps: int) -> Callable:
    @native.jit
    def run(q, qd):
        motion = kn.rollout(model, kn.State(q, qd, control=start.control), dt=DT, steps=steps, contact=contact)
        assert motion.contact is not None
        return motion.q[-1], motion.contact.converged, motion.contact.iterations

    return lambda: run(np.asarray(start.q), np.asarray(start.qd))


def claims(rows: list[dict]) -> list[dict]:
    newton = [row["solved"] for row in rows if row["solver"] == "newton"]
    same = [row["from_newton"] for row in rows if row["solver"] == "gauss_seidel" and row["solved"] == 1.0]
    whole = f"largest distance of Gauss-Seidel's motion from Newton's, {len(same)} scenes solved throughout"
    return [
        _claim("share of steps that Newton solves, least", min(newton), "= 1", min(newton) == 1.0),
        _claim(whole, max(same, default=0.0), f"<= {AGREE}", bool(same) and max(same) <= AGREE),
    ]


def _claim(what: str, measured: float, wanted: str, holds: bool) -> dict:
    return {"what": what, "measured": measured, "wanted": wanted, "holds": holds}


def table(found: dict) -> str:
    lines = [
        "| scene | solver | iterations | most | steps solved | us a step | times Newton |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for row in found["rows"]:
        numbers = f"{row['iterations']:.2f} | {row['most']} | {100 * row['solved']:.1f} % | {row['us']:.3g}"
        lines.append(f"| {row['scene']} | {row['solver']} | {numbers} | {row['times_newton']:.2f} |")
    return "\n".join(lines) + "\n\nWritten by `python benchmarks/contact_solvers.py`.\n"


def main(arguments: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one scene, few steps; only printed")
    options = parser.parse_args(arguments)
    names = list(SCENES)[:1] if options.quick else list(SCENES)
    rows = [
        row for name in names for row in run_scene(name, 20 if options.quick else STEPS, 3 if options.quick else 30)
    ]
    found = {"command": "python benchmarks/contact_solvers.py", "claims": claims(rows), "rows": rows}
    print(table(found))
    if not options.quick:
        (HERE / "results/contact_solvers.json").write_text(json.dumps(found, indent=1) + "\n")
        (HERE / "results/contact_solvers.md").write_text(table(found))
    return found


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
