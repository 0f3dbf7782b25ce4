"""From a description to a model: what is merged and where, what is refused and by which name."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import knuckle as kn
from knuckle.kinematics import frame_pose
from knuckle.model import Actuator, Connect, Description, Joint, Mimic, Weld
from knuckle.model.inertia import matrix_of
from tests.random_models import random_moment, random_quaternion


def arm(**changes):
    """A link `arm` on a hinge `elbow`, with changes to the link."""
    return kn.Link(**{"name": "arm", "joints": kn.revolute("y", name="elbow"), "mass": 1.0, "com": (0, 0, 1)} | changes)


def elbow(kind: Any = "revolute", **changes):
    return arm(joints=Joint(kind, name="elbow", **changes), inertia=(1, 1, 1))


def test_a_double_pendulum_in_a_few_lines():
    rod = {"mass": 1.0, "com": (0, 0, -0.25), "inertia": (0.02, 0.02, 0.001)}
    model = kn.build(
        [
            kn.Link("upper", joints=kn.revolute("y"), **rod),
            kn.Link("lower", parent="upper", joints=kn.revolute("y"), position=(0, 0, -0.5), **rod),
        ]
    )
    assert (model.nq, model.nv, model.nu) == (2, 2, 0)
    assert model.link_names == ("upper", "lower")
    assert model.joint_names == ("upper_joint", "lower_joint")
    assert model.mass == 2.0
    assert all(leaf.dtype == np.float64 for leaf in (model.axis, model.inertia.mass, model.gravity))
    assert "2 links" in repr(model)


def test_parents_may_stand_after_children_and_branches_stay_in_one_piece():
    named = [("c", "b"), ("d", "a"), ("b", "a"), ("e", "b"), ("a", "world")]
    model = kn.build([kn.Link(n, parent=p, joints=kn.revolute(), mass=1.0, com=(1, 0, 0)) for n, p in named])
    assert model.link_names == ("a", "d", "b", "c", "e")
    assert model.topology.parent == (-1, 0, 0, 2, 2)


def test_several_joints_on_a_body_are_links_without_mass_before_it():
    joints = [kn.prismatic("x", name="slide"), kn.revolute("y", name="turn"), kn.ball(name="wrist")]
    model = kn.build([arm(joints=joints)])
    assert model.link_names == ("arm/slide", "arm/turn", "arm")
    assert model.joint_names == ("slide", "turn", "wrist")
    assert np.array_equal(model.inertia.mass, [0, 0, 1])
    assert (model.nq, model.nv) == (6, 5)


def test_numbers_of_a_joint_are_one_for_all_freedoms_or_one_each():
    joint = kn.planar(name="slab", damping=2.0, stiffness=(1.0, 2.0, 3.0), rest=0.5, lower=-1, upper=(1, 2, 3))
    model = kn.build([arm(joints=joint)])
    assert np.array_equal(model.damping, [2, 2, 2]) and np.array_equal(model.stiffness, [1, 2, 3])
    assert np.array_equal(model.rest, [0.5] * 3) and np.array_equal(model.reference, [0] * 3)
    assert np.array_equal(model.lower, [-1] * 3) and np.array_equal(model.upper, [1, 2, 3])


def test_springs_relax_at_the_reference_unless_told_otherwise():
    model = kn.build([arm(joints=kn.revolute(reference=0.3))])
    assert model.rest == model.reference == 0.3
    np.testing.assert_array_equal(model.state().q, [0.3])


def random_body(rng, name, parent, joints=()):
    mass = rng.uniform(0.5, 2)
    return kn.Link(
        name,
        parent,
        joints,
        position=rng.normal(size=3),
        rotation=random_quaternion(rng),
        mass=mass,
        com=rng.normal(size=3),
        inertia=random_moment(rng, mass),
        frames=[kn.Frame(f"{name}_site", rng.normal(size=3), random_quaternion(rng))],
    )


def test_nested_welds_merge_into_the_body_that_carries_them():
    rng = np.random.default_rng(0)
    base = random_body(rng, "base", "world", kn.free())
    inner, outer = random_body(rng, "inner", "base"), random_body(rng, "outer", "inner")
    model = kn.build([base, inner, outer])
    assert model.link_names == ("base",)

    # Independently: 4x4 transforms, and 4x4 pseudo-inertias, which transform as T J T^T and add up.
    T_inner = transform(inner)
    T_outer = T_inner @ transform(outer)
    J = pseudo_inertia(base) + sum(T @ pseudo_inertia(b) @ T.T for T, b in ((T_inner, inner), (T_outer, outer)))
    mass, com = J[3, 3], J[:3, 3] / J[3, 3]
    second = J[:3, :3] - mass * np.outer(com, com)
    np.testing.assert_allclose(model.inertia.mass[0], mass, rtol=1e-13)
    np.testing.assert_allclose(model.inertia.com[0], com, rtol=1e-12)
    expected = np.trace(second) * np.eye(3) - second
    np.testing.assert_allclose(matrix_of(np.asarray(model.inertia.moment[0])), expected, rtol=1e-11, atol=1e-12)

    T_base = np.eye(4)
    T_base[:3, :3] = Rotation.from_quat(base.rotation, scalar_first=True).as_matrix()
    T_base[:3, 3] = base.position
    q = model.state().q
    for name, T in (("base", np.eye(4)), ("inner", T_inner), ("outer", T_outer)):
        check_pose(frame_pose(model, q, name), T_base @ T)
    check_pose(frame_pose(model, q, "outer_site"), T_base @ T_outer @ transform(outer.frames[0]))


def test_links_welded_to_the_world_carry_frames_shapes_and_moving_links():
    rng = np.random.default_rng(1)
    wall, bracket = random_body(rng, "wall", "world"), random_body(rng, "bracket", "wall")
    hinge = random_body(rng, "door", "bracket", kn.revolute("z"))
    model = kn.build([wall, bracket, hinge])
    assert model.link_names == ("door",) and model.inertia.mass.sum() == hinge.mass
    assert model.mass == pytest.approx(wall.mass + bracket.mass + hinge.mass, rel=1e-14)
    T = transform(wall) @ transform(bracket)
    check_pose(frame_pose(model, model.state().q, "bracket"), T)
    check_pose(frame_pose(model, model.state().q, "door"), T @ transform(hinge))


def transform(placed):
    T = np.eye(4)
    T[:3, :3] = Rotation.from_quat(placed.rotation, scalar_first=True).as_matrix()
    T[:3, 3] = placed.position
    return T


def pseudo_inertia(body):
    """The second moments of mass of homogeneous points (x, y, z, 1) of a body, in its own frame."""
    second = 0.5 * np.trace(body.inertia) * np.eye(3) - body.inertia
    J = np.zeros((4, 4))
    J[:3, :3] = second + body.mass * np.outer(body.com, body.com)
    J[:3, 3] = J[3, :3] = body.mass * np.asarray(body.com)
    J[3, 3] = body.mass
    return J


def check_pose(found, T):
    np.testing.assert_allclose(found.rotation, T[:3, :3], atol=1e-14)
    np.testing.assert_allclose(found.position, T[:3, 3], atol=1e-14)


def test_axes_and_quaternions_are_made_unit_length():
    model = kn.build([arm(joints=kn.revolute((0, 3, 4)), rotation=(2, 0, 0, 0))])
    np.testing.assert_allclose(model.axis, [[0, 0.6, 0.8]])
    np.testing.assert_array_equal(model.rotation, [[1, 0, 0, 0]])


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e200, 1e308])
def test_axes_and_quaternions_of_any_length_are_made_unit_length(scale):
    """Squares of these are zero or infinite: axes had been NaN or zero in silence."""
    model = kn.build([arm(joints=kn.revolute((0, scale, scale)), rotation=(scale, 0, 0, 0))])
    np.testing.assert_allclose(model.axis, [[0, 0.5**0.5, 0.5**0.5]])
    np.testing.assert_array_equal(model.rotation, [[1, 0, 0, 0]])


def test_names_of_joints_actuators_and_keyframes_are_found():
    model = kn.build([arm()], actuators=[kn.motor("elbow", gear=2.0)], keyframes={"up": (math.pi,)})
    assert model.actuators.names == ("elbow_actuator0",) and model.nu == 1
    assert model.state("up").q == math.pi
    with pytest.raises(ValueError, match="no keyframe 'down'; there are up"):
        model.state("down")
    with pytest.raises(ValueError, match=r"qd must have 1 entries.*\(2,\)"):
        model.state(qd=np.zeros(2))


NAN, INF = math.nan, math.inf

BAD_LINKS = {
    "unknown parent": ([arm(parent="shoulder")], ("arm", "shoulder")),
    "ring": ([arm(), kn.Link("a", "b"), kn.Link("b", "a")], ("a, b", "ring")),
    "own parent": ([arm(parent="arm")], ("arm", "ring")),
    "duplicate link": ([arm(), arm(joints=())], ("arm", "twice")),
    "duplicate joint": ([arm(), arm(name="leg")], ("elbow", "twice")),
    "duplicate frame": ([arm(frames=[kn.Frame("arm")])], ("arm", "twice")),
    "frame named twice": ([arm(frames=[kn.Frame("tip"), kn.Frame("tip")])], ("tip", "twice")),
    "called world": ([arm(name="world")], ("world",)),
    "nothing moves": ([arm(joints=())], ("no link has a joint",)),
    "no links": ([], ("no link has a joint",)),
    "zero quaternion": ([arm(rotation=(0, 0, 0, 0))], ("arm", "rotation", "zero")),
    "short quaternion": ([arm(rotation=(1, 0, 0))], ("arm", "rotation", "4 finite")),
    "position NaN": ([arm(position=(NAN, 0, 0))], ("arm", "position", "3 finite")),
    "zero quaternion of frame": ([arm(frames=[kn.Frame("tip", rotation=(0, 0, 0, 0))])], ("tip", "zero")),
    "com of two numbers": ([arm(com=(0, 1))], ("arm", "com", "3 finite")),
    "com NaN": ([arm(com=(0, NAN, 1))], ("arm", "com", "3 finite")),
    "com NaN on a welded link": ([arm(), kn.Link("w", mass=1.0, com=(0, NAN, 1))], ("w", "com", "3 finite")),
    "negative mass": ([arm(mass=-1.0)], ("arm", "mass", "negative")),
    "mass NaN": ([arm(mass=NAN)], ("arm", "finite")),
    "triangle inequality": ([arm(inertia=(1, 1, 3))], ("arm", "triangle")),
    "negative moment": ([arm(inertia=(-1, 1, 1))], ("arm", "positive definite")),
    "inertia of four": ([arm(inertia=(1, 1, 1, 1))], ("arm", "inertia")),
    "inertia without mass": ([arm(mass=0.0, inertia=(1, 1, 1))], ("arm", "without mass")),
    "unknown kind": ([elbow("screw")], ("arm", "screw")),
    "zero axis": ([elbow(axis=(0, 0, 0))], ("elbow", "axis", "zero")),
    "axis NaN": ([elbow(axis=(0, NAN, 1))], ("elbow", "axis", "3 finite")),
    "axis by a wrong letter": ([elbow(axis="w")], ("elbow", "axis", "'w'")),
    "axis of two": ([elbow(axis=(1, 0))], ("elbow", "axis", "3 finite")),
    "anchor of two": ([elbow(anchor=(1, 0))], ("elbow", "anchor", "3 finite")),
    "limits reversed": ([elbow(lower=1.0, upper=-1.0)], ("elbow", "lower", "above")),
    "one limit of three reversed": ([elbow("planar", lower=(0, 0, 2.0), upper=1.0)], ("elbow", "lower")),
    "limit NaN": ([elbow(lower=NAN)], ("elbow", "lower")),
    "stiffness of two": ([elbow(stiffness=(1, 2))], ("elbow", "stiffness")),
    "negative stiffness": ([elbow(stiffness=-1.0)], ("elbow", "stiffness", "below 0")),
    "negative armature": ([elbow(armature=-1.0)], ("elbow", "armature", "below 0")),
    "negative friction": ([elbow(friction=-1.0)], ("elbow", "friction", "below 0")),
    "negative effort": ([elbow(effort=-1.0)], ("elbow", "effort", "below 0")),
    "damping NaN": ([elbow(damping=NAN)], ("elbow", "damping")),
    "infinite damping": ([elbow(damping=INF)], ("elbow", "damping", "finite")),
    "infinite stiffness": ([elbow(stiffness=INF)], ("elbow", "stiffness", "finite")),
    "infinite armature": ([elbow(armature=INF)], ("elbow", "armature", "finite")),
    "infinite friction": ([elbow(friction=INF)], ("elbow", "friction", "finite")),
    "reference of two": ([elbow(reference=(0, 0))], ("elbow", "reference", "1 finite")),
    "rest of a ball as a number": ([elbow("ball", rest=0.0)], ("elbow", "rest", "4 finite")),
    "rest of a ball zero": ([elbow("ball", rest=(0, 0, 0, 0))], ("elbow", "rest", "zero")),
    "reference of a free joint zero": ([elbow("free", reference=(0,) * 7)], ("elbow", "reference", "zero")),
}


@pytest.mark.parametrize("name", BAD_LINKS)
def test_bad_links_and_joints_are_refused_by_name(name):
    links, said = BAD_LINKS[name]
    with pytest.raises(ValueError) as caught:
        kn.build(links)
    for words in said:
        assert words in str(caught.value)


BAD_OPTIONS = {
    "gravity of two": ({"gravity": (0, 0)}, ("gravity", "3 finite")),
    "gravity NaN": ({"gravity": (0, 0, NAN)}, ("gravity", "3 finite")),
    "keyframe too long": ({"keyframes": {"home": (0, 1)}}, ("home", "1 finite")),
    "exclude of nobody": ({"excludes": [("arm", "leg")]}, ("leg",)),
    "actuator of nothing": ({"actuators": [kn.motor("knee", name="m")]}, ("m", "knee", "elbow")),
    "gear of two": ({"actuators": [kn.motor("elbow", gear=(1, 2), name="m")]}, ("m", "gear")),
    "gear NaN": ({"actuators": [kn.motor("elbow", gear=NAN, name="m")]}, ("m", "gear")),
    "control reversed": (
        {"actuators": [kn.motor("elbow", name="m", control_lower=1, control_upper=0)]},
        ("m", "control"),
    ),
    "force reversed": ({"actuators": [kn.motor("elbow", name="m", force_lower=1, force_upper=0)]}, ("m", "force")),
    "force NaN": ({"actuators": [kn.motor("elbow", name="m", force_upper=NAN)]}, ("m", "force")),
    "gain NaN": ({"actuators": [Actuator("elbow", name="m", gain=NAN)]}, ("m", "gain")),
    "bias NaN": ({"actuators": [Actuator("elbow", name="m", bias=(0, NAN, 0))]}, ("m", "bias")),
    "bias of two, three times": (
        {"actuators": [Actuator("elbow", name=f"m{i}", bias=(1.0, 2.0)) for i in range(3)]},
        ("m0", "bias"),
    ),
    "actuator twice": ({"actuators": [kn.motor("elbow", name="m")] * 2}, ("m", "differ")),
    "connect to nobody": ({"equalities": [Connect("arm", "leg", name="loop")]}, ("loop", "leg")),
    "connect at NaN": ({"equalities": [Connect("arm", point_a=(NAN, 0, 0), name="loop")]}, ("loop", "point_a")),
    "weld turned by zero": (
        {"equalities": [Weld("arm", rotation_a=(0, 0, 0, 0), name="loop")]},
        ("loop", "rotation_a"),
    ),
    "mimic of nothing": ({"equalities": [Mimic("elbow", "knee", name="pair")]}, ("pair", "knee")),
    "mimic of a short polynomial": (
        {"equalities": [Mimic("elbow", polynomial=(0, 1), name="pair")]},
        ("pair", "5 finite"),
    ),
    "world frame twice": ({"world_frames": [kn.Frame("arm")]}, ("arm", "twice")),
    "world shape turned by zero": (
        {"world_shapes": [kn.shapes.plane(name="floor", rotation=(0, 0, 0, 0))]},
        ("floor", "zero"),
    ),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_actuators_constraints_and_options_are_refused_by_name(name):
    options, said = BAD_OPTIONS[name]
    with pytest.raises(ValueError) as caught:
        kn.build([arm()], **options)
    for words in said:
        assert words in str(caught.value)


def test_mimic_needs_joints_of_one_coordinate():
    links = [elbow(), kn.Link("hand", "arm", kn.ball(name="wrist"), mass=1.0, inertia=(1, 1, 1))]
    with pytest.raises(ValueError, match=r"pair.*wrist.*ball"):
        kn.build(links, equalities=[Mimic("elbow", "wrist", name="pair")])


def test_equalities_stand_on_the_links_that_remain():
    links = [arm(), kn.Link("tool", "arm", position=(0, 0, 1), rotation=(0, 1, 0, 0))]
    model = kn.build(
        links,
        equalities=[Connect("tool", point_a=(0, 0, 0.5), name="loop"), Mimic("elbow", polynomial=(1, 0, 0, 0, 0))],
    )
    assert model.equalities.kind == ("connect", "mimic") and model.equalities.a == (0, 0)
    assert model.equalities.b == (-1, -1)
    np.testing.assert_allclose(model.equalities.position_a[0], [0, 0, 0.5], atol=1e-15)  # 1 - 0.5, upside down


def test_a_description_builds_as_its_parts_do():
    by_parts = kn.build([arm()], gravity=(0, 0, -1.62), name="moon")
    whole = kn.build(Description([arm()], gravity=(0, 0, -1.62), name="moon"))
    assert whole.name == by_parts.name == "moon" and np.array_equal(whole.gravity, by_parts.gravity)
