"""Rows that nobody waits for when the routing changes: they follow as they were put (C-11, F-16).

They once went through the verb of whatever call came next, and were lost, refused or put twice.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pyarrow as pa
import pytest

import weir
from simulator.steps import Died, dies_at, watched
from tests.support.moments import SCHEMA, again, make, put, rows
from weir import aio
from weir.errors import FencedError, PartialWrite, StoreError, WeirError
from weir.testing.faulty import FaultyStores
from weir.upkeep.reshard import reshard

LAZY = weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h")


def row(key, text):
    return {"id": key, "v": text}


def resharded(table, writer, *buffered, num=2):
    """Buffer something, then let another process reshard; the receipts of what was buffered."""
    writer.flush_wal()
    receipts = [act(writer) for act in buffered]
    again(table).reshard(weir.Bucket("id", num), compact=False)
    again(table).compact()
    return receipts


def opened(tmp_path, config=LAZY):
    table = make(tmp_path / "t", 1)
    writer = again(table).writer(config)
    put(writer, [1, 2], "old")
    return table, writer


NEXT = {
    "insert skip": (lambda w: w.insert([row(3, "x")], on_conflict="skip"), {3: "x"}),
    "insert": (lambda w: w.insert([row(3, "x")]), {3: "x"}),
    "when": (lambda w: w.put([row(2, "x")], when="current IS NULL"), {}),
    "update": (lambda w: w.update([row(2, "x")]), {2: "x"}),
    "update skip": (lambda w: w.update([row(9, "x")], missing="skip"), {}),
    "put": (lambda w: w.put([row(3, "x")], wait=True), {3: "x"}),
    "delete": (lambda w: w.delete([2], wait=True), {2: None}),
    "put_once": (lambda w: w.put_once([row(3, "x")], app="a", version=1), {3: "x"}),
    "delete_where": (lambda w: w.delete_where("id = 2"), {2: None}),
    "update_where": (lambda w: w.update_where("id = 2", {"v": "'x'"}), {2: "x"}),
    "flush": (lambda w: w.flush(), {}),
    "flush_wal": (lambda w: w.flush_wal(), {}),
    "close": (lambda w: w.close(), {}),
}
CALLS = pytest.mark.parametrize(("call", "change"), NEXT.values(), ids=NEXT.keys())


@CALLS
def test_c11_a_buffered_put_reaches_its_heir_whatever_is_called_next(tmp_path, call, change):
    table, writer = opened(tmp_path, config=None)
    resharded(table, writer)
    receipt = writer.put([row(1, "new")], wait=False)
    told = call(writer)
    if isinstance(told, weir.WriteCounts):  # of its own rows
        assert told.inserted + told.updated + told.deleted + told.skipped == 1
    writer.close()
    assert set(receipt.wait()) <= {shard.id for shard in again(table).shards() if shard.is_routed}
    assert receipt.done
    assert len(receipt.positions) == 1
    expected = {1: "new", 2: "old"} | change
    assert rows(again(table)) == {k: v for k, v in expected.items() if v is not None}


@CALLS
def test_c11_a_buffered_delete_reaches_its_heir_whatever_is_called_next(tmp_path, call, change):
    table, writer = opened(tmp_path, config=None)
    resharded(table, writer)
    writer.delete([1], wait=False)
    call(writer)
    writer.close()
    expected = {2: "old"} | change
    assert rows(again(table)) == {k: v for k, v in expected.items() if v is not None}


def test_c11_buffered_rows_stay_before_those_that_were_put_later(tmp_path):
    table, writer = opened(tmp_path)
    resharded(table, writer, lambda w: w.put([row(k, "first") for k in range(20)], wait=False))
    writer.put([row(k, "second") for k in range(10)], wait=False)
    writer.close()
    assert rows(again(table)) == {k: "second" if k < 10 else "first" for k in range(20)}


def test_c11_rows_follow_through_two_changes_of_the_routing(tmp_path):
    table, writer = opened(tmp_path)
    resharded(table, writer, lambda w: w.put([row(1, "new")], wait=False))
    again(table).reshard(weir.Bucket("id", 3), compact=False)
    writer.close()
    assert rows(again(table)) == {1: "new", 2: "old"}


APPENDED = {name: NEXT[name] for name in ("put", "put_once", "flush", "flush_wal", "close")}


@pytest.mark.parametrize(("call", "change"), APPENDED.values(), ids=APPENDED.keys())
def test_f16_a_receipt_tells_what_became_of_the_rows_at_the_heirs(tmp_path, call, change):
    """It said "not written" of rows that were: put again, an append-only table has them twice."""
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=weir.Unsharded())
    writer = again(table).writer(LAZY)
    put(writer, [1], "old")
    (receipt,) = resharded(table, writer, lambda w: w.put([row(k, "new") for k in range(8)]))
    call(writer)
    try:
        receipt.wait()
    except WeirError as error:  # what a caller does that follows the guide
        for batch in error.not_written:
            writer.put(batch)
    writer.close()
    found = sorted(again(table).scan().to_table()["id"].to_pylist())
    assert found == sorted([1, *range(8), *(key for key in change if change[key])])
    assert len(receipt.positions) == 2


MANY = [row(k, f"new {k}") for k in range(20)]
WAITS = {
    "receipt": lambda w: w.put(MANY, wait=False).wait(),
    "receipt in time": lambda w: w.put(MANY, wait=False).wait(60),
    "put": lambda w: w.put(MANY, wait=True),
    "put in time": lambda w: w.put(MANY, wait=True, timeout=60),
    "task": lambda w: asyncio.run(as_task(w).put(MANY, wait=True)),
    "task in time": lambda w: asyncio.run(as_task(w).put(MANY, wait=True, timeout=60)),
    "settled": lambda w: asyncio.run(settled(as_task(w))),
}


def as_task(writer):
    tasks = aio.TableWriter(lambda: writer, waits=writer._config.durable_write)
    tasks._sync = writer
    return tasks


async def settled(tasks):
    return await tasks.settled(await tasks.put(MANY, wait=False))


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
@pytest.mark.parametrize("config", [None, LAZY], ids=["durable", "lazy"])
@pytest.mark.parametrize("shards", [1, 3])
def test_c11_whoever_waits_for_rows_waits_for_them_at_the_heirs(tmp_path, wait, config, shards):
    """A receipt handed the rows back, and so did a put of a task that had a timeout."""
    table = make(tmp_path / "t", shards)
    writer = again(table).writer(config)
    put(writer, range(20), "old")
    resharded(table, writer, num=2)
    wait(writer)
    writer.close()
    assert rows(again(table)) == {k: f"new {k}" for k in range(20)}


@pytest.mark.parametrize("shards", [1, 3])
def test_c11_threads_that_wait_for_one_receipt_send_its_rows_on_once(tmp_path, shards):
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=weir.Bucket("id", shards))
    writer = again(table).writer()
    put(writer, range(20), "old")
    resharded(table, writer, num=2)
    receipt, start = writer.put(MANY, wait=False), Barrier(4)

    def wait(_):
        start.wait()
        return receipt.wait()

    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(wait, range(4)))
    assert all(positions == receipt.positions for positions in told)
    writer.close()
    texts = again(table).scan().to_table().column("v").to_pylist()
    assert sorted(texts) == sorted([*(f"new {k}" for k in range(20)), *(20 * ["old"])])


def test_f16_rows_that_a_wait_handed_back_are_sent_nowhere_by_a_later_one(tmp_path):
    table, writer = opened(tmp_path)

    with pytest.raises(Died):
        reshard(
            watched(again(table).core, "reshard", dies_at("checkpointed")), weir.Bucket("id", 2)
        )
    receipt = writer.put([row(1, "new")], wait=False)
    with pytest.raises(WeirError, match="shard") as first:
        receipt.wait(0.2)
    assert first.value.not_written
    again(table).reshard(weir.Bucket("id", 2))
    with pytest.raises(WeirError, match="shard"):
        receipt.wait()
    writer.close()
    assert rows(again(table)) == {1: "old", 2: "old"}


def test_f16_rows_that_reach_no_heir_are_handed_back_by_close_and_by_nobody_else(tmp_path):
    faulty = FaultyStores()
    table = make(tmp_path / "t", 1)
    writer = weir.open(table.uri, env=faulty.env).writer(LAZY)
    put(writer, [1, 2], "old")
    (receipt,) = resharded(table, writer, lambda w: w.put([row(k, "new") for k in range(8)]))
    lost, kept = (s.id for s in again(table).shards() if s.is_routed)
    faulty.at(table.uri).on("*", f"*{lost}*").fail_before(times=None)
    key = next(k for k in range(100, 200) if _shard(table, k) == kept)
    writer.put([row(key, "x")], wait=True)  # an error of the other heir is not its own
    with pytest.raises(WeirError) as closed:
        writer.close()
    back = {r["id"] for batch in closed.value.not_written for r in batch.to_pylist()}
    assert back == {k for k in range(8) if _shard(table, k) == lost}
    with pytest.raises((PartialWrite, StoreError)):
        receipt.wait()
    faulty.at(table.uri).heal()
    found = rows(again(table))
    assert {k for k, text in found.items() if text == "new"} == set(range(8)) - back


@pytest.mark.parametrize("call", ["flush_wal", "flush", "close"])
def test_c11_rows_that_reach_their_heir_at_the_second_try_are_durable_too(tmp_path, call):
    """The heir was opened by the flush itself, after it had flushed all others."""
    faulty = FaultyStores()
    table = make(tmp_path / "t", 1)
    writer = weir.open(table.uri, env=faulty.env).writer(LAZY)
    put(writer, [1, 2], "old")
    resharded(table, writer, lambda w: w.put([row(k, "new") for k in range(8)]))
    late, kept = (s.id for s in again(table).shards() if s.is_routed)
    faulty.at(table.uri).on("*", f"*{late}*").fail_before(times=None)
    key = next(k for k in range(100, 200) if _shard(table, k) == kept)
    writer.put([row(key, "x")], wait=True)
    faulty.at(table.uri).heal()
    getattr(writer, call)()
    assert rows(again(table)) == {key: "x"} | dict.fromkeys(range(8), "new")
    writer.close()


def test_c11_no_row_overtakes_older_ones_that_did_not_reach_their_heir_at_first(tmp_path):
    faulty = FaultyStores()
    table = make(tmp_path / "t", 1)
    writer = weir.open(table.uri, env=faulty.env).writer(LAZY)
    put(writer, [1, 2], "old")
    resharded(table, writer, lambda w: w.put([row(k, "new") for k in range(8)]))
    late, kept = (s.id for s in again(table).shards() if s.is_routed)
    faulty.at(table.uri).on("*", f"*{late}*").fail_before(times=None)
    other = next(k for k in range(100, 200) if _shard(table, k) == kept)
    key = next(k for k in range(8) if _shard(table, k) == late)
    writer.put([row(other, "x")], wait=True)
    with pytest.raises(StoreError) as refused:
        writer.put([row(key, "refused")])
    assert [r["v"] for b in refused.value.not_written for r in b.to_pylist()] == ["refused"]
    faulty.at(table.uri).heal()
    writer.put([row(key, "newest")])
    writer.close()
    expected = {other: "x"} | dict.fromkeys(range(8), "new") | {key: "newest"}
    assert rows(again(table)) == expected


def _shard(table, key):
    core = again(table).core
    ((value, _),) = core.router.split(pa.record_batch({"id": pa.array([key], pa.int64())}))
    return core.route(value)


# -- decisions -----------------------------------------------------------------------------------

DECISIONS = {
    "insert": lambda w: w.insert([row(3, "ours")]),
    "when": lambda w: w.put([row(3, "ours")], when="current IS NULL"),
    "update": lambda w: w.update([row(1, "ours")]),
    "update_where": lambda w: w.update_where("id = 1", {"v": "'ours'"}),
}


@pytest.mark.parametrize("call", ["flush_wal", "close"])
@pytest.mark.parametrize("decide", DECISIONS.values(), ids=DECISIONS.keys())
def test_o4_rows_of_a_decision_overwrite_nothing_at_the_heirs(tmp_path, decide, call):
    table, writer = opened(tmp_path)
    resharded(table, writer, decide)
    with again(table).writer() as other:
        put(other, [1, 3], "theirs")
    with pytest.raises(FencedError) as told:
        getattr(writer, call)()
    assert len(told.value.not_written) == 1
    writer.close()
    assert rows(again(table)) == {1: "theirs", 2: "old", 3: "theirs"}


def test_p2_a_batch_that_timed_out_reaches_the_heirs_when_it_is_sent_again(tmp_path):
    faulty = FaultyStores()
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=weir.Unsharded())
    writer = weir.open(table.uri, env=faulty.env).writer()
    put(writer, [1], "old")
    gate = faulty.at(table.uri).on("put_if_absent", "*/wal/*").pause()
    writer.put([row(2, "held")], wait=False)  # the background thread leads
    gate.wait_reached()
    with pytest.raises(TimeoutError):
        writer.put_once([row(k, "b") for k in range(8)], app="a", version=0, timeout=0.05)
    again(table).reshard(weir.Bucket("id", 2), compact=False)
    gate.release()
    writer.put([row(9, "after")])
    assert writer.put_once([row(k, "b") for k in range(8)], app="a", version=0)
    assert not writer.put_once([row(k, "b") for k in range(8)], app="a", version=0)
    writer.close()  # nothing is left of the first try
    found = again(table).scan().to_table().to_pylist()
    assert sorted(r["id"] for r in found if r["v"] == "b") == list(range(8))
    assert sorted(r["id"] for r in found if r["v"] != "b") == [1, 2, 9]


def test_c11_rows_follow_a_reshard_by_their_own_handle(tmp_path):
    """Its handle knew the new routing, and close waited two minutes for one after it."""
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=weir.Unsharded())
    config = weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h")
    with table.writer(config) as writer:
        writer.put([row(k, "buffered") for k in range(5)])
        table.reshard(weir.Bucket("id", 2))
    assert again(table).count() == 5
