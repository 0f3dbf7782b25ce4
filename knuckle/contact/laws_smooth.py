"""Laws without corners: relaxed complementarity, springy contact, and impulses that are given."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.laws import Blocks, Law, Scale, Slopes, identity, slopes_by_jacobian

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
        kappa = 0.5 * self.smoothing
        mu = jnp.maximum(self.friction, LEAST_FRICTION)[:, None]
        slip = jnp.sqrt(spatial.dot(u[:, 1:], u[:, 1:]) + kappa**2) - kappa
        y = self.inverse_mass[:, None] * jnp.concatenate([mu * r[:, :1], r[:, 1:]], axis=1)
        w = jnp.concatenate([u[:, :1] / mu + slip[:, None], u[:, 1:]], axis=1)
        off = y - _soft_projection(y - w, kappa)
        return jnp.concatenate([mu * off[:, :1], off[:, 1:]], axis=1)

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
    return 0.5 * (a + jnp.sqrt(a * a + 4 * kappa**2))


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
        push = self.dt * normal_force(self, self.gap + self.dt * u[:, 0], u[:, 0])
        drag = -r[:, :1] * friction_per_slip(self, u[:, 1:])[:, None] * u[:, 1:]
        return scale[:, None] * (r - jnp.concatenate([push[:, None], drag], axis=1))

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
