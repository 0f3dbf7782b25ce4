"""Logs that mean harm. Each function writes one and returns its path."""

from __future__ import annotations

import bz2
import io
import json
import sqlite3
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROWS = 200
TIME = np.arange(ROWS) / 100.0
ANGLES = np.sin(TIME)


def sound_csv(folder: Path, name: str) -> Path:
    path = folder / name
    lines = [f"{t},{a},{a}" for t, a in zip(TIME, ANGLES, strict=True)]
    path.write_text("time,shoulder,elbow\n" + "\n".join(lines))
    return path


def sound_npz(folder: Path, name: str) -> Path:
    np.savez(folder / name, time=TIME, shoulder=ANGLES, elbow=ANGLES)
    return folder / name


def sound_hdf5(folder: Path, name: str) -> Path:
    import h5py

    with h5py.File(folder / name, "w") as file:
        for key, values in (("time", TIME), ("shoulder", ANGLES), ("elbow", ANGLES)):
            file[key] = values
    return folder / name


def sound_parquet(folder: Path, name: str) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"time": TIME, "shoulder": ANGLES, "elbow": ANGLES}), folder / name)
    return folder / name


def mcap_bytes(chunks: list[tuple[str, bytes, int]]) -> bytes:
    """An MCAP file of chunks (compression, data, declared size) without a summary."""

    def text(value: str) -> bytes:
        return struct.pack("<I", len(value)) + value.encode()

    def record(kind: int, content: bytes) -> bytes:
        return struct.pack("<BQ", kind, len(content)) + content

    found = b"\x89MCAP0\r\n" + record(1, text("") + text("knuckle"))
    for compression, data, declared in chunks:
        head = struct.pack("<QQQI", 0, 1, declared, 0) + text(compression) + struct.pack("<Q", len(data))
        found += record(6, head + data)
    return found + record(15, struct.pack("<I", 0)) + record(2, struct.pack("<QQI", 0, 0, 0)) + b"\x89MCAP0\r\n"


def mcap_records(count: int, message: bytes) -> bytes:
    """Content of a chunk: a channel of JSON and messages on it."""

    def text(value: bytes) -> bytes:
        return struct.pack("<I", len(value)) + value

    channel = struct.pack("<HH", 1, 0) + text(b"joints") + text(b"json") + text(b"")
    found = struct.pack("<BQ", 4, len(channel)) + channel
    for i in range(count):
        content = struct.pack("<HIQQ", 1, i, i * 10_000_000, i * 10_000_000) + message
        found += struct.pack("<BQ", 5, len(content)) + content
    return found


def sound_mcap(folder: Path, name: str) -> Path:
    message = json.dumps({"name": ["shoulder", "elbow"], "position": [0.1, 0.2]}).encode()
    data = mcap_records(ROWS, message)
    (folder / name).write_bytes(mcap_bytes([("", data, len(data))]))
    return folder / name


SOUND: dict[str, Callable[[Path, str], Path]] = {
    "log.csv": sound_csv,
    "log.npz": sound_npz,
    "log.h5": sound_hdf5,
    "log.parquet": sound_parquet,
    "log.mcap": sound_mcap,
}


def parquet(folder: Path, **columns) -> Path:
    """A file whose columns hold one value over and over, in a few bytes."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table(columns)
    with pyarrow.parquet.ParquetWriter(folder / "log.parquet", table.schema, compression="zstd") as writer:
        writer.write_table(table, row_group_size=1 << 22)
    return folder / "log.parquet"


def repeated_numbers(folder: Path) -> Path:
    """400 MB of numbers in a file of some kB: 24 columns over 2^21 rows."""
    constant = np.zeros(1 << 21)
    return parquet(folder, time=constant, **{f"c{i}": constant for i in range(24)})


def repeated_text(folder: Path) -> Path:
    """A text of 1 MB that stands in 3000 rows."""
    import pyarrow

    rows = 3000
    indices = pyarrow.array(np.zeros(rows, np.int32))
    text = pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array(["x" * (1 << 20)]))
    return parquet(folder, time=np.arange(rows) / 100, shoulder=np.zeros(rows), note=text)


def repeated_lists(folder: Path) -> Path:
    import pyarrow

    offsets = pyarrow.array(np.arange(0, 41_000_001, 41_000_000 // 4, dtype=np.int64))
    lists = pyarrow.LargeListArray.from_arrays(offsets, pyarrow.array(np.zeros(41_000_000)))
    return parquet(folder, time=np.arange(4.0), shoulder=lists)


def hdf5(folder: Path, fill: Callable) -> Path:
    import h5py

    path = sound_hdf5(folder, "log.h5")
    with h5py.File(path, "a") as file:
        fill(file, h5py)
    return path


def secret(folder: Path) -> Path:
    path = folder.parent / "secret.bin"
    path.write_bytes(TIME.tobytes() * 2)
    return path


def external(folder: Path) -> Path:
    place = str(secret(folder))
    return hdf5(folder, lambda file, _: file.create_dataset("x", (50,), "f8", external=[(place, 0, 400)]))


def virtual(folder: Path) -> Path:
    sound_hdf5(folder.parent, "secret.h5")

    def fill(file, h5py):
        layout = h5py.VirtualLayout((ROWS,), "f8")
        layout[:] = h5py.VirtualSource(str(folder.parent / "secret.h5"), "time", (ROWS,))
        file.create_virtual_dataset("x", layout)

    return hdf5(folder, fill)


def linked(folder: Path) -> Path:
    """Links to another file, to another place, to nowhere and to themselves: none is followed, all are reported."""
    sound_hdf5(folder.parent, "secret.h5")

    def fill(file, h5py):
        file["x"] = h5py.ExternalLink(str(folder.parent / "secret.h5"), "/time")
        file["y"] = h5py.SoftLink("/y")
        file["ring"] = file["/"]

    return hdf5(folder, fill)


def huge_chunk(folder: Path) -> Path:
    return hdf5(folder, lambda file, _: file.create_dataset("x", (ROWS,), "f8", chunks=(1 << 28,), maxshape=(None,)))


def long_texts(folder: Path) -> Path:
    def fill(file, h5py):
        kind = h5py.string_dtype()
        texts = file.create_dataset("columns", (3,), kind)
        texts[:] = ["x" * (1 << 20)] * 3
        file.create_dataset("note", (1 << 24,), kind, chunks=(1 << 16,), compression="gzip")
        file.create_dataset("wide", (1 << 23,), "S20", chunks=(1 << 16,), compression="gzip")

    return hdf5(folder, fill)


def deep_groups(folder: Path) -> Path:
    def fill(file, _):
        group = file
        for _ in range(200):
            group = group.create_group("g")

    return hdf5(folder, fill)


def npz(folder: Path, shape: tuple[int, ...], data: bytes, header: bytes | None = None) -> Path:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(folder / "log.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("q.npy", "w") as file:
        file.write(header or buffer.getvalue())
        for _ in range(0, len(data), 1 << 20):
            file.write(data[: 1 << 20])
    return folder / "log.npz"


def mcap(folder: Path, compression: str, size: int, declared: int | None = None) -> Path:
    if compression == "zstd":
        import zstandard

        data = zstandard.compress(bytes(size))
    else:
        import lz4.frame

        data = lz4.frame.compress(bytes(size))
    path = folder / "log.mcap"
    path.write_bytes(mcap_bytes([(compression, data, size if declared is None else declared)]))
    return path


def many_mcap_chunks(folder: Path) -> Path:
    import zstandard

    data = zstandard.compress(bytes(1 << 22))
    (folder / "log.mcap").write_bytes(mcap_bytes([("zstd", data, 1 << 22)] * 200))
    return folder / "log.mcap"


def deep_json(folder: Path) -> Path:
    data = mcap_records(3, b'{"a":' * 100_000 + b"1" + b"}" * 100_000)
    (folder / "log.mcap").write_bytes(mcap_bytes([("", data, len(data))]))
    return folder / "log.mcap"


def bag(folder: Path) -> Path:
    """A bag of ROS 1 with one chunk that expands from 400 bytes to 400 MB, and says 100."""

    def fields(**values: bytes) -> bytes:
        return b"".join(
            struct.pack("<I", len(key) + 1 + len(value)) + key.encode() + b"=" + value for key, value in values.items()
        )

    def record(header: bytes, data: bytes) -> bytes:
        return struct.pack("<I", len(header)) + header + struct.pack("<I", len(data)) + data

    packer = bz2.BZ2Compressor()
    data = b"".join(packer.compress(bytes(1 << 22)) for _ in range(100)) + packer.flush()
    chunk = record(fields(op=b"\x05", compression=b"bz2", size=struct.pack("<I", 100)), data)
    begin = len(b"#ROSBAG V2.0\n")
    counts = {"index_pos": struct.pack("<Q", begin + 4096 + len(chunk)), "conn_count": struct.pack("<I", 0)}
    head = fields(op=b"\x03", chunk_count=struct.pack("<I", 1), **counts)
    first = struct.pack("<I", len(head)) + head
    first += struct.pack("<I", 4096 - len(first) - 4) + b" " * (4096 - len(first) - 4)
    (folder / "log.bag").write_bytes(b"#ROSBAG V2.0\n" + first + chunk)
    return folder / "log.bag"


TOPICS = "CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT, serialization_format TEXT)"
TOPIC = "INSERT INTO topics VALUES(1, '/joints', 'sensor_msgs/msg/JointState', 'cdr')"


def database(folder: Path, messages: str, insert: str, *values) -> Path:
    path = folder / "log.db3"
    connection = sqlite3.connect(path)
    for statement in (TOPICS, TOPIC, messages):
        connection.execute(statement)
    connection.execute(insert, values)
    connection.commit()
    connection.close()
    return path


PLAIN = "CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, data BLOB)"
COMPUTED = PLAIN.replace("data BLOB", "data BLOB GENERATED ALWAYS AS (zeroblob(900000000))")


def compressed_message(folder: Path) -> Path:
    import zstandard

    data = zstandard.compress(bytes(400 << 20))
    return database(folder, PLAIN, "INSERT INTO messages VALUES(1, 1, 0, ?)", data)


def text(folder: Path, content: bytes) -> Path:
    (folder / "log.csv").write_bytes(content)
    return folder / "log.csv"


def saved_csv(folder: Path) -> Path:
    return text(folder, b'# knuckle recording 1 {"name": "x", "source": "y", "channels": ' + b"[" * 100_000)


LARGE = "more than the limit"
# name -> (what writes it, words that the message has); "" for those that are read with a report
REFUSED: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "parquet numbers": (repeated_numbers, ("log.parquet", LARGE)),
    "parquet texts": (repeated_text, ("log.parquet", "note")),
    "parquet lists": (repeated_lists, ("log.parquet", LARGE)),
    "hdf5 external storage": (external, ("log.h5", "x", "another file")),
    "hdf5 virtual": (virtual, ("log.h5", "x", "virtual")),
    "hdf5 claims": (
        lambda f: hdf5(f, lambda file, _: file.create_dataset("x", (300_000_000,), "f8", chunks=(1024,))),
        ("log.h5", LARGE),
    ),
    "hdf5 compact bomb": (
        lambda f: hdf5(
            f,
            lambda file, _: file.create_dataset(
                "x", (1 << 26,), "f8", chunks=(1 << 20,), compression="gzip", fillvalue=1.0
            ),
        ),
        ("log.h5", LARGE),
    ),
    "hdf5 chunk": (huge_chunk, ("log.h5", LARGE)),
    "hdf5 deep": (deep_groups, ("log.h5", "deep")),
    "npz deflate": (lambda f: npz(f, (300 << 17,), bytes(300 << 20)), ("log.npz", LARGE)),
    "npz claims": (lambda f: npz(f, (1 << 40,), bytes(64)), ("log.npz", "does not fit")),
    "npz header": (
        lambda f: npz(f, (), bytes(64), b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b" " * 10_000_000),
        ("log.npz",),
    ),
    "mcap zstd": (lambda f: mcap(f, "zstd", 400 << 20), ("log.mcap", LARGE)),
    "mcap zstd that lies": (lambda f: mcap(f, "zstd", 400 << 20, 100), ("log.mcap", LARGE)),
    "mcap lz4 that lies": (lambda f: mcap(f, "lz4", 400 << 20, 100), ("log.mcap", LARGE)),
    "mcap chunks": (many_mcap_chunks, ("log.mcap", LARGE)),
    "mcap json": (deep_json, ("log.mcap",)),
    "bag bz2": (bag, ("log.bag", LARGE)),
    "bag that computes": (
        lambda f: database(f, COMPUTED, "INSERT INTO messages(id, topic_id, timestamp) VALUES(1, 1, 0)"),
        ("log.db3", "plain tables"),
    ),
    "bag message": (compressed_message, ("log.db3", LARGE)),
    "csv columns": (lambda f: text(f, b"a," * 5_000_000 + b"b\n1,2\n"), ("log.csv", "columns")),
    "csv line": (lambda f: text(f, b"time," + b"x" * 30_000_000), ("log.csv",)),
    "csv quotes": (lambda f: text(f, b'time,"' + b'x"" ' * 5_000_000 + b"\n1,2\n"), ("log.csv",)),
    "csv zeros": (lambda f: text(f, bytes(10_000_000)), ("log.csv", "not text")),
    "csv saved": (saved_csv, ("log.csv", "not a recording")),
}
READ: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "hdf5 links": (linked, ("not followed",)),
    "hdf5 texts": (long_texts, ("not read",)),
}
REFUSED |= READ
