"""What the judge knows about a shard: the log as it was first written, and the manifests."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

import pyarrow as pa

from weir.format.manifest import ShardManifest

Row = tuple[int, int, int, int, int, bool]
"""Key, session, batch, index in the batch, size of the batch, is a delete."""
BatchId = tuple[int, int]
Ident = tuple[int, ...]
State = dict[Ident, Row]


class Violation(BaseException):
    """A promise was broken; the letter comes first. Not an `Exception`, so that no handler of the
    product catches it."""

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
    generation: int | None = None
    """The tag of its rows."""
    step: int = 0
    """When it was applied."""


@dataclass
class Put:
    """One batch a client handed over."""

    id: BatchId
    rows: list[Row]
    acked_at: int | None = None
    refused: bool = False
    """The client was told that nothing of it was accepted."""


@dataclass
class Rollback:
    """A restore under way: what the shard will hold from its manifest on."""

    shard: UUID
    state: State
    epoch: int | None = None
    """The epoch that the restore claimed."""
    is_running: bool = True
    """False once its call has failed: what the process claims from now on is for something else."""
    done: bool = False


@dataclass
class ShardTruth:
    """What the judge knows about one shard."""

    shard: UUID
    log: dict[int, Entry] = field(default_factory=dict)
    manifests: dict[int, ShardManifest] = field(default_factory=dict)
    last_version: int = 0
    tip: int = 0
    acked: int = 0
    """Highest position acknowledged to a client."""
    opened_epoch: int = 0
    """Highest epoch whose `open` has returned."""
    folded: list[State] = field(default_factory=list)
    """The rows a reader sees at each position, without deleted ones."""
    undone: dict[int, State] = field(default_factory=dict)
    """The rows that a reader saw at the position of each restore, just before it."""
    places: list[tuple[int, str]] = field(default_factory=list)
    """Stores of the log: (after, store), current one last; it moved there after that position."""
    place: int = 0
    """The number of the current one, as the manifests name it."""
    again: list[int] = field(default_factory=list)
    """Positions that a zombie wrote after they were collected."""
    sealed: bool = False
    tag: int = 0
    """The highest tag of an entry with rows."""

    def state(self, position: int) -> State:
        """What a reader of the log through `position` sees."""
        return self.folded[position - 1] if position else {}

    def place_of(self, position: int) -> str:
        """The store that holds the entry at `position`."""
        return next(store for after, store in reversed(self.places) if after < position)


def identity(row: Row, *, keyed: bool) -> Ident:
    """The identity of a row: its key, or session, batch and index."""
    return (row[0],) if keyed else row[1:4]


def fold_rows(state: State, rows: list[Row], *, keyed: bool) -> State:
    """The state after those rows."""
    following = dict(state)
    for row in rows:
        if row[5]:
            following.pop(identity(row, keyed=keyed), None)
        else:
            following[identity(row, keyed=keyed)] = row
    return following


def index_rows(rows: list[Row], *, keyed: bool) -> State:
    """A view as a state; a row that is there twice is a broken promise."""
    found = {identity(row, keyed=keyed): row for row in rows}
    if len(found) != len(rows):
        raise Violation("O", "a key or a row is in the view twice")
    return found


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
    tag = metadata.get(b"generation")
    return Entry(
        position,
        int(metadata[b"writer_epoch"]),
        is_fence,
        rows,
        actor,
        None if tag is None else int(tag),
    )
