"""H-1: threads of a writer looked every five seconds whether another thread had done its part.

In a simulated machine on which a step takes two seconds, three of them kept all others from ever
running. Found by seeds 32004348 and 32004744. Now they wait to be woken; only a thread that nobody
needs has a limit, after which it ends.
"""

import queue
import threading
from typing import Any

import pytest

from tests.rules.test_reads_beside_flushes import in_simulation
from tests.support.one_shard import open_writer, rows_on_store, site_on
from tests.support.threads import Caller
from weir.config import WriterConfig
from weir.env import Env, SystemThreads
from weir.errors import Backpressure, FencedError
from weir.store.memory import MemoryStore
from weir.testing.fault_store import FaultStore


class Waits(SystemThreads):
    """Threads whose waits with and without a limit can be seen, by the name of the thread."""

    def __init__(self) -> None:
        self.limits: dict[str, queue.SimpleQueue[float]] = {
            "weir-flush": queue.SimpleQueue(),
            "weir-wal": queue.SimpleQueue(),
        }

    def lock(self) -> Any:
        return _WatchedLock(self.limits)


class _WatchedLock:
    def __init__(self, limits: dict[str, "queue.SimpleQueue[float]"]) -> None:
        self._lock = threading.Lock()
        self._limits = limits
        self.release = self._lock.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        name = "-".join(threading.current_thread().name.split("-")[:2])
        if name in self._limits:
            self._limits[name].put(timeout)
        return self._lock.acquire(blocking, timeout)

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_h1_the_flush_thread_waits_for_the_log_without_a_limit() -> None:
    threads, faults = Waits(), FaultStore(MemoryStore())
    config = WriterConfig(durable_write=False, max_wal_flush_interval="1h")
    writer = open_writer(site_on(faults, env=Env(threads=threads)), config)
    gate = faults.on("put_if_absent", "*/wal/*").pause()
    writer.put([{"k": 1, "v": 1}])
    flushing = Caller(writer.flush)
    gate.wait_reached()
    waits = [threads.limits["weir-flush"].get(timeout=10) for _ in range(2)]
    gate.release()
    flushing.result()
    assert waits == [-1, -1]
    writer.close()
    assert sorted(rows_on_store(writer.site)) == [1]


def test_h1_the_commit_thread_waits_for_room_without_a_limit() -> None:
    threads, faults = Waits(), FaultStore(MemoryStore())
    config = WriterConfig(max_unflushed_memtable_bytes=1, max_wal_buffer_size=1)
    writer = open_writer(site_on(faults, env=Env(threads=threads)), config)
    writer.put([{"k": 1, "v": 1}])
    gate = faults.on("put_if_absent", "*/manifest/*").pause()
    putting = Caller(lambda: writer.put([{"k": 2, "v": 2}]))
    gate.wait_reached()
    waits = [threads.limits["weir-wal"].get(timeout=10) for _ in range(2)]
    gate.release()
    putting.result()
    assert waits == [-1, -1]
    writer.close()
    assert sorted(rows_on_store(writer.site)) == [1, 2]


class SlowManifests(MemoryStore):
    """Each manifest takes a minute, once it is told to."""

    def __init__(self, env: Env) -> None:
        super().__init__()
        self._env = env
        self.is_slow = False

    def put_if_absent(self, path: str, data: Any) -> None:
        if self.is_slow and "/manifest/" in path:
            self._env.clock.sleep(60.0)
        super().put_if_absent(path, data)


def test_h1_the_commit_thread_ends_when_those_that_waited_for_room_have_left() -> None:
    """A simulation ends when every thread has: one that waits for nobody fails it."""

    def work(env: Env) -> str:
        store = SlowManifests(env)
        config = WriterConfig(max_unflushed_memtable_bytes=1, max_wal_buffer_size=1)
        writer = open_writer(site_on(store, env=env), config)
        store.is_slow = True
        writer.put([{"k": 1, "v": 1}])
        with pytest.raises(Backpressure) as told:
            writer.put([{"k": 2, "v": 2}], timeout=1.0)
        return str(told.value)

    assert "nothing of this put was accepted" in in_simulation(work)


def test_h1_the_flush_thread_ends_with_a_writer_whose_rows_do_not_reach_the_log() -> None:
    def work(env: Env) -> str:
        site = site_on(MemoryStore(), env=env)
        config = WriterConfig(durable_write=False, max_wal_flush_interval="1h", max_memtable_rows=1)
        writer = open_writer(site, config)
        writer.put([{"k": 1, "v": 1}], wait=False)  # frozen, and not in the log
        env.clock.sleep(10.0)  # the thread waits for the log by now
        open_writer(site).close()
        with pytest.raises(FencedError) as told:
            writer.flush_wal()
        return str(told.value)

    assert "fenced" in in_simulation(work)


def test_h1_the_flush_thread_is_woken_when_the_log_has_the_rows() -> None:
    def work(env: Env) -> int:
        config = WriterConfig(durable_write=False, max_wal_flush_interval="1m", max_memtable_rows=1)
        writer = open_writer(site_on(MemoryStore(), env=env), config)
        writer.put([{"k": 1, "v": 1}], wait=False)  # frozen, and in the log a minute later
        env.clock.sleep(100.0)
        flushes = writer.memtable_stats().flushes
        writer.close()
        return flushes

    assert in_simulation(work) == 1
