"""Signed distances, contact points and normals of the pairs of a model, pairs of the same kinds together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from knuckle import spatial
from knuckle.contact.bounds import clearance
from knuckle.contact.convex import convex_convex
from knuckle.contact.laws import over_blocks
from knuckle.contact.narrow import HULL_PLANE, TESTS, Kinds, kinds_of, shape_name
from knuckle.contact.pairs import Pair
from knuckle.contact.shapes_hull import SLOTS, hull_plane, place_hulls
from knuckle.contact.support import Convex, convex_shapes
from knuckle.contact.surfaces import surfaces
from knuckle.contact.touch import INACTIVE_GAP, Placed, Touch, no_touch
from knuckle.contact.vertices import corner_table
from knuckle.kinematics import Poses, poses
from knuckle.model.geometry import Geometry
from knuckle.model.model import Model
from knuckle.tree import rows

LONG_TESTS = {("box", "box"), ("polygon", "polygon"), ("capsule", "polygon"), ("sphere", "polygon")}
MAY_BE_EMPTY = LONG_TESTS | {("capsule", "capsule")}  # and tests of convex shapes: slots may hold no point
MOST_TOGETHER = 2  # pairs for one of these; more are a loop, so that it is compiled once
MOST_POINTS = {"sphere": 1, "ellipsoid": 1, "capsule": 2}


class Contacts(eqx.Module):
    """Potential contact points, a fixed number per pair of shapes; a slot without a point has a gap of INACTIVE_GAP.

    All arrays are differentiable in coordinates, placements, sizes and friction; which features of the shapes touch
    (and so which corners, which face) is held fixed in the derivative.
    """

    gap: Float[Array, " contact"]  # signed distance less the margin, negative where shapes overlap [m]
    point: Float[Array, "contact 3"]  # world; midway between the two surfaces
    normal: Float[Array, "contact 3"]  # unit, world, from b towards a
    friction: Float[Array, " contact"]  # sliding coefficient, by MuJoCo's rules
    margin: Float[Array, " contact"]  # distance of the shapes at which they count as touching [m]
    link_a: tuple[int, ...] = eqx.field(static=True)  # -1 is the world
    link_b: tuple[int, ...] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)  # "shape_a|shape_b#k"
    shape_a: tuple[int, ...] = eqx.field(static=True)  # among those of the model's geometry
    shape_b: tuple[int, ...] = eqx.field(static=True)
    rules: tuple[tuple[str, int], ...] = eqx.field(static=True, default=())  # of `PerPair`: how many contacts each has

    def __len__(self) -> int:
        return len(self.names)

    def picked(self, index: np.ndarray, rules: tuple[tuple[str, int], ...] = ()) -> Contacts:
        """Some of the contacts (along the last axis of gaps, which may be of many steps), in this order."""
        axis = self.gap.ndim - 1

        def part(entries) -> Any:
            if isinstance(entries, tuple):
                return tuple(entries[k] for k in index)
            return entries.take(index, axis=axis) if axis else rows(entries, index)

        names = [field.name for field in dataclasses.fields(self) if field.name != "rules"]
        return Contacts(**{name: part(getattr(self, name)) for name in names}, rules=rules)

    def rows_of(self, rule: str) -> slice:
        """Where the contacts of a rule of `PerPair` stand."""
        start = 0
        for name, count in self.rules:
            if name == rule:
                return slice(start, start + count)
            start += count
        there = ", ".join(repr(name) for name, _ in self.rules) or "none: the contact model is one for all"
        raise ValueError(f"contacts: there is no rule {rule!r}; there are {there}")

    def of_rule(self, rule: str) -> Contacts:
        """The contacts of one rule of `PerPair`."""
        own = self.rows_of(rule)
        return self.picked(np.arange(len(self))[own])

    def are_with_planes(self, geometry: Geometry) -> bool:
        """Whether each has a plane as one side, so that normals are constants unless planes move."""
        sides = zip(self.shape_a, self.shape_b, strict=True)
        return all("plane" in (geometry.kind[a], geometry.kind[b]) for a, b in sides)

    @property
    def are_with_fixed(self) -> bool:
        """Whether each has a side that does not move."""
        return all(min(sides) < 0 for sides in zip(self.link_a, self.link_b, strict=True))


class Group(NamedTuple):
    """Pairs for one test: shapes in the order that it takes them, and which pairs that swaps."""

    test: Kinds | Literal["convex", "convex mesh", "hull and plane"]
    a: list[int]
    b: list[int]
    swapped: list[bool]


def collide(
    model: Model,
    q: Float[Array | np.ndarray, " nq"],
    pairs: tuple[Pair, ...],
    reach: Float[Array, ""] | None = None,
) -> Contacts:
    """The contact points of pairs of shapes (see `contact_pairs`) at coordinates q, groups of equal kinds in turn.

    `reach` [m]: long tests of shapes whose bounding spheres are farther apart are left out, and their slots are empty.
    """
    geometry = model.geometry
    groups = _groups(geometry, pairs)
    used = sorted({shape for group in groups for shape in (*group.a, *group.b)})
    placed = _shape_poses(model, jnp.asarray(q), used)
    parts = [_collide_group(geometry, group, placed, used, reach) for group in groups]
    dtype = placed.position.dtype
    none, nowhere = jnp.zeros(0, dtype), jnp.zeros((0, 3), dtype)
    empty = Contacts(none, nowhere, nowhere, none, none, (), (), (), (), ())
    if len(parts) < 2:
        return parts[0] if parts else empty
    return Contacts(
        gap=jnp.concatenate([p.gap for p in parts]),
        point=jnp.concatenate([p.point for p in parts]),
        normal=jnp.concatenate([p.normal for p in parts]),
        friction=jnp.concatenate([p.friction for p in parts]),
        margin=jnp.concatenate([p.margin for p in parts]),
        link_a=tuple(link for p in parts for link in p.link_a),
        link_b=tuple(link for p in parts for link in p.link_b),
        names=tuple(name for p in parts for name in p.names),
        shape_a=tuple(shape for p in parts for shape in p.shape_a),
        shape_b=tuple(shape for p in parts for shape in p.shape_b),
    )


def has_long_tests(geometry: Geometry, pairs: tuple[Pair, ...]) -> bool:
    """Whether `collide` can leave out tests of pairs that are out of reach."""
    kinds = {kinds_of(geometry, pair.a, pair.b)[0] for pair in pairs}
    return bool(kinds & LONG_TESTS or kinds - TESTS.keys())


def _groups(geometry: Geometry, pairs: tuple[Pair, ...]) -> list[Group]:
    groups: dict[str | Kinds, Group] = {}
    for pair in pairs:
        kinds, swap = kinds_of(geometry, pair.a, pair.b)
        general = "hull and plane" if kinds == HULL_PLANE else "convex mesh" if "mesh" in kinds else "convex"
        test = kinds if kinds in TESTS else general
        group = groups.setdefault(test, Group(test, [], [], []))
        first, second = (pair.b, pair.a) if swap else (pair.a, pair.b)
        group.a.append(first)
        group.b.append(second)
        group.swapped.append(swap)
    return list(groups.values())


def _shape_poses(model: Model, q: Float[Array, " nq"], shapes: list[int]) -> Poses:
    """Poses in the world of the shapes that are named by number."""
    geometry = model.geometry
    index = np.array(shapes, int)
    links = np.array(geometry.link, int)[index]
    still, moving = np.flatnonzero(links < 0), np.flatnonzero(links >= 0)
    with jax.ensure_compile_time_eval():  # what does not move is a constant, unless it is traced
        own = Poses(
            spatial.rotation_of_quaternion(rows(jnp.asarray(geometry.rotation), index)),
            rows(jnp.asarray(geometry.position), index),
        )
        fixed, (R_LS, p_LS) = rows(own, still), rows(own, moving)
    if not len(moving):
        return fixed
    R_WL, p_WL = rows(poses(model, q), links[moving])
    carried = Poses(spatial.compose(R_WL, R_LS), p_WL + spatial.apply(R_WL, p_LS))
    if not len(still):
        return carried
    placed = jax.tree.map(lambda *parts: jnp.concatenate(parts), fixed, carried)
    return rows(placed, np.argsort(np.concatenate([still, moving])))


def _collide_group(geometry: Geometry, group: Group, placed: Poses, used: list[int], reach) -> Contacts:
    touch, counts = _touch_group(geometry, group, placed, used, reach)
    surface, width = surfaces(geometry, group.a, group.b), touch.gap.shape[1]
    gap, point, normal = (x.reshape(-1, *x.shape[2:]) for x in touch)
    if any(count < width for count in counts):
        kept = np.concatenate([width * pair + np.arange(count) for pair, count in enumerate(counts)])
        gap, point, normal = (rows(x, kept) for x in (gap, point, normal))
    friction, margin = (rows(x, np.repeat(np.arange(len(counts)), counts)) for x in (surface.friction, surface.margin))
    if any(group.swapped):
        flip = jnp.asarray(np.where(np.repeat(group.swapped, counts), -1.0, 1.0), normal.dtype)
        normal = normal * flip[:, None]
    sides = [(b, a) if swap else (a, b) for a, b, swap in zip(group.a, group.b, group.swapped, strict=True)]
    slots = [(*side, k) for side, count in zip(sides, counts, strict=True) for k in range(count)]
    return Contacts(
        gap=gap,
        point=point,
        normal=normal,
        friction=friction,
        margin=margin,
        link_a=tuple(geometry.link[a] for a, _, _ in slots),
        link_b=tuple(geometry.link[b] for _, b, _ in slots),
        names=tuple(f"{shape_name(geometry, a)}|{shape_name(geometry, b)}#{k}" for a, b, k in slots),
        shape_a=tuple(a for a, _, _ in slots),
        shape_b=tuple(b for _, b, _ in slots),
    )


def _finish(touch: Touch, margin: Float[Array, ""], a: Float[Array, "3"], b: Float[Array, "3"]) -> Touch:
    """Gaps of one pair less the margin; points of slots that hold none lie between the shapes, which are at a and b:
    far away, a turning body would bring them to contact."""
    between = jnp.broadcast_to(0.5 * (a + b), touch.point.shape)
    point = jnp.where((touch.gap >= INACTIVE_GAP)[:, None], between, touch.point)
    return touch._replace(gap=_less_margin(touch.gap, margin), point=point)


def _less_margin(gap: Float[Array, "*pair"], margin: Float[Array, "*pair"]) -> Float[Array, "*pair"]:
    return jnp.where(gap >= INACTIVE_GAP, gap, gap - margin)


def _touch_group(geometry: Geometry, group: Group, placed: Poses, used: list[int], reach) -> tuple[Touch, list[int]]:
    """Contacts of all pairs, and how many of the slots each pair has use for."""
    sides = [(shapes, rows(placed, np.searchsorted(used, shapes))) for shapes in (group.a, group.b)]
    near, margin = None, surfaces(geometry, group.a, group.b).margin
    if reach is not None:
        near, reach = clearance(geometry, *sides) <= reach + margin, reach + jnp.max(margin)
    if group.test == "hull and plane":
        return _hulls_on_planes(geometry, sides, near, reach, margin), [SLOTS] * len(group.a)
    if isinstance(group.test, str):
        counts = [_most_points(geometry, a, b) for a, b in zip(group.a, group.b, strict=True)]
        table, shapes = convex_shapes(geometry, sides)

        def of_pair(a: Convex, b: Convex) -> Touch:
            return convex_convex(a._replace(table=table), b._replace(table=table), max(counts), reach)

        return _one_by_one(of_pair, shapes, near, margin), counts
    pairs = tuple(_placed(geometry, *side) for side in sides)
    test = TESTS[group.test]
    if group.test in LONG_TESTS and (len(group.a) > MOST_TOGETHER or near is not None):
        touch = _one_by_one(lambda a, b: _only(test(*jax.tree.map(lambda x: x[None], (a, b)))), pairs, near, margin)
    elif group.test in MAY_BE_EMPTY:
        touch = over_blocks(jax.vmap(_finish), test(*pairs), margin, *(side.position for side in pairs))
    else:
        touch = test(*pairs)
        touch = touch._replace(gap=_less_margin(touch.gap, jnp.broadcast_to(margin[:, None], touch.gap.shape)))
    return touch, [touch.gap.shape[1]] * len(group.a)


def _hulls_on_planes(geometry: Geometry, sides, near: Bool[Array, " pair"] | None, reach, margin) -> Touch:
    (shapes, at), (_, planes) = sides
    hulls, placed = place_hulls(geometry, shapes, at)
    touch = _one_by_one(lambda hull, plane: hull_plane(hulls, hull, plane, reach), (placed, planes), near, margin)
    normal = jnp.broadcast_to(planes.rotation[:, None, :, 2], touch.normal.shape)  # a constant if planes do not move
    return touch._replace(normal=normal)


def _one_by_one(
    test: Callable[[Any, Any], Touch], pairs: tuple, near: Bool[Array, " pair"] | None, margin: Float[Array, " pair"]
) -> Touch:
    """A loop over pairs, which is compiled once, and passes over those that are not near; gaps are less the margin."""

    def found(pair, margin) -> Touch:
        a, b = pair
        return _finish(test(a, b), margin, a.position, b.position)

    if near is None:
        return jax.lax.map(lambda x: found(*x), (pairs, margin))
    slots = jax.eval_shape(test, *jax.tree.map(lambda x: x[0], pairs)).gap.shape[0]

    def nothing(pair, margin) -> Touch:
        return _finish(no_touch(slots, margin.dtype), margin, *(side.position for side in pair))

    return jax.lax.map(lambda x: jax.lax.cond(x[0], found, nothing, *x[1:]), (near, pairs, margin))


def _most_points(geometry: Geometry, a: int, b: int) -> int:
    """How many contacts convex shapes can have: one on a curved surface, two along a capsule, else four."""
    return min(MOST_POINTS.get(geometry.kind[shape], 4) for shape in (a, b))


def _only(touch: Touch) -> Touch:
    return Touch(*(x[0] for x in touch))


def _placed(geometry: Geometry, shapes: list[int], at: Poses) -> Placed:
    size = rows(jnp.asarray(geometry.size), np.array(shapes))
    corners = jnp.asarray(corner_table(geometry, shapes), size.dtype)
    return Placed(at.rotation, at.position, size, corners * size[:, None])
