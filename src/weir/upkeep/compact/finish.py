"""What follows the base commit of a compaction: marks, replay points, the end.

Keeps
  L-4  a run that crashed after its commit is completed by the next holder of the compaction claim,
       before anything else, also by a reshard or a restore. A job that nobody completes leaves its
       rows in the base and its generations unmarked: an append-only table has them twice.
SSTables stay in the manifests: whoever read the base before the commit still needs them, and knows
by the marks to leave them out afterwards. Collection takes them out after `min_age` (X-4).
"""

from __future__ import annotations

import logging
from typing import Protocol, cast
from uuid import UUID

from weir.errors import SnapshotExpired
from weir.lake.base.fold_commit import FOLD
from weir.lake.pylance_lake import PylanceLake
from weir.routing.core import Core
from weir.upkeep.compact.jobs import Job, Reached
from weir.upkeep.compact.logs import pass_folded
from weir.upkeep.pinning import base_floor

log = logging.getLogger("weir.compact")


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
        self.reached: dict[UUID, Reached] = {}
        """What the base holds by the jobs that were finished, for the end of the claim (L-8)."""

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
        for cut in (cut for cut in job.snapshot.cuts if cut.sstables):
            self._note(cut.shard, Reached.of(int(table.generation) for table in cut.sstables))
        self.core.env.failpoint("compact.marked")
        for shard, fold in job.wal.items():
            if pass_folded(self.core.site(shard), fold):
                self.report.wal_entries += fold.through - fold.after
                self._note(shard, Reached(passed=job.number))
            else:
                self.report.notes.append(
                    f"shard {shard}: a writer claimed or flushed it meanwhile; its log is folded"
                    " next time"
                )
        self.core.env.failpoint("compact.passed")

    def _note(self, shard: UUID, more: Reached) -> None:
        self.reached[shard] = self.reached.get(shard, Reached()).and_also(more)
