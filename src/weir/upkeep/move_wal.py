"""Moves the log of a whole table to another store, or back beside the data.

    1. the store is probed, and a folder of the table's own is made in it
    2. the table's record names both: shards made from now on put their log there
    3. native writers, which know no other store, are shut out; let in again at the end (X-1)
    4. each shard is moved behind a fence (`weir.shard.opening`)

Keeps
  S-3  a shard moves whole: fenced, replayed and flushed where it was, then switched by one commit
  S-8  one record says where all logs of the table are; an interrupted move is run again, and skips
       shards that have moved already
The log of a sealed shard stays in place: it takes no more entries, and its rows are in SSTables.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from uuid import UUID

from weir.errors import CommitConflict, FencedError, SealedShard
from weir.format.manifest import ShardManifest, Status
from weir.log.floors import FloorValues
from weir.records.places import LogPlace
from weir.routing.core import CONCURRENCY, Core, beside_the_data
from weir.routing.shards import schema_for_writing
from weir.shard.opening import move_log
from weir.store.open import normalize
from weir.upkeep.exclusive import sync_mem_wal_index
from weir.upkeep.tasks import Progress
from weir.upkeep.unfinished import require_settled

logger = logging.getLogger("weir.upkeep")

T = TypeVar("T")

PASSES: Final = 8
"""How often the shards are listed: new ones may be made while the known ones are moved."""


@dataclass(frozen=True)
class WalMoveReport:
    """What a move of the log did."""

    wal_uri: str | None
    """Where the log is now; None: beside the data."""
    moved: tuple[UUID, ...]
    already_there: tuple[UUID, ...]
    sealed: tuple[UUID, ...]
    """Shards that take no more writes; nothing is left in their logs, wherever those are."""


def move_wal(
    core: Core,
    uri: str | None,
    *,
    accept_loss: bool = False,
    progress: Progress | None = None,
) -> WalMoveReport:
    """See `Table.move_wal`."""
    core.record_number()  # C-16
    target = _target(core, uri)
    require_settled(core, "move_wal")
    records = core.records()
    if target is None:
        latest = records.update(beside_the_data, core.env)
    else:
        core.wal_stores.place_for(target, is_named=True)  # guard: S-8
        latest = records.load()
    # Drop the handle's own `wal_uri`: its writers would move the log back to it.
    core.wal_uri = None
    core.place_logs(latest)
    core.env.failpoint("move.recorded")
    if target is not None:  # guard: X-1 test_shared_tables
        sync_mem_wal_index(core)  # before the first entry is where they do not look for it
    report = _move_shards(core, target, progress, accept_loss=accept_loss)
    standing = records.load().wal_uri
    if standing != target:
        raise CommitConflict(
            f"{core.uri}: while its log was moved to {target or 'the table'}, another process moved"
            f" it to {standing or 'the table'}; move it again"
        )
    sync_mem_wal_index(core)
    logger.info("wal.moved table=%s to=%s shards=%d", core.uri, target, len(report.moved))
    return report


def _target(core: Core, uri: str | None) -> str | None:
    if uri is None:
        return None
    place = normalize(uri)
    return None if place == core.uri else place


def _move_shards(
    core: Core, target: str | None, progress: Progress | None, *, accept_loss: bool
) -> WalMoveReport:
    config = replace(core.record.writer_defaults, index_configs=())
    moved: list[UUID] = []
    there: list[UUID] = []
    sealed: list[UUID] = []
    lock = core.env.threads.lock()

    def move_one(shard: UUID) -> list[UUID] | None:
        """Move the log of a shard; returns the list to put it in."""
        manifest, floors = core.log(shard).state()
        if manifest is None:
            return None
        place = _place(core, manifest, floors, accept_loss=accept_loss)
        if manifest.status is Status.SEALED:
            return there if place.uri == target else sealed
        site = move_log(
            core.wal_stores,
            shard,
            lambda _recorded: target,
            schema=schema_for_writing(core),
            lake=core.lake,
            config=config,
            accept_loss=accept_loss,
        )
        core.env.failpoint(f"move.moved {shard}")
        return there if site.place == place.seq else moved

    def move(shard: UUID) -> None:
        group = _again_if_claimed(core, shard, move_one)
        if group is None:
            return
        with lock:
            group.append(shard)
            if progress is not None:
                progress("moving", len(moved) + len(there) + len(sealed), total)

    for _ in range(PASSES):
        known = {*moved, *there, *sealed}
        waiting = [shard for shard in core.all_shard_ids() if shard not in known]
        total = len(known) + len(waiting)
        core.env.threads.map(move, waiting, workers=CONCURRENCY)
        if len(moved) + len(there) + len(sealed) == len(known):
            break
    return WalMoveReport(target, tuple(sorted(moved)), tuple(sorted(there)), tuple(sorted(sealed)))


def _again_if_claimed(core: Core, shard: UUID, move: Callable[[UUID], T]) -> T:
    """Move a shard; again when a writer claims it meanwhile, or a reshard, which seals it."""
    for _ in core.env.attempts():
        try:
            return move(shard)
        except (FencedError, SealedShard) as lost:
            logger.info("wal.move.again %s reason=%s", core.table_site(shard).label, lost)
    raise CommitConflict(
        f"{core.log(shard)}: other writers claimed it again and again while its log was being"
        " moved; stop them, then move the log again"
    )


def _place(
    core: Core, manifest: ShardManifest, floors: FloorValues, *, accept_loss: bool
) -> LogPlace:
    """Where the log is; where it was put, if a program hid that and its rows are given up (X-1)."""
    stores, shard = core.wal_stores, manifest.shard_id
    return (
        stores.marked(shard, floors)
        if accept_loss and manifest.log_place == 0
        else (stores.place(shard, manifest, floors))
    )
