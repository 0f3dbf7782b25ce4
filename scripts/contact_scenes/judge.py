"""The judgement of a scene's steps, in NumPy: laws of contact, momentum, energy and penetration.

Let u be the velocities of the contacts after a step, r the impulses, A = J M^-1 J^T, R the regularisation and `aim` the
velocity that the law counts from. A converged step obeys the law between r and s = u + R r - aim: its natural map
(De Saxce's on the cone) is below LAW, in m/s.

Momentum of every joint must be that of the impulses of contacts, limits, dry friction and equalities. Energy that they
add must be that of the recovery of overlap and of errors (`energy.py`).
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import jax
import numpy as np

from contact_scenes.audit import Record
from contact_scenes.draw import Scene
from contact_scenes.energy import allowed_gain, allowed_unsolved, gain
from contact_scenes.maps import beyond_touching, length, on_cone, on_diamond, on_square, soft_cone
from knuckle.contact import Compliant, Impulse, InteriorPoint, PerPair
from knuckle.contact.outcome import GIVES_WAY

LAW = 1e-7  # [m/s]; ten times the solver's tolerance
ROUNDING = 1e-10  # of the largest velocity that takes part: inverse masses that differ by 1e6, in float64
TIE = 1e-12  # of the velocities that meet; nearer than this to a choice between laws, rounding decides
STIFFEST = 1e4  # impulse per velocity times velocity per impulse, as the contact model has it
RUNAWAY = 1e5  # [m/s or rad/s]


def judge(scene: Scene, record: Record) -> Counter:
    """How many steps of the scene show each fault.

    A scene is judged up to where its joint speeds pass RUNAWAY: there the free motion of fast spins has diverged.
    """
    faults: Counter = Counter(steps=len(record.q))
    fast = ~np.all(np.abs(record.free) < RUNAWAY, axis=1)
    end = int(np.argmax(fast)) if np.any(fast) else len(fast)
    faults["ran away"] = int(end < len(fast))
    converged = record.outcome.converged.astype(bool)
    finite = _finite(record)
    faults["silent NaN"] = int(np.sum(~finite & converged))
    faults["NaN"] = int(np.sum(~finite[:end]))
    keep = finite & (np.arange(len(finite)) < end)
    record, converged = jax.tree.map(lambda x: x[keep], record), converged[keep]
    faults["not converged"] = int(np.sum(~converged))
    faults["contradictory"] = int(np.sum(~converged & (record.outcome.slack > GIVES_WAY)))
    faults["in contact"] = int(np.sum(np.any(record.outcome.impulse[..., 0] > 0, axis=1)))
    if not len(record.q):
        return faults
    with np.errstate(all="ignore"):
        found = Step(scene, record)
        gained, allowed = gain(found), allowed_gain(found)
        faults["momentum"] = int(np.sum(found.momentum_error() > 1))
        faults["law"] = int(np.sum(converged & ~(found.law_error() <= found.tolerance())))
        faults["energy"] = int(np.sum(converged & ~(gained <= allowed)))
        faults["sinking"] = int(np.sum(converged & found.sinks()))
        faults["unsolved gains"] = int(np.sum(~converged & ~(gained <= allowed_unsolved(found))))
    return faults


FAULTS = ("silent NaN", "NaN", "momentum", "law", "energy", "sinking", "unsolved gains")


def judge_steps(scene: Scene, record: Record) -> list[str]:
    """What was found in each step, as text."""
    with np.errstate(all="ignore"):
        found, outcome = Step(scene, record), record.outcome
        columns = {
            "converged": outcome.converged,
            "iterations": outcome.iterations,
            "law": found.law_error(),
            "tolerance": found.tolerance(),
            "momentum": found.momentum_error(),
            "gain": gain(found),
            "allowed": allowed_gain(found),
            "least gap": np.min(outcome.contacts.gap, axis=1, initial=np.inf),
            "speed before": np.max(np.abs(record.before), axis=1),
            "free": np.max(np.abs(record.free), axis=1),
            "after": np.max(np.abs(record.after), axis=1),
        }
    rows = zip(*columns.values(), strict=True)
    return [", ".join(f"{name} {x:.3g}" for name, x in zip(columns, row, strict=True)) for row in rows]


def _finite(record: Record) -> np.ndarray:
    outcome = record.outcome
    refused = np.isposinf(outcome.residual) & ~outcome.converged  # substeps that were too long say so by this residual
    residual = np.where(refused, 0.0, outcome.residual)
    arrays = (record.q, record.after, outcome.impulse, outcome.velocity, residual, outcome.contacts.gap)
    return np.all([np.all(np.isfinite(x.reshape(len(x), -1)), axis=1) for x in arrays], axis=0)


class Step:
    """Quantities of all steps of a scene."""

    def __init__(self, scene: Scene, record: Record):
        self.scene, self.record, outcome = scene, record, record.outcome
        self.r, self.u = outcome.impulse, outcome.velocity
        steps, contacts, axes = self.r.shape
        self.gap, self.mu = outcome.contacts.gap, outcome.contacts.friction
        J = record.J
        inverse = np.linalg.inv(record.M)
        self.A = np.einsum("sia,sab,sjb->sij", J, inverse, J)
        self.inverse = inverse
        self.parts = _parts(scene.contact, outcome.contacts)
        self.own = slice(None)
        self.contact: Any = self.parts[0][0] if len(self.parts) == 1 else scene.contact
        self.R = np.zeros_like(record.inverse_mass)
        for model, own in self.parts:
            self.R[:, own] = 0.0 if isinstance(model, Compliant) else model.mixing * record.inverse_mass[:, own]
        diagonal = np.einsum("sii->si", self.A).reshape(steps, contacts, axes) + self.R[..., None]
        self.d = np.mean(diagonal, axis=2)
        free, before = (np.einsum("sia,sa->si", J, v).reshape(self.r.shape) for v in (record.free, record.before))
        self.u_free, self.u_before = free, before
        self.change = record.after - record.free
        self.lost = 0.5 * np.einsum("sa,sab,sb->s", self.change, record.M, self.change)
        pushed = np.einsum("sia,si->sa", J, self.r.reshape(steps, -1))
        self.joint_momentum = np.einsum("sab,sb->sa", record.M, self.change) - pushed  # of limits, equalities, friction
        self.speed_scale = self._speed_scale()
        self.aim, self.rebound, self.tied_aims = self._aims()

    def _speed_scale(self) -> np.ndarray:
        """The largest velocity that takes part in a step [m/s]: of points, and what each impulse does alone."""
        alone = np.abs(self.A) @ np.abs(self.r.reshape(len(self.r), -1))[..., None]
        parts = (self.u, self.u_free, alone)
        return np.max([np.max(np.abs(x.reshape(len(x), -1)), axis=1, initial=1e-3) for x in parts], axis=0)

    def tolerance(self) -> np.ndarray:
        """Of the laws' errors [m/s]."""
        return LAW + ROUNDING * self.speed_scale

    def solver_tolerance(self) -> np.ndarray:
        """Up to which a residual explains energy [m/s]: as far as the contact model says that it solves."""
        return max(model.tolerance for model, _ in self.parts) + ROUNDING * self.speed_scale

    def momentum_error(self) -> np.ndarray:
        """Momentum of the joints that no impulse explains, in units of what rounding explains."""
        M, J, r, outcome = self.record.M, self.record.J, self.r.reshape(len(self.r), -1), self.record.outcome
        tied = self.record.J_tie, outcome.equality
        size = np.einsum("sab,sb->sa", np.abs(M), np.abs(self.change))
        size += np.abs(outcome.limit) + np.abs(outcome.friction)
        size += sum(np.einsum("sia,si->sa", np.abs(rows), np.abs(pushes)) for rows, pushes in ((J, r), tied))
        inertia = np.einsum("saa->sa", M)
        known = outcome.limit + outcome.friction + np.einsum("sia,si->sa", *tied)
        off = np.abs(self.joint_momentum - known) / (ROUNDING * size + 1e-8 * inertia)
        told = np.abs(np.einsum("sia,sa->si", J, self.record.after) - self.u.reshape(len(r), -1))
        told = told / (1e-9 + ROUNDING * self.speed_scale)[:, None]
        return np.max(np.concatenate([off, told], axis=1), axis=1, initial=0.0)

    def _aims(self) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """The law's aim, restitution's part of it, and other aims where rounding decides whether there is a bounce."""
        if len(self.parts) > 1:
            each = [part._aims() for part in map(self.part, self.parts)]
            assert not any(others for _, _, others in each), "ties of two laws are not told apart"
            aim, rebound = (np.concatenate([part[k] for part in each], axis=1) for k in range(2))
            return aim, rebound, []
        contact, gap, dt = self.contact, self.gap, self.scene.dt
        zero = np.zeros_like(gap)
        if not isinstance(contact, Impulse):
            return zero, zero, []
        share = dt * contact.beta**2 / (dt * contact.beta**2 + 2 * contact.alpha)
        apart = -(share * gap + (1 - share) * beyond_touching(gap)) / dt
        apart = np.minimum(apart, contact.recovery_speed)
        e = contact.restitution
        if e == 0:
            return apart, zero, []
        u, before = self.u_free[..., 0], self.u_before[..., 0]
        a = (u - before) / dt
        hit = (gap + dt * u < 0) & (u < 0)
        coming = dt * a - e * u
        kept = np.where(~hit & (gap > 0) & (coming > 0), -gap / dt, apart)
        left = dt - np.clip(gap / np.where(hit, -u, 1.0), 0.0, dt)
        rebound = -e * (u - left * a) + left * a if contact.time_of_impact else -e * before
        least = TIE * np.max(np.abs([u, before]), axis=(0, 2), initial=1.0)[:, None]
        tied = (np.abs(coming) < least) | (np.abs(gap + dt * u) < dt * least) | (np.abs(u) < least)
        tied |= np.abs(rebound) < least
        others = [np.where(tied, other, np.nan) for other in (apart, -gap / dt, rebound)]
        if not contact.time_of_impact:
            aim = np.maximum(kept, np.where(hit, rebound, -np.inf))
            return aim, aim - kept, others
        bounce = hit & (rebound > 0)
        part = np.where(bounce, rebound - np.clip(kept, 0.0, np.maximum(rebound, 0.0)), 0.0)
        return np.where(bounce, rebound, kept), part, others

    def part(self, part: tuple[Any, slice]) -> Step:
        """The contacts of one rule only."""
        found, own = copy.copy(self), part[1]
        found.contact, found.parts, found.own = part[0], [part], own
        for name in ("r", "u", "gap", "mu", "R", "d", "u_free", "u_before", "aim", "rebound"):
            if hasattr(self, name):
                setattr(found, name, getattr(self, name)[:, own])
        return found

    def slack_velocity(self, aim: np.ndarray) -> np.ndarray:
        s = self.u + self.R[..., None] * self.r
        return np.concatenate([s[..., :1] - aim[..., None], s[..., 1:]], axis=2)

    def law_error(self) -> np.ndarray:
        """The natural map of the law [m/s], the largest of all contacts; of aims that tie, the one that fits best."""
        aims = [self.aim, *(np.where(np.isnan(other), self.aim, other) for other in self.tied_aims)]
        errors = [np.max(np.abs(self.law_residual(aim)), axis=2, initial=0.0) for aim in aims]
        return np.max(np.min(errors, axis=0), axis=1, initial=0.0)

    def law_residual(self, aim: np.ndarray) -> np.ndarray:
        """The natural map of each contact's law; the first columns are those of its axes [m/s]."""
        if len(self.parts) > 1:
            each = [np.abs(self.part(part).law_residual(aim[:, part[1]])) for part in self.parts]
            return np.concatenate([np.max(error, axis=2, keepdims=True, initial=0.0) for error in each], axis=1)
        contact = self.contact
        if isinstance(contact, Compliant):
            return self._springy_error() if contact.substeps is None else np.zeros_like(self.r)
        slack = self.slack_velocity(aim)
        if contact.smoothing is not None:
            return np.zeros_like(self.r) if isinstance(contact, InteriorPoint) else self._relaxed_error(slack)
        if contact.restitution_law == "passive":
            return self._between_error(aim)
        if isinstance(contact, InteriorPoint):
            return self._projected_error(slack, on_diamond)
        return self._projected_error(slack, on_square) if contact.pyramid else self._cone_error(slack)

    def _cone_error(self, s: np.ndarray) -> np.ndarray:
        bent = np.concatenate([s[..., :1] + (self.mu * length(s[..., 1:]))[..., None], s[..., 1:]], axis=2)
        d = self.d[..., None]
        x = d * self.r - bent
        off = d * self.r - on_cone(x, self.mu)
        return np.concatenate([off, np.minimum(d * self.r, s)[..., :1]], axis=2)

    def _projected_error(self, s: np.ndarray, project) -> np.ndarray:
        x = self.d[..., None] * self.r - s
        push = np.maximum(x[..., 0], 0.0)
        drag = project(x[..., 1:], self.mu * push)
        return self.d[..., None] * self.r - np.concatenate([push[..., None], drag], axis=2)

    def _between_error(self, aim: np.ndarray) -> np.ndarray:
        """Of the passive law: impulses in the cone, velocities not below what keeps apart."""
        sinking = np.minimum(self.slack_velocity(aim - self.rebound)[..., 0], 0.0)
        over = np.maximum(length(self.r[..., 1:]) - self.mu * self.r[..., 0], 0.0) * self.d / (1 + self.mu)
        return np.stack([sinking, self.d * np.minimum(self.r[..., 0], 0.0), over], axis=2)

    def _relaxed_error(self, s: np.ndarray) -> np.ndarray:
        """y o w = kappa^2 on the cone, in units of the normal and of the tangents: y - soft projection of y - w."""
        kappa, d = 0.5 * self.contact.smoothing, self.record.inverse_mass[..., None]
        mu = np.maximum(self.mu, 1e-6)[..., None]
        y = d * np.concatenate([mu * self.r[..., :1], self.r[..., 1:]], axis=2)
        slip = np.sqrt(length(s[..., 1:]) ** 2 + kappa**2) - kappa
        w = np.concatenate([s[..., :1] / mu + slip[..., None], s[..., 1:]], axis=2)
        normal, tangent = y / mu - soft_cone(y / mu - mu * w, kappa), y - soft_cone(y - w, kappa)
        tangent = np.where(mu < 0.1, normal, tangent)
        return np.concatenate([normal[..., :1], tangent[..., 1:]], axis=2)

    def _springy_error(self) -> np.ndarray:
        return self.d[..., None] * (self.r - self.spring_impulses()) / (1 + self._spring_stiffness())

    def spring_units(self) -> np.ndarray:
        """By how much the residual of a stiff spring counts as one of velocities."""
        return (1 + self._spring_stiffness()) / STIFFEST

    def spring_impulses(self) -> np.ndarray:
        """Hunt and Crossley's, and Brown and McPhee's friction at the normal impulse that there is."""
        contact = self.contact
        depth, factor = self._end_of_step()
        push = self.scene.dt * contact.stiffness * depth**contact.exponent * factor
        drag = -(self.r[..., 0] * self._per_slip())[..., None] * self.u[..., 1:]
        return np.concatenate([push[..., None], drag], axis=2)

    def _end_of_step(self) -> tuple[np.ndarray, np.ndarray]:
        """Depths [m] and the factors of dissipation."""
        u_n = self.u[..., 0]
        return np.maximum(-(self.gap + self.scene.dt * u_n), 0.0), np.maximum(1 - self.contact.dissipation * u_n, 0.0)

    def _per_slip(self) -> np.ndarray:
        speed = length(self.u[..., 1:])
        return self.mu * np.tanh(4 * speed / self.contact.transition) / np.maximum(speed, 1e-300)

    def _spring_stiffness(self) -> np.ndarray:
        """Impulse per velocity, times velocity per impulse."""
        contact, dt = self.contact, self.scene.dt
        depth, factor = self._end_of_step()
        elastic = dt * contact.exponent * depth ** (contact.exponent - 1) * factor
        stiff = dt * contact.stiffness * (elastic + contact.dissipation * depth**contact.exponent) * (depth > 0)
        along = np.broadcast_to((self.r[..., 0] * self._per_slip())[..., None], self.u[..., 1:].shape)
        return self.d[..., None] * np.maximum(np.concatenate([stiff[..., None], along], axis=2), 0.0)

    def sinks(self) -> np.ndarray:
        """Whether a contact that overlaps goes deeper faster than regularisation lets it (rigid contact only)."""
        s = self.u[..., 0] + self.R * self.r[..., 0]
        deeper = (self.gap < 0) & (s < -self.tolerance()[:, None])
        for model, own in self.parts:
            deeper[:, own] &= not isinstance(model, Compliant)
        return np.any(deeper, axis=1)


def _parts(contact: Any, contacts: Any) -> list[tuple[Any, slice]]:
    """Contact models and the contacts that they hold for."""
    if not isinstance(contact, PerPair):
        return [(contact, slice(None))]
    return [(contact[name], contacts.rows_of(name)) for name, _ in contacts.rules]
