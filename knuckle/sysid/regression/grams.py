"""Sums of products of a linear regression by blocks of time: what solutions, cross-validation and jackknife need.

Each joint has its own rows. Its Gram matrix is that of its columns with the effort as the last one, so that any sum of
squared residuals over any blocks is v^T G v with v = (theta, -1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Rows:
    """Rows of one joint: filtered features and efforts at the samples that count."""

    columns: np.ndarray  # numbers of the parameters
    features: np.ndarray  # (row, column)
    effort: np.ndarray  # (row,)
    block: np.ndarray  # (row,)

    def gram(self, blocks: int, weight: np.ndarray | None = None) -> np.ndarray:
        """(block, column + 1, column + 1)."""
        both = np.concatenate([self.features, self.effort[:, None]], axis=1)
        found = np.zeros((blocks, both.shape[1], both.shape[1]))
        order = np.argsort(self.block, kind="stable")
        edges = np.searchsorted(self.block[order], np.arange(blocks + 1))
        for b in range(blocks):
            part = both[order[edges[b] : edges[b + 1]]]
            scaled = part if weight is None else part * weight[order[edges[b] : edges[b + 1]], None]
            found[b] = scaled.T @ part
        return found

    def residuals(self, theta: np.ndarray) -> np.ndarray:
        return self.effort - self.features @ theta[self.columns]


@dataclass(frozen=True)
class Grams:
    """Gram matrices of all joints, and how many rows (weights counted) each has in each block."""

    columns: tuple[np.ndarray, ...]
    gram: tuple[np.ndarray, ...]  # of each joint (block, column + 1, column + 1)
    count: np.ndarray  # (joint, block)
    size: int  # parameters

    @property
    def blocks(self) -> int:
        return self.count.shape[1]

    def normal(self, deviation: np.ndarray, blocks: np.ndarray | slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """H and g of the normal equations H theta = g, with residuals in units of each joint's standard deviation."""
        H, g = np.zeros((self.size, self.size)), np.zeros(self.size)
        for columns, gram, sd in zip(self.columns, self.gram, deviation, strict=True):
            total = gram[blocks].sum(axis=0) / sd**2
            H[np.ix_(columns, columns)] += total[:-1, :-1]
            g[columns] += total[:-1, -1]
        return H, g

    def squares(self, theta: np.ndarray) -> np.ndarray:
        """Sum of squared residuals, (joint, block)."""
        found = []
        for columns, gram in zip(self.columns, self.gram, strict=True):
            v = np.append(theta[columns], -1.0)
            found.append((gram @ v) @ v)
        return np.maximum(np.array(found), 0.0)

    def mean_squares(self, theta: np.ndarray) -> np.ndarray:
        """Mean squared residual of each joint."""
        return self.squares(theta).sum(axis=1) / np.maximum(self.count.sum(axis=1), 1e-300)


def grams(rows: Sequence[Rows], blocks: int, size: int, weights: Sequence[np.ndarray] | None = None) -> Grams:
    each = [None] * len(rows) if weights is None else list(weights)
    gram = tuple(r.gram(blocks, w) for r, w in zip(rows, each, strict=True))
    count = np.array([np.bincount(r.block, w, minlength=blocks) for r, w in zip(rows, each, strict=True)], float)
    return Grams(tuple(r.columns for r in rows), gram, count.reshape(len(rows), blocks), size)
