"""The compactors' claim, held: no fold, load or restore of another process changes the base.

Keeps
  L-4  the claim is taken before the work; a job that died after its commit is completed first
It is a record in the chain of compactions (`weir.upkeep.compact.jobs`) and a fence in the base: a
compactor that held it before can no longer commit, and a later one finds the record. While it is
held, in a `with` block, a thread of its own renews it: one task may take hours, and whoever finds a
claim older than its lease takes it over. A block that raises leaves the claim as it is, since the
next holder has to complete what was left half done.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self
from uuid import UUID

from msgspec.structs import replace

from weir.env import Bell, Thread
from weir.errors import CommitConflict, SnapshotExpired, WeirError
from weir.lake.base.fence import FENCE
from weir.lake.base.fold import BaseFence
from weir.routing.core import Core
from weir.upkeep.compact.finish import Findings, Finisher
from weir.upkeep.compact.jobs import FoldProgress, Job, JobRecord, Jobs
from weir.upkeep.pinning import require_above_base_floor

logger = logging.getLogger("weir.compact")

RENEW_SECONDS: Final = 300.0
"""How often a claim at work is renewed: three times in the lease that others grant it."""


@dataclass
class Completed:
    """What was found while an earlier job was completed, for callers without a report."""

    wal_entries: int = 0
    completed: str | None = None
    notes: list[str] = field(default_factory=list)


def take_claim(core: Core, record: JobRecord, report: Findings | None = None) -> Claim:
    """Fence the base for the claim of that record; complete the job that a dead holder committed.

    `CommitConflict` when this process slept, and the place of its fence was cleaned up.
    """
    core.env.failpoint("compact.claimed")
    version = core.lake.fence_base(record.token)
    fence = BaseFence(record.token, require_above_base_floor(core, version))
    core.env.failpoint("compact.fenced")
    claim = Claim(core, record, fence, report or Completed())
    if record.job is not None:
        # Its fold may be in the base without its marks, and nobody after us knows of it.
        claim.complete(record.job)
    return claim


class Claim:
    """A claim at work, in a `with` block."""

    def __init__(self, core: Core, record: JobRecord, fence: BaseFence, report: Findings) -> None:
        self.fence = fence
        self._core = core
        self._jobs = Jobs(core.store)
        self._finisher = Finisher(core, report)
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
        self._record = self._jobs.step(record, record.state, record.job)

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
        """Complete a planned job after its commit."""
        self._finisher.finish(job)
        self.remember(self._finisher.reached)

    def complete(self, job: Job) -> None:
        """Complete a job of an earlier holder, if it was committed."""
        self._finisher.complete(job)
        self.remember(self._finisher.reached)

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

    def give_up(self) -> None:
        """Leave the claim to the next holder, as a block that raises does."""
        self._is_over = True

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
