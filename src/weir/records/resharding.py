"""The chain `_weir/reshard`: whether the table's routing is being changed, and to what."""

from __future__ import annotations

from typing import ClassVar, Literal
from uuid import UUID

from msgspec.structs import replace

from weir.format import paths
from weir.format.sharding import Sharding
from weir.records.chain import RecordChain
from weir.records.codec import Record
from weir.store.api import Store

State = Literal["begun", "done"]


class Resharding(Record, frozen=True):
    """One record: the change from one routing version to the next."""

    KIND: ClassVar[str] = "reshard record"
    state: State
    routing_version: int
    """The routing being replaced."""
    sharding: Sharding
    """The sharding that replaces it."""
    checkpoint: UUID | None = None
    """The table before the change, made when all its shards were sealed."""
    nonce: UUID | None = None
    """Distinguishes equal records of two appenders (F-9)."""

    @property
    def command(self) -> str:
        """The call that finishes the change."""
        return f"table.reshard({self.sharding})"

    @property
    def is_open(self) -> bool:
        """True until the change is complete."""
        return self.state != "done"


def _chain(store: Store) -> RecordChain[Resharding]:
    return RecordChain(store, paths.reshard_chain(), Resharding)


def read_resharding(store: Store) -> Resharding | None:
    """The latest record, or None. One list, one get when there is one."""
    return _chain(store).latest()


def replacing(store: Store, routing_version: int) -> Resharding | None:
    """The change that replaces that routing, begun or done; None if nobody began one. As above."""
    change = read_resharding(store)
    return change if change is not None and change.routing_version >= routing_version else None


def append_resharding(store: Store, following: Resharding, nonce: UUID) -> Resharding:
    """Write the record after `following.seq`; `CommitConflict` when somebody else did."""
    busy = "another process is resharding this table; try again"
    return _chain(store).follow(replace(following, nonce=nonce), busy)
