"""What a writer reads of its own shard: its MemTables, its SSTables and its rows of the base.

Keeps
  M-1  one look: what hides an older row is what is offered in its place, whatever is put meanwhile
  L-5  what is published or folded while we look is seen once
  G-12 what was collected after it was planned on is planned anew; what is lost is an error
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

import pyarrow as pa

from weir.errors import FencedError, MissingEntry
from weir.format.expiry import Alive, alive_under
from weir.format.keys import pk_values
from weir.format.schema import TableSchema
from weir.lake.api import Base, Lake
from weir.log.appender import WalAppender
from weir.log.intake import key_table
from weir.merge.levels import Level
from weir.merge.merge import Belongs, merge_lookup, merge_scan, replanned, unless_collected
from weir.search.asked import SearchOptions
from weir.search.memory import WriterIndexes
from weir.search.plan import search_levels
from weir.search.words import Words
from weir.shard.memtable import MemTables
from weir.shard.state import WriterState, fail
from weir.types import Filter, Vector

T = TypeVar("T")


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
        self._base: Base | None = None
        """The last version that was opened; its rule of expiry holds for reads that open none."""

    def scan(self, columns: Sequence[str] | None, filter: Any) -> pa.RecordBatchReader:
        """See `ShardWriter.scan`; the first batch is read before this returns."""
        site = self._appender.site

        def start() -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
            levels, base = self._levels()
            how = {"columns": columns, "filter": filter, "belongs": self._belongs}
            how["alive"] = self._alive(base)
            schema, batches = merge_scan(levels, base, self._schema, env=site.env, **how)
            first = next(batches, None)
            return schema, iter(()) if first is None else chain([first], batches)

        schema, batches = self._read(start)
        return pa.RecordBatchReader.from_batches(schema, unless_collected(batches, site))

    def get(self, keys: Any, columns: Sequence[str] | None) -> pa.Table:
        """See `ShardWriter.get`."""
        return self.lookup(key_table(keys, self._schema), columns)[0]

    def lookup(
        self, keys: pa.Table, columns: Sequence[str] | None
    ) -> tuple[pa.Table, Alive | None]:
        """The newest rows of those keys, and which rows have not expired at this moment."""

        def look() -> tuple[pa.Table, Alive | None]:
            levels, base = self._fresh_levels(keys)
            alive = self._alive(None)
            return merge_lookup(keys, levels, base, self._schema, columns, alive=alive), alive

        return self._read(look)

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

    def _levels(self) -> tuple[list[Level], Base]:
        """Unflushed MemTables, then SSTables, newest first, and the base: one look (M-1).

        The base is opened last, once: a MemTable may be published, and an SSTable folded, while we
        look, and is then left out here because it is in there (L-5). A lookup by key may open it
        later, if at all (`_fresh_levels`): the same row twice is one row there.
        """
        with self._state.lock:
            fresh = [(table.generation, table.level.now()) for table in self._memtables.unflushed()]
            manifest = self._memtables.manifest
        shard = self._appender.site.shard
        base = self._base = self._lake.open_base()
        compacted = base.compacted.get(shard, 0)
        if any(generation <= compacted for generation, _ in fresh):
            self._check_folded_after_us(compacted)
        levels: list[Level] = [level for generation, level in fresh if generation > compacted]
        levels.extend(
            self._lake.open_sstable(shard, sstable.path, self._schema)
            for sstable in sorted(manifest.sstables, key=lambda s: -s.generation)
            if sstable.generation > compacted
        )
        return levels, base

    def _alive(self, base: Base | None) -> Alive | None:
        """Which rows have not expired, by the rule of that base, or of the last that was opened."""
        base = base or self._base
        if base is None:
            base = self._base = self._lake.open_base()
        now = self._appender.site.env.clock.wall()
        return alive_under(base.expire, now, base.schema.arrow, self._schema.arrow)

    def _fresh_levels(self, keys: pa.Table) -> tuple[Sequence[Level], Base | Callable[[], Base]]:
        """The levels that those keys may be in, and the base, which is opened only when there are
        SSTables that it may have folded, or when a key is in no level."""
        with self._state.lock:
            if self._memtables.manifest.sstables:
                fresh = None
            else:
                fresh = [table.level.now() for table in self._memtables.unflushed()]
        if fresh is None:
            return self._levels()
        values = pk_values(keys, self._schema.primary_key).to_pylist()
        return [level for level in fresh if level.holds_any(values)], self._lake.open_base

    def _check_folded_after_us(self, compacted: int) -> None:
        """Fenced (F-13) when a successor's generation was folded under the number of ours: leaving
        ours out, as if it were in the base, would hide rows that this writer was handed (M-1)."""
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
