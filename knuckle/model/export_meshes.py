"""Mesh files of a model that is written as URDF: named as before where they are found, else written beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

import numpy as np

from knuckle.model.geometry import Mesh
from knuckle.model.mesh_file import read_mesh
from knuckle.model.xml import Folders


@contextmanager
def mesh_files(path: Path, meshes: Iterable[Mesh | None]) -> Iterator[dict[Mesh, str]]:
    """What each mesh is called in a file at `path`, so that it is found from there.

    A mesh whose own name does not lead to it from there is written into the folder NAME_meshes beside the file, as OBJ
    with every digit. If the block fails, what was written is taken away again.
    """
    folder, folders = path.parent / f"{path.stem}_meshes", Folders.of(path)
    new_folder, written = not folder.exists(), []
    names: dict[Mesh, str] = {}
    try:
        for mesh in dict.fromkeys(mesh for mesh in meshes if mesh is not None):
            if _is_found(mesh, folders):
                names[mesh] = mesh.path
                continue
            content = obj_text(mesh).encode()
            file = _file_for(mesh, folder, content)
            if not file.exists():
                folder.mkdir(exist_ok=True)
                written.append(file)
                file.write_bytes(content)
            names[mesh] = f"{folder.name}/{file.name}"
        yield names
    except BaseException:
        for file in written:
            file.unlink(missing_ok=True)
        if new_folder and folder.is_dir():
            folder.rmdir()
        raise


def _is_found(mesh: Mesh, folders: Folders) -> bool:
    """Whether the mesh's own name leads to a file with the same content."""
    with suppress(ValueError, OSError):  # it leads outside, or to a file that is no mesh
        file = folders.find(mesh.path) if mesh.path else None
        if file is not None:
            there = read_mesh(file, mesh.path)
            return np.array_equal(there.vertices, mesh.vertices) and np.array_equal(there.faces, mesh.faces)
    return False


def _file_for(mesh: Mesh, folder: Path, content: bytes) -> Path:
    """A file that holds this mesh already, or is free."""
    stem = re.sub(r"[^\w-]", "_", PurePosixPath(mesh.path).stem) or "mesh"
    file, number = folder / f"{stem}.obj", 1
    while file.exists() and file.read_bytes() != content:
        number += 1
        file = folder / f"{stem}_{number}.obj"
    return file


def obj_text(mesh: Mesh) -> str:
    """A mesh as Wavefront OBJ, corners and triangles in their own order."""
    corners = [f"v {float(x)!r} {float(y)!r} {float(z)!r}\n" for x, y, z in mesh.vertices]
    triangles = [f"f {a} {b} {c}\n" for a, b, c in mesh.faces + 1]
    return "".join([*corners, *triangles])
