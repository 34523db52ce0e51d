"""Where a table came from and whether it is complete: a chain of records under `_weir/clone`.

A table that is not a clone and was never restored has none.

Keeps
  C-1  the pins in the parents are named here before anything else is written
  C-2  a clone that is not finished cannot be opened by anyone
  C-4  a retry finds the clone that was begun and must request the same one
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar, Final, Literal
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from weir.errors import MissingEntry
from weir.format import paths
from weir.records.chain import RecordChain
from weir.records.codec import Record
from weir.store.api import Store
from weir.store.open import require_recorded

logger = logging.getLogger("weir.log")

KEEP_WITHOUT_PARENT: Final = (
    "To keep its rows without the other table, put them into a new one. A clone shares files until"
    " every row of it was written anew, its compact() folded them, and its gc() ran when the older"
    " versions were past `min_age`; compact() and gc() alone rewrite no file that is still good"
)
"""What makes the rows of a clone independent, for messages (C-14)."""

State = Literal["copying", "ready", "restoring"]


class ParentPin(Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint that a clone holds in a table whose files it shares."""

    uri: str
    checkpoint: UUID


class Restored(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A restore: what it restored, and what that rolled back."""

    checkpoint: UUID
    undo: UUID
    """The checkpoint that undoes it. Both stay until the restore is done (K-11)."""
    at: float | None = None
    """When it was complete."""
    discarded: Mapping[UUID, tuple[int, int]] = {}
    """Log entries of each shard after the first position, up to the second."""


class Lineage(Record, frozen=True):
    """One record."""

    KIND: ClassVar[str] = "clone record"
    state: State
    parent: str | None = None
    checkpoint: UUID | None = None
    """The checkpoint that is cloned; a retry must name the same one (C-4)."""
    checkpoint_name: str | None = None
    """Its name: a retry may give it when the checkpoint is gone."""
    pins: tuple[ParentPin, ...] = ()
    """Checkpoints this table holds in others; empty once it shares no file with them (C-14), and
    after an operator released an unfinished clone (C-3)."""
    deep: bool = False
    wal_folder: str | None = None
    """The folder that the clone's log gets in its WAL store; every attempt uses the same."""
    accepted_loss: bool = False
    """True when the caller accepted losing the rows of a lost WAL store (C-9)."""
    replay_after: Mapping[UUID, int] = {}
    """Shards whose R was moved over a missing prefix of the log (C-9)."""
    restored: Restored | None = None
    """The last restore, also while it is running."""
    nonce: UUID | None = None
    """Distinguishes equal records of two appenders (F-9)."""

    def __post_init__(self) -> None:
        """Refuse places that cannot be."""
        require_recorded(self.parent, *(pin.uri for pin in self.pins))
        if self.wal_folder is not None and not paths.is_log_folder(self.wal_folder):
            raise ValueError(f"{self.wal_folder!r} is not the name of a log's folder")


def restoring(store: Store) -> Restored | None:
    """The restore that is running or was interrupted; None: the table is no mixture. One list."""
    found = read_lineage(store)
    return found.restored if found is not None and found.state == "restoring" else None


def read_lineage(store: Store) -> Lineage | None:
    """The latest record, or None. One list, one get when there is one."""
    return _chain(store).latest()


def _chain(store: Store) -> RecordChain[Lineage]:
    return RecordChain(store, paths.clone_chain(), Lineage)


def append_lineage(store: Store, following: Lineage, nonce: UUID) -> Lineage:
    """Write the record after `following.seq`; `CommitConflict` when somebody else did."""
    busy = "another process is cloning or restoring this table; try again"
    return _chain(store).follow(replace(following, nonce=nonce), busy)


def require_ready(store: Store) -> None:
    """Raise `MissingEntry` if the table is an unfinished clone (C-2). One list."""
    found = read_lineage(store)
    if found is None or found.state == "ready":  # guard: C-2 always
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
        " its parent: table.release_clone(uri), or weir checkpoint release"
    )
