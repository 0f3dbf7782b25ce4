"""Least squares over pieces in a chain: some numbers are shared, each piece has own ones, and is tied to the next.

Only the shared numbers meet all rows, so work and memory grow with the number of pieces, not with its square or cube:
own numbers are eliminated (their normal equations form a band), and the rest is as small as without pieces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg.blas import dgemm  # type: ignore[attr-defined]

from knuckle.optim.chain_normal import ChainNormal


@dataclass(frozen=True)
class Chain:
    """A Jacobian. Columns: shared numbers, then those of each piece.

    Rows: data of all pieces, ties of all pieces (as many as a piece has numbers), rows of shared numbers alone, and one
    for each own number alone.
    """

    by_shared: np.ndarray  # (piece, data, shared)
    by_own: np.ndarray  # (piece, data, own)
    tie_by_shared: np.ndarray  # (piece, own, shared)
    tie_by_own: np.ndarray  # (piece, own, own)
    tie_by_next: np.ndarray  # (piece, own): the diagonal; 0 where a piece is not tied to the next
    alone: np.ndarray  # (row, shared)
    own_alone: np.ndarray  # (piece, own): the diagonal

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Pieces, data of each, numbers of each, shared numbers."""
        return *self.by_own.shape, self.by_shared.shape[-1]

    @property
    def shape(self) -> tuple[int, int]:
        count, data, own, shared = self.sizes
        return count * (data + 2 * own) + len(self.alone), shared + count * own

    def split(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """A vector of all rows as data (piece, row), ties (piece, row), rows of shared numbers, rows of own numbers."""
        count, data, own, _ = self.sizes
        ties, alone, last = count * data, count * (data + own), count * (data + own) + len(self.alone)
        first, second, own_rows = rows[:ties], rows[ties:alone], rows[last:]
        return first.reshape(count, data), second.reshape(count, own), rows[alone:last], own_rows.reshape(count, own)

    def __matmul__(self, vector: np.ndarray) -> np.ndarray:
        count, _, own, shared = self.sizes
        z, s = vector[:shared], vector[shared:].reshape(count, own)
        following = np.concatenate([s[1:], np.zeros((1, own))])
        data = self.by_shared @ z + np.einsum("kij,kj->ki", self.by_own, s)
        ties = self.tie_by_shared @ z + np.einsum("kij,kj->ki", self.tie_by_own, s) + self.tie_by_next * following
        return np.concatenate([data.reshape(-1), ties.reshape(-1), self.alone @ z, (self.own_alone * s).reshape(-1)])

    def transposed(self, rows: np.ndarray) -> np.ndarray:
        """J^T times a vector."""
        data, ties, alone, own = self.split(rows)
        z = data.reshape(-1) @ _rows(self.by_shared) + ties.reshape(-1) @ _rows(self.tie_by_shared) + alone @ self.alone
        if not own.size:
            return z
        s = np.einsum("kij,ki->kj", self.by_own, data) + np.einsum("kij,ki->kj", self.tie_by_own, ties)
        s += self.own_alone * own
        s[1:] += (self.tie_by_next * ties)[:-1]
        return np.concatenate([z, s.reshape(-1)])

    def dense(self) -> np.ndarray:
        return np.stack([self @ column for column in np.eye(self.shape[1])], axis=1)

    def of_own(self) -> Chain:
        """The Jacobian by own numbers only."""
        none = self.sizes[:-1]
        empty = [np.zeros((none[0], rows, 0)) for rows in (none[1], none[2])]
        return replace(self, by_shared=empty[0], tie_by_shared=empty[1], alone=np.zeros((len(self.alone), 0)))

    def weighed(self, weight: np.ndarray) -> Chain:
        """Rows times weights."""
        data, ties, alone, own = self.split(weight)
        return Chain(
            data[..., None] * self.by_shared,
            data[..., None] * self.by_own,
            ties[..., None] * self.tie_by_shared,
            ties[..., None] * self.tie_by_own,
            ties * self.tie_by_next,
            alone[:, None] * self.alone,
            own * self.own_alone,
        )

    def normal(self) -> ChainNormal:
        count, _, own, shared = self.sizes
        z = np.concatenate([_rows(self.by_shared), _rows(self.tie_by_shared), self.alone])
        turned, turned_tie = self.by_own.transpose(0, 2, 1), self.tie_by_own.transpose(0, 2, 1)
        mixed = turned @ self.by_shared + turned_tie @ self.tie_by_shared
        mixed[1:] += self.tie_by_next[:-1, :, None] * self.tie_by_shared[:-1]
        blocks, diagonal = turned @ self.by_own + turned_tie @ self.tie_by_own, np.arange(own)
        blocks[:, diagonal, diagonal] += self.own_alone**2
        blocks[1:, diagonal, diagonal] += self.tie_by_next[:-1] ** 2
        below = self.tie_by_next[:-1, :, None] * self.tie_by_own[:-1]
        return ChainNormal(dgemm(1.0, z.T, z.T, trans_b=True), mixed.reshape(count * own, shared), blocks, below)

    def root(self) -> np.ndarray:
        """R of a QR decomposition, of the shared numbers with own ones eliminated; rows of shared numbers left out.

        Piece by piece, as in a square-root information filter (Bierman 1977, chapter VI): nothing is squared.
        """
        count, data, own, shared = self.sizes
        kept, carried = np.zeros((0, shared)), np.zeros((0, own + shared))
        for k in range(count):
            rows = np.zeros((data + 2 * own + len(carried), 2 * own + shared))
            here, following, z = slice(0, own), slice(own, 2 * own), slice(2 * own, None)
            rows[:data, here], rows[:data, z] = self.by_own[k], self.by_shared[k]
            rows[data : data + own, here] = np.diag(self.own_alone[k])
            tie = rows[data + own : data + 2 * own]
            tie[:, here], tie[:, z] = self.tie_by_own[k], self.tie_by_shared[k]
            tie[:, following] = np.diag(self.tie_by_next[k])
            rows[data + 2 * own :, here], rows[data + 2 * own :, z] = carried[:, :own], carried[:, own:]
            left = _triangle(rows)[own:, own:]
            if self.tie_by_next[k].any():
                carried = left
            else:
                kept = _triangle(np.concatenate([kept, left[:, own:]]))
                carried = np.zeros((0, own + shared))
        return kept

    def leverage(self) -> np.ndarray:
        """Diagonal of the hat matrix J (J^T J)^-1 J^T over the data, (piece, row); NaN where J^T J is singular."""
        count, _, own, shared = self.sizes
        normal, unknown = self.normal(), np.full(self.by_own.shape[:2], np.nan)
        reduced = normal.reduced()
        if reduced is None:
            return unknown
        total = self.by_shared + self.by_own @ reduced.own_by_shared.reshape(count, own, shared)
        try:
            taken = np.einsum("kri,kri->kr", total @ np.linalg.inv(reduced.matrix), total)
            if own:
                taken += np.einsum("kri,kri->kr", self.by_own @ normal.inverse_blocks(), self.by_own)
        except np.linalg.LinAlgError:
            return unknown
        return taken


def _rows(pieces: np.ndarray) -> np.ndarray:
    """Rows of all pieces one after the other."""
    return pieces.reshape(pieces.shape[0] * pieces.shape[1], pieces.shape[2])


def _triangle(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.qr(rows, mode="r"))
