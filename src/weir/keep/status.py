"""What became of each job of a table: succeeded, failed, or silent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from weir.durations import seconds
from weir.records.keeping import Keeping, Outcome
from weir.upkeep.due import DueJob, KeepPolicy, Upkeep

Standing = Literal["succeeded", "failed", "silent", "due", "damaged", "left"]
"""`silent`: due for longer than it should be, and nobody said why; `due`: not for long; `left`: a
writer that may live is in the way."""


@dataclass(frozen=True)
class JobStatus:
    """One job of one table."""

    uri: str
    job: str
    status: Standing
    said: str = ""
    """Why it is due, or why it failed."""
    succeeded: float | None = None
    """When it was last done; None: never by a keeper. Seconds since 1970, by the store's clock."""
    due_since: float | None = None
    failures: int = 0
    next_try: float | None = None


def statuses(
    found: Upkeep, known: Keeping, policy: KeepPolicy, now: float
) -> tuple[JobStatus, ...]:
    """The status of every job that is due or was ever tried."""
    if found.damaged is not None:
        return (JobStatus(found.uri, "all", "damaged", found.damaged),)
    due = {job.key: job for job in found}
    keys = sorted({*due, *(each.job for each in known.jobs)})
    limit = seconds(policy.silent_after)
    told = [_status(found.uri, known.of(key), due.get(key), now, limit) for key in keys]
    left = [JobStatus(found.uri, "flush", "left", sentence) for sentence in found.left]
    return (*told, *left)


def _status(
    uri: str, last: Outcome, job: DueJob | None, now: float, silent_after: float
) -> JobStatus:
    since = None if job is None else job.since
    standing: Standing = "succeeded"
    said = ""
    if job is not None:
        is_late = since is not None and now - since > silent_after
        standing, said = ("silent" if is_late else "due"), job.reason
        if last.failures:
            standing, said = "failed", last.reason
    return JobStatus(
        uri,
        last.job,
        standing,
        said,
        last.succeeded or None,
        since,
        last.failures if job is not None else 0,
        last.next_try if job is not None and last.failures else None,
    )
