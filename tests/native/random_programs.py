"""Random programs of many primitives: straight code, loops, branches, inner calls and batches over one pool of arrays.

Values that came from the inputs by moves alone are exact: only on those are places, orders and whole parts taken, as
elsewhere the last bit would decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from rule_programs import Draw

LARGEST = 40  # elements of an array in the pool


@dataclass
class Entry:
    shape: tuple[int, ...]
    dtype: Any
    exact: bool


Step = tuple[Callable, tuple[int, ...]]  # a function and which arrays of the pool it takes


class Pool:
    """The arrays that a program has made so far, and the steps that made them."""

    def __init__(self, entries: list[Entry]):
        self.entries, self.steps = list(entries), []

    def choose(self, d: Draw, wanted: Callable[[Entry], bool]) -> int | None:
        found = [i for i, e in enumerate(self.entries) if wanted(e)]
        return d.one(found[-6:]) if found else None

    def add(self, function: Callable, places: tuple[int, ...], exact: bool) -> bool:
        inputs = [self.entries[i] for i in places]
        out = jax.eval_shape(function, *[jax.ShapeDtypeStruct(e.shape, e.dtype) for e in inputs])
        if out.size > LARGEST:
            return False
        self.steps.append((function, places))
        self.entries.append(Entry(out.shape, out.dtype, exact))
        return True

    def run(self, arguments) -> list:
        made = list(arguments)
        for function, places in self.steps:
            made.append(function(*[made[i] for i in places]))
        return made


def is_float(e: Entry) -> bool:
    return jnp.issubdtype(e.dtype, jnp.floating)


SMOOTH = [
    jnp.sin,
    jnp.cos,
    jnp.tanh,
    jnp.arctan,
    lambda x: jnp.exp(-x * x),
    lambda x: jnp.log1p(x * x),
    jax.nn.softplus,
    lambda x: jnp.sqrt(1 + x * x),
    lambda x: 1 / (2 + x * x),
    jax.nn.sigmoid,
    lambda x: x**3 / (1 + x**4),
    lax.erf,
    lambda x: jnp.arcsinh(x),
    lambda x: jax.nn.gelu(x),
    lambda x: lax.lgamma(1.5 + x * x) / (2 + x * x),
    lambda x: -x,
    lambda x: jnp.abs(x) ** 1.5 / 3,
    lambda x: jax.scipy.special.digamma(2 + x * x),
    lambda x: jnp.cbrt(2 + x * x),
    lambda x: jnp.where(jnp.ones(x.shape, bool), x, 0),
    lambda x: lax.erf_inv(0.9 * jnp.tanh(x)),
    jnp.square,
]


def smooth(d: Draw, pool: Pool) -> bool:
    place = pool.choose(d, is_float)
    return place is not None and pool.add(d.one(SMOOTH), (place,), False)


BOTH = [
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: jnp.sin(x) * jnp.cos(y),
    lambda x, y: x / (1 + y * y),
    lambda x, y: jnp.arctan2(x, 1 + y * y),
    lambda x, y: jnp.hypot(x, 1 + jnp.abs(y)),
    jnp.logaddexp,
]


def two(d: Draw, pool: Pool) -> bool:
    first = pool.choose(d, is_float)
    if first is None:
        return False
    entry = pool.entries[first]
    second = pool.choose(d, lambda e: e.dtype == entry.dtype and e.shape in (entry.shape, ()))
    return second is not None and pool.add(d.one(BOTH), (first, second), False)


def move(d: Draw, pool: Pool) -> bool:
    place = pool.choose(d, lambda e: len(e.shape) > 0)
    if place is None:
        return False
    e = pool.entries[place]
    rank, axis = len(e.shape), d.axis(len(e.shape))
    order, shift = d.order(rank), d.number(-3, 3)
    start, stop = sorted((d.number(0, e.shape[axis]), d.number(0, e.shape[axis])))
    config = [(d.number(0, 1), d.number(0, 1), d.number(0, 1)) for _ in e.shape]
    options = [
        lambda x: jnp.ravel(x, order="F"),
        lambda x: lax.reshape(x, (x.size,), order),
        lambda x: jnp.transpose(x, order),
        lambda x: jnp.flip(x, axis),
        lambda x: jnp.roll(x, shift, axis),
        lambda x: lax.slice_in_dim(x, start, stop, axis=axis),
        lambda x: lax.pad(x, jnp.ones((), x.dtype), config),
        lambda x: jnp.expand_dims(x, axis),
        lambda x: jnp.concatenate([x, jnp.flip(x, axis)], axis),
        lambda x: jnp.repeat(x, 2, axis),
        lambda x: jnp.stack([x, x], axis),
        lambda x: jnp.swapaxes(x, 0, -1),
        lambda x: jnp.tile(x, 2),
        lambda x: jnp.broadcast_to(x, (2, *x.shape)),
        lambda x: jnp.squeeze(x[..., None], -1),
        lambda x: x.T,
    ]
    return pool.add(d.one(options), (place,), e.exact)


def reduction(d: Draw, pool: Pool) -> bool:
    place = pool.choose(d, lambda e: is_float(e) and len(e.shape) > 0 and 0 not in e.shape)
    if place is None:
        return False
    e = pool.entries[place]
    axis, weights = d.axis(len(e.shape)), d.random.uniform(-1, 1, e.shape)
    smooth = [
        lambda x: jnp.sum(x, axis),
        lambda x: jnp.mean(x, axis),
        lambda x: jnp.prod(jnp.cos(x), axis),
        lambda x: jnp.cumsum(x, axis),
        lambda x: lax.cumprod(jnp.sin(x), axis, reverse=True),
        lambda x: jnp.linalg.norm(x) + 1,
        lambda x: jax.nn.softmax(x, axis),
        lambda x: jax.scipy.special.logsumexp(x, axis),
        lambda x: jnp.var(x, axis),
        lambda x: lax.cumlogsumexp(x, axis),
        lambda x: jnp.tensordot(x, jnp.asarray(weights, x.dtype), x.ndim),
        lambda x: lax.reduce(jnp.cos(x), jnp.zeros((), x.dtype), lambda a, b: a + b + a * b / 4, (axis,)),
    ]
    exact = [
        lambda x: jnp.max(x, axis),
        lambda x: jnp.min(x, axis),
        lambda x: lax.cummax(x, axis),
        lambda x: jnp.sort(x, axis),
        lambda x: jnp.argsort(x, axis),
        lambda x: jnp.argmax(x, axis),
        lambda x: lax.top_k(jnp.moveaxis(x, axis, -1), 1)[0],
        lambda x: jnp.floor(x),
        lambda x: jnp.sign(x),
        lambda x: jnp.median(x, axis),
        lambda x: (x > 0).astype(x.dtype),
        lambda x: jnp.searchsorted(jnp.sort(x.ravel()), x.ravel()),
        lambda x: jnp.round(x).astype(jnp.int32),
        lambda x: lax.top_k(x.ravel(), min(3, x.size))[1],
        lambda x: jnp.diff(jnp.sign(x), axis=axis),
    ]
    return pool.add(d.one(exact if e.exact and d.flag() else smooth), (place,), e.exact and d.flag(0))


def product(d: Draw, pool: Pool) -> bool:
    first = pool.choose(d, lambda e: is_float(e) and len(e.shape) > 0 and 0 not in e.shape)
    if first is None:
        return False
    e = pool.entries[first]
    other = pool.choose(d, lambda o: o.dtype == e.dtype and len(o.shape) > 0 and e.shape[-1] in o.shape)
    if other is None:
        return False
    axis = pool.entries[other].shape.index(e.shape[-1])
    return pool.add(
        lambda x, y: jnp.tensordot(jnp.sin(x), jnp.tanh(y), ((x.ndim - 1,), (axis,))), (first, other), False
    )


def matrix(d: Draw, pool: Pool) -> bool:
    """Linear algebra of matrices that are well conditioned by construction."""
    place = pool.choose(d, lambda e: is_float(e) and len(e.shape) >= 1 and 0 not in e.shape)
    if place is None:
        return False
    n = min(int(np.prod(pool.entries[place].shape)), 4)

    def square(x):
        rows = jnp.tanh(x.ravel()[:n])
        return jnp.outer(rows, rows[::-1]) / n + jnp.diag(2.0 + jnp.arange(n, dtype=x.dtype))

    def positive(x):
        return square(x) @ square(x).T

    options = [
        lambda x: jnp.linalg.solve(square(x), x.ravel()[:n]),
        lambda x: jnp.linalg.inv(square(x)),
        lambda x: jnp.linalg.cholesky(positive(x)),
        lambda x: jnp.linalg.det(square(x)),
        lambda x: jnp.linalg.eigvalsh(positive(x)),
        lambda x: jnp.linalg.svd(square(x), compute_uv=False),
        lambda x: jnp.linalg.pinv(square(x)),
        lambda x: jnp.linalg.qr(square(x))[0] @ jnp.linalg.qr(square(x))[1],
        lambda x: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(positive(x)), x.ravel()[:n]),
        lambda x: jax.scipy.linalg.solve_triangular(square(x), x.ravel()[:n], lower=True, trans=1),
        lambda x: jax.scipy.linalg.expm(square(x) / 8),
        lambda x: jnp.linalg.lstsq(square(x)[:, : max(n - 1, 1)], x.ravel()[:n])[0],
        lambda x: jnp.convolve(x.ravel()[:9], jnp.asarray([0.5, -1.0, 0.25], x.dtype)),
        lambda x: lax.reduce_window(x.ravel()[:9], jnp.zeros((), x.dtype), lax.add, (2,), (1,), ((1, 0),)),
    ]
    return pool.add(d.one(options), (place,), False)


def place_known_late(d: Draw, pool: Pool) -> bool:
    array = pool.choose(d, lambda e: is_float(e) and len(e.shape) == 1 and e.shape[0] > 0)
    index = pool.choose(d, lambda e: jnp.issubdtype(e.dtype, jnp.integer) and len(e.shape) <= 1)
    if array is None or index is None:
        return False
    size = d.number(1, pool.entries[array].shape[0])
    mode = d.one(["clip", "fill", "wrap"])
    options = [
        lambda x, i: jnp.take(x, i, mode=mode, fill_value=0.5),
        lambda x, i: x.at[i].add(0.5),
        lambda x, i: x.at[i].mul(2.0, mode="clip"),
        lambda x, i: x.at[i].set(0.25),
        lambda x, i: lax.dynamic_slice(x, (i.ravel().sum(),), (size,)),
        lambda x, i: x.at[jnp.unique(i.ravel(), size=1, fill_value=0)].apply(jnp.sin),
        lambda x, i: x.at[i].max(0.1),
        lambda x, i: x[i],
        lambda x, i: lax.dynamic_update_slice(x, x[:size] * 2, (i.ravel().sum(),)),
    ]
    return pool.add(d.one(options), (array, index), False)


def integers(d: Draw, pool: Pool) -> bool:
    place = pool.choose(d, lambda e: jnp.issubdtype(e.dtype, jnp.integer))
    if place is None:
        return False
    options = [
        lambda i: i * 3 - 1,
        lambda i: i // 2,
        lambda i: i % 3,
        lambda i: i ^ 5,
        lambda i: i << 1,
        lambda i: -i,
        jnp.abs,
        lambda i: lax.population_count(i),
        lambda i: jnp.clip(i, -2, 2),
        lambda i: jnp.cumsum(i),
        lambda i: jnp.sort(i, -1) if i.ndim else i,
        lambda i: (i > 0).astype(i.dtype),
        lambda i: jnp.bincount(jnp.clip(i.ravel(), 0, 4), length=5),
        lambda i: i**2,
    ]
    return pool.add(d.one(options), (place,), True)


def as_float(d: Draw, pool: Pool) -> bool:
    place = pool.choose(d, lambda e: jnp.issubdtype(e.dtype, jnp.integer))
    dtype = pool.entries[0].dtype
    return place is not None and pool.add(lambda i: jnp.tanh(i.astype(dtype) / 7), (place,), False)


SIMPLE = [
    smooth,
    smooth,
    two,
    two,
    move,
    move,
    reduction,
    reduction,
    product,
    matrix,
    place_known_late,
    integers,
    as_float,
]


def _inner(d: Draw, entry: Entry, steps: int) -> Callable:
    """A function of one array to one of the same shape, bounded."""
    pool = Pool([Entry(entry.shape, entry.dtype, False)])
    for _ in range(steps):
        d.one(SIMPLE[:-3])(d, pool)

    def function(x):
        made = [m for m in pool.run([x]) if jnp.issubdtype(m.dtype, jnp.floating)]
        return jnp.tanh(x * 0.5 + sum(jnp.sum(jnp.sin(m)) for m in made[1:]) / (1 + len(made)))

    return function


def control(d: Draw, pool: Pool) -> bool:
    place = pool.choose(d, is_float)
    if place is None:
        return False
    entry = pool.entries[place]
    first, second = (_inner(d, entry, d.number(1, 3)) for _ in range(2))
    turns = d.number(0, 9)
    kind = d.one(["scan", "loop", "while", "cond", "jit", "checkpoint", "vmap", "map", "switch"])
    if kind in ("cond", "switch"):
        test = pool.choose(d, lambda e: e.exact and e.shape == ())
        if test is None:
            return False
        if kind == "cond":
            return pool.add(lambda x, t: lax.cond(t > 0, first, second, x), (place, test), False)
        return pool.add(
            lambda x, t: lax.switch(t.astype(jnp.int32) + 1, [first, second, jnp.cos], x), (place, test), False
        )
    functions = {
        "scan": lambda x: lax.scan(
            lambda c, k: (first(c), jnp.sum(c) * k), x, jnp.arange(turns, dtype=x.dtype), reverse=True
        )[1],
        "loop": lambda x: lax.fori_loop(0, turns, lambda k, c: first(c) + k / 8, x),
        "while": lambda x: lax.while_loop(lambda s: s[0] < turns, lambda s: (s[0] + 1, first(s[1])), (0, x))[1],
        "jit": lambda x: jax.jit(first)(x) + jax.jit(first)(second(x)),
        "checkpoint": lambda x: jax.checkpoint(first)(x),
        "vmap": lambda x: jax.vmap(first)(jnp.stack([x, x / 2])),
        "map": lambda x: lax.map(first, jnp.stack([x, x / 2, -x])),
    }
    return pool.add(functions[kind], (place,), False)


def random_program(seed: int) -> tuple[Callable, tuple]:
    """A function of two arrays of floats and one of small integers, and arguments."""
    d = Draw(seed, specials=False)
    dtype = "f8" if d.flag(0.8) else "f4"
    arguments = (
        d.array(d.shape(0, 2), dtype),
        d.array((d.number(1, 5),), dtype),
        d.random.integers(-2, 5, (d.number(1, 3),)),
        d.array((), dtype),
    )
    pool = Pool([Entry(a.shape, a.dtype, True) for a in arguments])
    steps = d.number(3, 12)
    for _ in range(steps):
        (control if d.flag(0.25) else d.one(SIMPLE))(d, pool)

    def function(*arguments):
        made = pool.run(arguments)
        return made[len(arguments) :][-4:]

    return function, arguments
