"""The central path of the mixed complementarity problem, and Newton steps along it.

Unknowns z >= 0 with slacks w >= 0, all in m/s (impulses times their row's scale): pushes (normals, one-sided rows) with
slack u; shares beta of friction along each direction with slack direction . u_t + gamma; gamma with slack room -
sum(beta), room = mu push or the bound of a dry row. On the path z w = kappa^2. Eliminating all but the impulses
leaves one unsymmetric system of the problem's own size.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.interior_problem import Problem, Split, join, split
from knuckle.contact.interior_pyramid import corners

Vec = Float[Array, " row"]


KEPT = 0.99  # of the way to where the first number would be zero


class Unknown(NamedTuple):
    """Numbers that are at least zero, or their slacks, or their changes."""

    push: Float[Array, " push"]  # contacts, then one-sided rows
    beta: Float[Array, "contact direction"]
    gamma: Float[Array, " contact"]
    dry_beta: Float[Array, "bounded 2"]
    dry_gamma: Float[Array, " bounded"]


class Point(NamedTuple):
    z: Unknown
    w: Unknown
    equal: Float[Array, " equal"]
    drag: Float[Array, "contact 2"]  # sum of beta and directions, up to rounding
    dry: Float[Array, " bounded"]


class Scaled(NamedTuple):
    """The problem with impulses in m/s: u = A r + b."""

    A: Float[Array, "row row"]
    b: Vec
    friction: Float[Array, " contact"]
    bound: Float[Array, " bounded"]
    directions: Float[Array, "contact direction 2"]  # zero where there is no friction
    dry_directions: Float[Array, "bounded 2 1"]  # zero where the bound is
    shape: Problem  # says which rows are which


def scaled(problem: Problem, d: Vec, directions: int) -> Scaled:
    """The problem in d times its impulses.

    Without friction the directions are zero and the room is not, so that the path has an inside to run through.
    """
    bound = split(problem, d).bounded * problem.bound
    rough, dry = problem.friction > 0, bound > 0
    both = np.array([[1.0], [-1.0]])
    return Scaled(
        A=problem.A / d[None, :],
        b=problem.b,
        friction=jnp.where(rough, problem.friction, 1.0),
        bound=jnp.where(dry, bound, 1.0),
        directions=jnp.where(rough[:, None, None], jnp.asarray(corners(directions), d.dtype)[None], 0.0),
        dry_directions=jnp.where(dry[:, None, None], jnp.asarray(both, d.dtype)[None], 0.0),
        shape=problem,
    )


def impulse(at: Point) -> Vec:
    """Impulses, in m/s, of all rows."""
    contacts = at.drag.shape[0]
    contact = jnp.concatenate([at.z.push[:contacts, None], at.drag], axis=1)
    return join(Split(contact, at.z.push[contacts:], at.equal, at.dry))


def slack(law: Scaled, z: Unknown, u: Split, bound) -> Unknown:
    """The slacks that belong to z and the velocities; linear in (z, u, bound)."""
    contacts = law.friction.shape[0]
    return Unknown(
        push=jnp.concatenate([u.contact[:, 0], u.one_sided]),
        beta=spatial.apply(law.directions, u.contact[:, 1:]) + z.gamma[:, None],
        gamma=law.friction * z.push[:contacts] - jnp.sum(z.beta, axis=1),
        dry_beta=spatial.apply(law.dry_directions, u.bounded[:, None]) + z.dry_gamma[:, None],
        dry_gamma=bound - jnp.sum(z.dry_beta, axis=1),
    )


class Drag(NamedTuple):
    """How the friction of each group answers: d r_t = free - C d u_t + pull d room, with K = 1 / (1 + C) for C."""

    directions: Float[Array, "group direction k"]
    K: Float[Array, "group k k"]
    pull: Float[Array, "group k"]
    share: Float[Array, "group direction"]  # beta over its slack
    rest: Float[Array, " group"]  # gamma's slack over gamma
    total: Float[Array, " group"]
    arms: Float[Array, "group direction k"]  # total (direction - pull)


def drag(directions, beta, beta_slack, gamma, gamma_slack) -> Drag:
    """C = sum(share direction direction') - total pull pull', the covariance of the directions about the rest at zero.

    Sums over pairs of directions do not cancel where one direction has nearly all of the share.
    """
    share, rest = beta / beta_slack, gamma_slack / gamma
    total = jnp.sum(share, axis=1) + rest
    first, second = np.triu_indices(directions.shape[1], 1)
    weight = jnp.concatenate([share[:, first] * share[:, second], rest[:, None] * share], axis=1) / total[:, None]
    spread = jnp.concatenate([directions[:, first] - directions[:, second], directions], axis=1)
    C = jnp.sum(weight[:, :, None, None] * spatial.outer(spread, spread), axis=1)
    pull = jnp.sum(share[:, :, None] * directions, axis=1) / total[:, None]
    apart = directions[:, :, None] - directions[:, None]
    arms = rest[:, None, None] * directions + jnp.sum(share[:, None, :, None] * apart, axis=2)
    return Drag(directions, _softened(C, weight, spread), pull, share, rest, total, arms)


def _softened(C, weight, spread):
    """1 / (1 + C) of C = sum(weight spread spread').

    The determinant of C is the squared area between its two columns of sqrt(weight) spread, the second less its part
    along the first: differences of entries of C would lose it where one spread has nearly all of the weight.
    """
    if C.shape[1] == 1:
        return 1 / (1 + C)
    first, second = (jnp.sqrt(weight) * spread[:, :, k] for k in range(2))
    along = C[:, 0, 1] / jnp.where(C[:, 0, 0] > 0, C[:, 0, 0], jnp.ones_like(C[:, 0, 0]))
    area = C[:, 0, 0] * jnp.sum((second - along[:, None] * first) ** 2, axis=1)
    determinant = 1 + C[:, 0, 0] + C[:, 1, 1] + area
    adjoint = jnp.stack([1 + C[:, 1, 1], -C[:, 0, 1], -C[:, 1, 0], 1 + C[:, 0, 0]], axis=1).reshape(-1, 2, 2)
    return adjoint / determinant[:, None, None]


class Local(NamedTuple):
    """What all right-hand sides share at a point: the factors of the system, and each group's answer."""

    factors: tuple[Array, Array]
    tangent: Drag
    dry: Drag


def factor(law: Scaled, at: Point) -> Local:
    """The system of a Newton step in the impulses, each row scaled to entries of order one."""
    z, w, contacts = at.z, at.w, law.friction.shape[0]
    tangent = drag(law.directions, z.beta, w.beta, z.gamma, w.gamma)
    dry = drag(law.dry_directions, z.dry_beta, w.dry_beta, z.dry_gamma, w.dry_gamma)
    hard, soft = w.push / (z.push + w.push), z.push / (z.push + w.push)
    contact = _contact_rows(law, tangent, hard[:contacts], soft[:contacts])
    k = dry.K[:, 0, 0]
    equal = jnp.ones_like(at.equal)
    own = jnp.concatenate([jnp.zeros(3 * contacts, k.dtype), hard[contacts:], 0 * equal, k])
    by_velocity = jnp.concatenate([soft[contacts:], equal, 1 - k])
    rows = jnp.concatenate([contact, by_velocity[:, None] * law.A[3 * contacts :]]) + jnp.diag(own)
    return Local(jax.scipy.linalg.lu_factor(rows), tangent, dry)


def _contact_rows(law: Scaled, tangent: Drag, hard, soft) -> Float[Array, "row row"]:
    """Per contact: hard d r_n + soft A_n d r and K (d r_t - pull mu d r_n) + (1 - K) A_t d r."""
    contacts, size = law.friction.shape[0], law.A.shape[0]
    A = law.A[: 3 * contacts].reshape(contacts, 3, size)
    by_velocity = jnp.concatenate(
        [soft[:, None, None] * A[:, :1], spatial.compose(jnp.eye(2, dtype=A.dtype)[None] - tangent.K, A[:, 1:])], axis=1
    )
    by_push = -law.friction[:, None] * spatial.apply(tangent.K, tangent.pull)
    first = jnp.concatenate([hard[:, None], by_push], axis=1)[:, :, None]
    block = jnp.concatenate([first, jnp.pad(tangent.K, ((0, 0), (1, 0), (0, 0)))], axis=2)
    here = np.eye(contacts, size // 3 + 1)[:, None, :, None].astype(A.dtype)
    own = (here * block[:, :, None, :]).reshape(contacts, 3, 3 * here.shape[2])[:, :, :size]
    return (by_velocity + own).reshape(3 * contacts, size)


class Defect(NamedTuple):
    """What a Newton step is to bring to zero, and what it is to make of the products z w."""

    product: Unknown  # wanted change w dz + z dw
    slack: Unknown  # w less the slack that belongs to z
    equal: Float[Array, " equal"]  # velocities of equal rows
    drag: Float[Array, "contact 2"]  # sum of beta and directions, less the impulse
    dry: Float[Array, "bounded 1"]


def defect(law: Scaled, at: Point, product: Unknown) -> Defect:
    u = split(law.shape, spatial.apply(law.A, impulse(at)) + law.b)
    return Defect(
        product,
        jax.tree.map(jnp.subtract, at.w, slack(law, at.z, u, law.bound)),
        u.equal,
        jnp.sum(law.directions * at.z.beta[:, :, None], axis=1) - at.drag,
        jnp.sum(law.dry_directions * at.z.dry_beta[:, :, None], axis=1) - at.dry[:, None],
    )


def newton_step(law: Scaled, at: Point, local: Local, wrong: Defect) -> Point:
    """The changes that make up for the defect, to first order; linear in the defect."""
    z, w, contacts = at.z, at.w, law.friction.shape[0]
    c, p = wrong.product, wrong.slack
    tangent = _Known((c.beta + z.beta * p.beta) / w.beta, c.gamma / z.gamma + p.gamma)
    dry = _Known((c.dry_beta + z.dry_beta * p.dry_beta) / w.dry_beta, c.dry_gamma / z.dry_gamma + p.dry_gamma)
    free, dry_free = _free(local.tangent, tangent) + wrong.drag, _free(local.dry, dry) + wrong.dry
    pushed = (c.push + z.push * p.push) / (z.push + w.push)
    contact = jnp.concatenate([pushed[:contacts, None], spatial.apply(local.tangent.K, free)], axis=1)
    rhs = join(Split(contact, pushed[contacts:], -wrong.equal, spatial.apply(local.dry.K, dry_free)[:, 0]))
    step = jax.scipy.linalg.lu_solve(local.factors, rhs)
    dr, du = split(law.shape, step), split(law.shape, spatial.apply(law.A, step))
    droom, no_room = law.friction * dr.contact[:, 0], jnp.zeros_like(law.bound)
    du_t = _slip_change(local.tangent, free, dr.contact[:, 1:], du.contact[:, 1:], droom)
    du_dry = _slip_change(local.dry, dry_free, dr.bounded[:, None], du.bounded[:, None], no_room)
    du = du._replace(contact=jnp.concatenate([du.contact[:, :1], du_t], axis=1), bounded=du_dry[:, 0])
    dz = Unknown(
        jnp.concatenate([dr.contact[:, 0], dr.one_sided]),
        *_shares_change(local.tangent, tangent, du_t, droom),
        *_shares_change(local.dry, dry, du_dry, no_room),
    )
    dw = jax.tree.map(jnp.subtract, slack(law, dz, du, no_room), p)
    dz_kept = jax.tree.map(lambda z, w, dz, dw, c: jnp.where(z > w, dz, (c - z * dw) / w), z, w, dz, dw, c)
    dw_kept = jax.tree.map(lambda z, w, dz, dw, c: jnp.where(z > w, (c - w * dz) / z, dw), z, w, dz, dw, c)
    return Point(dz_kept, dw_kept, dr.equal, dr.contact[:, 1:], dr.bounded)


class _Known(NamedTuple):
    beta: Float[Array, "group direction"]  # d beta if neither slip nor gamma changed
    gamma: Float[Array, " group"]


def _free(answer: Drag, known: _Known):
    """The part of d r_t that no velocity changes."""
    return spatial.apply_transpose(answer.arms, known.beta) / answer.total[:, None] - answer.pull * known.gamma[:, None]


def _slip_change(answer: Drag, free, dr, du, droom):
    """d u_t from the impulses' change where it is stiff, K (du + C du): A dr is too coarse beside a slack near zero."""
    return spatial.apply(answer.K, du + free + answer.pull * droom[:, None] - dr)


def _shares_change(answer: Drag, known: _Known, du, droom):
    """d beta and d gamma, without differences of large numbers where one direction has nearly all of the share."""
    others = jnp.asarray(1 - np.eye(known.beta.shape[1]), known.beta.dtype)[None]
    without_own = answer.rest[:, None] + spatial.apply(others, answer.share)
    moved = spatial.apply(answer.arms, du) + (known.gamma - droom)[:, None] + spatial.apply(others, known.beta)
    dbeta = (known.beta * without_own - answer.share * moved) / answer.total[:, None]
    dgamma = (known.gamma + jnp.sum(known.beta, axis=1) - droom) / answer.total - spatial.dot(answer.pull, du)
    return dbeta, dgamma


def begin(law: Scaled, size: Float[Array, ""]) -> Point:
    """A point well inside, all numbers about `size` [m/s]."""
    contacts, bounded, directions = law.friction.shape[0], law.bound.shape[0], law.directions.shape[1]
    rows = split(law.shape, law.b)

    def full(*shape):
        return jnp.broadcast_to(size, shape)

    def part(room, pieces):
        return jnp.broadcast_to(room[:, None] / (2 * pieces), (room.shape[0], pieces))

    room = law.friction * size
    push = full(contacts + rows.one_sided.shape[0])
    z = Unknown(push, part(room, directions), full(contacts), part(law.bound, 2), full(bounded))
    w = Unknown(push, full(contacts, directions), room / 2, full(bounded, 2), law.bound / 2)
    return Point(z, w, jnp.zeros_like(rows.equal), jnp.zeros_like(rows.contact[:, 1:]), jnp.zeros_like(rows.bounded))


def products(law: Scaled, per_row: Vec) -> Unknown:
    """One product z w for all pairs of a contact or row, from a value per row [m^2/s^2]."""
    rows = split(law.shape, per_row)
    contact, pieces = rows.contact[:, 0], law.directions.shape[:2]
    return Unknown(
        jnp.concatenate([contact, rows.one_sided]),
        jnp.broadcast_to(contact[:, None], pieces),
        contact,
        jnp.broadcast_to(rows.bounded[:, None], (law.bound.shape[0], 2)),
        rows.bounded,
    )


class Progress(NamedTuple):
    point: Point
    length: Float[Array, ""]  # of the step, at most 1


def flat(x) -> Float[Array, " n"]:
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(x)])


def advance(law: Scaled, at: Point, least: Unknown) -> Progress:
    """Mehrotra's predictor and corrector towards z w = `least` (Mattingley and Boyd 2012, 5.2), with one factoring.

    Where the corrector's second-order term shortens the step, it is left out (else one product may stay near zero).
    The problem is not monotone and slacks depend on all unknowns, so unknowns and slacks take steps of one length.
    """
    z, w = flat(at.z), flat(at.w)
    product = jax.tree.map(jnp.multiply, at.z, at.w)
    local, wrong = factor(law, at), defect(law, at, jax.tree.map(jnp.subtract, least, product))
    predictor = newton_step(law, at, local, wrong)
    dz, dw = flat(predictor.z), flat(predictor.w)
    length = jnp.minimum(_room(z, w, dz, dw), 1.0)
    end = jnp.mean(flat(least))
    above = jnp.maximum(jnp.mean(z * w) - end, 0.0)
    left = jnp.mean((z + length * dz) * (w + length * dw)) - end
    left = jnp.clip(left / jnp.where(above > 0, above, jnp.ones_like(above)), 0.0, 1.0)
    straight = jax.tree.map(lambda x, end: end + left**3 * above - x, product, least)
    bent = jax.tree.map(lambda x, dz, dw: x - length**2 * dz * dw, straight, predictor.z, predictor.w)
    steps = [newton_step(law, at, local, wrong._replace(product=c)) for c in (bent, straight)]
    by_bent, by_straight = (KEPT * _room(z, w, flat(step.z), flat(step.w)) for step in steps)
    step = jax.tree.map(lambda x, y: jnp.where(by_bent >= jnp.minimum(by_straight, 1.0), x, y), *steps)
    length = jnp.minimum(jnp.maximum(by_bent, by_straight), 1.0)
    return Progress(jax.tree.map(lambda x, dx: x + length * dx, at, step), length)


def _room(z, w, dz, dw):
    """The longest step that keeps all numbers above zero."""
    x, dx = jnp.concatenate([z, w]), jnp.concatenate([dz, dw])
    return jnp.min(jnp.where(dx < 0, x / jnp.where(dx < 0, -dx, jnp.ones_like(dx)), jnp.inf), initial=jnp.inf)
