"""Hostile XML is refused by name, and file names cannot leave their folders."""

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knuckle.model import xml
from knuckle.model.load import load
from knuckle.model.report import LoadError
from knuckle.model.xml import Folders, PathEscape, parse

BOMB = """<?xml version="1.0"?>
<!DOCTYPE robot [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>
<robot name="&c;"/>"""
EXTERNAL = '<!DOCTYPE robot [<!ENTITY x SYSTEM "file:///etc/passwd">]><robot name="&x;"/>'


@pytest.mark.parametrize("text", [BOMB, EXTERNAL, '<!DOCTYPE robot SYSTEM "http://x/y.dtd"><robot/>'])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_document_types_are_refused_in_every_encoding(text, encoding, tmp_path):
    if encoding == "utf-16":
        text = text.replace('<?xml version="1.0"?>', "")
    path = tmp_path / "bomb.urdf"
    path.write_bytes(text.encode(encoding))
    with pytest.raises(LoadError, match="DOCTYPE is not allowed"):
        load(path)


def test_a_bomb_in_a_string_is_refused():
    with pytest.raises(LoadError, match="DOCTYPE is not allowed"):
        load(BOMB)


def test_nesting_is_bounded():
    assert parse("<a>" * 200 + "</a>" * 200).root.tag == "a"
    with pytest.raises(LoadError, match="deeper than 200"):
        parse("<a>" * 201 + "</a>" * 201)
    with pytest.raises(LoadError, match="deeper than 200"):
        load("<robot>" * 100_000)


def test_size_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(xml, "MAX_XML_BYTES", 1000)
    path = tmp_path / "long.urdf"
    path.write_text("<robot>" + " " * 1000 + "</robot>")
    with pytest.raises(LoadError, match="at most 1000 bytes"):
        load(path)
    with pytest.raises(LoadError, match="at most 1000 bytes"):
        load(path.read_text())


def test_the_number_of_elements_is_bounded(monkeypatch):
    monkeypatch.setattr(xml, "MAX_ELEMENTS", 10)
    with pytest.raises(LoadError, match="at most 10 elements"):
        parse("<a>" + "<b/>" * 10 + "</a>")


def test_lines_are_kept():
    root = parse("<a>\n<!-- c -->\n<b x='1'/>\n\n<p:c>text</p:c></a>").root
    assert [(e.tag, xml.line_of(e)) for e in root.iter()] == [("a", 1), ("b", 3), ("p:c", 5)]
    assert root[1].text == "text"


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_refused(text):
    with contextlib.suppress(LoadError):
        parse(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(content):
    try:
        xml.parse_bytes(b"<robot>" + content, "bytes")
    except LoadError as error:
        assert str(error).startswith("cannot load bytes:")


@pytest.fixture
def folders(tmp_path) -> Folders:
    (tmp_path / "secret.stl").write_text("x")
    home = tmp_path / "robot"
    (home / "meshes").mkdir(parents=True)
    (home / "meshes" / "arm.stl").write_text("x")
    (home / "link.stl").symlink_to(tmp_path / "secret.stl")
    (home / "loop.stl").symlink_to(home / "loop.stl")
    return Folders.of(home / "robot.urdf")


@pytest.mark.parametrize(
    "name",
    [
        "../secret.stl",
        "meshes/../../secret.stl",
        "package://robot/../secret.stl",
        "package://../secret.stl",
        "/etc/passwd",
        "file:///etc/passwd",
        "link.stl",
        "http://example.org/arm.stl",
        "arm\0.stl",
    ],
)
def test_names_that_lead_outside_are_refused(folders, name):
    with pytest.raises(PathEscape, match=re.escape(repr(name.removeprefix("file://")))):
        folders.find(name)


@pytest.mark.parametrize("name", ["meshes/arm.stl", "./meshes/arm.stl", "package://robot/meshes/arm.stl"])
def test_names_inside_are_found(folders, name):
    found = folders.find(name)
    assert found is not None and found.resolve() == folders.own / "meshes" / "arm.stl"


def test_an_absolute_name_inside_is_found(folders):
    inside = str(folders.own / "meshes" / "arm.stl")
    assert folders.find(inside) == Path(inside) == folders.find("file://" + inside)


@pytest.mark.parametrize("name", ["gone.stl", "package://other/gone.stl", "/no/such/file.stl"])
def test_files_that_are_not_there_are_no_escape(folders, name):
    assert folders.find(name) is None


def test_package_paths_open_other_folders(tmp_path, folders):
    with pytest.raises(ValueError, match="package_paths: expected folders"):
        Folders.of(None, [tmp_path / "gone"])
    with pytest.raises(ValueError, match="package_paths: expected a list of folders"):
        Folders.of(None, str(tmp_path))
    opened = Folders.of(folders.own / "robot.urdf", [tmp_path])
    assert opened.find("../secret.stl") == folders.own / "../secret.stl"
    assert Folders.of(None, [tmp_path]).find("package://robot/meshes/arm.stl") == folders.own / "meshes" / "arm.stl"


def test_the_package_around_a_urdf_folder_may_be_read(tmp_path):
    (tmp_path / "urdf").mkdir()
    (tmp_path / "arm.stl").write_text("x")
    assert Folders.of(tmp_path / "urdf" / "robot.urdf").find("../arm.stl") is not None
    with pytest.raises(PathEscape):
        Folders.of(tmp_path / "urdf" / "robot.urdf").find("../../arm.stl")


@pytest.mark.parametrize("place", ["arm/urdf", "arm", ".", "arm/model/v2"])
def test_a_package_is_found_around_the_file_by_its_name(tmp_path, place):
    (tmp_path / "arm" / "meshes").mkdir(parents=True)
    (tmp_path / "arm" / "meshes" / "a.stl").write_text("x")
    (tmp_path / "arm" / "package.xml").write_text("<package/>")
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    found = Folders.of(tmp_path / place / "robot.urdf").find("package://arm/meshes/a.stl")
    assert found == tmp_path / "arm" / "meshes" / "a.stl"
