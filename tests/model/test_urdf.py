"""What URDF says is what the description holds; what it cannot hold is named."""

import csv
import math
import os
from pathlib import Path

import numpy as np
import pytest
import trimesh
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from knuckle.model import description as kd
from knuckle.model.build import build
from knuckle.model.report import LoadError
from knuckle.model.urdf import read
from knuckle.model.xml import parse

DATA = Path(os.environ.get("KNUCKLE_DATA", Path(__file__).parents[3] / "shared" / "data")) / "robots" / "urdf"
MANIFEST = list(csv.DictReader((DATA / "manifest.csv").open())) if (DATA / "manifest.csv").exists() else []
needs_robots = pytest.mark.skipif(not MANIFEST, reason=f"no robot descriptions in {DATA} (set KNUCKLE_DATA)")

INERTIAL = '<inertial><mass value="2"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'


def robot(*parts: str, base: str = '<link name="base"/>') -> str:
    return f'<robot name="r">\n{base}\n' + "\n".join(parts) + "\n</robot>"


def link(name: str, inside: str = INERTIAL) -> str:
    return f'<link name="{name}">{inside}</link>'


def joint(name: str, kind: str, parent: str, child: str, inside: str = "") -> str:
    ends = f'<parent link="{parent}"/><child link="{child}"/>'
    return f'<joint name="{name}" type="{kind}">{ends}{inside}</joint>'


def arm(kind: str = "revolute", inside: str = '<limit lower="-1" upper="1" effort="3" velocity="4"/>') -> str:
    return robot(link("arm"), joint("elbow", kind, "base", "arm", inside))


def only_joint(text: str, **options) -> kd.Joint:
    description, _ = read(text, **options)
    (found,) = [j for link in description.links for j in link.all_joints()]
    return found


def problems(text: str, **options) -> list[str]:
    with pytest.raises(LoadError) as caught:
        read(text, **options)
    return [str(p) for p in caught.value.problems]


# All robots


def offending_links(path: Path) -> set[str]:
    """Links with inertia that no body has, by the eigenvalues of the second moments."""
    found = set()
    for element in parse(path).root.findall("link"):
        inertia, mass = element.find("inertial/inertia"), element.find("inertial/mass")
        if inertia is None or mass is None:
            continue
        xx, yy, zz, xy, xz, yz = (float(inertia.get(k, "nan")) for k in ("ixx", "iyy", "izz", "ixy", "ixz", "iyz"))
        matrix = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
        second = np.linalg.eigvalsh(0.5 * np.trace(matrix) * np.eye(3) - matrix)
        massless = float(mass.get("value", "nan")) == 0 and np.any(matrix)
        if massless or second[0] < -1e-9 * np.abs(second).max():
            found.add(element.get("name"))
    return found


@needs_robots
@pytest.mark.parametrize("row", MANIFEST, ids=lambda row: row["file"])
def test_every_robot_loads_or_names_its_impossible_links(row):
    path = DATA / row["file"]
    offending = offending_links(path)
    if offending:
        with pytest.raises(LoadError) as caught:
            read(path)
        assert {p.element for p in caught.value.problems} == {f"link {name!r}" for name in offending}
    description, omissions = read(path, repair_inertia=True)
    assert {o.element for o in omissions if o.reason.startswith("repaired")} == {f"link {n!r}" for n in offending}
    model = build(description)
    assert model.mass == pytest.approx(float(row["moving_mass"]), rel=1e-12)
    assert model.nv == int(row["nv"])


@needs_robots
def test_at_least_eighty_robots_need_no_mending():
    assert sum(not offending_links(DATA / row["file"]) for row in MANIFEST) >= 80 and len(MANIFEST) == 90


# Links


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=3))
def test_inertia_is_turned_by_its_origin(rpy):
    moments = 'ixx="0.02" iyy="0.03" izz="0.04" ixy="0.001" ixz="-0.002" iyz="0.003"'
    origin = f'<origin xyz="0.1 0.2 0.3" rpy="{" ".join(map(repr, rpy))}"/>'
    inertial = f'<inertial>{origin}<mass value="1.5"/><inertia {moments}/></inertial>'
    description, _ = read(robot(link("arm", inertial), joint("j", "continuous", "base", "arm")))
    I = np.array([[0.02, 0.001, -0.002], [0.001, 0.03, 0.003], [-0.002, 0.003, 0.04]])
    R = Rotation.from_euler("xyz", rpy).as_matrix()
    body = description.links[1]
    com, moment = body.central_inertia()
    assert body.mass == 1.5
    np.testing.assert_array_equal(com, [0.1, 0.2, 0.3])
    np.testing.assert_allclose(moment, (R @ I @ R.T)[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]], atol=1e-16)


@given(st.lists(st.floats(-7, 7), min_size=3, max_size=3))
def test_rpy_is_about_fixed_axes(rpy):
    origin = f'<origin rpy="{" ".join(map(repr, rpy))}"/>'
    description, _ = read(robot(link("arm"), joint("j", "continuous", "base", "arm", origin)))
    wanted = Rotation.from_euler("xyz", rpy).as_matrix()
    got = Rotation.from_quat(np.roll(description.links[1].rotation, -1)).as_matrix()
    np.testing.assert_allclose(got, wanted, atol=1e-15)


def test_links_come_depth_first_in_the_order_of_their_joints():
    parts = [link(n) for n in "dcba"]
    parts += [joint("1", "continuous", "base", "c"), joint("2", "fixed", "base", "a")]
    parts += [joint("3", "continuous", "c", "d"), joint("4", "continuous", "a", "b")]
    description, _ = read(robot(*parts))
    assert [x.name for x in description.links] == ["base", "c", "d", "a", "b"]
    model = build(description)
    assert model.link_names == ("c", "d", "b") and model.frames.names == ("base", "a")


def test_links_without_inertia_have_none():
    description, _ = read(robot(link("arm", ""), joint("j", "continuous", "base", "arm")))
    assert description.links[1].mass == 0 and not np.any(description.links[1].central_inertia()[1])


@pytest.mark.parametrize("missing", ["ixx", "ixy", "ixz", "iyy", "iyz", "izz"])
def test_missing_moments_are_not_made_up(missing):
    text = arm().replace(f'{missing}="', f'x{missing}="')
    assert f"expected an attribute {missing!r}, there is none" in "".join(problems(text))


def test_a_number_may_have_white_space_around_it():
    description, _ = read(arm().replace('ixz="0"', 'ixz=" 0.25\n  "'))
    assert description.links[1].central_inertia()[1][4] == 0.25


@pytest.mark.parametrize("part", ["mass", "inertia"])
def test_half_an_inertial_is_refused(part):
    text = arm().replace(f"<{part} ", f"<x{part} ")
    assert f"link 'arm' <inertial> (line 3): expected a <{part}> in it, there is none" in problems(text)


@pytest.mark.parametrize(
    ("moments", "rule"),
    [
        ({"izz": 3}, "triangle inequality"),
        ({"ixx": -1}, "positive definite"),
        ({"mass": 0}, "a link without mass cannot have inertia"),
        ({"mass": -2}, "mass must not be negative"),
    ],
)
def test_impossible_inertia_is_refused_by_link_and_rule(moments, rule):
    text = arm()
    for key, value in moments.items():
        old = 'mass value="2"' if key == "mass" else f'{key}="1"'
        text = text.replace(old, old.split('="')[0] + f'="{value}"')
    for strict in (True, False):
        (problem,) = problems(text, strict=strict)
        assert problem.startswith("link 'arm' (line 3): ") and rule in problem


def test_repair_mends_the_inertia_and_says_so():
    description, omissions = read(arm().replace('izz="1"', 'izz="3"'), repair_inertia=True)
    (repaired,) = omissions
    assert repaired.element == "link 'arm'" and repaired.reason.startswith("repaired: principal moments")
    xx, yy, zz = description.links[1].central_inertia()[1][:3]
    assert xx + yy >= zz * (1 - 1e-12) and zz > 2


def test_a_negative_mass_is_beyond_repair():
    text = arm().replace('mass value="2"', 'mass value="-2"')
    assert "mass must not be negative" in problems(text, repair_inertia=True)[0]


def test_products_of_inertia_given_twice_must_agree():
    text = arm().replace('ixy="0"', 'ixy="0" iyx="0.5"')
    assert "ixy is [0.0] and iyx is [0.5]" in problems(text)[0]
    read(arm().replace('ixy="0"', 'ixy="0" iyx="0"'))


# Joints


def test_a_revolute_joint_has_all_its_numbers():
    inside = '<axis xyz="0 3 4"/><limit lower="-1" upper="2" effort="3" velocity="4"/>'
    found = only_joint(arm("revolute", inside + '<dynamics damping="0.5" friction="0.25"/>'))
    assert (found.kind, found.name, found.lower, found.upper) == ("revolute", "elbow", -1, 2)
    assert (found.effort, found.speed, found.damping, found.friction) == (3, 4, 0.5, 0.25)
    np.testing.assert_array_equal(found.axis, [0, 3, 4])


@pytest.mark.parametrize("kind", ["revolute", "continuous", "prismatic", "planar"])
def test_the_axis_is_x_where_none_is_given(kind):
    np.testing.assert_array_equal(only_joint(arm(kind)).axis, [1, 0, 0])


@pytest.mark.parametrize(("given", "kept"), [("0", math.inf), ("5", 5.0), ("inf", math.inf)])
def test_an_effort_of_zero_is_none(given, kept):
    found = only_joint(arm(inside=f'<limit lower="-1" upper="1" effort="{given}" velocity="{given}"/>'))
    assert found.effort == kept and found.speed == kept


@pytest.mark.parametrize("limit", ["", '<limit effort="1" velocity="1"/>', '<limit lower="1" upper="-1"/>'])
def test_a_range_without_room_is_no_range_and_noted(limit):
    description, omissions = read(arm("prismatic", limit))
    found = description.links[1].all_joints()[0]
    assert (found.lower, found.upper) == (-math.inf, math.inf)
    assert [o.element for o in omissions] == ["joint 'elbow'"] and "without limits" in omissions[0].reason


def test_one_missing_limit_is_zero():
    assert (
        only_joint(arm(inside='<limit upper="2"/>')).lower,
        only_joint(arm(inside='<limit lower="-2"/>')).upper,
    ) == (0, 0)


def test_a_continuous_joint_turns_without_limits():
    description, omissions = read(arm("continuous", '<limit lower="-6" upper="6" effort="2"/>'))
    found = description.links[1].all_joints()[0]
    assert (found.kind, found.lower, found.upper, found.effort) == ("revolute", -math.inf, math.inf, 2)
    assert "limits -6..6 left out" in omissions[0].reason


def test_planar_and_floating_joints():
    assert only_joint(arm("planar", '<axis xyz="0 0 1"/>')).kind == "planar"
    assert only_joint(arm("floating", "")).kind == "free"
    assert "<dynamics> of a planar joint" in problems(arm("planar", '<dynamics damping="1"/>'))[0]
    _, omissions = read(arm("planar", '<limit lower="-1" upper="1"/>'))
    assert "<limit> left out" in omissions[0].reason


def test_every_moving_joint_but_a_free_one_has_motors():
    parts = [link(n) for n in "abcd"]
    kinds = ("revolute", "prismatic", "planar", "floating")
    limit = '<axis xyz="0 0 1"/><limit lower="-1" upper="1" effort="3"/>'
    parts += [joint(f"j{n}", kind, "base", n, limit) for n, kind in zip("abcd", kinds, strict=True)]
    model = build(read(robot(*parts))[0])
    assert model.actuators.names == ("ja", "jb", "jc_x", "jc_y", "jc_turn")
    assert model.actuators.entry_dof == (0, 1, 2, 3, 4) and np.all(model.actuators.gear == 1)
    np.testing.assert_array_equal(model.effort[:2], [3, 3])


def test_a_mimic_joint_stays_free_and_is_tied():
    parts = [link("a"), link("b"), joint("lead", "continuous", "base", "a")]
    parts.append(joint("follow", "continuous", "base", "b", '<mimic joint="lead" multiplier="-2" offset="0.5"/>'))
    description, _ = read(robot(*parts))
    (mimic,) = description.equalities
    assert isinstance(mimic, kd.Mimic) and (mimic.joint_a, mimic.joint_b) == ("follow", "lead")
    assert tuple(mimic.polynomial) == (0.5, -2.0, 0.0, 0.0, 0.0)
    assert build(description).nv == 2


@pytest.mark.parametrize("leader", ["nobody", "elbow", "bolt"])
def test_a_mimic_of_no_other_moving_joint_is_refused_or_left_out(leader):
    bolt = joint("bolt", "fixed", "base", "tip")
    text = robot(
        link("arm"), link("tip"), bolt, joint("elbow", "continuous", "base", "arm", f'<mimic joint="{leader}"/>')
    )
    assert f"<mimic> of {leader!r}" in problems(text)[0]
    description, omissions = read(text, strict=False)
    assert not description.equalities and f"<mimic> of {leader!r}" in omissions[0].reason


@pytest.mark.parametrize("dynamics", ['damping="-1"', 'friction="-1"'])
def test_negative_dynamics_are_refused(dynamics):
    assert "must not be negative, got -1" in problems(arm("continuous", f"<dynamics {dynamics}/>"))[0]


# The base


def test_the_base_is_fixed_unless_freed():
    assert build(read(arm())[0]).nv == 1
    assert build(read(arm(), floating=False)[0]).nv == 1
    freed = build(read(arm(), floating=True)[0])
    assert freed.nv == 7 and freed.joint_names == ("floating_base", "elbow") and freed.nu == 1


def test_a_base_that_floats_in_the_file_is_freed_once_and_can_be_fixed():
    text = robot(link("body"), joint("root", "floating", "base", "body"), base='<link name="base"/>')
    for floating, nv in ((None, 6), (True, 6)):
        assert build(read(text, floating=floating)[0]).nv == nv
    assert not read(text, floating=False)[0].links[1].all_joints()


def test_a_root_called_world_is_the_ground():
    floor = '<link name="world"><collision><geometry><box size="9 9 1"/></geometry></collision></link>'
    text = robot(link("arm"), joint("elbow", "continuous", "world", "arm"), base=floor)
    description, _ = read(text)
    assert [x.name for x in description.links] == ["arm"] and description.links[0].parent == kd.WORLD
    assert description.world_shapes[0].size == (4.5, 4.5, 0.5)
    assert "cannot float" in problems(text, floating=True)[0]


def test_what_is_bolted_to_the_world_can_be_freed():
    parts = [
        link("body"),
        link("arm"),
        joint("bolt", "fixed", "world", "body"),
        joint("j", "continuous", "body", "arm"),
    ]
    description, _ = read(robot(*parts, base='<link name="world"/>'), floating=True)
    assert build(description).nv == 7


# Shapes


def shapes_of(inside: str, **options):
    return read(robot(link("arm", inside), joint("j", "continuous", "base", "arm")), **options)[0].links[1].all_shapes()


def test_shapes_have_half_lengths_and_names_of_their_own():
    geometry = "<visual name='v'><geometry>{}</geometry></visual>"
    kinds = ('<box size="2 4 6"/>', '<sphere radius="1"/>', '<cylinder radius="1" length="4"/>')
    shapes = shapes_of("".join(map(geometry.format, (*kinds, '<capsule radius="1" length="4"/>'))))
    assert [s.kind for s in shapes] == ["box", "sphere", "cylinder", "capsule"]
    assert [s.size for s in shapes] == [(1, 2, 3), (1,), (1, 2), (1, 2)]
    assert len({s.name for s in shapes}) == 4 and shapes[0].name == "v"


def test_only_collisions_touch():
    box = '<geometry><box size="1 1 1"/></geometry>'
    visual, collision = shapes_of(f"<visual>{box}</visual><collision>{box}</collision>")
    assert (visual.contype, visual.conaffinity, collision.contype, collision.conaffinity) == (0, 0, 1, 1)


def test_colours_come_from_the_shape_or_by_name():
    box = '<geometry><box size="1 1 1"/></geometry>'
    visuals = f'<visual>{box}<material name="red"/></visual>'
    visuals += f'<visual>{box}<material name="own"><color rgba="0 1 0 1"/></material></visual>'
    text = robot(link("arm", visuals), '<material name="red"><color rgba="1 0 0 1"/></material>')
    text = text.replace("</robot>", joint("j", "continuous", "base", "arm") + "</robot>")
    assert [s.rgba for s in read(text)[0].links[1].all_shapes()] == [(1, 0, 0, 1), (0, 1, 0, 1)]


def test_a_mesh_is_read_from_the_package(tmp_path):
    (tmp_path / "meshes").mkdir()
    trimesh.creation.box((1, 2, 3)).export(tmp_path / "meshes" / "b.obj")
    mesh = f'<mesh filename="package://{tmp_path.name}/meshes/b.obj" scale="2 2 -1"/>'
    (shape,) = shapes_of(f"<collision><geometry>{mesh}</geometry></collision>", package_paths=[tmp_path])
    assert shape.kind == "mesh" and shape.size == (2, 2, -1) and shape.mesh is not None
    np.testing.assert_allclose(shape.mesh.vertices.max(0), [0.5, 1, 1.5])
    assert len(shape.mesh.faces) == 12


@pytest.mark.parametrize("content", [None, "junk", "solid\nendsolid"])
def test_a_missing_or_broken_mesh_is_reported_and_does_not_stop_the_dynamics(tmp_path, content):
    if content is not None:
        (tmp_path / "b.stl").write_text(content)
    text = robot(link("arm", INERTIAL + '<visual><geometry>\n<mesh filename="b.stl"/></geometry></visual>'))
    path = tmp_path / "r.urdf"
    path.write_text(text.replace("</robot>", joint("j", "continuous", "base", "arm") + "</robot>"))
    description, (omission,) = read(path)
    assert build(description).nv == 1 and omission.element == "link 'arm' <mesh 'b.stl'>" and omission.line == 3


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../../../../../../../etc/passwd", "package://x/../../../../../../etc/passwd"]
)
def test_a_mesh_outside_is_refused_by_name(tmp_path, name):
    path = tmp_path / "r.urdf"
    mesh = f'<visual><geometry><mesh filename="{name}"/></geometry></visual>'
    path.write_text(robot(link("arm", INERTIAL + mesh), joint("j", "continuous", "base", "arm")))
    for source in (path, path.read_text()):
        assert "leads outside" in problems(source)[0] and name in problems(source)[0]
        description, omissions = read(source, strict=False)
        assert build(description).nv == 1 and name in omissions[0].element


@pytest.mark.parametrize("geometry", ["", "<torus/>", '<box size="1 1"/>', '<box size="1 1 -1"/>', "<sphere/>"])
def test_a_shape_that_cannot_be_is_refused_or_left_out(geometry):
    text = robot(link("arm", f"<collision><geometry>{geometry}</geometry></collision>"))
    text = text.replace("</robot>", joint("j", "continuous", "base", "arm") + "</robot>")
    assert problems(text)[0].startswith("link 'arm' <collision>")
    description, omissions = read(text, strict=False)
    assert not description.links[1].all_shapes() and omissions


# Beyond URDF


def test_what_is_not_urdf_is_named():
    parts = [link("arm"), joint("j", "continuous", "base", "arm", '<safety_controller k_velocity="1"/>')]
    parts += ['<gazebo reference="arm"><mu1>1</mu1></gazebo>', '<transmission name="t"/>', "<banana/>"]
    _, omissions = read(robot(*parts))
    assert [(o.element, o.line) for o in omissions] == [
        ("joint 'j' <safety_controller>", 4),
        ("<gazebo 'arm'>", 5),
        ("<transmission 't'>", 6),
        ("<banana>", 7),
    ]


def test_a_misspelt_attribute_is_named():
    text = arm().replace('<limit lower="-1"', '<limit lower="-1" uper="3"')
    _, (omission,) = read(text)
    assert omission.element == "joint 'elbow' <limit>" and "'uper'" in omission.reason


def test_a_loop_joint_holds_its_axis_together():
    parts = [link("a"), link("b"), joint("ja", "continuous", "base", "a"), joint("jb", "continuous", "base", "b")]
    ends = '<link1 link="a" xyz="0 0 1"/><link2 link="b" xyz="1 0 0" rpy="0 0 1.5707963267948966"/>'
    parts.append(f'<loop_joint name="close" type="continuous">{ends}<axis xyz="0 2 0"/></loop_joint>')
    first, second = read(robot(*parts))[0].equalities
    assert isinstance(first, kd.Connect) and isinstance(second, kd.Connect)
    assert (first.link_a, first.link_b) == ("a", "b")
    np.testing.assert_allclose(np.array([first.point_a, second.point_a]), [[0, 0, 1], [0, 0.1, 1]], atol=1e-15)
    np.testing.assert_allclose(np.array([first.point_b, second.point_b]), [[1, 0, 0], [0.9, 0, 0]], atol=1e-15)
    assert "loop_joint 'close'" in problems(robot(*parts).replace('link1 link="a"', 'link1 link="c"'))[0]


def test_a_frame_is_a_named_pose():
    model = build(
        read(robot(link("arm"), joint("j", "continuous", "base", "arm"), '<frame name="tip" link="arm" xyz="1 2 3"/>'))[
            0
        ]
    )
    assert model.frames.names == ("base", "tip") and model.frames.link == (-1, 0)
    np.testing.assert_array_equal(model.frames.position[1], [1, 2, 3])


# What cannot be understood


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (arm("hinge"), "joint 'elbow' (line 4): type: expected one of revolute"),
        (arm(inside='<axis xyz="0 0 0"/>'), "axis must not be zero"),
        (arm(inside='<axis xyz="1 0"/>'), "xyz: expected 3 numbers, got '1 0'"),
        (arm(inside='<axis xyz="1 0 nan"/>'), "xyz: expected finite numbers"),
        (arm(inside='<axis xyz="1_0 0 0"/>'), "xyz: expected finite numbers"),
        (arm(inside="<axis/>"), "expected an attribute 'xyz'"),
        (arm(inside='<limit lower="nan"/>'), "lower: expected a number, got 'nan'"),
        (arm(inside='<origin/><origin xyz="1 0 0"/>'), "expected one such element, this is one more"),
        (arm().replace('<mass value="2"/>', '<mass value="heavy"/>'), "value: expected a finite number, got 'heavy'"),
        (arm().replace('<child link="arm"/>', ""), "joint 'elbow' (line 4): expected a <child> in it"),
        (
            arm().replace('parent link="base"', 'parent link="bse"'),
            "its parent is link 'bse', which is not in the file",
        ),
        (robot(link("arm")), "expected one root link, there are 'base', 'arm'"),
        (robot(link("base")), "link 'base' (line 3): the name stands twice"),
        (
            robot(link("a"), joint("j", "fixed", "base", "a"), joint("k", "fixed", "base", "a")),
            "already hangs on joint 'j'",
        ),
        (robot(link("a"), link("b"), joint("j", "fixed", "a", "b"), joint("k", "fixed", "b", "a")), "hangs in a ring"),
        (robot(link("world"), joint("j", "fixed", "base", "world")), "only the root may be called 'world'"),
        (robot("<xacro:macro name='x'/>"), "<xacro:macro> (line 3): this is a xacro file: run `xacro` first"),
        ("<robot name='r'/>", "expected one root link, there are none"),
    ],
)
def test_what_cannot_be_understood_is_refused_even_if_not_strict(text, expected):
    for strict in (True, False):
        assert expected in "\n".join(problems(text, strict=strict))


def test_all_problems_are_listed_at_once():
    text = robot(*(link(n).replace('izz="1"', 'izz="3"') for n in "ab"))
    text = text.replace("</robot>", "".join(joint(n, "fixed", "base", n) for n in "ab") + "</robot>")
    assert len(problems(text)) == 2


words = st.sampled_from(["link", "joint", "inertial", "mass", "origin", "axis", "visual", "geometry", "mesh", "x:y"])
values = st.sampled_from(["a", "b", "0", "1 2 3", "nan", "1e999", "-1", "", "revolute", "../x", "0 0 0"])
names = st.sampled_from(["name", "type", "link", "value", "xyz", "rpy", "filename", "ixx", "joint"])


@st.composite
def elements(draw, depth=3):
    tag, attributes = draw(words), draw(st.dictionaries(names, values, max_size=4))
    inner = "".join(draw(st.lists(elements(depth=depth - 1), max_size=3))) if depth else ""
    return f"<{tag} " + " ".join(f'{k}="{v}"' for k, v in attributes.items()) + f">{inner}</{tag}>"


@given(st.lists(elements(), max_size=6), st.booleans(), st.booleans())
def test_any_robot_is_read_or_refused(parts, strict, repair):
    text = robot(link("a"), joint("j", "continuous", "base", "a"), *parts)
    try:
        description, _ = read(text, strict=strict, repair_inertia=repair)
    except LoadError as error:
        assert error.problems
    else:
        assert description.links


WHOLE = robot(
    link("a", INERTIAL + '<visual><geometry><box size="1 2 3"/></geometry><material name="m"/></visual>'),
    joint("j", "revolute", "base", "a", '<axis xyz="0 0 1"/><limit lower="-1" upper="1" effort="1" velocity="1"/>'),
    link("b"),
    joint("k", "prismatic", "a", "b", '<origin xyz="1 0 0" rpy="0 1 0"/><mimic joint="j"/><dynamics damping="1"/>'),
)


@given(st.data())
def test_damaged_text_is_read_or_refused(data):
    text = WHOLE
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text) - 1))
        stop = data.draw(st.integers(start, min(len(text), start + 12)))
        piece = data.draw(
            st.sampled_from(["", " ", "0", '"', "<", ">", "/>", "&a;", "<!DOCTYPE a>", "-1e400", "é", "link"])
        )
        text = text[:start] + piece + text[stop:]
    try:
        build(read(text, strict=data.draw(st.booleans()))[0])
    except LoadError:
        pass
    except ValueError as error:
        assert "nothing moves" in str(error)  # of the builder: what was left has no joint
