"""Where one shard lives: its table's store, the store of its log, and the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from weir.config import FENCE_TTL
from weir.env import Env
from weir.meters import Facts
from weir.store.api import Store


@dataclass(frozen=True)
class ShardSite:
    """One shard's place. `wal` is `store` unless the table keeps its log on a second store (S)."""

    store: Store
    wal: Store
    shard: UUID
    env: Env
    place: int = 0
    """The number of the log's place, as the manifest names it."""
    wal_after: int = 0
    """Entries at or below this position are in the place the log was in before (S-3)."""
    fence_ttl: float = FENCE_TTL
    """Seconds for which the table lets a writer trust a proof of ownership (G-7b)."""

    def __str__(self) -> str:
        return f"shard {self.shard} of {self.store.uri}"

    @property
    def label(self) -> str:
        """The shard in a log event: shards of different tables have the same ids."""
        return f"table={self.store.uri} shard={self.shard}"

    def facts(self, epoch: int) -> Facts:
        """The shard in a span."""
        return {"weir.table": self.store.uri, "weir.shard": str(self.shard), "weir.epoch": epoch}

    @property
    def is_apart(self) -> bool:
        """True when the log is in a store of its own."""
        return self.wal is not self.store


@dataclass(frozen=True)
class LogSegment:
    """Positions `(after, last]` of a log, and where they are."""

    site: ShardSite
    after: int = 0
    last: int | None = None
    """None: up to the end of the log, which is in this place now."""

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
