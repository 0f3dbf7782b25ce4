"""Controls that arrive late, by known truth; and what instruments do not tell."""

import numpy as np
import pytest

import knuckle as kn
from knuckle import robots
from knuckle.hybrid import Calibration
from knuckle.sysid.measuring import fitted_calibration

CART = robots.load("cartpole")
PERIOD, FINE, LATE = 0.01, 10, 27  # between samples [s], steps in that, and steps that controls come late: 27 ms


def late_run(rng, linear, samples=120):
    """A cart that is pushed: what it is told at the samples, and what it then does 27 ms later."""
    at = np.arange(samples * FINE) - LATE
    if linear:
        t = PERIOD * np.arange(samples)
        control = (4 * np.sin(7 * t + rng.uniform(0, 6)) + 2 * np.sin(13 * t))[:, None]
        arrived = np.interp((at + 0.5) / FINE, np.arange(samples), control[:, 0])[:, None]
    else:
        control = np.repeat(4 * rng.normal(size=(samples // 6, 1)), 6, axis=0)
        arrived = control[np.maximum(at // FINE, 0)]
    state = CART.state(np.array([0.0, rng.uniform(-2, 2)]))
    run = kn.rollout(CART, state, arrived, dt=PERIOD / FINE, integrator=kn.RK4(), contact=None, native=True)
    q = np.concatenate([np.asarray(state.q)[None], np.asarray(run.q)[FINE - 1 :: FINE]])[:samples]
    return kn.Recording.of(CART, PERIOD * np.arange(samples), q=q + 3e-4 * rng.normal(size=q.shape), control=control)


@pytest.mark.parametrize("drive", ["held", "linear"])
def test_the_delay_of_an_actuator_is_found_within_its_interval(drive):
    rng = np.random.default_rng(0)
    logs = [late_run(rng, drive == "linear") for _ in range(2)]
    fit = kn.fit(CART, logs, ["*.damping"], delays=["actuator"], drive=drive, held_out=0)
    found = fit["actuator.delay"]
    assert abs(found.value - 0.027) < 3.5 * found.deviation and found.verdict == "determined"  # one in 2,000
    assert found.deviation < 1e-3 and found.unit == "s"
    assert fitted_calibration(fit, {"slider": 2.0}) == Calibration.of(
        actuator_delay=found.value, drive_gains={"slider": 2.0}
    )
    assert fit.noise["q"] == pytest.approx(3e-4, rel=0.15)  # 480 numbers: 3 % is one deviation
    if (
        drive == "held"
    ):  # all that happens happens later: no log of a robot whose laws do not change tells the two apart
        with pytest.raises(ValueError, match=r"look alike, only their sum shows: free one of them"):
            kn.fit(CART, logs, ["*.damping"], delays=["sensor", "actuator"], held_out=0)
        instead = kn.fit(CART, logs, ["*.damping"], delays=["sensor"], held_out=0)
        assert instead["sensor.delay"].value == pytest.approx(0.027, abs=2e-4)


def test_where_a_rail_begins_is_not_told_by_where_the_log_begins():
    """An offset of the cart changes nothing of its motion; that of the pole shows in how gravity acts."""
    rng = np.random.default_rng(0)
    fit = kn.fit(CART, [late_run(rng, False) for _ in range(2)], [], offsets=["q"], delays=["actuator"], held_out=0)
    cart, pole = (fit[f"sensor.q.offset[{k}]"] for k in range(2))
    assert cart.verdict == "not determined" and pole.verdict == "determined"
    assert abs(pole.value) < 3.5 * pole.deviation
