"""The change feed with the rows before each change: as a stream, and between two moments.

Keeps
  P-3  as the plain feed does; a checkpoint for the consumer at the end of every batch also keeps
       the rows before the changes that it has not read
An offset also names the checkpoint at or before it: `{"v": 1, "positions": ..., "checkpoint": id}`.
A batch that ends short of the newest checkpoint names the previous one, and the next batch reads
the log again from there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

import weir
from weir.errors import CheckpointNotFound, InvalidInput, SnapshotExpired
from weir.read.loads import load_number, require_same_load
from weir.read.positions import passed_by, positions_at, shown_tips, tips
from weir.read.snapshot import pinned_snapshot
from weir.records.checkpoints import Checkpoint
from weir.spark.failures import without_traceback
from weir.spark.feed import Offset, WeirFeed, offset_of, require_above_floor
from weir.spark.feed_offsets import positions_of
from weir.spark.feed_schema import IMAGES, require_columns
from weir.spark.images import INSERT, image_parts, read_images
from weir.spark.moments import checkpoint_named, one_start, time_of
from weir.spark.options import BETWEEN, canonical_options, check_options
from weir.spark.places import Place
from weir.spark.types import arrow_schema
from weir.upkeep import checkpoint as checkpoints


class ImageFeed(WeirFeed):
    """One `spark.readStream` with `readChangeFeed`."""

    metadata = IMAGES
    kind_of_snapshot = INSERT
    ends = staticmethod(shown_tips)  # a checkpoint reaches no further

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        require_columns(schema, IMAGES)
        if self._name is None:
            raise InvalidInput(
                "a stream with readChangeFeed needs the option consumer: it keeps the old values of"
                " a change until the stream has read it"
            )
        if self._loss:
            raise InvalidInput(
                "failOnDataLoss=false cannot be combined with readChangeFeed: after lost entries"
                " the old values would be wrong. Leave it out"
            )
        if self._start != "snapshot":
            raise InvalidInput(
                "readChangeFeed must start with a snapshot (startingOffsets=snapshot) or at a"
                " checkpoint (startingVersion, startingTimestamp): elsewhere the old values are"
                " unknown"
            )
        self._goal: Offset | None = None
        self._before: UUID | None = None

    def _initial(self) -> Offset:
        table = self._table()
        if self._version is None and self._time is None:
            return {"v": 1, "positions": None}
        pinned = _pinned(table, "starting", self._version, self._time)
        through = positions_at(table.core, pinned.shards, pinned.base_version)
        consumer = self._named()
        begin = _offset_at(table, pinned)
        standing = consumer.register(through, load=begin["load"]).held or {}
        late = passed_by(table.core, standing)
        if standing == through and late:
            consumer.forget()
            raise SnapshotExpired(
                f"{table.uri}: consumer {self._name!r} cannot start at checkpoint {pinned.id}: logs"
                " were collected beyond it, up to"
                f" { {str(shard): p for shard, p in late.items()} }. Start at a newer checkpoint,"
                " or with startingOffsets=snapshot"
            )
        return begin

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """How far the next batch goes: to a checkpoint made for it, or towards one."""
        table = self._table()
        if start["positions"] is None:
            return self._snapshot_offset(table)
        here = positions_of(start)
        if self._goal is None or _is_reached(self._goal, here):
            ahead = _is_ahead(self._target or self._tips(), here)
            self._require_same_load(table, start)
            if not ahead:
                return start
            self._goal = _offset_at(table, self._pin(table))
        wanted, load = positions_of(self._goal), self._goal["load"]
        # Old values come from the checkpoint at `start`, which must have the same loads.
        require_same_load(table.core, start.get("load"), load, self._again)
        end = self._towards(table, here, wanted, limit)
        done = self._goal if _is_reached(self._goal, end) else start
        return {**offset_of(end, load), "checkpoint": done["checkpoint"]}

    def _pin(self, table: weir.Table) -> Checkpoint:
        return checkpoints.create(table.core, "durable", self._label, self._ttl)

    @property
    def _label(self) -> str:
        return f"feed of {self._name}"

    def _taken(self, table: weir.Table) -> Offset:
        pinned = self._pin(table)
        snapshot = pinned_snapshot(table.core, pinned)
        return {**_offset_at(table, pinned), "snapshot": snapshot.to_json()}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """One for each shard with entries to read, or those of the initial snapshot."""
        if start["positions"] is None:
            return super().partitions(start, end)
        table = self._table()
        self._require_columns(table)
        pinned = _found(table, start)
        kept = self._named().positions() or {}
        held = all(kept.get(c.shard, 0) <= c.wal_through for c in pinned.shards)
        if not held:
            for shard, position in positions_at(
                table.core, pinned.shards, pinned.base_version
            ).items():
                require_above_floor(table, shard, position)
        after, through = positions_of(start), positions_of(end)
        parts = image_parts(table, pinned.id, after, through, held=held)
        return [InputPartition(part) for part in parts]

    def commit(self, end: Offset) -> None:
        """Spark has recorded everything up to `end`: release what lies before its checkpoint."""
        if end["positions"] is None:
            return
        core = self._table().core
        with contextlib.suppress(CheckpointNotFound):
            pinned = checkpoints.refresh(core, UUID(end["checkpoint"]), self._ttl)
            self._release(positions_at(core, pinned.shards, pinned.base_version), end.get("load"))
            before, self._before = self._before, pinned.id
            if before is not None and before != pinned.id:  # guard: P-3 last
                found = checkpoints.find(core, before)
                if found.name == self._label:  # a user's own checkpoint stays
                    checkpoints.delete(core, found)

    def _read(self, part: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        if "snapshot" in part:
            return super()._read(part)
        return read_images(self._table(), part, arrow_schema(self._schema))


class ChangesBetween(DataSourceReader):
    """`spark.read` with `readChangeFeed`: from one checkpoint to another, or to now."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        options = canonical_options(options)
        check_options(options, BETWEEN, "a read of changes")
        require_columns(schema, IMAGES)
        one_start(options)
        self._place = Place.of(options)
        self._schema = schema
        self._from = options.get("startingversion"), options.get("startingtimestamp")
        self._to = options.get("endingversion"), options.get("endingtimestamp")
        if self._from == (None, None):
            raise InvalidInput(
                "a batch read of changes needs the option startingVersion (the name of a"
                " checkpoint) or startingTimestamp. It ends at endingVersion or endingTimestamp, or"
                " by default now"
            )

    def partitions(self) -> Sequence[InputPartition]:
        """Resolved here, once: the DataFrame reads the same changes for its whole life."""
        table = self._place.current()
        first = _pinned(table, "starting", *self._from)
        after = positions_at(table.core, first.shards, first.base_version)
        if self._to == (None, None):
            through, load = tips(table.core), load_number(table.core)
        else:
            last = _pinned(table, "ending", *self._to)
            through, load = (
                positions_at(table.core, last.shards, last.base_version),
                load_number(table.core, last.base_version),
            )
        before = load_number(table.core, first.base_version)
        again = "Read the changes from a checkpoint that is newer than that, or the table itself"
        require_same_load(table.core, before, load, again)
        for shard, end in through.items():
            if end > after.get(shard, 0):
                require_above_floor(table, shard, after.get(shard, 0))
        table_id = str(table.core.record.table_id)
        return [
            InputPartition({**part, "table": table_id})
            for part in image_parts(table, first.id, after, through, held=False)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, in order."""
        if partition.value is not None:
            target = arrow_schema(self._schema)
            table = self._place.planned(partition.value["table"])
            yield from without_traceback(read_images(table, partition.value, target))


def _pinned(table: weir.Table, which: str, version: str | None, time: str | None) -> Checkpoint:
    if version is not None:
        return checkpoint_named(table, version, f"{which}Version")
    assert time is not None, "one of them was given"
    return checkpoints.before(table.core, time_of(time, f"{which}Timestamp"))


def _found(table: weir.Table, offset: Offset) -> Checkpoint:
    try:
        return checkpoints.find(table.core, UUID(offset["checkpoint"]))
    except CheckpointNotFound as gone:
        raise SnapshotExpired(
            f"{table.uri}: checkpoint {offset['checkpoint']}, which kept the old values of this"
            f" batch, is gone ({gone}). It expires when the query makes no progress for its"
            " consumerTtl. Start a new query with a new checkpoint location"
        ) from None


def _offset_at(table: weir.Table, pinned: Checkpoint) -> Offset:
    load = load_number(table.core, pinned.base_version)
    return {
        **offset_of(positions_at(table.core, pinned.shards, pinned.base_version), load),
        "checkpoint": str(pinned.id),
    }


def _is_reached(goal: Offset, here: Mapping[UUID, int]) -> bool:
    return not _is_ahead(positions_of(goal), here)


def _is_ahead(there: Mapping[UUID, int], here: Mapping[UUID, int]) -> bool:
    return any(position > here.get(shard, 0) for shard, position in there.items())
