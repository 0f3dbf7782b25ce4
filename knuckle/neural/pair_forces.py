"""Forces between pairs of links along the line between them, equal and opposite: momentum is kept by construction."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from knuckle.neural.energy import positive
from knuckle.neural.networks import MLP, checked_activation, checked_input, checked_sizes, each
from knuckle.neural.registry import Network, as_type_of, register

MOST_LINKS = 300  # of which all pairs are taken
LAWS = ("conservative", "passive", "free")


@register
class PairForces(Network):
    """Central forces between links' origins, for "link/wrench" of input "link/position" (and "link/velocity").

    Linear and angular momentum of the links together are kept whatever the weights; energy as `law` says.

    Args:
        links: how many the model has.
        pairs: which attract or repel each other; None: all.
        law: "conservative": -U'(r), of positions only; "passive": -U'(r) - g d(r, r')^2 r'; "free": f(r, r').
        shared: one network for all pairs, or one each.
        softening: r is sqrt(distance^2 + softening^2) [m], so that forces have a slope where two origins meet.
    """

    stored: MLP | None
    pull: MLP | None  # f, or d - 1
    gain: Float[Array, ""] | None
    links: int = eqx.field(static=True)
    pairs: tuple[tuple[int, int], ...] = eqx.field(static=True)
    law: str = eqx.field(static=True)
    hidden: tuple[int, ...] = eqx.field(static=True)
    activation: str = eqx.field(static=True)
    shared: bool = eqx.field(static=True)
    softening: float = eqx.field(static=True)

    def __init__(
        self,
        links: int,
        pairs: Sequence[tuple[int, int]] | None = None,
        law: str = "passive",
        hidden: Sequence[int] = (16, 16),
        activation: str = "tanh",
        shared: bool = True,
        softening: float = 1e-4,
        *,
        key: PRNGKeyArray,
    ):
        (self.links,) = checked_sizes("PairForces: links", (links,), least=1)
        self.pairs = _checked_pairs(self.links, pairs)
        if law not in LAWS:
            raise ValueError(f"PairForces: law must be one of {', '.join(LAWS)}, got {law!r}")
        if not softening > 0:
            raise ValueError(f"PairForces: softening must be positive, got {softening}")
        self.law, self.shared, self.softening = law, bool(shared), float(softening)
        self.hidden = checked_sizes("PairForces: hidden", hidden, least=1)
        self.activation = checked_activation("PairForces: activation", activation)
        first, second = jax.random.split(key)
        self.stored = None if law == "free" else self._networks(1, first)
        self.pull = None if law == "conservative" else self._networks(2, second)
        self.gain = jnp.zeros(()) if law == "passive" else None

    starts_at_zero = True
    plain_values = True

    def _networks(self, inputs: int, key: PRNGKeyArray) -> MLP:
        def make(key):
            return MLP((inputs, *self.hidden, 1), self.activation, key=key)

        return make(key) if self.shared else each(len(self.pairs), make, key)

    def __call__(self, x: Float[Array | np.ndarray, " n"]) -> Float[Array, " m"]:
        direction, r, rate = self._approach(x)
        force = self._conservative(r)
        if self.pull is not None and self.law == "free":
            force = force + self._of_pairs(self.pull, r, rate)
        elif self.pull is not None:
            force = force - self._damping(r, rate) * rate
        on_links = self._signs(r.dtype) @ (force[:, None] * direction)
        return jnp.concatenate([jnp.zeros_like(on_links), on_links], axis=1).reshape(-1)

    def potential(self, x: Float[Array | np.ndarray, " n"]) -> Float[Array, ""]:
        """U of all pairs [J] at the network's input: positions, then velocities of links."""
        _, r, _ = self._approach(x)
        return jnp.zeros((), r.dtype) if self.stored is None else jnp.sum(self._of_pairs(self.stored, r))

    def dissipation(self, x: Float[Array | np.ndarray, " n"]) -> Float[Array, ""]:
        """-g d^2 r'^2 of all pairs [W], never positive; of a free law there is none to tell."""
        if self.law == "free":
            raise ValueError("PairForces: a free law has no dissipation of its own; law='passive' has")
        _, r, rate = self._approach(x)
        if self.law == "conservative":
            return jnp.zeros((), r.dtype)
        return -jnp.sum(self._damping(r, rate) * (rate * rate))

    def _approach(self, x):
        """Unit vectors from the second to the first link of each pair, distances [m], and their rates [m/s]."""
        n = self.links
        x = checked_input(self, x, 3 * n if self.law == "conservative" else 9 * n)
        apart = self._signs(x.dtype).T @ x[: 3 * n].reshape(n, 3)
        r = jnp.sqrt(jnp.sum(apart * apart, axis=1) + self.softening**2)
        direction = apart / r[:, None]
        if self.law == "conservative":
            return direction, r, jnp.zeros_like(r)
        moving = self._signs(x.dtype).T @ x[3 * n :].reshape(n, 6)[:, 3:]
        return direction, r, jnp.sum(moving * direction, axis=1)

    def _conservative(self, r):
        if self.stored is None:
            return jnp.zeros_like(r)
        return -jax.grad(lambda r: jnp.sum(self._of_pairs(self.stored, r)))(r)

    def _damping(self, r, rate):
        d = 1 + self._of_pairs(self.pull, r, rate)
        return positive(as_type_of(r, self.gain)) * (d * d)

    def _of_pairs(self, network: MLP | None, *inputs):
        x = jnp.stack(inputs, axis=1)
        return eqx.filter_vmap(lambda f, x: f(x)[0], in_axes=(None if self.shared else eqx.if_array(0), 0))(network, x)

    def _signs(self, dtype) -> Float[Array, "link pair"]:
        signs = np.zeros((self.links, len(self.pairs)))
        for k, (i, j) in enumerate(self.pairs):
            signs[i, k], signs[j, k] = 1.0, -1.0
        return jnp.asarray(signs, dtype)


def _checked_pairs(links: int, pairs) -> tuple[tuple[int, int], ...]:
    if pairs is None and links > MOST_LINKS:
        raise ValueError(f"PairForces: say which pairs of {links} links; all of them are too many beyond {MOST_LINKS}")
    found = list(itertools.combinations(range(links), 2)) if pairs is None else [tuple(map(int, p)) for p in pairs]
    good = [len(p) == 2 and p[0] != p[1] and all(0 <= k < links for k in p) for p in found]
    if not found or not all(good):
        raise ValueError(f"PairForces: pairs must be of two different links of the {links} there are, got {found}")
    return tuple((i, j) for i, j in found)
