"""One level for the few rows that each of many shards holds.

A merge takes a step for each level. A thousand shards with twenty rows each have a thousand tails
and SSTables, each of which costs more to open than to read, so they are kept together in memory.

Keeps
  L-2  of each shard its newest levels are kept, newer rows after older ones. No key is in two
       shards of one routing, so the order of the shards does not matter
  L-5  a read sees the rows of its own cut: a level that has since grown or moved on is not used
The level is bounded in size; a shard with more than a few rows has levels of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from uuid import UUID

import pyarrow as pa

from weir.env import Env
from weir.format.schema import TableSchema
from weir.lake.api import Base
from weir.lazy import Lazy
from weir.merge.levels import MemLevel, MemView
from weir.records.cut import ShardCut
from weir.records.table import TableRecord

PART_BYTES: Final = 256 << 10
"""Limit for each part that a shard adds: its tail, and each of its SSTables."""
PART_ROWS: Final = 2_000
_PART_ENTRIES: Final = 512
COMMON_BYTES: Final = 32 << 20
"""Limit for all shards together."""
_ENTRY_BYTES: Final = 4 << 10
"""Estimated size of an entry of a small tail."""
_LOOSE_BATCHES: Final = 1_024
"""Batches that are appended before all of them are joined into one."""


def is_small(rows: int, nbytes: int) -> bool:
    """True for rows that are few enough to be read with those of other shards."""
    return rows <= PART_ROWS and nbytes <= PART_BYTES


class CommonPart(NamedTuple):
    """The part of a shard's cut that is in the common level."""

    after: int
    generation: int
    sstables: tuple[str, ...]
    """Oldest first."""
    through: int

    def follows(self, other: CommonPart) -> bool:
        """True when only log entries were added since `other`."""
        return self[:3] == other[:3] and self.through >= other.through


Batches = tuple[pa.RecordBatch, ...]
"""Rows of one shard in the order they were put, WAL shape."""
Parts = Mapping[UUID, tuple[CommonPart, Batches | None]]
"""What is held of each shard; None means that it was found to be too large."""


@dataclass(frozen=True)
class LevelPlan:
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

    @classmethod
    def of(cls, cuts: tuple[ShardCut, ...], record: TableRecord, base: Base) -> LevelPlan:
        """The plan for those cuts."""
        routed = {route.shard for route in record.routing}
        living: list[ShardCut] = []
        apart: list[ShardCut] = []
        for cut in cuts:
            (living if cut.shard in routed and not cut.sealed else apart).append(cut)
        room = COMMON_BYTES
        wanted: dict[UUID, CommonPart] = {}
        whole: set[UUID] = set()
        for cut in living:
            want, nbytes, is_all = _newest_small(cut, base.compacted)
            if nbytes > room:
                continue
            if want is not None:
                wanted[cut.shard] = want
                room -= nbytes
            if is_all:
                whole.add(cut.shard)
        return cls(cuts, record, base, living, apart, wanted, frozenset(whole))

    def is_for(self, cuts: tuple[ShardCut, ...], record: TableRecord, base: Base) -> bool:
        """True if nothing changed since it was made."""
        return (
            self.record is record
            and self.base is base  # guard: L-2 test_many_shards_look
            and self.cuts == cuts  # guard: L-5 test_many_shards_look
        )


def _newest_small(cut: ShardCut, folded: Mapping[UUID, int]) -> tuple[CommonPart | None, int, bool]:
    """What a shard adds to the common level, its estimated bytes, and whether that is all the shard
    has. None in place of a part: the newest level is too large, or the shard has no level."""
    entries = cut.wal_through - cut.replay_after
    if entries > _PART_ENTRIES:
        return None, 0, False
    names: list[str] = []
    nbytes = 0
    is_all = True
    last = folded.get(cut.shard, 0) if folded else 0
    for table in cut.newest_first:
        if table.generation <= last:
            continue
        rows, size = table.physical_rows, table.in_memory_bytes
        if rows is None or size is None or not is_small(rows, size):
            is_all = False
            # guard: L-2
            break  # L-2: older levels must stay behind this one
        names.append(table.path)
        nbytes += size
    if not names and not entries:
        return None, 0, is_all
    names.reverse()
    want = CommonPart(cut.replay_after, cut.current_generation, tuple(names), cut.wal_through)
    return want, nbytes + entries * _ENTRY_BYTES, is_all


@dataclass(frozen=True)
class Combined:
    """The common level as the reads of one plan see it."""

    wanted: Mapping[UUID, CommonPart]
    schema: TableSchema
    parts: Parts
    view: MemView
    """The rows of exactly these parts."""

    @Lazy
    def left_out(self) -> frozenset[UUID]:
        """Shards that were found to be too large."""
        return frozenset(shard for shard, (_, rows) in self.parts.items() if rows is None)

    def has(self, shard: UUID, want: CommonPart) -> bool:
        """True if exactly that part of the shard is held."""
        part = self.parts.get(shard)
        return part is not None and part[0] == want  # guard: L-5 last


class CommonLevel:
    """The common level of one table handle. Safe to share between threads.

    A state is immutable and replaced in one assignment, so an interrupt leaves the one before
    (F-16). Of two reads at once the later one's state stays.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self._state: Combined | None = None
        self._plan: LevelPlan | None = None

    def plan(self, cuts: tuple[ShardCut, ...], record: TableRecord, base: Base) -> LevelPlan:
        """The plan for those cuts; that of the last read if nothing changed since."""
        held = self._plan
        if held is None or not held.is_for(cuts, record, base):
            held = LevelPlan.of(cuts, record, base)
        # Keep these cuts: the next read gets the same objects, which compare faster.
        self._plan = replace(held, cuts=cuts)
        return held

    def view(
        self,
        schema: TableSchema,
        wanted: Mapping[UUID, CommonPart],
        load: Callable[[Sequence[UUID]], Sequence[Batches | None]],
    ) -> tuple[MemView, frozenset[UUID]]:
        """The rows of the shards in `wanted`, and the shards left out because they are too large.

        `load` reads the shards that are not held; it returns None for one that is too large. The
        caller must not change `wanted` afterwards. The rows of any other shard are left out: what
        was held of it may be older than its own levels, which come after this one (L-2).
        """
        found = self._state
        state = None if found is None or not found.schema.is_same(schema) else found
        # guard: L-5 last test_many_shards_look
        if state is not None and state.wanted is wanted:
            return state.view, state.left_out
        stale = [s for s, want in wanted.items() if state is None or not state.has(s, want)]
        is_all = state is not None and not stale and len(state.parts) == len(wanted)
        parts = {} if state is None else {s: p for s, p in state.parts.items() if s in wanted}
        loaded = zip(stale, () if is_all else load(stale), strict=True)
        parts.update((shard, (wanted[shard], rows)) for shard, rows in loaded)
        if state is not None and is_all:
            made = replace(state, wanted=wanted)
        else:
            view = self._next(state, schema, parts, stale)
            made = Combined(wanted, schema, parts, view)
        self._state = made
        return made.view, made.left_out

    def _next(
        self, state: Combined | None, schema: TableSchema, parts: Parts, stale: Sequence[UUID]
    ) -> MemView:
        extra = None if state is None else _batches_to_append(state.parts, parts, stale)
        if state is not None and extra is not None and state.view.count < _LOOSE_BATCHES:
            return state.view.plus(extra)
        every = [batch for _, batches in parts.values() for batch in batches or ()]
        # Joined once, here: joining a thousand batches takes longer than reading them.
        joined = [pa.concat_batches(every)] if every else []
        return MemLevel(joined, schema, self._env).now()


def _batches_to_append(
    held: Parts, parts: Parts, stale: Sequence[UUID]
) -> list[pa.RecordBatch] | None:
    """The batches to append; None when appending is not enough."""
    if any(shard not in parts for shard in held):  # guard: L-2
        return None
    extra: list[pa.RecordBatch] = []
    for shard in stale:
        want, batches = parts[shard]
        before, known = held.get(shard, (want, ()))
        if batches is None or known is None or not want.follows(before):
            return None
        extra += batches[len(known) :]
    return extra
