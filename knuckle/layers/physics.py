"""Physics as an Equinox layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle.contact.default import Contact, chosen_contact
from knuckle.integrate import Integrator, SemiImplicitEuler
from knuckle.layers.unroll import Hold, Settings, batch_of, checked_settings, forward, forward_program
from knuckle.model.model import Leaf, Model
from knuckle.sysid.free_parameters import FreeParameters
from knuckle.sysid.free_parameters import parameters as choose_parameters
from knuckle.taps import Blueprint

Patterns = str | Sequence[str] | Mapping[str, Any]


class Physics(eqx.Module):
    """H steps of a model as a layer: q, qd, joint forces, controls and parameters in; motion and poses out.

    What trains are `free`, the free numbers of the parameters that are named (see `kn.parameters`), and the networks of
    the blueprint; the rest of the model is a constant, which native code folds away. Inputs may have a batch axis in
    front; those that are left out are the reference coordinates, zero, and the layer's own parameters.

    Args:
        model: the mechanism.
        dt: of one step [s].
        steps: how many steps a call does.
        parameters: patterns of the parameters that are free, "*.mass" for example, with bounds as in `kn.parameters`.
        outputs: some of "q", "qd", "qdd" (mean over each step), "poses" of links and "frames", both [R | p], 3 by 4.
        hold: "held": joint forces and controls act in all steps; "first": in the first only; "each": they have an axis
            of steps.
        every_step: outputs after each step, with an axis of steps; else after the last.
        native: run as native code; else plain JAX, for devices other than the CPU.
    """

    free: Float[Array, " free"]
    blueprint: Blueprint | None
    settings: Settings = eqx.field(static=True)
    native: bool = eqx.field(static=True)

    def __init__(
        self,
        model: Model,
        *,
        dt: float,
        steps: int = 1,
        parameters: Patterns = (),
        outputs: str | Sequence[str] = ("q", "qd"),
        hold: Hold = "held",
        every_step: bool = True,
        contact: Contact = "default",
        integrator: Integrator = SemiImplicitEuler(),
        blueprint: Blueprint | None = None,
        native: bool = True,
    ):
        chosen = chosen_contact(model, contact)
        free = choose_parameters(model, parameters, chosen) if parameters else None
        self.settings = checked_settings(
            model,
            dt=dt,
            steps=steps,
            outputs=tuple([outputs] if isinstance(outputs, str) else outputs),
            hold=hold,
            every_step=every_step,
            contact=chosen,
            integrator=integrator,
            free=free,
        )
        self.free = jnp.zeros(0 if free is None else free.size)
        self.blueprint, self.native = blueprint, native

    @property
    def model(self) -> Model:
        """The model with the layer's own parameters."""
        return self.settings.applied(self.free)[0]

    @property
    def parameters(self) -> FreeParameters | None:
        return self.settings.free

    def __call__(
        self,
        q: Float[Leaf, "*batch nq"] | None = None,
        qd: Float[Leaf, "*batch nv"] | None = None,
        tau: Float[Leaf, "*batch nv"] | None = None,
        control: Float[Leaf, "*batch nu"] | None = None,
        parameters: Float[Leaf, "*batch free"] | None = None,
    ) -> dict[str, Float[Array, "..."]]:
        """The outputs by name: shape (batch, steps, ...), without the axes that are not there."""
        given = self._given(q, qd, tau, control, parameters)
        batched, size = batch_of(self.settings, given)
        if self.native:
            return forward_program(self.settings, batched)(self.blueprint, given)[0]
        if size is None:
            return forward(self.settings, self.blueprint, given)[0]
        axes = (None, {name: 0 if flag else None for name, flag in batched})
        return jax.vmap(lambda b, g: forward(self.settings, b, g)[0], axes)(self.blueprint, given)

    def _given(self, *values) -> dict[str, Array]:
        names = ("q", "qd", "tau", "control", "parameters")
        given = {name: jnp.asarray(x) for name, x in zip(names, values, strict=True) if x is not None}
        dtype = jnp.result_type(*given.values()) if given else jnp.asarray(0.0).dtype
        model = self.settings.model.value
        given.setdefault("q", jnp.asarray(model.reference, dtype))
        given.setdefault("qd", jnp.asarray(np.zeros(model.nv), dtype))
        if self.settings.free is not None:
            given.setdefault("parameters", self.free.astype(dtype))
        elif "parameters" in given:
            raise ValueError("Physics: parameters are given, but none were named: Physics(..., parameters=[...])")
        return given
