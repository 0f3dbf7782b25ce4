"""Nothing in a file is taken for something that it does not say: it is read, refused by name, or noted."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from knuckle.model import description as kd
from knuckle.model.build import build
from knuckle.model.load import load
from knuckle.model.report import LoadError, LoadWarning
from knuckle.model.urdf_check import numbers_in

INERTIAL = """<inertial><mass value="1"/>
    <inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>"""
HINGE = '<joint name="knee" type="revolute"><parent link="a"/><child link="b"/><axis xyz="0 0 1"/>{}</joint>'
LIMIT = '<limit lower="-1" upper="1" effort="{}" velocity="{}"/>'


def urdf(joint: str, link: str = INERTIAL, rest: str = "") -> str:
    return f'<robot name="r" xmlns:drake="d"><link name="a"/><link name="b">{link}</link>{joint}{rest}</robot>'


def hinge(inside: str) -> str:
    return urdf(HINGE.format(inside))


def mjcf(joint: str = "", body: str = "", before: str = "", after: str = "", geom: str = "") -> str:
    return f"""<mujoco>{before}<worldbody><body name="b" {body}><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>
        <joint name="knee" {joint}/>{geom}</body></worldbody>{after}</mujoco>"""


def findings(text: str) -> list[str]:
    return [str(omission) for omission in load(text, strict=False)[1]]


def refused(text: str, *words: str, strict: bool = True) -> None:
    with pytest.raises(LoadError) as caught:
        load(text, strict=strict)
    for word in words:
        assert word in str(caught.value)


# Bounds


@pytest.mark.parametrize(("effort", "velocity", "name"), [("-3", "1", "effort"), ("1", "-2", "velocity")])
def test_a_negative_bound_is_refused_by_its_joint(effort, velocity, name):
    text = hinge(LIMIT.format(effort, velocity))
    refused(text, "joint 'knee'", f"{name} must not be negative")
    assert any("'knee'" in told and name in told for told in findings(text))


def test_a_bound_of_zero_is_none_and_told_if_asked():
    """Exporters write it where they know no bound, ours too."""
    text = hinge(LIMIT.format(0, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = load(text)
    assert (model.effort[0], model.speed[0]) == (math.inf, 5)
    assert any("effort 0 is taken as without a bound" in told for told in findings(text))


@pytest.mark.parametrize("ends", ['lower="inf" upper="inf"', 'lower="-inf" upper="-inf"', 'lower="inf"'])
def test_limits_that_hold_no_position_are_refused(ends):
    refused(hinge(f"<limit {ends}/>"), "joint 'knee'", "no room", strict=False)


@pytest.mark.parametrize("ends", ['lower="1" upper="-1"', 'lower="1"', 'lower="0" upper="0"'])
def test_limits_taken_as_none_are_warned_of(ends):
    with pytest.warns(LoadWarning, match="'knee'.*taken as without limits"):
        load(hinge(f'<limit {ends} effort="1" velocity="1"/>'))


# Numbers

NO_NUMBERS = ["nan", "0x10", "1,5", "1e400", "-1e400", "1e-400", "", " ", "1_0", "1d3", "1.2.3", "--1", "1e", "e3", "."]
NO_NUMBERS += ["\u0663", "\uff15", "1\u00a02", "\u221e", "1/2", "5 N", "(1)", "1;", "infinite", "1" * 5000]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_is_no_number_is_refused(text):
    refused(hinge(LIMIT.format(text, 1)), "joint 'knee' <limit>", "effort", strict=False)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (" 1\t2\n3 ", [1, 2, 3]),
        ("1, 2 ,3", [1, 2, 3]),
        ("+.5 1. -1e-3", [0.5, 1, -1e-3]),
        ("inf -Infinity", [math.inf, -math.inf]),
        ("1,5 2", None),
        ("1,,2", None),
        ("1,2,", None),
        ("0e999 -0.0e-999", [0, 0]),
        ("", []),
    ],
)
def test_numbers_stand_between_spaces_or_commas(text, numbers):
    assert numbers_in(text) == numbers


@pytest.mark.parametrize("xyz", ["1 2", "1 2 3 4", "1,5 2", "1 2 inf", "1 2 nan", "", "1;2;3"])
def test_a_position_has_three_finite_numbers(xyz):
    refused(hinge(f'<origin xyz="{xyz}"/>'), "joint 'knee' <origin>", "xyz", strict=False)


# Elements and attributes


def test_a_joint_of_another_namespace_is_named():
    text = urdf('<drake:joint name="knee" type="ball"><parent link="a"/><child link="b"/></drake:joint>')
    refused(text, "<drake:joint 'knee'>", "not covered", "join 'a' and 'b'")
    refused(text, "<drake:joint 'knee'>", "not covered", strict=False)


@pytest.mark.parametrize("inside", ['<drake:gear_ratio value="3"/>', '<drake:rotor_inertia value="1"/>', "<x:limit/>"])
def test_what_a_namespace_says_about_the_motion_is_refused(inside):
    text = hinge(inside)
    refused(text, inside[1:8], "not covered")
    assert any("not covered" in told for told in findings(text))


def test_what_a_namespace_says_about_contact_is_noted():
    link = INERTIAL + "<collision><geometry><box size='1 1 1'/></geometry><drake:proximity_properties/></collision>"
    assert any("proximity_properties" in told for told in findings(urdf(HINGE.format(""), link)))


@pytest.mark.parametrize("kind", ["planar", "floating"])
@pytest.mark.parametrize("damping", ["0.1 0.1 0.1", "0.1", "-1"])
def test_damping_of_a_wide_joint_is_left_out_if_asked(kind, damping):
    text = hinge(f'<dynamics damping="{damping}"/>').replace("revolute", kind)
    refused(text, "joint 'knee'", f"<dynamics> of a {kind} joint")
    model, told = load(text, strict=False)
    assert any("'knee'" in str(omission) for omission in told) and not model.damping.any()
    refused(hinge('<dynamics damping="much"/>').replace("revolute", kind), "damping", "'much'", strict=False)


@pytest.mark.parametrize("element", ['<Axis xyz="1 0 0"/>', '<limits lower="0" upper="1"/>', "<Dynamics/>", "<mass/>"])
def test_a_misspelt_or_misplaced_element_is_refused(element):
    text = hinge(element)
    refused(text, "joint 'knee'", "expected <")
    assert any("left out" in told for told in findings(text))


def test_a_misspelt_inertia_is_refused():
    refused(urdf(HINGE.format(""), "<Inertial/>"), "link 'b' <Inertial>", "expected <inertial> in <link>")
    refused(hinge('<limit Lower="0" upper="1"/>'), "'knee'", "attribute 'Lower'", "expected 'lower'")


# MJCF


@pytest.mark.parametrize(
    ("text", "attribute"),
    [
        (mjcf('range="1 -1"'), "range"),
        (mjcf('range="0.5 0.5"'), "range"),
        (mjcf('damping=""'), "damping"),
        (mjcf('damping=" "'), "damping"),
        (mjcf(body='pos=""'), "pos"),
        (mjcf(after='<actuator><motor joint="knee" ctrlrange="1 -1"/></actuator>'), "ctrlrange"),
        (mjcf(after='<actuator><motor joint="knee" forcerange="2 1"/></actuator>'), "forcerange"),
        (mjcf('damping="nan(0x1)"'), "damping"),
        (mjcf(before='<option gravity="0 0 -nan"/>'), "gravity"),
    ],
)
def test_mjcf_that_mujoco_takes_as_not_given_is_refused(text, attribute, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(text, attribute, "line", strict=False)
    assert not list(tmp_path.iterdir()), "MuJoCo wrote its log"


def test_shapes_have_finite_sizes():
    refused(mjcf(geom='<geom size="inf"/>'), "finite", strict=False)
    refused(mjcf(geom='<geom size="1" friction="inf"/>'), "finite", strict=False)


# Links in Python

IMPOSSIBLE = kd.Link("arm", joints=kd.revolute("y"), mass=2.0, inertia=(1.0, 1.0, 3.0))


def test_build_repairs_inertia_as_load_does():
    with pytest.raises(ValueError, match=r"'arm'.*triangle inequality"):
        build([IMPOSSIBLE])
    with pytest.warns(LoadWarning, match="link 'arm': repaired: .*triangle inequality"):
        model = build([IMPOSSIBLE], repair_inertia=True)
    text = urdf(HINGE.format("").replace("knee", "arm_joint"), INERTIAL.replace('izz="1"', 'izz="3"'))
    with pytest.warns(LoadWarning, match="repaired"):
        loaded = load(text.replace('mass value="1"', 'mass value="2"'), repair_inertia=True)
    np.testing.assert_allclose(model.inertia.moment, loaded.inertia.moment, rtol=1e-12)  # roundings


def test_build_repairs_no_mass_and_nothing_that_is_sound():
    for mass in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="'arm': mass"):
            build([kd.Link("arm", joints=kd.revolute(), mass=mass, inertia=(1, 1, 1))], repair_inertia=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build([kd.Link("arm", joints=kd.revolute(), mass=1.0, inertia=(1, 1, 1))], repair_inertia=True)


def test_options_beside_a_description_are_refused():
    with pytest.raises(TypeError, match="gravity"):
        build(kd.Description([IMPOSSIBLE]), gravity=(0, 0, 0))


def test_inertia_of_no_link_is_a_warning():
    """A published gripper has one between a link and a joint; other readers pass it over without a word."""
    with pytest.warns(LoadWarning, match="expected <inertial> in <link>"):
        model = load(urdf(HINGE.format(LIMIT.format(1, 1)), rest=INERTIAL))
    assert model.mass == 1.0
