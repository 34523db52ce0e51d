"""P-3: a load, whose rows are in no log, stops every feed that began before it, and no other."""

import asyncio
from itertools import islice

import pytest

import weir
from tests.support.moments import SCHEMA, SteppedClock, again, make, put
from tests.support.tables import count_requests, load_rows
from weir import aio
from weir.env import Env
from weir.errors import SnapshotExpired
from weir.records.consumers import Consumer
from weir.upkeep import consumers
from weir.upkeep.loads import delete_matching

STOPPED = "without the log"


def write(table, *ids, text="a"):
    with table.writer() as writer:
        put(writer, ids, text)


def ids_of(changes):
    return sorted(key for change in changes for key in change.batch.column("id").to_pylist())


def bookmarked(table):
    """The feed of a consumer that keeps its own bookmark."""
    feed = table.changes()
    list(feed)
    place = feed.bookmark.to_json()
    return lambda: again(table).changes(since=place)


def named(table):
    list(table.changes(consumer="mirror"))
    return lambda: again(table).changes(consumer="mirror")


def followed(table):
    list(table.follow("copy", once=True))
    return lambda: again(table).follow("copy", once=True)


def unnamed(table):
    """A feed that is still open, and has handed out the rows with which it began."""
    feed = table.follow(once=True)
    list(feed.poll())
    return lambda: feed


def from_now(table):
    feed = table.changes(since="now")
    return lambda: feed


@pytest.mark.parametrize("replaces", [True, False])
@pytest.mark.parametrize("begun", [bookmarked, named, followed, unnamed, from_now])
def test_p3_a_load_stops_a_feed_that_began_before_it(tmp_path, begun, replaces):
    table = make(tmp_path / "t")
    write(table, 1, 2)
    feed = begun(table)
    load_rows(table, {3: "loaded"}, replaces=replaces)
    at = table.core.lake.open_base().load_number
    # With nothing in the log since, with something, and again when it is asked again.
    for ids in [(), (4,), ()]:
        if ids:
            write(table, *ids)
        changes = feed()
        with pytest.raises(SnapshotExpired, match=STOPPED) as stopped:
            next(changes)
        assert f"base version {at} " in str(stopped.value)
        assert "table.follow(" in str(stopped.value)
        assert 'since="now"' in str(stopped.value)
    # What tells of the load is in the table, not in the history of its base.
    table.compact()
    changes = feed()
    with pytest.raises(SnapshotExpired, match=STOPPED):
        next(changes)


def test_p3_a_delete_of_an_append_only_table_stops_its_feeds(tmp_path):
    table = weir.create(str(tmp_path / "t"), SCHEMA)
    write(table, 1, 2)
    feed = bookmarked(table)
    assert delete_matching(table.core, "id = 1", job_id="job") == 1
    changes = feed()
    with pytest.raises(SnapshotExpired, match=STOPPED):
        next(changes)


def test_p3_a_feed_that_waits_is_stopped_by_a_load(tmp_path):
    class Loading(SteppedClock):
        sleeps = 0

        def sleep(self, seconds):
            super().sleep(seconds)
            self.sleeps += 1
            if self.sleeps == 3:
                load_rows(again(table), {3: "loaded"}, replaces=True)
            assert self.sleeps < 10, "it passes over the load"

    table = make(tmp_path / "t", 1)
    write(table, 1)
    waiting = again(table, env=Env(clock=Loading())).changes(follow=True)
    assert ids_of(islice(waiting, 1)) == [1]
    with pytest.raises(SnapshotExpired, match=STOPPED):
        next(waiting)


@pytest.mark.parametrize("consumer", [None, "mirror"])
def test_p3_a_load_stops_no_feed_that_begins_after_it(tmp_path, consumer):
    table = make(tmp_path / "t")
    write(table, 1)
    load_rows(table, {2: "loaded"}, replaces=True)
    copy = consumer and f"copy-{consumer}"
    now = consumer and f"now-{consumer}"
    from_now = table.changes(since="now", consumer=now)
    write(table, 3)
    assert ids_of(table.changes(consumer=consumer))[-1:] == [3]
    assert ids_of(from_now) == [3]
    follows = table.follow(copy, once=True)
    write(table, 4)
    assert ids_of(follows) == [2, 3, 4]
    # And none of them stops later, with or without a fold in between.
    table.compact()
    write(table, 5)
    assert ids_of(again(table).changes(since=from_now.bookmark)) == [4, 5]
    assert ids_of(again(table).changes(since=follows.bookmark)) == [5]
    if consumer:
        assert ids_of(table.changes(consumer=consumer)) == [4, 5]
        assert ids_of(table.changes(consumer=now)) == [4, 5]
        assert ids_of(table.follow(copy, once=True)) == [5]


def test_p3_a_load_behind_the_rows_of_now_stops_the_feed_after_them(tmp_path):
    table = make(tmp_path / "t")
    write(table, 1, 2)
    feed = table.follow("copy", once=True)
    load_rows(table, {3: "loaded"}, replaces=True)
    got = []
    with pytest.raises(SnapshotExpired, match=STOPPED):
        got.extend(feed)
    assert ids_of(got) == [1, 2]


@pytest.mark.parametrize("consumer", [None, "mirror"])
def test_p3_a_load_while_a_feed_finds_out_what_now_is_stops_it(tmp_path, monkeypatch, consumer):
    table = make(tmp_path / "t")
    write(table, 1)
    tips = consumers.shown_tips

    def loaded_before(core):
        load_rows(again(table), {2: "loaded"}, replaces=True)
        return tips(core)

    monkeypatch.setattr(consumers, "shown_tips", loaded_before)
    feed = table.changes(since="now", consumer=consumer)
    with pytest.raises(SnapshotExpired, match=STOPPED):
        next(feed)


def test_p3_a_stopped_consumer_begins_again_with_the_rows_of_now(tmp_path):
    table = make(tmp_path / "t")
    write(table, 1, 2)
    list(table.follow("copy", once=True))
    load_rows(table, {3: "loaded"}, replaces=True)
    write(table, 4)
    feed = table.follow("copy", once=True)
    with pytest.raises(SnapshotExpired, match=r"table.drop_consumer\('copy'\)"):
        next(feed)
    table.drop_consumer("copy")
    assert ids_of(table.follow("copy", once=True)) == [3, 4]
    write(table, 5)
    assert ids_of(table.follow("copy", once=True)) == [5]


@pytest.mark.parametrize("consumer", [None, "mirror"])
def test_p3_a_stopped_consumer_can_be_moved_past_the_load_without_missing_a_change(
    tmp_path, consumer
):
    table = make(tmp_path / "t")
    write(table, 1)
    feed = table.changes(consumer=consumer)
    assert ids_of(feed) == [1]
    write(table, 2)
    load_rows(table, {3: "loaded"}, replaces=False)
    write(table, 4)
    stopped = table.changes(since=None if consumer else feed.bookmark, consumer=consumer)
    with pytest.raises(SnapshotExpired, match="past_loads"):
        next(stopped)
    assert stopped.bookmark.positions == feed.bookmark.positions
    moved = table.changes(since=stopped.bookmark.past_loads(), consumer=consumer)
    assert ids_of(moved) == [2, 4]
    write(table, 5)
    since = None if consumer else moved.bookmark
    assert ids_of(again(table).changes(since=since, consumer=consumer)) == [5]
    load_rows(table, {6: "loaded"}, replaces=False)
    late = table.changes(since=since, consumer=consumer)
    with pytest.raises(SnapshotExpired, match=STOPPED):
        next(late)


def test_p3_places_that_know_of_no_load_begin_with_those_of_the_table(tmp_path):
    """Bookmarks and records that an older release wrote."""
    table = make(tmp_path / "t", 1)
    load_rows(table, {1: "loaded"}, replaces=True)
    write(table, 2)
    place = {table.shards()[0].id: 0}
    Consumer(table.core.store, "old", 60.0).save(place, begins=True)
    for more in ({"consumer": "old"}, {"since": weir.Bookmark(place).to_json()}):
        feed = table.changes(**more)
        assert ids_of(feed) == [2]
        assert feed.bookmark.load == table.core.lake.open_base().load_number > 0
    assert Consumer(table.core.store, "old", 60.0).standing().load == feed.bookmark.load


def test_p3_a_restore_to_before_a_load_stops_a_feed_that_began_after_it(tmp_path):
    table = make(tmp_path / "t")
    write(table, 1)
    table.checkpoint(name="before")
    load_rows(table, {2: "loaded"}, replaces=True)
    feed = bookmarked(table)
    table.restore("before")
    changes = feed()
    with pytest.raises(SnapshotExpired, match="was undone, by a restore"):
        next(changes)


def test_a_bookmark_keeps_the_number_of_the_load(tmp_path):
    table = make(tmp_path / "t", 1)
    assert '"load":0' in _end(table).to_json()
    load_rows(table, {1: "loaded"}, replaces=True)
    place = _end(table)
    assert place.load == table.core.lake.open_base().load_number
    assert weir.Bookmark.from_json(place.to_json()) == place


def _end(table):
    feed = table.changes()
    list(feed)
    return feed.bookmark


def test_a_poll_looks_at_the_base_once(tmp_path, monkeypatch):
    """The look for its schema also tells of loads."""
    table = make(tmp_path / "t")
    write(table, *range(10))
    feed = table.changes(consumer="mirror")
    list(feed.poll())
    store = count_requests(table)
    looks = []
    latest = table.core.lake.datasets.latest
    monkeypatch.setattr(table.core.lake.datasets, "latest", lambda: looks.append(1) or latest())
    assert list(feed.poll()) == []
    assert len(looks) == 1
    quiet = store.requests
    store.reset()
    load_rows(again(table), {1: "loaded"}, replaces=True)
    poll = feed.poll()
    with pytest.raises(SnapshotExpired, match=STOPPED):
        next(poll)
    assert len(looks) == 2
    assert store.requests <= quiet


def test_a_load_stops_the_feed_of_a_task(tmp_path):
    table = make(tmp_path / "t")
    write(table, 1)

    async def run():
        lake = await aio.open(table.uri)
        feed = lake.changes(consumer="mirror")
        assert ids_of([change async for change in feed]) == [1]
        await asyncio.to_thread(load_rows, table, {2: "loaded"}, replaces=True)
        late = lake.changes(consumer="mirror")
        with pytest.raises(SnapshotExpired, match=STOPPED):
            await anext(late)
        moved = lake.changes(since=late.bookmark.past_loads(), consumer="mirror")
        assert [change async for change in moved] == []
        assert ids_of([change async for change in lake.follow(once=True)]) == [2]

    asyncio.run(run())


def test_a_feed_that_has_not_begun_stands_at_the_bookmark_it_was_given(tmp_path):
    """`weir tail --bookmark` saved an empty place when its first look at the table failed."""
    table = make(tmp_path / "t")
    write(table, 1)
    place = _end(table)
    assert table.changes(since=place).bookmark == place
    assert table.changes(since=place.to_json()).bookmark == place
