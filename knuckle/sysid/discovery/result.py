"""What discovery found: effects by what they buy, the formula, networks, and how they predict held-out data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from knuckle.contact.resolve import ContactModel
from knuckle.model.model import Model
from knuckle.neural.formula import Formula
from knuckle.sysid.discovery.expressions import as_c, as_latex, as_python, as_text, expressions
from knuckle.sysid.discovery.library import Candidate
from knuckle.sysid.discovery.network import SparseNetwork
from knuckle.sysid.discovery.refine import Coefficient
from knuckle.taps import Blueprint

PRINTERS = {"text": as_text, "latex": as_latex, "python": as_python, "c": as_c}
SHOWN = 12  # rows of the table
BETTER = 2.0  # standard errors by which a network must predict better than a formula to be preferred


class Row(NamedTuple):
    """A candidate and what it buys."""

    name: str
    tap: str
    inputs: tuple[str, ...]
    cost: int  # unknown numbers
    alone: float  # chi-square that it predicts by itself, by cross-validation
    given: float  # the same beside the chosen effects (of a chosen one: what its removal loses)
    stability: float  # how often it is chosen from resampled recordings
    chosen: bool


class HeldOutError(NamedTuple):
    """Root mean square error of predicted held-out segments, over the noise."""

    what: str
    error: float
    per_segment: np.ndarray  # mean squares


@dataclass(frozen=True)
class Discovery:
    """The answer to what a model is missing."""

    model: Model  # with the parameters that were found
    described: Model
    contact: ContactModel | None
    blueprint: Blueprint | None  # the formula; None: nothing is missing, or parameters alone explain it
    effects: tuple[Candidate, ...]  # that are missing
    ties: dict[str, tuple[str, ...]]  # of each effect: taps or effects that explain the data equally well
    rows: tuple[Row, ...]  # all candidates, those that buy most first
    coefficients: tuple[Coefficient, ...]
    network: SparseNetwork | None
    held_out: tuple[HeldOutError, ...]
    horizon: float  # [s] of the held-out predictions
    noise: float  # residual standard deviation of the richest model, over the noise of the recordings
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def is_something_missing(self) -> bool:
        """Whether the data ask for any effect, or for a network."""
        return bool(self.effects) or self.needs_network

    @property
    def needs_network(self) -> bool:
        """Whether a network predicts held-out data better than the formula, beyond doubt."""
        errors = {e.what: e for e in self.held_out}
        if "network" not in errors:
            return False
        return clearly_better(errors["network"], errors.get("formula", errors["model"]))

    def formula(self, form: str = "text") -> dict[str, str]:
        """What is added at each entry of a tap, as "text", "latex", "python" or "c"."""
        if form not in PRINTERS:
            raise ValueError(f"formula: expected one of {', '.join(PRINTERS)}, got {form!r}")
        if self.blueprint is None:
            return {}
        found = {}
        for tap, _, augment in self.blueprint:
            network = augment.network
            assert isinstance(network, Formula)
            for name, expression in expressions(self.described, tap, network).items():
                found[f"{tap}[{name}]"] = PRINTERS[form](expression)
        return found

    def answer(self) -> list[str]:
        """In words: what is missing, or that nothing is."""
        if not self.is_something_missing:
            return [f"nothing is missing: no effect is needed to explain the recordings{self._noise_words()}"]
        lines = [f"missing: {self._effect_words(effect)}" for effect in self.effects]
        lines += [f"{name} += {text}" for name, text in self.formula().items()]
        lines += [
            f"{c.name} = {c.value:.4g} {c.unit}".rstrip() + f" (95 %: {c.lower:.4g} .. {c.upper:.4g})"
            for c in self.coefficients
        ]
        if self.needs_network:
            reads = {
                joint: inputs for joint, inputs in (self.network.names() if self.network else {}).items() if inputs
            }
            words = "; ".join(f"{joint} reads {', '.join(inputs)}" for joint, inputs in reads.items())
            lines.append(f"a network predicts better than any sum of the library's terms: {words}")
        return lines

    def _noise_words(self) -> str:
        return f" (residuals are {self.noise:.3g} times the noise)"

    def _effect_words(self, effect: Candidate) -> str:
        inputs = f" of {', '.join(effect.inputs)}" if effect.inputs else ""
        tied = self.ties.get(effect.name, ())
        same = f"; no data can tell it from {', '.join(tied)}" if tied else ""
        return f"{effect.name}, at {effect.tap}{inputs}{same}"

    def __repr__(self) -> str:
        head = ("effect", "tap", "numbers", "chi-square alone", "beside chosen", "of resamples")
        rows = [head] + [
            (
                ("* " if r.chosen else "  ") + r.name,
                r.tap,
                str(r.cost),
                f"{r.alone:.1f}",
                f"{r.given:.1f}",
                f"{r.stability:.0%}",
            )
            for r in self.rows[:SHOWN]
        ]
        widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        errors = ", ".join(f"{e.what} {e.error:.3g} x noise" for e in self.held_out)
        lines.append(f"held out, predicted over {self.horizon:.2g} s: {errors}")
        return "\n".join([*self.answer(), *lines, *self.notes])

    def data(self) -> dict[str, Any]:
        """All of it as JSON data."""
        network = self.network
        return {
            "answer": self.answer(),
            "is_something_missing": self.is_something_missing,
            "needs_network": self.needs_network,
            "effects": [e._asdict() | {"tied": list(self.ties.get(e.name, ()))} for e in self.effects],
            "formula": {form: self.formula(form) for form in PRINTERS},
            "coefficients": [c._asdict() for c in self.coefficients],
            "candidates": [row._asdict() for row in self.rows],
            "held_out": [{"what": e.what, "error_over_noise": e.error} for e in self.held_out],
            "horizon": self.horizon,
            "noise": self.noise,
            "seconds": self.seconds,
            "network": None
            if network is None
            else {
                "inputs": network.inputs,
                "reads": network.names(),
                "path": [{"strength": p.strength, "alive": p.alive.tolist()} for p in network.path],
                "chosen": network.chosen,
            },
            "notes": list(self.notes),
        }


def clearly_better(a: HeldOutError, b: HeldOutError) -> bool:
    """Whether one predicts better than another: by 5 % of the mean square, and by more than two standard errors."""
    apart = b.per_segment - a.per_segment
    apart = apart[np.isfinite(apart)]
    if len(apart) < 2:
        return False
    error = np.std(apart, ddof=1) / np.sqrt(len(apart))
    return bool(apart.mean() > BETTER * error and a.error**2 < 0.95 * b.error**2)
