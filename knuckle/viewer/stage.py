"""Single pictures of a robot from a camera that stays as it is, and goes along with its first link."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from knuckle import kinematics, native
from knuckle.model.joints import retract
from knuckle.model.model import Model
from knuckle.viewer.plots import GREY_INK, STYLE, Moments, _follow, _side_of_motion
from knuckle.viewer.solids import shaded, solids

DPI, POSES = 100, 64


class Stage:
    """Camera and scale for all poses of a robot; `size`: pixels of a side of its pictures."""

    def __init__(self, model: Model, size: int = 480):
        self.bodies = solids(model)
        with jax.enable_x64(True):
            self._poses = native.jit(lambda q: kinematics.poses(model, q))
            many = self._many(model)
        self.view = _side_of_motion(self.bodies, many)
        moving = [body for body in self.bodies if body.link >= 0] or self.bodies
        far = [_follow(body, point, many) - many.position[:, 0] for body in moving for point in body.points]
        self.reach = 1.05 * float(np.abs(self.view.picture(np.concatenate(far))).max(initial=1e-3))
        level = [k for k, kind in enumerate(model.geometry.kind) if kind == "plane" and model.geometry.link[k] < 0]
        self.ground = float(np.asarray(model.geometry.position[level[0]])[2]) if level else None
        self.size = size

    def _many(self, model: Model) -> Moments:
        """Poses about the reference that joints reach by turning; what slides stays."""

        def moved(step: np.ndarray) -> list[np.ndarray]:
            q = retract(model, jnp.asarray(model.reference, float), jnp.asarray(step))
            return [np.asarray(x) for x in self._poses(q)]

        still = moved(np.zeros(model.nv))[0]
        turns = [np.abs(moved(0.5 * unit)[0] - still).max() > 1e-9 for unit in np.eye(model.nv)]
        found = [moved(turns * step) for step in np.random.default_rng(0).uniform(-np.pi, np.pi, (POSES, model.nv))]
        return Moments(np.zeros(POSES), *(np.array([x[k] for x in found]) for k in (0, 1)))

    def picture(self, q: Float[jax.Array | np.ndarray, " nq"]) -> np.ndarray:
        """RGB, (size, size, 3)."""
        with jax.enable_x64(True):
            rotation, position = map(np.asarray, self._poses(np.asarray(q, float)))
        triangles, colors = shaded(self.bodies, rotation, position, self.view, 0.0)
        middle = self.view.picture(position[:1])[0]
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=(self.size / DPI, self.size / DPI), dpi=DPI)
            canvas, ax = FigureCanvasAgg(figure), figure.add_axes((0, 0, 1, 1))
            ax.set_axis_off()
            limits = [(c - self.reach, c + self.reach) for c in middle]
            ax.set(xlim=limits[0], ylim=limits[1])
            if self.ground is not None and abs(self.view.eye[2]) < 1e-9:
                ax.axhline(self.ground, color=GREY_INK, linewidth=1)
            drawn = PolyCollection(list(triangles), facecolors=colors, edgecolors=colors, linewidths=0.35, zorder=2)
            ax.add_collection(drawn, autolim=False)
            canvas.draw()
            return np.asarray(canvas.buffer_rgba())[..., :3].copy()
