"""What the judge knows of a shard: the log as it was first written, and the manifests."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

import pyarrow as pa

from weir.format.manifest import ShardManifest

Row = tuple[int, int, int, int, int, bool]
"""Key, session, batch, index in the batch, size of the batch, is a delete."""
BatchId = tuple[int, int]


class Violation(BaseException):
    """A promise was broken; the letter comes first. No `Exception`: no handler of the product may
    eat it."""

    def __init__(self, letter: str, text: str) -> None:
        super().__init__(f"{letter}: {text}")
        self.letter = letter


@dataclass
class Entry:
    """One position of the log, as first written."""

    position: int
    epoch: int
    is_fence: bool
    rows: list[Row]
    actor: str


@dataclass
class Put:
    """One batch a client handed over."""

    id: BatchId
    rows: list[Row]
    acked_at: int | None = None
    refused: bool = False
    """The client was told that nothing of it was accepted."""


@dataclass
class ShardTruth:
    """What the judge knows of one shard."""

    shard: UUID
    log: dict[int, Entry] = field(default_factory=dict)
    manifests: dict[int, ShardManifest] = field(default_factory=dict)
    last_version: int = 0
    tip: int = 0
    acked: int = 0
    """Highest position acknowledged to a client."""
    opened_epoch: int = 0
    """Highest epoch whose `open` has returned."""
    folded: list[dict[int, Row]] = field(default_factory=list)
    """Per position the newest row of each key, deletes left out."""

    def state(self, position: int) -> dict[int, Row]:
        """What a reader sees who sees the log through `position`; keyed tables."""
        return self.folded[position - 1] if position else {}


def read_entry(data: bytes, position: int, actor: str) -> Entry:
    """An entry's rows, read with pyarrow alone."""
    reader = pa.ipc.open_stream(data)
    metadata = reader.schema.metadata or {}
    rows: list[Row] = []
    for batch in reader:
        columns = [
            batch.column(name).to_pylist() for name in ("k", "w", "c", "i", "n", "_tombstone")
        ]
        rows.extend(zip(*columns, strict=True))
    is_fence = metadata.get(b"fence_sentinel") == b"true"
    return Entry(position, int(metadata[b"writer_epoch"]), is_fence, rows, actor)
