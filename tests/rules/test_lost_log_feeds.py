"""S-7 for change feeds: a log lost without losing rows is like one that was collected."""

import shutil

import pytest

import weir
from tests.support.moments import again, make, put, wipe
from weir.errors import SnapshotExpired, WalStoreMismatch

A, B, C = range(10), range(10, 20), range(20, 30)


def ids(feed):
    return sorted(i for change in feed for i in change.batch.column("id").to_pylist())


def flushed(tmp_path):
    """A table whose rows are flushed, and bookmarks before and after its last rows."""
    table = make(tmp_path / "t", 2, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
        before = table.changes()
        assert ids(before) == list(A)
        put(writer, B, "b")
    after = table.changes(before.bookmark)
    assert ids(after) == list(B)
    return table, before.bookmark, after.bookmark


@pytest.mark.parametrize("lose", [wipe, shutil.rmtree])
def test_s7_a_feed_that_has_read_everything_goes_on_without_the_lost_log(tmp_path, lose):
    table, _, bookmark = flushed(tmp_path)
    lose(tmp_path / "w")
    feed = again(table).changes(bookmark)
    assert ids(feed) == []
    with again(table).writer() as writer:
        put(writer, C, "c")
        assert ids(again(table).changes(feed.bookmark)) == list(C)
        assert ids(again(table).changes(bookmark)) == list(C)


def test_s7_a_feed_that_has_not_is_told_before_a_writer_opens_and_after(tmp_path):
    table, bookmark, _ = flushed(tmp_path)
    shutil.rmtree(tmp_path / "w")
    with pytest.raises(SnapshotExpired, match=r"table\.follow"):
        ids(again(table).changes(bookmark))
    with again(table).writer() as writer:
        put(writer, C, "c")
        with pytest.raises(SnapshotExpired, match=r"table\.follow"):
            ids(again(table).changes(bookmark))


def test_s7_a_feed_without_a_bookmark_begins_after_what_was_lost(tmp_path):
    table, _, _ = flushed(tmp_path)
    shutil.rmtree(tmp_path / "w")
    feed = again(table).changes()
    assert ids(feed) == []
    with again(table).writer() as writer:
        put(writer, C, "c")
        assert ids(again(table).changes()) == list(C)
        assert ids(again(table).changes(feed.bookmark)) == list(C)


def test_s7_a_store_that_the_log_left_may_come_back_and_is_not_passed_over(tmp_path):
    table, bookmark, _ = flushed(tmp_path)
    with again(table, wal_uri=str(tmp_path / "w2")).writer() as writer:
        put(writer, C, "c")
    shutil.move(tmp_path / "w", tmp_path / "there")
    for since in (None, bookmark):
        with pytest.raises(WalStoreMismatch):
            ids(again(table).changes(since))
    shutil.move(tmp_path / "there", tmp_path / "w")
    assert ids(again(table).changes(bookmark)) == [*B, *C]


def test_s7_a_following_feed_never_skips_what_it_waited_for(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    feed = again(table).changes(follow=True, poll=0.0, stop=lambda: feed.failed_polls > 2)
    assert next(feed).batch.num_rows == len(A)
    put(writer, B, "b")
    shutil.move(tmp_path / "w", tmp_path / "there")
    assert list(feed) == [], "it waits: rows may be missing"
    shutil.move(tmp_path / "there", tmp_path / "w")
    feed = again(table).changes(weir.Bookmark({table.shards()[0].id: 2}), follow=True, poll=0.0)
    writer.close()
    shutil.rmtree(tmp_path / "w")
    with pytest.raises(SnapshotExpired):
        next(feed)


def test_s7_a_tailer_ends_where_a_lost_log_ended(tmp_path):
    table, _, _ = flushed(tmp_path)
    shard = table.shards()[0]
    tip = shard.tailer().tip()
    assert tip == shard.manifest().replay_after
    shutil.rmtree(tmp_path / "w")
    assert again(table).shards()[0].tailer().tip() == tip
