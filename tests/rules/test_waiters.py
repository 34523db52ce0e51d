"""Callers that wait for a writer: in the order in which they came, no longer than they said, and
leaving nothing behind (M-6, F-16)."""

import asyncio
import datetime as dt
import gc
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import weir
from tests.support.moments import make
from tests.support.one_shard import open_writer, rows_on_store, site_on
from tests.support.threads import Caller, until
from weir import aio
from weir.config import WriterConfig
from weir.env import Env, SystemThreads, Thread
from weir.errors import InvalidInput, WriterClosed
from weir.shard import turns
from weir.shard.ack import Ack
from weir.shard.writer import ShardWriter
from weir.store.memory import MemoryStore
from weir.testing.fault_store import FaultStore
from weir.testing.faulty import FaultyStores

FULL = WriterConfig(
    max_unflushed_memtable_bytes=100, max_wal_buffer_size=100, enable_memtable=False
)
"""Room for three rows of two numbers, or a little more. No flush makes more of it meanwhile."""


def row(key: int) -> dict[str, int]:
    return {"k": key, "v": key}


def held_up(config: WriterConfig | None = None) -> tuple[ShardWriter, Any]:
    """A writer whose next entry does not get through, and the gate that lets it."""
    faults = FaultStore(MemoryStore())
    writer = open_writer(site_on(faults), config)
    writer.put([row(0)])
    return writer, faults.on("put_if_absent", "*/wal/*").pause()


def crowd_of(writer: ShardWriter, count: int) -> list[asyncio.Task[Any]]:
    """Tasks that put a row each; the first ones fill the memory."""
    return [asyncio.create_task(writer.aput([row(key)])) for key in range(1, count + 1)]


def test_m6_tasks_that_wait_for_room_get_it_in_the_order_in_which_they_came() -> None:
    writer, gate = held_up(FULL)

    async def run() -> None:
        puts = crowd_of(writer, 12)
        await asyncio.sleep(0)
        assert len(writer._state.room) > 5
        gate.release()
        acks = await asyncio.gather(*puts)
        positions = [ack.position for ack in acks]
        assert positions == sorted(positions)

    with writer:
        asyncio.run(run())
    assert sorted(rows_on_store(writer.site)) == list(range(13))


def test_f16_cancelled_tasks_leave_no_place_in_the_line_for_room() -> None:
    writer, gate = held_up(FULL)

    async def run() -> int:
        puts = crowd_of(writer, 50)
        await asyncio.sleep(0)
        accepted = len(writer._state.queue)
        assert len(writer._state.room) == 50 - accepted
        for put in puts:
            put.cancel()
        told = await asyncio.gather(*puts, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in told)
        assert not writer._state.room
        gate.release()
        return accepted

    with writer:
        accepted = asyncio.run(run())
    assert sorted(rows_on_store(writer.site)) == list(range(accepted + 1))


def test_f16_a_put_interrupted_as_its_writer_ends_does_not_say_that_it_goes_on() -> None:
    """It waited for room, so neither the log nor the writer's last report has its rows. Found by
    seed 30001339."""
    writer, gate = held_up(FULL)

    async def note(put: asyncio.Task[Any]) -> str:
        try:
            await put
        except asyncio.CancelledError as cancelled:
            return str(cancelled.__notes__[0])
        raise AssertionError("not cancelled")

    async def run() -> list[str]:
        puts = [asyncio.create_task(note(put)) for put in crowd_of(writer, 12)]
        await asyncio.sleep(0)
        last = writer._state.room[-1]
        writer._state.end(WriterClosed("ended by the test"), sent=False)
        assert last.is_refused
        for put in puts:
            put.cancel()
        return await asyncio.gather(*puts)

    notes = asyncio.run(run())
    gate.release()
    assert "nothing of the put was accepted" in notes[-1]
    with pytest.raises(WriterClosed) as ended:
        writer.close()
    goes_on = sum("goes on" in note for note in notes)
    assert goes_on == sum(batch.num_rows for batch in ended.value.not_written)


def test_m7_a_lone_put_waits_no_longer_than_its_timeout() -> None:
    writer, gate = held_up()
    put = Caller(lambda: writer.put([row(1)], timeout=0.05))
    gate.wait_reached()
    try:
        with pytest.raises(TimeoutError, match="still being written"):
            put.result()
    finally:
        gate.release()
    writer.close()
    assert sorted(rows_on_store(writer.site)) == [0, 1]


def test_m6_a_handle_holds_no_writers_that_were_closed(tmp_path: Any) -> None:
    table = make(tmp_path / "t", 4)
    for number in range(3):
        with table.writer() as writer:
            writer.put([{"id": key, "v": str(number)} for key in range(20)])
            assert len(table.core.registered_writers) == 4
        assert not table.core.registered_writers


def test_m6_a_handle_forgets_closed_writers_of_shards_when_it_opens_another(tmp_path: Any) -> None:
    table = make(tmp_path / "t", 4)
    for shard in table.shards():
        with shard.writer(weir.WriterConfig()) as writer:
            assert table.core.registered_writers == {shard.id: writer}


def test_f16_a_wait_that_times_out_as_its_ack_is_done_leaves_nobody_at_the_gate() -> None:
    """A putter and a flush wait for one ack. The putter's time is up just when it is woken in turn,
    by somebody who does not get there: the flush waited for ever. Found by seed 28004703."""
    threads = SystemThreads()
    ack = Ack(None, (), rows=1, nbytes=1)
    gate, following = threads.lock(), threads.lock()
    gate.acquire()
    following.acquire()
    ack.gate, ack.wakes = gate, following  # done, and in a row of those that wake each other
    assert not ack.pass_gate(gate, 0.0), "its time is up, and the gate is closed"
    assert ack.pass_gate(gate, 0.0), "the other one passes"
    assert following.acquire(blocking=False), "and the next was woken"


def test_f16_close_returns_when_the_thread_that_runs_a_callback_has_ended() -> None:
    """Another thread commits meanwhile, and close waited for that one only: seed 28002582."""
    writer, gate = held_up(WriterConfig(durable_write=False))
    closed, is_running = threading.Event(), threading.Event()
    heard: list[bool] = []

    def callback(_: Ack) -> None:
        is_running.set()
        heard.append(closed.wait(0.2))

    ack = writer.put([row(1)], wait=False)
    ack.add_done_callback(callback)
    flush = Caller(writer.flush_wal)
    gate.wait_reached()
    gate.release()
    assert is_running.wait(10)
    flush.result()
    writer.put([row(2)], wait=False)
    writer.flush_wal()  # by another thread
    writer.close()
    closed.set()
    assert heard == [False]


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "put": lambda w, timeout: w.put([{"id": 5, "v": "x"}], timeout=timeout),
    "table": lambda w, timeout: w.put(
        pa.table({"id": list(range(20)), "v": ["x"] * 20}), timeout=timeout
    ),
    "delete": lambda w, timeout: w.delete([5], timeout=timeout),
    "receipt": lambda w, timeout: w.put([{"id": 5, "v": "x"}], wait=False).wait(timeout),
    "insert": lambda w, timeout: w.insert([{"id": 5, "v": "x"}], timeout=timeout),
    "once": lambda w, timeout: w.put_once(
        [{"id": 5, "v": "x"}], app="app", version=1, timeout=timeout
    ),
    "delete_where": lambda w, timeout: w.delete_where("id = 5", timeout=timeout),
    "flush_wal": lambda w, timeout: w.flush_wal(timeout),
}


@pytest.mark.parametrize("timeout", ["5", float("nan"), True, dt.timedelta(seconds=1)])
@pytest.mark.parametrize("call", [name for name in CALLS if name != "receipt"])
def test_m7_a_timeout_that_is_no_number_is_refused_with_nothing_written(
    tmp_path: Any, call: str, timeout: Any
) -> None:
    table = make(tmp_path / "t", 2)
    with table.writer() as writer:
        with pytest.raises(InvalidInput, match="timeout"):
            CALLS[call](writer, timeout)
        assert not writer.shard_writers(), "nothing is claimed"
    assert table.count() == 0


@pytest.mark.parametrize("timeout", [float("inf"), 1e10, 1e300])
@pytest.mark.parametrize("call", CALLS)
def test_m7_a_timeout_may_be_longer_than_a_lock_can_wait(
    tmp_path: Any, call: str, timeout: float
) -> None:
    """The lock's own error was told of as rows that were not written, and they were."""
    with make(tmp_path / "t", 2).writer() as writer:
        CALLS[call](writer, timeout)


@pytest.mark.parametrize("shards", [1, 2])
def test_m8_a_flush_of_the_log_waits_no_longer_than_its_timeout(tmp_path: Any, shards: int) -> None:
    faulty = FaultyStores()
    table = make(tmp_path / "t", shards)
    writer = weir.open(table.uri, env=faulty.env).writer()
    rows = [{"id": key, "v": "x"} for key in range(20)]
    writer.put(rows)
    gate = faulty.at(table.uri).on("put_if_absent", "*/wal/*").pause()
    buffered = writer.put(rows, wait=False)
    gate.wait_reached()
    with pytest.raises(TimeoutError, match="flush_wal"):
        writer.flush_wal(0.05)
    assert not buffered.done
    gate.release()
    writer.flush_wal(60)
    assert buffered.done
    writer.close()


def test_m6_a_table_of_many_shards_keeps_few_threads(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its shards kept one for each of its jobs, for as long as there were puts."""
    monkeypatch.setattr(turns, "IDLE_SECONDS", 3600.0)
    monkeypatch.setattr(turns, "THREADS_KEPT", 4)
    table = make(tmp_path / "t", 24)
    with table.writer() as writer:
        for first in (0, 1000):
            writer.put([{"id": first + key, "v": "x"} for key in range(400)])
            assert threads_of(table.uri)
            writer.flush()
            until(lambda: len(threads_of(table.uri)) <= 4)
        assert len(writer.shard_writers()) == 24


def threads_of(uri: str) -> list[str]:
    """Those of that table only: writers that other tests left to die flush by age meanwhile."""
    return [thread.name for thread in threading.enumerate() if uri in thread.name]


def test_m6_a_row_buffered_beside_a_lone_put_is_written_in_time() -> None:
    """Its put starts no commit thread for the one that commits by itself."""
    faults = FaultStore(MemoryStore())
    config = WriterConfig(durable_write=False, max_wal_flush_interval=0.001)
    writer = open_writer(site_on(faults), config)
    gate = faults.on("put_if_absent", "*/wal/*").pause()
    lone = Caller(lambda: writer.put([row(1)], wait=True))
    gate.wait_reached()
    buffered = writer.put([row(2)])
    is_durable = threading.Event()
    buffered.add_done_callback(lambda _: is_durable.set())
    gate.release()
    lone.result()
    assert is_durable.wait(10)
    writer.close()


def test_m6_a_task_that_waits_for_buffered_rows_has_them_written_now() -> None:
    writer = open_writer(
        site_on(MemoryStore()), WriterConfig(durable_write=False, max_wal_flush_interval=3600)
    )
    for key in range(2):
        asyncio.run(asyncio.wait_for(writer.aput([row(key)]), 60))
    writer.close()


@pytest.mark.parametrize("by_task", [False, True])
def test_m6_who_waits_for_rows_that_had_to_wait_for_room_has_them_written_now(
    by_task: bool,
) -> None:
    """That somebody waits was forgotten with the entry that made room: an hour, with this limit."""
    faults = FaultStore(MemoryStore())
    config = WriterConfig(
        durable_write=False,
        max_wal_flush_interval=3600,
        max_unflushed_memtable_bytes=20_000,
        max_wal_buffer_size=20_000,
        enable_memtable=False,
    )
    writer = open_writer(site_on(faults), config)
    gate = faults.on("put_if_absent", "*/wal/*").pause()
    keys = itertools.count(1)
    writer.put([row(0)])
    one = writer._state.held_bytes
    while not writer._state.is_full(one):
        writer.put([row(next(keys))])

    def put() -> Any:
        last = [row(next(keys))]
        return asyncio.run(writer.aput(last)) if by_task else writer.put(last, wait=True)

    last = Caller(put)
    gate.wait_reached()
    until(lambda: writer._state.room)
    gate.release()
    assert last.result().done
    writer.close()
    assert sorted(rows_on_store(writer.site)) == list(range(next(keys)))


class NoFlushThread(SystemThreads):
    """The process reaches its limit of threads when a flush thread is to be started."""

    def start(self, run: Callable[[], None], *, name: str) -> Thread | None:
        return None if name.startswith("weir-flush") else super().start(run, name=name)


@pytest.mark.parametrize("wait", [True, False])
def test_f16_a_put_without_room_flushes_by_itself_beside_a_commit_thread(wait: bool) -> None:
    """It left the flush to a thread that was not there, and looked for room for ever."""
    site = site_on(MemoryStore(), env=Env(threads=NoFlushThread()))
    writer = open_writer(site, WriterConfig(max_unflushed_memtable_bytes=1, max_wal_buffer_size=1))
    for key in range(4):
        Caller(lambda key=key: writer.put([row(key)], wait=wait)).result()  # type: ignore[misc]
    writer.close()
    assert sorted(rows_on_store(writer.site)) == list(range(4))


def test_m6_tasks_that_stop_waiting_for_a_receipt_leave_nothing_behind(tmp_path: Any) -> None:
    """Each left a future and a callback, for as long as the store was silent."""
    faulty = FaultyStores()
    make(tmp_path / "t", 1)

    async def run() -> None:
        table = await aio.open(str(tmp_path / "t"), env=faulty.env)
        async with table.writer() as writer:
            await writer.put({"id": 0, "v": "x"})
            gate = faulty.at(table.uri).on("put_if_absent", "*/wal/*").pause()
            receipt = await writer.put({"id": 1, "v": "x"}, wait=False)
            before = futures_held()
            for _ in range(50):
                waiting = asyncio.create_task(writer.settled(receipt))
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            left = futures_held() - before
            gate.release()
            assert (await writer.settled(receipt)).done
            assert left < 10

    asyncio.run(asyncio.wait_for(run(), 60))


def futures_held() -> int:
    gc.collect()
    return sum(type(held) is asyncio.Future for held in gc.get_objects())
