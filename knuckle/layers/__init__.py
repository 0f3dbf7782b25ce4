"""Physics as a layer of a network: forward dynamics, integration and kinematics, unrolled over several steps."""

from knuckle.layers.physics import Physics
from knuckle.layers.unroll import INPUTS, OUTPUTS, Settings

__all__ = ["INPUTS", "OUTPUTS", "Physics", "Settings"]
