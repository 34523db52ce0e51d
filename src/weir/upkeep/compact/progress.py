"""Detects a base that was taken back to a version from before a fold (L-8).

Lance's own `restore` (LanceDB: `checkout`, then `restore`) takes the base back and leaves the
shards as they are. Generations that are still in a manifest are read again, and nothing is lost.
But generations that collection took out of the manifest, and log entries that R passed when they
were folded, are then in no current version. So the chain of compactions remembers how far the base
had come with each shard, and writers check it first: rows written and folded on top would make the
loss final. A restore by weir takes the shards along, and empties that memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from weir.errors import CommitConflict, CorruptEntry, MissingEntry, SnapshotExpired
from weir.lake.api import Base
from weir.lake.base.versions import RESTORE
from weir.records.lineage import Lineage, read_lineage
from weir.routing.core import CONCURRENCY, Core
from weir.upkeep.compact.jobs import FoldProgress, Jobs

_LOOKS: Final = 3
_SHOWN: Final = 8


@dataclass(frozen=True)
class Lost:
    """Rows of one shard that were in the base and are now neither there nor in the shard."""

    shard: UUID
    was: int
    now: int
    generations: tuple[int, ...]
    """Lost generations, which the manifest no longer names."""
    from_log: bool
    """True when rows that were folded from the log are gone too."""

    def __str__(self) -> str:
        parts = []
        if self.generations:
            parts.append(
                f"the base went back from generation {self.was} to {self.now}, and generations"
                f" {_few(self.generations)} are no longer in any SSTable"
            )
        if self.from_log:
            parts.append("log entries that were folded into the base are no longer in it")
        return f"shard {self.shard}: {'; '.join(parts)}"


def _few(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(str(n) for n in numbers[:_SHOWN])
    return shown if len(numbers) <= _SHOWN else f"{shown} and {len(numbers) - _SHOWN} more"


def may_have_lost(base: Base, reached: Mapping[UUID, FoldProgress]) -> list[UUID]:
    """Shards of which the base holds less than it did, to be checked further. No request."""
    return [
        shard
        for shard, mark in reached.items()
        if mark.generation > base.compacted.get(shard, 0) or mark.passed > base.fold_number
    ]


def _find_lost(core: Core) -> tuple[Base, list[Lost]]:
    """The base, and what it lost. Two requests, a listing; two more for each suspicious shard."""
    base = core.base()
    for _ in core.env.attempts(_LOOKS, first_delay=0):
        jobs = Jobs(core.store)
        record = jobs.latest()
        # Opened after the record was read, so it contains what was folded by then.
        base = core.base()
        shards = [] if record is None else may_have_lost(base, record.reached)
        if record is None or not shards:
            break
        looked = core.env.threads.map(
            lambda shard: core.log(shard).latest(), shards, workers=CONCURRENCY
        )
        found = []
        for shard, manifest in zip(shards, looked, strict=True):
            if manifest is None:
                continue
            mark, now = record.reached[shard], base.compacted.get(shard, 0)
            listed = {int(table.generation) for table in manifest.sstables}
            gone = tuple(g for g in mark.above(now) if g not in listed)
            if gone or mark.passed > base.fold_number:
                is_past = mark.passed > base.fold_number
                found.append(Lost(shard, mark.generation, now, gone, is_past))
        again = jobs.latest()
        if again is not None and again.seq == record.seq:
            return base, found
        # Compacted or restored since: the manifests may be newer than the record.
    return base, []


def _unfinished_restore(core: Core, before: Lineage | None) -> str | None:
    """The checkpoint of a weir restore that took the base back and did not take the shards along;
    None: another program took it back. `before`: the lineage before the loss was found.

    A restore says so in the lineage while it runs. One that stalled between its announcement and
    its commit may land after another restore has completed and others have folded into the base
    again: the lineage then says "ready", but its commit names the checkpoint.
    """
    now = read_lineage(core.store)
    if now is not None and (now.state == "restoring" or now != before):  # guard: L-8
        return str(now.restored and now.restored.checkpoint)
    record = Jobs(core.store).latest()
    try:
        for commit in core.lake.commits(after=0):
            if record is None or not may_have_lost(
                core.lake.open_base(commit.version), record.reached
            ):
                # guard: L-8 test_rolled_back_base
                return None  # the base was whole here: a later commit took it back
            if RESTORE in commit.properties:  # guard: L-8 test_two_restores_at_once
                return commit.properties[RESTORE]
    except (SnapshotExpired, MissingEntry):
        pass  # cleaned up
    return None


def require_no_lost_rows(core: Core) -> None:
    """Raise `CorruptEntry` when the base lost rows, before anything is written (L-8).

    `CommitConflict` when weir itself took it back: if a restore lands late, after others have
    folded into the base, the shards follow only when that restore is run again.
    """
    before = read_lineage(core.store)
    base, lost = _find_lost(core)
    if lost:
        told = "; ".join(map(str, lost[:_SHOWN]))
        checkpoint = _unfinished_restore(core, before)
        if checkpoint is not None:
            raise CommitConflict(
                f"{core.uri} at base version {base.version}: {told}. A restore of checkpoint"
                f" {checkpoint} rolled the base back, and is running or was interrupted. Nothing"
                " was written. Wait for that restore, or run it again, then try again"
            )
        raise CorruptEntry(
            f"{core.uri} at base version {base.version}: {told}. Another program restored an"
            " older version of the base with Lance (LanceDB: checkout and restore), or recreated"
            " its MemWAL index, and reads miss rows compacted since. Nothing was written."
            " Restore the later version of the base with Lance, or a checkpoint with weir"
        )
