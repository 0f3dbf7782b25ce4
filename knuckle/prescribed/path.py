"""Paths: coordinates as functions of time, by samples or by a function.

Coordinates are those of the state: 1 of a hinge or slider, 3 of a planar joint or of a position, 4 of a rotation
(quaternion wxyz), 7 of a pose (position, quaternion wxyz). So 4 and 7 numbers have a rotation, others have none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from knuckle import spatial

Leaf = Array | np.ndarray
Vec = Float[Array, " coordinate"]
Time = Float[Array, ""]
SIZES = (1, 3, 4, 7)  # numbers of coordinates
UNIT = 1e-3  # how far the length of a quaternion may be from one: single precision, or four digits of a log
ROUNDING = 1e-9  # of the time at the end, by which a roll-out may pass it


class Path(eqx.Module):
    """Samples of coordinates over time [s], interpolated.

    "cubic" goes through the samples with continuous velocity: Hermite's polynomial, on rotations the cumulative Bezier
    curve of Kim, Kim and Shin (1995). Velocities at samples are those of the parabola through three samples. "linear"
    moves at constant velocity from sample to sample, rotations along the shortest turn.

    Args:
        beyond: what a step outside the samples does: "refuse" (an error), or "hold" (it stands still there). A step
            whose times are traced cannot be refused: the path then continues at its first or last velocity.
    """

    time: Float[Leaf, " sample"]
    values: Float[Leaf, "sample coordinate"]
    interpolation: Literal["cubic", "linear"] = eqx.field(static=True)
    beyond: Literal["refuse", "hold"] = eqx.field(static=True)

    def __init__(
        self,
        time,
        values,
        *,
        interpolation: Literal["cubic", "linear"] = "cubic",
        beyond: Literal["refuse", "hold"] = "refuse",
    ):
        time, values = (x if isinstance(x, jax.Array) else np.asarray(x, float) for x in (time, values))
        values = values[:, None] if values.ndim == 1 else values
        self.time, self.values, self.interpolation, self.beyond = time, values, interpolation, beyond
        if interpolation not in ("cubic", "linear"):
            raise ValueError(f"Path: interpolation must be 'cubic' or 'linear', got {interpolation!r}")
        if beyond not in ("refuse", "hold"):
            raise ValueError(f"Path: beyond must be 'refuse' or 'hold', got {beyond!r}")
        if time.ndim != 1 or len(time) < 2:
            raise ValueError(f"Path: time must have shape (samples,), of two samples or more, got {time.shape}")
        if values.ndim != 2 or len(values) != len(time) or values.shape[1] not in SIZES:
            wanted = f"({len(time)}, n), n one of {', '.join(map(str, SIZES))}"
            raise ValueError(f"Path: values must have shape {wanted}, got {values.shape}")
        _check_time(time)
        check_coordinates(values, "Path: values")

    def __call__(self, time) -> Vec:
        """Coordinates at a time [s]."""
        values = jnp.asarray(self.values)
        values = values if jnp.issubdtype(values.dtype, jnp.floating) else values.astype(float)
        t = jnp.asarray(time, values.dtype)
        knots = jnp.asarray(self.time, values.dtype)
        inside = jnp.clip(t, knots[0], knots[-1])
        k = jnp.clip(jnp.searchsorted(knots, inside, side="right") - 1, 0, len(knots) - 2)
        start, end, step = values[k], values[k + 1], knots[k + 1] - knots[k]
        share = (inside - knots[k]) / step
        if self.interpolation == "linear":
            at = _added(start, share * _difference(start, end))
        else:
            at = _cubic(start, end, step * self._rate(knots, values, k), step * self._rate(knots, values, k + 1), share)
        if self.beyond == "hold":
            return at
        edge = jnp.where(t <= knots[0], 0, len(knots) - 1)
        return _added(at, (t - inside) * self._rate(knots, values, edge))

    def _rate(self, knots: Float[Array, " sample"], values: Float[Array, "sample coordinate"], k) -> Array:
        """Velocity at a sample: of the parabola through three samples, or of the line through two."""
        if self.interpolation == "linear" or len(knots) == 2:
            k = jnp.clip(k, 0, len(knots) - 2)
            return _difference(values[k], values[k + 1]) / (knots[k + 1] - knots[k])
        c = jnp.clip(k - 1, 0, len(knots) - 3)
        first, second = knots[c + 1] - knots[c], knots[c + 2] - knots[c + 1]
        early = _difference(values[c], values[c + 1]) / first
        late = _difference(values[c + 1], values[c + 2]) / second
        return early + (late - early) * ((2 * (knots[k] - knots[c]) - first) / (first + second))

    @property
    def is_smooth(self) -> bool:
        """Whether its velocity is continuous."""
        return self.interpolation == "cubic" and self.beyond == "refuse"

    def check_span(self, name: str, first, last) -> None:
        """Raise ValueError if steps from `first` to `last` [s] leave the samples; traced times are not seen."""
        if self.beyond == "hold" or any(isinstance(x, Tracer) for x in (self.time, first, last)):
            return
        start, end = float(self.time[0]), float(self.time[-1])
        slack = ROUNDING * max(1.0, abs(start), abs(end))
        if float(first) < start - slack or float(last) > end + slack:
            raise ValueError(
                f"prescribed {name!r}: the path has samples from {start:g} to {end:g} s, but steps go from "
                f"{float(first):g} to {float(last):g} s: give more samples, or Path(..., beyond='hold')"
            )


class PathFunction(eqx.Module):
    """Coordinates as function(time, *args), of time in s; `args` may be differentiated, the function is static."""

    function: Callable[..., Any] = eqx.field(static=True)
    args: tuple[Any, ...]
    is_smooth = True

    def __init__(self, function: Callable[..., Any], *args):
        if not callable(function):
            raise ValueError(f"PathFunction: expected a function of time, got {function!r}")
        self.function, self.args = function, args

    def __call__(self, time) -> Vec:
        """Coordinates at a time [s]."""
        value = jnp.atleast_1d(jnp.asarray(self.function(time, *self.args)))
        value = value if jnp.issubdtype(value.dtype, jnp.floating) else value.astype(float)
        plain, turn = _coordinates(value)
        return value if turn is None else jnp.concatenate([plain, spatial.normalize(turn)])

    def check_span(self, name: str, first, last) -> None:
        """A function has values at all times."""


AnyPath = Path | PathFunction


def constant(value) -> PathFunction:
    """Coordinates that do not change."""
    value = value if isinstance(value, jax.Array) else np.asarray(value, float)
    value = value[None] if value.ndim == 0 else value
    if value.ndim != 1 or len(value) not in SIZES:
        raise ValueError(f"a constant has {', '.join(map(str, SIZES))} coordinates, got shape {value.shape}")
    check_coordinates(value[None], "a constant")
    return PathFunction(_constant, value)


def _constant(time, value):
    return value


def check_coordinates(values, where: str) -> None:
    """Raise ValueError if a number is not finite or a quaternion not of unit length; traced values are not seen."""
    if isinstance(values, Tracer):
        return
    numbers = np.asarray(values, float)
    finite = np.isfinite(numbers).all(axis=1)
    if not finite.all():
        at = int(np.argmin(finite))
        raise ValueError(f"{where} must be finite, got {numbers[at].tolist()} in row {at}")
    if numbers.shape[1] in (4, 7):
        length = np.linalg.norm(numbers[:, -4:], axis=1)
        off = np.abs(length - 1) > UNIT
        if off.any():
            at = int(np.argmax(off))
            raise ValueError(
                f"{where}: quaternions wxyz must be of unit length, that of row {at} is {length[at]:g} long"
            )


def _check_time(time) -> None:
    if isinstance(time, Tracer):
        return
    numbers = np.asarray(time, float)
    if not np.isfinite(numbers).all():
        raise ValueError(f"Path: times must be finite, got {numbers[~np.isfinite(numbers)][0]}")
    late = np.diff(numbers) <= 0
    if late.any():
        at = int(np.argmax(late))
        raise ValueError(f"Path: times must increase, got {numbers[at]:g} s and then {numbers[at + 1]:g} s")


# Coordinates with rotations


class _Parts(NamedTuple):
    plain: Array
    turn: Array | None


def _coordinates(x: Array) -> _Parts:
    """The coordinates without and those of a rotation."""
    return _Parts(x[..., :-4], x[..., -4:]) if x.shape[-1] in (4, 7) else _Parts(x, None)


def _difference(start: Array, end: Array) -> Array:
    """The tangent vector that leads from coordinates to others."""
    a, b = _coordinates(start), _coordinates(end)
    moved = b.plain - a.plain
    if a.turn is None or b.turn is None:
        return moved
    q, r = spatial.normalize(a.turn), spatial.normalize(b.turn)
    turned = spatial.quaternion_log(spatial.quaternion_product(spatial.quaternion_conjugate(q), r))
    return jnp.concatenate([moved, turned], axis=-1)


def _added(start: Array, step: Array) -> Array:
    """Coordinates reached from others along a tangent vector."""
    a = _coordinates(start)
    if a.turn is None:
        return start + step
    plain, turn = step[..., : a.plain.shape[-1]], step[..., a.plain.shape[-1] :]
    turned = spatial.quaternion_product(spatial.normalize(a.turn), spatial.quaternion_exp(turn))
    return jnp.concatenate([a.plain + plain, turned], axis=-1)


def _cubic(start: Vec, end: Vec, rate_start: Array, rate_end: Array, s: Time) -> Vec:
    """At share s of a segment, from the rates at its ends per segment."""
    a, b = _coordinates(start), _coordinates(end)
    n = a.plain.shape[-1]
    rise = s * s * (3 - 2 * s)
    bent = s * (1 - s) ** 2 * rate_start[:n] - s * s * (1 - s) * rate_end[:n]
    plain = a.plain + rise * (b.plain - a.plain) + bent
    if a.turn is None or b.turn is None:
        return plain
    first, last = rate_start[n:] / 3, rate_end[n:] / 3
    q, exp = spatial.normalize(a.turn), spatial.quaternion_exp
    whole = spatial.quaternion_product(spatial.quaternion_conjugate(q), spatial.normalize(b.turn))
    middle = spatial.quaternion_product(spatial.quaternion_product(exp(-first), whole), exp(-last))
    for turn, weight in ((first, 1 - (1 - s) ** 3), (spatial.quaternion_log(middle), rise), (last, s**3)):
        q = spatial.quaternion_product(q, exp(weight * turn))
    return jnp.concatenate([plain, q], axis=-1)


def velocity_between(start: Array, end: Array, dt) -> Array:
    """Mean velocity of coordinates over dt, as a tangent vector: rotations in axes of the body."""
    return _difference(start, end) / dt


def velocity_at(path: AnyPath, time: Time) -> Array:
    """The derivative of a path by time, as a tangent vector: rotations in axes of the body."""
    return jax.jvp(lambda t: _difference(path(time), path(t)), (time,), (jnp.ones_like(time),))[1]
