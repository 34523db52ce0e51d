"""The merge of levels: newest row wins, tombstones gone, the base streamed behind.

Keeps
  L-2  levels in the order given, newest first, the base last; append-only tables concatenate
  L-3  a filter sees winners only: fresh levels are filtered after the merge. The base, the oldest
       level, may filter early: a fresh key masks its base rows even if its own row is filtered out
  L-11 expired rows are left out in the same way: an expired winner brings no older one back
Memory: the keys of the fresh levels, and a few batches. Payload is read once and never gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.env import SYSTEM, Env
from weir.errors import InvalidInput, MissingEntry, SnapshotExpired
from weir.format.expiry import Alive
from weir.format.keys import pk_type, pk_values
from weir.format.schema import TOMBSTONE, TableSchema, no_rows
from weir.keys.keyset import KeySet, gathered, unseen
from weir.lake.api import Base, Scanned
from weir.lake.filters import filter_columns, filter_rows
from weir.merge.levels import Level, level_schema, shaped
from weir.meters import READ_ROWS

T = TypeVar("T")
Belongs = Callable[[pa.RecordBatch], pa.Array]
"""Marks the rows of one shard."""

PLAN_ATTEMPTS: Final = 5
READ_AHEAD_LEVELS: Final = 8
READ_AHEAD_BYTES: Final = 128 << 20
"""Levels read concurrently, and the limit on their size together; a larger level is streamed."""
_FILTER_ROWS: Final = 200_000


def output_schema(schema: TableSchema, columns: Sequence[str] | None) -> pa.Schema:
    """The schema of a scan of `columns`; `InvalidInput` names a column the table does not have."""
    if columns is None:
        return schema.plain
    known = schema.outputs.get(tuple(columns))
    if known is None:
        known = schema.outputs[tuple(columns)] = _output_schema(schema, columns)
    return known


def _output_schema(schema: TableSchema, columns: Sequence[str]) -> pa.Schema:
    for name in columns:
        if name not in schema.plain.names:
            raise InvalidInput(f"the table has no column {name!r}; it has {schema.plain.names}")
    if len(set(columns)) != len(columns):
        raise InvalidInput(f"a column occurs twice in {list(columns)}")
    return pa.schema([schema.plain.field(n) for n in columns], metadata=schema.plain.metadata)


def merge_scan(
    levels: Sequence[Level],
    base: Base | None,
    schema: TableSchema,
    *,
    columns: Sequence[str] | None = None,
    filter: Any = None,
    limit: int | None = None,
    batch_size: int | None = None,
    fragments: Sequence[int] | None = None,
    belongs: Belongs | None = None,
    alive: Alive | None = None,
    env: Env = SYSTEM,
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The rows of `levels` (newest first) merged over `base`: their schema, and a stream of them.

    `filter` is SQL text as in Lance, or a pyarrow expression. With `fragments` only their winners
    are returned: an engine that splits a scan reads those of the levels by a scan without a base.
    `belongs` marks the rows of one shard in the base. Winners that are not `alive` are left out.
    Order is not promised. Each level is read once.
    """
    target = output_schema(schema, columns)
    plan = _Plan(tuple(levels), base, schema, target, filter, fragments, belongs, alive, env)
    rows = plan.merged(limit) if schema.primary_key else plan.concatenated(limit)
    return target, _limited(rows, limit, batch_size)


def merge_count(
    levels: Sequence[Level],
    base: Base | None,
    schema: TableSchema,
    *,
    filter: Any = None,
    alive: Alive | None = None,
    env: Env = SYSTEM,
) -> int:
    """How many rows `merge_scan` would give. Reads keys (and what the filter needs), no payload."""
    in_base = 0
    if base is not None and (not levels or not schema.primary_key):
        passing = filter if alive is None else alive.also(filter)
        in_base, base = base.count(passing), None
    names = schema.primary_key or schema.plain.names[:1]
    _, rows = merge_scan(levels, base, schema, columns=names, filter=filter, alive=alive, env=env)
    return in_base + sum(int(batch.num_rows) for batch in rows)


def merge_lookup(
    keys: pa.Table,
    levels: Iterable[Level],
    base: Base | None,
    schema: TableSchema,
    columns: Sequence[str] | None = None,
    *,
    alive: Alive | None = None,
) -> pa.Table:
    """The newest row of each of `keys` that has one, in the order of `keys`, each key once.

    Each level is searched only for keys that no newer level had. With no key left, no more `levels`
    are taken and the base is not read. A key whose newest row is not `alive` has no row.
    """
    target = output_schema(schema, columns)
    key = schema.primary_key
    if not key:
        raise InvalidInput("an append-only table has no key to look up; use scan with a filter")
    times = () if alive is None else (alive.column,)
    extra = [n for n in dict.fromkeys((*key, *times)) if n not in target.names]
    names = [*target.names, *extra]
    wanted = output_schema(schema, names) if extra else target
    left, found = keys, []
    for level in levels if keys.num_rows else ():
        here = level.lookup(left, names)
        if here.num_rows:
            left = _without(left, here, key)
            if any(chunk.true_count for chunk in here.column(TOMBSTONE).chunks):
                here = here.filter(pc.invert(here.column(TOMBSTONE)))
            found.append(shaped(here, wanted))
            if not left.num_rows:
                break
    if base is not None and left.num_rows:
        here = base.lookup(left, names)
        if here.num_rows:
            found.append(shaped(here, wanted))
    if not found:
        return no_rows(target)
    rows = found[0] if len(found) == 1 else pa.concat_tables(found)
    if alive is not None:
        rows = alive.keep(rows)
    if rows.num_rows > 1:
        asked, order = pk_values(keys, key), pk_values(rows, key)
        if not order.equals(asked):
            places = pc.index_in(order, value_set=asked).to_numpy()
            if (np.diff(places) < 0).any():
                rows = rows.take(pa.array(np.argsort(places)))
    return rows.select(target.names) if extra else rows


def winners(
    levels: Sequence[Scanned],
    schema: TableSchema,
    env: Env,
    *,
    columns: Sequence[str] | None = None,
    seen: KeySet | None = None,
) -> Iterator[pa.RecordBatch]:
    """The newest row of each key, tombstones included, `levels` given newest first (L-2).

    Scans, counts, compaction and overwrites all merge here. `columns` include the key; None means
    all. Keys in `seen` are left out, and in the end it holds all keys. Without a primary key, all
    rows are returned in put order. Small adjacent levels are read concurrently.
    """
    key = schema.primary_key
    if not key:
        for level in reversed(levels):
            yield from level.scan(columns)
        return
    if seen is None:
        seen = no_keys(schema, levels)
    for batches in _read_levels(levels, schema, env, columns):
        level_keys: list[pa.Array] = []
        for rows, keys, new in unseen(batches, seen, key):
            level_keys.append(keys if new is None else keys.filter(pa.array(new)))
            if rows.num_rows:
                yield rows
        # Added only now: within a level no key occurs twice.
        for keys in level_keys:
            seen.add(keys)


def no_keys(schema: TableSchema, levels: Iterable[Scanned]) -> KeySet:
    """An empty set with room for the keys of these levels."""
    return KeySet(key_type(schema), sum(level.rows for level in levels))


def key_type(schema: TableSchema) -> pa.DataType:
    """The type of the values that represent keys."""
    return pk_type(schema.key_schema, schema.primary_key)


def _read_levels(
    levels: Sequence[Scanned], schema: TableSchema, env: Env, columns: Sequence[str] | None
) -> Iterator[Iterable[pa.RecordBatch]]:
    """Each level's batches, in order; small adjacent levels are read concurrently."""
    row_bytes = _row_bytes(level_schema(schema, columns))
    waiting = list(levels)
    while waiting:
        group: list[Scanned] = []
        room = READ_AHEAD_BYTES
        while waiting and len(group) < READ_AHEAD_LEVELS and waiting[0].rows * row_bytes <= room:
            room -= waiting[0].rows * row_bytes
            group.append(waiting.pop(0))
        if not group:
            yield waiting.pop(0).scan(columns)
            continue
        yield from env.threads.map(
            lambda level: list(level.scan(columns)), group, workers=READ_AHEAD_LEVELS
        )


def replanned(read: Callable[[], T], where: object) -> T:
    """The result of `read`, repeated when objects it planned on were collected (L-1, G-12).

    A plan names nothing that was collected before it was made. So an object that is missing in a
    second plan was lost: `MissingEntry`.
    """
    error: MissingEntry | SnapshotExpired | None = None
    missing: set[str] = set()  # texts of errors: each names an object
    lost: MissingEntry | None = None
    for _ in range(PLAN_ATTEMPTS):
        try:
            return read()
        except (MissingEntry, SnapshotExpired) as gone:
            error = gone
            if isinstance(gone, MissingEntry):
                lost = gone if str(gone) in missing else lost
                missing.add(str(gone))
    assert error is not None, "L-1: a plan failed without an error"
    if lost is not None:
        raise lost
    raise SnapshotExpired(  # guard: G-12
        f"{where}: files of this read were collected {PLAN_ATTEMPTS} times in a row ({error}); read"
        " again, or read at a checkpoint, or let gc keep files longer (min_age)"
    ) from error


def unless_collected(rows: Iterator[pa.RecordBatch], where: object) -> Iterator[pa.RecordBatch]:
    """The rows; `SnapshotExpired` when a file they were planned on has been collected."""
    try:
        yield from rows
    except MissingEntry as gone:
        raise SnapshotExpired(
            f"{where}: a file was collected during this read ({gone}); read again, or read at a"
            " checkpoint, or let gc keep files longer (min_age)"
        ) from gone


def _without(keys: pa.Table, found: pa.Table, key: Sequence[str]) -> pa.Table:
    """The keys that were not found."""
    if keys.num_rows == found.num_rows:  # keys are distinct, so all of them were found
        return keys.slice(0, 0)
    missing = pc.invert(pc.is_in(pk_values(keys, key), value_set=pk_values(found, key)))
    return keys.filter(missing)


@dataclass(frozen=True)
class _Plan:
    levels: tuple[Level, ...]
    base: Base | None
    schema: TableSchema
    target: pa.Schema
    filter: Any
    fragments: Sequence[int] | None
    belongs: Belongs | None
    alive: Alive | None
    env: Env

    def merged(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        """A table with a primary key."""
        key = self.schema.primary_key
        seen = no_keys(self.schema, self.levels)
        fresh = self._fresh(seen)
        if self.fragments is not None:
            for _ in fresh:
                pass
        else:
            yield from self._filtered(fresh)
        if self.base is None:
            return
        for batch, _, _ in unseen(
            self._base_rows(self.base, limit, masked=len(seen) > 0), seen, key
        ):
            if batch.num_rows:
                yield shaped(batch, self.target)

    def _base_rows(
        self, base: Base, limit: int | None, *, masked: bool
    ) -> Iterator[pa.RecordBatch]:
        """The base's rows that pass the filter, with the columns that masks need."""
        names = list(self.target.names)
        if masked or self.belongs is not None:
            needed = self.schema.primary_key or self.schema.plain.names
            names += [name for name in needed if name not in names]
            limit = None
        rows = base.scan(
            names or self.schema.plain.names[:1],
            filter=self.filter if self.alive is None else self.alive.also(self.filter),
            fragments=self.fragments,
            limit=limit,
        )
        for batch in rows:
            self.env.meters.add(READ_ROWS, batch.num_rows, "base")
            yield batch if self.belongs is None else batch.filter(self.belongs(batch))

    def _fresh(self, seen: KeySet) -> Iterator[pa.RecordBatch]:
        """Live winners of the fresh levels, in the columns that target and filter need."""
        key = self.schema.primary_key
        wanted = self._wanted if self.fragments is None else ()
        names = list(dict.fromkeys((*key, *wanted)))
        rows_of = pa.schema([self.schema.plain.field(name) for name in names])
        newest = winners(self.levels, self.schema, self.env, columns=names, seen=seen)
        yield from self._live_rows(newest, rows_of)

    def _filtered(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self.filter is None:
            for batch in batches:
                yield shaped(batch, self.target)
            return
        for group in gathered(batches, rows=_FILTER_ROWS):
            rows = pa.Table.from_batches(group)
            bare = shaped(rows, pa.schema([f.remove_metadata() for f in rows.schema]))
            known = self.schema.plain.names
            for batch in filter_rows(bare, self.filter, self.target.names, known=known):
                if batch.num_rows:
                    yield shaped(batch, self.target)

    def concatenated(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        """An append-only table: the base, then the levels in the order their rows were put."""
        if self.base is not None:
            for batch in self._base_rows(self.base, limit, masked=False):
                if batch.num_rows:
                    yield shaped(batch, self.target)
        if self.fragments is not None:
            return
        for level in reversed(self.levels):
            names = list(dict.fromkeys(self._wanted)) or self.schema.plain.names
            rows_of = pa.schema([self.schema.plain.field(name) for name in names])
            yield from self._filtered(self._live_rows(level.scan(names), rows_of))

    @property
    def _wanted(self) -> list[str]:
        """The columns that the target, the filter and the time of expiry need."""
        times = [] if self.alive is None else [self.alive.column]
        return [*self.target.names, *filter_columns(self.filter, self.schema.plain.names), *times]

    def _live_rows(
        self, batches: Iterable[pa.RecordBatch], rows_of: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """The rows that are neither deleted nor expired; no batch is empty."""
        for batch in batches:
            self.env.meters.add(READ_ROWS, batch.num_rows, "fresh")
            live = self._live(batch)
            if live.num_rows:
                yield shaped(live, rows_of)

    def _live(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        live = _live(batch)
        if self.alive is None or self.fragments is not None:
            return live
        kept: pa.RecordBatch = self.alive.keep(live)
        return kept


def _live(batch: pa.RecordBatch) -> pa.RecordBatch:
    marks = batch.column(batch.num_columns - 1)
    return batch if marks.true_count == 0 else batch.filter(pc.invert(marks))


def _limited(
    batches: Iterator[pa.RecordBatch], limit: int | None, batch_size: int | None
) -> Iterator[pa.RecordBatch]:
    left = limit
    if left == 0:
        return
    for batch in batches:
        rows = batch if left is None else batch.slice(0, left)
        step = batch_size or rows.num_rows
        for start in range(0, rows.num_rows, step):
            yield rows.slice(start, step)
        if left is not None:
            left -= rows.num_rows
            if left == 0:
                return


def _row_bytes(schema: pa.Schema) -> int:
    """A guess at the width of a row, for budgets."""
    return sum(_type_bytes(field.type) for field in schema)


def _type_bytes(dtype: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(dtype):
        return int(dtype.list_size) * _type_bytes(dtype.value_type)
    if dtype.num_fields:
        return 8 + sum(_type_bytes(dtype.field(i).type) for i in range(dtype.num_fields))
    try:
        return max(1, int(dtype.bit_width) // 8)
    except ValueError:
        return int(np.int64(64))
