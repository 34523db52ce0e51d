"""Changes with the rows they changed, and the feed under the names of Delta and Kafka. No JVM."""

import datetime as dt
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import lance
import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

import weir
from tests.support.spark import make_table, put
from tests.support.tables import load_rows
from weir.errors import CheckpointNotFound, InvalidInput, SchemaMismatch, SnapshotExpired
from weir.read.positions import tips
from weir.records.consumers import Consumer
from weir.spark import feed as feed_module
from weir.spark.feed import Offset, WeirFeed
from weir.spark.feed_schema import IMAGES, feed_schema
from weir.spark.moments import positions_since, time_of
from weir.spark.options import WRITE, canonical_options, check_options
from weir.spark.reading import reader, stream_reader
from weir.spark.types import named_schema, spark_schema


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


@pytest.mark.parametrize("keyed", [True, False])
def test_p3_a_feed_begins_with_the_rows_of_now_and_no_row_comes_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    monkeypatch.setattr("weir.spark.feed.POLL", -1.0)  # looks at the table at every call
    table = make_table(tmp_path, keyed=keyed)
    load_rows(table, {1: "loaded"}, replaces=False)
    put(table, {2: "folded"})
    table.compact(fold_wal=True)
    table.gc(min_age=0, fence_retention="2m")
    put(table, {3: "flushed"})
    table.writer().put([{"id": 4, "v": "logged"}])
    source = plain(table)
    start = source.initialOffset()
    rows, end = batch(source, start)
    now = [("row", 1, "loaded"), ("row", 2, "folded"), ("row", 3, "flushed"), ("row", 4, "logged")]
    assert rows == now
    # The driver died before it recorded the batch, and rows came since: a replay reads the same.
    put(table, {5: "new"})
    again = plain(table)
    assert again.initialOffset() == start
    assert sorted(read(again, again.partitions(start, end))) == now
    rows, then = batch(again, end)
    assert rows == [("row", 5, "new")]
    assert again.latestOffset(then, ReadAllAvailable()) == then
    earliest = plain(table, startingOffsets="earliest")
    rows, _ = batch(earliest, earliest.initialOffset())
    assert ("row", 1, "loaded") not in rows
    assert rows[-2:] == [("row", 4, "logged"), ("row", 5, "new")]


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("replaces", [False, True])
def test_p3_a_load_stops_a_feed_that_would_pass_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: bool, replaces: bool
) -> None:
    monkeypatch.setattr("weir.spark.feed.POLL", -1.0)  # looks at the table at every call

    def begun() -> Any:
        return feed_of(table) if images else plain(table)

    table = make_table(tmp_path)
    load_rows(table, {1: "loaded"}, replaces=replaces)
    put(table, {2: "put"})
    source = begun()
    rows, end = batch(source, source.initialOffset())
    assert [row[1:] for row in rows] == [(1, "loaded"), (2, "put")], "the loads of before are known"
    assert source.latestOffset(end, ReadAllAvailable()) == end
    put(table, {3: "put"})
    table.compact()
    _, end = batch(source, end)
    load_rows(table, {4: "new"}, replaces=replaces)
    # The log has nothing new, and a restarted query has only the offset: both stop.
    for feed in (source, begun()):
        with pytest.raises(SnapshotExpired, match="with a new checkpoint location"):
            feed.latestOffset(end, ReadAllAvailable())
    # What tells of the load is in the table, not in the history of its base.
    table.compact()
    table.core.lake.cleanup_old_versions(dt.timedelta(0))
    put(table, {5: "put"})
    with pytest.raises(SnapshotExpired, match="INSERT OVERWRITE"):
        begun().latestOffset(end, ReadAllAvailable())


def test_p3_a_load_stops_a_feed_that_starts_at_a_checkpoint_before_it(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    put(table, {1: "a"})
    table.checkpoint("durable", name="before")
    load_rows(table, {2: "loaded"}, replaces=True)
    table.checkpoint("durable", name="after")
    put(table, {3: "put"})
    source = plain(table, startingVersion="before")
    with pytest.raises(SnapshotExpired, match="INSERT OVERWRITE"):
        source.latestOffset(source.initialOffset(), ReadAllAvailable())
    later = plain(table, startingVersion="after")
    assert batch(later, later.initialOffset())[0] == [("row", 3, "put")]
    for ending in ({}, {"endingVersion": "after"}):
        with pytest.raises(SnapshotExpired, match="from a checkpoint that is newer"):
            between(table, startingVersion="before", **ending)
    assert between(table, startingVersion="after") == [("insert", 3, "put")]


def test_p3_a_consumer_knows_the_load_that_it_had_seen(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    put(table, {1: "a"})
    source = plain(table, consumer="etl", startingOffsets="earliest")
    _, end = batch(source, source.initialOffset())
    source.commit(end)
    load_rows(table, {2: "loaded"}, replaces=True)
    # Another checkpoint location: the consumer's own record is all that is left.
    other = plain(table, consumer="etl", startingOffsets="earliest")
    with pytest.raises(SnapshotExpired, match="another consumer"):
        other.latestOffset(other.initialOffset(), ReadAllAvailable())


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
        for store in (table.core.store, table.core.log(shard).current_site().wal)
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


def test_a_feed_leaves_out_a_column_that_spark_has_no_type_for(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("u", pa.uuid())])
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": 1, "u": UUID(int=1)}])
    options = options_of(table, startingOffsets="earliest")
    source = stream_reader(options, spark_schema(schema, ["id"]))
    start = source.initialOffset()
    end = source.latestOffset(start, source.getDefaultReadLimit())
    rows = [b.to_pylist() for part in source.partitions(start, end) for b in source.read(part)]
    assert rows == [[{"id": 1}]]
    with pytest.raises(InvalidInput, match="a stream by path with a schema"):
        stream_reader(options, named_schema(schema))  # what a stream by name reads


def test_p3_a_feed_says_that_its_column_was_dropped(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    source = plain(table, startingOffsets="earliest")
    start = source.initialOffset()
    put(table, {1: "a"})
    weir.open(table.uri).drop_columns("v")
    with pytest.raises(SchemaMismatch, match="column 'v' was dropped or renamed"):
        batch(source, start)


@pytest.mark.parametrize(
    "text", ["2026-01-01", "2026-01-01 12", "2026-01-01 12:30", "2026-01-01T12:30:15.5"]
)
def test_a_time_without_an_offset_is_told_one_that_is_accepted(text: str) -> None:
    with pytest.raises(InvalidInput, match="without an offset") as refused:
        time_of(text, "startingTimestamp")
    (advice,) = re.findall("Write '([^']+)'", str(refused.value))
    told = dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)
    assert time_of(advice, "startingTimestamp") == told


def test_p3_lost_entries_are_passed_over_only_when_that_is_allowed(tmp_path: Path) -> None:
    table = make_table(tmp_path, buckets=1)
    put(table, {1: "a"})
    start = plain(table, startingOffsets="earliest").initialOffset()
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


def test_progress_tells_the_table_and_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with table.writer(weir.WriterConfig(enable_memtable=False)) as writer:
        for number in range(40):
            writer.put([{"id": number, "v": "c"}, {"id": 100 + number, "v": "c"}])
    source._seen = None
    (waits,) = source.reportLatestOffset()["behind"].values()
    assert waits["entries"] >= 41

    def asked_again(*_: Any) -> Any:
        raise AssertionError("Spark asks again and again, and nothing has moved")

    monkeypatch.setattr(feed_module, "behind", asked_again)
    source._seen = None
    assert list(source.reportLatestOffset()["behind"].values()) == [waits]
    assert told["positions"] != end["positions"]


@pytest.mark.parametrize("images", [False, True])
def test_p3_a_feed_stops_at_a_column_that_it_does_not_know(tmp_path: Path, images: bool) -> None:
    """It would deliver rows without the column's values, and a restart would not repair them."""
    table = make_table(tmp_path, buckets=1)
    put(table, {1: "a"})
    source = feed_of(table) if images else plain(table)
    _, start = batch(source, source.initialOffset())
    lance.dataset(table.uri).add_columns(pa.schema([pa.field("extra", pa.int64())]))
    with weir.open(table.uri).writer() as writer:
        writer.put([{"id": 2, "v": "new", "extra": 42}])
    again = feed_of(table) if images else plain(table)
    end = again.latestOffset(start, ReadAllAvailable())
    with pytest.raises(SchemaMismatch, match="new column 'extra'"):
        source.partitions(start, end)
    # From the same position, in a process whose handle is older than the column.
    rows = [
        row
        for part in again.partitions(start, end)
        for b in again.read(part)
        for row in b.to_pylist()
    ]
    assert [(row["id"], row["extra"]) for row in rows] == [(2, 42)]


def test_p3_a_feed_of_chosen_columns_goes_on_beside_new_ones(tmp_path: Path) -> None:
    table = make_table(tmp_path, buckets=1)
    put(table, {1: "a"})
    source = stream_reader(options_of(table), spark_schema(table.schema, ["id"]))
    first = source.initialOffset()
    assert source.partitions(first, source.latestOffset(first, ReadAllAvailable()))
    named = {"weir.name": table.uri}
    source = stream_reader(named, spark_schema(table.schema, ["id"]))
    with pytest.raises(SchemaMismatch, match="new column 'v'"):  # by name nobody chooses columns
        source.partitions(first, source.latestOffset(first, ReadAllAvailable()))
