"""What a roll-out returns: the states after each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Float

from knuckle.contact.outcome import Outcome
from knuckle.model.model import Leaf, Model, State

VIEWS: dict[str, Callable[..., Any]] = {}  # `plot` and `animate`, which the package itself puts here


class Trajectory(eqx.Module):
    """States after each step of a roll-out, with the time [s] of each and the control that led there."""

    time: Float[Leaf, " step"]
    q: Float[Leaf, "step nq"]
    qd: Float[Leaf, "step nv"]
    control: Float[Leaf, "step nu"]
    contact: Outcome | None = None  # what the contacts of each step did
    memory: dict[str, Any] | None = None  # what networks kept after each step
    held: Float[Leaf, " nu"] | None = None  # the control of the initial state, where that one acted

    @property
    def last(self) -> State:
        memory = jax.tree.map(lambda kept: kept[-1], self.memory)
        return State(self.q[-1], self.qd[-1], memory=memory, control=self.held)

    def plot(self, model: Model | None = None, title: str = ""):
        """The mechanism at several moments beside coordinates, speeds and energies over time: a Matplotlib figure.

        `model` is needed only where the trajectory is not the result of `rollout` itself (of `jax.jit`, for example).
        """
        return VIEWS["plot"](self._model_or(model, "plot"), self, title)

    def animate(self, path: str, model: Model | None = None, *, fps: float = 25.0, speed: float = 1.0, size: int = 480):
        """Write the motion as a GIF (or another format of Pillow), and return the path; `model` as in `plot`.

        Args:
            fps: frames per second of the file.
            speed: seconds of motion per second of film.
            size: of the longer side of the picture [pixels].
        """
        return VIEWS["animate"](self._model_or(model, "animate"), self, path, fps=fps, speed=speed, size=size)

    def _model_or(self, model: Model | None, method: str) -> Model:
        found = model if model is not None else self.__dict__.get("_model")
        if found is None:
            raise ValueError(
                f"{method} needs the model: this trajectory came through a transformation, so give model=..."
            )
        if np.ndim(self.q) != 2:
            raise ValueError(f"{method} shows one roll-out: q must have shape (step, nq), got {np.shape(self.q)}")
        return found

    def __repr__(self) -> str:
        if isinstance(self.q, Tracer) or np.ndim(self.q) != 2 or not len(self.time):
            return f"Trajectory(q {_shape(self.q)}, qd {_shape(self.qd)}, control {_shape(self.control)})"
        parts = [
            f"{len(self.time)} steps to {float(self.time[-1]):.4g} s",
            f"nq={self.q.shape[1]}, nv={self.qd.shape[1]}, nu={self.control.shape[1]}",
        ]
        if self.contact is not None:
            solved = np.asarray(self.contact.converged)
            parts.append(f"contact solved in {int(solved.sum())} of {solved.size}")
        return f"Trajectory({'; '.join(parts)}; last {self.last!r})"


def with_model(trajectory: Trajectory, model: Model) -> Trajectory:
    """The trajectory with the model for its pictures, which no transformation sees."""
    object.__setattr__(trajectory, "_model", model)
    return trajectory


def _shape(value: Any) -> str:
    return f"{getattr(value, 'dtype', type(value).__name__)}[{','.join(map(str, np.shape(value)))}]"
