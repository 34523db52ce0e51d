"""Loads straight into the base, past the log: what is older than they are, and what they replace.

Keeps
  L-7  a replacing load is a job like a fold: planned in the compactors' chain, committed with a
       note of the generations it ends, and completed by whoever comes next if it dies
  L-9  rows that are loaded are newer than all that was written before: those are closed into
       SSTables and, unless the load replaces them, folded into the base first
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, cast

import pyarrow as pa

from weir.errors import CommitConflict, SnapshotExpired
from weir.format.keys import pk_values
from weir.format.manifest import ShardManifest, Status
from weir.lake.base.fold import Changes, Claim
from weir.lake.base.view import LanceBase
from weir.lake.pylance_lake import PylanceLake
from weir.read.snapshot import Snapshot
from weir.records.cut import ShardCut
from weir.routing.core import Core
from weir.routing.shards import all_shards
from weir.upkeep.compact.jobs import Job
from weir.upkeep.compact.logs import last_with_rows
from weir.upkeep.compact.plan import log_of
from weir.upkeep.compact.run import compact
from weir.upkeep.compact.tasks import hide_keys
from weir.upkeep.exclusive import Hold
from weir.upkeep.tasks import Result, Run, Runner, Task

_ATTEMPTS: Final = 3


def close_logs(core: Core) -> tuple[ShardCut, ...]:
    """Everything written so far into SSTables; those of each shard, as a cut without a log.

    Shards whose log holds rows are claimed: their writers are fenced.
    """
    # The table's own: a `fence_ttl` above it would be refused (G-7b).
    config = replace(core.record.writer_defaults, enable_memtable=True, index_configs=())
    cuts = []
    for shard in all_shards(core):
        manifest = shard.manifest()
        if manifest.status is Status.ACTIVE and _has_rows_in_log(core, manifest):
            with shard.writer(config):
                pass
            manifest = shard.manifest()
        if manifest.sstables:
            cuts.append(ShardCut.of(manifest, manifest.replay_after))
    return tuple(cuts)


def _has_rows_in_log(core: Core, manifest: ShardManifest) -> bool:
    site, through = log_of(core, manifest)
    try:
        return last_with_rows(site, manifest, through) is not None
    except SnapshotExpired:
        return True  # flushed and collected meanwhile: its writer is at work


def fold_older(core: Core, engine: Literal["local"] | Runner = "local") -> None:
    """Fold every row written before this call into the base (L-9).

    With a key, rows in logs and SSTables would hide the rows of a load that came after them, and
    the next compaction would write them over it. Raises `CommitConflict` when somebody else is at
    work and they could not be folded.
    """
    marks = {cut.shard: max(table.generation for table in cut.sstables) for cut in close_logs(core)}
    for _ in range(_ATTEMPTS):
        folded = core.lake.open_base().compacted
        if all(folded.get(shard, 0) >= number for shard, number in marks.items()):
            return
        report = compact(core, engine=engine, fold_wal=False, indexes=False, rewrite=False)
        if report.skipped:
            raise CommitConflict(
                f"{core.uri}: rows written before this load wait to be folded, and would hide what"
                f" it brings; {report.skipped}. Nothing was loaded"
            )
    raise CommitConflict(
        f"{core.uri}: rows written before this load could not all be folded; nothing was loaded,"
        " run it again"
    )


def commit_replacing(
    core: Core,
    hold: Hold,
    base: LanceBase,
    added: Sequence[str],
    ended: Sequence[ShardCut],
    *,
    job_id: str,
    properties: Mapping[str, str],
) -> int:
    """One base commit: the fragments `added` instead of all that `base` and `ended` hold.

    Raises `CommitConflict` when another took the claim over, or changed the base, since `base` was
    read: nothing was replaced then.
    """
    job = Job(job_id, base.version, Snapshot(base.version, "durable", tuple(ended)))
    hold.plan(job)
    version = cast("PylanceLake", core.lake).commit_fold(
        Changes((), tuple(fragment for fragment, _ in base.fragments()), tuple(added)),
        claim=Claim(hold.record.token, base.version),
        planned_at=base.version,
        fold_id=job.id,
        properties=properties,
        folded=job.marks,
    )
    hold.finish(job)
    return version


def hide_rows(core: Core, task: Task) -> Result:
    """Deletion vectors for a share of the fragments."""
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
