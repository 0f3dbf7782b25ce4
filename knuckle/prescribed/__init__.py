"""Prescribed motion: joints, and bodies on the world, that follow given paths; they push and are not pushed."""

from knuckle.prescribed.motion import BodyMotion, JointMotion, Motion, motion_over, placed
from knuckle.prescribed.names import Paths, Prescribed, as_paths, check_span, locked
from knuckle.prescribed.path import Path, PathFunction

__all__ = [
    "BodyMotion",
    "JointMotion",
    "Motion",
    "Path",
    "PathFunction",
    "Paths",
    "Prescribed",
    "as_paths",
    "check_span",
    "locked",
    "motion_over",
    "placed",
]
