"""Levels of a shard: what a merge reads, newest first.

One kind is the lake's `SsTableReader`; the other is `MemLevel`, over batches in memory: a MemTable,
or the tail of the log. Both return rows without field ids, non-key columns nullable, `_tombstone`
last.

Keeps
  M-1  appended rows are visible to the next read; the newest row of a key is the one read
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.env import SYSTEM, Env
from weir.errors import InvalidInput
from weir.format.keys import pk_values
from weir.format.nested import as_type
from weir.format.schema import TOMBSTONE, TOMBSTONE_FIELD, TableSchema, no_rows
from weir.keys.keyset import newest_rows
from weir.lake.api import Scanned

D = TypeVar("D")

COLD_LOOKUPS: Final = 4
SMALL_ROWS: Final = 2_000
"""A level is indexed after `COLD_LOOKUPS` lookups, or at once when it has few rows."""


class Level(Scanned, Protocol):
    """One level: the newest row of each key within it, tombstones included."""

    def lookup(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of `keys` found here, tombstones included, in no promised order."""


def level_schema(schema: TableSchema, columns: Sequence[str] | None = None) -> pa.Schema:
    """The shape in which a level returns `columns` (all of them when None), `_tombstone` last."""
    key = None if columns is None else tuple(columns)
    known = schema.levels.get(key)
    if known is None:
        known = schema.levels[key] = _level_schema(schema, columns)
    return known


def _level_schema(schema: TableSchema, columns: Sequence[str] | None) -> pa.Schema:
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
    columns = [as_type(batch.column(field.name), field.type) for field in target]
    return type(batch).from_arrays(columns, schema=target)


class MemLevel:
    """Rows in memory, in put order. Safe to share between threads.

    The lock guards the list of batches and the key index; rows are read outside of it. The first
    lookups compare all keys in native code. Later ones use an index, which costs about 0.3
    microseconds a row, once, and catches up with what was appended.
    """

    def __init__(
        self, batches: Sequence[pa.RecordBatch], schema: TableSchema, env: Env = SYSTEM
    ) -> None:
        self._schema = schema
        self._env = env
        self._lock = env.threads.lock()
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._index: dict[Any, tuple[int, int]] = {}
        self._indexed = 0
        self._lookups = 0
        self._derived: dict[Hashable, Any] = {}
        self.append(batches)

    def append(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Append rows of WAL shape, all of them or none (F-16); empty batches are left out."""
        added, rows = _filled(batches)
        with self._lock:
            self._rows += rows
            self._batches.extend(added)

    def _append_after(self, count: int, added: list[pa.RecordBatch], rows: int) -> MemLevel:
        """The level whose first `count` batches are those here, and whose next are `added`."""
        with self._lock:
            if len(self._batches) == count:
                self._rows += rows
                self._batches.extend(added)
                return self
            older = self._batches[:count]
        return MemLevel([*older, *added], self._schema, self._env)

    @property
    def rows(self) -> int:
        """Rows held, superseded ones included."""
        return self._rows

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The rows in put order, WAL shape; the list is a copy."""
        with self._lock:
            return list(self._batches)

    @property
    def count(self) -> int:
        """Batches held."""
        return len(self._batches)

    def since(self, count: int) -> list[pa.RecordBatch]:
        """The batches after the first `count`, WAL shape, in put order."""
        with self._lock:
            return self._batches[count:]

    def scan(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The newest row of each key as of this call, in put order."""
        return self._scan(self.batches, columns)

    def _scan(
        self, batches: list[pa.RecordBatch], columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        target = level_schema(self._schema, columns)
        if not batches:
            return
        if self._schema.primary_key:
            batches = [self._newest(batches, target)]
        else:
            batches = [shaped(batch, target) for batch in batches]
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
        """The newest row of each of `keys` found here. Takes microseconds a key."""
        return self._lookup(keys, columns, None)

    def now(self) -> MemView:
        """The level as it is now, unaffected by later appends."""
        with self._lock:
            return MemView(self, len(self._batches), self._rows)

    def derived(self, key: Hashable, make: Callable[[], D]) -> D:
        """What is kept of these rows under `key`, such as a search index; it goes with them."""
        with self._lock:
            found: D | None = self._derived.get(key)
            if found is None:
                found = self._derived[key] = make()
            return found

    def forget_derived(self) -> None:
        """Forget all of it: the rows are in an SSTable now."""
        with self._lock:
            self._derived.clear()

    def all_keys(self) -> list[Any]:
        """The keys of all rows, superseded ones included, as values of `pk_values`."""
        key = self._schema.primary_key
        return [value for batch in self.batches for value in pk_values(batch, key).to_pylist()]

    def holds_any(self, keys: Sequence[Any]) -> bool:
        """False when no row has one of those keys, given as values of `pk_values`."""
        with self._lock:
            self._lookups += 1
            if self._lookups <= COLD_LOOKUPS and self._rows > SMALL_ROWS:
                return True  # not indexed yet: the caller must look closer
            self._catch_up()
            return not self._index.keys().isdisjoint(keys)

    def get(self, keys: Sequence[Any], target: pa.Schema) -> pa.Table | None:
        """The newest rows of a few keys at one moment, in the shape of `target`, without deletes.

        The keys are values of `pk_values`. None when one is not here, or nothing is indexed yet.
        """
        if self._lookups <= COLD_LOOKUPS and self._rows > SMALL_ROWS:
            return None  # not counted here: the full lookup that follows is
        # Avoid the lock, for which many readers would wait, unless something was appended.
        count = len(self._batches)
        places = [self._index.get(key) for key in keys] if self._indexed == count else []
        if not places or len(self._batches) != count:
            with self._lock:
                self._catch_up()
                places = [self._index.get(key) for key in keys]
        if not places or None in places:
            return None
        taken = [self._batches[number].slice(row, 1) for number, row in filter(None, places)]
        rows = taken[0] if len(taken) == 1 else pa.concat_batches(taken)
        is_gone = rows.column(rows.num_columns - 1)
        if is_gone.true_count:
            rows = rows.filter(pc.invert(is_gone))
        columns = [as_type(rows.column(field.name), field.type) for field in target]
        return pa.Table.from_arrays(columns, schema=target)

    def _lookup(self, keys: pa.Table, columns: Sequence[str] | None, count: int | None) -> pa.Table:
        target = level_schema(self._schema, columns)
        picked = self._picked(keys, count)
        if not picked:
            return no_rows(target)
        places = [self._schema.wal.get_field_index(name) for name in target.names]
        narrow = 2 * len(places) < len(self._schema.wal)
        if len(picked) <= 16:
            taken = [batch.slice(row, 1) for batch, row in picked]
        else:
            by_batch: dict[int, tuple[pa.RecordBatch, list[int]]] = {}
            for batch, row in picked:
                by_batch.setdefault(id(batch), (batch, []))[1].append(row)
            taken = [
                (batch.select(places) if narrow else batch).take(pa.array(rows, pa.int64()))
                for batch, rows in by_batch.values()
            ]
        # Join first: reshaping a batch takes as long for one row as for many.
        rows_found = taken[0] if len(taken) == 1 else pa.concat_batches(taken)
        return pa.Table.from_batches([shaped(rows_found, target)], target)

    def _picked(self, keys: pa.Table, count: int | None) -> list[tuple[pa.RecordBatch, int]]:
        """Batch and row of the newest row of each key in the first `count` batches."""
        wanted = pk_values(keys, self._schema.primary_key)
        with self._lock:
            self._lookups += 1
            if self._lookups > COLD_LOOKUPS or self._rows <= SMALL_ROWS:
                self._catch_up()
                known = self._index
                places = [known[key] for key in dict.fromkeys(wanted.to_pylist()) if key in known]
                if count is None or all(number < count for number, _ in places):
                    return [(self._batches[number], row) for number, row in places]
            # The index knows only the newest row of a key. A view of an earlier state that finds
            # a later row there compares all keys instead.
            batches = self._batches[:count]
        if not batches:
            return []
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
        """Index what was appended since the last lookup; a later row replaces an earlier one."""
        for number in range(self._indexed, len(self._batches)):
            keys = pk_values(self._batches[number], self._schema.primary_key).to_pylist()
            self._index.update(
                zip(keys, zip(repeat(number), range(len(keys)), strict=False), strict=True)
            )
        self._indexed = len(self._batches)


def _filled(batches: Sequence[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], int]:
    """The batches that have rows, and how many rows."""
    filled = [batch for batch in batches if batch.num_rows]
    return filled, sum([batch.num_rows for batch in filled])


class MemView:
    """The first batches of a level that grows: what one snapshot sees of it (L-5). Immutable."""

    def __init__(self, level: MemLevel, count: int, rows: int) -> None:
        """Use `MemLevel.now`."""
        self._level = level
        self.count = count
        self.rows = rows

    def plus(self, batches: Sequence[pa.RecordBatch]) -> MemView:
        """The view of these rows and of `batches` after them; this view stays as it is.

        Appends to the level if this view is all of it. Otherwise the rows are another reader's, or
        of a read that was interrupted before anybody had its view (F-16): a level of its own.
        """
        added, rows = _filled(batches)
        count, total = self.count + len(added), self.rows + rows
        level = self._level._append_after(self.count, added, rows)  # noqa: SLF001  friend class
        return MemView(level, count, total)

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The rows in put order, WAL shape."""
        return self._level.batches[: self.count]

    def derived(self, key: Hashable, make: Callable[[], D]) -> D:
        """What is kept of the level's rows under `key`; it may go beyond this view."""
        return self._level.derived(key, make)

    def scan(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The newest row of each key, in put order."""
        return self._level._scan(self.batches, columns)  # noqa: SLF001  friend class

    def lookup(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The newest row of each of `keys` found here."""
        return self._level._lookup(keys, columns, self.count)  # noqa: SLF001

    def holds_any(self, keys: Sequence[Any]) -> bool:
        """False when no row has one of those keys, given as values of `pk_values`."""
        return self._level.holds_any(keys)
