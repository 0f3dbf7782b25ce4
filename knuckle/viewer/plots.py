"""A motion in one picture: the mechanism at several moments, and its coordinates, speeds and energy over time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from knuckle import kinematics
from knuckle.model.model import Model
from knuckle.trajectory import Trajectory
from knuckle.viewer.solids import Camera, Solid, camera, shaded, solids

INK, GREY_INK, PALE = "#2b3038", "#5c6570", "#d9dde3"
COLORS = ("#2a6f97", "#d4862a", "#4f8a5b", "#b5483f", "#7a5aa0", "#3aa0a8", "#8a6d4b", "#c2679a")
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9aa3af",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=COLORS),
    "grid.color": PALE,
    "grid.linewidth": 0.6,
    "xtick.color": GREY_INK,
    "ytick.color": GREY_INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}
SNAPSHOTS, FILM_FRAMES, LEGEND_ENTRIES, MOST_POINTS = 13, 6, 24, 5000
TIME_COLORS = "viridis"
CORNER = (np.radians(-55), np.radians(22))  # azimuth and elevation


class Row(NamedTuple):
    """One panel of curves: its unit and what is drawn in it."""

    label: str
    curves: list[tuple[str, np.ndarray]]


class Moments(NamedTuple):
    """Poses of all links at the moments that are drawn."""

    time: np.ndarray
    rotation: np.ndarray
    position: np.ndarray


def motion_figure(model: Model, motion: Trajectory, energies: dict[str, np.ndarray], title: str = "") -> Figure:
    """The mechanism at several moments beside its coordinates, speeds and energies [J] over time [s]."""
    shown = _spread(len(motion.time), MOST_POINTS)
    time, q, qd, control = (np.asarray(x)[shown] for x in (motion.time, motion.q, motion.qd, motion.control))
    motion = Trajectory(time, q, qd, control)
    energies = {name: np.asarray(curve)[shown] for name, curve in energies.items()}
    with mpl.rc_context(STYLE):
        rows = [*_coordinate_rows(model, motion), Row("energy [J]", list(energies.items()))]
        floating = "free" in model.topology.kind
        figure = Figure(figsize=(12.5, 6.2), dpi=160, layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.06)  # type: ignore[union-attr]
        grid = figure.add_gridspec(len(rows), 2, width_ratios=(1.12, 1))
        scene = figure.add_subplot(grid[:, 0])
        (_draw_film if floating else _draw_stroboscope)(scene, model, motion)
        _draw_curves([figure.add_subplot(grid[k, 1]) for k in range(len(rows))], np.asarray(motion.time), rows)
        if title:
            figure.suptitle(title, x=0.012, ha="left", fontsize=11, color=INK)
        return figure


def _coordinate_rows(model: Model, motion: Trajectory) -> Iterator[Row]:
    """Angles, lengths, attitudes and speeds, each in a panel of its own unit."""
    q, qd = np.asarray(motion.q), np.asarray(motion.qd)
    angle, length, attitude, turning, moving = [], [], [], [], []
    for name, kind, i, j in zip(
        model.joint_names, model.topology.kind, model.topology.q_start, model.topology.v_start, strict=True
    ):
        if kind == "revolute":
            angle.append((name, q[:, i]))
            turning.append((name, qd[:, j]))
        elif kind == "prismatic":
            length.append((name, q[:, i]))
            moving.append((name, qd[:, j]))
        elif kind == "planar":
            length += [(f"{name} {axis}", q[:, i + k]) for k, axis in enumerate("xy")]
            angle.append((name, q[:, i + 2]))
        else:
            shift = 3 if kind == "free" else 0
            length += [(f"{name} {axis}", q[:, i + k]) for k, axis in enumerate("xyz"[:shift])]
            attitude += [(f"{name} {part}", q[:, i + shift + k]) for k, part in enumerate("wxyz")]
    labels = ("angle [rad]", "position [m]", "quaternion", "speed [rad/s]", "speed [m/s]")
    for label, curves in zip(labels, (angle, length, attitude, turning, moving), strict=True):
        if curves:
            yield Row(label, curves)


def _draw_curves(axes: list[Axes], time: np.ndarray, rows: list[Row]) -> None:
    """One panel per row; names that a panel above has explained already are not repeated."""
    explained: set[tuple[str, ...]] = set()
    for ax, row in zip(axes, rows, strict=True):
        names = tuple(name for name, _ in row.curves)
        many = len(names) > len(COLORS)
        if many:
            ax.set_prop_cycle(color=mpl.colormaps["turbo"](np.linspace(0.05, 0.95, len(names))))
        for name, values in row.curves:
            color = {"color": INK, "linestyle": (0, (4, 1.5))} if name == "total" else {}
            ax.plot(time, values, label=name, linewidth=1.1 if many else 1.6, **color)
        ax.set_ylabel(row.label)
        ax.margins(x=0)
        ax.sharex(axes[0])
        ax.tick_params(labelbottom=ax is axes[-1])
        if names not in explained and len(names) <= LEGEND_ENTRIES:
            small = {"ncols": 2, "fontsize": 6.5} if many else {}
            ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), **small)
        explained.add(names)
    axes[-1].set_xlabel("time [s]")
    axes[0].figure.align_ylabels(axes)  # type: ignore[union-attr]


def _poses_at(model: Model, motion: Trajectory, indices: np.ndarray) -> Moments:
    q = jnp.asarray(np.asarray(motion.q)[indices])
    R, p = jax.jit(jax.vmap(lambda q: kinematics.poses(model, q)))(q)
    return Moments(np.asarray(motion.time)[indices], np.asarray(R), np.asarray(p))


def _spread(steps: int, count: int) -> np.ndarray:
    return np.unique(np.linspace(0, steps - 1, count).round().astype(int))


def _add_solids(ax: Axes, polygons: np.ndarray, colors: np.ndarray, zorder: float) -> None:
    closed = {"facecolors": colors, "edgecolors": colors, "linewidths": 0.35}  # edges hide the seams
    ax.add_collection(PolyCollection(list(polygons), zorder=zorder, **closed))


def _draw_stroboscope(ax: Axes, model: Model, motion: Trajectory) -> None:
    """All moments in one place, early ones pale, and the path of the tip that goes furthest."""
    path = _poses_at(model, motion, _spread(len(motion.time), 1200))
    bodies = solids(model)
    view = _side_of_motion(bodies, path)
    shown = _spread(len(path.time), SNAPSHOTS)
    for order, k in enumerate(shown):
        fade = 0.82 * (1 - order / max(len(shown) - 1, 1)) ** 0.7
        _add_solids(ax, *shaded(bodies, path.rotation[k], path.position[k], view, fade), zorder=2 + order)
    tip = view.picture(_furthest_tip(bodies, path))
    pieces = list(np.stack([tip[:-1], tip[1:]], axis=1))
    line = LineCollection(pieces, cmap=TIME_COLORS, array=path.time[1:], linewidths=1.6, zorder=len(shown) + 0.5)
    ax.add_collection(line)
    _frame(ax)
    _time_bar(ax, line)


def _time_bar(ax: Axes, line: LineCollection) -> None:
    inset = ax.inset_axes((0.25, -0.03, 0.5, 0.016))
    bar = ax.figure.colorbar(line, cax=inset, orientation="horizontal")  # type: ignore[union-attr]
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.set_label("path of the tip: time [s]", color=GREY_INK)


def _draw_film(ax: Axes, model: Model, motion: Trajectory) -> None:
    """A floating mechanism at moments side by side, each about its centre of mass."""
    path = _poses_at(model, motion, _spread(len(motion.time), FILM_FRAMES))
    bodies, view = [b for b in solids(model) if b.link >= 0], camera(CORNER)
    pictures = [
        shaded(bodies, path.rotation[k], _about_center_of_mass(model, path, k), view, 0.0)
        for k in range(len(path.time))
    ]
    corners = np.concatenate([triangles.reshape(-1, 2) for triangles, _ in pictures])
    wide, tall = 1.15 * np.ptp(corners[:, 0]), 1.25 * np.ptp(corners[:, 1])
    for k, (triangles, colors) in enumerate(pictures):
        at = np.array([k % 2 * wide, -(k // 2) * tall])
        _add_solids(ax, triangles + at, colors, zorder=2)
        x, y = at[0] + corners[:, 0].mean(), at[1] + corners[:, 1].min() - 0.05 * tall
        ax.text(x, y, f"{path.time[k]:.2f} s", ha="center", va="top", color=GREY_INK)
    _frame(ax)


def _about_center_of_mass(model: Model, path: Moments, k: int) -> np.ndarray:
    """Positions of the links at one moment, seen from the centre of mass."""
    com, mass = np.asarray(model.inertia.com), np.asarray(model.inertia.mass)
    world = path.position[k] + np.einsum("lij,lj->li", path.rotation[k], com)
    return path.position[k] - mass @ world / mass.sum()


def _frame(ax: Axes) -> None:
    ax.set_aspect("equal")
    ax.autoscale_view()
    ax.margins(0.04)
    ax.set_axis_off()


def _side_of_motion(bodies: list[Solid], path: Moments) -> Camera:
    """From the side if everything moves in one vertical plane, else from above a corner."""
    points = np.concatenate([_follow(body, body.points.mean(axis=0), path) for body in bodies])
    centred = points[:, :2] - points[:, :2].mean(axis=0)
    _, spread, axes = np.linalg.svd(centred, full_matrices=False)
    if len(spread) > 1 and spread[1] < 0.05 * spread[0]:
        across = np.array([-axes[0, 1], axes[0, 0]])
        across = across if across[1] < 0 else -across
        return camera((float(np.arctan2(across[1], across[0])), 0.0))
    return camera(CORNER)


def _follow(body: Solid, point: np.ndarray, path: Moments) -> np.ndarray:
    """A point of a body over time, in the world."""
    if body.link < 0:
        return np.broadcast_to(point, (len(path.time), 3))
    return path.position[:, body.link] + path.rotation[:, body.link] @ point


def _furthest_tip(bodies: list[Solid], path: Moments) -> np.ndarray:
    """The path, in the world, of the point of any body that travels furthest."""
    candidates = []
    for body in bodies:
        far = body.points[np.argmax(np.linalg.norm(body.points, axis=1))]
        inward = 0.5 * (far + body.points.mean(axis=0))
        candidates.append(_follow(body, inward, path))
    return max(candidates, key=lambda p: float(np.linalg.norm(np.diff(p, axis=0), axis=1).sum()))
