"""Compiled code writes to its outputs and its workspace and nowhere else."""

import ctypes

import jax
import numpy as np
import pytest
from native_customers import CUSTOMERS

from knuckle.native import compile_jaxpr, runtime

GUARD = 4096  # bytes before and after each array
MARK = 0xAB
ROWS = 11
CHECKED = (
    "indexing in memory", "scattering", "nested loops", "branches", "update in place", "pendulum gradient", "mlp",
    "lstm", "products in memory", "linear algebra",
)  # fmt: skip


@pytest.fixture(autouse=True)
def jax_numpy_promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


class Guarded:
    """Bytes, 64-byte aligned, with marked bytes on both sides."""

    def __init__(self, content: bytes):
        self.block = np.full(len(content) + 2 * GUARD + 64, MARK, np.uint8)
        self.start = GUARD + -(self.block.ctypes.data + GUARD) % 64
        self.size = len(content)
        self.block[self.start : self.start + self.size] = np.frombuffer(content, np.uint8)

    @property
    def address(self) -> int:
        return self.block.ctypes.data + self.start

    def is_intact(self) -> bool:
        before, after = self.block[: self.start], self.block[self.start + self.size :]
        return bool((before == MARK).all() and (after == MARK).all())


@pytest.mark.parametrize("rows", [None, ROWS])
@pytest.mark.parametrize("name", CHECKED)
def test_nothing_is_written_out_of_bounds(name, rows):
    function, arguments = CUSTOMERS[name]
    leaves, tree = jax.tree.flatten(jax.tree.map(np.asarray, arguments))
    closed = jax.make_jaxpr(lambda *flat: jax.tree.leaves(function(*jax.tree.unflatten(tree, flat))))(*leaves)
    compiled = compile_jaxpr(closed, batch=None if rows is None else (True,) * len(leaves))
    copies = 1 if rows is None else rows
    inputs = [Guarded(leaf.tobytes() * copies) for leaf in leaves]
    outputs = [Guarded(bytes(a.size * np.dtype(a.dtype).itemsize * copies)) for a in compiled.out_avals]
    workspace = Guarded(bytes(compiled.workspace_bytes))
    before = [g.block.copy() for g in inputs]
    integers = [] if rows is None else [ctypes.c_int64] * 2
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *integers)(
        runtime.load(compiled.object_code, compiled.symbol)
    )
    tables = [(ctypes.c_void_p * max(len(group), 1))(*[g.address for g in group]) for group in (inputs, outputs)]
    bounds = () if rows is None else (0, rows)
    call(*[ctypes.cast(table, ctypes.c_void_p) for table in tables], workspace.address, *bounds)
    assert all(g.is_intact() for g in [*outputs, workspace])
    assert all(np.array_equal(g.block, old) for g, old in zip(inputs, before, strict=True))
