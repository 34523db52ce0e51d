"""Streams: exactly once in, each entry once out, across restarts and deaths."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import weir
import weir.spark
from tests.support.spark import SCHEMA, Rows, in_weir, make_table, once, put
from tests.support.stores import StoreKind
from weir.read.positions import tips
from weir.records.consumers import Consumer
from weir.spark.feed_offsets import advance
from weir.upkeep.gc.collect import collect


def write_input(folder: Path, number: int, rows: dict[int, str]) -> None:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"id": k, "v": v}) for k, v in rows.items()]
    (folder / f"{number:04d}.json").write_text("\n".join(lines))


def source(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema("id long, v string").option("maxFilesPerTrigger", "1")
    return reader.json(str(folder))


def run(df: DataFrame, table: weir.Table, checkpoint: Path, **options: str) -> None:
    writer = df.writeStream.format("weir").option("checkpointLocation", str(checkpoint))
    query = writer.options(**options).trigger(availableNow=True).start(table.uri)
    query.awaitTermination()


def forget_last_commit(checkpoint: Path) -> None:
    """Simulate a driver that died between the sink's commit and Spark's own record."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    for crc in (checkpoint / "commits").glob(f".{last.name}.crc"):
        crc.unlink()


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("laid_out", [True, False])
def test_p2_a_replayed_batch_changes_nothing(
    spark: SparkSession, tmp_path: Path, keyed: bool, laid_out: bool
) -> None:
    table = make_table(tmp_path, keyed=keyed)
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    model: dict[int, str] = {}
    for number in range(3):
        rows = {number * 10 + k: f"b{number}" for k in range(10)}
        write_input(folder, number, rows)
        model |= rows
    df, options = source(spark, folder), {}
    if laid_out:
        df, options["layout"] = weir.spark.layout(df, table.uri)
    run(df, table, checkpoint, **options)
    assert in_weir(table) == once(model)
    forget_last_commit(checkpoint)
    # The token outlives the log, the SSTables and the log's records.
    if laid_out:
        table.compact(fold_wal=True)
        table.gc(min_age=0, fence_retention="2m")
    write_input(folder, 3, {99: "later"})
    run(df, table, checkpoint, **options)
    assert in_weir(table) == once(model | {99: "later"})


def run_and_die(table: weir.Table, folder: Path, checkpoint: Path, moment: str) -> None:
    """A query in a process of its own, which is killed inside the commit of batch 1."""
    command = [sys.executable, "-m", "tests.support.dying_sink", table.uri, str(folder)]
    paths = [str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": ":".join(paths), "PYTHONWARNINGS": "ignore"}
    died = subprocess.run(
        [*command, str(checkpoint), moment], env=environment, capture_output=True, check=False
    )
    assert died.returncode != 0
    assert not (checkpoint / "commits" / "1").exists()


@pytest.mark.kill
def test_c18_a_killed_query_writes_each_batch_once_to_the_shard_of_its_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Beside it a writer appends, and upkeep folds what is silent: the query's shard is not."""
    sharding = weir.PerWriter(silent_after=0)
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=sharding)
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    model: dict[int, str] = {}
    for number in range(3):
        rows = {number * 30 + k: f"b{number}" for k in range(30)}
        write_input(folder, number, rows)
        model |= rows
    with table.writer() as beside:
        beside.put([{"id": 1000, "v": "beside"}])
        run_and_die(table, folder, checkpoint, "whole")
        assert in_weir(table).total() == 61
        weir.open(table.uri).compact()
        beside.put([{"id": 1001, "v": "beside"}])  # in another shard: its own was sealed
        run(source(spark, folder), table, checkpoint)
        beside.put([{"id": 1002, "v": "beside"}])
    weir.open(table.uri).compact()
    found = in_weir(weir.open(table.uri))
    assert found == once(model | dict.fromkeys(range(1000, 1003), "beside"))
    values = [str(shard.value) for shard in weir.open(table.uri).shards()]
    assert sum(value.startswith("app ") for value in values) == 1


@pytest.mark.kill
@pytest.mark.parametrize("moment", ["half", "whole"])
def test_p2_a_driver_killed_inside_commit_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, moment: str
) -> None:
    table = make_table(tmp_path, keyed=False)
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    model: dict[int, str] = {}
    for number in range(3):
        rows = {number * 30 + k: f"b{number}" for k in range(30)}
        write_input(folder, number, rows)
        model |= rows
    run_and_die(table, folder, checkpoint, moment)
    partly = in_weir(table)
    assert 30 < partly.total() < 60 if moment == "half" else partly.total() == 60
    # The next driver is the suite's own.
    run(source(spark, folder), table, checkpoint)
    assert in_weir(table) == once(model)


def test_streams_refuse_what_they_cannot_keep(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    write_input(tmp_path / "in", 0, {1: "a"})
    df = source(spark, tmp_path / "in")
    for mode, words in (("complete", "complete"), ("update", "[Uu]pdate")):
        grouped = df.groupBy("id").agg({"v": "max"}).withColumnRenamed("max(v)", "v")
        writer = grouped.writeStream.format("weir").outputMode(mode)
        writer = writer.option("checkpointLocation", str(tmp_path / mode))
        with pytest.raises(Exception, match=words):
            writer.start(table.uri).awaitTermination()


def test_a_stream_of_upserts_and_deletes(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    put(table, dict.fromkeys(range(10), "old"))
    write_input(tmp_path / "in", 0, {1: "new", 2: "gone", 50: "new"})
    df = source(spark, tmp_path / "in").selectExpr("*", "v = 'gone' AS dead")
    run(df, table, tmp_path / "c", deleteColumn="dead", appId="etl")
    expected = {k: "old" for k in range(10) if k != 2} | {1: "new", 50: "new"}
    assert in_weir(table) == once(expected)


def test_p2_a_stream_that_looks_first_decides_each_batch_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A batch's decisions stand, whatever has changed when the batch is replayed."""
    for name, options in {
        "insert": {"weir.write": "insert", "onConflict": "skip"},
        "when": {"when": "current.v IS NULL OR current.v < incoming.v"},
    }.items():
        (tmp_path / name).mkdir()
        table = make_table(tmp_path / name)
        put(table, {1: "m", 2: "z"})
        folder, checkpoint = tmp_path / name / "in", tmp_path / name / "checkpoint"
        write_input(folder, 0, {1: "n", 2: "n", 3: "n"})
        df = source(spark, folder)
        run(df, table, checkpoint, **options)
        taken = "m" if name == "insert" else "n"
        assert in_weir(table) == once({1: taken, 2: "z", 3: "n"})
        with table.writer() as writer:
            writer.delete([1, 2, 3])
        forget_last_commit(checkpoint)
        write_input(folder, 1, {3: "later", 4: "later"})
        run(df, table, checkpoint, **options)
        assert in_weir(table) == once({3: "later", 4: "later"})


@pytest.mark.parametrize("how", ["stream", "foreachBatch", "older release"])
def test_p6_a_new_checkpoint_location_under_an_old_app_id_is_refused_not_skipped(
    spark: SparkSession, tmp_path: Path, how: str
) -> None:
    """The new query counts from batch 0 again: its numbers are known, its rows are not in."""
    table = make_table(tmp_path, keyed=False)
    first, second = tmp_path / "first", tmp_path / "second"
    for number in range(3):
        write_input(first, number, {number: "first"})
        write_input(second, number, {10 + number: "second"})

    def write(folder: Path, checkpoint: str, app: str) -> None:
        df = source(spark, folder)
        if how != "foreachBatch":
            run(df, table, tmp_path / checkpoint, appId=app)
            return

        def batch(rows: DataFrame, number: int) -> None:
            weir.spark.write(rows, table.uri, app_id=app, txn_version=number)

        writer = df.writeStream.option("checkpointLocation", str(tmp_path / checkpoint))
        writer.foreachBatch(batch).trigger(availableNow=True).start().awaitTermination()

    write(first, "a", "etl")
    if how == "older release":
        (record,) = table.core.store.list("_weir/apps")
        table.core.store.delete([record.path])
    with pytest.raises(Exception, match="an appId of its own"):
        write(second, "b", "etl")
    expected = dict.fromkeys(range(3), "first")
    assert in_weir(table) == once(expected)
    write(second, "c", "other")
    write_input(first, 3, {3: "first"})
    if how != "older release":
        forget_last_commit(tmp_path / "a")  # the query itself continues, and replays
    write(first, "a", "etl")
    expected |= {10 + k: "second" for k in range(3)} | {3: "first"}
    assert in_weir(table) == once(expected)


# -- the change feed -------------------------------------------------------------------------------


def follow(
    spark: SparkSession, table: weir.Table, checkpoint: Path, **options: str
) -> list[list[Any]]:
    """Run once from the beginning to the end of the log; return the rows of each micro-batch."""
    batches: list[list[Any]] = []
    options = {"startingOffsets": "earliest", **options}
    feed = spark.readStream.format("weir").options(**options).load(table.uri)

    def keep(df: DataFrame, _number: int) -> None:
        batches.append(df.collect())

    query = (
        feed.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return batches


def test_p3_the_feed_goes_on_where_it_stopped(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    put(table, dict.fromkeys(range(10), "a"), (3,))
    first = follow(spark, table, tmp_path / "c", metadataColumns="true")
    rows = [row for batch in first for row in batch]
    assert sorted((r["id"], r["v"]) for r in rows if r["_change"] == "put") == [
        (k, "a") for k in range(10)
    ]
    assert [(r["id"], r["v"]) for r in rows if r["_change"] == "delete"] == [(3, None)]
    for shard in table.shards():
        here = [r["_position"] for r in rows if r["_shard"] == str(shard.id)]
        assert here == sorted(here)
        assert here
    put(table, {1: "b"})
    # Resharding adds shards; a feed reads them from their beginning.
    table.reshard(weir.Bucket("id", 2), compact=False)
    put(table, {200: "c"})
    more = follow(spark, table, tmp_path / "c", metadataColumns="true")
    assert sorted((r["id"], r["v"]) for b in more for r in b) == [(1, "b"), (200, "c")]
    assert not any(follow(spark, table, tmp_path / "c", metadataColumns="true"))


def test_p3_a_replayed_batch_reads_the_same_entries(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    put(table, dict.fromkeys(range(6), "a"))
    follow(spark, table, tmp_path / "c")
    forget_last_commit(tmp_path / "c")
    put(table, {100: "later"})
    again = follow(spark, table, tmp_path / "c")
    assert sorted(r["id"] for r in again[0]) == list(range(6))
    assert [r["id"] for b in again[1:] for r in b] == [100]


def test_triggers_are_bounded_by_entries_and_bytes(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path, buckets=2)
    with table.writer(weir.WriterConfig(enable_memtable=False)) as writer:
        for number in range(10):
            writer.put([{"id": number, "v": "x"}])
    entries = follow(spark, table, tmp_path / "entries", maxEntriesPerTrigger="4")
    assert sum(len(batch) for batch in entries) == 10
    assert max(len(batch) for batch in entries) <= 4
    assert len(entries) == 3
    size = next(iter(table.shards())).site.wal
    one = max(meta.size for meta in size.list("_mem_wal") if meta.path.endswith(".arrow"))
    small = follow(spark, table, tmp_path / "bytes", maxBytesPerTrigger=str(3 * one))
    assert sum(len(batch) for batch in small) == 10
    assert len(small) >= 3


def test_advance_is_fair_and_always_moves(tmp_path: Path) -> None:
    table = make_table(tmp_path, buckets=2)
    with table.writer(weir.WriterConfig(enable_memtable=False)) as writer:
        for number in range(8):
            writer.put([{"id": number, "v": "x"}])
    head = tips(table.core)
    core = table.core
    assert advance(core, {}, head, entries=None, nbytes=None) == head
    two = advance(core, {}, head, entries=2, nbytes=None)
    assert sorted(two.values()) == [1, 1]
    assert sum(advance(core, {}, head, entries=5, nbytes=None).values()) == 5
    assert sum(advance(core, {}, head, entries=None, nbytes=1).values()) == 1
    position = dict.fromkeys(head, 0)
    for _ in range(100):
        if position == head:
            break
        position = advance(core, position, head, entries=3, nbytes=2000)
    assert position == head


def test_the_initial_snapshot_then_changes(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    put(table, dict.fromkeys(range(5), "base"))
    table.compact()
    table.gc(min_age=0, fence_retention="2m")
    put(table, {1: "fresh"}, (2,))
    options = {"startingOffsets": "snapshot", "metadataColumns": "true"}
    first = follow(spark, table, tmp_path / "c", **options)
    got = {(r["id"], r["v"]) for r in first[0]}
    assert got == {(0, "base"), (1, "fresh"), (3, "base"), (4, "base")}
    put(table, {7: "next"}, (0,))
    then = follow(spark, table, tmp_path / "c", **options)
    assert sorted((r["_change"], r["id"]) for b in then for r in b) == [("delete", 0), ("put", 7)]


def test_p3_what_was_collected_is_an_error_and_a_named_consumer_prevents_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = make_table(tmp_path)
    put(table, {1: "a"})
    follow(spark, table, tmp_path / "named", consumer="etl")
    follow(spark, table, tmp_path / "nameless")
    put(table, dict.fromkeys(range(20), "b"))
    put(table, dict.fromkeys(range(20), "c"))
    table.gc(min_age=0, fence_retention="2m")
    named = follow(spark, table, tmp_path / "named", consumer="etl")
    assert len([r for b in named for r in b]) == 40
    # Nothing is held for the nameless query: what it finds below the floor proves nothing.
    with pytest.raises(Exception, match="collected"):
        follow(spark, table, tmp_path / "nameless")
    # A hold ends with its lifetime, or when the consumer is forgotten.
    Consumer(table.core.store, "etl", 60.0).forget()
    put(table, dict.fromkeys(range(20), "d"))
    collect(table.core, 0, "2m", keep_first_entries=False)
    assert Consumer(table.core.store, "etl", 60.0).positions() is None
    with pytest.raises(weir.SnapshotExpired):
        table.shards()[0].tailer().read(1)


def test_deletes_are_never_passed_over_silently(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    put(table, {1: "a", 2: "b"}, (1,))
    with pytest.raises(Exception, match="holds deletes"):
        follow(spark, table, tmp_path / "loud")
    skipped = follow(spark, table, tmp_path / "quiet", deletes="skip")
    assert sorted(r["id"] for b in skipped for r in b) == [1, 2]


def test_latest_is_resolved_before_the_query_starts(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    put(table, {1: "before"})
    with pytest.raises(Exception, match="needs a named consumer"):
        follow(spark, table, tmp_path / "x", startingOffsets="latest")
    feed = weir.spark.changes(spark, table.uri, since="latest")
    put(table, {2: "after"})
    got: list[int] = []
    query = (
        feed.writeStream.foreachBatch(lambda df, _: got.extend(r["id"] for r in df.collect()))
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert got == [2]
    # A consumer's record makes the start durable: "latest" means the same on a restart.
    none = follow(spark, table, tmp_path / "y", startingOffsets="latest", consumer="me")
    assert not any(none)
    put(table, {3: "now"})
    rows = follow(spark, table, tmp_path / "y", startingOffsets="latest", consumer="me")
    assert [r["id"] for b in rows for r in b] == [3]


@pytest.mark.parametrize("store_kind", ["s3"], indirect=True)
def test_from_one_table_to_another(
    spark: SparkSession, tmp_path: Path, store_kind: StoreKind
) -> None:
    """The feed of one table feeds the sink of another, deletes included."""
    keys = store_kind.storage_options
    source_table = make_table(store_kind.uri_factory(), storage_options=keys)
    copy = make_table(store_kind.uri_factory(), buckets=2, storage_options=keys)
    put(source_table, dict.fromkeys(range(10), "a"), (4,))
    put(source_table, {5: "b"}, (6,))
    feed = weir.spark.changes(
        spark, source_table.uri, storage_options=keys, options={"metadataColumns": "true"}
    )
    rows = feed.selectExpr("id", "v", "_change = 'delete' AS dead")
    reach = {f"storage.{name}": value for name, value in keys.items()}
    run(rows, copy, tmp_path / "c", deleteColumn="dead", **reach)
    # A replay of the last batch finds its tokens.
    forget_last_commit(tmp_path / "c")
    run(rows, copy, tmp_path / "c", deleteColumn="dead", **reach)
    expected: Rows = in_weir(source_table)
    assert in_weir(copy) == expected
    assert expected.total() == 8
    assert SCHEMA.names == ["id", "v"]
