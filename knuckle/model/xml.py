"""XML from strangers: parsed without entities, bounded in size and depth, and kept to its own folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree
from xml.parsers import expat

from knuckle.model.report import LoadError, refuse

MAX_BYTES = 64 * 2**20  # of a mesh
MAX_XML_BYTES = 16 * 2**20  # of a description
MAX_DEPTH = 200
MAX_ELEMENTS = 100_000
MAX_NAME = 1000  # characters of a tag or of the name of an attribute


class Element(ElementTree.Element):
    """An element that knows the line it starts on; namespace prefixes stay part of the tag."""

    line: int | None = None


@dataclass(frozen=True)
class Document:
    """A parsed file: its root, what to call it in messages, and where it lies (None for a string)."""

    root: Element
    source: str
    path: Path | None


def parse(source: str | Path) -> Document:
    """Parse a file, or a string that holds XML itself, refusing what could harm.

    A DOCTYPE or ENTITY, nesting deeper than 200, more than 16 MB or 100,000 elements are refused by name.
    """
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"expected a path or a string of XML, got {type(source).__name__}")
    if _is_markup(source):
        content = str(source)[: MAX_XML_BYTES + 1].encode(errors="surrogatepass")
        return Document(parse_description(content, "XML string", "utf-8"), "XML string", None)
    path = Path(source)
    return Document(read_description(path), str(path), path)


def read_description(path: Path) -> Element:
    """The root element of a file that describes a mechanism."""
    return parse_description(read_bytes(path, MAX_XML_BYTES), str(path))


def parse_description(content: bytes, source: str, encoding: str | None = None) -> Element:
    """The root element of a text that describes a mechanism."""
    if len(content) > MAX_XML_BYTES:
        refuse(source, f"expected at most {MAX_XML_BYTES} bytes, got more")
    return parse_bytes(content, source, encoding)


def _is_markup(source: str | os.PathLike) -> bool:
    return isinstance(source, str) and (source.lstrip("\ufeff \t\r\n")[:1] in ("<", "") or "\n" in source)


def read_bytes(path: Path, most: int = MAX_BYTES) -> bytes:
    """The content of a regular file of at most so many bytes."""
    name = str(path)
    try:
        if path.is_dir():
            refuse(name, "expected a file, this is a folder")
        if not path.is_file():
            refuse(name, f"there is no such file (looked from {Path.cwd()})")
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        refuse(name, f"the file cannot be read ({error.strerror})")
    if len(content) > most:
        refuse(name, f"expected at most {most} bytes, the file has {path.stat().st_size}")
    return content


def parse_bytes(content: bytes, source: str, encoding: str | None = None) -> Element:
    """The root element of XML text; `source` names it in messages."""
    if not content.strip():
        refuse(source, "expected XML, got nothing: it is empty")
    builder = _Builder(source, encoding)
    try:
        builder.parser.Parse(content, True)
    except LoadError:
        raise
    except (expat.ExpatError, ValueError, LookupError) as error:  # the last two: an encoding that does not exist
        refuse(source, f"expected well-formed XML: {error}")
    assert builder.root is not None  # expat refuses a document without a root
    return builder.root


class _Builder:
    """Builds the tree from expat's events; refuses at the first sign of a document type."""

    def __init__(self, source: str, encoding: str | None):
        self.source = source
        self.root: Element | None = None
        self.open: list[Element] = []
        self.texts: list[list[str]] = []
        self.count = 0
        self.parser = expat.ParserCreate(encoding)
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.EntityDeclHandler = self._entity
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text

    def _doctype(self, name, system, public, subset):
        refuse(self.source, f"a DOCTYPE is not allowed (line {self.parser.CurrentLineNumber}: {name!r})")

    def _entity(self, name, *_):
        refuse(self.source, f"an ENTITY is not allowed (line {self.parser.CurrentLineNumber}: {name!r})")

    def _start(self, tag: str, attributes: dict[str, str]):
        element = Element(tag, attributes)
        element.line = self.parser.CurrentLineNumber
        self.count += 1
        if len(self.open) >= MAX_DEPTH:
            refuse(self.source, f"elements nest deeper than {MAX_DEPTH} (line {element.line}: <{tag}>)")
        if self.count > MAX_ELEMENTS:
            refuse(self.source, f"expected at most {MAX_ELEMENTS} elements (line {element.line}: <{tag}>)")
        if max(map(len, (tag, *attributes))) > MAX_NAME:
            refuse(
                self.source,
                f"names of elements and attributes have at most {MAX_NAME} characters (line {element.line})",
            )
        if self.open:
            self.open[-1].append(element)
        else:
            self.root = element
        self.open.append(element)
        self.texts.append([])

    def _end(self, tag: str):
        self.open.pop().text = "".join(self.texts.pop()) or None

    def _text(self, text: str):
        if len(self.open[-1]) == 0:
            self.texts[-1].append(text)


def line_of(element: ElementTree.Element) -> int | None:
    """The line that an element starts on, if it was parsed here."""
    return getattr(element, "line", None)


class PathEscape(ValueError):
    """A file name in a description that leads outside the folders it may read from."""


@dataclass(frozen=True)
class Folders:
    """The folders that a description may read files from: its own, its package's, and those that the caller names."""

    own: Path | None
    allowed: tuple[Path, ...]

    @staticmethod
    def of(path: Path | None, package_paths: Sequence[str | Path] = ()) -> Folders:
        if isinstance(package_paths, str | os.PathLike):
            raise ValueError(f"package_paths: expected a list of folders, got {str(package_paths)!r} on its own")
        packages = tuple(Path(p).resolve() for p in package_paths)
        for folder in packages:
            if not folder.is_dir():
                raise ValueError(f"package_paths: expected folders, {str(folder)!r} is none")
        if path is None:
            return Folders(None, packages)
        own = path.resolve().parent
        return Folders(own, (own, *_package_of(own), *packages))

    def find(self, name: str) -> Path | None:
        """The file that `name` (relative, absolute, file:// or package://) stands for, or None if it is not there.

        Raises PathEscape if it leads outside through `..`, an absolute path or a symbolic link.
        """
        if "\0" in name:
            raise PathEscape(f"file name {name!r} holds a zero byte")
        name = name.replace("\\", "/")  # as MuJoCo does
        absolute = name.removeprefix("file://")
        if absolute.startswith(("/", "~")) or Path(absolute).is_absolute():
            return self._absolute(Path(absolute))
        candidates = self._candidates(name)
        found = next((c for c in candidates if self._is_inside(c) and c.is_file()), None)
        if found is None and not (self._is_inside(candidates[0]) if candidates else _stays_below(name)):
            raise PathEscape(f"{name!r} leads outside {self._listed()}")
        return found

    def _absolute(self, path: Path) -> Path | None:
        if not _exists(path):
            return None
        if not self._is_inside(path):
            raise PathEscape(f"{str(path)!r} leads outside {self._listed()}")
        return path

    def _candidates(self, name: str) -> list[Path]:
        scheme, separator, rest = name.partition("://")
        if not separator:
            return [root / name for root in self.allowed]
        if scheme not in ("package", "model"):
            raise PathEscape(f"{name!r}: expected a file name or package://, got {scheme}://")
        package, _, inner = rest.partition("/")
        named = [root / inner for root in self.allowed if root.name == package]
        return named + [root / rest for root in self.allowed]

    def _is_inside(self, candidate: Path) -> bool:
        try:
            target = candidate.resolve()
        except (OSError, RuntimeError):  # a loop of symbolic links
            return False
        return any(target.is_relative_to(root) for root in self.allowed)

    def _listed(self) -> str:
        return f"the folders that may be read ({', '.join(map(str, self.allowed)) or 'none'})"


def _package_of(folder: Path) -> tuple[Path, ...]:
    """The ROS package that a description lies in: what holds package.xml, or the `urdf` folder."""
    if folder.name == "urdf":
        return (folder.parent,)
    return tuple(f for f in (folder, *list(folder.parents)[:2]) if (f / "package.xml").is_file())[:1]


def _stays_below(name: str) -> bool:
    return not os.path.normpath(name.partition("://")[2] or name).startswith("..")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
