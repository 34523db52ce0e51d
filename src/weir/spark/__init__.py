"""weir on Spark: scans, writes, streams and upkeep on executors that share only the store.

`format("weir")` needs none of this (the package `pyspark_weir` is found by Spark itself); these
functions plan better than a data source can: full push-down, rows laid out by shard, upkeep's tasks
on executors. Everything works on classic sessions and on Spark Connect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from weir.read.snapshot import Freshness
from weir.records.consumers import Consumer
from weir.spark.bulk import BulkReport, bulk_load
from weir.spark.console import Show, shown
from weir.spark.feed_offsets import starting_positions
from weir.spark.jobs import compact, gc, reshard
from weir.spark.layout import OPTION, lay_out, layout_of
from weir.spark.places import STORAGE, Place
from weir.spark.runner import run_each, watched
from weir.spark.source import SPLIT_ROWS, Part, plan, read_part
from weir.spark.types import arrow_schema, spark_schema, to_spark

__all__ = [
    "BulkReport",
    "Consumer",
    "bulk_load",
    "changes",
    "compact",
    "gc",
    "layout",
    "register",
    "reshard",
    "scan",
    "write",
]

Options = Mapping[str, str] | None


def register(spark: SparkSession) -> None:
    """Make `format("weir")` known to the session; only needed where Spark does not find it."""
    from pyspark_weir import DefaultSource

    spark.dataSource.register(DefaultSource)


def scan(
    spark: SparkSession,
    uri: str,
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    freshness: Freshness = "durable",
    checkpoint: str | None = None,
    storage_options: Options = None,
    split_rows: int = SPLIT_ROWS,
) -> DataFrame:
    """The newest row of each key as a DataFrame, planned by weir: columns and filter reach Lance.

    `filter` is SQL text as in Lance. The snapshot is taken here, once: the DataFrame is a
    repeatable read, a fresh look is a fresh `scan`.
    """
    place = Place(uri, dict(storage_options or {}))
    table = place.current()
    schema = spark_schema(table.schema, columns)
    parts = plan(table, freshness=freshness, checkpoint=checkpoint, split_rows=split_rows)
    target = arrow_schema(schema)
    return run_each(spark, parts, _scan_function(place, parts, target, filter), schema)


def _scan_function(
    place: Place, parts: Sequence[Part], target: pa.Schema, filter: str | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                table = place.open()
                for rows in read_part(table, parts[number], columns=target.names, filter=filter):
                    yield to_spark(rows, target)

    return run


def layout(df: DataFrame, uri: str, *, storage_options: Options = None) -> tuple[DataFrame, str]:
    """`df` laid out by shard, and the value of the option `layout` that says so to the writer.

    For streams: `rows, how = weir.spark.layout(df, uri)`, then
    `rows.writeStream.format("weir").option("layout", how)`. The value is empty where the layout
    cannot be computed in Spark (unsigned keys); leave the option out then.
    """
    table = Place(uri, dict(storage_options or {})).current()
    found = layout_of(table)
    if found is None:
        return df, ""
    return lay_out(df, found, spark_schema(table.schema)), found.to_option()


def write(
    df: DataFrame,
    uri: str,
    *,
    delete_column: str | None = None,
    app_id: str | None = None,
    txn_version: int | None = None,
    storage_options: Options = None,
    options: Options = None,
    progress: Show = None,
) -> None:
    """Upsert (append, without a key) the rows of `df`, laid out by shard: a task owns its shard.

    Durable when it returns, all or nothing for each shard. `delete_column` names a boolean column
    that marks deletes. With `app_id` and `txn_version` the same call again changes nothing.
    `progress` as in `compact`.
    """
    # Spark looks a source's name up in the thread's active session, which a new thread has not;
    # this call, which runs nothing, makes it so.
    spark = df.sparkSession
    spark.createDataFrame([], "nothing int")
    rows, how = layout(df, uri, storage_options=storage_options)
    writer = rows.write.format("weir").mode("append").options(**dict(options or {}))
    given = {"deleteColumn": delete_column, "appId": app_id, "txnVersion": txn_version}
    for name, value in given.items():
        if value is not None:
            writer = writer.option(name, str(value))
    for name, text in dict(storage_options or {}).items():
        writer = writer.option(f"{STORAGE}{name}", text)
    if how:
        writer = writer.option(OPTION, how)
    tasks = int(how.partition(":")[0]) if how else 1
    with (
        shown(progress, uri, spark) as tell,
        watched(spark, f"weir-write {uri}", "write", tasks, tell),
    ):
        writer.save(uri)


def changes(
    spark: SparkSession,
    uri: str,
    *,
    since: str = "earliest",
    storage_options: Options = None,
    options: Options = None,
) -> DataFrame:
    """The change feed as a streaming DataFrame; "latest" is resolved here, into positions.

    `since`: "earliest", "latest", "snapshot" (the table as it is, then changes), or positions as
    JSON. `options` are those of the source: metadataColumns, maxEntriesPerTrigger, consumer, ...
    """
    place = Place(uri, dict(storage_options or {}))
    if since == "latest":
        import json

        found = starting_positions(place.open().core, "latest")
        since = json.dumps({str(shard): position for shard, position in found.items()})
    reader = spark.readStream.format("weir").option("startingOffsets", since)
    for name, text in dict(storage_options or {}).items():
        reader = reader.option(f"{STORAGE}{name}", text)
    return reader.options(**dict(options or {})).load(uri)
