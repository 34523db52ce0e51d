"""The tasks of a compaction: pure functions of the plan, in bounded memory, that commit nothing.

Keeps
  L-4  newest row of a key first, whatever slice or engine: the levels of the snapshot, in order
A task that is run twice writes files twice; the result that arrives names one set of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.format.columns import VarBytes, fixed_values, var_values
from weir.format.keys import pk_type, pk_values
from weir.format.schema import TOMBSTONE, TableSchema
from weir.format.siphash import siphash13
from weir.lake import fold, keysets
from weir.lake.base import LanceBase
from weir.shard.keyset import KeySet, unseen
from weir.shard.levels import Level, shaped
from weir.table.core import Core
from weir.table.snapshot import Snapshot, SnapshotReader
from weir.upkeep.tasks import Result, Run, Task

READ_AHEAD_LEVELS: Final = 4
READ_AHEAD_ROWS: Final = 1_000_000
"""Levels read at once, and the rows they may hold together; a larger one is streamed alone."""
CLUSTER_ROWS: Final = fold.ROWS_PER_FILE
"""Rows sorted at a time when clustering: a file's worth."""

Slice = tuple[int, int]
"""(i, n): the keys whose hash modulo n is i."""

_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)


def fold_whole(core: Core, task: Task) -> Result:
    """The whole job in one piece: rows are written while those they replace are looked for."""
    reader = _reader(core, task)
    base, schema = _base(reader), reader.schema
    levels = reader.levels()
    seen = _no_keys(schema, sum(level.rows for level in levels))
    batches = list(winners(levels, schema, core, seen=seen))
    if not batches:
        return _result(fold.Changes(), 0, 0)
    rows = pa.Table.from_batches(batches)
    marks = rows.column(TOMBSTONE)
    has_deletes = pc.any(marks).as_py()
    live = shaped(rows.filter(pc.invert(marks)) if has_deletes else rows, schema.plain)
    if task["cluster"]:
        live = live.sort_by([(name, "ascending") for name in schema.primary_key])
    gone = rows.filter(marks).select(list(schema.primary_key))
    deletes = shaped(gone, schema.key_schema)
    changes = fold.fold_rows(base, live, deletes, core.env, known=seen.numbers)
    return _result(changes, live.num_rows, deletes.num_rows)


def fold_streamed(core: Core, task: Task) -> Result:
    """The same for more rows than memory should hold: it holds their keys alone."""
    reader = _reader(core, task)
    schema = reader.schema
    levels = reader.levels()
    seen = _no_keys(schema, sum(level.rows for level in levels))
    parts: list[pa.RecordBatch] = []

    def noted() -> Iterator[pa.RecordBatch]:
        for batch in winners(levels, schema, core, seen=seen):
            parts.append(shaped(batch, schema.key_schema))
            yield batch

    changes, written, deleted = _write_live(reader, noted(), cluster=task["cluster"])
    keys = pa.Table.from_batches(parts, schema.key_schema)
    hidden = fold.delete_keys(_base(reader), keys, core.env, known=seen.numbers)
    return _result(fold.together([changes, hidden]), written, deleted)


def write_rows(core: Core, task: Task) -> Result:
    """The newest rows of one slice as new fragments, streamed."""
    reader = _reader(core, task)
    shards = [UUID(shard) for shard in task["shards"]] if "shards" in task else None
    number, count = task.get("slice", (0, 1))
    rows = winners(reader.levels(shards), reader.schema, core, only=(number, count))
    return _result(*_write_live(reader, rows, cluster=task["cluster"]))


def _write_live(
    reader: SnapshotReader, newest: Iterator[pa.RecordBatch], *, cluster: bool
) -> tuple[fold.Changes, int, int]:
    """Those rows that are no deletes as new fragments; how many are, and how many are not."""
    schema = reader.schema
    written = deleted = 0

    def live() -> Iterator[pa.RecordBatch]:
        nonlocal written, deleted
        for batch in newest:
            marks = batch.column(TOMBSTONE)
            kept = batch if marks.true_count == 0 else batch.filter(pc.invert(marks))
            deleted += batch.num_rows - kept.num_rows
            written += kept.num_rows
            if kept.num_rows:
                yield shaped(kept, schema.plain)

    rows = live()
    if cluster and schema.primary_key:
        rows = _clustered(rows, schema)
    changes = fold.write_rows(_base(reader), rows)
    return changes, written, deleted


def hide_rows(core: Core, task: Task) -> Result:
    """Deletion vectors for a share of the base's fragments, over all keys of the job."""
    reader = _reader(core, task)
    names = list(reader.schema.primary_key)
    rows = sum(level.rows for level in reader.levels())

    def bare() -> Iterator[pa.RecordBatch]:
        return (batch for level in reader.levels() for batch in level.scan(names))

    return _result(hide_in_passes(_base(reader), task, bare, rows), 0, 0)


def hide_in_passes(
    base: LanceBase, task: Task, bare: Callable[[], Iterator[pa.RecordBatch]], rows: int
) -> fold.Changes:
    """Hide the rows of the keys that `bare` reads, in the task's fragments.

    The keys come in passes, so that memory holds one pass of them however many there are.
    """
    names = base.schema.primary_key
    dtype = pk_type(base.schema.key_schema, names)
    passes = int(task["passes"])
    found: dict[int, list[fold.Offsets]] = {int(f): [] for f in task["fragments"]}
    for number in range(passes):
        parts = (pk_values(only_slice(batch, names, (number, passes)), names) for batch in bare())
        keys = keysets.key_set(parts, dtype, rows // passes)
        for fragment, offsets in found.items():
            offsets.append(fold.find_keys(base, fragment, keys))
    return fold.together(
        fold.hide_rows(base, fragment, np.unique(np.concatenate(offsets)))
        for fragment, offsets in found.items()
    )


def hide_indexed(core: Core, task: Task) -> Result:
    """Deletion vectors for the whole base through the index of its key: for few keys."""
    reader = _reader(core, task)
    schema = reader.schema
    bare = [b for level in reader.levels() for b in level.scan(list(schema.primary_key))]
    keys = pa.Table.from_batches([shaped(b, schema.key_schema) for b in bare], schema.key_schema)
    distinct = keys.group_by(list(schema.primary_key)).aggregate([])
    found = fold.delete_keys(_base(reader), shaped(distinct, schema.key_schema), core.env)
    return _result(found, 0, 0)


TASKS: Final[dict[str, Run]] = {
    "fold_whole": fold_whole,
    "fold_streamed": fold_streamed,
    "write_rows": write_rows,
    "hide_rows": hide_rows,
    "hide_indexed": hide_indexed,
}


def winners(
    levels: Sequence[Level],
    schema: TableSchema,
    core: Core,
    *,
    only: Slice = (0, 1),
    seen: KeySet | None = None,
) -> Iterator[pa.RecordBatch]:
    """The newest row of each key, tombstones included; all rows of a table without a key.

    `seen`, empty at first, holds all keys in the end.
    """
    key = schema.primary_key
    if not key:
        for level in reversed(levels):
            yield from level.scan()
        return
    if seen is None:
        seen = _no_keys(schema, sum(level.rows for level in levels) // only[1])
    for group in _grouped(levels):
        ahead = len(group) > 1
        scans = (
            core.env.threads.map(lambda level: list(level.scan()), group, workers=len(group))
            if ahead
            else [group[0].scan()]
        )
        for batches in scans:
            level_keys = []
            chosen = (only_slice(batch, key, only) for batch in batches)
            for rows, keys, fresh in unseen(chosen, seen, key):
                level_keys.append(keys if fresh is None else keys.filter(pa.array(fresh)))
                if rows.num_rows:
                    yield rows
            # Only now: within a level no key occurs twice.
            for keys in level_keys:
                seen.add(keys)


def _grouped(levels: Sequence[Level]) -> Iterator[list[Level]]:
    """Neighbours that are small enough to be read at once."""
    group: list[Level] = []
    rows = 0
    for level in levels:
        if group and (len(group) == READ_AHEAD_LEVELS or rows + level.rows > READ_AHEAD_ROWS):
            yield group
            group, rows = [], 0
        group.append(level)
        rows += level.rows
    if group:
        yield group


def _no_keys(schema: TableSchema, expected: int) -> KeySet:
    return KeySet(pk_type(schema.key_schema, schema.primary_key), expected)


def only_slice(batch: pa.RecordBatch, key: Sequence[str], only: Slice) -> pa.RecordBatch:
    """The rows of one slice of the keys."""
    number, count = only
    if count == 1:
        return batch
    return batch.filter(pa.array(_spread(pk_values(batch, key)) % np.uint64(count) == number))


def _spread(keys: pa.Array) -> npt.NDArray[np.uint64]:
    """A number for each key, the same for equal keys; not the hash that chose the shard."""
    dtype = keys.type
    if pa.types.is_boolean(dtype):
        keys, dtype = keys.cast(pa.uint8()), pa.uint8()
    if pa.types.is_integer(dtype):
        codes = fixed_values(keys, dtype.to_pandas_dtype()).astype(np.int64).view(np.uint64)
        return (codes * _SPREAD) >> np.uint64(33)
    values = var_values(keys)
    return siphash13(VarBytes(values.data, values.starts, values.lengths))


def _clustered(rows: Iterator[pa.RecordBatch], schema: TableSchema) -> Iterator[pa.RecordBatch]:
    """The rows sorted by key, a file's worth at a time."""
    order = [(name, "ascending") for name in schema.primary_key]
    group: list[pa.RecordBatch] = []
    count = 0
    for batch in rows:
        group.append(batch)
        count += batch.num_rows
        if count >= CLUSTER_ROWS:
            yield from pa.Table.from_batches(group).sort_by(order).to_batches()
            group, count = [], 0
    if group:
        yield from pa.Table.from_batches(group).sort_by(order).to_batches()


def _reader(core: Core, task: Task) -> SnapshotReader:
    return SnapshotReader(core, Snapshot.from_json(task["snapshot"]))


def _base(reader: SnapshotReader) -> LanceBase:
    assert isinstance(reader.base, LanceBase), "compaction works on Lance"
    return reader.base


def _result(changes: fold.Changes, written: int, deleted: int) -> Result:
    return {"changes": changes.to_json(), "written": written, "deleted": deleted}
