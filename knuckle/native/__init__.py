"""A compiler from JAX functions of small static shapes to machine code, and to C."""

from knuckle.native.api import jit
from knuckle.native.trace import UnsupportedPrimitive

__all__ = ["UnsupportedPrimitive", "jit"]
