"""Batch reads: a snapshot cut into partitions, merged on executors.

Keeps
  L-3  a filter sees only newest rows; it is passed as an option, never by Spark's push-down, which
       in 4.3 leaks into other uses of the same DataFrame
  P-4  a partition names everything a task needs but the credentials, which travel in the reader
A DataFrame reads one snapshot for its whole life: it is resolved once, when partitions are planned.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import weir
from weir.errors import CheckpointNotFound, InvalidInput, MissingEntry, SnapshotExpired
from weir.lake.filters import filter_columns
from weir.merge.projection import Projection
from weir.read import parts
from weir.read.parts import Part as PartOf
from weir.read.reader import SnapshotReader
from weir.read.snapshot import Snapshot, check_freshness
from weir.spark.failures import without_traceback
from weir.spark.feed_schema import IMAGES, feed_schema, wants_images, wants_metadata
from weir.spark.moments import in_utc
from weir.spark.options import BETWEEN, FEED, READ, STATEMENT, canonical_options, check_options
from weir.spark.places import Place, names, number
from weir.spark.snapshots import RoutedSnapshot
from weir.spark.types import arrow_schema, require_typed, spark_schema, to_spark
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep.checkpoint import Moment

SPLIT_ROWS: Final = 1_000_000
"""Target number of base rows in one partition."""

Part = dict[str, Any]
"""One partition, as plain values."""


def schema(options: Mapping[str, str]) -> StructType:
    """The columns of a read: those of the option `columns` if given; the feed's with metadata."""
    options = canonical_options(options)
    table = Place.of(options).current()
    if "path" in options and "provider" not in options:
        check_options(options, READ | FEED | BETWEEN, "a read of weir")
    if wants_images(options):
        return feed_schema(table, IMAGES)
    if wants_metadata(options):
        return feed_schema(table)
    return spark_schema(columns_at(table, options), names(options, "columns"))


def parts_of(table: weir.Table, snapshot: Snapshot, *, split_rows: int = SPLIT_ROWS) -> list[Part]:
    """The partitions of one snapshot, shares of the base's fragments and shards; planning it again
    gives the same ones."""
    base = table.core.base(snapshot.base_version)
    read = {"table": str(table.core.record.table_id), "snapshot": snapshot.to_json()}
    return [
        {**read, "fragments": list(part.fragments)} for part in parts.base_parts(base, split_rows)
    ] + [
        {**read, "shards": [str(shard) for shard in part.shards]}
        for part in parts.fresh_parts(snapshot, base)
    ]


def read_part(
    table: weir.Table, part: Part, *, columns: Sequence[str] | None, filter: str | None
) -> Iterator[pa.RecordBatch]:
    """The rows of one partition."""
    core = table.core
    snapshot = Snapshot.from_json(part["snapshot"])
    try:
        reader = SnapshotReader(core, snapshot)
        named = PartOf(
            tuple(part.get("fragments", ())), tuple(UUID(shard) for shard in part.get("shards", ()))
        )
        yield from parts.read_part(reader, named, columns=columns, filter=filter)
    except MissingEntry as gone:
        raise SnapshotExpired(
            f"{core.uri}: files of this DataFrame's snapshot were collected ({gone}). Load it"
            " again, read at a checkpoint (option checkpoint), or let gc keep files longer"
            " (min_age)"
        ) from gone


def read_task(
    place: Place, parts: Sequence[Part], target: pa.Schema, filter: str | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for tasks: numbers of `parts` in, their rows out."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                part = parts[index]
                table = place.planned(part["table"])
                for rows in read_part(table, part, columns=target.names, filter=filter):
                    yield to_spark(rows, target)

    return run


def checkpoint_of(table: weir.Table, options: Mapping[str, str]) -> Moment | None:
    """The checkpoint or version that a read names, or the newest checkpoint of before its time."""
    micros, name = options.get("weir.asof"), options.get("checkpoint")
    if micros is not None:
        moment = dt.datetime.fromtimestamp(int(micros) / 1e6, dt.UTC)
        return checkpoints.before(table.core, moment)
    return _at_version(table, name) if name and name.isdecimal() else name


def _at_version(table: weir.Table, name: str) -> Moment:
    """The checkpoint that is called by that number, or the version of the base if it was the whole
    table; `CheckpointNotFound` names the nearest checkpoint."""
    try:
        return checkpoints.find(table.core, name)
    except CheckpointNotFound:
        version = int(name)
        whole = checkpoints.whole_version(table.core, version)
        if whole is not None:
            return whole
        made = [c for c in checkpoints.checkpoints(table.core) if c.owner is None]
        near = min(made, key=lambda c: abs(c.base_version - version), default=None)
        told = (
            "it has none"
            if near is None
            else f"the nearest is {str(near.name or near.id)!r}, at version {near.base_version}"
        )
        raise CheckpointNotFound(
            f"{table.uri}: version {version} of the base is not known to be the whole table: rows"
            " of that time may be in logs, which have no versions. Versions that an overwrite, a"
            f" replace or a bulk load made can be read; of others only checkpoints; {told}"
        ) from None


def asked_snapshot(table: weir.Table, options: Mapping[str, str]) -> RoutedSnapshot:
    """The snapshot that the options of a read ask for."""
    freshness = check_freshness(options.get("freshness", "durable"))
    return RoutedSnapshot.take(table, freshness, checkpoint_of(table, options))


def columns_at(table: weir.Table, options: Mapping[str, str]) -> pa.Schema:
    """The columns of the table, or those at the checkpoint that a read names."""
    checkpoint = checkpoint_of(table, options)
    return table.schema if checkpoint is None else table.scan(checkpoint=checkpoint).schema


def check_times(filter: str | None, schema: pa.Schema, zone: str | None) -> None:
    """`InvalidInput` for a time in a filter that Spark would read in another zone than Lance.

    Spark reads a time without an offset in the session's zone, Lance in UTC. `zone` is the
    session's; a data source does not learn it, and None means that it is unknown.
    """
    if filter is None or zone in _UTC:
        return
    named = filter_columns(filter, schema.names)
    if not any(getattr(schema.field(name).type, "tz", None) for name in named):
        return
    for literal in _TIMES.findall(filter):
        if not _OFFSET.search(literal):
            raise InvalidInput(
                f"the filter has the time {literal!r} without an offset: Spark reads it in the"
                f" session's time zone ({zone or 'unknown to a data source'}), Lance in UTC. Write"
                f" timestamp {in_utc(literal)!r} or the offset you mean, set the option timeZone to"
                " UTC, or filter the DataFrame in Spark"
            )


_UTC: Final = ("UTC", "Etc/UTC", "Z", "GMT", "+00:00")
_TIMES: Final = re.compile(r"'(\d{4}-\d{1,2}-\d{1,2}[^']*)'")
_OFFSET: Final = re.compile(r":\d{2}(\.\d+)?\s*(Z|[+-]\d{2}(:?\d{2})?)$")


class WeirReader(DataSourceReader):
    """One read of `spark.read.format("weir")`. Deliberately without `pushFilters`."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        if wants_metadata(options):
            raise InvalidInput("metadataColumns belong to the change feed: use readStream")
        if "weir.reader" in options:
            check_options(options, STATEMENT, "a statement of weir")
        else:
            check_options(options, READ, "a read of weir")
        Projection.of(schema.fieldNames())  # of no column Arrow would count no rows
        self._place = Place.of(options)
        require_typed(schema, lambda: columns_at(self._place.current(), options))
        self._schema = schema
        self._filter = options.get("filter")
        self._pushed: str | None = None
        """What Spark's own filters are to Lance."""
        self._zone = options.get("timezone")
        check_freshness(options.get("freshness", "durable"))
        self._options = dict(options)
        self._split = number(options, "splitRows") or SPLIT_ROWS
        self._limit = number(options, "weir.limit", least=0)

    def partitions(self) -> Sequence[InputPartition]:
        """The partitions of a snapshot, which is resolved here, once."""
        table = self._place.current()
        check_times(self._filter, table.schema, self._zone)
        told = self._options.get("weir.snapshot")
        # By name: the snapshot of the whole statement, which may read the table several times.
        taken = (
            asked_snapshot(table, self._options) if told is None else RoutedSnapshot.from_json(told)
        )
        parts = parts_of(table, taken.snapshot, split_rows=self._split)
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The merged rows of one partition, in Spark's types."""
        if partition.value is None:
            return
        target = arrow_schema(self._schema)
        table = self._place.planned(partition.value["table"])
        wanted = [f"({text})" for text in (self._filter, self._pushed) if text is not None]
        filter = " AND ".join(wanted) or None
        rows = read_part(table, partition.value, columns=target.names, filter=filter)
        yield from without_traceback(
            to_spark(batch, target) for batch in _at_most(rows, self._limit)
        )


def _at_most(rows: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The rows; no more than `limit`, and nothing is read beyond them."""
    if limit is None:
        yield from rows
        return
    for batch in rows if limit else ():
        yield batch.slice(0, limit)
        limit -= batch.num_rows
        if limit <= 0:
            return
