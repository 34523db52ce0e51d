"""How the work of a compaction is cut into tasks.

Keeps
  C-11 a sealed shard's rows are older than its heirs': they are merged together
  L-4  every row of the job is in exactly one of the tasks that write

In process, one task does everything, since pieces would read each other's keys again. On executors,
a group of small shards is one task, and a hot shard is cut along its SSTables and the rows in them.
A piece holds its own keys in memory and reads the keys of everything newer, and its own rows, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from msgspec import structs

from weir.format.keys import pk_type
from weir.format.manifest import SsTable
from weir.keys.numbers import is_whole
from weir.lake.api import Base
from weir.lake.base import fold
from weir.read.reader import Unit, units_of
from weir.read.snapshot import Snapshot
from weir.records.cut import ShardCut
from weir.upkeep.compact.jobs import Job
from weir.upkeep.compact.plan import PendingShard
from weir.upkeep.tasks import Task

SLICE_ROWS: Final = 8_000_000
"""Most keys that a task on an executor holds, whatever the rows hold: 400 MB for numbers far apart.
Tasks of 4 million rows, out of 16 million in all, took 290 to 430 MB (numbers close together)."""
WHOLE_BYTES: Final = 128 << 20
"""The local engine folds input of up to this many bytes in memory."""
STREAMED_ROWS: Final = 64_000_000
STREAMED_TEXTS: Final = 8_000_000
"""It streams larger input of up to this many keys (whole numbers, other types) in one piece."""
TASK_BYTES: Final = 256 << 20
"""Target size of the input of a task that writes rows."""
SPLIT_BYTES: Final = 64 << 20
"""Shards are not cut into smaller pieces than this only to keep every processor busy."""
FRAGMENT_ROWS: Final = 8_000_000
"""Base rows whose keys are read by one task that looks for replaced rows."""
_ALL_ROWS: Final = 1 << 40


def make_tasks(
    job: Job,
    base: Base,
    waiting: Sequence[PendingShard],
    *,
    engine: Literal["local", "spark"],
    slots: int,
    cluster: bool,
) -> list[Task]:
    """The job cut into pieces that can run anywhere, in any order, any number of times."""
    rows = sum(w.rows for w in waiting)
    nbytes = sum(w.nbytes for w in waiting)
    common: Task = {"snapshot": job.snapshot.to_json(), "cluster": cluster}
    if not base.schema.primary_key:
        return [
            {**common, "run": "compact.tasks.write_rows", "snapshot": part.to_json()}
            for part in _parts(job.snapshot, waiting)
        ]
    if engine == "local" and rows <= _one_piece(base):
        run = "fold_whole" if nbytes <= WHOLE_BYTES else "fold_streamed"
        return [{**common, "run": f"compact.tasks.{run}"}]
    writes = [
        {**common, "run": "compact.tasks.write_rows", **share}
        for share in _shares(base, waiting, slots, nbytes)
    ]
    if base.has_key_index and rows * fold.INDEX_LOOKUP_ROWS_PER_KEY < base.count():
        # For so few keys the index of the base finds their rows faster than any scan of shares.
        return [*writes, {**common, "run": "compact.tasks.hide_indexed"}]
    return writes + [
        {**common, "run": "compact.tasks.hide_rows", **share}
        for share in fragment_shares(base, rows, slots)
    ]


def hide_tasks(job: Job, base: Base, fragments: Sequence[int], slots: int) -> list[Task]:
    """Tasks that look for the job's keys in `fragments` of a base newer than the planned one."""
    snapshot = replace(job.snapshot, base_version=base.version).to_json()
    return [
        {"run": "compact.tasks.hide_rows", "snapshot": snapshot, "cluster": False, **share}
        for share in fragment_shares(base, _ALL_ROWS, slots, only=frozenset(fragments))
    ]


def _one_piece(base: Base) -> int:
    """How many keys one task in process may hold."""
    dtype = pk_type(base.schema.key_schema, base.schema.primary_key)
    return STREAMED_ROWS if is_whole(dtype) else STREAMED_TEXTS


def _parts(snapshot: Snapshot, waiting: Sequence[PendingShard]) -> list[Snapshot]:
    """Pieces of bounded size for an append-only table: SSTables can be grouped freely."""
    parts: list[Snapshot] = []
    for one in waiting:
        group: list[SsTable] = []
        room = TASK_BYTES
        for table in one.cut.sstables:
            size = table.in_memory_bytes or 0
            if group and size > room:
                parts.append(_only(snapshot, one.cut, group))
                group, room = [], TASK_BYTES
            group.append(table)
            room -= size
        if group:
            parts.append(_only(snapshot, one.cut, group))
    return parts


def _only(snapshot: Snapshot, cut: ShardCut, sstables: Sequence[SsTable]) -> Snapshot:
    return replace(snapshot, cuts=(structs.replace(cut, sstables=tuple(sstables)),))


def _shares(
    base: Base, waiting: Sequence[PendingShard], slots: int, nbytes: int
) -> Iterator[dict[str, Any]]:
    """Shards grouped to the size of a task; a group too large for one task is cut into pieces."""
    groups = _groups(waiting, slots, nbytes)
    for group in groups:
        names = [str(w.cut.shard) for w in group]
        rows, size = sum(w.rows for w in group), sum(w.nbytes for w in group)
        busy = min(slots // len(groups), size // SPLIT_BYTES)
        count = max(1, -(-rows // SLICE_ROWS), -(-size // TASK_BYTES), busy)
        if count == 1:
            yield {"shards": names}
            continue
        # In the order of the snapshot, by which a task numbers its units.
        ordered = [w for w in waiting if w in group]
        for first, end, within in _pieces(base, ordered, -(-rows // count), -(-size // count)):
            yield {"shards": names, "units": [first, end], "within": within}


def _groups(waiting: Sequence[PendingShard], slots: int, nbytes: int) -> list[list[PendingShard]]:
    """Group shards into tasks; all in one if any is sealed, since heirs may hold newer rows."""
    if any(w.cut.sealed for w in waiting):
        return [list(waiting)]
    groups: list[list[PendingShard]] = []
    aim = max(1, min(TASK_BYTES, nbytes // max(1, slots)))
    for one in sorted(waiting, key=lambda w: -w.nbytes):
        fits = [g for g in groups if sum(w.nbytes for w in g) + one.nbytes <= aim]
        if fits:
            fits[0].append(one)
        else:
            groups.append([one])
    return groups


def _pieces(
    base: Base, group: Sequence[PendingShard], rows_max: int, bytes_max: int
) -> Iterator[tuple[int, int, list[int] | None]]:
    """Runs of whole units within the bounds, as (first, end), and parts of larger units."""
    of = {w.cut.shard: w for w in group}
    units = units_of([w.cut for w in group], base.compacted)
    first = 0
    rows = size = 0
    for index, unit in enumerate(units):
        unit_rows, unit_bytes = _unit_size(unit, of[unit.cut.shard])
        if index > first and (rows + unit_rows > rows_max or size + unit_bytes > bytes_max):
            yield first, index, None
            first, rows, size = index, 0, 0
        # A unit that is only a little larger than its share is better left whole.
        parts = max(
            -(-unit_rows // min(SLICE_ROWS, max(1, rows_max * 3 // 2))),
            -(-unit_bytes // max(1, bytes_max * 3 // 2)),
        )
        # An SSTable of another program may not record its row count; it stays whole.
        if unit.sstable is not None and min(parts, unit_rows) > 1:
            step = -(-unit_rows // min(parts, unit_rows))
            starts = list(range(0, unit_rows, step))
            for start in starts[:-1]:
                yield index, index + 1, [start, step]
            # Whatever row count the manifest gives, the last part takes the rest (L-4).
            yield index, index + 1, [starts[-1], _ALL_ROWS]
            first, rows, size = index + 1, 0, 0
            continue
        rows, size = rows + unit_rows, size + unit_bytes
    if first < len(units):
        yield first, len(units), None


def _unit_size(unit: Unit, one: PendingShard) -> tuple[int, int]:
    """Rows and bytes of a unit, as given by the manifest or estimated from the log."""
    if unit.sstable is not None:
        return next(t for t in one.cut.sstables if t.path == unit.sstable).size
    assert one.tail is not None
    share = (unit.through - unit.after) / (one.cut.wal_through - one.cut.replay_after)
    return int(one.tail.rows * share), int(one.tail.nbytes * share)


def fragment_shares(
    base: Base, rows: int, slots: int, *, only: frozenset[int] | None = None
) -> list[dict[str, Any]]:
    """The base's fragments in shares of about equal rows, for tasks that look for `rows` keys."""
    fragments = [(f, count) for f, count in base.fragments() if only is None or f in only]
    total = sum(count for _, count in fragments)
    aim = max(1, min(FRAGMENT_ROWS, total // max(1, slots)))
    shares: list[list[int]] = []
    room = 0
    for fragment, count in fragments:
        if not shares or room < count:
            shares.append([])
            room = aim
        shares[-1].append(fragment)
        room -= count
    return [{"fragments": share, "keys_max": SLICE_ROWS, "rows": rows} for share in shares]
