"""A digest of a program and of all that its machine code depends on, equal in every process."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jax
import llvmlite
import llvmlite.binding as llvm
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

ONLY_MATTERS = {  # of these primitives one parameter is run; the others are for differentiation or placement
    "jit": "jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}

PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})  # `repr` tells them and their types


class Uncacheable(Exception):
    """A parameter of a program has no content to hash."""


@cache
def environment() -> bytes:
    """A digest of all that machine code depends on besides the program: processor, LLVM, this package's source."""
    digest = hashlib.sha256()
    digest.update(llvm.get_process_triple().encode())
    digest.update(llvm.get_host_cpu_name().encode())
    digest.update(llvm.get_host_cpu_features().flatten().encode())
    digest.update(f"{llvmlite.__version__} {llvm.llvm_version_info}".encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()


def program_key(jaxpr: ClosedJaxpr, **options: Any) -> str | None:
    """A name for the compiled form of the program under the options; None if the program cannot be hashed."""
    text = _Text()
    try:
        content = f"{text.of(jaxpr)}\n{text.of(options)}"
    except Uncacheable:
        return None
    return hashlib.sha256(content.encode() + environment()).hexdigest()


class _Text:
    """Writes values down, so that equal programs give equal text in every process.

    Every value is one text without line breaks: `repr` of numbers and strings, digests of arrays and programs.
    """

    def __init__(self):
        self._avals: dict[Any, str] = {}
        self._jaxprs: dict[int, str] = {}

    def of(self, value: Any) -> str:
        kind = type(value)
        if kind in PLAIN or (kind is tuple and PLAIN.issuperset(map(type, value))):
            return repr(value)
        if isinstance(value, (np.ndarray, np.generic, jax.Array)):
            return self._array(value)
        if isinstance(value, (ClosedJaxpr, Jaxpr)):
            return self._jaxpr_once(value)
        if isinstance(value, (np.dtype, type)):
            return f"type {value.name if isinstance(value, np.dtype) else value.__qualname__}"
        if isinstance(value, enum.Enum):
            return f"{kind.__qualname__} {value.name}"
        if isinstance(value, jax.sharding.Sharding):
            return "placement"  # one processor runs it all
        if isinstance(value, (bool, int, float, complex, str, bytes)):
            return f"{kind.__qualname__} {value!r}"
        return self._container(value)

    def _container(self, value: Any) -> str:
        if isinstance(value, Mapping):
            items: Any = sorted(value.items())
        elif isinstance(value, (set, frozenset)):
            items = sorted(value)
        elif isinstance(value, (tuple, list)):
            items = value
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            items = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
        else:
            raise Uncacheable(f"a {type(value).__name__} has no content to hash")
        return f"{type(value).__qualname__}({','.join(map(self.of, items))})"

    def _array(self, value: Any) -> str:
        if isinstance(value, Tracer) or not isinstance(value.dtype, np.dtype):
            raise Uncacheable(f"a {type(value).__name__} of {value.dtype} has no content to hash")
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise Uncacheable("an array of objects has no content to hash")
        content = array.tobytes()
        return f"{self._aval(array)}={content.hex() if array.size <= 4 else hashlib.sha256(content).hexdigest()}"

    def _aval(self, value: Any) -> str:
        try:
            key = value.shape, value.dtype
        except AttributeError:
            raise Uncacheable(f"a {type(value).__name__} has no shape") from None
        text = self._avals.get(key)
        if text is None:
            text = self._avals[key] = f"{value.dtype}{list(value.shape)}"
        return text

    def _jaxpr_once(self, value: Any) -> str:
        """The digest of a jaxpr, written once: JAX shares those of its own functions."""
        if id(value) not in self._jaxprs:
            self._jaxprs[id(value)] = hashlib.sha256("\n".join(self._lines(value)).encode()).hexdigest()
        return f"jaxpr {self._jaxprs[id(value)]}"

    def _lines(self, value: Any) -> Iterator[str]:
        consts, jaxpr = (value.consts, value.jaxpr) if isinstance(value, ClosedJaxpr) else ([], value)
        names: dict[Any, str] = {}
        numbers = itertools.count()

        def defined(variables: Any) -> str:
            for variable in variables:
                names[variable] = f"%{next(numbers)}"
            return " ".join([self._aval(variable.aval) for variable in variables])

        def used(atom: Any) -> str:
            return f"{self._aval(atom.aval)}:{self.of(atom.val)}" if isinstance(atom, Literal) else names[atom]

        yield self.of(list(consts))
        yield f"{defined(jaxpr.constvars)};{defined(jaxpr.invars)}"
        for equation in jaxpr.eqns:
            name = equation.primitive.name
            if _changes_nothing(equation):
                names[equation.outvars[0]] = used(equation.invars[0])
                continue
            inputs = " ".join([used(atom) for atom in equation.invars])
            params = [f"{key}={self.of(value)}" for key, value in sorted(_what_runs(name, equation.params).items())]
            yield f"{name} {inputs};{defined(equation.outvars)};{' '.join(params)}"
        yield " ".join([used(atom) for atom in jaxpr.outvars])


def _changes_nothing(equation: Any) -> bool:
    """Whether only JAX's notion of a weak type changes: numbers of Python differ from arrays in that."""
    if equation.primitive.name != "convert_element_type":
        return False
    return equation.invars[0].aval.dtype == equation.outvars[0].aval.dtype


def _what_runs(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a primitive that its machine code depends on."""
    if name == "native_call":
        program = params["program"]
        return {"jaxpr": program.jaxpr, "batched": program.batched, "rows": params["rows"]}
    if name == "convert_element_type":
        return {"new_dtype": params["new_dtype"]}
    only = ONLY_MATTERS.get(name, "")
    return {only: params[only]} if only in params else dict(params)
