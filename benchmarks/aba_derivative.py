"""Forward dynamics differentiated by its own rule, or straight through the recursion: compile and run times.

Under jax.jit on a CPU, float64: full Jacobians by (q, qd, tau), and one cotangent by (q, qd, tau) and by the model too,
one point after the other in a compiled loop. The two ways take turns, so that a busy machine disturbs both; the best of
all rounds counts. Writes results/aba_derivative.md. --quick does the first robot in few rounds and writes nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle import robots
from knuckle.dynamics.aba import _solve_with_factor, aba
from knuckle.model.load import load

RESULTS = Path(__file__).parent / "results"
ROBOTS = ("double_pendulum", "arm", "quadruped")
POINTS = 200  # evaluations in one call


class Timing(NamedTuple):
    compile: float  # trace and compile [s]
    run: float  # one evaluation [s]


def by_rule(model, q, qd, tau):
    return aba(model, q, qd, tau)


def straight_through(model, q, qd, tau):
    """The same recursion without its rule."""
    return _solve_with_factor(model, q, qd, tau, None)[0]


def tasks(solve: Callable) -> dict[str, Callable]:
    """What is differentiated, as functions of (model, q, qd, tau, weights)."""

    def scalar(model, q, qd, tau, weights):
        return jnp.dot(weights, solve(model, q, qd, tau))

    return {
        "full Jacobian": lambda model, q, qd, tau, weights: jax.jacfwd(solve, (1, 2, 3))(model, q, qd, tau),
        "one cotangent": jax.grad(scalar, (1, 2, 3)),
        "one cotangent, model too": jax.grad(scalar, (0, 1, 2, 3)),
    }


def points(model: kn.Model) -> tuple:
    rng = np.random.default_rng(0)
    step, *rest = (jnp.asarray(rng.normal(size=(POINTS, model.nv))) for _ in range(4))
    return jax.vmap(lambda u: kn.retract(model, jnp.asarray(model.reference), u))(step), *rest


def compiled(function: Callable, model: kn.Model, at: tuple) -> tuple[Callable, float]:
    """A loop over points that sums what the function gives, and how long it took to make."""

    def loop(model, at):
        def add(total, point):
            return jax.tree.map(jnp.add, total, function(model, *point)), None

        first = jax.tree.map(lambda a: a[0], at)
        zero = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(function, model, *first))
        return jax.lax.scan(add, zero, at)[0]

    start = time.perf_counter()
    program = jax.jit(loop).lower(model, at).compile()
    return program, time.perf_counter() - start


def compare(task: str, model: kn.Model, rounds: int) -> tuple[Timing, Timing]:
    """The rule and the straight way, in turns."""
    at = points(model)
    made = [compiled(tasks(solve)[task], model, at) for solve in (by_rule, straight_through)]
    best = [np.inf, np.inf]
    for _ in range(rounds):
        for k, (program, _) in enumerate(made):
            start = time.perf_counter()
            jax.block_until_ready(program(model, at))
            best[k] = min(best[k], (time.perf_counter() - start) / POINTS)
    rule, straight = (Timing(spent, run) for (_, spent), run in zip(made, best, strict=True))
    return rule, straight


def table(results: dict[str, dict[str, tuple[Timing, Timing]]], command: str) -> str:
    head = [
        "robot",
        "task",
        "rule [us]",
        "straight [us]",
        "straight / rule",
        "compile rule [s]",
        "compile straight [s]",
    ]
    rows = [
        [
            robot,
            task,
            f"{rule.run * 1e6:.1f}",
            f"{straight.run * 1e6:.1f}",
            f"{straight.run / rule.run:.2f}",
            f"{rule.compile:.1f}",
            f"{straight.compile:.1f}",
        ]
        for robot, by_task in results.items()
        for task, (rule, straight) in by_task.items()
    ]
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * 2 + ["---:"] * 5, *rows)]
    title = (
        "Derivatives of forward dynamics under `jax.jit`, float64, one CPU: `aba`'s own rule against differentiating"
    )
    note = "Above 1 in the fifth column the rule is faster. Best of all rounds, the two ways in turns; compiling once."
    written = f"Written by `{command}`."
    return "\n".join([f"{title} straight through the recursion.", "", *lines, "", f"{note} {written}", ""])


def robot(name: str) -> kn.Model:
    return robots.load(name) if name in robots.names() else load(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("robots", nargs="*", default=ROBOTS, help="built-in robots or model files")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="the first robot in few rounds, printed only")
    options = parser.parse_args()
    names = options.robots[:1] if options.quick else options.robots
    rounds = 3 if options.quick else options.rounds
    command = f"python benchmarks/aba_derivative.py {' '.join(Path(name).name for name in names)} --rounds {rounds}"
    results = {}
    with jax.enable_x64(True):
        for name in names:
            model = jax.tree.map(lambda a: jnp.asarray(a) if eqx.is_array_like(a) else a, robot(name))
            label = f"{Path(name).stem} ({model.nv} degrees of freedom)"
            results[label] = {task: compare(task, model, rounds) for task in tasks(by_rule)}
            print(table({label: results[label]}, command), flush=True)
    if not options.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "aba_derivative.md").write_text(table(results, command))


if __name__ == "__main__":
    main()
