"""A digest of a program and of all that its machine code depends on, equal in every process."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections.abc import Mapping
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
    writer = _Writer()
    try:
        writer.write(jaxpr)
        writer.write(options)
    except Uncacheable:
        return None
    return hashlib.sha256(writer.content() + environment()).hexdigest()


class _Writer:
    """Writes values down, so that equal programs give equal text in every process."""

    def __init__(self):
        self._parts: list[str] = []
        self._avals: dict[Any, str] = {}
        self._jaxprs: dict[int, str] = {}

    def content(self) -> bytes:
        return "".join(self._parts).encode()

    def text(self, *parts: Any) -> None:
        for part in parts:
            words = str(part)
            self._parts.append(f"{len(words)}:{words}")

    def write(self, value: Any) -> None:
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            self.text(type(value).__name__, repr(value))
        elif isinstance(value, (tuple, list, dict)):
            self._container(value)
        elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
            self._array(value)
        elif isinstance(value, (ClosedJaxpr, Jaxpr)):
            self._jaxpr_once(value)
        elif isinstance(value, (np.dtype, type)):
            self.text("type", value.name if isinstance(value, np.dtype) else value.__qualname__)
        elif isinstance(value, enum.Enum):
            self.text(type(value).__qualname__, value.name)
        elif isinstance(value, jax.sharding.Sharding):
            self.text("placement")  # one processor runs it all
        else:
            self._container(value)

    def _container(self, value: Any) -> None:
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
        self.text(type(value).__qualname__, len(items))
        for item in items:
            self.write(item)

    def _array(self, value: Any) -> None:
        if isinstance(value, Tracer) or not isinstance(value.dtype, np.dtype):
            raise Uncacheable(f"a {type(value).__name__} of {value.dtype} has no content to hash")
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise Uncacheable("an array of objects has no content to hash")
        self._aval(array)
        self.text(hashlib.sha256(array.tobytes()).hexdigest() if array.size > 4 else array.tobytes().hex())

    def _aval(self, value: Any) -> None:
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            raise Uncacheable(f"a {type(value).__name__} has no shape")
        key = value.shape, value.dtype
        words = self._avals.get(key)
        if words is None:
            words = self._avals[key] = f"{value.dtype}{list(value.shape)}"
        self.text(words)

    def _jaxpr_once(self, value: Any) -> None:
        """The jaxpr, or where it was written before its digest: JAX shares those of its own functions."""
        if id(value) not in self._jaxprs:
            outside, self._parts = self._parts, []
            self._jaxpr(value)
            digest = hashlib.sha256(self.content()).hexdigest()
            self._parts, self._jaxprs[id(value)] = outside, digest
        self.text("jaxpr", self._jaxprs[id(value)])

    def _jaxpr(self, value: Any) -> None:
        consts, jaxpr = (value.consts, value.jaxpr) if isinstance(value, ClosedJaxpr) else ([], value)
        self.write(list(consts))
        numbers: dict[Any, int] = {}
        same: dict[Any, Any] = {}  # results that are another atom as it is

        def define(variables: Any) -> None:
            for variable in variables:
                numbers[variable] = len(numbers)
                self._aval(variable.aval)

        def use(atoms: Any) -> None:
            for atom in atoms:
                atom = atom if isinstance(atom, Literal) else same.get(atom, atom)
                if isinstance(atom, Literal):
                    self._aval(atom.aval)
                    self.write(atom.val)
                else:
                    self.text(numbers[atom])

        define([*jaxpr.constvars, *jaxpr.invars])
        for equation in jaxpr.eqns:
            name = equation.primitive.name
            if _changes_nothing(equation):
                source = equation.invars[0]
                same[equation.outvars[0]] = source if isinstance(source, Literal) else same.get(source, source)
                continue
            self.text(name)
            use(equation.invars)
            define(equation.outvars)
            self.write(_what_runs(name, equation.params))
        use(jaxpr.outvars)


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
