"""URDF that is written loads back as the same model; what URDF has no place for is named."""

import csv
import math
import os
import warnings
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import equinox as eqx
import numpy as np
import pinocchio
import pytest
import trimesh
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from knuckle.model import description as kd
from knuckle.model import geometry as shapes
from knuckle.model.build import build
from knuckle.model.export import differences, save
from knuckle.model.export_urdf import roll_pitch_yaw, write
from knuckle.model.geometry import Geometry
from knuckle.model.load import load
from knuckle.model.model import Frames, Model
from knuckle.model.report import LoadWarning

DATA = Path(os.environ.get("KNUCKLE_DATA", Path(__file__).parents[3] / "shared" / "data")) / "robots" / "urdf"
MANIFEST = list(csv.DictReader((DATA / "manifest.csv").open())) if (DATA / "manifest.csv").exists() else []
CLOSES_LOOPS = "urdf_files_dataset__robotiq.urdf"
ROBOTS = [row["file"] for row in MANIFEST if row["file"] != CLOSES_LOOPS]

turns = st.lists(st.floats(-7, 7), min_size=3, max_size=3).map(lambda a: Rotation.from_euler("xyz", a))


@given(turns)
@example(Rotation.from_euler("y", math.pi / 2))
@example(Rotation.from_euler("xyz", [0.3, math.pi / 2 - 1e-9, -1.2]))
@example(Rotation.from_euler("xyz", [2.0, -math.pi / 2 + 3e-8, 0.7]))
def test_roll_pitch_yaw_gives_the_rotation_back(turn):
    R = turn.as_matrix()
    back = Rotation.from_euler("xyz", roll_pitch_yaw(R)).as_matrix()
    np.testing.assert_allclose(back, R, atol=4e-15)  # a dozen roundings


def zoo() -> kd.Description:
    """A mechanism with all that URDF can hold."""
    turn = Rotation.from_euler("xyz", [0.3, 1.5707963, -0.2]).as_quat()[[3, 0, 1, 2]]
    heavy = {"mass": 1.25, "com": (0.1, 0.2, 0.3), "inertia": (0.2, 0.3, 0.4, 0.01, 0.02, 0.03)}
    limits = {"lower": -1.0, "upper": 2.0, "damping": 0.1, "friction": 0.2, "effort": 3.0, "speed": 4.0}
    blue = (0.1, 0.2, 0.9, 1.0)
    links = [
        kd.Link("slab", joints=kd.planar((0.0, 0.6, 0.8), name="slide"), position=(1, 2, 3), rotation=turn, **heavy),
        kd.Link(
            "arm", "slab", kd.revolute((1, 2, 2), name="elbow", **limits), shapes=shapes.capsule(0.1, 0.7, name="c")
        ),
        kd.Link(
            "tip",
            "arm",
            position=(0, 0, 1 / 3),
            rotation=turn,
            **heavy,
            shapes=[
                shapes.sphere(0.2, name="ball", position=(0.1, 0.2, 1 / 7)),
                shapes.cylinder(0.1, 0.2, name="puck", position=(0.3, 0, 0), rotation=(0.5, -0.5, 0.1, 0.7)),
            ],
        ),
        kd.Link("kite", "tip", kd.free(name="string"), position=(0.1, 0, 0), **heavy),
        kd.Link("fan", "slab", kd.revolute("y", name="spin", effort=2.0), frames=[kd.Frame("hub", (0, 1, 0), turn)]),
        kd.Link(
            "rod",
            "fan",
            kd.prismatic("x", name="push", lower=-0.5, upper=1.0),
            shapes=shapes.box(1, 2, 3, name="b", rgba=blue),
        ),
        kd.Link(
            "post",
            position=(5, 0, 0),
            rotation=turn,
            mass=3.0,
            shapes=shapes.sphere(0.1, name="paint", position=(0, 0, 2), contype=0, conaffinity=0),
        ),
        kd.Link("lamp", "post", mass=2.5, position=(0, 1, 0)),
    ]
    motors = [kd.motor("slide", np.eye(3)[k], name=f"slide_{n}") for k, n in enumerate(("x", "y", "turn"))]
    motors += [kd.motor(joint, name=joint) for joint in ("elbow", "spin", "push")]
    floor = shapes.box(9, 9, 0.1, name="floor", position=(0, 0, -0.1), contype=0, conaffinity=0)
    return kd.Description(
        links,
        name="zoo",
        world_shapes=[floor, shapes.sphere(0.3, name="s"), shapes.cylinder(0.1, 0.3, name="y")],
        world_frames=[kd.Frame("camera", (1, 1, 1), turn)],
        actuators=motors,
        equalities=[kd.Mimic("push", "spin", (0.5, -2.0, 0.0, 0.0, 0.0), name="push_mimic")],
    )


def test_everything_that_urdf_can_hold_comes_back():
    model = build(zoo())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = load(write(model))
    assert differences(model, back) == []
    assert back.topology == model.topology


def test_other_readers_take_what_is_written():
    model = build(zoo())
    theirs = pinocchio.buildModelFromXML(write(model))  # type: ignore[attr-defined]
    assert theirs.nv == model.nv and set(theirs.names) - {"universe"} == set(model.joint_names)


@pytest.mark.skipif(not MANIFEST, reason=f"no robot descriptions in {DATA} (set KNUCKLE_DATA)")
@pytest.mark.parametrize(
    ("name", "floating"), [(name, None) for name in ROBOTS[::3]] + [(name, True) for name in ROBOTS[1::9]]
)
def test_robots_come_back(name, floating):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoadWarning)
        model = load(DATA / name, floating=floating, repair_inertia=True)
        assert differences(model, load(write(model))) == []


@pytest.mark.skipif(not MANIFEST, reason=f"no robot descriptions in {DATA} (set KNUCKLE_DATA)")
def test_a_robot_with_closed_loops_is_refused_by_name():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoadWarning)
        model = load(DATA / CLOSES_LOOPS, repair_inertia=True)
    with pytest.raises(ValueError, match="equality 'finger_1_fourbar_0_joint_3_0': there is no connect"):
        write(model)


def test_meshes_come_back_beside_their_files(tmp_path):
    trimesh.creation.icosphere(1).export(tmp_path / "ball.obj")
    text = write(build(zoo())).replace('<box size="2.0 4.0 6.0" />', '<mesh filename="ball.obj" scale="2 2 0.5"/>')
    (tmp_path / "a.urdf").write_text(text)
    model = load(tmp_path / "a.urdf")
    assert "mesh" in model.geometry.kind
    save(model, tmp_path / "b.urdf")
    assert differences(model, load(tmp_path / "b.urdf")) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.urdf", "b.urdf", "ball.obj"]


def tetrahedron(size: float = 1.0, path: str = "") -> shapes.Mesh:
    corners = np.array([(0, 0, 0), (1 / 3, 0, 0), (0, 0.1, 0), (0, 0, 1)]) * size
    return shapes.Mesh(corners, np.array([(0, 2, 1), (0, 1, 3), (0, 3, 2), (1, 2, 3)]), path)


def with_meshes(*meshes: shapes.Mesh) -> Model:
    drawn = [shapes.Shape("mesh", (1, 2, -0.5), name=f"m{k}", mesh=mesh) for k, mesh in enumerate(meshes)]
    return build(pendulum(shape=drawn))


def test_meshes_that_are_not_found_from_the_new_file_are_written_beside_it(tmp_path):
    """From the names of files elsewhere, without a name, twice the same name, and a name that leads to another mesh."""
    trimesh.creation.icosphere(1).export(tmp_path / "other.obj")
    meshes = tetrahedron(1, "package://robot/arm.stl"), tetrahedron(2), tetrahedron(3, "../../arm.stl")
    model = with_meshes(*meshes, meshes[0], tetrahedron(4, "other.obj"))
    save(model, tmp_path / "a.urdf")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = load(tmp_path / "a.urdf")
    assert differences(model, back) == []
    for wanted, found in zip(model.geometry.mesh, back.geometry.mesh, strict=True):
        assert wanted is not None and found is not None
        np.testing.assert_array_equal(found.vertices, wanted.vertices)
    written = {"arm.obj", "mesh.obj", "arm_2.obj", "other.obj"}
    assert {p.name for p in (tmp_path / "a_meshes").iterdir()} == written
    save(back, tmp_path / "a.urdf")
    save(model, tmp_path / "a.urdf")
    assert {p.name for p in (tmp_path / "a_meshes").iterdir()} == written


def test_a_failed_save_takes_its_meshes_away(tmp_path):
    model = with_meshes(tetrahedron())
    refused = eqx.tree_at(lambda m: m.gravity, model, np.zeros(3))
    with pytest.raises(ValueError, match="gravity"):
        save(refused, tmp_path / "a.urdf")
    assert not list(tmp_path.iterdir())
    save(model, tmp_path / "a.urdf")
    refused = eqx.tree_at(lambda m: m.gravity, with_meshes(tetrahedron(), tetrahedron(2)), np.zeros(3))
    with pytest.raises(ValueError, match="gravity"):
        save(refused, tmp_path / "a.urdf")
    assert [p.name for p in (tmp_path / "a_meshes").iterdir()] == ["mesh.obj"]
    assert differences(model, load(tmp_path / "a.urdf")) == []


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder '.*nowhere'"):
        save(build(pendulum()), tmp_path / "nowhere" / "a.urdf")


def test_shapes_of_welded_links_stay_in_their_own_links():
    text = write(build(zoo()))
    links = {link.get("name"): link for link in ElementTree.fromstring(text).findall("link")}
    assert [shape.get("name") for shape in links["tip"].findall("collision")] == ["ball", "puck"]
    assert [shape.get("name") for shape in links["arm"].findall("collision")] == ["c"]
    assert [shape.get("name") for shape in links["post"].findall("visual")] == ["paint"]


def test_mass_welded_to_the_ground_is_kept():
    model = build(zoo())
    assert model.topology.ground_mass == 5.5
    back = load(write(model))
    assert back.topology.ground_mass == 5.5 and float(back.mass) == float(model.mass)
    nameless = Frames(np.zeros((0, 3)), np.zeros((0, 4)), (), ())
    lost = eqx.tree_at(lambda m: (m.frames, m.geometry), model, (nameless, Geometry.of([])))
    with pytest.raises(ValueError, match=r"mass of 5\.5 kg welded to the world: no frame"):
        write(lost)


def pendulum(joint: kd.Joint | None = None, shape=None, motors: bool = True, **options) -> kd.Description:
    joint = joint or kd.revolute("y", name="hinge")
    actuators = [kd.motor("hinge", name="hinge")] if motors and joint.kind != "free" else []
    link = kd.Link("bob", joints=joint, mass=1.0, inertia=(1, 1, 1), shapes=shape or ())
    return kd.Description([link], **{"name": "pendulum", "actuators": actuators, **options})


def hinge(**options) -> kd.Joint:
    return kd.revolute("y", name="hinge", **options)


def ball(**options) -> shapes.Shape:
    return shapes.sphere(0.1, name="s", **options)


@pytest.mark.parametrize(
    ("description", "named"),
    [
        (pendulum(kd.ball(name="hinge"), motors=False), "joint 'hinge': there are no ball joints"),
        (pendulum(hinge(anchor=(0, 0, 1))), "joint 'hinge': a link turns about its own origin, here about 0.0 0.0 1.0"),
        (pendulum(hinge(reference=0.5)), "joint 'hinge': the reference is zero, here it is 0.5"),
        (pendulum(hinge(rest=0.5)), "joint 'hinge': the rest is zero, here it is 0.5"),
        (pendulum(hinge(stiffness=2)), "joint 'hinge': no stiffness, here 2.0"),
        (pendulum(hinge(armature=2)), "joint 'hinge': no armature, here 2.0"),
        (pendulum(hinge(effort=0)), "joint 'hinge': a largest effort of zero stands for none"),
        (pendulum(hinge(lower=0, upper=0)), "joint 'hinge': limits 0..0 stand for none"),
        (pendulum(hinge(upper=1)), "joint 'hinge': no limit on one side only, here -inf..1"),
        (pendulum(hinge(damping=-1)), "joint 'hinge': no negative damping, here -1"),
        (pendulum(kd.free(name="hinge", damping=1)), "joint 'hinge': no damping on a free joint"),
        (pendulum(gravity=(0, 0, -1.6)), "gravity 0.0 0.0 -1.6"),
        (pendulum(keyframes={"up": (1.0,)}), "keyframe 'up'"),
        (pendulum(excludes=[("bob", "world")]), "exclude 'bob', 'world'"),
        (pendulum(equalities=[kd.Weld("bob", name="glue")]), "equality 'glue': there is no weld"),
        (pendulum(equalities=[kd.Mimic("hinge", name="hold")]), "equality 'hold': only an active, linear mimic"),
        (pendulum(motors=False), "actuators none: every joint has its motor, that is hinge"),
        (pendulum(actuators=[kd.motor("hinge", 2.0, name="hinge")]), "actuators: no gear other than 1"),
        (pendulum(actuators=[kd.position_servo("hinge", 1.0, name="hinge")]), "actuator 'hinge': URDF has no place"),
        (pendulum(actuators=[kd.motor("hinge", name="hinge", force_upper=1.0)]), "actuator 'hinge': only motors"),
        (pendulum(shape=shapes.ellipsoid(1, 2, 3, name="egg")), "shape 'egg': there is no ellipsoid"),
        (pendulum(world_shapes=[shapes.plane(name="floor")]), "shape 'floor': there is no plane"),
        (pendulum(shape=ball(contype=2)), "shape 's': contype and conaffinity"),
        (pendulum(shape=ball(friction=(0.5, 0.005, 0.0001))), "shape 's': no friction of its own, here 0.5"),
        (
            pendulum(shape=shapes.Shape("mesh", name="m", mesh=shapes.Mesh(np.eye(3), np.zeros((0, 3))))),
            "shape 'm': a mesh has triangles, and this one has none",
        ),
    ],
)
def test_what_urdf_cannot_hold_is_refused_by_name(description, named, tmp_path):
    assert differences(build(pendulum()), load(write(build(pendulum())))) == []
    path = tmp_path / "kept.urdf"
    path.write_text("as it was")
    with pytest.raises(ValueError) as caught:
        save(build(description), path)
    assert str(caught.value).startswith("URDF cannot hold this model:") and f"\n  {named}" in str(caught.value)
    assert path.read_text() == "as it was"


def test_all_that_is_refused_is_listed():
    description = replace(pendulum(hinge(stiffness=2, armature=1)), gravity=(0, 0, 0))
    with pytest.raises(ValueError) as caught:
        write(build(description))
    assert len(str(caught.value).splitlines()) == 4
