"""Stacks and piles of free boxes on a plane, beside MuJoCo on one pinned core: contact between bodies by the step.

Run: python benchmarks/contact_stacks.py [NAME ...] [--quick]. A stack stands still; a pile is dropped with random
orientations. Steps are timed from the states at which each engine has arrived by itself after the time that the table
names: boxes overlap in MuJoCo's, which rigid contact would first undo. Ours solves each step to a residual of 1e-8 m/s,
which is checked. The first result is timed from an empty cache, on the same core. Writes
benchmarks/results/contact_stacks.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import mujoco
import numpy as np

import knuckle as kn
from knuckle import native
from knuckle.contact import Impulse

HERE = Path(__file__).resolve().parent
DT, STEPS, HALF = 2e-3, 100, 0.1  # [s], steps of one timed call, half an edge of a box [m]
COUNTS, QUICK = (10, 20, 50), 5
TIMES = {"stack": (0.0, 1.0), "pile": (0.6, 3.0)}  # after which steps are timed [s]
CONTACT = Impulse(self_collision=None)
WANTED, LONGEST_COMPILE = 1.0, 30.0  # times as fast as MuJoCo C; first result [s]


class Scene(NamedTuple):
    kind: str
    boxes: int

    @property
    def name(self) -> str:
        return f"{self.kind} of {self.boxes}"


def description(scene: Scene) -> str:
    rng, bodies = np.random.default_rng(0), []
    for k in range(scene.boxes):
        position, quaternion = np.array([0, 0, HALF * (1 + 2 * k)]), np.array([1.0, 0, 0, 0])
        if scene.kind == "pile":
            position = np.array([*rng.uniform(-0.25, 0.25, size=2), 0.3 + 0.12 * k])
            quaternion = rng.normal(size=4)
        place = " ".join(map(str, position)), " ".join(map(str, quaternion / np.linalg.norm(quaternion)))
        shape = f'<freejoint/><geom type="box" size="{HALF} {HALF} {HALF}"/>'
        bodies.append(f'<body name="box{k}" pos="{place[0]}" quat="{place[1]}">{shape}</body>')
    ground = '<geom type="plane" size="0 0 1"/>'
    options = f'<option timestep="{DT}" cone="elliptic"/>'
    return f"<mujoco>{options}<worldbody>{ground}{''.join(bodies)}</worldbody></mujoco>"


def seconds_of(run: Callable[[], object]) -> float:
    before = time.perf_counter()
    run()
    return time.perf_counter() - before


def rows_of(scene: Scene, folder: Path, turns: int, steps: int) -> list[dict[str, Any]]:
    """Steps of both engines from each state, called in turn."""
    path = folder / f"{scene.name}.xml"
    path.write_text(description(scene))
    model, theirs = kn.load(path), mujoco.MjModel.from_xml_path(str(path))
    data, now = mujoco.MjData(theirs), 0.0
    q, qd = theirs.qpos0.copy(), np.zeros(theirs.nv)
    their_q, their_qd = q, qd

    @native.jit
    def end(q, qd):
        run = kn.rollout(model, kn.State(q, qd), dt=DT, steps=steps, contact=CONTACT)
        assert run.contact is not None
        pushing = (run.contact.impulse[:, :, 0] > 0).sum(axis=1).max()
        return run.q[-1], run.qd[-1], run.contact.converged.sum(), pushing, run.contact.iterations.mean()

    def ours():
        return end(q, qd)

    def peer():
        mujoco.mj_resetData(theirs, data)
        data.qpos[:], data.qvel[:] = their_q, their_qd
        mujoco.mj_step(theirs, data, steps)

    first = seconds_of(ours)
    rows = []
    for until in TIMES[scene.kind]:
        while now < until - 1e-9:
            q, qd = (np.array(x) for x in ours()[:2])
            peer()
            their_q, their_qd, now = data.qpos.copy(), data.qvel.copy(), now + steps * DT
        _, _, solved, pushing, iterations = ours()
        pairs = [(seconds_of(ours), seconds_of(peer)) for _ in range(turns)]
        mine, other = (1e6 * min(column) / steps for column in zip(*pairs, strict=True))
        row = {
            "scene": scene.name,
            "after [s]": until,
            "candidates": len(CONTACT.contacts(model, q)),
            "most pushing": int(pushing),
            "iterations": float(iterations),
            "first [s]": first,
            "knuckle [us]": mine,
            "MuJoCo [us]": other,
            "times": other / mine,
            "steps solved": int(solved),
            "steps": steps,
        }
        print({k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
        rows.append(row)
    return rows


def claims_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    claims = []
    for row in rows:
        what = f"{row['scene']}, after {row['after [s]']} s: a step, times as fast as MuJoCo C, all solved to 1e-8 m/s"
        holds = row["times"] >= WANTED and row["steps solved"] == row["steps"]
        claims.append({"what": what, "measured": row["times"], "wanted": WANTED, "holds": bool(holds)})
    for scene in dict.fromkeys(row["scene"] for row in rows):
        first = next(row["first [s]"] for row in rows if row["scene"] == scene)
        what = f"{scene}: first result from an empty cache [s]"
        claims.append({"what": what, "measured": first, "wanted": LONGEST_COMPILE, "holds": first < LONGEST_COMPILE})
    return claims


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    for row in rows:
        cells = (f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values())
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    scenes = {scene.name: scene for kind in TIMES for scene in (Scene(kind, count) for count in COUNTS)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *scenes], help="scenes; default: all")
    parser.add_argument("--quick", action="store_true", help="a pile of five, short timings, nothing written")
    options = parser.parse_args(arguments)
    chosen = [scenes[name] for name in options.names or scenes]
    turns, steps = (1, STEPS) if options.quick else (20, STEPS)
    if not options.quick:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows = []
    with jax.enable_x64(True), tempfile.TemporaryDirectory() as scratch:
        if not options.quick:
            os.environ["KNUCKLE_CACHE"] = f"{scratch}/cache"
        for scene in [Scene("pile", QUICK)] if options.quick else chosen:
            rows += rows_of(scene, Path(scratch), turns, steps)
    found = {"steps": rows, "claims": claims_of(rows)}
    if not options.quick and not options.names:
        text = "\n\n".join(table(part) for part in (rows, found["claims"]))
        (HERE / "results" / "contact_stacks.json").write_text(json.dumps(found, indent=1))
        (HERE / "results" / "contact_stacks.md").write_text(text + "\n")
        print(text)
    return found


if __name__ == "__main__":
    main()
