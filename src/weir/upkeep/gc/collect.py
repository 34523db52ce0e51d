"""Garbage collection: deletes what nothing refers to, and keeps fencing sound (G-1 to G-12).

Safe beside live writers, readers, clones, other collectors and native writers, at any `min_age`; it
can be killed at any moment and run again. `weir.upkeep.gc.shard` holds the order of steps,
`weir.upkeep.gc.plan` the decisions, docs/internals/garbage-collection.md the reasons.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import timedelta
from uuid import UUID

from msgspec import structs

from weir.durations import Duration, seconds
from weir.errors import InvalidInput, NotAWeirTable, StoreError
from weir.format.sharding import PerWriter
from weir.meters import GC_BYTES, GC_OBJECTS, GC_SECONDS
from weir.records.holds import Holds
from weir.records.table import TableRecord, TableRecords
from weir.routing.core import Core
from weir.routing.finishing import finish
from weir.upkeep.compact.jobs import keep_base_from
from weir.upkeep.compact.progress import require_no_lost_rows
from weir.upkeep.defaults import FENCE_RETENTION, MIN_AGE
from weir.upkeep.gc import records
from weir.upkeep.gc.plan import Ages
from weir.upkeep.gc.report import KINDS, GcReport, Kind, Progress, Veto
from weir.upkeep.gc.run import WORKERS, GcRun
from weir.upkeep.gc.shard import collect_shards
from weir.upkeep.parents import left_over_pins, settle_pins
from weir.upkeep.pinning import base_marks

logger = logging.getLogger("weir.gc")

_SHARD_KINDS = frozenset({"wal", "manifests", "sstables"})


def gc(
    core: Core,
    min_age: Duration = MIN_AGE,
    fence_retention: Duration = FENCE_RETENTION,
    *,
    dry_run: bool = False,
    kinds: Collection[Kind] | None = None,
    progress: Progress | None = None,
    veto: Veto | None = None,
    workers: int = WORKERS,
) -> GcReport:
    """See `Table.gc`."""
    _require_whole(core)
    return collect(
        core,
        min_age,
        fence_retention,
        dry_run=dry_run,
        kinds=kinds,
        progress=progress,
        veto=veto,
        workers=workers,
    )


def _require_whole(core: Core) -> None:
    """Raise unless the base still holds everything that was folded into it (L-8)."""
    core.record_number()  # C-16: not by a handle of a dropped table
    require_no_lost_rows(core)


def collect(
    core: Core,
    min_age: Duration = MIN_AGE,
    fence_retention: Duration = FENCE_RETENTION,
    *,
    dry_run: bool = False,
    kinds: Collection[str] | None = None,
    progress: Progress | None = None,
    veto: Veto | None = None,
    workers: int = WORKERS,
    keep_first_entries: bool = True,
) -> GcReport:
    """`gc` of a table whose base was checked.

    `keep_first_entries=False` disables a safety lock and is for tests only (G-7a).
    """
    ages = _ages(core, min_age, fence_retention, keep_first_entries=keep_first_entries)
    if type(workers) is not int or workers < 1:
        raise InvalidInput(f"workers must be a whole number above 0, got {workers!r}")
    began = core.env.clock.boottime()
    job = GcRun(
        core,
        ages,
        _kinds(kinds),
        GcReport(dry_run=dry_run),
        Holds(core.store),
        core.store.now(),
        dry_run,
        workers,
        progress,
        veto,
    )
    _run_tasks(job)
    report = job.report
    report.seconds = core.env.clock.boottime() - began
    if not dry_run:
        meters = core.env.meters
        meters.add(GC_SECONDS, report.seconds)
        meters.add(GC_OBJECTS, report.deleted)
        meters.add(GC_BYTES, report.deleted_bytes)
    logger.info(
        "gc.done table=%s deleted=%d errors=%d seconds=%.3f",
        core.uri,
        report.deleted,
        len(report.errors),
        report.seconds,
    )
    return report


def _run_tasks(job: GcRun) -> None:
    """Run all tasks in order: end expired chains, collect what they held, then their records."""
    released: Collection[str] = ()
    for kind in job.holding:
        with job.task(kind):
            records.end_expired(job, kind)
    if "checkpoints" in job.kinds:
        with job.task("pins of clones"):
            job.report.skipped += left_over_pins(job.holds.checkpoints(), job.now)
    if "base" in job.kinds:
        with job.task("tags"):
            released = records.release_tags(job)
    if not job.dry_run:
        with job.task("statements"):
            finish(job.core)
    if job.kinds & _SHARD_KINDS:
        with job.task("shards"):
            _record_finished(job, collect_shards(job))
    for kind in job.holding:
        with job.task(kind):
            records.collect_chains(job, kind)
    if "leftovers" in job.kinds:
        with job.task("leftovers"):
            records.collect_leftovers(job)
    if "base" in job.kinds:
        with job.task("base"):
            _clean_base(job, released)
        if not job.dry_run:
            with job.task("pins in parents"):
                _detach(job)


def _record_finished(job: GcRun, shards: Mapping[UUID, int]) -> None:
    """C-17: let reads, upkeep and the next collection leave out those shards, made under those
    routings."""

    def finish(record: TableRecord) -> TableRecord:
        # A reshard that is under way has sealed shards of the routing that still counts.
        left = {
            shard
            for shard, spec in shards.items()
            # A writer's own shard has no heir: nobody waits for a routing to come.
            if spec < record.spec or isinstance(record.sharding, PerWriter)  # guard: C-17
        }
        return structs.replace(record, finished=tuple(sorted({*record.finished, *left})))

    if not shards or job.dry_run:
        return
    core, known = job.core, job.core.records()
    record = known.find()
    if record is None or finish(record) == record:
        return
    known.update(finish, core.env)
    logger.info("gc.finished table=%s shards=%d", core.uri, len(shards))


def _ages(
    core: Core, min_age: Duration, fence_retention: Duration, *, keep_first_entries: bool
) -> Ages:
    slack = seconds(min_age, name="min_age")
    retention = seconds(fence_retention, name="fence_retention")
    # C-16: the longest that any writer, also of a table dropped here, trusts a proof of ownership.
    fence_ttl = TableRecords(core.store).longest_fence_ttl(core.record)
    least = max(slack, 2 * fence_ttl)
    if retention < least:
        raise InvalidInput(
            f"fence_retention is {retention:g} s but must be at least {least:g} s: no less than"
            f" min_age ({slack:g} s) and twice the longest fence_ttl ({fence_ttl:g} s) of"
            " this table and of those dropped at its place. Otherwise a writer that was suspended"
            " could acknowledge rows that are lost"
        )
    return Ages(slack, retention, keep_first_entries)


def _kinds(kinds: Collection[str] | None) -> frozenset[str]:
    chosen = frozenset(KINDS if kinds is None else kinds)
    unknown = sorted(chosen.difference(KINDS))
    if unknown:
        raise InvalidInput(f"kinds must be among {list(KINDS)}, got {unknown}")
    return chosen


def _detach(job: GcRun) -> None:
    """Run a pass of C-14; a parent out of reach keeps its pin until a later pass reaches it."""
    try:
        for parent in settle_pins(job.core):
            logger.info("gc.detached table=%s parent=%s", job.core.uri, parent)
    except (StoreError, NotAWeirTable) as error:
        job.report.skipped.append(f"the pin in a parent was kept: {error}")


def _clean_base(job: GcRun, released: Collection[str]) -> None:
    """Run Lance's own clean-up, which keeps tagged versions; checkpoints hold theirs by tags."""
    core, lake = job.core, job.core.lake
    # L-4: unfinished work still reads the history from there on.
    wanted = keep_base_from(core.store)
    latest = lake.open_base().version
    keep_from = latest if wanted is None else min(wanted, latest)
    if not job.dry_run and keep_from > 1:
        # Raised before Lance reads the tags: a checkpoint that pins one of these versions, or a
        # commit to one of these numbers, reads the floor after its own write and gives up.
        floor = base_marks(core)
        floor.raise_to(keep_from - 1)
        floor.trim()
    slack = timedelta(seconds=job.ages.min_age)
    cleaned = lake.cleanup_old_versions(
        slack, keep_from=keep_from, dry_run=job.dry_run, released=released
    )
    part = job.report.kind("base")
    part.seen += cleaned.versions
    part.seen_bytes += cleaned.bytes
    part.deleted += cleaned.versions
    part.deleted_bytes += cleaned.bytes
