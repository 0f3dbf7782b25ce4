"""Which shapes are tested against each other, and what is refused by name."""

from itertools import combinations_with_replacement

import jax
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Pair, collide, contact_pairs
from knuckle.model.geometry import Mesh, Shape

BALL = {"mass": 1.0, "shapes": kn.shapes.sphere(0.1)}


def names_of(model: kn.Model, pairs: tuple[Pair, ...]) -> set[frozenset[str]]:
    return {frozenset((model.geometry.body[p.a], model.geometry.body[p.b])) for p in pairs}


def chain_and_ball(**options) -> kn.Model:
    """A chain a - b - c with a welded hand on c, a free ball, and a floor."""
    links = [
        kn.Link("a", joints=kn.revolute("y"), **BALL),
        kn.Link("b", parent="a", joints=(kn.revolute("x"), kn.revolute("y")), position=(0, 0, 1), **BALL),
        kn.Link("c", parent="b", joints=kn.revolute("y"), position=(0, 0, 1), **BALL),
        kn.Link("hand", parent="c", position=(0, 0, 1), **BALL),
        kn.Link("ball", joints=kn.free(), **BALL),
    ]
    return kn.build(links, world_shapes=[kn.shapes.plane(name="floor"), kn.shapes.sphere(1.0)], **options)


def pairs_as_sets(*pairs: str) -> set[frozenset[str]]:
    return {frozenset(pair.split()) for pair in pairs}


WITH_WORLD = ("a world", "b world", "c world", "hand world", "ball world")
WITH_BALL = ("a ball", "b ball", "c ball", "hand ball")


def test_without_self_collision_only_the_world_and_other_trees_are_touched():
    model = chain_and_ball()
    assert names_of(model, contact_pairs(model)) == pairs_as_sets(*WITH_WORLD, *WITH_BALL)


def test_with_self_collision_parents_and_welded_links_are_skipped():
    model = chain_and_ball()
    within = ("a c", "a hand")  # a-b and b-c are adjacent, so is b-hand, since the hand is a part of c
    assert names_of(model, contact_pairs(model, self_collision=True)) == pairs_as_sets(*WITH_WORLD, *WITH_BALL, *within)


CHAIN = """<mujoco><option>{0}</option><worldbody><body name="a"><joint/><geom size="0.1"/><body name="b" pos="0 0 1">
<joint axis="0 1 0"/><geom size="0.1"/><body name="c" pos="0 0 1"><joint axis="1 0 0"/><geom size="0.1"/></body></body>
</body></worldbody></mujoco>"""


def test_self_collision_is_as_the_file_says_unless_it_is_chosen(tmp_path):
    """In MJCF links of one tree touch, parents and children only without the parents' filter; in URDF none do."""
    mjcf = kn.load(CHAIN.format(""))
    assert names_of(mjcf, contact_pairs(mjcf)) == pairs_as_sets("a c")
    assert contact_pairs(mjcf, self_collision=False) == ()
    assert len(kn.contact.Impulse(self_collision=None).contacts(mjcf, mjcf.reference)) == 1
    assert len(kn.contact.Impulse().contacts(mjcf, mjcf.reference)) == 0
    parents = kn.load(CHAIN.format('<flag filterparent="disable"/>'))
    assert names_of(parents, contact_pairs(parents)) == pairs_as_sets("a b", "b c", "a c")
    built = chain_and_ball()
    assert contact_pairs(built) == contact_pairs(built, self_collision=False)
    assert contact_pairs(chain_and_ball(self_collision=True)) == contact_pairs(built, self_collision=True)
    kn.save(built, tmp_path / "built.xml")
    assert len(contact_pairs(kn.load(tmp_path / "built.xml"))) == len(contact_pairs(built))


def test_an_exclude_names_the_link_before_welding():
    model = chain_and_ball(excludes=[("hand", "ball"), ("world", "a")])
    expected = pairs_as_sets(*WITH_WORLD[1:], *WITH_BALL[:3])
    assert names_of(model, contact_pairs(model)) == expected


@pytest.mark.parametrize(
    ("first", "second", "touch"),
    [
        ((1, 1), (1, 1), True),
        ((1, 0), (0, 1), True),
        ((1, 0), (1, 0), False),
        ((2, 2), (1, 1), False),
        ((0, 0), (1, 1), False),
    ],
)
def test_contype_and_conaffinity_share_a_bit(first, second, touch):
    shapes = [Shape("sphere", (0.1,), contype=c, conaffinity=a) for c, a in (first, second)]
    links = [kn.Link(f"l{i}", joints=kn.free(), mass=1.0, shapes=s) for i, s in enumerate(shapes)]
    assert bool(contact_pairs(kn.build(links))) is touch


def test_pairs_are_hashable_and_the_plane_stands_second():
    model = chain_and_ball()
    pairs = contact_pairs(model)
    assert hash(pairs) == hash(contact_pairs(model))
    assert all(model.geometry.kind[p.a] == "sphere" for p in pairs)


def test_a_pair_without_a_test_is_refused_by_name_and_kind():
    links = [kn.Link(n, joints=kn.free(), mass=1.0, shapes=kn.shapes.plane(name=f"{n}_wall")) for n in ("x", "y")]
    model = kn.build(links)
    with pytest.raises(ValueError, match="'x_wall' and 'y_wall': no test for plane against plane"):
        contact_pairs(model)
    with pytest.raises(ValueError, match="'y_wall' and 'x_wall': no test for plane against plane"):
        collide(model, np.asarray(model.state().q), (Pair(1, 0),))


@pytest.mark.parametrize("kind", ["sphere", "capsule", "box", "cylinder", "ellipsoid", "mesh", "polygon", "points"])
def test_zero_size_is_refused(kind):
    count = {"sphere": 1, "capsule": 2, "cylinder": 2, "polygon": 2}.get(kind, 3)
    with pytest.raises(ValueError, match=f"shape 'tiny': a {kind} takes {count} positive sizes"):
        Shape(kind, (0.0,) * count, name="tiny")


@pytest.mark.parametrize("kind", ["sphere", "capsule", "box", "cylinder", "ellipsoid", "polygon", "points"])
def test_negative_size_is_refused(kind):
    count = {"sphere": 1, "capsule": 2, "cylinder": 2, "polygon": 2}.get(kind, 3)
    with pytest.raises(ValueError, match="shape 'odd': sizes must be positive"):
        Shape(kind, (0.1,) * (count - 1) + (-0.1,), name="odd")


SOLIDS = ("sphere", "capsule", "box", "cylinder", "ellipsoid", "mesh", "plane")
REFUSED = {("plane", "plane"), ("mesh", "points"), ("ellipsoid", "points"), ("points", "points")}
REFUSED |= {(kind, "polygon") for kind in ("box", "cylinder", "ellipsoid", "mesh")}


@pytest.mark.parametrize(("first", "second"), list(combinations_with_replacement((*SOLIDS, "polygon", "points"), 2)))
def test_every_pair_of_kinds_has_a_test_or_is_refused_by_name(first, second):
    shapes = [_shape(kind, name) for kind, name in ((first, "one"), (second, "two"))]
    model = kn.build([kn.Link(s.name, joints=kn.free(), mass=1.0, inertia=(1, 1, 1), shapes=s) for s in shapes])
    if tuple(sorted((first, second))) in REFUSED:
        with pytest.raises(ValueError, match=f"'one' and 'two': no test for {first} against {second}"):
            contact_pairs(model)
    else:
        pairs = contact_pairs(model)
        contacts = jax.eval_shape(lambda: collide(model, model.reference, pairs))
        assert len(contacts) == contacts.gap.shape[0] > 0


def _shape(kind: str, name: str) -> Shape:
    if kind == "polygon":
        return kn.shapes.polygon([(0, 0), (1, 0), (0, 1)], name=name)
    if kind == "points":
        return kn.shapes.points([(0, 0, 0), (1, 0, 0)], name=name)
    count = {"sphere": 1, "capsule": 2, "cylinder": 2, "plane": 0}.get(kind, 3)
    mesh = Mesh(np.eye(4, 3), np.zeros((0, 3))) if kind == "mesh" else None
    return Shape(kind, (0.1,) * count, mesh=mesh, name=name)  # type: ignore[arg-type]


def test_shapes_that_stand_still_are_not_tested_against_each_other():
    world = [kn.shapes.plane(), kn.shapes.plane(), kn.shapes.box(1, 1, 1), kn.shapes.capsule(0.1, 1)]
    model = kn.build([kn.Link("ball", joints=kn.free(), **BALL)], world_shapes=world)
    pairs = contact_pairs(model)
    assert {frozenset((model.geometry.kind[p.a], model.geometry.kind[p.b])) for p in pairs} == {
        frozenset(("sphere", other)) for other in ("plane", "box", "capsule")
    }
    assert len(pairs) == 4


def test_a_mesh_without_vertices_is_refused_where_it_would_touch():
    hollow = Shape("mesh", name="hollow")
    model = kn.build([kn.Link("l", joints=kn.free(), mass=1.0, shapes=hollow)], world_shapes=[kn.shapes.plane()])
    with pytest.raises(ValueError, match="'hollow': a mesh needs vertices"):
        collide(model, np.asarray(model.state().q), contact_pairs(model))


def test_a_polygon_must_be_convex_and_counter_clockwise():
    square = [(0, 0), (1, 0), (1, 1), (0, 1)]
    with pytest.raises(ValueError, match="counter-clockwise"):
        kn.shapes.polygon(square[::-1], name="clockwise")
    with pytest.raises(ValueError, match="convex"):
        kn.shapes.polygon([(0, 0), (1, 0), (0.2, 0.2), (0, 1)])
    star = [(np.cos(a), np.sin(a)) for a in 4 * np.pi / 5 * np.arange(5)]  # turns left everywhere, twice round
    with pytest.raises(ValueError, match="convex"):
        kn.shapes.polygon(star)
    with pytest.raises(ValueError, match="at least 3 corners"):
        kn.shapes.polygon(square[:2])


def test_points_must_have_three_coordinates():
    with pytest.raises(ValueError, match=r"one \(x, y, z\) \[m\] each"):
        kn.shapes.points([(0.0, 0.0)])


def test_no_pairs_give_no_contacts():
    model = kn.build([kn.Link("l", joints=kn.free(), mass=1.0)])
    contacts = collide(model, np.asarray(model.state().q), contact_pairs(model))
    assert contacts.gap.shape == (0,) and contacts.point.shape == (0, 3) and len(contacts) == 0
