"""MJCF in, description out: values, names, the base, and robots of many makers."""

import csv
import math
import os
from pathlib import Path
from typing import Any

import jax
import mujoco
import numpy as np
import pytest

from knuckle.model import inertia as rigid
from knuckle.model.description import Weld
from knuckle.model.load import load
from knuckle.model.mjcf import read
from knuckle.model.report import LoadError
from tests.model.mjcf_texts import ARM, BALL, mjcf

ROBOTS = Path(os.environ.get("KNUCKLE_DATA", Path(__file__).parents[3] / "shared" / "data")) / "robots" / "mjcf"
needs_robots = pytest.mark.skipif(not ROBOTS.is_dir(), reason=f"no robot descriptions in {ROBOTS} (set KNUCKLE_DATA)")


def joint_of(xml: str) -> Any:
    description, _ = read(xml)
    return next(joint for link in description.links for joint in link.all_joints())


# Values


def test_joint_attributes_and_defaults_arrive_in_si_units():
    stiff = '<default class="stiff"><joint stiffness="7"/></default>'
    defaults = f'<default><joint damping="0.3" armature="0.02"/>{stiff}</default>'
    body = f"""<body><joint class="stiff" name="j" axis="0 3 4" pos="0.1 0 0" ref="30" springref="-90" range="-45 90"
        frictionloss="0.2" actuatorfrcrange="-5 5"/>{BALL}</body>"""
    joint = joint_of(mjcf(body, before=defaults))
    assert joint.kind == "revolute"
    np.testing.assert_allclose(joint.axis, (0, 0.6, 0.8), atol=1e-15)
    np.testing.assert_allclose(joint.anchor, (0.1, 0, 0))
    np.testing.assert_allclose(joint.reference, math.pi / 6)
    np.testing.assert_allclose(joint.rest, -math.pi / 2)
    np.testing.assert_allclose((joint.lower, joint.upper), (-math.pi / 4, math.pi / 2))
    np.testing.assert_allclose(joint.damping, 0.3)
    np.testing.assert_allclose(joint.armature, 0.02)
    np.testing.assert_allclose(joint.friction, 0.2)
    assert (joint.stiffness, joint.effort) == (7.0, 5.0)


def test_joint_without_limits_is_unbounded():
    joint = joint_of(mjcf())
    assert (joint.lower, joint.upper, joint.effort, joint.speed) == (-math.inf, math.inf, math.inf, math.inf)


def test_free_joint_keeps_its_absolute_pose_as_reference():
    model = load(mjcf(f'<body name="a" pos="1 2 3" quat="0 1 0 0"><freejoint/>{BALL}</body>'))
    assert model.topology.kind == ("free",)
    np.testing.assert_array_equal(model.reference, (1, 2, 3, 0, 1, 0, 0))
    np.testing.assert_array_equal(model.position, np.zeros((1, 3)))


def test_a_ball_joint_has_no_reference_and_no_rest_of_its_own():
    """MJCF gives `ref` and `springref` a meaning on hinges and sliders only; MuJoCo passes over them elsewhere."""
    text = mjcf(f'<body><joint name="j" type="ball" ref="30" springref="20" stiffness="2"/>{BALL}</body>')
    joint, theirs = joint_of(text), mujoco.MjModel.from_xml_string(text)
    for ours, other in ((joint.reference, theirs.qpos0), (joint.rest, theirs.qpos_spring)):
        np.testing.assert_array_equal(ours, (1, 0, 0, 0))
        np.testing.assert_array_equal(other, (1, 0, 0, 0))


def test_several_joints_on_a_body_stay_in_order():
    body = (
        f'<body name="cart"><joint name="x" type="slide" axis="1 0 0"/><joint name="turn" axis="0 0 1"/>{BALL}</body>'
    )
    model = load(mjcf(body))
    assert model.joint_names == ("x", "turn")
    assert model.link_names == ("cart/x", "cart")
    assert model.inertia.mass[0] == 0 and model.inertia.mass[1] > 0


def test_inertia_is_that_of_the_geoms_or_as_stated():
    stated = '<inertial pos="0.1 0.2 0.3" mass="2" fullinertia="0.3 0.4 0.5 0.01 0.02 0.03"/>'
    body = f'<body name="a"><freejoint/>{BALL}</body><body name="b"><freejoint/>{stated}{BALL}</body>'
    model = load(mjcf(body))
    mass = 500 * 4 / 3 * math.pi * 0.1**3
    np.testing.assert_allclose(model.inertia.mass, (mass, 2.0), rtol=1e-14)
    np.testing.assert_allclose(model.inertia.moment[0], (*[0.4 * mass * 0.01] * 3, 0, 0, 0), atol=1e-15)
    np.testing.assert_allclose(model.inertia.com[1], (0.1, 0.2, 0.3), rtol=1e-15)
    np.testing.assert_allclose(model.inertia.moment[1], (0.3, 0.4, 0.5, 0.01, 0.02, 0.03), atol=1e-12)


@pytest.mark.parametrize(
    "element, gear, gain, bias",
    [
        ('<motor joint="shoulder" gear="3"/>', 3, 1, (0, 0, 0)),
        ('<position joint="shoulder" kp="20" kv="2"/>', 1, 20, (0, -20, -2)),
        ('<velocity joint="shoulder" kv="5" gear="2"/>', 2, 5, (0, 0, -5)),
        ('<general joint="shoulder" gainprm="4" biastype="affine" biasprm="1 2 3"/>', 1, 4, (1, 2, 3)),
        ('<general joint="shoulder" gaintype="affine" gainprm="4 0 0"/>', 1, 4, (0, 0, 0)),
        ('<motor jointinparent="shoulder"/>', 1, 1, (0, 0, 0)),
    ],
)
def test_affine_actuators(element, gear, gain, bias):
    model = load(mjcf(rest=f"<actuator>{element}</actuator>"))
    assert model.nu == 1
    np.testing.assert_array_equal(model.actuators.gear, [gear])
    np.testing.assert_array_equal(model.actuators.gain, [gain])
    np.testing.assert_array_equal(model.actuators.bias, [bias])


def test_actuator_limits():
    model = load(mjcf(rest='<actuator><motor joint="elbow" ctrlrange="-1 2" forcerange="-3 4"/></actuator>'))
    limits = [
        getattr(model.actuators, f"{what}_{end}")[0] for what in ("control", "force") for end in ("lower", "upper")
    ]
    assert limits == [-1, 2, -3, 4]


def test_leaves_are_numpy_float64():
    model = load(mjcf(rest='<actuator><motor joint="elbow"/></actuator>'))
    leaves = jax.tree.leaves(model)
    assert leaves
    assert {(type(leaf), leaf.dtype) for leaf in leaves} == {(np.ndarray, np.dtype("float64"))}


def test_sites_bodies_without_joints_keyframes_and_excludes_are_kept():
    fixed = f'<body name="fixed" pos="0 1 0">{BALL}</body>'
    body = f'<body name="a"><freejoint name="f"/>{BALL}<site name="s" pos="1 0 0"/>{fixed}</body>'
    rest = (
        '<contact><exclude body1="a" body2="fixed"/></contact><keyframe><key name="k" qpos="1 2 3 1 0 0 0"/></keyframe>'
    )
    model = load(mjcf(body, rest))
    assert model.frames.names == ("s", "fixed")
    np.testing.assert_array_equal(model.frames.position, [(1, 0, 0), (0, 1, 0)])
    assert model.topology.excludes == (("a", "fixed"),)
    np.testing.assert_array_equal(model.keyframes["k"], (1, 2, 3, 1, 0, 0, 0))


def test_names_are_made_up_where_there_are_none_and_never_clash():
    body = f'<body name="body2"><joint name="x"/>{BALL}<site/></body><body><joint/>{BALL}{BALL}</body>'
    model = load(mjcf(body, '<actuator><motor joint="x"/></actuator>'))
    assert len(set(model.link_names)) == 2 and model.link_names[0] == "body2"
    assert len(set(model.geometry.names)) == 3 and all(model.geometry.names)
    assert model.actuators.names == ("x_actuator",)
    assert model.frames.names == ("body2_site",)


def test_a_site_named_like_a_body_is_renamed_and_reported():
    xml = mjcf(f'<body name="a"><joint/>{BALL}<site name="a"/></body>')
    model, omissions = load(xml, strict=False)
    assert model.frames.names == ("a_site",)
    assert any("site 'a'" in str(o) and "'a_site'" in o.reason for o in omissions)


def test_shapes_and_colours():
    asset = '<asset><material name="red" rgba="0.8 0 0 1"/></asset>'
    body = """<geom name="floor" type="plane" size="0 0 1"/><body><joint/>
        <geom type="capsule" fromto="0 0 0 0 0 1" size="0.1" material="red"/>
        <geom type="box" size="1 2 3" contype="2" conaffinity="0" friction="0.5 0.1 0.2"/></body>"""
    geometry = load(mjcf(body, before=asset)).geometry
    assert geometry.kind == ("plane", "capsule", "box")
    assert geometry.link == (-1, 0, 0)
    assert geometry.rgba[1] == (0.8, 0.0, 0.0, 1.0)
    np.testing.assert_allclose(geometry.size, [(0, 0, 0), (0.1, 0.5, 0), (1, 2, 3)])
    np.testing.assert_allclose(geometry.position[1], (0, 0, 0.5))
    assert (geometry.contype[2], geometry.conaffinity[2]) == (2, 0)
    np.testing.assert_array_equal(geometry.friction[2], (0.5, 0.1, 0.2))


def test_mesh_stands_where_the_file_puts_it():
    """MuJoCo moves a mesh to its own centre of mass; vertices in the body's frame must not notice."""
    faces = 'vertex="0 0 0  1 0 0  0 1 0  0 0 1" face="0 2 1 0 1 3 0 3 2 1 2 3"'
    asset = f'<asset><mesh name="m" {faces} scale="1 2 3"/></asset>'
    body = '<body><joint/><geom type="mesh" mesh="m" pos="0.1 0.2 0.3" quat="0.6 0 0.8 0"/></body>'
    geometry = load(mjcf(body, before=asset)).geometry
    np.testing.assert_allclose(geometry.position[0], (0.1, 0.2, 0.3), atol=1e-14)
    np.testing.assert_allclose(np.abs(np.dot(geometry.rotation[0], (0.6, 0, 0.8, 0))), 1.0, atol=1e-14)
    np.testing.assert_array_equal(geometry.size[0], (1, 2, 3))
    mesh = geometry.mesh[0]
    assert mesh is not None
    np.testing.assert_array_equal(mesh.vertices, [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)])


EQUALITIES = [
    '<connect body1="a" body2="b" anchor="0.1 0.2 0.3"/>',
    '<connect body1="a" anchor="0.1 0.2 0.3"/>',
    '<connect site1="sa" site2="sb"/>',
    '<weld body1="a" body2="b" torquescale="0.7"/>',
    '<weld body1="a" body2="b" anchor="0.1 0 0" relpose="0.3 0.2 0.1 0.6 0 0.8 0"/>',
    '<weld site1="sa" site2="sb" torquescale="2"/>',
]


@pytest.mark.parametrize("element", EQUALITIES)
def test_equality_residual_is_mujocos(element):
    """At a random state our two points or frames are as far apart as MuJoCo's solver says (efc_pos)."""
    site = '<site name="s{0}" pos="0.1 0.2 {1}" quat="0.8 0 0.6 0"/>'
    body = "".join(
        f'<body name="{n}" pos="{x} 0 0" quat="0.6 0.8 0 0"><freejoint/>{BALL}{site.format(n, x)}</body>'
        for n, x in (("a", 1), ("b", 2))
    )
    xml = mjcf(body, f"<equality>{element}</equality>")
    reference = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(reference)
    random = np.random.default_rng(3)
    data.qpos[:] = random.normal(size=reference.nq)
    mujoco.mj_normalizeQuat(reference, data.qpos)
    mujoco.mj_forward(reference, data)
    equality = read(xml)[0].equalities[0]
    ends = [_end(equality, side, data) for side in ("a", "b")]
    rows = np.flatnonzero(data.efc_type == mujoco.mjtConstraint.mjCNSTR_EQUALITY)
    np.testing.assert_allclose(ends[0][0] - ends[1][0], data.efc_pos[rows[:3]], atol=1e-13)
    if isinstance(equality, Weld):
        error = rigid.quaternion_product(ends[1][1] * (1, -1, -1, -1), ends[0][1])
        np.testing.assert_allclose(equality.torque_scale * error[1:], data.efc_pos[rows[3:]], atol=1e-13)


def _end(equality, side: str, data):
    """World position and quaternion of one side of a connect or weld."""
    body = {"a": 1, "b": 2, "world": 0}[getattr(equality, f"link_{side}")]
    point = "point" if hasattr(equality, "point_a") else "position"
    position = data.xpos[body] + data.xmat[body].reshape(3, 3) @ getattr(equality, f"{point}_{side}")
    turn = getattr(equality, f"rotation_{side}", (1.0, 0.0, 0.0, 0.0))
    return position, rigid.quaternion_product(data.xquat[body], np.asarray(turn))


def test_joint_equality_becomes_a_mimic():
    rest = (
        '<equality><joint name="m" joint1="elbow" joint2="shoulder" polycoef="0.1 2 0 3 0" active="false"/></equality>'
    )
    model = load(mjcf(rest=rest))
    rows = model.equalities
    assert (rows.kind, rows.a, rows.b, rows.active, rows.names) == (("mimic",), (1,), (0,), (False,), ("m",))
    np.testing.assert_array_equal(rows.polynomial, [(0.1, 2, 0, 3, 0)])


@pytest.mark.parametrize(
    "flag, value",
    [
        ("gravity", lambda m: m.gravity),
        ("spring", lambda m: m.stiffness),
        ("damper", lambda m: m.damping),
        ("frictionloss", lambda m: m.friction),
        ("actuation", lambda m: m.actuators.gain),
        ("limit", lambda m: np.isfinite(m.upper)),
        ("clampctrl", lambda m: np.isfinite(m.actuators.control_upper)),
        ("contact", lambda m: np.array(m.geometry.contype)),
    ],
)
def test_switches_of_the_file_are_applied(flag, value):
    body = f'<body><joint name="j" stiffness="1" damping="1" frictionloss="1" range="-1 1"/>{BALL}</body>'
    rest = '<actuator><motor joint="j" ctrlrange="-1 1"/></actuator>'
    assert np.any(value(load(mjcf(body, rest))))
    off = mjcf(body, rest, f'<option><flag {flag}="disable"/></option>')
    assert not np.any(value(load(off)))
    assert any(flag in o.element for o in load(off, strict=False)[1])


# The base


def test_floating_frees_the_base_and_holding_fixes_it():
    held = load(
        mjcf(f'<body name="trunk" pos="0 0 1">{BALL}{ARM}</body>', '<keyframe><key name="k" qpos="1 2"/></keyframe>')
    )
    xml = mjcf(f'<body name="trunk" pos="0 0 1">{BALL}{ARM}</body>', '<keyframe><key name="k" qpos="1 2"/></keyframe>')
    free = load(xml, floating=True)
    assert (held.nv, free.nv) == (2, 8)
    assert free.joint_names == ("floating_base", "shoulder", "elbow")
    np.testing.assert_array_equal(free.reference, (0, 0, 1, 1, 0, 0, 0, 0, 0))
    np.testing.assert_array_equal(free.keyframes["k"], (0, 0, 1, 1, 0, 0, 0, 1, 2))
    again = load(xml.replace(BALL, "<freejoint/>" + BALL, 1).replace('"1 2"', '"0 0 0 1 0 0 0 1 2"'), floating=False)
    np.testing.assert_array_equal(again.keyframes["k"], (1, 2))
    np.testing.assert_allclose(again.position, held.position)


def test_floating_needs_one_base_that_does_not_move_yet():
    with pytest.raises(LoadError, match="one body on the world, there are 2"):
        load(mjcf(ARM + f'<body name="other"><joint/>{BALL}</body>'), floating=True)
    with pytest.raises(LoadError, match="'upper' already moves"):
        load(mjcf(), floating=True)
    with pytest.raises(LoadError, match="actuators act on it: push"):
        load(
            mjcf(
                f'<body><freejoint name="f"/>{BALL}{ARM}</body>', '<actuator><motor name="push" joint="f"/></actuator>'
            ),
            floating=False,
        )


# Robots of many makers

TOO_MUCH = {
    "mujoco__active_adhesion.xml": ("fluid", "tendon", "adhesion"),
    "mujoco__balloons.xml": ("fluid", "gravity compensation", "tendons"),
    "mujoco__car.xml": ("tendon",),
    "mujoco__example.xml": ("tendon",),
    "mujoco__flag.xml": ("fluid", "flexible"),
    "mujoco__leaves.xml": ("fluid",),
    "mujoco__newton_cradle.xml": ("tendon",),
    "mujoco__pid.xml": ("plugin",),
    "mujoco__slider_crank.xml": ("slider-crank",),
    "mujoco__tactile.xml": ("signed distance field",),
    "mujoco__tendon.xml": ("tendon",),
    "pybullet__humanoid_symmetric_no_ground.xml": ("tendon",),
}


def manifest() -> list[dict[str, str]]:
    return list(csv.DictReader((ROBOTS / "manifest.csv").open())) if ROBOTS.is_dir() else []


@needs_robots
@pytest.mark.filterwarnings("ignore::knuckle.model.report.LoadWarning")
def test_robots_load_with_the_manifests_freedoms_and_mass_or_are_refused_for_a_true_reason():
    for row in manifest():
        path = ROBOTS / row["file"]
        reference = mujoco.MjModel.from_xml_path(str(path))
        moves = reference.body_dofnum[reference.body_weldid] > 0
        if row["file"] in TOO_MUCH:
            with pytest.raises(LoadError) as caught:
                load(path)
            assert all(reason in str(caught.value) for reason in TOO_MUCH[row["file"]]), row["file"]
            model, omissions = load(path, strict=False)
            assert set(caught.value.problems) <= set(omissions)
        else:
            model = load(path)
            assert model.nu == int(row["nu"]), row["file"]
        assert (model.nq, model.nv) == (int(row["nq"]), int(row["nv"])), row["file"]
        assert model.inertia.mass.sum() == pytest.approx(reference.body_mass[moves].sum(), rel=1e-12), row["file"]
        assert model.mass == pytest.approx(float(row["mass"]), rel=1e-12), row["file"]
    assert len(manifest()) - len(TOO_MUCH) >= 27
