"""What candidate pairs cost that do not touch: time per step and to the first result, against their number.

Run: python benchmarks/contact_pairs.py [--counts N ...] [--quick]. A hull of 48 corners rests on the ground with four
contacts; boxes that are fixed in the world stand out of its reach, so that each is one more pair of a long test. MuJoCo
has the same scene in the same run, on one pinned core. Each count has its best of many short calls. Writes
benchmarks/results/contact_pairs.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import mujoco
import numpy as np
from scipy.spatial import ConvexHull

import knuckle as kn
from knuckle import native
from knuckle.contact import Impulse
from knuckle.model.geometry import Mesh, Shape

HERE = Path(__file__).parent
COUNTS = (1, 30, 100, 300, 1000)
STEPS, DT = 20, 0.002
WANTED_US = 20.0  # that 1000 pairs may add to a step


def prism(corners: int = 24) -> Mesh:
    angle = 2 * np.pi * np.arange(corners) / corners
    rim = np.stack([0.2 * np.cos(angle), 0.15 * np.sin(angle)], axis=1)
    vertices = np.concatenate([np.pad(rim, ((0, 0), (0, 1)), constant_values=z) for z in (-0.05, 0.05)])
    return Mesh(vertices, ConvexHull(vertices).simplices)


def scene(count: int) -> kn.Model:
    """A prism on the ground, and so many boxes on a spiral round it."""
    angle = 2.4 * np.arange(count)
    away = 2.0 + 0.05 * np.arange(count)
    boxes = [
        kn.shapes.box(0.1, 0.1, 0.1, position=(r * np.cos(a), r * np.sin(a), 0.1), name=f"box{k}")
        for k, (r, a) in enumerate(zip(away, angle, strict=True))
    ]
    body = kn.Link("prism", joints=kn.free(), mass=1.0, inertia=(0.01,) * 3, shapes=Shape("mesh", mesh=prism()))
    return kn.build([body], world_shapes=[kn.shapes.plane(name="ground"), *boxes])


def best(run, repeats: int) -> float:
    shortest = np.inf
    for _ in range(repeats):
        before = time.perf_counter()
        run()
        shortest = min(shortest, time.perf_counter() - before)
    return float(shortest)


def measure(count: int, repeats: int, folder: Path) -> dict[str, Any]:
    model = scene(count)
    kn.save(model, folder / "scene.xml")
    theirs = mujoco.MjModel.from_xml_path(str(folder / "scene.xml"))
    theirs.opt.timestep = DT
    data = mujoco.MjData(theirs)
    q, qd = np.array([0, 0, 0.05, 1.0, 0, 0, 0]), np.zeros(6)

    @native.jit
    def end(q, qd):
        run = kn.rollout(model, kn.State(q, qd), dt=DT, steps=STEPS, contact=Impulse())
        assert run.contact is not None
        pushing = (run.contact.impulse[-1, :, 0] > 0).sum()
        return run.q[-1], run.qd[-1], run.contact.converged.all(), pushing

    def reset():
        mujoco.mj_resetData(theirs, data)
        data.qpos[:], data.qvel[:] = q, qd

    wall, before = time.perf_counter(), time.process_time()
    result = end(q, qd)
    first, wall = time.process_time() - before, time.perf_counter() - wall
    turns = []
    for _ in range(repeats):
        reset()
        turns.append((best(lambda: end(q, qd), 1), best(lambda: mujoco.mj_step(theirs, data, STEPS), 1)))
    mine, other = (1e6 * min(column) / STEPS for column in zip(*turns, strict=True))
    row = {
        "pairs": count + 1,
        "knuckle [us]": mine,
        "MuJoCo [us]": other,
        "first result [s of processor time]": first,
        "first result [s]": wall,
        "pushing": int(result[3]),
        "solved": bool(result[2]),
    }
    print({k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return row


def claims_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    few, many = rows[0], rows[-1]
    added = (many["knuckle [us]"] - few["knuckle [us]"]) * 1000 / (many["pairs"] - few["pairs"])
    first = "first result [s of processor time]"
    growth = np.log(many[first] / rows[-2][first]) / np.log(many["pairs"] / rows[-2]["pairs"])
    return [
        {
            "what": "time that 1000 pairs out of reach add to a step [us]",
            "measured": added,
            "wanted": WANTED_US,
            "holds": bool(added <= WANTED_US and all(row["solved"] for row in rows)),
        },
        {
            "what": "exponent of the time to the first result over the number of pairs, the two largest",
            "measured": float(growth),
            "wanted": 1.0,
            "holds": bool(growth < 1.0),
        },
    ]


def table(rows: list[dict[str, Any]]) -> str:
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = (f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values())
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS), help="boxes; at least two numbers")
    parser.add_argument("--quick", action="store_true", help="few pairs, short timings, nothing written")
    options = parser.parse_args(arguments)
    counts, repeats = ([1, 20], 3) if options.quick else (sorted(options.counts), 300)
    if not options.quick:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with jax.enable_x64(True), tempfile.TemporaryDirectory() as scratch:
        os.environ["KNUCKLE_CACHE"] = f"{scratch}/cache"
        rows = [measure(count, repeats, Path(scratch)) for count in counts]
    found = {"rows": rows, "claims": claims_of(rows)}
    if not options.quick and tuple(counts) == COUNTS:
        text = "\n\n".join(table(part) for part in (rows, found["claims"]))
        (HERE / "results" / "contact_pairs.json").write_text(json.dumps(found, indent=1))
        (HERE / "results" / "contact_pairs.md").write_text(text + "\n")
        print(text)
    return found


if __name__ == "__main__":
    main()
