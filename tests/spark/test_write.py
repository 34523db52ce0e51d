"""Batch writes: each row to its shard, each job applied once, laid out or not."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import weir
import weir.spark
from tests.support.spark import SCHEMA, frame, in_weir, make_table, once, put
from weir.format.bucket import bucket
from weir.spark.describing import shard_by
from weir.spark.layout import SEED_ZERO, Layout, lay_out
from weir.spark.making import sharding_of
from weir.spark.options import write_spec_of
from weir.spark.types import spark_schema

ROWS = {k: f"v{k}" for k in range(60)}


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("laid_out", [True, False])
def test_rows_land_once_in_their_shards(
    spark: SparkSession, tmp_path: Path, keyed: bool, laid_out: bool
) -> None:
    table = make_table(tmp_path, keyed=keyed)
    df = frame(spark, ROWS)
    if laid_out:
        weir.spark.write(df, table.uri)
    else:
        df.write.format("weir").mode("append").save(table.uri)
    assert in_weir(table) == once(ROWS)
    for shard in table.shards():
        for entry in shard.tailer():
            for batch in entry.batches:
                here = bucket(batch.column("id"), 3)
                assert set(here.tolist()) == {shard.value}
    # No staged file is left behind, and writing again to a keyed table upserts.
    assert not list(table.core.store.list("_weir/staging"))
    weir.spark.write(frame(spark, {0: "again"}), table.uri)
    again = in_weir(table)
    assert again[0, "again"] == 1
    assert again.total() == (60 if keyed else 61)


def test_w4_a_change_feed_sees_all_that_spark_wrote(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "4")
    try:
        weir.spark.write(frame(spark, ROWS), table.uri, options={"maxEntryBytes": "200"})
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    seen = [row for change in table.changes() for row in change.batch.to_pylist()]
    assert sorted((r["id"], r["v"]) for r in seen) == sorted(ROWS.items())
    # More than one entry holds: every shard has several, and SSTables published by one commit.
    for shard in table.shards():
        assert sum(1 for _ in shard.tailer()) > 1
        assert len(shard.manifest().sstables) > 1
    assert in_weir(table) == once(ROWS)


@pytest.mark.parametrize("keyed", [True, False])
def test_p2_a_job_with_app_and_version_counts_once(
    spark: SparkSession, tmp_path: Path, keyed: bool
) -> None:
    table = make_table(tmp_path, keyed=keyed)
    for _ in range(2):
        weir.spark.write(frame(spark, ROWS), table.uri, app_id="nightly", txn_version=7)
    writer = frame(spark, {1: "older"}).write.format("weir").mode("append")
    writer.option("appId", "nightly").option("txnVersion", "6").save(table.uri)
    assert in_weir(table) == once(ROWS)
    weir.spark.write(frame(spark, {1: "next"}), table.uri, app_id="nightly", txn_version=8)
    assert in_weir(table)[1, "next"] == 1
    with pytest.raises(Exception, match="go together"):
        weir.spark.write(frame(spark, ROWS), table.uri, app_id="nightly")


def test_deletes_come_by_a_marker_column(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    weir.spark.write(frame(spark, ROWS), table.uri)
    marked = frame(spark, {1: "x", 2: "y"}).withColumn("gone", F.col("id") == 1)
    weir.spark.write(marked, table.uri, delete_column="gone")
    expected = {k: v for k, v in ROWS.items() if k != 1} | {2: "y"}
    assert in_weir(table) == once(expected)
    # A column of that name deletes only where deleteColumn says so: every way to write refuses it.
    named = frame(spark, {3: "x"}).withColumn("_tombstone", F.lit(True))
    ways: list[Callable[[], object]] = [
        lambda: named.write.format("weir").mode("append").save(table.uri),
        lambda: (
            named.write.format("weir").mode("overwrite").option("overwrite", "true").save(table.uri)
        ),
        lambda: weir.spark.bulk_load(named, table.uri),
        lambda: weir.spark.bulk_load(named, f"{tmp_path}/new", primary_key="id"),
        lambda: (
            named.write.format("weir")
            .mode("append")
            .option("primaryKey", "id")
            .save(f"{tmp_path}/new")
        ),
    ]
    for write in ways:
        with pytest.raises(Exception, match="_tombstone"):
            write()
    assert in_weir(table) == once(expected)
    weir.spark.write(named, table.uri, delete_column="_tombstone")
    assert in_weir(table) == once({k: v for k, v in expected.items() if k != 3})
    append_only = make_table(tmp_path, keyed=False)
    with pytest.raises(Exception, match="append-only"):
        weir.spark.write(marked, append_only.uri, delete_column="gone")


def test_p2_updates_inserts_and_conditions_count_once(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([*SCHEMA, pa.field("n", pa.int64())])
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")

    def rows() -> dict[int, tuple[str | None, int | None]]:
        found = weir.open(table.uri).scan().to_table().to_pylist()
        return {r["id"]: (r["v"], r["n"]) for r in found}

    new = spark.sql("SELECT * FROM VALUES (1L, 'a', 1L), (2L, 'b', 1L) AS t(id, v, n)").coalesce(1)
    insert = new.write.format("weir").mode("append").option("weir.write", "insert")
    for _ in range(2):  # without the token, the second run would conflict
        insert.option("appId", "job").option("txnVersion", 0).save(table.uri)
    assert rows() == {1: ("a", 1), 2: ("b", 1)}
    some = spark.sql("SELECT * FROM VALUES (2L, 7L), (4L, 7L) AS t(id, n)")  # laid out
    weir.spark.write(some, table.uri, options={"weir.write": "update", "missing": "insert"})
    assert rows() == {1: ("a", 1), 2: ("b", 7), 4: (None, 7)}
    newer = new.withColumn("n", F.lit(5)).write.format("weir").mode("append")
    newer.option("when", "incoming.n > current.n").save(table.uri)
    assert rows() == {1: ("a", 5), 2: ("b", 7), 4: (None, 7)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weir.write": "merge"}, "weir.write must be one of"),
        ({"weir.write": "update", "when": "true"}, "when goes with"),
        ({"missing": "skip"}, "missing goes with"),
        ({"weir.write": "insert", "onconflict": "take"}, "onConflict must be one of"),
        ({"weir.write": "insert", "deletecolumn": "gone"}, "deleteColumn goes with"),
    ],
)
def test_what_a_write_asks_of_rows_goes_together(options: dict[str, str], words: str) -> None:
    with pytest.raises(weir.InvalidInput, match=words):
        write_spec_of(options)


def test_what_does_not_fit_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = make_table(tmp_path)
    good = frame(spark, ROWS)
    for bad, words in (
        (good.withColumn("extra", F.lit(1)), "no column 'extra'"),
        (good.drop("id"), "'id' is missing"),
        (good.withColumn("v", F.array(F.lit(1))), "'v' is list"),
    ):
        with pytest.raises(Exception, match=words):
            bad.write.format("weir").mode("append").save(table.uri)
    with pytest.raises(Exception, match="must be confirmed"):
        good.write.format("weir").mode("overwrite").save(table.uri)
    assert in_weir(table).total() == 0
    # Only the task sees a null key; nothing of that shard is written.
    nulls = good.withColumn("id", F.when(F.col("id") != 5, F.col("id")))
    with pytest.raises(Exception, match="null"):
        nulls.write.format("weir").mode("append").save(table.uri)


@pytest.mark.parametrize("keyed", [True, False])
def test_overwrite_that_is_asked_for_twice_replaces_every_row(
    spark: SparkSession, tmp_path: Path, keyed: bool
) -> None:
    table = make_table(tmp_path, keyed=keyed)
    put(table, dict.fromkeys(range(50), "base"))
    table.compact()
    put(table, dict.fromkeys(range(40, 70), "flushed"))
    weir.spark.write(frame(spark, {99: "in the log only"}), table.uri)
    before = in_weir(table)
    rows = frame(spark, dict.fromkeys(range(60, 65), "new"))
    writer = rows.write.format("weir").mode("overwrite").option("overwrite", "true")
    with pytest.raises(Exception, match="cannot be combined"):
        writer.option("appId", "a").save(table.uri)
    assert in_weir(table) == before
    rows.write.format("weir").mode("overwrite").option("overwrite", "true").save(table.uri)
    assert in_weir(table) == in_weir(table, freshness="base")
    assert in_weir(table) == once(dict.fromkeys(range(60, 65), "new"))
    assert not list(table.core.store.list("_weir/staging"))
    # The table stays usable, and no replaced row comes back.
    put(table, {1: "after"})
    table.compact()
    assert in_weir(table) == once(dict.fromkeys(range(60, 65), "new") | {1: "after"})
    # The last row of a key wins, and a table may be emptied.
    twice = frame(spark, {1: "a"}, 1).union(frame(spark, {1: "b"}, 1))
    twice.write.format("weir").mode("overwrite").option("overwrite", "true").save(table.uri)
    assert in_weir(table) == once({1: "b"}) + (once({}) if keyed else once({1: "a"}))
    nothing = frame(spark, {1: "x"}).filter("id > 1")
    nothing.write.format("weir").mode("overwrite").option("overwrite", "true").save(table.uri)
    assert in_weir(table).total() == 0


def test_p1_a_wrong_layout_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    wrong = frame(spark, ROWS).write.format("weir").mode("append").option("layout", "3:id")
    with pytest.raises(Exception, match="belong to another task"):
        wrong.save(table.uri)
    for layout in ("4:id", "3:v", "2:"):
        with pytest.raises(Exception, match="does not fit the table's sharding"):
            frame(spark, ROWS).write.format("weir").mode("append").option("layout", layout).save(
                table.uri
            )
    assert in_weir(table).total() == 0


@pytest.mark.parametrize(
    ("sql", "dtype"),
    [
        ("id", pa.int64()),
        ("cast(id as int)", pa.int32()),
        ("cast(id as smallint)", pa.int16()),
        ("concat('key-', id)", pa.utf8()),
        ("id % 2 = 0", pa.bool_()),
        ("date_from_unix_date(cast(id as int))", pa.date32()),
        ("cast(id as double) / 7", pa.float64()),
        ("if(id % 5 = 0, null, id)", pa.int64()),
    ],
)
def test_spark_computes_lances_bucket(spark: SparkSession, sql: str, dtype: pa.DataType) -> None:
    df = spark.range(-500, 500).selectExpr(f"{sql} AS k")
    rows = df.selectExpr("k", f"(hash({SEED_ZERO}, k) & 2147483647) % 7 AS b").toArrow()
    keys = rows.column("k").combine_chunks().cast(dtype)
    assert rows.column("b").to_pylist() == bucket(keys, 7).tolist()


def test_laid_out_rows_are_in_the_task_of_their_bucket(spark: SparkSession) -> None:
    schema = spark_schema(SCHEMA)
    # The DataFrame's column is an int and the table's a bigint; the bigint is hashed.
    df = spark.range(200).selectExpr("cast(id as int) AS id", "'x' AS v")
    spread = lay_out(df, Layout("id", 5), schema).select("id", F.spark_partition_id().alias("p"))
    rows = spread.toArrow()
    keys = rows.column("id").combine_chunks().cast(pa.int64())
    assert rows.column("p").to_pylist() == bucket(keys, 5).tolist()


@pytest.mark.parametrize("sharding", [weir.Unsharded(), weir.Identity("id")])
def test_other_shardings_are_laid_out_too(
    spark: SparkSession, tmp_path: Path, sharding: weir.Unsharded | weir.Identity
) -> None:
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=sharding)
    rows = dict.fromkeys(range(5), "x")
    weir.spark.write(frame(spark, rows), table.uri)
    frame(spark, {2: "y"}).write.format("weir").mode("append").save(table.uri)
    assert in_weir(table) == once(rows | {2: "y"})


def test_c18_an_application_has_its_shard_where_each_writer_has_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=weir.PerWriter())
    named = {"appId": "job", "txnVersion": "1"}
    for laid_out in (True, False):  # the second applies nothing
        if laid_out:
            weir.spark.write(frame(spark, ROWS), table.uri, options=named)
        else:
            frame(spark, ROWS).write.format("weir").mode("append").options(**named).save(table.uri)
        with table.writer() as writer:
            assert not writer.put_once([{"id": 0, "v": "x"}], app="job", version=1)
    weir.spark.write(frame(spark, {100: "unnamed"}), table.uri)
    weir.spark.write(frame(spark, {101: "unnamed"}), table.uri)
    assert in_weir(table) == once(ROWS | {100: "unnamed", 101: "unnamed"})
    assert sorted(str(shard.value) for shard in table.shards()) == ["app ", "app job"]


@pytest.mark.parametrize("sharding", [weir.PerWriter(), weir.PerWriter(silent_after="30d")])
def test_c18_a_shard_for_each_writer_is_said_and_told_by_shard_by(
    sharding: weir.PerWriter,
) -> None:
    told = shard_by(sharding)
    assert told is not None
    assert sharding_of({"shardby": told}, (), ["a"]) == sharding
    assert sharding_of({"shardby": "per_writer()"}, (), ["a"]) == weir.PerWriter()


def test_many_small_batches_are_flushed_as_they_pile_up(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weir.spark import shard_sink, writers

    table = make_table(tmp_path, buckets=1)
    monkeypatch.setattr(writers, "GAP_ENTRIES", 6)
    opened = writers.ShardWriters(table.core)
    for number in range(12):
        sink = shard_sink.ShardSink(opened, 0, shard_sink.Token("app", number))
        sink.add(pa.RecordBatch.from_pylist([{"id": number, "v": "x"}], schema=SCHEMA))
        sink.finish()
    manifest = table.shard(0).manifest()
    assert 1 <= len(manifest.sstables) <= 4
    assert table.shard(0).tailer().tip() - manifest.replay_after <= 7
    assert in_weir(table) == once(dict.fromkeys(range(12), "x"))


def test_f15_a_null_struct_whose_child_is_not_null_can_be_read_after_spark_wrote_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    inner = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    shape = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", inner)])
    table = weir.create(str(tmp_path / "t"), shape, primary_key=["id"])
    rows = [(1, None), (2, (5,))]
    for ddl in ("id bigint, s struct<a: bigint not null>", "id bigint, s struct<a: bigint>"):
        weir.spark.write(spark.createDataFrame(rows, ddl), table.uri)
        found = weir.open(table.uri).scan().to_table().sort_by("id").column("s").to_pylist()
        assert found == [None, {"a": 5}]
        back = spark.read.format("weir").load(table.uri).orderBy("id").collect()
        assert [row.s and row.s.a for row in back] == [None, 5]
    with pytest.raises(Exception, match="declared not null"):
        weir.spark.write(
            spark.createDataFrame([(3, (None,))], "id bigint, s struct<a: bigint>"), table.uri
        )
    assert table.scan().to_table().num_rows == 2
