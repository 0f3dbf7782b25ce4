"""Which combinations of masses, centres of mass and moments of inertia a mechanism's motion can tell at all."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import solve_triangular

from knuckle.dynamics.rnea import rnea
from knuckle.model.joints import retract
from knuckle.model.model import Model
from knuckle.native import jit

ENTRIES = ("m", "mx", "my", "mz", "Ixx", "Iyy", "Izz", "Ixy", "Ixz", "Iyz")  # moments about the link's origin
ROWS, COLUMNS = np.array([0, 1, 2, 0, 0, 1]), np.array([0, 1, 2, 1, 2, 2])
NOTHING = 1e-8  # of the largest: what is below is rounding


def inertial(model: Model) -> Float[Array, " ten_links"]:
    """Mass, first and second moments of all links about their origins: forces are linear in these."""
    body = model.inertia
    mass, com = jnp.asarray(body.mass), jnp.asarray(body.com)
    away = jnp.sum(com**2, axis=1)[:, None, None] * jnp.eye(3)[None] - com[:, :, None] * com[:, None, :]
    second = jnp.asarray(body.moment) + mass[:, None] * away[:, ROWS, COLUMNS]
    return jnp.concatenate([mass[:, None], mass[:, None] * com, second], axis=1).reshape(-1)


@dataclass(frozen=True)
class BaseParameters:
    """Combinations that forces depend on: matrix @ inertial(model), each led by one entry with the factor 1."""

    matrix: np.ndarray
    leading: tuple[int, ...]
    unseen: tuple[int, ...]  # entries on which no force depends
    names: tuple[str, ...]  # of the entries

    def __len__(self) -> int:
        return len(self.matrix)

    def __call__(self, model: Model) -> Float[Array, " base"]:
        return jnp.asarray(self.matrix) @ inertial(model)

    def words(self) -> list[str]:
        """Each combination as a sum, then what no force depends on."""
        rows = [_sum(row, lead, self.names) for row, lead in zip(self.matrix, self.leading, strict=True)]
        unseen = ", ".join(self.names[k] for k in self.unseen)
        return rows + ([f"no force depends on {unseen}"] if unseen else [])


def base_parameters(model: Model, samples: int = 60, seed: int = 0) -> BaseParameters:
    """By QR of the regressor of inverse dynamics at random states (Gautier 1991); earlier links lead.

    Args:
        samples: random states; each gives as many equations as the model has degrees of freedom.
    """
    with jax.enable_x64(True):
        W = _regressor(model, samples, seed)
    scale = np.linalg.norm(W, axis=0)
    seen = np.flatnonzero(scale > NOTHING * scale.max())
    _, R = np.linalg.qr(W[:, seen] / scale[seen])
    leads = np.abs(np.diag(R)) > NOTHING * np.abs(R).max()
    independent, dependent = seen[leads], seen[~leads]
    _, R = np.linalg.qr(W[:, np.concatenate([independent, dependent])])
    count = len(independent)
    matrix = np.zeros((count, W.shape[1]))
    matrix[np.arange(count), independent] = 1.0
    matrix[:, dependent] = solve_triangular(R[:count, :count], R[:count, count:])
    matrix[np.abs(matrix) < NOTHING] = 0.0
    names = tuple(f"{link}.{entry}" for link in model.topology.link_names for entry in ENTRIES)
    unseen = tuple(k for k in range(W.shape[1]) if k not in set(seen.tolist()))
    return BaseParameters(matrix, tuple(independent.tolist()), unseen, names)


def _regressor(model: Model, samples: int, seed: int) -> np.ndarray:
    """Derivatives of inverse dynamics by `inertial`, at random states."""
    rng = np.random.default_rng(seed)
    moves = rng.normal(size=(samples, 3, model.nv))
    links = len(model.topology.link_names)

    def with_inertial(pi):
        mass, first, second = pi[:, 0], pi[:, 1:4], pi[:, 4:]
        com = first / mass[:, None]
        away = jnp.sum(com**2, axis=1)[:, None, None] * jnp.eye(3)[None] - com[:, :, None] * com[:, None, :]
        moment = second - mass[:, None] * away[:, ROWS, COLUMNS]
        return eqx.tree_at(lambda m: (m.inertia.mass, m.inertia.com, m.inertia.moment), model, (mass, com, moment))

    def force(pi, move):
        q = jnp.asarray(retract(model, jnp.asarray(model.reference), move[0]))
        return rnea(with_inertial(pi.reshape(links, 10)), q, move[1], move[2])

    heavy = np.tile(np.array([1.0, 0, 0, 0, 1, 1, 1, 0, 0, 0]), links)  # any body: forces are linear in it
    slope = jit(lambda moves: jax.lax.map(lambda move: jax.jacfwd(force)(jnp.asarray(heavy), move), moves))
    return np.asarray(slope(moves)).reshape(-1, 10 * links)


def _sum(row: np.ndarray, lead: int, names: tuple[str, ...]) -> str:
    others = [k for k in np.flatnonzero(row) if k != lead]
    terms = [
        f"{'+' if row[k] > 0 else '-'} {'' if abs(abs(row[k]) - 1) < NOTHING else f'{abs(row[k]):.4g} '}{names[k]}"
        for k in others
    ]
    return " ".join([names[lead], *terms])
