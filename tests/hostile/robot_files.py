"""Robot descriptions and meshes that mean harm. Each function writes one and returns its path."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

LINKS = '<link name="a"/><link name="b"/>'
JOINT = '<joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint>'
BODY = '<body name="b"><joint name="j"/><geom size="0.1"/></body>'


def urdf(folder: Path, inside: str = "", attributes: str = 'name="r"', link: str = "") -> Path:
    links = f'<link name="a"/><link name="b">{link}</link>'
    path = folder / "robot.urdf"
    path.write_text(f"<robot {attributes}>{links}{JOINT}{inside}</robot>")
    return path


def mjcf(folder: Path, inside: str = "", before: str = "", after: str = "", name: str = "robot.xml") -> Path:
    path = folder / name
    path.write_text(f"<mujoco>{before}<worldbody>{BODY}{inside}</worldbody>{after}</mujoco>")
    return path


def with_mesh(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return urdf(folder, link=f'<visual><geometry><mesh filename="{name}"/></geometry></visual>')


def with_asset(folder: Path, asset: str, geom: str = '<geom type="mesh" mesh="m"/>') -> Path:
    return mjcf(folder, f"<body><joint/>{geom}</body>", before=f"<asset>{asset}</asset>")


def stl(count: int, triangles: int = 1) -> bytes:
    corners = struct.pack("<12fH", 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0)
    return bytes(80) + struct.pack("<I", count) + corners * triangles


def png(width: int, height: int) -> bytes:
    """A grey image that is all zeros, compressed a thousandfold."""
    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(1 + width)) for _ in range(min(height, 2000))) + packer.flush()
    parts = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b""))
    chunks = (struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def written(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return name


def chain(folder: Path, count: int) -> Path:
    fixed = '<link name="l{0}"/><joint name="f{0}" type="fixed"><parent link="b"/><child link="l{0}"/></joint>'
    return urdf(folder, "".join(fixed.format(i) for i in range(count)))


def outside(folder: Path) -> None:
    """A file that lies beside the folder that may be read."""
    (folder.parent / "secret.obj").write_text(
        "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 2 3\nf 1 2 4\nf 1 3 4\nf 2 3 4\n"
    )


def escaping(folder: Path, xml: Callable[[Path], Path]) -> Path:
    outside(folder)
    return xml(folder)


def nested(tag: str, depth: int, inside: str, attributes: str = "") -> str:
    return f"<{tag} {attributes}>" * depth + inside + f"</{tag}>" * depth


def attached(folder: Path, count: int) -> Path:
    mjcf(folder, '<body name="many"><replicate count="1000"><site/></replicate></body>', name="child.xml")
    attach = "".join(f'<frame><attach model="c" body="many" prefix="p{i}_"/></frame>' for i in range(count))
    return mjcf(folder, attach, before='<asset><model name="c" file="child.xml"/></asset>')


def holding_itself(folder: Path) -> Path:
    return mjcf(folder, before='<asset><model name="c" file="robot.xml"/></asset>')


def including(folder: Path, *files: tuple[str, str]) -> Path:
    for name, target in files:
        (folder / name).write_text(f'<mujocoinclude><include file="{target}"/></mujocoinclude>')
    return mjcf(folder, f'<include file="{files[0][0]}"/>')


LAUGHS = '<!DOCTYPE r [<!ENTITY a "ha">' + "".join(
    f'<!ENTITY {chr(98 + i)} "{("&" + chr(97 + i) + ";") * 10}">' for i in range(9)
)
PLY = "ply\nformat {} 1.0\nelement vertex {}\nproperty float x\nproperty float y\nproperty float z\n"
PLY += "element face {}\nproperty list uchar int vertex_indices\nend_header\n0 0 0\n"
FIELD = '<geom type="hfield" hfield="f" contype="0" conaffinity="0"/>'
HEIGHTS = '<hfield name="f" size="1 1 1 1" file="{}"/>'

# what is refused: name -> (what writes it, words that the message has)
REFUSED: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "60 MB of text": (lambda f: urdf(f, link="x" * 60_000_000), ("robot.urdf", "bytes")),
    "long number": (lambda f: urdf(f, '<frame name="f" link="a" xyz="' + "1 " * 8_000_000 + '"/>'), ("frame 'f'",)),
    "long name": (lambda f: urdf(f, '<link name="' + "n" * 10_000_000 + '"/>'), ("link", "4096")),
    "long tag": (lambda f: urdf(f, "<" + "t" * 10_000_000 + "/>"), ("names of elements",)),
    "many links": (lambda f: chain(f, 100_000), ("robot.urdf",)),
    "many fixed links": (lambda f: chain(f, 12_000), ("robot.urdf", "5000 links")),
    "many elements": (lambda f: urdf(f, "<gazebo/>" * 1_000_000), ("robot.urdf", "elements")),
    "many faults": (lambda f: urdf(f, '<link name=""/>' * 4900), ("and 4800 more",)),
    "deep": (lambda f: urdf(f, "<gazebo>" * 200_000), ("deeper",)),
    "laughs": (lambda f: urdf(f), ("DOCTYPE",)),
    "replicate": (lambda f: mjcf(f, '<replicate count="50000"><geom size="1"/></replicate>'), ("10000 elements",)),
    "replicate bodies": (lambda f: mjcf(f, '<replicate count="20000"><body/></replicate>'), ("10000 elements",)),
    "nested replicate": (
        lambda f: mjcf(f, nested("replicate", 100, '<geom size="1"/>', 'count="1000"')),
        ("10000 elements",),
    ),
    "many bodies": (lambda f: mjcf(f, "<body/>" * 90_000), ("10000 elements",)),
    "composite": (
        lambda f: mjcf(f, '<composite type="cable" count="60000 1 1" prefix="c"><geom size="1"/></composite>'),
        ("10000 elements",),
    ),
    "flexcomp": (
        lambda f: mjcf(f, '<flexcomp name="x" type="grid" count="3000 3000 3000" spacing="1 1 1"/>'),
        ("10000 elements",),
    ),
    "attach": (lambda f: attached(f, 200), ("10000 elements",)),
    "model of itself": (holding_itself, ("itself",)),
    "deep defaults": (lambda f: mjcf(f, before=nested("default", 50_000, "")), ("deeper",)),
    "include ring": (lambda f: including(f, ("a.xml", "b.xml"), ("b.xml", "a.xml")), ("included once",)),
    "include itself": (lambda f: including(f, ("a.xml", "robot.xml")), ("included once",)),
    "include outside": (lambda f: escaping(f, lambda f: including(f, ("a.xml", "..\\secret.obj"))), ("outside",)),
    "backslash mesh": (
        lambda f: escaping(f, lambda f: with_asset(f, '<mesh name="m" file="..\\secret.obj"/>')),
        ("secret.obj", "outside"),
    ),
    "backslash field": (
        lambda f: escaping(
            f, lambda f: with_asset(f, '<hfield name="f" size="1 1 1 1" file="..\\secret.obj"/>', FIELD)
        ),
        ("outside",),
    ),
    "backslash directory": (
        lambda f: escaping(
            f,
            lambda f: mjcf(
                f,
                '<body><joint/><geom type="mesh" mesh="m"/></body>',
                before='<compiler meshdir="..\\"/><asset><mesh name="m" file="secret.obj"/></asset>',
            ),
        ),
        ("outside",),
    ),
    "wide image": (
        lambda f: with_asset(f, HEIGHTS.format(written(f, "h.png", png(60_000, 60_000))), FIELD),
        ("60000 x 60000",),
    ),
    "wide field": (
        lambda f: with_asset(f, HEIGHTS.format(written(f, "h.bin", struct.pack("=ii", 2**30, 2**30))), FIELD),
        ("1073741824 x 1073741824",),
    ),
    "negative field": (
        lambda f: with_asset(f, HEIGHTS.format(written(f, "h.bin", struct.pack("=ii", -5, 7) + bytes(400))), FIELD),
        ("-5 x 7",),
    ),
    "large numeric": (
        lambda f: mjcf(f, after='<custom><numeric name="n" size="2000000000"/></custom>'),
        ("numeric", "at most"),
    ),
    "stl for MuJoCo": (
        lambda f: with_asset(f, f'<mesh name="m" file="{written(f, "m.stl", stl(2**32 - 1))}"/>'),
        ("robot.xml",),
    ),
    "msh for MuJoCo": (
        lambda f: with_asset(f, f'<mesh name="m" file="{written(f, "m.msh", struct.pack("=4i", *[2**30] * 4))}"/>'),
        ("robot.xml",),
    ),
    "fine torus": (
        lambda f: with_asset(f, '<mesh name="m" builtin="supertorus" params="4000 0.5 1 1"/>'),
        ("at most",),
    ),
}

# what is left out with a note: the mechanism moves without it
LEFT_OUT: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "16 MB of text": (lambda f: urdf(f, link="<x>" + "y" * 16_700_000 + "</x>"), ("<x>",)),
    "stl count": (lambda f: with_mesh(f, "m.stl", stl(2**32 - 1)), ("m.stl",)),
    "stl cut": (lambda f: with_mesh(f, "m.stl", stl(100_000)), ("m.stl",)),
    "obj index": (lambda f: with_mesh(f, "m.obj", b"v 0 0 0\nf 1 2000000000 3\n"), ("m.obj",)),
    "ply count": (lambda f: with_mesh(f, "m.ply", PLY.format("ascii", 2**40, 2**40).encode()), ("m.ply",)),
    "ply binary": (
        lambda f: with_mesh(f, "m.ply", PLY.format("binary_little_endian", 2**40, 2**40).encode()),
        ("m.ply",),
    ),
    "dae laughs": (lambda f: with_mesh(f, "m.dae", f"{LAUGHS}]><COLLADA>&j;</COLLADA>".encode()), ("DOCTYPE",)),
    "dae deep": (lambda f: with_mesh(f, "m.dae", b"<COLLADA>" + b"<a>" * 100_000), ("deeper",)),
    "garbage": (lambda f: with_mesh(f, "m.stl", bytes(range(256)) * 100), ("m.stl",)),
    "mesh of 70 MB": (lambda f: with_mesh(f, "m.obj", b"v 0 0 0\n" * 9_000_000), ("m.obj", "bytes")),
}


def laughing(folder: Path) -> Path:
    path = folder / "robot.urdf"
    path.write_text(f'{LAUGHS}]><robot name="&j;">{LINKS}{JOINT}</robot>')
    return path


REFUSED["laughs"] = (laughing, ("DOCTYPE",))
