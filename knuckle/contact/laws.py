"""Laws between the impulse r and the velocity u of rows, each as a map that vanishes where the law holds.

A law's rows stand in blocks of one size (a contact: normal and tangents; other rows: alone). `scale` d [1/kg] turns an
impulse into a velocity: any positive number gives the same solution, the diagonal of A makes Newton's method quick.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle import spatial

FEWEST_LANES = 8  # blocks, from which on a loop pays
Result = TypeVar("Result")
Blocks = Float[Array, "block row"]
Scale = Float[Array, " block"]


class Slopes(NamedTuple):
    """Generalised derivatives of a law's imbalance."""

    by_impulse: Float[Array, "block row row"]
    by_velocity: Float[Array, "block row row"]


class Law(eqx.Module):
    """What impulses and velocities of some rows have to do with each other."""

    @property
    def block(self) -> int:
        """Rows per block."""
        return 1

    @property
    def rows(self) -> int:
        return jax.tree.leaves(self)[0].shape[0] * self.block

    @abstractmethod
    def imbalance(self, r: Blocks, u: Blocks, scale: Scale) -> Blocks:
        """Zero where the law holds [m/s]."""

    @abstractmethod
    def slopes(self, r: Blocks, u: Blocks, scale: Scale) -> Slopes: ...

    def error(self, r: Blocks, u: Blocks, scale: Scale) -> Blocks:
        """How far the law is from holding [m/s]."""
        return self.imbalance(r, u, scale)

    def margin(self, r: Blocks, u: Blocks, scale: Scale) -> Scale:
        """Distance to the nearest change of mode [m/s]."""
        return jnp.full_like(scale, jnp.inf)

    def admissible(self, r: Blocks) -> Blocks:
        """The nearest impulses that the law allows at some velocity."""
        return r


def over_blocks(function: Callable[..., Result], *arguments: Any) -> Result:
    """A function of arrays with one row per block: of many, in native code, one loop over SIMD lanes."""
    counts = {len(leaf) for leaf in jax.tree.leaves(arguments)}
    if len(counts) != 1 or min(counts) < FEWEST_LANES:
        return function(*arguments)

    from knuckle.native import lanes  # slow to import

    def of_one(*rows):
        return jax.tree.map(lambda x: x[0], function(*jax.tree.map(lambda x: x[None], rows)))

    return lanes(of_one)(*arguments)


def length(x: Float[Array, "*batch n"]) -> Float[Array, "*batch"]:
    """Euclidean length, with gradient zero at zero; zero too where the square nearly underflows."""
    squared = spatial.dot(x, x)
    there = squared > least_square(x.dtype)
    return jnp.where(there, jnp.sqrt(jnp.where(there, squared, jnp.ones_like(squared))), 0.0)


def least_square(dtype) -> float:
    """A square below which its root has no derivative of use: 1 / root would overflow in products."""
    return float(jnp.finfo(dtype).tiny) ** 0.75


def unit(x: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    size = length(x)[..., None]
    return jnp.where(size > 0, x / jnp.where(size > 0, size, jnp.ones_like(size)), jnp.zeros_like(x))


def identity(like: Blocks) -> Float[Array, "block row row"]:
    rows = like.shape[1]
    return jnp.broadcast_to(jnp.eye(rows, dtype=like.dtype), (len(like), rows, rows))


class Coulomb(Law):
    """Signorini, Coulomb's cone and maximum dissipation, by Alart and Curnier's map d r - projection(d r - u)."""

    friction: Scale
    tangents: int = eqx.field(static=True, default=2)

    @property
    def block(self):
        return 1 + self.tangents

    def imbalance(self, r, u, scale):
        aim = scale[:, None] * r - u
        normal = jnp.maximum(aim[:, :1], 0.0)
        tangent = aim[:, 1:]
        size, room = length(tangent), self.friction * normal[:, 0]
        sticking = (size <= room) & (room > 0)  # a contact that does not push keeps nothing, at zero slip too
        kept = jnp.where(sticking[:, None], tangent, room[:, None] * unit(tangent))
        return scale[:, None] * r - jnp.concatenate([normal, kept], axis=1)

    def slopes(self, r, u, scale):
        aim = scale[:, None] * r - u
        pushing = aim[:, 0] > 0
        size, room = length(aim[:, 1:]), self.friction * jnp.maximum(aim[:, 0], 0.0)
        sticking = (size <= room) & (room > 0)
        along = unit(aim[:, 1:])
        shrink = jnp.where(size > 0, room / jnp.where(size > 0, size, 1.0), 0.0)
        eye = identity(along)
        sliding = shrink[:, None, None] * (eye - spatial.outer(along, along))
        across = jnp.where(sticking[:, None, None], eye, jnp.where(pushing[:, None, None], sliding, 0.0))
        by_normal = jnp.where((pushing & ~sticking)[:, None], self.friction[:, None] * along, 0.0)
        first = jnp.concatenate([jnp.where(pushing, 1.0, 0.0)[:, None], jnp.zeros_like(along)], axis=1)
        rest = jnp.concatenate([by_normal[:, :, None], across], axis=2)
        kept = jnp.concatenate([first[:, None], rest], axis=1)
        return Slopes(scale[:, None, None] * (identity(r) - kept), kept)

    def error(self, r, u, scale):
        """De Saxce's natural map on the true cone; of the normal, Signorini's where that is larger.

        On a steep cone the former hides what a body sinks by: a share of about 1 / friction counts.
        """
        safe = jnp.maximum(scale, 1e-300)[:, None]
        bent = u[:, :1] + (self.friction * length(u[:, 1:]))[:, None]
        aim = r - jnp.concatenate([bent, u[:, 1:]], axis=1) / safe
        off = (r - project_on_cone(aim, self.friction)) * scale[:, None]
        signorini = jnp.minimum(scale * r[:, 0], u[:, 0])
        return jnp.concatenate([jnp.maximum(jnp.abs(off[:, 0]), jnp.abs(signorini))[:, None], off[:, 1:]], axis=1)

    def admissible(self, r):
        return project_on_cone(r, self.friction)

    def margin(self, r, u, scale):
        aim = scale[:, None] * r - u
        normal = aim[:, 0]
        slack = jnp.abs(self.friction * jnp.maximum(normal, 0.0) - length(aim[:, 1:]))
        slack = jnp.where(self.friction > 0, slack, normal)
        return jnp.where(normal > 0, jnp.minimum(normal, slack), -normal)


class Pyramid(Coulomb):
    """Friction along each tangent for itself, |r_t| <= mu r_n: depends on the axes, and is larger along diagonals."""

    def imbalance(self, r, u, scale):
        aim = scale[:, None] * r - u
        normal = jnp.maximum(aim[:, :1], 0.0)
        room = self.friction[:, None] * normal
        kept = jnp.where(room > 0, jnp.clip(aim[:, 1:], -room, room), jnp.zeros_like(aim[:, 1:]))
        return scale[:, None] * r - jnp.concatenate([normal, kept], axis=1)

    def slopes(self, r, u, scale):
        aim = scale[:, None] * r - u
        pushing, room = aim[:, :1] > 0, self.friction[:, None] * jnp.maximum(aim[:, :1], 0.0)
        sticking = jnp.abs(aim[:, 1:]) < room
        own = jnp.concatenate([jnp.where(pushing, 1.0, 0.0), jnp.where(sticking, 1.0, 0.0)], axis=1)
        edge = jnp.where(pushing & ~sticking, self.friction[:, None] * jnp.sign(aim[:, 1:]), 0.0)
        by_normal = jnp.concatenate([jnp.zeros_like(pushing, aim.dtype), edge], axis=1)
        first = jnp.asarray(jnp.arange(aim.shape[1]) == 0, aim.dtype)
        kept = own[:, :, None] * identity(r) + by_normal[:, :, None] * first[None, None, :]
        return Slopes(scale[:, None, None] * (identity(r) - kept), kept)

    def error(self, r, u, scale):
        return self.imbalance(r, u, scale)

    def admissible(self, r):
        normal = jnp.maximum(r[:, :1], 0.0)
        room = self.friction[:, None] * normal
        return jnp.concatenate([normal, jnp.clip(r[:, 1:], -room, room)], axis=1)

    def margin(self, r, u, scale):
        aim = scale[:, None] * r - u
        slack = jnp.min(jnp.abs(self.friction[:, None] * jnp.maximum(aim[:, :1], 0.0) - jnp.abs(aim[:, 1:])), axis=1)
        slack = jnp.where(self.friction > 0, slack, aim[:, 0])
        return jnp.where(aim[:, 0] > 0, jnp.minimum(aim[:, 0], slack), -aim[:, 0])


def project_on_cone(x: Blocks, friction: Scale) -> Blocks:
    """The nearest point of Coulomb's cone |x_t| <= friction x_n."""
    n, t = x[:, 0], length(x[:, 1:])
    normal = jnp.maximum(jnp.where(t <= friction * n, n, (n + friction * t) / (1 + friction**2)), 0.0)
    tangent = jnp.minimum(t, friction * normal)[:, None] * unit(x[:, 1:])
    return jnp.concatenate([normal[:, None], tangent], axis=1)


class Between(Law):
    """The velocity stays between two bounds; impulses act only there (joint limits; both bounds equal: equality)."""

    lower: Scale
    upper: Scale
    equal: bool = eqx.field(static=True, default=False)  # the bounds are one

    def imbalance(self, r, u, scale):
        if self.equal:
            return u - self.lower[:, None]
        return u - jnp.clip(u - scale[:, None] * r, self.lower[:, None], self.upper[:, None])

    def slopes(self, r, u, scale):
        aim = (u - scale[:, None] * r)[:, 0]
        free = ((self.lower < aim) & (aim < self.upper)).astype(aim.dtype)
        return Slopes((scale * free)[:, None, None], (1 - free)[:, None, None])

    def margin(self, r, u, scale):
        aim = (u - scale[:, None] * r)[:, 0]
        nearest = jnp.minimum(jnp.abs(aim - self.lower), jnp.abs(aim - self.upper))
        return jnp.where(self.lower < self.upper, nearest, jnp.inf)


class Bounded(Law):
    """The impulse stays within a bound and opposes the velocity (dry friction of joints)."""

    bound: Scale  # largest impulse

    def imbalance(self, r, u, scale):
        most = (scale * self.bound)[:, None]
        kept = jnp.where(most > 0, jnp.clip(scale[:, None] * r - u, -most, most), jnp.zeros_like(r))
        return scale[:, None] * r - kept

    def slopes(self, r, u, scale):
        aim = (scale[:, None] * r - u)[:, 0]
        sticking = (jnp.abs(aim) < scale * self.bound).astype(aim.dtype)
        return Slopes((scale * (1 - sticking))[:, None, None], sticking[:, None, None])

    def admissible(self, r):
        return jnp.clip(r, -self.bound[:, None], self.bound[:, None])

    def margin(self, r, u, scale):
        aim = (scale[:, None] * r - u)[:, 0]
        return jnp.where(self.bound > 0, jnp.abs(jnp.abs(aim) - scale * self.bound), jnp.inf)


def slopes_by_jacobian(law: Law, r: Blocks, u: Blocks, scale: Scale) -> Slopes:
    """Slopes of a smooth law by differentiating each block."""

    def one(law, r, u, scale):
        alone = jax.tree.map(lambda a: a[None], law)

        def imbalance(r, u):
            return alone.imbalance(r[None], u[None], scale[None])[0]

        return Slopes(*jax.jacfwd(imbalance, argnums=(0, 1))(r, u))

    return jax.vmap(one)(law, r, u, scale)
