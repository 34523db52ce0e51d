"""The compactors' claim, held: no fold, load or restore of another process changes the base.

Keeps
  L-4  the claim is taken before the work; the next holder, a reshard or a restore included, first
       completes a job that died after its commit. One that is never completed leaves its rows in
       the base and its generations unmarked: an append-only table has those rows twice
It is a record in the chain of compactions (`weir.upkeep.compact.jobs`) and a fence in the base: a
compactor that held it before can no longer commit, and a later one finds the record. While it is
held, in a `with` block, a thread of its own renews it: one task may take hours, and whoever finds a
claim older than its lease takes it over. A block that fails leaves the claim: the next holder need
not wait, but has to complete what was left half done.

SSTables stay in the manifests after their fold: readers of a base from before the commit still need
them, and the marks tell all others to skip them. Collection takes them out after `min_age` (X-4).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self
from uuid import UUID

from msgspec.structs import replace

from weir.durations import seconds
from weir.env import Bell, Thread
from weir.errors import CommitConflict, SnapshotExpired, WeirError
from weir.lake.base.fence import FENCE
from weir.lake.base.fold import BaseFence
from weir.lake.base.fold_commit import FOLD
from weir.routing.core import Core
from weir.upkeep.compact.jobs import FoldProgress, Job, JobRecord, Jobs
from weir.upkeep.compact.logs import advance_over_folded
from weir.upkeep.defaults import LEASE
from weir.upkeep.pinning import base_floor, require_above_base_floor

logger = logging.getLogger("weir.compact")

RENEW_SECONDS: Final = seconds(LEASE) / 4
"""How often a claim at work is renewed: a put, several times in the lease that others grant it."""


@dataclass
class Finished:
    """What followed the commits of the jobs that a claim finished."""

    wal_entries: int = 0
    """Entries that R passed."""
    completed: str | None = None
    """The job of an earlier holder, if it was committed."""
    notes: list[str] = field(default_factory=list)


def take_claim(core: Core, record: JobRecord) -> Claim:
    """Fence the base for the claim of that record; complete the job that a dead holder committed.

    `CommitConflict` when this process slept, and the place of its fence was cleaned up.
    """
    try:
        return _taken(core, record)
    except (Exception, KeyboardInterrupt):
        _leave(Jobs(core.store), record)
        raise


def _taken(core: Core, record: JobRecord) -> Claim:
    core.env.failpoint("compact.claimed")
    # C-16: after the claim, which a drop that comes later ends; before it, it may have been made in
    # the chain of the next table, whose compactors need not wait for it.
    core.record_number()  # guard: C-16 test_drop
    version = core.lake.fence_base(record.token)
    fence = BaseFence(record.token, require_above_base_floor(core, version))
    core.env.failpoint("compact.fenced")
    claim = Claim(core, record, fence)
    if record.job is not None:
        # Its fold may be in the base without its marks, and nobody after us knows of it.
        claim.complete(record.job)
    return claim


def _leave(jobs: Jobs, record: JobRecord) -> None:
    """Let the next holder begin at once: this one has failed, and does no more.

    What it planned may be committed, so the job stays in the record.
    """
    with suppress(WeirError):  # lost, or the store is away: then the lease decides
        jobs.append(replace(record, state="left"))


class Claim:
    """A claim at work, in a `with` block."""

    def __init__(self, core: Core, record: JobRecord, fence: BaseFence) -> None:
        self.fence = fence
        self.finished = Finished()
        self._core = core
        self._jobs = Jobs(core.store)
        self._record = record
        self._found = record.job
        self._lock = core.env.threads.lock()
        """Held while a record is appended."""
        self._bell = Bell(core.env.threads)
        self._is_over = False
        self._renewer: Thread | None = None

    @property
    def took_over(self) -> bool:
        """True when an earlier holder's job was found, and completed if it had been committed."""
        return self._found is not None

    @property
    def number(self) -> int:
        """The number of its record: higher than that of every earlier claim."""
        return self._record.seq

    def __enter__(self) -> Self:
        self._renewer = self._core.env.threads.start(self._renew, name="weir-claim")
        if self._renewer is None:  # the work is still done, within the lease (F-16)
            logger.warning("claim.alone table=%s", self._core.uri)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.end()
            elif isinstance(error, Exception | KeyboardInterrupt):
                self.leave()
        finally:
            self._stop()

    def _stop(self) -> None:
        self._is_over = True
        self._bell.ring()
        if self._renewer is not None:
            self._renewer.join()

    def _renew(self) -> None:
        while True:
            self._bell.wait(RENEW_SECONDS)
            with self._lock:
                if self._is_over:
                    return
                try:
                    self._append(self._record)
                except CommitConflict:
                    return  # lost; its next step, or its fence, says so
                except WeirError as error:
                    logger.warning("claim.renew.failed table=%s reason=%s", self._core.uri, error)

    def _append(self, record: JobRecord) -> None:
        self._record = self._jobs.append(record)

    def plan(self, job: Job) -> None:
        """Record a job before its commit, so that the next holder can complete it.

        `CommitConflict` when another process has taken over the claim.
        """
        with self._lock:
            self._append(replace(self._record, state="planned", job=job))

    def remember(self, reached: Mapping[UUID, FoldProgress]) -> None:
        """Note what the base holds, in the records to come (L-8)."""
        with self._lock:
            self._record = self._record.having(reached)

    def finish(self, job: Job) -> None:
        """Do everything that follows the base commit of a job; each step may be repeated."""
        core, reached = self._core, dict[UUID, FoldProgress]()
        if job.folded_generations:
            core.lake.mark_compacted(job.folded_generations)
        for cut in (cut for cut in job.snapshot.cuts if cut.sstables):
            reached[cut.shard] = FoldProgress.of(int(table.generation) for table in cut.sstables)
        core.env.failpoint("compact.marked")
        for shard, fold in job.wal.items():
            passed = advance_over_folded(core, shard, fold)
            if passed is None:
                self.finished.notes.append(
                    f"shard {shard}: a writer claimed or flushed it during the compaction; the next"
                    " one folds its log"
                )
                continue
            self.finished.wal_entries += max(0, passed - fold.after)
            # guard: L-8 test_rolled_back_base
            reached[shard] = FoldProgress(passed=job.number).and_also(reached.get(shard))
        core.env.failpoint("compact.passed")
        self.remember(reached)

    def complete(self, job: Job) -> None:
        """Finish the job of an earlier holder if it was committed; after the fence it cannot be."""
        core = self._core
        try:
            version = core.lake.find_commit(FOLD, job.id, after=job.planned_at)
            if version is not None and version <= base_floor(core):
                raise SnapshotExpired(f"its base version {version} may be cleaned up already")
        except SnapshotExpired as gone:
            self.finished.notes.append(
                f"job {job.id} of an earlier compaction was not completed: {gone}"
            )
            # The base itself has a note of every fold that it contains (L-7).
            core.lake.mark_compacted(core.lake.open_base().compacted)
            version = None
        if version is not None:  # guard: L-4 test_compaction
            self.finish(job)
            self.finished.completed = job.id
            logger.info("compact.completed table=%s job=%s version=%d", core.uri, job.id, version)

    def forget_progress(self) -> None:
        """L-8: the base is about to be rolled back, and the shards with it."""
        with self._lock:
            self._append(replace(self._record, state="claimed", job=None, reached={}))

    def end(self) -> None:
        """Release the claim; again is harmless. `CommitConflict` when it was lost."""
        with self._lock:
            if not self._is_over:
                self._append(replace(self._record, state="done", job=None))
                self._is_over = True

    def leave(self) -> None:
        """Let the next holder begin at once (`_leave`)."""
        with self._lock:
            if not self._is_over:
                self._is_over = True
                _leave(self._jobs, self._record)

    @property
    def is_held(self) -> bool:
        """False when another process has taken over the claim. One list, one get."""
        with self._lock:
            latest = self._jobs.latest()
            mine = self._record
        return latest is not None and (latest.seq, latest.token) == (mine.seq, mine.token)

    def require(self) -> None:
        """Raise `CommitConflict` when another process has taken over the claim."""
        if not self.is_held:
            raise CommitConflict(
                f"{self._core.uri}: a compaction took over while this ran; run it again"
            )

    def require_since(self, version: int) -> None:
        """Raise `CommitConflict` when another holder fenced the base after that version."""
        try:
            alone = all(
                commit.properties.get(FENCE) in (None, self.fence.token)
                for commit in self._core.lake.commits(after=version)
            )
        except SnapshotExpired:
            # Those versions were cleaned up (G-12): the claim itself has to decide.
            self.require()
            alone = True
        if not alone:
            raise CommitConflict(
                f"{self._core.uri}: another process took over while this ran; run it again"
            )
