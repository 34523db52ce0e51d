"""Create a table, read its statistics and do its upkeep from a Spark program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import weir
from weir.config import WriterConfig
from weir.durations import Duration
from weir.format.sharding import Sharding
from weir.records.checkpoints import Checkpoint, Ref
from weir.spark.jobs import compact, gc
from weir.spark.making import TableSpec
from weir.spark.places import Place, normalize_uri
from weir.spark.types import arrow_schema
from weir.upkeep.compact.run import CompactionPolicy, CompactReport
from weir.upkeep.gc.report import GcReport
from weir.upkeep.restore import RestoreReport

Options = Mapping[str, str] | None


def create(
    uri: str,
    schema: StructType | str | pa.Schema,
    *,
    primary_key: str | Sequence[str] | None = None,
    sharding: Sharding | None = None,
    wal_uri: str | None = None,
    writer_defaults: WriterConfig | None = None,
    storage_options: Options = None,
) -> weir.Table:
    """Make an empty table with columns as Spark writes them: `"id bigint, v string"`.

    Of Spark's columns only those of the key are NOT NULL; a pyarrow schema is taken as it is. The
    rest is as in `weir.create`.
    """
    key = (primary_key,) if isinstance(primary_key, str) else tuple(primary_key or ())
    place = Place(uri, dict(storage_options or {}))
    if isinstance(schema, pa.Schema):
        return weir.create(
            place.uri,
            schema,
            primary_key=primary_key,
            sharding=sharding,
            wal_uri=wal_uri,
            writer_defaults=writer_defaults,
            storage_options=dict(place.storage),
        )
    fields = cast("StructType", StructType.fromDDL(schema)) if isinstance(schema, str) else schema
    return TableSpec(key, sharding, wal_uri, writer_defaults).create(place, arrow_schema(fields))


def enable(
    uri: str,
    *,
    primary_key: str | Sequence[str] | None = None,
    sharding: Sharding | None = None,
    wal_uri: str | None = None,
    writer_defaults: WriterConfig | None = None,
    storage_options: Options = None,
) -> weir.Table:
    """Make a table of an existing Lance dataset, as `weir.enable` does."""
    return weir.enable(
        normalize_uri(uri),
        primary_key=primary_key,
        sharding=sharding,
        wal_uri=None if wal_uri is None else normalize_uri(wal_uri),
        writer_defaults=writer_defaults,
        storage_options=dict(storage_options or {}),
    )


def checkpoint(
    uri: str,
    name: str | None = None,
    *,
    scope: Literal["all", "durable"] = "durable",
    ttl: Duration | None = None,
    storage_options: Options = None,
) -> Checkpoint:
    """Pin the table as it is, for `VERSION AS OF`, `startingVersion`, `clone` and `restore`.

    As `Table.checkpoint`, except for the default scope, which disturbs no writer.
    """
    table = Place(uri, dict(storage_options or {})).current()
    return table.checkpoint(scope, name, ttl)


def restore(uri: str, checkpoint: Ref, *, storage_options: Options = None) -> RestoreReport:
    """Bring the table back to a checkpoint, as `Table.restore` does."""
    return Place(uri, dict(storage_options or {})).current().restore(checkpoint)


def stats(spark: SparkSession, uri: str, *, storage_options: Options = None) -> DataFrame:
    """`Table.stats` as a DataFrame for use in SQL, one row for each shard."""
    table = Place(uri, dict(storage_options or {})).current()
    rows = [_plain(asdict(shard)) for shard in table.stats().shards]
    return spark.createDataFrame(pa.Table.from_pylist(rows))


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert to values that Arrow and Spark have types for."""
    simple = (str, int, float, bool, type(None))
    return {
        name: value if isinstance(value, simple) else str(value) for name, value in values.items()
    }


@dataclass(frozen=True)
class KeepReport:
    """What one round of upkeep did."""

    due: str | None
    """Why the table was compacted; None if it was not due."""
    compacted: CompactReport | None
    collected: GcReport | None


def keep(
    spark: SparkSession,
    uri: str,
    *,
    policy: CompactionPolicy | None = None,
    min_age: Duration = "15m",
    fence_retention: Duration = "7d",
    storage_options: Options = None,
) -> KeepReport:
    """Do what is due: compact when `policy` says so, then collect what is old enough.

    For a job that runs every few minutes. Safe beside all other work, including itself.
    """
    place = Place(uri, dict(storage_options or {}))
    due = (policy or CompactionPolicy()).due(place.current())
    compacted = compact(spark, uri, storage_options=storage_options) if due else None
    collected = gc(
        spark,
        uri,
        min_age=min_age,
        fence_retention=fence_retention,
        storage_options=storage_options,
    )
    return KeepReport(due, compacted, collected)
