"""Controls between samples: held or linear, and what a fit says where the wrong one is assumed."""

import jax
import numpy as np
import pytest

import knuckle as kn
from knuckle import robots, sysid
from knuckle.integrate import RK4
from knuckle.sysid.left import what_is_missing
from knuckle.sysid.shooting import _drive
from knuckle.sysid.shots import make_shots

MODEL = robots.load("cartpole")
FINE, EVERY = 1e-3, 20  # the truth's step [s], and steps in a sample


def push(t):
    return (4 * np.sin(7 * t) + 2 * np.sin(11 * t + 1))[:, None]


@pytest.fixture(scope="module")
def log() -> sysid.Recording:
    t = FINE * np.arange(4000)
    start = MODEL.state(np.array([0.0, 2.5]))
    motion = kn.rollout(MODEL, start, push(t + FINE / 2), dt=FINE, steps=len(t), integrator=RK4(), native=True)
    q = np.asarray(motion.q)[EVERY - 1 :: EVERY] + 5e-4 * np.random.default_rng(0).normal(size=(200, 2))
    times = FINE * EVERY * np.arange(1, 201)
    return sysid.Recording.of(MODEL, times, q=q, control=push(times))


@pytest.mark.parametrize("drive", ["held", "linear"])
def test_a_smooth_control_is_linear_between_samples_and_not_held(drive, log):
    fit = sysid.fit(MODEL, log, free=["*.damping"], drive=drive, held_out=0.0)
    truth = MODEL.damping[0]
    inside = fit["slider.damping"].lower < truth < fit["slider.damping"].upper
    assert (inside, bool(fit.missing())) == ((True, False) if drive == "linear" else (False, True))
    assert drive == "linear" or 'drive="linear"' in repr(fit)


def test_drives_at_all_steps(log):
    options = {"length": 0.2, "noise": {"q": 1e-3}}
    piece = make_shots(MODEL, [log], **options, drive="linear")
    shot = jax.tree.map(lambda part: part[0], piece)
    middle = np.asarray(_drive(shot, 0.0, 2))
    expected = np.interp(
        np.arange(0.25, piece.samples - 1, 0.5), np.arange(piece.samples), np.asarray(piece.control)[0, :, 0]
    )
    np.testing.assert_allclose(middle[:, 0], expected, atol=1e-12)
    assert not make_shots(MODEL, [log], **options).linear


def test_noise_is_not_called_a_lack_and_a_slow_wave_is():
    noise = np.random.default_rng(0).normal(size=(10, 50, 2))
    wave = np.sin(np.arange(50) / 5)[None, :, None]
    assert what_is_missing({"q": noise}, held=False) == []
    told = what_is_missing({"q": noise + wave, "qd": noise}, held=False)
    assert len(told) == 1 and "of q " in told[0] and "drive" not in told[0]


def test_an_unknown_drive_is_refused(log):
    with pytest.raises(ValueError, match="drive: expected one of held, linear, got 'spline'"):
        sysid.fit(MODEL, log, drive="spline")  # pyright: ignore
