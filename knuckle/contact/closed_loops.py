"""Closed loops: which rows belong to which equality, by how much each is open, and coordinates that close them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from knuckle.contact.constraints import FAR, Tie, equalities, lengths
from knuckle.contact.outcome import VIOLATED, Outcome
from knuckle.contact.planar import Directions
from knuckle.contact.rows import world_axes
from knuckle.kinematics import articulation
from knuckle.model.joints import difference, neutral, retract
from knuckle.model.model import Leaf, Model

Vec = Float[Leaf, " n"]
SIZES = {"connect": 3, "weld": 6, "mimic": 1}
EVERY_WAY = Directions(np.eye(3), np.eye(3))
MOST_ITERATIONS = 200
ROUNDS = 3  # in which joints that a step takes to a limit are found
LEAST_DAMPING, MOST_DAMPING = 1e-12, 1e8  # beside the mean of the diagonal
MOST_NAMED = 4


def equality_rows(model: Model) -> dict[str, slice]:
    """Where the impulses of each active equality stand in `Outcome.equality`, by name.

    A connect has three rows (force, world axes), a weld six (force, torque over its torque scale), a mimic one. Mimics
    come last.
    """
    ties = model.equalities
    active = [k for k, on in enumerate(ties.active) if on]
    ordered = sorted(active, key=lambda k: ties.kind[k] == "mimic")
    stops = np.cumsum([SIZES[ties.kind[k]] for k in ordered]).tolist()
    return {ties.names[k]: slice(stop - SIZES[ties.kind[k]], stop) for k, stop in zip(ordered, stops, strict=True)}


def equality_errors(model: Model, q: Float[Leaf, " nq"]) -> dict[str, Float[Array, ""]]:
    """By how much each active equality is open at coordinates q, by name [m, or rad of a mimic on a hinge]."""
    tie = _tie(model, jnp.asarray(q))
    apart = lengths(tie.error, tie.vectors)
    return {name: jnp.max(apart[rows]) for name, rows in equality_rows(model).items()}


def describe_faults(model: Model, q: Float[Leaf, " nq"], outcome: Outcome, step: int) -> str:
    """The limits and equalities that a step found violated, by name, or else those that push hardest."""
    q = jnp.asarray(q)
    open_by = {f"equality {name!r}": float(x) for name, x in _native(equality_errors)(model, q).items()}
    past = np.asarray(_native(limit_excess)(model, q))
    for dof in np.flatnonzero(past > 0):
        joint = f"limit of joint {model.joint_names[model.topology.dof_link[dof]]!r}"
        open_by[joint] = max(open_by.get(joint, 0.0), float(past[dof]))
    wrong = {name: x for name, x in open_by.items() if x > VIOLATED}
    if wrong:
        listed = _largest(wrong, "m or rad")
        closing = any(name.startswith("equality") for name in wrong)
        return f"violated before the step: {listed}" + ("; kn.assemble closes loops" if closing else "")
    pushing = _impulses(model, outcome, step)
    return f"all hold before the step; the largest impulses are {_largest(pushing, 'N s or N m s')}"


def limit_excess(model: Model, q: Vec) -> Float[Array, " nv"]:
    """By how much each degree of freedom is past its limit [m or rad]; a ball joint's counts for all of its three."""
    moved = difference(model, jnp.asarray(neutral(model.topology), q.dtype), q)
    past = jnp.maximum(jnp.asarray(model.lower) - moved, moved - jnp.asarray(model.upper))
    for row in model.topology.v_index("ball"):
        past = past.at[row].set(jnp.linalg.norm(moved[row]) - jnp.asarray(model.upper)[row])
    free = np.ravel(model.topology.v_index("free"))
    return jnp.maximum(past.at[free].set(0.0), 0.0)


def _impulses(model: Model, outcome: Outcome, step: int) -> dict[str, float]:
    """Sizes of the impulses of equalities and limits in one step."""
    equal, limit = (np.asarray(x).reshape(-1, np.shape(x)[-1])[step] for x in (outcome.equality, outcome.limit))
    found = {f"equality {n!r}": float(np.linalg.norm(equal[rows])) for n, rows in equality_rows(model).items()}
    owners = model.topology.dof_link
    pushing = {f"limit of joint {model.joint_names[owners[i]]!r}": abs(float(limit[i])) for i in np.flatnonzero(limit)}
    return {name: size for name, size in (found | pushing).items() if size > 0}


def _largest(sizes: dict[str, float], unit: str) -> str:
    if not sizes:
        return "none"
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    listed = ", ".join(f"{name} {size:.2g}" for name, size in ordered[:MOST_NAMED])
    more = f" and {len(ordered) - MOST_NAMED} more" if len(ordered) > MOST_NAMED else ""
    return f"{listed} {unit}{more}"


def _tie(model: Model, q: Vec) -> Tie:
    return equalities(model, q, world_axes(model, articulation(model, q)), EVERY_WAY)


@functools.cache
def _native(function: Callable) -> Callable:
    from knuckle.native import jit  # loads LLVM

    return jit(function)


def assemble(
    model: Model,
    q: Float[Leaf, " nq"] | str | None = None,
    hold: Sequence[str] = (),
    *,
    tolerance: float = 1e-9,
) -> Float[Array, " nq"]:
    """Coordinates near q (or a keyframe, or the reference) at which all active equalities hold, by Levenberg-Marquardt.

    Steps are the shortest that close the loops, so joints move as little as that allows; limits are kept.
    Differentiable by the model and by q: held joints move as given, the others follow (implicit function theorem).

    Args:
        hold: names of joints that stay where q has them.
        tolerance: largest error that counts as closed [m, or rad of a mimic on a hinge].

    Raises:
        ValueError: names the equalities that stay open, and by how much. Under a transformation, where nothing can be
            raised, the coordinates are NaN instead.
    """
    start = jnp.asarray(model.state(q).q)
    if start.shape != (model.nq,):
        raise ValueError(f"assemble: q must have shape ({model.nq},), got {start.shape}")
    if not any(model.equalities.active):
        raise ValueError(f"assemble: model {model.name!r} has no active equality, so there is no loop to close")
    free = _free_dofs(model, hold)
    still, at = jax.lax.stop_gradient((model, start))
    traced = any(isinstance(x, Tracer) for x in jax.tree.leaves((model, start)))
    search = _search if traced else _native(_search)
    found, movable, worst = search(still, at, free)
    closed = worst <= tolerance
    if not isinstance(closed, Tracer) and not closed:
        errors = {f"equality {name!r}": float(x) for name, x in _native(equality_errors)(still, found).items()}
        wrong = {name: x for name, x in errors.items() if not x <= tolerance}
        held = f" with {', '.join(hold)} held" if len(hold) else ""
        raise ValueError(
            f"assemble: no coordinates near q close the loops{held}: open by {_largest(wrong, 'm or rad')}"
        )
    if not traced:
        return jnp.asarray(found)
    followed = _follow(model, start, jnp.asarray(found), jnp.asarray(movable))
    return jnp.where(closed, followed, jnp.nan)


def _free_dofs(model: Model, hold: Sequence[str]) -> np.ndarray:
    if isinstance(hold, str):
        raise TypeError(f"assemble: hold takes a list of joint names, got {hold!r}")
    topology, free = model.topology, np.ones(model.nv, bool)
    for name in hold:
        link = topology.joint(name)
        free[topology.v_start[link] : topology.v_stop[link]] = False
    if not free.any():
        raise ValueError("assemble: all joints are held, so none can move")
    return free


def _search(model: Model, q: Vec, free: Bool[Leaf, " nv"]) -> tuple[Vec, Bool[Array, " nv"], Float[Array, ""]]:
    """Coordinates, which joints could still move, and the largest error."""
    free, q = jnp.asarray(free), jnp.asarray(q)

    def attempt(carry):
        q, movable, damping, worst, count = carry
        tie = _tie(model, q)
        step, able = _step_within_limits(model, q, tie, free, damping)
        there = retract(model, q, step)
        after = _cost(_tie(model, there))
        better = after < _cost(tie)
        kept = jax.tree.map(lambda a, b: jnp.where(better, a, b), (there, able), (q, movable))
        softer = jnp.where(better, jnp.maximum(damping * 0.1, LEAST_DAMPING), damping * 10)
        return *kept, softer, jnp.minimum(after, worst), count + 1

    def going_on(carry):
        _, _, damping, worst, count = carry
        return (count < MOST_ITERATIONS) & (damping < MOST_DAMPING) & (worst > 0)

    first = _cost(_tie(model, q))
    carry = (q, free, jnp.asarray(1e-6, q.dtype), first, jnp.asarray(0))
    q, movable, _, _, _ = jax.lax.while_loop(going_on, attempt, carry)
    tie = _tie(model, q)
    return q, movable, jnp.max(lengths(tie.error, tie.vectors))


def _cost(tie: Tie) -> Float[Array, ""]:
    return jnp.sum(tie.error**2)


def _shortest(J: Float[Array, "row nv"], error: Vec, movable: Bool[Array, " nv"], damping) -> Vec:
    """The shortest step of the movable joints that takes the error away."""
    J = jnp.where(movable, J, 0.0)
    square = J @ J.T
    size = jnp.maximum(jnp.trace(square) / len(error), 1e-12)
    return -J.T @ jnp.linalg.solve(square + damping * size * jnp.eye(len(error), dtype=J.dtype), error)


def _step_within_limits(model: Model, q: Vec, tie: Tie, free, damping) -> tuple[Vec, Bool[Array, " nv"]]:
    """A step, and the joints that are not at a limit which it would pass; those go to their limit at most."""
    lowest, highest = _room(model, q)
    movable, held = free, jnp.zeros_like(q, shape=(model.nv,))
    for _ in range(ROUNDS):
        step = held + _shortest(tie.J, tie.error + tie.J @ held, movable, damping)
        stopped = movable & ((step < lowest) | (step > highest))
        held = jnp.where(stopped, jnp.clip(step, lowest, highest), held)
        movable = movable & ~stopped
    step = held + _shortest(tie.J, tie.error + tie.J @ held, movable, damping)
    return jnp.where(free, jnp.clip(step, lowest, highest), 0.0), movable


def _room(model: Model, q: Vec) -> tuple[Vec, Vec]:
    """How far each degree of freedom may move down and up; ball and free joints may move anywhere."""
    topology = model.topology
    moved = difference(model, jnp.asarray(neutral(topology), q.dtype), q)
    turning = [np.ravel(topology.v_index(kind)) for kind in ("ball", "free")]
    single = np.setdiff1d(np.arange(model.nv), np.concatenate(turning))
    far = jnp.full(model.nv, FAR, q.dtype)
    lower = (-far).at[single].set(jnp.minimum(jnp.asarray(model.lower)[single] - moved[single], 0.0))
    upper = far.at[single].set(jnp.maximum(jnp.asarray(model.upper)[single] - moved[single], 0.0))
    return jnp.maximum(lower, -far), jnp.minimum(upper, far)


def _follow(model: Model, start: Array, found: Array, movable: Bool[Array, " nv"]) -> Array:
    """The coordinates found, with the derivative of a closed loop by the model and by where the search starts."""
    moved = difference(model, jax.lax.stop_gradient(start), start)  # zero, but for its derivative
    near = retract(model, found, moved)
    tie = _tie(model, near)
    J = jax.lax.stop_gradient(tie.J)
    return jnp.asarray(retract(model, near, _shortest(J, tie.error, movable, LEAST_DAMPING)))


__all__ = ["assemble", "describe_faults", "equality_errors", "equality_rows", "limit_excess"]
