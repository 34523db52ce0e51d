"""Changes with the rows they changed, and the feed under the names of Delta and Kafka. No JVM."""

import datetime as dt
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

import weir
from tests.support.spark import make_table, put
from weir.errors import CheckpointNotFound, InvalidInput, SnapshotExpired
from weir.records.consumers import Consumer
from weir.spark.feed import Offset, WeirFeed
from weir.spark.feed_offsets import tips
from weir.spark.feed_schema import IMAGES, feed_schema
from weir.spark.moments import positions_since, time_of
from weir.spark.options import WRITE, canonical_options, check_options
from weir.spark.reading import reader, stream_reader
from weir.spark.types import spark_schema


def options_of(table: weir.Table, **more: str) -> dict[str, str]:
    return {"path": table.uri, **{name.lower(): value for name, value in more.items()}}


def feed_of(table: weir.Table, **more: str) -> Any:
    options = options_of(table, readChangeFeed="true", consumer="etl", **more)
    return stream_reader(options, feed_schema(table, IMAGES))


def plain(table: weir.Table, **more: str) -> WeirFeed:
    found = stream_reader(options_of(table, **more), spark_schema(table.schema))
    assert type(found) is WeirFeed
    return found


def read(source: Any, partitions: Any) -> list[tuple[str, int, str | None]]:
    batches = [batch for part in partitions for batch in source.read(part)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [(row.get("_change_type", "row"), row["id"], row["v"]) for row in rows]


def batch(source: Any, start: Offset) -> tuple[list[tuple[str, int, str | None]], Offset]:
    """One micro-batch: its rows, sorted, and its end."""
    end = source.latestOffset(start, source.getDefaultReadLimit())
    return sorted(read(source, source.partitions(start, end))), end


def between(table: weir.Table, **more: str) -> list[tuple[str, int, str | None]]:
    options = options_of(table, readChangeFeed="true", **more)
    source = reader(options, feed_schema(table, IMAGES))
    return sorted(read(source, source.partitions()))


LOGS = ["beside", "elsewhere", "moved"]
"""Where the log is: beside the data, on a store of its own, or moved there in the middle."""


def logged(folder: Path, log: str) -> weir.Table:
    return make_table(folder, wal_uri=f"{folder}/wal" if log == "elsewhere" else None)


def move(table: weir.Table, folder: Path, log: str) -> None:
    if log == "moved":
        table.move_wal(f"{folder}/wal")


@pytest.mark.parametrize("log", LOGS)
def test_every_change_comes_with_the_row_it_changed(tmp_path: Path, log: str) -> None:
    table = logged(tmp_path, log)
    put(table, {1: "a", 2: "a", 3: "a"})
    table.compact()
    table.checkpoint("durable", name="monday")
    put(table, {1: "b", 7: "new"}, (2, 99))
    move(table, tmp_path, log)
    put(table, {1: "c"}, (7,))
    table.checkpoint("durable", name="tuesday")
    put(table, {3: "late"})
    expected = [
        ("delete", 2, "a"),
        ("delete", 7, "new"),
        ("insert", 7, "new"),
        ("update_postimage", 1, "b"),
        ("update_postimage", 1, "c"),
        ("update_preimage", 1, "a"),
        ("update_preimage", 1, "b"),
    ]
    assert between(table, startingVersion="monday", endingVersion="tuesday") == expected
    # Folding does not change the history, and without an end the feed runs to the present.
    table.compact()
    late = [("update_postimage", 3, "late"), ("update_preimage", 3, "a")]
    assert between(table, startingVersion="monday") == sorted([*expected, *late])
    with pytest.raises(InvalidInput, match="startingVersion"):
        between(table)
    with pytest.raises(CheckpointNotFound, match="commits have no numbers"):
        between(table, startingVersion="3")


def test_rows_of_a_table_without_a_key_are_inserts(tmp_path: Path) -> None:
    table = make_table(tmp_path, keyed=False)
    table.checkpoint("durable", name="begin")
    put(table, {1: "a"})
    put(table, {1: "a"})
    assert between(table, startingVersion="begin") == [("insert", 1, "a")] * 2


def test_a_key_is_known_across_a_reshard_and_an_added_column(tmp_path: Path) -> None:
    table = make_table(tmp_path, buckets=2)
    put(table, dict.fromkeys(range(6), "old"))
    table.checkpoint("durable", name="begin")
    put(table, dict.fromkeys(range(3), "mid"))
    table.reshard(weir.Bucket("id", 3), compact=False)
    table.core.lake.open_base().dataset.add_columns(pa.schema([pa.field("w", pa.int32())]))
    again = weir.open(table.uri)
    put(again, dict.fromkeys(range(6), "new"))
    found = between(again, startingVersion="begin")
    assert [row for row in found if row[1] in (0, 5)] == [
        ("update_postimage", 0, "mid"),
        ("update_postimage", 0, "new"),
        ("update_postimage", 5, "new"),
        ("update_preimage", 0, "mid"),
        ("update_preimage", 0, "old"),
        ("update_preimage", 5, "old"),
    ]


def twice_resharded(table: weir.Table) -> None:
    """Change one key under each of three routings, whose shards number their generations alike.

    The first routing's shards are sealed with rows that were not flushed, so they end above the
    generation where the second's began.
    """
    with table.writer(weir.WriterConfig(max_memtable_rows=1)) as writer:
        for number in range(4):
            writer.put([{"id": 0, "v": f"first {number}"}])
    table.reshard(weir.Bucket("id", 3), compact=False)
    again = weir.open(table.uri)
    put(again, {0: "second"})
    again.reshard(weir.Bucket("id", 2), compact=False)
    put(weir.open(table.uri), {0: "third"})


HISTORY = ["old", *(f"first {n}" for n in range(4)), "second", "third"]


def test_p3_a_key_is_told_in_order_across_two_reshards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.spark.feed.POLL", -1.0)  # reads the logs at every call
    table = make_table(tmp_path, buckets=1)
    put(table, {0: "old"})
    table.checkpoint("durable", name="begin")
    source = feed_of(table, maxFilesPerTrigger="2")
    _, end = batch(source, source.initialOffset())
    bare = plain(table)
    first = bare.latestOffset(bare.initialOffset(), ReadAllAvailable())
    twice_resharded(table)
    found = between(table, startingVersion="begin")
    images = {"update_preimage": HISTORY[:-1], "update_postimage": HISTORY[1:]}
    for kind, values in images.items():
        assert [v for k, _, v in found if k == kind] == sorted(values)
    seen: list[tuple[str, int, str | None]] = []
    while (then := source.latestOffset(end, source.getDefaultReadLimit())) != end:
        seen += read(source, source.partitions(end, then))
        end = then
    for kind, values in images.items():
        assert [v for k, _, v in seen if k == kind] == values
    # Without images too: applying batch after batch ends with the last value.
    told = []
    while (then := bare.latestOffset(first, ReadAllAvailable())) != first:
        parts = bare.partitions(first, then)
        told.append([v for part in parts for _, _, v in read(bare, [part])])
        first = then
    assert told == [HISTORY[1:5], ["second"], ["third"]]


@pytest.mark.parametrize("log", LOGS)
def test_p3_a_stream_of_images_goes_on_where_it_stopped(tmp_path: Path, log: str) -> None:
    table = logged(tmp_path, log)
    put(table, {1: "a", 2: "a"})
    source = feed_of(table)
    start = source.initialOffset()
    rows, end = batch(source, start)
    assert rows == [("insert", 1, "a"), ("insert", 2, "a")]
    assert source.latestOffset(end, ReadAllAvailable()) == end, "nothing new is no batch"
    source.commit(end)
    put(table, {1: "b"})
    move(table, tmp_path, log)
    put(table, {}, (2,))
    table.compact(fold_wal=True)
    table.gc(min_age=0, fence_retention="2m")
    # Another process continues from the offset in Spark's checkpoint.
    source = feed_of(table)
    rows, then = batch(source, end)
    expected = [("delete", 2, "a"), ("update_postimage", 1, "b"), ("update_preimage", 1, "a")]
    assert rows == expected
    assert sorted(read(source, source.partitions(end, then))) == expected, "a replay reads the same"
    # A run makes a checkpoint only if it finds changes, and its end is fixed when it begins.
    source.prepareForTriggerAvailableNow()
    assert source.latestOffset(then, ReadAllAvailable()) == then
    source._target = None
    # Commit releases what was read, and its checkpoint.
    source.commit(end)
    source.commit(then)
    assert [str(c.id) for c in table.checkpoints()] == [then["checkpoint"]]
    stands = Consumer(table.core.store, "etl", 60.0).positions()
    assert stands == {UUID(shard): p for shard, p in then["positions"].items()}
    for made in table.checkpoints():
        table.delete_checkpoint(made)
    put(table, {1: "c"})
    with pytest.raises(SnapshotExpired, match="consumerTtl"):
        source.partitions(then, source.latestOffset(then, ReadAllAvailable()))


def test_small_batches_tell_the_same_images(tmp_path: Path) -> None:
    table = make_table(tmp_path, buckets=1)
    with table.writer(weir.WriterConfig(enable_memtable=False)) as writer:
        for number in range(5):
            writer.put([{"id": 1, "v": str(number)}])
    source = feed_of(table, maxFilesPerTrigger="2")
    _, end = batch(source, source.initialOffset())
    with table.writer(weir.WriterConfig(enable_memtable=False)) as writer:
        for number in range(5, 10):
            writer.put([{"id": 1, "v": str(number)}])
    seen: list[tuple[str, int, str | None]] = []
    batches = 0
    while (then := source.latestOffset(end, source.getDefaultReadLimit())) != end:
        seen += read(source, source.partitions(end, then))
        end, batches = then, batches + 1
    assert batches >= 3
    assert [v for kind, _, v in seen if kind == "update_postimage"] == list("56789")
    assert [v for kind, _, v in seen if kind == "update_preimage"] == list("45678")


def test_images_are_refused_where_they_could_be_wrong(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    for more, words in (
        ({"startingOffsets": "earliest"}, "the old values are unknown"),
        ({"failOnDataLoss": "false"}, "old values would be wrong"),
        ({"metadataColumns": "true"}, "leave metadataColumns out"),
    ):
        with pytest.raises(InvalidInput, match=words):
            feed_of(table, **more)
    options = options_of(table, readChangeFeed="true")
    with pytest.raises(InvalidInput, match="needs the option consumer"):
        stream_reader(options, feed_schema(table, IMAGES))
    with pytest.raises(InvalidInput, match="only its own columns"):
        stream_reader({**options, "consumer": "x"}, spark_schema(table.schema))


# -- other names -----------------------------------------------------------------------------------


def test_options_of_delta_and_kafka_are_understood() -> None:
    told = canonical_options({"txnAppId": "a", "txnVersion": "1"})
    assert told == {"appid": "a", "txnversion": "1"}
    check_options(told, WRITE, "a write")
    assert canonical_options({"maxFilesPerTrigger": "3", "kafka.group.id": "g"}) == {
        "maxentriespertrigger": "3",
        "consumer": "g",
    }
    assert canonical_options({"skipChangeCommits": "true"}) == {"deletes": "skip"}
    assert canonical_options({"ignoreDeletes": "false"}) == {}
    with pytest.raises(InvalidInput, match="give it once"):
        canonical_options({"appId": "a", "txnAppId": "b"})


def test_a_feed_begins_at_a_checkpoint_or_a_time(tmp_path: Path) -> None:
    table = make_table(tmp_path, buckets=1)
    put(table, {1: "a"})
    table.checkpoint("durable", name="begin")
    (shard,) = [s.id for s in table.shards()]
    written = max(  # a moved log leaves its entries in the old store
        meta.last_modified
        for store in (table.core.store, table.core.site(shard).wal)
        for meta in store.list("_mem_wal")
        if meta.path.endswith(".arrow")
    )
    put(table, {2: "b"})
    source = plain(table, startingVersion="begin", skipChangeCommits="true")
    rows, _ = batch(source, source.initialOffset())
    assert rows == [("row", 2, "b")]
    later = dt.datetime.fromtimestamp(written + 1e-4, dt.UTC)
    assert positions_since(table.core, later, loss=False) == {
        UUID(s): p for s, p in source.initialOffset()["positions"].items()
    }
    source = plain(table, startingTimestamp=str(int(written * 1000) - 5000))
    assert batch(source, source.initialOffset())[0] == [("row", 1, "a"), ("row", 2, "b")]
    assert positions_since(table.core, later + dt.timedelta(days=1), loss=False) == tips(table.core)
    with pytest.raises(InvalidInput, match="without an offset"):
        time_of("2026-01-01 12:00:00", "startingTimestamp")
    with pytest.raises(InvalidInput, match="give one of them"):
        plain(table, startingVersion="begin", startingOffsets="earliest")
    with pytest.raises(CheckpointNotFound, match="the name of a checkpoint"):
        plain(table, startingVersion="17").initialOffset()


def test_p3_lost_entries_are_passed_over_only_when_that_is_allowed(tmp_path: Path) -> None:
    table = make_table(tmp_path, buckets=1)
    put(table, {1: "a"})
    start = plain(table).initialOffset()
    put(table, {2: "b"})
    table.compact(fold_wal=True)
    table.gc(min_age=0, fence_retention="2m")
    put(table, {3: "c"})
    strict, loose = plain(table), plain(table, failOnDataLoss="false")
    end = strict.latestOffset(start, ReadAllAvailable())
    with pytest.raises(SnapshotExpired, match="failOnDataLoss=false"):
        strict.partitions(start, end)
    left = read(loose, loose.partitions(start, end))
    assert ("row", 1, "a") not in left
    assert ("row", 3, "c") in left
    # In a task: no traceback lines of weir's, which Spark would print before the message.
    part = InputPartition(
        {"shard": str(table.shards()[0].id), "after": 0, "last": 2, "held": False}
    )
    with pytest.raises(SnapshotExpired) as refused:
        list(strict.read(part))
    assert refused.value.__cause__ is None
    assert len(refused.traceback) <= 3
    with pytest.raises(SnapshotExpired, match="may be newer"):
        plain(table, startingTimestamp="1000").initialOffset()


def test_progress_tells_the_table_and_what_waits(tmp_path: Path) -> None:
    table = make_table(tmp_path, buckets=1)
    put(table, {1: "a"})
    source = plain(table)
    end = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    assert source.reportLatestOffset()["behind"] == {}
    put(table, {2: "b"})
    source._seen = None  # otherwise the tips stay cached for a moment
    told = source.reportLatestOffset()
    assert told["table"] == table.uri
    (waits,) = told["behind"].values()
    assert waits["entries"] >= 1
    assert waits["bytes"] > 100
    assert waits["rows"] == 1
    with table.writer(weir.WriterConfig(enable_memtable=False)) as writer:
        for number in range(40):
            writer.put([{"id": number, "v": "c"}, {"id": 100 + number, "v": "c"}])
    source._seen = None
    (waits,) = source.reportLatestOffset()["behind"].values()
    assert 60 <= waits["rows"] <= 100, "counted in the first eight entries, fences among them"
    assert told["positions"] != end["positions"]
