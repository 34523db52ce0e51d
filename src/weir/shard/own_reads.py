"""What a writer reads of its own shard: its MemTables, its SSTables and its rows of the base.

Keeps
  M-1  one consistent view: the row that hides an older one is the row returned, despite later puts
  L-5  rows that are published or folded during a read are seen once
  G-12 a read whose files were collected after its plan is planned again; a lost file is an error
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Any, Final, TypeVar

import pyarrow as pa

from weir.errors import CommitConflict, FencedError, MissingEntry
from weir.format.expiry import Alive, alive_at
from weir.format.keys import pk_values, plain_key
from weir.format.manifest import ShardManifest, SsTable
from weir.format.schema import FIELD_ID, TableSchema, is_same_column, no_rows
from weir.lake.api import Base, Lake, SsTableReader
from weir.log.appender import WalAppender
from weir.log.intake import key_table
from weir.merge.levels import Level, MemView
from weir.merge.merge import (
    Belongs,
    merge_lookup,
    merge_scan,
    output_schema,
    replanned,
    unless_collected,
)
from weir.merge.projection import Projection
from weir.search.memory import WriterIndexes
from weir.search.options import SearchOptions
from weir.search.plan import Plan
from weir.search.words import Words
from weir.shard.memtable import MemTable, MemTables
from weir.shard.request import ScannedRows
from weir.shard.state import WriterState, fail
from weir.shard.warm import WarmKeys
from weir.types import Columns, Filter, Generation, Vector, require_names

T = TypeVar("T")

HOT_KEYS: Final = 64
"""Up to this many keys are looked up in the active MemTable before anything else."""


@dataclass(frozen=True, slots=True)
class _Fresh:
    """What a writer holds at one moment."""

    levels: Sequence[tuple[Generation, MemView]]
    """The unflushed MemTables as they are, newest first, with their generations."""
    manifest: ShardManifest
    """Names the SSTables beside them."""
    warm: tuple[MemTable, ...]
    """The MemTables that the latest SSTables were made of."""
    generation: Generation
    """The active MemTable; `batches` is how many batches it has."""
    batches: int


class OwnReads:
    """The reads of one writer. Safe to share between threads."""

    def __init__(
        self,
        state: WriterState,
        memtables: MemTables,
        appender: WalAppender,
        schema: TableSchema,
        lake: Lake,
        indexes: WriterIndexes,
        belongs: Belongs | None,
    ) -> None:
        self._state = state
        self._memtables = memtables
        self._indexes = indexes
        self._appender = appender
        self._schema = schema
        self._lake = lake
        self._belongs = belongs
        self._plain_key = plain_key(schema.key_schema)
        self._base: Base | None = None
        """The last version that was opened."""
        self._nothing: tuple[pa.Schema, pa.Table] = (schema.wal, no_rows(schema.wal))
        self._warm_keys = WarmKeys(appender.site.env)
        self._listed: tuple[ShardManifest | None, int, Sequence[SsTable]] = (None, 0, ())
        """A manifest, the last generation a base has folded, and the SSTables after that one."""
        self._readers: tuple[ShardManifest | None, dict[str, SsTableReader]] = (None, {})

    def scan(self, columns: Columns | None, filter: Any) -> pa.RecordBatchReader:
        """See `ShardWriter.scan`; the first batch is read before this returns."""
        asked = Projection.of(columns)
        _, _, schema, batches = self._scan(lambda _: asked, filter)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def find(self, columns: Sequence[str], filter: Filter) -> Iterator[ScannedRows]:
        """The rows that pass a filter, part by part, each with the moment it was read."""

        def asked(alive: Alive | None) -> Projection:
            times = () if alive is None or alive.column in columns else (alive.column,)
            return Projection((*columns, *times))

        fresh, base, schema, batches = self._scan(asked, filter)
        for batch in batches:
            rows = pa.Table.from_batches([batch], schema)
            yield ScannedRows(rows, columns, fresh.generation, fresh.batches, base.version)

    def _scan(
        self, asked: Callable[[Alive | None], Projection], filter: Any
    ) -> tuple[_Fresh, Base, pa.Schema, Iterator[pa.RecordBatch]]:
        site = self._appender.site

        def start() -> tuple[_Fresh, Base, pa.Schema, Iterator[pa.RecordBatch]]:
            fresh = self._fresh()
            levels, base = self._levels(fresh)
            alive = self._alive(base)
            projection = asked(alive)
            _, batches = merge_scan(
                levels,
                base,
                self._schema,
                columns=projection.read(self._schema),
                filter=filter,
                belongs=self._belongs,
                alive=alive,
                env=site.env,
            )
            schema, batches = projection.schema(self._schema), projection.apply(batches, None)
            first = next(batches, None)
            return fresh, base, schema, iter(()) if first is None else chain([first], batches)

        fresh, base, schema, batches = self._read(start)
        return fresh, base, schema, unless_collected(batches, site)

    def still(self, seen: ScannedRows) -> tuple[pa.Table, Alive | None] | None:
        """What `lookup` returns for the keys of `seen`, without the rows that this writer has
        accepted since; None when the base has changed. One listing, no read."""
        base = self._open_base()
        if base.version != seen.base_version:  # guard: O-2
            return None
        alive = self._alive_for_decision(base)
        rows = seen.rows if alive is None else alive.keep(seen.rows)
        return rows.select(list(seen.columns)), alive

    def get(self, keys: Any, columns: Sequence[str] | None) -> pa.Table:
        """See `ShardWriter.get`."""
        require_names(columns)
        found = self._hot(keys, columns)
        if found is not None:
            return found
        wanted = key_table(keys, self._schema)
        values = list(dict.fromkeys(pk_values(wanted, self._schema.primary_key).to_pylist()))
        return self._lookup(values, lambda: wanted, columns, self._alive)[0]

    def _hot(self, keys: Any, columns: Sequence[str] | None) -> pa.Table | None:
        """The rows of a few plain keys that are all in the active MemTable, where the newest are;
        None: take the slow path. Keys are compared as they were given, so only those of the right
        type: another may equal a key that is here (True equals 1), and the slow path refuses it."""
        kind = self._plain_key
        if kind is None:
            return None
        wanted = keys if type(keys) is list else [keys]
        # guard: M-9 last test_own_reads
        if not 0 < len(wanted) <= HOT_KEYS or set(map(type, wanted)) != {kind}:
            return None
        if self._open_base().expire is not None:
            return None
        if len(wanted) > 1:
            wanted = list(dict.fromkeys(wanted))
        return self._memtables.active.level.get(wanted, output_schema(self._schema, columns))

    def lookup(
        self, keys: Sequence[Any], table: Callable[[], pa.Table], columns: Sequence[str] | None
    ) -> tuple[pa.Table, Alive | None]:
        """The newest rows of those keys, and which rows have not expired at this moment, for a
        decision that rests on them.

        The keys are given as comparable values (`pk_values`), each once. `table` builds their
        columns, which the usual cases do not need: all of the keys are hot, or none exists. One
        listing of the base: its latest version has the rule by which rows expire.
        """
        return self._lookup(keys, table, columns, self._alive_for_decision)

    def _lookup(
        self,
        keys: Sequence[Any],
        table: Callable[[], pa.Table],
        columns: Sequence[str] | None,
        alive_in: Callable[[Base], Alive | None],
    ) -> tuple[pa.Table, Alive | None]:
        target = output_schema(self._schema, columns)

        def look() -> tuple[pa.Table, Alive | None]:
            fresh = self._fresh()
            base = self._open_base()
            alive = alive_in(base)
            if alive is None and len(keys) <= HOT_KEYS:
                hot = self._memtables.active.level.get(keys, target)
                if hot is not None:
                    return hot, None
            levels = self._levels_of(keys, fresh, base)
            first = next(levels, None)
            if first is None and not base.rows:
                return self._no_rows(target), alive
            below = () if first is None else chain((first,), levels)
            rows = merge_lookup(table(), below, base, self._schema, columns, alive=alive)
            return rows, alive

        return self._read(look)

    def _no_rows(self, target: pa.Schema) -> pa.Table:
        """An empty table, cached for the last schema: making one takes longer than the lookup."""
        known = self._nothing
        if known[0] is not target:
            known = self._nothing = (target, no_rows(target))
        return known[1]

    def search(
        self,
        column: str,
        query: Words | Sequence[Words] | Vector | Sequence[Vector],
        options: SearchOptions,
    ) -> pa.Table:
        """See `ShardWriter.search`."""
        indexes = self._indexes
        if options.metric is None:
            options = replace(options, metric=indexes.metric(column))

        def look() -> pa.Table:
            levels, base = self._levels()
            asked = options.of_living(self._alive(base))
            plan = Plan(
                tuple(levels), base, self._schema, asked, indexes.cache, belongs=self._belongs
            )
            return plan.answered(column, query)

        return self._read(look)

    def _read(self, run: Callable[[], T]) -> T:
        try:
            return replanned(run, self._appender.site)
        except MissingEntry:
            self.require_owner()  # a successor may have had our files collected (F-13)
            raise

    def _levels(self, fresh: _Fresh | None = None) -> tuple[list[Level], Base]:
        """Unflushed MemTables, then SSTables, newest first, and the base: one view (M-1).

        The base is opened last, once: a MemTable may be published, and an SSTable folded, during
        the read, and what the base has is left out of the levels (L-5). A lookup by key need not do
        that (`_levels_of`): finding the same row twice does no harm there.
        """
        fresh = fresh or self._fresh()
        base = self._open_base()
        sstables = [self._opened(sstable) for sstable in self._unfolded(fresh, base)]
        compacted = self._compacted(base)
        return [*(level for number, level in fresh.levels if number > compacted), *sstables], base

    def _levels_of(self, keys: Sequence[Any], fresh: _Fresh, base: Base) -> Iterator[Level]:
        """The levels that those keys may be in, newest first. SSTables that the base has not folded
        are opened only for a key that no MemTable has; the latest of them are searched in memory.
        """
        for _, level in fresh.levels:
            if level.holds_any(keys):
                yield level
        if not fresh.manifest.sstables:
            return
        unfolded = self._unfolded(fresh, base)
        holding = self._warm_keys.holding(fresh.warm, keys)
        warm = {table.generation: table for table in fresh.warm}
        for sstable in unfolded:
            table = warm.get(Generation(sstable.generation))
            if table is None:
                yield self._opened(sstable)
            elif table.generation in holding:
                yield table.level

    def _fresh(self) -> _Fresh:
        with self._state.lock:
            tables = self._memtables
            fresh = [(table.generation, table.level.now()) for table in tables.unflushed()]
            active = tables.active
            marks = (active.generation, active.level.count)
            return _Fresh(fresh, tables.manifest, tables.warm, *marks)

    def _open_base(self) -> Base:
        """The latest version of the base; one listing."""
        base = self._lake.open_base()
        if base is not self._base:
            self._require_columns(base)
            self._base = base
        return base

    def _require_columns(self, base: Base) -> None:
        """Raise `CommitConflict` unless the base has the columns that this writer knows."""
        now = {field.name: field for field in base.schema.arrow}
        known = self._schema.arrow
        changed = [f.name for f in known if f.name not in now or not _is_same(f, now[f.name])]
        if base.expire is not None and base.expire.column not in known.names:
            changed.append(base.expire.column)
        if changed:
            raise CommitConflict(
                f"{self._state.name}: the columns {changed} of the table have changed since this"
                " writer was opened. Puts and deletes by key go on, but it can look up no rows:"
                " open a new writer"
            )

    def _compacted(self, base: Base) -> int:
        return base.compacted.get(self._appender.site.shard, 0)

    def _unfolded(self, fresh: _Fresh, base: Base) -> Sequence[SsTable]:
        """The SSTables that the base has not folded, newest first; the base was opened after
        `fresh` was taken."""
        compacted = self._compacted(base)
        if any(generation <= compacted for generation, _ in fresh.levels):
            self._check_folded_after_us(compacted)  # guard: M-1 test_zombie_reads_its_own
        of = fresh.manifest
        if self._readers[0] is not of:
            self._readers = (of, {})
        known = self._listed
        if known[0] is not of or known[1] != compacted:
            listed = (sstable for sstable in of.sstables if sstable.generation > compacted)
            newest_first = sorted(listed, key=lambda sstable: -sstable.generation)
            known = self._listed = (of, compacted, newest_first)
        return known[2]

    def _opened(self, sstable: SsTable) -> SsTableReader:
        """The SSTable's reader, cached as long as the manifest: opening costs more than a read."""
        _, readers = self._readers
        found = readers.get(sstable.path)
        if found is None:
            shard = self._appender.site.shard
            found = self._lake.open_sstable(shard, sstable.path, self._schema)
            readers[sstable.path] = found
        return found

    def _alive(self, base: Base) -> Alive | None:
        """Which rows have not expired, by the rule of that base and this machine's clock."""
        return self._alive_at(base, self._appender.site.env.clock.wall())

    def _alive_for_decision(self, base: Base) -> Alive | None:
        """The same for a decision, which takes a row for expired only if the store's clock agrees,
        as dropping does: it may replace the row. The store's clock costs requests, so it is read
        only when there is such a row."""
        alive = self._alive(base)
        if alive is None:
            return None

        @cache
        def by_the_store() -> Alive:
            return self._alive_at(base, self._appender.site.store.now()) or alive

        return replace(alive, confirm=by_the_store)

    def _alive_at(self, base: Base, now: float) -> Alive | None:
        rule = base.expire
        return None if rule is None else alive_at(rule, now, self._schema.arrow.field(rule.column))

    def added_columns(self) -> list[str]:
        """Columns of the base, as it was last read, that this writer does not know: they were added
        since it was opened, and rows that it writes have no value for them."""
        if self._base is None:
            return []
        return [n for n in self._base.schema.arrow.names if n not in self._schema.field_ids]

    def _check_folded_after_us(self, compacted: int) -> None:
        """Raise (F-13) when a successor's generation with the number of ours was folded: leaving
        ours out, as if it were in the base, would hide rows put to this writer (M-1)."""
        with self._state.lock:
            waiting = self._memtables.unflushed()
        if any(table.generation <= compacted for table in waiting):  # else: published since
            self.require_owner()

    def require_owner(self) -> None:
        """Read the manifest, and end the writer if the shard was taken over (F-13)."""
        manifests = self._appender.manifests
        try:
            at = self._appender.next_position
            manifests.require_owner(manifests.require(), self._appender.epoch, at)
        except FencedError as fenced:
            fail(self._state, fenced)
            raise self._state.ending.refused() from fenced


def _is_same(known: pa.Field, now: pa.Field) -> bool:
    """Whether a column of the base is the one that the writer knows under this name."""
    same_id = known.metadata[FIELD_ID] == now.metadata[FIELD_ID]
    return bool(same_id and known.type == now.type and is_same_column(known, now))
