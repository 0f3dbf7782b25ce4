"""Fits with many weights: gradients of some pieces at a time, by reverse mode, and what data tell of the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from knuckle.native import jacfwd, jit, lanes, vmap
from knuckle.optim import Result, Stochastic
from knuckle.optim.chain import Chain
from knuckle.optim.robust import rho
from knuckle.sysid.shots import Shots

if TYPE_CHECKING:
    from knuckle.sysid.objective import Objective

MANY = 300  # free numbers from which on reverse mode is used
DENSE = 30_000  # from which on products of matrices are all the work: XLA has them sooner (at 133,000 in a third)
FEW, SEVERAL = 16, 128  # pieces at a time: two shapes are compiled, for batches and for the whole (on all cores)
MOST_STEPS, NEAR = 8, 1e-4  # of Gauss and Newton for starts; what the last may gain, by itself and of the whole
SEEN = 300  # directions of the weights that data may see


def over_pieces(function: Callable, in_axes: tuple, size: int, threads: int | None) -> Callable:
    """A function over pieces, one in each lane of native code; with very large networks by XLA."""
    return vmap(function, in_axes, threads=threads) if size < DENSE else jax.jit(jax.vmap(function, in_axes))


class Pieces(Stochastic):
    """Half the sum of squares of a fit over its free numbers alone, each piece starting where it fits best.

    Starts are found by Gauss and Newton wherever the whole is asked for, from where they were last, and stay there for
    batches. The slope by starts is 0 there, so that by free numbers is that of the whole (variable projection, Golub
    and Pereyra 1973). What pieces of a batch give is scaled to all of them.
    """

    def __init__(self, objective: Objective):
        self.objective, self.starts = objective, np.zeros(objective.start_size)
        problem, free = objective.problem(), slice(0, objective.size)
        bounds = {name: getattr(problem, name)[free] for name in ("lower", "upper", "names", "reach")}
        super().__init__(self._of_pieces, objective.size, samples=objective.shots.count, look=self.whole, **bounds)

    def start(self, x) -> np.ndarray:
        """Where a search begins: free numbers, and starts after them if they are known."""
        z, starts = np.split(np.asarray(x, float), [self.size])
        self.starts = starts if len(starts) else np.zeros(self.objective.start_size)
        return super().start(z)

    def point(self, z: np.ndarray) -> np.ndarray:
        """Free numbers, and starts as they were last."""
        return np.concatenate([z, self.starts])

    def whole(self, z: np.ndarray) -> float:
        """The value, with starts where they fit best."""
        o, x, best = self.objective, self.point(z), np.inf
        if o.fixed_starts:
            return 0.5 * float(np.sum(o.look(x) ** 2))
        for _ in range(MOST_STEPS):
            residuals, by_own = o.by_own(x)
            value, slope = 0.5 * float(residuals @ residuals), by_own.transposed(residuals)
            if not value < best:
                return best if np.isfinite(best) else value
            best, self.starts = value, x[o.size :]
            found = by_own.normal().reduced(slope)
            if found is None or -found.own @ slope < 2 * NEAR * (1 + NEAR * value):
                return best
            x = np.concatenate([z, self.starts + found.own])
        return best

    def _of_pieces(self, z: np.ndarray, rows: np.ndarray) -> tuple[float, np.ndarray]:
        o = self.objective
        if len(rows) == self.samples and not np.isfinite(self.whole(z)):
            return np.nan, np.full(self.size, np.nan)
        starts = o.starts(self.point(z))
        value, gradient = _beforehand(o, z)
        for first in range(0, len(rows), SEVERAL):
            values, slopes = _gradients(o, z, starts, rows[first : first + SEVERAL])
            value += self.samples / len(rows) * values.sum()
            gradient += self.samples / len(rows) * slopes.sum(axis=0)
        return value, gradient


def with_starts(objective: Objective, result: Result, near: np.ndarray | None = None) -> Result:
    """A result over free numbers alone with the starts of pieces after them, found from `near`."""
    if len(result.x) > objective.size or not objective.start_size:
        return result
    near = np.zeros(objective.start_size) if near is None else near
    x = objective.settled(np.concatenate([result.x, near]), iterations=20)
    return replace(result, x=x, gradient=np.concatenate([result.gradient, np.zeros(objective.start_size)]))


def _beforehand(o: Objective, z: np.ndarray) -> tuple[float, np.ndarray]:
    """Half squares of what is known of shared numbers, and lassos."""
    value, gradient = 0.5 * float(np.sum((z / o.prior) ** 2)), z / o.prior**2
    if o.lasso_size:
        half = o.program("lassos", lambda: jit(jax.value_and_grad(lambda w: 0.5 * jnp.sum(o.lassos(w) ** 2))))
        more, slope = half(z[o.simulator.physical :])
        value, gradient[o.simulator.physical :] = value + float(more), gradient[o.simulator.physical :] + slope
    return value, gradient


def _gradients(o: Objective, z: np.ndarray, starts: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
    """Half squares of some pieces (data, the tie to the next, and what is known of the start), and their gradients."""

    def half_squares(z, start, following, shot: Shots, tolerance, tie):
        y, ends = o.piece(z, start, shot), 2 * o.nv
        data, _ = rho(o.robust, (y[:-ends] / tolerance) ** 2, jnp)
        value = 0.5 * tolerance**2 * jnp.sum(data)
        if o.fixed_starts:
            return value
        apart = (y[-ends:] - following) * shot.joined * tie
        return value + 0.5 * jnp.sum(apart**2) + 0.5 * jnp.sum((start / shot.known) ** 2)

    def make():
        return over_pieces(jax.value_and_grad(half_squares), (None, 0, 0, 0, None, None), o.size, o.threads)

    size = min(FEW if len(rows) <= FEW else SEVERAL, len(starts))
    here = np.resize(rows, size)  # what is too much is left out below
    shots, following = jax.tree.map(lambda part: np.asarray(part)[here], o.shots), np.roll(starts, -1, axis=0)[here]
    found = o.program("gradients", make)(z, starts[here], following, shots, np.float64(o.tolerance), o.tie_weight())
    return [np.asarray(part)[: len(rows)] for part in found]


def seen_by_data(o: Objective, x: np.ndarray) -> tuple[np.ndarray, Chain]:
    """Residuals and their Jacobian, in which weights move along the directions that data see most.

    Along all others they stay as they were known before; how far they went along those is one more residual.
    """
    known, z = o.simulator.physical, x[: o.size]
    kept = o.programs.get("seen")
    if kept is None or kept[0] is not o.shots or not np.array_equal(kept[1], x):
        basis = _directions(o, z, o.starts(x))
        kept = o.programs["seen"] = o.shots, x, basis, _along(o)(z, o.starts(x), o.shots, basis)
    basis, (y, by_known, by_seen, by_start) = kept[2], map(np.asarray, kept[3])
    by_z = np.concatenate([by_known, np.moveaxis(by_seen, 1, 2)], axis=2)
    weights = z[known:] / o.regularise.spread
    lassos, slopes = _lassos_along(o, z[known:], basis)
    rest = np.linalg.norm(weights - (basis @ weights) @ basis)
    alone = np.concatenate([z[:known] / o.prior[:known], basis @ weights])
    rows = np.zeros((len(lassos) + 1 + len(alone), len(alone)))
    rows[: len(lassos), known:] = slopes
    expected = np.concatenate([o.prior[:known], np.full(len(basis), o.regularise.spread)])
    rows[len(lassos) + 1 :] = np.diag(1 / expected)
    data_and_ties = o.residuals_of_pieces(x, y)
    return np.concatenate([*data_and_ties, lassos, [rest], alone, x[o.size :]]), o.jacobian(y, by_z, by_start, rows)


def _directions(o: Objective, z: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Rows that span what data see of the weights: random sums of rows of the Jacobian, by reverse mode.

    Halko, Martinsson and Tropp, Finding structure with randomness, 2011.
    """

    def pull(z, start, shot: Shots, signs):
        return jax.vjp(lambda z: o.piece(z, start, shot), z)[1](signs)[0]

    pulled = o.program("pulled", lambda: over_pieces(pull, (None, 0, 0, 0), o.size, o.threads))
    rows = jax.eval_shape(o.piece, z, starts[0], jax.tree.map(lambda part: np.asarray(part)[0], o.shots)).shape
    rng, count, weights = np.random.default_rng(0), o.shots.count, o.size - o.simulator.physical
    wanted = min(SEEN, weights, count * rows[0])
    found = np.zeros((wanted, weights))
    for first in range(0, max(wanted, count), count):
        signs = rng.choice([-1.0, 1.0], (count, *rows))
        signs[:, -2 * o.nv :] *= o.tie_weight()
        pieces = np.asarray(pulled(z, starts, o.shots, signs))[:, o.simulator.physical :]
        np.add.at(found, (first + np.arange(count)) % wanted, pieces)
    return np.ascontiguousarray(np.linalg.qr(found.T)[0].T)


def _along(o: Objective) -> Callable:
    """Residuals of pieces, and their change by known numbers, along directions of the weights, and by starts."""
    known = o.simulator.physical

    def of_one(args: tuple[Any, Shots], z, basis):
        start, shot = args
        value, by_start = o.with_slope(z, start, shot)
        by_known = jacfwd(lambda free: o.piece(jnp.concatenate([free, z[known:]]), start, shot))(z[:known])
        of_weights = lambda w: o.piece(jnp.concatenate([z[:known], w]), start, shot)  # noqa: E731
        by_seen = lanes(lambda way: jax.jvp(of_weights, (z[known:],), (way,))[1])(basis)
        return value, by_known, by_seen, by_start

    def pieces(z, starts, shots, basis):
        return jax.lax.map(lambda args: of_one(args, z, basis), (starts, shots))

    return o.program("along", lambda: jit(pieces) if o.size < DENSE else jax.jit(pieces))


def _lassos_along(o: Objective, weights: np.ndarray, basis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if not o.lasso_size:
        return np.zeros(0), np.zeros((0, len(basis)))

    def pushed(w, basis):
        return o.lassos(w), jax.vmap(lambda d: jax.jvp(o.lassos, (w,), (d,))[1], out_axes=1)(basis)

    value, slopes = o.program("lassos along", lambda: jit(pushed))(weights, basis)
    return np.asarray(value), np.asarray(slopes)
