"""`Table.stats`, computed from manifests and logs alone, without contacting any writer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from weir.format import paths
from weir.format.sharding import Value
from weir.lake.api import Base
from weir.read.survey import ShardSurvey, survey
from weir.records.consumers import Standing
from weir.records.holds import Holds
from weir.records.table import TableRecords
from weir.routing.core import CONCURRENCY, Core
from weir.store.api import Meta, Store
from weir.types import Position

ENTRIES_ASKED_MAX: Final = 32
"""Entries of one tail whose size is read; for a longer tail the total is extrapolated."""


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
    """Rows in them, superseded ones and deletes included."""
    sstable_bytes: int
    """What these rows take in memory, estimated where another program did not record it; their
    files may be larger or smaller."""
    pins: int
    """Checkpoints that hold this shard."""
    wal_uri: str | None = None
    """The store of its log; None if the log is beside the data."""


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A named consumer of the change feed."""

    name: str
    lag: int
    """Entries of all logs that are kept because it has not read them, fences included."""
    expires: float
    """When its hold on them ends unless it moves, in seconds since 1970 by the store's clock."""
    has_rows: bool
    """False while it has not got all rows with which it began (`Table.follow`)."""


@dataclass(frozen=True, slots=True)
class TableStats:
    """The base and all shards."""

    uri: str
    base_version: int
    base_rows: int
    checkpoints: int
    shards: tuple[ShardStats, ...]
    """Those that are not finished: a read visits each of them."""
    wal_uri: str | None = None
    """Where the table keeps its log; None if beside the data. An interrupted move leaves the logs
    of some shards elsewhere: `moving` lists those shards."""
    consumers: tuple[ConsumerStats, ...] = ()
    """The named consumers of the change feed, by name."""

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
    holds = Holds(core.store)
    pinned = holds.checkpoints()
    record = TableRecords(core.store).find()
    wal_uri = (record or core.record).wal_uri
    # Not the store's clock, which can only be read by writing: a monitor may have read-only access,
    # and nothing is decided by the age shown.
    now = core.env.clock.wall()
    held = [{pin.shard for pin in checkpoint.shards} for checkpoint in pinned]

    consumers = holds.consumers()  # before the tips: none of them is ahead of its log
    seen = survey(core)
    tails = _tail_sizes(list(seen))

    def tell(one: ShardSurvey) -> ShardStats:
        pins = sum(one.id in shards for shards in held)
        return _stats_of(core, one, seen.base, tails[one.id], now, wal_uri, pins)

    shards = core.env.threads.map(tell, list(seen), workers=CONCURRENCY)
    return TableStats(
        uri=core.uri,
        base_version=seen.base.version,
        base_rows=seen.base.count(),
        checkpoints=len(pinned),
        shards=tuple(shards),
        wal_uri=wal_uri,
        consumers=tuple(_consumer(name, s, shards) for name, s in consumers.items()),
    )


def _consumer(name: str, standing: Standing, shards: Sequence[ShardStats]) -> ConsumerStats:
    return ConsumerStats(
        name=name,
        lag=standing.behind({shard.shard: shard.wal_tip for shard in shards}),
        expires=standing.expires,
        has_rows=standing.snapshot is None,
    )


def _stats_of(
    core: Core,
    one: ShardSurvey,
    base: Base,
    tail: tuple[int, float | None],
    now: float,
    wal_uri: str | None,
    pins: int,
) -> ShardStats:
    manifest, log, waiting = one.manifest, one.log, one.waiting(base)
    tip = manifest.replay_after if log is None else log.through
    place = core.wal_stores.place(one.id, manifest, one.floors)
    nbytes, oldest = tail
    return ShardStats(
        shard=one.id,
        value=core.value_of(one.id, manifest),
        is_routed=core.is_routed(one.id, manifest),
        is_sealed=one.is_sealed,
        epoch=manifest.writer_epoch,
        manifest_version=manifest.version,
        wal_tip=tip,
        wal_flushed=manifest.replay_after,
        lag=one.lag,
        unflushed_bytes=nbytes,
        oldest_unflushed_seconds=None if oldest is None else max(0.0, now - oldest),
        wal_floor=one.floors.wal,
        next_generation=manifest.current_generation,
        generations=len(waiting),
        sstable_rows=sum(table.size[0] for table in waiting),
        sstable_bytes=sum(table.size[1] for table in waiting),
        pins=pins,
        # A shard that was never opened has no log: the table says where it will be.
        wal_uri=place.uri if place.seq or manifest.writer_epoch else wal_uri,
    )


def _tail_sizes(shards: Sequence[ShardSurvey]) -> dict[UUID, tuple[int, float | None]]:
    """Of each shard the bytes of its entries above R, and when the first was written.

    One round of requests for all logs in one store.
    """
    asked: dict[Store, list[tuple[UUID, str]]] = {}
    for one in shards:
        log, after = one.log, one.manifest.replay_after
        if log is None:
            continue
        count = log.through - after
        for n in sorted({n * count // ENTRIES_ASKED_MAX for n in range(ENTRIES_ASKED_MAX)}):
            path = paths.wal_path(one.id, Position(after + 1 + n))
            asked.setdefault(log.site.wal, []).append((one.id, path))
    found: dict[UUID, list[Meta]] = {}
    for store, places in asked.items():
        metas = store.head_many([path for _, path in places])
        for (shard, _), meta in zip(places, metas, strict=True):
            if meta is not None:  # None: flushed and collected since
                found.setdefault(shard, []).append(meta)
    return {one.id: _tail_size(one, found.get(one.id, [])) for one in shards}


def _tail_size(one: ShardSurvey, seen: Sequence[Meta]) -> tuple[int, float | None]:
    if not seen or one.log is None:
        return 0, None
    total = sum(meta.size for meta in seen) * (one.log.through - one.manifest.replay_after)
    return round(total / len(seen)), min(meta.last_modified for meta in seen)
