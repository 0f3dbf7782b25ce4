"""Newton's method; rows with a relaxed law are solved from a softer law where the search fails."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle.contact.coupling import joined
from knuckle.contact.laws import Law
from knuckle.contact.laws_several import each_of, in_one
from knuckle.contact.laws_smooth import Relaxed
from knuckle.contact.search import descend, search
from knuckle.contact.solver import Solution, Solver
from knuckle.contact.system import System, Vec

ANNEALING_LEVELS = 8  # widths of smoothing between the fastest closing speed and the one that is asked


class Newton(Solver):
    """Newton's method from the impulses of the last step, with proximal steps where it does not converge.

    With relaxed contacts it is helped by annealing.
    """

    needs_matrix = False
    smooth_laws = True

    def solve(self, system, start, *, tolerance, most_iterations):
        found = search(system, start, tolerance=tolerance, most_iterations=most_iterations)
        if not start.size or not any(isinstance(law, Relaxed) for law in each_of(system.laws[0])):
            return found

        def annealed(found: Solution) -> Solution:
            return _anneal(system, found, tolerance, most_iterations)

        return jax.lax.cond(found.converged, lambda found: found, annealed, found)


def _anneal(system: System, found: Solution, tolerance: float, most_iterations: int) -> Solution:
    """From a law so soft that it is easy to the one that is asked, each solution the start of the next search."""
    system = jax.lax.stop_gradient(system)
    wanted = jnp.where(found.converged, jnp.inf, tolerance)  # in a batch, what is solved does not wait
    options: dict[str, Any] = {"tolerance": wanted, "most_iterations": most_iterations}
    fastest = jnp.max(jnp.maximum(-joined(system.b), 0.0))

    def soften(level, r: Vec) -> Vec:
        done = (level + 1).astype(r.dtype) / ANNEALING_LEVELS
        soft = in_one([_softened(law, fastest, done) for law in each_of(system.laws[0])])
        return descend(system._replace(laws=(soft, *system.laws[1:])), r, **options)[0]

    near = jax.lax.fori_loop(0, ANNEALING_LEVELS, soften, jnp.zeros_like(found.impulse))
    last = search(system, near, **options)
    better = last.residual < found.residual
    last = jax.tree.map(lambda a, b: jnp.where(better, a, b), last, found)
    return last._replace(iterations=found.iterations + last.iterations)


def _softened(law: Law, fastest: Float[Array, ""], done: Float[Array, ""]) -> Law:
    """A relaxed law, wider by as much as is not done."""
    if not isinstance(law, Relaxed):
        return law
    widest = jnp.maximum(fastest, law.smoothing)
    width = law.smoothing * (widest / law.smoothing) ** (1 - done)
    return eqx.tree_at(lambda law: law.smoothing, law, width)
