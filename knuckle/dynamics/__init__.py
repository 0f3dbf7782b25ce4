"""Forward and inverse dynamics, mass matrix, energy and momentum of articulated bodies."""

from knuckle.dynamics.aba import aba, inverse_mass_matrix
from knuckle.dynamics.crba import crba
from knuckle.dynamics.energy import energy, kinetic_energy, momentum, potential_energy
from knuckle.dynamics.rnea import bias_force, gravity_force, rnea

__all__ = [
    "aba",
    "bias_force",
    "crba",
    "energy",
    "gravity_force",
    "inverse_mass_matrix",
    "kinetic_energy",
    "momentum",
    "potential_energy",
    "rnea",
]
