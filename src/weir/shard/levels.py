"""Levels of a shard: what a merge reads, newest first.

`SsTableReader` of the lake is one kind; `MemLevel` the other, over batches in memory: a MemTable,
or the tail of the log. Both hand out rows without field ids, non-key columns nullable, `_tombstone`
last.

Keeps
  M-1  appended rows are visible to the next read; the newest row of a key is the one read
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.env import SYSTEM, Env
from weir.errors import InvalidInput
from weir.format.dedupe import newest_rows
from weir.format.keys import pk_values
from weir.format.schema import TOMBSTONE, TOMBSTONE_FIELD, TableSchema
from weir.lake.filters import filter_rows

COLD_LOOKUPS: Final = 4
SMALL_ROWS: Final = 2_000
"""A level is indexed after so many lookups, or at once when it is small."""


class Level(Protocol):
    """One level: the newest row of each key within it, tombstones included."""

    @property
    def rows(self) -> int:
        """At least the number of rows a scan gives."""

    def scan(
        self, columns: Sequence[str] | None = None, *, filter: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The newest row of each key (all rows without a key), tombstones included."""

    def lookup(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of those keys that are here, tombstones included, in no promised order."""


def level_schema(schema: TableSchema, columns: Sequence[str] | None = None) -> pa.Schema:
    """The shape in which a level hands out `columns` (all of them when None), `_tombstone` last."""
    names = schema.plain.names if columns is None else [n for n in columns if n != TOMBSTONE]
    fields = []
    for name in names:
        index = schema.plain.get_field_index(name)
        if index < 0:
            raise InvalidInput(f"the table has no column {name!r}; it has {schema.plain.names}")
        fields.append(schema.plain.field(index).with_nullable(schema.wal.field(index).nullable))
    return pa.schema([*fields, TOMBSTONE_FIELD])


def shaped(batch: pa.RecordBatch | pa.Table, target: pa.Schema) -> pa.RecordBatch | pa.Table:
    """The columns of `target`, by name, with exactly its types: nested field ids are cast away."""
    columns = []
    for field in target:
        column = batch.column(field.name)
        same = column.type.equals(field.type, check_metadata=True)
        columns.append(column if same else column.cast(field.type))
    return type(batch).from_arrays(columns, schema=target)


class MemLevel:
    """Rows in memory, in put order. Safe to share between threads.

    The lock guards the list of batches and the key index; rows are read outside of it. The first
    lookups compare all keys, natively; who looks up more often gets an index, which costs about
    0.3 microseconds a row, once, and catches up with what was appended.
    """

    def __init__(
        self, batches: Sequence[pa.RecordBatch], schema: TableSchema, env: Env = SYSTEM
    ) -> None:
        self._schema = schema
        self._lock = env.threads.lock()
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._index: dict[Any, tuple[int, int]] = {}
        self._indexed = 0
        self._lookups = 0
        self.append(batches)

    def append(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Take in rows of WAL shape; empty batches are left out."""
        filled = [batch for batch in batches if batch.num_rows]
        with self._lock:
            self._batches.extend(filled)
            self._rows += sum(batch.num_rows for batch in filled)

    @property
    def rows(self) -> int:
        """Rows held, superseded ones included."""
        return self._rows

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The rows in put order, WAL shape; a list of its own."""
        with self._lock:
            return list(self._batches)

    def scan(
        self, columns: Sequence[str] | None = None, *, filter: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The newest row of each key as of this call, in put order."""
        target = level_schema(self._schema, columns)
        batches = self.batches
        if not batches:
            return
        if self._schema.primary_key:
            batches = [self._newest(batches, target)]
        else:
            batches = [shaped(batch, target) for batch in batches]
        if filter is not None:
            everything = pa.Table.from_batches(self.scan(), level_schema(self._schema))
            for batch in filter_rows(everything, filter, target.names):
                yield shaped(batch, target)
            return
        yield from batches

    def _newest(self, batches: list[pa.RecordBatch], target: pa.Schema) -> pa.RecordBatch:
        names = list(dict.fromkeys((*self._schema.primary_key, *target.names)))
        rows = (
            batches[0]
            if len(batches) == 1
            else pa.concat_batches([b.select(names) for b in batches])
        )
        newest = newest_rows(pk_values(rows, self._schema.primary_key))
        result = shaped(rows, target)
        return result if len(newest) == rows.num_rows else result.take(pa.array(newest))

    def lookup(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The newest row of each of those keys that is here. Microseconds a key."""
        target = level_schema(self._schema, columns)
        picked = self._picked(keys)
        if not picked:
            return target.empty_table()
        if len(picked) <= 16:
            rows = [shaped(batch.slice(row, 1), target) for batch, row in picked]
            return pa.Table.from_batches(rows, target)
        by_batch: dict[int, tuple[pa.RecordBatch, list[int]]] = {}
        for batch, row in picked:
            by_batch.setdefault(id(batch), (batch, []))[1].append(row)
        taken = [
            shaped(batch, target).take(pa.array(np.array(rows, np.int64)))
            for batch, rows in by_batch.values()
        ]
        return pa.Table.from_batches(taken, target)

    def _picked(self, keys: pa.Table) -> list[tuple[pa.RecordBatch, int]]:
        """Batch and row of the newest row of each key that is here."""
        wanted = pk_values(keys, self._schema.primary_key)
        with self._lock:
            self._lookups += 1
            batches = list(self._batches)
            if self._lookups > COLD_LOOKUPS or self._rows <= SMALL_ROWS:
                self._catch_up()
                known = self._index
                places = [known[key] for key in dict.fromkeys(wanted.to_pylist()) if key in known]
                return [(batches[number], row) for number, row in places]
        here = pa.concat_arrays([pk_values(b, self._schema.primary_key) for b in batches])
        rows = np.flatnonzero(pc.is_in(here, value_set=wanted).to_numpy(zero_copy_only=False))
        rows = rows[newest_rows(here.take(pa.array(rows)))]
        ends = np.cumsum([batch.num_rows for batch in batches])
        numbers = np.searchsorted(ends, rows, side="right")
        return [
            (batches[number], int(row - (ends[number] - batches[number].num_rows)))
            for number, row in zip(numbers, rows, strict=True)
        ]

    def _catch_up(self) -> None:
        """Index what was appended since the last lookup; a later row replaces the earlier."""
        for number in range(self._indexed, len(self._batches)):
            keys = pk_values(self._batches[number], self._schema.primary_key).to_pylist()
            self._index.update((key, (number, row)) for row, key in enumerate(keys))
        self._indexed = len(self._batches)
