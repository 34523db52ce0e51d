"""Rolls a table back to a checkpoint.

Steps, each idempotent; a second run after a crash, with the same checkpoint, starts over and ends
the same:
  1  keep compactors away
  2  checkpoint the current state (scope "durable"), as the way back
  3  announce the restore in the lineage, then make the checkpoint's version of the base the latest;
     if that lands after others have taken over, announce it again (L-8)
  4  for each shard: claim it, which fences every writer; if rows were acknowledged since step 2,
     make the way back again with them; then publish in one manifest the checkpoint's SSTables, its
     log rows as one more, and R = L over everything discarded
  5  record that it is done, and what was rolled back

The SSTables get new generations, above all ever used, so that no mark of an old compaction makes
them look folded. A read that begins during a restore may see some shards before it and others after
it; verbs that would make such a mixture final wait (`weir.upkeep.unfinished`). Exactly-once tokens
and the log itself are not rolled back: the change feed still shows the discarded entries, and has
none for the restore.

Writers go on after a restore that died. So every attempt has a way back of its own, which holds
what the earlier attempt's way back holds and the rows written since (K-11): the base from before
the rollback, shards that were not rolled back as they are now, and of the others what was
discarded, under what was written since. One generation number is left unused below the SSTables
that a restore names; that is how a later attempt recognizes a shard that was rolled back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from uuid import UUID

import pyarrow as pa
from msgspec import structs

from weir.durations import seconds
from weir.errors import (
    CheckpointNotFound,
    CommitConflict,
    InvalidInput,
    MissingEntry,
    NotAWeirTable,
    SnapshotExpired,
)
from weir.format import paths
from weir.format.manifest import ShardManifest, SsTable, Status
from weir.format.schema import TableSchema, align_batch
from weir.lake.api import Base
from weir.lake.base.versions import RESTORE
from weir.log.rules import Evidence
from weir.read.cache import ReadCache, live_entries
from weir.read.positions import shown_through
from weir.records.checkpoints import Checkpoint, Ref
from weir.records.cut import ShardCut
from weir.records.holds import Holds
from weir.records.lineage import Lineage, Restored, append_lineage, read_lineage
from weir.routing.core import Core
from weir.routing.finishing import finish
from weir.types import Epoch, Generation, Position
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep import pinning
from weir.upkeep.compact.claim import Claim
from weir.upkeep.defaults import UNDO_TTL
from weir.upkeep.exclusive import without_compaction
from weir.upkeep.owner import Owner
from weir.upkeep.pinning import (
    PinOvertaken,
    check_shard_floors,
    durable_pins,
    make,
)
from weir.upkeep.unfinished import require_settled

logger = logging.getLogger("weir.upkeep")

UNDO_NAME: Final = "before-restore"
TABLE_BYTES: Final = 256 << 20
"""About the size of the SSTables that the log rows of a checkpoint become: a MemTable's."""


@dataclass(frozen=True)
class RestoreReport:
    """What a restore did."""

    checkpoint: UUID
    base_version: int
    """The new base version, equal to the checkpoint's."""
    undo: Checkpoint
    """The table as it was before, kept for seven days: restore or clone it to go back. After a
    restore that was interrupted it also holds the rows written until this attempt."""
    shards: dict[UUID, tuple[int, int]]
    """For each shard the positions `(after, through]` whose entries no longer count."""


def restore(core: Core, checkpoint: Ref) -> RestoreReport:
    """See `Table.restore`."""
    target = checkpoints.find(core, checkpoint)
    _require_possible(core, target)
    _require_tables(core, target)  # guard: G-13 test_inside_the_table
    with without_compaction(core) as claim:
        core.env.failpoint("restore.held")
        lineage, undo = _announce(core, claim, target)
        core.env.failpoint("restore.announced")
        # P-8: a statement that is proposed from now on sees the announcement, and gives up.
        finish(core)  # guard: P-8 test_statements_over_shards
        claim.forget_progress()
        version = core.lake.restore(target.base_version, str(target.id))
        lineage = _announce_if_late(core, claim, lineage)
        # A rollback that landed late has undone others' work on the base: the shards must follow,
        # or the table would mix both states. A process that lost its claim after the rollback must
        # leave the shards alone: they belong to the new holder.
        require = partial(claim.require_since, version)
        core.env.failpoint("restore.base")
        pins = {pin.shard: pin for pin in target.shards}
        # Read the pinned version, which is equal: nothing protects the new one (G-12).
        base = core.lake.open_base(target.base_version)
        discarded: dict[UUID, tuple[int, int]] = {}
        for shard in dict.fromkeys([*pins, *core.shard_ids()]):
            taken = _take_over(core, shard)
            if taken is None:
                continue
            if taken.has_entries_after(core, undo):
                lineage, undo = _extend_way_back(core, lineage, undo, shard)
            pin, folded = pins.get(shard), base.compacted.get(shard, 0)
            discarded[shard] = _restore_shard(core, taken, pin, base.schema, folded, require)
            core.env.failpoint(f"restore.shard {shard}")
        claim.require()
    done = Restored(target.id, undo.id, core.env.clock.wall(), discarded)
    append_lineage(
        core.store, structs.replace(lineage, state="ready", restored=done), core.env.new_id()
    )
    core.env.failpoint("restore.done")
    logger.info("table.restored uri=%s checkpoint=%s", core.uri, target.id)
    return RestoreReport(target.id, version, undo, discarded)


def _announce_if_late(core: Core, claim: Claim, lineage: Lineage) -> Lineage:
    """The lineage after the rollback, which is announced again if the claim was lost before it.

    Another restore may have ended since the announcement, or be about to end: its "ready" would
    hide that the base was taken back after it.
    """
    try:
        claim.require()
        return lineage
    except CommitConflict:
        logger.warning("restore.late uri=%s base_version=%d", core.uri, core.base().version)
    for _ in core.env.attempts():
        latest = read_lineage(core.store) or lineage
        if latest.seq == lineage.seq:  # guard: L-8 always test_two_restores_at_once
            return lineage
        again = structs.replace(latest, state="restoring", restored=lineage.restored)
        with suppress(CommitConflict):
            return append_lineage(core.store, again, core.env.new_id())
    raise CommitConflict(f"{core.uri}: other restores are running; run this again after them")


def _require_tables(core: Core, target: Checkpoint) -> None:
    """Look at the base version, and open every SSTable that the record names: a manifest is going
    to name them (G-13).

    Called before anything is written: a restore that was announced and cannot be run keeps the
    table's other upkeep waiting. A request for the version, a listing and a read for each SSTable.
    """
    core.lake.check_version(target.base_version)  # guard: K-1 test_base_versions
    base = core.lake.open_base(target.base_version)
    for pin in target.shards:
        folded = base.compacted.get(pin.shard, 0)
        for table in pin.sstables:
            if table.generation > folded:
                core.lake.open_sstable(pin.shard, table.path, base.schema)


def _require_possible(core: Core, target: Checkpoint) -> None:
    """Refuse a checkpoint that is gone or of another routing, or to run in the middle of a reshard.

    Whoever was about to end the checkpoint looks again, and keeps it for an announced restore.

    A restore that was announced and has not touched the table is taken back then: it can no longer
    be run. One that has rolled back the base goes on: the reshard has not begun, and waits for it.
    """
    lineage = read_lineage(core.store)
    begun = lineage if lineage is not None and lineage.state == "restoring" else None
    rolled_back = bool(begun and begun.restored and _has_rolled_back(core, begun.restored))
    try:
        if not rolled_back:
            require_settled(core, "restore")
        if target.routing_version != core.refresh().routing_version:
            raise InvalidInput(
                f"{core.uri} was resharded after checkpoint {target.id}; clone the checkpoint to"
                " get the table as it was"
            )
        Holds(core.store).touch(target, core.env)  # guard: K-11
    except (CheckpointNotFound, CommitConflict, InvalidInput):
        if begun is not None and not rolled_back:
            append_lineage(core.store, structs.replace(begun, state="ready"), core.env.new_id())
        raise


def _announce(core: Core, claim: Claim, target: Checkpoint) -> tuple[Lineage, Checkpoint]:
    """Steps 2 and 3, up to the record that announces the restore.

    Lance cannot fence a restore. So it is announced in the chain that also says "ready": of two
    concurrent restores one is refused, and a rollback that lands late leaves a lineage that says
    the table must be restored again.
    """
    lineage = read_lineage(core.store) or Lineage(state="ready")
    undo = _way_back(core, lineage)
    core.env.failpoint("restore.begun")
    claim.require()
    begun = structs.replace(lineage, state="restoring", restored=Restored(target.id, undo.id))
    announced = append_lineage(core.store, begun, core.env.new_id())
    try:
        core.record_number()  # guard: C-16 test_drop
    except NotAWeirTable:  # it was announced in the next table
        append_lineage(core.store, structs.replace(announced, state="ready"), core.env.new_id())
        raise
    _require_possible(core, target)  # a reshard that begins from now on sees the announcement
    return announced, undo


def _has_rolled_back(core: Core, restored: Restored) -> bool:
    """True when that restore, or an unfinished one before it, took the base back; also when the
    history to tell is gone. The way back of each attempt names the base before the first one."""
    undo = Holds(core.store).load(restored.undo)
    if undo is None:
        return True
    try:
        commits = list(core.lake.commits(after=undo.base_version))
        return any(RESTORE in commit.properties for commit in commits)
    except SnapshotExpired:
        return True


# -- the way back --------------------------------------------------------------------------------


def _way_back(core: Core, lineage: Lineage) -> Checkpoint:
    """A checkpoint of every row acknowledged so far, in earlier attempts too (K-11)."""
    lifetime = seconds(UNDO_TTL, name="ttl")
    restored = lineage.restored
    if lineage.state == "restoring" and restored and _has_rolled_back(core, restored):
        earlier = Holds(core.store).load(restored.undo)
        if earlier is not None:
            return _way_back_over(core, earlier, lifetime)
    pins = partial(durable_pins, core)
    return make(core, pins, scope="durable", lifetime=lifetime, name=UNDO_NAME)


def _extend_way_back(
    core: Core, lineage: Lineage, undo: Checkpoint, shard: UUID
) -> tuple[Lineage, Checkpoint]:
    """A way back that also holds what was acknowledged in that shard before it was claimed."""
    more = _way_back_over(core, undo, seconds(UNDO_TTL, name="ttl"), only=shard)
    assert lineage.restored is not None, "L-8: announced before any shard is claimed"
    note = structs.replace(lineage.restored, undo=more.id)
    noted = append_lineage(core.store, structs.replace(lineage, restored=note), core.env.new_id())
    pinning.drop(core, undo)
    return noted, more


def _way_back_over(
    core: Core, earlier: Checkpoint, lifetime: float, *, only: UUID | None = None
) -> Checkpoint:
    """The rows of `earlier` and those written since, to any shard or to `only` that one: its base,
    and its shards with more rows.

    Nothing of weir has changed that base since: whoever would, waits for the restore.
    """
    base = core.lake.open_base(earlier.base_version)
    before = {pin.shard: pin for pin in earlier.shards}
    for _ in core.env.attempts():
        cuts = dict(before)
        for now in durable_pins(core):
            if only in (None, now.shard):
                cuts[now.shard] = _cut_over(core, base, before.get(now.shard), now)
        moment, shards = core.store.now(), tuple(cuts.values())
        draft = structs.replace(earlier, id=core.env.new_id(), created=moment, shards=shards)
        with suppress(PinOvertaken):
            return pinning.hold(core, draft, lifetime, partial(_check_over, core, earlier, draft))
    raise CommitConflict(
        f"{core.uri}: collection overtook the checkpoint of the table before this restore"
        " again and again; try again"
    )


def _check_over(core: Core, earlier: Checkpoint, draft: Checkpoint) -> None:
    """The handshake of K-1b for what is new, and the earlier checkpoint for the rest (K-1)."""
    check_shard_floors(core, draft)
    if Holds(core.store).load(earlier.id) is None:
        raise PinOvertaken(f"checkpoint {earlier.id} was deleted or collected meanwhile")
    _require_tables(core, draft)


def _cut_over(core: Core, base: Base, before: ShardCut | None, now: ShardCut) -> ShardCut:
    """The shard's rows of both moments, whether an attempt rolled it back in between or not.

    `before` may itself name SSTables that no manifest lists: those of an attempt before it.
    """
    if before is None:
        return now
    folded = base.compacted.get(now.shard, 0)
    kept = [table for table in before.sstables if table.generation > folded]
    if _was_rolled_back(before, now) and not before.closed:
        # The rows of its log are newer than its SSTables and older than all that came later. There
        # is one number between them.
        rows = _log_tables(core, before, base.schema, most=None)
        kept += [structs.replace(table, generation=before.current_generation) for table in rows]
    known = {table.path for table in kept}
    since = [t for t in now.sstables if t.path not in known and not _is_named_again(t)]
    return structs.replace(now, sstables=(*kept, *since))


def _was_rolled_back(before: ShardCut, now: ShardCut) -> bool:
    """True when a restore has published the shard since `before`.

    A flush would have used the number that a rollback leaves unused.
    """
    unused = before.current_generation
    flushed = any(table.generation == unused for table in now.sstables)
    return now.current_generation > unused and not flushed


def _is_named_again(table: SsTable) -> bool:
    """True for an SSTable that a restore published: its folder has the name of another number."""
    named = paths.parse_sstable_name(table.path)
    return named is not None and named[1] != table.generation


# -- the shards ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Taken:
    """A shard to which nobody else can write until a writer claims it again."""

    shard: UUID
    epoch: Epoch
    through: Position
    """Its last entry."""
    is_claimed: bool
    """That entry is the fence of this restore; False: the shard is sealed."""

    def has_entries_after(self, core: Core, undo: Checkpoint) -> bool:
        """True when entries were added, or a large batch was published, since that way back was
        made: they may hold rows."""
        pin = next((pin for pin in undo.shards if pin.shard == self.shard), None)
        known = 0 if pin is None else shown_through(core, pin)
        return self.is_claimed and self.through - 1 > known


def _take_over(core: Core, shard: UUID) -> _Taken | None:
    """Fence the writer of the shard; None for a folder without a shard."""
    current = core.log(shard).manifests.latest()
    if current is None:
        return None
    if current.status is Status.SEALED:
        epoch, last = Epoch(current.writer_epoch), Position(current.last_seen)
        return _Taken(shard, epoch, last, is_claimed=False)
    claim = Owner(core, shard).claim()
    return _Taken(shard, claim.epoch, claim.fence, is_claimed=True)


def _restore_shard(
    core: Core,
    taken: _Taken,
    pin: ShardCut | None,
    schema: TableSchema,
    folded: int,
    require: Callable[[], None],
) -> tuple[int, int]:
    """Step 4 for one shard; a shard the checkpoint does not know becomes empty."""
    rows = [] if pin is None or pin.closed else _log_tables(core, pin, schema)
    kept = [] if pin is None else [t for t in pin.sstables if t.generation > folded]

    def change(latest: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
        # After the claim: a process that takes over from now on claims the shard after us.
        require()
        first = latest.current_generation + 1  # the unused number tells later attempts of this
        named = [
            structs.replace(table, generation=Generation(first + i))
            for i, table in enumerate([*kept, *rows])
        ]
        last = Position(max(taken.through, latest.last_seen))
        following = replace(
            latest,
            sstables=tuple(named),
            current_generation=Generation(first + len(named)),
            replay_after=last,  # guard: F-3 simulator:restores
            last_seen=last,
            closed_epoch=taken.epoch,
        )
        return following, Evidence(covered=last, restoring=True)

    committed = core.log(taken.shard).manifests.update(change, epoch=taken.epoch)
    after = pin.wal_through if pin is not None else Position(0)
    return int(after), int(committed.replay_after)


def _log_tables(
    core: Core, pin: ShardCut, schema: TableSchema, *, most: int | None = TABLE_BYTES
) -> list[SsTable]:
    """The rows of the entries `(R, T]` as new SSTables, oldest first; W-4: they are in the log.

    Memory holds one SSTable of about `most` bytes (L-10); None: all rows go into one.
    """
    log = core.log(pin.shard)
    generation = log.manifests.require().current_generation
    made: list[SsTable] = []

    def write(batches: list[pa.RecordBatch]) -> None:
        # The tag makes the folder name unique; the manifest, not the name, says the generation.
        name = paths.sstable_name(generation, f"{core.env.random.getrandbits(32):08x}")
        info = core.lake.write_sstable(pin.shard, name, batches, schema)
        made.append(info.listed_as(generation, name))

    held: list[pa.RecordBatch] = []
    size = 0
    entries = live_entries(
        core.attached.of(ReadCache).entries(log, pin.replay_after, pin.wal_through, pinned=True),
        pin.current_generation,
        keyed=bool(schema.primary_key),
    )
    try:
        for entry in entries:
            held += [align_batch(batch, schema.wal) for batch in entry.batches]
            size += entry.size
            if most is not None and size >= most:
                write(held)
                held, size = [], 0
    except MissingEntry as missing:
        raise MissingEntry(
            f"{log}: the checkpoint needs log entries {pin.replay_after + 1} to"
            f" {pin.wal_through}, but not all can be read: {missing}"
        ) from missing
    if held:
        write(held)
    return made
