"""Keeps compactors away while the base is changed in another way (restore, reshard, loads).

Takes the claim of the compactors: a record in their chain, then a fence in the base. A running
compactor can no longer commit; a later one finds the claim. A job that died after its commit is
completed first (L-4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, cast

from weir.errors import CommitConflict, SnapshotExpired
from weir.format.schema import TableSchema
from weir.lake.base.fence import FENCE
from weir.lake.pylance_lake import PylanceLake
from weir.records.table import TableRecords
from weir.routing.core import Core
from weir.routing.guard import look_for_rivals
from weir.routing.natives import update_mem_wal_index, wanted_mem_wal_index
from weir.routing.shards import schema_for_writing
from weir.upkeep.compact.finish import Finisher
from weir.upkeep.compact.jobs import Job, JobRecord, Jobs, Renewal
from weir.upkeep.compact.progress import may_have_lost, require_no_lost_rows
from weir.upkeep.compact.run import CompactReport
from weir.upkeep.pinning import require_above_base_floor
from weir.upkeep.tasks import Progress

CLAIM_ATTEMPTS: Final = 16


class CompactionClaim:
    """A held claim."""

    def __init__(self, core: Core, record: JobRecord) -> None:
        self._core = core
        self._renewal = Renewal(Jobs(core.store), record, core.env)

    @property
    def record(self) -> JobRecord:
        """The record that stands for the claim."""
        return self._renewal.record

    def renewing(self, progress: Progress | None) -> Progress:
        """`progress`, wrapped to renew the claim too, for work that outlasts the lease."""
        return self._renewal.renewing(progress)

    def plan(self, job: Job) -> None:
        """Record a job before its commit, so that the next holder can complete it (L-4).

        `CommitConflict` when a compactor has taken over the claim.
        """
        self._renewal.step("planned", job)

    def finish(self, job: Job) -> None:
        """Complete a planned job after its commit."""
        finisher = Finisher(self._core, CompactReport())
        finisher.finish(job)
        self._renewal.record = self.record.having(finisher.reached)

    def forget_progress(self) -> None:
        """L-8: the base is about to be rolled back, and the shards with it."""
        self._renewal.record = replace(self.record, reached={})
        self._renewal.step("claimed", None)

    def end(self) -> None:
        """Release the claim."""
        self._renewal.step("done", None)

    def require(self) -> None:
        """Raise `CommitConflict` when a compactor has taken over the claim."""
        latest = Jobs(self._core.store).latest()
        if latest is None or latest.seq != self.record.seq or latest.token != self.record.token:
            raise CommitConflict(
                f"{self._core.uri}: a compaction took over while this ran; run it again"
            )

    def require_since(self, version: int) -> None:
        """Raise `CommitConflict` when another holder fenced the base after that version."""
        lake = cast("PylanceLake", self._core.lake)
        try:
            alone = all(
                properties.get(FENCE) in (None, self.record.token)
                for _, properties in lake.commit_properties(after_version=version)
            )
        except SnapshotExpired:
            # Those versions were cleaned up (G-12): the claim itself has to decide.
            self.require()
            alone = True
        if not alone:
            raise CommitConflict(
                f"{self._core.uri}: another process took over while this ran; run it again"
            )


def claim_compaction(core: Core) -> CompactionClaim:
    """Take the compactors' claim. Without `end`, others may take it over after its lease."""
    lake = cast("PylanceLake", core.lake)
    jobs = Jobs(core.store)
    for _ in range(CLAIM_ATTEMPTS):
        try:
            record = jobs.claim(str(core.env.new_id()), jobs.latest())
            break
        except CommitConflict:
            continue
    else:
        raise CommitConflict(
            f"{core.uri}: compactions claimed it first {CLAIM_ATTEMPTS} times; try again later"
        )
    require_above_base_floor(core, lake.fence_base(record.token))
    if record.job is not None:
        # L-4: its fold may be in the base without its marks, and nobody after us knows of it.
        finisher = Finisher(core, CompactReport())
        finisher.complete(record.job)
        record = record.having(finisher.reached)
    return CompactionClaim(core, record)


@contextmanager
def without_compaction(core: Core) -> Iterator[CompactionClaim]:
    """Hold the compactors' claim. A crash leaves it to the next compactor, after its lease."""
    hold = claim_compaction(core)
    yield hold
    # Not in a `finally`: the next holder of the claim finds what was left half done.
    hold.end()


def before_writing(core: Core) -> TableSchema:
    """Check the table before this handle writes; returns the schema to write with.

    Shuts out native writers that could not share the logs (X-1); that takes no request unless the
    table is of format 1, or this handle moves the log away from the data. Raises `CorruptEntry`
    when another program removed rows that the base held (L-8). Finds shards that other programs
    made, and refuses writers of their values (X-3). The requests run in parallel with those for the
    schema: a list and a get for the chain of compactions, a listing of the shards.
    """
    place = core.record.wal_uri or core.uri
    leaves = core.wal_uri is not None and core.wal_uri not in (place, core.uri)
    if leaves or (core.record.format == 1 and core.record.spec == 1):
        sync_mem_wal_index(core, elsewhere=leaves)
    asked: list[Callable[[], Any]] = [
        core.base,
        Jobs(core.store).latest,
        lambda: look_for_rivals(core),
    ]
    base, record, _ = core.env.threads.map(lambda ask: ask(), asked, workers=core.workers)
    if record is not None and may_have_lost(base, record.reached):
        require_no_lost_rows(core)
    return schema_for_writing(core, base)


def sync_mem_wal_index(core: Core, *, elsewhere: bool = False) -> bool:
    """Make the MemWAL index entry say who may write (X-1); True when it had to be changed.

    One read of the base when the entry is right; otherwise one commit under the compactors' claim.
    """
    if core.record.format == 1 and core.record.spec == 1:
        # LanceDB looks for spec 1, under which this table's shards were made: do not offer it.
        core.record = TableRecords(core.store).update(
            lambda record: replace(record, spec=2) if record.spec == 1 else record
        )
    if wanted_mem_wal_index(core, elsewhere=elsewhere) is None:
        return False
    with without_compaction(core):
        return update_mem_wal_index(core, elsewhere=elsewhere)
