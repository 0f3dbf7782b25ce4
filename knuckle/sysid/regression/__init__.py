"""Regression on inverse dynamics: a robot from measured motions and torques, in one weighted linear solve."""

from knuckle.sysid.regression.regress import regress
from knuckle.sysid.regression.result import Quantity, Regression, TorqueError

__all__ = ["Quantity", "Regression", "TorqueError", "regress"]
