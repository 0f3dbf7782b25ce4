"""Knuckle: a differentiable rigid-body simulator that you can put neural networks inside."""

from typing import TYPE_CHECKING

from knuckle import contact, dynamics, forces, kinematics, model, spatial
from knuckle.integrate import RK4, ExplicitEuler, Implicit, SemiImplicitEuler
from knuckle.linear_map import linearize
from knuckle.model import (
    Connect,
    Frame,
    Link,
    Mimic,
    Model,
    State,
    Weld,
    ball,
    build,
    difference,
    free,
    motor,
    planar,
    position_servo,
    prismatic,
    retract,
    revolute,
    shapes,
    velocity_servo,
)
from knuckle.model.export import save
from knuckle.model.load import load
from knuckle.simulate import Trajectory, rollout, step, tap_values
from knuckle.tap_list import list_taps
from knuckle.taps import Augment, Blueprint, previous

if TYPE_CHECKING:
    from knuckle import native, neural, optim, sysid

__version__ = "0.1.0"

__all__ = [
    "RK4",
    "Augment",
    "Blueprint",
    "Connect",
    "ExplicitEuler",
    "Frame",
    "Implicit",
    "Link",
    "Mimic",
    "Model",
    "SemiImplicitEuler",
    "State",
    "Trajectory",
    "Weld",
    "ball",
    "build",
    "contact",
    "difference",
    "dynamics",
    "forces",
    "free",
    "kinematics",
    "linearize",
    "list_taps",
    "load",
    "model",
    "motor",
    "native",
    "neural",
    "optim",
    "planar",
    "position_servo",
    "previous",
    "prismatic",
    "retract",
    "revolute",
    "rollout",
    "save",
    "shapes",
    "spatial",
    "step",
    "sysid",
    "tap_values",
    "velocity_servo",
]


def __getattr__(name: str):
    """These parts are imported when they are first used: they load LLVM, SciPy and more."""
    if name in ("native", "neural", "optim", "sysid"):
        import importlib

        return importlib.import_module(f"knuckle.{name}")
    raise AttributeError(f"module 'knuckle' has no attribute {name!r}")
