"""Which files an MJCF description reads, and whether it may: looked at before MuJoCo opens any of them."""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

import mujoco
from mujoco import mjtGeom, mjtInertiaFromGeom

from knuckle.model.description import WORLD
from knuckle.model.mjcf_check import line_of_info
from knuckle.model.report import Omission, refuse
from knuckle.model.xml import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_XML_BYTES,
    Document,
    Element,
    Folders,
    PathEscape,
    line_of,
    parse_description,
    read_bytes,
    read_description,
)

MAX_EXPANDED = 10_000  # elements with their copies: MuJoCo's time grows with the square
FILE_ATTRIBUTES = ("file", "fileright", "fileleft", "fileup", "filedown", "filefront", "fileback")
USER_KINDS = ("body", "jnt", "geom", "site", "cam", "tendon", "actuator", "sensor")
MAX_SIZE = 4000  # of a field's side, or of custom data
MAX_SUBDIVISIONS = 7  # of a sphere's triangles: 4^7 times as many
MAX_RESOLUTION = 300  # of other shapes made of triangles: the square is the count of corners
SIZES = {
    "size": ("nkey", "nuserdata", *(f"nuser_{kind}" for kind in USER_KINDS)),
    "hfield": ("nrow", "ncol"),
    "numeric": ("size",),
    "mesh": ("params",),
}
NAMES = ("name", "class", "childclass", "prefix", "suffix")
NOT_A_NUMBER = re.compile(r"(?<![\w.])[+-]?nan(?!\w)", re.IGNORECASE)
NUMERIC = {  # attributes that are never empty
    *("pos", "quat", "axisangle", "xyaxes", "zaxis", "euler", "axis", "size", "fromto", "mass", "density", "friction"),
    *("diaginertia", "fullinertia", "damping", "stiffness", "armature", "frictionloss", "ref", "springref", "range"),
    *("actuatorfrcrange", "gear", "kp", "kv", "gainprm", "biasprm", "ctrlrange", "forcerange", "gravity", "qpos"),
}
RANGES = ("range", "ctrlrange", "forcerange", "actrange", "actuatorfrcrange")
ASSET_FOLDERS = {
    "mesh": "meshdir",
    "skin": "meshdir",
    "flexcomp": "meshdir",
    "hfield": "meshdir",
    "texture": "texturedir",
}


@dataclass(frozen=True)
class Assets:
    """Where the files of a description lie; `missing` names those that are not there."""

    found: dict[str, Path]  # by the name that the XML gives
    missing: frozenset[str]
    includes: dict[str, bytes]
    sizes: dict[str, int]  # elements with all copies, of bodies by name; "" stands for the whole


def check_files(document: Document, folders: Folders, above: tuple[Path, ...] = ()) -> Assets:
    """Refuse names that lead outside the folders, includes that are not there, and repetition without bound."""
    expander = _Expander(document, folders)
    root = expander.expand(document.root)
    compiler = {key: value for element in root.iter("compiler") for key, value in element.attrib.items()}
    problems = [*_not_numbers(root), *_empty_or_inverted(root), *_too_large(root)]
    found: dict[str, Path] = {}
    missing: set[str] = set()
    sizes: dict[str, dict[str, int]] = {}  # of models to attach, and of their bodies
    for element, name in _references(root):
        where = f"<{element.tag} file={name!r}>"
        try:
            path = folders.find(_asset_path(element.tag, name, compiler))
        except PathEscape as escape:
            problems.append(Omission(where, str(escape), line_of(element)))
            continue
        if path is None and element.tag in ("model", "flexcomp"):  # read as soon as MuJoCo sees the name
            problems.append(Omission(where, "there is no such file", line_of(element)))
        elif path is None:
            missing.update(_spellings(name))
        elif path.resolve() in above:
            problems.append(Omission(where, "a model cannot hold itself", line_of(element)))
        else:
            fault = _clash(found, name, path) or _file_fault(element.tag, path)
            if fault:
                problems.append(Omission(where, fault, line_of(element)))
            found.update(dict.fromkeys(_spellings(name), path))
            if element.tag == "model":
                inner = Folders(path.parent, (path.parent, *folders.allowed))
                document_inside = Document(read_description(path), str(path), path)
                inside = check_files(document_inside, inner, (*above, path.resolve()))
                sizes[element.get("name") or path.stem] = inside.sizes
                problems += [
                    Omission(where, fault, line_of(element))
                    for inner_name, inner_path in inside.found.items()
                    if (fault := _clash(found, inner_name, inner_path))
                ]
                found.update(inside.found)
                missing.update(inside.missing)
    size = _size(root, sizes)
    if size > MAX_EXPANDED:
        reason = f"expected at most {MAX_EXPANDED} elements with all copies"
        refuse(document.source, f"{reason} (replicate, composite, flexcomp, attach), got {min(size, 10**12)}")
    if problems:
        refuse(document.source, problems)
    bodies = {name: _size(body, sizes) for body in root.iter("body") if (name := body.get("name"))}
    return Assets(found, frozenset(missing), expander.includes, bodies | {"": size})


def _spellings(name: str) -> tuple[str, ...]:
    """The names that MuJoCo may make of a file name."""
    return name, name.replace("\\", "/")


def _clash(found: dict[str, Path], name: str, path: Path) -> str | None:
    """Files are told apart by their names in the XML; two of one name would be taken for each other."""
    other = found.get(name, path)
    return None if other == path else f"the name stands for two files, {other} and {path}"


def _file_fault(tag: str, path: Path) -> str | None:
    """What a file declares that MuJoCo would believe."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        return f"expected at most {MAX_BYTES} bytes, the file has {size}"
    if tag != "hfield":
        return None
    with path.open("rb") as file:
        head = file.read(24)
    if head.startswith(b"\x89PNG") and len(head) == 24:
        rows, columns = struct.unpack(">II", head[16:24])
    elif len(head) >= 8:
        rows, columns = struct.unpack("=ii", head[:8])
    else:
        return f"expected a height field, the file has {size} bytes"
    if not (0 < rows <= MAX_SIZE and 0 < columns <= MAX_SIZE):
        return f"expected a height field of at most {MAX_SIZE} x {MAX_SIZE} heights, it declares {rows} x {columns}"
    return None


def _not_numbers(root: ElementTree.Element) -> list[Omission]:
    """Attributes that are NaN, which MuJoCo takes with a line in a log file."""
    return [
        Omission(f"<{element.tag} {attribute}={value[:40]!r}>", "expected numbers", line_of(element))
        for element in root.iter()
        for attribute, value in element.attrib.items()
        if attribute not in NAMES and NOT_A_NUMBER.search(value)
    ]


def _empty_or_inverted(root: ElementTree.Element) -> list[Omission]:
    """Attributes without a number, which MuJoCo takes as not given, and ranges that it takes as unlimited."""
    found = []
    for element in root.iter():
        for attribute, value in element.attrib.items():
            where = f"<{element.tag} {attribute}={value[:40]!r}>"
            if attribute in NUMERIC and not value.strip():
                found.append(Omission(where, "expected numbers", line_of(element)))
            numbers = [_number(part) for part in value.split()] if attribute in RANGES and len(value) < 200 else []
            if len(numbers) == 2 and numbers[0] >= numbers[1] and any(numbers):
                found.append(Omission(where, "expected the lower bound before the upper one", line_of(element)))
    return found


def _too_large(root: ElementTree.Element) -> list[Omission]:
    """Attributes that make MuJoCo allocate without bound."""
    found = []
    for element in root.iter():
        for attribute in SIZES.get(element.tag, ()):
            most = MAX_SIZE
            if attribute == "params":
                most = MAX_SUBDIVISIONS if element.get("builtin") == "sphere" else MAX_RESOLUTION
            numbers = element.get(attribute, "").split()
            if any(_number(n) > most for n in numbers):
                where = f"<{element.tag} {attribute}={element.get(attribute)!r}>"
                found.append(Omission(where, f"expected at most {most}", line_of(element)))
    return found


def _number(text: str) -> float:
    """The value of a count; zero for what is no number, which MuJoCo refuses."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return 0.0 if math.isnan(value) else value


def _references(root: ElementTree.Element):
    for element in root.iter():
        for attribute in FILE_ATTRIBUTES:
            name = element.get(attribute)
            if name:
                yield element, name


def _asset_path(tag: str, name: str, compiler: dict[str, str]) -> str:
    if compiler.get("strippath") == "true":
        name = PurePosixPath(name.replace("\\", "/")).name
    folder = compiler.get(ASSET_FOLDERS.get(tag, ""), compiler.get("assetdir", ""))
    return str(PurePosixPath(folder) / name) if tag in ASSET_FOLDERS else name


class _Expander:
    """Puts the content of included files in the place of each include, on a copy of the tree."""

    def __init__(self, document: Document, folders: Folders):
        self.document, self.folders = document, folders
        self.includes: dict[str, bytes] = {}

    def expand(self, element: Element, depth: int = 0) -> Element:
        if depth > MAX_DEPTH:
            refuse(self.document.source, f"elements nest deeper than {MAX_DEPTH} with their includes")
        copy = Element(element.tag, element.attrib)
        copy.line = element.line
        for child in element:
            if child.tag == "include":
                copy.extend(self.expand(self._included(child), depth + 1))
            else:
                copy.append(self.expand(child, depth + 1))  # type: ignore[arg-type]
        return copy

    def _included(self, element: ElementTree.Element) -> Element:
        name = element.get("file", "")
        try:
            path = self.folders.find(name)
            reason = "there is no such file" if path is None else "a file can be included once"
        except PathEscape as escape:
            path, reason = None, str(escape)
        if path is None or name in self.includes:
            refuse(self.document.source, [Omission(f"<include file={name!r}>", reason, line_of(element))])
        self.includes[name] = read_bytes(path, MAX_XML_BYTES)
        return parse_description(self.includes[name], str(path))


def _size(element: ElementTree.Element, models: dict[str, dict[str, int]]) -> int:
    """Elements with all copies, counted and not made; `models` has the sizes of models to attach."""
    inner = 1 + sum(_size(child, models) for child in element)
    if element.tag == "attach":
        sizes = models.get(element.get("model", ""), {})
        inner += sizes.get(element.get("body", ""), sizes.get("", 0))
    return inner * _repeats(element)


def _repeats(element: ElementTree.Element) -> int:
    if element.tag not in ("replicate", "composite", "flexcomp"):
        return 1
    counts = (min(_number(count), 1e9) for count in element.get("count", "").split())
    return math.prod(max(1, int(count)) for count in counts)


def drop_missing_files(spec: mujoco.MjSpec, assets: Assets) -> tuple[list[Omission], list[Omission]]:
    """Take out what needs files that are not there; the second list is of shapes without which the motion is not known.

    Textures and lights are taken out always: nothing here shows them.
    """
    for unused in [*spec.textures, *spec.lights]:
        spec.delete(unused)
    for material in spec.materials:
        material.textures = [""] * len(material.textures)
    lost, needed = [], []
    for asset in [*spec.meshes, *spec.hfields, *spec.skins]:
        if asset.file in assets.found:
            asset.file = str(assets.found[asset.file])
        elif asset.file in assets.missing:
            kind = "mesh" if asset in spec.meshes else "hfield" if asset in spec.hfields else "skin"
            name = asset.name or PurePosixPath(asset.file).stem
            told = Omission(f"{kind} {name!r}", f"file {asset.file!r} is not there", line_of_info(asset))
            for geom in [g for g in spec.geoms if getattr(g, f"{kind}name", None) == name]:
                known = kind == "mesh" and _mass_is_known(spec, geom)
                (lost if known else needed).append(_missing_shape(geom, told, known))
                spec.delete(geom)
            if kind == "skin":
                lost.append(told)
            spec.delete(asset)
        elif asset.file:
            needed.append(
                Omission(f"file {asset.file!r}", "is not among the files that were checked", line_of_info(asset))
            )
            spec.delete(asset)
    return lost, needed


def _mass_is_known(spec: mujoco.MjSpec, geom) -> bool:
    """Whether the body's inertia is given without its shapes."""
    stated = geom.parent.explicitinertial or geom.parent.name == WORLD
    return stated and spec.compiler.inertiafromgeom != mjtInertiaFromGeom.mjINERTIAFROMGEOM_TRUE


def _missing_shape(geom, told: Omission, known: bool) -> Omission:
    consequence = "; the shape is left out" if known else ", and no <inertial> gives the mass it stands for"
    if geom.type == mjtGeom.mjGEOM_HFIELD:
        consequence = "; height fields are not among the shapes here"
    return Omission(f"{told.element} of body {geom.parent.name!r}", told.reason + consequence, line_of_info(geom))
