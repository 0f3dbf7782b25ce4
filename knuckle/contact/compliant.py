"""Springy contact: forces of overlap and slip (Hunt and Crossley; Brown and McPhee), per contact point.

By default implicit in velocity: stable however stiff, right at rest, but without the bounce where contact lasts less
than about 60 steps, T_c = 3.2 (m^2/(k^2 v))^(1/5). With `substeps` the contact's own motion is integrated within the
step (Runge-Kutta, inverse masses held fixed): bounces come out right if a contact lasts a few substeps or more.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from knuckle.contact.impulse import PerContact, each_contact
from knuckle.contact.laws_smooth import Given, Springy, friction_per_slip, normal_force
from knuckle.contact.resolve import ContactModel, Push, Scene, Time
from knuckle.contact.search import Solution, descend, search
from knuckle.contact.system import System, Vec
from knuckle.model.model import Model


class Compliant(ContactModel):
    """Contact by forces of overlap and slip; numbers are one for all contacts, or one each."""

    friction_follows = True
    stiffness: PerContact = 1e5  # k of k depth^exponent [N/m^exponent]
    dissipation: PerContact = 0.5  # c of the factor 1 + c times the speed of approach [s/m]
    exponent: PerContact = 1.5
    friction: PerContact | None = None  # of sliding; None: from the shapes
    static_friction: PerContact | None = None  # at the transition speed; None: that of sliding
    transition: PerContact = 0.01  # slip speed at which friction is fully there [m/s]
    substeps: int | None = eqx.field(static=True, default=None)
    tolerance: float = eqx.field(static=True, default=1e-8)  # residual [m/s]
    most_iterations: int = eqx.field(static=True, default=600)

    def __check_init__(self):
        for name in ("stiffness", "dissipation", "exponent", "friction", "static_friction", "transition"):
            value = getattr(self, name)
            if value is None or isinstance(value, Tracer):
                continue
            least = np.min(np.asarray(value))
            if not (least > 0 if name in ("transition", "exponent") else least >= 0):
                wanted = "positive" if name in ("transition", "exponent") else "zero or more"
                raise ValueError(f"Compliant: {name} must be {wanted}, got {value}")
        if self.substeps is not None and self.substeps < 1:
            raise ValueError(f"Compliant: substeps must be at least 1, or None, got {self.substeps}")

    def solve(self, system: System, start: Vec) -> Solution:
        limits = {"tolerance": self.tolerance, "most_iterations": self.most_iterations}
        near, steps = descend(system, start, **limits)  # friction's slope fades where slip is over the transition
        found = search(system, near, **limits)
        return found._replace(iterations=found.iterations + steps)

    def softness(self, model: Model, scene: Scene) -> Float[Array, " near"]:
        return jnp.zeros_like(scene.near.pick(scene.contacts.gap))

    def push(self, model: Model, heavy: Model, scene: Scene, qd: Vec, v_free: Vec, dt: Time) -> Push:
        law = self._law(scene, dt)
        aim = jnp.zeros((len(law.gap), law.block), law.gap.dtype)
        if self.substeps is None:
            return Push(law, aim)
        impulse, moment = self._integrate(law, model, heavy, scene, qd, v_free, dt)
        return Push(Given(impulse, law.block), aim, lambda r: moment)

    def _law(self, scene: Scene, dt: Time) -> Springy:
        def near(value):
            return scene.near.pick(each_contact(value, scene))

        friction = scene.contacts.friction if self.friction is None else each_contact(self.friction, scene)
        friction = scene.taps("contact/friction", friction)
        static = friction if self.static_friction is None else self.static_friction
        return Springy(
            gap=scene.near.pick(scene.contacts.gap),
            stiffness=near(self.stiffness),
            dissipation=near(self.dissipation),
            exponent=near(self.exponent),
            friction=near(friction),
            static_friction=near(static),
            transition=near(self.transition),
            dt=near(dt),
            tangents=scene.frame.shape[1] - 1,
        )

    def _integrate(self, law: Springy, model: Model, heavy: Model, scene: Scene, qd, v_free, dt):
        """Impulses of a step, and their moments in time (force times time since the step's start)."""
        before, after = (scene.near.pick(scene.speeds(model, v)) for v in (qd, v_free))
        drift = (after - before) / dt
        A = scene.inverse_masses(heavy)
        h = dt / self.substeps

        def force(gap, u):
            push = normal_force(law, gap, u[:, 0])
            drag = -(push * friction_per_slip(law, u[:, 1:]))[:, None] * u[:, 1:]
            return jnp.concatenate([push[:, None], drag], axis=1)

        def rate(at):
            gap, u = at
            f = force(gap, u)
            return u[:, 0], (A @ f.reshape(-1)).reshape(f.shape) + drift, f

        def substep(carry, number):
            gap, u, impulse, moment = carry
            k1 = rate((gap, u))
            k2 = rate((gap + h / 2 * k1[0], u + h / 2 * k1[1]))
            k3 = rate((gap + h / 2 * k2[0], u + h / 2 * k2[1]))
            k4 = rate((gap + h * k3[0], u + h * k3[1]))
            mean = jax.tree.map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, k1, k2, k3, k4)
            start = number * h
            late = h * h * (k2[2] + k3[2] + k4[2]) / 6  # Simpson's rule of the force times time within the substep
            moment = moment + start * h * mean[2] + late
            return (gap + h * mean[0], u + h * mean[1], impulse + h * mean[2], moment), None

        zero = jnp.zeros_like(before)
        numbers = jnp.arange(self.substeps).astype(before.dtype)
        (_, _, impulse, moment), _ = jax.lax.scan(substep, (law.gap, before, zero, zero), numbers)
        return impulse, moment
