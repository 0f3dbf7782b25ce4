"""Parquet files: columns of numbers, of lists of one length, of dates; nested records by path."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from knuckle.sysid.findings import RecordingError
from knuckle.sysid.raw import Column, Run, Stream, check_columns, check_size, need


def read(path: Path, max_bytes: int, skip=lambda key: False) -> list[Run]:
    need("pyarrow", path, "Parquet files")
    parquet = need("pyarrow.parquet", path, "Parquet files")
    with parquet.ParquetFile(path) as file:
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        check_size(path, sum(group.total_byte_size for group in groups), max_bytes, "unpacked, it")
        table = file.read()
    while any(_is_struct(field.type) for field in table.schema):
        table = table.flatten()
    columns = [_column(path, name, table.column(i)) for i, name in enumerate(table.column_names) if not skip(name)]
    check_columns(path, len(columns))
    if not columns or table.num_rows == 0:
        raise RecordingError(path, f"no rows of data ({len(columns)} columns, {table.num_rows} rows)")
    return [Run(path.stem, (Stream(tuple(columns)),))]


def _is_struct(kind) -> bool:
    import pyarrow

    return pyarrow.types.is_struct(kind)


def _column(path: Path, name: str, column) -> Column:
    import pyarrow.types as types

    kind = column.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return Column(name, _lists(path, name, column))
    if types.is_timestamp(kind) or types.is_duration(kind):
        unit = "datetime64[ns]" if types.is_timestamp(kind) else "timedelta64[ns]"
        if column.null_count:
            raise RecordingError(path, f"{column.null_count} times are missing", name)
        return Column(name, column.to_numpy().astype(unit).astype("int64"))
    if types.is_integer(kind) and not column.null_count:
        return Column(name, column.to_numpy().astype("int64"))
    if types.is_floating(kind) or types.is_integer(kind) or types.is_decimal(kind) or types.is_boolean(kind):
        return Column(name, np.array([np.nan if v is None else float(v) for v in column.to_pylist()], float))
    return Column(name, np.full(len(column), np.nan), text=True)


def _lists(path: Path, name: str, column) -> np.ndarray:
    rows = column.to_pylist()
    widths = {len(row) for row in rows if row is not None}
    if len(widths) != 1:
        raise RecordingError(path, f"lists of one length expected, got lengths {sorted(widths)[:5]}", name)
    width = widths.pop()
    return np.array([[np.nan] * width if row is None else row for row in rows], float)
