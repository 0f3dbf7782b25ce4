"""Networks to put inside the simulation: plain, recurrent, physically constrained, whole steps; and their sparsity."""

from knuckle.neural import sparsity
from knuckle.neural.baselines import StepGraph, StepMLP, StepRecurrent
from knuckle.neural.coordinates import Coordinates
from knuckle.neural.formula import Formula
from knuckle.neural.joint_friction import JointFriction
from knuckle.neural.lagrangian import Lagrangian
from knuckle.neural.networks import ACTIVATIONS, MLP, Linear, Polynomial, each
from knuckle.neural.pair_forces import PairForces
from knuckle.neural.passive import Conservative, Dissipative, Passive
from knuckle.neural.recurrent import Recurrent
from knuckle.neural.registry import Network, from_config, register, structure, to_config

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "Conservative",
    "Coordinates",
    "Dissipative",
    "Formula",
    "JointFriction",
    "Lagrangian",
    "Linear",
    "Network",
    "PairForces",
    "Passive",
    "Polynomial",
    "Recurrent",
    "StepGraph",
    "StepMLP",
    "StepRecurrent",
    "each",
    "from_config",
    "register",
    "sparsity",
    "structure",
    "to_config",
]
