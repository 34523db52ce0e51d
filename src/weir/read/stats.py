"""`Table.stats`, computed from manifests and logs alone, without contacting any writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from weir.errors import SnapshotExpired
from weir.format import paths
from weir.format.manifest import Status
from weir.format.sharding import Value
from weir.lake.api import Base
from weir.log.site import ShardSite
from weir.records.checkpoints import Checkpoints
from weir.records.table import TableRecords
from weir.routing.core import CONCURRENCY, Core
from weir.types import Position

ENTRIES_ASKED_MAX: Final = 32
"""Entries of one tail whose size is read; for a longer tail the total is extrapolated."""
READ_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class ShardStats:
    """One shard as the store shows it."""

    shard: UUID
    value: Value
    is_routed: bool
    is_sealed: bool
    epoch: int
    manifest_version: int
    wal_tip: int
    wal_flushed: int
    """R: every entry up to here is in an SSTable or the base."""
    lag: int
    """Entries that a reader or a reopening writer must read: tip - R."""
    unflushed_bytes: int
    """Stored size of those entries; for a tail of more than 32, an estimate from 32 of them."""
    oldest_unflushed_seconds: float | None
    """How long ago the oldest of them was written, by this process's clock; None if the tail is
    empty."""
    wal_floor: int
    next_generation: int
    generations: int
    """SSTables not yet folded into the base."""
    sstable_rows: int
    sstable_bytes: int
    pins: int
    """Checkpoints that hold this shard."""
    wal_uri: str | None = None
    """The store of its log; None if the log is beside the data."""


@dataclass(frozen=True, slots=True)
class TableStats:
    """The base and all shards."""

    uri: str
    base_version: int
    base_rows: int
    checkpoints: int
    shards: tuple[ShardStats, ...]
    wal_uri: str | None = None
    """Where the table keeps its log; None if beside the data. An interrupted move leaves the logs
    of some shards elsewhere: `moving` lists those shards."""

    @property
    def moving(self) -> tuple[ShardStats, ...]:
        """Shards whose log is not in the table's log store yet; `Table.move_wal` moves it there."""
        return tuple(s for s in self.shards if s.wal_uri != self.wal_uri and not s.is_sealed)

    @property
    def lag(self) -> int:
        """Entries in all tails."""
        return sum(shard.lag for shard in self.shards)

    @property
    def unflushed_bytes(self) -> int:
        """Bytes in all tails."""
        return sum(shard.unflushed_bytes for shard in self.shards)

    @property
    def generations(self) -> int:
        """SSTables waiting for compaction."""
        return sum(shard.generations for shard in self.shards)

    @property
    def oldest_unflushed_seconds(self) -> float | None:
        """Age of the oldest entry in any tail."""
        ages = [s.oldest_unflushed_seconds for s in self.shards]
        return max((age for age in ages if age is not None), default=None)


def collect_stats(core: Core) -> TableStats:
    """Read the state of the base and of every shard, several shards concurrently."""
    pinned = Checkpoints(core.store).all()
    record = TableRecords(core.store).find()
    wal_uri = (record[1] if record else core.record).wal_uri
    # Not the store's clock, which can only be read by writing: a monitor may have read-only access,
    # and nothing is decided by the age shown.
    now = core.env.clock.wall()
    held = [{pin.shard for pin in checkpoint.shards} for checkpoint in pinned]

    base = core.base()

    def look(shard: UUID) -> ShardStats | None:
        pins = sum(shard in shards for shards in held)
        for _ in range(READ_ATTEMPTS - 1):
            try:
                return _look(core, shard, now, pins, wal_uri, base)
            except SnapshotExpired:  # collected between two requests
                continue
        return _look(core, shard, now, pins, wal_uri, base)

    found = core.env.threads.map(look, core.shard_ids(), workers=CONCURRENCY)
    return TableStats(
        uri=core.uri,
        base_version=base.version,
        base_rows=base.count(),
        checkpoints=len(pinned),
        shards=tuple(stats for stats in found if stats is not None),
        wal_uri=wal_uri,
    )


def _look(
    core: Core, shard: UUID, now: float, pins: int, wal_uri: str | None, base: Base
) -> ShardStats | None:
    manifest, floors = core.log(shard).state()
    if manifest is None:
        return None
    folded = base.compacted.get(shard, 0)
    waiting = [table for table in manifest.sstables if table.generation > folded]
    site, tip = core.log_of(manifest, floors)
    recorded = core.wal_stores.recorded(shard)
    nbytes, oldest = _tail_size(site, manifest.replay_after, tip)
    return ShardStats(
        shard=shard,
        value=core.value_of(shard, manifest),
        is_routed=core.is_routed(shard, manifest),
        is_sealed=manifest.status is Status.SEALED,
        epoch=manifest.writer_epoch,
        manifest_version=manifest.version,
        wal_tip=tip,
        wal_flushed=manifest.replay_after,
        lag=tip - manifest.replay_after,
        unflushed_bytes=nbytes,
        oldest_unflushed_seconds=None if oldest is None else max(0.0, now - oldest),
        wal_floor=floors.wal,
        next_generation=manifest.current_generation,
        generations=len(waiting),
        sstable_rows=sum(s.physical_rows or 0 for s in waiting),
        sstable_bytes=sum(s.in_memory_bytes or 0 for s in waiting),
        pins=pins,
        # A shard that was never opened has no log: the table says where it will be.
        wal_uri=recorded.uri if recorded.seq or manifest.writer_epoch else wal_uri,
    )


def _tail_size(site: ShardSite, after: int, tip: int) -> tuple[int, float | None]:
    """Bytes of the entries in `(after, tip]`, and when the first was written."""
    count = tip - after
    asked = sorted(
        {after + 1 + i * count // ENTRIES_ASKED_MAX for i in range(ENTRIES_ASKED_MAX)}
        if count
        else ()
    )
    metas = site.wal.head_many([paths.wal_path(site.shard, Position(p)) for p in asked])
    found = [meta for meta in metas if meta is not None]  # None: flushed and collected since
    if not found:
        return 0, None
    total = sum(meta.size for meta in found)
    return round(total * count / len(found)), min(meta.last_modified for meta in found)
