"""Calling machine code: conversions, errors, threads and batches, on hand-written LLVM IR of the agreed signature."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import llvmlite.binding as llvm
import numpy as np
import pytest

from knuckle.native import fastcall, runtime

SCALED = """
define void @scaled(ptr %inputs, ptr %outputs, ptr %workspace) {
  %x_slot = getelementptr ptr, ptr %inputs, i64 0
  %n_slot = getelementptr ptr, ptr %inputs, i64 1
  %b_slot = getelementptr ptr, ptr %inputs, i64 2
  %y_slot = getelementptr ptr, ptr %outputs, i64 0
  %c_slot = getelementptr ptr, ptr %outputs, i64 1
  %x = load ptr, ptr %x_slot
  %n = load ptr, ptr %n_slot
  %b = load ptr, ptr %b_slot
  %y = load ptr, ptr %y_slot
  %c = load ptr, ptr %c_slot
  %times = load i32, ptr %n
  %factor = sitofp i32 %times to double
  %flags = load <2 x i8>, ptr %b, align 1
  store <2 x i8> %flags, ptr %c, align 1
  %values = load <3 x double>, ptr %x, align 8
  %one = insertelement <3 x double> poison, double %factor, i64 0
  %all = shufflevector <3 x double> %one, <3 x double> poison, <3 x i32> zeroinitializer
  store <3 x double> %all, ptr %workspace, align 64
  %again = load volatile <3 x double>, ptr %workspace, align 64
  %product = fmul <3 x double> %values, %again
  store <3 x double> %product, ptr %y, align 8
  ret void
}
"""  # y = x * n through the workspace, c = b

ROWS = """
define void @rows(ptr %inputs, ptr %outputs, ptr %workspace, i64 %start, i64 %stop) {
entry:
  %n_slot = getelementptr ptr, ptr %inputs, i64 1
  %x = load ptr, ptr %inputs
  %n = load ptr, ptr %n_slot
  %y = load ptr, ptr %outputs
  %factor = load double, ptr %n
  %none = icmp sge i64 %start, %stop
  br i1 %none, label %done, label %body
body:
  %row = phi i64 [ %start, %entry ], [ %next, %body ]
  %from = getelementptr double, ptr %x, i64 %row
  %to = getelementptr double, ptr %y, i64 %row
  %value = load double, ptr %from
  store double %factor, ptr %workspace
  %again = load volatile double, ptr %workspace
  %product = fmul double %value, %again
  store double %product, ptr %to
  %next = add i64 %row, 1
  %more = icmp slt i64 %next, %stop
  br i1 %more, label %body, label %done
done:
  ret void
}
"""  # y[row] = x[row] * n


COPY = """
define void @copy(ptr %inputs, ptr %outputs, ptr %workspace) {
  %x = load ptr, ptr %inputs
  %y = load ptr, ptr %outputs
  %value = load double, ptr %x
  store double %value, ptr %y
  ret void
}
"""


SPIN = """
define void @spin(ptr %inputs, ptr %outputs, ptr %workspace) {
entry:
  %n_at = load ptr, ptr %inputs
  %n = load i64, ptr %n_at
  %y = load ptr, ptr %outputs
  br label %body
body:
  %k = phi i64 [ 0, %entry ], [ %next, %body ]
  store volatile i64 %k, ptr %y
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %body, label %done
done:
  ret void
}
"""  # counts to n


class Code(NamedTuple):
    object_code: bytes
    symbol: str
    workspace_bytes: int
    is_brief: bool = False


def assemble(text: str, symbol: str, workspace_bytes: int = 24) -> Code:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="small")
    return Code(machine.emit_object(llvm.parse_assembly(text)), symbol, workspace_bytes)


def aval(dtype: str, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.fixture(scope="module", params=["builtin", "large workspace", "general"])
def scaled(request) -> runtime.Function:
    inputs = [aval("float64", 3), aval("int32"), aval("bool", 2)]
    code = assemble(SCALED, "scaled", fastcall.STACK_BYTES + 1 if request.param == "large workspace" else 24)
    function = runtime.Function(code, inputs, [aval("float64", 3), aval("bool", 2)])
    if request.param == "general":
        function.call = function._general
    return function


@pytest.fixture(scope="module")
def rows() -> runtime.Function:
    return runtime.Function(
        assemble(ROWS, "rows"), [aval("float64"), aval("float64")], [aval("float64")], batched=(True, False)
    )


X, N, B = np.array([1.0, -2.0, 3.5]), np.int32(3), np.array([True, False])


def test_cpython_has_the_layout_that_the_builtin_reads():
    assert fastcall.layout_is_known()


def test_an_unknown_layout_goes_the_general_way(monkeypatch):
    inputs, outputs = [aval("float64", 3), aval("int32"), aval("bool", 2)], [aval("float64", 3), aval("bool", 2)]
    monkeypatch.setattr(runtime, "_fastcall_entry", lambda: None)
    function = runtime.Function(assemble(SCALED, "scaled"), inputs, outputs)
    assert function.call == function._general
    np.testing.assert_array_equal(function(X, np.array(3, np.int32), B)[0], 3 * X)


def test_a_builtin_returns_the_form_asked_for():
    inputs, code = [aval("float64", 3), aval("int32"), aval("bool", 2)], assemble(SCALED, "scaled")
    function = runtime.Function(code, inputs, [aval("float64", 3), aval("bool", 2)])
    times, elsewhere = np.array(3, np.int32), []
    as_tuple = function.builtin(lambda *arguments: elsewhere.append(arguments), "tuple")
    y, c = results = as_tuple(X, times, B)
    assert type(results) is tuple and sys.getrefcount(results) == 2
    np.testing.assert_array_equal(y, 3 * X)
    np.testing.assert_array_equal(c, B)
    assert as_tuple(X, 3, B) is None and elsewhere == [(X, 3, B)]
    with pytest.raises(ValueError, match="one output for the form leaf"):
        function.builtin(print, "leaf")
    copy = runtime.Function(assemble(COPY, "copy"), [aval("float64")], [aval("float64")])
    leaf = copy.builtin(print, "leaf")(np.array(2.5))
    assert type(leaf) is np.ndarray and leaf == 2.5 and sys.getrefcount(leaf) == 2


def test_a_builtin_whose_condition_does_not_hold_goes_the_general_way():
    state, elsewhere = ["as then"], []
    copy = runtime.Function(assemble(COPY, "copy"), [aval("float64")], [aval("float64")])
    function = copy.builtin(lambda *arguments: elsewhere.append(arguments), "leaf", (lambda: state[0], "as then"))
    assert function(np.array(2.5)) == 2.5 and not elsewhere
    state[0] = "other"
    function(np.array(2.5))
    assert len(elsewhere) == 1

    def fail():
        raise LookupError("no state")

    with pytest.raises(LookupError, match="no state"):
        copy.builtin(print, "leaf", (fail, None))(np.array(2.5))


def test_calls_leave_no_references_behind(scaled):
    times = np.array(3, np.int32)
    results = scaled(X, times, B)
    assert [sys.getrefcount(result) for result in results] == [2 + 1, 2 + 1]  # the list, the loop, the argument
    before = [sys.getrefcount(x) for x in (X, times, B, np.ndarray, np.empty)]
    for _ in range(1000):
        scaled(X, times, B)
        with pytest.raises(ValueError):
            scaled(X[:2], times, B)
    after = [sys.getrefcount(x) for x in (X, times, B, np.ndarray, np.empty)]
    assert max(abs(a - b) for a, b in zip(after, before, strict=True)) < 100


@pytest.fixture
def heap_left_alone():
    """Garbage is looked for among new objects only: a long run of tests has millions of others."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("heap_left_alone")
def test_a_function_can_be_collected(scaled):
    function = runtime.Function(scaled.code, scaled.inputs, scaled.outputs)
    function(X, N, B)
    gone = weakref.ref(function)
    del function
    gc.collect()
    assert gone() is None


def test_numpy_in_numpy_out(scaled):
    y, c = scaled(X, N, B)
    assert type(y) is np.ndarray and y.dtype == np.float64
    np.testing.assert_array_equal(y, 3 * X)
    np.testing.assert_array_equal(c, B)
    assert not np.shares_memory(y, scaled(X, N, B)[0])


def test_jax_in_jax_out(scaled):
    y, c = scaled(jnp.asarray(X), N, B)
    assert isinstance(y, jax.Array) and isinstance(c, jax.Array)
    np.testing.assert_array_equal(y, 3 * X)


def misaligned(array: np.ndarray) -> np.ndarray:
    raw = np.zeros(array.nbytes + 1, np.uint8)
    view = raw[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def read_only(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


ODD_ARRAYS = {
    "strided": np.repeat(X, 2)[::2],
    "reversed": X[::-1].copy()[::-1],
    "misaligned": misaligned(X),
    "read only": read_only(X),
    "broadcast": np.broadcast_to(np.array([1.0, -2.0, 3.5]), (1, 3))[0],
    "big-endian": X.astype(">f8"),
    "subclass": X.view(np.recarray),
    "jax": jnp.asarray(X),
}


@pytest.mark.parametrize("kind", ODD_ARRAYS)
@pytest.mark.parametrize("times", [3, np.int32(3), np.array(3, np.int32), jnp.int32(3)])
def test_odd_but_legal_arguments_give_the_right_result(scaled, kind, times):
    np.testing.assert_array_equal(scaled(ODD_ARRAYS[kind], times, B)[0], 3 * X)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X, N), TypeError, "expected 3 arguments, got 2"),
        ((X[:2], N, B), ValueError, r"argument 0: expected float64\[3\], got float64\[2\]"),
        ((X.astype(np.float32), N, B), TypeError, r"argument 0: expected float64\[3\], got dtype float32"),
        ((X, 3.0, B), TypeError, r"argument 1: expected int32\[\], got float 3.0"),
        ((X, N, [True, False]), TypeError, r"argument 2: expected bool\[2\], got list"),
        ((X, N, None), TypeError, r"argument 2: expected bool\[2\], got NoneType"),
        ((X, np.array([3], np.int32), B), ValueError, r"argument 1: expected int32\[\], got int32\[1\]"),
        ((3.0, N, B), ValueError, r"argument 0: expected float64\[3\], got float64\[\]"),
        ((X + 0j, N, B), TypeError, r"expected float64\[3\], got dtype complex128"),
        ((np.array(["a", "b", "c"]), N, B), TypeError, r"expected float64\[3\], got dtype str"),
        ((np.array([1.0, None, 2.0], object), N, B), TypeError, r"expected float64\[3\], got dtype object"),
    ],
)
def test_bad_arguments_say_what_was_expected(scaled, arguments, error, message):
    with pytest.raises(error, match=message):
        scaled(*arguments)


def test_an_integer_out_of_range_is_an_error(scaled):
    with pytest.raises(OverflowError):
        scaled(X, 2**40, B)


def test_a_tracer_is_refused(scaled):
    with pytest.raises(TypeError, match=r"argument 0: expected float64\[3\]"):
        jax.jit(lambda x: scaled(x, N, B)[0])(X)


def test_an_unresolved_symbol_raises_when_loaded():
    code = assemble(
        "declare void @nowhere()\ndefine void @g() {\n call void @nowhere()\n ret void\n}",
        "g",
    )
    with pytest.raises(RuntimeError):
        runtime.load(code.object_code, code.symbol)


def test_a_damaged_object_raises_when_loaded():
    with pytest.raises(RuntimeError):
        runtime.load(b"not an object file", "f")


@pytest.mark.parametrize("way", ["call", "_general"])
def test_other_threads_run_meanwhile(way):
    function = runtime.Function(assemble(SPIN, "spin"), [aval("int64")], [aval("int64")])
    worker = threading.Thread(target=getattr(function, way), args=(np.array(400_000_000),))
    worker.start()
    turns = 0
    while worker.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 20  # about 0.2 s of work; with the lock held there would be one or two


def test_a_large_workspace_serves_one_call_at_a_time():
    elsewhere: list[int] = []
    code = assemble(SPIN, "spin", fastcall.STACK_BYTES + 1)
    function = runtime.Function(code, [aval("int64")], [aval("int64")])
    quick = function.builtin(lambda n: elsewhere.append(int(n)))
    worker = threading.Thread(target=quick, args=(np.array(400_000_000),))
    worker.start()
    time.sleep(0.02)
    quick(np.array(5))
    assert worker.is_alive() and elsewhere == [5]
    worker.join()
    assert quick(np.array(3)) == [2]
    assert elsewhere == [5]


def test_threads_do_not_share_workspace_or_pointers(scaled):
    def hammer(seed: int) -> bool:
        generator = np.random.default_rng(seed)
        x = generator.standard_normal(3)
        times = np.array(generator.integers(-9, 9), np.int32)
        return all(np.array_equal(scaled(x, times, B)[0], x * times) for _ in range(2000))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(hammer, range(16)))


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000, 100_003])
@pytest.mark.parametrize("threads", [None, 1, 2, 7])
def test_a_batch_is_split_without_gaps(count, threads):
    function = runtime.Function(
        assemble(ROWS, "rows"), [aval("float64"), aval("float64")], [aval("float64")], (True, False), threads
    )
    function._seconds_per_row = 1.0  # as if each row were worth a thread
    x = np.random.default_rng(count).standard_normal(count)
    np.testing.assert_array_equal(function(x, 2.5)[0], 2.5 * x)


def test_batches_from_many_threads(rows):
    x = np.random.default_rng(0).standard_normal(50_000)
    results: dict[int, np.ndarray] = {}

    def run(k: int) -> None:
        results[k] = rows(x, float(k))[0]

    workers = [threading.Thread(target=run, args=(k,)) for k in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for k in range(8):
        np.testing.assert_array_equal(results[k], x * k)


def test_batch_sizes_must_agree():
    function = runtime.Function(
        assemble(ROWS, "rows"), [aval("float64"), aval("float64")], [aval("float64")], (True, True)
    )
    with pytest.raises(ValueError, match=r"one batch size .* got \[3, 4\]"):
        function(np.zeros(3), np.zeros(4))
    with pytest.raises(ValueError, match=r"argument 0: expected float64\[batch\], got float64\[\]"):
        function(np.zeros(()), np.zeros(4))


def test_batch_flags_must_fit():
    code = assemble(ROWS, "rows")
    for flags in [(True,), (False, False)]:
        with pytest.raises(ValueError, match="batch flags"):
            runtime.Function(code, [aval("float64"), aval("float64")], [aval("float64")], flags)


def random_object(generator: random.Random) -> Any:
    dtype = generator.choice(["f8", "f4", "i4", "i8", "b1", "u1", "c16", ">f8", "O", "U3", "M8[s]", "V5", "f2"])
    shape = generator.choice([(), (0,), (1,), (2,), (3,), (3,), (2,), (4,), (3, 0), (1, 3), (3, 1)])
    make = generator.randrange(8)
    if make == 0:
        return generator.choice([None, 3, -1.5, True, "x", b"y", 2j, [1, 2, 3], (), {}, object(), 2**80, float("nan")])
    array = np.zeros(shape, dtype)
    if array.dtype.kind in "f" and array.ndim:
        array[...] = generator.choice([1.0, np.nan, np.inf, -0.0])
    if make == 1:
        return array[()]
    if make == 2 and array.ndim:
        return np.repeat(array, 2, axis=0)[::2]
    if make == 3:
        array.flags.writeable = False
    return array


def expected_of(x: Any, n: Any, b: Any) -> bool:
    """Whether the arguments are legal for `scaled`."""
    legal_x = isinstance(x, np.ndarray) and x.dtype in (np.float64, np.dtype(">f8")) and x.shape == (3,)
    legal_n = (type(n) in (int, bool) and abs(n) < 2**31) or (
        isinstance(n, np.ndarray | np.generic) and n.dtype == np.int32 and n.shape == ()
    )
    legal_b = isinstance(b, np.ndarray) and b.dtype == np.bool_ and b.shape == (2,)
    return legal_x and legal_n and legal_b


def test_a_hundred_thousand_random_calls_give_errors_or_right_results(scaled):
    generator = random.Random(7)
    right = 0
    for _ in range(100_000):
        arguments = [X, N, B]
        for position in generator.sample(range(3), generator.randrange(1, 4)):
            arguments[position] = random_object(generator)
        if generator.random() < 0.01:
            arguments.pop()
        legal = len(arguments) == 3 and expected_of(*arguments)
        try:
            y, c = scaled(*arguments)
        except (TypeError, ValueError, OverflowError):
            assert not legal, arguments
            continue
        assert legal, arguments
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(y, np.asarray(arguments[0]).astype(float) * int(arguments[1]))
        np.testing.assert_array_equal(c, arguments[2])
        right += 1
    assert right > 100
