"""G-7c, P-3: a feed that continues misses nothing silently; entries are kept for a named consumer
from the moment it is given its position."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import weir
from weir.records.consumers import Consumer
from weir.spark.feed import WeirFeed
from weir.spark.feed_offsets import positions_of
from weir.spark.feed_schema import feed_schema
from weir.upkeep.gc.collect import collect


def write(table: weir.Table, *keys: int) -> None:
    with table.writer() as writer:
        writer.put([{"id": key} for key in keys])


def collect_log(table: weir.Table) -> None:
    collect(weir.open(table.uri).core, 0, "2m", keep_first_entries=False)


@pytest.fixture
def overtaken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> weir.Table:
    """A table whose log is collected while a consumer is about to hold it."""
    table = weir.create(str(tmp_path / "t"), pa.schema([pa.field("id", pa.int64())]))
    write(table, 1)
    register = Consumer.register

    def slow(self: Consumer, positions: dict[object, int], **how: object) -> object:
        monkeypatch.undo()
        write(table, 2)
        write(table, 3)
        collect_log(table)
        return register(self, positions, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(Consumer, "register", slow)
    return table


def feed_of(table: weir.Table, start: str) -> WeirFeed:
    options = {"path": table.uri, "metadatacolumns": "true", "consumer": "etl"}
    return WeirFeed({**options, "startingoffsets": start}, feed_schema(table))


def read(feed: WeirFeed, start: dict[str, object]) -> list[int]:
    end = feed.latestOffset(start, ReadAllAvailable())
    parts = feed.partitions(start, end)
    return [key for p in parts for batch in feed.read(p) for key in batch.column("id").to_pylist()]


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_p3_a_consumer_that_collection_overtook_begins_where_the_log_begins(
    overtaken: weir.Table, start: str
) -> None:
    feed = feed_of(overtaken, start)
    first = feed.initialOffset()
    (shard,) = overtaken.shards()
    assert positions_of(first)[shard.id] >= shard.log.floors().wal
    write(overtaken, 4)
    write(overtaken, 5)
    collect_log(overtaken)
    assert read(feed, first)[-2:] == [4, 5]


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_p3_a_consumer_that_failed_right_after_it_was_registered_looks_again(
    overtaken: weir.Table, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """The store fails between the record and the floor check; the next attempt does the check."""

    def fail(*_args: object) -> None:
        raise weir.StoreError("out of reach")

    with monkeypatch.context() as patch:
        patch.setattr("weir.upkeep.consumers.passed_by", fail)
        with pytest.raises(weir.StoreError):
            feed_of(overtaken, start).initialOffset()
    write(overtaken, 4)
    feed = feed_of(overtaken, start)
    first = feed.initialOffset()
    (shard,) = overtaken.shards()
    assert positions_of(first)[shard.id] >= shard.log.floors().wal
    collect_log(overtaken)
    assert read(feed, first)[-1:] == [4]
    # From now on the floor does not affect it.
    assert feed_of(overtaken, start).initialOffset() == first


def test_p3_a_snapshot_that_collection_overtook_is_taken_again(overtaken: weir.Table) -> None:
    feed = feed_of(overtaken, "snapshot")
    first = feed.latestOffset(feed.initialOffset(), ReadAllAvailable())
    (shard,) = overtaken.shards()
    assert positions_of(first)[shard.id] >= shard.log.floors().wal
    write(overtaken, 4)
    collect_log(overtaken)
    assert read(feed, first) == [4]


def test_p3_a_consumer_that_collection_overtook_is_told_if_it_named_its_place(
    overtaken: weir.Table,
) -> None:
    (shard,) = overtaken.shards()
    with pytest.raises(weir.SnapshotExpired, match="etl"):
        feed_of(overtaken, f'{{"{shard.id}": 0}}').initialOffset()
    assert Consumer(overtaken.core.store, "etl", 60.0).positions() is None


def test_p3_a_consumer_that_was_dropped_is_not_revived_by_its_query(tmp_path: Path) -> None:
    """Nothing was kept for it meanwhile, and the next batch would read as if it was."""
    table = weir.create(str(tmp_path / "t"), pa.schema([pa.field("id", pa.int64())]))
    write(table, 1)
    feed = feed_of(table, "earliest")
    end = feed.latestOffset(feed.initialOffset(), ReadAllAvailable())
    table.drop_consumer("etl")
    with pytest.raises(weir.SnapshotExpired, match=r"was dropped, or expired.*new query"):
        feed.commit(end)
    assert Consumer(table.core.store, "etl", 60.0).positions() is None


def test_p3_a_query_that_is_given_a_consumer_later_is_held_from_there(tmp_path: Path) -> None:
    table = weir.create(str(tmp_path / "t"), pa.schema([pa.field("id", pa.int64())]))
    write(table, 1)
    nameless = WeirFeed({"path": table.uri, "metadatacolumns": "true"}, feed_schema(table))
    end = nameless.latestOffset(nameless.initialOffset(), ReadAllAvailable())
    feed_of(table, "earliest").commit(end)
    assert Consumer(table.core.store, "etl", 60.0).positions() == positions_of(end)


def test_g7c_a_following_feed_is_told_of_a_shard_that_was_collected_before_it_looked(
    tmp_path: Path,
) -> None:
    """The feed began at the remaining entries and skipped the rows of a whole reshard."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    write(table, 1)
    looks = 0

    def stop() -> bool:
        nonlocal looks
        looks += 1
        if looks == 3:  # the feed has read everything, and waits
            weir.open(table.uri).reshard(weir.Bucket("id", 2))
            for key in range(2, 12):
                write(weir.open(table.uri), key)
            collect_log(table)
        return looks > 30

    feed = table.changes(follow=True, poll=0, stop=stop)
    assert next(feed).batch.column("id").to_pylist() == [1]
    with pytest.raises(weir.SnapshotExpired, match=r"table\.follow"):
        list(feed)


def test_g7c_a_feed_that_failed_in_its_first_round_is_told_of_a_shard_made_since(
    tmp_path: Path,
) -> None:
    """It went on as a feed that had just begun: where the log of the new shard began by then."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    sharding = weir.Identity("id")
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id", sharding=sharding)
    write(table, 1)
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise weir.StoreError("after the only shard, in the first round")
        return False

    feed = table.changes(stop=stop)
    assert next(feed).batch.column("id").to_pylist() == [1]
    with pytest.raises(weir.StoreError, match="first round"):
        next(feed)
    write(table, 2)
    collect_log(table)
    with pytest.raises(weir.SnapshotExpired, match=r"table\.follow"):
        list(feed)
