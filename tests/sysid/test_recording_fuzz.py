"""Broken and hostile files give a result or a RecordingError that names the file: nothing else, and soon."""

from __future__ import annotations

import io
import pickle
import time
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from knuckle.sysid import Recording, RecordingError, Recordings, read_recordings, save
from tests.sysid.logs import columns, pendulum, swing, write_csv

MODEL = pendulum()
T, Q, QD = swing(0.5, 120.0)
LONGEST = 5.0  # seconds for one small file, on a machine that does other things too


def originals(folder: Path) -> dict[str, bytes]:
    """Whole files of each kind."""
    table = columns(T, Q, QD)
    write_csv(folder / "comma.csv", table)
    write_csv(folder / "semicolon.csv", table, ";", "# comment\n")
    np.savez(folder / "stored.npz", allow_pickle=False, time=T, q=Q, qd=QD)
    np.savez_compressed(folder / "packed.npz", allow_pickle=False, time=T, q=Q, qd=QD)
    save(Recording.of(MODEL, T, q=Q, qd=QD, name="saved"), folder / "saved.npz")
    save(Recording.of(MODEL, T, q=Q, qd=QD, name="saved"), folder / "saved.csv")
    names = ["comma.csv", "semicolon.csv", "stored.npz", "packed.npz", "saved.npz", "saved.csv"]
    return {name: (folder / name).read_bytes() for name in names}


def hdf5_bytes(folder: Path) -> dict[str, bytes]:
    h5py = pytest.importorskip("h5py")
    for name, options in (("plain.h5", {}), ("packed.h5", {"compression": "gzip", "chunks": (16, 2)})):
        with h5py.File(folder / name, "w") as file:
            file["time"] = T
            file.create_dataset("q", data=Q, **options)
            file.create_dataset("qd", data=QD, **options)
    return {name: (folder / name).read_bytes() for name in ("plain.h5", "packed.h5")}


def broken(data: bytes, rng: np.random.Generator) -> bytes:
    """A file cut short, with bits flipped, bytes exchanged, a piece repeated, or zeros in it."""
    kind, size = rng.integers(6), len(data)
    if kind == 0:
        return data[: rng.integers(size)]
    changed = bytearray(data)
    if kind in (1, 2):
        for at in rng.integers(size, size=1 if kind == 1 else 20):
            changed[at] ^= 1 << int(rng.integers(8))
    elif kind == 3:
        for at in rng.integers(size, size=8):
            changed[at] = int(rng.integers(256))
    elif kind == 4:
        a, b = sorted(rng.integers(size, size=2).tolist())
        changed[a:a] = changed[a:b]
    else:
        a = int(rng.integers(size))
        changed[a : a + 32] = bytes(32)
    return bytes(changed)


def outcome(path: Path) -> Recordings | RecordingError:
    """What reading gives; any other exception, and a warning from NumPy, goes through and fails the test."""
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            result = read_recordings(path, MODEL, max_bytes=1 << 24)
        for run in result:
            assert np.all(np.diff(run.time) > 0)
            assert all(np.isfinite(channel.values).all() for channel in run.channels.values())
    except RecordingError as error:
        assert str(error).startswith(str(path)), error
        result = error
    assert time.perf_counter() - begin < LONGEST
    return result


def sweep(files: dict[str, bytes], count: int, folder: Path) -> list[bool]:
    """Whether each broken file could be read."""
    read = []
    for name, data in files.items():
        for seed in range(count):
            path = folder / f"broken_{name}"
            path.write_bytes(broken(data, np.random.default_rng(seed)))
            read.append(isinstance(outcome(path), Recordings))
    return read


def test_broken_csv_and_npz_files(tmp_path: Path):
    read = sweep(originals(tmp_path), 125, tmp_path)
    assert len(read) == 750 and 0.1 < np.mean(read) < 0.9  # both outcomes are seen often


def test_broken_hdf5_files(tmp_path: Path):
    read = sweep(hdf5_bytes(tmp_path), 125, tmp_path)
    assert len(read) == 250 and 0.1 < np.mean(read) < 0.95


@pytest.mark.parametrize(
    ("suffix", "package"), [("parquet", "pyarrow"), ("mcap", "mcap"), ("bag", "rosbags"), ("db3", "rosbags")]
)
@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 100, b"PAR1" + b"\xff" * 60 + b"PAR1", b"\x89MCAP0\r\n" + b"\xff" * 99, b"#ROSBAG V2.0\n\xff\xff"],
)
def test_files_that_only_begin_like_a_log(suffix: str, package: str, content: bytes, tmp_path: Path):
    pytest.importorskip(package)
    path = tmp_path / f"log.{suffix}"
    path.write_bytes(content)
    assert isinstance(outcome(path), RecordingError)


class Hostile:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_in_an_npz_file_is_never_loaded(tmp_path: Path):
    trap = tmp_path / "trap"
    np.savez(tmp_path / "objects.npz", time=T, q=np.array([Hostile(trap)] * len(T), object))
    with zipfile.ZipFile(tmp_path / "raw.npz", "w") as archive:
        archive.writestr("q.npy", pickle.dumps(Hostile(trap)))
    (tmp_path / "bare.npz").write_bytes(pickle.dumps(Hostile(trap)))
    for name, said in (
        ("objects", "Python objects"),
        ("raw", "cannot be read as npz"),
        ("bare", "cannot be read as npz"),
    ):
        result = outcome(tmp_path / f"{name}.npz")
        assert isinstance(result, RecordingError) and said in str(result)
    assert not trap.exists()


def npy(shape: tuple[int, ...], data: bytes) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return buffer.getvalue() + data


def test_bombs_are_refused_before_they_are_unpacked(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "zeros.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("q.npy", npy((1 << 22, 1), bytes(1 << 25)))
    result = outcome(tmp_path / "zeros.npz")
    assert isinstance(result, RecordingError) and "more than the limit of 16,777,216" in str(result)
    with zipfile.ZipFile(tmp_path / "claims.npz", "w") as archive:
        archive.writestr("q.npy", npy((1 << 40,), bytes(64)))
    result = outcome(tmp_path / "claims.npz")
    assert isinstance(result, RecordingError) and "does not fit into" in str(result)


def test_an_hdf5_dataset_that_claims_to_be_huge_is_refused(tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "huge.h5", "w") as file:
        file.create_dataset("q", shape=(1 << 40, 2), chunks=(1024, 2), dtype="f8")  # no chunk is ever written
    result = outcome(tmp_path / "huge.h5")
    assert isinstance(result, RecordingError) and "more than the limit" in str(result)


@pytest.mark.parametrize(
    "header",
    [
        ",".join(f"c{i}" for i in range(50_000)),
        "time," + "x" * 1_000_000,
        "time," + "[" * 100_000,
        "time," + "( " * 50_000,
        "time," + '"' * 99_999,
        "time," + "joint1_" * 50_000,
        "\x1b[31mtime\x07,shoulder",
    ],
    ids=["columns", "long", "brackets", "spaces", "quotes", "words", "escapes"],
)
def test_huge_and_odd_headers(header: str, tmp_path: Path):
    (tmp_path / "log.csv").write_text(header + "\n" + "1,2\n" * 10)
    result = outcome(tmp_path / "log.csv")
    assert isinstance(result, RecordingError) and len(str(result)) < 10_000 and "\x1b" not in str(result)


@pytest.mark.parametrize("value", ["1e308", "-1e308", "1e-320", "nan", "inf", "9" * 400])
@pytest.mark.parametrize("column", [0, 1, 3])
def test_numbers_at_the_end_of_the_scale(value: str, column: int, tmp_path: Path):
    path = write_csv(tmp_path / "log.csv", columns(T, Q, QD))
    lines = path.read_text().splitlines()
    for rows in (range(20, 21), range(5, 50), range(1, len(lines))):
        changed = list(lines)
        for i in rows:
            cells = changed[i].split(",")
            cells[column] = value
            changed[i] = ",".join(cells)
        path.write_text("\n".join(changed))
        outcome(path)


def test_a_directory_and_a_file_without_permission_to_exist(tmp_path: Path):
    assert isinstance(outcome(tmp_path), RecordingError)
    assert isinstance(outcome(tmp_path / "absent.csv"), RecordingError)
