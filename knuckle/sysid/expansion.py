"""What the compressed parts of logs expand to: counted piece by piece, before a library expands them at once."""

from __future__ import annotations

import bz2
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from knuckle.sysid.findings import RecordingError
from knuckle.sysid.raw import check_size, need

PIECE = 1 << 20
MOST_WINDOW = 1 << 27  # bytes that a zstd frame may ask for
MCAP_MAGIC, MCAP_CHUNK = 8, 6
BAG_MAGIC, BAG_CHUNK = 13, b"\x05"


def check_mcap(path: Path, most: int) -> None:
    """Refuse an MCAP file whose chunks expand to more than `most` bytes."""
    _check(path, _mcap_chunks(path), most)


def check_bag(path: Path, most: int) -> None:
    """Refuse a bag of ROS 1 whose chunks expand to more than `most` bytes."""
    _check(path, _bag_chunks(path), most)


def check_database(path: Path, most: int) -> None:
    """Refuse a bag of ROS 2 whose tables compute their content, or whose messages expand to more than `most` bytes."""
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
    try:
        for (text,) in connection.execute("SELECT sql FROM sqlite_master WHERE type IN ('table', 'view', 'trigger')"):
            words = (text or "").upper().replace("(", " ( ").split()
            if not words[:2] == ["CREATE", "TABLE"] or "GENERATED" in words or "AS" in words:
                raise RecordingError(path, f"expected plain tables, got {(text or '')[:60]!r}")
        size = 0
        for (data,) in connection.execute("SELECT data FROM messages"):
            compressed = isinstance(data, bytes) and data[:4] == b"\x28\xb5\x2f\xfd"
            size += _expanded(path, data, "zstd", most - size) if compressed else len(data or b"")
            check_size(path, size, most, "unpacked, it")
    finally:
        connection.close()


def check_compressed_file(path: Path, most: int) -> None:
    """Refuse a file under zstd that expands to more than `most` bytes."""
    check_size(path, _expanded(path, path.read_bytes(), "zstd", most), most, "unpacked, it")


def _check(path: Path, chunks: Iterator[tuple[str, bytes]], most: int) -> None:
    size = 0
    for compression, data in chunks:
        size += _expanded(path, data, compression, most - size)
        check_size(path, size, most, "unpacked, it")


def _expanded(path: Path, data: bytes, compression: str, most: int) -> int:
    """Bytes that compressed data expands to, counted until they are more than `most`."""
    if compression in ("", "none"):
        return len(data)
    size = 0
    for piece in _pieces(path, data, compression):
        size += len(piece)
        if size > most:
            break
    return size


def _pieces(path: Path, data: bytes, compression: str) -> Iterator[bytes]:
    if compression == "zstd":
        zstandard = need("zstandard", path, "logs under zstd")
        decoder = zstandard.ZstdDecompressor(max_window_size=MOST_WINDOW)
        with decoder.stream_reader(data, read_across_frames=True) as stream:
            yield from iter(lambda: stream.read(PIECE), b"")
    elif compression in ("lz4", "bz2"):
        new = need("lz4.frame", path, "logs under lz4").LZ4FrameDecompressor if compression == "lz4" else None
        while data:
            decoder = new() if new is not None else bz2.BZ2Decompressor()
            rest = data
            while not decoder.eof and (rest or not decoder.needs_input):
                yield decoder.decompress(rest, PIECE)
                rest = b""
            data = decoder.unused_data or b""


def _mcap_chunks(path: Path) -> Iterator[tuple[str, bytes]]:
    with path.open("rb") as file:
        file.seek(MCAP_MAGIC)
        while len(head := file.read(9)) == 9:
            kind, length = struct.unpack("<BQ", head)
            begin = file.tell()
            if kind == MCAP_CHUNK:
                fixed = file.read(32)
                if len(fixed) < 32:
                    return
                compression = file.read(min(struct.unpack_from("<I", fixed, 28)[0], 100)).decode("ascii", "replace")
                file.read(8)
                yield compression, file.read(max(0, begin + length - file.tell()))
            if begin + length > 1 << 62:
                return
            file.seek(begin + length)


def _bag_chunks(path: Path) -> Iterator[tuple[str, bytes]]:
    with path.open("rb") as file:
        file.seek(BAG_MAGIC)
        while (header := _block(file)) is not None:
            fields = _fields(header)
            data = _block(file, skip=fields.get(b"op") != BAG_CHUNK)
            if fields.get(b"op") == BAG_CHUNK and data is not None:
                yield fields.get(b"compression", b"").decode("ascii", "replace"), data


def _block(file: BinaryIO, skip: bool = False) -> bytes | None:
    """Bytes behind their length; None at the end of the file."""
    head = file.read(4)
    if len(head) < 4:
        return None
    length = struct.unpack("<I", head)[0]
    if skip:
        file.seek(length, 1)
        return b""
    return file.read(length)


def _fields(header: bytes) -> dict[bytes, bytes]:
    found, start = {}, 0
    while start + 4 <= len(header):
        end = start + 4 + struct.unpack_from("<I", header, start)[0]
        name, _, value = header[start + 4 : end].partition(b"=")
        found[name], start = value, end
    return found
