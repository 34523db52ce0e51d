"""P-3: a named consumer's place is on the store, and what it has not read is kept for it."""

import asyncio
import sqlite3
from functools import partial
from itertools import islice
from uuid import UUID

import pyarrow as pa
import pytest

import weir
from tests.support.moments import SteppedClock, again, at_time, make, put, rows
from tests.support.tables import count_requests
from tests.support.threads import until
from weir import aio
from weir.env import Env
from weir.errors import InvalidInput, SnapshotExpired, StoreError
from weir.format import paths
from weir.records.consumers import Consumer
from weir.store.open import open_store
from weir.upkeep import consumers
from weir.upkeep.gc.collect import collect


def write(table, ids, text="a"):
    with table.writer() as writer:
        put(writer, ids, text)


def collect_log(table):
    """Collect everything that nothing holds."""
    collect(again(table).core, 0, "2m", keep_first_entries=False)


def is_collected(table):
    return any(shard.log.floors().wal for shard in again(table).shards())


def ids_of(changes):
    return [key for change in changes for key in change.batch.column("id").to_pylist()]


def replayed(changes, copy=None):
    """What a consumer holds that applies the changes in order."""
    copy = {} if copy is None else copy
    for change in changes:
        for row in change.batch.to_pylist():
            if change.kind == "put":
                copy[row["id"]] = row["v"]
            else:
                copy.pop(row["id"], None)
    return copy


# -- a place on the store --------------------------------------------------------------------------


def test_p3_a_consumer_goes_on_where_it_was(store_kind, table_uri):
    table = make(table_uri, storage_options=store_kind.storage_options)
    write(table, range(4))
    assert sorted(ids_of(table.changes(consumer="mirror"))) == [0, 1, 2, 3]
    assert ids_of(table.changes(consumer="mirror")) == []
    write(table, range(4, 8))
    assert sorted(ids_of(again(table).changes(consumer="mirror"))) == [4, 5, 6, 7]
    write(table, [9])
    assert ids_of(again(table).changes(consumer="mirror")) == [9]
    assert sorted(ids_of(table.changes(consumer="other"))) == [0, 1, 2, 3, 4, 5, 6, 7, 9]
    assert [one.name for one in table.stats().consumers] == ["mirror", "other"]
    assert sorted(ids_of(table.follow("copy", once=True))) == [0, 1, 2, 3, 4, 5, 6, 7, 9]


def test_p3_a_consumer_that_died_gets_the_change_in_hand_again(tmp_path):
    table = make(tmp_path / "t", 1)
    for key in range(5):
        write(table, [key])
    feed = table.changes(consumer="mirror")
    assert ids_of(islice(feed, 3)) == [0, 1, 2]
    del feed  # it dies; nothing was saved yet
    assert ids_of(table.changes(consumer="mirror")) == [0, 1, 2, 3, 4]


def test_p3_a_commit_includes_the_change_in_hand(tmp_path):
    table = make(tmp_path / "t", 1)
    for key in range(5):
        write(table, [key])
    feed = table.changes(consumer="mirror")
    (last,) = islice(feed, 2, 3)
    assert feed.commit() == last.bookmark
    assert ids_of(table.changes(consumer="mirror")) == [3, 4]


def test_p3_an_entry_that_was_read_in_part_is_not_repeated_after_a_commit(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "a"}, {"id": 2, "_tombstone": True}, {"id": 3, "v": "a"}])
    feed = table.changes(consumer="mirror")
    assert next(feed).kind == "put"
    feed.commit()
    again_ = table.changes(consumer="mirror")
    assert [change.kind for change in again_] == ["delete", "put"]


def test_a_feed_without_a_consumer_has_no_place_to_save(tmp_path):
    table = make(tmp_path / "t")
    with pytest.raises(InvalidInput, match="no consumer"):
        table.changes().commit()


def test_a_following_feed_saves_its_place_now_and_then(tmp_path):
    clock = SteppedClock()
    table = make(tmp_path / "t", 1, env=Env(clock=clock))
    with table.writer() as writer:
        for key in range(20):
            put(writer, [key], "a")
    store = count_requests(table)
    feed = table.changes(consumer="mirror", follow=True)
    store.reset()
    list(islice(feed, 10))
    assert store.calls["put_if_absent"] == 0
    clock.time += consumers.SAVE_SECONDS
    list(islice(feed, 1))  # done with ten
    assert store.calls["put_if_absent"] == 1
    list(islice(feed, 9))
    assert ids_of(table.changes(consumer="mirror")) == list(range(10, 20))


def test_a_consumer_without_changes_renews_its_lifetime(tmp_path):
    clock = SteppedClock()
    table = make(tmp_path / "t", 1, env=Env(clock=clock))
    feed = table.changes(consumer="mirror", consumer_ttl="1d")
    chain = Consumer(table.core.store, "mirror", 0.0)
    before = chain.standing()
    assert list(feed.poll()) == []
    assert chain.standing() == before
    clock.time += 86400 / consumers.RENEWALS
    assert list(feed.poll()) == []
    assert chain.standing().seq > before.seq


@pytest.mark.parametrize("way", ["poll", "stop"])
def test_p3_a_feed_that_ends_has_saved_its_place(tmp_path, way):
    table = make(tmp_path / "t")
    write(table, range(6))
    seen = []
    feed = table.changes(
        consumer="mirror", follow=way == "stop", stop=lambda: len(seen) == 6, poll=0
    )
    for change in feed.poll() if way == "poll" else feed:
        seen += change.batch.column("id").to_pylist()
    assert sorted(seen) == list(range(6))
    assert ids_of(table.changes(consumer="mirror")) == []


def test_k8_a_store_that_fails_while_a_place_is_saved_loses_no_change(tmp_path, monkeypatch):
    clock = SteppedClock()
    table = make(tmp_path / "t", 1, env=Env(clock=clock))
    with table.writer() as writer:
        for key in range(4):
            put(writer, [key], "a")
    seen = []
    feed = table.changes(consumer="mirror", follow=True, stop=lambda: len(seen) == 4)
    save, fails = Consumer.save, [True]

    def failing(*args, **options):
        if fails and fails.pop():
            raise StoreError("out of reach")
        return save(*args, **options)

    monkeypatch.setattr(Consumer, "save", failing)
    for change in feed:
        seen += change.batch.column("id").to_pylist()
        clock.time += consumers.SAVE_SECONDS
    assert seen == [0, 1, 2, 3]
    assert feed.failed_polls == 1
    assert ids_of(table.changes(consumer="mirror")) == []


# -- collection waits ------------------------------------------------------------------------------


def test_p3_collection_waits_for_a_consumer_and_for_nobody_else(tmp_path):
    table = make(tmp_path / "t")
    write(table, range(10))
    first = table.changes(consumer="mirror")
    bookmark = next(first).bookmark
    first.commit()
    read = set(ids_of(table.changes())) - set(ids_of(table.changes(since=bookmark)))
    for round_ in range(3):
        write(table, range(10 * round_, 10 * round_ + 10), "b")
        table.compact()
        collect_log(table)
    assert is_collected(table)
    feed = table.changes(since=bookmark)
    with pytest.raises(SnapshotExpired, match=r"table\.follow"):
        list(feed)
    got = replayed(again(table).changes(consumer="mirror"), dict.fromkeys(read, "a"))
    assert got == rows(table) == dict.fromkeys(range(30), "b")


def test_p3_a_following_consumer_reads_below_the_floor(tmp_path):
    """Its tailers are open already when collection passes what it has not read."""
    table = make(tmp_path / "t", 1)
    for key in range(40):
        write(table, [key])
    feed = table.changes(consumer="mirror")
    assert ids_of(islice(feed, 1)) == [0]
    table.compact()
    write(table, [40])
    collect_log(table)
    assert is_collected(table)
    assert ids_of(feed) == list(range(1, 41))


def test_p3_all_of_a_shard_that_came_later_is_kept_for_a_consumer(tmp_path):
    table = make(tmp_path / "t")
    write(table, range(10))
    list(table.changes(consumer="mirror"))
    table.reshard(weir.Bucket("id", 3), compact=False)
    for text in "bc":
        write(table, range(10), text)
        table.compact()
        collect_log(table)
    heirs = [shard for shard in again(table).shards() if shard.is_routed]
    assert all(shard.log.floors().wal for shard in heirs)
    changes = list(table.changes(consumer="mirror"))
    texts = [text for change in changes for text in change.batch.column("v").to_pylist()]
    assert sorted(texts) == ["b"] * 10 + ["c"] * 10


def test_p3_a_dropped_consumer_holds_nothing_and_its_feed_is_told(tmp_path):
    table = make(tmp_path / "t", 1)
    write(table, range(3))
    feed = table.changes(consumer="mirror")
    next(feed)
    again(table).drop_consumer("mirror")
    assert table.stats().consumers == ()
    with pytest.raises(SnapshotExpired, match="was dropped"):
        feed.commit()
    write(table, [4])
    table.compact()
    collect_log(table)
    with pytest.raises(SnapshotExpired):
        list(table.changes(since=weir.Bookmark({table.shards()[0].id: 0})))
    for name in ("mirror", "never"):
        with pytest.raises(InvalidInput, match="it has: none"):
            table.drop_consumer(name)
    write(table, [5])
    assert ids_of(table.changes(consumer="mirror"))[-1] == 5  # the name is free


def test_p3_a_dropped_consumer_is_handed_nothing_from_a_collected_place(tmp_path):
    table = make(tmp_path / "t", 1)
    for key in range(40):
        write(table, [key])
    feed = table.changes(consumer="mirror")
    next(feed)
    table.drop_consumer("mirror")
    table.compact()
    write(table, [40])
    collect_log(table)
    with pytest.raises(SnapshotExpired):
        ids_of(feed)


@pytest.mark.parametrize("call", ["changes", "follow"])
def test_p3_a_consumer_that_expired_does_not_go_on_as_if_nothing_was_missing(tmp_path, call):
    now = [1_000_000.0]
    table = at_time(make(tmp_path / "t", 1), now)
    write(table, range(3))
    feed = table.changes(consumer="mirror", consumer_ttl="1h")
    bookmark = next(feed).bookmark
    feed.commit()
    now[0] += 3601
    collect(table.core, 0, "2m", keep_first_entries=False)
    with pytest.raises(SnapshotExpired, match=r"drop_consumer\('mirror'\)"):
        getattr(table, call)(consumer="mirror")
    write(table, [7])
    with pytest.raises(SnapshotExpired, match="did not move"):
        list(feed)
    # Its own bookmark is exact, and the entries after it are still there.
    assert ids_of(table.changes(since=bookmark, consumer="mirror")) == [7]
    assert [one.name for one in table.stats().consumers] == ["mirror"]


def test_p3_a_consumer_that_was_told_a_collected_place_is_refused_and_leaves_nothing(tmp_path):
    table = make(tmp_path / "t", 1)
    write(table, [1])
    write(table, [2])
    table.compact()
    collect_log(table)
    assert is_collected(table)
    with pytest.raises(SnapshotExpired, match=r"Begin with the rows of now: table\.follow"):
        table.changes(since=weir.Bookmark({table.shards()[0].id: 0}), consumer="mirror")
    assert table.stats().consumers == ()


def test_stats_tell_how_far_a_consumer_is_behind(tmp_path):
    table = make(tmp_path / "t")
    write(table, range(8))
    list(table.changes(consumer="quick"))
    table.changes(consumer="slow")
    (quick, slow) = table.stats().consumers
    assert (quick.name, quick.lag, quick.has_rows) == ("quick", 0, True)
    assert slow.lag == sum(shard.wal_tip for shard in table.stats().shards)
    write(table, range(8))
    later = [one.lag for one in table.stats().consumers]
    assert later == [quick.lag + 4, slow.lag + 4]  # a fence and an entry in each shard
    assert quick.expires > table.core.env.clock.wall() + 6 * 86400


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 129, "é"])
def test_names_that_cannot_be_are_refused_at_once(tmp_path, name):
    table = make(tmp_path / "t")
    for call in (table.changes, table.follow, aio.Table(table).changes):
        with pytest.raises(InvalidInput, match="consumer name"):
            call(consumer=name)


def test_bad_arguments_are_refused_at_once(tmp_path):
    table = make(tmp_path / "t")
    for call, options in (
        (table.changes, {"since": "yesterday"}),
        (table.changes, {"since": 7}),
        (table.changes, {"consumer": "a", "consumer_ttl": 0}),
        (table.changes, {"since": weir.Bookmark({}, snapshot=UUID(int=1))}),
        (table.follow, {"since": "now"}),
    ):
        with pytest.raises(InvalidInput):
            call(**options)
    assert table.stats().consumers == ()


# -- since now -------------------------------------------------------------------------------------


@pytest.mark.parametrize("consumer", [None, "mirror"])
def test_now_is_when_the_feed_was_made(tmp_path, consumer):
    table = make(tmp_path / "t")
    write(table, range(10))
    feed = table.changes(since="now", consumer=consumer)
    write(table, [3], "b")
    table.reshard(weir.Bucket("id", 3), compact=False)
    write(table, [3], "c")
    assert [change.batch.column("v")[0].as_py() for change in feed] == ["b", "c"]
    assert ids_of(table.changes(since="now")) == []


def test_where_a_new_consumer_begins_does_not_move_one_that_exists(tmp_path):
    table = make(tmp_path / "t", 1)
    write(table, [1])
    table.changes(consumer="mirror")
    write(table, [2])
    assert ids_of(table.changes(since="now", consumer="mirror")) == [1, 2]


# -- the rows of now, then the changes -------------------------------------------------------------


@pytest.mark.parametrize("consumer", [None, "mirror"])
@pytest.mark.parametrize("shards", [1, 3])
def test_p3_follow_hands_out_the_rows_of_now_and_every_change_after(tmp_path, consumer, shards):
    table = make(tmp_path / "t", shards)
    write(table, range(20))
    write(table, range(5), "b")
    with table.writer() as writer:
        writer.delete([7])
    table.compact()
    collect_log(table)
    write(table, [19], "in the log")
    feed = table.follow(consumer, once=True)
    write(table, range(3), "later")  # after that moment
    with table.writer() as writer:
        writer.delete([8])
    first = next(feed)
    table.reshard(weir.Bucket("id", 4), compact=False)
    write(table, range(2), "last")
    changes = [first, *feed]
    snapshot = [change for change in changes if change.of_snapshot]
    assert changes[: len(snapshot)] == snapshot
    assert {(change.kind, change.epoch) for change in snapshot} == {("put", 0)}
    assert sorted(ids_of(snapshot)) == [key for key in range(20) if key != 7]
    assert replayed(snapshot)[0] == "b"
    assert replayed(snapshot)[19] == "in the log"
    assert sorted(ids_of(changes[len(snapshot) :])) == [0, 0, 1, 1, 2, 8]
    assert replayed(changes) == rows(table)
    assert [taken.name for taken in table.checkpoints()] == ["before-reshard"]
    if consumer is not None:
        write(table, [30])
        assert ids_of(table.follow(consumer, once=True)) == [30]


def test_follow_of_an_empty_table_is_done_with_its_rows(tmp_path):
    table = make(tmp_path / "t")
    assert list(table.follow("mirror", once=True)) == []
    assert table.checkpoints() == []
    write(table, [1])
    (change,) = table.follow("mirror", once=True)
    assert not change.of_snapshot
    (stats,) = table.stats().consumers
    assert stats.has_rows


def test_p3_a_crash_among_the_rows_repeats_them_and_then_all_changes_since(tmp_path):
    table = make(tmp_path / "t", 3)
    write(table, range(20))
    copy = {}
    feed = table.follow("mirror", once=True)
    replayed(islice(feed, 1), copy)  # it dies among the rows
    assert 0 < len(copy) < 20
    (stats,) = table.stats().consumers
    assert not stats.has_rows
    with table.writer() as writer:
        writer.delete(list(range(10)))
    write(table, range(15, 30), "b")
    table.compact()
    collect_log(table)
    with pytest.raises(InvalidInput, match=r"table\.follow"):
        table.changes(consumer="mirror")
    changes = list(again(table).follow("mirror", once=True))
    assert sorted(ids_of(change for change in changes if change.of_snapshot)) == list(range(20))
    assert replayed(changes, copy) == rows(table)
    assert table.checkpoints() == []


def test_p3_a_bookmark_among_the_rows_says_so_and_resumes(tmp_path):
    table = make(tmp_path / "t", 3)
    write(table, range(20))
    feed = table.follow(once=True)
    first, *rest = feed
    assert first.bookmark.snapshot is not None
    again_ = weir.Bookmark.from_json(first.bookmark.to_json())
    assert again_ == first.bookmark
    last = [change for change in rest if change.of_snapshot][-1]
    assert last.bookmark.snapshot is None
    assert list(table.follow(since=last.bookmark, once=True)) == []
    with pytest.raises(SnapshotExpired, match="empty the copy"):
        table.follow(since=again_, once=True)  # the feed has ended, and released them
    other = table.follow(once=True)
    bookmark = next(other).bookmark
    write(table, [1], "b")
    changes = list(table.follow(since=bookmark.to_json(), once=True))
    assert replayed(changes) == rows(table)


def test_p3_the_rows_of_a_consumer_that_are_gone_are_not_replaced_by_others(tmp_path):
    table = make(tmp_path / "t", 3)
    write(table, range(20))
    next(table.follow("mirror"))
    (pinned,) = table.checkpoints()
    assert pinned.name == "feed of mirror"
    table.delete_checkpoint(pinned)
    with pytest.raises(SnapshotExpired, match=r"drop_consumer\('mirror'\)"):
        table.follow("mirror")
    table.drop_consumer("mirror")
    assert sorted(ids_of(table.follow("mirror", once=True))) == list(range(20))


def test_a_consumer_that_is_dropped_among_its_rows_leaves_no_checkpoint(tmp_path):
    table = make(tmp_path / "t", 3)
    write(table, range(20))
    next(table.follow("mirror"))
    table.drop_consumer("mirror")
    assert table.checkpoints() == []


@pytest.fixture
def overtaken(tmp_path, monkeypatch):
    """A table whose log is collected after the snapshot of a consumer, before it is held."""
    table = make(tmp_path / "t", 1)
    write(table, [1])
    register = Consumer.register

    def slow(self, *args):
        monkeypatch.undo()
        for key in (2, 3):
            write(table, [key])
        table.compact()
        collect_log(table)
        return register(self, *args)

    monkeypatch.setattr(Consumer, "register", slow)
    return table


def test_p3_a_snapshot_that_collection_overtook_is_taken_again(overtaken):
    feed = overtaken.follow("mirror", once=True)
    write(overtaken, [4])
    assert replayed(feed) == rows(overtaken) == dict.fromkeys(range(1, 5), "a")
    assert overtaken.checkpoints() == []


def test_p3_a_consumer_that_died_before_it_held_the_log_takes_its_snapshot_again(
    overtaken, monkeypatch
):
    def fail(*_):
        raise StoreError("out of reach")

    with monkeypatch.context() as patch:
        patch.setattr(consumers, "passed_by", fail)
        with pytest.raises(StoreError):
            overtaken.follow("mirror")
    assert replayed(overtaken.follow("mirror", once=True)) == dict.fromkeys(range(1, 4), "a")


# -- once, with a transaction ----------------------------------------------------------------------


@pytest.mark.parametrize("consumer", [None, "copy"])
def test_p3_rows_and_bookmark_in_one_transaction_repeat_nothing(tmp_path, consumer):
    """An append-only copy that dies after every single change holds every row once."""
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    table = weir.create(str(tmp_path / "t"), schema, sharding=weir.Bucket("id", 2))
    write(table, range(10))
    copy = sqlite3.connect(":memory:", isolation_level=None)
    copy.execute("create table t (id integer, v text)")
    copy.execute("create table place (bookmark text)")
    for round_ in range(40):
        if round_ < 5:
            write(table, range(10 * round_ + 10, 10 * round_ + 20))
        saved = copy.execute("select bookmark from place").fetchone()
        feed = table.follow(consumer, since=saved and saved[0], once=True)
        change = next(feed, None)
        if change is None:
            break
        if saved and weir.Bookmark.from_json(saved[0]).snapshot is not None:
            copy.execute("delete from t")  # it died among the first rows
        parts = [change]
        while change.bookmark.snapshot is not None:
            parts.append(change := next(feed))
        copy.execute("begin")
        copy.executemany(
            "insert into t values (:id, :v)", [row for p in parts for row in p.batch.to_pylist()]
        )
        copy.execute("delete from place")
        copy.execute("insert into place values (?)", [change.bookmark.to_json()])
        copy.execute("commit")
        del feed  # it dies
    held = [key for (key,) in copy.execute("select id from t")]
    copy.close()
    assert sorted(held) == list(range(60))


# -- tasks -----------------------------------------------------------------------------------------


def test_tasks_have_named_consumers_too(tmp_path):
    table = make(tmp_path / "t")
    write(table, range(10))

    async def run():
        lake = await aio.open(table.uri)
        feed = lake.changes(consumer="mirror")
        async for change in feed:
            done = await feed.commit()
            assert done == change.bookmark
            break
        left = [change async for change in lake.changes(consumer="mirror")]
        assert sorted(ids_of([change, *left])) == list(range(10))
        assert [change async for change in lake.changes(consumer="mirror")] == []
        now = lake.changes(since="now")
        await now.begin()
        await asyncio.to_thread(write, table, [11])
        assert ids_of([change async for change in now.poll()]) == [11]
        changes = [change async for change in lake.follow("copy", once=True)]
        assert replayed(changes) == rows(table)
        assert [change async for change in lake.follow("copy", once=True)] == []
        assert [one.name for one in (await lake.stats()).consumers] == ["copy", "mirror"]
        await lake.drop_consumer("copy")
        with pytest.raises(InvalidInput):
            await lake.drop_consumer("copy")
        with pytest.raises(InvalidInput):
            await lake.changes().commit()

    asyncio.run(run())


def test_p3_a_commit_that_was_cancelled_saves_no_change_that_came_later(tmp_path):
    """Its thread was still waiting, and saved what had been handed out when its turn came."""
    table = make(tmp_path / "t", 1)
    for key in range(4):
        write(table, [key])

    async def end(feed):
        return await feed._threaded(partial(feed.sync.settle, feed.sync.handed_out))

    async def run():
        feed = (await aio.open(table.uri)).changes(consumer="mirror")
        assert ids_of([await anext(feed)]) == [0]
        ahead = asyncio.create_task(anext(feed))
        await asyncio.sleep(0)
        ahead.cancel()  # its thread goes on, and has the next change
        until(lambda: feed._fetched)
        with feed._lock:  # the store is slow
            for waits in (feed.commit(), end(feed)):
                late = asyncio.create_task(waits)
                await asyncio.sleep(0)
                late.cancel()
            assert ids_of([await anext(feed)]) == [1]
        # Here the process dies, in the midst of the second change.

    asyncio.run(run())  # returns when its threads have ended
    assert ids_of(table.changes(consumer="mirror")) == [1, 2, 3]


def test_the_record_of_a_consumer_is_small_and_pruned(tmp_path):
    clock = SteppedClock()
    table = make(tmp_path / "t", 1, env=Env(clock=clock))
    with table.writer() as writer:
        for key in range(100):
            put(writer, [key], "a")
    feed = table.changes(consumer="mirror")
    for _ in feed:
        clock.time += consumers.SAVE_SECONDS
    folder = paths.consumer_chain("mirror")
    _, objects = open_store(table.uri, None).list_folder(folder)
    assert len(objects) < 80
