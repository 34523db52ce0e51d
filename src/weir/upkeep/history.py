"""What happened to a table: the versions of its base, what made each, and what is pinned there.

Rows that are put become part of a version when they are compacted; the history of single rows is
the change feed. Versions that collection removed are not told of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from weir.errors import InvalidInput, SnapshotExpired
from weir.format.base_manifest import MEM_WAL_INDEX
from weir.format.expiry import EXPIRE_AFTER
from weir.lake.api import Lake
from weir.lake.base.fence import FENCE
from weir.lake.base.fold_commit import FOLD, LOAD
from weir.lake.base.history import Commit
from weir.lake.base.versions import RESTORE
from weir.records.lineage import Lineage, read_lineage
from weir.routing.core import Core
from weir.routing.natives import ROUTING
from weir.upkeep.checkpoint import checkpoints
from weir.upkeep.compact.jobs import PROGRESS

HistoryKind = Literal[
    "create",
    "clone",
    "compact",
    "load",
    "restore",
    "reshard",
    "index",
    "columns",
    "expire",
    "rewrite",
    "append",
    "update",
    "delete",
    "overwrite",
    "upkeep",
    "unknown",
]
"""What made a version of the base; see `HistoryEntry.kind`."""

LOOKS_PER_ENTRY: Final = 10
"""Most versions looked at for each entry: a compaction makes about five, one of them told."""

_BY_LANCE: Final[dict[str, HistoryKind]] = {
    "Overwrite": "overwrite",
    "Merge": "columns",
    "Project": "columns",
    "Rewrite": "rewrite",
    "Append": "append",
    "Delete": "delete",
    "Update": "update",
    "Restore": "restore",
}
"""Commits without a mark of weir's, by Lance's name of the operation."""


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One version of the base."""

    version: int
    at: datetime
    """When it was written, in UTC, by the store's clock. In a clone, when it was cloned."""
    kind: HistoryKind
    """weir's verbs: "create", "clone", "compact", "load" (bulk), "restore", "reshard", "index",
    "columns", "expire". "rewrite": files, not rows. "append", "update", "delete" and "overwrite"
    were made by another program, or "delete" by a compaction that drops expired rows. "upkeep":
    notes that weir keeps in the base, which change no row. "unknown": nothing is left that says."""
    detail: str
    """More about it, in words; may be empty."""
    checkpoints: tuple[str, ...]
    """Names of the checkpoints that pin this version, or their ids; of clones, their places."""


def history(core: Core, limit: int, *, upkeep: bool) -> list[HistoryEntry]:
    """See `Table.history`."""
    if type(limit) is not int or limit < 1:
        raise InvalidInput(f"limit must be a whole number above 0, got {limit!r}")
    core.require_not_replaced()
    lake = core.lake
    written = lake.written_versions()
    pinned = _pinned(core)
    lineage = read_lineage(core.store)
    oldest = min(written, default=0)
    newest = sorted(written, reverse=True)[: limit * LOOKS_PER_ENTRY]
    told: list[HistoryEntry] = []
    for number, commit in zip(newest, lake.read_commits(newest), strict=True):
        origin = _origin(lineage, commit, written[number]) if number == oldest else None
        kind, detail = origin or _told(lake, number, commit)
        names = pinned.get(number, ())
        if kind == "upkeep" and not upkeep and not names:
            continue
        at = datetime.fromtimestamp(written[number], UTC)
        told.append(HistoryEntry(number, at, kind, detail, tuple(names)))
        if len(told) == limit:
            break
    return told


def _pinned(core: Core) -> Mapping[int, Sequence[str]]:
    found: dict[int, list[str]] = {}
    for point in checkpoints(core):
        found.setdefault(point.base_version, []).append(point.label)
    return found


def _origin(
    lineage: Lineage | None, commit: Commit | None, written: float
) -> tuple[HistoryKind, str] | None:
    """What the oldest version is if it came with a clone: it has no commit of its own, or was
    written before the clone was complete. Else None."""
    if lineage is None or lineage.parent is None:
        return None
    is_bare = commit is None or not commit.operation
    if not is_bare and (lineage.restored is not None or written > lineage.written):
        return None
    return "clone", f"of {lineage.parent}, checkpoint {lineage.checkpoint}"


def _told(lake: Lake, number: int, commit: Commit | None) -> tuple[HistoryKind, str]:
    if commit is None or not commit.operation:
        return "unknown", ""
    return next(_readings(lake, number, commit))


def _readings(lake: Lake, number: int, commit: Commit) -> Iterator[tuple[HistoryKind, str]]:
    """What the commit was, the most certain reading first."""
    marks = commit.properties
    if PROGRESS in marks:
        yield "compact", f"job {marks.get(FOLD, '')}"
    if FOLD in marks:
        yield "load", f"{marks[LOAD]} rows" if LOAD in marks else ""
    if RESTORE in marks:
        yield "restore", f"checkpoint {marks[RESTORE]}"
    if FENCE in marks:
        yield "upkeep", "a claim of compaction, restore or reshard"
    if ROUTING in marks:
        is_reshard = _is_reshard(lake, number)
        yield ("reshard" if is_reshard else "upkeep"), f"routing {marks[ROUTING]}"
    if MEM_WAL_INDEX in commit.made:
        yield "upkeep", "the MemWAL index"
    if commit.operation == "CreateIndex":
        parts = [("made", commit.made), ("dropped", commit.dropped)]
        yield "index", "; ".join(f"{verb} {', '.join(names)}" for verb, names in parts if names)
    if EXPIRE_AFTER in commit.changed:
        yield "expire", ""
    if commit.operation == "Overwrite" and number == 1:
        yield "create", ""
    if commit.is_empty:
        yield "upkeep", "marks of what was folded"
    yield _BY_LANCE.get(commit.operation, "upkeep"), ""


def _is_reshard(lake: Lake, number: int) -> bool:
    """Whether the sharding that native programs are told has another number than before."""
    try:
        before, after = lake.mem_wal_at(number - 1), lake.mem_wal_at(number)
    except SnapshotExpired:
        return False
    if before is None or after is None:
        return False
    return [s.spec_id for s in before.sharding_specs][:1] != [
        s.spec_id for s in after.sharding_specs
    ][:1]
