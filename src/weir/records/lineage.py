"""Where a table came from and whether it is complete: a chain of records under `_weir/clone`.

A table that is not a clone and was never restored has none.

Keeps
  C-1  the pins in the parents are named here before anything else is written
  C-2  a clone that is not finished cannot be opened by anyone
  C-4  a retry finds the clone that was begun and must request the same one
  C-15 a record that collection wrote while another disk was in the clone's place is ignored: it
       does not continue the records that are there
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, cast
from uuid import UUID

from weir.errors import CommitConflict, MissingEntry
from weir.format import paths
from weir.records.chain import RecordChain, RecordCodec
from weir.store.api import ObjectExists, Store
from weir.store.open import recorded

logger = logging.getLogger("weir.log")

State = Literal["copying", "ready", "restoring"]

_STATES: Final = ("copying", "ready", "restoring")


@dataclass(frozen=True, slots=True)
class ParentPin:
    """A checkpoint that a clone holds in a table whose files it shares."""

    uri: str
    checkpoint: UUID


@dataclass(frozen=True, slots=True)
class Lineage:
    """One record."""

    state: State
    parent: str | None = None
    checkpoint: UUID | None = None
    """The checkpoint that is cloned; a retry must name the same one (C-4)."""
    pins: tuple[ParentPin, ...] = ()
    """Checkpoints this table holds in others; empty once it shares no file with them (C-14)."""
    deep: bool = False
    accepted_loss: bool = False
    """True when the caller accepted losing the rows of a lost WAL store (C-9)."""
    replay_after: Mapping[UUID, int] = field(default_factory=dict)
    """Shards whose R was moved over a missing prefix of the log (C-9)."""
    restored: Mapping[str, Any] = field(default_factory=dict)
    """What a restore rolled back, latest last."""
    seq: int = 0

    @property
    def gives_up(self) -> bool:
        """True for the record by which collection gives up an unfinished clone."""
        return self.state == "copying" and not self.pins

    def continues(self, before: Lineage) -> bool:
        """True when it gives up the clone that `before` says is being made."""
        return before.state == "copying" and (self.parent, self.checkpoint, self.deep) == (
            before.parent,
            before.checkpoint,
            before.deep,
        )


def read_lineage(store: Store) -> Lineage | None:
    """The latest record that counts, or None. One list, one get when there is one."""
    found = _chain(store).latest()
    if found is None or not found.value.gives_up:
        return None if found is None else replace(found.value, seq=found.seq)
    said = lineage_history(store)
    return said[-1] if said else None


def lineage_history(store: Store) -> list[Lineage]:
    """Every record that counts, oldest first: none is ever collected. One list, one get each."""
    records = [replace(found.value, seq=found.seq) for found in _chain(store).all()]
    said: list[Lineage] = []
    for record in records:
        if not record.gives_up or (said and record.continues(said[-1])):
            said.append(record)
    if said:
        said[-1] = replace(said[-1], seq=records[-1].seq)  # the next record follows all of them
    return said


def _decode(raw: Mapping[str, Any], path: str) -> Lineage:
    if raw["state"] not in _STATES:
        raise ValueError(f"unknown state {raw['state']!r}")
    checkpoint = raw["checkpoint"]
    return Lineage(
        state=cast("State", raw["state"]),
        parent=None if raw["parent"] is None else recorded(raw["parent"], path),
        checkpoint=None if checkpoint is None else UUID(checkpoint),
        pins=tuple(ParentPin(recorded(p["uri"], path), UUID(p["checkpoint"])) for p in raw["pins"]),
        deep=bool(raw["deep"]),
        accepted_loss=bool(raw["accepted_loss"]),
        replay_after={UUID(s): int(r) for s, r in raw["replay_after"].items()},
        restored=_restored(raw["restored"]),
    )


def _restored(raw: Mapping[str, Any]) -> dict[str, Any]:
    for key in raw.keys() & {"checkpoint", "undo"}:
        UUID(raw[key])
    return dict(raw)


def _encode(record: Lineage) -> dict[str, Any]:
    return {
        "state": record.state,
        "parent": record.parent,
        "checkpoint": None if record.checkpoint is None else str(record.checkpoint),
        "pins": [{"uri": p.uri, "checkpoint": str(p.checkpoint)} for p in record.pins],
        "deep": record.deep,
        "accepted_loss": record.accepted_loss,
        "replay_after": {str(s): r for s, r in record.replay_after.items()},
        "restored": dict(record.restored),
    }


_RECORD: Final = RecordCodec("clone record", _encode, _decode)


def _chain(store: Store) -> RecordChain[Lineage]:
    return RecordChain(store, paths.clone_chain(), _RECORD)


def append_lineage(store: Store, following: Lineage, nonce: UUID) -> Lineage:
    """Write the record after `following.seq`; `CommitConflict` when somebody else did.

    With `seq` 0 it becomes the first record that counts.
    """
    try:
        after = following.seq or _before_the_first(store)
        return replace(following, seq=_chain(store).append(following, after, nonce=nonce))
    except ObjectExists:
        raise CommitConflict(
            f"{store.uri}: another process is cloning or restoring this table; try again"
        ) from None


def _before_the_first(store: Store) -> int:
    last = _chain(store).last_number()
    if last and read_lineage(store) is not None:
        raise ObjectExists(paths.clone_chain())
    return last


def require_ready(store: Store) -> None:
    """Raise `MissingEntry` if the table is an unfinished clone (C-2). One list."""
    found = read_lineage(store)
    if found is None or found.state == "ready":
        return
    if found.state == "restoring":
        logger.warning(
            "table.restoring uri=%s: a restore is not finished; if none is running, run it again",
            store.uri,
        )
        return
    raise MissingEntry(
        f"{store.uri} is an unfinished clone of {found.parent}: rows of checkpoint"
        f" {found.checkpoint} are missing. Run the same clone again, or delete it and release it in"
        " its parent: table.release_clone(uri)"
    )
