"""Logs of WAL-only shards: folded with the SSTables, or turned into SSTables first (L-6).

Keeps
  L-6  R moves by a manifest commit in the epoch of the plan; a newer claim wins
  F-14 the current generation is set to the tag that the first entry left in the log has or will get
  W-1  R moves to T when every row up to T is in the base, or in an SSTable of the same commit
  P-2  exactly-once tokens of the entries are recorded before R passes them
With a primary key, the entries are folded into the base and R moves afterwards: rows folded twice
are the same rows. Without one, R may not lag behind the base, not even for a moment: a writer that
claimed the shard then would write the rows again. So the entries first become SSTables, published
and passed by R in one commit, and those are folded. An entry published this way must not share its
generation with later entries, which would then count as published too. The generation that the
writer is still filling stays in the log, unless the shard is sealed or the writer left its mark.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from itertools import count
from typing import Final
from uuid import UUID

from weir.errors import CommitConflict, FencedError, MissingEntry, SnapshotExpired
from weir.format import paths
from weir.format.manifest import ShardManifest, SsTable, Status
from weir.format.schema import align_batch
from weir.format.wal_entry import WalEntry, decode_entry
from weir.log.fence import Claim
from weir.log.manifests import Manifests
from weir.log.rules import Evidence
from weir.log.site import ShardSite
from weir.routing.core import Core
from weir.routing.shards import Shard, unregistered_writer
from weir.shard.replay import Replay
from weir.shard.tokens import Tokens, tokens_in_log
from weir.store.api import ObjectMissing
from weir.types import Epoch, Generation, Position
from weir.upkeep.compact.jobs import WalFold

logger = logging.getLogger("weir.compact")

_SAMPLES: Final = 4
"""Entries of a log that are read to estimate its size."""


def last_with_rows(site: ShardSite, manifest: ShardManifest, through: int) -> WalEntry | None:
    """The last entry with rows up to `through`."""
    for position in range(through, manifest.replay_after, -1):
        path = paths.wal_path(site.shard, Position(position))
        try:
            data = site.wal.get(path).data
        except ObjectMissing:
            raise SnapshotExpired(
                f"{site}: the entry at position {position} was flushed and collected while the"
                " log was being read; try again"
            ) from None
        entry = decode_entry(data, position=Position(position), path=path)
        if entry.batches and not entry.is_staged:
            return entry
    return None


def estimate_size(core: Core, site: ShardSite, after: int, last: WalEntry) -> tuple[int, int]:
    """Estimate the rows and bytes of the entries from `after` to `last`, erring on the high side.

    Every entry counts as the largest of a few: work is cut by the estimate and must fit in memory.
    """
    entries = last.position - after
    places = {after + 1 + n * entries // _SAMPLES for n in range(_SAMPLES)} - {int(last.position)}

    def look(position: int) -> list[WalEntry]:
        try:
            return list(core.tails.entries(site, position - 1, position, pinned=True))
        except (MissingEntry, SnapshotExpired):
            return []  # flushed or collected since; the tasks that read it will fail

    found = core.env.threads.map(look, sorted(places), workers=_SAMPLES)
    seen = [last, *(entry for part in found for entry in part)]
    rows, size = max(e.num_rows for e in seen), max(e.size for e in seen)
    return entries * rows, entries * size


def record_tokens(site: ShardSite, after: int, through: int) -> None:
    """Make the tokens of entries `(after, through]` outlive them."""
    recorded = Tokens(site)
    for app, number in sorted(tokens_in_log(site, after, through).items()):
        recorded.record(app, number)


def advance_over_folded(site: ShardSite, fold: WalFold) -> bool:
    """Move R over entries that are now in the base; False when a writer took them over.

    Then R stays, the owner of the shard replays or flushes the entries, and they are folded again
    as the same rows.
    """
    record_tokens(site, fold.after, fold.through)
    taken_on = False

    def change(current: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
        nonlocal taken_on
        # A flush in the same epoch (a move of the log, a seal, a checkpoint of scope "all")
        # published some of the entries as an SSTable, which readers treat as newer than the base.
        # The entries after it must stay readable above it (L-2).
        taken_on = fold.after < current.replay_after < fold.through
        through, generation = _passable(site, fold, current)
        if taken_on or current.replay_after >= through:
            return None
        following = replace(
            current,
            replay_after=through,
            last_seen=Position(max(current.last_seen, through)),
            current_generation=Generation(max(current.current_generation, generation)),
        )
        return following, Evidence(covered=through, renumbers=True)

    try:
        Manifests(site).update(change, epoch=Epoch(fold.epoch))
    except FencedError as fenced:
        logger.info("compact.wal.given_up shard=%s reason=%s", site.shard, fenced)
        return False
    return not taken_on


def _passable(
    site: ShardSite, fold: WalFold, current: ShardManifest
) -> tuple[Position, Generation]:
    """How far R may move over the folded entries, and the tag of the first entry after R (F-14).

    An owner that announces its tags (`weir.log.tags`) will tag the next entry as announced. For
    any other owner that tag is unknown, so the last entry with rows, whose tag is known, stays.
    """
    through, generation = Position(fold.through), Generation(fold.generation)
    if current.announced is None and current.status is not Status.SEALED and fold.last != 0:
        kept = fold.after if fold.last is None else fold.last - 1
        return Position(max(kept, fold.after)), generation
    if (current.announced or 0) <= generation:
        return through, generation
    # This manifest announces a higher tag: all entries written before it are in the log by now.
    for position in count(fold.through + 1):
        path = paths.wal_path(site.shard, Position(position))
        try:
            entry = decode_entry(site.wal.get(path).data, position=Position(position), path=path)
        except ObjectMissing:
            return through, Generation(current.announced or generation)
        if entry.batches and not entry.is_staged:
            return through, Generation(max(generation, entry.generation or 0))
    raise AssertionError("F-14: a log without an end")


@dataclass(frozen=True)
class OpenLog:
    """The log of an append-only shard as a compaction found it."""

    site: ShardSite
    manifest: ShardManifest
    through: int
    """The last position used."""
    is_ended: bool
    """True when no entry will follow in the generation being filled."""


def open_log(core: Core, manifest: ShardManifest) -> OpenLog:
    """Inspect that log; the left mark is read before the end of the log is probed."""
    floors = core.log(manifest.shard_id).floors()
    ended = manifest.status is Status.SEALED or floors.left == manifest.writer_epoch
    site, through = core.log_of(manifest, floors)
    return OpenLog(site, manifest, through, ended)


def flush_claiming(core: Core, shard: UUID) -> None:
    """Flush the whole log to SSTables with a writer of our own, which fences the shard's writer."""
    config = replace(core.record.writer_defaults, enable_memtable=True, index_configs=())
    with unregistered_writer(core, Shard(core, shard, None, is_routed=False), config):
        pass


def publish_closed(core: Core, opened: OpenLog) -> int:
    """Turn closed generations of an append-only shard's log into SSTables; returns how many.

    In a log that is ended, all generations are closed.

    One commit, in the epoch of `manifest`; `CommitConflict` when a newer writer owns the shard (the
    SSTables written are then orphans).
    """
    site, manifest = opened.site, opened.manifest
    manifests = Manifests(site)
    try:
        made, covered = _write_closed(core, opened)
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
        return 0
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
        manifests.update(change, epoch=Epoch(manifest.writer_epoch))
    except FencedError as fenced:
        raise CommitConflict(
            f"{site}: a writer claimed the shard while compaction wrote its log as SSTables;"
            " nothing was published, compact again"
        ) from fenced
    return len(made)


def _write_closed(core: Core, opened: OpenLog) -> tuple[list[SsTable], Position]:
    """Write closed generations as unpublished SSTables; also the last position they cover."""
    site, manifest, through = opened.site, opened.manifest, opened.through
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
    if filling is not None and opened.is_ended:
        made.append(_write(core, site, filling, held))
        covered = Position(through)
    return made, covered


def _write(core: Core, site: ShardSite, generation: Generation, entries: list[WalEntry]) -> SsTable:
    schema = core.schema()
    name = paths.sstable_name(generation, f"{core.env.random.getrandbits(32):08x}")
    batches = [align_batch(batch, schema.wal) for entry in entries for batch in entry.batches]
    info = core.lake.write_sstable(site.shard, name, batches, schema)
    return info.listed_as(generation, name)
