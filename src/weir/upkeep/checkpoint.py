"""Checkpoints of a table: create, find, refresh and delete them.

A checkpoint pins a moment: each shard's manifest and the end of its log, then the base. It costs a
few small objects; the pinned files are shared with the live table and protected from collection.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast
from uuid import UUID

from weir.durations import Duration, seconds
from weir.errors import CheckpointNotFound, InvalidInput
from weir.lake.base.fold_commit import WHOLE
from weir.read.snapshot import Pinned
from weir.records.checkpoints import Checkpoint, Ref, Scope, check_name
from weir.records.cut import ShardCut
from weir.records.holds import Holds
from weir.routing.core import Core
from weir.routing.shards import schema_for_writing
from weir.upkeep.compact.progress import require_no_lost_rows
from weir.upkeep.pinning import closed_pins, drop, durable_pins, hold, make
from weir.upkeep.unfinished import require_settled, require_unneeded

__all__ = [
    "Checkpoint",
    "before",
    "checkpoints",
    "create",
    "delete",
    "derive",
    "find",
    "pinned",
    "refresh",
    "whole_version",
]


def create(
    core: Core,
    scope: str = "all",
    name: str | None = None,
    ttl: Duration | None = None,
) -> Checkpoint:
    """See `Table.checkpoint`."""
    if scope not in ("all", "durable"):
        raise InvalidInput(f"scope must be 'all' or 'durable', not {scope!r}")
    check_name(name)
    lifetime = None if ttl is None else seconds(ttl, name="ttl")
    require_no_lost_rows(core)  # guard: L-8 test_rolled_back_base
    _mark_columns(core)

    def pins() -> list[ShardCut]:
        # After the base was read: a restore announces itself before it takes the base back, and
        # changes the shards after that. So a base that stays the same was not taken back (K-11).
        require_settled(core, "checkpoint")
        return closed_pins(core) if scope == "all" else durable_pins(core)  # guard: K-2 always

    return make(core, pins, scope=cast("Scope", scope), lifetime=lifetime, name=name)


def _mark_columns(core: Core) -> None:
    """K-11: a restore may stop at this version, and rows that were put to a column go on to be its
    rows only if the column keeps its mark (`weir.format.schema`)."""
    base = core.base()
    if base.schema.unmarked:
        require_settled(core, "checkpoint")
        with suppress(InvalidInput):  # a column that no writer takes (F-15) has no such rows
            schema_for_writing(core, base)  # guard: K-11 test_new_column_and_an_older_version


def checkpoints(core: Core) -> list[Checkpoint]:
    """Every checkpoint, oldest first, including pins of clones. Needs no WAL store (S-5)."""
    core.record_number()  # guard: C-16 test_drop
    return Holds(core.store).checkpoints()


def find(core: Core, ref: Ref) -> Checkpoint:
    """The checkpoint with that id, or the newest with that name; `CheckpointNotFound`.

    `InvalidInput` for the pin of a finished clone, which holds nothing but files of the base.
    """
    return Holds(core.store).find(_ref(ref))


def before(core: Core, time: datetime) -> Checkpoint:
    """The newest checkpoint made at or before that time; `CheckpointNotFound`, `InvalidInput`."""
    if time.tzinfo is None:
        raise InvalidInput(f"{time} has no time zone; give one, e.g. tzinfo=datetime.UTC")
    there = [one for one in checkpoints(core) if not one.base_only and one.owner is None]
    there.sort(key=lambda one: one.created)
    made = [one for one in there if one.created <= time.timestamp()]
    if not made:
        nearest = "it has none"
        if there:
            first = datetime.fromtimestamp(there[0].created, UTC)
            nearest = f"the first is {there[0].name or there[0].id}, of {first:%Y-%m-%d %H:%M:%S%z}"
        raise CheckpointNotFound(
            f"{core.uri}: no checkpoint was made at or before {time}; {nearest}. Only checkpoints"
            " keep old versions; table.checkpoints() lists all"
        )
    return made[-1]


def refresh(core: Core, ref: Ref, ttl: Duration | None = None) -> Checkpoint:
    """See `Table.refresh_checkpoint` (K-5)."""
    lifetime = None if ttl is None else seconds(ttl, name="ttl")
    store = core.store
    expires = None if lifetime is None else store.now() + lifetime
    return Holds(store).refresh(_ref(ref), expires=expires, env=core.env)


def delete(core: Core, ref: Ref) -> None:
    """See `Table.delete_checkpoint` (K-5)."""
    core.record_number()  # C-16
    records = Holds(core.store)
    target = _ref(ref)
    if isinstance(target, str):
        ids = [c.id for c in records.matching(target)]
    else:
        ids = [target.id if isinstance(target, Checkpoint) else target]
    for id_ in ids:
        for _ in core.env.attempts():
            found = records.load(id_)
            if found is None:
                break
            require_unneeded(core, id_)
            if drop(core, found):
                break
        core.lake.release_version(f"weir-{id_}")


def derive(
    core: Core,
    source: Checkpoint,
    *,
    owner: str,
    id: UUID,
    lifetime: float | None,
) -> Checkpoint:
    """Another checkpoint of the same moment, for `owner`; made while the source protects it (K-1).

    Called again with the same id, it returns the existing one. `CheckpointNotFound` when the source
    is deleted in between; nothing is left then.
    """
    records = Holds(core.store)
    standing = records.load(id)
    if standing is not None and standing.confirmed:
        return standing
    draft = Checkpoint(
        id=id,
        scope=source.scope,
        created=core.store.now(),
        base_version=source.base_version,
        routing_version=source.routing_version,
        shards=source.shards,
        name=source.name,
        owner=owner,
        base_only=source.base_only,
    )
    return hold(core, draft, lifetime, lambda: _require(records, source))


def _require(records: Holds, source: Checkpoint) -> None:
    if records.load(source.id) is None:
        raise CheckpointNotFound(
            f"checkpoint {source.id} was deleted or collected while it was being used; make a new"
            " one"
        )


Moment: TypeAlias = Pinned | str | datetime
"""A checkpoint, its id or name, or a time: the newest checkpoint at or before it."""


def pinned(core: Core, moment: Moment | None) -> Pinned | None:
    """The pin of a read: the checkpoint of that name, id or time, or `moment` itself.

    `CheckpointNotFound` when there is none, or it was deleted. Three requests for a checkpoint.
    """
    if isinstance(moment, datetime):
        return before(core, moment)
    # Also the checkpoint itself: only its record says that it is still there.
    return find(core, moment) if isinstance(moment, str | UUID | Checkpoint) else moment


@dataclass(frozen=True)
class WholeVersion:
    """A version of the base that held all rows of its time: no shard adds any."""

    base_version: int
    created: float
    shards: tuple[ShardCut, ...] = ()


def whole_version(core: Core, number: int) -> WholeVersion | None:
    """That version of the base, if it is there and a load says that it was the whole table. One
    read, one listing."""
    commit = next(core.lake.read_commits([number]), None)
    written = core.lake.written_versions().get(number)
    if commit is None or written is None or WHOLE not in commit.properties:
        return None
    return WholeVersion(number, written)


def _ref(ref: Any) -> Ref:
    if not isinstance(ref, Checkpoint | UUID | str):
        raise InvalidInput(f"expected a checkpoint, its id or its name, got {ref!r}")
    return ref
