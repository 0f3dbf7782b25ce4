"""MJCF that is written loads back as the same model, here and in MuJoCo; what MJCF has no place for is named."""

import os
import warnings
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knuckle.model import description as kd
from knuckle.model import geometry as shapes
from knuckle.model.build import build
from knuckle.model.export import differences, save
from knuckle.model.export_mjcf import CannotHold, write
from knuckle.model.inertia import rotation_matrix
from knuckle.model.load import load
from knuckle.model.model import Model

ROBOTS = Path(os.environ.get("KNUCKLE_DATA", Path(__file__).parents[3] / "shared" / "data")) / "robots"
TURN = (0.5, -0.5, 0.1, 0.7)
HEAVY = {"mass": 1.25, "com": (0.1, 0.2, 0.3), "inertia": (0.2, 0.3, 0.4, 0.01, 0.02, 0.03)}
CORNERS, SIDES = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)], [(0, 2, 1), (0, 1, 3), (0, 3, 2), (1, 2, 3)]
TETRAHEDRON = shapes.Mesh(np.array(CORNERS), np.array(SIDES), "t.stl")


def zoo() -> kd.Description:
    """A mechanism with all that MJCF can hold."""
    free = kd.free(
        name="root", reference=(1, 2, 3, 0.6, 0, 0.8, 0), stiffness=2.0, rest=(1, 2, 3, 0.6, 0, 0.8, 0), damping=0.1
    )
    hinge = {
        "anchor": (0.1, 0, 0.3),
        "reference": 0.4,
        "rest": -0.2,
        "stiffness": 3.0,
        "damping": 0.2,
        "armature": 0.05,
    }
    slide = kd.prismatic((1, 1, 0), name="slide", lower=-0.5, speed=3.0)
    ball = kd.ball(name="ball", anchor=(0, 0.1, 0), upper=1.5, damping=0.3, friction=0.1)
    mesh = shapes.Shape("mesh", (1, 2, 0.5), position=(0.1, 0.2, 0.3), rotation=TURN, mesh=TETRAHEDRON, name="m")
    links = [
        kd.Link(
            "trunk",
            joints=free,
            **HEAVY,
            shapes=[shapes.box(1, 2, 3, name="b"), mesh],
            frames=[kd.Frame("imu", (1, 0, 0), TURN)],
        ),
        kd.Link("deck", "trunk", position=(0, 0, 1), rotation=TURN, **HEAVY, shapes=shapes.capsule(0.1, 0.2, name="c")),
        kd.Link(
            "arm",
            "deck",
            [slide, kd.revolute((1, 2, 2), name="hinge", effort=4.0, **hinge)],
            position=(0.1, 0.2, 0.3),
            **HEAVY,
        ),
        kd.Link(
            "hand", "arm", ball, position=(0, 0, 1), rotation=TURN, **HEAVY, shapes=shapes.ellipsoid(1, 2, 3, name="e")
        ),
        kd.Link("rod", "arm", kd.revolute("x", name="r1"), mass=1.0, inertia=(0.0, 0.4, 0.4)),
        kd.Link("plate", "rod", kd.revolute("y", name="r2"), mass=1.0, inertia=(0.1, 0.2, 0.1 + 0.2, 0.0, 0.0, 0.0)),
        kd.Link("nothing", "plate", kd.revolute("z", name="r3"), position=(0, 0, 0.1)),
        kd.Link("point", "nothing", kd.revolute("z", name="r4", friction=0.3), mass=0.7, com=(0.1, 0, 0)),
        kd.Link(
            "post",
            mass=3.0,
            position=(5, 0, 0),
            rotation=TURN,
            shapes=shapes.cylinder(0.1, 0.5, name="y", rgba=(0.1, 0.2, 0.3, 1.0)),
        ),
    ]
    actuators = [
        kd.motor("root", gear=(1, 0, 3, 0.1, 0, 0.3), name="thrust"),
        kd.position_servo("hinge", kp=20.0, kv=2.0, name="servo", control_lower=-1.0, force_upper=5.0),
        kd.velocity_servo("ball", kv=1.0, gear=(0.1, 0.2, 0.3), name="spin"),
    ]
    equalities = [
        kd.Connect("hand", "deck", (0.1, 0, 0), (0, 0.2, 0), name="pin"),
        kd.Weld("point", "world", (0.1, 0, 0), TURN, (0, 0.2, 0), (0.6, 0, 0, 0.8), 0.7, name="glue", active=False),
        kd.Mimic("r1", "r2", (0.1, 2.0, 0.0, 0.5, 0.0), name="follow"),
        kd.Mimic("r3", None, (0.1, 0.0, 0.0, 0.0, 0.0), name="held"),
    ]
    return kd.Description(
        links,
        name="zoo",
        gravity=(0.1, 0.2, -1.6),
        world_shapes=[
            shapes.plane(name="floor", friction=(0.5, 0.01, 0.02)),
            shapes.sphere(0.3, name="s", contype=2, conaffinity=0, margin=0.1, gap=0.2, priority=3, solref=(0.1, 0.7)),
        ],
        world_frames=[kd.Frame("camera", (1, 1, 1), TURN)],
        actuators=actuators,
        equalities=equalities,
        excludes=[("trunk", "deck"), ("world", "arm")],
        pairs=[
            shapes.ContactPair("y", "b", (0.3, 0.01, 0.02), 0.04, 6, 0.1, (0.05, 0.9), (0.1, 1), name="sole"),
            shapes.ContactPair("b", "e"),
        ],
        timestep=0.003,
        integrator="implicitfast",
        parents_collide=True,
        keyframes={"home": np.concatenate([(1, 2, 3, 0.6, 0, 0.8, 0, 0.1, 0.2, 1), np.zeros(7)])},
    )


def assert_same(model: Model, back: Model) -> None:
    """Equal arrays, and all that is no number equal too: names, order, topology, meshes, colours."""
    assert differences(model, back) == []
    assert jax.tree.structure(model) == jax.tree.structure(back)
    assert back.mass == pytest.approx(float(model.mass), rel=1e-14)


def test_everything_that_mjcf_can_hold_comes_back(tmp_path):
    model = build(zoo())
    save(model, tmp_path / "zoo.xml")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = load(tmp_path / "zoo.xml")
    assert_same(model, back)
    assert [p.name for p in tmp_path.iterdir()] == ["zoo.xml"]


def test_what_is_written_is_the_same_mechanism_in_mujoco():
    model = build(zoo())
    theirs = mujoco.MjModel.from_xml_string(write(model))
    assert (theirs.nq, theirs.nv, theirs.nu, theirs.neq) == (model.nq, model.nv, model.nu, 4)
    moving = theirs.body_dofnum[theirs.body_weldid] > 0
    assert theirs.body_mass[moving].sum() == pytest.approx(model.inertia.mass.sum(), rel=1e-14)
    data = mujoco.MjData(theirs)
    np.testing.assert_array_equal(data.qpos, model.reference)


@pytest.mark.skipif(not ROBOTS.is_dir(), reason=f"no robot descriptions in {ROBOTS} (set KNUCKLE_DATA)")
@pytest.mark.filterwarnings("ignore::knuckle.model.report.LoadWarning")
def test_robots_come_back():
    files = [*sorted(ROBOTS.glob("mjcf/*.xml")), *sorted(ROBOTS.glob("urdf/*.urdf"))[::3]]
    assert files
    for file in files:
        model, _ = load(file, strict=False, repair_inertia=True)
        assert_same(model, load(write(model)))


positions = st.tuples(*[st.floats(-3, 3)] * 3)
turns = st.tuples(*[st.floats(-1, 1)] * 4).filter(lambda q: np.linalg.norm(q) > 0.1)
axes = st.tuples(*[st.floats(-1, 1)] * 3).filter(lambda a: np.linalg.norm(a) > 0.1)
joints = st.one_of(
    axes.map(lambda a: kd.revolute(a, anchor=(0.1, 0, 0), reference=0.3)),
    axes.map(kd.prismatic),
    st.just(kd.ball()),
    st.tuples(axes, axes).map(lambda pair: [kd.prismatic(pair[0]), kd.revolute(pair[1])]),
    st.just(()),
)


@st.composite
def bodies(draw):
    """Mass, centre and moments of any real body: solids, plates, rods and points."""
    second = np.array(draw(st.tuples(*[st.just(0.0) | st.floats(0.001, 1)] * 3)))
    R, mass = rotation_matrix(draw(turns)), draw(st.floats(0.01, 9))
    moment = mass * (R * (second.sum() - second)) @ R.T
    return {"mass": mass, "com": draw(positions), "inertia": 0.5 * (moment + moment.T)}


@st.composite
def trees(draw):
    links = [kd.Link("link0", joints=kd.free(), **draw(bodies()))]
    for number in range(1, draw(st.integers(2, 5))):
        parent = f"link{draw(st.integers(0, number - 1))}"
        placed = {"position": draw(positions), "rotation": draw(turns)}
        links.append(kd.Link(f"link{number}", parent, draw(joints), **placed, **draw(bodies())))
    return build(links)


@pytest.mark.filterwarnings("ignore::knuckle.model.report.LoadWarning")  # MuJoCo finds point masses singular
@settings(max_examples=60, deadline=None)
@given(trees())
def test_random_mechanisms_come_back(model):
    assert_same(model, load(write(model)))


# What MJCF has no place for


def one(joint: kd.Joint | None = None, **options) -> Model:
    return build([kd.Link("a", joints=joint or kd.revolute(name="j"), **HEAVY, **options)])


def with_shape(shape: shapes.Shape) -> Model:
    return build(kd.Description([kd.Link("a", joints=kd.revolute(), **HEAVY)], world_shapes=[shape]))


def on_a_link(joint: kd.Joint) -> Model:
    return build([kd.Link("a", joints=kd.revolute(), **HEAVY), kd.Link("b", "a", joint, **HEAVY)])


REFUSED = {
    "planar": (one(kd.planar(name="p")), "joint 'p'.*planar"),
    "uneven damping": (one(kd.ball(name="b", damping=(1, 2, 3))), "joint 'b'.*damping"),
    "effort of a ball": (one(kd.ball(name="b", effort=3)), "joint 'b'.*effort"),
    "ball reference": (one(kd.ball(name="b", reference=(0, 1, 0, 0))), "joint 'b'.*reference"),
    "free joint elsewhere": (one(kd.free(name="f"), position=(1, 0, 0)), "joint 'f'.*frame"),
    "free limits": (one(kd.free(name="f", upper=1.0)), "joint 'f'.*limits"),
    "free joint on a link": (on_a_link(kd.free(name="f")), "joint 'f'.*world only"),
    "moving plane": (one(shapes=shapes.plane(name="p")), "shape 'p'.*plane"),
    "polygon": (with_shape(shapes.polygon([(0, 0), (1, 0), (0, 1)], name="p")), "shape 'p'.*polygon"),
    "points": (with_shape(shapes.points([(0, 0, 0)], name="p")), "shape 'p'.*points"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_mjcf_cannot_hold_is_named(case, tmp_path):
    model, message = REFUSED[case]
    with pytest.raises(CannotHold, match=message):
        save(model, tmp_path / "a.xml")
    assert list(tmp_path.iterdir()) == []


def test_friction_speed_and_impossible_inertia_are_refused(tmp_path):
    model = one(kd.revolute(name="j", friction=1.0))
    faster = eqx.tree_at(lambda m: m.friction_speed, model, model.friction_speed * 2)
    with pytest.raises(ValueError, match=r"joint 'j'.*friction_speed"):
        save(faster, tmp_path / "a.xml")
    impossible = eqx.tree_at(lambda m: m.inertia.moment, model, np.array([[1.0, 1.0, 3.0, 0, 0, 0]]))
    with pytest.raises(ValueError, match=r"body 'a'.*triangle"):
        save(impossible, tmp_path / "a.xml")


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.xml"
    save(one(), path)
    before = path.read_bytes()
    with pytest.raises(ValueError):
        save(REFUSED["planar"][0], path)
    doubled = one(shapes=[shapes.sphere(1, name="s"), shapes.sphere(2, name="s")])
    with pytest.raises(ValueError, match="repeated name 's'"):
        save(doubled, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_names_that_need_escaping_come_back(tmp_path):
    model = build(kd.Description([kd.Link('<a> & "b"', joints=kd.revolute(name="j'\u00e9"), **HEAVY)], name="n"))
    save(model, tmp_path / "a.mjcf")
    assert load(tmp_path / "a.mjcf").link_names == ('<a> & "b"',)


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\.xml or \.mjcf \(MJCF\) or \.urdf"):
        save(one(), tmp_path / "a.json")


def test_fitted_models_can_be_saved(tmp_path):
    """JAX arrays, and axes and quaternions that a fit has left at other lengths."""
    model = jax.tree.map(jnp.asarray, build(zoo()))
    model = eqx.tree_at(lambda m: (m.axis, m.rotation), model, (model.axis * 3, model.rotation * 0.5))
    model = eqx.tree_at(lambda m: m.inertia.mass, model, model.inertia.mass * 1.1)
    save(model, tmp_path / "fitted.xml")
    assert load(tmp_path / "fitted.xml").mass == pytest.approx(float(model.mass), rel=1e-14)


# The comparison that `save` relies on


SEEN = [  # (array, entry)
    *[(f"inertia.{name}", (0, 0)[: 1 + (name != "mass")]) for name in ("mass", "com", "moment")],
    *[(name, (1, 0)) for name in ("position", "rotation", "axis")],
    ("anchor", (2, 0)),
    *[(name, 7) for name in ("reference", "rest")],
    *[(name, 6) for name in ("stiffness", "damping", "armature", "friction", "friction_speed", "lower", "upper")],
    *[(name, 6) for name in ("effort", "speed")],
    ("gravity", 0),
    *[(f"actuators.{name}", 0) for name in ("gear", "gain", "control_lower", "control_upper", "force_lower")],
    *[("actuators.force_upper", 1), ("actuators.bias", (1, 1))],
    *[(f"equalities.{name}", (1, 0)) for name in ("position_a", "position_b", "rotation_a", "rotation_b")],
    *[("equalities.polynomial", (2, 1)), ("equalities.torque_scale", 1)],
    *[(f"frames.{name}", (0, 0)) for name in ("position", "rotation")],
    *[(f"geometry.{name}", (1, 1)) for name in ("position", "rotation", "friction")],
    *[("geometry.size", (1, 0)), ("geometry.margin", 1), ("geometry.pairs.margin", 0)],
    ("geometry.pairs.friction", (0, 0)),
]


def part(model, path: str):
    for name in path.split("."):
        model = getattr(model, name)
    return model


def test_the_list_of_arrays_is_complete():
    paths = [jax.tree_util.keystr(p).lstrip(".") for p, _ in jax.tree_util.tree_flatten_with_path(build(zoo()))[0]]
    assert sorted(paths) == sorted(path for path, _ in SEEN)


@pytest.mark.parametrize("path, entry", SEEN)
def test_differences_sees_every_array(path, entry):
    """One part in 10^9 in one entry; unbounded entries become bounds."""
    model = build(zoo())
    moved = np.array(part(model, path))
    moved[entry] = moved[entry] + 1e-9 if np.isfinite(moved[entry]) else 1.0
    found = differences(model, eqx.tree_at(lambda m: part(m, path), model, moved))
    assert [f.partition(" by ")[0] for f in found] == [path]


@pytest.mark.parametrize(
    "field, value",
    [
        ("name", "other"),
        ("gravity", (0, 0, 1)),
        ("actuators", []),
        ("equalities", []),
        ("excludes", []),
        ("pairs", []),
        ("timestep", None),
        ("integrator", "RK4"),
        ("self_collision", True),
        ("parents_collide", False),
        ("keyframes", {}),
        ("world_frames", []),
        ("world_shapes", []),
    ],
)
def test_differences_sees_every_part(field, value):
    assert differences(build(zoo()), build(kd.Description(**{**zoo().__dict__, field: value})))


def test_differences_sees_which_link_a_shape_was_described_on():
    model = build(zoo())
    moved = tuple("trunk" if body == "deck" else body for body in model.geometry.body)
    found = differences(model, replace(model, geometry=replace(model.geometry, body=moved)))
    assert [f.partition(":")[0] for f in found] == ["geometry.body"]


def test_differences_sees_mass_welded_to_the_ground():
    model = build(zoo())
    heavier = replace(model, topology=replace(model.topology, ground_mass=3.0 + 1e-9))
    assert [f.partition(" by ")[0] for f in differences(model, heavier)] == ["topology.ground_mass"]
