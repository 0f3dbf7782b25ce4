"""The log of `knuckle demo`, made by `scripts/make_demo_log.py`, and the truth behind it."""

from __future__ import annotations

from pathlib import Path

LOG = Path(__file__).parent / "double_pendulum.csv"
MASS_FACTORS = (1.2, 0.85)  # of the links, over those of the built-in robot
DAMPING = (0.01, 0.006)  # [N m s/rad], of the joints
FRICTION = (0.08, 0.05)  # [N m]
FRICTION_SPEED = 1.0  # [rad/s], of the slip over which dry friction turns
MADE_BY = (
    "made by a richer simulation, not measured: the built-in double pendulum with masses times 1.2 (upper) and "
    "0.85 (lower), dry friction and damping in its joints, and noise of 1 mrad"
)
