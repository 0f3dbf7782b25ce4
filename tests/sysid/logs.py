"""Motions with known derivatives, and tables of them as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from knuckle import robots
from knuckle.model.model import Model

RATE = 250.0


def pendulum() -> Model:
    return robots.load("double_pendulum")


def swing(seconds: float = 8.0, rate: float = RATE, joints: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, positions and velocities: sums of two sines a joint, not related to any model."""
    t = np.arange(round(seconds * rate)) / rate
    k = np.arange(1, joints + 1)
    w1, w2 = 2.0 + 0.7 * k, 5.3 + 0.9 * k
    q = 0.9 * np.sin(np.outer(t, w1) + k) + 0.25 * np.sin(np.outer(t, w2))
    qd = 0.9 * w1 * np.cos(np.outer(t, w1) + k) + 0.25 * w2 * np.cos(np.outer(t, w2))
    return t, q, qd


def write_csv(path: Path, columns: dict[str, np.ndarray], delimiter: str = ",", before: str = "") -> Path:
    table = np.column_stack(list(columns.values()))
    lines = [delimiter.join(columns), *(delimiter.join(repr(float(x)) for x in row) for row in table)]
    path.write_text(before + "\n".join(lines) + "\n")
    return path


def columns(t: np.ndarray, q: np.ndarray, qd: np.ndarray | None = None, **more: np.ndarray) -> dict[str, np.ndarray]:
    """The double pendulum's columns by plain names."""
    table = {"time [s]": t, "shoulder": q[:, 0], "elbow": q[:, 1]}
    if qd is not None:
        table |= {"shoulder_vel": qd[:, 0], "elbow_vel": qd[:, 1]}
    return table | more
