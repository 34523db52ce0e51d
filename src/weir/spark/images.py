"""Changes with the rows they changed: the entries of the logs, joined with the table before them.

A log records puts and deletes by key. Whether a put inserted or updated, and which row it or a
delete replaced, follows from the earlier rows: those of the checkpoint at which the changes begin,
and those of the log since. All computation is on arrays; memory holds the rows of one partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import weir
from weir.errors import MissingEntry, SnapshotExpired
from weir.format.keys import pk_values
from weir.format.manifest import Status
from weir.format.schema import TOMBSTONE, TableSchema
from weir.merge.levels import shaped
from weir.read.changes import range_rows
from weir.read.positions import positions_at
from weir.spark.feed_schema import CHANGE_TYPE, EPOCH, POSITION, SHARD
from weir.spark.types import to_spark, with_columns
from weir.upkeep import checkpoint as checkpoints

INSERT: Final = "insert"
_KINDS: Final = pa.array(["delete", "update_preimage", INSERT, "update_postimage"])
_BATCH_ROWS: Final = 65_536

Part = dict[str, Any]
Positions = Mapping[UUID, int]


def image_parts(
    table: weir.Table, checkpoint: UUID, after: Positions, through: Positions, *, held: bool
) -> list[Part]:
    """Partitions of the changes `(after, through]`; `checkpoint` holds the rows before them.

    One for each shard, or a single one if a shard is sealed: its heirs have the same keys.
    """
    core = table.core
    pinned = checkpoints.find(core, checkpoint)
    before = positions_at(core, pinned.shards, pinned.base_version)
    shards: list[tuple[bool, int, int, str, dict[str, Any]]] = []
    for shard, last in through.items():
        start = min(before.get(shard, 0), after.get(shard, 0))
        if last > start:
            manifest = core.log(shard).latest()
            if manifest is not None:
                sealed = manifest.status is Status.SEALED
                read = {"shard": str(shard), "start": start, "last": last}
                routing, generation = manifest.shard_spec_id, manifest.current_generation
                shards.append((not sealed, routing, generation, str(shard), read))
    shards.sort(key=lambda one: one[:4])  # shards of a former routing hold the older rows of a key
    reads = [{**read, "after": after.get(UUID(read["shard"]), 0)} for *_, read in shards]
    told = {"checkpoint": str(checkpoint), "held": held}
    if any(not routed for routed, *_ in shards):
        return [{**told, "logs": reads}] if any(r["last"] > r["after"] for r in reads) else []
    return [{**told, "logs": [read]} for read in reads if read["last"] > read["after"]]


def read_images(table: weir.Table, part: Part, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one partition, each with its `_change_type`, in the order of the logs."""
    schema = table.core.schema()
    logged = _logged(table, part, schema)
    if logged is None:
        return

    def before(keys: pa.Table) -> pa.Table:
        pinned = checkpoints.find(table.core, UUID(part["checkpoint"]))
        try:
            return with_columns(table.get(keys, checkpoint=pinned), schema.plain)
        except MissingEntry as gone:
            raise SnapshotExpired(
                f"{table.uri}: the old values of these changes were collected ({gone}); start again"
                " at an existing checkpoint"
            ) from gone

    for batch in images(logged, schema, before).to_batches(max_chunksize=_BATCH_ROWS):
        yield to_spark(batch, target)


@dataclass(frozen=True)
class Logged:
    """Rows of logs, in order, with `_tombstone`, and where each is in its log."""

    rows: pa.Table
    places: pa.Table
    """`_shard`, `_position` and `_epoch`."""
    wanted: np.ndarray[Any, np.dtype[np.bool_]]
    """Which rows to report; the others only serve as the rows before them."""


def images(logged: Logged, schema: TableSchema, before: Callable[[pa.Table], pa.Table]) -> pa.Table:
    """Each wanted row as an insert, both images of an update, or a delete with its old values.

    `before` returns the rows of keys as they were before all of `logged`. A delete of a key that
    does not exist changes nothing and is left out.
    """
    count = logged.rows.num_rows
    gone = logged.rows.column(TOMBSTONE).to_numpy()
    plain = logged.rows.select(schema.plain.names)
    own = np.arange(count)
    earlier = np.full(count, -1)
    if schema.primary_key:
        plain, earlier = _earlier(plain, schema, before)
    dead = np.concatenate([gone, np.zeros(plain.num_rows - count, np.bool_)])
    had = (earlier >= 0) & ~dead[earlier]
    # Two slots for each row: the one before it, and the row itself.
    rows = np.stack([earlier, own], axis=1).ravel()
    kinds = np.stack([np.where(gone, 0, 1), np.where(had, 3, 2)], axis=1).ravel()
    told = np.stack([had, ~gone], axis=1) & logged.wanted[:, None]
    chosen = np.flatnonzero(told.ravel())
    found = plain.take(pa.array(rows[chosen]))
    places = logged.places.take(pa.array(chosen // 2))
    found = found.append_column(CHANGE_TYPE, _KINDS.take(pa.array(kinds[chosen])))
    for name in places.column_names:
        found = found.append_column(name, places.column(name))
    return found


def _earlier(
    rows: pa.Table, schema: TableSchema, before: Callable[[pa.Table], pa.Table]
) -> tuple[pa.Table, np.ndarray[Any, np.dtype[np.int64]]]:
    """The rows followed by the older ones, and for each row the index of its earlier one, or -1."""
    key, count = list(schema.primary_key), rows.num_rows
    values = pk_values(rows.combine_chunks(), key)
    codes = pc.dictionary_encode(values).indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    again = codes[order[1:]] == codes[order[:-1]]
    earlier = np.full(count, -1)
    earlier[order[1:][again]] = order[:-1][again]
    firsts = np.sort(order[np.concatenate([[True], ~again])])
    old = before(rows.select(key).take(pa.array(firsts)))
    if old.num_rows:
        at = pc.index_in(
            values.take(pa.array(firsts)), value_set=pk_values(old.combine_chunks(), key)
        )
        there = ~at.is_null().to_numpy(zero_copy_only=False)
        earlier[firsts[there]] = count + at.drop_null().to_numpy()
    joined = pa.concat_tables([rows, shaped(old, rows.schema)])
    return joined.combine_chunks(), earlier


def _logged(table: weir.Table, part: Part, schema: TableSchema) -> Logged | None:
    """The entries of a partition as one table of rows."""
    batches: list[pa.RecordBatch] = []
    places: list[tuple[str, int, int, int]] = []
    wanted: list[np.ndarray[Any, np.dtype[np.bool_]]] = []
    for read in part["logs"]:
        log = table.core.log(UUID(read["shard"]))
        found = range_rows(log, read["start"], read["last"], schema, pinned=part["held"])
        for entry, batch in found:
            batches.append(batch)
            rows = batch.num_rows
            places.append((read["shard"], int(entry.position), int(entry.epoch), rows))
            wanted.append(np.full(rows, entry.position > read["after"]))
    if not batches:
        return None
    return Logged(pa.Table.from_batches(batches), _places(places), np.concatenate(wanted))


def _places(found: Sequence[tuple[str, int, int, int]]) -> pa.Table:
    shards, positions, epochs, counts = zip(*found, strict=True)
    times = pa.array(np.repeat(np.arange(len(counts)), counts))
    each = pa.table(
        {
            SHARD: pa.array(shards, pa.string()),
            POSITION: pa.array(positions, pa.int64()),
            EPOCH: pa.array(epochs, pa.int64()),
        }
    )
    return each.take(times)
