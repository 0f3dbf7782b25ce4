"""Parameters of primitives: each rule declares those it reads, and a parameter that nobody declared is refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

ONE_DEVICE = "where arrays are placed; native code runs on one CPU"
OF_RESULT = "the dtype or shape of the result, which rules take from the result itself"
PROMISE = "a promise of the caller that allows a faster order; native code makes no use of it"
HARMLESS = {  # parameters that cannot change a value, and why
    **dict.fromkeys(("sharding", "out_sharding", "memory_space", "devices", "srcs", "copy_semantics"), ONE_DEVICE),
    **dict.fromkeys(("layout", "context_mesh", "unconstrained_dims"), ONE_DEVICE),
    **dict.fromkeys(("in_shardings", "out_shardings", "in_layouts", "out_layouts", "ctx_mesh"), ONE_DEVICE),
    **dict.fromkeys(("new_dtype", "out_dtype", "index_dtype", "dtype", "shape", "permutation_size"), OF_RESULT),
    "preferred_element_type": OF_RESULT,
    **dict.fromkeys(("indices_are_sorted", "unique_indices"), PROMISE),
    "weak_type": "how Python promotes the result; its dtype is what counts here",
    "accuracy": "asks for a certain accuracy; native functions are always within 2 units in the last place",
    "name": "a label",
    "branches_platforms": "which branch is for which platform; the index of the branch says it too",
    "computation": "the Python function of which the parameter jaxpr is the trace",
    "impl": "the kind of random keys, which rules take from the key's dtype",
    "unroll": "how many turns of a loop are written out at once",
    "is_stable": "native sorting is always stable, one of the orders that an unstable sort may give",
    "conjugate_a": "the conjugate of a real matrix is itself",
    "algorithm": "the method; native code has one of its own",
    "use_magma": "a library for GPUs",
    "sort_eigenvalues": "eigenvalues are always sorted, as by JAX on the CPU",
    **dict.fromkeys(("donated_invars", "keep_unused", "inline", "compiler_options_kvs"), "how XLA compiles and calls"),
    **dict.fromkeys(("prevent_cse", "policy", "differentiated"), "what differentiation stored; done before lowering"),
    **dict.fromkeys(("jvp_jaxpr_fun", "num_consts", "symbolic_zeros"), "the derivative; taken before lowering"),
    **dict.fromkeys(("fwd_jaxpr_thunk", "bwd", "out_trees", "num_res", "in_zeros"), "the derivative; taken before"),
}


@dataclass(eq=False)
class Rule:
    """A lowering rule, the parameters of its primitive that it reads, and those that cannot change the result."""

    function: Callable
    reads: frozenset[str] = frozenset()
    harmless: frozenset[str] = frozenset()
    read_so_far: set[str] = field(default_factory=set)  # by any program, for the tests


class Parameters(Mapping[str, Any]):
    """The parameters of one equation, as its rule may see them: only those it declared to read."""

    def __init__(self, values: Mapping[str, Any], rule: Rule):
        self._values, self._rule = values, rule

    def __getitem__(self, name: str) -> Any:
        if name not in self._rule.reads:
            raise AssertionError(f"native code: a rule reads the parameter {name!r}, which it does not declare")
        self._rule.read_so_far.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def harmless_set(names: Collection[str]) -> frozenset[str]:
    unexplained = set(names) - set(HARMLESS)
    if unexplained:
        raise ValueError(f"native.rule: no reason in HARMLESS why {sorted(unexplained)} cannot change a result")
    return frozenset(names)


def unhandled(params: Mapping[str, Any], rule: Rule) -> list[str]:
    """Parameters that the rule neither reads nor declares harmless."""
    return [name for name in params if name not in rule.reads and name not in rule.harmless]
