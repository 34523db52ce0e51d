"""What follows the base commit of a compaction: marks, replay points, pruned manifests, the end.

Keeps
  L-4  who dies after the commit is completed by the next who holds the compactors' claim, before it
       does anything else: also by a reshard or a restore. A job that is forgotten leaves its rows
       in the base and its generations unmarked, and an append-only table has them twice.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final, Protocol, cast
from uuid import UUID

from weir.errors import CommitConflict, FencedError, SnapshotExpired
from weir.format.manifest import ShardManifest
from weir.lake.base.fold_commit import FOLD
from weir.lake.index import released_generation
from weir.lake.pylance_lake import PylanceLake
from weir.log.rules import Evidence
from weir.routing.core import CONCURRENCY, Core
from weir.shard.tokens import Tokens
from weir.upkeep.compact.jobs import Job
from weir.upkeep.compact.logs import pass_folded
from weir.upkeep.pinning import base_floor

log = logging.getLogger("weir.compact")

_PRUNE_ATTEMPTS: Final = 4


class Findings(Protocol):
    """What is told of it: a `CompactReport` is one."""

    wal_entries: int
    completed: str | None
    notes: list[str]


class Finisher:
    """Takes a committed job to its end. Held by whoever has the compactors' claim and fence."""

    def __init__(self, core: Core, report: Findings) -> None:
        self.core = core
        self.report = report

    @property
    def _lake(self) -> PylanceLake:
        return cast("PylanceLake", self.core.lake)

    def complete(self, job: Job) -> None:
        """Finish a dead compactor's job if it got as far as its commit; the fence settled that."""
        try:
            version = self._lake.find_commit(FOLD, job.id, after_version=job.planned_at)
            if version is not None and version <= base_floor(self.core):
                raise SnapshotExpired(f"its commit {version} is at or below the base floor")
        except SnapshotExpired as gone:
            self.report.notes.append(f"job {job.id}: {gone}")
            # Then the base itself tells, which has a note of every fold that is in it (L-7).
            base = self._lake.open_base()
            self._lake.mark_compacted(base.compacted)
            version = None
        if version is not None:
            self.finish(job)
            self.report.completed = job.id
            log.info("compact.completed job=%s version=%d", job.id, version)

    def finish(self, job: Job) -> None:
        """All that follows the base commit; each step may be repeated."""
        if job.marks:
            self._lake.mark_compacted(job.marks)
        self.core.env.failpoint("compact.marked")
        for shard, fold in job.wal.items():
            if pass_folded(self.core.site(shard), fold):
                self.report.wal_entries += fold.through - fold.after
            else:
                self.report.notes.append(
                    f"shard {shard}: a writer claimed or flushed it meanwhile; its log is folded"
                    " next time"
                )
        self.core.env.failpoint("compact.passed")
        self.core.env.threads.map(self._prune, list(job.marks), workers=CONCURRENCY)
        self.core.env.failpoint("compact.pruned")

    def _prune(self, shard: UUID) -> None:
        """Take SSTables out of the manifest whose rows the base holds; the epoch stays."""
        manifests = self.core.log(shard).manifests
        tokens = Tokens(manifests.site)
        for _ in range(_PRUNE_ATTEMPTS):
            current = manifests.require()
            # After the manifest, and used in its epoch only: a restore claims the shard before it
            # names old SSTables again.
            folded = released_generation(self._lake.open_base(), shard)

            def change(
                latest: ShardManifest, folded: int = folded
            ) -> tuple[ShardManifest, Evidence] | None:
                following = _pruned(latest, folded)
                if following is not None:
                    tokens.settle(latest)  # P-2: the SSTables may be what makes a token true
                return following

            try:
                manifests.update(change, epoch=current.writer_epoch)
            except (FencedError, CommitConflict) as lost:
                log.info("compact.prune.again shard=%s reason=%s", shard, lost)
                continue
            return
        self.report.notes.append(f"shard {shard}: its manifest is busy; gc prunes it later")


def _pruned(latest: ShardManifest, folded: int) -> tuple[ShardManifest, Evidence] | None:
    left = tuple(table for table in latest.sstables if table.generation > folded)
    if len(left) == len(latest.sstables):
        return None
    return replace(latest, sstables=left), Evidence()
