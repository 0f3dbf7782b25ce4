"""Energy that impulses add in a step, and the most of it that the laws explain.

Let u be the velocities of contacts after the step, r their impulses, p those of limits, dry friction and equalities on
the joints, and v_free the joint speeds that the step would have without any. Then, with no approximation,

    W = T(v+) - T(v_free) = r.u + p.v+ - |v+ - v_free|^2_M / 2.

Each law bounds its own part of r.u + p.v+ as far as it holds. Let `aim` be the velocity that a law counts from, R the
regularisation, s = u + R r - aim, d the velocity per impulse, a = max(aim, 0) the speed of recovery, and e the residual
of the law [m/s].

Normal of rigid contact, e = min(d r_n, s_n). Either |s_n| <= e, and r_n (u_n + R r_n) <= r_n a + e |r_n|. Or |r_n| <=
e / d, and r_n u_n <= r_n a + e |u_n - a| / d. So r_n u_n <= r_n a - R r_n^2 + e (|r_n| + |u_n - a| / d), as R <= d.

Friction, d r_t = P(d r_t - s_t) + e with P a projection on a convex set that holds zero. Then P.(s_t - e) <= 0, so
r_t.u_t + R r_t^2 = r_t.s_t <= e (|r_t| + |s_t| / d + e / d). On the cone (the tangents of De Saxce's map) and in joints
P shortens: P.(s_t - e) = -|P| |s_t - e|, so also r_t.s_t <= -|r_t| |s_t| + 2 e (|r_t| + |s_t| / d + e / d).

Relaxed contact, y = soft projection of (y - w) + e: y.w = kappa^2 + e.(y + w) - e.e, and y.w = d (r.s + mu r_n slip).

Limits, dry friction and equalities are bounded in the same way, with the speed at which they undo errors as aim.

So an impulse of e / d that its law forbids works at the full speed of its contact, e |u| / d, and not only at e: where
nothing pushes, friction of the size of the solver's tolerance may drag. Only the tolerance of the solver explains such
energy: e counts up to it. Whatever is left, beyond rounding of the sum, is energy that contact made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from contact_scenes.maps import beyond_touching, length, soft_cone, solve_scaled
from knuckle.contact import Compliant, InteriorPoint

if TYPE_CHECKING:
    from contact_scenes.judge import Step

ROUNDING = 1e-9  # of the energies that are compared: inverse masses that differ by 1e6, in float64
CANCELLED = 16 * np.finfo(float).eps  # of the terms r a and R r^2 of a bound, which cancel where bodies are jammed
HELD = 1e-8  # regularisation of joint rows over the inverse of what they move, as the contact model has it
SUBSTEPS = 0.02  # of the energies that meet: the error in time of explicit substeps


def gain(step: Step) -> np.ndarray:
    """W, the kinetic energy that all impulses of a step add [J]."""
    M, after, free = step.record.M, step.record.after, step.record.free
    return 0.5 * np.einsum("sa,sab,sb->s", after + free, M, after - free)


def kinetic(step: Step) -> np.ndarray:
    """T(v_free) [J]."""
    return 0.5 * np.einsum("sa,sab,sb->s", step.record.free, step.record.M, step.record.free)


def allowed_gain(step: Step) -> np.ndarray:
    """The most that W may be [J]; infinite for Newton's restitution, which can gain."""
    models = [model for model, _ in step.parts]
    if any(not isinstance(m, Compliant) and m.restitution_law == "newton" and m.restitution > 0 for m in models):
        return np.full(len(step.r), np.inf)
    rounding, joint = _rounding(step), _joint_rows(step)
    if len(models) == 1 and not isinstance(models[0], Compliant) and models[0].restitution_law == "passive":
        return rounding + np.maximum(joint, 0.0) + _passive(step)
    return rounding + joint + sum(_contacts(step.part(part)) for part in step.parts) - step.lost


def allowed_unsolved(step: Step) -> np.ndarray:
    """The most that impulses of a search that failed may add [J]: they are cut until r.(u + R r - aim) <= 0 in all.

    What single laws add is not bounded then. A step must not double the energy beyond that.
    """
    if np.all(np.isinf(most := allowed_gain(step))):
        return most
    contacts = sum(_recovery(step.part(part)) for part in step.parts)
    back, _ = _tie_speeds(step)
    ties = np.sum(length(step.record.outcome.equality.reshape(back.shape)) * length(back), axis=1)
    limits = np.sum(np.abs(step.record.outcome.limit * np.clip(0.0, *_limit_speeds(step))), axis=1)
    return kinetic(step) + _rounding(step) + contacts + ties + limits


def _recovery(step: Step) -> np.ndarray:
    """What recovery of overlap, springs and relaxation explain of the contacts of one model [J]."""
    if isinstance(step.contact, Compliant):
        return _springs(step)
    recovered = np.sum(np.abs(step.r[..., 0]) * np.maximum(step.aim, 0.0), axis=1)
    return recovered if step.contact.smoothing is None else recovered + _relaxed_path(step)


def _rounding(step: Step) -> np.ndarray:
    worked = (np.abs(step.r * step.u), np.abs(step.joint_momentum * step.record.after)[..., None])
    energies = kinetic(step) + sum(np.sum(x, axis=(1, 2)) for x in worked) + step.lost
    aimed, given = np.abs(step.r[..., 0] * step.aim), step.R * np.sum(step.r**2, axis=2)
    return ROUNDING * energies + CANCELLED * np.sum(aimed + given, axis=1)


def _contacts(step: Step) -> np.ndarray:
    """The most that r.u of the contacts of one model can be [J]."""
    if isinstance(step.contact, Compliant):
        return _springs(step)
    if step.contact.smoothing is None:
        return _rigid(step, step.law_residual(step.aim)[..., 1:3])
    recovered = np.sum(step.r[..., 0] * np.maximum(step.aim, 0.0), axis=1)
    return recovered + (_relaxed_path(step) if isinstance(step.contact, InteriorPoint) else _relaxed(step))


def _rigid(step: Step, tangents: np.ndarray) -> np.ndarray:
    """Recovery of overlap, and what the residual explains."""
    a, d, most = np.maximum(step.aim, 0.0), step.d, step.solver_tolerance()[:, None]
    s = step.slack_velocity(step.aim)
    r_n, r_t, s_t = step.r[..., 0], length(step.r[..., 1:]), length(s[..., 1:])
    e_n = np.minimum(np.abs(np.minimum(d * r_n, s[..., 0])), most)
    e_t = np.minimum(length(tangents), 2**0.5 * most)
    normal = r_n * a + e_n * (np.abs(r_n) + np.abs(step.u[..., 0] - a) / d)
    shortens = not (step.contact.pyramid or isinstance(step.contact, InteriorPoint))
    friction = friction_work(r_t, s_t, e_t, d, shortens=shortens)
    return np.sum(normal + friction - step.R * np.sum(step.r**2, axis=2), axis=1)


def friction_work(r: np.ndarray, s: np.ndarray, e: np.ndarray, d: np.ndarray, *, shortens: bool) -> np.ndarray:
    """The most that friction of size r adds at a slip of size s, with a residual of e."""
    opposed = e * (r + (s + e) / d)
    return np.minimum(opposed, 2 * opposed - r * s) if shortens else opposed


def _relaxed(step: Step) -> np.ndarray:
    """kappa^2 / d of each contact, and what the residual explains.

    The law of (c y, w / c) is the same for any c > 0. The contact model judges normals by c = 1 / mu and tangents by
    c = 1, or 1 / mu if friction is low. Each c gives a bound, in which the residuals that it is judged by are limited.
    """
    mu, d = np.maximum(step.mu, 1e-6), np.maximum(step.record.inverse_mass[:, step.own], 1e-300)
    slips, axis = (mu < 0.1)[..., None], np.arange(step.r.shape[2])
    by_normal = _relaxed_work(step, mu, 1 / mu, unlimited=(axis > 0) & ~slips)
    by_tangent = _relaxed_work(step, mu, np.ones_like(mu), unlimited=(axis == 0) | slips)
    return np.sum(np.minimum(by_normal, by_tangent) / d, axis=1)


def _relaxed_work(step: Step, mu: np.ndarray, c: np.ndarray, unlimited: np.ndarray) -> np.ndarray:
    """The most of y.w of each contact [m^2/s^2], from its residual in the units of c."""
    kappa, s, c, mu = 0.5 * step.contact.smoothing, step.slack_velocity(step.aim), c[..., None], mu[..., None]
    slip = np.sqrt(length(s[..., 1:]) ** 2 + kappa**2) - kappa
    d, most = step.record.inverse_mass[:, step.own, None], step.solver_tolerance()[:, None, None]
    y = c * d * np.concatenate([mu * step.r[..., :1], step.r[..., 1:]], axis=2)
    w = np.concatenate([s[..., :1] / mu + slip[..., None], s[..., 1:]], axis=2) / c
    e = y - soft_cone(y - w, kappa)
    e = np.where(unlimited, e, np.clip(e, -most, most))
    return kappa**2 + np.maximum(np.sum(e * (y + w) - e * e, axis=2), 0.0)


def _relaxed_path(step: Step) -> np.ndarray:
    """Of a point on the central path: each of a contact's five complementarities is kappa^2 / d."""
    kappa, d = 0.5 * step.contact.smoothing, step.record.inverse_mass[:, step.own]
    off = step.solver_tolerance()[:, None, None] * (np.abs(step.r) + np.abs(step.u) / step.d[..., None])
    return np.sum(5 * kappa**2 / np.maximum(d, 1e-300) + np.sum(off, axis=2), axis=1)


def _springs(step: Step) -> np.ndarray:
    """What springs held, and the work of impulses that are not those of their law."""
    contact = step.contact
    stored = np.sum(contact.stiffness * np.maximum(-step.gap, 0.0) ** (p := contact.exponent + 1) / p, axis=1)
    if contact.substeps is not None:
        return (1 + SUBSTEPS) * stored + SUBSTEPS * kinetic(step) + step.lost
    most = step.solver_tolerance()[:, None, None] * np.maximum(step.spring_units(), 1.0) / step.d[..., None]
    off = np.minimum(np.abs(step.r - step.spring_impulses()), most)
    return stored + np.sum(off * np.abs(step.u), axis=(1, 2))


def _passive(step: Step) -> np.ndarray:
    """For any impulses at all, W <= a.(A + 2 R)^-1 a / 2: the kinetic energy of the recovery motion itself.

    A rebound is cut by the work of all rows together: what joint friction takes leaves room for it.
    Impulses lie between two solutions, whose residuals are not known: they count in full.
    """
    a = np.zeros_like(step.r)
    a[..., 0] = np.maximum(step.aim - step.rebound, 0.0)
    fastest = np.maximum(np.abs(step.u), np.abs(step.u_free)) / step.d[..., None]
    off = step.solver_tolerance() * np.sum(np.abs(step.r) + fastest, axis=(1, 2))
    a = a.reshape(len(a), -1)
    soft = step.A + 2 * np.einsum("si,ij->sij", np.repeat(step.R, step.r.shape[2], axis=1), np.eye(a.shape[1]))
    return off + 0.5 * np.einsum("si,si->s", a, solve_scaled(soft, a))


def _joint_rows(step: Step) -> np.ndarray:
    """The most that limits, dry friction and equalities add, by the speeds at which they undo errors [J]."""
    outcome, v, most = step.record.outcome, step.record.after, step.solver_tolerance()[:, None]
    R = HELD / np.einsum("saa->sa", step.record.M)
    d = np.einsum("saa->sa", step.inverse) + R
    least, largest = _limit_speeds(step)
    L, F = outcome.limit, outcome.friction
    nearest = np.clip(0.0, least, largest)
    s = v + R * L
    kept = np.clip(s - d * L, least, largest)
    e = np.minimum(np.abs(s - kept), most)
    work = L * nearest + e * (np.abs(L) + np.abs(kept - nearest) / d)
    bound, s = step.scene.dt * np.maximum(np.asarray(step.scene.model.friction), 0.0), v + R * F
    e = np.minimum(np.abs(d * F - np.clip(d * F - s, -d * bound, d * bound)), most)
    work = work + friction_work(np.abs(F), np.abs(s), e, d, shortens=True)
    return np.sum(work - R * (L**2 + F**2), axis=1) + _ties(step)


def _limit_speeds(step: Step) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest speed that the limits of each degree of freedom allow."""
    model, dt, contact = step.scene.model, step.scene.dt, step.parts[0][0]
    topology, v = model.topology, step.record.after
    least, largest = np.full_like(v, -np.inf), np.full_like(v, np.inf)
    for link in np.flatnonzero(topology.v_stop - topology.v_start == 1):
        dof, at = topology.v_start[link], step.record.q_before[:, topology.q_start[link]]
        room = at - np.asarray(model.lower)[dof], np.asarray(model.upper)[dof] - at
        speeds = [(contact.correction * x + (1 - contact.correction) * beyond_touching(x)) / dt for x in room]
        above, below = (np.where(np.isfinite(x), np.maximum(x, -contact.correction_speed), np.inf) for x in speeds)
        least[:, dof], largest[:, dof] = -above, below
    return least, largest


def _tie_speeds(step: Step) -> tuple[np.ndarray, np.ndarray]:
    """The velocities at which points that are held return, and R of their rows."""
    record, contact = step.record, step.parts[0][0]
    points = (len(record.q), -1, 3) if record.tie_error.size else (len(record.q), 0, 3)
    back = -contact.correction * record.tie_error.reshape(points) / step.scene.dt
    back = back * np.minimum(1.0, contact.correction_speed / np.maximum(length(back), 1e-300))[..., None]
    alone = np.einsum("sia,sa->si", record.J_tie**2, 1 / np.einsum("saa->sa", record.M)).reshape(points)
    return back, HELD * np.mean(alone, axis=2, keepdims=True)


def _ties(step: Step) -> np.ndarray:
    """Of points that are held: u + R r = back + e, so r.u <= r.back - R r^2 + |r| e."""
    back, R = _tie_speeds(step)
    u = np.einsum("sia,sa->si", step.record.J_tie, step.record.after).reshape(back.shape)
    r = step.record.outcome.equality.reshape(back.shape)
    e = np.minimum(length(u + R * r - back), 3**0.5 * step.solver_tolerance()[:, None])
    return np.sum(np.sum(r * (back - R * r), axis=2) + length(r) * e, axis=1)
