"""Opens the objects of a snapshot: the levels that a read merges, and the units they consist of.

Keeps
  L-2  generations the base has folded in are skipped
  L-10 the bytes of a tail held in memory are bounded, however large its entries are
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from uuid import UUID

import pyarrow as pa

from weir.format.expiry import Alive, alive_at
from weir.format.schema import TableSchema, align_batch
from weir.lake.api import Scanned
from weir.lake.live_rows import RowRange
from weir.merge.levels import Level, MemLevel, MemView
from weir.read.cache import ReadCache, live_entries
from weir.read.common import CommonLevel, CommonPart, is_small, living_of
from weir.read.snapshot import Snapshot
from weir.records.cut import ShardCut
from weir.routing.core import Core
from weir.routing.statements import Remaining, StagedFiles

UNIT_ENTRIES: Final = 512
"""Entries in one unit of a tail. Plans count entries because they do not know their sizes."""
_SHARDS_TOGETHER: Final = 2
_UNKNOWN_ROWS: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class Unit:
    """An SSTable of a shard, or a piece of its tail: a piece that a separate task can read."""

    cut: ShardCut
    sstable: str | None = None
    after: int = 0
    through: int = 0
    """For a piece of the tail: its entries are those in `(after, through]`."""
    staged: int | None = None
    """The piece of a decided statement that is not in the log yet."""


def units_of(cuts: Sequence[ShardCut], folded: Mapping[UUID, int]) -> list[Unit]:
    """The units of the given shards, newest first, without the generations already folded."""
    return [
        unit
        for cut in cuts
        for unit in (*_staged_units(cut), *_tail_units(cut), *_sstables(cut, folded))
    ]


def _staged_units(cut: ShardCut) -> list[Unit]:
    """Newest: rows that others wrote since the statement was checked are left out of it (P-8)."""
    pieces = () if cut.staged is None else cut.staged.pieces
    return [Unit(cut, staged=number) for number in range(len(pieces))]


def _sstables(cut: ShardCut, folded: Mapping[UUID, int]) -> list[Unit]:
    return [
        Unit(cut, sstable=table.path)
        for table in cut.newest_first
        if table.generation > folded.get(cut.shard, 0)
    ]


def _tail_units(cut: ShardCut) -> Iterator[Unit]:
    """The tail in pieces of `UNIT_ENTRIES` entries, newest first; one at a time, since a damaged
    manifest may promise more of them than memory holds."""
    for last in range(cut.wal_through, cut.replay_after, -UNIT_ENTRIES):
        yield Unit(cut, after=max(last - UNIT_ENTRIES, cut.replay_after), through=last)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


class SnapshotReader:
    """Opens the objects of a snapshot. Safe to share between threads."""

    def __init__(self, core: Core, snapshot: Snapshot, *, passing: bool = True) -> None:
        """`passing`: a one-off read, whose levels are not worth keeping for the next read."""
        self.core = core
        self.snapshot = snapshot
        self.base = core.base(snapshot.base_version)
        self._cache = core.attached.of(ReadCache)
        self._passing = passing

    @property
    def schema(self) -> TableSchema:
        """The schema of the snapshot's base version; older rows are converted to it."""
        return self.base.schema

    @property
    def alive(self) -> Alive | None:
        """Tests which rows have not expired at the snapshot's time, by its base version's rule."""
        rule = self.base.expire
        if rule is None:
            return None
        return alive_at(rule, self.snapshot.at, self.schema.plain.field(rule.column))

    def levels(self, shards: Sequence[UUID] | None = None) -> list[Level]:
        """The fresh levels, newest first, of all shards or only of `shards`.

        Fetches tail entries and opens SSTables, several shards concurrently.
        """
        cuts = [c for c in self.snapshot.cuts if shards is None or c.shard in shards]
        opened = self.core.env.threads.map(self.levels_of, cuts, workers=16)
        return [level for levels in opened for level in levels]

    def merged_levels(self, shards: Sequence[UUID] | None = None) -> list[Level]:
        """Like `levels`, but with small levels of many shards combined into one (L-2)."""
        record, cuts = self.core.record, self.snapshot.cuts
        routed = len(record.routing)
        has_staged = any(cut.staged is not None for cut in cuts)
        if self._passing or has_staged or routed < _SHARDS_TOGETHER:
            return self.levels(shards)
        if shards is not None:
            cuts = tuple(cut for cut in cuts if cut.shard in shards)
            if len(cuts) < routed:  # a lookup: the common level would drop the other shards
                return self.levels(shards)
        held = self._cache.common
        if held is None or not held.is_for(cuts, record, self.base):
            living = len(living_of(cuts, record)[0])
            if living < (_SHARDS_TOGETHER if shards is None else routed):
                return self.levels(shards)
            held = CommonLevel.of(cuts, record, self.base, self._part_of, held, self.core.env)
        # Keep these cuts: the next read gets the same objects, which compare faster.
        self._cache.common = replace(held, cuts=cuts)
        opened = self.core.env.threads.map(
            lambda one: self._others(*one), list(held.rest), workers=16
        )
        first: list[Level] = [held.level] if held.level.rows else []
        return [*first, *(level for levels in opened for level in levels)]

    def _part_of(self, cut: ShardCut, want: CommonPart) -> pa.RecordBatch | None:
        """The rows of a shard for the common level; None if its tail is too large for that."""
        tail: list[pa.RecordBatch] = []
        if cut.wal_through > cut.replay_after:
            held = self._held_tail(cut)
            if held is None or not is_small(held.rows, 0):
                return None
            tail = held.batches
            if not is_small(held.rows, sum(batch.nbytes for batch in tail)):
                return None
        rows = [*(self._small_rows(cut.shard, name) for name in want.sstables), *tail]
        return pa.concat_batches(rows or [_no_rows(self.schema.wal)])

    def _small_rows(self, shard: UUID, name: str) -> pa.RecordBatch:
        def read() -> pa.RecordBatch:
            table = self.core.lake.open_sstable(shard, name, self.schema)
            wal = self.schema.wal
            return pa.concat_batches([align_batch(b, wal) for b in table.scan()] or [_no_rows(wal)])

        return self._cache.small(shard, name, self.schema, read)

    def _others(self, cut: ShardCut, want: CommonPart | None) -> list[Level]:
        """The levels of a shard that are not in the common one."""
        if want is None:
            return self.levels_of(cut)
        units = _sstables(cut, self.base.compacted)
        return self.open_units([unit for unit in units if unit.sstable not in want.sstables])

    def levels_of(self, cut: ShardCut) -> list[Level]:
        """The levels of one shard: its tail, then its SSTables, newest first."""
        folded = self.base.compacted
        staged = self.open_units(_staged_units(cut))
        return [*staged, *self._tail(cut), *self.open_units(_sstables(cut, folded))]

    def units(self, shards: Sequence[UUID]) -> list[Unit]:
        """The units of the given shards, newest first; the same in every process."""
        cuts = [cut for cut in self.snapshot.cuts if cut.shard in shards]
        return units_of(cuts, self.base.compacted)

    def open_units(self, units: Sequence[Unit]) -> list[Level]:
        """The units as levels, newest first; entries are read when a level is scanned."""
        return [level for unit in units for level in self._open(unit)]

    def open_part(self, unit: Unit, within: RowRange) -> Scanned:
        """A range of the rows of a unit that is an SSTable."""
        assert unit.sstable is not None, "a piece of a tail is read as a whole"
        return self.core.lake.open_sstable(unit.cut.shard, unit.sstable, self.schema).part(within)

    def _open(self, unit: Unit) -> list[Level]:
        cut = unit.cut
        if unit.sstable is not None:
            return [self.core.lake.open_sstable(cut.shard, unit.sstable, self.schema)]
        if unit.staged is not None:
            assert cut.staged is not None, "P-8: a piece of a statement"
            left = Remaining(StagedFiles(self.core), cut.staged, cut.wal_through)
            return [_Piece(partial(self._staged_rows, left, unit.staged))]
        ranges = self._within_bytes(unit)
        return [_Piece(partial(self._tail_rows, cut, after, last)) for after, last in ranges]

    def _staged_rows(self, left: Remaining, number: int) -> MemLevel:
        """A piece of a decided statement, as far as it is not in the log (P-8)."""
        rows = left.rows(number, self.schema) if number in left.pieces else []
        return MemLevel(rows, self.schema, self.core.env)

    def _tail_rows(self, cut: ShardCut, after: int, last: int) -> MemLevel:
        """A piece of a long tail: its entries in `(after, last]`."""
        log, is_pinned = self.core.log(cut.shard), self.snapshot.is_pinned
        entries = self._cache.entries(log, after, last, pinned=is_pinned)
        keyed = bool(self.schema.primary_key)
        batches = [
            align_batch(batch, self.schema.wal)
            for entry in live_entries(entries, cut.current_generation, keyed=keyed)
            for batch in entry.batches
        ]
        return MemLevel(batches, self.schema, self.core.env)

    def _within_bytes(self, unit: Unit) -> Iterator[tuple[int, int]]:
        """Split a unit into ranges that a read may hold, newest first. One head per entry."""
        log = self.core.log(unit.cut.shard)
        sizes = log.sizes(unit.after, unit.through - unit.after)
        if not sizes[-1]:
            # It is gone, or never was: the error of reading it comes before more is looked for.
            last, is_pinned = unit.through, self.snapshot.is_pinned
            list(self._cache.entries(log, last - 1, last, pinned=is_pinned))
        last, held = unit.through, 0
        for position in range(unit.through, unit.after, -1):
            size = sizes[position - unit.after - 1]
            # guard: L-10 test_bounded_reads
            if position < last and held + size > self.core.env.limits.read_bytes:
                yield position, last
                last, held = position, 0
            held += size
        yield unit.after, last

    def _tail(self, cut: ShardCut) -> Iterator[Level]:
        if cut.wal_through == cut.replay_after:
            return
        held = self._held_tail(cut)
        if held is not None:
            if held.rows:
                yield held
            return
        for unit in _tail_units(cut):
            yield from self._open(unit)

    def _held_tail(self, cut: ShardCut) -> MemView | None:
        """The tail as a level that is kept between reads; None if it is too large to keep."""
        log = self.core.log(cut.shard)
        pinned = self.snapshot.is_pinned  # guard: G-7b always
        return self._cache.tail(log, cut, self.schema, pinned=pinned)


@dataclass(frozen=True)
class _Piece:
    """Rows that are read whenever they are needed, so that memory holds one piece at a time."""

    load: Callable[[], MemLevel]

    @property
    def rows(self) -> int:
        """Unknown before reading; a number too large for anyone to read it ahead."""
        return _UNKNOWN_ROWS

    def scan(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Read the rows and scan them."""
        yield from self.load().scan(columns)

    def lookup(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the rows and look up the keys in them."""
        return self.load().lookup(keys, columns)
