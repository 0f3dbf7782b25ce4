"""Physics as a PyTorch module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch

from knuckle.contact.default import Contact
from knuckle.integrate import Integrator, SemiImplicitEuler
from knuckle.layers.physics import Physics as Layer
from knuckle.layers.unroll import INPUTS, Batched, Hold, Settings, backward_program, batch_of, forward_program
from knuckle.model.model import Model
from knuckle.sysid.free_parameters import FreeParameters
from knuckle.taps import Blueprint
from knuckle.torch.bridge import Refusing, as_array, as_tensor, memory_of, one_dtype, precision, pulled, transforming

WEIGHTS = "weights"


class Physics(torch.nn.Module):
    """H steps of a model as a module; arguments as of `kn.layers.Physics`.

    `free` holds the free numbers of the named parameters, `weights` those of the blueprint's networks: both train, and
    are float32 unless `dtype` says otherwise. Inputs are tensors of that type on the CPU, with a batch axis or without;
    outputs are a dictionary by name, (batch, steps, ...).
    """

    def __init__(
        self,
        model: Model,
        *,
        dt: float,
        steps: int = 1,
        parameters: str | Sequence[str] | Mapping[str, Any] = (),
        outputs: str | Sequence[str] = ("q", "qd"),
        hold: Hold = "held",
        every_step: bool = True,
        contact: Contact = "default",
        integrator: Integrator = SemiImplicitEuler(),
        blueprint: Blueprint | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        layer = Layer(
            model,
            dt=dt,
            steps=steps,
            parameters=parameters,
            outputs=outputs,
            hold=hold,
            every_step=every_step,
            contact=contact,
            integrator=integrator,
        )
        dtype = torch.get_default_dtype() if dtype is None else dtype
        self.settings: Settings = layer.settings
        self.free = torch.nn.Parameter(torch.zeros(layer.free.size, dtype=dtype))
        self._calls: dict[Any, Call] = {}
        leaves, self._structure = jax.tree.flatten(blueprint)
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.tensor(np.asarray(leaf), dtype=dtype)) for leaf in leaves
        )

    @property
    def parameters_named(self) -> FreeParameters | None:
        return self.settings.free

    @property
    def model(self) -> Model:
        """The model with the module's own parameters."""
        return self.settings.applied(jax.numpy.asarray(memory_of(self.free)))[0]

    @property
    def blueprint(self) -> Blueprint | None:
        """The networks as they are now."""
        return jax.tree.unflatten(self._structure, [memory_of(weight) for weight in self.weights])

    def forward(
        self,
        q: torch.Tensor | None = None,
        qd: torch.Tensor | None = None,
        tau: torch.Tensor | None = None,
        control: torch.Tensor | None = None,
        parameters: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        given = {k: x for k, x in zip(INPUTS, (q, qd, tau, control, parameters), strict=True) if x is not None}
        if parameters is not None and self.settings.free is None:
            raise ValueError("Physics: parameters are given, but none were named: Physics(..., parameters=[...])")
        dtype = next((x.dtype for x in given.values()), self.free.dtype)
        model: Model = self.settings.model.value
        given.setdefault("q", torch.as_tensor(model.reference, dtype=dtype))
        given.setdefault("qd", torch.zeros(model.nv, dtype=dtype))
        if self.settings.free is not None:
            given.setdefault("parameters", self.free)
        call = self._call_for(given)
        function = _UnrollForTransforms if transforming() else _Unroll
        results = function.apply(call, *given.values(), *self.weights)
        return dict(zip(call.outputs, results, strict=False))

    def _call_for(self, given: dict[str, torch.Tensor]) -> Call:
        """What is compiled for tensors of these shapes and this type."""
        key = (*((name, x.shape, x.dtype) for name, x in given.items()), torch.get_num_threads())
        if key not in self._calls:
            self._calls[key] = Call(self.settings, self._structure, tuple(given), len(self.weights))
        return self._calls[key]


class Call:
    """Native code forward and backward for inputs of certain names, shapes and type.

    Structures are worked out in the first call; later ones pass flat arrays.
    """

    def __init__(self, settings: Settings, structure: Any, names: tuple[str, ...], weights: int):
        self.settings, self.structure, self.names, self.weights = settings, structure, names, weights
        self.outputs = tuple(sorted(settings.outputs))
        self.threads = torch.get_num_threads()
        self.what = [*names, *(f"weight {k}" for k in range(weights))]
        self.batched: Batched = ()
        self.states: Any = None  # structure of what the forward pass saves
        self._forward: Callable | None = None
        self._backward: dict[tuple[bool, ...], Callable] = {}
        # leaves in the order of a flattened (blueprint, given): dictionaries go by sorted names
        by_name = sorted(range(len(names)), key=lambda k: names[k])
        self.order = [*range(len(names), len(names) + weights), *by_name]

    def arrays(self, tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
        one_dtype(tensors, self.what)
        found = [as_array(tensor, name) for tensor, name in zip(tensors, self.what, strict=True)]
        return [found[k] for k in self.order]

    def arguments(self, leaves: list[np.ndarray]) -> tuple[Blueprint | None, dict[str, np.ndarray]]:
        blueprint = jax.tree.unflatten(self.structure, leaves[: self.weights])
        return blueprint, dict(zip(sorted(self.names), leaves[self.weights :], strict=True))

    def run_forward(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Outputs in the order of their names, then the states before each step."""
        leaves = self.arrays(tensors)
        if self._forward is None:
            blueprint, given = self.arguments(leaves)
            self.batched, _ = batch_of(self.settings, given)
            with precision(tensors[0].dtype):
                program = forward_program(self.settings, self.batched, self.threads)
                self._forward, tree = program.flat(blueprint, given)
            self.states = jax.tree.structure(jax.tree.unflatten(tree, [0] * tree.num_leaves)[1])
        assert self._forward is not None
        return tuple(map(as_tensor, self._forward(*leaves)))

    def run_backward(self, tensors, saved, cotangents, wanted: tuple[bool, ...]) -> tuple[torch.Tensor, ...]:
        leaves = self.arrays(tensors)
        kept = [memory_of(x) for x in saved]
        seeds = [as_array(x, "a gradient") for x in cotangents]
        names = [name for name, needed in zip(self.names, wanted, strict=False) if needed]
        trained = any(wanted[len(self.names) :])
        if wanted not in self._backward:
            by_name = dict(zip(self.outputs, seeds, strict=True))
            arguments = (*self.arguments(leaves), jax.tree.unflatten(self.states, kept), by_name)
            with precision(tensors[0].dtype):
                asked = (*names, *([WEIGHTS] if trained else []))
                program = backward_program(self.settings, asked, self.batched, self.threads)
                self._backward[wanted] = program.flat(*arguments)[0]
        found = self._backward[wanted](*leaves, *kept, *seeds)
        return self._gradients(found, names, wanted[len(self.names) :])

    def _gradients(self, found: list, names: list[str], trained: Sequence[bool]) -> tuple[torch.Tensor, ...]:
        """In the order of the inputs, those of inputs without batch summed over it."""
        flags = dict(self.batched)
        many = any(flags.values())
        by_name = {name: _summed(x, many and not flags[name]) for name, x in zip(sorted(names), found, strict=False)}
        of_weights = zip(found[len(names) :], trained, strict=False)
        return *(by_name[name] for name in names), *(_summed(x, many) for x, needed in of_weights if needed)


def _summed(gradient: np.ndarray, over_batch: bool) -> torch.Tensor:
    return as_tensor(gradient.sum(axis=0) if over_batch else gradient)


class _Reverse(Refusing):
    @staticmethod
    def backward(ctx, *cotangents):
        wanted, call = tuple(ctx.needs_input_grad[1:]), ctx.call
        seeds = cotangents[: len(call.outputs)]
        ends = len(wanted), len(ctx.saved_tensors)

        def run(tensors):
            return call.run_backward(tensors[: ends[0]], tensors[ends[0] : ends[1]], tensors[ends[1] :], wanted)

        return None, *pulled(run, (*ctx.saved_tensors, *seeds), wanted)


class _Unroll(_Reverse, torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, *tensors):
        results = call.run_forward(tensors)
        count = len(call.outputs)
        ctx.call = call
        ctx.mark_non_differentiable(*results[count:])
        ctx.save_for_backward(*tensors, *results[count:])
        return results


class _UnrollForTransforms(_Reverse, torch.autograd.Function):
    """The same in the form that torch.func asks for, which takes longer to call."""

    @staticmethod
    def forward(call, *tensors):
        return call.run_forward(tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.call, count = inputs[0], len(inputs[0].outputs)
        ctx.mark_non_differentiable(*output[count:])
        ctx.save_for_backward(*inputs[1:], *output[count:])
