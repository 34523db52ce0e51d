"""Compaction: SSTables, and the logs of WAL-only shards, into the base table.

Keeps
  L-4  claim, fence, plan, tasks, one base commit with the progress of all shards in its properties,
       marks for native readers, done: a crashed run is completed by the next, and of two
       concurrent runs one wins
  L-5  readers see every row once at each of these moments (`weir.lake.base.folded`)
  L-6  a log is folded when no writer keeps its rows in memory (the shard is sealed, or its owner
       has no MemTable), or on request
docs/internals/compaction.md describes the steps in order.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, cast
from uuid import UUID

from weir.durations import Duration, seconds
from weir.errors import CommitConflict, FencedError, MissingEntry, SnapshotExpired
from weir.format import paths
from weir.lake.api import Base
from weir.lake.base.fold import BaseFence, VersionEdit, combine
from weir.lake.base.fold_commit import hide_nothing
from weir.lake.pylance_lake import PylanceLake
from weir.routing.core import Core, HasCore
from weir.routing.natives import try_update_mem_wal_index
from weir.types import Position
from weir.upkeep.compact.finish import Finisher
from weir.upkeep.compact.jobs import PROGRESS, FoldProgress, Job, JobRecord, Jobs, Renewal
from weir.upkeep.compact.logs import OpenLog, flush_claiming, open_log, publish_closed
from weir.upkeep.compact.plan import (
    PendingShard,
    find_pending,
    folds_log,
    make_job,
    unfolded_log_notes,
)
from weir.upkeep.compact.progress import may_have_lost, require_no_lost_rows
from weir.upkeep.compact.split import hide_tasks, make_tasks
from weir.upkeep.compact.tidying import tidy
from weir.upkeep.expire import drop_expired, drops_at
from weir.upkeep.pinning import require_above_base_floor
from weir.upkeep.tasks import LocalRunner, Progress, Result, Runner

logger = logging.getLogger("weir.compact")

LEASE: Final = "15m"
"""How long a claim that is not renewed keeps others away; then its owner is fenced and replaced."""


@dataclass
class CompactReport:
    """What a compaction did."""

    engine: str = "local"
    job: str | None = None
    """Its id, as in the properties of its base commit; None when there was nothing to do."""
    base_version: int | None = None
    """The base version that contains its rows."""
    generations: dict[UUID, int] = field(default_factory=dict)
    """Per shard the highest generation folded."""
    sstables: int = 0
    wal_entries: int = 0
    """Log entries folded directly (L-6)."""
    rows_written: int = 0
    rows_deleted: int = 0
    """Keys whose newest row is a delete, or has expired."""
    rows_expired: int = 0
    """Rows of the base that had expired and were dropped."""
    tasks: int = 0
    completed: str | None = None
    """An earlier job, committed but unfinished, that this run completed first."""
    skipped: str | None = None
    """Why nothing was done although there may be work."""
    notes: list[str] = field(default_factory=list)
    """What was left, and why: for example, rows that stay in the log of an active writer."""
    seconds: float = 0.0

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready values."""
        values = dict(vars(self))
        values["generations"] = {str(s): g for s, g in self.generations.items()}
        return values


def compact(
    core: Core,
    *,
    engine: Literal["local"] | Runner = "local",
    fold_wal: bool | None = None,
    cluster: bool = False,
    indexes: bool = True,
    rewrite: bool | None = None,
    lease: Duration = LEASE,
    progress: Progress | None = None,
) -> CompactReport:
    """Fold everything that waits into the base, in one commit; return what was done.

    `fold_wal` also folds log entries that are in no SSTable. None: those that no writer keeps in
    memory, which is all that Spark and WAL-only writers wrote; True: those of MemTable writers too,
    which ends such a writer at its next flush, and on append-only tables fences the writers (their
    rows are safe); False: only those of sealed shards. `report.notes` lists what stays in a log.
    `cluster` sorts new files by key. `indexes` extends the base's indexes to the new rows.
    `rewrite` also rewrites small files; None: when there are many. Safe to run beside anything,
    another compaction included: a run that finds a claim younger than `lease` does nothing
    (`report.skipped`); one that lost its claim raises `CommitConflict`.
    """
    runner = LocalRunner() if isinstance(engine, str) else engine
    run = _Run(core, runner, fold_wal, progress)
    began = run.core.env.clock.boottime()
    report = run.fold(cluster=cluster, lease=seconds(lease, name="lease"))
    if report.skipped is None:
        report.rows_expired = drop_expired(core)
    if report.base_version is not None or report.rows_expired:
        report.notes += tidy(
            core, indexes=indexes, rewrite=rewrite, engine=runner, progress=progress
        )
    if fold_wal is not False and report.skipped is None:
        report.notes += unfolded_log_notes(core)
    report.seconds = run.core.env.clock.boottime() - began
    logger.info(
        "compact.done table=%s job=%s rows=%d deleted=%d seconds=%.3f",
        run.core.uri,
        report.job,
        report.rows_written,
        report.rows_deleted,
        report.seconds,
    )
    return report


@dataclass
class _Run:
    """One attempt."""

    core: Core
    runner: Runner
    fold_wal: bool | None
    progress: Progress | None
    report: CompactReport = field(default_factory=CompactReport)

    @cached_property
    def _finisher(self) -> Finisher:
        return Finisher(self.core, self.report)

    @property
    def lake(self) -> PylanceLake:
        return cast("PylanceLake", self.core.lake)

    def fold(self, *, cluster: bool, lease: float) -> CompactReport:
        self.report.engine = self.runner.name
        jobs = Jobs(self.core.store)
        before = jobs.latest()
        is_open = before is not None and before.is_open
        if not self._has_work(before) and not is_open:
            return self.report
        if before is not None and is_open and self._is_young(before, lease):
            self.report.skipped = (
                f"another compaction claimed the table less than {lease:g} s ago (record"
                f" {before.seq}); if it died, run again later or with lease=0"
            )
            return self.report
        token = str(self.core.env.new_id())
        record = jobs.claim(token, before)
        self.core.env.failpoint("compact.claimed")
        claim = BaseFence(token, require_above_base_floor(self.core, self.lake.fence_base(token)))
        self.core.env.failpoint("compact.fenced")
        if record.job is not None:
            self._finisher.complete(record.job)
            record = record.having(self._finisher.reached)
        try_update_mem_wal_index(self.core, self.report.notes)
        self._publish_logs()
        base, waiting = find_pending(self.core, fold_wal=self.fold_wal)
        if _is_unmarked(base):
            # L-7: another program restored a version from between a fold's commit and its mark.
            self.lake.mark_compacted(base.compacted)
            base, waiting = find_pending(self.core, fold_wal=self.fold_wal)
        if not waiting:
            jobs.step(record, "done", None)
            return self.report
        at = drops_at(self.core, base)
        job = make_job(str(self.core.env.new_id()), base, waiting, at=at, number=record.seq)
        # Includes what was folded by older releases, which kept no such memory.
        record = record.having({s: FoldProgress.of([g]) for s, g in base.compacted.items()})
        record = jobs.step(record, "planned", job)
        self.core.env.failpoint("compact.planned")
        tasks = make_tasks(
            job,
            base,
            waiting,
            engine="local" if self.runner.name == "local" else "spark",
            slots=self.runner.slots,
            cluster=cluster,
        )
        renewal = Renewal(jobs, record, self.core.env)
        try:
            tell = renewal.renewing(self.progress)
            results = self.runner.run(self.core, tasks, tell)
            self.core.env.failpoint("compact.written")
            changes = combine(VersionEdit.from_json(result["changes"]) for result in results)
            version = self._commit(job, claim, changes, tell)
        except (MissingEntry, SnapshotExpired) as gone:
            latest = jobs.latest()
            if latest is None or latest.seq != renewal.record.seq:
                raise CommitConflict(
                    f"{self.core.uri}: another compactor took over, and the inputs of this one"
                    f" were collected ({gone}); nothing was committed"
                ) from None
            if self._is_as_planned(job):
                raise
            raise SnapshotExpired(
                f"{self.core.uri}: inputs of this compaction were flushed, moved or collected"
                f" while it ran ({gone}); compact again"
            ) from None
        self.core.env.failpoint("compact.committed")
        self._finisher.finish(job)
        jobs.step(renewal.record.having(self._finisher.reached), "done", None)
        self._tell(job, version, waiting, results)
        return self.report

    def _is_as_planned(self, job: Job) -> bool:
        """True when a plan made now would read the same inputs."""
        base, waiting = find_pending(self.core, fold_wal=self.fold_wal)
        return bool(waiting) and make_job(job.id, base, waiting, number=job.number) == job

    def _has_work(self, before: JobRecord | None) -> bool:
        """Whether anything waits; `CorruptEntry` for a base that lost rows (L-8)."""
        base, waiting = find_pending(self.core, fold_wal=self.fold_wal)
        if before is not None and may_have_lost(base, before.reached):
            require_no_lost_rows(self.core)
        return bool(waiting) or _is_unmarked(base) or bool(self._open_logs())

    def _is_young(self, record: JobRecord, lease: float) -> bool:
        return lease > 0 and self.core.store.now() - record.written < lease

    def _commit(self, job: Job, claim: BaseFence, changes: VersionEdit, tell: Progress) -> int:
        def hide(version: int, fragments: Sequence[int]) -> VersionEdit:
            # L-8: others changed the base since the plan. The rows to write are the same; only new
            # or changed fragments are searched for the rows they replace.
            base = self.lake.open_base(version)
            tasks = hide_tasks(job, base, fragments, self.runner.slots)
            results = self.runner.run(self.core, tasks, tell)
            return combine(VersionEdit.from_json(result["changes"]) for result in results)

        version = self.lake.commit_fold(
            changes,
            claim=claim,
            planned_at=job.planned_at,
            fold_id=job.id,
            properties={PROGRESS: job.progress()},
            folded=job.folded_generations,
            number=job.number,
            hide=hide if self.core.record.primary_key else hide_nothing,
        )
        return require_above_base_floor(self.core, version)

    def _open_logs(self) -> list[OpenLog]:
        """Append-only shards whose log may be turned into SSTables, and the end of each log."""
        if self.core.record.primary_key:
            return []
        found = []
        for shard in self.core.shard_ids():
            manifest = self.core.log(shard).latest()
            if manifest is None or not folds_log(self.core, manifest, fold_wal=self.fold_wal):
                continue
            opened = open_log(self.core, manifest)
            if opened.through > manifest.replay_after:
                found.append(opened)
        return found

    def _publish_logs(self) -> None:
        for opened in self._open_logs():
            before = opened.manifest.replay_after
            try:
                if self.fold_wal and not opened.is_ended:
                    flush_claiming(self.core, opened.manifest.shard_id)
                    self.report.wal_entries += opened.through - before
                    continue
                made = publish_closed(self.core, opened)
            except (CommitConflict, FencedError) as lost:
                self.report.notes.append(str(lost))
                continue
            self.report.wal_entries += opened.through - before if made else 0

    def _tell(
        self, job: Job, version: int, waiting: Sequence[PendingShard], results: Sequence[Result]
    ) -> None:
        report = self.report
        report.job = job.id
        report.base_version = version
        report.generations = job.folded_generations
        report.sstables = sum(len(w.cut.sstables) for w in waiting)
        report.tasks = len(results)
        report.rows_written = sum(result["written"] for result in results)
        report.rows_deleted = sum(result["deleted"] for result in results)


@dataclass(frozen=True)
class CompactionPolicy:
    """When a table is due for compaction: whichever bound is reached first."""

    generations: int = 8
    """Waiting SSTables of one shard. Each costs a reader some milliseconds."""
    bytes: int = 256 << 20
    """Waiting bytes of all shards together."""
    age: Duration | None = "1h"
    """How long the oldest waiting SSTable or log entry has waited; None: no limit."""
    entries: int = 2_500
    """Waiting log entries of one shard, where logs are folded. Each costs a reader a request."""

    def due(self, table: HasCore) -> str | None:
        """The reason to compact now, or None. Two requests a shard, and a few more for the age."""
        core = table.core
        _, waiting = find_pending(core, fold_wal=None)
        if not waiting:
            return None
        most = max(waiting, key=lambda w: len(w.cut.sstables))
        if len(most.cut.sstables) >= self.generations:
            return f"{len(most.cut.sstables)} generations of shard {most.cut.shard} wait"
        longest = max(waiting, key=lambda w: w.cut.wal_through - w.cut.replay_after)
        entries = longest.cut.wal_through - longest.cut.replay_after
        if entries >= self.entries:
            return f"{entries} log entries of shard {longest.cut.shard} wait"
        total = sum(w.nbytes for w in waiting)
        if total >= self.bytes:
            return f"{total} bytes wait"
        if self.age is None:
            return None
        oldest = _oldest(core, waiting)
        limit = seconds(self.age, name="age")
        if oldest is not None and core.store.now() - oldest >= limit:
            return f"the oldest SSTable or log entry has waited {core.store.now() - oldest:.0f} s"
        return None


def _is_unmarked(base: Base) -> bool:
    """True when the base holds generations that are not marked for native readers (L-7)."""
    marked = {} if base.mem_wal is None else base.mem_wal.compacted
    return base.mem_wal is not None and any(
        number > marked.get(shard, 0) for shard, number in base.compacted.items()
    )


def _oldest(core: Core, waiting: Sequence[PendingShard]) -> float | None:
    """When the oldest waiting SSTable or entry was written, by the store's clock."""
    times: list[float] = []
    for one in waiting:
        cut = one.cut
        if cut.sstables:
            folder = paths.sstable_dir(cut.shard, cut.sstables[0].path)
            times += [meta.last_modified for meta in core.store.list(folder)][:1]
        if cut.wal_through > cut.replay_after:
            first = paths.wal_path(cut.shard, Position(cut.replay_after + 1))
            entry = core.site(cut.shard).wal.head(first)
            times += [] if entry is None else [entry.last_modified]
    return min(times, default=None)
