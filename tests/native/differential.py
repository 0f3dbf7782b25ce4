"""Native code beside jax.jit on one program: values, gradients, batches, lanes and exported C."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from knuckle import native

CC = shutil.which("cc")
BATCH = 5  # elements: a group of lanes and a remainder
# both sides round each operation; results are a few operations, or sums of some dozen terms, of numbers up to ten
RELATIVE = {"f8": 1e-12, "f4": 2e-5}
# primitives that only move, compare or count: values are equal, those of moves with the sign of zero
MOVES = {
    "reshape", "squeeze", "broadcast_in_dim", "transpose", "rev", "slice", "split", "concatenate", "stack", "unstack",
    "tile", "pad", "iota", "dynamic_slice", "dynamic_update_slice", "gather", "sort", "top_k", "select_n", "neg", "abs",
    "sign", "floor", "ceil", "round", "copy", "convert_element_type", "bitcast_convert_type", "nextafter",
    "stop_gradient", "optimization_barrier", "name", "device_put", "sharding_constraint", "sqrt",
}  # fmt: skip
EXACT = MOVES | {
    "max", "min", "clamp", "reduce_max", "reduce_min", "cummax", "cummin", "reduce_window_max", "reduce_window_min",
    "argmax", "argmin", "scatter-max", "scatter-min",
}  # fmt: skip


class Difference(AssertionError):
    """Native code and JAX give different results."""


def arrays(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def compare(what: str, found: Any, expected: Any, exact: str = "", looser: float = 1.0) -> None:
    """Raise `Difference` unless results agree: "bits", "values", or within rounding."""
    for number, (mine, theirs) in enumerate(zip(arrays(found), arrays(expected), strict=True)):
        name = f"{what}, result {number}"
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
            raise Difference(f"{name}: {mine.dtype}{mine.shape} instead of {theirs.dtype}{theirs.shape}")
        if not _agree(mine, theirs, exact, looser):
            raise Difference(f"{name}: {_short(mine)} instead of {_short(theirs)}")


def _short(array: np.ndarray) -> str:
    return np.array2string(array, threshold=24, precision=8).replace("\n", "")


def _agree(mine: np.ndarray, theirs: np.ndarray, exact: str, looser: float) -> bool:
    if mine.dtype.kind != "f":
        return bool(np.array_equal(mine, theirs))
    same_nan = np.isnan(mine) == np.isnan(theirs)
    if exact:
        same = (mine == theirs) & ((exact == "values") | (np.signbit(mine) == np.signbit(theirs))) | np.isnan(theirs)
        return bool((same_nan & same).all())
    finite = np.isfinite(theirs)
    if not same_nan.all() or not (np.isinf(mine) == np.isinf(theirs)).all():
        return False
    if not (mine[np.isinf(theirs)] == theirs[np.isinf(theirs)]).all():
        return False
    limit = looser * RELATIVE[mine.dtype.str[1:]]
    scale = max(1.0, float(np.max(np.abs(theirs[finite]), initial=0)))
    small = np.abs(theirs[finite].astype(float))
    error = np.abs(mine[finite].astype(float) - theirs[finite].astype(float))
    return bool((error <= limit * np.maximum(small, min(scale, 1e3))).all())


def jaxprs_of(function: Callable, arguments: tuple) -> Iterator[Any]:
    """All equations of a program, those of inner programs included."""
    yield from _equations(jax.make_jaxpr(function)(*arguments).jaxpr)


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            if hasattr(inner, "eqns"):
                yield from _equations(inner)
            elif hasattr(inner, "jaxpr"):
                yield from _equations(inner.jaxpr)


class Seen:
    """Which primitives occurred, and with which values of their parameters."""

    def __init__(self):
        self.values: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))

    def note(self, function: Callable, arguments: tuple) -> None:
        for equation in jaxprs_of(function, arguments):
            parameters = self.values[equation.primitive.name]
            for name, value in equation.params.items():
                parameters[name].add(repr(value)[:400])


class Undefined(Exception):
    """JAX itself cannot do it: no derivative, or no result in the type asked for."""


def by_jax(function: Callable) -> Callable:
    """`jax.jit`, without XLA's slower optimisations: they take half the time of a survey."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


# ways to run a program: each gives native code's way and JAX's, to be called


def values(function: Callable, arguments: tuple):
    return lambda: native.jit(function)(*arguments), lambda: by_jax(function)(*arguments)


def constants(function: Callable, arguments: tuple):
    """Arguments that are known when the program is compiled: operations on them are folded."""
    return lambda: native.jit(lambda: function(*map(jnp.asarray, arguments)))(), lambda: by_jax(function)(*arguments)


def _weighted(function: Callable) -> Callable:
    """A scalar of all float results, for derivatives."""

    def total(*arguments):
        leaves = [x for x in jax.tree.leaves(function(*arguments)) if jnp.issubdtype(x.dtype, jnp.floating)]
        parts = [jnp.sum(x * jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)) for x in leaves]
        return sum(p.astype(jnp.float64) for p in parts)

    return total


def float_arguments(arguments: tuple) -> tuple[int, ...]:
    return tuple(i for i, a in enumerate(arguments) if a.dtype.kind == "f")


def gradient_inside(function: Callable, arguments: tuple):
    gradient = jax.grad(_weighted(function), float_arguments(arguments))
    return lambda: native.jit(gradient)(*arguments), lambda: by_jax(gradient)(*arguments)


def gradient_around(function: Callable, arguments: tuple):
    wanted = float_arguments(arguments)
    return (
        lambda: jax.grad(_weighted(native.jit(function)), wanted)(*arguments),
        lambda: by_jax(jax.grad(_weighted(function), wanted))(*arguments),
    )


def _batch(arguments: tuple) -> tuple:
    """Different elements: the argument, and it rolled by one, two, .. places."""
    return tuple(np.stack([np.roll(a, k).reshape(a.shape) for k in range(BATCH)]) for a in map(np.asarray, arguments))


def _one_by_one(function: Callable, rows: tuple):
    alone = by_jax(function)
    return jax.tree.map(lambda *xs: np.stack(xs), *[alone(*[r[k] for r in rows]) for k in range(BATCH)])


def batch(function: Callable, arguments: tuple):
    if not arguments:
        raise Undefined("nothing to batch")
    rows = _batch(arguments)
    return lambda: native.vmap(function)(*rows), lambda: _one_by_one(function, rows)


def lanes(function: Callable, arguments: tuple):
    if not arguments:
        raise Undefined("nothing to batch")
    rows = _batch(arguments)
    return lambda: native.jit(native.lanes(function))(*rows), lambda: _one_by_one(function, rows)


def exported(function: Callable, arguments: tuple):
    """What the exported C prints, beside JAX's results as they are printed."""

    def printed(leaves: list[np.ndarray]) -> list[np.ndarray]:
        return [leaf.ravel().astype(leaf.dtype if leaf.dtype.kind == "f" else np.float64) for leaf in leaves]

    def theirs():
        return printed(arrays(by_jax(function)(*arguments)))

    def mine():
        with tempfile.TemporaryDirectory() as folder:
            native.export_c(function, arguments, folder, "program")
            build = [
                str(CC),
                "-O1",
                "-std=c99",
                "-Wall",
                "-Wextra",
                "-Werror",
                "program.c",
                "example.c",
                "-o",
                "example",
            ]
            subprocess.run([*build, "-lm"], cwd=folder, check=True, capture_output=True, text=True)
            text = subprocess.run([Path(folder) / "example"], check=True, capture_output=True, text=True).stdout
        numbers = np.array([float(v) for v in re.findall(r" = (\S+)", text)])
        like = jax.tree.leaves(jax.eval_shape(function, *arguments))
        parts = np.split(numbers, np.cumsum([x.size for x in like])[:-1])
        kinds = [x.dtype if np.dtype(x.dtype).kind == "f" else np.float64 for x in like]
        return [part.astype(kind) for part, kind in zip(parts, kinds, strict=True)]

    return mine, theirs


MODES: dict[str, Callable] = {
    "values": values, "constants": constants, "gradient inside": gradient_inside, "gradient around": gradient_around,
    "batch": batch, "lanes": lanes, "exported C": exported,
}  # fmt: skip


def check(mode: str, name: str, function: Callable, arguments: tuple) -> None:
    """Raise `Difference` if native code and JAX differ in this way of running a program of the primitive `name`."""
    exact = "bits" if name in MOVES else "values" if name in EXACT else ""
    gradient = mode.startswith("gradient")
    if gradient and not float_arguments(arguments):
        raise Undefined("no float to differentiate by")
    mine, theirs = MODES[mode](function, arguments)
    try:
        expected = jax.block_until_ready(theirs())
    except Exception as error:
        raise Undefined(str(error)) from None
    exact = "" if gradient else "values" if exact and mode == "exported C" else exact
    compare(mode, mine(), expected, exact, looser=100 if gradient else 1)


def check_program(mode: str, function: Callable, arguments: tuple) -> None:
    """As `check`, for long programs: results may differ by what JAX's change when the inputs do in their last bits."""
    if mode in ("batch", "lanes"):
        rows = _batch(arguments)
        together = native.vmap(function) if mode == "batch" else native.jit(native.lanes(function))
        alone = native.jit(function)
        expected = jax.tree.map(lambda *xs: np.stack(xs), *[alone(*[r[k] for r in rows]) for k in range(BATCH)])
        compare(mode, together(*rows), expected, "values" if mode == "batch" else "", looser=1e4)
        return
    mine, theirs = MODES[mode](function, arguments)
    try:
        expected = arrays(theirs())
    except Exception as error:
        raise Undefined(str(error)) from None
    found_leaves = arrays(mine())
    try:
        compare(mode, found_leaves, expected)
        return
    except Difference:
        moved = [arrays(MODES[mode](function, _nearby(arguments, seed))[1]()) for seed in range(3)]
    for number, (found, wanted) in enumerate(zip(found_leaves, expected, strict=True)):
        what = f"{mode}, result {number}"
        spread = max(float(np.max(np.abs(m[number] - wanted), initial=0)) for m in moved) if wanted.size else 0.0
        if not np.isfinite(spread) or wanted.dtype.kind != "f":
            compare(what, found, wanted)
            continue
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            raise Difference(f"{what}: {found.dtype}{found.shape} instead of {wanted.dtype}{wanted.shape}")
        scale = max(1.0, float(np.max(np.abs(wanted), initial=0)))
        error = float(np.max(np.abs(found - wanted), initial=0))
        if not error <= 50 * spread + scale * RELATIVE[wanted.dtype.str[1:]]:
            raise Difference(f"{what}: {_short(found)} instead of {_short(wanted)}, off by {error:.1e}")


def _nearby(arguments: tuple, seed: int) -> tuple:
    """The arguments with a few of their last bits changed."""
    random = np.random.default_rng(seed)
    return tuple(
        np.asarray(a * (1 + 4 * np.finfo(a.dtype).eps * random.choice([-1, 1], a.shape)), a.dtype)
        if a.dtype.kind == "f"
        else a
        for a in arguments
    )
