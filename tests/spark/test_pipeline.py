"""Tables created, changed in place, searched and maintained by functions on executors."""

import json
import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import weir
import weir.spark
from tests.support.spark import in_weir, make_table, once, put
from weir.errors import CommitConflict, InvalidInput
from weir.spark import dml


def test_rows_are_changed_in_place(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    put(table, dict.fromkeys(range(10), "a"))
    done = weir.spark.update_where(spark, table.uri, "id % 2 = 0", {"V": "concat(v, id)"})
    assert (done.rows, done.deleted, done.attempts) == (5, 0, 1)
    assert weir.spark.delete_where(spark, table.uri, "id > 6 OR v IS NULL").deleted == 3
    expected = {n: f"a{n}" if n % 2 == 0 else "a" for n in range(7)}
    assert in_weir(table) == once(expected)
    rows = spark.range(5, 9).selectExpr("id", "'new' AS v")
    done = weir.spark.merge(rows, table.uri, matched={"v": "concat(current.v, incoming.v)"})
    assert done.rows == 4
    expected |= {5: "anew", 6: "a6new", 7: "new", 8: "new"}
    assert in_weir(table) == once(expected)
    weir.spark.merge(
        rows, table.uri, matched="delete", not_matched="ignore", when="incoming.id < 7"
    )
    del expected[5], expected[6]
    weir.spark.merge(spark.range(2).selectExpr("id", "'x' AS v"), table.uri, matched="ignore")
    assert in_weir(table) == once(expected)
    with pytest.raises(InvalidInput, match="cannot be set"):
        weir.spark.update_where(spark, table.uri, "true", {"id": "1"})
    with pytest.raises(InvalidInput, match="one key twice"):
        weir.spark.merge(rows.selectExpr("77L AS id", "v"), table.uri)
    with pytest.raises(InvalidInput, match="append-only"):
        weir.spark.delete_where(spark, make_table(tmp_path, keyed=False).uri, "true")


def test_p7_a_change_begins_anew_when_somebody_came_in_between(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path)
    put(table, {1: "a", 2: "a"})
    real, came = dml._write, threading.Event()

    def meanwhile(*args: object) -> tuple[int, int]:
        if not came.is_set():
            came.set()
            put(table, {1: "b"})
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(dml, "_write", meanwhile)
    done = weir.spark.update_where(spark, table.uri, "id = 1", {"v": "concat(v, '!')"})
    assert done.attempts == 2
    assert in_weir(table) == once({1: "b!", 2: "a"})

    def always(*args: object) -> tuple[int, int]:
        put(table, {1: "c"})
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(dml, "_write", always)
    with pytest.raises(CommitConflict, match="Run the statement again"):
        weir.spark.update_where(spark, table.uri, "id = 1", {"v": "'d'"})


def test_events_of_debezium_become_rows_and_deletes(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    put(table, {1: "old", 2: "old"})

    def event(op: str, before: object, after: object, *, wrapped: bool = True) -> str:
        envelope = {"before": before, "after": after, "op": op, "ts_ms": 1}
        return json.dumps({"payload": envelope} if wrapped else envelope)

    values = [
        event("u", {"id": 1, "v": "old"}, {"id": 1, "v": "new"}),
        event("d", {"id": 2, "v": "old"}, None, wrapped=False),
        event("c", None, {"id": 3, "v": None}),
        None,
    ]
    df = spark.createDataFrame([(value,) for value in values], "value string")
    rows = weir.spark.debezium(df, "id bigint, v string")
    weir.spark.write(rows, table.uri, delete_column="_delete")
    assert in_weir(table) == once({1: "new", 3: None})  # type: ignore[dict-item]
    envelopes = spark.sql("SELECT NULL AS before, struct(7L AS id, 'x' AS v) AS after, 'r' AS op")
    assert [tuple(r) for r in weir.spark.debezium(envelopes).collect()] == [(7, "x", False)]
    with pytest.raises(InvalidInput, match="not a Debezium envelope"):
        weir.spark.debezium(df)
    truncate = spark.createDataFrame([(event("t", None, None),)], "value string")
    with pytest.raises(PySparkException, match="truncate"):
        weir.spark.debezium(truncate, "id bigint, v string").collect()


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


def test_p7_a_change_with_an_id_is_made_once(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    put(table, {1: "a", 2: "a"})
    for attempts in (1, 0):
        report = weir.spark.update_where(
            spark, table.uri, "id > 0", {"v": "concat(v, 'b')"}, statement_id="monday's"
        )
        assert report.attempts == attempts
        assert in_weir(table) == once({1: "ab", 2: "ab"})
    weir.spark.delete_where(spark, table.uri, "id = 1", statement_id="tuesday's")
    assert in_weir(table) == once({2: "ab"})


def test_a_table_is_watched_and_kept(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
    table = weir.create(uri, schema, primary_key="id", sharding=weir.Bucket("id", 2))
    weir.spark.write(spark.range(9).selectExpr("id", "'x' AS v"), uri)
    shown = weir.spark.stats(spark, uri).collect()
    is_moved = os.environ.get("WEIR_TEST_LOG") == "moved"  # moving the log flushes it
    assert [row.lag > 0 for row in shown] == [not is_moved, not is_moved]
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
    weir.spark.delete_where(spark, uri, "id > 0")
    table.restore("nine")
    assert weir.spark.scan(spark, uri).count() == 9
