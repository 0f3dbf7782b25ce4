"""MJCF robots move as in MuJoCo: kinematics, dynamics, joint forces and a step, at random states.

The reference is MuJoCo's smooth dynamics: constraints off. Frictionloss is among them (here it is a smooth joint
force), so it is left out on both sides. Tolerances: 1e-9 relative is the project's promise; what is seen is below
1e-12, so there is room for another machine's rounding and none for a wrong term. The backward error of forward
dynamics, |M qdd + C - tau| over the sum of its terms, does not grow with the condition of M and stays below 1e-10.
"""

import functools
import os
import runpy
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from knuckle.forces import passive_force
from knuckle.model.load import load

ROOT = Path(__file__).parents[2]
ROBOTS = Path(os.environ.get("KNUCKLE_DATA", ROOT.parent / "shared" / "data")) / "robots" / "mjcf"
compare = runpy.run_path(str(ROOT / "scripts" / "check_robots_mjcf.py"))["compare"]
RELATIVE, BACKWARD = 1e-9, 1e-10

# Every kind of joint, several on one body, off-centre anchors, springs, every kind of actuator, welded bodies.
EVERYTHING = """<mujoco>
  <option gravity="0.3 -0.2 -9.7"/>
  <compiler angle="radian"/>
  <worldbody>
    <site name="ground" pos="1 2 3"/>
    <body name="base" pos="1 2 3" quat="0.5 0.5 0.5 -0.5">
      <joint name="root" type="free" stiffness="3" damping="0.2" armature="0.05"/>
      <inertial pos="0.1 -0.2 0.05" mass="3" fullinertia="0.3 0.4 0.5 0.02 -0.03 0.01"/>
      <site name="imu" pos="0.1 0.2 0.3" quat="0.6 0 0 0.8"/>
      <body name="plate" pos="0.2 0 0.1" quat="0.8 0.6 0 0"><geom type="box" size="0.1 0.2 0.05" pos="0.1 0 0"/>
        <body name="arm" pos="0 0.3 0" quat="0.6 0 0.8 0">
          <joint name="x" type="slide" axis="1 2 0" stiffness="20" springref="0.3" damping="1" ref="0.1"/>
          <joint name="y" axis="0 1 1" pos="0.1 0 0.2" ref="0.7" armature="0.3" actuatorfrcrange="-0.8 0.8"/>
          <joint name="b" type="ball" pos="0 0.1 0" stiffness="4" damping="0.5" armature="0.02"/>
          <geom type="capsule" fromto="0 0 0 0.3 0 0.4" size="0.05"/>
          <body name="hand" pos="0.3 0 0.4"><joint name="h" axis="0 0 1" frictionloss="0.4"/><geom size="0.08"/>
            <site name="tip" pos="0 0 0.2"/></body>
        </body>
      </body>
    </body>
    <body name="other" pos="0 0 1"><joint name="o" type="slide" axis="0 0 1"/><geom size="0.1"/></body>
  </worldbody>
  <actuator>
    <motor joint="root" gear="1 2 3 0.1 0.2 0.3"/>
    <position joint="x" kp="30" kv="2" gear="1.5"/>
    <velocity joint="h" kv="4" gear="-2" ctrlrange="-0.3 0.3"/>
    <motor joint="y" gear="5"/>
    <general joint="y" gainprm="2" biastype="affine" biasprm="0.5 -1 -0.2" forcerange="-0.4 0.4"/>
    <motor joint="b" gear="0.3 -0.2 0.5"/>
    <position joint="b" kp="2" kv="0.3" gear="0 1 0"/>
  </actuator>
</mujoco>"""


@functools.cache
def with_model_as_argument(function, names):
    return jax.jit(lambda model, *state: function(model, names, *state))


def compiled_once(quantities: functools.partial):
    """One program for all values of a model."""
    return functools.partial(with_model_as_argument(quantities.func, quantities.args[1]), quantities.args[0])


def assert_equal_motion(errors: dict[str, float]) -> None:
    limits = {name: BACKWARD if name == "backward error" else RELATIVE for name in errors}
    assert {name: error for name, error in errors.items() if not error < limits[name]} == {}


def test_every_joint_and_actuator_moves_as_in_mujoco():
    reference = mujoco.MjModel.from_xml_string(EVERYTHING)
    errors = compare(load(EVERYTHING), reference, states=5, compiler=compiled_once)
    assert set(errors) == {
        *("mass matrix", "bias force", "passive force", "actuator force", "forward dynamics", "backward error"),
        *("position", "rotation", "jacobian", "step"),
    }
    assert_equal_motion(errors)


@pytest.mark.parametrize(
    "part",
    [
        lambda m: m.inertia.moment,
        lambda m: m.anchor,
        lambda m: m.rest,
        lambda m: m.armature,
        lambda m: m.actuators.gear,
        lambda m: m.actuators.bias,
        lambda m: m.frames.position,
    ],
)
def test_the_comparison_notices_a_wrong_parameter(part):
    """One part in a million in any parameter must show, or the comparison proves nothing."""
    model = load(EVERYTHING)
    wrong = eqx.tree_at(part, model, part(model) * (1 + 1e-6) + 1e-6)
    errors = compare(wrong, mujoco.MjModel.from_xml_string(EVERYTHING), states=1, compiler=compiled_once)
    with pytest.raises(AssertionError):
        assert_equal_motion(errors)


@pytest.mark.skipif(not ROBOTS.is_dir(), reason=f"no robot descriptions in {ROBOTS} (set KNUCKLE_DATA)")
@pytest.mark.filterwarnings("ignore::knuckle.model.report.LoadWarning")
@pytest.mark.parametrize(
    "name",
    [
        "pinocchio__closed_chain.xml",  # a biped: free base, balls, hinges
        "mujoco__pendulum.xml",  # ball, slide and hinges in one chain
        "pybullet__humanoid.xml",  # three hinges on one body
        "pybullet__striker.xml",  # several trees, light and heavy
    ],
)
def test_robots_move_as_in_mujoco(name):
    reference = mujoco.MjModel.from_xml_path(str(ROBOTS / name))
    assert_equal_motion(compare(load(ROBOTS / name), reference, states=2))


def test_smooth_friction_reaches_mujocos_frictionloss():
    """MuJoCo bounds the friction of a joint by frictionloss; ours tends to that bound as the joint slides."""
    model = load(EVERYTHING)
    dof = int(model.topology.v_start[model.topology.joint("h")])
    qd = np.zeros(model.nv)
    qd[dof] = 1.0
    friction = np.asarray(jax.jit(passive_force)(model, jnp.asarray(model.reference), jnp.asarray(qd)))[dof]
    np.testing.assert_allclose(friction, -0.4, rtol=1e-12)
