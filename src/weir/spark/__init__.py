"""weir on Spark: scans, writes, streams and upkeep on executors that share only the store.

`format("weir")` needs none of this (Spark itself finds the package `pyspark_weir`); these functions
plan better than a data source can: full push-down, rows laid out by shard, upkeep's tasks on
executors. Everything works on classic sessions and on Spark Connect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from weir.errors import InvalidInput
from weir.read.snapshot import Freshness
from weir.records.consumers import Consumer
from weir.spark.admin import KeepReport, keep
from weir.spark.bulk import BulkReport, bulk_load
from weir.spark.catalog import use
from weir.spark.failures import unwrap_errors
from weir.spark.feed_offsets import starting_positions
from weir.spark.jobs import clone, compact, gc, reshard
from weir.spark.layout import OPTION, lay_out, layout_of
from weir.spark.making import open_or_create
from weir.spark.measuring import measure
from weir.spark.options import START
from weir.spark.places import Place, as_options
from weir.spark.runner import run_each, watched
from weir.spark.searching import lookup, search
from weir.spark.session import is_found, require_workers
from weir.spark.snapshots import RoutedSnapshot
from weir.spark.source import SPLIT_ROWS, check_times, parts_of, read_task
from weir.spark.types import arrow_schema, columns_of, spark_schema
from weir.upkeep.tasks import Progress

__all__ = [
    "BulkReport",
    "Consumer",
    "KeepReport",
    "bulk_load",
    "changes",
    "clone",
    "compact",
    "gc",
    "keep",
    "layout",
    "lookup",
    "measure",
    "register",
    "reshard",
    "scan",
    "search",
    "write",
]

Options = Mapping[str, str] | None


def register(
    spark: SparkSession,
    *,
    catalog: str | None = None,
    root: str | None = None,
    storage_options: Options = None,
) -> None:
    """Make `format("weir")` known to the session; only needed where Spark does not find it.

    With `catalog` and `root`, tables below `root` also have names in SQL: `catalog.ns.name` is the
    table at `root/ns/name.lance`. INSERT, DELETE, UPDATE, MERGE, CREATE TABLE and streams by name
    then work, and columns and filters reach Lance. This needs the wheel's jar, which is loaded into
    the running session. Raises `InvalidInput`, which says what to do, when there is no jar or when
    the workers run a Python without weir.
    """
    from pyspark_weir import DefaultSource

    if (catalog is None) != (root is None):
        raise InvalidInput("catalog and root go together: give both, or neither")
    if not is_found(spark):
        spark.dataSource.register(DefaultSource)
    require_workers(spark)
    if catalog is not None and root is not None:
        use(spark, catalog, root, storage_options)


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
    repeatable read; call `scan` again to see newer rows.
    """
    place = Place(uri, dict(storage_options or {}))
    table = place.current()
    check_times(filter, table.schema, spark.conf.get("spark.sql.session.timeZone", None))
    taken = RoutedSnapshot.take(table, freshness, checkpoint)
    parts = parts_of(table, taken.snapshot, split_rows=split_rows)
    schema = spark_schema(table.schema, columns)
    return run_each(spark, parts, read_task(place, parts, arrow_schema(schema), filter), schema)


def layout(df: DataFrame, uri: str, *, storage_options: Options = None) -> tuple[DataFrame, str]:
    """`df` laid out by shard, and the value of the option `layout` to pass to the writer.

    For streams: `rows, how = weir.spark.layout(df, uri)`, then
    `rows.writeStream.format("weir").option("layout", how)`. The value is empty where the layout
    cannot be computed in Spark (unsigned keys); leave the option out then.
    """
    return _laid_out(df, Place(uri, dict(storage_options or {})))


def _laid_out(df: DataFrame, place: Place) -> tuple[DataFrame, str]:
    table = place.current()
    found = layout_of(table)
    if found is None:
        return df, ""
    # Not of all columns: one that `df` leaves out may have a type that Spark lacks.
    by = StructType() if found.column is None else spark_schema(table.schema, [found.column])
    return lay_out(df, found, by), found.to_option()


def write(
    df: DataFrame,
    uri: str,
    *,
    delete_column: str | None = None,
    app_id: str | None = None,
    txn_version: int | None = None,
    storage_options: Options = None,
    options: Options = None,
    progress: Progress | None = None,
) -> None:
    """Upsert (append, without a key) the rows of `df`, laid out by shard: a task owns its shard.

    Durable when it returns, all or nothing for each shard. `delete_column` names a boolean column
    that marks deletes. With `app_id` and `txn_version`, repeating the call changes nothing.
    `progress` as in `compact`.
    """
    # Spark looks a source's name up in the thread's active session, and a new thread has none. This
    # call, which runs no job, sets it.
    spark = df.sparkSession
    spark.createDataFrame([], "nothing int")
    low = {name.lower(): value for name, value in dict(options or {}).items()}
    place = Place.given(uri, storage_options, options)
    table = open_or_create(place, df.schema, low, delete_column=delete_column)
    columns_of(df.columns, table.schema, delete_column)
    rows, how = _laid_out(df, place)
    writer = rows.write.format("weir").mode("append").options(**dict(options or {}))
    given = {"deleteColumn": delete_column, "appId": app_id, "txnVersion": txn_version}
    for name, value in given.items():
        if value is not None:
            writer = writer.option(name, str(value))
    writer = writer.options(**as_options(storage_options))
    if how:
        writer = writer.option(OPTION, how)
    tasks = int(how.partition(":")[0]) if how else 1
    with (
        unwrap_errors(),
        watched(spark, f"weir-write {uri}", "write", tasks, progress),
    ):
        writer.save(uri)


def changes(
    spark: SparkSession,
    uri: str,
    *,
    since: str | None = None,
    storage_options: Options = None,
    options: Options = None,
) -> DataFrame:
    """The change feed as a streaming DataFrame; "latest" is resolved here, into positions.

    `since`: "earliest" (all that is left of the logs, the default), "latest", "snapshot" (the rows
    of now, then changes), or positions as JSON. `options` are those of the source: metadataColumns,
    maxEntriesPerTrigger, consumer, ...
    """
    place = Place.given(uri, storage_options, options)
    if since == "latest":
        import json

        found = starting_positions(place.current().core, "latest")
        since = json.dumps({str(shard): position for shard, position in found.items()})
    reader = spark.readStream.format("weir")
    starts = {name.lower() for name in START}
    if since is not None or not starts & {name.lower() for name in options or {}}:
        reader = reader.option("startingOffsets", since or "earliest")
    reader = reader.options(**as_options(storage_options))
    return reader.options(**dict(options or {})).load(uri)
