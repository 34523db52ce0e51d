"""Filters over rows in memory.

Lance evaluates them, so that one SQL text means the same everywhere. pyarrow evaluates those of its
own expressions that cannot be sent to Lance: nested fields, most functions, and columns of types
that Substrait has no type of its own for (unsigned numbers, large text and bytes, times of day).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.dataset import ScannerBuilder
from pyarrow.substrait import serialize_expressions

from weir.errors import InvalidInput
from weir.lake.lance_errors import OF_LANCE, lance_errors
from weir.lake.params import require_bound
from weir.lake.shared import SharedDataset, as_destination
from weir.lake.whole_buffers import for_lance

Mask = npt.NDArray[np.bool_]

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNSENT = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError)
_EXTENSIONS: Final = b"extension_types"
"""In a serialized expression with types of Arrow that are not Substrait's: Lance knows none."""
_OF_LANCE: Final = re.compile(rf"\b({'|'.join(OF_LANCE)})\b", re.IGNORECASE)
_UNKNOWN: Final = re.compile(r"No match for FieldRef\.Name\((.*?)\) in ")
_QUOTED: Final = re.compile(r"'(?:[^']|'')*'")


def free_name(name: str, taken: Collection[str]) -> str:
    """The name of a column beside those: `name`, made longer until no other has it, in any case."""
    folded = {one.lower() for one in taken}
    while name in folded:
        name += "_"
    return name


def filter_columns(filter: Any, names: Sequence[str]) -> list[str]:
    """The columns a filter may read: names that its text mentions, and names too odd to match.

    Raises `InvalidInput` for SQL that names a column of Lance's own, or a parameter without value.
    """
    if filter is None:
        return []
    if isinstance(filter, str):
        require_bound(filter)
        for name in _OF_LANCE.findall(_QUOTED.sub("", filter)):
            if name not in names:
                raise InvalidInput(
                    f"{filter!r} names {name}, a column that Lance adds to its own files; it says"
                    " nothing about a row of the table and is not available here"
                )
    words = set(_PLAIN_NAME.findall(str(filter).lower()))
    return [n for n in names if n.lower() in words or not _PLAIN_NAME.fullmatch(n)]


def both(one: Any, other: Any) -> Any:
    """A filter that passes the rows that both pass; None is no filter."""
    if one is None or other is None:
        return one if other is None else other
    if isinstance(one, str) and isinstance(other, str):
        return f"({one}) AND ({other})"
    if isinstance(one, str) or isinstance(other, str):
        raise InvalidInput(
            f"cannot combine a filter in SQL with a pyarrow expression: {one!r} and {other!r}; use"
            " the same kind for both"
        )
    return one & other


def is_for_lance(filter: Any, schema: pa.Schema) -> bool:
    """False for a pyarrow expression that Lance cannot evaluate.

    Depends on the types of the columns it names alone, so one filter has one meaning in all levels.
    Raises as `filter_columns`.
    """
    looked_at = filter_columns(filter, schema.names)
    return filter is None or isinstance(filter, str) or _sent(filter, schema, looked_at) is not None


def _sent(filter: Any, schema: pa.Schema, looked_at: Sequence[str]) -> bytes | None:
    """The expression as Lance reads it; None if Lance cannot evaluate it.

    Every column has its place in it, and Lance leaves out those of this odd name. Columns that the
    filter does not name have it: Substrait has no type for some of them.
    """
    if "FieldRef.Nested" in str(filter):
        return None
    if any(pa.types.is_time(schema.field(name).type) for name in looked_at):
        return None  # Substrait has times of day, Lance does not read them
    fields = [
        field.remove_metadata()
        if field.name in looked_at
        else pa.field(f"__unlikely_name_placeholder_{place}", pa.int8())
        for place, field in enumerate(schema)
    ]
    try:
        sent = bytes(serialize_expressions([filter], ["filter"], pa.schema(fields)))
    except _UNSENT:
        return None
    return None if _EXTENSIONS in sent else sent


def lance_scanner(
    dataset: SharedDataset, filter: Any, columns: Sequence[str] | None, **options: Any
) -> lance.LanceScanner:
    """A scan of the rows that pass; `options` are those of pylance's `scanner`, by the names of its
    builder's methods. The filter `is_for_lance`.

    pylance's own way to send an expression describes the types of all columns, and fails where
    Substrait has no type for one, also one that the filter does not name.
    """
    builder = ScannerBuilder(as_destination(dataset))
    builder.columns(None if columns is None else list(columns))
    for name, value in options.items():
        set_option = getattr(builder, name)
        if isinstance(value, dict):
            set_option(**value)
        elif value is not None:
            set_option(value)
    if isinstance(filter, str):
        builder.filter(filter)
    elif filter is not None:
        sent = _sent(filter, dataset.schema, filter_columns(filter, dataset.schema.names))
        assert sent is not None, "L-3: no scan leaves a filter out"
        setattr(builder, "_substrait_filter", sent)  # noqa: B010  mypy takes it for None
    return builder.to_scanner()


def filter_rows(
    rows: pa.Table,
    filter: Any,
    columns: Sequence[str] | None = None,
    *,
    known: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows that pass, projected to `columns`. Costs one write to memory: meant for few rows.

    `known` are the columns of the table, which an error lists; None: those of `rows`.
    """
    if not is_for_lance(filter, rows.schema):
        # Also without rows: a filter that does not fit the columns is refused all the same.
        batches = rows.to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)]
        yield from filter_batches(batches, filter, columns, known=known)
        return
    with lance_errors(f"filtering rows in memory by {filter!r}", known):
        # Each in-memory handle has a store of its own, gone with it: the name is never shared.
        dataset = lance.write_dataset(for_lance(rows), "memory://rows")
        yield from lance_scanner(dataset, filter, columns).to_batches()


def passing(rows: pa.Table, filter: Any, *, known: Sequence[str] | None = None) -> Mask:
    """True for each of the rows that passes; see `filter_rows`."""
    number = free_name("row", rows.column_names)
    numbered = rows.append_column(number, pa.array(np.arange(rows.num_rows)))
    mask = np.zeros(rows.num_rows, np.bool_)
    for batch in filter_rows(numbered, filter, [number], known=known):
        mask[batch.column(0).to_numpy()] = True
    return mask


def filter_batches(
    batches: Iterable[pa.RecordBatch],
    filter: Any,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    *,
    known: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """`filter_rows` by pyarrow, streamed; `filter` is an expression. At most `limit` rows."""
    left = limit
    for batch in batches:
        if left == 0:
            return
        try:
            passing = pa.Table.from_batches([batch]).filter(filter)
        except (*_UNSENT, pa.ArrowTypeError) as error:
            names = batch.schema.names if known is None else known
            raise InvalidInput(_refused(filter, error, names)) from error
        if columns is not None:
            passing = passing.select(list(columns))
        for piece in passing.slice(0, left).to_batches():
            yield piece
            left = None if left is None else left - piece.num_rows


def _refused(filter: Any, error: Exception, known: Sequence[str]) -> str:
    unknown = _UNKNOWN.match(str(error))
    if unknown is not None:
        told = f"; the columns are {', '.join(known)}" if known else ""
        return f"the filter {filter} names {unknown[1]!r}, which is no column{told}"
    return f"the filter {filter} cannot be applied: {error}"
