"""Moves the log of a whole table to another store, or back beside the data.

    1. the store is probed, and checked for another table's log     nothing is written
    2. the table's record names it: shards made from now on put their log there
    3. native writers, which know no other store, are shut out; let in again at the end (X-1)
    4. each shard is moved behind a fence (`weir.shard.opening`)

Keeps
  S-3  a shard moves whole: fenced, replayed and flushed where it was, then switched by one record
  S-8  one record says where all logs of the table are; an interrupted move is run again, and skips
       shards that have moved already
The log of a sealed shard stays in place: it takes no more entries, and its rows are in SSTables.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from weir.errors import CommitConflict, InvalidInput
from weir.format.manifest import Status
from weir.log.stamp import foreign_store, name_table, read_stamp, require_new
from weir.records.table import TableRecords
from weir.records.wal_store import known_ids, latest_record
from weir.routing.core import CONCURRENCY, Core
from weir.routing.shards import schema_for_writing
from weir.shard.opening import move_log
from weir.store.open import normalize
from weir.store.probe import require_put_if_absent
from weir.upkeep.exclusive import sync_mem_wal_index
from weir.upkeep.tasks import Progress

logger = logging.getLogger("weir.upkeep")

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
    progress: Progress | None = None,
) -> WalMoveReport:
    """Keep the table's log at `uri` from now on; None, or the table's own URI: beside the data.

    Fences every writer of every shard that is moved, in any process; reopened, they write to the
    new place. Readers and change feeds follow by themselves. After a failure, run it again. Raises
    `WalStoreMismatch` when the store holds another table's log (nothing is written) or a store that
    the log is in now is missing and may hold rows; `StoreUnsuitable` when the new store does not
    keep put-if-absent.
    """
    target = _target(core, uri)
    _require_free(core, target)
    records = TableRecords(core.store)
    if target is not None and records.load().wal_uri != target:
        require_put_if_absent(core.wal_stores.at(target), core.env)
    if target is not None:
        name_table(core.wal_stores.at(target), core.uri)  # by this call, not by the record (G-13)
    records.update(lambda record: replace(record, wal_uri=target))
    # Drop the handle's own `wal_uri`: its writers would move the log back to it.
    core.wal_uri = None
    core.record = replace(core.record, wal_uri=target)
    core.env.failpoint("move.recorded")
    if target is not None:
        sync_mem_wal_index(core)  # before the first entry is where they do not look for it
    report = _move_shards(core, target, progress)
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
    if place.startswith(f"{core.uri}/"):
        raise InvalidInput(
            f"{place} is inside the table {core.uri}; give the log a place of its own, or None to"
            " keep it beside the data"
        )
    return None if place == core.uri else place


def _require_free(core: Core, target: str | None) -> None:
    """S-8: refuse another table's store before anything is written.

    A get for each shard, and two lists for a shard that was never in that store.
    """
    if target is None:
        return
    wal = core.wal_stores.at(target)

    def check(shard: UUID) -> None:
        found = read_stamp(wal, shard)
        if found is None:
            require_new(wal, shard)
            return
        if found.store_id not in known_ids(core.store, shard):
            raise foreign_store(wal, shard, found.store_id)
        core.wal_stores.require_own(wal, shard, found)

    core.env.threads.map(check, core.shard_ids(), workers=CONCURRENCY)


def _move_shards(core: Core, target: str | None, progress: Progress | None) -> WalMoveReport:
    config = replace(core.record.writer_defaults, index_configs=())
    moved: list[UUID] = []
    there: list[UUID] = []
    sealed: list[UUID] = []
    lock = core.env.threads.lock()

    def move(shard: UUID) -> None:
        manifest, floors = core.log(shard).state()
        record = latest_record(core.store, shard)
        if manifest is None:
            return
        if record.uri == target:
            group = there
            if record.seq > floors.store and not record.prepared:
                # An earlier move died before it raised the mark that tells readers of it (S-3).
                core.log(shard).manifests.floors.raise_to("store", record.seq)
        elif manifest.status is Status.SEALED:
            group = sealed
        else:
            schema = schema_for_writing(core)
            move_log(core.wal_stores, shard, target, schema=schema, lake=core.lake, config=config)
            core.env.failpoint(f"move.moved {shard}")
            group = moved
        with lock:
            group.append(shard)
            if progress is not None:
                progress("moving", len(moved) + len(there) + len(sealed), total)

    for _ in range(PASSES):
        known = {*moved, *there, *sealed}
        waiting = [shard for shard in core.shard_ids() if shard not in known]
        total = len(known) + len(waiting)
        core.env.threads.map(move, waiting, workers=CONCURRENCY)
        if len(moved) + len(there) + len(sealed) == len(known):
            break
    return WalMoveReport(target, tuple(sorted(moved)), tuple(sorted(there)), tuple(sorted(sealed)))
