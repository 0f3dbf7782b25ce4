"""Real tosses of a cube: contact fitted by gradient on 100 tosses, roll-out error on 100 others, MuJoCo beside it.

Data: Pfrommer, Halm, Posa 2020 (ContactNets). The length scale of the recordings, the cube's centre of mass and the
state that each toss starts from are taken from free flight, without any engine. Each engine then fits its contact
parameters and the moment of inertia on the training tosses with one budget of roll-outs of them; a gradient counts as
many as finite differences would need. Run: python experiments/cube_tosses.py [--quick] [--fresh]. Fits are kept in
experiments/results/cube_tosses.json as they are found, and a run that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco import rollout as mujoco_rollout
from scipy.optimize import minimize
from scipy.spatial.transform import Rotation

import knuckle as kn
from knuckle import native
from knuckle.contact import Compliant, Impulse, InteriorPoint

RESULTS = Path(__file__).parent / "results"
RATE, HALF, MASS, MOMENT, GRAVITY = 148.0, 0.0524, 0.37, 8.1e-4, 9.81  # as published
WIDTH = 2 * HALF
THIN_WALLS = 5 / 18 * MASS * WIDTH**2  # moment of inertia of a cube that is all walls
CORNERS = HALF * np.array(np.meshgrid(*[[-1, 1]] * 3)).reshape(3, -1).T
CLEAR = 0.003  # a cube whose corners are all above this flies [m]
HORIZON = 120  # frames of a toss that fits look at; 95 % of tosses are over by then
STEEPEST = 5.0  # a toss's share in a gradient is cut here: one that lands on an edge would drown the others
PUBLISHED, IDENTIFIED = "published", "identified"
STEPS = {IDENTIFIED: (2, 4), PUBLISHED: (2,)}  # per frame; the one that fits best is taken


class Body(NamedTuple):
    """What free flight tells."""

    scale: float  # true lengths over recorded ones
    com: np.ndarray  # in the cube's frame [m]


class Tosses(NamedTuple):
    """Initial states, recorded poses after them, and how much each frame counts."""

    q: np.ndarray
    qd: np.ndarray
    poses: np.ndarray
    weight: np.ndarray


def data_file() -> Path:
    folder = Path(os.environ.get("KNUCKLE_DATA", Path(__file__).parents[2] / "shared" / "data"))
    return folder / "contactnets_cube" / "cube_tosses.npz"


def load() -> list[np.ndarray]:
    """Tosses as rows of position, quaternion (wxyz), velocity (world) and angular velocity (body)."""
    if not data_file().exists():
        raise FileNotFoundError(
            f"{data_file()} is not there: name the folder that holds contactnets_cube by KNUCKLE_DATA"
        )
    data = np.load(data_file())
    return np.split(np.asarray(data["states"], float), data["offsets"][1:-1])


def rotations(toss: np.ndarray) -> Rotation:
    return Rotation.from_quat(toss[:, [4, 5, 6, 3]])


def flight(toss: np.ndarray) -> np.ndarray:
    """The frames before anything touches; one more is left out."""
    lowest = np.array([p[2] + r.apply(CORNERS)[:, 2].min() for p, r in zip(toss[:, :3], rotations(toss), strict=True)])
    touches = np.flatnonzero(lowest < CLEAR)
    return toss[: max(touches[0] - 1, 3)] if len(touches) else toss


def identify(tosses: list[np.ndarray]) -> Body:
    """Least squares of origin(t) = a + b t - g t^2/2 - R(t) com over all flights, with a and b of each its own."""
    rows, rest = [], []
    for toss in map(flight, tosses):
        t, R = np.arange(len(toss)) / RATE, rotations(toss).as_matrix()
        line = np.stack([np.ones_like(t), t], axis=1)
        without_line = np.eye(len(t)) - line @ np.linalg.pinv(line)
        for axis in range(3):
            fall = -(t**2) / 2 if axis == 2 else np.zeros_like(t)
            rows.append(without_line @ np.column_stack([-R[:, axis], fall]))
            rest.append(without_line @ toss[:, axis])
    *com, g = np.linalg.lstsq(np.concatenate(rows), np.concatenate(rest), rcond=None)[0]
    return Body(GRAVITY / g, np.array(com) * GRAVITY / g)


def start_of(toss: np.ndarray, com: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """q and qd of the first frame: a parabola of the centre of mass and a steady spin through the flight."""
    air = flight(toss)
    t, R = np.arange(len(air)) / RATE, rotations(air)
    first, spin = R[0], R[0].apply(air[:, 10:13].mean(0))
    for _ in range(5):
        off = (R * (Rotation.from_rotvec(np.outer(t, spin)) * first).inv()).as_rotvec()
        change = np.polyfit(t, off, 1)
        first, spin = Rotation.from_rotvec(change[1]) * first, spin + change[0]
    centre = air[:, :3] + (Rotation.from_rotvec(np.outer(t, spin)) * first).apply(com)
    centre[:, 2] += GRAVITY / 2 * t**2
    velocity, place = np.polyfit(t, centre, 1)
    arm = first.apply(com)
    q = np.concatenate([place - arm, first.as_quat()[[3, 0, 1, 2]]])
    return q, np.concatenate([velocity - np.cross(spin, arm), first.inv().apply(spin)])


def packed(tosses: list[np.ndarray], body: Body, most: int | None = None) -> Tosses:
    """Tosses in arrays of one length."""
    frames = min(max(map(len, tosses)) - 1, most or 10**9)
    poses, weight, starts = np.zeros((len(tosses), frames, 7)), np.zeros((len(tosses), frames)), []
    for i, toss in enumerate(tosses):
        toss = np.concatenate([toss[:, :3] * body.scale, toss[:, 3:]], axis=1)
        starts.append(start_of(toss, body.com))
        seen = toss[1 : frames + 1, :7]
        poses[i], weight[i, : len(seen)] = toss[-1, :7], 1 / len(seen)
        poses[i, : len(seen)] = seen
    q, qd = map(np.array, zip(*starts, strict=True))
    return Tosses(q, qd, poses, weight)


def errors(q, poses, weight):
    """Mean over a toss of the distance [cube widths] and of the angle [rad] between poses."""
    squared = jnp.sum((q[:, :3] - poses[:, :3]) ** 2, axis=1)
    cosine = jnp.abs(jnp.sum(q[:, 3:] * poses[:, 3:], axis=1))
    sine = jnp.sqrt(jnp.maximum(1 - cosine**2, 0.0) + 1e-14)
    return jnp.sum(weight * jnp.sqrt(squared + 1e-14)) / WIDTH, jnp.sum(weight * 2 * jnp.arctan2(sine, cosine))


@dataclass(frozen=True)
class Engine:
    """Parameters by name, positive, fitted as logarithms; several starts."""

    name: str
    starts: tuple[dict[str, float], ...]
    contact: Callable[..., Any] | None = None  # None: MuJoCo


RIGID = (
    {"moment": MOMENT, "friction": 0.18, "restitution": 0.3, "alpha": 200.0, "beta": 200.0, "mixing": 1e-3},
    {"moment": MOMENT, "friction": 0.18, "restitution": 0.01, "alpha": 50.0, "beta": 200.0, "mixing": 2.0},
)
SPRINGY = (
    {"moment": MOMENT, "friction": 0.18, "stiffness": 1e5, "dissipation": 0.5, "transition": 0.01},
    {"moment": MOMENT, "friction": 0.18, "stiffness": 4e5, "dissipation": 2.0, "transition": 0.02},
)
IMPEDANCE = {"least_odds": 9.0, "most_odds": 19.0, "width": 1e-3}  # MuJoCo's solimp; odds are d/(1 - d)
SOFT = (
    {"moment": MOMENT, "friction": 0.18, "time": 0.02, "damping": 1.0, **IMPEDANCE},
    {"moment": THIN_WALLS, "friction": 0.18, "time": 0.01, "damping": 0.5, **IMPEDANCE},  # a start nearer to what fits
)
REACH = {"damping": -0.5, "least_odds": -1.0, "most_odds": 1.0, "width": 1.0}  # of its first simplex, in logarithms
MUJOCO = "MuJoCo"
SPRINGS_BACK = {"recovery_speed": 2.0}  # alpha, beta and mixing stand for a spring, which may be faster than 0.1 m/s
ENGINES = (
    Engine("Compliant", SPRINGY, Compliant),
    Engine("Compliant(substeps=8)", SPRINGY, lambda **x: Compliant(substeps=8, **x)),
    Engine("Impulse", RIGID, partial(Impulse, **SPRINGS_BACK)),
    Engine("InteriorPoint", RIGID, partial(InteriorPoint, **SPRINGS_BACK)),
    Engine("InteriorPoint(directions=8)", RIGID, partial(InteriorPoint, directions=8, **SPRINGS_BACK)),
    Engine(MUJOCO, SOFT),
)


class Ours:
    """Roll-outs of all tosses as native code."""

    def __init__(self, engine: Engine, names: list[str], body: Body, parts: int):
        box = kn.shapes.box(HALF, HALF, HALF)
        cube = kn.Link("cube", joints=kn.free(), mass=MASS, com=tuple(body.com), inertia=(MOMENT,) * 3, shapes=box)
        model = kn.build([cube], gravity=(0, 0, -GRAVITY), world_shapes=[kn.shapes.plane()])
        contact = engine.contact
        assert contact is not None

        def toss_errors(x, q, qd, poses, weight):
            values = dict(zip(names, jnp.exp(x), strict=True))
            moment = values.pop("moment", MOMENT) * jnp.asarray([[1.0, 1.0, 1.0, 0.0, 0.0, 0.0]])
            heavy = eqx.tree_at(lambda m: m.inertia.moment, model, moment)
            steps, dt = parts * len(poses), 1 / RATE / parts
            run = kn.rollout(heavy, kn.State(q, qd), dt=dt, steps=steps, contact=contact(**values))
            return errors(run.q[parts - 1 :: parts], poses, weight)

        def loss(*inputs):
            distance, angle = toss_errors(*inputs)
            return distance + angle

        over = (None, 0, 0, 0, 0)
        self.errors = native.vmap(toss_errors, in_axes=over)
        self.slopes = native.vmap(jax.value_and_grad(loss), in_axes=over)

    def fit(self, x: np.ndarray, tosses: Tosses, budget: int, say: Callable[[int, float], None]):
        """Adam with a falling rate; the best point seen."""
        best, first, second = (np.inf, x), np.zeros_like(x), np.zeros_like(x)
        count = max(budget // (1 + len(x)), 1)
        for k in range(1, count + 1):
            values, slopes = self.slopes(x, *tosses)
            best = min(best, (float(np.mean(values)), x), key=lambda b: b[0])
            slope = np.clip(np.nan_to_num(slopes), -STEEPEST, STEEPEST).mean(0)
            first, second = 0.8 * first + 0.2 * slope, 0.9 * second + 0.1 * slope**2
            step = first / (1 - 0.8**k) / (np.sqrt(second / (1 - 0.9**k)) + 1e-9)
            x = x - 0.12 * (1 - (k - 1) / count) * step
            say(k * (1 + len(x)), best[0])
        return best


class Mujoco:
    """Roll-outs of all tosses by MuJoCo."""

    def __init__(self, engine: Engine, names: list[str], body: Body, parts: int):
        place = " ".join(map(str, body.com))
        self.model = mujoco.MjModel.from_xml_string(f"""<mujoco>
          <option timestep="{1 / RATE / parts}" gravity="0 0 {-GRAVITY}" cone="elliptic" tolerance="1e-12"/>
          <worldbody><geom type="plane" size="0 0 1"/><body><freejoint/>
          <inertial pos="{place}" mass="{MASS}" diaginertia="{MOMENT} {MOMENT} {MOMENT}"/>
          <geom type="box" size="{HALF} {HALF} {HALF}"/></body></worldbody></mujoco>""")
        self.data = [mujoco.MjData(self.model) for _ in range(os.cpu_count() or 1)]  # one a thread
        self.names, self.parts = names, parts

    def errors(self, x, q, qd, poses, weight):
        value, model = dict(zip(self.names, np.exp(x), strict=True)), self.model
        least, most = (value[k] / (1 + value[k]) for k in ("least_odds", "most_odds"))
        model.geom_friction[:, 0] = value["friction"]
        model.geom_solref[:] = value["time"], value["damping"]
        model.geom_solimp[:, :3] = least, most, value["width"]
        model.body_inertia[1] = value.get("moment", MOMENT)
        start = np.concatenate([np.zeros((len(q), 1)), q, qd], axis=1)
        states, _ = mujoco_rollout.rollout(model, self.data, start, nstep=self.parts * poses.shape[1])
        found = states[:, self.parts - 1 :: self.parts, 1:8]
        distance = np.linalg.norm(found[..., :3] - poses[..., :3], axis=-1) / WIDTH
        angle = 2 * np.arccos(np.abs(np.sum(found[..., 3:] * poses[..., 3:], axis=-1)).clip(0, 1))
        return np.sum(weight * distance, axis=1), np.sum(weight * angle, axis=1)

    def fit(self, x: np.ndarray, tosses: Tosses, budget: int, say: Callable[[int, float], None]):
        """Nelder and Mead's search; the best point seen."""
        best, used = (np.inf, x), 0

        def loss(x):
            nonlocal best, used
            value = float(np.nan_to_num(np.mean(sum(self.errors(x, *tosses))), nan=1e3))
            used += 1
            best = min(best, (value, x.copy()), key=lambda b: b[0])
            say(used, best[0])
            return value

        reach = [REACH.get(name, 0.4) for name in self.names]
        simplex = x + np.concatenate([np.zeros((1, len(x))), np.diag(reach)])
        minimize(loss, x, method="Nelder-Mead", options={"maxfev": budget, "initial_simplex": simplex})
        return best


def fitted(engine: Engine, kind: str, body: Body, parts: int, sets: dict[str, list[np.ndarray]], budget: int) -> dict:
    """Parameters that fit the training tosses best, and the errors of each toss of each set."""
    began, best = time.perf_counter(), (np.inf, np.zeros(0))
    starts = [{k: v for k, v in start.items() if kind == IDENTIFIED or k != "moment"} for start in engine.starts]
    names = list(starts[0])
    runner = (Mujoco if engine.contact is None else Ours)(engine, names, body, parts)
    train = packed(sets["train"], body, HORIZON)
    history: list[float] = []
    for number, start in enumerate(starts):

        def say(used, loss, number=number):
            history.append(loss)
            line = f"{kind}, {engine.name}, {parts} steps a frame, start {number + 1}"
            print(f"\r{line}: {used}/{budget // len(starts)} roll-outs, loss {loss:.4f}   ", end="", flush=True)

        found = runner.fit(np.log(list(start.values())), train, budget // len(starts), say)
        best = min(best, found, key=lambda b: b[0])
    seconds = time.perf_counter() - began
    row = {"engine": engine.name, "body": kind, "parts": parts, "start_loss": history[0], "loss": best[0]}
    row["seconds"] = seconds
    row["parameters"] = dict(zip(names, np.exp(best[1]).tolist(), strict=True))
    for name, tosses in sets.items():
        distance, angle = runner.errors(best[1], *packed(tosses, body))
        row[name] = {"position": np.asarray(distance).tolist(), "rotation": np.degrees(angle).tolist()}
    print(f"  {seconds:.0f} s", flush=True)
    return row


def interval(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Mean paired difference and its 95 % bootstrap interval."""
    difference = np.subtract(ours, theirs)
    means = np.random.default_rng(0).choice(difference, (10_000, len(difference))).mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(difference.mean()), float(low), float(high)


def best_rows(rows: list[dict], kind: str) -> list[dict]:
    """Of each engine the step that fits the training tosses best."""
    chosen = [[r for r in rows if r["body"] == kind and r["engine"] == e.name] for e in ENGINES]
    return [min(group, key=lambda r: r["loss"]) for group in chosen if group]


def table(rows: list[dict], kind: str, tosses: str) -> str:
    """Errors and their difference from MuJoCo's on the same tosses."""
    rows = best_rows(rows, kind)
    peer = next((r for r in rows if r["engine"] == MUJOCO), None)
    lines = [
        "| engine | step [ms] | position [widths] | rotation [deg] | position - MuJoCo's | rotation - MuJoCo's |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        means = [f"{np.mean(row[tosses][k]):.{d}f}" for k, d in (("position", 4), ("rotation", 2))]
        against = ["", ""]
        if peer is not None and row is not peer:
            gaps = [(interval(row[tosses][k], peer[tosses][k]), d) for k, d in (("position", 4), ("rotation", 2))]
            against = [f"{g[0]:+.{d}f} ({g[1]:+.{d}f} to {g[2]:+.{d}f})" for g, d in gaps]
        lines.append("| " + " | ".join([row["engine"], f"{1e3 / RATE / row['parts']:.2f}", *means, *against]) + " |")
    return "\n".join(lines) + "\n"


def report(rows: list[dict]) -> str:
    parts = []
    for kind in dict.fromkeys(r["body"] for r in rows):
        what = (
            "centre of mass and inertia as published" if kind == PUBLISHED else "centre of mass and inertia identified"
        )
        count = {name: len(rows[0][name]["position"]) for name in ("test", "rest")}
        parts += [f"Cube with {what}, {count['test']} test tosses:\n", table(rows, kind, "test")]
        parts += [
            f"The same fits on all {count['rest']} tosses that are not for training:\n",
            table(rows, kind, "rest"),
        ]
    return "\n".join(parts)


def measure(rows: list[dict], quick: bool, engines: list[str], budget: int, keep: Callable[[], None]) -> None:
    """Add what is missing to the rows, one fit at a time."""
    tosses = load()
    order = np.random.default_rng(0).permutation(len(tosses))
    chosen = {"train": order[:100], "test": order[100:200], "rest": order[100:]}
    if quick:
        chosen = {"train": order[:8], "test": order[100:108], "rest": order[100:112]}
    sets = {name: [tosses[i][: 61 if quick else None] for i in ids] for name, ids in chosen.items()}
    identified = identify(sets["train"])
    print(f"lengths x {identified.scale:.4f}, centre of mass {np.round(1e3 * identified.com, 2)} mm", flush=True)
    bodies = {IDENTIFIED: identified, PUBLISHED: identified._replace(com=np.zeros(3))}
    done = {(r["engine"], r["body"], r["parts"]) for r in rows}
    for kind in (IDENTIFIED,) if quick else (IDENTIFIED, PUBLISHED):
        for engine in (e for e in ENGINES if e.name in engines):
            for parts in (1,) if quick else STEPS[kind]:
                if (engine.name, kind, parts) not in done:
                    rows.append(fitted(engine, kind, bodies[kind], parts, sets, budget))
                    keep()


def main(arguments: list[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few short tosses, little budget; writes nothing")
    parser.add_argument("--fresh", action="store_true", help="forget the fits that were kept")
    parser.add_argument("--engines", nargs="+", choices=[e.name for e in ENGINES], help="all if left out")
    parser.add_argument("--budget", type=int, default=480, help="roll-outs of the training tosses per fit")
    options = parser.parse_args(arguments)
    store = RESULTS / "cube_tosses.json"
    rows: list[dict] = []
    if store.exists() and not options.fresh and not options.quick:
        rows = json.loads(store.read_text())

    def keep():
        if not options.quick:
            RESULTS.mkdir(exist_ok=True)
            store.write_text(json.dumps(rows))
            (RESULTS / "cube_tosses.md").write_text(report(rows))

    names = options.engines or (["Compliant", MUJOCO] if options.quick else [e.name for e in ENGINES])
    try:
        with jax.enable_x64(True):
            measure(rows, options.quick, names, 72 if options.quick else options.budget, keep)
    except KeyboardInterrupt:
        print("\nstopped; what was found is kept, and the next run goes on from there")
    print(report(rows))
    return rows


if __name__ == "__main__":
    main()
