"""Joint friction that a network learns inside a double pendulum, from a log of one swing.

The log is simulated by a pendulum whose joints rub: smooth Coulomb friction and damping, other at each joint, of which
the model knows nothing. A network per joint, from its speed to a force, sits at the tap "joint/force"; L-BFGS trains
both on 3 s of noisy angles by the gradient through the roll-out. Another swing, from a start that was never seen, is
then predicted, and what the networks learned is held against the true friction.
Run: python experiments/joint_friction.py [--quick]. Writes table and numbers to experiments/results and the picture to
docs/images (with --quick nothing).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import knuckle as kn
from knuckle import native, neural, robots
from knuckle.optim import LBFGSB, Smooth

RESULTS = Path(__file__).parent / "results"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "joint_friction.png"
DT, NOISE = 0.002, 0.002  # [s], [rad]
START, UNSEEN = kn.State(np.array([1.5, 0.6]), np.zeros(2)), kn.State(np.array([-1.0, 1.4]), np.zeros(2))
DAMPING, FRICTION, FRICTION_SPEED = np.array([0.03, 0.01]), np.array([0.12, 0.05]), 0.3  # of the pendulum in the log


def rubbing(model: kn.Model) -> kn.Model:
    """The pendulum that the log was taken from."""
    speed = np.full(2, FRICTION_SPEED)
    return eqx.tree_at(lambda m: (m.damping, m.friction, m.friction_speed), model, (DAMPING, FRICTION, speed))


def learn(model: kn.Model, log: np.ndarray, iterations: int) -> tuple[kn.Blueprint, kn.Blueprint, np.ndarray]:
    """The networks before and after, and the mean squared error [rad^2] over the iterations."""
    networks = neural.each(2, lambda key: neural.MLP((1, 8, 1), bias=False, key=key), jax.random.key(0))
    before = kn.Blueprint({"joint/force": kn.Augment(networks, inputs="qd", share="each")})
    weights, unflatten = ravel_pytree(before.weights)

    def loss(weights):
        blueprint = before.with_weights(unflatten(weights))
        run = kn.rollout(model, START, dt=DT, steps=len(log), blueprint=blueprint)
        return jnp.mean((run.q - log) ** 2)

    problem = Smooth(native.jit(jax.value_and_grad(loss)), weights.size)
    fit = LBFGSB(max_iterations=iterations)(problem, weights)
    return before, before.with_weights(unflatten(jnp.asarray(fit.x))), fit.history


def swing(model: kn.Model, state: kn.State, steps: int, blueprint: kn.Blueprint | None = None) -> np.ndarray:
    run = native.jit(lambda: kn.rollout(model, state, dt=DT, steps=steps, blueprint=blueprint).q)
    return np.asarray(run())


def friction_curves(blueprint: kn.Blueprint, speed: np.ndarray) -> np.ndarray:
    """The networks' force [N m] at each joint over its speed [rad/s]."""
    ((_, _, augment),) = blueprint
    values = native.jit(lambda qd: eqx.filter_vmap(lambda n: jax.vmap(n)(qd[:, None])[:, 0])(augment.network))
    return np.asarray(values(speed))


def true_friction(model: kn.Model, speed: np.ndarray) -> np.ndarray:
    """What the networks should find: the log's friction and damping, less the damping that the model has."""
    more = DAMPING - np.asarray(model.damping)
    return -more[:, None] * speed - FRICTION[:, None] * np.tanh(speed / FRICTION_SPEED)


def experiment(train: int, test: int, iterations: int) -> dict:
    model = robots.load("double_pendulum")
    model = eqx.tree_at(lambda m: m.damping, model, np.zeros(2))
    clean = swing(rubbing(model), START, train)
    log = clean + NOISE * np.random.default_rng(0).normal(size=clean.shape)
    before, after, history = learn(model, log, iterations)
    speed = np.linspace(-6, 6, 241)
    return {
        "time": DT * np.arange(1, test + 1),
        "seconds": train * DT,
        "loss": history,
        "log_clean": clean,
        "truth": swing(rubbing(model), UNSEEN, test),
        "before": swing(model, UNSEEN, test, before),
        "after": swing(model, UNSEEN, test, after),
        "speed": speed,
        "learned": friction_curves(after, speed),
        "friction": true_friction(model, speed),
    }


def root_mean_square(a: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(a))))


def summary(found: dict) -> dict:
    error = {name: root_mean_square(found[name] - found["truth"]) for name in ("before", "after")}
    misfit = root_mean_square(found["learned"] - found["friction"]) / root_mean_square(found["friction"])
    fit = float(np.sqrt(found["loss"][-1]))
    return {"fit": fit, "before": error["before"], "after": error["after"], "friction_misfit": misfit}


def table(found: dict) -> str:
    numbers = summary(found)
    rows = [
        (f"error on the training log, {found['seconds']:g} s [rad]", float(np.sqrt(found["loss"][0])), numbers["fit"]),
        (f"error on a swing never seen, {found['time'][-1]:g} s [rad]", numbers["before"], numbers["after"]),
    ]
    lines = ["| root mean square | before | after |", "|---|--:|--:|"]
    lines += [f"| {name} | {a:.4f} | {b:.4f} |" for name, a, b in rows]
    share = 100 * numbers["friction_misfit"]
    return "\n".join(
        [*lines, "", f"Noise of the log {NOISE} rad; learned friction is {share:.0f} % off over +-6 rad/s."]
    )


def picture(found: dict, path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    ink, grey, blue, orange = "#2b3038", "#b9c0c9", "#2a6f97", "#d4862a"
    style: dict[Any, Any] = {"font.size": 9.5, "text.color": ink, "axes.labelcolor": ink, "axes.edgecolor": "#9aa3af"}
    style |= {"axes.spines.top": False, "axes.spines.right": False, "xtick.color": "#5c6570", "ytick.color": "#5c6570"}
    style |= {"axes.grid": True, "grid.color": "#e6e9ed", "axes.titlesize": 10.5, "axes.titlelocation": "left"}
    with mpl.rc_context({**style, "legend.frameon": False}):
        figure = Figure((11, 5.0), dpi=160, layout="constrained")
        axes = figure.subplots(2, 2, width_ratios=(1.9, 1), sharex="col")
        for joint, name in enumerate(("shoulder", "elbow")):
            motion, force = axes[joint]
            motion.plot(
                found["time"], found["truth"][:, joint], color=grey, lw=5, label="pendulum with friction (truth)"
            )
            motion.plot(
                found["time"], found["before"][:, joint], color=orange, lw=1.3, ls="--", label="model without network"
            )
            motion.plot(found["time"], found["after"][:, joint], color=blue, lw=1.5, label="model with network")
            motion.set(ylabel=f"{name} [rad]")
            force.plot(found["speed"], found["friction"][joint], color=grey, lw=5, label="true friction")
            force.plot(found["speed"], found["learned"][joint], color=blue, lw=1.5, label="network")
            force.set(ylabel=f"{name} [N m]", ylim=(-0.36, 0.36))
            reached = np.abs(np.gradient(found["log_clean"][:, joint], DT)).max()
            for side in (-1, 1):
                force.axvspan(side * reached, side * 6.0, color="#f2f4f6", zorder=0)
        axes[0, 0].set(title="A swing that was not in the log")
        axes[0, 1].set(title="What the networks learned")
        axes[1, 0].set(xlabel="time [s]", xlim=(0, found["time"][-1]))
        axes[1, 1].set(xlabel="joint speed [rad/s]; shaded: faster than in the log", xlim=(-6, 6))
        low, high = axes[0, 0].get_ylim()
        axes[0, 0].set_ylim(low, high + 0.35 * (high - low))
        axes[0, 0].legend(loc="upper center", ncols=3, handlelength=1.4, columnspacing=1.2, fontsize="small")
        axes[0, 1].legend(loc="upper right")
        figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="0.8 s of log, 25 iterations, nothing written")
    options = parser.parse_args(arguments)
    with jax.enable_x64(True):
        found = experiment(400, 500, 25) if options.quick else experiment(1500, 3000, 150)
    print(table(found))
    if not options.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "joint_friction.md").write_text(table(found) + "\n")
        numbers = {**summary(found), "loss": np.asarray(found["loss"]).tolist()}
        (RESULTS / "joint_friction.json").write_text(json.dumps(numbers, indent=1))
        PICTURE.parent.mkdir(exist_ok=True)
        picture(found, PICTURE)
    return found


if __name__ == "__main__":
    main()
