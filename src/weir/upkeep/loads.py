"""Loads straight into the base, bypassing the log; older rows are folded first, or replaced.

Deletes of an append-only table are such a load, too: it brings no row, and hides some.

Keeps
  L-7  a replacing load is a job like a fold: planned in the compactors' chain, committed with a
       note of the generations it ends, and completed by the next holder of the claim if it dies
  L-9  loaded rows are newer than all rows written before: those are first flushed to SSTables and,
       unless the load replaces them, folded into the base
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from weir.errors import (
    CommitConflict,
    FencedError,
    MissingEntry,
    SealedShard,
    SnapshotExpired,
    UnknownOutcome,
    WeirError,
)
from weir.format.keys import pk_values
from weir.format.manifest import ShardManifest
from weir.lake.api import Base
from weir.lake.base import fold
from weir.lake.base.fold import BaseFence, Offsets, VersionEdit
from weir.lake.base.fold_commit import LOAD, WHOLE, hide_nothing
from weir.read.snapshot import Snapshot
from weir.read.survey import ShardSurvey, survey, survey_shard
from weir.records.cut import ShardCut
from weir.routing.core import CONCURRENCY, Core
from weir.routing.finishing import finish, is_quiet_since
from weir.upkeep.compact.claim import Claim
from weir.upkeep.compact.jobs import Job
from weir.upkeep.compact.progress import require_no_lost_rows
from weir.upkeep.compact.run import compact
from weir.upkeep.compact.tasks import hide_keys
from weir.upkeep.exclusive import without_compaction
from weir.upkeep.owner import Owner
from weir.upkeep.pinning import base_floor
from weir.upkeep.pruning import prune_folded
from weir.upkeep.tasks import LOCAL, Result, Run, Runner, Task

logger = logging.getLogger("weir.compact")

ROW_ADDRESS: Final = "_rowaddr"


@dataclass(frozen=True)
class PreparedLoad:
    """What a load is about to commit."""

    changes: VersionEdit
    rows: int


Write = Callable[[Base], PreparedLoad]
"""Writes the rows of a load as files for that version of the base, and hides the rows there that
they replace; commits nothing. A load that replaces everything has nothing to hide."""


def load(
    core: Core,
    write: Write,
    *,
    job_id: str,
    replaces: bool,
    engine: Runner = LOCAL,
) -> tuple[int, PreparedLoad]:
    """Load rows into the base in one commit; returns the base version and what was written.

    They are newer than all rows written before the call (L-9), and older than rows written during
    it. `replaces` removes all other rows of the table. `engine` folds older rows. Raises
    `CommitConflict` when a compaction is running or took over, or another program changed the base
    during the load: nothing was loaded then. `UnknownOutcome` when this process slept for so long
    that the history of the base is gone, `StoreError` when the store gave no answer, `CorruptEntry`
    when another program took the base back and the load would make that final (L-8).
    """
    is_keyed = bool(core.record.primary_key)
    if not replaces:
        require_no_lost_rows(core)  # guard: L-8 test_rolled_back_base
    for _ in core.env.attempts():
        # P-8: a statement that was decided before is older than what is loaded.
        closed = finish(core).closed if is_keyed else 0
        if is_keyed and not replaces:
            fold_older(core, engine)
        with without_compaction(core, "load") as claim:
            ended = close_logs(core) if replaces else ()
            base = core.lake.open_base()
            # One that is decided from here on is newer, in all of its shards.
            if is_keyed and not is_quiet_since(core, closed):  # guard: P-8
                continue
            return _load(core, claim, base, ended if replaces else None, write, job_id)
    raise CommitConflict(
        f"{core.uri}: statements over several shards were written during each attempt to load;"
        " nothing was loaded, run it again"
    )


def _load(
    core: Core,
    claim: Claim,
    base: Base,
    ended: tuple[ShardCut, ...] | None,
    write: Write,
    job_id: str,
) -> tuple[int, PreparedLoad]:
    """Write and commit, on that base; `ended`: what is replaced of the logs, None: nothing."""
    job = None
    if ended is not None:
        cuts = Snapshot(base.version, "durable", ended)
        job = Job(job_id, base.version, cuts, number=claim.number)
    try:
        written = write(base)
        version = _commit(core, claim, base, written, job, job_id)
    except (MissingEntry, SnapshotExpired) as gone:
        if core.lake.open_base().version == base.version:  # guard: G-12 always simulator:loads
            raise
        raise CommitConflict(
            f"{core.uri}: the base changed during this load, and base version {base.version},"
            f" which the load started from, was cleaned up ({gone}); nothing was loaded, run it"
            " again"
        ) from None
    _finish(core, claim, job, job_id)
    return version, written


def delete_matching(core: Core, filter: str, *, job_id: str, engine: Runner = LOCAL) -> int:
    """Delete the rows of an append-only table that match `filter`, in one commit; how many.

    Without a key, only the base can tell rows apart: all that was written before the call is folded
    first, which fences the writers of shards with rows in their log. Rows that are written during
    the call stay. Raises `CommitConflict` as `load` does, and then nothing was deleted.
    """
    assert not core.record.primary_key, "with a key, deletes go through the log"
    fold_older(core, engine)
    if not core.lake.open_base().count(filter):
        return 0
    count = 0

    def write(base: Base) -> PreparedLoad:
        nonlocal count
        found = find_matching(base, filter)
        count = sum(len(addresses) for addresses in found)
        return PreparedLoad(fold.hide_addresses(base, found), 0)

    load(core, write, job_id=job_id, replaces=False, engine=engine)
    return count


def find_matching(base: Base, filter: str) -> list[Offsets]:
    """The addresses of the rows of the base that match."""
    some = base.schema.plain.names[:1]
    batches = base.scan(some, filter=filter, with_row_address=True)
    return [batch.column(ROW_ADDRESS).to_numpy() for batch in batches]


def _finish(core: Core, claim: Claim, job: Job | None, job_id: str) -> None:
    """What follows the commit.

    L-7: the load is in the base, so the caller must not run it again, whatever happens here. The
    next holder of the claim completes it.
    """
    try:
        if job is not None:
            claim.finish(job)
        if core.record.primary_key:
            prune_folded(core)
        claim.end()
    except WeirError as error:
        claim.leave()
        logger.warning("load.unfinished table=%s job=%s reason=%s", core.uri, job_id, error)


def close_logs(core: Core) -> tuple[ShardCut, ...]:
    """Flush everything written so far; returns the SSTables of each shard, as a cut without a log.

    Shards whose log holds rows are claimed, which fences their writers.
    """
    seen = survey(core)
    closed = core.env.threads.map(lambda one: _closed(core, one), list(seen), workers=CONCURRENCY)
    return tuple(ShardCut.of(m, m.replay_after) for m in closed if m.sstables)


def _closed(core: Core, one: ShardSurvey) -> ShardManifest:
    """The shard's manifest with every row written so far in SSTables."""
    for _ in core.env.attempts(3):
        log = one.log
        if log is None or log.last is None:
            return one.manifest
        try:
            return Owner(core, one.id).flush()
        except (FencedError, SealedShard):
            # The fenced writer, or another one, claimed it again; or a reshard ended it.
            core.record_number()  # C-16: raises when it was dropped
            again = survey_shard(core, one.id)
            assert again is not None, "C-16: only a drop ends a shard's manifests"
            one = again
    raise CommitConflict(
        f"shard {one.id} of {core.uri}: other writers claimed it again and again while the load"
        " flushed its log; nothing was loaded, run it again"
    )


def fold_older(core: Core, engine: Runner = LOCAL) -> None:
    """Fold every row written before this call into the base (L-9).

    With a key, rows in logs and SSTables would hide the rows of a later load, and the next
    compaction would overwrite the loaded rows with them. Raises `CommitConflict` when they could
    not be folded because another compaction is running.
    """
    marks = {cut.shard: max(table.generation for table in cut.sstables) for cut in close_logs(core)}
    for _ in core.env.attempts(3):
        folded = core.lake.open_base().compacted
        # guard: L-9 always
        if all(folded.get(shard, 0) >= number for shard, number in marks.items()):
            return
        report = compact(core, engine=engine, fold_wal=False, indexes=False, rewrite=False)
        if report.skipped:
            raise CommitConflict(
                f"{core.uri}: rows written before this load are not folded yet and would hide the"
                f" loaded rows: {report.skipped}. Nothing was loaded"
            )
    raise CommitConflict(
        f"{core.uri}: rows written before this load could not all be folded; nothing was loaded,"
        " run it again"
    )


def _commit(
    core: Core,
    claim: Claim,
    base: Base,
    written: PreparedLoad,
    job: Job | None,
    job_id: str,
) -> int:
    """Commit the written rows; for a `job` they replace all that `base` and its cuts hold."""
    changes = written.changes
    if job is None:
        claim.require()
    else:
        claim.plan(job)
        gone = tuple(fragment for fragment, _ in base.fragments())
        changes = replace(changes, updated=(), removed=gone)
    edits = bool(changes.updated or changes.removed)
    # Only such a load leaves what was written before it in the logs (L-9).
    adds_only = job is None and not base.schema.primary_key and not edits
    version = core.lake.commit_fold(
        changes,
        claim=BaseFence(claim.fence.token, base.version),
        planned_at=base.version,
        fold_id=job_id,
        properties={LOAD: str(written.rows), **({} if adds_only else {WHOLE: "true"})},
        # guard: L-7 never simulator:loads
        folded=job.folded_generations if job is not None else {},
        number=0 if job is None else job.number,
        hide=hide_nothing if adds_only else None,
    )
    floor = base_floor(core)
    if version <= floor:  # guard: G-6 simulator:loads
        # G-6: its place was cleaned up before the put, or it has grown old since: unknown which.
        raise UnknownOutcome(
            f"{core.uri}: this load was committed as base version {version}, but versions up to"
            f" {floor} may be cleaned up. If this process was suspended before the commit, the"
            " commit does not count. Look for a row of the load; if it is missing, load again"
        )
    return version


def hide_rows(core: Core, task: Task) -> Result:
    """Write deletion vectors for a share of the fragments."""
    base = core.lake.open_base(int(task["version"]))
    names = base.schema.primary_key

    def keys() -> Iterator[pa.Array]:
        return (pk_values(batch, names) for batch in _keys(core, task["keys"]))

    changes = hide_keys(base, task, keys)
    return {"changes": changes.to_json()}


def _keys(core: Core, files: list[str]) -> Iterator[pa.RecordBatch]:
    for path in files:
        yield from pa.ipc.open_stream(core.store.get(path).data)


TASKS: Final[dict[str, Run]] = {"hide_rows": hide_rows}
