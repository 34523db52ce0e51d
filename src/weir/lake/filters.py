"""Filters over rows in memory.

Lance evaluates them, so that one SQL text means the same everywhere. pyarrow evaluates those of its
own expressions that cannot be sent to Lance (nested fields, unsigned numbers, most functions).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import lance
import pyarrow as pa
from pyarrow.substrait import serialize_expressions

from weir.errors import InvalidInput
from weir.lake.lance_errors import lance_errors
from weir.lake.whole_buffers import for_lance

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNSENT = (pa.ArrowInvalid, pa.ArrowNotImplementedError)


def filter_columns(filter: Any, names: Sequence[str]) -> list[str]:
    """The columns a filter may read: names that its text mentions, and names too odd to match."""
    if filter is None:
        return []
    text = str(filter).lower()
    return [n for n in names if n.lower() in text or not _PLAIN_NAME.fullmatch(n)]


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

    Depends on types alone, so one filter has one meaning in all levels.
    """
    if filter is None or isinstance(filter, str):
        return True
    if "FieldRef.Nested" in str(filter):
        return False
    fields = [schema.field(name) for name in filter_columns(filter, schema.names)]
    try:
        serialize_expressions(
            [filter], ["filter"], pa.schema([f.remove_metadata() for f in fields])
        )
    except _UNSENT:
        return False
    return True


def filter_rows(
    rows: pa.Table, filter: Any, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows that pass, projected to `columns`. Costs one write to memory: meant for few rows."""
    if not is_for_lance(filter, rows.schema):
        yield from filter_batches(rows.to_batches(), filter, columns)
        return
    with lance_errors(f"filtering rows in memory by {filter!r}"):
        # Each in-memory handle has a store of its own, gone with it: the name is never shared.
        dataset = lance.write_dataset(for_lance(rows), "memory://rows")
        scanner = dataset.scanner(columns=None if columns is None else list(columns), filter=filter)
        yield from scanner.to_batches()


def filter_batches(
    batches: Iterable[pa.RecordBatch],
    filter: Any,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """`filter_rows` by pyarrow, streamed; `filter` is an expression. At most `limit` rows."""
    left = limit
    for batch in batches:
        if left == 0:
            return
        try:
            passing = pa.Table.from_batches([batch]).filter(filter)
        except (*_UNSENT, pa.ArrowKeyError, pa.ArrowTypeError) as error:
            raise InvalidInput(f"the filter {filter} cannot be applied: {error}") from error
        if columns is not None:
            passing = passing.select(list(columns))
        for piece in passing.slice(0, left).to_batches():
            yield piece
            left = None if left is None else left - piece.num_rows
