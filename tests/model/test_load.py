"""One way in: the right reader, clear refusals, NumPy leaves, and a warning for what was repaired."""

import warnings

import jax
import numpy as np
import pytest

from knuckle.model.load import load
from knuckle.model.model import Model
from knuckle.model.report import LISTED_IN_WARNING, LoadError, LoadWarning

INERTIA = '<mass value="2"/><inertia ixx="1" iyy="1" izz="{}" ixy="0" ixz="0" iyz="0"/>'
URDF = """<robot name="r">
<link name="base"/>
<link name="arm"><inertial>{}</inertial></link>
<joint name="elbow" type="continuous"><parent link="base"/><child link="arm"/></joint>
{}</robot>"""
SOUND = URDF.format(INERTIA.format(1), "")
MJCF = '<mujoco model="m"><worldbody><body name="arm"><joint name="elbow"/><geom size="1"/></body></worldbody></mujoco>'


@pytest.mark.parametrize("text", [SOUND, MJCF])
def test_the_root_element_picks_the_reader(text, tmp_path):
    path = tmp_path / "robot.xml"
    path.write_text(text)
    for source in (text, path, str(path)):
        model = load(source)
        assert isinstance(model, Model) and model.joint_names == ("elbow",)


@pytest.mark.parametrize("text", [SOUND, MJCF])
def test_leaves_are_numpy_float64(text):
    for leaf in jax.tree.leaves(load(text)):
        assert isinstance(leaf, np.ndarray) and leaf.dtype == np.float64


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "it is empty"),
        ("  \n ", "it is empty"),
        ("robot: yes", "expected well-formed XML"),
        ("<robot", "expected well-formed XML"),
        ("<robot></mujoco>", "expected well-formed XML"),
        ("<sdf version='1.7'/>", "expected a <robot> (URDF) or <mujoco> (MJCF), got <sdf>: SDF is not read"),
        ("<mujocoinclude/>", "load the file that includes it"),
        ("<html/>", "got <html>"),
        ("<robot xmlns:xacro='x' name='r'><xacro:include filename='x'/></robot>", "run `xacro` first"),
    ],
)
def test_what_is_no_robot_is_refused_with_the_reason(content, expected, tmp_path):
    path = tmp_path / "robot.urdf"
    path.write_text(content)
    with pytest.raises(LoadError) as caught:
        load(path)
    assert expected in str(caught.value) and str(path) in str(caught.value)


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(LoadError, match=r"gone\.urdf: there is no such file"):
        load(tmp_path / "gone.urdf")
    with pytest.raises(LoadError, match="expected a file, this is a folder"):
        load(tmp_path)
    with pytest.raises(LoadError, match="cannot be read"):
        load("x" * 10_000)
    with pytest.raises(TypeError, match="expected a path or a string of XML, got int"):
        load(3)  # type: ignore[call-overload]


def test_a_sound_file_loads_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(SOUND)


def test_mended_links_are_named_in_a_warning():
    text = URDF.format(INERTIA.format(3), "\n<gazebo/>" * 20)
    with pytest.raises(LoadError, match=r"link 'arm' \(line 3\): principal moments"):
        load(text)
    with pytest.warns(LoadWarning, match=r"link 'arm' \(line 3\): repaired") as caught:
        load(text, repair_inertia=True)
    assert len(caught) == 1 and "<gazebo> (line " in str(caught[0].message)


def with_meshes(text, names):
    meshes = "".join(f'<visual><geometry><mesh filename="{name}"/></geometry></visual>' for name in names)
    return text.replace('<link name="base"/>', f'<link name="base">{meshes}</link>')


def test_what_is_left_out_for_one_reason_stands_in_one_line():
    text = SOUND.replace("</robot>", "\n<gazebo/>" * 20 + "</robot>")
    with pytest.warns(LoadWarning) as caught:
        load(with_meshes(text, [f"{k}.stl" for k in range(10)]))
    _, gazebo, meshes = str(caught[0].message).splitlines()
    assert "and 19 more: left out" in gazebo
    assert "<mesh '0.stl'> (line 2) and 9 more: the file was not found" in meshes


def test_of_many_reasons_a_warning_lists_some_and_counts_the_rest(tmp_path):
    names = [f"broken{k}.stl" for k in range(LISTED_IN_WARNING + 3)]
    for name in names:
        (tmp_path / name).write_bytes(b"broken")
    (tmp_path / "robot.urdf").write_text(with_meshes(SOUND, names))
    with pytest.warns(LoadWarning) as caught:
        load(tmp_path / "robot.urdf")
    lines = str(caught[0].message).splitlines()
    assert len(lines) == 1 + LISTED_IN_WARNING + 1 and lines[-1].startswith("  and 3 more")


def test_not_strict_returns_what_was_left_out():
    bad = '<collision><geometry><torus radius="1"/></geometry></collision>'
    text = SOUND.replace('<link name="base"/>', f'<link name="base">{bad}</link>')
    with pytest.raises(LoadError, match="link 'base' <collision> <geometry>"):
        load(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, omissions = load(text, strict=False)
    assert model.nv == 1 and any("link 'base' <collision>" in o.element for o in omissions)


def test_a_mechanism_that_does_not_move_is_refused():
    with pytest.raises(LoadError, match="nothing moves"):
        load('<robot name="r"><link name="base"/></robot>')
