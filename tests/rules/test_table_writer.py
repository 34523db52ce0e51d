"""A table's writer has every verb of a shard's writer, and costs no more for a single shard."""

import asyncio
import threading

import pyarrow as pa
import pytest

import weir
from tests.support.moments import make, rows
from tests.support.threads import Caller
from weir.errors import FencedError, InvalidInput, PartialWrite, SchemaMismatch, WriterClosed
from weir.store.api import StoreError

KEYLESS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
SHARDS = pytest.mark.parametrize("shards", [1, 4])


def row(key, text="a"):
    return {"id": key, "v": text}


@SHARDS
def test_a_receipt_tells_where_the_rows_are(tmp_path, shards):
    table = make(tmp_path / "t", shards)
    with table.writer() as writer:
        receipt = writer.put([row(key) for key in range(40)])
        assert receipt.done
        assert receipt.rows == 40
        assert set(receipt.positions) == {shard.id for shard in table.shards()}
        assert receipt.wait() == receipt.positions
        one = writer.put(row(1, "b"))
        (shard,) = one.positions
        assert one.positions[shard] > receipt.positions[shard]
        gone = writer.delete([2, 3])
        assert gone.done
        assert gone.rows == 2
        assert sum(stats.rows_put for stats in writer.stats().values()) == 43
    assert rows(table) == {key: "b" if key == 1 else "a" for key in range(40) if key not in (2, 3)}


@SHARDS
def test_deletes_are_counted_by_whichever_verb_they_came(tmp_path, shards):
    table = make(tmp_path / "t", shards)
    with table.writer() as writer:
        writer.put([row(key) for key in range(20)])
        writer.delete([0, 1])
        writer.put([{"id": 2, "_tombstone": True}, row(3, "b")])
        assert writer.delete_where("id >= 15").deleted == 5
        writer.put_once([{"id": 4, "_tombstone": True}], app="a", version=1)
        counted = writer.stats().values()
        assert sum(stats.rows_deleted for stats in counted) == 9
        assert sum(stats.rows_put for stats in counted) == 30
    assert sorted(rows(table)) == [3, *range(5, 15)]


@SHARDS
def test_a_put_that_is_not_waited_for_can_be_waited_for_later(tmp_path, shards):
    table = make(tmp_path / "t", shards)
    with table.writer() as writer:
        receipts = [writer.put([row(key)], wait=False) for key in range(20)]
        writer.flush_wal()
        assert all(receipt.done for receipt in receipts)
        assert all(len(receipt.wait()) == 1 for receipt in receipts)
    assert rows(table) == dict.fromkeys(range(20), "a")


@SHARDS
def test_m7_refused_rows_are_written_nowhere(tmp_path, shards):
    table = make(tmp_path / "t", shards)
    with table.writer() as writer:
        writer.put([row(key) for key in range(20)])
        for bad, error in (
            ([row(1, "b"), {"id": None, "v": "b"}], InvalidInput),
            ([{"id": 1, "v": 7}], SchemaMismatch),
            ([{"id": "text"}], SchemaMismatch),
            ([{"v": "b"}], InvalidInput),
            ([{"id": 2**70, "v": "b"}], SchemaMismatch),
        ):
            with pytest.raises(error):
                writer.put(bad)
            with pytest.raises(error):
                asyncio.run(writer.aput(bad))
    assert rows(table) == dict.fromkeys(range(20), "a")


def test_threads_share_entries_through_the_table(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        writer.put(row(0))
        barrier = threading.Barrier(16)

        def some(first):
            barrier.wait()
            for key in range(first, first + 20):
                writer.put(row(key))

        callers = [Caller(lambda first=i * 20: some(first)) for i in range(16)]
        for caller in callers:
            caller.result(60.0)
        (stats,) = writer.stats().values()
        assert stats.wal.entries < stats.puts
    assert rows(table) == dict.fromkeys(range(320), "a")


@SHARDS
def test_tasks_share_entries_through_the_table(tmp_path, shards):
    table = make(tmp_path / "t", shards)
    with table.writer() as writer:

        async def run():
            puts = (writer.aput(row(key)) for key in range(300))
            return await asyncio.gather(*puts, writer.aput([row(key) for key in range(300, 340)]))

        receipts = asyncio.run(run())
        assert all(receipt.done for receipt in receipts)
        entries = {place for receipt in receipts for place in receipt.positions.items()}
        assert len(entries) < 150
    assert rows(table) == dict.fromkeys(range(340), "a")


@SHARDS
def test_c11_tasks_and_threads_follow_a_reshard(tmp_path, shards):
    table = make(tmp_path / "t", shards)
    writer = table.writer()
    writer.put([row(key) for key in range(40)])
    table.reshard(weir.Bucket("id", 3), compact=False)
    writer.put(row(1, "thread"))
    asyncio.run(writer.aput(row(2, "task")))
    asyncio.run(writer.aput([row(key, "tasks") for key in range(10, 20)]))
    writer.close()
    text = {1: "thread", 2: "task"} | dict.fromkeys(range(10, 20), "tasks")
    assert rows(table) == {key: text.get(key, "a") for key in range(40)}


def test_p2_a_batch_is_taken_once_by_each_shard_whatever_it_met(tmp_path, monkeypatch):
    """The first try fails between two shards; the second skips the shards that have the batch."""
    sharding = weir.Bucket("id", 4)
    table = weir.create(str(tmp_path / "t"), KEYLESS, sharding=sharding)
    batch = [row(key) for key in range(40)]
    failing = table.shards()[2].id
    writer = table.writer()
    writer.put([row(key, "before") for key in range(40)])
    once = writer.shard_writers()[failing].once
    real = once.put

    def fail(*args, **how):
        once.put = real
        raise StoreError("out of reach")

    once.put = fail
    with pytest.raises(PartialWrite) as partial:
        writer.put_once(batch, app="job", version=7)
    assert set(partial.value.failures) == {failing}
    assert writer.put_once(batch, app="job", version=7)
    assert not writer.put_once(batch, app="job", version=7)
    assert not writer.put_once(batch, app="job", version=6)
    writer.close()
    with table.writer() as other:
        assert not other.put_once(batch, app="job", version=7)
        assert other.put_once(batch, app="job", version=8)
    found = table.scan().to_table().to_pylist()
    assert sorted(r["id"] for r in found if r["v"] == "a") == sorted([*range(40)] * 2)


def test_f16_a_receipt_says_which_parts_are_not_durable(tmp_path):
    table = make(tmp_path / "t", 2)
    writer = table.writer(weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h"))
    writer.put([row(key) for key in range(20)])
    writer.flush_wal()
    receipt = writer.put([row(key, "b") for key in range(20)])
    table.shards()[0].writer().close()
    with pytest.raises(PartialWrite) as partial:
        receipt.wait()
    assert set(partial.value.failures) == {table.shards()[0].id}
    assert isinstance(partial.value.failures[table.shards()[0].id], FencedError)
    writer.close()  # raises nothing: the receipt has reported the rows


def test_m8_a_closed_writer_takes_no_put(tmp_path):
    table = make(tmp_path / "t", 1)
    writer = table.writer()
    writer.put(row(1))
    writer.close()
    for call in (
        lambda: writer.put(row(2)),
        lambda: asyncio.run(writer.aput(row(2))),
        lambda: writer.put_once(row(2), app="a", version=1),
        lambda: writer.delete([1]),
    ):
        with pytest.raises(WriterClosed):
            call()
    assert rows(table) == {1: "a"}
