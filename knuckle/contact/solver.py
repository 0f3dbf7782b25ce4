"""How the impulses of a step are found: one abstract class, one file for each solver."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from knuckle.contact.system import System, Vec


class Solution(NamedTuple):
    """Impulses, with the residual that was reached [m/s]; `converged` is true only below the tolerance."""

    impulse: Vec
    residual: Float[Array, ""]
    converged: Bool[Array, ""]
    iterations: Int[Array, ""]
    change: Float[Array, " dof"] | None = None  # of the joints' velocities by these impulses, where it was found too

    @staticmethod
    def of_no_rows(start: Vec) -> Solution:
        zero = jnp.zeros((), start.dtype)
        return Solution(start, zero, zero == 0, jnp.zeros((), jnp.int32))

    def joined(self, other: Solution) -> Solution:
        """These impulses, of which the worse residual and both searches count."""
        worse = jnp.maximum(self.residual, other.residual)
        both = self.converged & other.converged, self.iterations + other.iterations
        return Solution(self.impulse, worse, *both, self.change)


class Solver(eqx.Module):
    """Finds impulses that obey the laws of a system. All solvers stop at the same residual (`system.residual`)."""

    needs_matrix: ClassVar[bool]  # whether it works on A itself
    smooth_laws: ClassVar[bool]  # whether it solves relaxed laws too

    @abstractmethod
    def solve(self, system: System, start: Vec, *, tolerance: float, most_iterations: int) -> Solution:
        """Impulses whose residual is below the tolerance [m/s], or the best found; without derivative."""
