"""Opens a shard for writing (a write): probe, claim, fence, validate; replay comes next.

Keeps
  F-1  both logs are fenced: the epoch in the manifest and a fence entry in the WAL
  F-2  no position is ever used twice, whatever the store still holds
  F-4  the fence is validated after it is written, never only before
  F-5  a collision at open means 'read the manifest'; only a newer epoch means fenced
  F-6  replay ends at our fence, not at a second probe of the tip
  F-7  a log that is ahead of its manifest is damaged: nothing is claimed and written on top of it
  S-3  a claim is a commit on top of the manifest that says where the log is: the fence goes there,
       and nobody can move the log without that version
  X-1  before the first entry at a place, a mark says that the log is there
The tip is probed before the epoch is claimed: in the other order a slower, older claimant could
put its fence above ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from weir.durations import Duration
from weir.errors import (
    CommitConflict,
    CorruptEntry,
    FencedError,
    SnapshotExpired,
    UnknownOutcome,
)
from weir.format import paths
from weir.format.manifest import ShardManifest
from weir.format.wal_entry import encode_fence
from weir.log.floors import FloorValues
from weir.log.headers import header_at
from weir.log.manifests import Manifests, State
from weir.log.ownership import Claim, ClockReading, proof_lifetime
from weir.log.site import ShardSite
from weir.log.tip import find_tip
from weir.log.wal_store import WalMoved
from weir.store.api import LostAnswer, ObjectExists, ObjectMissing
from weir.types import Epoch, Position

logger = logging.getLogger("weir.log")

_POSITIONS_MAX = 10_000
"""How far a fence is carried on. An old writer adds at most one entry per position; only a runaway
log gets this far."""


class NotLeft(CommitConflict):
    """The shard has an owner, which may live; take another one."""


class FenceTooLate(FencedError):
    """Others flushed the log past the fence of a claim, in its own epoch; open the shard again."""


def claim_shard(
    site: ShardSite,
    manifests: Manifests | None = None,
    *,
    fence_ttl: Duration | None = None,
    wal_only: bool = False,
    known: State | None = None,
    only_left: bool = False,
    ask: Callable[[], object] = lambda: None,
) -> Claim:
    """Become the only writer of the shard; every older writer is fenced when this returns.

    Raises `SealedShard`, `FencedError` (an even newer writer claimed the shard),
    `UnknownOutcome` (the store never answered), and `InvalidInput` for a `fence_ttl` above the
    table's, with nothing claimed. `wal_only` says that the owner will keep no rows in memory (L-6).
    `only_left`: only if nobody owns the shard, which fences nobody; otherwise `NotLeft`, with
    nothing claimed. `known`: what the caller has just read. `ask` may raise: it is called after the
    read of the manifest on top of which the claim is made. Seventeen requests in nine round trips,
    six of them probes for the end of the log; two less with `known`.
    """
    lifetime = proof_lifetime(site, fence_ttl)
    manifests = manifests or Manifests(site)
    for _ in site.env.attempts(32):
        current, floors = known or manifests.latest_with_floors()
        known = None
        # The claim is a commit on top of this very version: of two claimants one starts over here.
        # guard: C-18 test_per_writer
        if only_left and current is not None and not current.is_left:
            raise NotLeft(
                f"{site}: the writer of epoch {current.writer_epoch} has not left the shard; it was"
                " not claimed"
            )
        if current is not None and (current.log_place or floors.place) != site.place:
            # guard: S-3 simulator:moves
            raise WalMoved(f"{site}: its log was moved to another place; open the shard again")
        position = _next_position(site, current, floors)
        if _is_outdated(site, manifests, current, Position(position - 1)):
            # guard: F-7 test_claim_planned_on_an_older_manifest
            continue  # manifest and tip are of one look, or the fence would go above a newer one
        ask()
        site.env.failpoint("claim.probed")
        try:
            claimed = manifests.claim(current, wal_only=wal_only)
        except CommitConflict as conflict:
            logger.info("claim.again %s reason=%s", site.label, conflict)
            continue
        site.env.failpoint("claim.claimed")
        claim = _fence(site, manifests, claimed, position, floors)
        return replace(claim, fence_ttl=lifetime)
    raise CommitConflict(
        f"{site}: lost every race for the epoch; several processes are opening the "
        "same shard "
        "in a loop, stop all but one"
    )


def _next_position(
    site: ShardSite, manifest: ShardManifest | None, floors: FloorValues
) -> Position:
    """F-2: above the tip found, and above everything any record says was used."""
    try:
        return Position(find_tip(site, Position(floors.highest_used(manifest))) + 1)
    except SnapshotExpired as moved:
        raise WalMoved(str(moved)) from moved


def _is_outdated(
    site: ShardSite, manifests: Manifests, current: ShardManifest | None, tip: Position
) -> bool:
    """F-7: entries of an epoch below that of the last one would be acknowledged and never read.

    An entry follows the claim of its epoch, so a newer epoch means that the manifest and the tip
    must be read again. One request, and only when entries are above R.
    """
    if current is None or tip <= current.replay_after:
        return False
    try:
        header = header_at(site, tip)
    except ObjectMissing:
        return False  # collected since, or only marked as used
    # Whoever reads the rows of a damaged entry reports it; a restore to before it must be able to
    # claim the shard.
    if header is None or header.epoch <= current.writer_epoch:  # guard: F-7 always
        return False
    current = manifests.require()
    if header.epoch <= current.writer_epoch:
        return True
    raise CorruptEntry(
        f"{site}: the entry at position {tip} has epoch {header.epoch}, but manifest"
        f" {current.version} is at epoch {current.writer_epoch}. The manifest was rolled"
        " back, or the log belongs to another table. Check"
        f" {site.wal.uri}/{paths.wal_path(site.shard, tip)}; nothing was written"
    )


def _fence(
    site: ShardSite,
    manifests: Manifests,
    claimed: ShardManifest,
    position: Position,
    floors: FloorValues,
) -> Claim:
    epoch = Epoch(claimed.writer_epoch)
    mark_place(manifests, claimed, floors)  # guard: X-1 test_wal_store
    assert position > claimed.replay_after, "F-2: the claim is not of the manifest that was probed"
    for _ in range(_POSITIONS_MAX):
        entry = encode_fence(epoch, entry_id=str(site.env.new_id()))
        try:
            stored = site.wal.put_if_absent(paths.wal_path(site.shard, position), entry)
            break
        except ObjectExists:
            # guard: F-5 simulator:fencing
            manifests.require_owner(manifests.require(), epoch, position)
            position = Position(position + 1)
        except LostAnswer as lost:
            raise UnknownOutcome(
                f"{site}: the store never answered whether the fence at position {position} was "
                "written; "
                "nothing was deleted, open the shard again"
            ) from lost
    else:
        raise CommitConflict(
            f"{site}: {_POSITIONS_MAX} positions in a row were taken when the fence was put there;"
            " open the shard again"
        )
    site.env.failpoint("claim.fenced")
    began = ClockReading.now(site.env.clock, stored)
    current, floors = manifests.latest_with_floors()
    _validate(site, manifests, current or claimed, floors, epoch, position)  # guard: F-4 simulator
    logger.info("shard.claimed %s epoch=%d fence=%d", site.label, epoch, position)
    return Claim(
        manifest=current or claimed, fence=position, proof=began, statement=floors.statement
    )


def mark_place(manifests: Manifests, manifest: ShardManifest, floors: FloorValues) -> None:
    """X-1: say beside the floors where the log is, before the first entry there: a program that
    drops the field of the manifest must not hide it. No request once it was said."""
    if manifest.log_place > floors.place:
        manifests.floors.raise_to("place", manifest.log_place)


def _validate(
    site: ShardSite,
    manifests: Manifests,
    current: ShardManifest,
    floors: FloorValues,
    epoch: Epoch,
    position: Position,
) -> None:
    """F-4: meanwhile others may have flushed past us and collected what we would have hit."""
    manifests.require_owner(current, epoch, position)
    if position <= max(current.replay_after, floors.wal):
        raise FenceTooLate(
            f"{site}: the fence at position {position} came too late. The log is already flushed"
            f" through {current.replay_after} and collected through {floors.wal}; open the shard"
            " again",
            epoch=epoch,
            fenced_by=current.writer_epoch,
            position=position,
        )
