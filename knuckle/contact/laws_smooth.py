"""Laws without corners: relaxed complementarity, springy contact, and impulses that are given."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.laws import Blocks, Law, Scale, Slopes, identity, project_on_cone, slopes_by_jacobian

STIFFEST = 1e4  # impulse per velocity times scale; of stiffer rows, errors count as those of velocities
SLIPPERY = 0.1  # friction below this
LEAST_FRICTION = 1e-6  # a relaxed contact without friction counts as one with this


class Relaxed(Law):
    """Coulomb's law with complementarity relaxed to y o w = kappa^2 (Jordan's product on the cone).

    y = (mu d r_n, d r_t), w = (u_n/mu + sqrt(|u_t|^2 + kappa^2) - kappa, u_t), kappa = smoothing/2. Frictionless its
    gradient is the hard one averaged over velocities of a width `smoothing` [m/s]. The solution depends on d: it is
    given here and has a derivative, where other laws may take any `scale`.
    """

    friction: Scale
    smoothing: Scale
    inverse_mass: Scale  # d [1/kg]
    tangents: int = eqx.field(static=True, default=2)

    @property
    def block(self):
        return 1 + self.tangents

    def imbalance(self, r, u, scale):
        """y - projection(y - w), each row in units in which errors of impulse and of velocity are alike [m/s].

        If the condition holds for (y, w), it does for (c y, w / c): the normal's units are those of c = 1 / mu, and so
        are the tangents' where friction is so low that it only slips.
        """
        by_normal = 1 / self._least_friction[:, 0]
        by_tangent = jnp.where(self.friction < SLIPPERY, by_normal, 1.0)
        normal, tangent = (self._off(r, u, c) for c in (by_normal, by_tangent))
        return jnp.concatenate([normal[:, :1], tangent[:, 1:]], axis=1)

    def admissible(self, r):
        return project_on_cone(r, self.friction)

    @property
    def _least_friction(self) -> Float[Array, "block 1"]:
        return jnp.maximum(self.friction, LEAST_FRICTION)[:, None]

    def _off(self, r: Blocks, u: Blocks, c: Scale) -> Blocks:
        """y - projection(y - w) of c y and w / c."""
        kappa, mu, c = 0.5 * self.smoothing, self._least_friction, c[:, None]
        slip = jnp.sqrt(spatial.dot(u[:, 1:], u[:, 1:]) + kappa**2) - kappa
        y = c * self.inverse_mass[:, None] * jnp.concatenate([mu * r[:, :1], r[:, 1:]], axis=1)
        w = jnp.concatenate([u[:, :1] / mu + slip[:, None], u[:, 1:]], axis=1) / c
        return y - _soft_projection(y - w, kappa)

    def slopes(self, r, u, scale):
        return slopes_by_jacobian(self, r, u, scale)


def _soft_projection(x: Blocks, kappa: Scale) -> Blocks:
    """Projection on the cone |x_t| <= x_n with a round corner: eigenvalues a become (a + sqrt(a^2 + 4 kappa^2))/2."""
    n = x[:, 0]
    squared = spatial.dot(x[:, 1:], x[:, 1:])
    far = squared > (1e-6 * kappa) ** 2
    t = jnp.sqrt(jnp.where(far, squared, 1.0))
    more, less = _soft_positive(n + t, kappa), _soft_positive(n - t, kappa)
    slope = 0.5 * (1 + n / jnp.sqrt(n * n + 4 * kappa**2))
    normal = jnp.where(far, 0.5 * (more + less), _soft_positive(n, kappa))
    shrink = jnp.where(far, 0.5 * (more - less) / t, slope)
    return jnp.concatenate([normal[:, None], shrink[:, None] * x[:, 1:]], axis=1)


def _soft_positive(a: Scale, kappa: Scale) -> Scale:
    """(a + sqrt(a^2 + 4 kappa^2)) / 2, without cancellation where a < 0."""
    root = jnp.sqrt(a * a + 4 * kappa**2)
    return jnp.where(a > 0, 0.5 * (a + root), 2 * kappa**2 / (root + jnp.abs(a)))


class Springy(Law):
    """A force of depth and speed at the end of the step: r = dt force(gap + dt u_n, u).

    Normal: Hunt and Crossley, k depth^p (1 - c u_n), never pulling. Tangent: Brown and McPhee's friction of slip.
    """

    gap: Scale
    stiffness: Scale
    dissipation: Scale
    exponent: Scale
    friction: Scale
    static_friction: Scale
    transition: Scale
    dt: Scale
    tangents: int = eqx.field(static=True, default=2)

    @property
    def block(self):
        return 1 + self.tangents

    def imbalance(self, r, u, scale):
        """Impulses less those of the law, over 1 + scale * (impulse per velocity): stiff rows count as velocities."""
        gap, speed = self.gap + self.dt * u[:, 0], u[:, 0]
        stiff = self._stiffness(r, u)
        push = self.dt * normal_force(self, gap, speed)
        normal = scale * (r[:, 0] - push) / (1 + scale * jax.lax.stop_gradient(stiff[:, 0]))
        drag = r[:, 1:] + stiff[:, 1:] * u[:, 1:]
        return jnp.concatenate([normal[:, None], scale[:, None] * drag / (1 + scale[:, None] * stiff[:, 1:])], axis=1)

    def error(self, r, u, scale):
        """The imbalance in units of impulses, but where rounding of velocities would count more."""
        return self.imbalance(r, u, scale) * jnp.minimum(1 + scale[:, None] * self._stiffness(r, u), STIFFEST)

    def _stiffness(self, r: Blocks, u: Blocks) -> Blocks:
        """Impulse per velocity of each row."""
        normal = self.dt * normal_stiffness(self, self.gap + self.dt * u[:, 0], u[:, 0])
        per_slip = jnp.maximum(r[:, 0], 0.0) * friction_per_slip(self, u[:, 1:])
        return jnp.concatenate([normal[:, None], jnp.repeat(per_slip[:, None], self.tangents, axis=1)], axis=1)

    def slopes(self, r, u, scale):
        return slopes_by_jacobian(self, r, u, scale)

    def margin(self, r, u, scale):
        """To where shapes begin to touch; friction has no corners."""
        return jnp.abs(self.gap / self.dt + u[:, 0])


def normal_force(law: Springy, gap: Scale, speed: Scale) -> Scale:
    """Hunt and Crossley's force [N] of overlap -gap [m] and speed of separation [m/s]; never pulls."""
    touching = gap < 0
    depth = jnp.where(touching, -gap, 1.0)
    force = law.stiffness * depth**law.exponent * jnp.maximum(1 - law.dissipation * speed, 0.0)
    return jnp.where(touching, force, 0.0)


def normal_stiffness(law: Springy, gap: Scale, speed: Scale) -> Scale:
    """By how much the force falls per speed of separation [N s/m], at the end of a step: damping and dt * stiffness."""
    touching = gap < 0
    depth = jnp.where(touching, -gap, 1.0)
    spring = law.dt * law.exponent * depth ** (law.exponent - 1) * jnp.maximum(1 - law.dissipation * speed, 0.0)
    pushing = jnp.where(1 - law.dissipation * speed > 0, law.dissipation, 0.0)
    return jnp.where(touching, law.stiffness * (spring + pushing * depth**law.exponent), 0.0)


def friction_per_slip(law: Springy, slip: Float[Array, "block tangent"]) -> Scale:
    """Coefficient of friction over slip speed [s/m] (Brown and McPhee 2016): finite at rest."""
    speed = jnp.sqrt(spatial.dot(slip, slip) + (1e-9 * law.transition) ** 2)
    x = speed / law.transition
    dynamic = law.friction * jnp.tanh(4 * x)
    extra = jnp.maximum(law.static_friction - law.friction, 0.0) * x / (0.25 * x * x + 0.75) ** 2
    return (dynamic + extra) / speed


class Given(Law):
    """Impulses that are known beforehand."""

    impulse: Blocks
    rows_per_block: int = eqx.field(static=True, default=3)

    @property
    def block(self):
        return self.rows_per_block

    def imbalance(self, r, u, scale):
        return scale[:, None] * (r - self.impulse)

    def slopes(self, r, u, scale):
        return Slopes(scale[:, None, None] * identity(r), jnp.zeros_like(identity(r)))
