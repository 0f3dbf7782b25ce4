"""Rigid contact: impulses at velocity level over all bodies together (NeuralSim III), with the time of impact resolved.

Laws: Signorini, Coulomb on the true cone, Newton's restitution. Where a contact bounces within a step, its impulse acts
from the moment of impact, so positions, and gradients through the bounce, are those of the motion.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from knuckle.contact.constraints import beyond_touching
from knuckle.contact.coupling import joined
from knuckle.contact.laws import Coulomb, Law, Pyramid
from knuckle.contact.laws_smooth import Relaxed
from knuckle.contact.numbers import check_count, check_range
from knuckle.contact.resolve import ContactModel, Push, Scene, Time
from knuckle.contact.rows import inverse_masses
from knuckle.contact.search import Solution, descend, search
from knuckle.contact.system import System, Vec
from knuckle.model.model import Model

ANNEALING_LEVELS = 8  # widths of smoothing between the fastest closing speed and the one that is asked
PerContact = float | Float[Array, " contact"]


class Targets(NamedTuple):
    """What contacts aim at."""

    speed: Float[Array, " contact"]  # least normal velocity after the step [m/s]
    moment: Float[Array, " contact"] | None = None  # how much of the step is over when their impulses act [s]
    margin: Float[Array, " contact"] | None = None  # to where an aim has a corner or a jump [m/s]
    rebound: Float[Array, " contact"] | None = None  # the part of the speed that restitution adds [m/s]


class Impulse(ContactModel):
    """Rigid contact by impulses; numbers are one for all contacts, or one each.

    `alpha` and `beta` [1/s] are Baumgarte's: overlap phi is made to obey phi'' + 2 alpha phi' + beta^2 phi = 0, but is
    undone at no more than `correction_speed`. Bodies keep that speed when they come apart: it is the only energy that
    contact adds where restitution is zero or passive.
    """

    restitution: PerContact = 0.0
    restitution_law: Literal["newton", "passive"] = eqx.field(static=True, default="newton")  # passive gains no energy
    friction: PerContact | None = None  # None: from the shapes
    alpha: PerContact = 200.0
    beta: PerContact = 200.0
    mixing: PerContact = 1e-5  # R (CFM) over the inverse masses that meet, each of a link and what hangs on it
    tolerance: float = eqx.field(static=True, default=1e-8)  # residual [m/s]
    most_iterations: int = eqx.field(static=True, default=600)
    smoothing: PerContact | None = None  # width over which complementarity is relaxed [m/s]
    smooth: Literal["both", "derivative"] = eqx.field(static=True, default="both")  # value too, or its derivative only
    pyramid: bool = eqx.field(static=True, default=False)  # friction by each tangent for itself, not on the true cone
    time_of_impact: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        check_range(self, ("friction", "alpha", "beta", "mixing"))
        check_range(self, ["restitution"], most=1.0)
        check_range(self, ("smoothing", "tolerance"), positive=True)
        check_count(self, "most_iterations", 0)
        if self.restitution_law not in ("newton", "passive"):
            raise ValueError(f"Impulse: restitution_law must be 'newton' or 'passive', got {self.restitution_law!r}")
        if self.smooth not in ("both", "derivative"):
            raise ValueError(f"Impulse: smooth must be 'both' or 'derivative', got {self.smooth!r}")
        if self.pyramid and self.smoothing is not None:
            raise ValueError("Impulse: smoothing works on the true cone: leave pyramid out")

    @property
    def culls(self):
        return self.smoothing is None

    def solve(self, system: System, start: Vec) -> Solution:
        found = search(system, start, tolerance=self.tolerance, most_iterations=self.most_iterations)
        contact = system.laws[0]
        if not isinstance(contact, Relaxed) or not start.size:
            return found
        annealed = partial(self._anneal, system, contact)
        return jax.lax.cond(found.converged, lambda found: found, annealed, found)

    def _anneal(self, system: System, law: Relaxed, found: Solution) -> Solution:
        """From a law so soft that it is easy to the one that is asked, each solution the start of the next search."""
        system, law = jax.lax.stop_gradient((system, law))
        tolerance = jnp.where(found.converged, jnp.inf, self.tolerance)  # in a batch, what is solved does not wait
        options: dict[str, Any] = {"tolerance": tolerance, "most_iterations": self.most_iterations}
        widest = jnp.maximum(jnp.max(jnp.maximum(-joined(system.b), 0.0)), law.smoothing)

        def soften(level, r: Vec) -> Vec:
            done = (level + 1).astype(r.dtype) / ANNEALING_LEVELS
            width = law.smoothing * (widest / law.smoothing) ** (1 - done)
            soft = eqx.tree_at(lambda law: law.smoothing, law, width)
            return descend(system._replace(laws=(soft, *system.laws[1:])), r, **options)[0]

        near = jax.lax.fori_loop(0, ANNEALING_LEVELS, soften, jnp.zeros_like(found.impulse))
        last = search(system, near, **options)
        better = last.residual < found.residual
        last = jax.tree.map(lambda a, b: jnp.where(better, a, b), last, found)
        return last._replace(iterations=found.iterations + last.iterations)

    def softness(self, model: Model, scene: Scene) -> Float[Array, " near"]:
        R = each_contact(self.mixing, scene) * inverse_masses(model, scene.contacts)
        return scene.near.pick(scene.taps("contact/softness", R))

    def push(self, model: Model, heavy: Model, scene: Scene, qd: Vec, v_free: Vec, dt: Time) -> Push:
        near, axes = scene.near, scene.frame.shape[1]
        target = self._targets(model, scene, qd, v_free, dt)
        friction = scene.contacts.friction if self.friction is None else each_contact(self.friction, scene)
        friction, speed = scene.taps("contact/friction", friction), scene.taps("contact/bias", target.speed)
        aim = jnp.pad(near.pick(speed)[:, None], ((0, 0), (0, axes - 1)))
        mu = near.pick(friction)
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
        return (Pyramid if self.pyramid else Coulomb)(friction, scene.frame.shape[1] - 1)

    def soft_law(self, model: Model, friction: Float[Array, " near"], scene: Scene) -> Law | None:
        """The relaxed law, if it is wanted."""
        if self.smoothing is None:
            return None
        width = each_contact(self.smoothing, scene)
        near = (scene.near.pick(x) for x in (width, inverse_masses(model, scene.contacts)))
        return Relaxed(friction, *near, tangents=scene.frame.shape[1] - 1)

    def _targets(self, model: Model, scene: Scene, qd: Vec, v_free: Vec, dt: Time) -> Targets:
        gap = scene.contacts.gap
        share = dt * self.beta**2 / jnp.maximum(dt * self.beta**2 + 2 * self.alpha, 1e-300)
        kept_apart = -(share * gap + (1 - share) * beyond_touching(gap)) / dt
        kept_apart = jnp.minimum(kept_apart, self.correction_speed)
        if not isinstance(self.restitution, Tracer) and not np.any(np.asarray(self.restitution)):
            return Targets(kept_apart)  # what follows gives the same: it is left out for speed
        e = each_contact(self.restitution, scene)
        before, u = (scene.speeds(model, v)[:, 0] for v in (qd, v_free))
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


def each_contact(value, scene: Scene) -> Float[Array, " contact"]:
    """One number per contact."""
    return jnp.broadcast_to(jnp.asarray(value, scene.frame.dtype), (len(scene.contacts),))
