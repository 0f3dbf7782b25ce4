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
HEADER_WORDS, INPUT_WORDS = 6, 3
FORMS = {"list": 0, "tuple": 1, "leaf": 2}  # what the function returns; leaf: the only result itself

# The plan, the content of the bytes object that is `self`, in words of 8 bytes: inputs, outputs, address, fallback,
# workspace bytes, form of the result; for each input dtype, ndim and where its dimensions are; for each output the
# arguments of np.empty.
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
  %workspace = alloca i8, i64 %workspace_bytes, align 64
  %right_count = icmp eq i64 %count, %inputs_count
  br i1 %right_count, label %next_input, label %fallback

next_input:
  %i = phi i64 [ 0, %entry ], [ %i_next, %take ]
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
  %record_number = mul i64 %i, {INPUT_WORDS}
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
  %after_inputs = mul i64 %inputs_count, {INPUT_WORDS}
  %outputs_word = add i64 %after_inputs, {HEADER_WORDS}
  br label %next_output

next_output:
  %k = phi i64 [ 0, %outputs_start ], [ %k_next, %made ]
  %more_outputs = icmp slt i64 %k, %outputs_count
  br i1 %more_outputs, label %make_output, label %run

make_output:
  %empty_word = add i64 %outputs_word, %k
  %empty_arguments_at = getelementptr i64, ptr %plan, i64 %empty_word
  %empty_arguments = load ptr, ptr %empty_arguments_at
  %empty = inttoptr i64 {empty} to ptr
  %result = call ptr inttoptr (i64 {PyObject_Call} to ptr)(ptr %empty, ptr %empty_arguments, ptr null)
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
  %thread = call ptr inttoptr (i64 {PyEval_SaveThread} to ptr)()
  call void %address(ptr %inputs, ptr %outputs, ptr %workspace)
  call void inttoptr (i64 {PyEval_RestoreThread} to ptr)(ptr %thread)
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
    "PyObject_Call",
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
    numbers = {name: value for name, value in globals().items() if isinstance(value, int)}
    text = TEXT.format(**numbers, **addresses, ndarray=id(np.ndarray), empty=id(np.empty))
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
) -> tuple[Callable[..., Any], Any]:
    """A builtin function that runs the code at `address`, or `general` for arguments that do not fit as they are.

    `entry` is the address of the loaded `call`. The second result is what the first points to: keep both together.
    """
    made = [(leaf.shape, leaf.dtype) for leaf in outputs]
    words = [len(inputs), len(outputs), address, id(general), max(workspace_bytes, 64), FORMS[form]]
    first_dimension = HEADER_WORDS + INPUT_WORDS * len(inputs) + len(outputs)
    dimensions: list[int] = []
    for leaf in inputs:
        words += [id(leaf.dtype), len(leaf.shape), first_dimension + len(dimensions)]
        dimensions += leaf.shape
    plan = np.array([*words, *map(id, made), *dimensions], np.int64).tobytes()
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    create = prototype(("PyCFunction_NewEx", ctypes.pythonapi))
    kept = (made, general, [leaf.dtype for leaf in inputs])
    return create(ctypes.addressof(_definition(entry)), plan, None), kept
