"""Where one shard lives: its table's store, the store of its log, and the environment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

from weir.config import FENCE_TTL
from weir.env import Env
from weir.store.api import Store
from weir.types import Position


@dataclass(frozen=True)
class ShardSite:
    """One shard's place. `wal` is `store` unless the table keeps its log on a second store (S)."""

    store: Store
    wal: Store
    shard: UUID
    env: Env
    wal_id: str | None = None
    """The id `wal` is recorded under; None: the log is beside the data (S-1)."""
    wal_after: int = 0
    """Entries at or below this position are in the store the log was in before (S-3)."""
    wal_empty_after: int | None = None
    """Positions after this one, up to `wal_after`, hold nothing (S-2); None: there are none."""

    fence_ttl: float = FENCE_TTL
    """Seconds for which the table lets a writer trust a proof of ownership (G-7b)."""

    def __str__(self) -> str:
        return f"shard {self.shard} of {self.store.uri}"

    def segment(self, position: int) -> LogSegment:
        """The stretch of the log that contains the position, as far as this site alone knows."""
        if self.wal_empty_after is None:
            return LogSegment(self)
        if position > self.wal_after:
            return LogSegment(self, self.wal_after)
        if position > self.wal_empty_after:
            return LogSegment(self, self.wal_empty_after, self.wal_after, is_empty=True)
        return LogSegment(self, 0, self.wal_empty_after)

    def past_empty(self, position: Position) -> Position:
        """The position, or the last of the empty positions that follow it (S-2)."""
        where = self.segment(position + 1)
        return Position(self.wal_after) if where.is_empty else position

    @property
    def in_table(self) -> ShardSite:
        """The shard with its log beside the data, where entries may have been left (S-3)."""
        return replace(self, wal=self.store, wal_id=None, wal_after=0, wal_empty_after=None)


@dataclass(frozen=True)
class LogSegment:
    """Positions `(after, last]` of a log, and where they are."""

    site: ShardSite
    after: int = 0
    last: int | None = None
    """None: up to the end of the log, which is in this place now."""
    is_empty: bool = False
    """True: these positions hold nothing, and no store is read for them (S-2)."""

    def holds(self, position: int) -> bool:
        """True when the position is in this stretch."""
        return position > self.after and (self.last is None or position <= self.last)

    def count(self, first: int, most: int) -> int:
        """How many of the `most` positions from `first` on lie in this stretch."""
        return most if self.last is None else min(most, self.last - first + 1)


class HasSite(Protocol):
    """Anything that represents a shard and knows where it is."""

    @property
    def site(self) -> ShardSite:
        """Where the shard is."""
