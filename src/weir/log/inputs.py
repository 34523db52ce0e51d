"""Accepted forms of rows and keys: Arrow, DataFrames, numpy, dicts, objects with named fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from weir.errors import InvalidInput
from weir.format.pandas_frames import is_pandas, with_index
from weir.format.python_values import rows_at_once

T = TypeVar("T")

RUN_ROWS: Final = 10_000
"""How many rows of an iterable become one batch."""
_SAMPLED: Final = 16
"""Values of a pandas column that are looked at to know how large they are."""
_ARRAY_ITEMS: Final = 8
"""Items of a numpy array that are converted in the time of one Python number."""


def arrow_batches(data: Any) -> Sequence[pa.RecordBatch] | None:
    """The batches of rows in any form of Arrow, pandas or numpy; None for anything else."""
    if isinstance(data, pa.RecordBatch):
        return (data,)
    if isinstance(data, pa.Table):
        return data.to_batches()  # type: ignore[no-any-return]
    try:
        if isinstance(data, np.ndarray) and data.dtype.names is not None:
            columns = {name: _plain(data[name]) for name in data.dtype.names}
            return (pa.RecordBatch.from_pydict(columns),)
        if is_pandas(data, "DataFrame"):
            frame = with_index(data)
            return _pandas_parts(frame) or _pandas_table(frame).to_batches()
        if hasattr(data, "__arrow_c_stream__"):
            return pa.table(data).to_batches()  # type: ignore[no-any-return]
        if hasattr(data, "__arrow_c_array__"):
            return (pa.record_batch(data),)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidInput(f"cannot read rows from {type(data).__name__}: {error}") from error
    return None


def arrow_column(data: Any) -> pa.Array | None:
    """The values of a single column: an Arrow array, a Series, a numpy array; else None."""
    if isinstance(data, pa.Array | pa.ChunkedArray):
        return data
    try:
        if isinstance(data, np.ndarray) and data.dtype.names is None and data.ndim == 1:
            return pa.array(data)
        if is_pandas(data, "Series") or is_pandas(data, "Index"):
            return pa.array(data, from_pandas=True)
        # A polars Series is a stream of values, a DataFrame is a stream of structs.
        if type(data).__name__ == "Series" and hasattr(data, "__arrow_c_stream__"):
            return pa.chunked_array(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidInput(f"cannot read keys from {type(data).__name__}: {error}") from error
    return None


def is_row(data: Any) -> bool:
    """True for a single row: a dict, a dataclass, a named tuple, or a pydantic model."""
    return (
        isinstance(data, Mapping)
        or (dataclasses.is_dataclass(data) and not isinstance(data, type))
        or (isinstance(data, tuple) and hasattr(data, "_asdict"))
        or (hasattr(data, "model_dump") and not isinstance(data, type))
    )


def as_dict(row: Any) -> Mapping[str, Any]:
    """One row as a dict, including what is nested in it."""
    if isinstance(row, Mapping):
        return row
    if hasattr(row, "model_dump"):
        dumped: Mapping[str, Any] = row.model_dump()
        return dumped
    if hasattr(row, "_asdict"):
        named: Mapping[str, Any] = row._asdict()
        return named
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return dataclasses.asdict(row)
    raise InvalidInput(
        "expected a dict, dataclass, named tuple or pydantic model for each row, got"
        f" {type(row).__name__}"
    )


def row_parts(data: Any) -> Iterator[pa.RecordBatch | list[Mapping[str, Any]]]:
    """Rows in any accepted form, in order: Arrow as batches, all others as runs of dicts."""
    if isinstance(data, list) and set(map(type, data)) == {dict}:
        yield data
    else:
        yield from parts_of(data, as_dict)


def parts_of(data: Any, read: Callable[[Any], T]) -> Iterator[pa.RecordBatch | list[T]]:
    """`row_parts`, with what `read` makes of each row that is not Arrow."""
    found = arrow_batches(data)
    if found is not None:
        yield from found
        return
    if is_row(data):
        data = [data]
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise InvalidInput(
            f"cannot read rows from {type(data).__name__}; pass a RecordBatch, Table,"
            " RecordBatchReader, DataFrame, dicts, or objects with named fields"
        )
    run: list[T] = []
    for item in data:
        found = None if is_row(item) else arrow_batches(item)
        if found is None:
            run.append(read(item))
        if run and (found is not None or len(run) == RUN_ROWS):
            yield run
            run = []
        yield from found or ()
    if run:
        yield run


def _pandas_parts(frame: Any) -> Sequence[pa.RecordBatch]:
    """The rows of a frame of many Python objects, converted in pieces; empty: convert it at once.

    A conversion of objects holds Python's global lock: see `weir.format.python_values`. The types
    of the columns are those of the whole frame, or the pieces do not count.
    """
    objects = _objects_in_a_row(frame)
    step = rows_at_once(objects)
    if not objects or len(frame) <= step:
        return ()
    parts = [_pandas_table(frame.iloc[at : at + step]) for at in range(0, len(frame), step)]
    parts = [part.replace_schema_metadata(None) for part in parts]
    if any(not part.schema.equals(parts[0].schema) for part in parts):
        return ()  # such as a piece of nulls only, or decimals of another precision
    return pa.concat_tables(parts).combine_chunks().to_batches()  # type: ignore[no-any-return]


def _objects_in_a_row(frame: Any) -> int:
    """About how many Python objects a row of the frame holds."""
    found = 0
    for index, dtype in enumerate(frame.dtypes):
        if dtype.kind == "O":
            values = frame.iloc[:: max(len(frame) // _SAMPLED, 1), index]
            found += max(map(_size, values), default=0)
    return found


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return 1 + value.size // _ARRAY_ITEMS
    return 1 + (len(value) if isinstance(value, list | tuple) else 0)


def _pandas_table(frame: Any) -> pa.Table:
    # By the frame's own way to Arrow, where it has one.
    if hasattr(frame, "__arrow_c_stream__"):
        return pa.table(frame)
    return pa.Table.from_pandas(frame, preserve_index=False)


def _plain(column: Any) -> pa.Array:
    return pa.array(column.tolist() if column.dtype.kind in "OU" or column.ndim > 1 else column)
