"""Intervals where what a fit leaves is not white: neighbouring samples then tell less than they are many.

What is left is taken as an autoregression of first order within each piece. Its strength is the one that makes the data
most probable: the correlation of residuals themselves is too small, as starts and parameters took up part of them. The
covariance is that of least squares under such noise (Morelli and Klein, Accuracy of aerodynamic model parameters
estimated from flight test data, 1997).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from scipy.signal import lfilter

from knuckle.optim.chain import Chain
from knuckle.optim.chain_normal import ChainNormal
from knuckle.optim.chain_quadratic import Quadratic
from knuckle.optim.robust import rho
from knuckle.sysid.left import not_noise
from knuckle.sysid.objective import Objective


class Colour(NamedTuple):
    """Of what is left of a channel."""

    correlation: float = 0.0  # of neighbouring samples
    variance: float = 1.0  # in units of what was taken as noise


WHITE = Colour()
MOST = 0.9999  # of a correlation; beyond it there is no noise, only what the model lacks
WIDEST = 30.0  # of the logarithm of a variance, to both sides; data without any noise go to its end


class Products(NamedTuple):
    """X^T Q X over data: columns of each piece's own numbers with all, and all others among themselves."""

    own: np.ndarray  # (piece, own, column)
    shared: np.ndarray

    @classmethod
    def sum(cls, parts: Iterable[tuple[float, Products]]) -> Products:
        weighed = [(weight * part.own, weight * part.shared) for weight, part in parts]
        return cls(*(np.sum(column, axis=0) for column in zip(*weighed, strict=True)))


class Rows(NamedTuple):
    """Data of a channel: own and shared columns of the Jacobian, and last the residual."""

    columns: np.ndarray  # (piece, sample, entry, column)
    valid: np.ndarray  # (piece, sample, entry)
    own: int  # columns of own numbers

    @property
    def beside(self) -> np.ndarray:
        """How many neighbours of each sample were measured."""
        return _beside(self.valid.astype(float)) * self.valid

    @property
    def measured(self) -> np.ndarray:
        """Columns, 0 where nothing was measured."""
        return np.where(self.valid[..., None], self.columns, 0.0)

    def products(self) -> tuple[Products, Products, Products]:
        """With Q the identity, a diagonal of one less than the number of neighbours, and the sum of neighbours."""
        x = self.measured
        fewer, around = (self.beside - 1)[..., None] * x, _beside(x) * self.valid[..., None]
        return self._products(x, x), self._products(x, fewer), self._products(x, around)

    def _products(self, x: np.ndarray, y: np.ndarray) -> Products:
        pieces, width = len(x), x.shape[-1]
        rows = x.shape[1] * x.shape[2]
        mine = x[..., : self.own].reshape(pieces, rows, self.own).swapaxes(1, 2) @ y.reshape(pieces, rows, width)
        a, b = (part[..., self.own :].reshape(-1, width - self.own) for part in (x, y))
        return Products(mine, a.T @ b)


def left_of(objective: Objective, x: np.ndarray) -> dict[str, np.ndarray]:
    """What a fit leaves of each channel, of deviation 1, as series (series, sample, entry); NaN: not measured."""
    return {key: _series(objective, part) for key, part in _left(objective, x).items()}


def colours_of(objective: Objective, x: np.ndarray, jacobian: Chain) -> dict[str, Colour]:
    """The colour of what is left of each channel; none where all is noise.

    jacobian: that of residuals of deviation 1, as `Objective.sensitivity` gives it.
    """
    telling = [key for key, part in left_of(objective, x).items() if not_noise(part) is not None]
    if not telling:
        return {}
    rows = _rows_of(jacobian, _left(objective, x), partial(_series, objective))
    return _colours(rows, telling, _without_data(jacobian, objective.told(x)[0]))


def widening(objective: Objective, jacobian: Chain, colours: Mapping[str, Colour]) -> np.ndarray | None:
    """W: such noise adds W W^T to the covariance of the shared numbers; None where all is white."""
    if not colours:
        return None
    measured = {key: np.where(objective.weights(key) > 0, 0.0, np.nan) for key in objective.shots.weight}
    joined = np.zeros(1, bool) if objective.fixed_starts else np.asarray(objective.shots.joined) > 0
    return _added(jacobian, _rows_of(jacobian, measured, partial(_series, objective)), colours, joined)


def _left(objective: Objective, x: np.ndarray) -> dict[str, np.ndarray]:
    return {key: _psi(objective, part) for key, part in objective.by_channel(x).items()}


def _series(objective: Objective, part: np.ndarray) -> np.ndarray:
    """Pieces as they are; ends of single steps as one series, with a gap where a recording ends."""
    if not objective.fixed_starts:
        return part
    gaps = np.flatnonzero(np.asarray(objective.shots.joined) == 0) + 1
    return np.insert(part[:, -1], gaps, np.nan, axis=0)[None]


def _psi(objective: Objective, part: np.ndarray) -> np.ndarray:
    """The slope of the loss at residuals, of deviation 1; with squares these are the residuals."""
    if objective.robust == "squares":
        return part
    psi = rho(objective.robust, (part / objective.tolerance) ** 2)[1] * part
    return psi / max(float(np.sqrt(np.nanmean(psi**2))) if np.isfinite(psi).any() else 1.0, 1e-12)


def _rows_of(
    jacobian: Chain, left: Mapping[str, np.ndarray], series: Callable[[np.ndarray], np.ndarray] = lambda part: part
) -> dict[str, Rows]:
    """Rows of all channels, as series."""
    found, at = {}, 0
    for key, part in left.items():
        width = part.shape[1] * part.shape[2]
        own, shared = (
            a[:, at : at + width].reshape(*part.shape, a.shape[-1]) for a in (jacobian.by_own, jacobian.by_shared)
        )
        columns = series(np.concatenate([own, shared, part[..., None]], axis=-1))
        found[key] = Rows(columns, np.isfinite(columns[..., -1]), own.shape[-1])
        at += width
    return found


def _without_data(jacobian: Chain, residuals: np.ndarray) -> Quadratic:
    """Ties, and what is known beforehand."""
    _, ties, alone, own = jacobian.split(residuals)
    kept = replace(jacobian, by_shared=jacobian.by_shared[:, :0], by_own=jacobian.by_own[:, :0])
    rest = np.concatenate([ties.reshape(-1), alone, own.reshape(-1)])
    return Quadratic.of(rest, kept)


def _with(others: Quadratic, data: Products) -> Quadratic:
    """Data beside the rest."""
    normal, own = others.normal, others.normal.blocks.shape[1]
    return Quadratic(
        others.value + float(data.shared[-1, -1]),
        others.gradient + np.concatenate([data.shared[:-1, -1], data.own[..., -1].reshape(-1)]),
        ChainNormal(
            normal.shared + data.shared[:-1, :-1],
            normal.mixed + data.own[..., own:-1].reshape(normal.mixed.shape),
            normal.blocks + data.own[..., :own],
            normal.below,
        ),
    )


def _colours(rows: Mapping[str, Rows], telling: list[str], others: Quadratic) -> dict[str, Colour]:
    """The colour of each channel, one after the other, that makes the data most probable."""
    products = {key: part.products() for key, part in rows.items()}
    found = dict.fromkeys(rows, WHITE)
    for key in telling:
        rest = others
        for other in (other for other in rows if other != key):
            rest = _with(rest, _weighed(products[other], found[other]))
        count, pairs = np.count_nonzero(rows[key].valid), rows[key].beside.sum() / 2

        def less(at, own=products[key], rest=rest, count=count, pairs=pairs):
            colour = _colour(at)
            spread = count * np.log(colour.variance) + pairs * np.log1p(-(colour.correlation**2))
            return 0.5 * spread - _with(rest, _weighed(own, colour)).log_probability()

        at = minimize(less, [0.5, 0.2], method="Nelder-Mead", options={"xatol": 0.01, "fatol": 0.05, "maxfev": 100}).x
        found[key] = _colour(at)
    return found


def _colour(at: np.ndarray) -> Colour:
    return Colour(float(np.clip(np.tanh(at[0]), -MOST, MOST)), float(np.exp(np.clip(at[1], -WIDEST, WIDEST))))


def _weighed(products: tuple[Products, Products, Products], colour: Colour) -> Products:
    """With Q the inverse covariance of an autoregression, which has three diagonals."""
    r, variance = colour
    scale = 1 / ((1 - r**2) * variance)
    return Products.sum(zip((scale, scale * r**2, -scale * r), products, strict=True))


def _added(jacobian: Chain, rows: Mapping[str, Rows], colours: Mapping[str, Colour], joined: np.ndarray) -> np.ndarray:
    """W W^T = S^-1 T^T (R - 1) T S^-1, as far as it widens: T are rows by shared numbers, own ones following.

    S = T^T T by a QR decomposition, and rows are in its units before anything is squared: the data may tell some
    numbers a billion times better than others.
    """
    count, _, own, shared = jacobian.sizes
    triangle = np.linalg.qr(np.concatenate([jacobian.root(), jacobian.alone]), mode="r")
    root = solve_triangular(triangle, np.eye(shared))  # S^-1 = root root^T
    reduced = jacobian.normal().reduced()
    follow = np.zeros((count, own, shared)) if reduced is None else reduced.own_by_shared.reshape(count, own, shared)
    more = np.zeros((shared, shared))
    for key, colour in colours.items():
        part = rows[key].measured
        total = part[..., own:-1]
        if own:
            total = total + np.einsum("ktei,kij->ktej", part[..., :own], follow)
        for run in _runs(total @ root, joined):
            forth, back = (lfilter([1.0], [1.0, -colour.correlation], run[::way], axis=0)[::way] for way in (1, -1))
            smooth = colour.variance * (forth + back - run) - run
            more += run.reshape(-1, shared).T @ smooth.reshape(-1, shared)
    wider, along = np.linalg.eigh(0.5 * (more + more.T))
    return root @ (along * np.sqrt(np.maximum(wider, 0.0)))


def _runs(total: np.ndarray, joined: np.ndarray) -> list[np.ndarray]:
    """Pieces that follow each other as one (time, entry, column); each begins with the sample that ended the last."""
    ends = np.flatnonzero(~joined) + 1
    follows = np.concatenate([[False], joined[:-1]])
    pieces = [part[1:] if after else part for part, after in zip(total, follows, strict=True)]
    starts = np.concatenate([[0], ends[:-1]])
    return [np.concatenate(pieces[a:b]) for a, b in zip(starts, ends, strict=True)]


def _beside(x: np.ndarray) -> np.ndarray:
    """Sum of both neighbours in time (axis 1)."""
    out = np.zeros_like(x)
    out[:, 1:] += x[:, :-1]
    out[:, :-1] += x[:, 1:]
    return out
