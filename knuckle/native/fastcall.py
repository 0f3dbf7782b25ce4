"""A Python function written in LLVM IR: checks NumPy arrays and calls machine code in a fraction of a microsecond.

It reads CPython's and NumPy's objects in place, so it is compiled anew in each process, never cached, and only used
where the layout that it assumes is found by looking at real objects. Arguments that are not exactly as compiled for go
to a Python function instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import llvmlite.binding as llvm
import numpy as np

METH_FASTCALL = 0x80
STACK_BYTES = 131072  # the largest workspace that is taken from the caller's stack
C_CONTIGUOUS_AND_ALIGNED = 0x0101
TYPE, DATA, NDIM, DIMENSIONS, DTYPE, FLAGS = 8, 16, 24, 32, 56, 64  # bytes into a NumPy array
BYTES_CONTENT = 32  # bytes into a bytes object
HEADER_WORDS, LEAF_WORDS = 10, 3
ALIGNMENT = 64
PY_EQ = 2
FORMS = {"list": 0, "tuple": 1, "leaf": 2}  # what the function returns; leaf: the only result itself

# The plan, the content of the bytes object that is `self`, in words of 8 bytes: inputs, outputs, address, fallback,
# bytes on the stack for the workspace, form of the result, whether Python's lock is kept, a function and what it must
# return for the plan to hold (or zeros), where the function's own workspace is (or zero); for each input, then each
# output, dtype, ndim and where its dimensions are. Its own workspace begins with a mark that is set while a call uses
# it: calls of other threads fall back meanwhile.
TEXT = """
define ptr @call(ptr %self, ptr %arguments, i64 %count) {{
entry:
  %plan = getelementptr i8, ptr %self, i64 {BYTES_CONTENT}
  %inputs_count = load i64, ptr %plan
  %outputs_count_at = getelementptr i64, ptr %plan, i64 1
  %outputs_count = load i64, ptr %outputs_count_at
  %address_at = getelementptr i64, ptr %plan, i64 2
  %address = load ptr, ptr %address_at
  %workspace_at = getelementptr i64, ptr %plan, i64 4
  %workspace_bytes = load i64, ptr %workspace_at
  %inputs = alloca ptr, i64 %inputs_count
  %outputs = alloca ptr, i64 %outputs_count
  %on_stack = alloca i8, i64 %workspace_bytes, align {ALIGNMENT}
  %right_count = icmp eq i64 %count, %inputs_count
  br i1 %right_count, label %condition, label %fallback

condition:
  %asked_at = getelementptr i64, ptr %plan, i64 7
  %asked = load ptr, ptr %asked_at
  %unconditional = icmp eq ptr %asked, null
  br i1 %unconditional, label %inputs_start, label %ask

ask:
  %state = call ptr inttoptr (i64 {PyObject_CallNoArgs} to ptr)(ptr %asked)
  %no_state = icmp eq ptr %state, null
  br i1 %no_state, label %failed, label %compare_state

compare_state:
  %wanted_state_at = getelementptr i64, ptr %plan, i64 8
  %wanted_state = load ptr, ptr %wanted_state_at
  %same = call i32 inttoptr (i64 {PyObject_RichCompareBool} to ptr)(ptr %state, ptr %wanted_state, i32 {PY_EQ})
  call void inttoptr (i64 {Py_DecRef} to ptr)(ptr %state)
  switch i32 %same, label %failed [ i32 0, label %fallback i32 1, label %inputs_start ]

inputs_start:
  br label %next_input

next_input:
  %i = phi i64 [ 0, %inputs_start ], [ %i_next, %take ]
  %more_inputs = icmp slt i64 %i, %inputs_count
  br i1 %more_inputs, label %check, label %make

check:
  %argument_at = getelementptr ptr, ptr %arguments, i64 %i
  %argument = load ptr, ptr %argument_at
  %type_at = getelementptr i8, ptr %argument, i64 {TYPE}
  %type = load i64, ptr %type_at
  %is_array = icmp eq i64 %type, {ndarray}
  br i1 %is_array, label %check_array, label %fallback

check_array:
  %record_number = mul i64 %i, {LEAF_WORDS}
  %record_word = add i64 %record_number, {HEADER_WORDS}
  %record = getelementptr i64, ptr %plan, i64 %record_word
  %wanted_dtype = load i64, ptr %record
  %dtype_at = getelementptr i8, ptr %argument, i64 {DTYPE}
  %dtype = load i64, ptr %dtype_at
  %same_dtype = icmp eq i64 %dtype, %wanted_dtype
  %flags_at = getelementptr i8, ptr %argument, i64 {FLAGS}
  %flags = load i32, ptr %flags_at
  %needed = and i32 %flags, {C_CONTIGUOUS_AND_ALIGNED}
  %is_plain = icmp eq i32 %needed, {C_CONTIGUOUS_AND_ALIGNED}
  %wanted_ndim_at = getelementptr i64, ptr %record, i64 1
  %wanted_ndim = load i64, ptr %wanted_ndim_at
  %ndim_at = getelementptr i8, ptr %argument, i64 {NDIM}
  %ndim_small = load i32, ptr %ndim_at
  %ndim = zext i32 %ndim_small to i64
  %same_ndim = icmp eq i64 %ndim, %wanted_ndim
  %fits_so_far = and i1 %same_dtype, %is_plain
  %fits = and i1 %fits_so_far, %same_ndim
  %wanted_at = getelementptr i64, ptr %record, i64 2
  %wanted_word = load i64, ptr %wanted_at
  %wanted_dimensions = getelementptr i64, ptr %plan, i64 %wanted_word
  %dimensions_at = getelementptr i8, ptr %argument, i64 {DIMENSIONS}
  %dimensions = load ptr, ptr %dimensions_at
  br i1 %fits, label %next_dimension, label %fallback

next_dimension:
  %d = phi i64 [ 0, %check_array ], [ %d_next, %same_dimension ]
  %more_dimensions = icmp slt i64 %d, %ndim
  br i1 %more_dimensions, label %compare_dimension, label %take

compare_dimension:
  %wanted_dimension_at = getelementptr i64, ptr %wanted_dimensions, i64 %d
  %wanted_dimension = load i64, ptr %wanted_dimension_at
  %dimension_at = getelementptr i64, ptr %dimensions, i64 %d
  %dimension = load i64, ptr %dimension_at
  %equal = icmp eq i64 %dimension, %wanted_dimension
  br i1 %equal, label %same_dimension, label %fallback

same_dimension:
  %d_next = add i64 %d, 1
  br label %next_dimension

take:
  %data_at = getelementptr i8, ptr %argument, i64 {DATA}
  %data = load ptr, ptr %data_at
  %input_at = getelementptr ptr, ptr %inputs, i64 %i
  store ptr %data, ptr %input_at
  %i_next = add i64 %i, 1
  br label %next_input

make:
  %list = call ptr inttoptr (i64 {PyList_New} to ptr)(i64 %outputs_count)
  %no_list = icmp eq ptr %list, null
  br i1 %no_list, label %failed, label %outputs_start

outputs_start:
  %after_inputs = mul i64 %inputs_count, {LEAF_WORDS}
  %outputs_word = add i64 %after_inputs, {HEADER_WORDS}
  br label %next_output

next_output:
  %k = phi i64 [ 0, %outputs_start ], [ %k_next, %made ]
  %more_outputs = icmp slt i64 %k, %outputs_count
  br i1 %more_outputs, label %make_output, label %run

make_output:
  %before_output = mul i64 %k, {LEAF_WORDS}
  %empty_word = add i64 %outputs_word, %before_output
  %record_at = getelementptr i64, ptr %plan, i64 %empty_word
  %out_dtype = load ptr, ptr %record_at
  %out_ndim_at = getelementptr i64, ptr %record_at, i64 1
  %out_ndim = load i64, ptr %out_ndim_at
  %out_ndim_small = trunc i64 %out_ndim to i32
  %out_dimensions_at = getelementptr i64, ptr %record_at, i64 2
  %out_dimensions_word = load i64, ptr %out_dimensions_at
  %out_dimensions = getelementptr i64, ptr %plan, i64 %out_dimensions_word
  call void inttoptr (i64 {Py_IncRef} to ptr)(ptr %out_dtype)
  %empty = inttoptr i64 {empty} to ptr
  %result = call ptr %empty(i32 %out_ndim_small, ptr %out_dimensions, ptr %out_dtype, i32 0)
  %no_result = icmp eq ptr %result, null
  br i1 %no_result, label %failed_output, label %made

made:
  %ignored = call i32 inttoptr (i64 {PyList_SetItem} to ptr)(ptr %list, i64 %k, ptr %result)
  %result_data_at = getelementptr i8, ptr %result, i64 {DATA}
  %result_data = load ptr, ptr %result_data_at
  %output_at = getelementptr ptr, ptr %outputs, i64 %k
  store ptr %result_data, ptr %output_at
  %k_next = add i64 %k, 1
  br label %next_output

run:
  %own_at = getelementptr i64, ptr %plan, i64 9
  %own = load ptr, ptr %own_at
  %has_own = icmp ne ptr %own, null
  br i1 %has_own, label %occupy, label %with_workspace

occupy:
  %tried = cmpxchg ptr %own, i64 0, i64 1 seq_cst seq_cst
  %occupied = extractvalue {{ i64, i1 }} %tried, 1
  br i1 %occupied, label %with_workspace, label %busy

busy:
  call void inttoptr (i64 {Py_DecRef} to ptr)(ptr %list)
  br label %fallback

with_workspace:
  %after_mark = getelementptr i8, ptr %own, i64 {ALIGNMENT}
  %workspace = select i1 %has_own, ptr %after_mark, ptr %on_stack
  %keeps_at = getelementptr i64, ptr %plan, i64 6
  %keeps = load i64, ptr %keeps_at
  %keeps_lock = icmp ne i64 %keeps, 0
  br i1 %keeps_lock, label %run_briefly, label %run_beside

run_briefly:
  call void %address(ptr %inputs, ptr %outputs, ptr %workspace)
  br label %ran

run_beside:
  %thread = call ptr inttoptr (i64 {PyEval_SaveThread} to ptr)()
  call void %address(ptr %inputs, ptr %outputs, ptr %workspace)
  call void inttoptr (i64 {PyEval_RestoreThread} to ptr)(ptr %thread)
  br label %ran

ran:
  br i1 %has_own, label %leave, label %hand_over

leave:
  store atomic i64 0, ptr %own release, align 8
  br label %hand_over

hand_over:
  %form_at = getelementptr i64, ptr %plan, i64 5
  %form = load i64, ptr %form_at
  switch i64 %form, label %as_list [ i64 1, label %as_tuple i64 2, label %as_leaf ]

as_list:
  ret ptr %list

as_tuple:
  %tuple = call ptr inttoptr (i64 {PyList_AsTuple} to ptr)(ptr %list)
  call void inttoptr (i64 {Py_DecRef} to ptr)(ptr %list)
  ret ptr %tuple

as_leaf:
  %leaf = call ptr inttoptr (i64 {PyList_GetItem} to ptr)(ptr %list, i64 0)
  call void inttoptr (i64 {Py_IncRef} to ptr)(ptr %leaf)
  call void inttoptr (i64 {Py_DecRef} to ptr)(ptr %list)
  ret ptr %leaf

failed_output:
  call void inttoptr (i64 {Py_DecRef} to ptr)(ptr %list)
  br label %failed

failed:
  ret ptr null

fallback:
  %general_at = getelementptr i64, ptr %plan, i64 3
  %general = load ptr, ptr %general_at
  %answer = call ptr inttoptr (i64 {PyObject_Vectorcall} to ptr)(ptr %general, ptr %arguments, i64 %count, ptr null)
  ret ptr %answer
}}
"""
API = (
    "PyList_New",
    "PyList_SetItem",
    "PyList_GetItem",
    "PyList_AsTuple",
    "PyObject_CallNoArgs",
    "PyObject_RichCompareBool",
    "PyObject_Vectorcall",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "Py_IncRef",
    "Py_DecRef",
)


class MethodDefinition(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class Leaf(Protocol):
    """Shape and dtype of an argument or result."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...


NUMPY_EMPTY = 184  # the place of PyArray_Empty in NumPy's table of C functions


def numpy_empty() -> int | None:
    """The address of PyArray_Empty, if calling it makes an array of the shape and dtype asked for."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    try:
        table = pointer(np._core._multiarray_umath._ARRAY_API, None)  # pyright: ignore[reportAttributeAccessIssue]
    except (AttributeError, ValueError):
        return None
    address = _word(table + 8 * NUMPY_EMPTY)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_int, ctypes.c_void_p, ctypes.py_object, ctypes.c_int)(address)
    for dtype in (np.dtype(float), np.dtype(np.int32)):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(dtype))  # the call takes one
        made = make(2, (ctypes.c_int64 * 2)(3, 5), dtype, 0)
        if type(made) is not np.ndarray or made.shape != (3, 5) or made.dtype != dtype or not made.flags.c_contiguous:
            return None
    return address


def _word(address: int, kind: Any = ctypes.c_int64) -> int:
    return kind.from_address(address).value


def layout_is_known() -> bool:
    """Whether real objects have the fields where the code above reads them."""
    content = b"knuckle!" * 2
    if _word(id(content) + BYTES_CONTENT) != int.from_bytes(content[:8], "little"):
        return False
    for array in (np.zeros((3, 5)), np.ones(4, np.int32)[1:3], np.zeros((2, 2), np.float32).T, np.array(True)):
        dimensions = _word(id(array) + DIMENSIONS)
        if not (
            _word(id(array) + TYPE) == id(np.ndarray)
            and _word(id(array) + DATA) == array.ctypes.data
            and _word(id(array) + NDIM, ctypes.c_int32) == array.ndim
            and all(_word(dimensions + 8 * k) == n for k, n in enumerate(array.shape))
            and _word(id(array) + DTYPE) == id(array.dtype)
            and _word(id(array) + FLAGS, ctypes.c_int32) == array.flags.num
        ):
            return False
    return True


@cache
def object_code() -> bytes | None:
    """The function as an object file with this process's addresses; None where the layout is not the known one."""
    if ctypes.sizeof(ctypes.c_void_p) != 8 or not layout_is_known():
        return None
    try:
        addresses = {name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in API}
    except AttributeError:
        return None
    empty = numpy_empty()
    if empty is None:
        return None
    numbers = {name: value for name, value in globals().items() if isinstance(value, int)}
    text = TEXT.format(**numbers, **addresses, ndarray=id(np.ndarray), empty=empty)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(opt=2, reloc="pic", codemodel="large")
    return machine.emit_object(llvm.parse_assembly(text))


@cache
def _definition(entry: int) -> MethodDefinition:
    """One for all functions and kept for ever, also while Python ends: a builtin reads it while it is being freed."""
    definition = MethodDefinition(b"native", entry, METH_FASTCALL, None)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(definition))
    return definition


def fast_function(
    entry: int,
    address: int,
    workspace_bytes: int,
    inputs: Sequence[Leaf],
    outputs: Sequence[Leaf],
    general: Callable[..., Any],
    form: str,
    keeps_lock: bool,
    condition: tuple[Callable[[], Any], Any] | None = None,
) -> tuple[Callable[..., Any], Any]:
    """A builtin function that runs the code at `address`, or `general` for arguments that do not fit as they are.

    `keeps_lock`: other threads of Python wait, which for code of a few microseconds is faster than letting them run.
    `condition`: a function and what it must return; where it returns something else, `general` runs.
    `entry` is the address of the loaded `call`. The second result is what the first points to: keep both together.
    """
    fits_stack = workspace_bytes <= STACK_BYTES
    own = None if fits_stack else np.zeros(workspace_bytes + 2 * ALIGNMENT, np.uint8)
    on_stack = max(workspace_bytes, ALIGNMENT) if fits_stack else ALIGNMENT
    words = [len(inputs), len(outputs), address, id(general), on_stack, FORMS[form], int(keeps_lock)]
    words += [0, 0] if condition is None else map(id, condition)
    words.append(0 if own is None else own.ctypes.data + -own.ctypes.data % ALIGNMENT)
    leaves = [*inputs, *outputs]
    first_dimension = HEADER_WORDS + LEAF_WORDS * len(leaves)
    dimensions: list[int] = []
    for leaf in leaves:
        words += [id(leaf.dtype), len(leaf.shape), first_dimension + len(dimensions)]
        dimensions += leaf.shape
    plan = np.array([*words, *dimensions], np.int64).tobytes()
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    create = prototype(("PyCFunction_NewEx", ctypes.pythonapi))
    kept = (general, condition, own, [leaf.dtype for leaf in leaves])
    return create(ctypes.addressof(_definition(entry)), plan, None), kept
