"""The tasks of a compaction: pure functions of the plan, in bounded memory, that commit nothing.

Keeps
  L-4  newest row of a key first, whatever slice or engine: the levels of the snapshot, in order
A task that is run twice writes files twice; the result that arrives names one set of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.format.columns import VarBytes, fixed_values, var_values
from weir.format.keys import pk_values
from weir.format.schema import TOMBSTONE, TableSchema
from weir.format.siphash import siphash13
from weir.lake import fold, keysets
from weir.lake.base import LanceBase
from weir.shard.keyset import KeySet
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


def write_rows(core: Core, task: Task) -> Result:
    """The newest rows of one slice as new fragments, streamed."""
    reader = _reader(core, task)
    schema = reader.schema
    shards = [UUID(shard) for shard in task["shards"]] if "shards" in task else None
    levels = reader.levels(shards)
    number, count = task.get("slice", (0, 1))
    written = deleted = 0

    def live() -> Iterator[pa.RecordBatch]:
        nonlocal written, deleted
        for batch in winners(levels, schema, core, only=(number, count)):
            marks = batch.column(TOMBSTONE)
            kept = batch if marks.true_count == 0 else batch.filter(pc.invert(marks))
            deleted += batch.num_rows - kept.num_rows
            written += kept.num_rows
            if kept.num_rows:
                yield shaped(kept, schema.plain)

    rows = live()
    if task["cluster"] and schema.primary_key:
        rows = _clustered(rows, schema)
    changes = fold.write_rows(_base(reader), rows)
    return _result(changes, written, deleted)


def hide_rows(core: Core, task: Task) -> Result:
    """Deletion vectors for a share of the base's fragments, over all keys of the job.

    The keys come in passes, so that memory holds one pass of them however many there are.
    """
    reader = _reader(core, task)
    base, schema = _base(reader), reader.schema
    passes = int(task["passes"])
    found: dict[int, list[fold.Offsets]] = {int(f): [] for f in task["fragments"]}
    for number in range(passes):
        keys = _keys(reader.levels(), schema, (number, passes))
        for fragment, offsets in found.items():
            offsets.append(fold.find_keys(base, fragment, keys))
    parts = [
        fold.hide_rows(base, fragment, np.unique(np.concatenate(offsets)))
        for fragment, offsets in found.items()
    ]
    return _result(fold.together(parts), 0, 0)


def hide_indexed(core: Core, task: Task) -> Result:
    """Deletion vectors for the whole base through the index of its key: for few keys."""
    reader = _reader(core, task)
    schema = reader.schema
    bare = _key_batches(reader.levels(), schema, (0, 1))
    keys = pa.Table.from_batches(bare, schema.key_schema)
    distinct = keys.group_by(list(schema.primary_key)).aggregate([])
    found = fold.delete_keys(_base(reader), shaped(distinct, schema.key_schema), core.env)
    return _result(found, 0, 0)


TASKS: Final[dict[str, Run]] = {
    "fold_whole": fold_whole,
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
            for batch in batches:
                chosen = only_slice(batch, key, only)
                keys = pk_values(chosen, key)
                mask = seen.new(keys)
                if mask is not None:
                    fresh = pa.array(mask)
                    chosen, keys = chosen.filter(fresh), keys.filter(fresh)
                level_keys.append(keys)
                if chosen.num_rows:
                    yield chosen
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
    return KeySet(pk_values(schema.key_schema.empty_table(), schema.primary_key).type, expected)


def _keys(levels: Sequence[Level], schema: TableSchema, only: Slice) -> keysets.KeySet:
    bare = _key_batches(levels, schema, only)
    table = pa.Table.from_batches(bare, schema.key_schema)
    return keysets.key_set(pk_values(table, schema.primary_key))


def _key_batches(levels: Sequence[Level], schema: TableSchema, only: Slice) -> list[pa.RecordBatch]:
    names = schema.primary_key
    parts = [
        only_slice(batch, names, only).select(list(names))
        for level in levels
        for batch in level.scan(list(names))
    ]
    return [shaped(part, schema.key_schema) for part in parts]


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
