"""Mocap bodies of MJCF: read, written, moved by paths, and compared with MuJoCo."""

from __future__ import annotations

import warnings

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Impulse
from knuckle.model.report import LoadWarning

PUSHER = """<mujoco model="pusher"><option timestep="0.001"/><worldbody>
<geom name="floor" type="plane" size="0 0 1" friction="0.3"/>
<body name="ball" pos="0 0 0.1"><freejoint name="ball_free"/>
<geom name="ball" type="sphere" size="0.1" mass="1" friction="0.1"/></body>
<body name="tip" mocap="true" pos="-0.3 0 0.1" quat="0.8 0 0 0.6">
<geom name="tip" type="sphere" size="0.05" friction="0.1"/>
<site name="mark" pos="0.1 0 0"/><body name="nail" pos="0 0 0.2">
<geom name="nail" size="0.01" contype="0" conaffinity="0"/></body></body></worldbody>{rest}</mujoco>"""
GRIPPER = """<mujoco><worldbody><body name="hand" pos="0.1 0 0.5"><freejoint name="free"/>
<geom size="0.05" mass="1"/></body>
<body name="target" mocap="true" pos="0.1 0 0.5"/></worldbody>
<equality><weld name="drag" body1="target" body2="hand"/></equality></mujoco>"""


def load(tmp_path, text: str) -> kn.Model:
    (tmp_path / "model.xml").write_text(text)
    return kn.load(tmp_path / "model.xml")


def test_a_mocap_body_is_read_and_written(tmp_path):
    model = load(tmp_path, PUSHER.format(rest=""))
    assert model.nq == 7 and model.topology.mocap == ("tip",)
    assert model.topology.standing_on("tip") == {"tip", "mark", "nail"}
    kn.save(model, tmp_path / "saved.xml")
    again = kn.load(tmp_path / "saved.xml")
    assert again.topology.mocap == ("tip",)
    assert again.topology.standing_on("tip") == {"tip", "mark", "nail"}
    compiled = mujoco.MjModel.from_xml_path(str(tmp_path / "saved.xml"))
    assert compiled.nmocap == 1 and compiled.body("nail").parentid[0] == compiled.body("tip").id
    bare = kn.build(
        [kn.Link("ball", joints=kn.free(), mass=1.0, com=(0, 0, 0), inertia=(0.1,) * 3), kn.Link("tip", mocap=True)]
    )
    with pytest.raises(ValueError, match="would not load back the same"):
        kn.save(bare, tmp_path / "saved.urdf")


def test_a_weld_to_a_mocap_body_is_written_on_that_body(tmp_path):
    kn.save(load(tmp_path, GRIPPER), tmp_path / "saved.xml")
    again = kn.load(tmp_path / "saved.xml")
    assert again.equalities.body_a == ("target",) and again.equalities.body_b == ("",)

    def path(t):
        return jnp.stack([0.1 + 0 * t, 0.2 * t, 0.5 + 0 * t])

    run = kn.rollout(
        again, again.state(), dt=1e-3, steps=300, contact=Impulse(), prescribed={"target": path}, native=True
    )
    np.testing.assert_allclose(run.q[-1, :3], [0.1, 0.06, 0.5], atol=1e-6)


def test_without_a_path_a_mocap_body_stands_as_described(tmp_path):
    text = PUSHER.format(rest="")
    model, fixed = load(tmp_path, text), load(tmp_path, text.replace('mocap="true"', ""))
    start = kn.State(np.array([-0.16, 0, 0.1, 1.0, 0, 0, 0]), np.array([-1.0, 0, 0, 0, 0, 0]))
    runs = [kn.rollout(m, start, dt=1e-3, steps=50, contact=Impulse(), native=True) for m in (model, fixed)]
    np.testing.assert_array_equal(runs[0].q, runs[1].q)


def test_a_mocap_body_pushes_as_in_mujoco(tmp_path):
    """MuJoCo gives the tip no velocity, so its contacts damp the ball's own: it lags by 2 x 0.02 s (solref) x speed."""
    text = PUSHER.format(rest="")
    model, compiled = load(tmp_path, text), mujoco.MjModel.from_xml_string(text)
    steps, speed = 800, 0.5
    data = mujoco.MjData(compiled)
    for k in range(steps):
        data.mocap_pos[0, 0] = -0.3 + speed * 1e-3 * (k + 1)
        mujoco.mj_step(compiled, data)
    path = kn.Path([0.0, 1.0], [[-0.3, 0, 0.1], [-0.3 + speed, 0, 0.1]])
    run = kn.rollout(
        model, model.state(), dt=1e-3, steps=steps, contact=Impulse(), prescribed={"tip": path}, native=True
    )
    assert run.q[-1, 0] > 0.1  # it was pushed
    np.testing.assert_allclose(run.q[-1, :3], data.qpos[:3], atol=0.04 * speed)
    np.testing.assert_allclose(run.qd[-1, 0], data.qvel[0], atol=0.05 * speed)


def test_poses_of_mocap_bodies_in_keyframes_are_reported(tmp_path):
    key = '<keyframe><key name="far" qpos="0 0 0.1 1 0 0 0" mpos="1 2 3"/></keyframe>'
    with pytest.warns(LoadWarning, match="poses of mocap bodies are not kept"):
        load(tmp_path, PUSHER.format(rest=key))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LoadWarning)
        load(tmp_path, PUSHER.format(rest=key.replace(' mpos="1 2 3"', "")))


def test_mocap_bodies_hang_on_the_world_without_joints():
    ball = kn.Link("ball", joints=kn.free(), mass=1.0)
    for wrong in (kn.Link("tip", joints=kn.free(), mass=1.0, mocap=True), kn.Link("tip", "ball", mocap=True)):
        with pytest.raises(ValueError, match="link 'tip': a mocap body hangs on the world and has no joints"):
            kn.build([ball, wrong])
