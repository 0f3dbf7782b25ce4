"""Tables of text: comma, semicolon, tab or spaces between cells, a header, comments, units in the header."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np

from knuckle.sysid.findings import RecordingError, printable
from knuckle.sysid.raw import Column, Run, Stream, check_columns, check_size

DELIMITERS = (",", ";", "\t", " ")
COMMENTS = ("#", "//")
DECIMAL_COMMA = re.compile(r"^\s*[+-]?\d+,\d+(?:[eE][+-]?\d+)?\s*$")
MISSING = {"", "nan", "na", "n/a", "null", "none", "-"}
BAD_ROWS = 0.1  # a file with more rows of another width than this is not a table
MOST_TEXT = 0.5  # a column with more cells than this that are no numbers is text


def read(path: Path, max_bytes: int) -> list[Run]:
    check_size(path, path.stat().st_size, max_bytes)
    notes: list[tuple[str, str, int, str]] = []
    lines = _lines(path, notes)
    delimiter = _delimiter(lines)
    first = _cells(lines[0][1], delimiter)
    check_columns(path, len(first))
    header, body = _header(path, first, lines, notes)
    columns = _fast(header, body, delimiter)
    if columns is None:
        columns = _careful(path, header, body, delimiter, notes)
    return [Run(path.stem, (Stream(tuple(columns)),), notes=tuple(notes))]


def _text(path: Path, notes: list) -> str:
    data = path.read_bytes()
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace")
    if b"\0" in data:
        raise RecordingError(path, "this is not text", f"byte {data.index(0)}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        notes.append(("encoding", f"byte {error.start}", 1, "not UTF-8: read as Latin-1"))
        return data.decode("latin-1")


def _lines(path: Path, notes: list) -> list[tuple[int, str]]:
    """Lines with their number, without blank ones and comments; a header may stand behind a comment sign."""
    numbered = [(i, line) for i, line in enumerate(_text(path, notes).splitlines(), 1) if line.strip()]
    kept = [(i, line) for i, line in numbered if not line.lstrip().startswith(COMMENTS)]
    if not kept:
        raise RecordingError(path, "no line of data")
    before = [(i, line) for i, line in numbered if i < kept[0][0]]
    if _is_numbers(kept[0][1]) and before:  # np.savetxt writes its header as a comment
        i, line = before[-1]
        title = line.lstrip().lstrip("#/ ")
        if title and len(_cells(title, _delimiter([(i, title), *kept]))) == len(_cells(kept[0][1], _delimiter(kept))):
            return [(i, title), *kept]
    return kept


def _delimiter(lines: list[tuple[int, str]]) -> str:
    """The one that cuts the first lines into the same number of cells, the more the better."""
    sample = [line for _, line in lines[:20]]

    def score(delimiter: str) -> tuple[bool, int]:
        counts = [len(_cells(line, delimiter)) for line in sample]
        return counts.count(counts[0]) > 0.7 * len(counts) and counts[0] > 1, counts[0]

    order = ("\t", ";", ",", " ")  # units such as [N m] contain spaces, decimals may have commas
    good = [d for d in order if score(d)[0]]
    return good[0] if good else ","


def _cells(line: str, delimiter: str) -> list[str]:
    if delimiter == " ":
        return re.sub(r"\s+(?=[\[(])", "", line).split()  # the unit stays with its name
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))]
    except (csv.Error, StopIteration):
        return [cell.strip() for cell in line.split(delimiter)]


def _is_numbers(line: str) -> bool:
    cells = [c for c in re.split(r"[,;\s]+", line.strip()) if c]
    return bool(cells) and all(_number(c) is not None for c in cells)


def _number(cell: str) -> float | None:
    if cell.strip().lower() in MISSING:
        return np.nan
    try:
        return float(cell) if "_" not in cell else None
    except ValueError:
        return None


def _header(path: Path, first: list[str], lines: list, notes: list) -> tuple[list[str], list[tuple[int, str]]]:
    """Names of the columns, and the lines after them; a table without a header has columns 1, 2 and so on."""
    if all(_number(cell) is not None for cell in first):
        notes.append(("no header", f"line {lines[0][0]}", 1, "columns are called 1, 2 and so on"))
        return [str(i + 1) for i in range(len(first))], lines
    if len(lines) < 2:
        raise RecordingError(path, "a header, and no row of data after it", f"line {lines[0][0]}")
    names = [name.lstrip("%").strip() or str(i + 1) for i, name in enumerate(first)]
    if len(names) > 1 and first[-1] == "":  # a delimiter at the end of each line
        width = len(names)
        if all(line.rstrip().endswith((",", ";", "\t")) or line.endswith("\t") for _, line in lines[:20]):
            names[-1] = f"empty {width}"
    twice = sorted({name for name in names if names.count(name) > 1}) if len(names) <= 2000 else []
    if twice or len(set(names)) < len(names):
        raise RecordingError(
            path, f"two columns have the same name: {printable(', '.join(twice))}", f"line {lines[0][0]}"
        )
    return names, lines[1:]


def _fast(header: list[str], body: list[tuple[int, str]], delimiter: str) -> list[Column] | None:
    """Rows that are all numbers, by NumPy's parser; None if there is anything else."""
    text = io.StringIO("\n".join(line for _, line in body))
    try:
        table = np.loadtxt(text, delimiter=None if delimiter == " " else delimiter, ndmin=2, comments=None)
    except ValueError:
        return None
    if table.shape[1] != len(header):
        return None
    return [Column(name, np.ascontiguousarray(table[:, j])) for j, name in enumerate(header)]


def _careful(path: Path, header: list[str], body: list[tuple[int, str]], delimiter: str, notes: list) -> list[Column]:
    """Rows cell by cell: empty cells, words, dates, decimal commas, rows of another width."""
    rows, bad = [], []
    for number, line in body:
        cells = _cells(line, delimiter)
        if len(cells) == len(header):
            rows.append((number, cells))
        else:
            bad.append((number, len(cells)))
    if not rows or len(bad) > max(BAD_ROWS * len(body), 1):
        number, width = bad[0]
        raise RecordingError(
            path,
            f"{width} cells where the header has {len(header)}, and {len(bad) - 1} more such rows",
            f"line {number}",
        )
    if bad:
        number, width = bad[0]
        notes.append(("broken rows", f"line {number}", len(bad), f"{width} cells, not {len(header)}; left out"))
    names_last = header[-1].startswith("empty ") and all(cells[-1] == "" for _, cells in rows)
    wanted = header[:-1] if names_last else header
    return [
        _column(name, [cells[j] for _, cells in rows], [n for n, _ in rows], delimiter, notes)
        for j, name in enumerate(wanted)
    ]


def _column(name: str, cells: list[str], numbers: list[int], delimiter: str, notes: list) -> Column:
    if delimiter != "," and any(DECIMAL_COMMA.match(cell) for cell in cells):
        notes.append(("decimal comma", name, len(cells), "read as decimal point"))
        cells = [cell.replace(",", ".") for cell in cells]
    parsed = [_number(cell) for cell in cells]
    wrong = [i for i, value in enumerate(parsed) if value is None]
    if len(wrong) > MOST_TEXT * len(cells):
        dates = _dates(cells)
        return Column(name, dates) if dates is not None else Column(name, np.full(len(cells), np.nan), text=True)
    if wrong:
        detail = f"first {printable(cells[wrong[0]], 30)!r} in line {numbers[wrong[0]]}; taken as not measured"
        notes.append(("not a number", name, len(wrong), detail))
    return Column(name, np.array([np.nan if value is None else value for value in parsed], float))


def _dates(cells: list[str]) -> np.ndarray | None:
    """ISO dates with times as nanoseconds of the epoch."""
    try:
        stamps = np.array([cell.replace(" ", "T").removesuffix("Z") for cell in cells], "datetime64[ns]")
    except ValueError:
        return None
    return None if np.isnat(stamps).any() else stamps.astype("int64")
