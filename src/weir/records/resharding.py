"""The chain `_weir/reshard`: whether the table's routing is being changed, and to what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, cast
from uuid import UUID

from weir.errors import CommitConflict, CorruptEntry
from weir.format import paths
from weir.format.sharding import Sharding, from_record, to_record
from weir.records import codec
from weir.records.chain import Chain
from weir.store.api import ObjectExists, Store

State = Literal["begun", "done"]


@dataclass(frozen=True)
class Resharding:
    """One record: the change from one routing version to the next."""

    state: State
    routing_version: int
    """The routing that is left."""
    sharding: Sharding
    """What comes after it."""
    checkpoint: UUID | None = None
    """The table as it was, made when all its shards were sealed."""
    seq: int = 0

    @property
    def is_open(self) -> bool:
        """True until the change is complete."""
        return self.state != "done"


def read_resharding(store: Store) -> Resharding | None:
    """The latest record, or None. One list, one get when there is one."""
    found = Chain(store, paths.reshard_chain()).latest()
    if found is None:
        return None
    path = paths.chain_path(paths.reshard_chain(), found.seq)
    raw: dict[str, Any] = codec.loads(found.data, path)
    try:
        if raw["state"] not in ("begun", "done"):
            raise ValueError(f"unknown state {raw['state']!r}")
        checkpoint = raw["checkpoint"]
        return Resharding(
            state=cast("State", raw["state"]),
            routing_version=int(raw["routing_version"]),
            sharding=from_record(raw["sharding"], path),
            checkpoint=None if checkpoint is None else UUID(checkpoint),
            seq=found.seq,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptEntry(f"{path} is not a usable record of resharding: {error!r}") from error


def append_resharding(store: Store, following: Resharding, nonce: UUID) -> Resharding:
    """Write the record after `following.seq`; `CommitConflict` when somebody else did."""
    body = {
        "state": following.state,
        "routing_version": following.routing_version,
        "sharding": to_record(following.sharding),
        "checkpoint": None if following.checkpoint is None else str(following.checkpoint),
        "nonce": nonce.hex,
    }
    try:
        seq = Chain(store, paths.reshard_chain()).append(codec.dumps(body), following.seq)
    except ObjectExists:
        raise CommitConflict(f"{store.uri}: somebody else is resharding it; try again") from None
    return replace(following, seq=seq)
