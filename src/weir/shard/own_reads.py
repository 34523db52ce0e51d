"""What a writer reads of its own shard: its MemTables, its SSTables and its rows of the base.

Keeps
  M-1  one consistent view: the row that hides an older one is the row returned, despite later puts
  L-5  rows that are published or folded during a read are seen once
  G-12 a read whose files were collected after its plan is planned again; a lost file is an error
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, TypeVar

import pyarrow as pa

from weir.errors import FencedError, MissingEntry
from weir.format.expiry import Alive, Expire, alive_under
from weir.format.keys import pk_values, plain_key
from weir.format.manifest import ShardManifest, SsTable
from weir.format.schema import TableSchema
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
from weir.search.plan import search_levels
from weir.search.words import Words
from weir.shard.memtable import MemTable, MemTables
from weir.shard.request import ScannedRows
from weir.shard.state import WriterState, fail
from weir.shard.warm import WarmKeys
from weir.types import Columns, Filter, Generation, Vector

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
        """The last version that was opened; its expiry rule applies to reads that open none."""
        self._nothing: tuple[pa.Schema, pa.Table] = (schema.wal, schema.wal.empty_table())
        self._warm_keys = WarmKeys(appender.site.env)
        self._listed: tuple[ShardManifest | None, int, Sequence[SsTable]] = (None, 0, ())
        """A manifest, the last generation a base has folded, and the SSTables after that one."""
        self._readers: tuple[ShardManifest | None, dict[str, SsTableReader]] = (None, {})

    def scan(self, columns: Columns | None, filter: Any) -> pa.RecordBatchReader:
        """See `ShardWriter.scan`; the first batch is read before this returns."""
        _, _, schema, batches = self._scan(columns, filter)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def find(self, columns: Sequence[str], filter: str) -> Iterator[ScannedRows]:
        """The rows that pass a filter, part by part, each with the moment it was read."""
        fresh, base, schema, batches = self._scan(columns, filter)
        for batch in batches:
            rows = pa.Table.from_batches([batch], schema)
            yield ScannedRows(rows, fresh.generation, fresh.batches, base.version)

    def _scan(
        self, columns: Columns | None, filter: Any
    ) -> tuple[_Fresh, Base, pa.Schema, Iterator[pa.RecordBatch]]:
        site = self._appender.site
        asked = Projection.of(columns)
        read = asked.read(self._schema)

        def start() -> tuple[_Fresh, Base, pa.Schema, Iterator[pa.RecordBatch]]:
            fresh = self._fresh()
            levels, base = self._levels(fresh)
            _, batches = merge_scan(
                levels,
                base,
                self._schema,
                columns=read,
                filter=filter,
                belongs=self._belongs,
                alive=self._alive(base),
                env=site.env,
            )
            schema, batches = asked.schema(self._schema), asked.apply(batches, None)
            first = next(batches, None)
            return fresh, base, schema, iter(()) if first is None else chain([first], batches)

        fresh, base, schema, batches = self._read(start)
        return fresh, base, schema, unless_collected(batches, site)

    def still(self, seen: ScannedRows) -> tuple[pa.Table, Alive | None] | None:
        """What `lookup` returns for the keys of `seen`, without the rows that this writer has
        accepted since; None when the base has changed. One listing, no read."""
        base = self._open_base()
        if base.version != seen.base_version:
            return None
        alive = self._alive(base)
        return (seen.rows if alive is None else alive.keep(seen.rows)), alive

    def get(self, keys: Any, columns: Sequence[str] | None) -> pa.Table:
        """See `ShardWriter.get`."""
        found = self._hot(keys, columns)
        if found is not None:
            return found
        wanted = key_table(keys, self._schema)
        values = pk_values(wanted, self._schema.primary_key).to_pylist()
        return self.lookup(list(dict.fromkeys(values)), lambda: wanted, columns)[0]

    def _hot(self, keys: Any, columns: Sequence[str] | None) -> pa.Table | None:
        """The rows of a few plain keys that are all in the active MemTable, where the newest are;
        None: take the slow path. Keys are compared as they were given, so only those of the right
        type: another may equal a key that is here (True equals 1), and the slow path refuses it."""
        kind, base = self._plain_key, self._base
        if kind is None or base is None or base.expire is not None:
            return None
        wanted = keys if type(keys) is list else [keys]
        if not 0 < len(wanted) <= HOT_KEYS or set(map(type, wanted)) != {kind}:
            return None
        if len(wanted) > 1:
            wanted = list(dict.fromkeys(wanted))
        return self._memtables.active.level.get(wanted, output_schema(self._schema, columns))

    def lookup(
        self, keys: Sequence[Any], table: Callable[[], pa.Table], columns: Sequence[str] | None
    ) -> tuple[pa.Table, Alive | None]:
        """The newest rows of those keys, and which rows have not expired at this moment.

        The keys are given as comparable values (`pk_values`), each once. `table` builds their
        columns, which the usual cases do not need: all of the keys are hot, or none exists.
        """
        target = output_schema(self._schema, columns)

        def look() -> tuple[pa.Table, Alive | None]:
            alive, rule = self._alive(None), self._rule
            if alive is None and len(keys) <= HOT_KEYS:
                hot = self._memtables.active.level.get(keys, target)
                if hot is not None:
                    return hot, None
            levels, base = self._lazily(keys)
            first = next(levels, None)
            if first is None and not base().rows:
                rows = self._no_rows(target)
            else:
                below = () if first is None else chain((first,), levels)
                rows = merge_lookup(table(), below, base, self._schema, columns, alive=alive)
            return (rows, alive) if rule == self._rule else look()  # a newer base has another rule

        return self._read(look)

    def _no_rows(self, target: pa.Schema) -> pa.Table:
        """An empty table, cached for the last schema: making one takes longer than the lookup."""
        known = self._nothing
        if known[0] is not target:
            known = self._nothing = (target, target.empty_table())
        return known[1]

    def search(
        self,
        column: str,
        query: Words | Sequence[Words] | Vector | Sequence[Vector],
        k: int,
        filter: Filter | None,
        columns: Sequence[str] | None,
        options: SearchOptions,
    ) -> pa.Table:
        """See `ShardWriter.search`."""
        indexes = self._indexes
        if options.metric is None:
            options = replace(options, metric=indexes.metric(column))

        def look() -> pa.Table:
            levels, base = self._levels()
            alive = self._alive(base)
            return search_levels(
                levels,
                base,
                self._schema,
                column,
                query,
                k=k,
                filter=filter if alive is None else alive.also(filter),
                columns=columns,
                belongs=self._belongs,
                fresh=indexes.fresh,
                options=options,
            )

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
        the read, and what the base has is left out of the levels (L-5). A lookup by key may open
        the base later, if at all (`_lazily`): finding the same row twice does no harm there.
        """
        fresh = fresh or self._fresh()
        base = self._open_base()
        sstables = [self._opened(sstable) for sstable in self._unfolded(fresh, base)]
        compacted = self._compacted(base)
        return [*(level for number, level in fresh.levels if number > compacted), *sstables], base

    def _lazily(self, keys: Sequence[Any]) -> tuple[Iterator[Level], Callable[[], Base]]:
        """The levels that those keys may be in, newest first, and the base. The base, and SSTables
        that it has not folded, are opened only for a key that no MemTable has; the latest of those
        SSTables are searched in memory."""
        fresh = self._fresh()
        opened: list[Base] = []

        def base() -> Base:
            if not opened:
                opened.append(self._open_base())
            return opened[0]

        def levels() -> Iterator[Level]:
            for _, level in fresh.levels:
                if level.holds_any(keys):
                    yield level
            if not fresh.manifest.sstables:
                return
            unfolded = self._unfolded(fresh, base())
            holding = self._warm_keys.holding(fresh.warm, keys)
            warm = {table.generation: table for table in fresh.warm}
            for sstable in unfolded:
                table = warm.get(Generation(sstable.generation))
                if table is None:
                    yield self._opened(sstable)
                elif table.generation in holding:
                    yield table.level

        return levels(), base

    def _fresh(self) -> _Fresh:
        with self._state.lock:
            tables = self._memtables
            fresh = [(table.generation, table.level.now()) for table in tables.unflushed()]
            active = tables.active
            marks = (active.generation, active.level.count)
            return _Fresh(fresh, tables.manifest, tables.warm, *marks)

    def _open_base(self) -> Base:
        base = self._base = self._lake.open_base()
        return base

    def _compacted(self, base: Base) -> int:
        return base.compacted.get(self._appender.site.shard, 0)

    def _unfolded(self, fresh: _Fresh, base: Base) -> Sequence[SsTable]:
        """The SSTables that the base has not folded, newest first; the base was opened after
        `fresh` was taken."""
        compacted = self._compacted(base)
        if any(generation <= compacted for generation, _ in fresh.levels):
            self._check_folded_after_us(compacted)
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

    def _alive(self, base: Base | None) -> Alive | None:
        """Which rows have not expired, by the rule of that base, or of the last one opened."""
        base = base or self._base or self._open_base()
        now = self._appender.site.env.clock.wall()
        return alive_under(base.expire, now, base.schema.arrow, self._schema.arrow)

    @property
    def _rule(self) -> Expire | None:
        return None if self._base is None else self._base.expire

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
