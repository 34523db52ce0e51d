"""Rows of unflushed generations in memory, in put order, until each is an SSTable.

Keeps
  W-1  R never passes the first entry whose rows would be nowhere else
  W-5  generations are closed, and published, in order
  F-15 a generation never outgrows its bounds
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from weir.env import Env
from weir.format.manifest import ShardManifest
from weir.format.schema import TableSchema
from weir.format.wal_entry import Fill
from weir.log.entry import Token
from weir.log.tags import Bounds
from weir.merge.levels import MemLevel
from weir.types import Generation, Position

WARM_BYTES: Final = 16 << 20
"""Bytes of rows of the latest SSTables that stay in memory, for lookups."""
_LEAST: Final = Fill(1, 1, 1)
"""The least that a put adds."""
CUTS_KEPT: Final = 64
"""Generations that may be published before a flush reads its own cut."""


class Mark(NamedTuple):
    """A moment of a writer: its active generation, and how many batches that held."""

    generation: int
    batches: int


class MemTable:
    """One generation. Changed only under the writer's lock; its level is read without it."""

    def __init__(self, generation: Generation, schema: TableSchema, env: Env) -> None:
        self.generation = generation
        self.level = MemLevel((), schema, env)
        self.filled = Fill()
        self.puts = 0
        self.first_position: Position | None = None
        """Position of the first entry that feeds this generation, once durable."""
        self.since: float | None = None
        """When its first rows were seen to be durable, by the monotonic clock."""
        self.is_aged = False
        """It was closed for that reason, not full."""
        self.tokens: dict[str, int] = {}
        """Exactly-once tokens that came with the rows; recorded for good before R passes them
        (P-2)."""

    @property
    def rows(self) -> int:
        """Rows held."""
        return self.filled.rows

    @property
    def nbytes(self) -> int:
        """Bytes of the rows held."""
        return self.filled.nbytes

    def append(self, batches: Sequence[pa.RecordBatch], more: Fill) -> None:
        """Add rows, counted in `more`; they are visible to reads from here on (M-1)."""
        self.level.append(batches)
        self.filled += more
        self.puts += 1

    def landed(self, position: Position, tokens: Sequence[Token] = ()) -> None:
        """An entry with rows of this generation is durable at `position`."""
        if self.first_position is None:
            self.first_position = position
        for app, version in tokens:
            self.tokens[app] = max(version, self.tokens.get(app, version))

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The rows in put order, WAL shape."""
        return self.level.batches


class MemTables:
    """The active MemTable, the frozen ones, and the manifest that readers see beside them.

    Part of `WriterState`: every call is made with its lock held.
    """

    def __init__(
        self,
        schema: TableSchema,
        env: Env,
        bounds: Bounds,
        manifest: ShardManifest,
        durable: Position,
    ) -> None:
        """`durable`: the fence of the claim; see the field."""
        self._schema = schema
        self._env = env
        self._bounds = bounds
        self.manifest = manifest
        self.active = MemTable(Generation(manifest.current_generation), schema, env)
        self.frozen: deque[MemTable] = deque()
        self.warm: tuple[MemTable, ...] = ()
        """The MemTables of the latest SSTables, newest first: after a flush keys stay in memory."""
        self._cuts: dict[int, ShardManifest] = {manifest.current_generation: manifest}
        """The newest manifest before each of the latest generations: the cut a checkpoint pins."""
        self.durable = durable
        """The last position whose rows, if any, have been booked in their MemTable. Not the
        appender's own counter: that one runs ahead for the moment between a put's answer and its
        booking, and an R taken then would pass rows no SSTable holds (W-1)."""

    def __iter__(self) -> Iterator[MemTable]:
        """All MemTables, oldest first."""
        yield from self.frozen
        yield self.active

    @property
    def oldest(self) -> MemTable:
        """The MemTable of the lowest generation."""
        return self.frozen[0] if self.frozen else self.active

    def holds(self, more: Fill) -> bool:
        """True when the active generation has room for `more`."""
        return self._bounds.holds(self.active.filled + more)

    def table_for(self, more: Fill) -> MemTable:
        """The MemTable that takes these rows: the active one, or the next if that is full."""
        if not self._bounds.has_room(self.active.filled, more):  # guard: F-15 test_bounds_pylance
            self.freeze()  # a generation never outgrows its bounds (F-15)
        return self.active

    def freeze_if_full(self) -> None:
        """Close the active MemTable if no put fits: nothing is gained by waiting for the next."""
        if not self._bounds.has_room(self.active.filled, _LEAST):
            self.freeze()

    def freeze(self) -> None:
        """Close the active MemTable; its rows go to the next SSTable."""
        full = self.active
        following = MemTable(Generation(full.generation + 1), self._schema, self._env)
        self.active = following  # F-16: no interrupt can come between this and the append
        self.frozen.append(full)

    def landed(self, generation: Generation, position: Position, tokens: Sequence[Token]) -> None:
        """An entry with rows of the generation is durable at `position`; may be repeated."""
        table = self.active
        if table.generation != generation:
            (table,) = [table for table in self.frozen if table.generation == generation]
        table.landed(position, tokens)
        self.durable = position

    def mark(self) -> Mark:
        """This moment, for `since`."""
        return Mark(self.active.generation, self.active.level.count)

    def since(self, mark: Mark | None) -> list[pa.RecordBatch]:
        """The rows that were booked after `mark`, in order, as far as they are in memory."""
        if mark is None:
            return []
        later = [table for table in self if table.generation >= mark.generation]
        rows: list[pa.RecordBatch] = []
        for table in later:
            is_marked = table.generation == mark.generation
            rows += table.level.since(mark.batches if is_marked else 0)
        return rows

    def published(self, table: MemTable | None, manifest: ShardManifest) -> None:
        """The manifest was committed; readers switch from the MemTable to the SSTable in one step
        (M-1)."""
        self.manifest = manifest
        self._cuts[manifest.current_generation] = manifest
        self._cuts.pop(manifest.current_generation - CUTS_KEPT, None)
        if table is not None:
            assert self.frozen[0] is table, "W-5: published out of order"
            self.frozen.popleft()
            self._keep_warm(table)

    def _keep_warm(self, table: MemTable) -> None:
        kept, room = [], WARM_BYTES
        for one in (table, *self.warm):
            room -= one.nbytes
            if room < 0:
                break
            kept.append(one)
        self.warm = tuple(kept)

    def cut(self, before: Generation) -> ShardManifest:
        """The newest manifest before that generation, as far as it is remembered."""
        return self._cuts.get(before, self.manifest)

    def covered(self, published: MemTable | None = None) -> Position:
        """The last position before the first entry whose rows would be nowhere else (W-1), once
        `published` is an SSTable."""
        first = self.first_position(but=published)
        return self.durable if first is None else Position(first - 1)  # guard: W-1 always simulator

    def first_position(self, but: MemTable | None = None) -> Position | None:
        """The first entry whose rows are in memory."""
        for table in (*self.frozen, self.active):
            if table is not but and table.first_position is not None:
                return table.first_position
        return None

    def unflushed(self) -> list[MemTable]:
        """MemTables with rows, newest first: the levels of a read."""
        return [table for table in (self.active, *reversed(self.frozen)) if table.rows]

    def unflushed_bytes(self) -> int:
        """Bytes of rows that no SSTable holds yet."""
        return sum(table.nbytes for table in self)
