"""Error over the time step, 10 ms to 10 us: a block slides to its stop, a ball bounces, a chain falls on the ground.

Each with its derivative: of the block's stop by its speed, of the ball's height by the height it fell from, of the
chain's angles by the first of them. Block and ball have closed forms, with which rigid contact is compared, and
MuJoCo's block (as hard as its step allows). Springs have answers of their own: springy contact, MuJoCo's ball and
chain, and every chain are compared with their own finest step, a fourth of the last.
Run: python experiments/contact_convergence.py [--quick]. Writes table, numbers and picture to experiments/results
(with --quick nothing).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import mujoco
import numpy as np

import knuckle as kn
from knuckle.contact import Compliant, Impulse, InteriorPoint

RESULTS = Path(__file__).parent / "results"
CHUNK = 25  # steps that are compiled as one
NUDGE = 1e-4  # of MuJoCo's differences: smaller ones see the jumps between steps
G, MU, SPEED, BOUNCE, DROP, RADIUS = 9.81, 0.3, 1.0, 0.8, 0.5, 0.1
SPRINGY, RESOLVED = (Compliant(stiffness=1e5, dissipation=0.2, substeps=n) for n in (None, 8))
PLAIN = Impulse(restitution=BOUNCE, time_of_impact=False)
SOLVERS: dict[str, dict[str, Impulse | Compliant]] = {
    "block": {"Impulse": Impulse(), "InteriorPoint": InteriorPoint(), "Compliant": SPRINGY},
    "ball": {"Impulse": Impulse(restitution=BOUNCE), "Impulse, no time of impact": PLAIN, "Compliant": SPRINGY},
    "chain": {"Impulse": Impulse(restitution=0.5), "Impulse, e = 0": Impulse(), "Compliant": SPRINGY},
}
SOLVERS["ball"]["Compliant(substeps=8)"] = SOLVERS["chain"]["Compliant(substeps=8)"] = RESOLVED
STYLES = {
    "MuJoCo": ("0.6", "d-"),
    "Impulse": ("C0", "o-"),
    "Impulse, no time of impact": ("C0", "o:"),
    "Impulse, e = 0": ("C0", "s--"),
    "InteriorPoint": ("C4", "x--"),
    "Compliant": ("C1", "o-"),
    "Compliant(substeps=8)": ("C2", "o-"),
}
TITLES = {"block": "block slides to its stop", "ball": "ball, after a bounce", "chain": "five links fall on the ground"}
End = Callable[[int], tuple[np.ndarray, np.ndarray]]  # number of steps -> what is watched, and its derivative


class Scene(NamedTuple):
    model: kn.Model
    start: tuple[np.ndarray, np.ndarray]
    nudge: tuple[np.ndarray, np.ndarray]  # the direction of the derivative
    time: float
    watched: int  # entries of q that are compared
    exact: tuple[float, float] | None = None  # value and derivative


def block() -> Scene:
    joints = (kn.prismatic("x"), kn.prismatic("z"), kn.revolute("y"))
    link = kn.Link("block", joints=joints, mass=1.0, shapes=kn.shapes.box(0.1, 0.1, 0.05, friction=(MU,)))
    model = kn.build([link], world_shapes=[kn.shapes.plane(friction=(MU,))])
    start = np.array([0, 0.05, 0]), np.array([SPEED, 0, 0])
    return Scene(model, start, (np.zeros(3), np.eye(3)[0]), 0.6, 1, (SPEED**2 / (2 * MU * G), SPEED / (MU * G)))


def ball() -> Scene:
    link = kn.Link("ball", joints=kn.prismatic("z"), mass=1.0, shapes=kn.shapes.sphere(RADIUS))
    model = kn.build([link], world_shapes=[kn.shapes.plane()])
    time, fall = 0.7, np.sqrt(2 * DROP / G)
    height = RADIUS + BOUNCE * G * fall * (time - fall) - G / 2 * (time - fall) ** 2
    by_fall = BOUNCE * G * (time - 2 * fall) + G * (time - fall)
    start = np.array([RADIUS + DROP]), np.zeros(1)
    return Scene(model, start, (np.ones(1), np.zeros(1)), time, 1, (height, by_fall / (G * fall)))


def chain() -> Scene:
    """Rods of 0.5 m with balls at their tips, let go horizontally 1.5 m over the ground; after 0.8 s, before chaos."""
    shape = kn.shapes.sphere(0.05, position=(0, 0, -0.5), friction=(0.5,), contype=1, conaffinity=0)
    body = {"mass": 1.0, "com": (0, 0, -0.25), "inertia": (1 / 48, 1 / 48, 1e-3), "shapes": shape}
    links = [kn.Link("link0", "world", kn.revolute("y"), position=(0, 0, 1.5), **body)]
    links += [kn.Link(f"link{i}", f"link{i - 1}", kn.revolute("y"), position=(0, 0, -0.5), **body) for i in range(1, 5)]
    model = kn.build(links, world_shapes=[kn.shapes.plane(friction=(0.5,), contype=0, conaffinity=1)])
    return Scene(model, (np.eye(5)[0] * np.pi / 2, np.zeros(5)), (np.eye(5)[0], np.zeros(5)), 0.8, 5)


def ours(scene: Scene, contact: Impulse | Compliant) -> End:
    def chunk(q, qd, dt):
        run = kn.rollout(scene.model, kn.State(q, qd), dt=dt, steps=CHUNK, contact=contact)
        return run.q[-1], run.qd[-1]

    forward = kn.native.jit(lambda at, tangent, dt: jax.jvp(lambda q, qd: chunk(q, qd, dt), at, tangent))

    def end(steps: int):
        at, tangent = scene.start, scene.nudge
        for _ in range(steps // CHUNK):
            at, tangent = forward(at, tangent, scene.time / steps)
        return np.asarray(at[0])[: scene.watched], np.asarray(tangent[0])[: scene.watched]

    return end


def mujocos(scene: Scene) -> End:
    """Derivatives by central differences; springs of 10 ms, damped a little, or for what slides as hard as can be."""
    with tempfile.TemporaryDirectory() as folder:
        kn.save(scene.model, Path(folder) / "scene.xml")
        model = mujoco.MjModel.from_xml_path(str(Path(folder) / "scene.xml"))
    model.opt.cone, model.opt.impratio, model.opt.tolerance = mujoco.mjtCone.mjCONE_ELLIPTIC, 100, 1e-12
    model.geom_solimp[:] = (0.9999, 0.9999, 1e-3, 0.5, 2)

    def run(steps: int, offset: float) -> np.ndarray:
        model.opt.timestep = scene.time / steps
        model.geom_solref[:] = (2 * model.opt.timestep, 1) if np.any(scene.start[1]) else (-1e5, -45)
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = (a + offset * b for a, b in zip(scene.start, scene.nudge, strict=True))
        mujoco.mj_step(model, data, steps)
        return data.qpos[: scene.watched].copy()

    return lambda steps: (run(steps, 0.0), (run(steps, NUDGE) - run(steps, -NUDGE)) / (2 * NUDGE))


def measure(quick: bool) -> list[dict]:
    rows = []
    for name, scene in {"block": block(), "ball": ball(), "chain": chain()}.items():
        sizes = np.geomspace(1e-2, 1e-4, 4) if quick else np.geomspace(1e-2, 1e-5, 10)
        counts = [round(scene.time / dt / CHUNK) * CHUNK for dt in sizes]
        ends = {solver: ours(scene, contact) for solver, contact in list(SOLVERS[name].items())[: 1 if quick else None]}
        for solver, end in (ends | {"MuJoCo": mujocos(scene)}).items():
            closed = scene.exact is not None and ("Imp" in solver or (name == "block" and solver != "Compliant"))
            exact = scene.exact if closed and scene.exact else end(4 * counts[-1])
            for steps in counts:
                value, slope = (float(np.max(np.abs(a - b))) for a, b in zip(end(steps), exact, strict=True))
                row = {"scene": name, "solver": solver, "closed": closed, "dt": scene.time / steps}
                rows.append(row | {"value": value, "slope": slope})
            errors = (f"{r['value']:.0e}/{r['slope']:.0e}" for r in rows[-len(counts) :])
            print(f"{name:6s} {solver:28s}", *errors, flush=True)
    return rows


def draw(rows: list[dict], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.4), layout="constrained")
    grid = figure.subplots(2, 3, sharex=True)
    handles = {}
    for column, (scene, title) in enumerate(TITLES.items()):
        for axes, part in zip(grid[:, column], ("value", "slope"), strict=True):
            for solver, (colour, style) in STYLES.items():
                own = [row for row in rows if (row["scene"], row["solver"]) == (scene, solver)]
                if own:
                    x, y = [row["dt"] for row in own], [row[part] for row in own]
                    handles[solver] = axes.loglog(x, y, style, color=colour, ms=4, lw=1.4, label=solver)[0]
            guide = np.array([1e-5, 1e-2])
            handles["slope 1"] = axes.loglog(guide, 10 * guide, "k-", lw=0.6, alpha=0.5)[0]
            axes.grid(alpha=0.25)
        grid[0, column].set_title(title)
        grid[1, column].set_xlabel("time step [s]")
    grid[0, 0].set_ylabel("error of the position [m or rad]")
    grid[1, 0].set_ylabel("error of its derivative")
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=150)


def table(rows: list[dict]) -> str:
    shown = [1e-2, 1e-3, 1e-4, 1e-5]
    lines = [
        "| scene | solver | against | " + " | ".join(f"{dt:g} s" for dt in shown) + " |",
        "|---|---|---|" + "--:|" * 4,
    ]
    for scene, solver in dict.fromkeys((row["scene"], row["solver"]) for row in rows):
        own = [row for row in rows if (row["scene"], row["solver"]) == (scene, solver)]
        near = [min(own, key=lambda row, dt=dt: abs(np.log(row["dt"] / dt))) for dt in shown]
        cells = " | ".join(f"{row['value']:.1e}, {row['slope']:.1e}" for row in near)
        lines.append(f"| {scene} | {solver} | {'closed form' if own[0]['closed'] else 'own finest step'} | {cells} |")
    return "Errors of the position [m or rad], and of its derivative.\n\n" + "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Impulse and MuJoCo, four steps, nothing written")
    options = parser.parse_args(arguments)
    with jax.enable_x64(True):
        rows = measure(options.quick)
    if not options.quick:
        draw(rows, RESULTS / "contact_convergence.png")
        (RESULTS / "contact_convergence.md").write_text(table(rows))
        (RESULTS / "contact_convergence.json").write_text(json.dumps(rows, indent=1))
    return rows


if __name__ == "__main__":
    main()
