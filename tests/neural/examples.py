"""One network of every kind, with the tap and the inputs where it acts on a double pendulum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle import neural, robots

KEY = jax.random.key(7)
PENDULUM = robots.load("double_pendulum")
START = kn.State(np.array([1.2, -0.4]), np.array([0.3, 0.5]))
STATE = ("q", "qd")
SLIDER = kn.build(  # on a hinge: the distance between the origins of its links changes
    [
        kn.Link("arm", joints=kn.revolute("y"), mass=1.0, com=(0, 0, -0.2), inertia=(0.02, 0.02, 0.02)),
        kn.Link("bead", "arm", joints=kn.prismatic("z"), mass=0.5, inertia=(0.01, 0.01, 0.01), position=(0, 0, -1.0)),
    ]
)
PREVIOUS = kn.previous("joint/acceleration")

# name: network, tap, inputs, mode
CASES = {
    "mlp": (neural.MLP((4, 8, 2), "elu", key=KEY), "joint/force", STATE, "add"),
    "one weight": (neural.Linear(2, 2), "joint/force", ("qd",), "add"),
    "polynomial": (neural.Polynomial(4, 2, 2), "joint/force", STATE, "add"),
    "gru": (neural.Recurrent(4, 2, 4, "gru", key=KEY), "joint/force", STATE, "add"),
    "lstm": (neural.Recurrent(4, 2, 4, "lstm", key=KEY), "joint/force", STATE, "add"),
    "vanilla": (neural.Recurrent(4, 2, 4, "vanilla", key=KEY), "joint/force", STATE, "add"),
    "passive": (neural.Passive(PENDULUM, (6,), key=KEY), "joint/force", STATE, "add"),
    "dissipative": (neural.Dissipative(PENDULUM, (6,), structure="diagonal", key=KEY), "joint/force", STATE, "add"),
    "conservative": (neural.Conservative(PENDULUM, (6,), key=KEY), "joint/force", ("q",), "add"),
    "magnetic": (neural.Lagrangian(PENDULUM, (6,), key=KEY), "joint/force", STATE, "add"),
    "added mass": (
        neural.Lagrangian(PENDULUM, (6,), mass_bound=0.01, key=KEY),
        "joint/force",
        (*STATE, PREVIOUS),
        "add",
    ),
    "pairs": (neural.PairForces(2, key=KEY), "link/wrench", ("link/position", "link/velocity"), "add"),
    "step mlp": (neural.StepMLP(PENDULUM, hidden=(8,), per_step=0.01, key=KEY), "next/state", STATE, "replace"),
    "step lstm": (neural.StepRecurrent(PENDULUM, width=4, per_step=0.01, key=KEY), "next/state", STATE, "replace"),
    "step graph": (
        neural.StepGraph.of(PENDULUM, width=4, rounds=1, per_step=0.01, key=KEY),
        "next/state",
        STATE,
        "replace",
    ),
    "residual": (
        neural.StepMLP(PENDULUM, hidden=(8,), mode="add", per_step=1e-3, key=KEY),
        "next/state",
        STATE,
        "add",
    ),
}


def trained(network, size: float = 0.3, seed: int = 0):
    """The network with random weights in place of those it starts with."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(size * rng.normal(size=jnp.shape(leaf))), network)


def model_of(name: str) -> kn.Model:
    return SLIDER if name == "pairs" else PENDULUM


def blueprint(name: str, network=None) -> kn.Blueprint:
    own, tap, inputs, mode = CASES[name]
    return kn.Blueprint({tap: kn.Augment(own if network is None else network, inputs=inputs, mode=mode)})
