"""Which combinations of masses, centres of mass and moments of inertia a mechanism's motion can tell at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import solve_triangular

from knuckle.dynamics.regressor import carried_columns
from knuckle.model.joints import retract
from knuckle.model.model import Model
from knuckle.native import jit
from knuckle.sysid.entries import names_of
from knuckle.sysid.regressors import regressors

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
    rotors: tuple[int, ...] = ()  # degrees of freedom whose rotor inertia (armature) is among the entries, at the end

    def __len__(self) -> int:
        return len(self.matrix)

    def __call__(self, model: Model) -> Float[Array, " base"]:
        rotors = jnp.asarray(model.armature)[np.array(self.rotors, int)]
        return jnp.asarray(self.matrix) @ jnp.concatenate([inertial(model), rotors])

    def words(self) -> list[str]:
        """Each combination as a sum, then what no force depends on."""
        rows = [_sum(row, lead, self.names) for row, lead in zip(self.matrix, self.leading, strict=True)]
        unseen = ", ".join(self.names[k] for k in self.unseen)
        return rows + ([f"no force depends on {unseen}"] if unseen else [])


def base_parameters(
    model: Model,
    samples: int = 60,
    seed: int = 0,
    *,
    joints: Sequence[int] | None = None,
    rotors: Sequence[int] = (),
) -> BaseParameters:
    """By QR of the regressor of inverse dynamics at random states (Gautier 1991); earlier links lead.

    Args:
        samples: random states; each gives as many equations as the model has degrees of freedom.
        joints: degrees of freedom whose forces are known; all by default.
        rotors: degrees of freedom whose rotor inertia counts as an entry too.
    """
    W = _regressor(model, samples, seed, joints, rotors)
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
    names += tuple(f"{names_of(model, 'qd')[j]}.armature" for j in rotors)
    unseen = tuple(k for k in range(W.shape[1]) if k not in set(seen.tolist()))
    return BaseParameters(matrix, tuple(independent.tolist()), unseen, names, tuple(rotors))


def _regressor(
    model: Model, samples: int, seed: int, joints: Sequence[int] | None, rotors: Sequence[int]
) -> np.ndarray:
    """Derivatives of inverse dynamics by `inertial` and rotor inertias, at random states."""
    rng = np.random.default_rng(seed)
    moves = rng.normal(size=(samples, 3, model.nv))
    with jax.enable_x64(True):
        step = jit(lambda moves: jax.lax.map(lambda move: retract(model, jnp.asarray(model.reference), move), moves))
        q = np.asarray(step(moves[:, 0]))
    W = np.zeros((samples, model.nv, 10 * len(model.link_names) + len(rotors)))
    for dof, (columns, part) in enumerate(
        zip(carried_columns(model), regressors(model, q, moves[:, 1], moves[:, 2]), strict=True)
    ):
        W[:, dof, columns] = part
    for k, dof in enumerate(rotors):
        W[:, dof, 10 * len(model.link_names) + k] = moves[:, 2, dof]
    rows = list(range(model.nv)) if joints is None else list(joints)
    return W[:, rows].reshape(-1, W.shape[2])


def _sum(row: np.ndarray, lead: int, names: tuple[str, ...]) -> str:
    others = [k for k in np.flatnonzero(row) if k != lead]
    terms = [
        f"{'+' if row[k] > 0 else '-'} {'' if abs(abs(row[k]) - 1) < NOTHING else f'{abs(row[k]):.4g} '}{names[k]}"
        for k in others
    ]
    return " ".join([names[lead], *terms])
