"""A compiler from JAX functions of small static shapes to machine code, and to C; it knows no physics."""

from knuckle.native.api import jit, vmap
from knuckle.native.export import export_c
from knuckle.native.trace import UnsupportedPrimitive

__all__ = ["UnsupportedPrimitive", "export_c", "jit", "vmap"]
