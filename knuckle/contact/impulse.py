"""Rigid contact: impulses at velocity level over all bodies together (NeuralSim III), with the time of impact resolved.

Laws: Signorini, Coulomb on the true cone, Newton's restitution. Where a contact bounces within a step, its impulse acts
from the moment of impact, so positions, and gradients through the bounce, are those of the motion.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from knuckle.contact.constraints import beyond_touching
from knuckle.contact.gauss_seidel import GaussSeidel
from knuckle.contact.laws import Coulomb, Law, Pyramid, over_blocks
from knuckle.contact.laws_smooth import Relaxed
from knuckle.contact.newton import Newton
from knuckle.contact.numbers import check_count, check_range
from knuckle.contact.push import Push
from knuckle.contact.resolve import ContactModel
from knuckle.contact.rows import inverse_masses
from knuckle.contact.scene import Scene, Time
from knuckle.contact.solver import Solution, Solver
from knuckle.contact.system import System, Vec
from knuckle.model.model import Model

PerContact = float | Float[Array, " contact"]
MANY = 40  # contacts, from which on arrays over them stay in memory
SOLVERS: dict[str, Solver] = {"newton": Newton(), "gauss_seidel": GaussSeidel()}


class Targets(NamedTuple):
    """What contacts aim at."""

    speed: Float[Array, " contact"]  # least normal velocity after the step [m/s]
    moment: Float[Array, " contact"] | None = None  # how much of the step is over when their impulses act [s]
    margin: Float[Array, " contact"] | None = None  # to where an aim has a corner or a jump [m/s]
    rebound: Float[Array, " contact"] | None = None  # the part of the speed that restitution adds [m/s]


class Impulse(ContactModel):
    """Rigid contact by impulses; numbers are one for all contacts, or one each.

    `alpha` and `beta` [1/s] are Baumgarte's: overlap phi is made to obey phi'' + 2 alpha phi' + beta^2 phi = 0, but is
    undone at no more than `recovery_speed`. Bodies keep that speed when they come apart: it is the only energy that
    contact adds where restitution is zero or passive. At 0.1 m/s a body hops by v^2 / (2 g) = 0.5 mm.
    """

    restitution: PerContact = 0.0
    restitution_law: Literal["newton", "passive"] = eqx.field(static=True, default="newton")  # passive gains no energy
    friction: PerContact | None = None  # None: from the shapes
    alpha: PerContact = 200.0
    beta: PerContact = 200.0
    recovery_speed: PerContact = 0.1  # [m/s]
    mixing: PerContact = 1e-5  # R (CFM) over the inverse masses that meet, each of a link and what hangs on it
    solver: Literal["newton", "gauss_seidel"] = eqx.field(static=True, default="newton")
    tolerance: float = eqx.field(static=True, default=1e-8)  # residual [m/s]
    most_iterations: int = eqx.field(static=True, default=600)
    smoothing: PerContact | None = None  # width over which complementarity is relaxed [m/s]
    smooth: Literal["both", "derivative"] = eqx.field(static=True, default="both")  # value too, or its derivative only
    pyramid: bool = eqx.field(static=True, default=False)  # friction by each tangent for itself, not on the true cone
    time_of_impact: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        check_range(self, ("friction", "alpha", "beta", "mixing"))
        check_range(self, ["restitution"], most=1.0)
        check_range(self, ["recovery_speed"], infinite=True)
        check_range(self, ("smoothing", "tolerance"), positive=True)
        check_count(self, "most_iterations", 0)
        if self.restitution_law not in ("newton", "passive"):
            raise ValueError(f"Impulse: restitution_law must be 'newton' or 'passive', got {self.restitution_law!r}")
        if self.smooth not in ("both", "derivative"):
            raise ValueError(f"Impulse: smooth must be 'both' or 'derivative', got {self.smooth!r}")
        if self.pyramid and self.smoothing is not None:
            raise ValueError("Impulse: smoothing works on the true cone: leave pyramid out")
        if self.solver not in SOLVERS:
            raise ValueError(f"Impulse: solver must be one of {', '.join(SOLVERS)}, got {self.solver!r}")
        if self.smoothing is not None and not SOLVERS[self.solver].smooth_laws:
            raise ValueError(f"Impulse: the solver {self.solver!r} has no smoothing: use solver='newton'")

    @property
    def culls(self):
        return self.smoothing is None

    @property
    def needs_matrix(self):
        return SOLVERS[self.solver].needs_matrix

    def solve(self, system: System, start: Vec) -> Solution:
        limits = {"tolerance": self.tolerance, "most_iterations": self.most_iterations}
        return SOLVERS[self.solver].solve(system, start, **limits)

    def sliding_friction(self, scene: Scene) -> Float[Array, " contact"]:
        return scene.contacts.friction if self.friction is None else each_contact(self.friction, scene)

    def softness(self, model: Model, scene: Scene) -> Float[Array, " near"]:
        R = each_contact(self.mixing, scene) * inverse_masses(model, scene.contacts)
        return scene.near.pick(scene.taps("contact/softness", R))

    def push(self, model: Model, heavy: Model, scene: Scene, qd: Vec, v_free: Vec, dt: Time) -> Push:
        near, axes = scene.near, scene.contact_rows
        target = self._targets(model, scene, qd, v_free, dt)
        speed = scene.taps("contact/bias", target.speed)
        aim = _along_normals(near.pick(speed), axes)
        mu = near.pick(scene.friction)
        over, margin, rebound = (None if x is None else near.pick(x) for x in target[1:])
        cut = None
        if rebound is not None and self.restitution_law == "passive":
            cut = jnp.pad(rebound[:, None], ((0, 0), (0, axes - 1)))
        moment = None if over is None else lambda r: over[:, None] * r
        hard, soft = self.hard_law(mu, scene), self.soft_law(model, mu, scene)
        if soft is None:
            return Push(hard, aim, moment, margin=margin, rebound=cut)
        hard, derivative = (soft, None) if self.smooth == "both" else (hard, soft)
        return Push(hard, aim, moment, derivative, margin, cut)

    def hard_law(self, friction: Float[Array, " near"], scene: Scene) -> Law:
        return (Pyramid if self.pyramid else Coulomb)(friction, scene.contact_rows - 1)

    def soft_law(self, model: Model, friction: Float[Array, " near"], scene: Scene) -> Law | None:
        """The relaxed law, if it is wanted."""
        if self.smoothing is None:
            return None
        width = each_contact(self.smoothing, scene)
        near = (scene.near.pick(x) for x in (width, inverse_masses(model, scene.contacts)))
        return Relaxed(friction, *near, tangents=scene.contact_rows - 1)

    def _targets(self, model: Model, scene: Scene, qd: Vec, v_free: Vec, dt: Time) -> Targets:
        gap = scene.contacts.gap
        share = dt * self.beta**2 / jnp.maximum(dt * self.beta**2 + 2 * self.alpha, 1e-300)

        def speed(gap, share, most):
            return jnp.minimum(-(share * gap + (1 - share) * beyond_touching(gap)) / dt, most)

        if all(np.ndim(x) == 0 for x in (share, self.recovery_speed)):
            kept_apart = over_blocks(lambda gap: speed(gap, share, self.recovery_speed), gap)
        else:
            kept_apart = speed(gap, share, self.recovery_speed)
        if not isinstance(self.restitution, Tracer) and not np.any(np.asarray(self.restitution)):
            return Targets(kept_apart)  # what follows gives the same: it is left out for speed
        e = each_contact(self.restitution, scene)
        kept_apart = jnp.where(jnp.isnan(e), e, kept_apart)  # what is not known is no zero
        before, u = scene.speeds_before(model, qd)[:, 0], scene.speeds(model, v_free)[:, 0]
        a = (u - before) / dt
        bouncy = e > 0
        hit = bouncy & (gap + dt * u < 0) & (u < 0)
        coming = bouncy & ~hit & (gap > 0) & (dt * a - e * u > 0)  # bounces in the next step: is not slowed in this one
        kept_apart = jnp.where(coming, -gap / dt, kept_apart)
        if not self.time_of_impact:
            rebound = jnp.where(hit, -e * before, -jnp.inf)
            aim = jnp.maximum(kept_apart, rebound)
            return Targets(aim, margin=jnp.abs(kept_apart - rebound), rebound=aim - kept_apart)
        moment = jnp.clip(gap / jnp.where(hit, -u, jnp.ones_like(u)), 0.0, dt)
        left = dt - moment
        rebound = -e * (u - left * a) + left * a
        bounce = hit & (rebound > 0)
        soon = jnp.minimum(-u, -u - gap / dt)  # positive where it hits
        to_jump = jnp.abs(jnp.minimum(soon, jnp.where(hit, rebound, -e * u)))
        to_corner = jnp.where(bounce, jnp.abs(gap) / dt, jnp.inf)  # overlaps bounce at once, gaps when they are closed
        to_change = jnp.where(bouncy, jnp.minimum(to_jump, to_corner), jnp.inf)
        return Targets(
            jnp.where(bounce, rebound, kept_apart),
            jnp.where(bounce, moment, jnp.zeros_like(gap)),
            jax.lax.stop_gradient(to_change),
            jnp.where(bounce, rebound - jnp.clip(kept_apart, 0.0, rebound), jnp.zeros_like(gap)),
        )


def _along_normals(speed: Float[Array, " near"], axes: int) -> Float[Array, "near axis"]:
    """Velocities of contacts along their normals, as rows; of many, by a loop."""

    def as_rows(speed):
        return jnp.pad(speed[:, None], ((0, 0), (0, axes - 1)))

    return as_rows(speed) if len(speed) < MANY else over_blocks(as_rows, speed)


def each_contact(value, scene: Scene) -> Float[Array, " contact"]:
    """One number per contact."""
    return jnp.broadcast_to(jnp.asarray(value, scene.frame.dtype), (len(scene.contacts),))
