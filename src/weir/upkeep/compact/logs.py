"""Logs of WAL-only shards: folded with the SSTables, or turned into SSTables first (L-6).

Keeps
  L-6  R moves by a manifest commit in the epoch of the plan; a newer claim wins
  F-14 the current generation is set to the tag that the first entry left in the log has or will get
  W-1  R moves to T when every row up to T is in the base, or in an SSTable of the same commit
  P-2  exactly-once tokens of the entries are recorded before R passes them
  X-10  rows in the base are never newer than an SSTable that the manifest lists
Where a key decides which row counts and the manifest lists no SSTable, the entries are folded into
the base and R moves afterwards: rows folded twice are the same rows. Everywhere else they first
become SSTables, published and passed by R in one commit, and those are folded. Without a key R may
not lag behind the base, not even for a moment: a writer that claimed the shard then would write the
rows again. And native readers take every SSTable that is listed for newer than the base, folded or
not. An entry published this way must not share its generation with later entries, which would then
count as published too. The generation that the writer is still filling stays in the log, unless the
writer has left.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final
from uuid import UUID

from weir.errors import CommitConflict, FencedError, MissingEntry, SnapshotExpired
from weir.format import paths
from weir.format.manifest import ShardManifest, SsTable
from weir.format.schema import align_batch
from weir.format.wal_entry import WalEntry
from weir.log.manifests import Manifests
from weir.log.ownership import Claim
from weir.log.rules import Evidence
from weir.log.site import ShardSite
from weir.read.cache import ReadCache
from weir.read.survey import LastEntry, LogSurvey, ShardSurvey
from weir.routing.core import Core
from weir.shard.replay import Replay
from weir.shard.tokens import Tokens, tokens_in_log
from weir.types import Epoch, Generation, Position
from weir.upkeep.compact.jobs import WalFold

logger = logging.getLogger("weir.compact")

_SAMPLES: Final = 4
"""Entries of a log that are read to estimate its size."""


def estimate_size(core: Core, site: ShardSite, after: int, last: LastEntry) -> tuple[int, int]:
    """Estimate the rows and bytes of the entries from `after` to `last`, erring on the high side.

    Every entry counts as the largest of a few: work is cut by the estimate and must fit in memory.
    """
    entries = last.position - after
    cache = core.attached.of(ReadCache)
    places = {after + 1 + n * entries // _SAMPLES for n in range(_SAMPLES)} - {int(last.position)}

    def look(position: int) -> list[WalEntry]:
        try:
            return list(cache.entries(site, position - 1, position, pinned=True))
        except (MissingEntry, SnapshotExpired):
            return []  # flushed or collected since; the tasks that read it will fail

    found = core.env.threads.map(look, sorted(places), workers=_SAMPLES)
    seen = [entry for part in found for entry in part]
    rows = max([last.rows, *(entry.num_rows for entry in seen)])
    size = max([last.size, *(entry.size for entry in seen)])
    return entries * rows, entries * size


def record_tokens(site: ShardSite, after: int, through: int) -> None:
    """Make the tokens of entries `(after, through]` outlive them."""
    recorded = Tokens(site)
    for app, number in sorted(tokens_in_log(site, range(after + 1, through + 1)).items()):
        recorded.record(app, number)


def advance_over_folded(core: Core, shard: UUID, fold: WalFold) -> Position | None:
    """Move R over entries that are now in the base; returns R, or None: a writer took them over.

    Then R stays, the owner of the shard replays or flushes the entries, and they are folded again
    as the same rows.
    """
    log = core.log(shard)
    site, manifests = log.segment(fold.through).site, log.manifests
    record_tokens(site, fold.after, fold.through)
    taken_on = False

    def change(current: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
        nonlocal taken_on
        # A flush in the same epoch (a move of the log, a seal, a checkpoint of scope "all")
        # published some of the entries as an SSTable, which readers treat as newer than the base.
        # The entries after it must stay readable above it (L-2).
        taken_on = fold.after < current.replay_after < fold.through
        through = Position(fold.through)
        if taken_on or current.replay_after >= through:  # guard: L-2 first test_fold_beside_a_flush
            return None
        following = replace(
            current,
            replay_after=through,
            last_seen=Position(max(current.last_seen, through)),
            current_generation=Generation(max(current.current_generation, fold.generation)),
        )
        return following, Evidence(covered=through, renumbers=True)

    try:
        after = manifests.update(change, epoch=Epoch(fold.epoch))
    except FencedError as fenced:
        logger.info("compact.wal.given_up %s reason=%s", site.label, fenced)
        return None
    return None if taken_on else after.replay_after


def becomes_sstables(core: Core, manifest: ShardManifest) -> bool:
    """True when entries of that shard's log are folded by way of SSTables (X-10); see above."""
    return not core.record.primary_key or bool(manifest.sstables)


def publish_closed(core: Core, one: ShardSurvey) -> ShardManifest:
    """Turn closed generations of a log into SSTables; returns the manifest that names them.

    In a log that is ended, all generations are closed.

    One commit, in the epoch of `manifest`; `CommitConflict` when a newer writer owns the shard (the
    SSTables written are then orphans).
    """
    manifest, log = one.manifest, one.log
    if log is None:
        return manifest
    site, manifests = log.site, core.log(log.site.shard).manifests
    try:
        made, covered = _write_closed(core, one, log)
    except (MissingEntry, FencedError) as gone:
        latest = manifests.require()
        planned = (manifest.writer_epoch, manifest.replay_after)
        if (latest.writer_epoch, latest.replay_after) == planned:
            raise
        raise CommitConflict(
            f"{site}: its log was flushed and collected, or moved, while compaction wrote it as"
            " SSTables; compact again"
        ) from gone
    if not made:
        return manifest
    record_tokens(site, manifest.replay_after, covered)

    def change(current: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
        # Changed by a flush, or by a restore, which discards the entries without publishing them.
        planned = (manifest.current_generation, manifest.replay_after)
        if (current.current_generation, current.replay_after) != planned:
            raise CommitConflict(
                f"{site}: another process flushed generation {manifest.current_generation}, or a"
                " restore discarded it, while compaction wrote it as an SSTable; compact again"
            )
        following = replace(
            current,
            sstables=(*current.sstables, *made),
            current_generation=Generation(made[-1].generation + 1),
            replay_after=covered,
            last_seen=Position(max(current.last_seen, covered)),
        )
        return following, Evidence(covered=covered)

    try:
        return manifests.update(change, epoch=Epoch(manifest.writer_epoch))
    except FencedError as fenced:
        raise CommitConflict(
            f"{site}: a writer claimed the shard while compaction wrote its log as SSTables;"
            " nothing was published, compact again"
        ) from fenced


def _write_closed(core: Core, one: ShardSurvey, log: LogSurvey) -> tuple[list[SsTable], Position]:
    """Write closed generations as unpublished SSTables; also the last position they cover."""
    site, manifest, through = log.site, one.manifest, log.through
    claim = Claim(manifest, Position(through + 1))  # as if this were a replay
    covered = Position(manifest.replay_after)
    made: list[SsTable] = []
    replay = Replay(site, Manifests(site), claim, keyed=bool(core.record.primary_key))
    if replay.begins() is not None:
        return made, covered  # the next claim corrects the generation (F-14)
    filling: Generation | None = None
    held: list[WalEntry] = []
    # Memory holds the entries of one generation, a MemTable's worth (L-10).
    for generation, entry in replay:
        if filling is not None and generation != filling:
            made.append(_write(core, site, filling, held))
            covered = Position(entry.position - 1)
            held = []
        filling = generation
        held.append(entry)
    # guard: L-6 always test_compaction_logs
    if filling is not None and manifest.is_left:
        made.append(_write(core, site, filling, held))
        covered = Position(through)
    return made, covered


def _write(core: Core, site: ShardSite, generation: Generation, entries: list[WalEntry]) -> SsTable:
    schema = core.schema()
    name = paths.sstable_name(generation, f"{core.env.random.getrandbits(32):08x}")
    batches = [align_batch(batch, schema.wal) for entry in entries for batch in entry.batches]
    info = core.lake.write_sstable(site.shard, name, batches, schema)
    return info.listed_as(generation, name)
