"""The tasks of a compaction: pure functions of the plan, in bounded memory, that commit nothing.

Keeps
  L-10 the part of a log held in memory is bounded in bytes, even if the plan's estimate was wrong
  L-4  newest row of a key first, whatever slice or engine: the levels of the snapshot, in order
A task that is run twice writes files twice; the result that arrives names one set of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.format.keys import pk_values
from weir.format.schema import TOMBSTONE, TableSchema
from weir.keys.keyset import KeySet
from weir.lake.api import Base, Scanned
from weir.lake.base import fold
from weir.merge.levels import shaped
from weir.merge.merge import key_type, no_keys, winners
from weir.pace import paced
from weir.read.reader import SnapshotReader, Unit
from weir.read.snapshot import Snapshot
from weir.routing.core import Core
from weir.upkeep.tasks import Result, Run, Task

HIT_ROWS: Final = 500_000
"""Matching keys that are buffered before duplicates are removed."""
WHOLE_READS: Final = 4
"""A fold in memory that holds more than this many times `read_bytes` is streamed after all."""
CLUSTER_ROWS: Final = fold.ROWS_PER_FILE
"""Rows sorted at a time when clustering: a file's worth."""


def fold_whole(core: Core, task: Task) -> Result:
    """Fold the whole job in memory, writing rows while looking for the rows they replace."""
    reader = _reader(core, task)
    base, schema = reader.base, reader.schema
    levels = reader.levels()
    seen = no_keys(schema, levels)
    batches: list[pa.RecordBatch] = []
    held = 0
    for batch in _buried(reader, winners(levels, schema, core.env, seen=seen)):
        batches.append(batch)
        held += batch.nbytes
        if held > WHOLE_READS * core.env.limits.read_bytes:  # guard: L-10
            # The plan estimated the log from a few entries; release what was held (L-10).
            del batches
            return fold_streamed(core, task)
    if not batches:
        return _result(fold.VersionEdit(), 0, 0)
    rows = pa.Table.from_batches(batches)
    marks = rows.column(TOMBSTONE)
    has_deletes = pc.any(marks).as_py()
    live = shaped(rows.filter(pc.invert(marks)) if has_deletes else rows, schema.plain)
    if task["cluster"]:
        live = live.sort_by([(name, "ascending") for name in schema.primary_key])
    gone = rows.filter(marks).select(list(schema.primary_key))
    deletes = shaped(gone, schema.key_schema)
    changes = fold.fold_rows(base, live, deletes, core.env, known=seen)
    return _result(changes, live.num_rows, deletes.num_rows)


def fold_streamed(core: Core, task: Task) -> Result:
    """Fold the whole job, for more rows than memory should hold: it holds only their keys."""
    reader = _reader(core, task)
    schema = reader.schema
    levels = reader.levels()
    seen = no_keys(schema, levels)
    parts: list[pa.RecordBatch] = []

    def noted() -> Iterator[pa.RecordBatch]:
        for batch in winners(levels, schema, core.env, seen=seen):
            parts.append(_own_copy(shaped(batch, schema.key_schema)))
            yield batch

    changes, written, deleted = _write_live(reader, noted(), cluster=task["cluster"])
    keys = pa.Table.from_batches(parts, schema.key_schema)
    hidden = fold.delete_keys(reader.base, keys, core.env, known=seen)
    return _result(fold.combine([changes, hidden]), written, deleted)


def _own_copy(keys: pa.RecordBatch) -> pa.RecordBatch:
    """The keys in buffers of their own: slices would keep the whole entry they came from (L-10)."""
    return keys.take(pa.array(np.arange(keys.num_rows)))


def write_rows(core: Core, task: Task) -> Result:
    """The newest rows of some shards as new fragments, streamed: all of them, or one piece."""
    reader = _reader(core, task)
    shards = [UUID(shard) for shard in task["shards"]] if "shards" in task else None
    if "units" in task:
        assert shards is not None
        rows = _piece_winners(core, reader, reader.units(shards), task)
    else:
        rows = winners(reader.levels(shards), reader.schema, core.env)
    return _result(*_write_live(reader, rows, cluster=task["cluster"]))


def _piece_winners(
    core: Core, reader: SnapshotReader, units: Sequence[Unit], task: Task
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece that nothing newer replaces; memory holds the keys of the piece."""
    first, end = task["units"]
    schema = reader.schema
    own: Sequence[Scanned]
    if task["within"] is None:
        own = reader.open_units(units[first:end])
    else:
        offset, limit = task["within"]
        own = [reader.open_part(unit, (offset, limit)) for unit in units[first:end]]
    newer = reader.open_units(units[:first])
    rows = sum(level.rows for level in own)
    beaten = KeySet(key_type(schema), rows)
    if newer:
        ours = KeySet.of(_keys(own, schema), key_type(schema), rows)
        beaten = _hit(ours, _keys(newer, schema), schema, rows)
        del ours
    yield from winners(own, schema, core.env, seen=beaten)


def _hit(ours: KeySet, keys: Iterable[pa.Array], schema: TableSchema, count: int) -> KeySet:
    """The keys of `ours`, at most `count`, that occur in `keys`."""
    hit = KeySet(key_type(schema), count)
    found: list[pa.Array] = []

    def take_in() -> None:
        # Most of them were already hit by a newer level.
        some = pa.concat_arrays(found)
        fresh = hit.new(some)
        hit.add(some if fresh is None else some.filter(pa.array(fresh)))
        found.clear()

    for asked in keys:
        found.append(asked.take(pa.array(ours.find(asked))))
        if sum(map(len, found)) >= HIT_ROWS:
            take_in()
    if found:
        take_in()
    return hit


def _write_live(
    reader: SnapshotReader, newest: Iterator[pa.RecordBatch], *, cluster: bool
) -> tuple[fold.VersionEdit, int, int]:
    """Write the rows that are not deletes as new fragments; also counts written and deleted."""
    schema = reader.schema
    written = deleted = 0
    newest = _buried(reader, newest)

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
    changes = fold.write_rows(reader.base, rows)
    return changes, written, deleted


def _buried(reader: SnapshotReader, newest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows, expired ones as deletes of their keys (L-11: no older row comes back)."""
    alive, rows = reader.alive, iter(paced(newest, reader.core.env))
    return rows if alive is None else (alive.expired_to_tombstones(batch) for batch in rows)


def hide_rows(core: Core, task: Task) -> Result:
    """Deletion vectors for a share of the base's fragments, over all keys of the job."""
    reader = _reader(core, task)
    levels = reader.levels()
    changes = hide_keys(reader.base, task, lambda: _keys(levels, reader.schema))
    return _result(changes, 0, 0)


def hide_keys(base: Base, task: Task, keys: Callable[[], Iterable[pa.Array]]) -> fold.VersionEdit:
    """Hide the rows of `keys` in the task's fragments.

    Memory holds the keys or, if they are too many, those of `keys_max` base rows at a time.
    """
    dtype = key_type(base.schema)
    keys_max = int(task["keys_max"])
    fragments = [int(fragment) for fragment in task["fragments"]]
    if int(task["rows"]) <= keys_max:
        wanted = KeySet.of(keys(), dtype, int(task["rows"]))
        return fold.combine(
            fold.delete_keys_in_fragment(base, fragment, wanted) for fragment in fragments
        )
    found: list[fold.Offsets] = []
    for part in fold.read_keys(base, fragments, keys_max):
        ours = KeySet.of([part.keys], dtype, len(part.keys))
        stays = _hit(ours, keys(), base.schema, len(part.keys)).new(part.keys)
        if stays is not None:
            found.append(part.addresses[~stays])  # guard: P-5
    return fold.hide_addresses(base, found)


def hide_indexed(core: Core, task: Task) -> Result:
    """Deletion vectors for the whole base through the index of its key: for few keys."""
    reader = _reader(core, task)
    schema = reader.schema
    bare = [b for level in reader.levels() for b in level.scan(list(schema.primary_key))]
    keys = pa.Table.from_batches([shaped(b, schema.key_schema) for b in bare], schema.key_schema)
    distinct = keys.group_by(list(schema.primary_key)).aggregate([])
    found = fold.delete_keys(reader.base, shaped(distinct, schema.key_schema), core.env)
    return _result(found, 0, 0)


TASKS: Final[dict[str, Run]] = {
    "fold_whole": fold_whole,
    "fold_streamed": fold_streamed,
    "write_rows": write_rows,
    "hide_rows": hide_rows,
    "hide_indexed": hide_indexed,
}


def _keys(levels: Sequence[Scanned], schema: TableSchema) -> Iterator[pa.Array]:
    """The keys of each batch in all levels, including every row of a log."""
    names = list(schema.primary_key)
    return (pk_values(batch, names) for level in levels for batch in level.scan(names))


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


def _result(changes: fold.VersionEdit, written: int, deleted: int) -> Result:
    return {"changes": changes.to_json(), "written": written, "deleted": deleted}
