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
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from weir.durations import Duration, seconds
from weir.errors import (
    CommitConflict,
    FencedError,
    MissingEntry,
    SealedShard,
    SnapshotExpired,
    UnknownOutcome,
)
from weir.format.manifest import ShardManifest
from weir.lake.api import Base
from weir.lake.base.fold import BaseFence, VersionEdit, combine
from weir.lake.base.fold_commit import hide_nothing
from weir.meters import COMPACT, COMPACT_ROWS, COMPACT_SECONDS, Facts
from weir.read.survey import ShardSurvey, Survey, survey
from weir.routing.core import Core
from weir.routing.natives import try_update_mem_wal_index
from weir.upkeep.compact.claim import Claim, take_claim
from weir.upkeep.compact.jobs import PROGRESS, FoldProgress, Job, JobRecord, Jobs
from weir.upkeep.compact.logs import publish_closed
from weir.upkeep.compact.plan import (
    PendingShard,
    find_open_logs,
    find_pending,
    make_job,
    unfolded_log_notes,
)
from weir.upkeep.compact.progress import may_have_lost, require_no_lost_rows
from weir.upkeep.compact.split import hide_tasks, make_tasks
from weir.upkeep.compact.tidying import tidy
from weir.upkeep.defaults import LEASE
from weir.upkeep.expire import drop_expired, drops_at
from weir.upkeep.indexes import lacking
from weir.upkeep.owner import Owner
from weir.upkeep.pinning import require_above_base_floor
from weir.upkeep.silent import seal_silent
from weir.upkeep.tasks import LOCAL, Progress, Result, Runner
from weir.upkeep.unfinished import require_settled

logger = logging.getLogger("weir.compact")


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
    """Log entries that R passed: their rows were folded, as they were or as SSTables (L-6)."""
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
    engine: Runner = LOCAL,
    fold_wal: bool | None = None,
    cluster: bool = False,
    indexes: bool = True,
    rewrite: bool | None = None,
    lease: Duration = LEASE,
    progress: Progress | None = None,
) -> CompactReport:
    """See `Table.compact`."""
    core.record_number()  # C-16: not by a handle of a dropped table
    run = _Run(core, engine, fold_wal, progress)
    began = run.core.env.clock.boottime()

    def act() -> CompactReport:
        report = run.fold(cluster=cluster, lease=seconds(lease, name="lease"))
        if report.skipped is None:
            report.rows_expired = drop_expired(core)
        has_changed = report.base_version is not None or report.rows_expired > 0
        if has_changed or (indexes and report.skipped is None and lacking(core)):
            report.notes += tidy(
                core, indexes=indexes, rewrite=rewrite, engine=engine, progress=progress
            )
        return report

    try:
        report = core.env.meters.traced(COMPACT, act, run.facts, core.env.clock)
    except CommitConflict:
        core.record_number()  # C-16: raises when it was dropped
        raise
    except SealedShard as sealed:  # guard: C-11 test_compaction_says_what_to_do
        core.record_number()  # C-16: raises when it was dropped
        raise CommitConflict(
            f"{core.uri}: the table was resharded while this compaction ran ({sealed}); run compact"
            " again"
        ) from sealed
    report.seconds = run.core.env.clock.boottime() - began
    core.env.meters.add(COMPACT_SECONDS, report.seconds)
    core.env.meters.add(COMPACT_ROWS, report.rows_written)
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
    job: Job | None = None
    """What was planned."""

    def facts(self) -> Facts:
        """The compaction in a span: each shard with its epoch when it was planned."""
        cuts = () if self.job is None else self.job.snapshot.cuts
        return {
            "weir.table": self.core.uri,
            "weir.engine": self.runner.name,
            "weir.job": "" if self.job is None else self.job.id,
            "weir.rows": self.report.rows_written,
            "weir.shards": [str(cut.shard) for cut in cuts],
            "weir.epochs": [int(cut.epoch) for cut in cuts],
        }

    def fold(self, *, cluster: bool, lease: float) -> CompactReport:
        self.report.engine = self.runner.name
        jobs = Jobs(self.core.store)
        before = jobs.latest()
        is_open = before is not None and before.is_open
        seen = self._survey()
        has_work = self._has_work(seen, before)
        if before is not None and is_open and self._is_young(before, lease):
            self.report.skipped = (
                f"another compaction claimed the table less than {lease:g} s ago (record"
                f" {before.seq}); if it was killed, run again later, or with lease=0 (weir compact"
                " --lease 0s)"
            )
            return self.report
        require_settled(self.core, "compact")
        if self._sealed_silent(seen):
            seen = self._survey()
            has_work = self._has_work(seen, before)
        folded: Collection[UUID] = ()
        if has_work or is_open:
            record = jobs.claim(str(self.core.env.new_id()), before)
            with take_claim(self.core, record) as claim:
                try_update_mem_wal_index(self.core, self.report.notes)
                seen = self._published(self._still(seen, claim))
                folded = self._fold(seen, claim, cluster=cluster)
            self.report.wal_entries += claim.finished.wal_entries
            self.report.completed = claim.finished.completed
            self.report.notes += claim.finished.notes
        if self.fold_wal is not False:
            self.report.notes += unfolded_log_notes(self.core, seen, folded)
        return self.report

    def _sealed_silent(self, seen: Survey) -> bool:
        """Seal shards whose writers are taken for dead; True if there were any (C-18)."""
        sealed, notes = seal_silent(self.core, seen)
        self.report.notes += notes
        return sealed > 0

    def _survey(self) -> Survey:
        return survey(self.core, logs=self.fold_wal is not False)

    def _still(self, seen: Survey, claim: Claim) -> Survey:
        """The survey from before the claim, if the base holds what it held then.

        L-4: another fold may have come between. Its log entries, folded once more, would hide
        newer rows that it folded too. A base that differs by our fence alone shows that none did.
        """
        base = self.core.base()
        if claim.took_over or base.version != seen.base.version + 1:
            return self._survey()
        return replace(seen, base=base)

    def _fold(self, seen: Survey, claim: Claim, *, cluster: bool) -> Collection[UUID]:
        """Fold what waits, in one commit; returns the shards whose logs were folded as they are."""
        base = seen.base
        if _is_unmarked(base):
            # L-7: another program restored a version from between a fold's commit and its mark.
            self.core.lake.mark_compacted(base.compacted)
            base = self.core.base()
            seen = replace(seen, base=base)
        waiting = self._pending(seen)
        if not waiting:
            return ()
        at = drops_at(self.core, base)
        job = make_job(str(self.core.env.new_id()), base, waiting, at=at, number=claim.number)
        # Includes what was folded by older releases, which kept no such memory.
        claim.remember({s: FoldProgress.of([g]) for s, g in base.compacted.items()})
        claim.plan(job)
        self.job = job
        self.core.env.failpoint("compact.planned")
        tasks = make_tasks(
            job,
            base,
            waiting,
            engine="local" if self.runner.name == "local" else "spark",
            slots=self.runner.slots,
            cluster=cluster,
        )
        try:
            results = self.runner.run(self.core, tasks, self.progress)
            self.core.env.failpoint("compact.written")
            changes = combine(VersionEdit.from_json(result["changes"]) for result in results)
            version = self._commit(job, claim.fence, changes)
        except (MissingEntry, SnapshotExpired) as gone:
            if not claim.is_held:
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
        claim.finish(job)
        claim.end()
        self._tell(job, version, waiting, results)
        return job.wal

    def _pending(self, seen: Survey) -> list[PendingShard]:
        """What is folded as it is; logs that `fold_wal` flushes are SSTables by now."""
        return find_pending(self.core, seen, fold_wal=None if self.fold_wal else self.fold_wal)

    def _is_as_planned(self, job: Job) -> bool:
        """True when a plan made now would read the same inputs."""
        seen = self._survey()
        waiting = self._pending(seen)
        return bool(waiting) and make_job(job.id, seen.base, waiting, number=job.number) == job

    def _has_work(self, seen: Survey, before: JobRecord | None) -> bool:
        """Whether anything waits; `CorruptEntry` for a base that lost rows (L-8)."""
        # guard: L-8 test_rolled_back_base
        if before is not None and may_have_lost(seen.base, before.reached):
            require_no_lost_rows(self.core)
        return (
            _is_unmarked(seen.base)
            or bool(find_open_logs(self.core, seen, fold_wal=self.fold_wal))
            or bool(self._pending(seen))
        )

    def _is_young(self, record: JobRecord, lease: float) -> bool:
        if record.state == "left" or not lease:
            return False
        return self.core.store.now() - record.written < lease

    def _commit(self, job: Job, fence: BaseFence, changes: VersionEdit) -> int:
        def hide(version: int, fragments: Sequence[int]) -> VersionEdit:
            # L-8: others changed the base since the plan. The rows to write are the same; only new
            # or changed fragments are searched for the rows they replace.
            base = self.core.lake.open_base(version)
            tasks = hide_tasks(job, base, fragments, self.runner.slots)
            results = self.runner.run(self.core, tasks, self.progress)
            return combine(VersionEdit.from_json(result["changes"]) for result in results)

        try:
            version = self.core.lake.commit_fold(
                changes,
                claim=fence,
                planned_at=job.planned_at,
                fold_id=job.id,
                properties={PROGRESS: job.progress()},
                folded=job.folded_generations,
                number=job.number,
                hide=hide if self.core.record.primary_key else hide_nothing,
            )
        except UnknownOutcome as unknown:  # guard: L-7 test_compaction_says_what_to_do
            # The fold and its note are one commit (L-4): a plan made now knows what is in the base.
            raise UnknownOutcome(
                f"{self.core.uri}: it is not known whether compaction {job.id} was committed,"
                " because another program cleaned up the versions that show it. Run compact again,"
                " with lease=0: it folds what is not in the base yet, and nothing twice"
            ) from unknown
        return require_above_base_floor(self.core, version)

    def _published(self, seen: Survey) -> Survey:
        """Turn logs into SSTables, where they cannot be folded as they are (X-10).

        Returns the survey with what became of those shards.
        """

        def publish(one: ShardSurvey) -> ShardManifest | str:
            try:
                if self.fold_wal and not one.manifest.is_left:
                    return Owner(self.core, one.id).flush()
                return publish_closed(self.core, one)
            except (CommitConflict, FencedError) as lost:
                return str(lost)

        logs = find_open_logs(self.core, seen, fold_wal=self.fold_wal)
        if not logs:
            return seen
        done = self.core.env.threads.map(publish, logs, workers=self.core.workers)
        changed = []
        for one, manifest in zip(logs, done, strict=True):
            if isinstance(manifest, str):
                self.report.notes.append(manifest)
                continue
            self.report.wal_entries += manifest.replay_after - one.manifest.replay_after
            changed.append(one.at(manifest))
        if self.core.record_number() != seen.number:
            return self._survey()  # C-11: a reshard came between
        return seen.having(changed, self.core.base())

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


def _is_unmarked(base: Base) -> bool:
    """True when the base holds generations that are not marked for native readers (L-7)."""
    marked = {} if base.mem_wal is None else base.mem_wal.compacted
    return base.mem_wal is not None and any(
        number > marked.get(shard, 0) for shard, number in base.compacted.items()
    )
