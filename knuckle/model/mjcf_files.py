"""Which files an MJCF description reads, and whether it may: looked at before MuJoCo opens any of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

import mujoco
from mujoco import mjtGeom, mjtInertiaFromGeom

from knuckle.model.description import WORLD
from knuckle.model.mjcf_check import line_of_info
from knuckle.model.report import Omission, refuse
from knuckle.model.xml import MAX_DEPTH, Document, Element, Folders, PathEscape, line_of, parse_bytes, read_bytes

MAX_EXPANDED = 1_000_000
FILE_ATTRIBUTES = ("file", "fileright", "fileleft", "fileup", "filedown", "filefront", "fileback")
USER_KINDS = ("body", "jnt", "geom", "site", "cam", "tendon", "actuator", "sensor")
MAX_SIZE = 4000  # of a field's side, or of custom data
MAX_SUBDIVISIONS = 7  # of a sphere's triangles: 4^7 times as many
SIZES = {
    "size": ("nkey", "nuserdata", *(f"nuser_{kind}" for kind in USER_KINDS)),
    "hfield": ("nrow", "ncol"),
    "numeric": ("size",),
    "mesh": ("params",),
}
NAMES = ("name", "class", "childclass", "prefix", "suffix")
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


def check_files(document: Document, folders: Folders) -> Assets:
    """Refuse names that lead outside the folders, includes that are not there, and repetition without bound."""
    expander = _Expander(document, folders)
    root = expander.expand(document.root)
    if _size(root) > MAX_EXPANDED:
        refuse(document.source, f"replicate, composite and flexcomp make more than {MAX_EXPANDED} elements")
    compiler = {key: value for element in root.iter("compiler") for key, value in element.attrib.items()}
    problems = [*_not_numbers(root), *_too_large(root)]
    found: dict[str, Path] = {}
    missing: set[str] = set()
    for element, name in _references(root):
        try:
            path = folders.find(_asset_path(element.tag, name, compiler))
        except PathEscape as escape:
            problems.append(Omission(f"<{element.tag} file={name!r}>", str(escape), line_of(element)))
            continue
        if path is None and element.tag in ("model", "flexcomp"):  # read as soon as MuJoCo sees the name
            problems.append(Omission(f"<{element.tag} file={name!r}>", "there is no such file", line_of(element)))
        elif path is None:
            missing.add(name)
        else:
            found[name] = path
            if element.tag == "model":
                inner = Folders(path.parent, (path.parent, *folders.allowed))
                check_files(Document(parse_bytes(read_bytes(path), str(path)), str(path), path), inner)
    if problems:
        refuse(document.source, problems)
    return Assets(found, frozenset(missing), expander.includes)


def _not_numbers(root: ElementTree.Element) -> list[Omission]:
    """Attributes that are NaN, which MuJoCo takes with a line in a log file."""
    return [
        Omission(f"<{element.tag} {attribute}={value!r}>", "expected numbers", line_of(element))
        for element in root.iter()
        for attribute, value in element.attrib.items()
        if attribute not in NAMES and "nan" in value.lower().replace("+", " ").replace("-", " ").split()
    ]


def _too_large(root: ElementTree.Element) -> list[Omission]:
    """Attributes that make MuJoCo allocate without bound."""
    found = []
    for element in root.iter():
        for attribute in SIZES.get(element.tag, ()):
            most = MAX_SUBDIVISIONS if attribute == "params" and element.get("builtin") == "sphere" else MAX_SIZE
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
        self.includes[name] = read_bytes(path)
        return parse_bytes(self.includes[name], str(path))


def _size(element: ElementTree.Element) -> int:
    """Elements after replication, counted and not made."""
    inner = 1 + sum(_size(child) for child in element)
    return inner * _repeats(element)


def _repeats(element: ElementTree.Element) -> int:
    if element.tag not in ("replicate", "composite", "flexcomp"):
        return 1
    counts = (min(_number(count), 2.0 * MAX_EXPANDED) for count in element.get("count", "").split())
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
