"""P-5: upkeep on Spark's executors gives the same table as upkeep in process."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import weir
import weir.spark
from tests.support.spark import SCHEMA, built_jar, frame, in_frame, in_weir, make_table, once, put
from weir.errors import StoreError
from weir.lake.pylance_lake import PylanceLake
from weir.spark import jobs, places
from weir.spark.writers import ShardWriters
from weir.testing.faulty import FaultyStores
from weir.upkeep.compact import split


def fill(table: weir.Table, *, keyed: bool) -> None:
    put(table, dict.fromkeys(range(50), "base"))
    table.compact()
    put(table, dict.fromkeys(range(0, 60, 3), "one"), (1, 2) if keyed else ())
    put(table, dict.fromkeys(range(0, 60, 5), "two"), (3, 55) if keyed else ())


@pytest.mark.parametrize("keyed", [True, False])
def test_p5_compaction_on_executors_equals_compaction_in_process(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    monkeypatch.setattr(split, "SLICE_ROWS", 10)
    monkeypatch.setattr(split, "TASK_BYTES", 300)
    table = make_table(tmp_path, keyed=keyed)
    fill(table, keyed=keyed)
    model = in_weir(table)
    told: list[tuple[int, int]] = []
    report = weir.spark.compact(
        spark,
        table.uri,
        engine="spark",
        rewrite=False,
        progress=lambda _kind, done, total: told.append((done, total)),
    )
    assert report.engine == "spark"
    assert report.tasks >= 3
    assert told[-1] == (report.tasks, report.tasks)
    assert in_weir(table, freshness="base") == in_weir(table) == model
    assert in_frame(weir.spark.scan(spark, table.uri, freshness="base")) == model
    # Small jobs stay on the driver.
    put(table, {1: "small"})
    assert weir.spark.compact(spark, table.uri).engine == "local"
    with pytest.raises(weir.InvalidInput, match="auto, local or spark"):
        weir.spark.compact(spark, table.uri, engine="cluster")  # type: ignore[arg-type]


def test_an_unknown_engine_is_refused_before_anything_is_done(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = make_table(tmp_path, buckets=2)
    put(table, {1: "a"})
    before = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    with pytest.raises(weir.InvalidInput, match="engine must be"):
        weir.spark.clone(spark, table.uri, f"{tmp_path}/c", engine="cluster")  # type: ignore[arg-type]
    with pytest.raises(weir.InvalidInput, match="engine must be"):
        weir.spark.reshard(spark, table.uri, weir.Bucket("id", 5), engine="cluster")  # type: ignore[arg-type]
    assert sorted(p for p in tmp_path.rglob("*") if p.is_file()) == before


def test_p5_a_collection_by_spark_and_a_deep_clone_on_executors(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = make_table(tmp_path)
    for number in range(4):
        put(table, {k: str(number) for k in range(20)})
    table.compact()
    model = in_weir(table)
    report = weir.spark.gc(spark, table.uri, min_age=0, fence_retention="2m")
    assert report.ok
    assert report.kinds["sstables"].deleted > 0
    assert in_weir(table) == model
    again = weir.spark.gc(spark, table.uri, min_age=0, fence_retention="2m")
    assert again.kinds["sstables"].deleted == 0
    copy = weir.spark.clone(spark, table.uri, f"{tmp_path}/deep", deep=True, engine="spark")
    assert in_weir(copy) == model


def test_p5_resharding_folds_old_shards_on_executors(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path, buckets=2)
    weir.spark.write(frame(spark, dict.fromkeys(range(30), "old")), table.uri)
    report = weir.spark.reshard(spark, table.uri, weir.Bucket("id", 5), engine="spark")
    assert len(report.shards) == 5
    assert report.compaction is not None
    assert report.compaction.rows_written == 30
    # Processes that know the old routing learn the new one.
    weir.spark.write(frame(spark, {1: "new"}), table.uri)
    frame(spark, {2: "new"}).write.format("weir").mode("append").save(table.uri)
    assert in_weir(table) == once(dict.fromkeys(range(30), "old") | {1: "new", 2: "new"})


def test_bulk_load_makes_fills_and_replaces_a_table(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "bulk")
    rows = dict.fromkeys(range(1000), "first")
    report = weir.spark.bulk_load(
        frame(spark, rows), uri, primary_key="id", sharding=weir.Bucket("id", 2)
    )
    table = weir.open(uri)
    assert report.rows == 1000
    assert in_weir(table) == once(rows)
    # Into a live table (L-9): loaded rows win over waiting ones, deletes too.
    table.core.lake.open_base().dataset.create_scalar_index("v", "BTREE")
    put(table, {5: "fresh", 6: "fresh"})
    with table.writer() as writer:
        writer.delete([7, 8])
    more = dict.fromkeys(range(500, 1500), "second") | {5: "second", 7: "second"}
    weir.spark.bulk_load(frame(spark, more), uri)
    now = {key: v for key, v in (rows | {6: "fresh"} | more).items() if key != 8}
    assert in_weir(table) == once(now)
    lately = table.core.lake.open_base().dataset.stats.index_stats("v_idx")
    assert lately["num_unindexed_rows"] == 0, "indexes are brought up by tasks"
    table.compact()
    assert in_weir(table) == once(now)
    with pytest.raises(Exception, match="twice"):
        weir.spark.bulk_load(
            frame(spark, more).union(frame(spark, {7: "x", 8: "y"})).union(frame(spark, {7: "z"})),
            uri,
        )
    assert in_weir(table) == once(now)
    weir.spark.bulk_load(frame(spark, {1: "only"}), uri, replace=True)
    assert in_weir(table) == once({1: "only"})
    put(table, {2: "after"})
    table.compact()
    assert in_weir(table) == once({1: "only", 2: "after"})
    with pytest.raises(weir.InvalidInput, match="primary key"):
        weir.spark.bulk_load(frame(spark, rows), uri, primary_key="v")


def test_bulk_load_of_an_append_only_table_keeps_duplicates(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = make_table(tmp_path, keyed=False)
    for _ in range(2):
        weir.spark.bulk_load(frame(spark, {1: "a", 2: "b"}), table.uri)
    assert in_weir(table) == {(1, "a"): 2, (2, "b"): 2}
    put(table, {3: "c"})
    weir.spark.bulk_load(frame(spark, {9: "only"}), table.uri, replace=True)
    assert in_weir(table) == once({9: "only"})


def test_l7_a_bulk_load_that_is_in_is_reported_as_done(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run again, it would double the rows of an append-only table."""
    table = make_table(tmp_path)
    put(table, {1: "base"})
    table.compact()
    faulty = FaultyStores()
    handle = weir.open(table.uri, env=faulty.env)
    place = places.Place(table.uri)
    opened = places._Opened(handle, ShardWriters(handle.core), {})
    monkeypatch.setitem(places._OPEN, place._key, opened)
    faulty.at(table.uri).on("delete", "*keys-*").refuse(times=None)
    report = weir.spark.bulk_load(frame(spark, {1: "new", 2: "new"}), table.uri)
    assert in_weir(table) == once({1: "new", 2: "new"})
    assert "all rows are in" in report.notes[0]

    def refused(_: object) -> list[str]:
        raise StoreError("list: 503")

    monkeypatch.setattr(PylanceLake, "indexes", refused)
    append_only = make_table(tmp_path, keyed=False)
    report = weir.spark.bulk_load(frame(spark, {3: "new"}), append_only.uri)
    assert in_weir(append_only) == once({3: "new"})
    assert "compact does it" in report.notes[0]


def test_c16_upkeep_is_of_the_table_that_is_there_now(tmp_path: Path) -> None:
    """A driver that lives long knows a table that was dropped and made again elsewhere."""
    table = make_table(tmp_path)
    weir.spark.compact(None, table.uri, engine="local")  # type: ignore[arg-type]
    weir.drop(table.uri)
    again = weir.create(table.uri, SCHEMA)
    put(again, {1: "new"})
    report = weir.spark.compact(None, table.uri, engine="local")  # type: ignore[arg-type]
    assert report.rows_written == 1
    weir.drop(table.uri)
    weir.create(table.uri, SCHEMA)
    assert weir.spark.gc(None, table.uri).ok  # type: ignore[arg-type]


@pytest.mark.parametrize("store_kind", ["s3"], indirect=True)
def test_p5_the_whole_way_on_an_object_store(spark: SparkSession, store_kind) -> None:
    options = store_kind.storage_options
    table = weir.create(
        store_kind.uri_factory(),
        SCHEMA,
        primary_key="id",
        sharding=weir.Bucket("id", 2),
        storage_options=options,
    )
    rows = {k: f"v{k}" for k in range(100)}
    weir.spark.write(frame(spark, rows), table.uri, storage_options=options)
    read = spark.read.format("weir")
    for name, value in options.items():
        read = read.option(f"storage.{name}", value)
    assert in_frame(read.load(table.uri)) == once(rows)
    dead = frame(spark, {1: "x"}).withColumn("dead", F.lit(True))
    weir.spark.write(dead, table.uri, delete_column="dead", storage_options=options)
    report = weir.spark.compact(
        spark, table.uri, engine="spark", fold_wal=True, storage_options=options
    )
    assert report.rows_written == 99
    assert in_weir(table, freshness="base") == once({k: v for k, v in rows.items() if k != 1})


def test_the_whole_way_with_a_log_of_its_own_that_is_moved(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Writes, streams in and out, changes in place and upkeep, across two moves of both logs.

    `make spark-stores` runs all tests of Spark this way.
    """
    source = make_table(tmp_path, buckets=2, wal_uri=f"{tmp_path}/wal")
    copy = make_table(tmp_path, buckets=2)
    model: dict[int, str] = {}
    for number, place in enumerate([f"{tmp_path}/other", None]):
        rows = dict.fromkeys(range(number * 5, number * 5 + 10), f"round {number}")
        weir.spark.write(frame(spark, rows), source.uri)
        frame(spark, {100 + number: "plain"}).write.format("weir").mode("append").save(source.uri)
        model |= rows | {100 + number: "plain"}
        source.move_wal(place)
        query = (
            weir.spark.changes(spark, source.uri, options={"consumer": "copy"})
            .writeStream.format("weir")
            .option("checkpointLocation", f"{tmp_path}/checkpoint")
            .trigger(availableNow=True)
            .start(copy.uri)
        )
        query.awaitTermination()
        assert in_weir(copy) == in_frame(weir.spark.scan(spark, source.uri)) == once(model)
        copy.move_wal(f"{tmp_path}/copied-{number}")
    built_jar()
    weir.spark.register(spark, catalog="moved", root=str(tmp_path))
    for table in (source, copy):
        spark.sql(
            f"MERGE INTO moved.`{table.uri}` t"
            " USING (SELECT * FROM VALUES (0L, 'merged'), (7L, 'gone') s(id, v)) s ON t.id = s.id"
            " WHEN MATCHED AND s.id = 7 THEN DELETE WHEN MATCHED THEN UPDATE SET *"
        )
    model[0] = "merged"
    del model[7]
    found = weir.spark.lookup(spark.range(0, 14, 7), copy.uri).selectExpr("id", "found.v").collect()
    assert sorted(tuple(row) for row in found) == [(0, "merged"), (7, None)]
    for table in (source, copy):
        weir.spark.compact(spark, table.uri, engine="spark")
        assert weir.spark.gc(spark, table.uri, min_age=0, fence_retention="2m").ok
        assert in_weir(table, freshness="base") == in_weir(table) == once(model)


def test_every_job_tells_its_progress_and_its_name(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path, buckets=2)
    uri = table.uri
    tracker = spark.sparkContext.statusTracker()
    last: dict[str, bool] = {}

    def tell(kind: str, done: int, total: int) -> None:
        last[kind.partition(".")[0]] = done == total

    weir.spark.write(frame(spark, {1: "a", 2: "b"}), uri, progress=tell)
    weir.spark.bulk_load(frame(spark, {3: "c"}), uri, progress=tell)  # folds existing rows (L-9)
    weir.spark.write(frame(spark, {4: "d"}), uri)
    weir.spark.compact(spark, uri, engine="spark", fold_wal=True, progress=tell)
    weir.spark.gc(spark, uri, min_age=0, fence_retention="2m", progress=tell)
    assert last.keys() >= {"write", "bulk_load", "compact", "wal"}
    assert all(last.values())
    for group in ("weir-write", "weir-bulk", "weir-compact"):
        assert tracker.getJobIdsForGroup(f"{group} {uri}"), group
    # Later jobs of others do not carry weir's group.
    weir.spark.write(frame(spark, {1: "c"}), uri)
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None
    # An existing group, such as a stream's, is kept.
    spark.sparkContext.setJobGroup("mine", "by me")
    try:
        weir.spark.write(frame(spark, {1: "d"}), uri)
        assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == "mine"
        assert tracker.getJobIdsForGroup("mine")
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("amount", "slots", "engine"),
    [
        (jobs.AUTO_BYTES, jobs.AUTO_SLOTS, "spark"),
        (jobs.AUTO_BYTES - 1, jobs.AUTO_SLOTS, "local"),
        (jobs.AUTO_BYTES, jobs.AUTO_SLOTS - 1, "local"),
        (jobs.AUTO_BYTES, 0, "local"),  # Spark's threads would share these processors
    ],
)
def test_auto_goes_by_bytes_and_by_processors(amount: int, slots: int, engine: str) -> None:
    chosen = jobs.choose(amount, jobs.AUTO_BYTES, slots=slots, slots_enough=jobs.AUTO_SLOTS)
    assert chosen == engine


def test_a_local_master_adds_no_processors(spark: SparkSession) -> None:
    assert jobs._slots(spark) == 0
