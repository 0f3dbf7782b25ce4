"""Pictures of a discovery: the sparsified networks, and what they learned against their inputs."""

from __future__ import annotations

import io

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from knuckle.neural.networks import MLP
from knuckle.sysid.discovery.network import SparseNetwork
from knuckle.sysid.discovery.result import Discovery
from knuckle.taps import Augment

INK, GREY, PALE, ADDED, REMOVED = "#2b3038", "#5c6570", "#d9dde3", "#1f5f86", "#d4862a"
POINTS = 81


def network_picture(found: SparseNetwork) -> str:
    """The networks of all joints as graphs, as in NeuralSim, figure 10: inputs that died out are pale. SVG text."""
    figure = Figure(figsize=(3.6 * len(found.joints), 3.2), layout="constrained")
    for axes, (_, _, augment), joint, alive in zip(
        figure.subplots(1, len(found.joints), squeeze=False)[0], found.blueprint, found.joints, found.alive, strict=True
    ):
        _draw_network(axes, augment, found.inputs, alive)
        axes.set_title(f"force at {joint}", fontsize=10, color=INK)
    return _svg(figure)


def _draw_network(axes: Axes, augment: Augment, inputs: tuple[str, ...], alive: np.ndarray) -> None:
    network = augment.network
    assert isinstance(network, MLP)
    layers = [np.linspace(0.5, -0.5, size) if size > 1 else np.zeros(1) for size in network.sizes]
    dead = not alive.any()
    for depth, weight in enumerate(map(np.asarray, network.weights)):
        largest = max(float(np.abs(weight).max()), 1e-300)
        for out in range(weight.shape[0]):
            for k in range(weight.shape[1]):
                if weight[out, k] == 0:
                    continue
                ends = (depth, depth + 1), (layers[depth][k], layers[depth + 1][out])
                color = ADDED if weight[out, k] > 0 else REMOVED
                axes.plot(*ends, color=color, lw=0.2 + 2 * abs(weight[out, k]) / largest, alpha=0.8)
    for depth, places in enumerate(layers):
        lit = alive if depth == 0 else np.full(len(places), not dead)
        for y, on in zip(places, lit, strict=True):
            axes.plot(depth, y, "o", ms=9, color="white", mec=INK if on else PALE, mew=1.4)
    for y, name, on in zip(layers[0], inputs, alive, strict=True):
        axes.text(-0.15, y, name, ha="right", va="center", fontsize=8, color=INK if on else PALE)
    if dead:
        axes.text(len(layers) / 2 - 0.5, 0, "no network", ha="center", va="center", fontsize=9, color=GREY)
    axes.set(xlim=(-1.6, len(layers) - 0.7), ylim=(-0.65, 0.65))
    axes.axis("off")


def force_pictures(found: Discovery, q: np.ndarray, qd: np.ndarray) -> list[tuple[str, str]]:
    """What networks and formula add at each joint against each input that is alive, with the density of the data."""
    network = found.network
    if network is None:
        return []
    states, pictures = np.concatenate([q, qd], axis=1), []
    middle = np.median(states, axis=0)
    with jax.enable_x64(True):
        for joint, (_, _, augment) in enumerate(network.blueprint):
            for k in np.flatnonzero(network.alive[joint]):
                grid = np.tile(middle, (POINTS, 1))
                low, high = np.percentile(states[:, k], (1, 99))
                grid[:, k] = np.linspace(low, high, POINTS)
                learned = np.asarray(jax.vmap(lambda x, a=augment: a._called(a.network, x, None)[0])(jnp.asarray(grid)))
                title = f"force at {network.joints[joint]}"
                pictures.append(
                    (f"{title} against {network.inputs[k]}", _curve(found, joint, int(k), grid, learned[:, 0], states))
                )
    return pictures


def _curve(found: Discovery, joint: int, k: int, grid: np.ndarray, learned: np.ndarray, states: np.ndarray) -> str:
    network = found.network
    assert network is not None
    figure = Figure(figsize=(4, 3), layout="constrained")
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    axes.plot(grid[:, k], learned, color=ADDED, label="network")
    law = None if found.blueprint is None else found.blueprint.augments.get("joint/force")
    if law is not None:
        width = law[0].network.inputs  # type: ignore[attr-defined]
        padded = np.concatenate([grid, np.zeros((len(grid), width - grid.shape[1]))], axis=1)
        given = np.asarray(jax.vmap(law[0].network)(jnp.asarray(padded)))[:, joint]
        axes.plot(grid[:, k], given, color=REMOVED, ls="--", label="formula")
    axes.legend(fontsize=8, frameon=False)
    axes.set_ylabel(f"force at {network.joints[joint]}", fontsize=8)
    below.hist(states[:, k], bins=40, range=(grid[0, k], grid[-1, k]), color=PALE)
    below.set(yticks=[])
    below.set_xlabel(f"{network.inputs[k]} (below: how often it was recorded)", fontsize=8)
    return _svg(figure)


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()
