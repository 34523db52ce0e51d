"""SQL statements end to end: what Spark plans must not lose a table, a row or a snapshot."""

import re
import threading
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

import weir
import weir.spark
from tests.support.spark import built_jar
from weir.errors import InvalidInput, SchemaMismatch
from weir.spark import jar
from weir.spark.types import (
    arrow_schema,
    from_spark,
    named_schema,
    require_storable,
    require_typed,
    spark_schema,
    to_spark,
)

pytestmark = pytest.mark.skipif(
    jar.compiler() is None and not jar.path().is_file(), reason="no JDK"
)


@pytest.fixture(scope="module")
def root(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session with the catalog `stated`."""
    built_jar()
    folder = tmp_path_factory.mktemp("lake")
    weir.spark.register(spark, catalog="stated", root=str(folder))
    return folder


@pytest.fixture
def name(spark: SparkSession, root: Path) -> str:
    """A table with three rows and a checkpoint."""
    made = f"stated.db.t{uuid.uuid4().hex}"
    spark.sql(f"CREATE TABLE {made} (id BIGINT NOT NULL, n INT, PRIMARY KEY (id))")
    spark.sql(f"INSERT INTO {made} VALUES (1, 10), (2, 20), (3, 30)")
    opened(root, made).checkpoint("durable", name="before")
    return made


def opened(root: Path, name: str) -> weir.Table:
    return weir.open(f"{root}/db/{name.rpartition('.')[2]}.lance")


def rows(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.sql(query).collect())


def test_l4_a_table_is_replaced_by_one_commit_that_keeps_it(
    spark: SparkSession, root: Path, name: str
) -> None:
    """Spark would drop it, with its checkpoints, before there is anything in its place."""
    frame = spark.range(2).selectExpr("id", "1 AS n")
    itself = spark.table(name).where("id = 1").selectExpr("id", "n + 1 AS n")
    ways: list[tuple[Callable[[], object], list[tuple[Any, ...]]]] = [
        (lambda: itself.write.mode("overwrite").saveAsTable(name), [(1, 11)]),
        (lambda: frame.writeTo(name).createOrReplace(), [(0, 1), (1, 1)]),
        (lambda: spark.sql(f"REPLACE TABLE {name} AS SELECT 5L AS id, 2 AS n"), [(5, 2)]),
        (lambda: spark.sql(f"CREATE OR REPLACE TABLE {name} (id BIGINT NOT NULL, n INT)"), []),
        (lambda: frame.write.insertInto(name), [(0, 1), (1, 1)]),
        (lambda: spark.sql(f"TRUNCATE TABLE {name}"), []),
        (
            lambda: spark.sql(f"INSERT OVERWRITE {name} WITH ('overwrite' = 'true') SELECT 4L, 40"),
            [(4, 40)],
        ),
        (
            lambda: frame.writeTo(name).option("overwrite", "true").overwrite(F.lit(True)),
            [(0, 1), (1, 1)],
        ),
    ]
    for replace, expected in ways:
        replace()
        assert rows(spark, f"SELECT * FROM {name}") == expected
    wider = frame.selectExpr("*", "'new' AS more")
    wider.write.mode("overwrite").saveAsTable(name)
    assert rows(spark, f"SELECT * FROM {name}") == [(0, 1, "new"), (1, 1, "new")]
    table = opened(root, name)
    assert table.primary_key == ("id",)
    assert [c.name for c in table.checkpoints()] == ["before"]
    past = f"SELECT * FROM {name} VERSION AS OF 'before'"
    assert rows(spark, past) == [(1, 10), (2, 20), (3, 30)]


def test_l4_an_overwrite_replaces_the_rows_that_it_names_and_no_others(
    spark: SparkSession, root: Path
) -> None:
    """Delta's replaceWhere and dynamic overwrite, by name and by path, with a key and without."""
    for key in ("", ", PRIMARY KEY (id, day)"):
        made = f"stated.db.t{uuid.uuid4().hex}"
        spark.sql(
            f"CREATE TABLE {made} (id BIGINT NOT NULL, day STRING NOT NULL, n INT{key})"
            " PARTITIONED BY (day)"
        )
        spark.sql(f"INSERT INTO {made} VALUES (1, 'mo', 1), (2, 'mo', 2), (3, 'tu', 3)")
        opened(root, made).compact(fold_wal=True)
        spark.sql(f"INSERT INTO {made} VALUES (4, 'tu', 4), (5, 'th', 5)")
        spark.sql(f"INSERT INTO {made} REPLACE WHERE day = 'mo' SELECT 2L, 'mo', 20")
        expected: list[tuple[Any, ...]] = [(2, 20), (3, 3), (4, 4), (5, 5)]
        assert rows(spark, f"SELECT id, n FROM {made}") == expected
        new = spark.sql("SELECT 3L AS id, 'tu' AS day, 30 AS n")
        new.writeTo(made).overwrite(F.col("day") == "tu")
        assert rows(spark, f"SELECT id, n FROM {made}") == [(2, 20), (3, 30), (5, 5)]
        by_path = new.write.format("weir").mode("overwrite").option("replaceWhere", "n >= 30")
        with pytest.raises(PySparkException, match="is not one of those to replace"):
            new.selectExpr("id", "day", "n - 1 AS n").write.format("weir").mode("overwrite").option(
                "replaceWhere", "n >= 30"
            ).save(opened(root, made).uri)
        by_path.save(opened(root, made).uri)
        assert rows(spark, f"SELECT id, n FROM {made}") == [(2, 20), (3, 30), (5, 5)]
        some = spark.sql(
            "SELECT * FROM VALUES (6L, 'mo', 6), (7L, 'th', 7), (8L, 'we', 8) AS t(id, day, n)"
        )
        some.writeTo(made).overwritePartitions()
        assert rows(spark, f"SELECT id, n FROM {made}") == [(3, 30), (6, 6), (7, 7), (8, 8)]
        some.limit(0).writeTo(made).overwritePartitions()
        spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
        try:
            spark.sql(f"INSERT OVERWRITE {made} SELECT 9L, 'tu', 9")
        finally:
            spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
        assert rows(spark, f"SELECT id, n FROM {made}") == [(6, 6), (7, 7), (8, 8), (9, 9)]
        spark.sql(f"INSERT OVERWRITE {made} PARTITION (day = 'mo') SELECT 1L, 1")
        assert rows(spark, f"SELECT id, n FROM {made}") == [(1, 1), (7, 7), (8, 8), (9, 9)]
        assert opened(root, made).primary_key == (("id", "day") if key else ())


def test_an_overwrite_that_could_not_name_its_rows_is_refused(
    spark: SparkSession, root: Path, name: str
) -> None:
    frame = spark.range(1).selectExpr("id", "1 AS n")
    uri = opened(root, name).uri

    def overwrite(**options: str) -> None:
        frame.write.format("weir").mode("overwrite").options(**options).save(uri)

    for run, word in (
        (lambda: overwrite(), "must be confirmed"),
        (lambda: overwrite(replaceWhere="n >"), "n >"),
        (lambda: overwrite(replaceWhere="m = 1"), "m"),
        (lambda: overwrite(partitionOverwriteMode="dynamic"), "is sharded by Unsharded"),
        (lambda: overwrite(partitionOverwriteMode="some"), "must be one of"),
        (
            lambda: spark.sql(f"INSERT INTO {name} REPLACE WHERE n = 1 OR n = 2 SELECT 1L, 1"),
            "rows can be deleted by comparisons",
        ),
        (lambda: frame.writeTo(name).overwritePartitions(), "is sharded by Unsharded"),
        (
            lambda: (
                frame.write.format("weir").mode("append").option("replaceWhere", "n = 1").save(uri)
            ),
            "go with mode overwrite",
        ),
    ):
        with pytest.raises(PySparkException, match=word):
            run()
    assert rows(spark, f"SELECT * FROM {name}") == [(1, 10), (2, 20), (3, 30)]


def test_l4_a_replacement_that_fails_or_asks_for_another_table_changes_nothing(
    spark: SparkSession, root: Path, name: str
) -> None:
    replace = f"CREATE OR REPLACE TABLE {name}"
    for statement, word in (
        (f"{replace} AS SELECT id, cast(1 / (id - 1) AS int) AS n FROM range(3)", "DIVIDE_BY_ZERO"),
        (f"{replace} AS SELECT 1L AS id", "has the column 'n', which the new rows lack"),
        (f"{replace} AS SELECT 1L AS id, 'x' AS n", "column 'n' is string, but int32"),
        (f"{replace} (id BIGINT, n INT, PRIMARY KEY (n))", "has the primary key"),
        (f"{replace} CLUSTERED BY (id) INTO 2 BUCKETS AS SELECT 1L AS id, 1 AS n", "the sharding"),
        (f"{replace} USING delta AS SELECT 1L AS id, 1 AS n", "not of delta"),
        (f"{replace} USING parquet AS SELECT 1L AS id, 1 AS n", "not of parquet"),
        (f"REPLACE TABLE {name} (x INT)", "has the column 'id'"),
    ):
        with pytest.raises(PySparkException, match=word):
            spark.sql(statement)
    table = opened(root, name)
    assert (table.primary_key, table.schema.names) == (("id",), ["id", "n"])
    assert [c.name for c in table.checkpoints()] == ["before"]
    assert rows(spark, f"SELECT * FROM {name}") == [(1, 10), (2, 20), (3, 30)]


def test_a_version_that_no_checkpoint_keeps_is_refused_and_the_nearest_one_named(
    spark: SparkSession, name: str
) -> None:
    with pytest.raises(PySparkException, match=r"not known to be the whole.*nearest is 'before'"):
        spark.sql(f"SELECT * FROM {name} VERSION AS OF 7")
    spark.sql(f"CALL stated.system.checkpoint('db.{name.rpartition('.')[2]}', name => '7')")
    assert len(rows(spark, f"SELECT * FROM {name} VERSION AS OF 7")) == 3


def test_a_delete_of_everything_is_told_to_feeds_where_a_truncate_is_not(
    spark: SparkSession, root: Path, name: str
) -> None:
    """Spark would truncate where a DELETE has no condition, if the table offered it."""
    spark.sql(f"DELETE FROM {name}")
    assert rows(spark, f"SELECT * FROM {name}") == []
    kinds = [(c.kind, c.batch.num_rows) for c in opened(root, name).changes()]
    assert sum(count for kind, count in kinds if kind == "delete") == 3


def test_rows_of_an_append_only_table_are_deleted_by_a_condition(
    spark: SparkSession, root: Path, name: str
) -> None:
    log = f"{name}_log"
    spark.sql(f"CREATE TABLE {log} (id BIGINT, v STRING, d DATE, at TIMESTAMP)")
    spark.sql(
        f"INSERT INTO {log} SELECT id, concat('v', id), date_add(date'2026-01-01', int(id)),"
        " timestamp_seconds(id) FROM range(9)"
    )
    opened(root, log).compact(fold_wal=True)
    spark.sql(f"INSERT INTO {log} VALUES (1, 'v1', NULL, NULL), (9, NULL, NULL, NULL)")
    left = list(range(10))
    for condition, gone in (
        ("id = 1 AND v LIKE 'v1%'", {1}),  # the row in the base, and that in the log
        ("d = date'2026-01-03'", {2}),
        ("at >= timestamp'1970-01-01 00:00:08 UTC'", {8}),
        ("v IS NULL", {9}),
        ("id IN (3, 4) AND v > 'v3'", {4}),
        ("id > 100", set()),
    ):
        spark.sql(f"DELETE FROM {log} WHERE {condition}")
        left = [key for key in left if key not in gone]
        assert [key for (key,) in rows(spark, f"SELECT id FROM {log}")] == left, condition
    for condition in ("id = 3 OR id = 5", "v LIKE '%5'", "NOT id = 3"):
        with pytest.raises(PySparkException, match="rows can be deleted by comparisons"):
            spark.sql(f"DELETE FROM {log} WHERE {condition}")
    with pytest.raises(PySparkException, match="UPDATE needs a primary key"):
        spark.sql(f"UPDATE {log} SET v = 'x'")
    assert [key for (key,) in rows(spark, f"SELECT id FROM {log}")] == left
    spark.sql(f"DELETE FROM {log}")
    assert spark.table(log).count() == 0


def test_a_delete_compares_times_of_every_calendar_as_spark_does(
    spark: SparkSession, root: Path
) -> None:
    """Java's old classes have the days of another calendar before 1582, and years up to 9999."""
    log = f"stated.db.t{uuid.uuid4().hex}"
    spark.sql(f"CREATE TABLE {log} (id BIGINT, d DATE, at TIMESTAMP)")
    days = ["0001-01-01", "1500-03-01", "1582-10-04", "1582-10-15", "9999-12-31"]
    values = ", ".join(f"({n}, DATE '{d}', TIMESTAMP '{d} 00:00:00')" for n, d in enumerate(days))
    spark.sql(f"INSERT INTO {log} VALUES {values}")
    left = list(range(5))
    for condition, gone in (
        ("at < TIMESTAMP '1500-03-01 00:00:00'", {0}),
        ("at = TIMESTAMP '1500-03-01 00:00:00'", {1}),
        ("at <= TIMESTAMP '1582-10-14 23:59:59.999999'", {2}),
        ("d = DATE '1582-10-05'", set()),
        ("d <= DATE '1582-10-15'", {3}),
    ):
        spark.sql(f"DELETE FROM {log} WHERE {condition}")
        left = [key for key in left if key not in gone]
        assert [key for (key,) in rows(spark, f"SELECT id FROM {log}")] == left, condition
    for condition in ("d > DATE '+12000-01-01'", "d < DATE '-0005-01-01'"):
        with pytest.raises(PySparkException, match="rows can be deleted by comparisons"):
            spark.sql(f"DELETE FROM {log} WHERE {condition}")
    assert rows(spark, f"SELECT id FROM {log}") == [(4,)]


def test_a_delete_compares_nan_as_spark_does(spark: SparkSession, root: Path) -> None:
    """To Spark a NaN is greater than every number, also one whose sign bit is set."""
    log = f"stated.db.t{uuid.uuid4().hex}"
    spark.sql(f"CREATE TABLE {log} (id BIGINT, f DOUBLE)")
    values = np.array([1.0, 5.0, 9.0, np.nan, np.copysign(np.nan, -1)])
    with opened(root, log).writer() as writer:
        writer.put(pa.table({"id": range(5), "f": values}))
    opened(root, log).compact()
    for condition, left in (
        ("f < 5.0D", [1, 2, 3, 4]),
        ("f <= 5.0D", [2, 3, 4]),
        ("f >= 9.5D", [2]),
        ("f > 1.0D", []),
    ):
        matching = [key for (key,) in rows(spark, f"SELECT id FROM {log} WHERE {condition}")]
        assert not {*matching} & {*left}, condition
        spark.sql(f"DELETE FROM {log} WHERE {condition}")
        assert [key for (key,) in rows(spark, f"SELECT id FROM {log}")] == left, condition


def test_totable_makes_a_table_with_the_key_of_its_stream(
    spark: SparkSession, root: Path, name: str, tmp_path: Path
) -> None:
    def copy(target: str) -> None:
        query = (
            spark.readStream.table(name)
            .writeStream.option("checkpointLocation", f"{tmp_path}/{target}")
            .option("primaryKey", "id")
            .option("buckets", "2")
            .trigger(availableNow=True)
            .toTable(target)
        )
        query.awaitTermination()

    copy(f"{name}_keyed")
    made = opened(root, f"{name}_keyed")
    assert (made.primary_key, made.sharding) == (("id",), weir.Bucket("id", 2))
    assert rows(spark, f"SELECT * FROM {name}_keyed") == [(1, 10), (2, 20), (3, 30)]
    # A table that holds rows stays as it is, and the stream says why it cannot go on.
    spark.sql(f"CREATE TABLE {name}_log AS SELECT 1L AS id, 1 AS n")
    with pytest.raises(PySparkException, match=r"has the primary key .*leave it out"):
        copy(f"{name}_log")
    assert rows(spark, f"SELECT * FROM {name}_log") == [(1, 1)]


def test_l4_a_table_made_again_with_another_key_is_overwritten_as_it_is_now(
    spark: SparkSession, root: Path, name: str
) -> None:
    """The processes of this session still know the dropped table."""
    overwrite = f"INSERT OVERWRITE {name} WITH ('overwrite' = 'true') SELECT 5L, 'x'"
    spark.sql(f"INSERT OVERWRITE {name} WITH ('overwrite' = 'true') SELECT 4L, 40")
    spark.sql(f"DROP TABLE {name}")
    spark.sql(f"CREATE TABLE {name} (id BIGINT, v STRING)")
    spark.sql(overwrite)
    spark.sql(f"INSERT INTO {name} SELECT 5L, 'x'")
    assert rows(spark, f"SELECT * FROM {name}") == [(5, "x"), (5, "x")]
    assert opened(root, name).primary_key == ()


def test_a_table_that_is_not_there_is_created_by_what_may_replace(
    spark: SparkSession, root: Path
) -> None:
    frame = spark.range(3).selectExpr("id", "1 AS n")
    new = f"stated.db.n{uuid.uuid4().hex}"
    frame.write.mode("overwrite").option("primaryKey", "id").option("buckets", "2").saveAsTable(new)
    table = opened(root, new)
    assert (table.primary_key, table.sharding) == (("id",), weir.Bucket("id", 2))
    assert spark.table(new).count() == 3
    assert sum(change.batch.num_rows for change in table.changes()) == 3  # through the log
    spark.sql(f"CREATE OR REPLACE TABLE {new}_2 (id BIGINT NOT NULL, PRIMARY KEY (id))")
    assert opened(root, f"{new}_2").primary_key == ("id",)
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        spark.sql(f"CREATE TABLE {new}_3 AS SELECT id, 1 / (id - 1) AS n FROM range(3)")
    assert not spark.catalog.tableExists(f"{new}_3"), "a CTAS that fails leaves no table"
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql(f"REPLACE TABLE {new}_3 (x INT)")


def test_p7_an_insert_only_merge_does_not_overwrite_rows_that_came_since(
    spark: SparkSession, root: Path, name: str, tmp_path: Path
) -> None:
    """Spark plans it as an append; a row of another writer would be replaced silently."""
    table = opened(root, name)

    def arrives(key: int) -> int:
        with weir.open(table.uri).writer() as writer:
            writer.put([{"id": key, "n": 99}])
        return 0

    spark.udf.register("arrives", arrives, "int")
    clauses = (
        "THEN INSERT *",
        "AND s.n >= 0 THEN INSERT * WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)",
    )
    for key, clause in zip((7, 8), clauses, strict=True):
        source = f"(SELECT {key}L AS id, arrives({key}) AS n FROM range(1))"
        merge = f"MERGE INTO {name} t USING {source} s ON t.id = s.id WHEN NOT MATCHED {clause}"
        with pytest.raises(PySparkException, match="CommitConflict"):
            spark.sql(merge)
        assert rows(spark, f"SELECT * FROM {name} WHERE id = {key}") == [(key, 99)]
        spark.sql(merge)  # again: the row is there by now, and stays
        assert rows(spark, f"SELECT * FROM {name} WHERE id = {key}") == [(key, 99)]
    twice = "(SELECT * FROM VALUES (9L, 1), (9L, 2) s(id, n))"
    with pytest.raises(PySparkException, match="one key twice"):
        spark.sql(
            f"MERGE INTO {name} t USING {twice} s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
        )
    spark.sql(f"INSERT INTO {name} VALUES (9, 1), (9, 1)")  # no MERGE: it upserts
    assert spark.table(name).where("id = 9").count() == 1


def test_p7_a_key_is_not_moved_onto_another_row(spark: SparkSession, name: str) -> None:
    with pytest.raises(PySparkException, match="which another row has"):
        spark.sql(f"UPDATE {name} SET id = 2 WHERE id = 1")
    with pytest.raises(PySparkException, match="which another row has"):
        spark.sql(
            f"MERGE INTO {name} t USING (SELECT 3L AS id, 77 AS n) s ON t.n = s.n"
            " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *"
        )
    assert rows(spark, f"SELECT * FROM {name}") == [(1, 10), (2, 20), (3, 30)]
    spark.sql(f"UPDATE {name} SET id = id + 1")  # every key moves, and none is lost
    assert rows(spark, f"SELECT * FROM {name}") == [(2, 10), (3, 20), (4, 30)]


def test_l1_a_statement_reads_one_snapshot_however_often_it_names_the_table(
    spark: SparkSession, root: Path, name: str, tmp_path: Path
) -> None:
    """A writer beside it puts a row whenever Spark plans a scan: each sees the same rows."""
    table = opened(root, name)
    writer = table.writer()
    stop, count = threading.Event(), 100

    def write() -> None:
        number = count
        while not stop.is_set():
            number += 1
            writer.put([{"id": number, "n": 0}])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(4):
            assert rows(spark, f"SELECT id FROM {name} EXCEPT SELECT id FROM {name}") == []
            one = f"(SELECT count(*) FROM {name})"
            ((a, b, c),) = rows(spark, f"SELECT {one}, {one}, (SELECT count(id) FROM {name})")
            assert a == b == c
    finally:
        stop.set()
        thread.join()
        writer.close()


def test_l1_a_dataframe_by_name_reads_a_new_snapshot_with_each_action(
    spark: SparkSession, name: str
) -> None:
    frame = spark.table(name)
    assert frame.count() == 3
    spark.sql(f"INSERT INTO {name} VALUES (4, 40)")
    assert frame.count() == 4


def test_p7_a_subquery_of_a_statement_reads_what_its_target_reads(
    spark: SparkSession, root: Path, name: str
) -> None:
    """Planning takes time, in which Spark would look the table of the subquery up once more."""
    table = opened(root, name)

    def late(value: int) -> int:
        with weir.open(table.uri).writer() as writer:
            writer.put([{"id": 50, "n": 1000}])
        return value

    spark.udf.register("late", late, "int")
    spark.sql(f"UPDATE {name} SET n = (SELECT max(n) FROM {name}) + late(0) WHERE id = 1")
    assert rows(spark, f"SELECT n FROM {name} WHERE id = 1") == [(30,)]


def test_a_cached_table_is_refreshed_by_statements(spark: SparkSession, name: str) -> None:
    spark.sql(f"CACHE TABLE {name}")
    try:
        assert spark.table(name).count() == 3
        spark.sql(f"INSERT INTO {name} VALUES (4, 40)")
        assert spark.table(name).count() == 4
        spark.sql(f"DELETE FROM {name} WHERE id = 1")
        assert spark.table(name).count() == 3
    finally:
        spark.sql(f"UNCACHE TABLE {name}")


def test_f15_rows_beside_a_vector_are_deleted_and_inserted_without_it(
    spark: SparkSession, root: Path
) -> None:
    """Their rows carry nulls for it, and pyarrow's own cast of such a column ends the process."""
    uri = f"{root}/db/v{uuid.uuid4().hex}.lance"
    vector = pa.field("v", pa.list_(pa.float32(), 2))
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), vector])
    with weir.create(uri, schema, primary_key="id").writer() as writer:
        writer.put([{"id": n, "v": [n, n]} for n in range(4)])
    spark.sql(f"DELETE FROM stated.`{uri}` WHERE id = 1")
    spark.sql(f"INSERT INTO stated.`{uri}` (id) VALUES (9)")
    assert rows(spark, f"SELECT * FROM stated.`{uri}` WHERE id != 0") == [
        (2, [2.0, 2.0]),
        (3, [3.0, 3.0]),
        (9, None),
    ]


def test_m9_a_time_finer_than_sparks_is_never_truncated_by_a_statement(
    spark: SparkSession, root: Path, name: str
) -> None:
    """A statement that changes another column reads the row and writes it back."""
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("n", pa.int32()),
            pa.field("t", pa.timestamp("ns")),
        ]
    )
    uri = f"{opened(root, name).uri.removesuffix('.lance')}_ns.lance"
    name = f"{name}_ns"
    table = weir.create(uri, schema, primary_key="id")
    times = pa.array([10**18 + 1000, 10**18 + 123], pa.timestamp("ns"))
    with table.writer() as writer:
        writer.put(pa.table([[1, 2], [5, 5], times], schema=schema))

    def merge(key: int) -> str:
        source = f"(SELECT {key}L AS id) s ON x.id = s.id WHEN MATCHED THEN UPDATE SET n = n + 1"
        return f"MERGE INTO {name} AS x USING {source}"

    for statement in (
        f"UPDATE {name} SET n = 6 WHERE id = 2",
        merge(2),
        f"INSERT INTO {name} SELECT * FROM {name}",
        f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM {name}",
    ):
        with pytest.raises(PySparkException, match=r"column 't' is timestamp\[ns\] and holds"):
            spark.sql(statement)
    assert rows(spark, f"SELECT id, n FROM {name}") == [(1, 5), (2, 5)]
    assert table.scan().to_table().sort_by("id")["t"].combine_chunks() == times
    # Whole microseconds go on working, and so does what does not read the column.
    spark.sql(f"DELETE FROM {name} WHERE id = 2")
    spark.sql(f"UPDATE {name} SET n = n + 1")
    spark.sql(merge(1))
    spark.sql(f"UPDATE {name} SET n = n + 1 WHERE id = 1")
    spark.sql(f"CREATE OR REPLACE TABLE {name} AS SELECT id, n + 1 AS n, t FROM {name}")
    assert table.scan().to_table() == pa.table([[1], [9], times[:1]], schema=schema)


@pytest.mark.parametrize("unit", ["ns", "s"])
def test_m9_a_time_that_spark_cannot_hold_is_refused_at_any_depth(unit: str) -> None:
    """Too fine, or too far away: seconds after the year 294246 have no microseconds."""
    inner = pa.timestamp(unit)
    value = pa.scalar(123 if unit == "ns" else 2**60, pa.int64()).cast(inner)
    whole = pa.scalar(5000, pa.int64()).cast(inner)
    for path, dtype, wrapped in (
        ("t", inner, lambda one: one),
        ("t.at", pa.struct([("at", inner)]), lambda one: {"at": one}),
        ("t.element", pa.list_(inner), lambda one: [one]),
    ):
        schema = pa.schema([pa.field("t", dtype)])
        target = arrow_schema(spark_schema(schema))
        fits = pa.record_batch([pa.array([wrapped(whole), None], dtype)], schema=schema)
        assert to_spark(fits, target).num_rows == 2
        rest = pa.record_batch([pa.array([wrapped(value)], dtype)], schema=schema)
        with pytest.raises(SchemaMismatch, match=re.escape(f"column '{path}' is {inner}")):
            to_spark(rest, target)


def test_a_column_that_spark_has_no_type_for_is_refused_only_where_it_is_used(
    spark: SparkSession, root: Path, name: str
) -> None:
    """Left out by name it hinders nothing; and no statement writes null in its place."""
    schema = pa.schema(
        [
            pa.field("u", pa.uuid()),
            pa.field("id", pa.int64(), nullable=False),
            pa.field("n", pa.int32()),
            pa.field("d", pa.decimal256(50, 2)),
        ]
    )
    uri = f"{opened(root, name).uri.removesuffix('.lance')}_u.lance"
    name = f"{name}_u"
    table = weir.create(uri, schema, primary_key="id")
    known = [{"u": uuid.UUID(int=i), "id": i, "n": i * 10, "d": Decimal(i)} for i in range(1, 5)]
    with table.writer() as writer:
        writer.put(known)
    new = "(SELECT 9L AS id) s ON x.id = s.id"
    keyed = "(SELECT X'00' AS u) s ON x.u = s.u"
    for statement, column in (
        (f"SELECT * FROM {name}", "u"),
        (f"SELECT id FROM {name} WHERE u IS NULL", "u"),
        (f"SELECT count(d) FROM {name}", "d"),
        (f"UPDATE {name} SET n = 0", "u"),
        (f"MERGE INTO {name} AS x USING {new} WHEN MATCHED THEN UPDATE SET n = 0", "u"),
        (f"SELECT id FROM {name} WHERE u = 'x'", "u"),
        (f"DELETE FROM {name} WHERE NOT (u <=> 'x')", "u"),
        (f"DELETE FROM {name} WHERE d <> X'00'", "d"),
        (f"MERGE INTO {name} AS x USING {keyed} WHEN NOT MATCHED THEN INSERT (id) VALUES (9)", "u"),
        (f"INSERT INTO {name} (id, u) VALUES (5, X'00'), (6, NULL)", "u"),
    ):
        with pytest.raises(PySparkException, match=f"'{column}' is .* has no type for; what leave"):
            spark.sql(statement).collect()
    told = {row.col_name: row.comment for row in spark.sql(f"DESCRIBE {name}").collect()}
    assert told["u"] == "extension<arrow.uuid>, which Spark has no type for"
    assert table.scan().to_table().sort_by("id").to_pylist() == known
    # Everything that the refusal says works.
    assert rows(spark, f"SELECT id, n FROM {name} WHERE n > 30") == [(4, 40)]
    assert rows(spark, f"SELECT count(*) FROM {name}") == [(4,)]
    spark.sql(f"DELETE FROM {name} WHERE n = 10")
    spark.sql(f"DELETE FROM {name} WHERE n = 20")
    spark.sql(f"INSERT INTO {name} (id, n) VALUES (5, 50)")
    spark.sql(f"MERGE INTO {name} AS x USING {new} WHEN NOT MATCHED THEN INSERT (id) VALUES (9)")
    weir.spark.write(spark.sql("SELECT 6L AS id, 60 AS n"), uri)
    narrow = spark.read.format("weir").option("columns", "id,n").load(uri)
    expected = [(3, 30), (4, 40), (5, 50), (6, 60), (9, None)]
    assert sorted(tuple(row) for row in narrow.collect()) == expected
    planned = weir.spark.scan(spark, uri, columns=["id", "n"])
    assert sorted(tuple(row) for row in planned.collect()) == expected
    kept = table.scan(filter="id < 5").to_table().sort_by("id").to_pylist()
    assert kept == known[2:]


def test_only_null_is_written_to_a_column_that_spark_has_no_type_for() -> None:
    schema = pa.schema([("id", pa.int64()), ("u", pa.uuid()), ("us", pa.list_(pa.uuid()))])
    given = arrow_schema(named_schema(schema))
    left_out = pa.record_batch([pa.array([1]), *[pa.nulls(1, pa.binary())] * 2], schema=given)
    rows = from_spark(left_out, schema, None)
    assert rows.schema.types == schema.types
    assert rows.to_pylist() == [{"id": 1, "u": None, "us": None}]
    value = pa.array([b"0" * 16])
    with pytest.raises(InvalidInput, match=r"column 'u' is extension<arrow\.uuid>, which"):
        from_spark(left_out.set_column(1, "u", value), schema, None)


def test_spark_keeps_a_column_that_it_has_no_type_for_in_its_plans() -> None:
    """Of a VOID column it would make null of every condition before anybody could refuse it."""
    schema = pa.schema([("id", pa.int64()), ("us", pa.list_(pa.uuid()))])
    named = named_schema(schema)
    assert [field.dataType.simpleString() for field in named] == ["bigint", "binary"]
    require_typed(StructType(named.fields[:1]), lambda: schema)
    with pytest.raises(InvalidInput, match=r"column 'us' is list<"):
        require_typed(named, lambda: schema)
    with pytest.raises(InvalidInput, match=r"column 'us' is list<.*weir.create"):
        require_storable(named)


def test_a_catalog_is_found_in_a_thread_that_uses_it_first(spark: SparkSession, root: Path) -> None:
    folder = root / "threaded"
    weir.connect(folder).create_table(["db", "t"], pa.schema([("id", pa.int64())]))
    weir.spark.register(spark, catalog="threaded", root=str(folder))
    told: list[str] = []

    def first() -> None:
        try:
            told.extend(row.namespace for row in spark.sql("SHOW NAMESPACES IN threaded").collect())
        except PySparkException as error:
            told.append(str(error))

    thread = threading.Thread(target=first)
    thread.start()
    thread.join()
    assert told == ["db"]


def test_a_stream_by_name_is_started_in_a_thread_of_its_own(
    spark: SparkSession, name: str, tmp_path: Path
) -> None:
    """Spark knows Python's sources only in threads that have a session."""
    failed: list[Exception] = []

    def copy() -> None:
        try:
            rows = spark.readStream.schema("id long, n int").json(str(tmp_path / "in"))
            writer = rows.writeStream.option("checkpointLocation", str(tmp_path / "c"))
            writer.trigger(availableNow=True).toTable(name).awaitTermination()
        except PySparkException as error:
            failed.append(error)

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"id": 7, "n": 70}')
    thread = threading.Thread(target=copy)
    thread.start()
    thread.join()
    assert not failed
    assert rows(spark, f"SELECT * FROM {name} WHERE id = 7") == [(7, 70)]


def test_p3_an_overwrite_by_sql_stops_a_feed_by_name(
    spark: SparkSession, root: Path, name: str, tmp_path: Path
) -> None:
    """The copy would keep the rows of the table before."""

    def feed(folder: str, rows: list[int]) -> None:
        query = (
            spark.readStream.table(name)
            .writeStream.option("checkpointLocation", f"{tmp_path}/{folder}")
            .trigger(availableNow=True)
            .foreachBatch(lambda batch, _: rows.extend(row.id for row in batch.collect()))
            .start()
        )
        query.awaitTermination()

    told: list[int] = []
    feed("first", told)
    assert sorted(told) == [1, 2, 3]
    spark.sql(f"INSERT OVERWRITE {name} WITH ('overwrite' = 'true') SELECT 4L, 40")
    with pytest.raises(PySparkException, match="Start a new query with a new"):
        feed("first", told)
    assert sorted(told) == [1, 2, 3]
    again: list[int] = []
    feed("second", again)
    assert again == [4]


def test_p7_a_statement_with_an_id_is_done_once(spark: SparkSession, root: Path, name: str) -> None:
    """A rerun of one that died is tried without Spark: tests/crash/test_statement_rerun.py."""
    source = "(SELECT 2L AS id) s ON x.id = s.id WHEN MATCHED THEN UPDATE SET n = n + 1"
    for _ in range(2):
        spark.sql(f"UPDATE {name} WITH ('statementId' = 'u') SET n = n + 1 WHERE id < 3")
        spark.sql(f"MERGE INTO {name} AS x WITH ('statementId' = 'm') USING {source}")
        spark.sql(f"DELETE FROM {name} WITH ('statementId' = 'd') WHERE id = 3")
        assert rows(spark, f"SELECT * FROM {name}") == [(1, 11), (2, 22)]
    new = "(SELECT 4L AS id) s ON x.id = s.id WHEN NOT MATCHED THEN INSERT (id, n) VALUES (4, 40)"
    for _ in range(2):  # Spark plans one that only inserts as an append
        spark.sql(f"MERGE INTO {name} AS x WITH ('statementId' = 'n') USING {new}")
        assert rows(spark, f"SELECT * FROM {name} WHERE id > 3") == [(4, 40)]


def test_p7_an_id_that_could_not_tell_a_rerun_is_refused(
    spark: SparkSession, root: Path, name: str
) -> None:
    """An INSERT reads nothing that an id could guard: run again, it would write its rows twice."""
    log = f"stated.db.t{uuid.uuid4().hex}"
    spark.sql(f"CREATE TABLE {log} (id BIGINT)")
    for statement, word in (
        (f"INSERT INTO {log} WITH ('statementId' = 'i') VALUES (7)", "appId and txnVersion"),
        (f"INSERT INTO {name} WITH ('statementId' = 'i') VALUES (7, 70)", "appId and txnVersion"),
        (
            f"INSERT OVERWRITE {name} WITH ('overwrite' = 'true', 'statementId' = 'i') SELECT 7, 7",
            "statementId cannot be combined",
        ),
        (f"DELETE FROM {log} WITH ('statementId' = 'd') WHERE id = 7", "has no effect"),
        (f"DELETE FROM {log} WITH ('statementId' = 'd')", "has no effect"),
        (f"UPDATE {name} WITH ('statementId' = '') SET n = n + 1", "an id of its own"),
        (f"UPDATE {name} WITH ('statmentId' = 'u') SET n = n + 1", "did you mean statementId"),
        (f"SELECT * FROM {name} WITH ('statementId' = 's')", "a read of weir has no option"),
        (f"DELETE FROM {name} WITH ('statementId' = ' ') WHERE id = 1", "an id of its own"),
    ):
        with pytest.raises(PySparkException, match=word):
            spark.sql(statement).collect()
    assert rows(spark, f"SELECT * FROM {log}") == []
    assert rows(spark, f"SELECT * FROM {name}") == [(1, 10), (2, 20), (3, 30)]
    for _ in range(2):  # what the refusal advises
        spark.sql(f"INSERT INTO {log} WITH ('appId' = 'a', 'txnVersion' = '1') VALUES (7)")
    assert rows(spark, f"SELECT * FROM {log}") == [(7,)]
