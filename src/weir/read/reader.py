"""Opens the objects of a snapshot: the levels that a read merges, and the units they consist of.

Keeps
  L-2  generations the base has folded in are skipped
  L-10 the bytes of a tail held in memory are bounded, however large its entries are
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

import pyarrow as pa

from weir.format.expiry import Alive, alive_at
from weir.format.schema import TableSchema, align_batch
from weir.format.wal_entry import WalEntry
from weir.lake.api import Base
from weir.log.shard_log import ShardLog
from weir.merge.common import (
    COMMON_BYTES,
    PART_BYTES,
    PART_ENTRIES,
    PART_ROWS,
    Batches,
    CommonPart,
)
from weir.merge.levels import Level, MemLevel, MemView
from weir.merge.tail_levels import HELD_ENTRIES
from weir.merge.tails import LogCache, live_entries
from weir.read.snapshot import Snapshot
from weir.records.cut import ShardCut
from weir.records.table import TableRecord
from weir.routing.core import Core

UNIT_ENTRIES: Final = 512
"""Entries in one unit of a tail. Plans count entries because they do not know their sizes."""
_SHARDS_TOGETHER: Final = 2
_ENTRY_BYTES: Final = 4 << 10
"""Estimated size of an entry of a small tail."""
_UNKNOWN_ROWS: Final = 1 << 40
_TAKEN_BYTES: Final = 4 << 20
"""Bytes of entries added to a kept tail per step, so that one too large is dropped early."""


@dataclass(frozen=True, slots=True)
class Unit:
    """An SSTable of a shard, or a piece of its tail: a piece that a separate task can read."""

    cut: ShardCut
    sstable: str | None = None
    after: int = 0
    through: int = 0
    """For a piece of the tail: its entries are those in `(after, through]`."""


def units_of(cuts: Sequence[ShardCut], folded: Mapping[UUID, int]) -> list[Unit]:
    """The units of the given shards, newest first, without the generations already folded."""
    return [unit for cut in cuts for unit in (*_tail_units(cut), *_sstables(cut, folded))]


def _sstables(cut: ShardCut, folded: Mapping[UUID, int]) -> list[Unit]:
    return [
        Unit(cut, sstable=table.path)
        for table in cut.newest_first
        if table.generation > folded.get(cut.shard, 0)
    ]


def _tail_units(cut: ShardCut) -> list[Unit]:
    """The tail in pieces of `UNIT_ENTRIES` entries, newest first."""
    return [
        Unit(cut, after=max(last - UNIT_ENTRIES, cut.replay_after), through=last)
        for last in range(cut.wal_through, cut.replay_after, -UNIT_ENTRIES)
    ]


def _newest_small(cut: ShardCut, folded: Mapping[UUID, int]) -> tuple[CommonPart | None, int, bool]:
    """What a shard adds to the common level, its estimated bytes, and whether that is all the shard
    has. None in place of a part: the newest level is too large, or the shard has no level."""
    entries = cut.wal_through - cut.replay_after
    if entries > PART_ENTRIES:
        return None, 0, False
    names: list[str] = []
    nbytes = 0
    is_all = True
    last = folded.get(cut.shard, 0) if folded else 0
    for table in cut.newest_first:
        if table.generation <= last:
            continue
        rows, size = table.physical_rows, table.in_memory_bytes
        if rows is None or size is None or rows > PART_ROWS or size > PART_BYTES:
            is_all = False
            break  # L-2: older levels must stay behind this one
        names.append(table.path)
        nbytes += size
    if not names and not entries:
        return None, 0, is_all
    names.reverse()
    want = CommonPart(cut.replay_after, cut.current_generation, tuple(names), cut.wal_through)
    return want, nbytes + entries * _ENTRY_BYTES, is_all


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the levels of many shards are combined. Immutable, because reads share it."""

    cuts: tuple[ShardCut, ...]
    record: TableRecord
    base: Base
    living: list[ShardCut]
    """Routed and not sealed: first in every snapshot. The rest is older or outside the routing."""
    apart: list[ShardCut]
    wanted: Mapping[UUID, CommonPart]
    """What each shard adds to the common level."""
    whole: frozenset[UUID]
    """Living shards whose levels are all in the common level."""


def _plan(cuts: tuple[ShardCut, ...], record: TableRecord, base: Base) -> _Plan:
    routed = {route.shard for route in record.routing}
    living: list[ShardCut] = []
    apart: list[ShardCut] = []
    for cut in cuts:
        (living if cut.shard in routed and not cut.sealed else apart).append(cut)
    folded = base.compacted
    room = COMMON_BYTES
    wanted: dict[UUID, CommonPart] = {}
    whole: set[UUID] = set()
    for cut in living:
        want, nbytes, is_all = _newest_small(cut, folded)
        if nbytes > room:
            continue
        if want is not None:
            wanted[cut.shard] = want
            room -= nbytes
        if is_all:
            whole.add(cut.shard)
    return _Plan(cuts, record, base, living, apart, wanted, frozenset(whole))


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


class SnapshotReader:
    """Opens the objects of a snapshot. Safe to share between threads."""

    def __init__(self, core: Core, snapshot: Snapshot, *, passing: bool = True) -> None:
        """`passing`: a one-off read, whose levels are not worth keeping for the next read."""
        self.core = core
        self.snapshot = snapshot
        self.base = core.base(snapshot.base_version)
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
        routed = len(self.core.record.routing)
        if self._passing or routed < _SHARDS_TOGETHER:
            return self.levels(shards)
        cuts = self.snapshot.cuts
        if shards is not None:
            cuts = tuple(cut for cut in cuts if cut.shard in shards)
            if len(cuts) < routed:  # a lookup: the common level would drop the other shards
                return self.levels(shards)
        plan = self._planned(cuts)
        if len(plan.living) < (_SHARDS_TOGETHER if shards is None else routed):
            return self.levels(shards)
        joined, rest = self._together(plan)
        opened = self.core.env.threads.map(self.levels_of, plan.apart, workers=16)
        levels: list[Level] = [joined] if joined.rows else []
        return [*levels, *rest, *(level for levels in opened for level in levels)]

    def _planned(self, cuts: tuple[ShardCut, ...]) -> _Plan:
        """The plan for `cuts`; reuses the plan of the last read if nothing changed since."""
        held = self.core.tails.plan
        record, base = self.core.record, self.base
        if (
            isinstance(held, _Plan)
            and held.record is record
            and held.base is base
            and held.cuts == cuts
        ):
            # Keep these cuts: the next read gets the same objects, which compare faster.
            self.core.tails.plan = replace(held, cuts=cuts)
            return held
        plan = _plan(cuts, record, base)
        self.core.tails.plan = plan
        return plan

    def _together(self, plan: _Plan) -> tuple[Level, list[Level]]:
        """The small newest levels of the living shards as one level, and their other levels."""
        cuts, wanted = plan.living, plan.wanted

        def load(ids: Sequence[UUID]) -> list[Batches | None]:
            by_id = {cut.shard: cut for cut in cuts}
            return self.core.env.threads.map(
                lambda shard: self._rows_of(by_id[shard], wanted[shard]), list(ids), workers=16
            )

        level, large = self.core.tails.common.view(self.schema, wanted, load)
        whole = plan.whole - large
        rest = [] if len(whole) == len(cuts) else [cut for cut in cuts if cut.shard not in whole]
        return level, [
            level
            for cut in rest
            for level in self._others(cut, None if cut.shard in large else wanted.get(cut.shard))
        ]

    def _rows_of(self, cut: ShardCut, want: CommonPart) -> Batches | None:
        """The rows of a shard for the common level; None if its tail is too large for that."""
        tail: list[pa.RecordBatch] = []
        if cut.wal_through > cut.replay_after:
            held = self._held_tail(cut)
            if held is None or held.rows > PART_ROWS:
                return None
            tail = held.batches
            if sum(batch.nbytes for batch in tail) > PART_BYTES:
                return None
        return (*(self._small_rows(cut.shard, name) for name in want.sstables), *tail)

    def _small_rows(self, shard: UUID, name: str) -> pa.RecordBatch:
        def read() -> pa.RecordBatch:
            table = self.core.lake.open_sstable(shard, name, self.schema)
            wal = self.schema.wal
            return pa.concat_batches([align_batch(b, wal) for b in table.scan()] or [_no_rows(wal)])

        return self.core.tails.small(shard, name, self.schema, read)

    def _others(self, cut: ShardCut, want: CommonPart | None) -> list[Level]:
        """The levels of a shard that are not in the common one."""
        if want is None:
            return self.levels_of(cut)
        units = _sstables(cut, self.base.compacted)
        return self.open_units([unit for unit in units if unit.sstable not in want.sstables])

    def levels_of(self, cut: ShardCut) -> list[Level]:
        """The levels of one shard: its tail, then its SSTables, newest first."""
        folded = self.base.compacted
        return [*self._tail(cut), *self.open_units(_sstables(cut, folded))]

    def units(self, shards: Sequence[UUID]) -> list[Unit]:
        """The units of the given shards, newest first; the same in every process."""
        cuts = [cut for cut in self.snapshot.cuts if cut.shard in shards]
        return units_of(cuts, self.base.compacted)

    def open_units(self, units: Sequence[Unit]) -> list[Level]:
        """The units as levels, newest first; entries are read when a level is scanned."""
        return [level for unit in units for level in self._open(unit)]

    def _open(self, unit: Unit) -> list[Level]:
        cut = unit.cut
        if unit.sstable is not None:
            return [self.core.lake.open_sstable(cut.shard, unit.sstable, self.schema)]
        log = self.core.log(cut.shard)
        return [
            _TailPiece(self.core.tails, log, cut, after, last, self.schema, self.snapshot.is_pinned)
            for after, last in self._within_bytes(unit)
        ]

    def _within_bytes(self, unit: Unit) -> Iterator[tuple[int, int]]:
        """Split a unit into ranges that a read may hold, newest first. One head per entry."""
        sizes = self.core.log(unit.cut.shard).sizes(unit.after, unit.through - unit.after)
        last, held = unit.through, 0
        for position in range(unit.through, unit.after, -1):
            size = sizes[position - unit.after - 1]
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
        yield from self.open_units(_tail_units(cut))

    def _held_tail(self, cut: ShardCut) -> MemView | None:
        """The tail as a level that is kept between reads; None if it is too large to keep."""
        if cut.wal_through - cut.replay_after > HELD_ENTRIES:
            return None
        tails, key = self.core.tails, (cut.shard, cut.replay_after, cut.current_generation)
        reached = tails.levels.reached(key, self.schema)
        if reached is None:
            return None
        fresh: list[WalEntry] = []
        nbytes = 0
        last = cut.wal_through
        pinned = self.snapshot.is_pinned
        log = self.core.log(cut.shard)
        for entry in tails.entries(log, reached, last, pinned=pinned) if reached < last else ():
            fresh.append(entry)
            nbytes += entry.size
            if nbytes > min(_TAKEN_BYTES, self.core.env.limits.read_bytes):
                if not tails.levels.extend(key, self.schema, fresh):
                    return None
                fresh, nbytes = [], 0
        if fresh and not tails.levels.extend(key, self.schema, fresh):
            return None
        return tails.levels.view(key, self.schema, cut.wal_through)


@dataclass(frozen=True)
class _TailPiece:
    """A piece of a long tail, read lazily so that memory holds one piece at a time."""

    tails: LogCache
    log: ShardLog
    cut: ShardCut
    after: int
    last: int
    schema: TableSchema
    is_pinned: bool

    @property
    def rows(self) -> int:
        """Unknown before reading; a number too large for anyone to read it ahead."""
        return _UNKNOWN_ROWS

    def scan(
        self, columns: Sequence[str] | None = None, *, filter: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the entries and scan them."""
        yield from self._load().scan(columns, filter=filter)

    def lookup(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the entries and look up the keys in them."""
        return self._load().lookup(keys, columns)

    def _load(self) -> MemLevel:
        entries = self.tails.entries(self.log, self.after, self.last, pinned=self.is_pinned)
        batches = [
            align_batch(batch, self.schema.wal)
            for entry in live_entries(
                entries, self.cut.current_generation, keyed=bool(self.schema.primary_key)
            )
            for batch in entry.batches
        ]
        return MemLevel(batches, self.schema, self.log.env)
