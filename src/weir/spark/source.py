"""Batch reads: a snapshot cut into partitions, merged on executors.

Keeps
  L-3  a filter sees only newest rows; it is passed as an option, never by Spark's push-down, which
       in 4.3 leaks into other uses of the same DataFrame
  P-4  a partition names everything a task needs but the credentials, which travel in the reader
A DataFrame reads one snapshot for its whole life: it is resolved once, when partitions are planned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import weir
from weir.errors import CheckpointNotFound, InvalidInput, MissingEntry, SnapshotExpired
from weir.lake.filters import filter_columns
from weir.read import parts
from weir.read.parts import Part as PartOf
from weir.read.reader import SnapshotReader
from weir.read.snapshot import Freshness, Snapshot, check_freshness, pinned_snapshot
from weir.records.checkpoints import Checkpoint
from weir.spark.failures import without_traceback
from weir.spark.feed_schema import IMAGES, feed_schema, wants_images, wants_metadata
from weir.spark.options import BETWEEN, FEED, READ, canonical_options, check_options
from weir.spark.places import Place, names, number
from weir.spark.types import arrow_schema, spark_schema, to_spark
from weir.upkeep import checkpoint as checkpoints

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


def plan(
    table: weir.Table,
    *,
    freshness: Freshness = "durable",
    checkpoint: Checkpoint | str | None = None,
    split_rows: int = SPLIT_ROWS,
) -> list[Part]:
    """A snapshot of the table as partitions: shares of the base's fragments, and shards."""
    check_freshness(freshness)
    if checkpoint is None:
        snapshot = table.snapshot(freshness)
    else:
        pinned = checkpoints.pinned(table.core, checkpoint)
        assert pinned is not None, "a checkpoint was asked for"
        snapshot = pinned_snapshot(table.core, pinned, freshness)
    return parts_of(table, snapshot, split_rows=split_rows)


def parts_of(table: weir.Table, snapshot: Snapshot, *, split_rows: int = SPLIT_ROWS) -> list[Part]:
    """The partitions of one snapshot; planning it again gives the same ones."""
    base = table.core.base(snapshot.base_version)
    text = snapshot.to_json()
    return [
        {"snapshot": text, "fragments": list(part.fragments)}
        for part in parts.base_parts(base, split_rows)
    ] + [
        {"snapshot": text, "shards": [str(shard) for shard in part.shards]}
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


def checkpoint_of(table: weir.Table, options: Mapping[str, str]) -> Checkpoint | str | None:
    """The checkpoint that a read names, or the newest one made at or before its time."""
    micros = options.get("weir.asof")
    if micros is None:
        return options.get("checkpoint")
    moment = int(micros) / 1e6
    there = [c for c in table.checkpoints() if c.owner is None]
    older = [c for c in there if c.created <= moment]
    if not older:
        first = f"the oldest is from {there[0].created:.0f}" if there else "it has none"
        raise CheckpointNotFound(
            f"{table.uri} has no checkpoint from {moment:.0f} (seconds since 1970) or before;"
            f" {first}. Only checkpoints keep old versions; create one with table.checkpoint"
        )
    return older[-1]


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
                f" '{literal}+00:00' or the offset you mean, set the option timeZone to UTC, or"
                " filter the DataFrame in Spark"
            )


_UTC: Final = ("UTC", "Etc/UTC", "Z", "GMT", "+00:00")
_TIMES: Final = re.compile(r"'(\d{4}-\d{1,2}-\d{1,2}[^']*)'")
_OFFSET: Final = re.compile(r":\d{2}(\.\d+)?\s*(Z|[+-]\d{2}(:?\d{2})?)$")


class WeirReader(DataSourceReader):
    """One read of `spark.read.format("weir")`. Deliberately without `pushFilters`."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        if wants_metadata(options):
            raise InvalidInput("metadataColumns belong to the change feed: use readStream")
        check_options(options, READ, "a read of weir")
        self._place = Place.of(options)
        self._schema = schema
        self._filter = options.get("filter")
        self._zone = options.get("timezone")
        self._freshness = check_freshness(options.get("freshness", "durable"))
        self._options = dict(options)
        self._split = number(options, "splitRows") or SPLIT_ROWS

    def partitions(self) -> Sequence[InputPartition]:
        """The partitions of a snapshot, which is resolved here, once."""
        table = self._place.current()
        check_times(self._filter, table.schema, self._zone)
        told = self._options.get("weir.snapshot")
        if told is not None:
            # From a statement that will write: it carries this same snapshot (P-7).
            parts = parts_of(table, Snapshot.from_json(told), split_rows=self._split)
        else:
            parts = plan(
                table,
                freshness=self._freshness,
                checkpoint=checkpoint_of(table, self._options),
                split_rows=self._split,
            )
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The merged rows of one partition, in Spark's types."""
        if partition.value is None:
            return
        target = arrow_schema(self._schema)
        table = self._place.open()
        columns = target.names or table.schema.names[:1]
        rows = read_part(table, partition.value, columns=columns, filter=self._filter)
        yield from without_traceback(to_spark(batch, target) for batch in rows)
