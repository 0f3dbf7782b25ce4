"""The robots that come with the package."""

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import knuckle as kn
from knuckle import robots
from knuckle.model.joints import neutral


@pytest.mark.parametrize("name", robots.names())
def test_a_built_in_robot_is_what_mujoco_reads_from_its_file(name):
    model, other = robots.load(name), mujoco.MjModel.from_xml_path(str(robots.path(name)))
    assert (model.name, model.nq, model.nv, model.nu) == (name, other.nq, other.nv, other.nu)
    np.testing.assert_allclose(model.mass, other.body_mass.sum(), rtol=1e-12)
    for key in range(other.nkey):
        np.testing.assert_array_equal(model.keyframes[other.key(key).name], other.key_qpos[key])


def test_the_promised_robots_are_there():
    assert set(robots.names()) >= {"arm", "cartpole", "double_pendulum", "quadruped", "hopper", "pendulum"}
    assert robots.load("arm").nv == 7 and robots.load("quadruped").nv == 18


def test_the_quadruped_stands_on_the_floor():
    """The lowest point of a foot, by closed form: hip height less two links of 0.21 m and the foot's radius."""
    z, angle = robots.load("quadruped").keyframes["standing"][[2, 8]]
    assert z - 2 * 0.21 * np.cos(angle) - 0.022 == pytest.approx(0, abs=1e-3)


def test_a_base_can_be_fixed():
    assert robots.load("quadruped", floating=False).nv == 12


def test_an_unknown_name_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="no built-in robot 'spot'; there are acrobot, arm, cartpole"):
        robots.load("spot")


@pytest.mark.parametrize("name", robots.names())
def test_keyframes_are_within_the_limits(name):
    model = robots.load(name)
    single = np.isin(model.topology.dof_link, model.topology.of_kind("revolute", "prismatic"))
    for q in model.keyframes.values():
        moved = np.asarray(kn.difference(model, jnp.asarray(neutral(model.topology)), jnp.asarray(q)))
        assert np.all((moved >= model.lower)[single]) and np.all((moved <= model.upper)[single])
