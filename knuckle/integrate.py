"""One step in time, on the manifold of coordinates."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from knuckle.forces import Loads
from knuckle.model.joints import retract, tangent_rate
from knuckle.model.model import Model, State


class Integrator(eqx.Module):
    """A way to advance a state by dt under given loads."""

    has_stages: ClassVar[bool] = False  # whether it asks for accelerations within a step: needs smooth paths

    @abstractmethod
    def advance(self, model: Model, loads: Loads, state: State, dt: float | Float[Array, ""]) -> State:
        """The state after dt."""

    def free_motion(
        self, model: Model, loads: Loads, state: State, dt: float | Float[Array, ""]
    ) -> tuple[Float[Array, " nv"], Model]:
        """Velocity after dt if nothing touched, and the model whose mass matrix impulses meet."""
        name = type(self).__name__
        raise ValueError(f"contact needs SemiImplicitEuler or Implicit, not {name}; contact=None is without contact")


class SemiImplicitEuler(Integrator):
    """Velocity first, then position with the new velocity; first order.

    Symplectic only if the mass matrix is constant and forces depend on position alone (a spring, a point mass): energy
    then oscillates about a constant. If the mass matrix depends on q (linkages, rotating bodies), energy drifts.
    """

    def advance(self, model, loads, state, dt):
        qd, _ = self.free_motion(model, loads, state, dt)
        return State(retract(model, state.q, dt * qd), qd)

    def free_motion(self, model, loads, state, dt):
        return state.qd + dt * loads.acceleration(model, state.q, state.qd), model


class ExplicitEuler(Integrator):
    """Position and velocity with the old values; first order, gains energy: for comparison."""

    def advance(self, model, loads, state, dt):
        qd = state.qd + dt * loads.acceleration(model, state.q, state.qd)
        return State(retract(model, state.q, dt * state.qd), qd)


class Implicit(Integrator):
    """Semi-implicit Euler with damping, joint stiffness and servos linearly implicit: for stiff ones; first order."""

    def advance(self, model, loads, state, dt):
        qd, _ = self.free_motion(model, loads, state, dt)
        return State(retract(model, state.q, dt * qd), qd)

    def free_motion(self, model, loads, state, dt):
        qdd, heavier = loads.implicit_acceleration(model, state.q, state.qd, dt)
        return state.qd + dt * qdd, heavier


class RK4(Integrator):
    """The classical Runge-Kutta method; fourth order on quaternions too (Munthe-Kaas 1999)."""

    has_stages = True

    def advance(self, model, loads, state, dt):
        def rate(offset, stage):
            """Rates of (u, qd) at q = retract(q0, u)."""
            u, qd = offset
            at, q, qd = loads.at_stage(stage, retract(model, state.q, u), qd)
            loads.taps.moved_to(q, qd)
            return tangent_rate(model, u, qd), at.acceleration(model, q, qd)

        def moved(rates, h):
            return jax.tree.map(lambda start, r: start + h * r, start, rates)

        start = (0 * state.qd, state.qd)
        k1 = rate(start, 0)
        k2 = rate(moved(k1, dt / 2), 1)
        k3 = rate(moved(k2, dt / 2), 1)
        k4 = rate(moved(k3, dt), 2)
        mean = jax.tree.map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, k1, k2, k3, k4)
        u, qd = moved(mean, dt)
        return State(retract(model, state.q, u), qd)


def nearest_to_file(model: Model, *, contact: bool) -> tuple[Integrator, str]:
    """The integrator nearest to the one that the model's file asks for, and in words what differs, if anything does.

    MuJoCo's Euler takes the damping of joints implicitly, implicitfast the velocity gains of servos too, implicit also
    Coriolis forces. `Implicit` takes damping, joint springs and servos so: without springs and servos it is MuJoCo's
    Euler and implicitfast.
    """
    asked, damped = model.integrator, bool(np.any(np.asarray(model.damping)))
    springy = bool(np.any(np.asarray(model.stiffness)) or np.any(np.asarray(model.actuators.bias)[:, 1:]))
    if asked == "RK4":
        return (RK4(), "") if not contact else (Implicit() if damped else SemiImplicitEuler(), "RK4 has no contact")
    if asked is None or (asked == "Euler" and not damped):
        return SemiImplicitEuler(), ""
    if asked in ("Euler", "implicitfast"):
        return Implicit(), "joint springs and servos are taken implicitly" if springy else ""
    return Implicit(), "damping, joint springs and servos are taken implicitly, and nothing else"
