"""How coordinates move along velocities, where some of them are quaternions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

MOST = 100_000  # coordinates; more than any model has
Vec = Float[Array | np.ndarray, " n"]


@dataclass(frozen=True)
class Coordinates:
    """nq coordinates q that move at nv velocities qd, q' = G(q) qd, in MuJoCo's order.

    Args:
        quaternions: for each, its first place in q (wxyz) and the first place in qd of its angular velocity, in the
            body's axes. All other coordinates move at the other velocities, in order.
        periodic: places in q of angles of which networks see sine and cosine.
    """

    nq: int
    nv: int
    quaternions: tuple[tuple[int, int], ...] = ()
    periodic: tuple[int, ...] = ()

    def __post_init__(self):
        turns = tuple((int(a), int(b)) for a, b in self.quaternions)
        object.__setattr__(self, "quaternions", turns)
        object.__setattr__(self, "periodic", tuple(int(place) for place in self.periodic))
        if not 1 <= self.nv <= self.nq <= MOST:
            raise ValueError(f"coordinates: expected 1 <= nv <= nq <= {MOST}, got nq {self.nq} and nv {self.nv}")
        inside = all(0 <= a <= self.nq - 4 and 0 <= b <= self.nv - 3 for a, b in turns)
        apart = len(self.plain_q) == self.nq - 4 * len(turns) and len(self.plain_v) == self.nv - 3 * len(turns)
        if self.nq != self.nv + len(turns) or not inside or not apart:
            raise ValueError(
                f"{self}: nq must be nv and one more for each quaternion, and these lie apart within q and qd"
            )
        if not set(self.periodic) <= set(self.plain_q.tolist()):
            raise ValueError(f"{self}: periodic coordinates must be among {self.plain_q.tolist()}")

    @classmethod
    def of(cls, source: Any, periodic: bool = False) -> Coordinates:
        """Those of a model, of a mapping of the fields, or `source` plain ones; `periodic`: a model's angles are."""
        if isinstance(source, Coordinates):
            return source
        if isinstance(source, Mapping):
            return cls(**source)
        if isinstance(source, int | np.integer) and not isinstance(source, bool):
            return cls(int(source), int(source))
        topology = getattr(source, "topology", None)
        if topology is None:
            raise ValueError(f"coordinates must be a model, neural.Coordinates or their number, got {source!r}")
        places = [(topology.q_index(kind)[:, -4], topology.v_index(kind)[:, -3]) for kind in ("ball", "free")]
        turns = sorted((int(a), int(b)) for pair in places for a, b in zip(*pair, strict=True))
        angles = [*topology.q_index("revolute")[:, 0], *topology.q_index("planar")[:, 2]] if periodic else []
        return cls(topology.nq, topology.nv, tuple(turns), tuple(sorted(int(a) for a in angles)))

    @cached_property
    def plain_q(self) -> np.ndarray:
        """Places in q outside quaternions."""
        return np.setdiff1d(np.arange(self.nq), [a + k for a, _ in self.quaternions for k in range(4)])

    @cached_property
    def plain_v(self) -> np.ndarray:
        return np.setdiff1d(np.arange(self.nv), [b + k for _, b in self.quaternions for k in range(3)])

    def split(self, x: Vec) -> tuple[Vec, Vec]:
        """q and qd of one vector."""
        return x[: self.nq], x[self.nq :]

    # Networks see what does not jump: sines and cosines of angles, rotation matrices of quaternions of either sign.

    @property
    def features(self) -> int:
        return len(self.plain_q) + len(self.periodic) + 9 * len(self.quaternions)

    def seen(self, q: Vec) -> Vec:
        """Coordinates as networks see them."""
        still = [place for place in self.plain_q.tolist() if place not in self.periodic]
        parts = [q[np.array(still)]] if still else []
        if self.periodic:
            angle = q[np.array(self.periodic)]
            parts += [jnp.sin(angle), jnp.cos(angle)]
        parts += [_rotation(q[a : a + 4]) for a, _ in self.quaternions]
        return jnp.concatenate(parts)

    # Motion on the manifold

    def rate(self, q: Vec, qd: Vec) -> Vec:
        """q' = G(q) qd; a quaternion's is q (0, w) / 2."""
        turning = [0.5 * _product(q[a : a + 4], _pure(qd[b : b + 3])) for a, b in self.quaternions]
        return self._gathered(qd, turning, self.plain_v, self.plain_q, [a for a, _ in self.quaternions])

    def pulled(self, q: Vec, slope: Vec) -> Vec:
        """G(q)^T dV/dq: the slope along each velocity."""
        turning = [0.5 * _product(_conjugate(q[a : a + 4]), slope[a : a + 4])[1:] for a, _ in self.quaternions]
        return self._gathered(slope, turning, self.plain_q, self.plain_v, [b for _, b in self.quaternions])

    def moved(self, q: Vec, step: Vec) -> Vec:
        """The coordinates reached along a tangent vector of nv entries; quaternions come out of unit length."""
        turned = [_turned(q[a : a + 4], step[b : b + 3]) for a, b in self.quaternions]
        if not turned:
            return q + step
        plain = q[self.plain_q] + step[self.plain_v]
        return self._ordered(plain, turned, self.plain_q, [a for a, _ in self.quaternions])

    def turning(self, qd: Vec, momentum: Vec) -> Vec:
        """w x p for each quaternion, else zero: how momentum in body axes changes because the axes turn."""
        if not self.quaternions:
            return jnp.zeros_like(qd)
        parts = [jnp.cross(qd[b : b + 3], momentum[b : b + 3]) for _, b in self.quaternions]
        still = jnp.zeros(len(self.plain_v), qd.dtype)
        return self._ordered(still, parts, self.plain_v, [b for _, b in self.quaternions])

    def _gathered(self, vector, parts, plain_from, plain_to, places):
        return vector if not parts else self._ordered(vector[plain_from], parts, plain_to, places)

    def _ordered(self, plain: Vec, parts: Sequence[Vec], plain_to: np.ndarray, places: list[int]) -> Vec:
        """Plain entries and parts that start at `places`, each where it belongs."""
        at = [plain_to, *(place + np.arange(len(part)) for place, part in zip(places, parts, strict=True))]
        return jnp.concatenate([plain, *parts])[np.argsort(np.concatenate(at))]


def _pure(vector: Vec) -> Vec:
    return jnp.concatenate([jnp.zeros(1, vector.dtype), vector])


def _conjugate(a: Vec) -> Vec:
    return jnp.concatenate([a[:1], -a[1:]])


def _product(a: Vec, b: Vec) -> Vec:
    """Hamilton's product of quaternions wxyz."""
    real = a[0] * b[0] - jnp.dot(a[1:], b[1:])
    return jnp.concatenate([real[None], a[0] * b[1:] + b[0] * a[1:] + jnp.cross(a[1:], b[1:])])


def _turned(a: Vec, angle: Vec) -> Vec:
    """The unit quaternion after turning by a vector in body axes (exponential map), smooth at zero."""
    square = jnp.dot(angle, angle) / 4
    small = square < 1e-8
    half = jnp.sqrt(jnp.where(small, jnp.ones_like(square), square))
    sinc = jnp.where(small, 1 - square / 6, jnp.sin(half) / half)
    cosine = jnp.where(small, 1 - square / 2, jnp.cos(half))
    turned = _product(a, jnp.concatenate([cosine[None], 0.5 * sinc * angle]))
    return turned / jnp.linalg.norm(turned)


def _rotation(a: Vec) -> Float[Array, "9"]:
    """Entries of the rotation matrix, row by row, of a quaternion of any length."""
    w, x, y, z = a[0], a[1], a[2], a[3]
    two = 2 / (w * w + x * x + y * y + z * z)
    first = [1 - two * (y * y + z * z), two * (x * y - w * z), two * (x * z + w * y)]
    second = [two * (x * y + w * z), 1 - two * (x * x + z * z), two * (y * z - w * x)]
    return jnp.stack([*first, *second, two * (x * z - w * y), two * (y * z + w * x), 1 - two * (x * x + y * y)])
