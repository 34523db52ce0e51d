"""Accepted forms of rows and keys: Arrow, DataFrames, numpy, dicts, objects with named fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from weir.errors import InvalidInput

RUN_ROWS: Final = 10_000
"""How many rows of an iterable become one batch."""


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
        if hasattr(data, "__arrow_c_stream__"):
            return pa.table(data).to_batches()  # type: ignore[no-any-return]
        if hasattr(data, "__arrow_c_array__"):
            return (pa.record_batch(data),)
        if _is_pandas(data, "DataFrame"):
            return pa.Table.from_pandas(data, preserve_index=False).to_batches()  # type: ignore[no-any-return]
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
        if _is_pandas(data, "Series") or _is_pandas(data, "Index"):
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


def row_runs(data: Iterable[Any]) -> Iterator[list[Any]]:
    """The items in order: rows grouped into runs, and each Arrow item on its own."""
    run: list[Any] = []
    for item in data:
        if is_row(item) or not _is_arrow(item):
            run.append(item)
            if len(run) < RUN_ROWS:
                continue
        if run:
            yield run
            run = []
        if not is_row(item) and _is_arrow(item):
            yield [item]
    if run:
        yield run


def _is_arrow(item: Any) -> bool:
    return hasattr(item, "__arrow_c_stream__") or hasattr(item, "__arrow_c_array__")


def _is_pandas(data: Any, name: str) -> bool:
    return any(
        cls.__name__ == name and cls.__module__.partition(".")[0] == "pandas"
        for cls in type(data).__mro__
    )


def _plain(column: Any) -> pa.Array:
    return pa.array(column.tolist() if column.dtype.kind in "OU" or column.ndim > 1 else column)
