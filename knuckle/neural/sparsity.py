"""Terms of a fitting loss that keep networks small, and proximal steps that set what is not needed to exactly zero.

NeuralSim, eq. 2: lasso on the first layer, ridge on the rest (without the ridge a network escapes the lasso by
rescaling its layers). Gradient steps never reach zero; after each of size eta, the proximal step of eta kappa times the
sum of the norms of groups does: W_g <- W_g max(0, 1 - eta kappa / |W_g|) (Simon et al. 2013). A group holds the weights
of one input or of several. Scale inputs to deviation 1 first (`Blueprint.scaled_to`): the penalty weighs all alike.

Every function takes a network (stacked ones too, each with groups of its own) or a Blueprint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from knuckle.neural.networks import MLP, Linear
from knuckle.neural.recurrent import Recurrent
from knuckle.taps import Augment, Blueprint, meaning_of
from knuckle.taps.augment import Value

Groups = Sequence[Sequence[int]]
Anything = TypeVar("Anything")


def ridge(networks: Any, first_layer: bool = False) -> Float[Array, ""]:
    """Sum of squares of all weights, those of the first layer only on demand."""

    def rest(network):
        return network if first_layer else eqx.tree_at(_place(network), network, replace_fn=jnp.zeros_like)

    leaves = [leaf for network in _networks(networks) for leaf in jax.tree.leaves(rest(network))]
    return _sum(jnp.sum(jnp.square(leaf)) for leaf in leaves)


def group_lasso(networks: Any, groups: Groups | None = None) -> Float[Array, ""]:
    """Sum of the norms of the first layer's groups; its slope at a group of zeros is zero."""
    return _sum(jnp.sum(_norms(_first(n), groups)) for n in _networks(networks))


def lasso(networks: Any) -> Float[Array, ""]:
    """Sum of the absolute weights of the first layer."""
    return _sum(jnp.sum(jnp.abs(_first(n))) for n in _networks(networks))


def lasso_residuals(
    networks: Any, group: float, element: float = 0.0, groups: Groups | None = None, near: float = 1e-3
):
    """Numbers whose half sum of squares is group * group_lasso + element * lasso: the same for least squares.

    A norm is sqrt(|W|^2 + near^2) - near, so that all is smooth at zero; then a group that is not needed ends there but
    for rounding, and one beyond `near` feels the lasso.
    """

    def shrunk(W: Float[Array, "*stack out in"], squares: Array, strength: float) -> Float[Array, " weight"]:
        return (W * jnp.sqrt(2 * strength / (jnp.sqrt(squares + near**2) + near))).reshape(-1)

    parts = []
    for W in map(_first, _networks(networks)):
        squares = jnp.square(_norms(W, groups))[..., _group_of(W, groups)]
        parts += [shrunk(W, squares[..., None, :], group)] if group else []
        parts += [shrunk(W, jnp.square(W), element)] if element else []
    return jnp.concatenate(parts) if parts else jnp.zeros(0)


def contribution(blueprint: Blueprint, values: Mapping[str, Array | np.ndarray]) -> Float[Array, ""]:
    """Mean square of what the networks give, over samples of every tap that they read and act on (`kn.tap_values`).

    `values`: for each name an array with a first axis of samples. Recurrent networks begin anew at each.
    """
    sizes = []
    for name, _, augment in blueprint:
        needed = dict.fromkeys((*(i for i in augment.inputs if not i.startswith("constant ")), name))
        missing = [item for item in needed if item not in values]
        if missing:
            raise ValueError(
                f"contribution of {name}: no values of {', '.join(missing)}; there are {', '.join(values)}"
            )
        samples = {item: jnp.asarray(values[item]) for item in needed}
        sizes.append(jnp.mean(jax.vmap(lambda row, n=name, a=augment: _square_output(n, a, row))(samples)))
    return _sum(sizes)


def proximal(networks: Anything, group: float, element: float = 0.0, groups: Groups | None = None) -> Anything:
    """After a gradient step: first layers with weights shrunk towards zero, and groups that are small set to it.

    Args:
        group: step size times the weight of `group_lasso` in the loss.
        element: step size times the weight of `lasso` in the loss (sparse-group lasso).
        groups: inputs that live or die together; None: each by itself.
    """

    def shrunk(network):
        W = _first(network)
        W = jnp.sign(W) * jnp.maximum(jnp.abs(W) - element, 0)
        norms = _norms(W, groups)
        shrink = jnp.maximum(1 - group / jnp.where(norms > 0, norms, jnp.ones_like(norms)), 0)
        factor = jnp.where(norms > 0, shrink, jnp.zeros_like(shrink))[..., _group_of(W, groups)]
        return eqx.tree_at(_place(network), network, W * factor[..., None, :])

    return _mapped(networks, shrunk)


def prune(networks: Anything) -> Anything:
    """Networks that read nothing any more, set to zero: what they still gave was a constant."""

    def cut(network):
        living = jnp.any(_alive(network), axis=-1)

        def kept(leaf):
            return leaf * living.reshape(*living.shape, *[1] * (leaf.ndim - living.ndim)).astype(leaf.dtype)

        return jax.tree.map(kept, network)

    return _mapped(networks, cut)


def alive(networks: Any) -> Any:
    """Which inputs a network reads: true where some weight of the first layer is not zero; by tap for a Blueprint."""
    if not isinstance(networks, Blueprint):
        return _alive(networks)
    return {key: _alive(network) for key, network in zip(networks.weights, _networks(networks), strict=True)}


def _sum(parts: Iterable[Array]) -> Float[Array, ""]:
    parts = list(parts)
    return sum(parts[1:], start=parts[0]) if parts else jnp.zeros(())


def _alive(network) -> Bool[Array, "*stack in"]:
    return jnp.any(_first(network) != 0, axis=-2)


def _networks(networks: Any) -> list[Any]:
    return [a.network for _, _, a in networks] if isinstance(networks, Blueprint) else [networks]


def _mapped(networks: Any, change: Callable[[Any], Any]) -> Any:
    if not isinstance(networks, Blueprint):
        return change(networks)
    changed = {}
    for (_, _, augment), key in zip(networks, networks.weights, strict=True):
        weights = eqx.filter(change(augment.network), lambda leaf: isinstance(leaf, Array | np.ndarray))
        changed[key] = (weights, augment.gain)
    return networks.with_weights(changed)


def _place(network: Any) -> Callable[[Any], Array]:
    """Where a network's first layer stands, one column per input."""
    if isinstance(network, MLP):
        return lambda n: n.weights[0]
    if isinstance(network, Linear):
        return lambda n: n.weight
    if isinstance(network, Recurrent) and network.cell != "vanilla":
        return lambda n: n.core.weight_ih
    raise ValueError(
        f"sparsity needs networks with a first layer (MLP, Linear, GRU, LSTM), got {type(network).__name__}"
    )


def _first(network: Any) -> Float[Array, "*stack out in"]:
    return _place(network)(network)


def _group_of(W: Float[Array, "*stack out in"], groups: Groups | None) -> np.ndarray:
    """The group of each input."""
    inputs = W.shape[-1]
    if groups is None:
        return np.arange(inputs)
    if sorted(i for group in groups for i in group) != list(range(inputs)):
        raise ValueError(f"groups must hold each of the inputs 0 to {inputs - 1} once, got {[list(g) for g in groups]}")
    return np.array([next(k for k, group in enumerate(groups) if i in group) for i in range(inputs)])


def _norms(W: Float[Array, "*stack out in"], groups: Groups | None) -> Float[Array, "*stack group"]:
    """Norm of each group's weights, with slope zero at zero."""
    member = np.eye(W.shape[-1] if groups is None else len(groups))[_group_of(W, groups)]
    squares = jnp.sum(W * W, axis=-2) @ jnp.asarray(member, W.dtype)
    return jnp.where(
        squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, jnp.ones_like(squares))), jnp.zeros_like(squares)
    )


def _square_output(name: str, augment: Augment, row: Mapping[str, Array]) -> Float[Array, ""]:
    def value(item: str) -> Value:
        if item.startswith("constant "):
            return Value(augment.constants[int(item.removeprefix("constant "))], None)
        plain = item.removeprefix("previous ")
        is_dof = plain in ("q", "next/q") and row[item].shape == shape
        return Value(row[item], "dof" if is_dof else meaning_of(plain).axis)

    shape = row[name].shape
    state = (
        augment.initial_state(shape[0] if augment.rows is None else len(augment.rows)) if augment.is_recurrent else None
    )
    output, _ = augment.output([value(item) for item in augment.inputs], meaning_of(name).axis, shape, state)
    return jnp.mean(jnp.square(output if augment.gain is None else augment.gain * output))
