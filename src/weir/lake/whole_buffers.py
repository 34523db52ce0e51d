"""Copies rows that Lance cannot import: arrow-rs panics on some slices and unaligned buffers."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)


def for_lance(rows: _Rows) -> _Rows:
    """`rows`, with copies of those columns on which Lance would panic.

    Measured with pylance 14.0.2: it panics on a struct in a struct that starts inside its buffers
    (any other nesting survives a slice), and on buffers not aligned as Rust requires. Decimals from
    an IPC stream are misaligned every other time (the format aligns to 8 bytes, not to 16).
    """
    columns = [
        _sound(column, nested=_is_nested(field.type), step=_alignment(field.type))
        for column, field in zip(rows.columns, rows.schema, strict=True)
    ]
    if all(new is old for new, old in zip(columns, rows.columns, strict=True)):
        return rows
    return type(rows).from_arrays(columns, schema=rows.schema)


def _is_nested(dtype: pa.DataType) -> bool:
    children = [dtype.field(i).type for i in range(dtype.num_fields)]
    is_struct = pa.types.is_struct(dtype)
    return any(_is_nested(child) or (is_struct and pa.types.is_struct(child)) for child in children)


def _alignment(dtype: pa.DataType) -> int:
    children = [_alignment(dtype.field(i).type) for i in range(dtype.num_fields)]
    return max([16 if pa.types.is_decimal(dtype) else 8, *children])


def _sound(column: Any, *, nested: bool, step: int) -> Any:
    if isinstance(column, pa.ChunkedArray):
        chunks = [_sound(chunk, nested=nested, step=step) for chunk in column.chunks]
        if all(new is old for new, old in zip(chunks, column.chunks, strict=True)):
            return column
        return pa.chunked_array(chunks, type=column.type)
    # guard: M-4 first test_rows_with_a_struct_in_a_struct_can_be_flushed_folded_and_filtered
    if (nested and column.offset) or any(b and b.address % step for b in column.buffers()):
        return column.take(pa.array(np.arange(len(column))))
    return column
