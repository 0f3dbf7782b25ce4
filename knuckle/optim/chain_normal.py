"""Normal equations of pieces in a chain: own numbers, which form a band, are eliminated from the shared ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_solve_banded, cholesky_banded

from knuckle.optim.box_step import box_step


class Reduced(NamedTuple):
    """A quadratic of the shared numbers, own ones being at their best."""

    matrix: np.ndarray
    slope: np.ndarray
    own: np.ndarray  # the best where shared numbers stay
    own_by_shared: np.ndarray  # how it changes with them


@dataclass(frozen=True)
class ChainNormal:
    """J^T J: shared numbers, own ones (a band of blocks), and both together."""

    shared: np.ndarray
    mixed: np.ndarray  # (all own, shared)
    blocks: np.ndarray  # (piece, own, own), on the diagonal
    below: np.ndarray  # (piece - 1, own, own), each piece with the one before it

    def diagonal(self) -> np.ndarray:
        return np.concatenate([self.shared.diagonal(), np.diagonal(self.blocks, axis1=1, axis2=2).reshape(-1)])

    def __matmul__(self, vector: np.ndarray) -> np.ndarray:
        size, (count, own, _) = len(self.shared), self.blocks.shape
        z, s = vector[:size], vector[size:].reshape(count, own)
        out = np.einsum("kij,kj->ki", self.blocks, s) + (self.mixed @ z).reshape(count, own)
        out[1:] += np.einsum("kij,kj->ki", self.below, s[:-1])
        out[:-1] += np.einsum("kij,ki->kj", self.below, s[1:])
        return np.concatenate([self.shared @ z + s.reshape(-1) @ self.mixed, out.reshape(-1)])

    def step(self, gradient: np.ndarray, more: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray | None:
        """As `Normal` has it; own numbers have no bounds, so they follow the shared ones."""
        size = len(self.shared)
        reduced = self.damped(more).reduced(gradient)
        if reduced is None:
            return None
        z = box_step(reduced.matrix, reduced.slope, low[:size], high[:size]) if size else np.zeros(0)
        return None if z is None else np.concatenate([z, reduced.own + reduced.own_by_shared @ z])

    def damped(self, more: np.ndarray) -> ChainNormal:
        size, (count, own, _) = len(self.shared), self.blocks.shape
        blocks = self.blocks.copy()
        blocks[:, np.arange(own), np.arange(own)] += more[size:].reshape(count, own)
        return replace(self, shared=self.shared + np.diag(more[:size]), blocks=blocks)

    def reduced(self, gradient: np.ndarray | None = None) -> Reduced | None:
        """Own numbers eliminated; None where they have no best."""
        size, all_own = len(self.shared), len(self.mixed)
        gradient = np.zeros(size + all_own) if gradient is None else gradient
        if not all_own:
            return Reduced(self.shared, gradient, np.zeros(0), np.zeros((0, size)))
        try:
            factor = self.factor
        except LinAlgError:
            return None
        if not np.isfinite(factor).all():
            return None
        solved = cho_solve_banded((factor, True), np.column_stack([gradient[size:], self.mixed]), check_finite=False)
        own, own_by_shared = -solved[:, 0], -solved[:, 1:]
        matrix = self.shared + self.mixed.T @ own_by_shared
        return Reduced(0.5 * (matrix + matrix.T), gradient[:size] + self.mixed.T @ own, own, own_by_shared)

    @cached_property
    def factor(self) -> np.ndarray:
        """Cholesky factor of the own numbers' band, in LAPACK's lower form."""
        count, own, _ = self.blocks.shape
        tied = bool(self.below.any())
        band = np.zeros((2 * own if tied else own, count * own))
        for j in range(own):
            band[: own - j, j::own] = self.blocks[:, j:, j].T
            if tied:
                band[own - j : 2 * own - j, j : (count - 1) * own : own] = self.below[:, :, j].T
        return cholesky_banded(band, overwrite_ab=True, lower=True, check_finite=False)

    def log_determinant(self) -> float:
        reduced = self.reduced()
        if reduced is None or not np.isfinite(reduced.matrix).all():
            return np.nan
        own = 2 * np.sum(np.log(self.factor[0])) if len(self.mixed) else 0.0
        return float(own + np.linalg.slogdet(reduced.matrix)[1])

    def inverse_blocks(self) -> np.ndarray:
        """Blocks on the diagonal of the inverse of the own numbers' band, (piece, own, own)."""
        pivots = [self.blocks[0]]
        for block, below in zip(self.blocks[1:], self.below, strict=True):
            pivots.append(block - below @ np.linalg.solve(pivots[-1], below.T))
        found = [np.linalg.inv(pivots[-1])]
        for pivot, below in zip(pivots[-2::-1], self.below[::-1], strict=True):
            back = np.linalg.solve(pivot, below.T)
            found.append(np.linalg.inv(pivot) + back @ found[-1] @ back.T)
        return np.stack(found[::-1])
