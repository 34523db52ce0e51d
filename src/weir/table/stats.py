"""What `Table.stats` tells, from manifests and logs alone: no writer is asked."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from weir.format.manifest import Status
from weir.table.core import CONCURRENCY, Core
from weir.table.sharding import Value


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
    """Entries a reader or a reopening writer has to read: tip - R."""
    wal_floor: int
    next_generation: int
    generations: int
    """SSTables not yet folded into the base."""
    sstable_rows: int
    sstable_bytes: int


@dataclass(frozen=True, slots=True)
class TableStats:
    """The base and all shards."""

    uri: str
    base_version: int
    base_rows: int
    shards: tuple[ShardStats, ...]

    @property
    def lag(self) -> int:
        """Entries in all tails."""
        return sum(shard.lag for shard in self.shards)


def collect_stats(core: Core) -> TableStats:
    """Look at every shard, several at a time, then at the base."""

    def look(shard: UUID) -> ShardStats | None:
        manifest, floors = core.tails.latest(core.beside(shard))
        if manifest is None:
            return None
        site = core.site(shard, floors)
        tip = core.tails.tip(site, manifest, floors)
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
            wal_floor=floors.wal,
            next_generation=manifest.current_generation,
            generations=len(manifest.sstables),
            sstable_rows=sum(s.physical_rows or 0 for s in manifest.sstables),
            sstable_bytes=sum(s.in_memory_bytes or 0 for s in manifest.sstables),
        )

    found = core.env.threads.map(look, core.shard_ids(), workers=CONCURRENCY)
    base = core.lake.open_base()
    return TableStats(
        uri=core.uri,
        base_version=base.version,
        base_rows=base.count(),
        shards=tuple(stats for stats in found if stats is not None),
    )
