"""Knuckle: a differentiable rigid-body simulator that you can put neural networks inside."""

from typing import TYPE_CHECKING

from knuckle import contact, dynamics, forces, kinematics, model, saturation, spatial
from knuckle.integrate import RK4, ExplicitEuler, Implicit, SemiImplicitEuler
from knuckle.linear_map import linearize
from knuckle.model import (
    Connect,
    ContactPair,
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
from knuckle.prescribed import Path, PathFunction
from knuckle.simulate import Trajectory, rollout, step, tap_values
from knuckle.tap_list import list_taps
from knuckle.taps import Augment, Blueprint, previous

if TYPE_CHECKING:
    from knuckle import control, hybrid, native, neural, optim, sysid
    from knuckle.hybrid import Hybrid, HybridFileError, load_hybrid, save_hybrid
    from knuckle.sysid import Fit, Prior, Recording, fit, read_recordings

__version__ = "0.1.0"

__all__ = [
    "RK4",
    "Augment",
    "Blueprint",
    "Connect",
    "ContactPair",
    "ExplicitEuler",
    "Fit",
    "Frame",
    "Hybrid",
    "HybridFileError",
    "Implicit",
    "Link",
    "Mimic",
    "Model",
    "Path",
    "PathFunction",
    "Prior",
    "Recording",
    "SemiImplicitEuler",
    "State",
    "Trajectory",
    "Weld",
    "ball",
    "build",
    "contact",
    "control",
    "difference",
    "dynamics",
    "fit",
    "forces",
    "free",
    "hybrid",
    "kinematics",
    "linearize",
    "list_taps",
    "load",
    "load_hybrid",
    "model",
    "motor",
    "native",
    "neural",
    "optim",
    "planar",
    "position_servo",
    "previous",
    "prismatic",
    "read_recordings",
    "retract",
    "revolute",
    "rollout",
    "saturation",
    "save",
    "save_hybrid",
    "shapes",
    "spatial",
    "step",
    "sysid",
    "tap_values",
    "velocity_servo",
]


LATER = {
    "knuckle.hybrid": ("Hybrid", "HybridFileError", "load_hybrid", "save_hybrid"),
    "knuckle.sysid": ("Fit", "Prior", "Recording", "fit", "read_recordings"),
}


def __getattr__(name: str):
    """These parts are imported when they are first used: they load LLVM, SciPy and more."""
    import importlib

    if name in ("control", "hybrid", "native", "neural", "optim", "sysid"):
        return importlib.import_module(f"knuckle.{name}")
    for module, names in LATER.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'knuckle' has no attribute {name!r}")
