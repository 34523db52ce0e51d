"""`weir upgrade`: brings a table of an older format to this release's format, without loss.

Format 1 (weir 0.1.0) has shard ids of weir's own; format 2 has LanceDB's, so that LanceDB, pylance
and weir write to the same logs (X-1). It works as Lance recommends for its own formats: nothing is
rewritten in place, everything is drained and started afresh.

  1  look: no writer at work here, and no shard of another program where the new ones will be
  2  count what readers see: rows, and a sum over the hashes of all keys
  3  drain and fold: every log and every SSTable into the base
  4  verify: the base alone holds the same rows and keys
  5  seal the old shards; rows written since step 3 are folded, and verified once more
  6  stamp: one record names the new shards and the new format; then the MemWAL index is updated

Up to step 5 the table is what it was. After a crash, run it again: every step is either found done
or repeated (C-11).

Keeps
  X-7  nothing is sealed or stamped before the base alone is proven to hold every row and key
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.durations import Duration, seconds
from weir.errors import CommitConflict, CorruptEntry, InvalidInput
from weir.format import paths
from weir.format.keys import pk_values
from weir.format.manifest import ShardManifest
from weir.keys.index import codes_of_keys
from weir.merge.merge import merge_scan
from weir.read.reader import SnapshotReader
from weir.read.scan import with_snapshot
from weir.read.snapshot import Freshness
from weir.records.resharding import read_resharding
from weir.records.table import FORMAT
from weir.routing.core import CONCURRENCY, Core
from weir.routing.guard import native_shards
from weir.types import Position
from weir.upkeep.compact.plan import find_pending, log_of
from weir.upkeep.compact.run import compact
from weir.upkeep.exclusive import sync_mem_wal_index
from weir.upkeep.reshard import to_native_shards
from weir.upkeep.tasks import Progress

logger = logging.getLogger("weir.upkeep")

QUIET: Final = "1m"
"""A log whose last entry is younger has a writer at work; equal to the default `fence_ttl`."""
_AHEAD_SECONDS: Final = 86_400.0
"""Rows that expire during an upgrade of at most this length are in none of its counts."""
_STEPS: Final = ("look", "count", "fold", "verify", "seal", "stamp")


@dataclass(frozen=True)
class UpgradeReport:
    """What an upgrade did, or would do."""

    uri: str
    before: int
    """The format that the table had."""
    after: int
    """The format that it has now, or would have."""
    dry_run: bool
    shards: int
    """Shards of the old format, drained and sealed."""
    entries: int
    """Log positions that were in no SSTable when the upgrade began."""
    sstables: int
    """SSTables that were not in the base when the upgrade began."""
    rows: int
    """Rows that readers see, verified to be in the base with their keys."""
    checkpoint: UUID | None
    """The table as it was, kept for seven days: clone it to go back."""


@dataclass(frozen=True)
class _Counted:
    """The rows of a read and the sum of their keys' hashes, independent of order."""

    rows: int
    keys: int

    def __str__(self) -> str:
        return f"{self.rows:,} rows (keys {self.keys:016x})"


@dataclass(frozen=True)
class _Found:
    """What has to be drained."""

    shards: int
    sstables: int
    tails: dict[UUID, tuple[int, int]]
    """R and the last position used, by shard."""

    @property
    def entries(self) -> int:
        return sum(max(0, tip - after) for after, tip in self.tails.values())


def upgrade(
    core: Core,
    *,
    dry_run: bool = False,
    quiet: Duration = QUIET,
    progress: Progress | None = None,
) -> UpgradeReport:
    """See `Table.upgrade`."""
    record = core.refresh()
    change = read_resharding(core.store)
    is_open = change is not None and change.is_open and change.upgrade
    if record.format == FORMAT and not is_open:
        return UpgradeReport(core.uri, FORMAT, FORMAT, dry_run, 0, 0, 0, 0, None)
    if record.format == FORMAT and not dry_run:
        # A run died after it stamped the record: rows already go to the new shards.
        state = to_native_shards(core, lambda: None)
        return UpgradeReport(core.uri, 1, FORMAT, dry_run, 0, 0, 0, 0, state.checkpoint)
    tell = _Steps(progress)
    tell.step("look")
    found = _look(core, seconds(quiet, name="quiet"))
    tell.step("count")
    seen = _count(core, "durable")
    report = partial(
        UpgradeReport,
        uri=core.uri,
        before=record.format,
        after=FORMAT,
        dry_run=dry_run,
        shards=found.shards,
        entries=found.entries,
        sstables=found.sstables,
        rows=seen.rows,
    )
    if dry_run:
        return report(checkpoint=None)
    sync_mem_wal_index(
        core
    )  # LanceDB is not offered the new shards before they are the table's
    tell.step("fold")
    _fold(core, progress)
    tell.step("verify")
    _verify(core, seen, found)
    core.env.failpoint("upgrade.verified")
    tell.step("seal")

    def drained() -> None:
        _fold_rest(core)
        tell.step("stamp")

    state = to_native_shards(core, drained)
    logger.info("table.upgraded uri=%s format=%d rows=%d", core.uri, FORMAT, seen.rows)
    return report(checkpoint=state.checkpoint)


class _Steps:
    """Reports the current step; folding reports more by itself."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def step(self, name: str) -> None:
        if self._progress is not None:
            self._progress(f"upgrade: {name}", _STEPS.index(name), len(_STEPS))


def _look(core: Core, quiet: float) -> _Found:
    """Find what has to be drained; `InvalidInput` if anything forbids it. Some requests a shard."""
    taken = native_shards(core)
    if taken:
        raise InvalidInput(
            f"{core.uri}: another program (LanceDB) has written to shard {taken[0]}, which the"
            " upgrade needs for the table's own rows. Which row of a key is newer is unknown. weir"
            " doctor shows how to fold that shard; to share the table, then copy it to a new one"
        )
    for shard, writer in core.registered_writers.items():
        if writer.is_open:
            raise InvalidInput(
                f"{core.uri}: this handle has a writer of shard {shard} open; close it, then"
                " upgrade the table"
            )
    looked = core.env.threads.map(
        lambda shard: core.log(shard).latest(), core.shard_ids(), workers=CONCURRENCY
    )
    manifests = [manifest for manifest in looked if manifest is not None]
    _, waiting = find_pending(core, fold_wal=False)
    tails = {m.shard_id: _require_quiet(core, m, quiet) for m in manifests}
    return _Found(len(manifests), sum(len(w.cut.sstables) for w in waiting), tails)


def _require_quiet(core: Core, manifest: ShardManifest, quiet: float) -> tuple[int, int]:
    """R and the end of that shard's log; `InvalidInput` if it was written to just now."""
    site, tip = log_of(core, manifest)
    if tip > manifest.replay_after:
        entry = site.wal.head(paths.wal_path(manifest.shard_id, Position(tip)))
        age = None if entry is None else site.wal.now() - entry.last_modified
        if age is not None and age < quiet:
            raise InvalidInput(
                f"{site}: an entry was written {max(age, 0):.0f} s ago and is not flushed, so a"
                f" writer (epoch {manifest.writer_epoch}) is at work. Stop all writers of"
                f" {core.uri}; if it was killed, try again when {quiet:.0f} s have passed"
            )
    return int(manifest.replay_after), int(tip)


def _fold(core: Core, progress: Progress | None) -> None:
    # lease=0: take over the compactors' claim, as every exclusive change does. An upgrade that died
    # may still hold it.
    report = compact(core, fold_wal=True, lease=0, progress=progress)
    if report.skipped is not None:
        raise CommitConflict(f"{core.uri}: {report.skipped}; upgrade it when that is done")


def _fold_rest(core: Core) -> None:
    """Step 5: the old shards are sealed, so nobody adds rows to them."""
    if find_pending(core, fold_wal=True)[1]:
        _fold(core, None)
    seen, base = _count(core, "durable"), _count(core, "base")
    if seen != base:
        raise CorruptEntry(
            f"{core.uri}: readers see {seen}, the base holds {base} after everything was folded."
            " The format was not changed; run weir doctor, and report this"
        )


def _verify(core: Core, seen: _Counted, found: _Found) -> None:
    """Step 4. A difference means a concurrent writer or a bug of weir: nothing is stamped."""
    base = _count(core, "base")
    if base == seen:
        return
    for shard, (_, tip) in found.tails.items():
        manifest = core.log(shard).manifests.require()
        if log_of(core, manifest)[1] > tip:
            raise InvalidInput(
                f"{core.log(shard)}: a writer wrote to it while the table was folded. Stop all"
                f" writers of {core.uri}, then upgrade it again; the format was not changed"
            )
    raise CorruptEntry(
        f"{core.uri}: readers saw {seen}, the base holds {base} after everything was folded."
        " The format was not changed; run weir doctor, and report this"
    )


def _count(core: Core, freshness: Freshness) -> _Counted:
    key = list(core.record.primary_key)

    def run(reader: SnapshotReader) -> _Counted:
        ahead = replace(reader.snapshot, at=core.store.now() + _AHEAD_SECONDS)
        later = SnapshotReader(core, ahead)
        columns = key or later.schema.plain.names[:1]
        _, batches = merge_scan(
            later.levels(),
            later.base,
            later.schema,
            columns=columns,
            alive=later.alive,
            env=core.env,
        )
        return _counted(batches, key)

    return with_snapshot(core, freshness, None, run)


def _counted(batches: Iterable[pa.RecordBatch], key: list[str]) -> _Counted:
    rows, total = 0, 0
    for batch in batches:
        rows += batch.num_rows
        if key and batch.num_rows:
            total += int(_mixed(codes_of_keys(pk_values(batch, key))).sum(dtype=np.uint64))
    return _Counted(rows, total & 0xFFFF_FFFF_FFFF_FFFF)


def _mixed(codes: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """The finalizer of splitmix64: sums of small integers would be equal too easily."""
    bits = codes.astype(np.uint64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
