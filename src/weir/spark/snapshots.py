"""The snapshot that a read or a statement takes, and the routing under which it was taken."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

import weir
from weir.errors import InvalidInput
from weir.read.parts import fresh_parts
from weir.read.snapshot import Freshness, Snapshot, check_freshness, pinned_snapshot
from weir.records.cut import ShardCut
from weir.routing.core import CONCURRENCY, Core
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep.checkpoint import Moment


@dataclass(frozen=True)
class RoutedSnapshot:
    """A snapshot and the routing of its shards: rows made from it belong to that routing."""

    snapshot: Snapshot
    routing: int

    @staticmethod
    def take(
        table: weir.Table,
        freshness: Freshness = "durable",
        checkpoint: Moment | None = None,
    ) -> RoutedSnapshot:
        """Of the table as it is, or at a checkpoint."""
        check_freshness(freshness)
        # Read before the snapshot: if the table is resharded between the two, a statement is
        # refused without need, which is safe; the other way round it would lose updates (P-7).
        routing = table.core.record.routing_version
        if checkpoint is None:
            return RoutedSnapshot(table.snapshot(freshness), routing)
        pinned = checkpoints.pinned(table.core, checkpoint)
        assert pinned is not None, "a checkpoint was asked for"
        return RoutedSnapshot(pinned_snapshot(table.core, pinned, freshness), routing)

    def to_json(self) -> str:
        """As text, for the options of a read or write."""
        return json.dumps({"routing": self.routing, "snapshot": self.snapshot.to_json()})

    @staticmethod
    def from_json(text: str) -> RoutedSnapshot:
        """Parse the text made by `to_json`; `InvalidInput` for anything else."""
        try:
            raw = json.loads(text)
            return RoutedSnapshot(Snapshot.from_json(raw["snapshot"]), int(raw["routing"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"not a snapshot: {error!r}") from error


_SAMPLE: Final = 4
"""Entries of one log whose size is read; that of the others is estimated."""


@dataclass(frozen=True)
class Size:
    """How much a snapshot holds, told by manifests alone: rows that others replace count, too."""

    rows: int
    bytes: int
    is_exact: bool
    """`rows` is the number of rows: all are in the base, and none expires."""

    @staticmethod
    def of(table: weir.Table, snapshot: Snapshot) -> Size:
        """Up to four requests for each shard with a log, all at once, beside opening the base."""
        core = table.core
        base = core.base(snapshot.base_version)
        width = _least_width(base.schema.plain)
        rows = stored = 0
        for fragment in base.dataset.get_fragments():
            rows += fragment.metadata.num_rows
            stored += sum(file.file_size_bytes or 0 for file in fragment.metadata.files)
        total = max(stored, rows * width)
        for cut in snapshot.cuts:
            for sstable in cut.sstables:
                if sstable.generation > base.compacted.get(cut.shard, 0):
                    rows += sstable.physical_rows or 0
                    total += sstable.in_memory_bytes or (sstable.physical_rows or 0) * width
        logs = core.env.threads.map(
            lambda cut: _log_bytes(core, cut), list(snapshot.cuts), workers=CONCURRENCY
        )
        is_exact = base.expire is None and not fresh_parts(snapshot, base)
        return Size(rows + sum(logs) // width, total + sum(logs), is_exact)


def _log_bytes(core: Core, cut: ShardCut) -> int:
    count = cut.wal_through - cut.replay_after
    if count <= 0:
        return 0
    # The newest: the first entry of a writer is a fence.
    some = min(count, _SAMPLE)
    return count * max(core.log(cut.shard).sizes(cut.wal_through - some, some))


def _least_width(schema: pa.Schema) -> int:
    """Bytes that a row takes in memory at least."""
    bits = 0
    for field in schema:
        with contextlib.suppress(ValueError):  # texts, lists: no width of their own
            bits += field.type.bit_width
    return max(1, bits // 8)
