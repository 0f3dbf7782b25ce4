"""NeuralSim figure 4: the link lengths of a double pendulum, by local search and by parallel basin hopping.

True lengths 3 and 4 m, 1 kg at the end of each link, falling from the horizontal; joint angles at 60 Hz, 50 steps as in
the paper, and 300 steps, where there are more local minima. From every start of a grid over [0.1, 10]^2 the maps show
how far from the truth a search ends: one local search (L-BFGS as in the paper, and Levenberg-Marquardt on the residual
vector), and basin hopping with at most 64 of the latter. Run: python experiments/basin_hopping.py [--quick]
[--workers N]. Writes maps, table and numbers to experiments/results (with --quick nothing, on a coarse grid, in this
process).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle import native, optim

RESULTS = Path(__file__).parent / "results"
TRUTH, LOWER, UPPER = np.array([3.0, 4.0]), 0.1, 10.0
DT, GRIDS = 1 / 60, {50: 0.1, 300: 0.2}  # steps of the recording, distance of starts [m]
SEARCHES, PER_ROUND, NEAR = 64, 4, 1e-3
LOCAL, DESCENT = optim.LevenbergMarquardt(), optim.LBFGSB()
METHODS = {"lbfgs": "L-BFGS-B", "local": "Levenberg-Marquardt", "hopping": "parallel basin hopping"}


def pendulum(lengths) -> kn.Model:
    """1 kg at the end of each link with the inertia of a ball of 0.15 m, about y."""
    body = {"mass": 1.0, "com": (0, 0, -1), "inertia": (0.4 * 0.15**2,) * 3}
    upper = kn.Link("upper", joints=kn.revolute("y"), **body)
    model = kn.build([upper, kn.Link("lower", "upper", kn.revolute("y"), position=(0, 0, -1), **body)])
    down = jnp.zeros((2, 3)).at[:, 2].set(-lengths)
    joints = jnp.zeros((2, 3)).at[1, 2].set(-lengths[0])
    return eqx.tree_at(lambda m: (m.inertia.com, m.position), model, (down, joints))


def motion(lengths, dt: float, steps: int):
    """Joint angles of the fall from the horizontal."""
    start = kn.State(jnp.array([jnp.pi / 2, 0.0]), jnp.zeros(2))
    return kn.rollout(pendulum(lengths), start, dt=dt, steps=steps).q


def build(steps: int) -> optim.LeastSquares:
    """Residuals and Jacobian of the joint angles by the two lengths."""
    observed = np.asarray(native.jit(lambda x: motion(x, DT, steps))(TRUTH))

    def residuals(lengths):
        return (motion(lengths, DT, steps) - observed).ravel()

    def with_jacobian(lengths):
        value, push = jax.linearize(residuals, lengths)
        return value, jax.vmap(push, out_axes=1)(jnp.eye(2))

    return optim.LeastSquares(
        native.jit(with_jacobian), 2, lower=LOWER, upper=UPPER, names=("upper length", "lower length")
    )


class Ready:
    """A problem that is built already, as a factory."""

    def __init__(self, problem: optim.LeastSquares):
        self.problem = problem

    def __call__(self) -> optim.LeastSquares:
        return self.problem


def work(problem: optim.LeastSquares, payload: tuple[str, np.ndarray, int], seconds: float | None) -> dict:
    """One search from one start; hops are of another seed at every start."""
    method, start, seed = payload
    began = time.process_time()
    if method == "hopping":
        limits = {"searches": SEARCHES, "per_round": PER_ROUND, "target": 1e-16}
        result = optim.basin_hopping(Ready(problem), start, local=LOCAL, seed=seed, **limits)
        assert result.searches is not None
        count = len(result.searches)
    else:
        result, count = (LOCAL if method == "local" else DESCENT)(problem, start), 1
    return {
        "distance": float(np.linalg.norm(result.x - TRUTH)),
        "searches": count,
        "evaluations": result.evaluations,
        "cpu": time.process_time() - began,
    }


def grid(step: float) -> np.ndarray:
    side = np.linspace(LOWER, UPPER, round((UPPER - LOWER) / step) + 1)
    return np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)


def measure(workers: int, steps: int, step: float) -> dict:
    """All methods from all starts of a grid."""
    starts, maps, seconds = grid(step), {}, {}
    with optim.opened(workers, partial(build, steps), work) as team:
        for _ in team.run([("local", np.array([8.0, 4.0]), 0)] * 2 * max(workers, 1)):
            pass  # workers start, load JAX and compile
        for name in METHODS:
            began = time.perf_counter()
            rows = dict(team.run([(name, start, i) for i, start in enumerate(starts)]))
            seconds[name] = time.perf_counter() - began
            failed = [outcome.failure for outcome in rows.values() if outcome.failure]
            if failed:
                raise SystemExit(f"{len(failed)} searches failed, the first so: {failed[0]}")
            maps[name] = [rows[i].value for i in range(len(starts))]
            print(summary(steps, name, maps[name], seconds[name]), flush=True)
    thousand = 1000 * seconds["local"] / len(starts)
    processor = 1000 * float(np.mean([row["cpu"] for row in maps["local"]]))
    print(
        f"1000 local searches: {thousand:.2f} s with {max(workers, 1)} processes, {processor:.2f} s of processor time"
    )
    times = {"seconds": seconds, "wall_per_1000": thousand, "cpu_per_1000": processor}
    return {"steps": steps, "step": step, "workers": workers, "maps": maps, **times}


def summary(steps: int, name: str, rows: list[dict], seconds: float) -> str:
    distance, searches = (np.array([row[key] for row in rows]) for key in ("distance", "searches"))
    return (
        f"| {steps} | {METHODS[name]} | {len(rows)} | {np.mean(distance <= NEAR):.1%} | {np.median(distance):.0e} "
        f"| {distance.max():.0e} | {searches.mean():.1f} | {searches.max()} | {seconds:.1f} |"
    )


def table(found: list[dict]) -> str:
    columns = "steps", "method", "starts", "within 1e-3 of the truth", "median distance [m]", "largest [m]"
    columns += "searches, mean", "most", "time [s]"
    lines = [f"| {' | '.join(columns)} |", "|--:|---" + "|--:" * 7 + "|"]
    lines += [summary(f["steps"], name, f["maps"][name], f["seconds"][name]) for f in found for name in METHODS]
    lines += [""]
    for f in found:
        lines += [
            f"1000 local searches of {f['steps']} steps took {f['wall_per_1000']:.2f} s with {f['workers']} processes "
            f"on {os.cpu_count()} cores that were shared with other work; {f['cpu_per_1000']:.2f} s of processor time."
        ]
    return "\n".join(lines) + "\n"


def picture(found: list[dict], path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    from knuckle.viewer.plots import STYLE

    with mpl.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(10.5, 7.0), dpi=150, layout="constrained")
        axes = figure.subplots(2, 3, sharex=True, sharey=True)
        for row, f in zip(axes, found, strict=True):
            row[0].set_ylabel(f"{f['steps']} steps\nfirst guess, lower length [m]")
            for ax, (name, title) in zip(row, METHODS.items(), strict=True):
                distance = np.array([its["distance"] for its in f["maps"][name]])
                side, edge = round(np.sqrt(len(distance))), f["step"] / 2
                image = ax.imshow(
                    distance.reshape(side, side).T,
                    origin="lower",
                    extent=(LOWER - edge, UPPER + edge) * 2,
                    cmap="viridis",
                    norm=LogNorm(1e-6, 10, clip=True),
                )
                ax.plot(*TRUTH, marker="*", ms=13, color="#ffffff", mec="#2b3038", mew=0.8)
                ax.set_title(f"{title}: {np.mean(distance <= NEAR):.1%}", fontsize=10)
        for ax in axes[-1]:
            ax.set_xlabel("first guess, upper length [m]")
        bar = figure.colorbar(image, ax=axes, pad=0.01, aspect=40, extend="both")
        bar.set_label("distance of the result from the truth (star) [m]")
        figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a grid of 1.1 m, in this process, nothing written")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    with jax.enable_x64(True):
        if options.quick:
            return [measure(0, 50, 1.1)]
        found = [measure(options.workers, steps, step) for steps, step in GRIDS.items()]
    print(table(found))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "basin_hopping.md").write_text(table(found))
    (RESULTS / "basin_hopping.json").write_text(json.dumps(compact(found)))
    picture(found, RESULTS / "basin_hopping.png")
    return found


def compact(found: list[dict]) -> list[dict]:
    """Maps as lists of distances [m] and of numbers of searches, in the order of the grid (the lower length first)."""

    def columns(rows: list[dict]) -> dict:
        return {
            "distance": [float(f"{row['distance']:.3g}") for row in rows],
            "searches": [row["searches"] for row in rows] if any(row["searches"] > 1 for row in rows) else 1,
        }

    return [f | {"maps": {name: columns(rows) for name, rows in f["maps"].items()}} for f in found]


if __name__ == "__main__":
    main()
