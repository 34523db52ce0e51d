"""P-3 for `Table.changes`: each change once, in the order of routings, however the feed is left."""

import asyncio
import contextlib
import gc
import pickle
import threading

import pyarrow as pa
import pytest

import weir
from simulator.steps import Died, dies_at
from tests.support.moments import SCHEMA, again, make, put, rows
from weir import aio
from weir.env import Env
from weir.testing.faulty import FaultyStores

SHARDINGS = {
    "buckets": weir.Bucket("id", 3),
    "identity": weir.Identity("id"),
    "one": weir.Unsharded(),
}


def apply(mirror, change):
    for row in change.batch.to_pylist():
        if change.kind == "put":
            mirror[row["id"]] = row["v"]
        else:
            mirror.pop(row["id"], None)


def mirrored(feed, mirror=None):
    mirror = {} if mirror is None else mirror
    for change in feed:
        apply(mirror, change)
    return mirror


def change_some(table, text, keys=range(12)):
    with again(table).writer() as writer:
        put(writer, keys, text)
        writer.delete([keys[0]])


@pytest.mark.parametrize("first", SHARDINGS)
@pytest.mark.parametrize("compact", [True, False])
def test_p3_a_mirror_fed_across_two_reshards_equals_the_table(tmp_path, first, compact):
    options = {"primary_key": "id", "sharding": SHARDINGS[first]}
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    table = weir.create(str(tmp_path / "t"), schema, **options)
    change_some(table, "a")
    feed = table.changes()
    middle = mirrored(feed)
    change_some(table, "b", range(1, 12))
    table.reshard(weir.Bucket("id", 2), compact=compact)
    change_some(table, "c", range(2, 12))
    table.reshard(weir.Bucket("id", 5), compact=compact)
    change_some(table, "d", range(3, 12))
    with again(table).writer() as writer:
        put(writer, [0], "back")
        writer.delete([11])
    assert mirrored(table.changes()) == rows(table)
    assert mirrored(again(table).changes()) == rows(table)
    assert mirrored(again(table).changes(feed.bookmark.to_json()), middle) == rows(table)


def test_p3_a_following_feed_beside_reshards_keeps_the_order_of_each_key(tmp_path):
    """A reshard begins, writes and ends at every place where the feed asks whether to stop."""
    table = make(tmp_path / "t", 2)
    change_some(table, "a")
    asked = 0

    def stop():
        nonlocal asked
        asked += 1
        if asked in (1, 3, 9):
            change_some(table, f"before {asked}")
            again(table).reshard(weir.Bucket("id", 2 + asked), compact=False)
            change_some(table, f"after {asked}", range(2, 12))
        return asked > 60

    feed = again(table).changes(follow=True, poll=0, stop=stop)
    assert mirrored(feed) == rows(table)


def test_p3_a_feed_does_not_read_an_heir_before_the_shards_before_it_are_sealed(tmp_path):
    """The heirs are made, and listed, while rows still come to the old shards."""
    table = make(tmp_path / "t", 1)
    with again(table).writer() as writer:
        put(writer, [1], "a")

    with pytest.raises(Died):
        again(table, env=Env(failpoint=dies_at("reshard.made"))).reshard(
            weir.Bucket("id", 3), compact=False
        )
    asked = 0

    def stop():
        nonlocal asked
        asked += 1
        if asked == 1:  # the old shard was read to its end
            with table.writer() as writer:
                put(writer, [1, 2], "b")
            again(table).reshard(weir.Bucket("id", 3), compact=False)
            with again(table).writer() as writer:
                put(writer, [1, 2], "c")
        return asked > 30

    assert mirrored(again(table).changes(follow=True, poll=0, stop=stop)) == rows(table)


def test_p3_changes_have_the_columns_that_came_after_their_round_had_begun(tmp_path):
    """A round may take hours. The values of columns that were added since were left out."""
    table = make(tmp_path / "t", 2)
    with table.writer() as writer:
        put(writer, range(12), "a")
    asked = 0

    def stop():
        nonlocal asked
        asked += 1
        if asked == 1:  # the first shard was read
            again(table).add_columns(pa.field("x", pa.int64()))
            with again(table).writer() as writer:
                writer.put([{"id": key, "v": "b", "x": key} for key in range(12)])
        return False

    feed = again(table).changes(stop=stop)
    changes = [*feed, *again(table).changes(feed.bookmark)]
    found = {row["id"]: row for change in changes for row in change.batch.to_pylist()}
    assert list(found.values()) == again(table).get(list(found)).to_pylist()


@pytest.mark.parametrize("follow", [False, True])
def test_a_feed_leaves_a_shard_that_grows_as_fast_as_it_is_read(tmp_path, monkeypatch, follow):
    """It read the first shard for ever: it never came to the others, nor asked whether to stop."""
    monkeypatch.setattr("weir.read.changes.LONG_VISIT", 4)
    table = make(tmp_path / "t", 2)
    seen = []
    with again(table).writer() as writer:
        put(writer, range(12), "a")
        feed = table.changes(follow=follow, poll=0, stop=lambda: len(seen) > 20)
        for change in feed:
            seen.append(change.shard)
            assert len(seen) < 200
            put(writer, change.batch["id"].to_pylist(), "b")  # a consumer that writes back
    assert len(set(seen)) == 2
    mirror = mirrored(table.changes())
    assert mirrored(table.changes(feed.bookmark), dict.fromkeys(mirror, "b")) == mirror


def entries_with_several_changes(table):
    """Entries that hold puts and deletes in turn, made durable at once."""
    config = weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h")
    with table.writer(config) as writer:
        for first in range(0, 40, 4):
            put(writer, range(first, first + 4), "a")
            writer.delete([first])
            put(writer, [first], "b")
            if first % 8:
                writer.flush_wal()


def told(change):
    return (change.shard, change.position, change.kind, tuple(change.batch["id"].to_pylist()))


def test_p3_the_bookmark_of_every_change_resumes_right_after_it(tmp_path):
    table = make(tmp_path / "t", 2)
    entries_with_several_changes(table)
    every = list(table.changes())
    assert len(every) > len({(c.shard, c.position) for c in every})  # several in one entry
    for number, change in enumerate(every):
        resumed = again(table).changes(change.bookmark.to_json())
        assert [told(c) for c in resumed] == [told(c) for c in every[number + 1 :]]


def leave_by_break(feed):
    for change in feed:
        return [change]
    return []


def leave_by_error(feed):
    found = []
    try:
        for change in feed:
            found.append(change)
            raise ZeroDivisionError
    except ZeroDivisionError:
        return found
    return found


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_error])
@pytest.mark.parametrize("take_up", [iter, weir.Changes.poll])
def test_p3_a_feed_that_is_left_and_taken_up_again_neither_skips_nor_repeats(
    tmp_path, leave, take_up
):
    table = make(tmp_path / "t", 2)
    entries_with_several_changes(table)
    every = [told(change) for change in table.changes()]
    feed = table.changes()
    found = []
    while part := leave(take_up(feed)):
        found += map(told, part)
        resumed = again(table).changes(part[0].bookmark)
        assert [told(c) for c in resumed] == every[len(found) :]
    assert found == every


def test_f16_a_change_that_an_interrupt_kept_from_the_consumer_is_read_again(tmp_path):
    table = make(tmp_path / "t", 2)
    entries_with_several_changes(table)
    every = [told(change) for change in table.changes()]
    feed = table.changes()
    found = []
    for _ in every:
        feed.fetch()  # and Ctrl-C, before anybody has it
        found.append(told(next(feed)))
    assert found == every
    assert list(feed) == []


@pytest.mark.parametrize("error", [weir.StoreError, KeyboardInterrupt])
def test_k8_a_feed_that_failed_between_two_shards_continues_there(tmp_path, error):
    table = make(tmp_path / "t", 4)
    entries_with_several_changes(table)
    every = [told(change) for change in table.changes()]
    asked = 0

    def stop():
        nonlocal asked
        asked += 1
        if asked in (1, 3, 6, 10):  # after the first shard, the second, and so on
            raise error("in between")
        return False

    feed = table.changes(stop=stop)
    found = []
    for _ in range(5):
        try:
            found += map(told, feed)
        except error:
            continue
    assert found == every


def test_g7_poll_also_sees_what_came_while_a_round_was_left(tmp_path):
    table = make(tmp_path / "t", 4)
    with table.writer() as writer:
        put(writer, range(40), "a")
    feed = table.changes(follow=True)
    first = next(feed.poll())
    with table.writer() as writer:
        put(writer, range(40), "b")
    assert mirrored(feed.poll(), mirrored([first])) == dict.fromkeys(range(40), "b")


def test_p3_an_asyncio_feed_read_in_slices_hands_out_every_change_once(tmp_path):
    """Break, a timeout, a cancelled task: a thread goes on, and its change must not be dropped."""
    table = make(tmp_path / "t", 2)
    entries_with_several_changes(table)
    every = [told(change) for change in table.changes()]

    async def run():
        feed = (await aio.open(table.uri)).changes(follow=True, poll=0.001)
        found = []

        async def read():
            async for change in feed:
                found.append(told(change))  # noqa: PERF401  one by one: the task is cancelled

        turn = 0
        while len(found) < len(every):
            turn += 1
            task = asyncio.create_task(read())
            for _ in range(turn % 7):
                await asyncio.sleep(0)
            if turn % 3:
                await asyncio.sleep(0.002)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    async for change in feed:
                        found.append(told(change))
                        break
        return found

    assert asyncio.run(asyncio.wait_for(run(), 60)) == every


def test_p3_a_change_that_a_cancelled_task_waited_for_is_the_next_one(tmp_path, monkeypatch):
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, [1], "a")
    reads, go_on = threading.Event(), threading.Event()
    fetch = weir.Changes.fetch

    def slow(self):
        reads.set()
        assert go_on.wait(30)
        return fetch(self)

    async def run():
        feed = (await aio.open(table.uri)).changes(follow=True, poll=0.001)
        monkeypatch.setattr(weir.Changes, "fetch", slow)
        waiting = asyncio.create_task(anext(feed))
        await asyncio.to_thread(reads.wait, 30)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert feed.bookmark.positions == {}
        go_on.set()
        first = await anext(feed)
        assert first.batch["id"].to_pylist() == [1]
        again = asyncio.create_task(anext(feed))
        await asyncio.sleep(0.01)
        again.cancel()
        return feed.bookmark, first.bookmark

    left, after = asyncio.run(asyncio.wait_for(run(), 60))
    assert left == after


def test_p3_an_error_that_a_cancelled_task_waited_for_is_met_again_and_not_logged(tmp_path):
    faulty = FaultyStores()
    table = make(tmp_path / "t", 1, env=faulty.env)
    with table.writer() as writer:
        put(writer, [1], "a")
    gate = faulty.at(table.uri).on("head", "_weir/table/*").pause()
    faulty.at(table.uri).on("list_folder", "_mem_wal").deny(times=None)
    logged = []

    async def run():
        asyncio.get_running_loop().set_exception_handler(lambda _, told: logged.append(told))
        feed = (await aio.open(table.uri, env=faulty.env)).changes(follow=True)
        waiting = asyncio.create_task(anext(feed))
        await asyncio.to_thread(gate.wait_reached)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        gate.release()
        return feed

    async def take_up(feed):
        with pytest.raises(weir.errors.StoreDenied):
            await anext(feed)
        faulty.at(table.uri).heal()
        return (await anext(feed)).batch["id"].to_pylist()

    assert asyncio.run(take_up(asyncio.run(run()))) == [1]
    gc.collect()  # an error that nobody has heard is logged when its future goes
    assert logged == []


def test_a_feed_that_is_pickled_says_what_to_pass_instead(tmp_path):
    feed = make(tmp_path / "t", 1).changes()
    with pytest.raises(TypeError, match=r"table.changes\(since=bookmark\)"):
        pickle.dumps(feed)


def test_what_cannot_be_pickled_says_what_to_pass_instead(tmp_path):
    table = weir.create(str(tmp_path / "t.lance"), SCHEMA, primary_key="id")
    with table.writer() as writer:
        receipt = writer.put([{"id": 1, "v": "a"}])
        with pytest.raises(TypeError, match=r"call table.writer\(\)"):
            pickle.dumps(writer)
        with pytest.raises(TypeError, match="pass its positions"):
            pickle.dumps(receipt)
    db = pickle.loads(pickle.dumps(weir.connect(str(tmp_path))))
    assert db.tables() == ["t"]


def test_g7c_a_feed_left_in_its_first_round_begins_where_it_began(tmp_path):
    """Its bookmark has a place in every shard, also in those that it had not reached."""
    table = weir.create(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=weir.Bucket("id", 2)
    )
    with table.writer() as writer:
        writer.put([{"id": key} for key in range(10)])
    table.compact(fold_wal=True)
    table.gc(min_age=0, fence_retention="15m")
    with table.writer() as writer:
        writer.put([{"id": key} for key in range(20, 30)])
    first = next(iter(table.changes()))
    rest = list(table.changes(first.bookmark))
    found = [key for change in (first, *rest) for key in change.batch["id"].to_pylist()]
    assert set(found) >= set(range(20, 30))
