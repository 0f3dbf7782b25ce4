"""From a closed jaxpr to machine code: lower, run the passes, write LLVM text, compile."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from knuckle.native.llvm import Emitter
from knuckle.native.llvm_batch import one_by_one, runs_one_by_one
from knuckle.native.lower import lower
from knuckle.native.passes import count_operations, run_passes
from knuckle.native.report import describe

SYMBOL = "knuckle_native"
BRIEF = 20_000  # operations: about ten microseconds
CODEGEN_LEVEL = 1  # LLVM's; at 0 code comes several times sooner, for the same results, and runs slower
_lock = threading.Lock()


@dataclass(frozen=True)
class Compiled:
    """Machine code of one function, as an object file, and what was learnt on the way.

    The function is `void f(void** inputs, void** outputs, char* workspace)`; over a batch it also takes
    `int64 start, int64 stop`. Arrays are row-major, one per flat leaf, booleans one byte.
    """

    object_code: bytes
    symbol: str
    workspace_bytes: int
    in_avals: tuple[Any, ...]
    out_avals: tuple[Any, ...]
    batch: tuple[bool, ...] | None
    lanes: int = 1
    operations: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_brief(self) -> bool:
        """Whether it has no loop and ends within some microseconds."""
        return "loop" not in self.kinds and 0 < sum(self.kinds.values()) <= BRIEF

    def report(self) -> str:
        """Operations after each pass, time of each phase and sizes, as text."""
        return describe(self)


class _Clock:
    def __init__(self):
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name], self._last = now - self._last, now


@cache
def _target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(llvm.get_process_triple())


def target_features() -> str:
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        features["prefer-256-bit"] = False
    return features.flatten()


def batch_lanes() -> int:
    """Doubles in one vector register of this machine."""
    features = llvm.get_host_cpu_features()
    return 8 if features.get("avx512f") else 4 if features.get("avx2") else 2


def codegen_level() -> int:
    return CODEGEN_LEVEL


def compile_text(text: str) -> bytes:
    """Object code of LLVM text for this machine; no LLVM passes are run."""
    with _lock:
        features, level = target_features(), codegen_level()
        machine = _target().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=features, opt=level, reloc="pic", codemodel="large"
        )
        module = llvm.parse_assembly(text)
        module.triple = llvm.get_process_triple()
        module.data_layout = str(machine.target_data)
        return machine.emit_object(module)


def compile_jaxpr(closed_jaxpr, *, batch: Sequence[bool] | None = None) -> Compiled:
    """Machine code of a closed jaxpr; `batch` says which inputs have a leading batch axis (then all outputs have)."""
    clock = _Clock()
    program, lowering = lower(closed_jaxpr)
    clock.lap("lower")
    operations = {"equations": lowering.equations, "asked for": lowering.made, **run_passes(program)}
    clock.lap("passes")
    batched = set(program.outputs) if batch is not None else set()
    batched |= {buffer for buffer, flag in zip(program.inputs, batch or (), strict=batch is not None) if flag}
    lanes = 1 if batch is None or runs_one_by_one(program, batched) else batch_lanes()
    if batch is not None and lanes == 1:
        emitter = Emitter(program, f"{SYMBOL}.one", widest=batch_lanes())
        text = f"{emitter.module()}\n{one_by_one(SYMBOL, program, batched, emitter)}"
    else:
        emitter = Emitter(program, SYMBOL, lanes, batched, batch_lanes())
        text = emitter.module()
    clock.lap("write LLVM")
    object_code = compile_text(text)
    clock.lap("LLVM")
    return Compiled(
        object_code=object_code,
        symbol=SYMBOL,
        workspace_bytes=max(emitter.workspace_bytes, 64),
        in_avals=tuple(closed_jaxpr.in_avals),
        out_avals=tuple(closed_jaxpr.out_avals),
        batch=None if batch is None else tuple(batch),
        lanes=lanes,
        operations=operations,
        kinds=dict(count_operations(program)),
        seconds=clock.seconds,
    )
