"""Units of the parameters of a regression."""

from __future__ import annotations

from knuckle.model.model import Model
from knuckle.sysid.entries import dimensions
from knuckle.sysid.regression.design import Layout
from knuckle.sysid.regression.friction import LOAD

INERTIAL = ("kg", "kg m", "kg m", "kg m", *("kg m^2",) * 6)
TURNING = {"armature": "kg m^2", "damping": "N m s/rad", LOAD: "1"}
SLIDING = {"armature": "kg", "damping": "N s/m", LOAD: "1"}


def unit_of_parameter(model: Model, layout: Layout, k: int) -> str:
    """The unit of parameter k."""
    if k < layout.inertial:
        return INERTIAL[k % 10]
    joint = int((layout.starts[1:] <= k).sum())
    slides = dimensions(model, "tau")[layout.joints[joint]] == "length"
    column = layout.friction[joint].columns[k - int(layout.starts[joint])]
    return (SLIDING if slides else TURNING).get(column, "N" if slides else "N m")
