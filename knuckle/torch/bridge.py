"""Functions of JAX arrays as functions of PyTorch tensors, with native code forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from knuckle.native import jit, vmap

FLOATS = (torch.float32, torch.float64)


def as_array(tensor: torch.Tensor, what: str) -> np.ndarray:
    """The memory of a tensor as a NumPy array, not copied if it is contiguous."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"kn.torch: expected a tensor for {what}, got {type(tensor).__name__}")
    if not tensor.is_cpu:
        raise ValueError(
            f"kn.torch: expected {what} on the CPU, where native code runs, got {tensor.device}: use .cpu()"
        )
    if tensor.dtype not in FLOATS:
        raise TypeError(f"kn.torch: expected float32 or float64 for {what}, got {tensor.dtype}")
    return memory_of(tensor)


def memory_of(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()  # as np.from_dlpack, at a fifth of its cost


def as_tensor(array: Any) -> torch.Tensor:
    """A tensor on the memory of an array."""
    array = np.asarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def one_dtype(tensors: Sequence[torch.Tensor], what: Sequence[str]) -> torch.dtype:
    """The floating type that all have, or a TypeError that names them."""
    first = tensors[0].dtype
    if all(tensor.dtype is first for tensor in tensors):
        return first
    found = {name: tensor.dtype for name, tensor in zip(what, tensors, strict=True)}
    listed = ", ".join(f"{name} {str(dtype).removeprefix('torch.')}" for name, dtype in found.items())
    raise TypeError(f"kn.torch: expected one floating type for all inputs, got {listed}")


def precision(dtype: torch.dtype):
    """JAX computes in the type of the tensors, whatever is set for the process."""
    return jax.enable_x64(dtype == torch.float64)


class Refusing:
    """Transforms that need a rule of their own, each refused by name."""

    @staticmethod
    def jvp(ctx, *tangents):
        raise NotImplementedError("kn.torch: forward mode (torch.func.jvp, forward_ad) is not supported: use backward")

    @staticmethod
    def vmap(info, in_dims, *args):
        raise NotImplementedError(
            "kn.torch: torch.func.vmap is not supported: give inputs with a batch axis (in_axes of kn.torch.wrap)"
        )


class Pull(Refusing, torch.autograd.Function):
    """Gradients as a function of its own, so that to differentiate them again is refused by name."""

    @staticmethod
    def forward(run, *tensors):
        return run(tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(
            "kn.torch: second derivatives (create_graph=True, torch.func.hessian) are not supported"
        )


def transforming() -> bool:
    """Whether a transform of torch.func is under way."""
    return torch._C._are_functorch_transforms_active()


def pulled(run: Callable, tensors: Sequence[torch.Tensor], wanted: Sequence[bool]) -> tuple[torch.Tensor | None, ...]:
    """What `run(tensors)` returns, one gradient for each that is wanted, with None at the others."""
    again = torch.is_grad_enabled() or transforming()  # a graph of the gradients is being made
    found: Any = iter(Pull.apply(run, *tensors) if again else run(tensors))  # type: ignore[arg-type]
    return tuple(next(found) if needed else None for needed in wanted)


class _Reverse(Refusing):
    @staticmethod
    def backward(ctx, *cotangents):
        wanted, count = tuple(ctx.needs_input_grad[1:]), len(ctx.saved_tensors)

        def run(tensors):
            return ctx.pair.run_backward(tensors[:count], tensors[count:], wanted)

        return None, *pulled(run, (*ctx.saved_tensors, *cotangents), wanted)


class _Wrapped(_Reverse, torch.autograd.Function):
    @staticmethod
    def forward(ctx, pair, *tensors):
        ctx.pair = pair
        ctx.save_for_backward(*tensors)
        return pair.run_forward(tensors)


class _WrappedForTransforms(_Reverse, torch.autograd.Function):
    """The same in the form that torch.func asks for, which takes longer to call."""

    @staticmethod
    def forward(pair, *tensors):
        return pair.run_forward(tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.pair = inputs[0]
        ctx.save_for_backward(*inputs[1:])


class Pair:
    """A function and its reverse mode as native code, for one structure of arguments."""

    def __init__(self, function: Callable, tree: Any, axes: list[int | None]):
        self.tree, self.axes = tree, axes
        self.out_tree: Any = None  # of the results, known after the first call
        self.batched = any(axis is not None for axis in axes)

        def flat(*leaves):
            results, self.out_tree = jax.tree.flatten(function(*jax.tree.unflatten(tree, leaves)))
            return tuple(jnp.asarray(result) for result in results)

        self.flat = flat
        self.forward = vmap(flat, in_axes=tuple(axes), threads=torch.get_num_threads()) if self.batched else jit(flat)
        self.backward: dict[tuple[bool, ...], Callable] = {}

    def run_forward(self, tensors) -> tuple[torch.Tensor, ...]:
        names = [f"argument {k}" for k in range(len(tensors))]
        arrays = [as_array(t, name) for t, name in zip(tensors, names, strict=True)]
        with precision(one_dtype(tensors, names)):
            return tuple(map(as_tensor, self.forward(*arrays)))

    def run_backward(self, tensors, cotangents, wanted: tuple[bool, ...]) -> tuple[torch.Tensor, ...]:
        arrays = [as_array(t, "an argument") for t in tensors]
        seeds = [as_array(c, "a gradient") for c in cotangents]
        with precision(tensors[0].dtype):
            if wanted not in self.backward:
                self.backward[wanted] = self._reverse(wanted)
            found = iter(self.backward[wanted](*arrays, *seeds))
        gradients: list[torch.Tensor] = []
        for needed, axis, tensor in zip(wanted, self.axes, tensors, strict=True):
            if not needed:
                continue
            gradient = np.asarray(next(found))
            if self.batched and axis is None:
                gradient = gradient.sum(axis=0)
            elif axis:
                gradient = np.moveaxis(gradient, 0, axis)
            gradients.append(as_tensor(np.ascontiguousarray(gradient)).reshape(tensor.shape))
        return tuple(gradients)

    def _reverse(self, wanted: tuple[bool, ...]) -> Callable:
        count = len(self.axes)

        def pull(*values):
            leaves, seeds = values[:count], values[count:]

            def of_wanted(*moving):
                following = iter(moving)
                return self.flat(*(next(following) if w else x for w, x in zip(wanted, leaves, strict=True)))

            return jax.vjp(of_wanted, *(x for w, x in zip(wanted, leaves, strict=True) if w))[1](tuple(seeds))

        if not self.batched:
            return jit(pull)
        axes = (*self.axes, *(0,) * self.out_tree.num_leaves)
        return vmap(pull, in_axes=axes, threads=torch.get_num_threads())


def wrap(function: Callable, in_axes: Any = None) -> Callable:
    """A function of JAX arrays as a function of tensors: native code forward and, for autograd, backward.

    `function` takes and returns pytrees of arrays, as for `kn.native.jit`. It is compiled once for each structure,
    shape and floating type. Tensors are float32 or float64, on the CPU; their memory is used in place.

    Args:
        in_axes: None: no batch. Else as in `jax.vmap`, one axis (or None) per argument: the function runs over a batch,
            and results have the batch axis first.
    """
    pairs: dict[Any, Pair] = {}

    def wrapped(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        if not leaves:
            raise ValueError("kn.torch.wrap: expected at least one tensor")
        tensors = [x if isinstance(x, torch.Tensor) else torch.as_tensor(x, dtype=_dtype_of(leaves)) for x in leaves]
        key = (tree, tuple((tuple(t.shape), t.dtype) for t in tensors))
        if key not in pairs:
            pairs[key] = Pair(function, tree, _leaf_axes(in_axes, args))
        pair = pairs[key]
        results = (_WrappedForTransforms if transforming() else _Wrapped).apply(pair, *tensors)
        return jax.tree.unflatten(pair.out_tree, results)

    return wrapped


def _dtype_of(leaves: list) -> torch.dtype:
    return next((x.dtype for x in leaves if isinstance(x, torch.Tensor)), torch.get_default_dtype())


def _leaf_axes(in_axes: Any, args: tuple) -> list[int | None]:
    """One axis per leaf."""
    if in_axes is None:
        return [None] * len(jax.tree.leaves(args))
    axes = in_axes if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args)
    if len(axes) != len(args) or not all(axis is None or isinstance(axis, int) for axis in axes):
        raise ValueError(
            f"kn.torch.wrap: expected in_axes with one axis or None for {len(args)} arguments, got {in_axes}"
        )
    return [axis for axis, part in zip(axes, args, strict=True) for _ in jax.tree.leaves(part)]
