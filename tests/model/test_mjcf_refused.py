"""MJCF that is refused: what cannot be represented, impossible inertia, and files that are missing or mean harm."""

from pathlib import Path

import mujoco
import numpy as np
import pytest

from knuckle.model import inertia as rigid
from knuckle.model.load import load
from knuckle.model.report import LoadError, LoadWarning
from tests.model.mjcf_texts import ARM, BALL, mjcf

# What cannot be represented

TENDON = '<tendon><fixed name="rope"><joint joint="elbow" coef="1"/></fixed></tendon>'
FIELD = '<asset><hfield name="f" nrow="2" ncol="2" size="1 1 1 1"/></asset>'
PAIR = '<contact><pair name="pg" geom1="p" geom2="g" friction="1 0.5"/></contact>'
CLOTH = """<flexcomp name="cloth" type="grid" count="3 3 1" spacing=".1 .1 .1" dim="2" mass="1">
    <edge equality="true"/></flexcomp>"""


def driven(actuator: str, body: str = ARM) -> str:
    return mjcf(body, f"{TENDON if 'rope' in actuator else ''}<actuator>{actuator}</actuator>")


def jointed(attributes: str, actuator: str = "") -> str:
    return mjcf(f'<body><joint name="j" {attributes}/>{BALL}</body>', actuator and f"<actuator>{actuator}</actuator>")


REFUSED = {
    "tendon": (mjcf(rest=TENDON), "tendon 'rope'", "tendons"),
    "tendon transmission": (driven('<motor name="m" tendon="rope"/>'), "actuator 'm'", "tendon"),
    "site transmission": (driven('<motor name="m" site="tip"/>'), "actuator 'm'", "site"),
    "adhesion": (driven('<adhesion name="m" body="lower" ctrlrange="0 1"/>'), "actuator 'm'", "adhesion"),
    "muscle": (driven('<muscle name="m" joint="elbow" lengthrange="0 1"/>'), "actuator 'm'", "muscle"),
    "dynamics": (driven('<position name="m" joint="elbow" timeconst="1"/>'), "actuator 'm'", "state"),
    "damper": (driven('<damper name="m" joint="elbow" kv="1" ctrlrange="0 1"/>'), "actuator 'm'", "gain"),
    "rotor": (driven('<motor name="m" joint="elbow" armature="1"/>'), "actuator 'm'", "armature"),
    "delay": (driven('<general name="m" joint="elbow" delay="0.1" nsample="9"/>'), "actuator 'm'", "delay"),
    "two controls": (driven('<pid name="m" joint="elbow"/>'), "actuator 'm'", "gain"),
    "fluid": (mjcf(before='<option viscosity="1"/>'), "option", "fluid"),
    "gravcomp": (mjcf(f'<body name="m" gravcomp="1"><joint/>{BALL}</body>'), "body 'm'", "gravity compensation"),
    "stiffness polynomial": (jointed('stiffness="1 2"'), "joint 'j'", "polynomial"),
    "damping polynomial": (jointed('damping="1 2"'), "joint 'j'", "polynomial"),
    "force range": (jointed('actuatorfrcrange="-1 2"'), "joint 'j'", "symmetric"),
    "parent's frame": (jointed('type="ball"', '<motor name="m" jointinparent="j"/>'), "actuator 'm'", "parent"),
    "height field": (mjcf(f'{ARM}<geom name="h" type="hfield" hfield="f"/>', "", FIELD), "geom 'h'", "height field"),
    "pair": (
        mjcf('<geom name="p" type="plane" size="1 1 1"/><body><joint/><geom name="g" size="0.1"/></body>', PAIR),
        "pair 'pg'",
        "same along both tangents",
    ),
    "equality on tendons": (
        mjcf(rest=f'{TENDON}<equality><tendon name="e" tendon1="rope"/></equality>'),
        "equality 'e'",
        "tendon",
    ),
    "flex": (mjcf(ARM + CLOTH), "flex 'cloth'", "flexible"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_represented_is_refused_by_name(case):
    xml, element, reason = REFUSED[case]
    with pytest.raises(LoadError) as caught:
        load(xml)
    told = [p for p in caught.value.problems if p.element == element]
    assert told and reason in told[0].reason
    assert element in str(caught.value)


@pytest.mark.parametrize("case", REFUSED)
def test_lenient_loading_leaves_it_out_and_says_so(case):
    xml, element, reason = REFUSED[case]
    model, omissions = load(xml, strict=False)
    assert model.nv == mujoco.MjModel.from_xml_string(xml).nv
    assert any(o.element == element and reason in o.reason for o in omissions)


def test_every_problem_is_listed_with_its_line():
    rest = '\n<actuator>\n<motor name="one" site="tip"/>\n<motor name="two" site="tip"/>\n</actuator>'
    with pytest.raises(LoadError) as caught:
        load(mjcf(rest=rest))
    lines = {p.element: p.line for p in caught.value.problems}
    start = mjcf(rest=rest)[: mjcf(rest=rest).index("<actuator>")].count("\n") + 1
    assert lines == {"actuator 'one'": start + 1, "actuator 'two'": start + 2}


def test_what_has_no_effect_on_motion_is_taken():
    rest = """<sensor><jointpos joint="elbow"/></sensor><visual><map zfar="3"/></visual><statistic extent="1"/>
        <custom><text name="t" data="x"/></custom>"""
    before = '<asset><texture name="t" type="2d" file="nowhere.png"/><material name="m" texture="t"/></asset>'
    light = '<light name="l" pos="0 0 3" texture="t"/><camera name="c"/>'
    model = load(mjcf(ARM + light, rest, before))
    assert model.nv == 2
    assert any("sensors" in o.element for o in load(mjcf(ARM, rest), strict=False)[1])


def test_contact_settings_without_counterpart_are_warned_of():
    xml = mjcf(f"<body><joint/>{BALL.replace('<geom', '<geom adhesion=' + chr(34) + '2' + chr(34))}</body>")
    with pytest.warns(LoadWarning, match="adhesion of 1 geom:"):
        load(xml)


def test_solver_settings_are_noted_when_asked():
    body = '<body><joint solreflimit="0.1 1" range="-1 1"/><geom size="0.1" solref="0.1 1" condim="6"/></body>'
    before = '<option timestep="0.01" integrator="RK4"><flag sleep="enable"/></option>'
    told = [o.element for o in load(mjcf(body, before=before), strict=False)[1]]
    assert told == ["flag sleep='enable'", "solref of 1 geom", "solref of 1 joint limit"]


# Inertia


@pytest.mark.parametrize(
    "inertial, rule",
    [
        ('mass="1" diaginertia="1 1 3"', "triangle inequality"),
        ('mass="1" fullinertia="1 1 1 2 0 0"', "positive definite"),
        ('mass="-1" diaginertia="1 1 1"', "negative"),
        ('mass="0" diaginertia="1 1 1"', "without mass"),
    ],
)
def test_impossible_inertia_is_refused_with_body_and_rule(inertial, rule):
    xml = mjcf(f'<body name="bad"><joint/><inertial pos="0 0 0" {inertial}/></body>')
    for strict in (True, False):
        with pytest.raises(LoadError) as caught:
            load(xml, strict=strict)
        assert [p.element for p in caught.value.problems] == ["body 'bad'"]
        assert rule in caught.value.problems[0].reason


@pytest.mark.parametrize("inertial", ['diaginertia="1 1 3" quat="0.6 0.8 0 0"', 'fullinertia="1 2 3 2 0 0"'])
def test_impossible_inertia_is_mended_on_request(inertial):
    xml = mjcf(f'<body name="bad"><joint/><inertial pos="0 0 0" mass="1" {inertial}/></body>')
    with pytest.warns(LoadWarning, match="body 'bad'.*repaired"):
        model = load(xml, repair_inertia=True)
    assert rigid.faults(1.0, np.asarray(model.inertia.moment[0])) == []
    stated = (1, 1, 3, 0, 0, 0) if "diag" in inertial else (1, 2, 3, 2, 0, 0)
    turn = (0.6, 0.8, 0, 0) if "diag" in inertial else (1, 0, 0, 0)
    nearest = rigid.moved((1.0, np.zeros(3), rigid.repaired(1.0, np.array(stated, float))), np.zeros(3), turn)[2]
    np.testing.assert_allclose(model.inertia.moment[0], nearest, atol=1e-12)


def test_flat_plate_is_a_real_body_in_spite_of_rounding():
    model = load(mjcf('<body><joint/><inertial pos="0 0 0" mass="1" diaginertia="0.1 0.2 0.3000000000000001"/></body>'))
    np.testing.assert_allclose(model.inertia.moment[0], (0.1, 0.2, 0.3, 0, 0, 0), rtol=1e-9)


# Files


def test_missing_mesh_is_reported_where_the_mass_is_known_and_refused_where_it_is_not(tmp_path):
    asset = '<asset><mesh name="m" file="nowhere.stl"/></asset>'
    known = (
        '<body name="a"><joint/><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/><geom type="mesh" mesh="m"/></body>'
    )
    path = tmp_path / "robot.xml"
    path.write_text(mjcf(known, before=asset))
    with pytest.warns(LoadWarning, match=r"mesh 'm' of body 'a'.*'nowhere.stl' is not there"):
        assert load(path).mass == 1.0
    unknown = known.replace('<inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>', BALL)
    path.write_text(mjcf(unknown, before=asset))
    with pytest.raises(LoadError, match="no <inertial> gives the mass"):
        load(path)
    assert load(path, strict=False)[0].nv == 1


@pytest.mark.parametrize("name", ['name="m" ', ""])
def test_unnamed_assets_and_height_fields_that_are_missing_are_named(name):
    asset = f'<asset><mesh {name}file="m.stl"/><hfield {name}file="m.png" size="1 1 1 1"/></asset>'
    ground = '<geom type="hfield" hfield="m"/><geom type="mesh" mesh="m"/>'
    model, omissions = load(mjcf(ARM + ground, before=asset), strict=False)
    assert model.nv == 2 and len(model.geometry) == 2
    told = {o.element: o.reason for o in omissions}
    assert "'m.stl' is not there" in told["mesh 'm' of body 'world'"]
    assert "'m.png' is not there" in told["hfield 'm' of body 'world'"]


@pytest.mark.parametrize(
    "element",
    [
        '<asset><model name="other" file="other.xml"/></asset>',
        '<worldbody><flexcomp name="f" type="mesh" file="other.xml"/></worldbody>',
        '<include file="other.xml"/>',
    ],
)
def test_a_string_reads_no_files_of_the_working_folder(element, tmp_path, monkeypatch):
    (tmp_path / "other.xml").write_text(mjcf())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoadError, match="no such file"):
        load(mjcf(before=element))
    assert load(mjcf('<include file="other.xml"/>').replace("other", "part"), package_paths=[_part(tmp_path)]).nv == 2


def _part(folder: Path) -> Path:
    """A folder with an include that is named to the loader."""
    inside = folder / "inside"
    inside.mkdir()
    (inside / "part.xml").write_text(f"<mujocoinclude>{ARM}</mujocoinclude>")
    return inside


def test_includes_are_read_beside_the_file_and_nowhere_else(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside.xml"
    inside.mkdir()
    part = f"<mujocoinclude>{ARM}</mujocoinclude>"
    outside.write_text(part)
    (inside / "part.xml").write_text(part)
    (inside / "link.xml").symlink_to(outside)
    robot = inside / "robot.xml"
    robot.write_text(mjcf('<include file="part.xml"/>'))
    assert load(robot).nv == 2
    for name in ("../outside.xml", str(outside), "link.xml"):
        robot.write_text(mjcf(f'<include file="{name}"/>'))
        with pytest.raises(LoadError, match="leads outside"):
            load(robot)
    robot.write_text(mjcf('<include file="nowhere.xml"/>'))
    with pytest.raises(LoadError, match="no such file"):
        load(robot)


def test_mesh_files_outside_are_refused(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "mesh.stl").write_bytes(b"solid")
    robot = inside / "robot.xml"
    for compiler, name in (
        ("", "../mesh.stl"),
        ('<compiler meshdir=".."/>', "mesh.stl"),
        ("", str(tmp_path / "mesh.stl")),
    ):
        robot.write_text(mjcf(before=f'{compiler}<asset><mesh name="m" file="{name}"/></asset>'))
        with pytest.raises(LoadError, match="leads outside"):
            load(robot)


def test_includes_in_a_ring_and_replication_without_bound_are_refused(tmp_path):
    (tmp_path / "a.xml").write_text('<mujocoinclude><include file="a.xml"/></mujocoinclude>')
    robot = tmp_path / "robot.xml"
    robot.write_text(mjcf('<include file="a.xml"/>'))
    with pytest.raises(LoadError, match="included once"):
        load(robot)
    nested = f'<replicate count="1000"><replicate count="1000"><replicate count="1000">{ARM}' + "</replicate>" * 3
    with pytest.raises(LoadError, match="at most 10000 elements"):
        load(mjcf(nested))


@pytest.mark.parametrize(
    "before",
    [
        '<size nkey="1000000000"/>',
        '<size nuser_body="1000000000"/>',
        '<asset><hfield name="f" nrow="100000" ncol="100000" size="1 1 1 1"/></asset>',
        '<asset><mesh name="m" builtin="sphere" params="60"/></asset>',
        '<custom><numeric name="n" size="1000000000"/></custom>',
    ],
)
def test_sizes_that_would_exhaust_memory_are_refused(before):
    with pytest.raises(LoadError, match="expected at most"):
        load(mjcf(before=before))


def test_numbers_that_are_none_are_refused_and_no_log_file_is_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoadError, match="expected numbers"):
        load(mjcf(f'<body pos="nan 0 0"><joint/>{BALL}</body>'))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("xml", ["<mujoco><worldbody><nonsense/></worldbody></mujoco>", mjcf("<body><joint/></body>")])
def test_what_mujoco_cannot_read_is_refused_in_its_words(xml):
    with pytest.raises(LoadError, match="MuJoCo cannot"):
        load(xml)


def test_numbers_that_mujoco_takes_and_we_do_not_are_refused_by_name():
    with pytest.raises(LoadError, match="shape 'g': friction"):
        load(mjcf('<body><joint/><geom name="g" size="0.1" friction="-1"/></body>'))
    with pytest.raises(LoadError, match="expected numbers"):
        load(mjcf(f'<replicate count="nan">{ARM}</replicate>'))
