"""A motion as a film: one picture of the mechanism per frame."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from PIL import Image

from knuckle.dynamics import kinetic_energy, potential_energy
from knuckle.model.model import Model
from knuckle.trajectory import Trajectory
from knuckle.viewer.plots import GREY_INK, STYLE, _poses_at, _side_of_motion, motion_figure
from knuckle.viewer.solids import Camera, Solid, shaded, solids

MOST_FRAMES = 2000
DPI = 100


def plot(model: Model, motion: Trajectory, title: str = "") -> Figure:
    """`motion_figure` with the energies of the motion."""
    return motion_figure(model, motion, energies(model, motion), title)


def energies(model: Model, motion: Trajectory) -> dict[str, np.ndarray]:
    """Kinetic, potential and total energy after each step [J]."""

    def both(state):
        return kinetic_energy(model, *state), potential_energy(model, state[0])

    states = (jnp.asarray(motion.q), jnp.asarray(motion.qd))
    kinetic, potential = map(np.asarray, jax.jit(lambda s: jax.lax.map(both, s, batch_size=1000))(states))
    return {"kinetic": kinetic, "potential": potential, "total": kinetic + potential}


def animate(
    model: Model, motion: Trajectory, path: str | Path, *, fps: float = 25.0, speed: float = 1.0, size: int = 480
) -> Path:
    """Write a GIF (or what else Pillow writes with several pictures) of the motion, and return its path."""
    path = Path(path)
    if path.suffix.lower() not in (".gif", ".webp", ".png"):
        raise ValueError(f"animate writes .gif, .webp or .png (animated), got {str(path)!r}")
    if not (0 < fps <= 100 and 0 < speed < np.inf and 16 <= size <= 4096):
        raise ValueError(f"animate: expected 0 < fps <= 100, speed > 0, 16 <= size <= 4096; got {fps}, {speed}, {size}")
    pictures = [Image.fromarray(picture) for picture in frames(model, motion, fps / speed, size)]
    first, *others = pictures
    first.save(path, save_all=True, append_images=others, duration=1000 / fps, loop=0)
    return path


def frames(model: Model, motion: Trajectory, rate: float, size: int = 480) -> list[np.ndarray]:
    """RGB pictures (height, width, 3) of the motion, so many per second of it."""
    time = np.asarray(motion.time)
    if not len(time) or not np.all(np.isfinite(np.asarray(motion.q))):
        raise ValueError("frames: expected at least one step and finite coordinates")
    moments = np.arange(time[0], time[-1] + 0.5 / rate, 1 / rate)
    if len(moments) > MOST_FRAMES:
        raise ValueError(f"{len(moments)} frames are more than {MOST_FRAMES}: lower fps, or raise speed")
    shown = np.minimum(np.searchsorted(time, moments - 1e-9), len(time) - 1)
    path = _poses_at(model, motion, shown)
    bodies = solids(model)
    view = _side_of_motion(bodies, path)
    pictures = [shaded(bodies, R, p, view, 0.0) for R, p in zip(path.rotation, path.position, strict=True)]
    return _drawn(pictures, path.time, size, _ground_line(model, bodies, view))


def _ground_line(model: Model, bodies: list[Solid], view: Camera) -> float | None:
    """Height in the picture of a level ground seen from the side."""
    geometry = model.geometry
    level = [k for k, kind in enumerate(geometry.kind) if kind == "plane" and geometry.link[k] < 0]
    return float(np.asarray(geometry.position[level[0]])[2]) if level and abs(view.eye[2]) < 1e-9 else None


def _drawn(pictures: list, time: np.ndarray, size: int, ground: float | None) -> list[np.ndarray]:
    corners = np.concatenate([triangles.reshape(-1, 2) for triangles, _ in pictures])
    low, high = corners.min(axis=0), corners.max(axis=0)
    margin = 0.06 * max(*(high - low), 1e-6)
    low, high = low - margin, high + margin
    wide, tall = size * (high - low) / max(high - low)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(max(wide, 64) / DPI, max(tall, 64) / DPI), dpi=DPI)
        canvas, ax = FigureCanvasAgg(figure), figure.add_axes((0, 0, 1, 1))
        ax.set_axis_off()
        ax.set_aspect("equal")
        ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
        if ground is not None:
            ax.axhline(ground, color=GREY_INK, linewidth=1)
        label = ax.text(0.02, 0.02, "", transform=ax.transAxes, color=GREY_INK)
        found = []
        for (triangles, colors), moment in zip(pictures, time, strict=True):
            drawn = PolyCollection(list(triangles), facecolors=colors, edgecolors=colors, linewidths=0.35, zorder=2)
            ax.add_collection(drawn, autolim=False)
            label.set_text(f"{moment:.2f} s")
            canvas.draw()
            found.append(np.asarray(canvas.buffer_rgba())[..., :3].copy())
            drawn.remove()
        return found
