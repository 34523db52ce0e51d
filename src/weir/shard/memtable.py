"""Rows of one generation in memory, in put order, until they are an SSTable."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from weir.env import Env
from weir.format.schema import TableSchema
from weir.format.wal_entry import Fill
from weir.log.tags import Bounds
from weir.merge.levels import MemLevel
from weir.types import Generation, Position


class MemTable:
    """One generation. Changed only under the writer's lock; its level is read without it."""

    def __init__(self, generation: Generation, schema: TableSchema, env: Env) -> None:
        self.generation = generation
        self.level = MemLevel((), schema, env)
        self.filled = Fill()
        self.puts = 0
        self.waiting = 0
        """Puts whose entry is not durable yet; the flush waits until there are none (W-4)."""
        self.first_position: Position | None = None
        """Position of the first entry that feeds this generation, once durable."""
        self.tokens: dict[str, int] = {}
        """Exactly-once tokens that came with the rows; recorded for good before R passes them
        (P-2)."""

    @property
    def rows(self) -> int:
        """Rows held."""
        return self.filled.rows

    @property
    def nbytes(self) -> int:
        """Their bytes."""
        return self.filled.nbytes

    def append(self, batches: Sequence[pa.RecordBatch], more: Fill) -> None:
        """Take rows in, `more` of them; they are visible to reads from here on (M-1)."""
        self.level.append(batches)
        self.filled += more
        self.puts += 1

    def landed(self, position: Position, tokens: Sequence[tuple[str, int]] = ()) -> None:
        """An entry with rows of this generation is durable at `position`."""
        if self.first_position is None:
            self.first_position = position
        for app, version in tokens:
            self.tokens[app] = max(version, self.tokens.get(app, version))

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The rows in put order, WAL shape."""
        return self.level.batches

    def is_due(self, bounds: Bounds) -> bool:
        """True when it is full, and nothing is gained by waiting for the next put."""
        return not bounds.has_room(self.filled, Fill(1, 1, 1))
