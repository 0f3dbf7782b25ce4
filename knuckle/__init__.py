"""Knuckle: a differentiable rigid-body simulator that you can put neural networks inside."""

from typing import TYPE_CHECKING

from knuckle import contact, dynamics, forces, kinematics, model, saturation, spatial
from knuckle.contact import assemble
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
from knuckle.model.design import link_length, set_length
from knuckle.model.dh import DH, dh_parameters, from_dh
from knuckle.model.export import save
from knuckle.model.load import load
from knuckle.prescribed import Path, PathFunction
from knuckle.simulate import rollout, step, tap_values
from knuckle.tap_list import list_taps
from knuckle.taps import Augment, Blueprint, previous
from knuckle.trajectory import VIEWS, Trajectory

if TYPE_CHECKING:
    from knuckle import control, envs, hybrid, layers, native, neural, optim, render, robots, sysid, viewer
    from knuckle.hybrid import Hybrid, HybridFileError, load_hybrid, save_hybrid
    from knuckle.sysid import (
        Batch,
        Fit,
        FreeParameters,
        Prior,
        Recording,
        batch,
        fit,
        parameters,
        read_recordings,
    )

__version__ = "0.1.0"

__all__ = [
    "DH",
    "RK4",
    "Augment",
    "Batch",
    "Blueprint",
    "Connect",
    "ContactPair",
    "ExplicitEuler",
    "Fit",
    "Frame",
    "FreeParameters",
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
    "assemble",
    "ball",
    "batch",
    "build",
    "contact",
    "control",
    "dh_parameters",
    "difference",
    "dynamics",
    "envs",
    "fit",
    "forces",
    "free",
    "from_dh",
    "hybrid",
    "kinematics",
    "layers",
    "linearize",
    "link_length",
    "list_taps",
    "load",
    "load_hybrid",
    "model",
    "motor",
    "native",
    "neural",
    "optim",
    "parameters",
    "planar",
    "position_servo",
    "previous",
    "prismatic",
    "read_recordings",
    "render",
    "retract",
    "revolute",
    "robots",
    "rollout",
    "saturation",
    "save",
    "save_hybrid",
    "set_length",
    "shapes",
    "spatial",
    "step",
    "sysid",
    "tap_values",
    "velocity_servo",
    "viewer",
]


PARTS = (
    "control",
    "envs",
    "hybrid",
    "layers",
    "native",
    "neural",
    "optim",
    "render",
    "robots",
    "sysid",
    "torch",
    "viewer",
)
LATER = {
    "knuckle.hybrid": ("Hybrid", "HybridFileError", "load_hybrid", "save_hybrid"),
    "knuckle.sysid": (
        "Batch",
        "Fit",
        "FreeParameters",
        "Prior",
        "Recording",
        "batch",
        "fit",
        "parameters",
        "read_recordings",
    ),
}


def __getattr__(name: str):
    """These parts are imported when they are first used: they load LLVM, SciPy and more."""
    import importlib

    if name in PARTS:
        return importlib.import_module(f"knuckle.{name}")
    for module, names in LATER.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'knuckle' has no attribute {name!r}")


def _view(name: str):
    """A picture of the viewer, which is imported when it is first asked for: it loads Matplotlib."""

    def view(*args, **options):
        from knuckle import viewer

        return getattr(viewer, name)(*args, **options)

    return view


VIEWS.update(plot=_view("plot"), animate=_view("animate"))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *PARTS})
