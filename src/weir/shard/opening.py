"""Open a shard for writing where its log is, and move the log when another place is wanted.

Keeps
  S-2  a lost log is replaced exactly when no row was left in it, by one commit on top of the
       manifest that says so
  S-3  a move fences the place where the log is, replays and flushes from it to R = L, then switches
       by one manifest commit; the first append goes to the new place
  F-1  one claim is enough for a shard that was never claimed: its log is placed before the claim
Opening a writer is a write, and so is a move: both fence every older writer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from uuid import UUID

from msgspec import structs

from weir.config import WriterConfig
from weir.errors import (
    CommitConflict,
    FencedError,
    MissingEntry,
    StoreError,
    WalStoreMismatch,
    WeirError,
)
from weir.format.manifest import UNCLAIMED, ShardManifest
from weir.format.schema import TableSchema
from weir.lake.api import Lake
from weir.log.fence import FenceTooLate, mark_place
from weir.log.floors import FloorValues
from weir.log.manifests import Manifests, State
from weir.log.rules import Evidence
from weir.log.site import ShardSite
from weir.log.wal_store import LogFolderMissing, WalMoved, WalStores
from weir.records.places import BESIDE_THE_DATA, LogPlace, append_place
from weir.shard.replay import Overtaken
from weir.shard.tokens import Tokens
from weir.shard.turns import WaiterGroup
from weir.shard.writer import Belongs, ShardWriter
from weir.store.api import RootMissing
from weir.types import Epoch, Position

logger = logging.getLogger("weir.shard")

T = TypeVar("T")

UNKNOWN_ENTRIES: Final = 1 << 32
"""More entries than a log can have got since the last manifest that counted them."""

Wanted = Callable[[LogPlace], str | None]
"""The WAL store where the log should be, given where it is; None: beside the data."""


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
    only_left: bool = False,
) -> ShardWriter:
    """Open a writer whose log is at `wanted(recorded)`; `only_left` as in `claim_shard`.

    Raises what `ShardWriter.open` raises, `WalStoreMismatch` (the store is another table's, or not
    the recorded one) and `MissingEntry` (the recorded store lost rows that exist nowhere else).
    Costs two requests more than `ShardWriter.open`; a move opens the shard twice, unless it was
    never opened before.
    """

    def open_once(manifests: Manifests) -> ShardWriter:
        site, state = _site(
            stores, manifests, wanted, schema, lake=lake, config=config, only_left=only_left
        )
        return ShardWriter.open(
            site,
            schema=schema,
            lake=lake,
            config=config,
            belongs=belongs,
            crowd=crowd,
            known=state,
            only_left=only_left,
        )

    return _until_it_stays(stores, shard, open_once)


def move_log(
    stores: WalStores,
    shard: UUID,
    wanted: Wanted,
    *,
    schema: TableSchema,
    lake: Lake,
    config: WriterConfig,
    accept_loss: bool = False,
) -> ShardSite:
    """Return the shard with its log at `wanted(recorded)`, moved there if it was elsewhere (S-3).

    A move fences every writer of the shard and flushes its log; if the log is there already, no
    writer is disturbed. `accept_loss`: a log that cannot be reached is given up, with the rows that
    may be in it and nowhere else. Raises what `open_writer` raises.
    """

    def move_once(manifests: Manifests) -> ShardSite:
        site, _ = _site(
            stores, manifests, wanted, schema, lake=lake, config=config, accept_loss=accept_loss
        )
        return site

    return _until_it_stays(stores, shard, move_once)


def _until_it_stays(stores: WalStores, shard: UUID, act: Callable[[Manifests], T]) -> T:
    """The result of `act`, begun again when the log was moved, folded or flushed meanwhile."""
    table_site = stores.table_site(shard)
    manifests = Manifests(table_site)
    for _ in stores.env.attempts():
        try:
            return act(manifests)
        except (WalMoved, Overtaken, RootMissing, FenceTooLate) as moved:
            logger.info("shard.open.again %s reason=%s", table_site.label, moved)
            stores.forget()
    raise CommitConflict(
        f"shard {shard} of {stores.store.uri}: its log was moved or folded again and again"
        " while the shard was being opened. Several processes open it with different wal_uri, move"
        " it to different places, or compact it in a loop; stop all but one and try again"
    )


@dataclass(frozen=True)
class _Lost:
    """A log that cannot be reached, where its writers want it from now on, and why."""

    place: LogPlace
    target: str | None
    error: Exception


def _site(
    stores: WalStores,
    manifests: Manifests,
    wanted: Wanted,
    schema: TableSchema,
    lake: Lake,
    config: WriterConfig,
    *,
    accept_loss: bool = False,
    only_left: bool = False,
) -> tuple[ShardSite, State | None]:
    """The shard with its log where it is wanted, and what was read of it, unless it has changed."""
    shard = manifests.site.shard
    state = current, floors = manifests.latest_with_floors()
    try:
        place = stores.place(shard, current, floors)
    except WalStoreMismatch as hidden:
        if not accept_loss or current is None:
            raise
        place = stores.marked(shard, floors)
        lost = _Lost(place, wanted(place), hidden)
        return _replace(stores, manifests, current, floors, lost, accept_loss=True), None
    target = wanted(place)
    try:
        site = stores.site_at(shard, place)
    except (WalStoreMismatch, StoreError) as error:
        assert current is not None, "S-3: a log without a manifest is beside the data"
        lost = _Lost(place, target, error)
        return _replace(stores, manifests, current, floors, lost, accept_loss=accept_loss), None
    following = place if target == place.uri else _next(stores, place, target)
    if following.uri == place.uri:
        if current is not None:
            # A move died before it did so.
            mark_place(manifests, current, floors)  # guard: X-1 test_wal_store
        return site, state
    if current is not None and current.writer_epoch == UNCLAIMED:  # guard: F-1
        try:
            return _switch(stores, manifests, place, following, UNCLAIMED), None
        except FencedError as claimed:
            raise WalMoved(f"{site}: another process opened it first: {claimed}") from claimed
    # This writer trusts its ownership no longer than the caller's own writer may (G-7b).
    flushing = replace(config, enable_memtable=True, index_configs=())
    with ShardWriter.open(
        site, schema=schema, lake=lake, config=flushing, only_left=only_left
    ) as old:
        stores.env.failpoint("move.claimed")
        flushed = old.flush()
        # P-6: while the log can still be read at its old place.
        Tokens(site).recover(None, epoch=old.epoch, through=flushed.replay_after)
        stores.env.failpoint("move.flushed")
        return _switch(stores, Manifests(site), place, following, old.epoch), None


def _replace(
    stores: WalStores,
    manifests: Manifests,
    current: ShardManifest,
    floors: FloorValues,
    lost: _Lost,
    *,
    accept_loss: bool,
) -> ShardSite:
    """Continue without a log that cannot be reached, if no row was left in it (S-2), or if an
    operator gives up what was."""
    place, is_gone = lost.place, isinstance(lost.error, LogFolderMissing)
    if lost.target == place.uri and not is_gone and not accept_loss:
        raise lost.error  # unreachable now, or another table's
    is_whole = floors.is_closed(current)
    if not is_whole and not accept_loss:  # guard: S-2 never test_wal_store
        raise _not_closed(manifests, current, lost)
    # F-2: how many positions a lost log has used is not known, unless it was closed.
    used = floors.highest_used(current)
    through = current.replay_after if is_whole else Position(used + UNKNOWN_ENTRIES)
    shard, label = manifests.site.shard, manifests.site.label
    following = structs.replace(_next(stores, place, lost.target), after=int(through))
    made = append_place(stores.store, shard, following, stores.env)
    try:
        replaced = manifests.replace_log(current, made.seq, through)
    except CommitConflict as taken:
        raise WalMoved(f"{manifests.site}: another process opened it first: {taken}") from taken
    stores.env.failpoint("move.replaced")
    # A native program may be the next to write: the mark must not name the lost place.
    mark_place(manifests, replaced, floors)  # guard: X-1 test_wal_store
    if is_whole:
        logger.warning("wal.lost %s uri=%s: it held no unflushed rows", label, place.root)
    else:
        logger.warning("wal.given_up %s uri=%s: rows in it are lost", label, place.root)
    # To feeds the log looks collected: a feed that has not read all of it gets an error (G-7c).
    # guard: S-7 test_lost_log_feeds
    manifests.floors.raise_to("wal", through)
    return stores.site_at(shard, made)


def _not_closed(manifests: Manifests, manifest: ShardManifest, lost: _Lost) -> WeirError:
    text = (
        f"{manifests.site}: its log is recorded in {lost.place.root}, which cannot be used"
        f" ({lost.error}), and entries after position {manifest.replay_after} may be in no SSTable:"
        " its last writer did not close, or left rows in the log. Make that store reachable. If it"
        " is gone for good, give up what was only there: table.move_wal(uri, accept_loss=True), or"
        " weir wal move --accept-loss"
    )
    return MissingEntry(text) if lost.target == lost.place.uri else WalStoreMismatch(text)


def _next(stores: WalStores, place: LogPlace, target: str | None) -> LogPlace:
    """The place in that store which follows `place`; elsewhere if the table's logs were moved."""
    made = BESIDE_THE_DATA if target is None else stores.place_for(target)
    return structs.replace(made, follows=place.seq)


def _switch(
    stores: WalStores,
    manifests: Manifests,
    place: LogPlace,
    following: LogPlace,
    epoch: Epoch,
) -> ShardSite:
    """Move the log by one manifest commit. R = L holds, and `epoch` is ours, or not claimed yet."""
    shard = manifests.site.shard
    last = manifests.require().last_seen
    following = structs.replace(following, after=int(last))
    made = append_place(stores.store, shard, following, stores.env)
    stores.env.failpoint("move.placed")

    def change(current: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
        # No epoch stops a mover that sleeps here while nobody has claimed the shard; the number
        # of the place may only rise, as readers and the mark of the place rely on it.
        if current.log_place > place.seq:  # guard: S-3 test_move_wal
            raise WalMoved(f"{manifests.site}: its log was moved to another place; move it again")
        return replace(current, log_place=made.seq), Evidence()

    moved = manifests.update(change, epoch=epoch)
    stores.env.failpoint("move.committed")
    # A native program may be the next to write, if the log is back beside the data.
    mark_place(manifests, moved, manifests.floors.load())  # guard: X-1 test_lancedb
    logger.info("wal.moved %s from=%s to=%s", manifests.site.label, place.root, made.root)
    return stores.site_at(shard, made)
