"""Parquet files: columns of numbers, of lists of one length, of dates; nested records by path."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from knuckle.sysid.findings import RecordingError
from knuckle.sysid.raw import Column, Run, Stream, check_columns, check_size, need

ROWS_AT_ONCE = 1 << 16


def read(path: Path, max_bytes: int, skip=lambda key: False) -> list[Run]:
    need("pyarrow", path, "Parquet files")
    parquet = need("pyarrow.parquet", path, "Parquet files")
    check_size(path, path.stat().st_size, max_bytes)
    with parquet.ParquetFile(path) as file:
        rows, kinds = file.metadata.num_rows, dict(_leaves(file.schema_arrow))
        names = [name for name in kinds if not skip(name)]
        check_columns(path, len(names))
        if not names or rows <= 0:
            raise RecordingError(path, f"no rows of data ({len(names)} columns, {rows} rows)")
        numeric = [name for name in names if _is_numeric(kinds[name])]
        check_size(path, _decoded_bytes(file.metadata, numeric) + 8 * rows * len(names), max_bytes, "unpacked, it")
        table = _table(path, file, numeric, max_bytes)
    blank = np.full(rows, np.nan)
    columns = [
        _column(path, name, table.column(name)) if name in numeric else Column(name, blank, text=True) for name in names
    ]
    return [Run(path.stem, (Stream(tuple(columns)),))]


def _leaves(fields, above: str = ""):
    """Names and types of columns; fields of records by their path."""
    import pyarrow.types as types

    for field in fields:
        if types.is_struct(field.type):
            yield from _leaves(field.type, f"{above}{field.name}.")
        else:
            yield f"{above}{field.name}", field.type


def _is_list(kind) -> bool:
    import pyarrow.types as types

    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _is_numeric(kind) -> bool:
    """Whether a column is read; text is not, since a few bytes of it can stand for any number of rows."""
    import pyarrow.types as types

    if _is_list(kind):
        return _is_numeric(kind.value_type)
    tests = (types.is_timestamp, types.is_duration, types.is_integer, types.is_floating, types.is_decimal)
    return types.is_boolean(kind) or any(test(kind) for test in tests)


def _decoded_bytes(metadata, names: list[str]) -> int:
    """Bytes of the columns as float64: a page of a few bytes may hold one value any number of times."""
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    chunks = (group.column(j) for group in groups for j in range(group.num_columns))
    chosen = tuple(names)
    return sum(8 * c.num_values for c in chunks if any(_is_below(c.path_in_schema, name) for name in chosen))


def _is_below(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}.")


def _table(path: Path, file, names: list[str], max_bytes: int):
    """The columns, read in pieces that are counted as they come."""
    import pyarrow

    batches, size = [], 0
    for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=names):
        size += batch.nbytes
        check_size(path, size, max_bytes, "unpacked, it")
        batches.append(batch)
    table = pyarrow.Table.from_batches(batches)
    while any(pyarrow.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


def _column(path: Path, name: str, column) -> Column:
    import pyarrow.types as types

    kind = column.type
    if _is_list(kind):
        return Column(name, _lists(path, name, column))
    if types.is_timestamp(kind) or types.is_duration(kind):
        unit = "datetime64[ns]" if types.is_timestamp(kind) else "timedelta64[ns]"
        if column.null_count:
            raise RecordingError(path, f"{column.null_count} times are missing", name)
        return Column(name, column.to_numpy().astype(unit).astype("int64"))
    if types.is_integer(kind) and not column.null_count:
        return Column(name, column.to_numpy().astype("int64"))
    return Column(name, _floats(column))


def _floats(column) -> np.ndarray:
    """Numbers as float64, NaN where there is none."""
    import pyarrow.types as types

    if types.is_boolean(column.type):
        column = column.cast("int8")
    return np.array(column.cast("float64", safe=False).to_numpy(), float)


def _lists(path: Path, name: str, column) -> np.ndarray:
    """Lists of one length as rows of an array; NaN where there is none."""
    import pyarrow

    compute = need("pyarrow.compute", path, "Parquet files")
    widths = compute.unique(compute.drop_null(compute.list_value_length(column))).to_pylist()
    if len(widths) != 1:
        raise RecordingError(path, f"lists of one length expected, got lengths {sorted(widths)[:5]}", name)
    there = ~np.asarray(column.is_null().to_numpy(), bool)
    rows = np.full((len(column), widths[0]), np.nan)
    values = compute.list_flatten(column)
    if _is_list(values.type):
        raise RecordingError(path, "lists of lists are no channel; leave it out with ignore=", name)
    chunked = values if isinstance(values, pyarrow.ChunkedArray) else pyarrow.chunked_array([values])
    rows[there] = _floats(chunked).reshape(-1, widths[0])
    return rows
