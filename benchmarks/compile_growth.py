"""How the time to compile native code grows with the size of the program, and how the code grows.

Chains of links (a step and its gradient), networks of many layers, and one long function called many times. Processor
time of tracing and of compiling, without a cache. The exponent is the slope of time over size on logarithmic axes, by
least squares over sizes from 4 on: 1 is linear. Writes results/compile_growth.{json,md}; --quick compiles the smaller
ones and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle.native import compile_jaxpr

RESULTS = Path(__file__).parent / "results"
SIZES = (2, 4, 8, 16, 24, 32, 48, 64)
QUICK_SIZES = (4, 8)
SMALLEST = 4  # of the sizes that the exponent is taken from: below, what is there once counts too much
LAYER = 16
WIDE = 40


def chain(n: int) -> kn.Model:
    """n links one after the other, turning about x, y and z in turn."""
    links = [
        kn.Link(
            f"link{i}", parent=f"link{i - 1}" if i else "world", joints=kn.revolute("xyz"[i % 3], name=f"joint{i}"),
            position=(0.01, 0.02, 0.3), mass=1 + i / 8, com=(0.02, 0.01, 0.2), inertia=(0.02, 0.03, 0.02),
        )
        for i in range(n)
    ]  # fmt: skip
    return kn.build(links)


def chain_step(n: int) -> tuple[Callable, tuple]:
    model = chain(n)

    def step(q, qd):
        after = kn.step(model, kn.State(q, qd), dt=1e-3, contact=None)
        return jnp.concatenate([after.q, after.qd])

    return step, (np.zeros(n), np.zeros(n))


def chain_gradient(n: int) -> tuple[Callable, tuple]:
    step, arguments = chain_step(n)
    return jax.grad(lambda q, qd: jnp.sum(step(q, qd) ** 2), argnums=(0, 1)), arguments


def network_gradient(n: int) -> tuple[Callable, tuple]:
    """Layers of 16, all weights free."""

    def loss(weights, x):
        for w in weights:
            x = jnp.tanh(w @ x)
        return jnp.sum(x**2)

    return jax.grad(loss), ([np.ones((LAYER, LAYER))] * n, np.ones(LAYER))


def repeated_calls(n: int) -> tuple[Callable, tuple]:
    """One function of some 700 operations, called n times."""
    source = np.random.default_rng(0)
    matrix = source.normal(size=(WIDE, WIDE)) * (source.random((WIDE, WIDE)) < 0.4)

    @jax.jit
    def long(x):
        return jnp.sin(matrix @ x) * 0.1 + x

    def function(x):
        for _ in range(n):
            x = long(x * 0.5)
        return x

    return function, (np.ones(WIDE),)


def repeated_gradient(n: int) -> tuple[Callable, tuple]:
    function, arguments = repeated_calls(n)
    return jax.grad(lambda x: jnp.sum(function(x) ** 2)), arguments


PROGRAMS: dict[str, Callable[[int], tuple[Callable, tuple]]] = {
    "chain of links, step": chain_step,
    "chain of links, gradient": chain_gradient,
    "network layers, gradient": network_gradient,
    "calls of one function": repeated_calls,
    "calls of one function, gradient": repeated_gradient,
}


def measure(name: str, n: int) -> dict:
    function, arguments = PROGRAMS[name](n)
    start = time.process_time()
    closed = jax.make_jaxpr(function)(*arguments)
    traced = time.process_time()
    compiled = compile_jaxpr(closed)
    done = time.process_time()
    return {
        "program": name,
        "size": n,
        "trace": traced - start,
        "compile": done - traced,
        "operations": compiled.operations["order"],
        "bytes": len(compiled.object_code),
    }


def _shown(row: dict) -> dict:
    print(f"{row['program']:34}{row['size']:4}  compile {row['compile']:6.2f} s", flush=True)
    return row


def exponent(rows: Sequence[dict], what: str) -> float:
    """The slope of log(what) over log(size)."""
    kept = [r for r in rows if r["size"] >= SMALLEST]
    return float(np.polyfit(np.log([r["size"] for r in kept]), np.log([r[what] for r in kept]), 1)[0])


def table(rows: Sequence[dict]) -> str:
    lines = [
        "Time to compile native code over the size of the program: processor time, float64, no cache.",
        f"Load of the machine ({os.cpu_count()} cores) while it ran: {os.getloadavg()[1]:.1f}.",
        "",
        "| program | size | trace [s] | compile [s] | operations | code [kB] |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for r in rows:
        numbers = f"{r['trace']:.2f} | {r['compile']:.2f} | {r['operations']} | {r['bytes'] / 1000:.0f}"
        lines.append(f"| {r['program']} | {r['size']} | {numbers} |")
    lines += ["", "| exponent, sizes from 4 on | trace | compile | operations | code |", "|---|--:|--:|--:|--:|"]
    for name in dict.fromkeys(r["program"] for r in rows):
        own = [r for r in rows if r["program"] == name]
        slopes = [f"{exponent(own, what):.2f}" for what in ("trace", "compile", "operations", "bytes")]
        lines.append(f"| {name} | {' | '.join(slopes)} |")
    return "\n".join([*lines, "", "Written by `python benchmarks/compile_growth.py`.", ""])


def main(words: Sequence[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, printed only")
    options = parser.parse_args(words)
    with jax.enable_x64(True):
        measure("chain of links, step", 2)  # what is done once in a process is not counted
        rows = [_shown(measure(name, n)) for name in PROGRAMS for n in (QUICK_SIZES if options.quick else SIZES)]
    text = table(rows)
    print(text)
    if not options.quick:
        (RESULTS / "compile_growth.json").write_text(json.dumps(rows, indent=1) + "\n")
        (RESULTS / "compile_growth.md").write_text(text)
    return rows


if __name__ == "__main__":
    main()
