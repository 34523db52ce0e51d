"""Tables for the tests of Spark, and their rows."""

import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import weir
from weir.spark import jar

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs of minutes, which spend a third of their time on compiling once more, for speed."""

Rows = Counter[tuple[int, str | None]]


def built_jar() -> Path:
    """The catalog's jar, built when there is none or its sources are newer."""
    made = jar.path()
    newest = max(path.stat().st_mtime for path in jar.SOURCES.rglob("*.java"))
    return made if made.is_file() and made.stat().st_mtime >= newest else jar.build()


def make_table(
    folder: Path | str,
    *,
    keyed: bool = True,
    buckets: int = 3,
    storage_options: dict[str, str] | None = None,
    wal_uri: str | None = None,
) -> weir.Table:
    """An empty table of `SCHEMA`."""
    return weir.create(
        f"{folder}/{uuid.uuid4().hex}",
        SCHEMA,
        primary_key="id" if keyed else None,
        sharding=weir.Bucket("id", buckets),
        storage_options=storage_options,
        wal_uri=wal_uri,
    )


def put(table: weir.Table, rows: dict[int, str], deletes: tuple[int, ...] = ()) -> None:
    """Through weir's own writer; flushed when it returns."""
    with table.writer() as writer:
        writer.put([{"id": k, "v": v} for k, v in rows.items()])
        if deletes:
            writer.delete(list(deletes))


def frame(spark: SparkSession, rows: dict[int, str], partitions: int = 3) -> DataFrame:
    """Rows as a DataFrame, spread over partitions in no order that helps."""
    table = pa.table({"id": list(rows), "v": list(rows.values())}, schema=SCHEMA)
    return spark.createDataFrame(table).repartition(partitions)


def in_weir(table: weir.Table, **kwargs: Any) -> Rows:
    """What weir reads."""
    found = weir.open(table.uri, storage_options=dict(table.core.storage_options)).scan(**kwargs)
    return Counter((r["id"], r["v"]) for r in found.to_table().to_pylist())


def in_frame(df: DataFrame) -> Rows:
    """What Spark reads."""
    return Counter((r["id"], r["v"]) for r in df.select("id", "v").collect())


def once(rows: dict[int, str]) -> Rows:
    """Each of them one time."""
    return Counter(rows.items())
