"""One level for the few rows that each of many shards holds.

A merge takes a step for each level. A thousand shards with twenty rows each have a thousand tails
and SSTables, each of which costs more to open than to read, so they are kept together in memory.

Keeps
  L-2  of each shard its newest levels are joined, newer rows after older ones. No key is in two
       shards of one routing, so the order of the shards does not matter
  L-5  a read sees the rows of its own cuts: the level is that of exactly these
The level is bounded in size; a shard with more than a few rows has levels of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

import pyarrow as pa

from weir.env import Env
from weir.lake.api import Base
from weir.merge.levels import MemLevel
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


def living_of(
    cuts: Sequence[ShardCut], record: TableRecord
) -> tuple[list[ShardCut], list[ShardCut]]:
    """The shards that are routed and not sealed, and the others: older, or outside the routing."""
    routed = {route.shard for route in record.routing}
    living: list[ShardCut] = []
    apart: list[ShardCut] = []
    for cut in cuts:
        (living if cut.shard in routed and not cut.sealed else apart).append(cut)
    return living, apart


Load = Callable[[ShardCut, CommonPart], pa.RecordBatch | None]
"""Reads the rows of a part in the order they were put, WAL shape; None if it is too large."""


@dataclass(frozen=True)
class CommonLevel:
    """The common level of some cuts. Immutable, because reads share it: the table handle keeps the
    last one, and replaces it in one assignment (F-16)."""

    cuts: tuple[ShardCut, ...]
    record: TableRecord
    base: Base
    parts: Mapping[UUID, tuple[CommonPart, pa.RecordBatch | None]]
    """What was asked of each shard; no rows if it was found to be too large."""
    level: MemLevel
    rest: Sequence[tuple[ShardCut, CommonPart | None]]
    """The shards that have more levels, with what of them is in this one."""

    def is_for(self, cuts: tuple[ShardCut, ...], record: TableRecord, base: Base) -> bool:
        """True if nothing changed since it was made."""
        return (
            self.record is record
            and self.base is base  # guard: L-2 test_many_shards_look
            and self.cuts == cuts  # guard: L-5 test_many_shards_look
        )

    @classmethod
    def of(
        cls,
        cuts: tuple[ShardCut, ...],
        record: TableRecord,
        base: Base,
        load: Load,
        before: CommonLevel | None,
        env: Env,
    ) -> CommonLevel:
        """The level for those cuts. Parts that the one `before` it has, too, are not read again."""
        living, apart = living_of(cuts, record)
        wanted: dict[UUID, tuple[ShardCut, CommonPart]] = {}
        whole: set[UUID] = set()
        room = COMMON_BYTES
        for cut in living:
            want, nbytes, is_all = _newest_small(cut, base.compacted)
            if nbytes > room:
                continue
            if want is not None:
                wanted[cut.shard] = cut, want
                room -= nbytes
            if is_all:
                whole.add(cut.shard)
        parts: dict[UUID, tuple[CommonPart, pa.RecordBatch | None]] = {}
        if before is not None and before.base.schema.is_same(base.schema):
            found = {shard: before.parts.get(shard) for shard in wanted}
            parts = {
                shard: part
                for shard, part in found.items()
                if part is not None
                if part[0] == wanted[shard][1]  # guard: L-5 test_many_shards_look
            }
        stale = [wanted[shard] for shard in wanted if shard not in parts]
        loaded = env.threads.map(lambda one: load(*one), stale, workers=16)
        parts |= {cut.shard: (want, rows) for (cut, want), rows in zip(stale, loaded, strict=True)}
        joined = {shard: want for shard, (want, rows) in parts.items() if rows is not None}
        every = [rows for _, rows in parts.values() if rows is not None]
        # Joined once, here: joining a thousand batches takes longer than reading them.
        level = MemLevel([pa.concat_batches(every)] if every else [], base.schema, env)
        large = {shard for shard in wanted if shard not in joined}
        rest = [(cut, joined.get(cut.shard)) for cut in living if cut.shard not in whole - large]
        rest += [(cut, None) for cut in apart]
        return cls(cuts, record, base, parts, level, rest)


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
