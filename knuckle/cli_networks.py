"""Networks of `knuckle fit`: those of a .knuckle file, and new ones at taps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax

import knuckle as kn
from knuckle.cli_parse import names, positive, sizes

if TYPE_CHECKING:
    from knuckle.sysid import Regularise

HIDDEN, INPUTS = (6,), ("q", "qd")  # by default
JOINT_FORCES = ("joint/force", "joint/passive_force")
PREVIOUS = "previous "


class Learning(NamedTuple):
    """What options say about networks."""

    taps: Sequence[str] = ()
    hidden: str | None = None
    inputs: str | None = None
    spread: float | None = None
    lasso: float | None = None
    group_lasso: float | None = None

    def blueprint(self, file: kn.Hybrid, seed: int) -> kn.Blueprint | None:
        """Networks of the file, which go on from their weights, and new ones."""
        there = file.blueprint if file.blueprint is not None and file.blueprint.size else None
        trained = () if there is None else tuple(there.augments)
        twice = [tap for tap in self.taps if tap in trained]
        if twice:
            raise ValueError(f"--network: the file has a network at {twice[0]}, which goes on from its weights")
        if not self.taps and (self.hidden, self.inputs) != (None, None):
            raise ValueError("--hidden and --inputs are for new networks: give --network too")
        if self.inputs is not None and set(self.taps) <= set(JOINT_FORCES):
            raise ValueError(f"--inputs: networks at {' and '.join(JOINT_FORCES)} read q and qd; it is for others")
        shape = sizes(self.hidden, "--hidden") or HIDDEN, names(self.inputs, "--inputs") or INPUTS
        new = networks(file.model, self.taps, file.contact, seed, *shape)
        return there if new is None else new if there is None else there | new

    def regularise(self, blueprint: kn.Blueprint | None) -> Regularise:
        """What keeps weights small."""
        from knuckle.sysid import Regularise

        given = {"spread": self.spread, "group_lasso": self.group_lasso, "lasso": self.lasso}
        given = {name: value for name, value in given.items() if value is not None}
        if given and blueprint is None:
            raise ValueError("--weight-spread, --lasso and --group-lasso are for networks: give --network too")
        positive("--weight-spread", self.spread)
        for option, value in (("--lasso", self.lasso), ("--group-lasso", self.group_lasso)):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{option} must be 0 or more, got {value:g}")
        if self.lasso or self.group_lasso:
            _check_first_layers(blueprint)
        return Regularise(**given)


def networks(
    model: kn.Model,
    taps: Sequence[str],
    contact,
    seed: int,
    hidden: Sequence[int] = HIDDEN,
    inputs: Sequence[str] = INPUTS,
) -> kn.Blueprint | None:
    """A network at each tap: at joint forces one that only takes energy, fed by coordinates and velocities."""
    from knuckle.neural import MLP, Dissipative
    from knuckle.sysid.learned import added_shape

    if not taps:
        return None
    there, made = kn.list_taps(model, contact=contact), {}
    shapes = {t.name: t.shape for t in there}
    for number, tap in enumerate(taps):
        known = [t for t in there if t.name == tap]
        if not known or known[0].read_only:
            able = ", ".join(t.name for t in there if not t.read_only)
            raise ValueError(f"--network: there is no tap {tap!r} to act on; there are {able}")
        if tap in made:
            raise ValueError(f"--network: {tap} is given twice")
        key = jax.random.fold_in(jax.random.key(seed), number)
        if tap in JOINT_FORCES:
            made[tap] = kn.Augment(Dissipative(model, hidden, structure="diagonal", key=key), INPUTS)
        else:
            read = sum(math.prod(shapes[name]) for name in _read(tap, inputs, list(shapes)))
            layers = (read, *hidden, math.prod(added_shape(model, tap, shapes[tap])))
            made[tap] = kn.Augment(MLP(layers, key=key), inputs)
    return kn.Blueprint(made)


def _check_first_layers(blueprint: kn.Blueprint | None) -> None:
    from knuckle.neural.sparsity import lasso

    try:
        lasso(blueprint)
    except ValueError as error:
        raise ValueError(f"--lasso and --group-lasso: {error}, as at {' and '.join(JOINT_FORCES)}") from error


def _read(tap: str, inputs: Sequence[str], order: Sequence[str]) -> list[str]:
    """Taps whose values are read: those before the tap itself, or any of the step before ("previous q")."""
    found = [name.removeprefix(PREVIOUS) for name in inputs]
    unknown = [name for name in found if name not in order]
    if unknown:
        raise ValueError(f"--inputs: there is no tap {unknown[0]!r}; there are {', '.join(order)}")
    early = [name for name in inputs if not name.startswith(PREVIOUS) and order.index(name) >= order.index(tap)]
    if early and tap in INPUTS and tap in inputs:
        raise ValueError(f"--network: {tap} is what the network itself reads; choose a later tap")
    if early:
        raise ValueError(
            f"--inputs: {early[0]} is not known before {tap}; '{PREVIOUS}{early[0]}' is that of the step before"
        )
    return found
