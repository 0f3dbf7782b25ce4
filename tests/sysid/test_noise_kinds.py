"""Noise by kind of entry: metres, radians and rotations of one channel each have their own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import robots, sysid
from knuckle.model.joints import retract
from knuckle.sysid import noise_kinds
from knuckle.sysid.noise import noise_of
from knuckle.sysid.task import noise_in

BODY = """<mujoco><worldbody><body name="body"><freejoint name="base"/>
<inertial pos="0.02 0 0.03" mass="1" diaginertia="0.004 0.006 0.009"/></body></worldbody></mujoco>"""
POSITION, ROTATION = 1e-3, 2e-2


@pytest.fixture(scope="module")
def thrown():
    """A tumbling body and recordings of it whose rotations are 20 times as noisy as its positions."""
    with jax.enable_x64(True):
        model, rng, logs = kn.load(BODY), np.random.default_rng(0), []
        for _ in range(2):
            start = model.state(
                np.array([0, 0, 0, 1.0, 0, 0, 0]), np.append(rng.normal(size=3), 4 * rng.normal(size=3))
            )
            run = kn.rollout(model, start, dt=0.01, steps=120, integrator=kn.RK4(), contact=None)
            off = rng.normal(size=(120, 6)) * np.repeat([POSITION, ROTATION], 3)
            noisy = jax.vmap(lambda q, d: jnp.asarray(retract(model, q, d)))(run.q, jnp.asarray(off))
            logs.append(sysid.Recording.of(model, np.asarray(run.time), q=np.asarray(noisy)))
        return model, logs


def test_each_kind_of_a_free_joint_has_its_own_noise(thrown):
    """720 numbers of each: 4 % is one standard deviation; the estimate before the fit is by third differences."""
    model, logs = thrown
    first = np.asarray(noise_in(model, logs)["q"])
    assert first[:3] == pytest.approx(POSITION, rel=0.3) and first[3:] == pytest.approx(ROTATION, rel=0.3)
    fit = sysid.fit(model, logs, ["body.com"], held_out=0, segment=1.2)
    kinds = fit.noise_by_kind["q"]
    assert kinds["position"] == pytest.approx(POSITION, rel=0.12)
    assert kinds["rotation"] == pytest.approx(ROTATION, rel=0.12)
    assert fit.noise["q"] == pytest.approx(np.sqrt((kinds["position"] ** 2 + kinds["rotation"] ** 2) / 2))
    assert "noise of q: position" in repr(fit) and "rotation" in repr(fit)
    residuals = fit.residuals["q"]
    for part in (residuals[..., :3], residuals[..., 3:]):
        assert np.sqrt(np.nanmean(part**2)) == pytest.approx(1.0, rel=0.1)


def test_kinds_of_columns_and_of_differences():
    body, cart = kn.load(BODY), robots.load("cartpole")
    assert noise_kinds.column_kinds(body, "q", 7) == ("position",) * 3 + ("rotation",) * 4
    assert noise_kinds.entry_kinds(body, "q", 7) == ("position",) * 3 + ("rotation",) * 3
    assert noise_kinds.entry_kinds(body, "pose/body", 7) == ("position",) * 3 + ("rotation",) * 3
    assert noise_kinds.column_kinds(cart, "q", 2) == ("position", "angle")
    assert noise_kinds.column_kinds(cart, "qd", 2) == ("velocity", "angular velocity")
    assert noise_kinds.column_kinds(cart, "height", 2) == ("", "")
    own = noise_kinds.entry_kinds(body, "q", 7, "entry")
    assert own == ("base.x", "base.y", "base.z") + ("base rotation",) * 3


def test_a_channel_of_one_kind_has_one_number():
    model, rng = robots.load("double_pendulum"), np.random.default_rng(1)
    time = 0.01 * np.arange(200)
    log = sysid.Recording.of(model, time, q=np.sin(time)[:, None] + [1e-3, 1e-2] * rng.normal(size=(200, 2)))
    whole, each = noise_in(model, [log])["q"], noise_in(model, [log], "entry")["q"]
    assert whole == noise_of(log.time, log["q"].values, log["q"].valid)
    assert each == pytest.approx([1e-3, 1e-2], rel=0.25)  # 197 third differences


def test_noise_is_given_by_kind_or_by_column_and_refused_if_it_does_not_fit():
    body = kn.load(BODY)
    given = noise_kinds.given_noise(body, "q", 7, {"position": 1e-3, "rotation": 0.1})
    np.testing.assert_array_equal(given, [1e-3] * 3 + [0.1] * 4)
    assert noise_kinds.given_noise(body, "q", 7, 0.5) == 0.5
    for wrong, words in (
        ({"position": 1.0}, "position, rotation, got position"),
        ([1.0, 2.0], "7 numbers"),
        (0.0, "positive deviation"),
        ({"position": 1.0, "rotation": np.nan}, "positive deviation"),
    ):
        with pytest.raises(ValueError, match=words):
            noise_kinds.given_noise(body, "q", 7, wrong)
