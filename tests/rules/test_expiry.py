"""L-11: an expired row is gone from every read, and brings no older row back."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from weir.env import Env, SystemClock
from weir.errors import InvalidInput, StoreDenied
from weir.format.expiry import alive_at
from weir.read.snapshot import Snapshot
from weir.spark.source import parts_of, read_part
from weir.testing.faulty import FaultyStores

DAY = 86_400.0
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("v", pa.string()),
        pa.field("ts", pa.timestamp("us", "UTC")),
        pa.field("vec", pa.list_(pa.float32(), 2)),
    ]
)


class AheadClock(SystemClock):
    """The machine's clocks, with the wall clock `ahead` seconds ahead."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def wall(self) -> float:
        return super().wall() + self.ahead


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def row(key: int, text: str, age: float | None) -> dict[str, object]:
    """A row whose time was `age` days ago; with None it has no time."""
    ts = None if age is None else now() - dt.timedelta(days=age)
    return {"id": key, "v": text, "ts": ts, "vec": [float(key), 0.0]}


@pytest.fixture
def clock() -> AheadClock:
    return AheadClock()


@pytest.fixture
def table(tmp_path: Path, clock: AheadClock) -> weir.Table:
    expire = weir.Expire("ts", after="30d")
    uri = str(tmp_path / "t")
    return weir.create(uri, SCHEMA, primary_key="id", expire=expire, env=Env(clock=clock))


def texts(table: weir.Table, **how: object) -> dict[int, str]:
    rows = table.scan(columns=["id", "v"], **how).to_table()  # type: ignore[arg-type]
    return dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))


def put(table: weir.Table, *rows: dict[str, object], flush: bool = False) -> None:
    """Put rows as an SSTable, or only as an entry of the log."""
    with table.writer(weir.WriterConfig(enable_memtable=flush)) as writer:
        writer.put(list(rows))


def test_l11_expired_rows_are_hidden_from_scan_count_get_and_search(table: weir.Table) -> None:
    put(table, row(1, "old", 31), row(2, "young", 29), row(3, "timeless", None))
    assert texts(table) == {2: "young", 3: "timeless"}
    assert table.scan().count() == 2
    assert table.get([1, 2, 3], columns=["v"])["v"].to_pylist() == ["young", "timeless"]
    found = table.search("vec", [1.0, 0.0], k=3, columns=["id"])
    assert found["id"].to_pylist() == [2, 3]
    assert "expired   'ts' more than 2592000 s ago" in table.scan().explain()


@pytest.mark.parametrize("level", ["log", "flushed", "base"])
@pytest.mark.parametrize("batch_size", [None, 1])
def test_l11_a_batch_of_nothing_but_expired_rows_reads_as_none_without_a_key(
    tmp_path: Path, level: str, batch_size: int | None
) -> None:
    table = weir.create(tmp_path / "t", SCHEMA)
    put(table, row(1, "old", 40), flush=level != "log")
    if level == "base":
        table.compact()
    table.set_expire(weir.Expire("ts", after="30d"))
    assert table.scan(batch_size=batch_size).to_table().num_rows == table.count() == 0
    put(table, row(2, "old", 31), row(3, "old", 35), flush=level != "log")
    put(table, row(4, "young", 1), flush=level != "log")
    scan = table.scan(batch_size=batch_size)
    assert [batch.num_rows for batch in scan.to_reader()] == [1]
    assert texts(table) == texts(table, limit=1) == texts(table, filter="id > 0") == {4: "young"}


@pytest.mark.parametrize("level", ["log", "flushed", "base"])
def test_l11_an_expired_newest_row_brings_no_older_one_back(table: weir.Table, level: str) -> None:
    put(table, row(1, "alive but older", 1), row(2, "stays", 1), flush=True)
    if level == "base":
        table.compact()
    put(table, row(1, "newest and expired", 40), flush=level == "flushed")
    assert texts(table) == {2: "stays"}
    assert table.get([1]).num_rows == 0
    assert table.scan(filter="v = 'alive but older'").count() == 0
    assert table.scan(filter=pc.field("v") == "alive but older").count() == 0
    table.compact()
    assert texts(table) == {2: "stays"}
    assert texts(table, freshness="base") == {2: "stays"}


def test_l11_a_row_put_with_a_newer_time_lives_on(table: weir.Table, clock: AheadClock) -> None:
    put(table, row(1, "first", 20), row(2, "other", 20), flush=True)
    table.compact()
    put(table, row(1, "again", 0))
    clock.ahead = 20 * DAY
    assert texts(table) == {1: "again"}


def test_l11_rows_expire_while_time_passes_and_at_the_very_moment(
    table: weir.Table, clock: AheadClock
) -> None:
    put(table, row(1, "v", 0))
    clock.ahead = 29.9 * DAY
    assert texts(table) == {1: "v"}
    clock.ahead = 30.1 * DAY
    assert texts(table) == {}
    rule, field = weir.Expire("ts", after=10), SCHEMA.field("ts")
    rows = pa.table({"ts": pa.array([100_000_000, 100_000_001], pa.int64()).cast(field.type)})
    alive = alive_at(rule, 110.0, field)
    assert alive is not None
    assert alive.mask(rows).to_pylist() == [False, True]


def test_l11_compaction_drops_by_the_store_clock_not_by_a_machine_that_runs_ahead(
    table: weir.Table, clock: AheadClock
) -> None:
    put(table, row(1, "expired", 31), row(2, "young", 5), flush=True)
    clock.ahead = 365 * DAY  # by this machine's clock every row has expired
    report = table.compact()
    assert (report.rows_written, report.rows_deleted) == (1, 1)
    clock.ahead = 0.0
    assert texts(table) == {2: "young"}
    assert lance.dataset(table.uri).count_rows() == 1


def test_l11_compaction_drops_expired_rows_that_are_in_the_base_already(table: weir.Table) -> None:
    put(table, row(1, "young", 5), row(2, "younger", 1), flush=True)
    table.compact()
    table.set_expire(weir.Expire("ts", after="3d"))
    report = table.compact()  # nothing waits to be folded
    assert report.rows_expired == 1
    assert lance.dataset(table.uri).to_table()["id"].to_pylist() == [2]
    assert table.compact().rows_expired == 0


def test_l11_a_change_of_the_rule_reaches_open_handles_and_can_be_taken_back(
    table: weir.Table,
) -> None:
    other = weir.open(table.uri)
    put(table, row(1, "a week old", 7))
    assert texts(other) == {1: "a week old"}
    table.set_expire(weir.Expire("ts", after="1d"))
    assert texts(other) == {}
    assert other.expire == weir.Expire("ts", after=DAY)
    other.set_expire(None)
    assert texts(table) == {1: "a week old"}
    assert table.expire is None


def test_l11_a_checkpoint_reads_as_of_its_own_time_and_rule(
    table: weir.Table, clock: AheadClock
) -> None:
    put(table, row(1, "old", 31), row(2, "young", 10))
    held = table.checkpoint(scope="durable")
    clock.ahead = 300 * DAY
    assert texts(table) == {}
    assert texts(table, checkpoint=held) == {2: "young"}
    assert table.get([1, 2], columns=["id"], checkpoint=held)["id"].to_pylist() == [2]
    table.set_expire(weir.Expire("ts", after="1h"))
    table.compact()
    assert texts(table, checkpoint=held) == {2: "young"}


def test_l11_a_rule_set_while_rows_are_folded_is_not_lost(table: weir.Table) -> None:
    put(table, row(1, "a week old", 7), flush=True)
    rule = weir.Expire("ts", after="1d")

    def interrupt(point: str) -> None:
        if point == "compact.written":
            weir.open(table.uri).set_expire(rule)

    env = Env(failpoint=interrupt)
    weir.open(table.uri, env=env).compact()
    assert table.expire == rule
    assert texts(table) == {}


def test_l11_all_parts_of_a_spark_read_go_by_the_moment_of_the_plan(
    table: weir.Table, clock: AheadClock
) -> None:
    put(table, row(1, "base, old", 31), row(2, "base", 29), flush=True)
    table.set_expire(None)
    table.compact()
    table.set_expire(weir.Expire("ts", after="30d"))
    put(table, row(3, "fresh", 29), row(4, "fresh, old", 31))
    parts = parts_of(table, table.snapshot())
    clock.ahead = 300 * DAY  # an executor's clock, or a late task's
    rows = [b for part in parts for b in read_part(table, part, columns=["id"], filter=None)]
    assert sorted(pa.Table.from_batches(rows)["id"].to_pylist()) == [2, 3]


def test_l11_an_append_only_table_hides_and_drops_too(tmp_path: Path) -> None:
    expire = weir.Expire("ts", after="30d")
    table = weir.create(str(tmp_path / "a"), SCHEMA, expire=expire)
    put(table, row(1, "old", 31), row(1, "young", 3), flush=True)
    put(table, row(2, "old", 50), row(2, "young", 4), flush=True)
    assert texts(table) == {1: "young", 2: "young"}
    assert table.scan().count() == 2
    table.compact()
    assert lance.dataset(table.uri).count_rows() == 2
    assert table.scan().count() == 2


@pytest.mark.parametrize(
    "dtype",
    [
        *(pa.timestamp(u, tz) for u in ("s", "ms", "us", "ns") for tz in (None, "UTC", "+05:30")),
        pa.date32(),
    ],
)
def test_l11_every_type_of_time_means_the_same_in_memory_and_in_lance(
    tmp_path: Path, dtype: pa.DataType
) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("my time", dtype)])
    expire = weir.Expire("my time", after="7d")
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id", expire=expire)
    days = [0, 5, 6, 8, 9, None]
    moments = [None if d is None else now() - dt.timedelta(days=d) for d in days]
    naive = pa.array([m and m.replace(tzinfo=None) for m in moments], pa.timestamp("us"))
    if pa.types.is_date(dtype):
        times = naive.cast(dtype, safe=False)
    else:  # the same moment in every unit and zone
        times = naive.cast(pa.timestamp(dtype.unit), safe=False).cast(pa.int64()).cast(dtype)
    rows = pa.table({"id": range(len(days)), "my time": times})
    with table.writer() as writer:
        writer.put(rows)
    expected = [0, 1, 2, 5]
    assert sorted(table.scan().to_table()["id"].to_pylist()) == expected
    assert table.scan(filter=pc.field("id") >= 0).count() == len(expected)
    table.set_expire(None)
    table.compact()
    table.set_expire(expire)
    assert sorted(table.scan().to_table()["id"].to_pylist()) == expected
    assert table.scan(filter=pc.field("id") >= 0).count() == len(expected)
    assert table.scan(filter="id >= 0").count() == len(expected)


def test_l11_a_rule_needs_a_column_that_holds_times(tmp_path: Path, table: weir.Table) -> None:
    with pytest.raises(InvalidInput, match="no column 'when'"):
        weir.create(str(tmp_path / "x"), SCHEMA, expire=weir.Expire("when", after="1d"))
    with pytest.raises(InvalidInput, match="column 'v' is string; use a timestamp or date32"):
        table.set_expire(weir.Expire("v", after="1d"))
    with pytest.raises(InvalidInput, match="after"):
        weir.Expire("ts", after="soon")
    assert not (tmp_path / "x").exists()


def test_l11_the_moment_of_a_read_travels() -> None:
    snapshot = Snapshot(3, "durable", (), 12.5)
    assert Snapshot.from_json(snapshot.to_json()).at == 12.5


def told(feed: weir.Changes) -> list[tuple[str, list[int]]]:
    return [(change.kind, sorted(change.batch["id"].to_pylist())) for change in feed]


def test_l11_a_feed_tells_of_expired_rows_once_and_only_if_asked(
    table: weir.Table, clock: AheadClock
) -> None:
    put(table, row(1, "soon", 29), row(2, "later", 20), row(3, "never", None), flush=True)
    feed = table.changes(expired=True)
    assert told(feed) == [("put", [1, 2, 3])]
    clock.ahead = 2 * DAY
    assert told(table.changes(feed.bookmark)) == []
    feed = table.changes(feed.bookmark.to_json(), expired=True)
    assert told(feed) == [("expire", [1])]
    assert told(table.changes(feed.bookmark, expired=True)) == []
    # A renewed row is not reported; one put after its expiry is, right after its put.
    put(table, row(2, "again", -100), row(4, "late", 40))
    clock.ahead = 15 * DAY
    feed = table.changes(feed.bookmark, expired=True)
    assert told(feed) == [("put", [2, 4]), ("expire", [4])]
    # A feed without `expired` keeps the expiry state in its bookmark for one with it.
    silent = table.changes(feed.bookmark)
    assert told(silent) == []
    assert silent.bookmark == feed.bookmark
    assert table.scan().count() == 2


def test_l11_a_feed_tells_of_no_expired_row_that_a_row_of_its_entry_replaced(
    table: weir.Table,
) -> None:
    """It told of the expiry after both rows, and whoever applied it deleted the one that lives."""
    put(table, row(1, "old", 31), row(2, "old", 31), row(1, "young", 1))
    assert told(table.changes(expired=True)) == [("put", [1, 1, 2]), ("expire", [2])]
    assert texts(table) == {1: "young"}


def test_l11_a_feed_that_failed_to_look_for_expired_rows_looks_again(
    tmp_path: Path, clock: AheadClock
) -> None:
    """Taken up again, it ended at once, as if nothing had expired: the pause between two looks
    counted from the one that failed."""
    faulty, expire = FaultyStores(env=Env(clock=clock)), weir.Expire("ts", after="30d")
    table = weir.create(
        str(tmp_path / "t"), SCHEMA, primary_key="id", expire=expire, env=faulty.env
    )
    put(table, row(1, "soon", 29))
    first = table.changes(expired=True)
    assert told(first) == [("put", [1])]
    clock.ahead = 2 * DAY
    feed = table.changes(first.bookmark, expired=True)
    # The first listing of the shards is for their logs, the second for the expired rows.
    faulty.at(table.uri).on("list_folder", "_mem_wal", skip=1).deny()
    with pytest.raises(StoreDenied):
        next(feed)
    assert told(feed) == [("expire", [1])]


def test_l11_a_feed_goes_by_a_new_rule_and_needs_no_key(tmp_path: Path, clock: AheadClock) -> None:
    for key in ("id", None):
        uri, env = str(tmp_path / f"t{key}"), Env(clock=clock)
        sharding = weir.Bucket("id", 2)
        made = weir.create(uri, SCHEMA, primary_key=key, sharding=sharding, env=env)
        with made.writer() as writer:
            writer.put([row(key, "x", key) for key in range(8)])
        feed = made.changes(expired=True)
        assert {kind for kind, _ in told(feed)} == {"put"}
        assert told(made.changes(feed.bookmark, expired=True)) == []
        made.set_expire(weir.Expire("ts", after="30d"))
        feed = made.changes(feed.bookmark, expired=True)
        assert told(feed) == []
        made.set_expire(weir.Expire("ts", after="84h"))
        feed = made.changes(feed.bookmark, expired=True)
        changes = list(feed)
        assert {change.kind for change in changes} == {"expire"}
        assert sorted(k for c in changes for k in c.batch["id"].to_pylist()) == [4, 5, 6, 7]
        routed = {shard.id for shard in made.shards()}
        assert len(changes) == len({change.shard for change in changes} & routed) == 2
        columns = ["id"] if key else SCHEMA.names
        assert all(change.batch.schema.names == columns for change in changes)
        assert told(made.changes(feed.bookmark, expired=True)) == []


# -- writes that look first ------------------------------------------------------------------------


def test_l11_a_rule_that_was_taken_back_counts_in_the_writers_next_call(table: weir.Table) -> None:
    with table.shard(0).writer() as writer:
        writer.put([row(1, "old", 31)])
        assert writer.get([1]).num_rows == 0
        weir.open(table.uri).set_expire(None)
        assert writer.get([1])["v"].to_pylist() == ["old"]
        with pytest.raises(weir.KeyConflict, match="already exist"):
            writer.insert([row(1, "new", 0)])
        assert writer.put([row(1, "new", 0)], when="current IS NULL").skipped == 1
        assert writer.update([{"id": 1, "v": "updated"}]).updated == 1
        assert writer.scan().read_all()["v"].to_pylist() == ["updated"]
    assert texts(table) == {1: "updated"}


@pytest.mark.parametrize("level", ["memtable", "sstable", "base"])
def test_l11_a_rule_that_was_set_later_counts_in_the_writers_next_call(
    tmp_path: Path, level: str
) -> None:
    table = weir.create(tmp_path / "t", SCHEMA, primary_key="id")
    with table.shard(0).writer() as writer:
        writer.put([row(1, "old", 31), row(2, "young", 1)])
        if level != "memtable":
            writer.flush()
        if level == "base":
            table.compact()
        assert writer.get([1])["v"].to_pylist() == ["old"]
        weir.open(table.uri).set_expire(weir.Expire("ts", after="30d"))
        assert writer.get([1, 2])["v"].to_pylist() == ["young"]
        assert writer.insert([row(1, "new", 0)], on_conflict="skip").inserted == 1
    assert texts(table) == {1: "new", 2: "young"}


@pytest.mark.parametrize("level", ["memtable", "sstable", "base"])
def test_l11_a_machine_that_runs_ahead_replaces_no_living_row(
    table: weir.Table, clock: AheadClock, level: str
) -> None:
    with table.shard(0).writer() as writer:
        writer.put([row(1, "living", 1), row(2, "dead", 31)])
        if level != "memtable":
            writer.flush()
        if level == "base":
            writer.put([row(2, "dead", 31)])
            table.compact()
        clock.ahead = 40 * DAY
        assert writer.get([1]).num_rows == 0  # hidden too early, as in every read
        counts = writer.insert([row(1, "new", 0), row(2, "new", 0)], on_conflict="skip")
        assert counts == weir.WriteCounts(inserted=1, skipped=1)
        assert writer.update([{"id": 1, "v": "updated"}]).updated == 1
    clock.ahead = 0
    assert texts(table) == {1: "updated", 2: "new"}


@pytest.mark.parametrize("level", ["memtable", "sstable", "base"])
def test_l11_rows_that_expire_can_be_deleted_and_updated_by_a_filter(
    table: weir.Table, level: str
) -> None:
    """The filter does not name the column with the time."""
    with table.writer() as writer:
        writer.put([row(1, "a", 31), row(2, "a", 1), row(3, "b", 1), row(4, "b", None)])
        if level != "memtable":
            writer.flush()
        if level == "base":
            table.compact()
        assert writer.delete_where("v = 'a'") == weir.WriteCounts(deleted=1)
        assert writer.update_where("v = 'b'", {"v": "'c'"}) == weir.WriteCounts(updated=2)
    assert texts(table) == {3: "c", 4: "c"}
