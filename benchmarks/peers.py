"""Handles on weir, its peers and the floor, all opened with the same URI and options."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import obstore
import pyarrow as pa

import weir
from benchmarks.data import SCHEMA
from benchmarks.harness import Ctx


def make_table(ctx: Ctx, name: str = "table", **settings: Any) -> weir.Table:
    """An empty table with the schema of the benchmark's rows; pylance opens the same table."""
    return weir.create(
        ctx.uri(name), SCHEMA, primary_key="id", storage_options=ctx.options or None, **settings
    )


def one_shard(table: weir.Table) -> weir.Shard:
    """The only shard of an unsharded table."""
    return table.shards()[0]


def pylance_writer(ctx: Ctx, table: weir.Table, **settings: Any) -> Any:
    """pylance's own writer of the table's only shard."""
    import lance

    dataset = lance.dataset(table.uri, storage_options=ctx.options or None)
    shard = str(one_shard(table).id)
    return dataset.mem_wal_writer(shard, stats_log_interval_ms=0, **settings)


def object_store(ctx: Ctx, name: str = "floor") -> Any:
    """An obstore store on a prefix of its own, for the floor to write to."""
    uri = ctx.uri(name)
    return obstore_at(uri, ctx.options)


def obstore_at(uri: str, options: dict[str, str]) -> Any:
    """An obstore store at `uri`."""
    if "://" not in uri:
        return obstore.store.LocalStore(uri, mkdir=True)
    return obstore.store.from_url(
        uri,
        config={k: v for k, v in options.items() if k != "allow_http"},
        client_options={"allow_http": True},
    )


def encode(batch: pa.RecordBatch) -> memoryview:
    """The floor's encoding: one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue()).cast("B")


def put_new(store: Any, number: int, data: memoryview) -> None:
    """Put-if-absent of the floor's next object."""
    obstore.put(store, f"wal/{number:020d}.arrow", data, mode="create", use_multipart=False)


class Slate:
    """slatedb behind a blocking interface; its event loop runs in a thread."""

    def __init__(self, ctx: Ctx, flush_interval: str | None = None) -> None:
        from slatedb import uniffi

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        settings = uniffi.Settings.default()
        if flush_interval is not None:
            settings.set("flush_interval", json.dumps(flush_interval))
        self._db = self.run(self._open(ctx, uniffi, settings))

    async def _open(self, ctx: Ctx, uniffi: Any, settings: Any) -> Any:
        if ctx.where == "local":
            builder = uniffi.ObjectStoreBuilder(uniffi.ObjectStoreType.LOCAL)
            builder.with_config("local_path", ctx.root)
        else:
            builder = uniffi.ObjectStoreBuilder(uniffi.ObjectStoreType.S3)
            builder.with_url(ctx.root)
            for key, value in ctx.options.items():
                builder.with_config(key, value)
        db = uniffi.DbBuilder(ctx.uri("slate").rpartition("/")[2], builder.build())
        db.with_settings(settings)
        return await db.build()

    def run(self, work: Awaitable[Any]) -> Any:
        """Run a coroutine on the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(_awaited(work), self._loop).result()

    async def put(self, key: bytes, value: bytes) -> None:
        """One durable put."""
        handle = await self._db.put(key, value)
        await handle.await_durable()

    async def get(self, key: bytes) -> bytes | None:
        """The value of the key, or None."""
        found: bytes | None = await self._db.get(key)
        return found

    def putters(self, count: int, seconds: float, value: bytes) -> tuple[list[float], float]:
        """Put from `count` tasks for `seconds`; the latencies, and the time it took."""
        numbers = itertools.count()
        latencies: list[float] = []

        async def putter(end: float) -> None:
            while (began := time.perf_counter()) < end:
                await self.put(b"%020d" % next(numbers), value)
                latencies.append(time.perf_counter() - began)

        async def everyone() -> None:
            end = time.perf_counter() + seconds
            await asyncio.gather(*(putter(end) for _ in range(count)))

        began = time.perf_counter()
        self.run(everyone())
        return latencies, time.perf_counter() - began

    def close(self) -> None:
        """Shut the database down and end the loop."""
        self.run(self._db.shutdown())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


@contextmanager
def slate(ctx: Ctx, flush_interval: str | None = None) -> Iterator[Slate]:
    """A database that is closed when the side ends."""
    db = Slate(ctx, flush_interval)
    try:
        yield db
    finally:
        db.close()


def timed_puts(put: Callable[[int], Any], seconds: float) -> list[float]:
    """Call `put` with increasing numbers for `seconds`; the latency of each call."""
    latencies: list[float] = []
    clock = time.perf_counter
    end = clock() + seconds
    number = 0
    while (began := clock()) < end:
        put(number)
        latencies.append(clock() - began)
        number += 1
    return latencies


def threaded_puts(put: Callable[[int], Any], threads: int, seconds: float) -> float:
    """Puts per second of `threads` threads that put for `seconds`."""
    counts = [0] * threads
    barrier = threading.Barrier(threads + 1)
    problems: list[BaseException] = []

    def putter(index: int) -> None:
        barrier.wait()
        end = time.perf_counter() + seconds
        done = 0
        try:
            while time.perf_counter() < end:
                put(index * 10_000_000 + done)
                done += 1
        except BaseException as error:  # noqa: BLE001  raised in the caller's thread
            problems.append(error)
        counts[index] = done

    crew = [threading.Thread(target=putter, args=(index,)) for index in range(threads)]
    for one in crew:
        one.start()
    barrier.wait()
    began = time.perf_counter()
    for one in crew:
        one.join()
    if problems:
        raise problems[0]
    return sum(counts) / (time.perf_counter() - began)
