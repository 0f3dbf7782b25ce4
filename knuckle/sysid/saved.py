"""The state of a fit on disk while it runs, so that it can go on after Ctrl-C or a crash."""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path

import jax
import numpy as np

from knuckle.optim import checkpoint
from knuckle.sysid.noise_kinds import ChannelNoise
from knuckle.sysid.objective import Objective

PIECES = "pieces"  # the setting of how many segments there are
EVERY = 1.0  # seconds between two writings at least


class Saved:
    """A file with the best point so far and the noise it goes with; a global search has one beside it."""

    def __init__(
        self, path: Path | str | None, objective: Objective, noise: dict[str, ChannelNoise], about: dict[str, str]
    ):
        self.path = None if path is None else Path(path)
        self.settings = about | settings(objective) | {f"noise of {key}": repr(value) for key, value in noise.items()}
        self._written = -np.inf

    @property
    def rounds(self) -> Path | None:
        """The file of a global search."""
        return None if self.path is None else self.path.with_suffix(f".rounds{self.path.suffix}")

    def write(self, x: np.ndarray, noise: dict[str, ChannelNoise], searched: bool, *, now: bool = False) -> None:
        """Keep a point; unless it must be now, not more often than once a second."""
        if self.path is None or (not now and time.monotonic() < self._written + EVERY):
            return
        state = {
            "x": x,
            "noise": np.concatenate([np.ravel(value) for value in noise.values()]),
            "searched": np.array(searched),
        }
        checkpoint.save(self.path, state, self.settings)
        self._written = time.monotonic()

    def read(self, noise: dict[str, ChannelNoise]) -> tuple[np.ndarray, dict[str, ChannelNoise], bool] | None:
        """The point, the noise, and whether a global search was done; None if nothing but its rounds was written."""
        assert self.path is not None and self.rounds is not None
        if not self.path.exists() and self.rounds.exists():
            return None
        state = checkpoint.load(self.path, self.settings)
        return state["x"], _as_shaped(state["noise"], noise), bool(state["searched"])

    def clear(self) -> None:
        for path in (self.path, self.rounds):
            if path is not None:
                path.unlink(missing_ok=True)


def _as_shaped(values: np.ndarray, like: dict[str, ChannelNoise]) -> dict[str, ChannelNoise]:
    """Numbers one after the other as noise of channels."""
    parts = np.split(values, np.cumsum([np.size(value) for value in like.values()])[:-1])
    return {key: part if np.ndim(like[key]) else float(part[0]) for key, part in zip(like, parts, strict=True)}


def saved_count(path: Path | str | None) -> int | None:
    """How many segments a saved fit uses, which of long recordings are only some."""
    text = "" if path is None else str(checkpoint.saved_settings(Path(path)).get(PIECES, ""))
    first = text.partition(" ")[0]
    return int(first) if first.isdigit() else None


def settings(objective: Objective) -> dict:
    """All that makes the problem what it is, by name, but the noise."""
    simulator, shots = objective.simulator, objective.shots
    used = {key: np.asarray(weight) > 0 for key, weight in shots.weight.items()}
    bounds = {f"bounds of {p.name}": _range(p.lower, p.upper, p.deviation) for p in simulator.parameters}
    return bounds | {
        "free numbers": list(objective.labels),
        "robust": objective.robust,
        "regularise": repr(objective.regularise),
        "integrator": described(simulator.integrator),
        "step": f"{shots.period / simulator.substeps:.9g} s",
        "drive": "linear" if shots.linear else "held",
        "observe": sorted(simulator.observe),
        PIECES: f"{shots.count} of {shots.samples} samples",
        "contact": described(simulator.contact),
        "networks": described(simulator.blueprint),
        "model (digest)": digest(simulator.model),
        "recordings (digest)": digest((shots.measured, used, shots.control, shots.joined)),
    }


def _range(lower: np.ndarray, upper: np.ndarray, deviation: np.ndarray) -> str:
    return ", ".join(f"{a:.9g} to {b:.9g} by {c:.9g}" for a, b, c in zip(lower, upper, deviation, strict=True))


def described(tree) -> str:
    """What a module is, and a digest of its numbers."""
    return f"{re.sub(' at 0x[0-9a-f]+', '', repr(tree))} {digest(tree)}"


def digest(tree) -> str:
    """A few characters that differ if any number does."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        found.update(np.ascontiguousarray(np.asarray(leaf)).tobytes())
    return found.hexdigest()[:12]
