"""URDF robots move as in Pinocchio: mass matrix, bias force, poses, Jacobians, and backward error of accelerations.

Tolerances are the project's promise (1e-9 relative, 1e-10 backward); float64 leaves about 1e-13.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
check = pytest.importorskip("check_robots_urdf", reason="needs pin: pip install 'knuckle[test]'", exc_type=ImportError)

DATA = Path(os.environ.get("KNUCKLE_DATA", Path(__file__).parents[3] / "shared" / "data")) / "robots" / "urdf"

FIXED = [
    "dair_pll__contactnets_elbow",  # one continuous joint
    "drake__double_pendulum",  # named frames
    "jaxsim__4_bar_opened",
    "models__panda_hand",  # sliding fingers that mimic each other
    "curobo__simple_mimic_gripper",  # without any mass
    "pybullet__cartpole",  # inertia repaired
    "urdf_files_dataset__kukaIiwa7",  # root called world
    "unitree_ros__a2",  # floats in the file
]
FLOATING = [
    "bullet3__pantilt",
    "pybullet__a1",
    "pybullet__racecar",
    "tiny-differentiable-simulator__humanoid",  # axes of any length, capsules
    "urdf_files_dataset__robotisOpenManipulator",  # root called world
]


def agrees(path: Path, floating: bool):
    result = check.check_urdf(path, floating=floating, states=3)
    assert check.passes(result), result
    return result


@pytest.mark.parametrize(("name", "floating"), [(name, False) for name in FIXED] + [(name, True) for name in FLOATING])
def test_robots_agree(name, floating):
    path = DATA / f"{name}.urdf"
    if not path.exists():
        pytest.skip(f"no robot descriptions in {DATA} (set KNUCKLE_DATA)")
    result = agrees(path, floating)
    assert result["nv"] > 0
    assert (result["backward"] is None) == (name == "curobo__simple_mimic_gripper")


def body(name: str, kind: str, parent: str, axis: str = "0 0 1") -> str:
    inertia = '<inertia ixx="0.2" iyy="0.3" izz="0.4" ixy="0.01" ixz="0.02" iyz="0.03"/>'
    inertial = f'<inertial><origin xyz="0.1 -0.2 0.3" rpy="0.3 0.2 0.1"/><mass value="2"/>{inertia}</inertial>'
    origin = '<origin xyz="0.3 0.1 0.2" rpy="0.4 -0.5 0.6"/><limit lower="-9" upper="9" effort="0" velocity="0"/>'
    ends = f'<parent link="{parent}"/><child link="{name}"/>'
    joint = f'<joint name="j_{name}" type="{kind}">{ends}{origin}<axis xyz="{axis}"/></joint>'
    return f'<link name="{name}">{inertial}</link>{joint}'


@pytest.mark.parametrize("floating", [False, True])
def test_all_kinds_of_joints_in_one_tree_agree(tmp_path, floating):
    parts = [body("slab", "planar", "base"), body("arm", "revolute", "slab", "1 2 3"), body("kite", "floating", "arm")]
    parts += [
        body("lid", "fixed", "kite"),
        body("rod", "prismatic", "lid", "0 -1 1"),
        body("fan", "continuous", "slab"),
    ]
    inertia = '<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/>'
    base = f'<link name="base"><inertial><mass value="3"/>{inertia}</inertial></link>'
    path = tmp_path / "zoo.urdf"
    path.write_text(f'<robot name="zoo">{base}{"".join(parts)}</robot>')
    assert agrees(path, floating)["nv"] == 12 + 6 * floating


def test_a_wrong_mass_would_be_noticed(tmp_path, monkeypatch):
    path = tmp_path / "arm.urdf"
    path.write_text(f'<robot name="arm"><link name="base"/>{body("arm", "continuous", "base")}</robot>')
    agrees(path, False)
    of = check.Reference.of
    monkeypatch.setattr(
        check.Reference, "of", staticmethod(lambda text, *rest: of(text.replace('value="2"', 'value="2.00001"'), *rest))
    )
    result = check.check_urdf(path)
    assert not check.passes(result) and result["pose"] < 1e-12 < result["mass_matrix"]
