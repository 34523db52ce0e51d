"""Tables by name in SQL: created, written, changed in place, read at checkpoints, streamed."""

import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import weir
import weir.spark
from tests.support.spark import built_jar
from weir.errors import InvalidInput
from weir.lake.base.view import SCAN_BATCH_ROWS
from weir.spark import jar

pytestmark = pytest.mark.skipif(
    jar.compiler() is None and not jar.path().is_file(), reason="no JDK"
)


@pytest.fixture(scope="module")
def root(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session with the catalog `named`."""
    built_jar()
    folder = tmp_path_factory.mktemp("lake")
    weir.spark.register(spark, catalog="named", root=str(folder))
    return folder


@pytest.fixture
def name() -> str:
    return f"named.db.t{uuid.uuid4().hex}"


def place(root: Path, name: str) -> str:
    return f"{root}/db/{name.rpartition('.')[2]}.lance"


def rows(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.sql(query).collect())


def made(spark: SparkSession, name: str, more: str = "") -> None:
    spark.sql(f"CREATE TABLE {name} (id BIGINT NOT NULL, v STRING, n INT, PRIMARY KEY (id)) {more}")
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a', 10), (2, 'b', 20), (3, 'c', 30), (4, NULL, 40)")


def test_created_by_sql_with_key_and_buckets(spark: SparkSession, root: Path, name: str) -> None:
    made(spark, name, "CLUSTERED BY (id) INTO 4 BUCKETS")
    table = weir.open(place(root, name))
    assert (table.primary_key, table.sharding) == (("id",), weir.Bucket("id", 4))
    assert rows(spark, f"SELECT * FROM {name} WHERE id < 3") == [(1, "a", 10), (2, "b", 20)]
    spark.sql(f"INSERT INTO {name} (id, v) VALUES (1, 'new')")  # an upsert, fresh at once
    assert rows(spark, f"SELECT * FROM {name} WHERE id = 1") == [(1, "new", None)]
    found = {row.tableName for row in spark.sql("SHOW TABLES IN named.db").collect()}
    assert name.rpartition(".")[2] in found
    assert "db" in {row.namespace for row in spark.sql("SHOW NAMESPACES IN named").collect()}
    assert [row.col_name for row in spark.sql(f"DESCRIBE {name}").collect()][:3] == ["id", "v", "n"]
    with pytest.raises(PySparkException, match="already exists"):
        made(spark, name)
    spark.sql(f"CREATE TABLE IF NOT EXISTS {name} (x INT)")
    spark.sql(f"DROP TABLE {name}")
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql(f"SELECT * FROM {name}")


def test_created_with_properties_and_from_a_query(
    spark: SparkSession, root: Path, name: str
) -> None:
    spark.sql(
        f"CREATE TABLE {name} TBLPROPERTIES ('primaryKey' = 'k,id', 'shardBy' = 'bucket(2, id)')"
        " AS SELECT id, cast(id % 3 AS int) AS k FROM range(9)"
    )
    table = weir.open(place(root, name))
    assert (table.primary_key, table.sharding) == (("k", "id"), weir.Bucket("id", 2))
    assert spark.table(name).count() == 9
    spark.sql(f"ALTER TABLE {name} ADD COLUMNS (note STRING)")
    spark.sql(f"UPDATE {name} SET note = 'x' WHERE k = 1")
    assert spark.table(name).where("note = 'x'").count() == 3
    other = f"{name}_p"
    spark.sql(f"CREATE TABLE {other} (id BIGINT, day STRING) PARTITIONED BY (day)")
    assert weir.open(place(root, other)).sharding == weir.Identity("day")
    with pytest.raises(PySparkException, match="needs a primary key"):
        spark.sql(f"UPDATE {other} SET id = 1")


def test_deletes_updates_and_merges(spark: SparkSession, root: Path, name: str) -> None:
    made(spark, name)
    spark.sql(f"DELETE FROM {name} WHERE v = 'b' OR n = 30")
    spark.sql(f"UPDATE {name} SET n = n + 1 WHERE id = 1")
    assert rows(spark, f"SELECT id, n FROM {name}") == [(1, 11), (4, 40)]
    spark.sql(
        f"MERGE INTO {name} t USING (SELECT * FROM VALUES (1L, 'x', 0), (7L, 'y', 7) s(id, v, n)) s"
        " ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v, n = t.n * 2"
        " WHEN NOT MATCHED THEN INSERT * WHEN NOT MATCHED BY SOURCE THEN DELETE"
    )
    expected = [(1, "x", 22), (7, "y", 7)]
    assert rows(spark, f"SELECT * FROM {name}") == expected
    table = weir.open(place(root, name))
    assert sorted(tuple(r.values()) for r in table.scan().to_table().to_pylist()) == expected
    spark.sql(f"UPDATE {name} SET id = CASE id WHEN 1 THEN 7 ELSE 1 END")  # two keys are swapped
    assert rows(spark, f"SELECT id, v FROM {name}") == [(1, "y"), (7, "x")]
    # More rows than a task keeps in memory: they must not become a file each.
    spark.sql(f"INSERT INTO {name} SELECT id, 'many', 0 FROM range(100, 6100)")
    spark.sql(f"UPDATE {name} SET n = 1 WHERE id >= 100")
    assert rows(spark, f"SELECT count(*), sum(n) FROM {name} WHERE id >= 100") == [(6000, 6000)]


def test_a_statement_that_writes_one_key_twice_is_refused(
    spark: SparkSession, root: Path, name: str
) -> None:
    made(spark, name)
    for source in ("(5L, 'x', 0), (5L, 'y', 0)", "(1L, 'x', 0), (1L, 'y', 0)"):
        with pytest.raises(PySparkException, match=r"one key twice|MERGE_CARDINALITY"):
            spark.sql(
                f"MERGE INTO {name} t USING (SELECT * FROM VALUES {source} s(id, v, n)) s"
                " ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )
    assert spark.table(name).count() == 4
    with pytest.raises(PySparkException, match="one key twice"):
        spark.sql(f"UPDATE {name} SET id = 9")


def test_p7_a_slow_update_does_not_undo_a_quick_one(
    spark: SparkSession, root: Path, name: str
) -> None:
    made(spark, name)
    uri = place(root, name)
    slow = spark.sparkContext  # one statement waits inside its rows until the other is done
    begun, go = root / f"{uuid.uuid4().hex}", root / f"{uuid.uuid4().hex}"
    assert slow is not None

    def wait(n: int) -> int:
        import time

        begun.touch()
        while not go.exists():
            time.sleep(0.05)
        return n + 1

    spark.udf.register("slowly", wait, "int")
    failed: list[Exception] = []

    def update(where: str) -> None:
        try:
            spark.sql(f"UPDATE {name} SET n = slowly(n) WHERE {where}")
        except Exception as error:
            failed.append(error)

    def run(where: str, quick: str) -> None:
        begun.unlink(missing_ok=True)
        go.unlink(missing_ok=True)
        thread = threading.Thread(target=update, args=(where,))
        thread.start()
        while not begun.exists() and thread.is_alive():
            thread.join(0.05)
        with weir.open(uri).writer() as writer:
            writer.put([{"id": 1, "v": "quick", "n": 100}] if quick == "1" else [{"id": 2}])
        go.touch()
        thread.join(60)

    run("id = 1", "1")
    assert "CommitConflict" in str(failed[0])
    assert rows(spark, f"SELECT n FROM {name} WHERE id = 1") == [(100,)]
    failed.clear()
    run("id = 1", "2")  # a different row changed: no conflict
    assert not failed
    assert rows(spark, f"SELECT n FROM {name} WHERE id = 1") == [(101,)]


def test_a_read_at_a_checkpoint(spark: SparkSession, root: Path, name: str) -> None:
    made(spark, name)
    table = weir.open(place(root, name))
    taken = table.checkpoint("durable", name="before")
    spark.sql(f"DELETE FROM {name}")
    assert spark.table(name).count() == 0
    assert rows(spark, f"SELECT count(*) FROM {name} VERSION AS OF 'before'") == [(4,)]
    spark.sql(f"ALTER TABLE {name} ADD COLUMNS (later INT)")
    past = f"SELECT * FROM {name} VERSION AS OF 'before' WHERE id = 1"
    assert rows(spark, past) == [(1, "a", 10)], "with the columns of its time"
    moment = f"timestamp_micros({int(taken.created * 1e6) + 1_000_000})"
    assert rows(spark, f"SELECT count(*) FROM {name} TIMESTAMP AS OF {moment}") == [(4,)]
    with pytest.raises(PySparkException, match="no checkpoint"):
        spark.sql(f"SELECT * FROM {name} TIMESTAMP AS OF '2020-01-01'").collect()
    with pytest.raises(PySparkException):
        spark.sql(f"SELECT * FROM {name} VERSION AS OF 'never'").collect()


def test_columns_and_filters_reach_lance_and_none_leaks(
    spark: SparkSession, root: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    made(spark, name)
    weir.open(place(root, name)).compact()
    union = f"SELECT id FROM {name} WHERE id = 1 UNION ALL SELECT id FROM {name} WHERE id = 2"
    assert rows(spark, union) == [(1,), (2,)]
    both = f"SELECT (SELECT count(*) FROM {name} WHERE v = 'a'), (SELECT count(*) FROM {name})"
    assert rows(spark, both) == [(1, 4)]
    for where in (
        "v IS NULL",
        "v IS NOT NULL AND id IN (1, 2, 9)",
        "v > 'a'",
        "v LIKE 'b%'",
        "NOT v = 'a'",
        "v <=> 'a'",
        "n >= 20 AND n < 40",
        "n * 2 = 40",
    ):
        found = rows(spark, f"SELECT id FROM {name} WHERE {where}")
        plain = spark.read.format("weir").load(place(root, name)).where(where).select("id")
        assert found == sorted(tuple(row) for row in plain.collect()), where
    plan = spark.sql(f"SELECT v FROM {name} WHERE id = 1")._jdf.queryExecution().toString()
    assert "n#" not in plan.partition("Physical Plan")[2]


def test_rows_by_name_stay_arrow_and_what_a_query_keeps_of_them_is_right(
    spark: SparkSession, root: Path, name: str
) -> None:
    """Python fills the same vectors with each batch in turn, and Spark would close them."""
    many = 3 * SCAN_BATCH_ROWS // 2
    text = pa.array([None if n % 7 == 6 else f"{many - n:09}" for n in range(many)])
    plain = pa.table(
        {
            "id": pa.array(range(many), pa.int64()),
            "v": text,
            "words": pa.array([[v, None] for v in text.to_pylist()], pa.list_(pa.string())),
            "pair": pa.array([{"x": v, "n": [1]} for v in text.to_pylist()]),
            "price": pa.array(range(many), pa.int64()).cast(pa.decimal128(20, 0)),
            "at": pa.array(range(many), pa.int64()).cast(pa.timestamp("us", "UTC")),
            "yes": pa.array([n % 2 == 0 if n % 3 else None for n in range(many)]),
        }
    )
    table = weir.create(place(root, name), plain.schema, primary_key="id")
    lance.write_dataset(plain.cast(lance.dataset(table.uri).schema), table.uri, mode="append")
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "fresh"}])
        writer.delete([2, 3])
    query = (
        "SELECT max(v), min(v), max(words[0]), max(pair.x), sum(price), count(*), count(v),"
        " sum(hash(*)), hash(sort_array(collect_list(v))) FROM {}"
    )
    spark.read.format("weir").load(table.uri).createOrReplaceTempView("by_path")
    found = rows(spark, query.format(name))
    assert found == rows(spark, query.format("by_path"))
    assert found[0][:3] == ("fresh", "000000001", f"{many:09}")
    assert found[0][5] == many - 2
    plan = spark.table(name)._jdf.queryExecution().executedPlan().toString()
    assert "ColumnarToRow" in plan
    assert len(spark.table(name).limit(3).collect()) == 3
    assert spark.table(name).where("id < 0").count() == 0


def test_streams_by_name(spark: SparkSession, root: Path, name: str, tmp_path: Path) -> None:
    """Stream into a table of every row and, in output mode update, into one of counts (upserts)."""
    made(spark, name)
    copy, counts = f"{name}_copy", f"{name}_counts"
    spark.sql(f"CREATE TABLE {copy} (id BIGINT NOT NULL, v STRING, n INT, PRIMARY KEY (id))")
    spark.sql(f"CREATE TABLE {counts} (odd INT NOT NULL, rows BIGINT, PRIMARY KEY (odd))")
    spark.sql(f"CREATE TABLE {name}_log (odd INT, rows BIGINT)")
    feed = spark.readStream.option("skipChangeCommits", "true").table(name)
    grouped = feed.groupBy((feed.id % 2).cast("int").alias("odd")).count()
    updates = grouped.withColumnRenamed("count", "rows")
    told: dict[str, Any] = {}
    for expected in ([(0, 2), (1, 2)], [(0, 2), (1, 3)]):
        for target, stream, mode in ((copy, feed, "append"), (counts, updates, "update")):
            query = (
                stream.writeStream.outputMode(mode)
                .option("checkpointLocation", f"{tmp_path}/{mode}")
                .trigger(availableNow=True)
                .toTable(target)
            )
            query.awaitTermination()
            told = dict(query.lastProgress or {})
        assert rows(spark, f"SELECT * FROM {copy}") == rows(spark, f"SELECT * FROM {name}")
        assert rows(spark, f"SELECT * FROM {counts}") == expected
        spark.sql(f"INSERT INTO {name} VALUES (5, 'e', 50)")
    # Progress names the table and what waits, instead of PythonTable@1f2e3d.
    (source,) = told["sources"]
    assert source["description"] == f"weir[{name}]"
    assert told["sink"]["description"] == f"weir[{counts}]"
    waits = {k: v for k, v in source["metrics"].items() if k.endswith("Behind")}
    assert waits == dict.fromkeys(("shardsBehind", "entriesBehind", "bytesBehind"), "0")
    assert source["metrics"]["table"] == name
    with pytest.raises(PySparkException, match="Update"):  # no key to replace rows by
        updates.writeStream.outputMode("update").option(
            "checkpointLocation", f"{tmp_path}/log"
        ).toTable(f"{name}_log").awaitTermination()


def test_the_dataframe_api_by_name(spark: SparkSession, root: Path, name: str) -> None:
    spark.range(3).selectExpr("id", "'a' AS v").writeTo(name).tableProperty(
        "primaryKey", "id"
    ).create()
    spark.range(2, 5).selectExpr("id", "'b' AS v").writeTo(name).append()
    assert Counter(r.v for r in spark.table(name).collect()) == Counter(a=2, b=3)
    source = spark.range(4, 6).selectExpr("id", "'c' AS v")
    merge = source.mergeInto(name, source.id == spark.table(name).id)
    with pytest.raises(PySparkException):
        merge.merge()  # no action was given
    assert spark.table(f"named.`{place(root, name)}`").count() == 5


def test_what_a_catalog_cannot_do_says_so(spark: SparkSession, root: Path, name: str) -> None:
    made(spark, name)
    other = f"CREATE TABLE {name}2"
    for statement, word in (
        (f"ALTER TABLE {name} RENAME TO named.db.x", "cannot be renamed"),
        (f"ALTER TABLE {name} ALTER COLUMN n TYPE BIGINT", "table.drop_columns"),
        (f"ALTER TABLE {name} SET TBLPROPERTIES ('a' = 'b')", "properties other than"),
        (f"COMMENT ON TABLE {name} IS 'c'", "Comments, and"),
        (f"ALTER TABLE {name} DROP COLUMN id", "part of the primary key"),
        (f"ALTER TABLE {name} RENAME COLUMN id TO x", "part of the primary key"),
        (f"ALTER TABLE {name} ADD COLUMN x INT NOT NULL", "remove NOT NULL"),
        (f"ALTER TABLE {name} ADD COLUMN x INT DEFAULT 5", "remove NOT NULL|DEFAULT"),
        (f"ALTER TABLE {name} ADD COLUMN x INT COMMENT 'c'", "remove NOT NULL"),
        (f"ALTER TABLE {name} ADD COLUMN x INT FIRST", "remove NOT NULL"),
        (f"ALTER TABLE {name} ADD COLUMN x VARIANT", "is variant, which weir has no type"),
        (f"{other} (id INT) LOCATION '/tmp/x'", "leave LOCATION out"),
        (f"{other} (id INT) USING delta", "not of delta: leave USING"),
        (f"{other} (id INT) USING parquet", "not of parquet: leave USING"),  # Spark's default
        (f"{other} (s STRUCT<a: INT NOT NULL>)", "'s' has NOT NULL inside its struct"),
        (f"{other} (a INT, PRIMARY KEY (a)) TBLPROPERTIES ('primaryKey' = 'b')", "give one of"),
        (f"{other} (a INT) PARTITIONED BY (a) TBLPROPERTIES ('shardBy' = 'b')", "give one of"),
        ("CREATE NAMESPACE named.x COMMENT 'c'", "keeps no comment"),
        ("CREATE NAMESPACE named.x WITH DBPROPERTIES ('a' = 'b')", "keeps no a"),
        (f"{other} (id INT) COMMENT 'c'", "keeps no comment"),
        (f"{other} (id INT COMMENT 'c')", "'id' has a COMMENT"),
        (f"{other} (id INT, v VARIANT)", "'v' is variant"),
        (f"{other} (v VARCHAR(5))", "'v' is varchar"),
        (f"{other} (v STRING COLLATE UTF8_LCASE)", "'v' is string collate"),
        (f"{other} (id INT) PARTITIONED BY (days(id))", "cannot be sharded by days"),
        (f"{other} (id INT) TBLPROPERTIES ('primary-key' = 'id')", "did you mean primaryKey"),
        (f"{other} (id INT) TBLPROPERTIES ('bucket' = '4')", "did you mean buckets"),
        (f"{other} (id INT) TBLPROPERTIES ('delta.x' = '4')", "no option 'delta.x'"),
        (f"{other} AS SELECT parse_json('1') AS v", "'v' is variant"),
        (f"INSERT OVERWRITE {name} SELECT * FROM {name}", "must be confirmed"),
        ("SELECT * FROM named.`..`.t", "not a valid name"),
    ):
        with pytest.raises(PySparkException, match=word):
            spark.sql(statement)
        assert not spark.catalog.tableExists(f"{name}2"), statement
    assert spark.table(name).columns == ["id", "v", "n"]


def test_columns_are_dropped_and_renamed(spark: SparkSession, root: Path, name: str) -> None:
    made(spark, name)
    with weir.open(place(root, name)).writer() as writer:
        spark.sql(f"ALTER TABLE {name} RENAME COLUMN N TO amount")
        spark.sql(f"ALTER TABLE {name} DROP COLUMNS (v)")
        spark.sql(f"ALTER TABLE {name} DROP COLUMN IF EXISTS nothing")
        writer.put([{"id": 5, "v": "e", "n": 50}])  # it goes on with the columns it knows
    spark.sql(f"UPDATE {name} SET amount = amount + 1 WHERE id > 3")
    assert spark.table(name).columns == ["id", "amount"]
    expected = [(1, 10), (2, 20), (3, 30), (4, 41), (5, 51)]
    assert rows(spark, f"SELECT * FROM {name}") == expected
    assert weir.open(place(root, name)).schema.names == ["id", "amount"]


def test_a_table_describes_itself_and_its_text_makes_the_same_again(
    spark: SparkSession, root: Path, name: str
) -> None:
    spark.sql(
        f"CREATE TABLE {name} (k INT NOT NULL, id BIGINT NOT NULL, v STRING NOT NULL, x ARRAY<INT>,"
        " PRIMARY KEY (id, k)) CLUSTERED BY (id) INTO 4 BUCKETS"
        " TBLPROPERTIES ('writerDefaults' = '{\"max_memtable_rows\": 5000}')"
    )
    told = dict(rows(spark, f"SHOW TBLPROPERTIES {name}"))
    assert told == {
        "primaryKey": "id,k",
        "shardBy": "bucket(4, id)",
        "writerDefaults": '{"max_memtable_rows": 5000}',
    }
    shown = {row[0]: row[1] for row in spark.sql(f"DESCRIBE EXTENDED {name}").collect()}
    assert (shown["Location"], shown["Provider"]) == (place(root, name), "weir")
    assert "primaryKey=id,k" in shown["Table Properties"]
    assert shown["Part 0"] == "bucket(4, id)"
    text = spark.sql(f"SHOW CREATE TABLE {name}").collect()[0][0]
    before = weir.open(place(root, name))
    columns = before.schema
    spark.sql(f"DROP TABLE {name}")
    spark.sql(text)
    after = weir.open(place(root, name))
    assert after.primary_key == before.primary_key == ("id", "k")
    assert after.sharding == before.sharding == weir.Bucket("id", 4)
    assert after.writer_defaults == before.writer_defaults
    assert after.schema.equals(columns)
    assert [f.nullable for f in after.schema] == [False, False, False, True], "v as declared"
    assert spark.sql(f"SHOW CREATE TABLE {name}").collect()[0][0] == text
    # What was declared is kept: by Spark, by writers, and beside deletes, which have no values.
    spark.sql(f"INSERT INTO {name} VALUES (1, 1, 'a', NULL), (1, 2, 'b', NULL)")
    with pytest.raises(PySparkException, match="NOT_NULL_ASSERT_VIOLATION"):
        spark.sql(f"UPDATE {name} SET v = NULL")
    spark.sql(f"DELETE FROM {name} WHERE id = 1")
    assert rows(spark, f"SELECT id, v FROM {name}") == [(2, "b")]


def test_a_text_that_spark_cannot_say_is_refused_and_makes_no_other_table(
    spark: SparkSession, root: Path, name: str
) -> None:
    vector = pa.field("e", pa.list_(pa.float32(), 3))
    weir.create(place(root, name), pa.schema([pa.field("id", pa.int64()), vector]))
    text = spark.sql(f"SHOW CREATE TABLE {name}").collect()[0][0]
    with pytest.raises(PySparkException, match=r"arrowTypes: create columns of these types with"):
        spark.sql(text.replace(name, f"{name}2"))
    assert not spark.catalog.tableExists(f"{name}2")


def test_merge_with_schema_evolution_adds_the_columns(
    spark: SparkSession, root: Path, name: str
) -> None:
    made(spark, name)
    spark.sql(
        f"MERGE WITH SCHEMA EVOLUTION INTO {name} t"
        " USING (SELECT 1L AS id, 'x' AS v, 5 AS n, 7 AS more) s ON t.id = s.id"
        " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    assert rows(spark, f"SELECT * FROM {name} WHERE id < 3") == [(1, "x", 5, 7), (2, "b", 20, None)]


def test_a_change_of_types_or_of_fields_of_a_struct_is_refused_and_changes_nothing(
    spark: SparkSession, root: Path, name: str
) -> None:
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT NOT NULL, n INT, s STRUCT<a: INT>, PRIMARY KEY (id))"
    )
    spark.sql(f"INSERT INTO {name} VALUES (1, 1, named_struct('a', 1))")
    merge = (
        "MERGE WITH SCHEMA EVOLUTION INTO {} t USING (SELECT 1L AS id, {} AS n, {} AS s) s"
        " ON t.id = s.id WHEN MATCHED THEN UPDATE SET *"
    )
    for statement in (
        f"ALTER TABLE {name} ADD COLUMN s.b INT",
        f"ALTER TABLE {name} RENAME COLUMN s.a TO b",
        f"ALTER TABLE {name} DROP COLUMN s.a",
        f"ALTER TABLE {name} REPLACE COLUMNS (q INT)",
        merge.format(name, "5", "named_struct('a', 1, 'b', 2)"),
        merge.format(name, "5000000000", "named_struct('a', 1)"),
    ):
        with pytest.raises(PySparkException, match=r"of whole columns.*For another type add"):
            spark.sql(statement)
    assert weir.open(place(root, name)).scan().to_table().to_pylist() == [
        {"id": 1, "n": 1, "s": {"a": 1}}
    ]


def test_a_missing_jar_is_said(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jar, "path", lambda: Path("/nowhere/weir-spark-4.3.jar"))
    with pytest.raises(InvalidInput, match=r"python -m weir\.spark\.jar"):
        weir.spark.register(spark, catalog="c", root="/tmp")
    with pytest.raises(InvalidInput, match="go together"):
        weir.spark.register(spark, catalog="c")


def test_a_name_stays_with_its_root(spark: SparkSession, root: Path) -> None:
    weir.spark.register(spark, catalog="named", root=str(root))
    with pytest.raises(InvalidInput, match="choose another name"):
        weir.spark.register(spark, catalog="named", root="/elsewhere")


def test_the_jar_is_the_same_however_often_it_is_built(tmp_path: Path) -> None:
    if jar.compiler() is None:
        pytest.skip("no JDK")
    first, second = built_jar(), jar.build(tmp_path / "again.jar")
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size < 150_000
