"""The chain `_weir/reshard`: whether the table's routing is being changed, and to what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast
from uuid import UUID

from weir.errors import CommitConflict
from weir.format import paths
from weir.format.sharding import Sharding, from_record, to_record
from weir.records.chain import RecordChain, RecordCodec
from weir.store.api import ObjectExists, Store

State = Literal["begun", "done"]


@dataclass(frozen=True)
class Resharding:
    """One record: the change from one routing version to the next."""

    state: State
    routing_version: int
    """The routing being replaced."""
    sharding: Sharding
    """The sharding that replaces it."""
    checkpoint: UUID | None = None
    """The table before the change, made when all its shards were sealed."""
    seq: int = 0
    upgrade: bool = False
    """True for an upgrade from format 1: the sharding stays, the shards get LanceDB's ids."""

    @property
    def command(self) -> str:
        """The call that finishes the change."""
        return "table.upgrade()" if self.upgrade else f"table.reshard({self.sharding})"

    @property
    def is_open(self) -> bool:
        """True until the change is complete."""
        return self.state != "done"


def _encode(record: Resharding) -> dict[str, Any]:
    return {
        "state": record.state,
        "routing_version": record.routing_version,
        "sharding": to_record(record.sharding),
        "checkpoint": None if record.checkpoint is None else str(record.checkpoint),
        **({"upgrade": True} if record.upgrade else {}),
    }


def _decode(raw: Mapping[str, Any], path: str) -> Resharding:
    if raw["state"] not in ("begun", "done"):
        raise ValueError(f"unknown state {raw['state']!r}")
    checkpoint = raw["checkpoint"]
    return Resharding(
        state=cast("State", raw["state"]),
        routing_version=int(raw["routing_version"]),
        sharding=from_record(raw["sharding"], path),
        checkpoint=None if checkpoint is None else UUID(checkpoint),
        upgrade=raw.get("upgrade") is True,
    )


_RECORD: Final = RecordCodec("reshard record", _encode, _decode)


def read_resharding(store: Store) -> Resharding | None:
    """The latest record, or None. One list, one get when there is one."""
    found = RecordChain(store, paths.reshard_chain(), _RECORD).latest()
    return None if found is None else replace(found.value, seq=found.seq)


def append_resharding(store: Store, following: Resharding, nonce: UUID) -> Resharding:
    """Write the record after `following.seq`; `CommitConflict` when somebody else did."""
    chain = RecordChain(store, paths.reshard_chain(), _RECORD)
    try:
        return replace(following, seq=chain.append(following, following.seq, nonce=nonce))
    except ObjectExists:
        raise CommitConflict(
            f"{store.uri}: another process is resharding this table; try again"
        ) from None
