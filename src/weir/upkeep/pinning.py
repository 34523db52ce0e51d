"""How a checkpoint is made: what it pins, shard by shard, and the handshake that makes it hold.

Keeps
  K-1b the record is written before the floors are read; a checkpoint whose pins collection may
       have passed is dropped and made again
  K-3  scope "all" pins one manifest with the rows of the call and R = T
  K-4  without a writer T is the tip found, never below L or R
  K-6  shards first, base last
  K-9  a writer of this handle is trusted only while its epoch is the manifest's
  P-6  the exactly-once batches known at the cut belong to it
  K-10 the routing is read before the pins and again after them: a cut is of one routing
  P-8  so is the record of statements: a cut holds a statement in all of its shards or in none
  F-2  T is marked as used before anything names it
  W-3  a gap of fences alone is closed by a manifest, without a claim, a row or an SSTable
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from msgspec import structs

from weir.errors import (
    CheckpointNotFound,
    CommitConflict,
    FencedError,
    MissingEntry,
    PartialWrite,
    SealedShard,
    SnapshotExpired,
    StoreError,
    WalOnlyMode,
    WalStoreMismatch,
    WeirError,
    WriterClosed,
)
from weir.format import paths
from weir.format.manifest import ShardManifest, Status
from weir.log.floors import FloorValues
from weir.log.site import ShardSite
from weir.log.tailer import WalTailer
from weir.records.checkpoints import Checkpoint, Scope
from weir.records.cut import ShardCut
from weir.records.holds import Holds
from weir.records.marks import Marks
from weir.routing.core import CONCURRENCY, Core
from weir.routing.finishing import finish, is_quiet_since
from weir.shard.tokens import Tokens, merged
from weir.shard.writer import ShardWriter
from weir.types import Epoch, Position
from weir.upkeep.owner import Owner

logger = logging.getLogger("weir.upkeep")

PENDING_SECONDS: Final = 3600.0
"""How long an unconfirmed checkpoint protects: longer than any checkpoint takes to make."""

Pins = Callable[[], Sequence[ShardCut]]


class PinOvertaken(CommitConflict):
    """Collection passed what a checkpoint was about to pin; the checkpoint is made again."""


def base_marks(core: Core) -> Marks:
    """The marks of the base's floor, of the table of this handle."""
    return Marks(core.store, paths.base_floor_dir(core.record.table_id))


def base_floor(core: Core) -> int:
    """The floor at or below which a base version may be cleaned up any time (K-1b). One listing."""
    return base_marks(core).highest() or 0


def require_above_base_floor(core: Core, version: int) -> int:
    """Return `version`, or raise `CommitConflict` if its place was cleaned up before the commit.

    A process that slept between reading the base and its put finds that place free (G-6).
    """
    floor = base_floor(core)
    if version <= floor:  # guard: G-6 test_base_version_in_a_collected_place
        raise CommitConflict(
            f"{core.uri}: base version {version} was committed at or below the floor {floor}: this"
            " process was suspended too long. The commit does not count, run this again"
        )
    return version


def make(
    core: Core,
    pins: Pins,
    *,
    scope: Scope,
    lifetime: float | None,
    name: str | None = None,
) -> Checkpoint:
    """A confirmed checkpoint of what `pins()` returns; made again when collection was faster."""
    last: Exception | None = None
    for _ in core.env.attempts():
        before = core.lake.open_base().version
        routing = core.refresh().routing_version
        closed = finish(core).closed
        shards = tuple(pins())
        core.env.failpoint("checkpoint.pinned")
        # K-6: after every shard.
        base = core.lake.open_base()
        if base.version != before:  # guard: K-6
            # The new version may hold log rows past our T, which no reader could leave out (K-7).
            last = PinOvertaken(
                f"base version {base.version} was committed while the shards were pinned"
            )
            continue
        if core.refresh().routing_version != routing:  # guard: K-10 simulator:cuts
            # K-10: rows of the new shards may be newer than their pins, or in none of them.
            last = PinOvertaken(f"the table was resharded while it was pinned (routing {routing})")
            continue
        if not is_quiet_since(core, closed):  # guard: P-8 test_statements_over_shards
            last = PinOvertaken("a statement was written while the shards were pinned")
            continue
        draft = Checkpoint(
            id=core.env.new_id(),
            scope=scope,
            created=core.store.now(),
            base_version=base.version,
            routing_version=routing,
            shards=shards,
            name=name,
        )
        try:
            return hold(core, draft, lifetime, partial(_check_floors, core, draft))
        except (PinOvertaken, CheckpointNotFound, MissingEntry, SnapshotExpired) as passed:
            logger.info("checkpoint.again table=%s reason=%s", core.uri, passed)
            last = passed
    raise CommitConflict(
        f"{core.uri}: no checkpoint was made, because the table changed during each attempt"
        f" ({last}); try again"
    ) from last


def hold(
    core: Core,
    draft: Checkpoint,
    lifetime: float | None,
    check: Callable[[], None],
) -> Checkpoint:
    """Announce, protect the base, `check` the pins, confirm; on failure leave nothing behind."""
    records = Holds(core.store)
    pending = records.announce(draft, pending_until=draft.created + PENDING_SECONDS)
    core.env.failpoint("checkpoint.announced")
    try:
        # The record comes before the tag, so that an unneeded tag can be found by its name.
        core.lake.protect_version(pending.base_tag, pending.base_version)
        core.env.failpoint("checkpoint.tagged")
        core.lake.check_version(pending.base_version)
        check()
        core.env.failpoint("checkpoint.checked")
        expires = None if lifetime is None else draft.created + lifetime
        confirmed = records.confirm(pending, expires=expires)
    except (CommitConflict, CheckpointNotFound, MissingEntry):
        drop(core, pending)
        raise
    core.env.failpoint("checkpoint.confirmed")
    return confirmed


def drop(core: Core, checkpoint: Checkpoint) -> bool:
    """Delete a checkpoint, its tag and records; False if it changed since it was read (G-2)."""
    records = Holds(core.store)
    if not records.end(checkpoint):
        return False
    core.lake.release_version(checkpoint.base_tag)
    records.erase(checkpoint.id)
    return True


def _check_floors(core: Core, draft: Checkpoint) -> None:
    """K-1b: once the record is written, no floor may have reached what it names.

    Not for a pin that is derived from another pin: floors do pass what is pinned (K-1).
    """
    if base_floor(core) >= draft.base_version:  # guard: K-1b test_base_version_in_a_collected_place
        raise PinOvertaken(f"base version {draft.base_version} is at or below the base floor")
    check_shard_floors(core, draft)


def check_shard_floors(core: Core, draft: Checkpoint) -> None:
    """The same for its shards alone."""

    def check(pin: ShardCut) -> None:
        floors = core.log(pin.shard).floors()
        if pin.manifest_version <= floors.manifest or pin.replay_after < floors.wal:
            raise PinOvertaken(
                f"{core.log(pin.shard)}: manifest {pin.manifest_version} (R={pin.replay_after})"
                f" is below the manifest floor {floors.manifest} or the log floor {floors.wal}"
            )

    core.env.threads.map(check, list(draft.shards), workers=CONCURRENCY)


# -- the pins of one call ------------------------------------------------------------------------


def durable_pins(core: Core) -> list[ShardCut]:
    """Every shard as it stands: SSTables, and the log to the last acknowledged row (K-2, K-4)."""
    return _pins(core, _durable_pin)


def closed_pins(core: Core) -> list[ShardCut]:
    """Every shard flushed, R = T, through this handle's own writers where it has any (K-3).

    A shard that another process writes to is claimed, and its writer fenced, if its gap holds rows.
    """
    return _pins(core, _closed_pin)


def _pins(core: Core, pin: Callable[[Core, UUID], ShardCut | None]) -> list[ShardCut]:
    failures: dict[UUID, WeirError] = {}

    def pin_shard(shard: UUID) -> ShardCut | None:
        if failures:
            return None
        try:
            return pin(core, shard)
        except WeirError as error:
            failures[shard] = error
            return None

    found = core.env.threads.map(pin_shard, core.shard_ids(), workers=CONCURRENCY)
    if any(error.unacknowledged for error in failures.values()) and len(failures) > 1:
        # F-16: each has rows of this handle's writer that nobody reports again.
        texts = "; ".join(map(str, failures.values()))
        count = f"{len(failures)} shards could not be pinned"
        raise PartialWrite(f"{core.uri}: {count}: {texts}", failures=failures)
    for error in failures.values():
        raise error
    return [p for p in found if p is not None]


def _durable_pin(core: Core, shard: UUID) -> ShardCut | None:
    manifests = core.log(shard).manifests
    for _ in core.env.attempts():
        manifest, floors = manifests.latest_with_floors()
        if manifest is None:
            return None
        # P-6: read after R, up to which tokens are recorded, and before T, which covers them all.
        tokens = _tokens(core, manifest, floors)
        writer = core.live_writer(shard)
        acknowledged = writer.wal_stats().durable_position if writer is not None else None
        if writer is None or acknowledged is None or writer.epoch != manifest.writer_epoch:
            # K-9: our writer knows nothing of a shard that another writer has claimed.
            try:
                tip = core.log(manifest.shard_id).end(manifest, floors)[1]
            except SnapshotExpired:
                continue  # the log moved while we read it (S-3)
        else:
            tip = Position(acknowledged)
        latest = manifests.require()
        # guard: K-4
        if latest.writer_epoch != manifest.writer_epoch:
            continue  # entries up to the tip may be of an epoch the pin does not know (C-7)
        if tokens and latest.current_generation != manifest.current_generation:
            continue  # a token may be of SSTables that the pin does not name (P-6)
        through = Position(max(tip, manifest.last_seen))
        if through > manifest.last_seen:  # guard: F-2
            manifests.floors.raise_to("used", through)
        return _pin(manifest, through, tokens)
    raise CommitConflict(f"{core.log(shard)}: it changed during each attempt to pin it; try again")


def _closed_pin(core: Core, shard: UUID) -> ShardCut | None:
    manifests = core.log(shard).manifests
    for _ in core.env.attempts():
        before, floors = manifests.latest_with_floors()
        known = {} if before is None else _tokens(core, before, floors)
        manifest = close_gap(core, shard)
        if before is None or manifest is None:
            return None
        if _tokens(core, manifest, floors) != known:  # guard: P-6
            # P-6: batches arrived during the flush, before the cut or after it.
            if manifest.writer_epoch != before.writer_epoch:
                continue
            log_ = Tokens(core.site(manifest, floors))
            known = merged(known, log_.in_log(before.replay_after, manifest.replay_after))
            if manifests.floors.load().wal > before.replay_after:
                continue  # entries may have been collected before they were read
        return _pin(manifest, manifest.replay_after, known)
    raise CommitConflict(f"{core.log(shard)}: it changed during each attempt to pin it; try again")


def _pin(manifest: ShardManifest, through: Position, tokens: Mapping[str, int]) -> ShardCut:
    return structs.replace(ShardCut.of(manifest, through), tokens=tuple(sorted(tokens.items())))


def _tokens(core: Core, manifest: ShardManifest, floors: FloorValues) -> dict[str, int]:
    """The recorded exactly-once batches of that shard; a lost log contributes none."""
    try:
        site = core.site(manifest, floors)
    except (WalStoreMismatch, StoreError):
        site = core.table_site(manifest.shard_id)
    return Tokens(site).at(manifest)


def _cut(core: Core, writer: ShardWriter) -> ShardManifest | None:
    """K-3: the writer's own cut, or a later version that differs in nothing it wrote.

    None when it is closed, has no MemTable to flush, or when another writer has claimed the shard,
    which it may not know yet (K-9). `FencedError` when rows it accepted before the call are lost
    with it. A writer that has already ended reports that here once, as in any flush (F-16); of a
    sealed shard the heirs take its rows (C-11).
    """
    manifests = core.log(writer.site.shard).manifests
    sealed = manifests.latest()
    if sealed is not None and sealed.status is Status.SEALED:
        return None
    try:
        cut = writer.cut()  # a WAL-only one too: what it took is durable, or told
    except (FencedError, WriterClosed) as over:
        if over.unacknowledged:
            raise
        return None
    except WalOnlyMode:
        return None
    # After the flush: an idle writer flushes nothing, and so does not learn that it was fenced.
    latest = manifests.require()
    if latest.writer_epoch != writer.epoch:  # guard: K-9
        return None
    return latest if latest.current_generation == cut.current_generation else cut


def close_gap(core: Core, shard: UUID) -> ShardManifest | None:
    """A manifest of the shard with R = tip, at the lowest cost (W-2, W-3).

    A writer of this handle flushes itself (K-3). Otherwise a closed gap costs nothing. A gap of
    fences costs one manifest in the current epoch, which fences nobody. A gap with rows costs a
    claim, a replay and a flush: `WalOnlyMode` when that would end a writer of this handle.
    """
    for _ in core.env.attempts():
        writer = core.registered_writers.get(shard)
        cut = None if writer is None else _cut(core, writer)
        if cut is not None:
            return cut
        manifests = core.log(shard).manifests
        manifest, floors = manifests.latest_with_floors()
        if manifest is None:
            return None
        try:
            site, tip = core.log(manifest.shard_id).end(manifest, floors)
        except SnapshotExpired:
            continue  # the log moved while we read it (S-3)
        if tip <= manifest.replay_after:
            return manifest
        try:
            holds_rows = _holds_rows(site, manifest, tip)
        except (MissingEntry, SnapshotExpired):
            # Flushed and collected, or moved to another store, since we read the manifest (S-3).
            if manifests.latest_with_floors() == (manifest, floors):
                raise
            continue
        if holds_rows:  # guard: W-3 always
            assert manifest.status is not Status.SEALED, "C-11: a sealed shard has no gap"
            _require_no_wal_only_writer(core, manifest)
            try:
                flushed = Owner(core, shard).flush_unowned()
            except (FencedError, SealedShard):  # guard: K-10
                continue  # claimed in between, or resharded: its gap is closed now (C-11)
            if flushed is None:
                continue  # this handle has opened it since we looked
            return flushed
        try:
            with core.opening(shard):  # a claim whose fence R has passed is given up (F-4)
                return manifests.advance_replay_point(tip, Epoch(manifest.writer_epoch))
        except FencedError:
            continue  # claimed in between: read again
    raise CommitConflict(f"{core.log(shard)}: it changed during each attempt to pin it; try again")


def _require_no_wal_only_writer(core: Core, manifest: ShardManifest) -> None:
    writer = core.live_writer(manifest.shard_id)
    if writer is None or writer.config.enable_memtable or writer.epoch != manifest.writer_epoch:
        return
    raise WalOnlyMode(
        f"{writer.site}: a checkpoint of scope 'all' flushes, and this writer is WAL-only; use"
        " scope='durable', or close it first"
    )


def _holds_rows(site: ShardSite, manifest: ShardManifest, tip: Position) -> bool:
    entries = WalTailer(site).read_range(manifest.replay_after, tip)
    return any(entry.batches for entry in entries)
