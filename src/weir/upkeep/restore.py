"""Rolls a table back to a checkpoint.

Steps, each idempotent; a second run after a crash, with the same checkpoint, starts over and ends
the same:
  1  checkpoint the current state (scope "durable"), as the way back
  2  record the restore in the lineage
  3  keep compactors away, announce it in the lineage once more, then make the checkpoint's version
     of the base the latest; if that lands after others have taken over, announce it again (L-8)
  4  for each shard: claim it, which fences every writer, and publish in one manifest the
     checkpoint's SSTables, its log rows as one more, and R = L over everything discarded
  5  record that it is done, and what was rolled back

The SSTables get new generations, above all ever used, so that no mark of an old compaction makes
them look folded. A read that begins during a restore may see some shards before it and others after
it. Exactly-once tokens and the log itself are not rolled back: the change feed still shows the
discarded entries, and has none for the restore.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from uuid import UUID

from weir.errors import CommitConflict, InvalidInput, MissingEntry, WalStoreMismatch
from weir.format import paths
from weir.format.manifest import ShardManifest, SsTable, Status
from weir.format.schema import TableSchema, align_batch
from weir.log.fence import Claim, claim_shard
from weir.log.rules import Evidence
from weir.merge.tails import live_entries
from weir.records.checkpoints import Checkpoint, Checkpoints, Ref
from weir.records.cut import ShardCut
from weir.records.lineage import Lineage, append_lineage, read_lineage
from weir.routing.core import Core
from weir.routing.shards import Shard, unregistered_writer
from weir.types import Epoch, Generation, Position
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep.exclusive import CLAIM_ATTEMPTS, CompactionClaim, without_compaction
from weir.upkeep.pinning import versioned_lake

logger = logging.getLogger("weir.upkeep")

UNDO_TTL: Final = "7d"
HOLD_SECONDS: Final = 86_400.0


@dataclass(frozen=True)
class RestoreReport:
    """What a restore did."""

    checkpoint: UUID
    base_version: int
    """The new base version, equal to the checkpoint's."""
    undo: Checkpoint
    """The table as it was before, kept for seven days: restore or clone it to go back."""
    shards: dict[UUID, tuple[int, int]]
    """For each shard the positions `(after, through]` whose entries no longer count."""


def restore(core: Core, checkpoint: Ref) -> RestoreReport:
    """Make the table what it was at the checkpoint; every writer is fenced.

    Raises `CheckpointNotFound`; `InvalidInput` when the table was resharded since (clone the
    checkpoint instead); `MissingEntry` when log rows of a durable checkpoint are gone. Close this
    process's own writers first: they are fenced like all others. Cost: a claim and a manifest for
    each shard, a commit of the base.
    """
    target = checkpoints.find(core, checkpoint)
    if target.routing_version != core.refresh().routing_version:
        raise InvalidInput(
            f"{core.uri} was resharded after checkpoint {target.id}; clone the checkpoint to get"
            " the table as it was"
        )
    _require_tables(core, target)
    # The checkpoint must outlive this call (K-5: only upward).
    records = Checkpoints(core.store)
    target = records.refresh(target, expires=core.store.now() + HOLD_SECONDS)
    lineage, undo = _begin(core, target)
    core.env.failpoint("restore.begun")
    with without_compaction(core) as hold:
        core.env.failpoint("restore.held")
        # Lance cannot fence a restore. So it is announced in the chain that also says "ready": of
        # two concurrent restores one is refused, and a rollback that lands late leaves a lineage
        # that says the table must be restored again.
        lineage = append_lineage(core.store, lineage, core.env.new_id())
        core.env.failpoint("restore.announced")
        hold.forget_progress()
        version = versioned_lake(core).restore(target.base_version, str(target.id))
        lineage = _announce_if_late(core, hold, lineage)
        # A rollback that landed late has undone others' work on the base: the shards must follow,
        # or the table would mix both states. A process that lost its claim after the rollback must
        # leave the shards alone: they belong to the new holder.
        require = partial(hold.require_since, version)
        core.env.failpoint("restore.base")
        pins = {pin.shard: pin for pin in target.shards}
        # Read the pinned version, which is equal: nothing protects the new one (G-12).
        base = core.lake.open_base(target.base_version)
        discarded: dict[UUID, tuple[int, int]] = {}
        for shard in dict.fromkeys([*pins, *core.shard_ids()]):
            folded = base.compacted.get(shard, 0)
            span = _restore_shard(core, shard, pins.get(shard), base.schema, folded, require)
            if span is not None:
                discarded[shard] = span
            core.env.failpoint(f"restore.shard {shard}")
        hold.require()
    done = {
        "checkpoint": str(target.id),
        "undo": str(undo.id),
        "at": core.env.clock.wall(),
        "discarded": {str(shard): list(span) for shard, span in discarded.items()},
    }
    append_lineage(core.store, replace(lineage, state="ready", restored=done), core.env.new_id())
    core.env.failpoint("restore.done")
    logger.info("table.restored uri=%s checkpoint=%s", core.uri, target.id)
    return RestoreReport(target.id, version, undo, discarded)


def _announce_if_late(core: Core, hold: CompactionClaim, lineage: Lineage) -> Lineage:
    """The lineage after the rollback, which is announced again if the claim was lost before it.

    Another restore may have ended since the announcement, or be about to end: its "ready" would
    hide that the base was taken back after it.
    """
    try:
        hold.require()
        return lineage
    except CommitConflict:
        logger.warning("restore.late uri=%s base_version=%d", core.uri, core.base().version)
    for _ in range(CLAIM_ATTEMPTS):
        latest = read_lineage(core.store) or lineage
        if latest.seq == lineage.seq:
            return lineage
        again = replace(latest, state="restoring", restored=lineage.restored)
        with suppress(CommitConflict):
            return append_lineage(core.store, again, core.env.new_id())
    raise CommitConflict(f"{core.uri}: other restores are running; run this again after them")


def _require_tables(core: Core, target: Checkpoint) -> None:
    """Open every SSTable that the record names: a manifest is going to name them (G-13).

    Called before anything is written; a listing and a read for each.
    """
    base = core.lake.open_base(target.base_version)
    for pin in target.shards:
        folded = base.compacted.get(pin.shard, 0)
        for table in pin.sstables:
            if table.generation > folded:
                core.lake.open_sstable(pin.shard, table.path, base.schema)


def _begin(core: Core, target: Checkpoint) -> tuple[Lineage, Checkpoint]:
    """Steps 1 and 2; a run after a crash keeps the first attempt's undo checkpoint."""
    lineage = read_lineage(core.store) or Lineage(state="ready")
    if lineage.state == "restoring" and "undo" in lineage.restored:
        known = Checkpoints(core.store).load(UUID(lineage.restored["undo"]))
        if known is not None and lineage.restored.get("checkpoint") == str(target.id):
            return lineage, known
    undo = checkpoints.create(core, scope="durable", name="before-restore", ttl=UNDO_TTL)
    note = {"checkpoint": str(target.id), "undo": str(undo.id)}
    begun = replace(lineage, state="restoring", restored=note)
    return append_lineage(core.store, begun, core.env.new_id()), undo


def _restore_shard(
    core: Core,
    shard: UUID,
    pin: ShardCut | None,
    schema: TableSchema,
    folded: int,
    require: Callable[[], None],
) -> tuple[int, int] | None:
    """Step 4 for one shard; a shard the checkpoint does not know becomes empty."""
    manifests = core.log(shard).manifests
    current = manifests.latest()
    if current is None:
        return None
    if current.status is Status.SEALED:
        epoch, through = current.writer_epoch, current.last_seen
    else:
        claim = _claim(core, shard)
        epoch, through = claim.epoch, claim.fence
    rows = None if pin is None or pin.closed else _log_rows(core, pin, schema)
    kept = [] if pin is None else [t for t in pin.sstables if t.generation > folded]

    def change(latest: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
        # After the claim: a process that takes over from now on claims the shard after us.
        require()
        first = latest.current_generation
        named = [
            replace(table, generation=Generation(first + i))
            for i, table in enumerate([*kept, *([rows] if rows else [])])
        ]
        last = Position(max(through, latest.last_seen))
        following = replace(
            latest,
            sstables=tuple(named),
            current_generation=Generation(first + len(named)),
            replay_after=last,
            last_seen=last,
        )
        return following, Evidence(covered=last, restoring=True)

    committed = manifests.update(change, epoch=Epoch(epoch))
    after = pin.wal_through if pin is not None else Position(0)
    return int(after), int(committed.replay_after)


def _claim(core: Core, shard: UUID) -> Claim:
    """Claim the shard. A lost log that held nothing is replaced, as a writer would do (S-7)."""
    core.wal_stores.forget(shard)
    try:
        return claim_shard(core.site(shard))
    except WalStoreMismatch:
        config = replace(core.record.writer_defaults, enable_memtable=True, index_configs=())
        with unregistered_writer(core, Shard(core, shard, None, is_routed=False), config):
            pass
    return claim_shard(core.site(shard))


def _log_rows(core: Core, pin: ShardCut, schema: TableSchema) -> SsTable | None:
    """The rows of the entries `(R, T]` as an SSTable of their own; W-4: they are in the log."""
    log = core.log(pin.shard)
    try:
        entries = list(
            live_entries(
                core.tails.entries(log, pin.replay_after, pin.wal_through, pinned=True),
                pin.current_generation,
                keyed=bool(schema.primary_key),
            )
        )
    except MissingEntry as missing:
        raise MissingEntry(
            f"{log}: the checkpoint needs log entries {pin.replay_after + 1} to"
            f" {pin.wal_through}, but not all can be read: {missing}"
        ) from missing
    batches = [align_batch(batch, schema.wal) for entry in entries for batch in entry.batches]
    if not batches:
        return None
    # The random tag makes the folder name unique; the manifest, not the name, says the generation.
    tag = f"{core.env.random.getrandbits(32):08x}"
    generation = log.manifests.require().current_generation
    name = paths.sstable_name(generation, tag)
    info = core.lake.write_sstable(pin.shard, name, batches, schema)
    return info.listed_as(generation, name)
