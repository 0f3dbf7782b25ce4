"""`export_c`: a function as a folder of plain C99 that allocates nothing."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from knuckle.native.api import check_leaves, traced
from knuckle.native.c import Argument, CWriter, memory_type
from knuckle.native.c_ops import constant_text
from knuckle.native.ir import code_of
from knuckle.native.lower import lower
from knuckle.native.passes import run_passes

KEYWORDS = frozenset((
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float",
    "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed", "sizeof",
    "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while", "bool", "true", "false",
    "workspace", "main",
))  # fmt: skip


def export_c(function: Callable, example_args: Sequence[Any], folder: str | Path, name: str | None = None) -> Path:
    """Write `function`, for arguments shaped like the example, as C source, header, CMake file and example program.

    The C function takes one pointer per leaf of the arguments and results (row-major arrays, booleans as bytes) and a
    workspace; it allocates nothing, has no state and may be called from several threads with a workspace each.
    """
    name = _c_name(name or getattr(function, "__name__", "function"))
    args = tuple(example_args)
    check_leaves((args, {}))
    leaves, tree = jax.tree.flatten((args, {}))
    closed, out_tree = traced(function, tree, leaves)
    program, _ = lower(closed)
    run_passes(program)
    taken: set[str] = set()
    inputs = [_argument(p, aval, taken) for p, aval in zip(_input_paths(function, args), closed.in_avals, strict=True)]
    outputs = [_argument(p, aval, taken) for p, aval in zip(_output_paths(out_tree), closed.out_avals, strict=True)]
    writer = CWriter(program, name, inputs, outputs)
    source = writer.source()
    bytes_needed = -(-max(writer.slot_most, 8) // 64) * 64
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.c").write_text(source)
    (folder / f"{name}.h").write_text(_header(name, inputs, outputs, bytes_needed))
    (folder / "example.c").write_text(_example(name, inputs, outputs, leaves))
    (folder / "CMakeLists.txt").write_text(_cmake(name))
    return folder


def _c_name(text: str) -> str:
    cleaned = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "x"
    cleaned = f"f_{cleaned}" if cleaned[0].isdigit() else cleaned
    return cleaned + "_" if cleaned in KEYWORDS else cleaned


def _input_paths(function: Callable, args: tuple) -> list[str]:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    paths = []
    for number, argument in enumerate(args):
        base = names[number] if number < len(names) and len(names) >= len(args) else f"in{number}"
        paths += [base + jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_flatten_with_path(argument)[0]]
    return paths


def _output_paths(out_tree: Any) -> list[str]:
    numbered = jax.tree.unflatten(out_tree, range(out_tree.num_leaves))
    return ["out" + jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_flatten_with_path(numbered)[0]]


def _argument(path: str, aval: Any, taken: set[str]) -> Argument:
    name = base = _c_name(path)
    number = 2
    while name in taken or re.fullmatch(r"[viphr]\d+|(table|piece|function)\d+", name):
        name, number = f"{base}_{number}", number + 1
    taken.add(name)
    return Argument(name, code_of(aval.dtype), tuple(aval.shape), f"{path}: {aval.str_short()}")


def _prototype(name: str, inputs: list[Argument], outputs: list[Argument]) -> str:
    parts = [f"const {memory_type(a)} *{a.name}" for a in inputs]
    parts += [f"{memory_type(a)} *{a.name}" for a in outputs] + ["unsigned char *workspace"]
    return f"void {name}({', '.join(parts)})"


def _header(name: str, inputs: list[Argument], outputs: list[Argument], bytes_needed: int) -> str:
    guard = f"{name.upper()}_H"
    listing = [f" *   {a.name}: {a.comment.replace('*/', '')}, {a.size} elements" for a in [*inputs, *outputs]]
    return "\n".join(
        [
            f"#ifndef {guard}", f"#define {guard}", "", "#include <stdint.h>", "",
            "/* Arrays are row-major; booleans are bytes, 0 or 1. Inputs and outputs must not overlap.",
            f" * The workspace has {name.upper()}_WORKSPACE_BYTES bytes, aligned to 8; one per thread.", " *", *listing,
            " */", f"#define {name.upper()}_WORKSPACE_BYTES {bytes_needed}", "", "#ifdef __cplusplus", 'extern "C" {',
            "#endif", "", f"{_prototype(name, inputs, outputs)};", "",
            "#ifdef __cplusplus", "}", "#endif", "", "#endif", "",
        ]
    )  # fmt: skip


def _example(name: str, inputs: list[Argument], outputs: list[Argument], leaves: Sequence[Any]) -> str:
    lines = [f'#include "{name}.h"', "", "#include <math.h>", "#include <stdio.h>", ""]
    for a, leaf in zip(inputs, leaves, strict=True):
        code = "u1" if a.dtype == "b1" else a.dtype
        values = np.asarray(leaf).astype(np.dtype(a.dtype)).astype(np.dtype(code)).reshape(-1)
        listing = ", ".join(constant_text(v, code) for v in values) or "0"
        lines.append(f"static const {memory_type(a)} {a.name}[{max(a.size, 1)}] = {{{listing}}};")
    lines += [f"static {memory_type(a)} {a.name}[{max(a.size, 1)}];" for a in outputs]
    lines += [f"static union {{ double aligned; unsigned char bytes[{name.upper()}_WORKSPACE_BYTES]; }} workspace;", ""]
    call = ", ".join([a.name for a in [*inputs, *outputs]] + ["workspace.bytes"])
    lines += ["int main(void)", "{", f"    {name}({call});"]
    for a in outputs:
        lines.append(f"    for (int i = 0; i < {a.size}; i++)")
        lines.append(f'        printf("{a.name}[%d] = %.17g\\n", i, (double){a.name}[i]);')
    return "\n".join([*lines, "    return 0;", "}", ""])


def _cmake(name: str) -> str:
    return f"""cmake_minimum_required(VERSION 3.10)
project({name} C)
set(CMAKE_C_STANDARD 99)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
add_library({name} STATIC {name}.c)
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
target_link_libraries({name} PUBLIC m)
add_executable({name}_example example.c)
target_link_libraries({name}_example {name})
"""
