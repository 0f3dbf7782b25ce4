"""A model with the networks inside it and how it is stepped: as one object, and as one file without code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from knuckle.contact.default import Contact, chosen_contact
from knuckle.contact.resolve import ContactModel
from knuckle.hybrid.arrays import Arrays
from knuckle.hybrid.blueprints import check_rows, decoded_blueprint, encoded_blueprint
from knuckle.hybrid.calibration import Calibration, calibration_of_data, check_calibration
from knuckle.hybrid.check_model import check_model, sizes_of
from knuckle.hybrid.contacts import check_contact, decoded_choice, decoded_contact, encoded_choice, encoded_contact
from knuckle.hybrid.container import HybridFileError, Members, packed, read_bytes, unpacked, write_whole
from knuckle.hybrid.fields import decoded, decoded_fields, encoded_fields
from knuckle.integrate import RK4, ExplicitEuler, Implicit, Integrator, SemiImplicitEuler
from knuckle.model.model import Model, State
from knuckle.simulate import Trajectory, rollout, step
from knuckle.taps import Blueprint

FORMAT, VERSION = "knuckle hybrid", 2
INTEGRATORS = {kind.__name__: kind for kind in (SemiImplicitEuler, ExplicitEuler, Implicit, RK4)}
ENTRIES = {"format", "version", "model", "blueprint", "contact", "integrator", "dt", "notes"}
CALIBRATION = "calibration"  # an entry since version 2, which is written only where there is one
UNFORESEEN = "damaged in a way that no check foresaw"


class Hybrid(eqx.Module):
    """A model, the networks inside it, contact, integrator and step [s]; `notes` are any JSON data.

    `contact` is that of the model if none is given (`kn.contact.default_contact`), and None for no contact.

    `calibration` says how its robot is measured and driven; logs are read by it. `rollout` delays controls by its
    `actuator_delay`. `step` knows no earlier controls: it takes the one that acts.
    """

    model: Model
    blueprint: Blueprint | None
    contact: ContactModel | None
    integrator: Integrator | None
    dt: float | None = eqx.field(static=True)
    notes_text: str = eqx.field(static=True)
    calibration: Calibration = eqx.field(static=True)

    def __init__(
        self,
        model: Model,
        blueprint: Blueprint | None = None,
        contact: Contact = "default",
        integrator: Integrator | None = None,
        dt: float | None = None,
        notes: Mapping[str, Any] | None = None,
        calibration: Calibration | None = None,
    ):
        self.model, self.blueprint, self.integrator = model, blueprint, integrator
        self.contact = chosen_contact(model, contact)
        self.dt = None if dt is None else float(dt)
        self.notes_text = _notes_text({} if notes is None else notes)
        self.calibration = Calibration() if calibration is None else calibration

    @property
    def notes(self) -> dict[str, Any]:
        return json.loads(self.notes_text)

    @property
    def options(self) -> dict[str, Any]:
        """What `step` and `rollout` take beside model, state and controls."""
        given = {"dt": self.dt, "integrator": self.integrator, "blueprint": self.blueprint}
        return {"contact": self.contact, **{name: value for name, value in given.items() if value is not None}}

    def __repr__(self) -> str:
        names = (f"{key}={type(value).__name__}" for key, value in self.options.items() if key != "dt")
        return f"Hybrid({', '.join((repr(self.model), f'dt={self.dt}', *names))})"

    def step(self, state: State, control=None, **options) -> State:
        """`kn.step` with this model's own options, unless others are given."""
        return step(self.model, state, control, **{**self.options, **options})

    def rollout(self, state: State, controls=None, **options) -> Trajectory:
        """`kn.rollout` with this model's own options, unless others are given.

        Controls over time act as late as the actuators are; before that the first row does. A policy that answers to
        the state cannot be delayed like that, and is refused.
        """
        options = {**self.options, **options}
        return rollout(self.model, state, self._delayed(controls, options.get("dt")), **options)

    def _delayed(self, controls, dt):
        """Controls as they act: of each step the average of what was commanded one delay earlier."""
        late = self.calibration.actuator_delay
        if not late or controls is None:
            return controls
        if callable(controls):
            raise ValueError(
                f"rollout: the actuators of this model act {late:.4g} s late, which a policy cannot know: give "
                "controls over time, or kn.rollout(hybrid.model, state, policy, **hybrid.options) without the delay"
            )
        if jnp.ndim(controls) != 2 or dt is None:
            return controls  # one control that is held is the same at any time
        whole = jnp.floor(late / dt)
        part = late / dt - whole
        rows = jnp.arange(len(controls)) - whole.astype(int)
        newer, older = (jnp.asarray(controls)[jnp.clip(rows - k, 0, len(controls) - 1)] for k in (0, 1))
        return (1 - part).astype(newer.dtype) * newer + part.astype(newer.dtype) * older


def save_hybrid(
    path: str | Path,
    model: Model,
    blueprint: Blueprint | None = None,
    *,
    contact: Contact = "default",
    integrator: Integrator | None = None,
    dt: float | None = None,
    notes: Mapping[str, Any] | None = None,
    calibration: Calibration | None = None,
    weights_only: bool = False,
) -> None:
    """Write a model and what is inside it to one file (.knuckle) of JSON and arrays, whole or not at all.

    The bytes are loaded back and compared before they take the file's place. `weights_only` leaves out how networks are
    built, so that they may be of any class: `load_hybrid` then needs `like=blueprint`.
    """
    hybrid = Hybrid(model, blueprint, contact, integrator, dt, notes, calibration)
    path = Path(path)
    if path.suffix != ".knuckle":
        raise ValueError(f"save_hybrid {str(path)!r}: expected a name that ends in .knuckle")
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(hybrid)):
        raise ValueError(f"save_hybrid {str(path)!r}: needs numbers, got traced values: call it outside jit and grad")
    _check(hybrid)
    arrays: Arrays = {}
    manifest = {
        "format": FORMAT,
        "version": VERSION if hybrid.calibration else 1,
        "model": encoded_fields(model, "model", arrays),
        "blueprint": None if blueprint is None else encoded_blueprint(blueprint, arrays, weights_only),
        "contact": encoded_contact(hybrid.contact, arrays),
        "integrator": encoded_choice(integrator, "integrator", INTEGRATORS, arrays),
        "dt": hybrid.dt,
        "notes": hybrid.notes,
        **({CALIBRATION: hybrid.calibration.as_data()} if hybrid.calibration else {}),
    }
    data = packed(manifest, arrays)
    back = _decoded(unpacked(path, data), blueprint if weights_only else None)
    differing = difference(hybrid, back)
    if differing is not None:
        raise ValueError(f"save_hybrid {str(path)!r}: a file cannot hold {differing} as it is")
    write_whole(path, data)


def load_hybrid(path: str | Path, like: Blueprint | None = None) -> Hybrid:
    """The model of a file that `save_hybrid` wrote, bit for bit; nothing in the file is run.

    `like`: a blueprint whose networks are filled with the weights of the file, which may then be of any class. Raises
    HybridFileError (a ValueError) that names the file and the place if anything is damaged or does not fit.
    """
    try:
        return _decoded(unpacked(path, read_bytes(path)), like)
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError) as error:
        raise HybridFileError(path, "file", f"{UNFORESEEN} ({type(error).__name__}: {error})") from error


def difference(a: Hybrid, b: Hybrid) -> str | None:
    """Where two differ in any bit, type or static field; None: nowhere."""
    leaves_a, tree_a = jax.tree_util.tree_flatten_with_path(a)
    leaves_b, tree_b = jax.tree_util.tree_flatten_with_path(b)
    if tree_a != tree_b or a.model.topology.ground_mass != b.model.topology.ground_mass:
        return "the structure"
    for (place, x), (_, y) in zip(leaves_a, leaves_b, strict=True):
        if _identity(x) != _identity(y):
            return jax.tree_util.keystr(place)
    return None


def _identity(leaf: Any) -> tuple[Any, ...]:
    """All there is to know of a number or an array."""
    array, is_jax = np.asarray(leaf), isinstance(leaf, jax.Array)
    weak = is_jax and leaf.aval.weak_type  # pyright: ignore[reportAttributeAccessIssue]
    return "jax" if is_jax else type(leaf), weak, array.dtype, array.shape, array.tobytes()


def _decoded(members: Members, like: Blueprint | None) -> Hybrid:
    node = members.manifest
    if not isinstance(node, dict) or node.get("format") != FORMAT:
        members.fail("manifest.json", f"expected the format {FORMAT!r}")
    version = node.get("version")
    if type(version) is not int or version < 1:
        members.fail("version", f"expected a positive whole number, got {version!r:.200}")
    if version > VERSION:
        members.fail("version", f"the file has version {version}, newer than {VERSION}: a newer Knuckle reads it")
    entries = ENTRIES | ({CALIBRATION} if version >= 2 else set())
    if set(node) != entries:
        members.fail("manifest.json", f"expected {', '.join(sorted(entries))}, got {sorted(node)!r:.300}")
    blueprint = node["blueprint"]
    if blueprint is None and like is not None:
        members.fail("blueprint", "the file has none to fill like=... with")
    parts = {
        "model": decoded_fields(Model, node["model"], "model", members),
        "blueprint": None if blueprint is None else decoded_blueprint(blueprint, like, members),
        "contact": decoded_contact(node["contact"], members),
        "integrator": decoded_choice(node["integrator"], "integrator", INTEGRATORS, members),
    }
    members.finish()
    dt = decoded(float | None, node["dt"], "dt", members)
    try:
        calibration = calibration_of_data(node[CALIBRATION]) if CALIBRATION in node else None
    except ValueError as error:
        members.fail(CALIBRATION, str(error))
    try:
        hybrid = Hybrid(**parts, dt=dt, notes=node["notes"], calibration=calibration)
        _check(hybrid)
    except ValueError as error:
        place, _, message = str(error).partition(": ")
        raise HybridFileError(members.path, place, message) from error
    return hybrid


def _check(hybrid: Hybrid) -> None:
    check_model(hybrid.model)
    check_calibration(hybrid.calibration, hybrid.model.nv)
    if hybrid.dt is not None and not 0 < hybrid.dt < math.inf:
        raise ValueError(f"dt: expected a positive number [s], got {hybrid.dt}")
    if hybrid.blueprint is not None:
        sizes = sizes_of(hybrid.model)
        check_rows(
            hybrid.blueprint,
            {"coordinate": sizes["nq"], "dof": sizes["nv"], "actuator": sizes["actuator"], "link": sizes["link"]},
        )
    check_contact(hybrid.contact)


def _notes_text(notes: Mapping[str, Any]) -> str:
    try:
        if not isinstance(notes, Mapping):
            raise TypeError(f"got {type(notes).__name__}")
        text = json.dumps(notes, allow_nan=False)
        if json.loads(text) != notes:
            raise ValueError("lists stand for tuples and names are text in JSON")
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"notes: expected a dictionary of JSON data: {error}") from error
    return text
