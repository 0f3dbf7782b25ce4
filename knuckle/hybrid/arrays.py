"""Arrays as entries of the manifest: type, shape, checksum, and whether it was NumPy's, JAX's or a NumPy scalar."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from knuckle.hybrid.container import DTYPES, Members, npy_bytes

ORIGINS = ("numpy", "scalar", "jax", "jax weak")
MOST_AXES = 8
Arrays = dict[str, bytes]


def is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray | np.generic)


def is_array_entry(node: Any) -> bool:
    return isinstance(node, dict) and "array" in node


def array_entry(value: Any, place: str, arrays: Arrays) -> dict[str, Any]:
    """What the manifest says of an array, whose bytes go to `arrays`."""
    dtype = str(value.dtype) if jnp.issubdtype(value.dtype, jax.dtypes.extended) else np.dtype(value.dtype).str
    if dtype not in DTYPES or value.dtype.kind == "V":
        raise ValueError(f"{place}: a file holds numbers of type {', '.join(DTYPES)}, got {value.dtype}")
    array = np.asarray(value)
    data = arrays[place] = npy_bytes(array)
    digest = hashlib.sha256(data).hexdigest()
    return {"array": dtype, "shape": list(array.shape), "of": _origin(value), "sha256": digest}


def _origin(value: Any) -> str:
    if isinstance(value, jax.Array):
        return "jax weak" if value.aval.weak_type else "jax"  # pyright: ignore[reportAttributeAccessIssue]
    return "numpy" if isinstance(value, np.ndarray) else "scalar"


def array_of(node: dict[str, Any], place: str, members: Members, infinite: bool = False) -> Any:
    """The array of an entry; NaN never, and infinity only where it means that there is no limit."""
    if set(node) != {"array", "shape", "of", "sha256"}:
        members.fail(place, f"an array has the entries array, shape, of and sha256, got {sorted(map(str, node))}")
    dtype, shape, origin, digest = node["array"], node["shape"], node["of"], node["sha256"]
    if origin not in ORIGINS or not isinstance(dtype, str) or not isinstance(digest, str):
        members.fail(place, f"expected an array of {', '.join(ORIGINS)}, got {node!r:.200}")
    whole = isinstance(shape, list) and all(type(size) is int and 0 <= size < 2**40 for size in shape)
    if not whole or len(shape) > MOST_AXES:
        members.fail(place, f"expected a shape of at most {MOST_AXES} sizes, got {shape!r:.200}")
    array = members.take(place, dtype, tuple(shape), digest)
    if array.dtype.kind == "f" and not np.all(~np.isnan(array) if infinite else np.isfinite(array)):
        members.fail(place, f"expected {'numbers' if infinite else 'finite numbers'}, got NaN or infinity")
    if array.dtype.kind == "b" and np.any(array.view(np.uint8) > 1):
        members.fail(place, "expected bytes 0 or 1 as truth values")
    return _restored(array, origin, place, members)


def _restored(array: np.ndarray, origin: str, place: str, members: Members) -> Any:
    if origin == "numpy":
        return array
    if origin == "scalar":
        return array[()] if array.ndim == 0 else members.fail(place, f"expected one number, got shape {array.shape}")
    if array.dtype.itemsize == 8 and not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        members.fail(
            place, f"a JAX array of {array.dtype} needs jax.config.update('jax_enable_x64', True) before loading"
        )
    if origin == "jax":
        return jnp.asarray(array)
    kind = {"f": 0.0, "i": 0, "u": 0, "b": False}[array.dtype.kind]
    weak = jnp.full(array.shape, kind)
    if weak.dtype != array.dtype:
        members.fail(place, f"a weakly typed array has type {weak.dtype} here, got {array.dtype}")
    return weak.at[...].set(array)
