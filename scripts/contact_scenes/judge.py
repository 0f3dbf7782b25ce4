"""The judgement of a scene's steps, in NumPy: laws of contact, momentum, energy and penetration.

Let u be the velocities of the contacts after a step, r the impulses, A = J M^-1 J^T, R the regularisation and `aim` the
velocity that the law counts from. A converged step obeys the law between r and s = u + R r - aim: its natural map
(De Saxce's on the cone) is below LAW, in m/s.

Energy: impulses change kinetic energy by W = T(v+) - T(v_free) = r.u - (v+ - v_free).M (v+ - v_free) / 2. The law
gives r_n (u_n + R r_n) = r_n aim and r_t.(u_t + R r_t) <= 0, so W <= sum r_n max(aim, 0) - |v+ - v_free|^2_M / 2.
With a passive or plastic law aim is at most the recovery speed, and for any impulses W <= a.(A + 2 R)^-1 a / 2, with a
the recovery speeds of overlaps: the kinetic energy of the recovery motion itself.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import jax
import numpy as np

from contact_scenes.audit import Record
from contact_scenes.draw import Scene
from knuckle.contact import Compliant, Impulse, InteriorPoint, PerPair
from knuckle.contact.outcome import GIVES_WAY

LAW = 1e-7  # [m/s]; ten times the solver's tolerance
ROUNDING = 1e-10  # of the largest velocity that takes part: inverse masses that differ by 1e6, in float64
TOUCHING, CORNER = 2e-6, 4e-7  # [m], as the contact model documents
TIE = 1e-12  # of the velocities that meet; nearer than this to a choice between laws, rounding decides
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
        found = _Step(scene, record)
        gain, allowed = found.gain(), found.allowed_gain()
        faults["momentum"] = int(np.sum(found.momentum_error() > 1))
        faults["law"] = int(np.sum(converged & ~(found.law_error() <= found.tolerance())))
        faults["energy"] = int(np.sum(converged & ~(gain <= allowed)))
        faults["sinking"] = int(np.sum(converged & found.sinks()))
        faults["unsolved gains"] = int(np.sum(~converged & ~(gain <= allowed + found.kinetic())))
    return faults


FAULTS = ("silent NaN", "NaN", "momentum", "law", "energy", "sinking", "unsolved gains")


def judge_steps(scene: Scene, record: Record) -> list[str]:
    """What was found in each step, as text."""
    with np.errstate(all="ignore"):
        found, outcome = _Step(scene, record), record.outcome
        columns = {
            "converged": outcome.converged,
            "iterations": outcome.iterations,
            "law": found.law_error(),
            "tolerance": found.tolerance(),
            "momentum": found.momentum_error(),
            "gain": found.gain(),
            "allowed": found.allowed_gain(),
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


class _Step:
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
        self.aim, self.rebound, self.tied_aims = self._aims()

    def speed_scale(self) -> np.ndarray:
        """The largest velocity that takes part in a step [m/s]: of points, and what each impulse does alone."""
        alone = np.abs(self.A) @ np.abs(self.r.reshape(len(self.r), -1))[..., None]
        parts = (self.u, self.u_free, alone)
        return np.max([np.max(np.abs(x.reshape(len(x), -1)), axis=1, initial=1e-3) for x in parts], axis=0)

    def tolerance(self) -> np.ndarray:
        return LAW + ROUNDING * self.speed_scale()

    def momentum_error(self) -> np.ndarray:
        """Momentum of the free joints that no impulse explains, in units of what rounding explains."""
        M, J, r = self.record.M, self.record.J, self.r.reshape(len(self.r), -1)
        size = np.einsum("sab,sb->sa", np.abs(M), np.abs(self.change)) + np.einsum("sia,si->sa", np.abs(J), np.abs(r))
        inertia = np.einsum("saa->sa", M)
        free = self.scene.free_dofs
        off = np.abs(self.joint_momentum[:, free]) / (ROUNDING * size + 1e-8 * inertia)[:, free]
        told = np.abs(np.einsum("sia,sa->si", J, self.record.after) - self.u.reshape(len(r), -1))
        told = told / (1e-9 + ROUNDING * self.speed_scale())[:, None]
        return np.max(np.concatenate([off, told], axis=1), axis=1, initial=0.0)

    def _aims(self) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """The law's aim, restitution's part of it, and other aims where rounding decides whether there is a bounce."""
        if len(self.parts) > 1:
            each = [part._aims() for part in map(self._part, self.parts)]
            assert not any(others for _, _, others in each), "ties of two laws are not told apart"
            aim, rebound = (np.concatenate([part[k] for part in each], axis=1) for k in range(2))
            return aim, rebound, []
        contact, gap, dt = self.contact, self.gap, self.scene.dt
        zero = np.zeros_like(gap)
        if not isinstance(contact, Impulse):
            return zero, zero, []
        share = dt * contact.beta**2 / (dt * contact.beta**2 + 2 * contact.alpha)
        apart = -(share * gap + (1 - share) * _beyond(gap)) / dt
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

    def _part(self, part: tuple[Any, slice]) -> _Step:
        """The contacts of one rule only."""
        found, own = copy.copy(self), part[1]
        found.contact, found.parts = part[0], [part]
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
        errors = [np.max(np.abs(self._error_of(aim)), axis=2, initial=0.0) for aim in aims]
        return np.max(np.min(errors, axis=0), axis=1, initial=0.0)

    def _error_of(self, aim: np.ndarray) -> np.ndarray:
        if len(self.parts) > 1:
            each = [np.abs(self._part(part)._error_of(aim[:, part[1]])) for part in self.parts]
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
            return self._projected_error(slack, _on_diamond)
        return self._projected_error(slack, _on_square) if contact.pyramid else self._cone_error(slack)

    def _cone_error(self, s: np.ndarray) -> np.ndarray:
        bent = np.concatenate([s[..., :1] + (self.mu * _length(s[..., 1:]))[..., None], s[..., 1:]], axis=2)
        d = self.d[..., None]
        x = d * self.r - bent
        off = d * self.r - _on_cone(x, self.mu)
        return np.concatenate([off, np.minimum(d * self.r, s)[..., :1]], axis=2)

    def _projected_error(self, s: np.ndarray, project) -> np.ndarray:
        x = self.d[..., None] * self.r - s
        push = np.maximum(x[..., 0], 0.0)
        drag = project(x[..., 1:], self.mu * push)
        return self.d[..., None] * self.r - np.concatenate([push[..., None], drag], axis=2)

    def _between_error(self, aim: np.ndarray) -> np.ndarray:
        """Of the passive law: impulses in the cone, velocities not below what keeps apart."""
        sinking = np.minimum(self.slack_velocity(aim - self.rebound)[..., 0], 0.0)
        over = np.maximum(_length(self.r[..., 1:]) - self.mu * self.r[..., 0], 0.0) * self.d / (1 + self.mu)
        return np.stack([sinking, self.d * np.minimum(self.r[..., 0], 0.0), over], axis=2)

    def _relaxed_error(self, s: np.ndarray) -> np.ndarray:
        """y o w = kappa^2 on the cone, in units of the normal and of the tangents: y - soft projection of y - w."""
        kappa, d = 0.5 * self.contact.smoothing, self.record.inverse_mass[..., None]
        mu = np.maximum(self.mu, 1e-6)[..., None]
        y = d * np.concatenate([mu * self.r[..., :1], self.r[..., 1:]], axis=2)
        slip = np.sqrt(_length(s[..., 1:]) ** 2 + kappa**2) - kappa
        w = np.concatenate([s[..., :1] / mu + slip[..., None], s[..., 1:]], axis=2)
        normal, tangent = y / mu - _soft_cone(y / mu - mu * w, kappa), y - _soft_cone(y - w, kappa)
        tangent = np.where(mu < 0.1, normal, tangent)
        return np.concatenate([normal[..., :1], tangent[..., 1:]], axis=2)

    def _springy_error(self) -> np.ndarray:
        contact, dt = self.contact, self.scene.dt
        u_n, u_t = self.u[..., 0], self.u[..., 1:]
        depth = np.maximum(-(self.gap + dt * u_n), 0.0)
        push = dt * contact.stiffness * depth**contact.exponent * np.maximum(1 - contact.dissipation * u_n, 0.0)
        speed = _length(u_t)
        per_slip = self.mu * np.tanh(4 * speed / contact.transition) / np.maximum(speed, 1e-300)
        drag = -(self.r[..., 0] * per_slip)[..., None] * u_t
        off = self.d[..., None] * (self.r - np.concatenate([push[..., None], drag], axis=2))
        elastic = (
            dt * contact.exponent * depth ** (contact.exponent - 1) * np.maximum(1 - contact.dissipation * u_n, 0.0)
        )
        stiff = dt * contact.stiffness * (elastic + contact.dissipation * depth**contact.exponent) * (depth > 0)
        stiff = np.concatenate(
            [stiff[..., None], np.broadcast_to((self.r[..., 0] * per_slip)[..., None], u_t.shape)], 2
        )
        return off / (1 + self.d[..., None] * np.maximum(stiff, 0.0))

    def gain(self) -> np.ndarray:
        """W, the kinetic energy that all impulses of a step add [J]."""
        M, after, free = self.record.M, self.record.after, self.record.free
        return 0.5 * np.einsum("sa,sab,sb->s", after + free, M, after - free)

    def kinetic(self) -> np.ndarray:
        """T(v_free) [J]."""
        return 0.5 * np.einsum("sa,sab,sb->s", self.record.free, self.record.M, self.record.free)

    def allowed_gain(self) -> np.ndarray:
        """The most that W may be [J]; infinite for Newton's restitution, which can gain."""
        contact, record = self.contact, self.record
        work = self.joint_momentum * record.after
        joint = np.maximum(np.sum(work, axis=1), 0.0)
        kinetic = self.kinetic()
        terms = kinetic + np.sum(np.abs(self.r * self.u), axis=(1, 2)) + np.sum(np.abs(work), axis=1) + self.lost
        rounding = 1e-9 * terms + 1e-7 * np.sum(np.abs(self.r), axis=(1, 2))
        most = joint + rounding
        if len(self.parts) > 1:  # plastic or springy
            return most + sum(self._part(part)._gain_of_contacts() for part in self.parts) - self.lost
        if isinstance(contact, Compliant):
            stored = contact.stiffness * np.maximum(-self.gap, 0.0) ** (contact.exponent + 1) / (contact.exponent + 1)
            if contact.substeps is not None:  # errors of the integration in time
                most = most + 0.02 * (kinetic + np.sum(stored, axis=1))
            return most + np.sum(stored, axis=1)
        if contact.smoothing is not None:
            relaxed = (1 if not isinstance(contact, InteriorPoint) else 5) * (0.5 * contact.smoothing) ** 2
            most = most + np.sum(relaxed / np.maximum(record.inverse_mass, 1e-300), axis=1)
        if contact.restitution_law == "passive":
            a = np.zeros_like(self.r)
            a[..., 0] = np.maximum(self.aim - self.rebound, 0.0)
            a = a.reshape(len(a), -1)
            soft = self.A + 2 * np.einsum("si,ij->sij", np.repeat(self.R, self.r.shape[2], axis=1), np.eye(a.shape[1]))
            return most + 0.5 * np.einsum("si,si->s", a, _solve(soft, a))
        if contact.restitution > 0:
            return np.full(len(most), np.inf)
        return most + np.sum(self.r[..., 0] * np.maximum(self.aim, 0.0), axis=1) - self.lost

    def _gain_of_contacts(self) -> np.ndarray:
        """The most that r.u can be: what springs held, or the recovery of overlap [J]."""
        if isinstance(self.contact, Compliant):
            p = self.contact.exponent + 1
            return np.sum(self.contact.stiffness * np.maximum(-self.gap, 0.0) ** p / p, axis=1)
        return np.sum(self.r[..., 0] * np.maximum(self.aim, 0.0), axis=1)

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


def _solve(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Solutions of positive definite systems, scaled by their diagonals: masses differ by 1e6."""
    scale = 1 / np.sqrt(np.einsum("sii->si", A))
    inner = scale[:, :, None] * A * scale[:, None, :]
    return scale * np.linalg.solve(inner, (scale * b)[..., None])[..., 0]


def _beyond(gap: np.ndarray) -> np.ndarray:
    far, start = (x + np.sqrt(x * x + CORNER**2) for x in (gap - TOUCHING, -TOUCHING + 0 * gap))
    return 0.5 * (far - start)


def _length(x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.sum(x * x, axis=-1))


def _on_cone(x: np.ndarray, mu: np.ndarray) -> np.ndarray:
    """The nearest point with |x_t| <= mu x_n."""
    n, t = x[..., 0], _length(x[..., 1:])
    inside, polar = (n >= 0) & (t <= mu * n), mu * t <= -n
    push = np.where(inside, n, np.where(polar, 0.0, (n + mu * t) / (1 + mu * mu)))
    shrink = np.where(inside, 1.0, mu * push / np.maximum(t, 1e-300))
    return np.concatenate([push[..., None], shrink[..., None] * x[..., 1:]], axis=-1)


def _soft_cone(x: np.ndarray, kappa: float) -> np.ndarray:
    """The point of |x_t| < x_n whose eigenvalues are (a + sqrt(a^2 + 4 kappa^2)) / 2 for x's eigenvalues a."""
    n, t = x[..., 0], _length(x[..., 1:])
    roots = ((a, np.sqrt(a * a + 4 * kappa**2)) for a in (n + t, n - t))
    more, less = (np.where(a > 0, 0.5 * (a + root), 2 * kappa**2 / (root + np.abs(a))) for a, root in roots)
    at_axis = 0.5 * (1 + n / np.sqrt(n * n + 4 * kappa**2))
    shrink = np.where(t > 1e-6 * kappa, 0.5 * (more - less) / np.maximum(t, 1e-300), at_axis)
    return np.concatenate([0.5 * (more + less)[..., None], shrink[..., None] * x[..., 1:]], axis=-1)


def _on_square(x: np.ndarray, radius: np.ndarray) -> np.ndarray:
    return np.clip(x, -radius[..., None], radius[..., None])


def _on_diamond(x: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """The nearest point with |x| + |y| <= radius (planar contacts: |x| <= radius)."""
    if x.shape[-1] == 1:
        return _on_square(x, radius)
    size = np.abs(x)
    excess = np.maximum((np.sum(size, axis=-1) - radius) / 2, 0.0)[..., None]
    cut = np.maximum(size - excess, 0.0)
    alone = size > size[..., ::-1]
    cut = np.where((excess > np.min(size, axis=-1, keepdims=True)), np.where(alone, radius[..., None], 0.0), cut)
    return np.sign(x) * cut
