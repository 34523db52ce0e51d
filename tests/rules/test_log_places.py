"""S-9: all readers get one answer to "where is the log and where was it".

Feeds and tailers cross moves of the log as if it had always been in one place, and check the same
floors: a row that was never acknowledged is never handed out (G-7c, P-3).
"""

import shutil

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructField, StructType

import weir
from tests.support.moments import again, make, put
from weir.errors import MissingEntry, SnapshotExpired
from weir.format import paths
from weir.format.wal_entry import EntryEncoder
from weir.routing.shards import schema_for_writing
from weir.spark.feed import WeirFeed
from weir.types import Epoch, Generation, Position
from weir.upkeep.gc.collect import collect

PLACES = {
    "made with a WAL store": ("w1", ["w1"]),
    "moved to a store of its own": (None, ["t", "w1"]),
    "moved on": ("w1", ["w1", "w2"]),
    "moved back": (None, ["t", "w1", "t"]),
    "moved there and back again": ("w1", ["w1", "t", "w2", "t", "w1"]),
}


@pytest.fixture(params=PLACES.values(), ids=PLACES.keys())
def travelled(request, tmp_path):
    """A table whose log was in the given places, with one put in each: ids 0, 1, 2, ..."""
    first, places = request.param
    table = make(tmp_path / "t", 1, wal_uri=None if first is None else str(tmp_path / first))
    for number, place in enumerate(places):
        with again(table, wal_uri=str(tmp_path / place)).writer() as writer:
            put(writer, [number], place)
    return table, list(range(len(places)))


def ids(changes):
    return [i for change in changes for i in change.batch.column("id").to_pylist()]


class Feed:
    """The Spark feed, driven by hand with the calls of Spark in the same order."""

    def __init__(self, table, **options):
        schema = StructType([StructField("id", LongType()), StructField("v", StringType())])
        self.reader = WeirFeed(
            {"path": table.uri, "startingoffsets": "earliest", **options}, schema
        )
        self.offset = self.reader.initialOffset()

    def take(self):
        """The ids of one batch up to the heads of the logs."""
        end = self.reader.latestOffset(self.offset, ReadAllAvailable())
        found = [
            i
            for part in self.reader.partitions(self.offset, end)
            for batch in self.reader.read(part)
            for i in batch.column("id").to_pylist()
        ]
        self.reader._seen = None  # heads are cached for a moment
        self.offset = end
        return found


def test_s9_one_call_of_changes_reads_across_every_move(travelled):
    table, expected = travelled
    assert ids(again(table).changes()) == expected
    first = again(table).changes()
    head = next(first)
    assert head.batch.column("id").to_pylist() == [0]
    assert ids(first) == expected[1:], "the handle goes on across the moves after it"


def test_s9_changes_resumes_inside_a_place_the_log_has_left(travelled):
    table, expected = travelled
    for number in expected:
        feed = again(table).changes()
        for _ in range(number + 1):
            next(feed)
        # The bookmark is before the change just handed out.
        assert ids(again(table).changes(since=feed.bookmark)) == expected[number:]


def test_s9_a_tailer_reads_across_every_move(travelled):
    table, expected = travelled
    shard = again(table).shards()[0]
    found = [i for e in weir.WalTailer(shard) for b in e.batches for i in b["id"].to_pylist()]
    assert found == expected
    tip = shard.tailer().tip()
    raw = [shard.tailer().read(p) for p in range(1, tip + 1)]
    assert [e.position for e in raw] == list(range(1, tip + 1))
    assert [e.position for e in shard.tailer().read_range(0, tip)] == list(range(1, tip + 1))
    assert shard.tailer().read(tip + 1) is None


def test_s9_the_spark_feed_reads_across_every_move(travelled):
    table, expected = travelled
    assert Feed(table).take() == expected
    whole = Feed(table, maxbytespertrigger="1")
    limited = []
    for _ in range(50):
        end = whole.reader.latestOffset(whole.offset, whole.reader.getDefaultReadLimit())
        for part in whole.reader.partitions(whole.offset, end):
            for batch in whole.reader.read(part):
                limited += batch.column("id").to_pylist()
        whole.offset = end
    assert limited == expected, "sizes are asked of the store that took the entry"


@pytest.mark.parametrize("kind", ["changes", "tailer", "spark"])
def test_s9_a_feed_that_was_open_before_follows_every_move(tmp_path, kind):
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, [0], "t")
    reader = again(table)
    if kind == "spark":
        take = Feed(reader).take
    elif kind == "tailer":
        tailer = reader.shards()[0].tailer()
        take = lambda: [i for e in tailer for b in e.batches for i in b["id"].to_pylist()]  # noqa: E731
    else:
        rounds = iter(reader.changes(follow=True, poll=0.0, stop=lambda: False))
        take = lambda: next(rounds).batch.column("id").to_pylist()  # noqa: E731
    assert take() == [0]
    for number, place in enumerate(["w1", "t", "w2", "w1", "t"], 1):
        with again(table, wal_uri=str(tmp_path / place)).writer() as writer:
            put(writer, [number], place)
        assert take() == [number]


def test_s9_a_hole_stays_a_hole_in_a_place_the_log_has_left(tmp_path):
    """Following moves must not turn loss into a skip."""
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        for n in range(4):
            put(writer, [n], "t")
    with again(table, wal_uri=str(tmp_path / "w")).writer() as writer:
        put(writer, [9], "w")
    shard = table.shards()[0].id
    table.core.store.delete([paths.wal_path(shard, Position(3))])
    for read in (
        lambda: ids(again(table).changes()),
        lambda: list(again(table).shards()[0].tailer()),
        lambda: Feed(again(table)).take(),
    ):
        with pytest.raises(MissingEntry, match="position 3"):
            read()


def test_s9_a_place_of_before_that_is_not_there_is_an_error_that_names_it(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w1"))
    for place in ("w1", "w2"):
        with again(table, wal_uri=str(tmp_path / place)).writer() as writer:
            put(writer, [1], place)
    shutil.move(tmp_path / "w1", tmp_path / "hidden")
    for read in (
        lambda: ids(again(table).changes()),
        lambda: list(again(table).shards()[0].tailer()),
        lambda: Feed(again(table)).take(),
    ):
        with pytest.raises(weir.WalStoreMismatch, match="w1"):
            read()


# -- the floors ------------------------------------------------------------------------------------


def zombie_entry(table, epoch, text):
    """The entry that a writer of an older epoch puts when it wakes up."""
    import pyarrow as pa

    encoder = EntryEncoder(schema_for_writing(table.core))
    rows = pa.record_batch({"id": [666], "v": [text]})
    shaped = rows.append_column("_tombstone", pa.array([False]))
    shaped = shaped.cast(schema_for_writing(table.core).wal)
    return bytes(
        encoder.encode([shaped], epoch=Epoch(epoch), generation=Generation(1), entry_id="zombie")
    )


@pytest.mark.parametrize("kind", ["changes", "tailer", "read", "range", "spark"])
@pytest.mark.parametrize("apart", [False, True], ids=["beside", "apart"])
def test_g7c_a_row_that_nobody_acknowledged_is_never_handed_out(tmp_path, kind, apart):
    """A reader stalls where a writer stalled; the fence is collected; the writer wakes first."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w") if apart else None)
    writer = table.shards()[0].writer()
    put(writer, [0], "a")
    stalled_at = writer.wal_stats().next_position
    reader = again(table)
    shard = reader.shards()[0]
    tailer = shard.tailer()
    feed = reader.changes(follow=True, poll=0.0, stop=lambda: False)
    spark = Feed(reader) if kind == "spark" else None
    assert ids([next(feed)]) == [0]
    assert [e.num_rows for e in tailer] == [1]
    ends = []
    if spark is not None:
        assert spark.take() == [0]
    # Another writer takes over and flushes; all its entries are collected, and its fence too.
    for _ in range(2):
        with again(table).shards()[0].writer() as other:
            for n in range(20):  # more than a reader probes ahead
                put(other, [n], "b")
    if spark is not None:  # the batch is planned before the collection and read after it
        end = spark.reader.latestOffset(spark.offset, ReadAllAvailable())
        ends = spark.reader.partitions(spark.offset, end)
    report = collect(again(table).core, 0, 120, keep_first_entries=False)
    assert report.ok, report.errors
    wal = table.core.log(shard.id).current_site().wal
    wal.put_if_absent(
        paths.wal_path(shard.id, Position(stalled_at)), zombie_entry(table, 1, "zombie")
    )
    read = {
        "changes": lambda: ids([next(feed)]),
        "tailer": lambda: next(iter(tailer)),
        "read": lambda: tailer.read(stalled_at),
        "range": lambda: list(tailer.read_range(stalled_at - 1, stalled_at)),
        "spark": lambda: [b for part in ends for b in spark.reader.read(part)],
    }[kind]
    with pytest.raises(SnapshotExpired, match="collected"):
        read()
