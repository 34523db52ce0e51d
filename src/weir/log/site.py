"""Where one shard lives: its table's store, the store of its log, and the environment to reach both
with."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

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

    def __str__(self) -> str:
        return f"shard {self.shard} of {self.store.uri}"
