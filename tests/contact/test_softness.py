"""How deep bodies rest in MuJoCo by solref and solimp, which contact here does not follow."""

import mujoco
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact.softness import deepest_rest

BALL = """<mujoco><option timestep="0.001"/><worldbody><geom type="plane" size="1 1 1" condim="1" {0}/>
<body pos="0 0 0.1"><freejoint/><geom size="0.1" condim="1" {1}/></body></worldbody>{2}</mujoco>"""
SOFT = 'solref="0.02 1" solimp="0.015 1 0.03"'


@pytest.mark.parametrize(
    "settings",
    [
        ("", "", ""),
        (SOFT, SOFT, ""),
        (SOFT, "", ""),
        (SOFT, 'priority="1" solref="0.05 0.7"', ""),
        ('solref="-500 -20"', 'solref="-300 -20" solimp="0.5 0.8 0.1 0.3 3"', ""),
        ('solmix="3" solref="0.1 1"', 'solmix="1"', ""),
        ('name="f"', 'name="b"', '<contact><pair geom1="f" geom2="b" solref="0.2 1" condim="1"/></contact>'),
    ],
)
def test_a_body_rests_as_deep_as_in_mujoco(settings):
    text = BALL.format(*settings)
    theirs = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(theirs)
    mujoco.mj_step(theirs, data, 8000)
    assert abs(data.qvel[2]) < 1e-6
    assert deepest_rest(kn.load(text)) == pytest.approx(0.1 - data.qpos[2], rel=1e-3)


def test_without_pairs_or_weight_nothing_sinks():
    ball = kn.Link("ball", joints=kn.free(), mass=1.0, shapes=kn.shapes.sphere(0.1))
    assert deepest_rest(kn.build([ball])) == 0.0
    weightless = kn.build([ball], world_shapes=[kn.shapes.plane()], gravity=np.zeros(3))
    assert deepest_rest(weightless) == pytest.approx(0.0, abs=1e-12)
