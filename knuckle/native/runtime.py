"""Machine code in memory, and calling it from Python with NumPy or JAX arrays.

Compiled code has the signature `void f(void** inputs, void** outputs, char* workspace)`; over a batch
`void f(void** inputs, void** outputs, char* workspace, int64 start, int64 stop)`. Code is never unloaded: XLA
executables hold bare addresses of it.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import jax
import llvmlite.binding as llvm
import numpy as np
from jax.core import Tracer

from knuckle.native import fastcall

ALIGNMENT = 64  # bytes, of the workspace
C_CONTIGUOUS_AND_ALIGNED = 0x0101  # bits of numpy's flags.num
CHUNK_ROUNDING = 64  # rows of a batch: chunks start on multiples, so that lanes fill
CASTS_TO = {bool: "biuf", int: "iuf", float: "f"}  # kinds of dtype that a Python number may become
WORTH_A_THREAD = 50e-6  # seconds of work below which a batch stays on the calling thread


class MachineCode(Protocol):
    """What the compiler makes: an object file, the function in it and the workspace that it needs."""

    @property
    def object_code(self) -> bytes: ...

    @property
    def symbol(self) -> str: ...

    @property
    def workspace_bytes(self) -> int: ...

    @property
    def is_brief(self) -> bool: ...


class Aval(Protocol):
    """Shape and dtype of an array; JAX's ShapedArray and NumPy's arrays are such."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...


_lock = threading.Lock()
_loaded: list[Any] = []
_library_numbers = itertools.count()


@cache
def _linker() -> llvm.LLJIT:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler()


def load(object_code: bytes, symbol: str) -> int:
    """The address of a function of an object file, linked into this process for good."""
    with _lock:
        builder = llvm.JITLibraryBuilder().add_object_img(object_code).add_current_process().export_symbol(symbol)
        tracker = builder.link(_linker(), f"knuckle{next(_library_numbers)}")
        _loaded.append(tracker)
        return tracker[symbol]


@cache
def _fastcall_entry() -> int | None:
    code = fastcall.object_code()
    return None if code is None else load(code, "call")


def _data_pointers_reader() -> Callable[[Sequence[np.ndarray]], list[int]]:
    """Reads arrays' data pointers, the first field after the object header, 10 times faster than `.ctypes.data`."""
    offset = object.__basicsize__
    read = ctypes.c_uint64.from_address

    def fast(arrays: Sequence[np.ndarray]) -> list[int]:
        return [read(id(array) + offset).value for array in arrays]

    def sure(arrays: Sequence[np.ndarray]) -> list[int]:
        return [array.ctypes.data for array in arrays]

    probes = [np.arange(5.0), np.zeros((2, 3), np.int32)[1:], np.ones(()), np.arange(7, dtype=np.uint8)[3:]]
    return fast if fast(probes) == sure(probes) else sure


data_pointers = _data_pointers_reader()


@dataclass(eq=False, slots=True)
class Leaf:
    """One argument or result: its dtype and shape, without the batch axis, and whether it has one."""

    dtype: np.dtype
    shape: tuple[int, ...]
    batched: bool

    @classmethod
    def of(cls, aval: Aval, batched: bool) -> Leaf:
        return cls(np.dtype(aval.dtype), tuple(aval.shape), batched)

    def __str__(self) -> str:
        axes = (["batch"] if self.batched else []) + [str(n) for n in self.shape]
        return f"{self.dtype.name}[{','.join(axes)}]"

    def fits(self, shape: tuple[int, ...]) -> bool:
        return (shape[1:] if self.batched else shape) == self.shape and (len(shape) > 0 or not self.batched)

    def accepts(self, array: np.ndarray) -> bool:
        """Whether compiled code can read the array as it is; the quick check."""
        return (
            array.dtype is self.dtype
            and (array.shape == self.shape if not self.batched else self.fits(array.shape))
            and array.flags.num & C_CONTIGUOUS_AND_ALIGNED == C_CONTIGUOUS_AND_ALIGNED
        )

    def convert(self, value: Any, position: int) -> np.ndarray:
        """The argument as an array that compiled code can read, converted as `jax.jit` would, or an error."""
        array = self._number(value) if type(value) in CASTS_TO else _as_array(value)
        if array is None:
            raise TypeError(f"argument {position}: expected {self}, got {type(value).__name__} {value!r:.60}")
        if array.dtype != self.dtype and _canonical(array.dtype) != self.dtype:
            raise TypeError(f"argument {position}: expected {self}, got dtype {array.dtype.name}")
        if not self.fits(array.shape):
            axes = ",".join(map(str, array.shape))
            raise ValueError(f"argument {position}: expected {self}, got {array.dtype.name}[{axes}]")
        return array if self.accepts(array) else np.require(array, self.dtype, ["C", "A"])

    def _number(self, value: float) -> np.ndarray | None:
        """A Python number takes the expected dtype, as JAX's weak types do."""
        return np.array(value, self.dtype) if self.dtype.kind in CASTS_TO[type(value)] else None


def _as_array(value: Any) -> np.ndarray | None:
    is_array = isinstance(value, np.ndarray | np.generic) or (
        isinstance(value, jax.Array) and not isinstance(value, Tracer)
    )
    return np.asarray(value) if is_array else None


def _canonical(dtype: np.dtype) -> np.dtype:
    """The dtype that `jax.jit` would see: in this machine's byte order, 32 bits wide unless x64 is on."""
    return jax.dtypes.canonicalize_dtype(dtype.newbyteorder("=")) if dtype.kind in "biuf" else dtype


class _Workspace(threading.local):
    """Each thread's own workspace for one function."""

    def __init__(self, size: int):
        self.block = np.empty(size + ALIGNMENT, np.uint8)
        address = self.block.ctypes.data
        self.address = address + -address % ALIGNMENT


@dataclass(eq=False)
class Function:
    """Compiled code as a Python function of flat arrays: NumPy in, NumPy out; JAX in, JAX out.

    `batched` says which inputs have a leading batch axis (then all outputs have one); None is a single evaluation.
    Thread-safe; the GIL is released while it runs. `threads` bounds the threads over a batch, all cores by default.
    """

    code: MachineCode
    inputs: Sequence[Aval]
    outputs: Sequence[Aval]
    batched: tuple[bool, ...] | None = None
    threads: int | None = None
    address: int = field(init=False)

    def __post_init__(self):
        flags = self.batched or (False,) * len(self.inputs)
        if len(flags) != len(self.inputs) or (self.batched is not None and not any(flags)):
            raise ValueError(f"expected {len(self.inputs)} batch flags with one of them set, got {self.batched}")
        self.address = load(self.code.object_code, self.code.symbol)
        self._leaves = [Leaf.of(aval, flag) for aval, flag in zip(self.inputs, flags, strict=True)]
        self._results = [(tuple(aval.shape), np.dtype(aval.dtype)) for aval in self.outputs]
        self._workspace = _Workspace(self.code.workspace_bytes)
        self._pack_inputs = struct.Struct(f"={len(self._leaves)}Q").pack
        self._pack_outputs = struct.Struct(f"={len(self._results)}Q").pack
        bounds = [ctypes.c_int64] * 2 if self.batched else []
        signature = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, *bounds)
        self._native = signature(self.address)
        self._seconds_per_row = 0.0
        self._kept: list[Any] = []
        self.call = self.builtin(self._general)

    def builtin(
        self,
        general: Callable[..., Any],
        form: str = "list",
        condition: tuple[Callable[[], Any], Any] | None = None,
    ) -> Callable[..., Any]:
        """A function of flat NumPy arrays with half a microsecond of overhead; `general` where that cannot be.

        `general` gets the arguments that are not exactly the arrays compiled for, and must return results in the same
        `form`: a list, a tuple, or the one leaf itself. `condition`: a function and what it must return, else `general`
        runs. Hold on to this object as long as to the function.
        """
        entry = _fastcall_entry()
        if form == "leaf" and len(self.outputs) != 1:
            raise ValueError(f"expected one output for the form leaf, got {len(self.outputs)}")
        if self.batched is not None or entry is None:
            return general
        results = [Leaf.of(aval, False) for aval in self.outputs]
        sizes = entry, self.address, self.code.workspace_bytes
        function, kept = fastcall.fast_function(
            *sizes, self._leaves, results, general, form, self.code.is_brief, condition
        )
        self._kept.append(kept)
        return function

    def __call__(self, *arguments: Any) -> list[Any]:
        """The flat results of the flat arguments."""
        return self.call(*arguments)

    def _general(self, *arguments: Any) -> list[Any]:
        if len(arguments) != len(self._leaves):
            raise TypeError(f"expected {len(self._leaves)} arguments, got {len(arguments)}")
        pairs = zip(arguments, self._leaves, strict=True)
        results = self._run([leaf.convert(argument, position) for position, (argument, leaf) in enumerate(pairs)])
        from_jax = any(type(argument) not in CASTS_TO and isinstance(argument, jax.Array) for argument in arguments)
        return [jax.device_put(result) for result in results] if from_jax else results

    def _run(self, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self.batched is not None:
            return self._run_batch(arguments)
        results = [np.empty(shape, dtype) for shape, dtype in self._results]
        inputs = self._pack_inputs(*data_pointers(arguments))
        self._native(inputs, self._pack_outputs(*data_pointers(results)), self._workspace.address)
        return results

    def _run_batch(self, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        rows = self._batch_size(arguments)
        results = [np.empty((rows, *shape), dtype) for shape, dtype in self._results]
        inputs = self._pack_inputs(*data_pointers(arguments))
        outputs = self._pack_outputs(*data_pointers(results))
        self._run_chunks(lambda start, stop: self._native(inputs, outputs, self._workspace.address, start, stop), rows)
        return results

    def spreads(self, rows: int) -> bool:
        """Whether a batch of this size would be worth several threads; not known before the first batch."""
        alone = self.threads == 1 or available_cores() == 1
        return not alone and rows * (self._seconds_per_row or 1.0) >= WORTH_A_THREAD

    def _batch_size(self, arrays: Sequence[np.ndarray]) -> int:
        sizes = {array.shape[0] for array, leaf in zip(arrays, self._leaves, strict=True) if leaf.batched}
        if len(sizes) != 1:
            raise ValueError(f"expected one batch size for all batched arguments, got {sorted(sizes)}")
        return sizes.pop()

    def _run_chunks(self, run: Callable[[int, int], None], rows: int) -> None:
        threads = min(self.threads or available_cores(), -(-rows // CHUNK_ROUNDING))
        begin = time.perf_counter()
        if threads <= 1 or rows * self._seconds_per_row < WORTH_A_THREAD:
            run(0, rows)
            threads = 1
        else:
            size = -(-rows // (threads * CHUNK_ROUNDING)) * CHUNK_ROUNDING
            chunks = [(start, min(start + size, rows)) for start in range(0, rows, size)]
            futures = [_pool().submit(run, *chunk) for chunk in chunks[1:]]
            run(*chunks[0])
            for future in futures:
                future.result()
        if rows:
            self._seconds_per_row = (time.perf_counter() - begin) * threads / rows


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=max(available_cores(), 1), thread_name_prefix="knuckle")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
