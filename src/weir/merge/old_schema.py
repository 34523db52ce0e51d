"""The base as seen by a writer that was opened before the columns changed.

A writer keeps the schema it was opened with. Its own reads of the base match columns by field id,
as for rows in the log: a column renamed since has its old name, one dropped since is null, one
added since is absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from weir.format.nested import as_type
from weir.format.schema import FIELD_ID, TableSchema, align_batch, is_same_column
from weir.lake.api import Base
from weir.lake.filters import filter_columns, filter_rows

_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)


def under_schema(base: Base, schema: TableSchema) -> Base | OldSchemaBase:
    """`base`, wrapped to have the columns of `schema` if its own differ."""
    now = base.schema
    if now is schema or now.arrow.equals(schema.arrow, check_metadata=True):
        return base
    names = set(now.arrow.names)
    if all(f.name in names and _is_same(now.arrow.field(f.name), f) for f in schema.arrow):
        return base  # columns were added, or moved
    return OldSchemaBase(base, schema)


def _is_same(column: pa.Field, wanted: pa.Field) -> bool:
    same_id = column.metadata[FIELD_ID] == wanted.metadata[FIELD_ID]
    return bool(same_id and column.type == wanted.type and is_same_column(wanted, column))


class OldSchemaBase:
    """One version of the base under an older schema, with the methods that merges call."""

    def __init__(self, base: Base, schema: TableSchema) -> None:
        self._base = base
        self._schema = schema
        by_id = {f.metadata[FIELD_ID]: f for f in base.schema.arrow}
        self._now = {
            f.name: by_id[f.metadata[FIELD_ID]]
            for f in schema.arrow
            if f.metadata[FIELD_ID] in by_id and is_same_column(f, by_id[f.metadata[FIELD_ID]])
        }

        # The current fields with the marks of the old ones: the two were matched above.
        self._sources = {
            now.name: now.with_metadata(schema.arrow.field(name).metadata)
            for name, now in self._now.items()
        }

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        filter: Any = None,
        fragments: Sequence[int] | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Live rows. A filter uses the old names, so it is applied to the rows read."""
        names = list(self._schema.plain.names if columns is None else columns)
        looked_at = filter_columns(filter, self._schema.plain.names)
        read = list(dict.fromkeys((*names, *looked_at)))
        rows = self._base.scan(
            self._stored(read), fragments=fragments, limit=limit if filter is None else None
        )
        for batch in rows:
            seen = self._shaped(batch, read)
            if filter is None:
                yield seen
            else:
                yield from filter_rows(pa.Table.from_batches([seen]), filter, names)

    def count(self, filter: Any = None) -> int:
        """Number of live rows that pass the filter."""
        if filter is None:
            return self._base.count()
        first = self._schema.plain.names[:1]
        return sum(int(batch.num_rows) for batch in self.scan(first, filter=filter))

    def lookup(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of `keys`."""
        names = list(self._schema.plain.names if columns is None else columns)
        renamed = keys.rename_columns([self._now[name].name for name in keys.column_names])
        return self._shaped(self._base.lookup(renamed, self._stored(names)), names)

    def _stored(self, names: Sequence[str]) -> list[str]:
        """The current names of those columns; at least one column, to get rows at all."""
        found = [self._now[name].name for name in names if name in self._now]
        return found or self._base.schema.plain.names[:1]

    def _shaped(self, rows: _Rows, names: Sequence[str]) -> _Rows:
        source = pa.schema([self._sources.get(n, rows.schema.field(n)) for n in rows.schema.names])
        columns = [
            as_type(column, field.type) if field.type.num_fields else column
            for column, field in zip(rows.columns, source, strict=True)
        ]
        wanted = pa.schema([self._schema.wal.field(name) for name in names])
        aligned = align_batch(type(rows).from_arrays(columns, schema=source), wanted)
        plain = [self._schema.plain.field(f.name).with_nullable(f.nullable) for f in wanted]
        return type(rows).from_arrays(
            [
                as_type(column, field.type) if field.type.num_fields else column
                for column, field in zip(aligned.columns, plain, strict=True)
            ],
            schema=pa.schema(plain),
        )
