"""Planning and feedback with the simulator inside: LQR, iLQR and DDP, model-predictive control."""

from knuckle.control.adaptive import Adapted, adaptive_mpc
from knuckle.control.costs import frame, quadratic, squares, tracking
from knuckle.control.environment import Environment
from knuckle.control.ilqr import ilqr
from knuckle.control.lqr import Regulator, lqr
from knuckle.control.mpc import MPC
from knuckle.control.plan import Plan
from knuckle.control.planner import Planner

__all__ = [
    "MPC",
    "Adapted",
    "Environment",
    "Plan",
    "Planner",
    "Regulator",
    "adaptive_mpc",
    "frame",
    "ilqr",
    "lqr",
    "quadratic",
    "squares",
    "tracking",
]
