"""Loads straight into the base, bypassing the log; older rows are folded first, or replaced.

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
from typing import Final, Literal, cast

import pyarrow as pa

from weir.config import WriterConfig
from weir.errors import (
    CommitConflict,
    FencedError,
    MissingEntry,
    SnapshotExpired,
    UnknownOutcome,
    WeirError,
)
from weir.format.keys import pk_values
from weir.format.manifest import ShardManifest, Status
from weir.lake.base.fold import BaseFence, VersionEdit
from weir.lake.base.fold_commit import hide_nothing
from weir.lake.base.view import LanceBase
from weir.lake.pylance_lake import PylanceLake
from weir.read.snapshot import Snapshot
from weir.records.cut import ShardCut
from weir.routing.core import Core
from weir.routing.shards import Shard, all_shards
from weir.upkeep.compact.jobs import Job
from weir.upkeep.compact.logs import last_with_rows
from weir.upkeep.compact.plan import log_of
from weir.upkeep.compact.run import compact
from weir.upkeep.compact.tasks import hide_keys
from weir.upkeep.exclusive import CompactionClaim, claim_compaction
from weir.upkeep.pinning import base_floor
from weir.upkeep.tasks import Result, Run, Runner, Task

logger = logging.getLogger("weir.compact")

# Stored. Never change it.
ROWS: Final = "weir.bulk"
"""Property of a load's base commit: how many rows it brought."""
_ATTEMPTS: Final = 3


@dataclass(frozen=True)
class PreparedLoad:
    """What a load is about to commit."""

    changes: VersionEdit
    rows: int


Write = Callable[[LanceBase, CompactionClaim], PreparedLoad]
"""Writes the rows of a load as files for that version of the base, and hides the rows there that
they replace; commits nothing. A load that replaces everything has nothing to hide."""


def load(
    core: Core,
    write: Write,
    *,
    job_id: str,
    replaces: bool,
    engine: Literal["local"] | Runner = "local",
) -> tuple[int, PreparedLoad]:
    """Load rows into the base in one commit; returns the base version and what was written.

    They are newer than all rows written before the call (L-9), and older than rows written during
    it. `replaces` removes all other rows of the table. `engine` folds older rows. Raises
    `CommitConflict` when a compaction is running or took over, or another program changed the base
    during the load: nothing was loaded then. `UnknownOutcome` when this process slept for so long
    that the history of the base is gone, `StoreError` when the store gave no answer.
    """
    if core.record.primary_key and not replaces:
        fold_older(core, engine)
    hold = claim_compaction(core)
    ended = close_logs(core) if replaces else ()
    base = cast("LanceBase", core.lake.open_base())
    job = None
    if replaces:
        cuts = Snapshot(base.version, "durable", ended)
        job = Job(job_id, base.version, cuts, number=hold.record.seq)
    try:
        written = write(base, hold)
        version = _commit(core, hold, base, written, job, job_id)
    except (MissingEntry, SnapshotExpired) as gone:
        if core.lake.open_base().version == base.version:
            raise
        raise CommitConflict(
            f"{core.uri}: the base changed during this load, and base version {base.version}, which"
            f" the load started from, was cleaned up ({gone}); nothing was loaded, run it again"
        ) from None
    try:
        if job is not None:
            hold.finish(job)
        hold.end()
    except WeirError as error:
        # L-7: the load is in the base, so the caller must not run it again. The next holder of the
        # claim completes it.
        logger.warning("load.unfinished table=%s job=%s reason=%s", core.uri, job_id, error)
    return version, written


def close_logs(core: Core) -> tuple[ShardCut, ...]:
    """Flush everything written so far; returns the SSTables of each shard, as a cut without a log.

    Shards whose log holds rows are claimed, which fences their writers.
    """
    # The table's own settings: a larger `fence_ttl` would be refused (G-7b).
    config = replace(core.record.writer_defaults, enable_memtable=True, index_configs=())
    cuts = []
    for shard in all_shards(core):
        manifest = _closed(core, shard, config)
        if manifest.sstables:
            cuts.append(ShardCut.of(manifest, manifest.replay_after))
    return tuple(cuts)


def _closed(core: Core, shard: Shard, config: WriterConfig) -> ShardManifest:
    """The shard's manifest with every row written so far in SSTables."""
    for _ in range(_ATTEMPTS):
        manifest = shard.manifest()
        if manifest.status is not Status.ACTIVE or not _has_rows_in_log(core, manifest):
            return manifest
        try:
            with shard.writer(config):
                pass
        except FencedError:
            continue  # the fenced writer, or another one, claimed it again
        return shard.manifest()
    raise CommitConflict(
        f"shard {shard.id} of {core.uri}: other writers claimed it {_ATTEMPTS} times while the load"
        " flushed its log; nothing was loaded, run it again"
    )


def _has_rows_in_log(core: Core, manifest: ShardManifest) -> bool:
    site, through = log_of(core, manifest)
    try:
        return last_with_rows(site, manifest, through) is not None
    except SnapshotExpired:
        return True  # flushed and collected since then: its writer is at work


def fold_older(core: Core, engine: Literal["local"] | Runner = "local") -> None:
    """Fold every row written before this call into the base (L-9).

    With a key, rows in logs and SSTables would hide the rows of a later load, and the next
    compaction would overwrite the loaded rows with them. Raises `CommitConflict` when they could
    not be folded because another compaction is running.
    """
    marks = {cut.shard: max(table.generation for table in cut.sstables) for cut in close_logs(core)}
    for _ in range(_ATTEMPTS):
        folded = core.lake.open_base().compacted
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
    hold: CompactionClaim,
    base: LanceBase,
    written: PreparedLoad,
    job: Job | None,
    job_id: str,
) -> int:
    """Commit the written rows; for a `job` they replace all that `base` and its cuts hold."""
    changes = written.changes
    if job is None:
        hold.require()
    else:
        hold.plan(job)
        gone = tuple(fragment for fragment, _ in base.fragments())
        changes = replace(changes, updated=(), removed=gone)
    adds_only = job is None and not base.schema.primary_key
    version = cast("PylanceLake", core.lake).commit_fold(
        changes,
        claim=BaseFence(hold.record.token, base.version),
        planned_at=base.version,
        fold_id=job_id,
        properties={ROWS: str(written.rows)},
        folded=job.folded_generations if job is not None else {},
        number=0 if job is None else job.number,
        hide=hide_nothing if adds_only else None,
    )
    floor = base_floor(core)
    if version <= floor:
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
    assert isinstance(base, LanceBase), "a bulk load works on Lance"
    names = base.schema.primary_key

    def keys() -> Iterator[pa.Array]:
        return (pk_values(batch, names) for batch in _keys(core, task["keys"]))

    changes = hide_keys(base, task, keys)
    return {"changes": changes.to_json()}


def _keys(core: Core, files: list[str]) -> Iterator[pa.RecordBatch]:
    for path in files:
        yield from pa.ipc.open_stream(core.store.get(path).data)


TASKS: Final[dict[str, Run]] = {"hide_rows": hide_rows}
