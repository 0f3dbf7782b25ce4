"""A robot driven by noisy efforts as a system to be linearised: from each stamp to the next, and what is measured.

The state of an estimate is a tangent vector: coordinates (nv), velocities (nv), what networks remember, and the error
of the effort (nv), which acts at the joints beside the actuators and is held from stamp to stamp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from knuckle import native
from knuckle.contact.resolve import ContactModel
from knuckle.forces import actuator_force
from knuckle.integrate import ExplicitEuler, Integrator
from knuckle.model.joints import difference, retract
from knuckle.model.model import Model, State
from knuckle.simulate import begin, rollout, step
from knuckle.sysid.entries import ACCELERATION
from knuckle.sysid.parameters import Parameters
from knuckle.sysid.resolution import longest_step
from knuckle.sysid.shooting import Observe, Simulator
from knuckle.taps import Augment, Blueprint

STABLE = 1.0  # step times the fastest rate of the motion; RK4 is stable up to 2.78
PROBES = 40  # states at which that rate is looked for
MOST_SUBSTEPS = 1000  # between stamps
TINY = 1e-6  # [s]
LEAST_WIDTH = 1e-9  # of a divided difference: below, it would be rounding
MOST_SECANTS = 20_000  # that are simulated at once


class EffortError(eqx.Module):
    """A force at the joints that does not depend on the state."""

    force: Float[Array, " nv"]
    starts_at_zero = True

    def __call__(self, x):
        return self.force.astype(x.dtype)


class Nominal(NamedTuple):
    """A trajectory about which a robot is linearised: one row for each stamp."""

    q: np.ndarray
    qd: np.ndarray
    memory: np.ndarray
    effort: np.ndarray  # error of the effort [N m or N]


class Run(NamedTuple):
    """A stretch of a recording without gaps: drives of the steps between rows, and what was measured at rows."""

    time: np.ndarray
    drive: np.ndarray  # (row - 1, substep, nu)
    control: np.ndarray  # (row, nu), at the stamps
    measured: dict[str, np.ndarray]
    valid: dict[str, np.ndarray]  # (row, entry), entries of the tangent space


class RobotSystem:
    """Compiled steps and measurements of a robot with their Jacobians."""

    def __init__(
        self,
        model: Model,
        blueprint: Blueprint | None,
        contact: ContactModel | None,
        integrator: Integrator,
        observe: Mapping[str, Observe],
    ):
        self.model, self.blueprint, self.contact, self.integrator = model, blueprint, contact, integrator
        self.observe = observe
        self._simulator = Simulator(model, Parameters(), contact, integrator, None, 1, observe)
        options = {"dt": TINY, "integrator": integrator, "contact": contact, "wrench": None}
        first = State(jnp.asarray(model.reference, float), jnp.zeros(model.nv))
        memory = begin(model, first, self._with_error(jnp.zeros(model.nv)), **options).memory
        flat, self._unravel = ravel_pytree(memory)
        self._memory_type = flat.dtype
        self.first_memory = np.asarray(flat, float)
        self.size = 3 * model.nv + len(self.first_memory)
        self.effort = slice(self.size - model.nv, self.size)
        self._step = native.jit(self._advance)
        self._steps = native.vmap(self._linear_step)
        self._once = jax.jit(self._end)  # traced once for ends and their slopes
        self._ends = native.vmap(self._once)
        self._seen = native.vmap(self._linear_measurement)
        self._apart = native.vmap(lambda a, b: difference(model, a, b))
        self._retracted = native.vmap(lambda q, d: jnp.asarray(retract(model, q, d)))
        self._forces = native.vmap(lambda q, qd, u: actuator_force(model, q, qd, u))

    def memory_of(self, numbers) -> Any:
        """What networks remember, in its own structure."""
        return self._unravel(jnp.asarray(numbers).astype(self._memory_type))

    def _with_error(self, force) -> Blueprint:
        error = Blueprint({"actuator/force": Augment(EffortError(force), "qd")})
        return error if self.blueprint is None else self.blueprint | error

    def _options(self, effort) -> dict[str, Any]:
        return {"contact": self.contact, "blueprint": self._with_error(effort)}

    def _advance(self, q, qd, memory, effort, rows, span, time):
        """Coordinates, velocities and memory after `span` seconds."""
        state = State(q, qd, memory=self.memory_of(memory))
        options = {"dt": span / rows.shape[0], "time": time, "integrator": self.integrator, **self._options(effort)}
        last = rollout(self.model, state, rows, **options).last
        return last.q, last.qd, ravel_pytree(last.memory)[0].astype(q.dtype)

    def _moved(self, at, d):
        """A nominal state moved along a tangent vector."""
        q, qd, memory, effort = at
        nv = self.model.nv
        return (
            jnp.asarray(retract(self.model, q, d[:nv])), qd + d[nv : 2 * nv],
            memory + d[2 * nv : self.effort.start], effort + d[self.effort],
        )  # fmt: skip

    def _end(self, at, following, rows, span, time, d):
        """Where a step from a state moved by `d` ends beside the next nominal state, without the effort's error."""
        q, qd, memory = self._advance(*self._moved(at, d), rows, span, time)
        return jnp.concatenate([difference(self.model, following[0], q), qd - following[1], memory - following[2]])

    def _linear_step(self, at, following, rows, span, time):
        """Where a step ends, and its Jacobian."""

        def ends(d):
            return self._once(at, following, rows, span, time, d)

        nothing = jnp.zeros(self.size)
        return ends(nothing), native.jacfwd(ends)(nothing)

    def _linear_measurement(self, at, control, time, measured):
        """What instruments would show less what they showed, and the Jacobian."""

        def shown(d):
            q, qd, memory, effort = self._moved(at, d)
            parts = []
            for key in sorted(measured):
                if key == ACCELERATION:
                    parts.append(self._acceleration(q, qd, memory, effort, control, time) - measured[key])
                else:
                    parts.append(self._simulator.difference(self.model, key, State(q, qd), measured[key]))
            return jnp.concatenate(parts)

        nothing = jnp.zeros(self.size)
        return shown(nothing), native.jacfwd(shown)(nothing)

    def _acceleration(self, q, qd, memory, effort, control, time):
        """The slope of the velocities."""
        integrator = self.integrator if self.contact is not None else ExplicitEuler()
        state = State(q, qd, memory=self.memory_of(memory))
        options = {"dt": TINY, "time": time, "integrator": integrator, **self._options(effort)}
        return (step(self.model, state, control, **options).qd - qd) / TINY

    def forces(self, nominal: Nominal, run: Run) -> np.ndarray:
        """What actuators do at the joints at the stamps [N m or N], with the error of the effort."""
        return np.asarray(self._forces(nominal.q, nominal.qd, run.control)) + nominal.effort

    def remembered(self, nominal: Nominal, run: Run) -> Nominal:
        """The trajectory with what networks remember along it."""
        if not len(self.first_memory):
            return nominal
        memory = np.tile(self.first_memory, (len(nominal.q), 1))
        for k, span in enumerate(np.diff(run.time)):
            at = (nominal.q[k], nominal.qd[k], memory[k], nominal.effort[k])
            memory[k + 1] = np.asarray(self._step(*at, run.drive[k], np.asarray(span), np.asarray(run.time[k]))[2])
        return nominal._replace(memory=memory)

    def steps(self, nominal: Nominal, run: Run) -> tuple[np.ndarray, np.ndarray]:
        """Defects (row - 1, size - nv) and Jacobians of all steps."""
        at = tuple(part[:-1] for part in nominal)
        following = tuple(part[1:] for part in nominal[:3])
        found = self._steps(at, following, run.drive, np.diff(run.time), run.time[:-1])
        return np.asarray(found[0]), np.asarray(found[1])

    def secants(self, nominal: Nominal, run: Run, steps: np.ndarray, deviation: np.ndarray) -> np.ndarray:
        """Slopes of some steps across one standard deviation to either side, (step, size - nv, size).

        Divided differences (Norgaard, Poulsen and Ravn 2000): where a step has a kink within the uncertainty of its
        state, they are continuous in the state, and the Jacobian is not.
        """
        width = np.maximum(deviation, LEAST_WIDTH)
        parts = []
        for some in np.array_split(steps, max(len(steps) * self.size // MOST_SECANTS, 1)):
            moves = np.eye(self.size)[None] * width[some][:, None]
            both = np.concatenate([moves, -moves], axis=1)
            each = np.repeat(some, 2 * self.size)
            at, following = tuple(part[each] for part in nominal), tuple(part[each + 1] for part in nominal[:3])
            spans = np.diff(run.time)[each]
            ends = self._ends(at, following, run.drive[each], spans, run.time[each], both.reshape(-1, self.size))
            ends = np.asarray(ends).reshape(len(some), 2, self.size, -1)
            parts.append(np.swapaxes((ends[:, 0] - ends[:, 1]) / (2 * width[some][..., None]), 1, 2))
        return np.concatenate(parts)

    def measurements(self, nominal: Nominal, run: Run) -> tuple[np.ndarray, np.ndarray]:
        """Residuals (row, entry) and their Jacobians."""
        found = self._seen(tuple(nominal), run.control, run.time, run.measured)
        return np.asarray(found[0]), np.asarray(found[1])

    def moved(self, nominal: Nominal, change: np.ndarray) -> Nominal:
        """A trajectory moved along tangent vectors (row, size), but for what networks remember."""
        nv = self.model.nv
        plain = self.model.nq == nv
        q = nominal.q + change[:, :nv] if plain else np.asarray(self._retracted(nominal.q, change[:, :nv]))
        return Nominal(q, nominal.qd + change[:, nv : 2 * nv], nominal.memory, nominal.effort + change[:, self.effort])

    def apart(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Tangent vectors from coordinates to others (row, nv)."""
        return end - start if self.model.nq == self.model.nv else np.asarray(self._apart(start, end))


def stable_step(model: Model, blueprint: Blueprint | None, integrator: Integrator, q: np.ndarray) -> float:
    """The longest step [s] that integrates all motion stably: dry friction makes a joint at rest very fast.

    The rates are those of the Jacobian of the acceleration at positions `q` (row, nq), at rest.
    """
    chosen = q[np.unique(np.linspace(0, len(q) - 1, PROBES).astype(int))]
    nv = model.nv

    def slopes(q):
        def acceleration(d):
            state = State(jnp.asarray(retract(model, q, d[:nv])), d[nv:])
            return step(model, state, dt=TINY, integrator=ExplicitEuler(), contact=None, blueprint=blueprint).qd / TINY

        return native.jacfwd(lambda d: acceleration(d) - d[nv:] / TINY)(jnp.zeros(2 * nv))

    found = np.asarray(native.vmap(slopes)(chosen))
    found = found[np.isfinite(found).all(axis=(1, 2))]
    upper = np.broadcast_to(np.eye(nv, 2 * nv, nv), (len(found), nv, 2 * nv))
    rates = np.abs(np.linalg.eigvals(np.concatenate([upper, found], axis=1)))
    return min(longest_step(model, integrator), STABLE / max(float(np.max(rates, initial=0.0)), 1e-9))
