"""Where one shard lives: its table's store, the store of its log, and the environment to reach both
with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

from weir.config import FENCE_TTL
from weir.env import Env
from weir.store.api import Store


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

    fence_ttl: float = FENCE_TTL
    """Seconds for which the table lets a writer trust a proof of ownership (G-7b)."""

    def __str__(self) -> str:
        return f"shard {self.shard} of {self.store.uri}"

    @property
    def beside(self) -> ShardSite:
        """The shard with its log beside the data, where another may have left entries (S-3)."""
        return replace(self, wal=self.store, wal_id=None, wal_after=0)


@dataclass(frozen=True)
class Stretch:
    """Positions `(after, last]` of a log, and where they are."""

    site: ShardSite
    after: int = 0
    last: int | None = None
    """None: to the end of the log, which is there now."""

    def holds(self, position: int) -> bool:
        """True when the position is one of them."""
        return position > self.after and (self.last is None or position <= self.last)

    def count(self, first: int, most: int) -> int:
        """How many of the `most` positions from `first` on lie in this stretch."""
        return most if self.last is None else min(most, self.last - first + 1)


class HasSite(Protocol):
    """Anything that stands for a shard and knows where it is."""

    @property
    def site(self) -> ShardSite:
        """Where the shard is."""
