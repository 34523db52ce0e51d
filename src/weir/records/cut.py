"""`ShardCut`: the only type, and the only codec, for one shard at one moment.

Snapshots, checkpoints, compaction jobs and collection all use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from weir.format import paths
from weir.format.manifest import ShardManifest, SsTable, Status, sstables_problem
from weir.types import Epoch, Generation, Position, Version


@dataclass(frozen=True, slots=True)
class ShardCut:
    """One shard at one moment: these SSTables, and the entries `(replay_after, wal_through]`."""

    shard: UUID
    manifest_version: Version
    """The manifest it was taken from; a checkpoint keeps that version readable."""
    epoch: Epoch
    replay_after: Position
    wal_through: Position
    """T: nothing after it belongs to the cut (K-7)."""
    current_generation: Generation
    sstables: tuple[SsTable, ...]
    shard_spec_id: int = 0
    field_entries: tuple[tuple[str, bytes], ...] = ()
    sealed: bool = False
    tokens: tuple[tuple[str, int], ...] = ()
    """The highest exactly-once batch of each application, by token folder (P-6)."""

    @classmethod
    def of(cls, manifest: ShardManifest, through: Position) -> ShardCut:
        """The cut of a manifest and its log up to `through`."""
        assert through >= manifest.replay_after, "K-2: T below R"
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


def dump_cut(cut: ShardCut) -> dict[str, Any]:
    """A cut as JSON-ready values, without the name of its shard."""
    return {
        "version": cut.manifest_version,
        "epoch": cut.epoch,
        "replay_after": cut.replay_after,
        "wal_through": cut.wal_through,
        "current_generation": cut.current_generation,
        "shard_spec_id": cut.shard_spec_id,
        "sealed": cut.sealed,
        "field_entries": [[name, value.hex()] for name, value in cut.field_entries],
        "sstables": [
            [t.generation, t.path, t.in_memory_bytes, t.physical_rows, t.primary_key_bytes]
            for t in cut.sstables
        ],
        **({"tokens": dict(cut.tokens)} if cut.tokens else {}),
    }


def load_cut(shard: UUID, raw: Mapping[str, Any]) -> ShardCut:
    """A cut back from JSON; `KeyError`, `TypeError` or `ValueError` for anything else."""
    tables = tuple(
        SsTable(
            Generation(_number(g)),
            paths.sstable_folder(name),
            *(None if size is None else _number(size) for size in (in_memory, rows, key)),
        )
        for g, name, in_memory, rows, key in raw["sstables"]
    )
    after, through = _number(raw["replay_after"]), _number(raw["wal_through"])
    if after > through:
        raise ValueError(f"wal_through {through} is below replay_after {after}")
    problem = sstables_problem(tables, Generation(_number(raw["current_generation"])))
    if problem is not None:
        raise ValueError(problem)
    return ShardCut(
        shard=shard,
        manifest_version=Version(_number(raw["version"])),
        epoch=Epoch(_number(raw["epoch"])),
        replay_after=Position(after),
        wal_through=Position(through),
        current_generation=Generation(_number(raw["current_generation"])),
        sstables=tables,
        shard_spec_id=_number(raw["shard_spec_id"]),
        field_entries=tuple((str(n), bytes.fromhex(v)) for n, v in raw["field_entries"]),
        sealed=bool(raw["sealed"]),
        tokens=tuple(sorted((str(f), int(n)) for f, n in raw.get("tokens", {}).items())),
    )


def _number(value: object) -> int:
    """A number that fits a manifest, or `ValueError`: a cut becomes a manifest again (F-15)."""
    if type(value) is not int or not 0 <= value <= paths.U64_MAX:
        raise ValueError(f"{value!r} is not an unsigned 64-bit number")
    return value
