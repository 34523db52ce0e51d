"""Garbage collection: deletes what nothing refers to, and keeps fencing sound (G-1 to G-12).

Safe beside live writers, readers, clones, other collectors and native writers, at any `min_age`; it
can be killed at any moment and run again. `weir.upkeep.gc.shard` holds the order of steps,
`weir.upkeep.gc.plan` the decisions, docs/internals/garbage-collection.md the reasons.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from msgspec import structs

from weir.config import FENCE_TTL
from weir.durations import Duration, seconds
from weir.env import Env
from weir.errors import (
    CorruptEntry,
    InvalidInput,
    NotAWeirTable,
    StoreError,
    WalStoreMismatch,
    WeirError,
)
from weir.format import paths
from weir.format.sharding import PerWriter
from weir.lake.api import Lake
from weir.log.site import ShardSite
from weir.meters import GC_BYTES, GC_OBJECTS, GC_SECONDS
from weir.records.marks import Marks
from weir.records.table import TableRecord, TableRecords
from weir.routing.core import Core
from weir.store.api import Store
from weir.upkeep.compact.jobs import keep_base_from
from weir.upkeep.compact.progress import require_no_lost_rows
from weir.upkeep.gc import records
from weir.upkeep.gc.pins import Chains, load_pins
from weir.upkeep.gc.plan import Ages
from weir.upkeep.gc.report import KINDS, GcReport, Kind, KindReport, Progress, Veto
from weir.upkeep.gc.run import GcRun
from weir.upkeep.gc.shard import collect_shards
from weir.upkeep.gc.tasks import WORKERS, Batch, Deleter, delete_batch
from weir.upkeep.parents import left_over_pins, settle_pins

__all__ = [
    "KINDS",
    "Batch",
    "GcReport",
    "KindReport",
    "Target",
    "collect",
    "delete_batch",
    "gc",
    "plan",
]

logger = logging.getLogger("weir.gc")

_SHARD_KINDS = frozenset({"wal", "manifests", "sstables"})


@dataclass(frozen=True)
class Target:
    """A table as collection sees it. Without `lake` the base is left alone and nothing pruned."""

    store: Store
    env: Env
    sites: Sequence[ShardSite]
    lake: Lake | None = None
    fence_ttl: float = FENCE_TTL
    """The longest any writer, also of a table dropped here, trusts a proof of ownership."""
    notes: Sequence[str] = ()
    """Notes on what could not be opened, for the report."""
    detach: Callable[[], Collection[str]] = tuple
    """Releases the pins in parents that this table no longer shares files with (C-14)."""
    former: Mapping[UUID, Sequence[ShardSite]] = field(default_factory=dict)
    """By shard, the reachable places that its log was moved away from (S-3)."""
    base_keep_from: Callable[[], int | None] = lambda: None
    """The lowest base version whose history unfinished work still reads (L-4)."""
    table_id: str | None = None
    """Identifies the table in planned deletions (S-8)."""
    workers: int = 1
    """Shards processed concurrently."""


def gc(
    core: Core,
    min_age: Duration = "15m",
    fence_retention: Duration = "7d",
    *,
    dry_run: bool = False,
    kinds: Collection[Kind] | None = None,
    progress: Progress | None = None,
    veto: Veto | None = None,
    workers: int = WORKERS,
) -> GcReport:
    """Delete objects that nothing refers to.

    `min_age` is slack for readers without a checkpoint, not a safety margin. `fence_retention` is
    how long the first entry of every epoch stays in the log, which is what stops a native writer
    that slept through a takeover; `InvalidInput` unless it is at least `min_age` and twice the
    `fence_ttl` of the table and of every table dropped at its place (C-16). `kinds` chooses among
    `KINDS`. `veto(kind, path)` keeps single objects. With `dry_run` nothing is written. A failing
    task is in `report.errors` and does not stop the others. One listing of the table, about ten
    small requests per shard, and one bulk request per thousand objects deleted. Raises
    `CorruptEntry` when another program rolled back or overwrote the base: the repair needs the
    later versions (L-8).
    """
    return collect(
        _checked(core),
        min_age,
        fence_retention,
        dry_run=dry_run,
        kinds=kinds,
        progress=progress,
        veto=veto,
        workers=workers,
    )


def plan(
    core: Core,
    min_age: Duration = "15m",
    fence_retention: Duration = "7d",
    *,
    kinds: Collection[Kind] | None = None,
    veto: Veto | None = None,
) -> tuple[GcReport, list[Batch]]:
    """Like `gc`, but return the deletions as tasks for `delete_batch` on another engine (P-5).

    Floors are raised and expired checkpoints ended here; the tasks can run at any later time, in
    any order, several times, or not at all.
    """
    tasks: list[Batch] = []
    report = collect(
        _checked(core), min_age, fence_retention, kinds=kinds, veto=veto, planned=tasks
    )
    return report, tasks


def _checked(core: Core) -> Target:
    """The parts of a table whose base still holds everything that was folded into it (L-8)."""
    core.record_number()  # C-16: not by a handle of a dropped table
    require_no_lost_rows(core)
    return target_of(core)


def target_of(core: Core) -> Target:
    """The parts of a table that collection works on."""
    found = core.env.threads.map(
        lambda shard: _place_of(core, shard), core.shard_ids(), workers=core.workers
    )
    sites = [place.site for place in found]
    notes = [note for place in found for note in place.notes]
    former = {place.site.shard: place.former for place in found if place.former}
    return Target(
        store=core.store,
        env=core.env,
        sites=sites,
        lake=core.lake,
        fence_ttl=TableRecords(core.store).longest_fence_ttl(),
        detach=lambda: settle_pins(core),
        notes=notes,
        former=former,
        base_keep_from=lambda: keep_base_from(core.store),
        table_id=str(core.record.table_id),
        workers=core.workers,
    )


class _Placed(NamedTuple):
    """Where a shard and its log are, and where the log was before."""

    site: ShardSite
    former: Sequence[ShardSite]
    notes: Sequence[str]


def _place_of(core: Core, shard: UUID) -> _Placed:
    former: list[ShardSite] = []
    notes: list[str] = []
    try:
        state = core.log(shard).state()
    except CorruptEntry:
        return _Placed(core.table_site(shard), (), ())  # reported when the shard is visited (G-10)
    try:
        place = core.wal_stores.place(shard, *state)
        if place.seq:
            former, notes = core.wal_stores.former(shard, place)
        return _Placed(core.wal_stores.site_at(shard, place), former, notes)
    except (WalStoreMismatch, StoreError) as error:
        # S-6: objects beside the data can still be collected.
        notes.append(f"the log of shard {shard} was not collected: {error}")
        return _Placed(core.table_site(shard), former, notes)


def collect(
    target: Target,
    min_age: Duration = "15m",
    fence_retention: Duration = "7d",
    *,
    dry_run: bool = False,
    kinds: Collection[str] | None = None,
    progress: Progress | None = None,
    veto: Veto | None = None,
    workers: int = WORKERS,
    planned: list[Batch] | None = None,
    keep_first_entries: bool = True,
) -> GcReport:
    """`gc` on the parts of a table.

    `keep_first_entries=False` disables a safety lock and is for tests only (G-7a).
    """
    ages = _ages(target, min_age, fence_retention, keep_first_entries=keep_first_entries)
    chosen = _kinds(kinds)
    report = GcReport(dry_run=dry_run, skipped=list(target.notes))
    began = target.env.clock.boottime()
    deleter = Deleter(target.env, report, dry_run, workers, progress, planned, target.table_id)
    now = target.store.now()
    chains = Chains(target.store)
    job = GcRun(
        lake=target.lake,
        ages=ages,
        kinds=chosen,
        report=report,
        deleter=deleter,
        env=target.env,
        chains=chains,
        pins=lambda: load_pins(chains, now, ignore_expired=dry_run),
        now=now,
        workers=target.workers,
        veto=veto,
        former=target.former,
    )
    _run_tasks(target, job, now)
    report.seconds = target.env.clock.boottime() - began
    if not dry_run:
        meters = target.env.meters
        meters.observe(GC_SECONDS, report.seconds)
        meters.add(GC_OBJECTS, report.deleted)
        meters.add(GC_BYTES, report.deleted_bytes)
    logger.info(
        "gc.done table=%s deleted=%d errors=%d seconds=%.3f",
        target.store.uri,
        report.deleted,
        len(report.errors),
        report.seconds,
    )
    return report


def _run_tasks(target: Target, job: GcRun, now: float) -> None:
    """Run all tasks in order: end expired chains, collect what they held, then their records."""
    chosen, report, deleter, dry_run = job.kinds, job.report, job.deleter, job.dry_run
    tasks = _Tasks(job)
    for kind in ("checkpoints", "consumers"):
        if kind in chosen:
            tasks.run(
                kind,
                lambda kind=kind: records.end_expired(  # type: ignore[misc]
                    job.chains, kind, now, report, dry_run=dry_run
                ),
            )
    if "checkpoints" in chosen:
        tasks.run("pins of clones", lambda: _name_left_over_pins(target, report))
    if "base" in chosen:
        tasks.run(
            "tags",
            lambda: records.release_tags(job.chains, target.lake, report, dry_run=dry_run),
        )
    if chosen & _SHARD_KINDS:
        finished = collect_shards(target.sites, job)
        if finished and not dry_run:
            tasks.run("finished shards", lambda: _record_finished(target, finished))
    for kind in ("checkpoints", "consumers"):
        if kind in chosen:
            tasks.run(
                kind,
                lambda kind=kind: records.collect_chains(  # type: ignore[misc]
                    job.chains, kind, now, job.ages, deleter, job.veto
                ),
            )
    if "leftovers" in chosen:
        tasks.run(
            "leftovers",
            lambda: records.collect_leftovers(target.store, now, job.ages, deleter, job.veto),
        )
    if "base" in chosen:
        tasks.run("base", lambda: _clean_base(target, job.ages, report, dry_run=dry_run))
        if not dry_run:
            tasks.run("pins in parents", lambda: _detach(target, report))


def _record_finished(target: Target, shards: Mapping[UUID, int]) -> None:
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

    records_ = TableRecords(target.store)
    record = records_.find()
    if record is None or finish(record) == record:
        return
    records_.update(finish, target.env)
    logger.info("gc.finished table=%s shards=%d", target.store.uri, len(shards))


class _Tasks:
    """Runs tasks one after the other; one that fails is reported, the others go on (G-10)."""

    def __init__(self, job: GcRun) -> None:
        self._job = job

    def run(self, name: str, task: Callable[[], None]) -> None:
        try:
            task()
        except WeirError as error:
            self._job.fail(name, error)


def _ages(
    target: Target, min_age: Duration, fence_retention: Duration, *, keep_first_entries: bool
) -> Ages:
    slack = seconds(min_age, name="min_age")
    retention = seconds(fence_retention, name="fence_retention")
    least = max(slack, 2 * target.fence_ttl)
    if retention < least:
        raise InvalidInput(
            f"fence_retention is {retention:g} s but must be at least {least:g} s: no less than"
            f" min_age ({slack:g} s) and twice the longest fence_ttl ({target.fence_ttl:g} s) of"
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


def _name_left_over_pins(target: Target, report: GcReport) -> None:
    """Say which pins no collection ends: those of clones that were never finished (C-3)."""
    report.skipped += [
        f"checkpoint {pin.id} was kept: it belongs to the clone {pin.owner}, which was not finished"
        " in a day. Run the same clone again, or give it up:"
        f" table.release_clone({pin.owner!r}), or weir checkpoint release"
        for pin in left_over_pins(target.store)
    ]


def _detach(target: Target, report: GcReport) -> None:
    """Run a pass of C-14; a parent out of reach keeps its pin until a later pass reaches it."""
    try:
        for parent in target.detach():
            logger.info("gc.detached table=%s parent=%s", target.store.uri, parent)
    except (StoreError, NotAWeirTable) as error:
        report.skipped.append(f"the pin in a parent was kept: {error}")


def _clean_base(target: Target, ages: Ages, report: GcReport, *, dry_run: bool) -> None:
    """Run Lance's own clean-up, which keeps tagged versions; checkpoints hold theirs by tags."""
    clean = getattr(target.lake, "cleanup_old_versions", None)
    if clean is None:
        report.skipped.append("base: this lake cannot clean up old versions")
        return
    assert target.lake is not None, "a lake that can clean up"
    wanted = target.base_keep_from()
    latest = target.lake.open_base().version
    keep_from = latest if wanted is None else min(wanted, latest)
    if not dry_run and keep_from > 1:
        # Raised before Lance reads the tags: a checkpoint that pins one of these versions, or a
        # commit to one of these numbers, reads the floor after its own write and gives up.
        floor = Marks(target.store, paths.base_floor_dir())
        floor.raise_to(keep_from - 1)
        floor.trim()
    cleaned = clean(timedelta(seconds=ages.min_age), keep_from=keep_from, dry_run=dry_run)
    part = report.kind("base")
    part.seen += cleaned.versions
    part.seen_bytes += cleaned.bytes
    part.deleted += cleaned.versions
    part.deleted_bytes += cleaned.bytes
