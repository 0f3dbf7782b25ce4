"""What the contacts and constraints of a step did."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable

import equinox as eqx
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from knuckle.contact.collide import Contacts

KINK = 1e-6  # [m/s]; nearer to a change of mode, a gradient is one-sided
VIOLATED = 1e-3  # [m or rad]; more than steps of usual length leave by their curvature
GIVES_WAY = 1e-3  # [m/s]; more than regularisation should let a limit or equality give way


class Outcome(eqx.Module):
    """Contacts and impulses of one step (or, with a leading axis, of many)."""

    contacts: Contacts
    frame: Float[Array, "*step contact axis 3"]  # rows: the normal from b to a, the tangents; world
    impulse: Float[Array, "*step contact axis"]  # on a, along the rows of the frame [N s]
    velocity: Float[Array, "*step contact axis"]  # of a against b after the step: separation and slip [m/s]
    limit: Float[Array, "*step dof"]  # impulses of joint limits [N s or N m s]
    equality: Float[Array, "*step equality"]  # of the rows of active equalities
    friction: Float[Array, "*step dof"]  # of dry joint friction
    residual: Float[Array, "*step"]  # of the solution [m/s]; infinite where the law could not be computed
    converged: Bool[Array, "*step"]  # whether laws hold to the tolerance, no constraint gave way, and all is finite
    iterations: Int[Array, "*step"]
    margin: Float[Array, "*step"]  # to the nearest change of mode [m/s]; near zero the gradient is one-sided
    slack: Float[Array, "*step"]  # by how much a limit or equality gives way [m/s]; large where they contradict
    violation: Float[Array, "*step"]  # of the worst limit or equality, which the step leaves [m or rad]
    torque: Float[Array, "*step contact 3"] | None = None  # on a, of torsional and rolling friction, world [N m s]

    def of_rule(self, rule: str) -> Outcome:
        """With the contacts of one rule of `PerPair` only."""
        own = self.contacts.rows_of(rule)
        return dataclasses.replace(
            self,
            contacts=self.contacts.of_rule(rule),
            frame=self.frame[..., own, :, :],
            impulse=self.impulse[..., own, :],
            velocity=self.velocity[..., own, :],
            torque=None if self.torque is None else self.torque[..., own, :],
        )

    @property
    def depth(self) -> Float[Array, "*step contact"]:
        """Overlap [m]; zero where shapes are apart."""
        return (-self.contacts.gap).clip(0)

    def check(self, describe: Callable[[int], str] | None = None) -> None:
        """Raise if a step is unsolved or a constraint gave way; warn of violations and one-sided gradients.

        Steps of a batch are counted through, one roll-out after the other.

        A limit or equality that is violated is corrected over several steps (`correction`, `correction_speed` of the
        contact model). So a step can be converged and still leave a violation. `describe` says by name what is wrong
        in a step, as `step` and `rollout` do with check=True.
        """
        described = (lambda step: "") if describe is None else lambda step: f" ({describe(step)})"
        if isinstance(self.residual, Tracer):
            raise ValueError("check=True needs numbers: under jit, grad or vmap, call .contact.check() on the result")
        residual, slack, margin = (np.asarray(x).reshape(-1) for x in (self.residual, self.slack, self.margin))
        finite = ~np.isnan(residual) & np.isfinite(slack)
        finite &= np.isfinite(np.asarray(self.impulse)).all(axis=(-2, -1)).reshape(-1)
        if not finite.all():
            raise ArithmeticError(f"contact impulses are not finite from step {int(np.argmin(finite))} on")
        if np.any(slack > GIVES_WAY):
            at = int(np.argmax(slack > GIVES_WAY))
            raise ArithmeticError(
                f"a constraint gave way by {slack[at]:.1e} m/s in step {at}: constraints contradict each other"
                + described(at)
            )
        unsolved = np.flatnonzero(~np.asarray(self.converged).reshape(-1))
        if len(unsolved):
            at = unsolved[0]
            raise ArithmeticError(
                f"contact was not solved in {len(unsolved)} of {len(residual)} steps; the first is step {at}, with a "
                f"residual of {residual[at]:.1e} m/s (or contacts beyond most_contacts that should have pushed, or "
                "substeps that are too long, or bodies squeezed by prescribed motion)"
            )
        violation = np.asarray(self.violation).reshape(-1)
        violated = np.flatnonzero(violation > VIOLATED)
        if len(violated):
            at = violated[0]
            warnings.warn(
                f"a joint limit or an equality is violated in {len(violated)} of {len(violation)} steps, by up to "
                f"{violation.max():.2g} m or rad and by {violation[-1]:.2g} after the last; the first is step {at}"
                + described(at),
                stacklevel=3,
            )
        kinks = np.flatnonzero(margin < KINK)
        if len(kinks):
            warnings.warn(
                f"{len(kinks)} of {len(margin)} steps, the first of them step {kinks[0]}, are within {KINK:g} m/s of a "
                "change of mode (touching, sticking): gradients there are one-sided",
                stacklevel=3,
            )
