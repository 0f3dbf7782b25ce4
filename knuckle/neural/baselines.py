"""Whole steps that are learned: networks from state and control to the next state, for the tap "next/state".

They read ("q", "qd") and, if there are controls, ("q", "qd", "control"). In mode "replace" they give the next state and
stand in place of the physics; in mode "add" a change of it, nv entries for coordinates and nv for velocities, which
corrects the physics. What they predict is a change, `per_step` times the network's output; coordinates with quaternions
move on their manifold.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from knuckle.neural.coordinates import Coordinates
from knuckle.neural.networks import MLP, checked_activation, checked_input, checked_sizes
from knuckle.neural.recurrent import Recurrent
from knuckle.neural.registry import Network, as_type_of, register

Vec = Float[Array | np.ndarray, " n"]


@register
class StepMLP(Network):
    """The next state by an MLP.

    Args:
        coordinates: a model, `Coordinates`, or the number of coordinates where there are no quaternions.
        controls: how many there are.
        mode: "replace" or "add", as in the `Augment`.
        per_step: what an output of 1 changes in one step; about dt times a usual speed or acceleration.
    """

    core: MLP
    coordinates: Coordinates = eqx.field(static=True)
    controls: int = eqx.field(static=True)
    hidden: tuple[int, ...] = eqx.field(static=True)
    activation: str = eqx.field(static=True)
    mode: str = eqx.field(static=True)
    per_step: float = eqx.field(static=True)

    def __init__(
        self,
        coordinates: Any,
        controls: int = 0,
        hidden: Sequence[int] = (64, 64),
        activation: str = "tanh",
        mode: str = "replace",
        per_step: float = 1.0,
        *,
        key: PRNGKeyArray,
    ):
        self.coordinates, self.controls, self.mode, self.per_step = _task(coordinates, controls, mode, per_step)
        self.hidden = checked_sizes("StepMLP: hidden", hidden, least=1)
        self.activation = checked_activation("StepMLP: activation", activation)
        sizes = (_seen_size(self.coordinates, self.controls), *self.hidden, 2 * self.coordinates.nv)
        self.core = MLP(sizes, activation, key=key)

    starts_at_zero = True

    def __call__(self, x: Vec) -> Vec:
        x = _checked_state(self, x)
        return _after(self, x, self.core(_seen(self.coordinates, x)))


@register
class StepRecurrent(Network):
    """The next state by a recurrent network (LSTM, GRU or vanilla). Arguments as `StepMLP` and `Recurrent`."""

    core: Recurrent
    coordinates: Coordinates = eqx.field(static=True)
    controls: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    cell: str = eqx.field(static=True)
    mode: str = eqx.field(static=True)
    per_step: float = eqx.field(static=True)

    def __init__(
        self,
        coordinates: Any,
        controls: int = 0,
        width: int = 32,
        cell: str = "lstm",
        mode: str = "replace",
        per_step: float = 1.0,
        *,
        key: PRNGKeyArray,
    ):
        self.coordinates, self.controls, self.mode, self.per_step = _task(coordinates, controls, mode, per_step)
        self.width, self.cell = width, cell
        inputs = _seen_size(self.coordinates, self.controls)
        self.core = Recurrent(inputs, 2 * self.coordinates.nv, width, cell, key=key)

    starts_at_zero = True

    def initial_state(self) -> Any:
        return self.core.initial_state()

    def __call__(self, x: Vec, state: Any) -> tuple[Vec, Any]:
        x = _checked_state(self, x)
        change, state = self.core(_seen(self.coordinates, x), state)
        return _after(self, x, change), state


@register
class StepGraph(Network):
    """The next state by a graph network: links are nodes, joints edges (Sanchez-Gonzalez et al. 2018).

    A node knows its joint's coordinates and velocities, all controls, and a trained vector of its own. In each round
    messages go along the edges, both ways, and nodes add what they make of their sum, all by the same weights.

    Args:
        edges: pairs of links (parent, child) that a joint connects.
        freedoms: degrees of freedom of each link's joint, in order. `StepGraph.of(model)` fills in both.
        width: size of the nodes' state, and of the hidden layers.
        rounds: how many times messages are passed.
    """

    own: Float[Array, "node width"]
    encoder: MLP
    down: MLP  # messages from parents to children
    up: MLP
    update: MLP
    decoder: MLP
    coordinates: Coordinates = eqx.field(static=True)
    edges: tuple[tuple[int, int], ...] = eqx.field(static=True)
    freedoms: tuple[int, ...] = eqx.field(static=True)
    controls: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    rounds: int = eqx.field(static=True)
    activation: str = eqx.field(static=True)
    mode: str = eqx.field(static=True)
    per_step: float = eqx.field(static=True)

    def __init__(
        self,
        coordinates: Any,
        edges: Sequence[tuple[int, int]],
        freedoms: Sequence[int],
        controls: int = 0,
        width: int = 16,
        rounds: int = 2,
        activation: str = "tanh",
        mode: str = "replace",
        per_step: float = 1.0,
        *,
        key: PRNGKeyArray,
    ):
        self.coordinates, self.controls, self.mode, self.per_step = _task(coordinates, controls, mode, per_step)
        self.width, self.rounds = checked_sizes("StepGraph: width, rounds", (width, rounds), least=2)
        self.activation = checked_activation("StepGraph: activation", activation)
        self.edges, self.freedoms = _checked_graph(self.coordinates, edges, freedoms)
        keys = jax.random.split(key, 6)
        inputs = self._places.shape[1] + self.controls + width
        self.own = 0.1 * jax.random.normal(keys[0], (len(self.freedoms), width))
        self.encoder = MLP((inputs, width, width), activation, zero_last=False, key=keys[1])
        self.down = MLP((2 * width, width, width), activation, zero_last=False, key=keys[2])
        self.up = MLP((2 * width, width, width), activation, zero_last=False, key=keys[3])
        self.update = MLP((2 * width, width, width), activation, zero_last=False, key=keys[4])
        self.decoder = MLP((width, width, 2 * max(self.freedoms)), activation, key=keys[5])

    starts_at_zero = True

    @classmethod
    def of(cls, model: Any, *, key: PRNGKeyArray, **options: Any) -> StepGraph:
        """With the links and joints of a model, and its controls."""
        edges = [(parent, link) for link, parent in enumerate(model.topology.parent) if parent >= 0]
        freedoms = np.bincount(model.topology.dof_link, minlength=len(model.topology.parent))
        return cls(model, edges, freedoms.tolist(), model.nu, key=key, **options)

    def __call__(self, x: Vec) -> Vec:
        x = _checked_state(self, x)
        nodes = jax.vmap(self.encoder)(self._node_inputs(x))
        for _ in range(self.rounds):
            heard = jax.vmap(self.update)(jnp.concatenate([nodes, self._messages(nodes)], axis=1))
            nodes = nodes + heard
        return _after(self, x, jax.vmap(self.decoder)(nodes).reshape(-1)[self._outputs])

    def _node_inputs(self, x: Vec) -> Float[Array, "node n"]:
        at, count = self.coordinates, len(self.freedoms)
        state = jnp.concatenate([x[: at.nq + at.nv], jnp.zeros(1, x.dtype)])
        control = jnp.broadcast_to(x[at.nq + at.nv :], (count, self.controls))
        return jnp.concatenate([state[self._places], control, as_type_of(x, self.own)], axis=1)

    def _messages(self, nodes: Float[Array, "node width"]) -> Float[Array, "node width"]:
        """What each node hears in all from its neighbours."""
        if not self.edges:
            return jnp.zeros_like(nodes)
        parents, children = np.array(self.edges).T
        both = jnp.concatenate([nodes[parents], nodes[children]], axis=1)
        at = np.eye(len(self.freedoms))
        to_children, to_parents = (jnp.asarray(at[:, index], nodes.dtype) for index in (children, parents))
        return to_children @ jax.vmap(self.down)(both) + to_parents @ jax.vmap(self.up)(both)

    @property
    def _places(self) -> np.ndarray:
        """Where a node's coordinates and velocities stand in (q, qd, 0): the zero fills up what it does not have."""
        at = self.coordinates
        ends_v = np.cumsum([0, *self.freedoms])
        turns = [sum(a <= b < z for _, b in at.quaternions) for a, z in pairwise(ends_v)]
        ends_q = np.cumsum([0, *(f + t for f, t in zip(self.freedoms, turns, strict=True))])
        q, qd = _padded(ends_q, 0, at.nq + at.nv), _padded(ends_v, at.nq, at.nq + at.nv)
        return np.concatenate([q, qd], axis=1)

    @property
    def _outputs(self) -> np.ndarray:
        """Where changes of coordinates, then of velocities, stand in the nodes' outputs."""
        most = max(self.freedoms)
        first = [2 * most * node + k for node, freedom in enumerate(self.freedoms) for k in range(freedom)]
        return np.array(first + [place + most for place in first])


def _padded(ends: np.ndarray, offset: int, filling: int) -> np.ndarray:
    places = np.full((len(ends) - 1, int(np.diff(ends).max())), filling)
    for row, (a, z) in zip(places, pairwise(ends), strict=True):
        row[: z - a] = offset + np.arange(a, z)
    return places


def _task(coordinates: Any, controls: int, mode: str, per_step: float) -> tuple[Coordinates, int, str, float]:
    if mode not in ("replace", "add"):
        raise ValueError(f"a learned step has mode 'replace' or 'add', got {mode!r}")
    if not isinstance(controls, int) or controls < 0 or not per_step > 0:
        raise ValueError(f"a learned step needs controls >= 0 and per_step > 0, got {controls!r} and {per_step!r}")
    return Coordinates.of(coordinates), controls, mode, float(per_step)


def _checked_graph(at: Coordinates, edges, freedoms) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    freedoms = tuple(int(f) for f in freedoms)
    if not freedoms or min(freedoms) < 1 or sum(freedoms) != at.nv:
        raise ValueError(f"StepGraph: freedoms must be positive and {at.nv} in all, got {freedoms}")
    pairs = tuple((int(i), int(j)) for i, j in edges)
    if not all(0 <= k < len(freedoms) for pair in pairs for k in pair):
        raise ValueError(f"StepGraph: edges must connect links 0 to {len(freedoms) - 1}, got {pairs}")
    return pairs, freedoms


def _seen_size(at: Coordinates, controls: int) -> int:
    return at.features + at.nv + controls


def _seen(at: Coordinates, x: Vec) -> Vec:
    return jnp.concatenate([at.seen(x[: at.nq]), x[at.nq :]])


def _checked_state(network, x: Vec) -> Vec:
    return checked_input(network, x, network.coordinates.nq + network.coordinates.nv + network.controls)


def _after(network, x: Vec, output: Vec) -> Vec:
    """The change, or the state after it."""
    at, change = network.coordinates, network.per_step * output
    if network.mode == "add":
        return change
    q, qd = x[: at.nq], x[at.nq : at.nq + at.nv]
    return jnp.concatenate([at.moved(q, change[: at.nv]), qd + change[at.nv :]])
