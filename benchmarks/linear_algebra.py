"""Dense linear algebra in native code beside LAPACK on one thread, and loops that update rows of a buffer.

Run: python benchmarks/linear_algebra.py [--quick]. Float64, one thread, calls of the two in turns, the smallest time of
each. Both are called from Python: native code costs about 0.6 us a call, SciPy's wrappers 0.5 to 1. Matrices are handed
to LAPACK in the order that it wants. Writes results/linear_algebra.{json,md}; --quick does one size and writes nothing.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when SciPy is loaded

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import linalg
from scipy.linalg import get_lapack_funcs

from knuckle import native

getrf, potrf, trtrs, gesv, posv = get_lapack_funcs(("getrf", "potrf", "trtrs", "gesv", "posv"), dtype=np.float64)
RESULTS = Path(__file__).parent / "results"
SIZES = (64, 84, 96, 128, 192, 256, 384, 512)
QUICK_SIZES = (64,)
MOST_OF_LAPACK = 1.5
ROW = 128  # elements
MOST_PER_ROW = 0.05  # us, the speed of memory
MOST_OPERATIONS = 6000  # of the gradient of a solve of 60 rows
BEFORE = {  # us, as reported before blocks: ours and LAPACK's, on another machine
    ("solve, one right side", 64): (16, None),
    ("solve, one right side", 84): (844, None),
    ("solve, one right side", 128): (1600, 110),
    ("solve, one right side", 256): (25000, 830),
    ("Cholesky factor and solve", 128): (266, 70),
    ("Cholesky factor and solve", 256): (2500, 400),
}

Task = tuple[Callable, tuple, Callable, Callable[[], tuple]]  # ours, arguments, residual of our result, LAPACK's


def cholesky_solve(a, b):
    low = linalg.cholesky(a, symmetrize_input=False)
    middle = linalg.triangular_solve(low, b, left_side=True, lower=True)
    return linalg.triangular_solve(low, middle, left_side=True, lower=True, transpose_a=True)


def lower_solve(a, b):
    return linalg.triangular_solve(a, b, left_side=True, lower=True)


def relative(error: np.ndarray, *sizes: np.ndarray) -> float:
    """An error in units of rounding: of the number of rows and of the largest elements that were multiplied."""
    scale = np.finfo(float).eps * len(error) * np.prod([np.abs(s).max() for s in sizes])
    return float(np.abs(error).max() / scale)


def lu_residual(a: np.ndarray, result) -> float:
    packed, _, order = result
    low, up = np.tril(packed, -1) + np.eye(len(a)), np.triu(packed)
    return relative(low @ up - a[order], up)


def tasks(n: int) -> dict[str, Task]:
    source = np.random.default_rng(n)
    a, many, one = source.normal(size=(n, n)), source.normal(size=(n, n)), source.normal(size=(n, 1))
    positive = a @ a.T + n * np.eye(n)
    low = np.linalg.cholesky(positive)
    a_, positive_, low_, many_, one_ = (np.asfortranarray(m) for m in (a, positive, low, many, one))
    return {
        "LU factor": (linalg.lu, (a,), lambda x: lu_residual(a, x), lambda: getrf(a_)),
        "Cholesky factor": (
            lambda m: linalg.cholesky(m, symmetrize_input=False), (positive,),
            lambda x: relative(x @ x.T - positive, positive), lambda: potrf(positive_, lower=1),
        ),
        "triangular solve, one right side": (
            lower_solve, (low, one), lambda x: relative(low @ x - one, low, x), lambda: trtrs(low_, one_, lower=1)
        ),
        "triangular solve, n right sides": (
            lower_solve, (low, many), lambda x: relative(low @ x - many, low, x),
            lambda: trtrs(low_, many_, lower=1),
        ),
        "solve, one right side": (
            lambda m, v: jnp.linalg.solve(m, v), (a, one), lambda x: relative(a @ x - one, a, x),
            lambda: gesv(a_, one_),
        ),
        "Cholesky factor and solve": (
            cholesky_solve, (positive, one), lambda x: relative(positive @ x - one, positive, x),
            lambda: posv(positive_, one_, lower=1),
        ),
    }  # fmt: skip


def in_turns(functions: Sequence[Callable], repeats: int) -> list[float]:
    """The smallest time of each [us]."""
    best = [np.inf] * len(functions)
    for _ in range(repeats):
        for k, function in enumerate(functions):
            start = time.perf_counter()
            function()
            best[k] = min(best[k], 1e6 * (time.perf_counter() - start))
    return best


def measure(name: str, n: int, repeats: int) -> dict:
    function, arguments, residual, by_lapack = tasks(n)[name]
    start = time.process_time()
    ours = native.jit(function)
    operations = ours.compiled(*arguments).operations["order"]
    compiled = time.process_time() - start
    error = residual(ours(*arguments))
    mine, theirs = in_turns([lambda: ours(*arguments), by_lapack], repeats)
    row = {"task": name, "rows": n, "native": mine, "lapack": theirs, "ratio": mine / theirs, "residual": error,
           "compile": compiled, "operations": operations, "before": BEFORE.get((name, n))}  # fmt: skip
    print(f"{name:34}{n:5}  native {mine:9.1f} us  LAPACK {theirs:9.1f} us  {mine / theirs:5.2f}", flush=True)
    return row


def eliminate(a, count):
    """Rows of a buffer updated in two loops with bounds found at run time."""

    def below(k, a):
        return jax.lax.fori_loop(k + 1, count, lambda i, a: a.at[i].add(-1e-3 * a[i, k] * a[k]), a)

    return jax.lax.fori_loop(0, count, below, a)


def time_per_row(repeats: int) -> float:
    """Of `eliminate` [us], without what a call costs."""
    a = np.random.default_rng(0).normal(size=(ROW, ROW))
    function, few = native.jit(eliminate), 2
    np.testing.assert_allclose(function(a, ROW), jax.jit(eliminate)(a, ROW), rtol=1e-10, atol=1e-10)
    long, short = in_turns([lambda: function(a, ROW), lambda: function(a, few)], repeats)
    return (long - short) / (ROW * (ROW - 1) / 2 - 1)


def operations_of_gradient() -> int:
    gradient = jax.grad(lambda a, v: jnp.sum(jnp.linalg.solve(a, v) ** 2), argnums=(0, 1))
    return native.jit(gradient).compiled(np.eye(60), np.ones(60)).operations["order"]


def claim(what: str, measured: float, wanted: float) -> dict:
    return {"what": what, "measured": measured, "wanted": f"at most {wanted:g}", "holds": bool(measured <= wanted)}


def claims(rows: Sequence[dict], per_row: float, operations: int) -> list[dict]:
    largest = {r["task"]: max(other["ratio"] for other in rows if other["task"] == r["task"]) for r in rows}
    found = [claim(f"{name}: largest ratio to LAPACK's time", ratio, MOST_OF_LAPACK) for name, ratio in largest.items()]
    return [
        *found,
        claim("largest residual, in roundings times rows", max(r["residual"] for r in rows), 1.0),
        claim(f"a row of {ROW} numbers updated in loops with traced bounds [us]", per_row, MOST_PER_ROW),
        claim("operations of the gradient of a solve of 60 rows", operations, MOST_OPERATIONS),
    ]


def table(rows: Sequence[dict], found: Sequence[dict]) -> str:
    lines = [
        "Native linear algebra beside LAPACK (OpenBLAS) on one thread: float64, smallest time of calls in turns.",
        f"Load of the machine ({os.cpu_count()} cores) while it ran: {os.getloadavg()[1]:.1f}.",
        "",
        "| task | rows | native [us] | LAPACK [us] | ratio | compile [s] | before: native, LAPACK [us] |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for r in rows:
        before = "" if r["before"] is None else ", ".join("-" if x is None else str(x) for x in r["before"])
        numbers = f"{r['native']:.1f} | {r['lapack']:.1f} | {r['ratio']:.2f} | {r['compile']:.1f}"
        lines.append(f"| {r['task']} | {r['rows']} | {numbers} | {before} |")
    lines += ["", "| claim | measured | wanted | holds |", "|---|--:|--:|---|"]
    lines += [f"| {c['what']} | {c['measured']:.3g} | {c['wanted']} | {c['holds']} |" for c in found]
    return "\n".join([*lines, "", "Written by `python benchmarks/linear_algebra.py`.", ""])


def main(words: Sequence[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one size in few rounds, printed only")
    options = parser.parse_args(words)
    sizes = QUICK_SIZES if options.quick else SIZES
    with jax.enable_x64(True):
        rows = [
            measure(name, n, 5 if options.quick else max(20, 20000 // n))
            for n in sizes
            for name in tasks(QUICK_SIZES[0])
        ]
        found = claims(rows, time_per_row(5 if options.quick else 50), operations_of_gradient())
    text = table(rows, found)
    print(text)
    result = {"rows": rows, "claims": found}
    if not options.quick:
        (RESULTS / "linear_algebra.json").write_text(json.dumps(result, indent=1) + "\n")
        (RESULTS / "linear_algebra.md").write_text(text)
    return result


if __name__ == "__main__":
    main()
