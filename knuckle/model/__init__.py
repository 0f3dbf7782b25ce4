"""Models of mechanisms: describing, building, importing and exporting them."""

from knuckle.model import geometry as shapes
from knuckle.model.build import build
from knuckle.model.description import (
    Actuator,
    Connect,
    Description,
    Frame,
    Joint,
    Link,
    Mimic,
    Weld,
    ball,
    free,
    motor,
    planar,
    position_servo,
    prismatic,
    revolute,
    velocity_servo,
)
from knuckle.model.geometry import ContactPair
from knuckle.model.joints import difference, retract
from knuckle.model.model import Actuators, Equalities, Frames, Inertia, Model, State

__all__ = [
    "Actuator",
    "Actuators",
    "Connect",
    "ContactPair",
    "Description",
    "Equalities",
    "Frame",
    "Frames",
    "Inertia",
    "Joint",
    "Link",
    "Mimic",
    "Model",
    "State",
    "Weld",
    "ball",
    "build",
    "difference",
    "free",
    "motor",
    "planar",
    "position_servo",
    "prismatic",
    "retract",
    "revolute",
    "shapes",
    "velocity_servo",
]
