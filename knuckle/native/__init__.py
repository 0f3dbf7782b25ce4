"""A compiler from JAX functions of small static shapes to machine code, and to C; it knows no physics."""

from knuckle.native.api import jit, vmap
from knuckle.native.compile import Compiled, compile_jaxpr
from knuckle.native.export import export_c
from knuckle.native.spread import jacfwd, lanes
from knuckle.native.trace import UnsupportedPrimitive

__all__ = ["Compiled", "UnsupportedPrimitive", "compile_jaxpr", "export_c", "jacfwd", "jit", "lanes", "vmap"]
