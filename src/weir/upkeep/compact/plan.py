"""What a compaction folds: everything that waits, and the job that folds it.

Keeps
  L-4  every generation of a shard that is not in the base, ascending, none left out in between
  C-11 a sealed shard's rows are older than its heirs': they are folded together or before
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from weir.format import paths
from weir.format.manifest import ShardManifest, SsTable, Status
from weir.lake.api import Base
from weir.read.snapshot import Snapshot
from weir.read.survey import ShardSurvey, Survey, last_with_rows
from weir.records.cut import ShardCut
from weir.routing.core import CONCURRENCY, Core
from weir.routing.writer_shard import has_own_writer
from weir.types import Position
from weir.upkeep.compact.jobs import Job, WalFold
from weir.upkeep.compact.logs import becomes_sstables, estimate_size

_CLAIM: Final = "or compact with fold_wal=True (weir compact --fold-wal), which fences it"
_BELIEVED_ROWS: Final = 8_000_000
_BELIEVED_BYTES: Final = 256 << 20
"""An SSTable within these sizes is at most one task; larger ones are looked at first."""
_MOST_COMPRESSED: Final = 256
"""An SSTable's files are not believed to hold more than this many times their size."""


@dataclass(frozen=True)
class Tail:
    """Log entries to be folded, with estimates of their rows and bytes."""

    fold: WalFold
    rows: int
    nbytes: int


@dataclass(frozen=True)
class PendingShard:
    """One shard's share of what waits to be folded."""

    cut: ShardCut
    rows: int
    nbytes: int
    tail: Tail | None = None

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to fold."""
        return not self.cut.sstables and self.tail is None


def folds_log(manifest: ShardManifest, *, fold_wal: bool | None) -> bool:
    """True when entries of that shard's log may be folded: no writer keeps their rows in memory.

    With `fold_wal` None, the default, the manifest decides: the owner has left, or has no MemTable,
    alive or not (as Spark's writers). With True every log may, once its shard is claimed, which
    fences the owner.
    """
    if manifest.status is Status.SEALED or fold_wal is not None:
        return bool(fold_wal) or manifest.status is Status.SEALED
    # guard: L-6 always test_compaction_logs
    return manifest.wal_only or manifest.is_left


def find_open_logs(core: Core, seen: Survey, *, fold_wal: bool | None) -> list[ShardSurvey]:
    """The shards of whose logs entries become SSTables before they are folded. No request."""

    def becomes(one: ShardSurvey) -> bool:
        if not folds_log(one.manifest, fold_wal=fold_wal):
            return False
        if not fold_wal and not becomes_sstables(core, one.manifest):
            return False
        log = one.log
        if log is None:
            return False
        if one.manifest.is_left:
            return becomes_sstables(core, one.manifest)
        if log.last is None:
            return False  # fence nobody for nothing
        is_filling = (log.last.generation or 0) <= one.manifest.current_generation
        return bool(fold_wal) or not is_filling

    return [one for one in seen if becomes(one)]


def find_pending(core: Core, seen: Survey, *, fold_wal: bool | None) -> list[PendingShard]:
    """Everything that can be folded into the base as it is, shard by shard.

    Logs that become SSTables first (`find_open_logs`) count once they are. Where a log is folded,
    up to four requests estimate its size.
    """

    def pending(one: ShardSurvey) -> PendingShard:
        may = folds_log(one.manifest, fold_wal=fold_wal)
        tail = _log_of(core, one) if may and not becomes_sstables(core, one.manifest) else None
        fresh = [_checked(core, one.id, table, seen.base) for table in one.waiting(seen.base)]
        return _waiting(one.manifest, tail, fresh)

    # folding one of two rivals would make the other's rows the newer ones.
    known = [one for one in seen if one.id not in seen.rivals]
    waiting = core.env.threads.map(pending, known, workers=CONCURRENCY)
    return sorted((w for w in waiting if not w.is_empty), key=lambda w: w.cut.sealed)


def _log_of(core: Core, one: ShardSurvey) -> Tail | None:
    manifest, log = one.manifest, one.log
    if log is None:
        return None
    after, through, last = manifest.replay_after, log.through, log.last
    current = manifest.current_generation
    if last is None:
        return Tail(WalFold(manifest.writer_epoch, after, through, current), 0, 0)
    if not manifest.is_left:  # guard: F-14 always test_tags
        # The owner alone knows the tag of its next entry. So its last one stays, whose tag is known
        # (`weir.log.tags`).
        through = Position(last.position - 1)
        if last_with_rows(core, log.site, manifest, through) is None:
            return None
    generation = max(current, last.generation or current)
    fold = WalFold(manifest.writer_epoch, after, through, generation)
    return Tail(fold, *estimate_size(core, log.site, after, last))


def unfolded_log_notes(core: Core, seen: Survey, folded: Collection[UUID]) -> list[str]:
    """A sentence for each shard whose log keeps rows after a compaction, with the reason.

    `folded`: the shards whose logs it folded. A log that cannot be reached is left out: its readers
    get the error, not compaction (S-5).
    """
    notes = []
    for one in seen:
        last, manifest = one.live, one.manifest
        if last is None or (one.id in folded and manifest.is_left):
            continue
        if has_own_writer(core, manifest):
            why = (
                "its writer may live, and flushes them itself; once it wrote nothing for the"
                " table's silent_after, a compaction seals the shard"
            )
        elif not manifest.wal_only and not manifest.is_left:
            why = (
                "the last writer holds them in memory and flushes them itself; if it died, open a"
                f" new writer, which flushes them, {_CLAIM}"
            )
        elif not becomes_sstables(core, manifest):
            why = "the last entry stays until its writer closes, others until the next compaction"
        else:
            why = (
                f"the writer of epoch {manifest.writer_epoch} did not close and may add more to the"
                " same generation; if it died, open and close a new writer and compact again,"
                f" {_CLAIM}"
            )
        notes.append(f"shard {one.id}: rows up to position {last.position} stay in the log: {why}")
    return notes


def _checked(core: Core, shard: UUID, table: SsTable, base: Base) -> SsTable:
    """The SSTable with sizes that can be true; work is cut into pieces by them.

    Small ones are believed. For others a listing and a read of Lance's manifest: the pieces of one
    whose numbers are damaged would have no end.
    """
    rows, nbytes = table.size
    if rows <= _BELIEVED_ROWS and nbytes <= _BELIEVED_BYTES:
        return table
    found = core.store.list(paths.sstable_dir(shard, table.path))
    stored = sum(meta.size for meta in found)
    return replace(
        table,
        physical_rows=core.lake.open_sstable(shard, table.path, base.schema).rows,
        in_memory_bytes=min(nbytes, stored * _MOST_COMPRESSED),
    )


def _waiting(manifest: ShardManifest, tail: Tail | None, fresh: Sequence[SsTable]) -> PendingShard:
    through = manifest.replay_after if tail is None else Position(tail.fold.through)
    cut = replace(ShardCut.of(manifest, through), sstables=tuple(fresh))
    sizes = [table.size for table in fresh]
    if tail is not None:
        sizes.append((tail.rows, tail.nbytes))
    return PendingShard(
        cut,
        sum(rows for rows, _ in sizes),
        sum(nbytes for _, nbytes in sizes),
        tail,
    )


def make_job(
    job_id: str,
    base: Base,
    waiting: Sequence[PendingShard],
    *,
    at: float = 0.0,
    number: int = 0,
) -> Job:
    """The job that folds all of `waiting`; rows that have expired by the time `at` are dropped."""
    snapshot = Snapshot(base.version, "durable", tuple(w.cut for w in waiting), at)
    return Job(
        job_id,
        base.version,
        snapshot,
        {w.cut.shard: w.tail.fold for w in waiting if w.tail is not None},
        number,
    )
