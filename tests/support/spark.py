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
"""For JVMs that live for minutes and would spend a third of their time on optimizing JIT passes."""

Rows = Counter[tuple[int, str | None]]


def built_jar() -> Path:
    """The catalog's jar, built when it is missing or older than its sources."""
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
    """Put and delete through weir's own writer; the rows are flushed on return."""
    with table.writer() as writer:
        writer.put([{"id": k, "v": v} for k, v in rows.items()])
        if deletes:
            writer.delete(list(deletes))


def frame(spark: SparkSession, rows: dict[int, str], partitions: int = 3) -> DataFrame:
    """Rows as a DataFrame, spread over partitions in arbitrary order."""
    table = pa.table({"id": list(rows), "v": list(rows.values())}, schema=SCHEMA)
    return spark.createDataFrame(table).repartition(partitions)


def in_weir(table: weir.Table, **kwargs: Any) -> Rows:
    """The rows that weir reads."""
    found = weir.open(table.uri, storage_options=dict(table.core.storage_options)).scan(**kwargs)
    return Counter((r["id"], r["v"]) for r in found.to_table().to_pylist())


def in_frame(df: DataFrame) -> Rows:
    """The rows that Spark reads."""
    return Counter((r["id"], r["v"]) for r in df.select("id", "v").collect())


def once(rows: dict[int, str]) -> Rows:
    """The rows, each counted once."""
    return Counter(rows.items())
