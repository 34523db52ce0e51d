"""M-8: closing a fenced writer raises nothing unless it owes somebody rows, and then once."""

import asyncio

import pytest

import weir
from tests.support.moments import again, make, rows
from weir import aio
from weir.errors import FencedError, PartialWrite, WeirError

MODES = pytest.mark.parametrize("memtable", [True, False], ids=["memtable", "wal-only"])
TOLD = pytest.mark.parametrize("told", [False, True], ids=["unaware", "told"])
KEYS = range(12)


def row(key, text="a"):
    return {"id": key, "v": text}


def take_over(table):
    """Another process takes every shard, and leaves."""
    with again(table).writer() as other:
        other.put([row(key, "b") for key in KEYS])


def be_told(writer):
    with pytest.raises((FencedError, PartialWrite)) as refused:
        writer.put([row(key, "c") for key in KEYS])
    assert sum(batch.num_rows for batch in refused.value.unacknowledged) == len(KEYS)


@TOLD
@MODES
@pytest.mark.parametrize("of", ["table", "shard", "4 shards"])
def test_m8_a_writer_that_owes_no_rows_closes_quietly(tmp_path, of, memtable, told):
    table = make(tmp_path / "t", 4 if of == "4 shards" else 1)
    config = weir.WriterConfig(enable_memtable=memtable)
    with (table.shards()[0] if of == "shard" else table).writer(config) as writer:
        writer.put([row(key) for key in KEYS])
        take_over(table)
        if told:
            be_told(writer)
    writer.close()
    assert rows(table) == dict.fromkeys(KEYS, "b")


@TOLD
def test_m8_a_task_s_writer_that_owes_no_rows_closes_quietly(tmp_path, told):
    table = make(tmp_path / "t", 4)

    async def run():
        lake = await aio.open(table.uri)
        async with lake.writer() as writer:
            await writer.put([row(key) for key in KEYS])
            await asyncio.to_thread(take_over, table)
            if told:
                with pytest.raises(PartialWrite):
                    await writer.put([row(key, "c") for key in KEYS])
        await writer.close()

    asyncio.run(run())
    assert rows(table) == dict.fromkeys(KEYS, "b")


def test_m8_the_error_of_a_block_is_not_hidden_by_a_fence(tmp_path):
    table = make(tmp_path / "t", 4)

    def block():
        with table.writer() as writer:
            writer.put([row(key) for key in KEYS])
            take_over(table)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()


def handed(error):
    return sorted(r["id"] for batch in error.unacknowledged for r in batch.to_pylist())


@pytest.mark.parametrize(
    ("way", "shards"),
    [("table", 1), ("table", 4), ("with", 1), ("with", 4), ("task", 4), ("shard", 1)],
)
def test_f16_rows_that_a_fenced_writer_owes_are_handed_back_once(tmp_path, shards, way):
    table = make(tmp_path / "t", shards)
    config = weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h")
    opened = table.shards()[0].writer(config) if way == "shard" else table.writer(config)

    def block():
        with opened:
            opened.put([row(key) for key in KEYS])
            take_over(table)

    async def task():
        async with aio.Table(table).writer(config) as writer:
            await writer.put([row(key) for key in KEYS])
            await asyncio.to_thread(take_over, table)

    def close():
        opened.put([row(key) for key in KEYS])
        take_over(table)
        opened.close()

    run = {"with": block, "task": lambda: asyncio.run(task())}.get(way, close)
    with pytest.raises(WeirError) as refused:
        run()
    assert refused.value.kind == "fenced"
    assert handed(refused.value) == list(KEYS)
    opened.close()  # nothing is left to hand back
    assert rows(table) == dict.fromkeys(KEYS, "b")
