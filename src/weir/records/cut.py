"""`ShardCut`: one shard at one moment, in memory and in records.

Snapshots, checkpoints, compaction jobs and collection all use it.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from msgspec import Meta, Struct

from weir.format import paths
from weir.format.manifest import Count, ShardManifest, SsTable, Status, sstables_problem
from weir.records.statements import Share
from weir.types import Epoch, Generation, Position, Version

_FROM_0 = Meta(ge=0)


class ShardCut(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One shard at one moment: these SSTables, and the entries `(replay_after, wal_through]`."""

    shard: UUID
    manifest_version: Annotated[Version, _FROM_0]
    """The manifest it was taken from; a checkpoint keeps that version readable."""
    epoch: Annotated[Epoch, _FROM_0]
    replay_after: Annotated[Position, _FROM_0]
    wal_through: Annotated[Position, _FROM_0]
    """T: nothing after it belongs to the cut (K-7)."""
    current_generation: Annotated[Generation, _FROM_0]
    sstables: tuple[SsTable, ...]
    shard_spec_id: Count = 0
    field_entries: tuple[tuple[str, bytes], ...] = ()
    sealed: bool = False
    tokens: tuple[tuple[str, int], ...] = ()
    """The highest exactly-once batch of each application, by token folder (P-6)."""
    staged: Share | None = None
    """Of a statement that was decided and may not be in the log yet; in no checkpoint (P-8)."""

    def __post_init__(self) -> None:
        """Refuse a cut that no manifest could have: it becomes one again (F-15)."""
        sizes = [t.in_memory_bytes or 0 for t in self.sstables]
        sizes += [t.physical_rows or 0 for t in self.sstables]
        sizes += [t.primary_key_bytes or 0 for t in self.sstables]
        numbers = (self.manifest_version, self.epoch, self.wal_through, self.current_generation)
        if max(*numbers, self.shard_spec_id, *sizes) > paths.U64_MAX:
            raise ValueError("a number does not fit in 64 bits")
        if self.wal_through < self.replay_after:
            raise ValueError(f"T {self.wal_through} is below R {self.replay_after}")
        for table in self.sstables:
            paths.sstable_folder(table.path)
        problem = sstables_problem(self.sstables, self.current_generation)
        if problem is not None:
            raise ValueError(problem)

    @classmethod
    def of(cls, manifest: ShardManifest, through: Position) -> ShardCut:
        """The cut of a manifest and its log up to `through`."""
        return cls(
            shard=manifest.shard_id,
            manifest_version=manifest.version,
            epoch=manifest.writer_epoch,
            replay_after=manifest.replay_after,
            wal_through=through,
            current_generation=manifest.current_generation,
            sstables=manifest.sstables,
            shard_spec_id=manifest.shard_spec_id,
            field_entries=manifest.field_entries,
            sealed=manifest.status is Status.SEALED,
        )

    @property
    def newest_first(self) -> list[SsTable]:
        """Its SSTables in merge order (L-2)."""
        return sorted(self.sstables, key=lambda table: table.generation, reverse=True)

    @property
    def closed(self) -> bool:
        """True when no entry of the log is needed (W-2)."""
        return self.replay_after == self.wal_through
