"""SQL over rows in memory: conditions and expressions of writes, and computed scan columns.

The dialect is that of Lance's filters and the evaluator is Lance's own, so a condition of a write
means what the same text means in a read: three-valued logic, where null is not true, and integers
that wrap around as Lance's do. One evaluation costs about two milliseconds whatever the number of
rows, so callers combine the rows of many puts. The rows may come from any level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import lance
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import InvalidInput
from weir.format.nested import as_type, loose
from weir.lake.filters import filter_columns, free_name, passing
from weir.lake.lance_errors import is_of_lance, plain_text
from weir.lake.params import require_text
from weir.lake.whole_buffers import for_lance
from weir.types import Filter

CURRENT: Final = "current"
INCOMING: Final = "incoming"

_STORAGE: Final = "2.2"
"""The first file version with maps; in earlier ones, up to 2.0, no struct can be null."""


def condition_columns(condition: Filter, names: Sequence[str]) -> list[str]:
    """The table's columns that a condition may read."""
    return filter_columns(condition, names)


def require_name(name: object) -> None:
    """Raise `InvalidInput` for anything but the name of a column."""
    if not isinstance(name, str) or not name.strip():
        raise InvalidInput(f"the name of a column must be text, got {name!r}")


def when_mask(
    condition: Filter,
    current: pa.Table,
    incoming: pa.Table,
    absent: pa.BooleanArray,
    names: Sequence[str],
) -> pa.BooleanArray:
    """True for each row that meets the condition; `current` is null where `absent` is true.

    `names` are the table's columns, for the error message about an unknown column.
    """
    looked_at = condition_columns(condition, names) or list(names[:1])
    rows = pa.table(
        {
            CURRENT: _struct(current, looked_at, absent),
            INCOMING: _struct(incoming, looked_at, None),
        }
    )
    what = (
        f"the condition {_told(condition)} over current and incoming rows (columns {list(names)})"
    )
    return _mask(rows, condition, what)


def filter_mask(filter: Filter, rows: pa.Table) -> pa.BooleanArray:
    """True for each row that passes the filter."""
    what = f"the filter {_told(filter)} (columns {rows.column_names})"
    return _mask(_mentioned(rows, filter), filter, what)


def new_values(assignments: Mapping[str, str], rows: pa.Table) -> dict[str, pa.Array]:
    """The values of each expression, by target column, in the type Lance gives them."""
    found = {}
    for column, text in assignments.items():
        what = f"column {column!r}: the expression {text!r} (columns {rows.column_names})"
        found[column] = _values(_mentioned(rows, text), text, what)
    return found


def _told(condition: Filter) -> str:
    return repr(condition) if isinstance(condition, str) else str(condition)


def _mentioned(rows: pa.Table, condition: Filter) -> pa.Table:
    """The columns that the condition may read; no others are written to memory. At least one: a
    table without columns would have no rows."""
    names = rows.column_names
    return rows.select(condition_columns(condition, names) or names[:1])


def _mask(rows: pa.Table, condition: Filter, what: str) -> pa.BooleanArray:
    if not isinstance(condition, str):
        return _expression_mask(rows, condition, what)
    values = _values(rows, condition, what)
    if not pa.types.is_boolean(values.type):
        raise InvalidInput(f"{what} has type {values.type}; it must be boolean")
    return pc.fill_null(values, False)


def _expression_mask(rows: pa.Table, condition: pc.Expression, what: str) -> pa.BooleanArray:
    """Evaluated by Lance or by pyarrow, as in a scan: a filter has one meaning (filters.py)."""
    bare = pa.schema([pa.field(f.name, f.type) for f in rows.schema])
    try:
        return pa.array(
            passing(pa.Table.from_arrays(rows.columns, schema=bare), condition, known=())
        )
    except InvalidInput as error:
        raise InvalidInput(f"{what}: {error}") from error


def _values(rows: pa.Table, text: str, what: str) -> pa.Array:
    require_text(text, what)
    bare = [pa.field(f.name, f.type) for f in rows.schema]
    # A column beside the caller's: Lance evaluates no expression that names no column.
    name = free_name("anchor", rows.column_names)
    fields = pa.schema([*bare, pa.field(name, pa.int8())])
    anchor = pa.repeat(pa.scalar(0, pa.int8()), rows.num_rows)
    anchored = pa.Table.from_arrays([*rows.columns, anchor], schema=fields)
    try:
        # Each in-memory handle has a store of its own, gone with it: the name is never shared.
        dataset = lance.write_dataset(
            for_lance(anchored), "memory://rows", data_storage_version=_STORAGE
        )
        scanner = dataset.scanner(columns={name: name, "value": f"({text}\n)"}, scan_in_order=True)
        table = scanner.to_table()
    except BaseException as error:
        if not is_of_lance(error):
            raise
        # Everything is in memory, so only the text can be wrong.
        raise InvalidInput(f"{what}: {plain_text(error, ())}") from error
    return table.column("value").combine_chunks()


def _struct(rows: pa.Table, names: Sequence[str], absent: pa.BooleanArray | None) -> pa.StructArray:
    columns = [rows.column(name).combine_chunks() for name in names]
    # Without the ids of nested fields: `current` and `incoming` would hold each of them twice.
    columns = [as_type(column, loose(column.type)) for column in columns]
    fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=absent)
