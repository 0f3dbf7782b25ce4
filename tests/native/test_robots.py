"""Native code gives what `jax.jit` gives on real robots; `scripts/check_native.py` compares all of them."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import check_native

DATA = Path(os.environ.get("KNUCKLE_DATA", Path(__file__).parents[3] / "shared" / "data")) / "robots"
SPREAD = ("urdf/pybullet__TwoJointRobot_w_fixedJoints.urdf", "mjcf/pybullet__ant.xml", "urdf/pybullet__a1.urdf",
          "mjcf/mujoco__bowl.xml", "urdf/unitree_ros__g1_29dof.urdf")  # fmt: skip
needs_robots = pytest.mark.skipif(not DATA.is_dir(), reason=f"no robot descriptions in {DATA} (set KNUCKLE_DATA)")


@needs_robots
@pytest.mark.parametrize("name", SPREAD)
@pytest.mark.filterwarnings("ignore")
def test_dynamics_agree_with_jax_jit(name):
    model = check_native.load(DATA / name)
    assert model is not None
    worst = check_native.errors(model, states=2)
    assert max(worst.values()) <= check_native.LIMIT, worst
    assert max(worst.values()) > 0  # the two did not run the same code
