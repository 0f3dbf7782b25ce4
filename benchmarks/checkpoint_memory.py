"""Memory of reverse mode through a roll-out, by what it keeps, from 100 to 100,000 steps.

What XLA's own analysis of the compiled gradient states as temporary memory; nothing is run. Writes
results/checkpoint_memory.{json,md,png}. --quick does few lengths and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import get_args

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

import knuckle as kn
from knuckle import robots
from knuckle.simulate import Checkpoint

RESULTS = Path(__file__).parent / "results"
LENGTHS = (100, 300, 1000, 3000, 10_000, 30_000, 100_000)
KINDS: tuple[Checkpoint, ...] = get_args(Checkpoint)
MEANING = {"none": "everything computed", "step": "states of all steps", "sqrt": "states at sqrt(steps) moments"}


def gradient_bytes(model: kn.Model, steps: int, checkpoint: Checkpoint) -> int:
    """Temporary memory of the gradient of a loss on the last state, by state and model [bytes]."""

    def loss(model, state):
        return jnp.sum(kn.rollout(model, state, dt=0.001, steps=steps, checkpoint=checkpoint).last.q ** 2)

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
    analysis = gradient.lower(model, model.state()).compile().memory_analysis()
    if analysis is None:
        raise RuntimeError(f"XLA has no memory analysis on {jax.default_backend()}; run this on a CPU")
    return analysis.temp_size_in_bytes


def growth(lengths: list[int], sizes: list[int]) -> float:
    """The exponent p of size ~ steps^p over the last decade."""
    return math.log(sizes[-1] / sizes[-3]) / math.log(lengths[-1] / lengths[-3])


def table(robot: str, lengths: list[int], sizes: dict[str, list[int]]) -> str:
    head = ["steps", *(f"`{kind}` [MB]" for kind in sizes)]
    rows = [[f"{n:,}", *(f"{sizes[kind][k] / 1e6:.3f}" for kind in sizes)] for k, n in enumerate(lengths)]
    rows.append(["growth: steps^p, p =", *(f"{growth(lengths, sizes[kind]):.2f}" for kind in sizes)])
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---:"] * len(head), *rows)]
    title = f"Temporary memory of the gradient of a roll-out of `{robot}`, float64, by `checkpoint=`:"
    return "\n".join([title, "", *lines, "", "Written by `python benchmarks/checkpoint_memory.py`.", ""])


def figure(robot: str, lengths: list[int], sizes: dict[str, list[int]]) -> Figure:
    drawing = Figure(figsize=(7, 4.4), dpi=150, layout="constrained")
    axes = drawing.add_subplot()
    for kind, color in zip(sizes, ("#b5483f", "#2a6f97", "#4f8a5b"), strict=True):
        megabytes = [size / 1e6 for size in sizes[kind]]
        axes.loglog(lengths, megabytes, "o-", color=color, label=f'"{kind}": {MEANING[kind]}')
    axes.set(xlabel="steps", ylabel="memory of the gradient [MB]", title=f"Reverse mode through a roll-out: {robot}")
    axes.grid(True, which="major", color="#d9dde3", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return drawing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--robot", default="double_pendulum", choices=robots.names())
    parser.add_argument("--quick", action="store_true", help="three lengths, printed only")
    options = parser.parse_args()
    lengths: list[int] = list(LENGTHS[:3] if options.quick else LENGTHS)
    with jax.enable_x64(True):
        model = robots.load(options.robot)
        sizes = {kind: [gradient_bytes(model, n, kind) for n in lengths] for kind in KINDS}
    print(table(options.robot, lengths, sizes))
    if not options.quick:
        RESULTS.mkdir(exist_ok=True)
        result = {"robot": options.robot, "steps": lengths, "bytes": sizes, "jax": jax.__version__}
        (RESULTS / "checkpoint_memory.json").write_text(json.dumps(result, indent=1) + "\n")
        (RESULTS / "checkpoint_memory.md").write_text(table(options.robot, lengths, sizes))
        figure(options.robot, lengths, sizes).savefig(RESULTS / "checkpoint_memory.png")


if __name__ == "__main__":
    main()
