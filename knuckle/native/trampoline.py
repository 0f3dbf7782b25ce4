"""The one function that XLA calls: it finds the address of the machine code among the attributes and jumps there.

Written in LLVM IR against the C interface that jaxlib ships (`jax.ffi.include_dir()`, xla/ffi/api/c_api.h).
"""

from __future__ import annotations

import llvmlite.binding as llvm

API_VERSION = (0, 3)
METADATA_EXTENSION = 1  # XLA_FFI_Extension_Metadata
OFFSETS = {  # bytes into the structs of c_api.h
    "XLA_FFI_CallFrame.extension_start": 8,
    "XLA_FFI_CallFrame.args.size": 56,
    "XLA_FFI_CallFrame.args.args": 72,
    "XLA_FFI_CallFrame.rets.size": 96,
    "XLA_FFI_CallFrame.rets.rets": 112,
    "XLA_FFI_CallFrame.attrs.attrs": 160,
    "XLA_FFI_Buffer.data": 24,
    "XLA_FFI_Scalar.value": 8,
    "XLA_FFI_Extension_Base.type": 8,
    "XLA_FFI_Metadata_Extension.metadata": 24,
    "XLA_FFI_Metadata.api_version.major_version": 24,
    "XLA_FFI_Metadata.api_version.minor_version": 28,
    "XLA_FFI_Metadata.traits": 32,
    "XLA_FFI_Metadata.state_type_id": 40,
}

# Attributes come sorted by name: address, rows, stack. The workspace is `stack` bytes on the stack; if that is 0 it is
# the last result, not yet aligned.
TEXT = """
define ptr @trampoline(ptr %frame) {{
entry:
  %extension_at = getelementptr i8, ptr %frame, i64 {XLA_FFI_CallFrame.extension_start}
  %extension = load ptr, ptr %extension_at
  %plain = icmp eq ptr %extension, null
  br i1 %plain, label %call, label %extended
extended:
  %type_at = getelementptr i8, ptr %extension, i64 {XLA_FFI_Extension_Base.type}
  %type = load i32, ptr %type_at
  %asks = icmp eq i32 %type, {metadata_extension}
  br i1 %asks, label %metadata, label %call
metadata:
  %metadata_at = getelementptr i8, ptr %extension, i64 {XLA_FFI_Metadata_Extension.metadata}
  %data = load ptr, ptr %metadata_at
  %major = getelementptr i8, ptr %data, i64 {XLA_FFI_Metadata.api_version.major_version}
  store i32 {major}, ptr %major
  %minor = getelementptr i8, ptr %data, i64 {XLA_FFI_Metadata.api_version.minor_version}
  store i32 {minor}, ptr %minor
  %traits = getelementptr i8, ptr %data, i64 {XLA_FFI_Metadata.traits}
  store i32 0, ptr %traits
  %state = getelementptr i8, ptr %data, i64 {XLA_FFI_Metadata.state_type_id}
  store i64 0, ptr %state
  ret ptr null
call:
  %inputs_count_at = getelementptr i8, ptr %frame, i64 {XLA_FFI_CallFrame.args.size}
  %inputs_count = load i64, ptr %inputs_count_at
  %inputs_at = getelementptr i8, ptr %frame, i64 {XLA_FFI_CallFrame.args.args}
  %input_buffers = load ptr, ptr %inputs_at
  %outputs_count_at = getelementptr i8, ptr %frame, i64 {XLA_FFI_CallFrame.rets.size}
  %outputs_count = load i64, ptr %outputs_count_at
  %outputs_at = getelementptr i8, ptr %frame, i64 {XLA_FFI_CallFrame.rets.rets}
  %output_buffers = load ptr, ptr %outputs_at
  %attributes_at = getelementptr i8, ptr %frame, i64 {XLA_FFI_CallFrame.attrs.attrs}
  %attributes = load ptr, ptr %attributes_at
  %address = call i64 @attribute(ptr %attributes, i64 0)
  %rows = call i64 @attribute(ptr %attributes, i64 1)
  %stack = call i64 @attribute(ptr %attributes, i64 2)
  %inputs = alloca ptr, i64 %inputs_count
  %outputs = alloca ptr, i64 %outputs_count
  call void @gather(ptr %input_buffers, ptr %inputs, i64 %inputs_count)
  call void @gather(ptr %output_buffers, ptr %outputs, i64 %outputs_count)
  %stack_workspace = alloca i8, i64 %stack, align 64
  %last = sub i64 %outputs_count, 1
  %result_at = getelementptr ptr, ptr %outputs, i64 %last
  %result = load i64, ptr %result_at
  %beyond = add i64 %result, 63
  %aligned = and i64 %beyond, -64
  %result_workspace = inttoptr i64 %aligned to ptr
  %no_stack = icmp eq i64 %stack, 0
  %scratch = select i1 %no_stack, ptr %result_workspace, ptr %stack_workspace
  %function = inttoptr i64 %address to ptr
  %single = icmp slt i64 %rows, 0
  br i1 %single, label %one, label %many
one:
  call void %function(ptr %inputs, ptr %outputs, ptr %scratch)
  ret ptr null
many:
  call void %function(ptr %inputs, ptr %outputs, ptr %scratch, i64 0, i64 %rows)
  ret ptr null
}}

define internal i64 @attribute(ptr %attributes, i64 %number) {{
  %scalar_at = getelementptr ptr, ptr %attributes, i64 %number
  %scalar = load ptr, ptr %scalar_at
  %value_at = getelementptr i8, ptr %scalar, i64 {XLA_FFI_Scalar.value}
  %value_pointer = load ptr, ptr %value_at
  %value = load i64, ptr %value_pointer
  ret i64 %value
}}

define internal void @gather(ptr %buffers, ptr %pointers, i64 %count) {{
entry:
  br label %test
test:
  %k = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %body, label %done
body:
  %buffer_at = getelementptr ptr, ptr %buffers, i64 %k
  %buffer = load ptr, ptr %buffer_at
  %data_at = getelementptr i8, ptr %buffer, i64 {XLA_FFI_Buffer.data}
  %data = load ptr, ptr %data_at
  %to = getelementptr ptr, ptr %pointers, i64 %k
  store ptr %data, ptr %to
  %next = add i64 %k, 1
  br label %test
done:
  ret void
}}
"""


def trampoline_object() -> bytes:
    """The trampoline as an object file for this machine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = TEXT
    for name, offset in OFFSETS.items():
        text = text.replace("{" + name + "}", str(offset))
    text = text.format(metadata_extension=METADATA_EXTENSION, major=API_VERSION[0], minor=API_VERSION[1])
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        opt=2, reloc="pic", codemodel="large"
    )
    return machine.emit_object(llvm.parse_assembly(text))
