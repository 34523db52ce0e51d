"""What became of a table's upkeep: one small record, the same for all keepers, in `_weir/keep`.

It decides nothing that matters for the rows. It tells keepers when a job was last done and when to
try a failed one again, and people what was never done. Its size is bounded: one outcome for each
job, texts cut to length, jobs that no policy names any longer dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from msgspec import Struct
from msgspec.structs import replace

from weir.env import Env
from weir.format import paths
from weir.records.chain import RecordChain
from weir.records.codec import Record
from weir.store.api import Store

TEXT_MAX: Final = 500
"""Characters kept of a reason."""
JOBS_MAX: Final = 32
"""Outcomes kept; the jobs that were tried last stay."""
FIRST_PAUSE: Final = 60.0
LONGEST_PAUSE: Final = 3600.0
_KEEP: Final = 32
_PRUNE_EVERY: Final = 32


class Outcome(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The last outcome of one job. Times are seconds since 1970 by the store's clock."""

    job: str
    succeeded: float = 0.0
    """When it was last done; 0: never by a keeper."""
    tried: float = 0.0
    """When it was last begun."""
    failures: int = 0
    """Failures since it was last done."""
    reason: str = ""
    """Why it failed last, or why it waits."""
    next_try: float = 0.0
    """Not before this time again."""
    due_since: float = 0.0
    """When it was first seen due since it was last done; 0: it is not due."""


class Keeping(Record, frozen=True):
    """The outcomes of all jobs of one table."""

    KIND: ClassVar[str] = "upkeep record"
    jobs: tuple[Outcome, ...] = ()
    damaged: str | None = None
    """What is wrong with the table: keepers leave it alone until a person says otherwise."""

    def of(self, job: str) -> Outcome:
        """The outcome of that job; of one that was never tried, an empty one."""
        return next((each for each in self.jobs if each.job == job), Outcome(job))

    def having(self, outcome: Outcome) -> Keeping:
        """The record with that outcome in the place of the job's last one."""
        others = [each for each in self.jobs if each.job != outcome.job]
        recent = sorted(others, key=lambda each: each.tried)[1 - JOBS_MAX :]
        return replace(self, jobs=tuple(sorted((*recent, outcome), key=lambda each: each.job)))


class KeepRecords:
    """Reads and extends the record of one table."""

    def __init__(self, store: Store, env: Env) -> None:
        self._chain = RecordChain(store, paths.keep_chain(), Keeping)
        self._env = env

    def latest(self) -> Keeping:
        """The record, an empty one if there is none. One list, one get."""
        return self._chain.latest() or Keeping()

    def succeeded(self, job: str, at: float) -> None:
        """The job is done."""
        self._change(lambda _: Outcome(job, succeeded=at, tried=at), job)

    def failed(self, job: str, at: float, reason: str) -> Outcome:
        """The job failed: it is tried again after a pause that doubles with every failure."""

        def change(last: Outcome) -> Outcome:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(last.failures, 16))
            return replace(
                last,
                tried=at,
                failures=last.failures + 1,
                reason=shortened(reason),
                next_try=at + pause * self._env.random.uniform(0.5, 1.0),
                due_since=last.due_since or at,
            )

        return self._change(change, job)

    def waits(self, job: str, since: float, reason: str) -> None:
        """The job is due and was not done: another has it, or a live writer is in the way.
        Written once, not at every look."""

        def change(last: Outcome) -> Outcome:
            if last.due_since:
                return last
            return replace(last, due_since=since, reason=shortened(reason))

        self._change(change, job)

    def damaged(self, reason: str) -> None:
        """The table is damaged."""
        self._update(lambda found: replace(found, damaged=shortened(reason)))

    def forget(self) -> None:
        """Forget the damage and all failures: every job may be tried again now."""

        def change(found: Keeping) -> Keeping:
            done = [Outcome(each.job, each.succeeded, each.tried) for each in found.jobs]
            return replace(found, damaged=None, jobs=tuple(each for each in done if each.succeeded))

        self._update(change)

    def _change(self, change: Callable[[Outcome], Outcome], job: str) -> Outcome:
        return self._update(lambda found: found.having(change(found.of(job)))).of(job)

    def _update(self, change: Callable[[Keeping], Keeping]) -> Keeping:
        busy = "other keepers changed the record of upkeep at every attempt; try again"
        latest = self._chain.update(lambda found: change(found or Keeping()), self._env, busy)
        assert latest is not None, "it is made if there is none"
        if latest.seq and latest.seq % _PRUNE_EVERY == 0:
            self._chain.prune(_KEEP)
        return latest


def shortened(text: str) -> str:
    """The text as a record keeps it: one line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= TEXT_MAX else line[: TEXT_MAX - 3] + "..."
