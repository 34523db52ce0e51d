"""What follows the base commit of a compaction: marks, replay points, the end.

Keeps
  L-4  the next holder of the compaction claim, a reshard or a restore included, first completes a
       run that crashed after its commit. A job that is never completed leaves its rows in the base
       and its generations unmarked: an append-only table has those rows twice.
SSTables stay in the manifests: readers of a base from before the commit still need them, and the
marks tell all others to skip them. Collection takes them out after `min_age` (X-4).
"""

from __future__ import annotations

import logging
from typing import Protocol
from uuid import UUID

from weir.errors import SnapshotExpired
from weir.lake.base.fold_commit import FOLD
from weir.routing.core import Core
from weir.upkeep.compact.jobs import FoldProgress, Job
from weir.upkeep.compact.logs import advance_over_folded
from weir.upkeep.pinning import base_floor

logger = logging.getLogger("weir.compact")


class Findings(Protocol):
    """Where results are reported."""

    wal_entries: int
    completed: str | None
    notes: list[str]


class Finisher:
    """Takes a committed job to its end. Its user holds the compaction claim and fence."""

    def __init__(self, core: Core, report: Findings) -> None:
        self.core = core
        self.report = report
        self.reached: dict[UUID, FoldProgress] = {}
        """What the finished jobs added to the base, for the last record of the claim (L-8)."""

    def complete(self, job: Job) -> None:
        """Finish a dead compactor's job if it was committed; after the fence it cannot be."""
        try:
            version = self.core.lake.find_commit(FOLD, job.id, after=job.planned_at)
            if version is not None and version <= base_floor(self.core):
                raise SnapshotExpired(f"its base version {version} may be cleaned up already")
        except SnapshotExpired as gone:
            self.report.notes.append(
                f"job {job.id} of an earlier compaction was not completed: {gone}"
            )
            # The base itself has a note of every fold that it contains (L-7).
            base = self.core.lake.open_base()
            self.core.lake.mark_compacted(base.compacted)
            version = None
        if version is not None:  # guard: L-4 test_compaction
            self.finish(job)
            self.report.completed = job.id
            uri = self.core.uri
            logger.info("compact.completed table=%s job=%s version=%d", uri, job.id, version)

    def finish(self, job: Job) -> None:
        """Do everything that follows the base commit; each step may be repeated."""
        if job.folded_generations:
            self.core.lake.mark_compacted(job.folded_generations)
        for cut in (cut for cut in job.snapshot.cuts if cut.sstables):
            self._note(cut.shard, FoldProgress.of(int(table.generation) for table in cut.sstables))
        self.core.env.failpoint("compact.marked")
        for shard, fold in job.wal.items():
            passed = advance_over_folded(self.core, shard, fold)
            if passed is not None:
                self.report.wal_entries += max(0, passed - fold.after)
                # guard: L-8 test_rolled_back_base
                self._note(shard, FoldProgress(passed=job.number))
            else:
                self.report.notes.append(
                    f"shard {shard}: a writer claimed or flushed it during the compaction; the next"
                    " one folds its log"
                )
        self.core.env.failpoint("compact.passed")

    def _note(self, shard: UUID, more: FoldProgress) -> None:
        self.reached[shard] = self.reached.get(shard, FoldProgress()).and_also(more)
