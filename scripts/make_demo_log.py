"""Make the log of `knuckle demo`: the built-in double pendulum with other masses and joints that rub.

The richer simulation that stands in for a real pendulum: masses changed, dry friction (Coulomb,
smooth at rest) and damping at both joints, a step of 0.5 ms by Runge-Kutta; encoders at 100 Hz with a noise of 1 mrad.

Run: python scripts/make_demo_log.py
"""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np

import knuckle as kn
from knuckle import robots
from knuckle.sysid.demo import DAMPING, FRICTION, FRICTION_SPEED, LOG, MADE_BY, MASS_FACTORS

DT, EVERY, SAMPLES, NOISE = 5e-4, 20, 200, 1e-3
RUNS, WIDEST = 8, 1.8  # starts at rest, anywhere within this angle [rad]


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    model = robots.load("double_pendulum")
    masses = model.inertia.mass * np.array(MASS_FACTORS)
    richer = eqx.tree_at(
        lambda m: (m.inertia.mass, m.damping, m.friction, m.friction_speed),
        model,
        (masses, np.array(DAMPING), np.array(FRICTION), np.full(2, FRICTION_SPEED)),
    )
    rng, lines = np.random.default_rng(20), [f"# {MADE_BY}", "episode,time [s],shoulder [rad],elbow [rad]"]
    for number in range(RUNS):
        state = model.state(rng.uniform(-WIDEST, WIDEST, size=2))
        options = {"dt": DT, "steps": EVERY * (SAMPLES - 1), "integrator": kn.RK4(), "contact": None, "native": True}
        motion = kn.rollout(richer, state, **options)
        q = np.concatenate([np.asarray(state.q)[None], np.asarray(motion.q)[EVERY - 1 :: EVERY]])
        q = q + NOISE * rng.normal(size=q.shape)
        lines += [f"{number},{DT * EVERY * k:.2f},{a:.5f},{b:.5f}" for k, (a, b) in enumerate(q)]
    LOG.write_text("\n".join(lines) + "\n")
    print(f"wrote {LOG}: {RUNS} runs of {SAMPLES} samples")


if __name__ == "__main__":
    main()
