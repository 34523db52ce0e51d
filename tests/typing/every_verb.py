"""A user's script that uses every verb of weir; `test_user_script.py` runs it and checks its types.

Each `assert_type` states what an editor shows. Nothing here may be `Any`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, assert_type
from uuid import UUID

import pyarrow as pa

import weir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class Order:
    """A row as a dataclass."""

    id: int
    v: str


class Line(NamedTuple):
    """A row as a named tuple."""

    id: int
    v: str


class Model:
    """A row with the method of a pydantic model that weir uses."""

    def model_dump(self, *, mode: str = "python") -> dict[str, object]:
        """As a dict."""
        return {"id": 3, "v": mode}


SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


def make(root: str) -> weir.Table:
    """Tables and their properties."""
    table = weir.create(
        f"{root}/orders",
        SCHEMA,
        primary_key="id",
        sharding=weir.Bucket("id", 2),
        writer_defaults=weir.WriterConfig(fence_ttl="30s"),
        storage_options={},
    )
    assert_type(table, weir.Table)
    assert_type(weir.open(table.uri), weir.Table)
    columns: weir.SchemaLike = {"id": "int64", "v": pa.string()}
    weir.drop(weir.create(f"{table.uri}-types", columns).uri)
    weir.drop(weir.create(f"{table.uri}-rows", pa.table({"id": [1]})).uri)
    assert_type(table.uri, str)
    assert_type(table.schema, pa.Schema)
    assert_type(table.primary_key, tuple[str, ...])
    assert_type(table.sharding, weir.Bucket | weir.Identity | weir.PerWriter | weir.Unsharded)
    assert_type(table.wal_uri, str | None)
    assert_type(table.writer_defaults, weir.WriterConfig)
    assert_type(table.shard_of({"id": 17}), weir.Shard)
    assert_type(
        [table.shard_of(17), table.shard_of((17,)), table.shard_of(Order(3, "c"))], list[weir.Shard]
    )
    assert_type(table.shards_of([17, 18]), list[weir.Shard])
    assert_type(table.shards_of(pa.table({"id": [17]})), list[weir.Shard])
    assert_type(table.refresh(), bool)
    return table


def by_name(root: str) -> None:
    """Tables below a prefix."""
    db = weir.connect(root)
    assert_type(db, weir.Database)
    table = db.create_table("events", SCHEMA, primary_key="id", exist_ok=True)
    assert_type(table, weir.Table)
    assert_type(db.open_table("events").count("id > 3"), int)
    assert_type(db.tables(), list[str])
    assert_type(db.namespaces(), list[str])
    assert_type(db.create_table(["shop", "events"], SCHEMA, exist_ok=True), weir.Table)
    assert_type(db.tables("shop") + db.tables(["shop"]), list[str])
    assert_type(db.exists("events"), bool)
    assert_type(weir.exists(db.table_uri("events")), bool)
    db.drop_table("events", missing_ok=True)
    weir.drop(db.create_table("events", SCHEMA).uri)


def own(table: weir.Table) -> None:
    """Rows of some shards only."""
    with table.writer(shards=[0, table.shard(1).id, table.shard(1)]) as writer:
        try:
            writer.put({"id": 1, "v": "a"})
        except weir.NotOwner as error:
            assert_type(error.shard, UUID)
            assert_type(error.value, int | str | bool | None)
    with table.shard(1).writer() as shard_writer:
        assert_type(shard_writer.shards, tuple[UUID, ...])


def fuse(table: weir.Table) -> pa.Table:
    """Two rankings; checked, not run: the table has one column to search."""
    return table.hybrid_search({"v": "c", "e": [0.5]}, weights={"v": 0.5}, offset=1)


def adopt(dataset: str) -> weir.Table:
    """A Lance dataset turned into a table; checked, not run."""
    return weir.enable(dataset, primary_key="id", sharding=weir.Unsharded())


def write(table: weir.Table) -> None:
    """Rows through the router."""
    with table.writer() as writer:
        assert_type(writer, weir.TableWriter)
        writer.put([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}], timeout=30.0)
        writer.put(pa.table({"id": [3], "v": ["c"]}))
        writer.put({"id": 3, "v": "c"})
        writer.put(Order(3, "c"))
        writer.put([Order(3, "c"), Order(4, "d")])
        writer.put(Line(3, "c"))
        writer.put(line for line in [Line(3, "c")])
        writer.put(Model())
        writer.put([Model(), {"id": 3, "v": "c"}])
        receipt = writer.delete([2], timeout=30.0)
        assert_type(receipt, weir.Receipt)
        assert_type(receipt.done, bool)
        assert_type(receipt.rows, int)
        assert_type(sum(receipt.positions.values()) + sum(receipt.wait(30.0).values()), int)
        assert_type(writer.put_once([{"id": 3, "v": "c"}], app="etl", version=1), bool)
        assert_type(asyncio.run(writer.adelete([7])), weir.Receipt)
        assert_type(writer.stats(), dict[UUID, weir.WriterStats])
        writer.flush_wal()
        assert_type(writer.shards + writer.fenced, tuple[UUID, ...])
        assert_type(writer.shard_writers(), dict[UUID, weir.ShardWriter])
        writer.flush()


def write_one_shard(table: weir.Table) -> None:
    """Rows through the writer of one shard, and its own reads."""
    shard = table.shard(0)
    assert_type(shard, weir.Shard)
    assert_type(table.shards(), list[weir.Shard])
    assert_type(shard.id, UUID)
    row = next(n for n in range(100, 200) if routed(table, n) == shard.id)
    with shard.writer() as writer:
        assert_type(writer, weir.ShardWriter)
        ack = writer.put([{"id": row, "v": "own"}], wait=False, timeout=30.0)
        assert_type(ack, weir.Ack)
        ack.add_done_callback(lambda done: print(done.done))
        position = ack.wait(30.0)
        print(position)
        assert_type(writer.put_once([{"id": row}], app="etl", version=1), bool)
        assert_type(writer.last_version("etl"), int)
        assert_type(writer.update([{"id": row, "v": "u"}]), weir.WriteCounts)
        assert_type(writer.insert([{"id": row}], on_conflict="skip"), weir.WriteCounts)
        put_if = writer.put([{"id": row, "v": "z"}], when="incoming.v > current.v")
        assert_type(put_if, weir.WriteCounts)
        assert_type(writer.update_where("v = 'z'", {"v": "'y'"}), weir.WriteCounts)
        assert_type(writer.delete_where("v = 'never'"), weir.WriteCounts)
        params: weir.Params = {"v": "never", "id": 1}
        assert_type(writer.delete_where("v = $v and id = $id", params=params), weir.WriteCounts)
        assert_type(
            writer.put([{"id": row}], when="incoming.id = $i", params={"i": 0}).skipped, int
        )
        assert_type(writer.get([row], columns=["v"]), pa.Table)
        assert_type(writer.scan(columns=["id"], filter="id > 0"), pa.RecordBatchReader)
        assert_type(writer.scan({"n": "id + 1"}), pa.RecordBatchReader)
        assert_type(writer.epoch + 1, int)
        assert_type(writer.fenced, bool)
        assert_type(writer.is_open, bool)
        assert_type(writer.stats(), weir.WriterStats)
        assert_type(writer.wal_stats(), weir.WalStats)
        assert_type(writer.memtable_stats(), weir.MemtableStats)
        assert_type(writer.flush_wal(30.0) + 1, int)
        assert_type(writer.flush().version + 1, int)
        writer.delete([row]).wait()


def routed(table: weir.Table, row: int) -> UUID | None:
    """The shard that took a row: the one that the writer opened."""
    with table.writer() as writer:
        writer.put([{"id": row}])
        return next(iter(writer.shard_writers()), None)


async def write_later(writer: weir.ShardWriter, rows: list[dict[str, object]]) -> weir.Ack:
    """The same from a coroutine."""
    return await writer.aput(rows)


def read(table: weir.Table) -> list[dict[str, object]]:
    """Scans, lookups and searches."""
    scan = table.scan(["id", "v"], "id > 0", limit=10, freshness="durable", batch_size=100)
    assert_type(scan, weir.Scan)
    assert_type(scan.to_table(), pa.Table)
    assert_type(scan.to_batches(), Iterator[pa.RecordBatch])
    assert_type(scan.to_reader(), pa.RecordBatchReader)
    assert_type(scan.count(), int)
    assert_type(scan.explain(), str)
    assert_type(scan.schema, pa.Schema)
    for batch in table.scan(order_by=[("id", "descending")], offset=1):
        assert_type(batch, pa.RecordBatch)
    assert_type(table.scan({"id": "id", "n": "length(v)"}).to_table(), pa.Table)
    loader = table.scan(["id"]).loader(32, seed=7, worker=(0, 1))
    assert_type(loader.at_epoch(1).part(0, 2), weir.Loader)
    for batch in loader:
        assert_type(batch, pa.RecordBatch)
    for arrays in loader.numpy():
        assert_type(arrays["id"].shape[0], int)
    assert_type(scan.snapshot(), weir.Snapshot)
    assert_type(table.get([1, 3], columns=["v"], freshness="durable"), pa.Table)
    assert_type(table.search("v", "c", k=1), pa.Table)
    assert_type(table.count("v = $v", params={"v": "c"}), int)
    assert_type(table.sql("select id from t where v = $v", params={"v": "c"}), pa.Table)
    words = weir.Boolean(must=[weir.Phrase("a b")], should=[weir.Match("c", operator="and"), "d"])
    assert_type(table.search("v", words, offset=1), pa.Table)
    assert_type(table.search("v", ["c", "d"]), pa.Table)
    assert_type(table.snapshot("flushed"), weir.Snapshot)
    assert_type(weir.Snapshot.from_json(table.snapshot().to_json()), weir.Snapshot)
    return table.get([1]).to_pylist()


def follow(table: weir.Table) -> str:
    """The change feed, and the log underneath it."""
    changes = table.changes(since=None, follow=False)
    assert_type(changes, weir.Changes)
    for change in changes:
        assert_type(change, weir.Change)
        assert_type(change.batch, pa.RecordBatch)
    assert_type(weir.Bookmark.from_json(changes.bookmark.to_json()), weir.Bookmark)
    named = table.changes(since="now", consumer="mirror", consumer_ttl="1d")
    named.begin()
    assert_type(named.commit(), weir.Bookmark)
    rows = [change.of_snapshot for change in table.follow("copy", changes.bookmark, once=True)]
    assert_type(rows, list[bool])
    for consumer in table.stats().consumers:
        assert_type(consumer, weir.ConsumerStats)
        assert_type((consumer.name, consumer.lag, consumer.expires), tuple[str, int, float])
        table.drop_consumer(consumer.name)
    tailer = table.shard(0).tailer(start=1, fences=True)
    assert_type(tailer, weir.WalTailer)
    assert_type(tailer.tip() + 1, int)
    assert_type(tailer.read(1), weir.WalEntry | None)
    assert_type(tailer.follow(poll=0.1, stop=lambda: True), Iterator[weir.WalEntry])
    for entry in tailer:
        assert_type(entry.num_rows, int)
    return changes.bookmark.to_json()


def append_directly(table: weir.Table) -> int:
    """The log without a MemTable."""
    table.shard(0).schema_for_writing()
    appender = weir.WalAppender.open(table.shard(0))
    position = appender.append(pa.table({"id": [300], "v": ["direct"]}).to_batches())
    print(appender.epoch, appender.next_position, appender.fenced)
    return position


def keep(table: weir.Table, copy: str) -> None:
    """Checkpoints, clones and upkeep."""
    point = table.checkpoint(scope="durable", name="nightly", ttl="7d")
    assert_type(point, weir.Checkpoint)
    assert_type(table.checkpoints(), list[weir.Checkpoint])
    assert_type(table.refresh_checkpoint("nightly", ttl="8d"), weir.Checkpoint)
    assert_type(table.scan(checkpoint=point).count(), int)
    clone = table.clone(copy, checkpoint=point, deep=True)
    assert_type(clone, weir.Table)
    assert_type(weir.CompactionPolicy(age="1h").due(table), str | None)
    policy = weir.KeepPolicy(checkpoints=[weir.CheckpointSchedule("hourly", "1h", "2d")])
    assert_type(weir.due(table, policy), weir.Upkeep)
    assert_type([job.reason for job in weir.due(table)], list[str])
    assert_type(table.compact(indexes=True), weir.CompactReport)
    assert_type(table.gc(min_age="15m", dry_run=True), weir.GcReport)
    table.add_columns([pa.field("later", pa.string())])
    table.add_columns({"twice": "id * 2"})
    table.rename_column("twice", "doubled")
    table.drop_columns(["doubled", "later"])
    kind: weir.IndexKind = "bitmap"
    assert_type(table.create_index("id", kind, "ids", True), str)
    assert_type(table.create_fts_index("v", stem=False), str)
    assert_type([index.rows_not_indexed for index in table.indexes()], list[int])
    table.drop_index("ids")
    assert_type(table.stats(), weir.TableStats)
    assert_type(table.history(5, upkeep=True), list[weir.HistoryEntry])
    assert_type([entry.at.year for entry in table.history()], list[int])
    assert_type(clone.move_wal(f"{copy}-wal"), weir.WalMoveReport)
    assert_type(table.restore(point), weir.RestoreReport)
    assert_type(table.reshard(weir.Bucket("id", 3)), weir.ReshardReport)
    table.delete_checkpoint(point)


def let_go(table: weir.Table, clone: str, shard: UUID) -> list[UUID]:
    """After a clone was deleted by hand or failed, or LanceDB wrote; checked, not run."""
    table.discard_clone(clone)
    table.set_expire(None)
    assert_type(table.adopt_shard(shard, "newer"), weir.AdoptReport)
    return table.release_clone(clone)


def on_spark(spark: SparkSession, df: DataFrame, uri: str) -> None:
    """The same verbs on Spark; checked, and run by the tests of Spark."""
    weir.spark.register(spark)
    assert_type(weir.spark.scan(spark, uri, freshness="durable"), "DataFrame")
    weir.spark.write(df, uri, app_id="etl", txn_version=1)
    assert_type(weir.spark.changes(spark, uri), "DataFrame")
    assert_type(weir.spark.layout(df, uri), "tuple[DataFrame, str]")
    assert_type(weir.spark.compact(spark, uri, fold_wal=True), weir.CompactReport)
    assert_type(weir.spark.gc(spark, uri, min_age="1h"), weir.GcReport)
    sharding = weir.Bucket("id", 4)
    moved = weir.spark.reshard(spark, uri, sharding)
    assert_type(moved, weir.ReshardReport)
    weir.spark.measure(spark)
    assert_type(weir.spark.bulk_load(df, uri).rows, int)
    assert_type(weir.spark.search(df, uri, "v", query="v"), "DataFrame")
    assert_type(weir.spark.keep(spark, uri).due, weir.Upkeep)
    assert_type(weir.spark.lookup(df, uri, columns=["v"]), "DataFrame")


def after_a_failure(error: weir.WeirError) -> list[pa.RecordBatch]:
    """What an error returns to the caller."""
    if isinstance(error, weir.FencedError):
        print(error.epoch, error.fenced_by, error.position)
    print(error.kind, error.maybe_written)
    return error.unacknowledged


def main(root: str) -> None:
    """Use every verb, as in a day's work."""
    by_name(root)
    table = make(root)
    own(table)
    write(table)
    write_one_shard(table)
    print(read(table), follow(table), append_directly(table))
    keep(table, f"{root}/copy")


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
