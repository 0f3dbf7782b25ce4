"""Springy contact: forces of overlap and slip (Hunt and Crossley; Brown and McPhee), per contact point.

By default implicit in velocity: stable however stiff, right at rest, but a bounce loses speed, 9 % if contact lasts 60
steps and 56 % if 6, where T_c = 3.2 (m^2/(k^2 v))^(1/5). With `substeps` the contact's own motion is integrated within
the step (Runge-Kutta, inverse masses held fixed): bounces come out right if a contact lasts a few substeps or more. A
step whose substeps are too long (unstable, or energy is gained) is marked as not solved, and its contacts do not push.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from knuckle import spatial
from knuckle.contact.impulse import PerContact, each_contact
from knuckle.contact.laws import Blocks
from knuckle.contact.laws_smooth import Given, Springy, friction_per_slip, normal_force, normal_stiffness
from knuckle.contact.numbers import check_count, check_range
from knuckle.contact.push import Push
from knuckle.contact.resolve import ContactModel
from knuckle.contact.scene import Scene, Time
from knuckle.contact.search import descend, search
from knuckle.contact.solver import Solution
from knuckle.contact.system import System, Vec
from knuckle.model.model import Model

INACCURACY = 0.01  # of the energies that meet, by which an integration may be wrong
LONGEST_SUBSTEP = 2.7  # times the fastest rate: the classical Runge-Kutta method is stable up to 2.78


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
        check_range(self, ("stiffness", "dissipation", "friction", "static_friction"))
        check_range(self, ("exponent", "transition", "tolerance"), positive=True)
        check_count(self, "most_iterations", 0)
        if self.substeps is not None:
            check_count(self, "substeps", 1)

    @property
    def culls(self):
        return True

    def solve(self, system: System, start: Vec) -> Solution:
        limits = {"tolerance": self.tolerance, "most_iterations": self.most_iterations}
        near, steps = descend(system, start, **limits)  # friction's slope fades where slip is over the transition
        found = search(system, near, **limits)
        return found._replace(iterations=found.iterations + steps)

    def sliding_friction(self, scene: Scene) -> Float[Array, " contact"]:
        return scene.contacts.friction if self.friction is None else each_contact(self.friction, scene)

    def softness(self, model: Model, scene: Scene) -> Float[Array, " near"]:
        return jnp.zeros_like(scene.near.pick(scene.contacts.gap))

    def push(self, model: Model, heavy: Model, scene: Scene, qd: Vec, v_free: Vec, dt: Time) -> Push:
        law = self._law(scene, dt)
        aim = jnp.zeros((len(law.gap), law.block), law.gap.dtype)
        if self.substeps is None:
            return Push(law, aim)
        impulse, moment, stable = self._integrate(law, model, heavy, scene, qd, v_free, dt)
        return Push(Given(impulse, law.block), aim, lambda r: moment, reliable=stable)

    def _law(self, scene: Scene, dt: Time) -> Springy:
        def near(value):
            return scene.near.pick(each_contact(value, scene))

        static = scene.friction if self.static_friction is None else self.static_friction
        return Springy(
            gap=scene.near.pick(scene.contacts.gap),
            stiffness=near(self.stiffness),
            dissipation=near(self.dissipation),
            exponent=near(self.exponent),
            friction=near(scene.friction),
            static_friction=near(static),
            transition=near(self.transition),
            dt=near(dt),
            tangents=scene.contact_rows - 1,
        )

    def _integrate(self, law: Springy, model: Model, heavy: Model, scene: Scene, qd, v_free, dt):
        """Impulses of a step, their moments in time (force times time since the step's start), and whether substeps
        were short enough to be stable; if not, there are no impulses."""
        before, after = scene.near.pick(scene.speeds_before(model, qd)), scene.near_speeds(model, v_free)
        drift = (after - before) / dt
        A = scene.inverse_masses(heavy)
        h = dt / self.substeps

        short = eqx.tree_at(lambda law: law.dt, law, jnp.full_like(law.dt, h))
        normals = jax.lax.stop_gradient(jnp.abs(A.reshape(*before.shape, *before.shape)[:, 0, :, 0]))

        def is_stable(gap, u):
            """Whether h times the rates of the contacts' own motion is within Runge-Kutta's region, by row sums."""
            stiff = jax.lax.stop_gradient(normal_stiffness(short, gap, u[:, 0]))
            return jnp.all(h * spatial.apply(normals, stiff) <= LONGEST_SUBSTEP)

        def force(gap, u):
            push = normal_force(law, gap, u[:, 0])
            drag = -(push * friction_per_slip(law, u[:, 1:]))[:, None] * u[:, 1:]
            return jnp.concatenate([push[:, None], drag], axis=1)

        def rate(at):
            gap, u = at
            f = force(gap, u)
            return u[:, 0], (A @ f.reshape(-1)).reshape(f.shape) + drift, f

        def substep(carry, number):
            gap, u, impulse, moment, stable = carry
            k1 = rate((gap, u))
            second = gap + h / 2 * k1[0], u + h / 2 * k1[1]
            k2 = rate(second)
            third = gap + h / 2 * k2[0], u + h / 2 * k2[1]
            k3 = rate(third)
            fourth = gap + h * k3[0], u + h * k3[1]
            k4 = rate(fourth)
            for stage in ((gap, u), second, third, fourth):
                stable = stable & is_stable(*stage)
            mean = jax.tree.map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, k1, k2, k3, k4)
            start = number * h
            late = h * h * (k2[2] + k3[2] + k4[2]) / 6  # Simpson's rule of the force times time within the substep
            moment = moment + start * h * mean[2] + late
            return (gap + h * mean[0], u + h * mean[1], impulse + h * mean[2], moment, stable), None

        zero = jnp.zeros_like(before)
        numbers = jnp.arange(self.substeps).astype(before.dtype)
        start = (law.gap, before, zero, zero, jnp.ones((), bool))
        (_, _, impulse, moment, stable), _ = jax.lax.scan(substep, start, numbers)
        stable = stable & jnp.all(jnp.isfinite(moment)) & _is_passive(law, A, after, impulse)
        return jnp.where(stable, impulse, 0.0), jnp.where(stable, moment, 0.0), stable


def _is_passive(law: Springy, A: Float[Array, "row row"], free: Blocks, impulse: Blocks) -> Bool[Array, ""]:
    """Whether impulses add no more kinetic energy than springs held, but for errors of the integration."""
    r, u, depth = impulse.reshape(-1), free.reshape(-1), jnp.maximum(-law.gap, 0.0)
    stored = jnp.sum(law.stiffness * depth ** (law.exponent + 1) / (law.exponent + 1))
    work = jnp.sum(r * u) + 0.5 * jnp.sum(r * spatial.apply(A, r))
    diagonal = jnp.diagonal(A)
    moving = jnp.where((r != 0) & (diagonal > 0), 0.5 * u * u / jnp.where(diagonal > 0, diagonal, 1.0), 0.0)
    return work <= stored + INACCURACY * (stored + jnp.sum(moving))
