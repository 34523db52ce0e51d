"""What Spark's planner learns of a table by name: its size, its filters, its number of rows."""

import datetime as dt
import uuid
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import weir
import weir.spark
from tests.support.spark import built_jar
from weir.spark import jar
from weir.spark.snapshots import Size

pytestmark = pytest.mark.skipif(
    jar.compiler() is None and not jar.path().is_file(), reason="no JDK"
)


@pytest.fixture(scope="module")
def root(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session with the catalog `planned`."""
    built_jar()
    folder = tmp_path_factory.mktemp("lake")
    weir.spark.register(spark, catalog="planned", root=str(folder))
    return folder


@pytest.fixture
def name(spark: SparkSession, root: Path) -> str:
    """A table of a hundred rows, all in its log."""
    assert root.is_dir()
    made = f"planned.db.t{uuid.uuid4().hex}"
    spark.sql(f"CREATE TABLE {made} (id BIGINT NOT NULL, n INT, at TIMESTAMP, PRIMARY KEY (id))")
    hundred = "SELECT id, cast(id AS INT), timestamp_micros(id) FROM range(100)"
    spark.sql(f"INSERT INTO {made} {hundred}")
    return made


def opened(root: Path, name: str) -> weir.Table:
    return weir.open(f"{root}/db/{name.rpartition('.')[2]}.lance")


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())


def test_a_small_table_is_broadcast(spark: SparkSession, name: str) -> None:
    large = spark.range(10_000_000).selectExpr("id % 100 AS k")  # above the limit of a broadcast
    small = spark.table(name)
    joined = large.join(small, large.k == small.id)
    assert "BroadcastHashJoin" in plan(joined)
    assert joined.where("k = 7").count() == 100_000


@pytest.mark.parametrize("where", ["log", "sstable", "base"])
def test_the_size_is_that_of_the_rows_wherever_they_are(
    spark: SparkSession, root: Path, name: str, where: str
) -> None:
    table = opened(root, name)
    if where != "log":
        with table.writer() as writer:
            writer.put([{"id": 0, "n": 0, "at": dt.datetime.fromtimestamp(0, dt.UTC)}])
    if where == "base":
        table.compact(fold_wal=True)
    size = Size.of(table, table.snapshot())
    assert 50 <= size.rows <= 1000
    assert 100 * 20 <= size.bytes <= 100_000
    assert size.is_exact == (where == "base")
    assert spark.sql(f"SELECT count(*) FROM {name}").collect()[0][0] == 100


def test_filters_that_reach_lance_are_shown(spark: SparkSession, name: str) -> None:
    where = "n >= 10 AND at < timestamp_micros(20)"
    frame = spark.sql(f"SELECT id FROM {name} WHERE {where}")
    assert "PushedFilters" in plan(frame)
    assert "GreaterThanOrEqual(n,10)" in plan(frame)
    assert sorted(row.id for row in frame.collect()) == list(range(10, 20))


def test_a_limit_reads_no_more_than_it_returns(spark: SparkSession, root: Path, name: str) -> None:
    opened(root, name).compact(fold_wal=True)
    for limit in (0, 7, 1000):
        assert len(spark.sql(f"SELECT id FROM {name} LIMIT {limit}").collect()) == min(limit, 100)
    assert len(spark.sql(f"SELECT id FROM {name} WHERE n >= 95 LIMIT 7").collect()) == 5


def test_a_count_of_rows_in_the_base_reads_none_of_them(
    spark: SparkSession, root: Path, name: str
) -> None:
    opened(root, name).compact(fold_wal=True)
    counting = f"SELECT count(*) AS a, count(*) AS b FROM {name}"
    assert "LocalTableScan" in plan(spark.sql(counting))
    assert [tuple(row) for row in spark.sql(counting).collect()] == [(100, 100)]
    filtered = spark.sql(f"SELECT count(*) FROM {name} WHERE n < 10")
    assert filtered.collect()[0][0] == 10
    spark.sql(f"INSERT INTO {name} VALUES (5, 5, NULL), (500, 5, NULL)")
    assert spark.sql(f"SELECT count(*) FROM {name}").collect()[0][0] == 101
    by = spark.sql(f"SELECT n, count(*) FROM {name} WHERE n = 5 GROUP BY n").collect()
    assert [tuple(row) for row in by] == [(5, 2)]
    changed = spark.read.option("filter", "n < 3").table(name).count()
    assert changed == 3
