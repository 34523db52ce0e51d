"""Opens a shard for writing (a write): probe, claim, fence, validate; replay comes next.

Keeps
  F-1  both logs are fenced: the epoch in the manifest and a fence entry in the WAL
  F-2  no position is ever used twice, whatever the store still holds
  F-4  the fence is validated after it is written, never only before
  F-5  a collision at open means 'read the manifest'; only a newer epoch means fenced
  F-6  replay ends at our fence, not at a second probe of the tip
  F-7  a log that is ahead of its manifest is damaged: nothing is claimed and written on top of it
  S-3  after the claim the log is where we fenced it, and nobody can move it without being seen
The tip is probed before the epoch is claimed: in the other order a slower, older claimant could
put its fence above ours.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

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
from weir.format.wal_header import HEADER_BYTES, read_header
from weir.log.floors import FloorValues
from weir.log.manifests import Manifests
from weir.log.ownership import LONG_AGO, ClockReading, proof_lifetime
from weir.log.site import ShardSite
from weir.log.stamp import check_identity
from weir.log.tip import find_tip
from weir.log.wal_store import WalMoved, confirm_location
from weir.store.api import LostAnswer, ObjectExists, ObjectMissing
from weir.types import Epoch, Position

logger = logging.getLogger("weir.log")

CLAIM_ATTEMPTS = 32
FENCE_ATTEMPTS = 10_000
"""An old writer adds at most one entry per round of ours; only a runaway log gets this far."""


@dataclass(frozen=True)
class Claim:
    """A shard that is ours: what to replay, and where the next entry goes."""

    manifest: ShardManifest
    fence: Position
    proof: ClockReading = LONG_AGO
    """When the manifest read that proved our epoch began (G-7b)."""
    fence_ttl: float = 0.0
    """Seconds for which that proof is trusted."""

    @property
    def epoch(self) -> Epoch:
        """The epoch this claim holds."""
        return Epoch(self.manifest.writer_epoch)


def claim_shard(
    site: ShardSite,
    manifests: Manifests | None = None,
    *,
    fence_ttl: Duration | None = None,
    announces: bool = False,
) -> Claim:
    """Become the only writer of the shard; every older writer is fenced when this returns.

    Raises `SealedShard`, `FencedError` (an even newer writer claimed the shard),
    `UnknownOutcome` (the store never answered), and `InvalidInput` for a `fence_ttl` above the
    table's, with nothing claimed. `announces` promises that no entry will be tagged above those in
    the log before the manifest says so (F-14). Seventeen requests in nine round trips, six of
    them probes for the end of the log.
    """
    lifetime = proof_lifetime(site, fence_ttl)
    manifests = manifests or Manifests(site)
    for _ in range(CLAIM_ATTEMPTS):
        current, floors = manifests.latest_with_floors()
        position = _next_position(site, current, floors)
        if _is_outdated(site, manifests, current, Position(position - 1)):
            continue  # manifest and tip are of one look, or the fence would go above a newer one
        site.env.failpoint("claim.probed")
        try:
            claimed = manifests.claim(current, announces=announces)
        except CommitConflict as conflict:
            logger.info("claim.again shard=%s reason=%s", site.shard, conflict)
            continue
        site.env.failpoint("claim.claimed")
        claim = _fence(site, manifests, claimed, position, floors)
        return replace(claim, fence_ttl=lifetime)
    raise CommitConflict(
        f"{site}: lost {CLAIM_ATTEMPTS} races for the epoch; several processes are opening the "
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
    path = paths.wal_path(site.shard, tip)
    try:
        header = read_header(site.wal.get_range(path, 0, HEADER_BYTES))
    except ObjectMissing:
        return False  # collected since, or only marked as used
    if header is None or header.epoch <= current.writer_epoch:
        return False
    current = manifests.require()
    if header.epoch <= current.writer_epoch:
        return True
    raise CorruptEntry(
        f"{site}: the entry at position {tip} has epoch {header.epoch}, but manifest"
        f" {current.version} is at epoch {current.writer_epoch} (F-7). The manifest was rolled"
        f" back, or the log belongs to another table. Check {site.wal.uri}/{path}; nothing was"
        " written"
    )


def _fence(
    site: ShardSite,
    manifests: Manifests,
    claimed: ShardManifest,
    position: Position,
    floors: FloorValues,
) -> Claim:
    epoch = Epoch(claimed.writer_epoch)
    # Settle before fencing: a reader that does not know of a move yet would mistake a fence in the
    # store that the log has left for the tip, and mark its position as used (S-3, F-6).
    confirm_location(site, epoch, floors)
    site.env.failpoint("claim.settled")
    assert position > claimed.replay_after, "F-2: the claim is not of the manifest that was probed"
    for _ in range(FENCE_ATTEMPTS):
        entry = encode_fence(epoch, entry_id=str(site.env.new_id()))
        try:
            stored = site.wal.put_if_absent(paths.wal_path(site.shard, position), entry)
            break
        except ObjectExists:
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
            f"{site}: no free position for the fence after {FENCE_ATTEMPTS} tries; open the shard"
            " again"
        )
    check_identity(site)  # S-7: a fence in the folder where its disk was fences nobody
    site.env.failpoint("claim.fenced")
    began = ClockReading.now(site.env.clock, stored)
    current, floors = manifests.latest_with_floors()
    _validate(site, manifests, current or claimed, floors, epoch, position)
    if site.wal is not site.store:
        # Mark it in the table's own store: this shuts what older writers opened, and a wiped log
        # must not look like one without a gap (S-2, S-7).
        manifests.floors.raise_to("shut", position)
    logger.info("shard.claimed shard=%s epoch=%d fence=%d", site.shard, epoch, position)
    return Claim(manifest=current or claimed, fence=position, proof=began)


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
        raise FencedError(
            f"{site}: the fence at position {position} came too late. The log is already flushed"
            f" through {current.replay_after} and collected through {floors.wal}; open the shard"
            " again",
            epoch=epoch,
            fenced_by=current.writer_epoch,
            position=position,
        )
