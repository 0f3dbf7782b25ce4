"""How long a time step of a fit may be, such that its own error does not go into the parameters."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from scipy.linalg import block_diag, eigvals

from knuckle.dynamics import crba
from knuckle.forces import stiffness_and_damping
from knuckle.integrate import RK4, Integrator
from knuckle.model.model import Model
from knuckle.native import jit

LONGEST_STEP, LONGEST_STEP_RK4 = 2e-3, 5e-3  # [s]
RESOLVED = 1 / 4  # of the time constant of the fastest motion: RK4 then errs by 1e-5 of that motion in each step


def longest_step(model: Model, integrator: Integrator) -> float:
    """The longest step [s] of an integrator; RK4 resolves springs, damping and servos of the joints by it."""
    if not isinstance(integrator, RK4):
        return LONGEST_STEP
    return min(LONGEST_STEP_RK4, RESOLVED / max(fastest_rate(model), 1e-9))


def fastest_rate(model: Model) -> float:
    """The largest rate [1/s] of H qdd + D qd + K q = 0 at the reference: springs, damping, servos; no friction."""
    loose = eqx.tree_at(
        lambda m: (m.friction, m.effort, m.actuators.force_lower, m.actuators.force_upper),
        model,
        (
            np.zeros(model.nv),
            np.full(model.nv, np.inf),
            np.full(model.nu, -np.inf),
            np.full(model.nu, np.inf),
        ),
    )
    H, K, D = (np.asarray(a) for a in jit(lambda q: _linear(loose, q))(np.asarray(model.reference, float)))
    none, one = np.zeros_like(H), np.eye(model.nv)
    rates = np.abs(eigvals(np.block([[none, one], [-np.diag(K), -np.diag(D)]]), block_diag(one, H)))
    return float(np.max(rates[np.isfinite(rates)], initial=0.0))


def _linear(model: Model, q):
    """Mass matrix, stiffness and damping of the joints at rest."""
    return crba(model, q), *stiffness_and_damping(model, q, jnp.zeros(model.nv), jnp.zeros(model.nu))
