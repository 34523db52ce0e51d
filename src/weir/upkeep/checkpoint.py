"""Checkpoints of a table: made, found, kept alive, let go.

A checkpoint pins a moment: each shard's manifest and the end of its log, then the base. It costs a
few small objects; what it pins is shared with the living table and kept from collection.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from weir.durations import Duration, seconds
from weir.errors import CheckpointNotFound, InvalidInput
from weir.records.checkpoints import (
    Checkpoint,
    Checkpoints,
    Ref,
    check_name,
    checkpoint_of_tag,
)
from weir.routing.core import Core
from weir.upkeep.pinning import closed_pins, drop, durable_pins, hold, make, versions

__all__ = [
    "Checkpoint",
    "Holder",
    "checkpoints",
    "create",
    "delete",
    "derive",
    "find",
    "refresh",
    "sweep",
]

DELETE_ATTEMPTS: Final = 16


def create(
    core: Core,
    scope: str = "all",
    name: str | None = None,
    ttl: Duration | None = None,
) -> Checkpoint:
    """Pin the table as it is now and return the checkpoint.

    Scope "all": everything accepted before the call, flushed; no log is needed to read it. Through
    the writers this table handle has open; a shard with unflushed rows that another process writes
    is claimed, which fences that writer. Scope "durable": every acknowledged row, nothing flushed,
    nobody disturbed; the log up to there is pinned too. `ttl` None: until deleted. `name` is a
    label, several may share one. Per shard about five requests and what a flush costs; a dozen more
    for the base and the record. The cut is per shard.
    """
    if scope not in ("all", "durable"):
        raise InvalidInput(f"scope must be 'all' or 'durable', not {scope!r}")
    check_name(name)
    lifetime = None if ttl is None else seconds(ttl, name="ttl")
    if scope == "all":
        return make(
            core,
            lambda: closed_pins(core),
            scope="all",
            lifetime=lifetime,
            name=name,
        )
    return make(
        core,
        lambda: durable_pins(core),
        scope="durable",
        lifetime=lifetime,
        name=name,
    )


def checkpoints(core: Core) -> list[Checkpoint]:
    """Every checkpoint, oldest first, those that clones hold too. Needs no WAL store (S-5)."""
    return Checkpoints(core.store).all()


def find(core: Core, ref: Ref) -> Checkpoint:
    """The checkpoint meant by an id or a name (the newest of it); `CheckpointNotFound`.

    `InvalidInput` for the pin of a finished clone, which holds nothing but files of the base.
    """
    return Checkpoints(core.store).find(_ref(ref))


def refresh(core: Core, ref: Ref, ttl: Duration | None = None) -> Checkpoint:
    """Let it live `ttl` from now, or for ever; never shorter than before (K-5).

    Raises `CheckpointNotFound` when it is gone.
    """
    lifetime = None if ttl is None else seconds(ttl, name="ttl")
    store = core.store
    expires = None if lifetime is None else store.now() + lifetime
    return Checkpoints(store).refresh(_ref(ref), expires=expires)


def delete(core: Core, ref: Ref) -> None:
    """Let go of a checkpoint, or of all of that name; one that is gone already is fine (K-5).

    What a clone holds here goes only by its id, and takes the clone's shared files with it.
    """
    records = Checkpoints(core.store)
    target = _ref(ref)
    if isinstance(target, str):
        ids = [c.id for c in records.matching(target)]
    else:
        ids = [target.id if isinstance(target, Checkpoint) else target]
    for id_ in ids:
        for _ in range(DELETE_ATTEMPTS):
            found = records.load(id_)
            if found is None or drop(core, found):
                break
        versions(core).release_version(f"weir-{id_}")


def derive(
    core: Core,
    source: Checkpoint,
    *,
    owner: str,
    id: UUID,
    lifetime: float | None,
) -> Checkpoint:
    """Another checkpoint of the same moment, for `owner`; made while the source protects it (K-1).

    Called again with the same id it finds what stands. `CheckpointNotFound` when the source goes
    meanwhile: nothing is left then.
    """
    records = Checkpoints(core.store)
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


def _require(records: Checkpoints, source: Checkpoint) -> None:
    if records.load(source.id) is None:
        raise CheckpointNotFound(
            f"checkpoint {source.id} was deleted or collected while it was being used; make a new"
            " one"
        )


def sweep(core: Core) -> list[UUID]:
    """Finish what crashed: records of the deleted, tags of the base nobody needs. For collection.

    Tags are listed before the records: a record is always there before its tag.
    """
    records = Checkpoints(core.store)
    tags = {tag: checkpoint_of_tag(tag) for tag in versions(core).protected_versions()}
    dead = set(records.dead())
    alive = {c.id for c in records.all(pending=True)}
    orphans = {id_: tag for tag, id_ in tags.items() if id_ is not None and id_ not in alive}
    for tag in orphans.values():
        versions(core).release_version(tag)
    return sorted(dead.union(orphans), key=str)


class Holder:
    """Keeps a checkpoint alive while it is used: `keep()` as often as you like (K-5).

    Refreshes when less than half of the lifetime is left and remembers the new end, so an idle
    reader that polls a thousand times a second still writes twice per lifetime.
    """

    def __init__(self, core: Core, checkpoint: Checkpoint, ttl: Duration) -> None:
        self._core = core
        self._ttl = seconds(ttl, name="ttl")
        self._clock = core.env.clock
        self.checkpoint = checkpoint
        # Time left is measured on this machine's own clock, from a moment before the store's (G-3).
        began = self._clock.boottime()
        left = None
        if checkpoint.expires is not None:
            left = checkpoint.expires - core.store.now()
        self._until = None if left is None else began + left
        self.refreshes = 0

    def keep(self) -> None:
        """Refresh if it is time; `CheckpointNotFound` when the checkpoint is gone."""
        now = self._clock.boottime()
        if self._until is None or self._until - now > self._ttl / 2:
            return
        self.checkpoint = refresh(self._core, self.checkpoint, self._ttl)
        self._until = now + self._ttl
        self.refreshes += 1


def _ref(ref: Any) -> Ref:
    if not isinstance(ref, Checkpoint | UUID | str):
        raise InvalidInput(f"a checkpoint, its id or its name, not {ref!r}")
    return ref
