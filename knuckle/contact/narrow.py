"""The test for each pair of kinds of shape: one of its own, or the general one for convex shapes."""

from __future__ import annotations

from collections.abc import Callable

from knuckle.contact import shapes_box, shapes_plane, shapes_polygon, shapes_round
from knuckle.contact.touch import Placed, Touch
from knuckle.model.geometry import Geometry, ShapeKind

Test = Callable[[Placed, Placed], Touch]
Kinds = tuple[ShapeKind, ShapeKind]

TESTS: dict[Kinds, Test] = {
    ("sphere", "plane"): shapes_plane.sphere_plane,
    ("capsule", "plane"): shapes_plane.capsule_plane,
    ("ellipsoid", "plane"): shapes_plane.ellipsoid_plane,
    ("box", "plane"): shapes_plane.box_plane,
    ("cylinder", "plane"): shapes_plane.cylinder_plane,
    ("polygon", "plane"): shapes_plane.polygon_plane,
    ("points", "plane"): shapes_plane.points_plane,
    ("sphere", "sphere"): shapes_round.sphere_sphere,
    ("sphere", "capsule"): shapes_round.sphere_capsule,
    ("sphere", "box"): shapes_round.sphere_box,
    ("sphere", "cylinder"): shapes_round.sphere_cylinder,
    ("capsule", "capsule"): shapes_round.capsule_capsule,
    ("box", "box"): shapes_box.box_box,
    ("polygon", "polygon"): shapes_polygon.polygon_polygon,
    ("sphere", "polygon"): shapes_polygon.sphere_polygon,
    ("capsule", "polygon"): shapes_polygon.capsule_polygon,
    ("points", "sphere"): shapes_round.as_balls(shapes_round.sphere_sphere),
    ("points", "capsule"): shapes_round.as_balls(shapes_round.sphere_capsule),
    ("points", "box"): shapes_round.as_balls(shapes_round.sphere_box),
    ("points", "cylinder"): shapes_round.as_balls(shapes_round.sphere_cylinder),
    ("points", "polygon"): shapes_round.as_balls(shapes_polygon.sphere_polygon),
}
HULL_PLANE: Kinds = ("mesh", "plane")
CONVEX: tuple[ShapeKind, ...] = ("sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh")
PAIRS_OF_CONVEX = {(a, b) for number, a in enumerate(CONVEX) for b in CONVEX[number:]} - set(TESTS)


def kinds_of(geometry: Geometry, a: int, b: int) -> tuple[Kinds, bool]:
    """The kinds of two shapes in the order that their test takes them, and whether that swaps the two.

    Raises ValueError that names shapes and kinds that have no test.
    """
    kinds = geometry.kind[a], geometry.kind[b]
    known = TESTS.keys() | PAIRS_OF_CONVEX | {HULL_PLANE}
    if kinds in known:
        return kinds, False
    if (kinds[1], kinds[0]) in known:
        return (kinds[1], kinds[0]), True
    partners = sorted({*(k for j, k in known if j == kinds[0]), *(j for j, k in known if k == kinds[0])})
    raise ValueError(
        f"shapes {shape_name(geometry, a)!r} and {shape_name(geometry, b)!r}: no test for {kinds[0]} against {kinds[1]}"
        f" ({kinds[0]} can touch {', '.join(partners)}); keep them apart by contype and conaffinity or by an exclude,"
        " or give contact=None"
    )


def shape_name(geometry: Geometry, index: int) -> str:
    """The shape's name, or that of its link and its number among all shapes where it has none."""
    return geometry.names[index] or f"{geometry.body[index]}_shape{index}"
