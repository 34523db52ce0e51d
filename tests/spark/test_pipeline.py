"""Tables searched and maintained by functions on executors."""

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import weir
import weir.spark
from weir.errors import InvalidInput


def test_many_queries_find_their_neighbours(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("e", pa.list_(pa.float32(), 2))]
    )
    table = weir.create(uri, schema, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": n, "e": [float(n), 0.0]} for n in range(20)])
    queries = spark.sql("SELECT 'q' AS name, array(4.2f, 0f) AS query UNION ALL SELECT 'n', NULL")
    found = weir.spark.search(queries, uri, "e", k=2, columns=["id"]).orderBy("_rank").collect()
    assert [(r.name, r._rank, r.found.id) for r in found] == [("q", 1, 4), ("q", 2, 5)]
    assert found[0]._score == pytest.approx(0.04, abs=1e-5)
    keys = spark.sql("SELECT 'k' AS name, stack(3, 4, 99, NULL) AS ID")
    looked = {row.ID: row.found for row in weir.spark.lookup(keys, uri, columns=["e"]).collect()}
    assert looked == {4: ([4.0, 0.0],), 99: None, None: None}
    with pytest.raises(InvalidInput, match="no column 'id'"):
        weir.spark.lookup(queries, uri)


def test_a_table_is_watched_and_kept(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
    table = weir.create(uri, schema, primary_key="id", sharding=weir.Bucket("id", 2))
    weir.spark.write(spark.range(9).selectExpr("id", "'x' AS v"), uri)
    is_moved = os.environ.get("WEIR_TEST_LOG") == "moved"  # moving the log flushes it
    assert [shard.lag > 0 for shard in table.stats().shards] == [not is_moved, not is_moved]
    soon = weir.CompactionPolicy(entries=1, generations=1)
    report = weir.spark.keep(spark, uri, policy=weir.KeepPolicy(compact=soon, gc=0))
    assert [job.key for job in report.due] == ["compact", "gc"]
    assert report.compacted is not None
    assert report.compacted.rows_written == 9
    assert report.collected is not None
    assert report.collected.ok
    again = weir.spark.keep(spark, uri)
    assert (list(again.due), again.compacted, again.collected) == ([], None, None)
    table.checkpoint(name="nine")
    with weir.open(uri).writer() as writer:
        writer.delete_where("id > 0")
    table.restore("nine")
    assert weir.spark.scan(spark, uri).count() == 9
