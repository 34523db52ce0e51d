"""What a compaction folds: everything that waits, and the job that folds it.

Keeps
  L-4  every generation of a shard that is not in the base, ascending, none left out in between
  K-6  shard manifests first, the base last
  C-11 a sealed shard's rows are older than its heirs': they are folded together or before
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from weir.errors import CommitConflict, WeirError
from weir.format.manifest import ShardManifest, SsTable, Status
from weir.lake.base.view import LanceBase
from weir.log.site import ShardSite
from weir.log.tags import is_live
from weir.read.snapshot import STILL_ATTEMPTS, Snapshot
from weir.records.cut import ShardCut
from weir.records.table import TableRecords
from weir.routing.core import CONCURRENCY, Core
from weir.routing.guard import find_rivals
from weir.types import Position
from weir.upkeep.compact.jobs import Job, WalFold
from weir.upkeep.compact.logs import estimate_size, last_with_rows

_ROW_BYTES: Final = 100
"""Assumed size of a row in SSTables of other programs, which do not record it."""


@dataclass(frozen=True)
class Tail:
    """Log entries to be folded, with estimates of their rows and bytes."""

    fold: WalFold
    rows: int
    nbytes: int


@dataclass(frozen=True)
class PendingShard:
    """One shard's share of what waits to be folded."""

    manifest: ShardManifest
    cut: ShardCut
    rows: int
    nbytes: int
    tail: Tail | None = None

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to fold."""
        return not self.cut.sstables and self.tail is None


def folds_log(core: Core, manifest: ShardManifest, *, fold_wal: bool | None) -> bool:
    """True when entries of that shard's log may be folded: no writer keeps their rows in memory.

    With `fold_wal` None, the default, the owner decides: one that announces its tags has no
    MemTable, alive or not (as Spark's writers). A sealed shard has no writer, so it always folds.
    """
    if manifest.status is Status.SEALED or fold_wal is not None:
        return bool(fold_wal) or manifest.status is Status.SEALED
    return manifest.announced is not None or not core.record.writer_defaults.enable_memtable


def find_pending(core: Core, *, fold_wal: bool | None) -> tuple[LanceBase, list[PendingShard]]:
    """Everything not yet in the base, shard by shard, and that base.

    Two requests per shard when nothing changed, up to six more where the log is folded; two
    listings and a head.
    """

    def look(shard: UUID) -> ShardManifest | None:
        # S-5: the log is read only where it is folded.
        return core.log(shard).latest()

    # C-11: rows of an heir are folded with, or after, all rows of its sealed predecessor. If the
    # table record did not change, no heir was written to after its predecessor was read.
    records, number = TableRecords(core.store), None
    for _ in range(STILL_ATTEMPTS):
        number = records.last_number(number)
        manifests = core.env.threads.map(look, core.shard_ids(), workers=CONCURRENCY)
        if records.last_number(number) == number:
            break
    else:
        raise CommitConflict(
            f"{core.uri}: the table record changed {STILL_ATTEMPTS} times while the shards were"
            " read; wait until no reshard is running, then try again"
        )
    keyed = bool(core.record.primary_key)

    def tail(manifest: ShardManifest) -> Tail | None:
        may = folds_log(core, manifest, fold_wal=fold_wal)
        return _log_of(core, manifest) if may else None

    # folding one of two rivals would make the other's rows the newer ones.
    kept = {shard for r in find_rivals(core, manifests) for shard in (r.shard, r.routed)}
    known = [m for m in manifests if m is not None and m.shard_id not in kept]
    tails: list[Tail | None] = [None] * len(known)
    if keyed:
        tails = core.env.threads.map(tail, known, workers=CONCURRENCY)
    # K-6: opened after the manifests, so that it contains what was folded since.
    base = core.base()
    assert isinstance(base, LanceBase), "compaction works on Lance"
    waiting = [
        _waiting(manifest, log, base.compacted.get(manifest.shard_id, 0))
        for manifest, log in zip(known, tails, strict=True)
    ]
    return base, sorted((w for w in waiting if not w.is_empty), key=lambda w: w.cut.sealed)


def _log_of(core: Core, manifest: ShardManifest) -> Tail | None:
    site, through = log_of(core, manifest)
    after = manifest.replay_after
    if through <= after:
        return None
    last = last_with_rows(site, manifest, through)
    current = manifest.current_generation
    if last is None:
        return Tail(WalFold(manifest.writer_epoch, after, through, current, 0), 0, 0)
    generation = max(current, last.generation or current)
    fold = WalFold(manifest.writer_epoch, after, through, generation, int(last.position))
    return Tail(fold, *estimate_size(core, site, after, last))


def log_of(core: Core, manifest: ShardManifest) -> tuple[ShardSite, int]:
    """Where that shard's log is now, and the last position used in it.

    The floors show a move: a handle that is kept for days must not fold what a fenced writer left
    in the log's previous store (S-3).
    """
    floors = core.log(manifest.shard_id).floors()
    return core.log_of(manifest, floors)


def unfolded_log_notes(core: Core) -> list[str]:
    """A sentence for each shard whose log still has rows after a compaction, with the reason.

    A few requests per shard. A log that cannot be reached is skipped: its readers get the error,
    not compaction (S-5).
    """

    def look(shard: UUID) -> str | None:
        manifest = core.log(shard).latest()
        if manifest is None:
            return None
        try:
            site, through = log_of(core, manifest)
            if through <= manifest.replay_after:
                return None
            last = last_with_rows(site, manifest, through)
        except (WeirError, OSError):
            return None
        if last is None or not is_live(
            last, manifest.current_generation, keyed=bool(core.record.primary_key)
        ):
            return None
        if manifest.announced is None:
            why = (
                "the last writer holds them in memory and flushes them itself; if it died, open a"
                " new writer, which flushes them, or run compact(fold_wal=True)"
            )
        elif core.record.primary_key:
            why = "they were written during the compaction; the next one folds them"
        else:
            why = (
                f"the writer of epoch {manifest.writer_epoch} did not close and may add more to the"
                " same generation; if it died, open and close a new writer and compact again, or"
                " run compact(fold_wal=True)"
            )
        return f"shard {shard}: rows up to position {last.position} stay in the log: {why}"

    found = core.env.threads.map(look, core.shard_ids(), workers=CONCURRENCY)
    return [sentence for sentence in found if sentence is not None]


def _waiting(manifest: ShardManifest, tail: Tail | None, folded: int) -> PendingShard:
    fresh = [table for table in manifest.sstables if table.generation > folded]
    through = manifest.replay_after if tail is None else Position(tail.fold.through)
    cut = replace(ShardCut.of(manifest, through), sstables=tuple(fresh))
    sizes = [size_of(table) for table in fresh]
    if tail is not None:
        sizes.append((tail.rows, tail.nbytes))
    return PendingShard(
        manifest,
        cut,
        sum(rows for rows, _ in sizes),
        sum(nbytes for _, nbytes in sizes),
        tail,
    )


def size_of(table: SsTable) -> tuple[int, int]:
    """Rows and bytes of an SSTable, as far as the manifest records them."""
    rows = table.physical_rows or 0
    return rows, table.in_memory_bytes or rows * _ROW_BYTES


def make_job(
    job_id: str,
    base: LanceBase,
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
