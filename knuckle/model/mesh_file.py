"""Triangle meshes from files, read from bytes alone so that no file can pull in another."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from knuckle.model.geometry import Mesh
from knuckle.model.xml import parse_bytes, read_bytes

FORMATS = ("stl", "obj", "dae", "ply")


def read_mesh(path: Path, name: str) -> Mesh:
    """The mesh in an STL, OBJ, DAE or PLY file, vertices [m] as they stand there; `name` is what it is called.

    Raises ValueError that says why, if it cannot be read.
    """
    import trimesh  # slow to import

    kind = path.suffix.lower().lstrip(".")
    if kind not in FORMATS:
        raise ValueError(f"mesh {name!r}: expected one of {', '.join(FORMATS)}, got {path.suffix or 'no suffix'!r}")
    content = read_bytes(path)
    if kind == "dae":
        parse_bytes(content, name)  # refuses entities before the COLLADA reader sees them
    try:
        loaded = trimesh.load(io.BytesIO(content), file_type=kind, force="mesh", process=False, skip_materials=True)
        vertices, faces = np.asarray(loaded.vertices, float), np.asarray(loaded.faces, np.int64)  # type: ignore[union-attr]
    except Exception as error:  # what trimesh raises on a broken file is not documented
        raise ValueError(f"mesh {name!r} cannot be read: {type(error).__name__}: {error}") from error
    if not len(faces) or not np.all(np.isfinite(vertices)):
        raise ValueError(f"mesh {name!r}: expected triangles with finite corners, got {len(faces)} triangles")
    return Mesh(vertices, faces, path=name)
