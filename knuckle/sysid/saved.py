"""The state of a fit on disk while it runs, so that it can go on after Ctrl-C or a crash."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import jax
import numpy as np

from knuckle.optim import checkpoint
from knuckle.sysid.objective import Objective

EVERY = 1.0  # seconds between two writings at least


class Saved:
    """A file with the best point so far and the noise it goes with; a global search has one beside it."""

    def __init__(self, path: Path | str | None, objective: Objective, about: dict[str, str]):
        self.path = None if path is None else Path(path)
        self.settings = about | {
            "free numbers": list(objective.labels),
            "robust": objective.robust,
            "regularise": repr(objective.regularise),
            "model (digest)": digest((objective.simulator.model, objective.simulator.contact)),
            "recordings (digest)": digest(objective.shots),
        }
        self._written = -np.inf

    @property
    def rounds(self) -> Path | None:
        """The file of a global search."""
        return None if self.path is None else self.path.with_suffix(f".rounds{self.path.suffix}")

    def write(self, x: np.ndarray, noise: dict[str, float], searched: bool, *, now: bool = False) -> None:
        """Keep a point; unless it must be now, not more often than once a second."""
        if self.path is None or (not now and time.monotonic() < self._written + EVERY):
            return
        state = {"x": x, "noise": np.array(list(noise.values())), "searched": np.array(searched)}
        checkpoint.save(self.path, state, self.settings)
        self._written = time.monotonic()

    def read(self, noise: dict[str, float]) -> tuple[np.ndarray, dict[str, float], bool] | None:
        """The point, the noise, and whether a global search was done; None if nothing but its rounds was written."""
        assert self.path is not None and self.rounds is not None
        if not self.path.exists() and self.rounds.exists():
            return None
        state = checkpoint.load(self.path, self.settings)
        return state["x"], dict(zip(noise, state["noise"].tolist(), strict=True)), bool(state["searched"])

    def clear(self) -> None:
        for path in (self.path, self.rounds):
            if path is not None:
                path.unlink(missing_ok=True)


def digest(tree) -> str:
    """A few characters that differ if any number does."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        found.update(np.ascontiguousarray(np.asarray(leaf)).tobytes())
    return found.hexdigest()[:12]
