"""NeuralSim figure 5: how long a gradient takes by finite differences, forward mode, reverse mode, and native code.

Three functions: a network of 175 parameters, 500 steps of a double pendulum without contact (dt 1/240), 5000 steps of
a five-link pendulum that falls on the ground with rigid contact (dt 1 ms); gradients of the pendulums are by masses and
initial state. Run: python experiments/gradient_times.py [--quick]. Writes the picture, the table and the numbers to
experiments/results (with --quick nothing, and on shorter roll-outs and two links).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle import native
from knuckle.contact import Impulse

RESULTS = Path(__file__).parent / "results"
METHODS = ("finite differences", "forward", "reverse", "native forward", "native reverse")
Function = Callable[[jax.Array], jax.Array]


def network() -> tuple[Function, np.ndarray]:
    """5-10-10 tanh, with biases on the inputs too: 5 + 60 + 110 parameters."""
    inputs = np.linspace(-1, 1, 5)

    def loss(w):
        hidden = jnp.asarray(inputs) + w[:5]
        hidden = jnp.tanh(w[5:55].reshape(10, 5) @ hidden + w[55:65])
        hidden = jnp.tanh(w[65:165].reshape(10, 10) @ hidden + w[165:175])
        return jnp.sum(hidden**2)

    return loss, np.random.default_rng(0).normal(size=175) / 3


def pendulum(links: int, height: float, tips: float | None) -> kn.Model:
    """Rods of 0.5 m and 1 kg about y, with a sphere at each tip if a radius is given, over the ground."""
    parts = []
    for i in range(links):
        shapes = (
            ()
            if tips is None
            else kn.shapes.sphere(tips, position=(0, 0, -0.5), friction=(0.5,), contype=1, conaffinity=0)
        )
        parent = f"link{i - 1}" if i else "world"
        at = (0, 0, -0.5) if i else (0, 0, height)
        body = {"mass": 1.0, "com": (0, 0, -0.25), "inertia": (1 / 48, 1 / 48, 1e-3)}
        parts.append(kn.Link(f"link{i}", parent, kn.revolute("y"), position=at, shapes=shapes, **body))
    ground = () if tips is None else [kn.shapes.plane(friction=(0.5,), contype=0, conaffinity=1)]
    return kn.build(parts, world_shapes=ground)


def fall(model: kn.Model, dt: float, steps: int, contact: Impulse | None) -> tuple[Function, np.ndarray]:
    n = model.nv

    def loss(x):
        heavier = eqx.tree_at(lambda m: m.inertia.mass, model, x[:n])
        run = kn.rollout(heavier, kn.State(x[n : 2 * n], x[2 * n :]), dt=dt, steps=steps, contact=contact)
        return jnp.sum(run.q[-1] ** 2) + 0.1 * jnp.sum(run.qd[-1] ** 2)

    start = np.zeros(n)
    start[0] = np.pi / 2
    return loss, np.concatenate([np.ones(n), start, np.zeros(n)])


def differences(loss: Function) -> Callable[[np.ndarray], np.ndarray]:
    """One-sided, one parameter at a time, on the function compiled by XLA."""
    compiled = jax.jit(loss)

    def gradient(x):
        base, h = float(compiled(x)), 1e-7
        return np.array([(float(compiled(x + h * e)) - base) / h for e in np.eye(len(x))])

    return gradient


def method(name: str, loss: Function) -> Callable[[np.ndarray], object]:
    if name == "finite differences":
        return differences(loss)
    compiler = native.jit if name.startswith("native") else jax.jit
    mode = jax.jacfwd if name.endswith("forward") else jax.grad
    compiled = compiler(mode(loss))
    return lambda x: np.asarray(compiled(x))


def timed(gradient: Callable[[np.ndarray], object], x: np.ndarray, budget: float) -> tuple[float, float, np.ndarray]:
    """Seconds to the first result, best seconds after it, and the result."""
    start = time.perf_counter()
    result = np.asarray(gradient(x))
    first, best, end = time.perf_counter() - start, np.inf, time.perf_counter() + budget
    while best == np.inf or time.perf_counter() < end:
        start = time.perf_counter()
        gradient(x)
        best = min(best, time.perf_counter() - start)
    return first, best, result


def measure(quick: bool) -> list[dict]:
    steps, links = ((20, 50), 2) if quick else ((500, 5000), 5)
    problems = {
        "network, 175 parameters": network(),
        f"double pendulum, {steps[0]} steps": fall(pendulum(2, 0.0, None), 1 / 240, steps[0], None),
        f"{links}-link pendulum on the ground, {steps[1]} steps": fall(
            pendulum(links, 1.5, 0.05), 1e-3, steps[1], Impulse()
        ),
    }
    rows = []
    for problem, (loss, x) in problems.items():
        for name in METHODS:
            first, seconds, result = timed(method(name, loss), x, 0.0 if quick else 3.0)
            print(f"{problem:45s} {name:20s} first {first:8.2f} s   {seconds * 1e3:12.4f} ms", flush=True)
            rows.append(
                {"problem": problem, "method": name, "first_s": first, "s": seconds, "gradient": result.tolist()}
            )
    return rows


def draw(rows: list[dict], path: Path) -> None:
    from matplotlib.figure import Figure

    problems = list(dict.fromkeys(row["problem"] for row in rows))
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(METHODS)
    for k, name in enumerate(METHODS):
        seconds = [row["s"] for row in rows if row["method"] == name]
        axes.bar(np.arange(len(problems)) + (k - 2) * width, seconds, width, label=name, color=f"C{k}")
    axes.set_yscale("log")
    axes.set_ylabel("time of one gradient [s]")
    axes.set_xticks(range(len(problems)), problems)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False, ncols=3, loc="upper left")
    axes.set_ylim(top=axes.get_ylim()[1] * 20)
    figure.savefig(path, dpi=150)


def table(rows: list[dict]) -> str:
    lines = ["| function | method | first gradient [s] | every other [ms] |", "|---|---|---|---|"]
    lines += [f"| {r['problem']} | {r['method']} | {r['first_s']:.2f} | {r['s'] * 1e3:.4g} |" for r in rows]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    with jax.enable_x64(True):
        rows = measure(options.quick)
    if not options.quick:
        RESULTS.mkdir(exist_ok=True)
        draw(rows, RESULTS / "gradient_times.png")
        (RESULTS / "gradient_times.md").write_text(table(rows))
        (RESULTS / "gradient_times.json").write_text(json.dumps(rows, indent=1))
    return rows


if __name__ == "__main__":
    main()
