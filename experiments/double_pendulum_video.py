"""IBM's double pendulum, identified from marker positions in video, as in NeuralSim's workshop paper, figure 1 right.

Eight runs are for training, two for validation, four for testing. Models: the analytic one (`kn.fit`: inertias,
centres of mass, damping, Coulomb friction, gravity), the same with a passive network inside, MuJoCo's `mujoco.sysid`,
and an LSTM. Every model gets the same 50 ms of markers; those that have a state find it by least squares. Errors are
distances of both markers over 0.25, 0.5, 1 and 2 s, on windows side by side in the test runs.
Run: python experiments/double_pendulum_video.py [--quick] [--fresh]. Models are kept in experiments/results as they are
found, and a run that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import double_pendulum_data as data
import double_pendulum_peers as peers
import jax
import jax.numpy as jnp
import numpy as np
from double_pendulum_data import FRAMES, HORIZONS, RATE, SEEN, UNIT, Run

import knuckle as kn
from knuckle import native, neural, sysid
from knuckle.kinematics import frame_pose
from knuckle.optim import LeastSquares, LevenbergMarquardt
from knuckle.optim.robust import Loss as Robust

RESULTS = Path(__file__).parent / "results"
STEP = 1 / RATE / UNIT
NOISE = 2.5e-3  # of markers [arms]: a third of a pixel
FREE = {
    "shoulder.armature": None,
    "*.com.x": kn.Prior(spread=0.1),
    "*.com.z": kn.Prior(spread=1.0),
    "*.damping": None,
    "*.friction": None,
    "world.gravity.x": None,
    "world.gravity.z": None,
}
ANALYTIC, HYBRID, PEER, RECURRENT = "analytic", "analytic + network", "mujoco.sysid", "LSTM"


def pendulum(second_arm: float) -> kn.Model:
    """A first guess. No passive pendulum tells its mass, so the lower arm has mass 1; moments beside it are held."""
    joint = {"damping": 1e-3, "friction": 1e-3}
    tip = kn.model.Frame("tip", (0, 0, -second_arm))
    elbow, shoulder = kn.revolute("y", name="elbow", **joint), kn.revolute("y", name="shoulder", armature=0.5, **joint)
    upper = kn.Link("upper", joints=shoulder, mass=3.0, com=(0, 0, -0.3), inertia=(0.05,) * 3)
    lower = kn.Link("lower", "upper", elbow, (0, 0, -1), mass=1.0, com=(0, 0, -0.15), inertia=(0.08,) * 3, frames=[tip])
    return kn.build([upper, lower], gravity=(0, 0, -0.17))


def markers(model: kn.Model, state: kn.State):
    """Elbow and tip, each down and across."""
    elbow, tip = (frame_pose(model, state.q, name).position for name in ("lower", "tip"))
    return -jnp.stack([elbow[2], elbow[0], tip[2], tip[0]])


def recordings(model: kn.Model, pieces: Sequence[Run], skip: int = 2) -> list[sysid.Recording]:
    return [
        sysid.Recording.of(
            model, STEP * np.arange(len(p.q))[::skip], q=p.smooth_q[::skip], observed={"markers": p.markers[::skip]}
        )
        for p in pieces
    ]


class Stage(NamedTuple):
    """Length and number of the pieces that a fit learns from.

    In half a second chaos makes some pieces far worse than others; a robust loss keeps those from deciding.
    """

    seconds: float
    count: int
    robust: Robust = "squares"


STAGES = Stage(0.1, 60), Stage(0.25, 60), Stage(0.5, 240, "cauchy")


def fitted(model: kn.Model, runs: Sequence[Run], stage: Stage, blueprint=None, noise=1.0) -> kn.Fit:
    """`kn.fit` on pieces at random places; angles only say where a search for the starts begins.

    With a larger `noise` what is known beforehand counts more: parameters stay nearer to where they were, and weights
    nearer to zero.
    """
    seconds, count, robust = stage
    pieces = data.pieces(runs, round(seconds * RATE) + 1, count)
    return kn.fit(
        model,
        recordings(model, pieces),
        FREE,
        blueprint=blueprint,
        held_out=0,
        loss="single shooting",
        observe={"markers": markers},
        noise={"q": 1.0, "markers": noise * NOISE},
        robust=robust,
        integrator=kn.RK4(),
        step=1.01 * STEP,
        solver=LevenbergMarquardt(value_tolerance=1e-6, max_iterations=40),
        draws=1,
        progress=lambda text: print(f"  {seconds:g} s: {text}", flush=True),
    )


def analytic(runs: Sequence[Run], stages: Sequence[Stage]) -> kn.Fit:
    """Short pieces first: over long ones a first guess far off has many minima around it."""
    model, fit = pendulum(data.second_arm(runs)), None
    for stage in stages:
        fit = fitted(model, runs, stage)
        model = fit.model
    assert fit is not None
    return fit


def network(model: kn.Model, hidden: Sequence[int]) -> kn.Blueprint:
    coordinates = neural.Coordinates.of(model, periodic=True)
    passive = neural.Passive(coordinates, hidden, key=jax.random.key(0))
    return kn.Blueprint({"joint/passive_force": kn.Augment(passive, ("q", "qd"))})


class Predictor:
    """Markers of a simulator, from the state that fits the frames seen best."""

    def __init__(self, model: kn.Model, blueprint: kn.Blueprint | None = None):
        def motion(start, frames):
            state = kn.State(start[:2], start[2:])
            run = kn.rollout(
                model, state, dt=STEP, steps=frames - 1, integrator=kn.RK4(), contact=None, blueprint=blueprint
            )
            first = markers(model, state)[None]
            return jnp.concatenate([first, jax.vmap(lambda q: markers(model, kn.State(q, q)))(run.q)])

        def residuals(start, seen):
            return (motion(start, SEEN) - seen).reshape(-1)

        self.motion = native.jit(lambda start: motion(start, FRAMES))
        self.residuals = native.jit(lambda start, seen: (residuals(start, seen), native.jacfwd(residuals)(start, seen)))

    def __call__(self, seen: np.ndarray) -> np.ndarray:
        return np.asarray(self.motion(found_start(lambda x: tuple(map(np.asarray, self.residuals(x, seen))), seen)))


def found_start(function, seen: np.ndarray) -> np.ndarray:
    """Least squares on the frames seen, from parabolas through the angles."""
    upper = np.unwrap(np.arctan2(seen[:, 1], seen[:, 0]))
    lower = np.unwrap(np.arctan2(seen[:, 3] - seen[:, 1], seen[:, 2] - seen[:, 0]))
    curves = np.polyfit(STEP * np.arange(len(seen)), np.stack([upper, lower - upper], axis=1), 2)
    first = np.concatenate([curves[2], curves[1]])
    return LevenbergMarquardt(max_iterations=30)(LeastSquares(function, 4), first).x


class Split(NamedTuple):
    """Runs to learn from, and windows of others: to choose by, and to test on."""

    train: list[Run]
    shown: np.ndarray
    unseen: np.ndarray


def row(predict: data.Predict, split: Split, **more) -> dict[str, Any]:
    """What is kept of a model: errors of all windows, and its motion in one of them."""
    return {
        "validation": data.errors(predict, split.shown).mean(0).tolist(),
        "errors": data.errors(predict, split.unseen).tolist(),
        "example": predict(example(split)[:SEEN]).tolist(),
        **more,
    }


def example(split: Split) -> np.ndarray:
    """A window in the middle of the first test run."""
    return split.unseen[len(split.unseen) // 8]


def best(predictors: Sequence[Any], split: Split) -> int:
    """Which is best on validation windows."""
    return int(np.argmin([np.log(data.errors(predict, split.shown)).mean() for predict in predictors]))


def ours(split: Split, quick: bool) -> dict[str, dict]:
    """The analytic model; and with a network, physics first, of several sizes and priors chosen by validation."""
    base = analytic(split.train, (Stage(0.1, 10),) if quick else STAGES)
    print(base, flush=True)
    found = {e.name: (e.value, e.lower, e.upper) for e in base.estimates}
    more = {"parameters": found, "energy": data.energy_weights(split.train).tolist()}
    more["second"] = data.second_arm(split.train)
    rows = {ANALYTIC: row(Predictor(base.model), split, **more)}
    if quick:
        return rows
    choices = [((width,), noise) for noise in (1.0, 3.0, 10.0) for width in (4, 8)]
    fits = [fitted(base.model, split.train, STAGES[-1], network(base.model, h), noise) for h, noise in choices]
    predictors = [Predictor(fit.model, fit.blueprint) for fit in fits]
    chosen = best(predictors, split)
    tried = [data.errors(p, split.shown).mean(0).tolist() for p in predictors]
    rows[HYBRID] = row(predictors[chosen], split, choices=choices, chosen=choices[chosen], tried=tried)
    return rows


def mujocos(split: Split, quick: bool) -> dict[str, dict]:
    """MuJoCo's own identification; of several lengths of pieces the one that is best on validation windows."""
    models = peers.identified(split.train, ((0.1, 4),) if quick else [(s.seconds, s.count) for s in STAGES])
    predictors = [peers.Mujoco(model, data.second_arm(split.train), found_start) for model in models]
    return {PEER: row(predictors[best(predictors, split)], split)}


def recurrent(split: Split, quick: bool) -> dict[str, dict]:
    sizes, updates = ((8,), 1) if quick else ((64, 128), 20_000)
    predictors = [peers.trained(split.train, split.shown, updates, hidden) for hidden in sizes]
    chosen = best(predictors, split)
    return {RECURRENT: row(predictors[chosen], split, hidden=sizes[chosen])}


def interval(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float, float]:
    """Mean paired difference and its 95 % bootstrap interval over windows."""
    difference = ours - theirs
    means = np.random.default_rng(0).choice(difference, (10_000, len(difference))).mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(difference.mean()), float(low), float(high)


def table(rows: dict[str, dict]) -> str:
    errors = {name: np.array(kept["errors"]) for name, kept in rows.items()}
    heads = " | ".join(f"{h:g} s" for h in HORIZONS)
    count = len(next(iter(errors.values())))
    lines = [f"Root mean square distance of the markers [mm], mean over {count} windows of the test runs:", ""]
    lines += [f"| model | {heads} |", "|---|" + "--:|" * 4]
    lines += [f"| {n} | " + " | ".join(f"{m:.2f}" for m in e.mean(0)) + " |" for n, e in errors.items()]
    lines += ["", "Medians over windows:", "", f"| model | {heads} |", "|---|" + "--:|" * 4]
    lines += [f"| {n} | " + " | ".join(f"{m:.2f}" for m in np.median(e, 0)) + " |" for n, e in errors.items()]
    if HYBRID in rows:
        lines += ["", f"Less {HYBRID}, mean and 95 % bootstrap interval over the same windows:", ""]
        lines += [f"| model | {heads} |", "|---|" + "--:|" * 4]
    for name in (name for name in errors if HYBRID in rows and name != HYBRID):
        gaps = [interval(errors[name][:, k], errors[HYBRID][:, k]) for k in range(len(HORIZONS))]
        lines.append(f"| {name} | " + " | ".join(f"{m:+.2f} ({a:+.2f} to {b:+.2f})" for m, a, b in gaps) + " |")
    return "\n".join(lines + (identified(rows[ANALYTIC]) if ANALYTIC in rows else [])) + "\n"


def identified(kept: dict) -> list[str]:
    lines = ["", "Analytic model, in units of the first arm, of 50 ms and of the lower arm's mass:", ""]
    lines += ["| parameter | value | 95 % interval |", "|---|--:|--:|"]
    lines += [f"| {name} | {v:.5f} | {a:.5f} to {b:.5f} |" for name, (v, a, b) in kept["parameters"].items()]
    gravity = -kept["parameters"]["world.gravity.z"][0] * data.ARM / 1e3 / UNIT**2
    weights = ", ".join(f"{w:.4f}" for w in kept["energy"])
    return [
        *lines,
        "",
        f"Gravity with an arm of {data.ARM:g} mm and {RATE:g} frames a second: {gravity:.2f} m/s^2. Second arm: "
        f"{data.ARM * kept['second']:.1f} mm. Factors of sin A, sin B, cos A, cos B (arms from the image's x) in "
        f"the energy that is kept: {weights}.",
    ]


def picture(rows: dict[str, dict], truth: np.ndarray, path: Path) -> None:
    from matplotlib.figure import Figure

    colours = {ANALYTIC: "#2a6f97", HYBRID: "#c1440e", PEER: "#5b8c3a", RECURRENT: "#8a63a8"}
    figure = Figure((11, 4.2), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.5))
    for name, kept in rows.items():
        error = np.array(kept["errors"])
        draws = np.random.default_rng(0).integers(len(error), size=(2000, len(error)))
        low, high = np.percentile(error[draws].mean(1), [2.5, 97.5], axis=0)
        left.plot(HORIZONS, error.mean(0), "o-", color=colours[name], label=name)
        left.fill_between(HORIZONS, low, high, color=colours[name], alpha=0.15, lw=0)
    left.set(xscale="log", yscale="log", xlabel="horizon [s]", ylabel="distance of markers [mm]", xticks=HORIZONS)
    left.set_xticklabels([f"{h:g}" for h in HORIZONS])
    left.set_xticks([], minor=True)
    left.legend(frameon=False)
    left.set_title("Test runs: mean over windows, 95 % interval", fontsize=10, loc="left")
    at = np.arange(FRAMES) / RATE - SEEN / RATE
    right.plot(at, data.ARM * truth[:, 3], color="#b9c0c9", lw=5, label="measured")
    for name, kept in rows.items():
        right.plot(at, data.ARM * np.array(kept["example"])[:, 3], color=colours[name], lw=1.3)
    right.axvspan(at[0], 0, color="#f2f4f6", zorder=0)
    right.set(xlabel="time [s]; shaded: what models see", ylabel="tip, across [mm]", xlim=(at[0], at[-1]))
    right.set_title("One window", fontsize=10, loc="left")
    right.legend(frameon=False, loc="upper right")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> dict[str, dict]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="little of everything but the network, nothing written")
    parser.add_argument("--fresh", action="store_true", help="forget the models that were kept")
    options = parser.parse_args(arguments)
    store, rows = RESULTS / "double_pendulum_video.json", {}
    if store.exists() and not options.fresh and not options.quick:
        rows = json.loads(store.read_text())
    runs = data.load()
    train, validation, test = ([runs[i] for i in part] for part in (data.TRAIN, data.VALIDATION, data.TEST))
    every = 20 if options.quick else 1
    split = Split(train, data.windows(validation)[::every], data.windows(test)[::every])
    parts = {HYBRID: ours, PEER: mujocos, RECURRENT: recurrent}
    if not hasattr(peers.peer, "optimize"):
        print('mujoco.sysid is left out: it needs pip install "mujoco[sysid]"')
        del parts[PEER]
    with jax.enable_x64(True):
        for name, part in parts.items():
            if name not in rows:
                rows |= part(split, options.quick)
                if not options.quick:
                    store.write_text(json.dumps(rows))
    rows = {name: rows[name] for name in (ANALYTIC, HYBRID, PEER, RECURRENT) if name in rows}
    print(table(rows))
    if not options.quick:
        (RESULTS / "double_pendulum_video.md").write_text(table(rows))
        picture(rows, example(split), RESULTS / "double_pendulum_video.png")
    return rows


if __name__ == "__main__":
    main()
