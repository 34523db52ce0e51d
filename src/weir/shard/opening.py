"""Open a shard for writing where its log is, and move the log when another store is wanted.

Keeps
  S-1  the recorded store is identified by its id; a wrong one is refused
  S-2  a lost store is survivable exactly when no row was left in it: claim first, then check
  S-3  a move fences the recorded store, replays and flushes from it to R = L, then switches by one
       record; the first append goes to the new store
  S-8  the store of another table is refused before any writer is fenced and anything is written
  F-1  one claim is enough for a shard that was never claimed: its log is placed before the claim
Opening a writer is a write, and so is a move: both fence every older writer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final
from uuid import UUID

from weir.config import WriterConfig
from weir.errors import (
    CommitConflict,
    FencedError,
    MissingEntry,
    StoreError,
    WalStoreMismatch,
)
from weir.format.schema import TableSchema
from weir.lake.api import Lake
from weir.log.floors import FloorValues
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.log.stamp import (
    foreign_store,
    name_table,
    read_stamp,
    read_store_id,
    require_named,
    require_new,
    require_store_id,
    stamp_store_id,
)
from weir.log.wal_store import WalMoved, WalStores
from weir.records.wal_store import WalStoreRecord, append_record, known_ids, latest_record
from weir.shard.replay import Overtaken
from weir.shard.tokens import Tokens
from weir.shard.turns import WaiterGroup
from weir.shard.writer import Belongs, ShardWriter
from weir.store.api import ObjectExists
from weir.types import Epoch, Position

logger = logging.getLogger("weir.shard")

OPEN_ATTEMPTS: Final = 8

UNCLAIMED: Final = Epoch(0)
"""The epoch of a shard that was never claimed: its log is empty, wherever it is."""

Wanted = Callable[[WalStoreRecord], str | None]
"""Where the log should be, given where it is recorded."""


def open_writer(
    stores: WalStores,
    shard: UUID,
    wanted: Wanted,
    *,
    schema: TableSchema,
    lake: Lake,
    config: WriterConfig,
    belongs: Belongs | None = None,
    crowd: WaiterGroup | None = None,
) -> ShardWriter:
    """Open a writer whose log is at `wanted(recorded)`.

    Raises what `ShardWriter.open` raises, `WalStoreMismatch` (the store is another table's, or not
    the recorded one) and `MissingEntry` (the recorded store lost rows that exist nowhere else).
    Costs two requests more than `ShardWriter.open`; a move opens the shard twice, unless it was
    never opened before.
    """
    for _ in range(OPEN_ATTEMPTS):
        try:
            site = _site(stores, shard, wanted, schema=schema, lake=lake, config=config)
            return ShardWriter.open(
                site, schema=schema, lake=lake, config=config, belongs=belongs, crowd=crowd
            )
        except (WalMoved, Overtaken) as moved:
            logger.info("shard.open.again shard=%s reason=%s", shard, moved)
            stores.forget(shard)
    raise CommitConflict(
        f"shard {shard} of {stores.store.uri}: its log was moved or folded {OPEN_ATTEMPTS} times"
        " while the shard was being opened. Several processes open it with different wal_uri, or"
        " compact it in a loop; stop all but one and try again"
    )


def move_log(
    stores: WalStores,
    shard: UUID,
    target: str | None,
    *,
    schema: TableSchema,
    lake: Lake,
    config: WriterConfig,
) -> ShardSite:
    """Return the shard with its log at `target`, moved there if it was elsewhere (S-3).

    A move fences every writer of the shard and flushes its log; if the log is at `target` already,
    no writer is disturbed. Raises what `open_writer` raises.
    """
    for _ in range(OPEN_ATTEMPTS):
        try:
            return _site(stores, shard, lambda _at: target, schema, lake=lake, config=config)
        except (WalMoved, Overtaken) as moved:
            logger.info("wal.move.again shard=%s reason=%s", shard, moved)
            stores.forget(shard)
    raise CommitConflict(
        f"shard {shard} of {stores.store.uri}: its log was moved or folded {OPEN_ATTEMPTS} times"
        " while this process moved it. Several processes move it to different places; stop all but"
        " one and try again"
    )


def _site(
    stores: WalStores,
    shard: UUID,
    wanted: Wanted,
    schema: TableSchema,
    lake: Lake,
    config: WriterConfig,
) -> ShardSite:
    record = latest_record(stores.store, shard)
    target = wanted(record)
    try:
        site = stores.resolve(shard, record)
    except (WalStoreMismatch, StoreError) as lost:
        return _take_over(stores, shard, record, target, lost)
    if target == record.uri or site.wal is stores.at(target):
        return site
    _id_for(stores, shard, target)
    current = Manifests(site).latest()
    if current is not None and current.writer_epoch == UNCLAIMED:
        try:
            return _switch(stores, Manifests(site), target, UNCLAIMED)
        except FencedError as claimed:
            raise WalMoved(f"{site}: another process opened it first: {claimed}") from claimed
    # This writer trusts its ownership no longer than the caller's own writer may (G-7b).
    flushing = replace(config, enable_memtable=True, index_configs=())
    with ShardWriter.open(site, schema=schema, lake=lake, config=flushing) as old:
        stores.env.failpoint("move.claimed")
        flushed = old.flush()
        # P-6: while the log can still be read at its old place.
        Tokens(site).recover(None, epoch=old.epoch, through=flushed.replay_after)
        stores.env.failpoint("move.flushed")
        manifests = Manifests(site)
        return _switch(stores, manifests, target, old.epoch)


def _take_over(
    stores: WalStores,
    shard: UUID,
    record: WalStoreRecord,
    target: str | None,
    lost: Exception,
) -> ShardSite:
    """Continue without the recorded store, if no row was left in it (S-2)."""
    if target == record.uri and (
        isinstance(lost, StoreError) or read_store_id(stores.at(target), shard) is not None
    ):
        raise lost  # unreachable now, or another table's: nothing may be written there
    _id_for(stores, shard, target)
    manifests = Manifests(stores.table_site(shard))
    current, floors = manifests.latest_with_floors()
    _require_closed(manifests, record, target, floors, lost)
    claimed = manifests.claim(current)
    stores.env.failpoint("move.claimed")
    # Again, now that R is ours: a live writer marks its first row, then checks for a claim.
    _, floors = manifests.latest_with_floors()
    _require_closed(manifests, record, target, floors, lost)
    logger.warning("wal.lost shard=%s uri=%s: it held no unflushed rows", shard, record.uri)
    # To feeds the log looks collected: a feed that has not read all of it gets an error (G-7c).
    manifests.floors.raise_to("wal", manifests.require().replay_after)
    epoch = Epoch(claimed.writer_epoch)
    # F-2: claims that died may have left fences there, one for each epoch, and a process that can
    # reach that store may read and mark them. Those positions are skipped, not used again.
    site = _switch(stores, manifests, target, epoch, passing=epoch)
    stores.env.failpoint("move.passed")
    try:
        manifests.advance_replay_point(
            Position(site.wal_after), epoch
        )  # spares readers the skipped positions
    except FencedError as claimed_since:
        raise WalMoved(f"{site}: another process opened it first: {claimed_since}") from None
    return site


def _require_closed(
    manifests: Manifests,
    record: WalStoreRecord,
    target: str | None,
    floors: FloorValues,
    lost: Exception,
) -> None:
    manifest = manifests.require()
    if floors.is_closed(manifest):
        return
    marked = max(manifest.last_seen, floors.used, floors.open)
    text = (
        f"{manifests.site}: its log is recorded in {record.uri}, which cannot be used ({lost}), and"
        f" entries after position {manifest.replay_after}, up to at least {marked}, are not in any"
        " SSTable"
    )
    if target == record.uri:
        raise MissingEntry(f"{text}; acknowledged rows are lost unless that store comes back (S-2)")
    raise WalStoreMismatch(
        f"{text}; moving the log needs the recorded store (S-3): make it reachable, then try again"
    )


def _switch(
    stores: WalStores,
    manifests: Manifests,
    target: str | None,
    epoch: Epoch,
    *,
    passing: int = 0,
) -> ShardSite:
    """Move the log by one record. R = L holds, and `epoch` is ours, or not claimed yet.

    `passing` is the number of positions after L to skip.
    """
    store, shard = stores.store, manifests.site.shard
    record = latest_record(store, shard)
    store_id, is_new = _id_for(stores, shard, target)
    new_id = manifests.site.env.new_id
    try:
        moving = record.moving(epoch, target, store_id)
        moving = append_record(store, shard, moving, new_id())
        stores.env.failpoint("move.prepared")
        if store_id is not None:
            _stamp(stores, manifests.site, target, store_id, is_new=is_new)
            stores.env.failpoint("move.stamped")
        manifests.require_owner(manifests.require(), epoch)
        stores.env.failpoint("move.proved")
        last = manifests.require().last_seen
        moved = WalStoreRecord(
            target,
            store_id,
            after=last + passing,
            empty_after=last if passing else None,
            epoch=epoch,
            seq=moving.seq,
        )
        moved = append_record(store, shard, moved, new_id())
    except ObjectExists:
        manifests.require_owner(manifests.require(), epoch)
        raise WalMoved(f"{manifests.site}: another process moved its log just before") from None
    stores.env.failpoint("move.confirmed")
    manifests.floors.raise_to("store", moved.seq)
    logger.info("wal.moved shard=%s from=%s to=%s", shard, record.uri, target)
    stores.forget(shard)
    return stores.resolve(shard, moved)


def _stamp(
    stores: WalStores, site: ShardSite, target: str | None, store_id: str, *, is_new: bool
) -> None:
    """Write the id to the store if the id is new, else check it. An id that was read from a store
    is never written: another disk may be there by now, and two would have one id (S-1)."""
    wal = stores.at(target)
    try:
        if is_new:
            stamp_store_id(wal, site.shard, store_id, stores.store.uri)
        else:
            require_store_id(wal, site.shard, store_id)
    except WalStoreMismatch:
        _id_for(stores, site.shard, target)  # raises when it is another table's
        raise WalMoved(f"{site}: another process is moving its log to {target}") from None


def _id_for(stores: WalStores, shard: UUID, target: str | None) -> tuple[str | None, bool]:
    """The store's id if it was ours before, else a new one; another table's is refused (S-8).

    The id is None for a log beside the data. Also returns whether the id is new.
    """
    if target is None:
        return None, False
    wal, consent = stores.at(target), stores.consent
    named = target == stores.alias or consent.covers(wal.uri)
    if not named and not consent.may_ask(wal.uri):
        raise consent.refused(wal.uri, "as the place of its log")
    found = read_stamp(wal, shard)
    if found is None:
        require_new(wal, shard)
        if named:
            name_table(wal, consent.root)
        else:
            require_named(wal, consent)
        return stores.table_site(shard).env.new_id().hex, True
    if found.store_id not in known_ids(stores.store, shard):
        raise foreign_store(wal, shard, found.store_id)
    stores.require_own(wal, shard, found)
    return found.store_id, False
