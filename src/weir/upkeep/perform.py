"""Do one job that `due` named, and record what became of it.

Every job claims for itself, or is safe beside another of its kind: of two keepers that do the same
job one finds the other's claim and goes on. Failures are returned, not raised: they must not stop
the upkeep of other tables.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from weir.errors import FencedError, NotAWeirTable, WeirError
from weir.meters import KEEP_JOBS
from weir.read.survey import survey_shard
from weir.records.keeping import KeepRecords
from weir.routing.core import Core
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep.compact.policy import Now
from weir.upkeep.compact.run import CompactReport, compact
from weir.upkeep.due import DueJob, IdleLog, KeepPolicy
from weir.upkeep.gc.collect import gc
from weir.upkeep.gc.report import GcReport
from weir.upkeep.owner import Owner

logger = logging.getLogger("weir.keep")

Result = Literal["succeeded", "failed", "waits", "damaged", "gone", "left", "due"]
"""`waits`: another process does it, or was faster; `gone`: the table was dropped; `left`: a writer
that may live is in the way; `due`: only named, not done."""


Fold = Callable[[Core], CompactReport]
"""Compacts a table elsewhere than in this process: on Spark."""


@dataclass(frozen=True)
class JobReport:
    """What became of one job."""

    uri: str
    job: str
    result: Result
    said: str
    """What was done, or why not."""
    seconds: float = 0.0
    next_try: float | None = None
    """When a failed job is tried again, by the store's clock."""
    rows: int = 0
    """Rows written to the base."""
    objects: int = 0
    """Objects deleted."""
    nbytes: int = 0
    """Their bytes."""
    report: CompactReport | GcReport | None = None


def perform(
    core: Core, job: DueJob, policy: KeepPolicy, now: Now, fold: Fold | None = None
) -> JobReport:
    """Do the job and record the outcome in the table; returns it."""
    clock = core.env.clock
    began = clock.boottime()
    try:
        made = _do(core, job, policy, fold or compact)
    except WeirError as error:
        made = _told(core, job, error)
    except Exception as error:
        # Of a library below (Spark), or a bug: no reason to do no other job of the table.
        logger.exception("keep.job.broke table=%s job=%s", core.uri, job.key)
        made = JobReport(core.uri, job.key, "failed", f"unexpected {type(error).__name__}: {error}")
    took = clock.boottime() - began
    made = replace(made, seconds=took)
    core.env.meters.add(KEEP_JOBS, 1, job.job, made.result)
    facts = (core.uri, made.job, made.result, took, made.said)
    if made.result in ("failed", "damaged"):
        logger.warning("keep.job table=%s job=%s result=%s seconds=%.3f said=%s", *facts)
    else:
        logger.info("keep.job table=%s job=%s result=%s seconds=%.3f said=%s", *facts)
    return _recorded(core, job, made, now)


def _do(core: Core, job: DueJob, policy: KeepPolicy, fold: Fold) -> JobReport:
    uri, key = core.uri, job.key
    core.record_number()  # C-16: nothing for a table that was dropped
    if job.job == "flush":
        rows = sum(_flushed(core, job))
        return JobReport(uri, key, "succeeded", f"flushed {len(job.logs)} shards", rows=rows)
    if job.job == "checkpoint":
        assert job.schedule is not None, "a checkpoint has a schedule"
        made = checkpoints.create(core, "durable", job.schedule.name, job.schedule.keep)
        return JobReport(uri, key, "succeeded", f"made checkpoint {made.id}")
    if job.job == "compact":
        folded = fold(core)
        if folded.skipped is not None:
            return JobReport(uri, key, "waits", folded.skipped, report=folded)
        said = f"folded {folded.sstables} SSTables and {folded.wal_entries} log entries"
        rows = folded.rows_written
        return JobReport(uri, key, "succeeded", said, rows=rows, report=folded)
    collected = gc(core, policy.min_age, policy.fence_retention)
    result: Result = "succeeded" if collected.ok else "failed"
    said = f"deleted {collected.deleted} objects" if collected.ok else collected.errors[0]
    return JobReport(
        uri,
        key,
        result,
        said,
        objects=collected.deleted,
        nbytes=collected.deleted_bytes,
        report=collected,
    )


def _flushed(core: Core, job: DueJob) -> list[int]:
    def flush(log: IdleLog) -> int:
        now = survey_shard(core, log.shard)
        if now is None or now.log is None:
            return 0
        # A writer lives, or came since: this process may have slept for hours.
        # guard: L-6 test_due
        if (now.manifest.writer_epoch, now.log.through) != (log.epoch, log.through):
            return 0
        try:
            manifest = Owner(core, log.shard).flush()
        except FencedError:
            return 0  # another writer took the shard, and has its rows
        return manifest.sstables[-1].physical_rows or 0 if manifest.sstables else 0

    return core.env.threads.map(flush, list(job.logs), workers=core.workers)


def _told(core: Core, job: DueJob, error: WeirError) -> JobReport:
    result: Result = "failed"
    if isinstance(error, NotAWeirTable):
        result = "gone"
    elif error.kind == "data":
        result = "damaged"
    elif error.kind == "conflict":
        result = "waits"
    return JobReport(core.uri, job.key, result, str(error))


def _recorded(core: Core, job: DueJob, made: JobReport, now: Now) -> JobReport:
    """The outcome, also on the store; a store that cannot be written to is a failure as well."""
    records = KeepRecords(core.store, core.env)
    try:
        if made.result == "gone":
            return made
        core.record_number()  # C-16
        if made.result == "succeeded":
            records.succeeded(made.job, now())
        elif made.result == "damaged":
            records.damaged(made.said)
        elif made.result == "waits":
            records.waits(made.job, job.since or now(), made.said)
        else:
            failed = records.failed(made.job, now(), made.said)
            return replace(made, next_try=failed.next_try)
    except NotAWeirTable as dropped:
        return JobReport(core.uri, made.job, "gone", str(dropped))
    except WeirError as error:
        logger.warning("keep.unrecorded table=%s job=%s reason=%s", core.uri, made.job, error)
        if made.result == "succeeded":
            said = f"{made.said}, but the outcome was not recorded: {error}"
            return replace(made, said=said)
    return made
