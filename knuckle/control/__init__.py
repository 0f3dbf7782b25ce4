"""Planning and feedback with the simulator inside: LQR, iLQR and DDP, model-predictive control."""

from knuckle.control.costs import frame, quadratic, squares, tracking
from knuckle.control.ilqr import ilqr
from knuckle.control.lqr import Regulator, lqr
from knuckle.control.mpc import MPC
from knuckle.control.plan import Plan
from knuckle.control.planner import Planner

__all__ = ["MPC", "Plan", "Planner", "Regulator", "frame", "ilqr", "lqr", "quadratic", "squares", "tracking"]
