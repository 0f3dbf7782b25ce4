"""What contacts cost that push: time per step against their number, from 1 to 100.

Run: python benchmarks/contact_active.py [--counts N ...] [--quick]. Two scenes: a plate that slides on so many feet,
one body with redundant contacts, and so many balls that roll side by side, one contact each. MuJoCo has the same scenes
in the same run, on one pinned core, from the same start. Ours solves each step to 1e-8 m/s, which is checked. Each
count has the best of many short calls. Writes benchmarks/results/contact_active.{json,md,png}.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import mujoco
import numpy as np
from contact_scale import best, table

import knuckle as kn
from knuckle import native
from knuckle.contact import Impulse

HERE = Path(__file__).parent
COUNTS = (1, 3, 10, 30, 100)
STEPS, DT = 50, 0.002
FRICTION = (0.2,)
SPEED = 0.5  # [m/s]; does not come to rest within the steps


def plate(count: int) -> tuple[kn.Model, kn.State]:
    """A plate on feet that are spread over a disk of 0.5 m."""
    k = np.arange(count)
    radius, angle = 0.5 * np.sqrt((k + 0.5) / count) * (count > 1), 2.4 * k
    feet = [
        kn.shapes.sphere(0.02, position=(r * np.cos(a), r * np.sin(a), 0), friction=FRICTION)
        for r, a in zip(radius, angle, strict=True)
    ]
    body = kn.Link("plate", joints=kn.free(), mass=5.0, inertia=(0.3, 0.3, 0.6), shapes=feet)
    return on_ground([body], [0, 0, 0.02], [SPEED, 0.1, 0])


def balls(count: int) -> tuple[kn.Model, kn.State]:
    shape = {"mass": 1.0, "shapes": kn.shapes.sphere(0.1, friction=FRICTION, conaffinity=0)}
    links = [kn.Link(f"ball{k}", joints=kn.free(), **shape) for k in range(count)]
    return on_ground(links, [[0, 0.3 * k, 0.1] for k in range(count)], [SPEED, 0, 0])


def on_ground(links: list[kn.Link], position: list, velocity: list[float]) -> tuple[kn.Model, kn.State]:
    model = kn.build(links, world_shapes=[kn.shapes.plane(friction=FRICTION)])
    q, qd = np.array(model.reference).reshape(len(links), 7), np.zeros((len(links), 6))
    q[:, :3] += position
    qd[:, :3] = velocity
    return model, kn.State(q.ravel(), qd.ravel())


SCENES: dict[str, Callable[[int], tuple[kn.Model, kn.State]]] = {"plate on feet": plate, "balls": balls}


def measure(name: str, count: int, repeats: int, folder: Path) -> dict[str, Any]:
    model, state = SCENES[name](count)
    kn.save(model, folder / "scene.xml")
    theirs = mujoco.MjModel.from_xml_path(str(folder / "scene.xml"))
    theirs.opt.timestep = DT
    data = mujoco.MjData(theirs)

    @native.jit
    def end(q, qd):
        run = kn.rollout(model, kn.State(q, qd), dt=DT, steps=STEPS, contact=Impulse())
        assert run.contact is not None
        pushing = (run.contact.impulse[:, :, 0] > 0).sum(axis=1).max()
        return run.q[-1], run.qd[-1], run.contact.converged.all(), pushing, run.contact.iterations.mean()

    def ours():
        return end(state.q, state.qd)

    def peer():
        mujoco.mj_resetData(theirs, data)
        data.qpos[:], data.qvel[:] = state.q, state.qd
        mujoco.mj_step(theirs, data, STEPS)

    before = time.perf_counter()
    result = ours()
    first = time.perf_counter() - before
    turns = [(best(ours, 0), best(peer, 0)) for _ in range(repeats)]
    mine, other = (1e6 * min(column) / STEPS for column in zip(*turns, strict=True))
    row = {
        "scene": name,
        "contacts": count,
        "most pushing": int(result[3]),
        "iterations": float(result[4]),
        "first [s]": first,
        "knuckle [us]": mine,
        "MuJoCo [us]": other,
        "times": other / mine,
        "solved": bool(result[2]),
    }
    print({k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return row


def claims_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cost that grows no faster than the contacts do, to 30 % of a noisy machine, and no slower than MuJoCo."""
    claims = []
    for name in SCENES:
        few, many = [row for row in rows if row["scene"] == name][-2:]
        growth = np.log(many["knuckle [us]"] / few["knuckle [us]"]) / np.log(many["contacts"] / few["contacts"])
        solved = few["solved"] and many["solved"]
        what = f"{name}: exponent of the time of a step over the contacts, the two largest, every step solved"
        claims.append({"what": what, "measured": float(growth), "wanted": 1.1, "holds": bool(growth <= 1.1 and solved)})
        worst = min(row["times"] for row in rows if row["scene"] == name)
        what = f"{name}: a step, times as fast as MuJoCo C, the least of all counts"
        claims.append({"what": what, "measured": worst, "wanted": 1.0, "holds": bool(worst >= 1)})
    return claims


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(SCENES), figsize=(9, 3.4), sharey=True, layout="constrained")
    for axis, name in zip(axes, SCENES, strict=True):
        own = [row for row in rows if row["scene"] == name]
        for engine in ("knuckle", "MuJoCo"):
            axis.loglog([r["contacts"] for r in own], [r[f"{engine} [us]"] for r in own], marker="o", label=engine)
        axis.set(title=name, xlabel="contacts that push")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("time of a step [us]")
    axes[0].legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS), help="contacts; at least two numbers")
    parser.add_argument("--quick", action="store_true", help="few contacts, short timings, nothing written")
    options = parser.parse_args(arguments)
    counts, repeats = ([1, 4], 3) if options.quick else (sorted(options.counts), 100)
    if not options.quick:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with jax.enable_x64(True), tempfile.TemporaryDirectory() as scratch:
        if not options.quick:
            os.environ["KNUCKLE_CACHE"] = f"{scratch}/cache"
        rows = [measure(name, count, repeats, Path(scratch)) for name in SCENES for count in counts]
    found = {"rows": rows, "claims": claims_of(rows)}
    if not options.quick and tuple(counts) == COUNTS:
        text = "\n\n".join(table(part) for part in (rows, found["claims"]))
        (HERE / "results" / "contact_active.json").write_text(json.dumps(found, indent=1))
        (HERE / "results" / "contact_active.md").write_text(text + "\n")
        draw(rows, HERE / "results" / "contact_active.png")
        print(text)
    return found


if __name__ == "__main__":
    main()
