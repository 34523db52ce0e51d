"""The APIs that users call: `table.writer()` and tasks, rows as dicts, beside a shard's writer."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyarrow as pa

import weir
from benchmarks import data
from benchmarks.harness import Ctx, Goal, Round, Side, Workload
from benchmarks.peers import (
    encode,
    make_table,
    object_store,
    one_shard,
    put_new,
    threaded_puts,
)
from benchmarks.workloads.puts import Open, Put, throughput, weir_put

APut = Callable[[int], Awaitable[Any]]
QUANTILES = (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))


def row(number: int) -> dict[str, Any]:
    return {"id": number, "v": number * 0.5, "s": "text of row 00000000"}


@contextmanager
def shard_dicts(ctx: Ctx, _rows: int) -> Iterator[Put]:
    with one_shard(make_table(ctx)).writer() as writer:
        yield lambda number: writer.put([row(number)])


def table_dicts(shards: int) -> Open:
    @contextmanager
    def opened(ctx: Ctx, _rows: int) -> Iterator[Put]:
        with _table(ctx, shards).writer() as writer:
            writer.put([row(number) for number in range(64)])  # opens every shard
            yield lambda number: writer.put([row(number)])

    return opened


def _table(ctx: Ctx, shards: int) -> weir.Table:
    sharding = weir.Bucket("id", shards) if shards > 1 else weir.Unsharded()
    return make_table(ctx, sharding=sharding)


def quantile(opened: Open, threads: int, share: float) -> Side:
    """The `share` quantile of the put latencies of `threads` threads, in milliseconds."""

    @contextmanager
    def side(ctx: Ctx) -> Iterator[Round]:
        with opened(ctx, 1) as put:
            threaded_puts(put, threads, ctx.seconds / 4)

            yield lambda: timed(put, threads, ctx.seconds, share)

    return side


def timed(put: Put, threads: int, seconds: float, share: float) -> float:
    """Put for `seconds`; the `share` quantile of the latencies, in milliseconds."""
    latencies: list[float] = []

    def one(number: int) -> None:
        began = time.perf_counter()
        put(number)
        latencies.append(time.perf_counter() - began)

    threaded_puts(one, threads, seconds)
    latencies.sort()
    return latencies[min(len(latencies) - 1, int(share * len(latencies)))] * 1e3


def by_tasks(opened: Callable[[Ctx], AbstractContextManager[APut]], tasks: int) -> Side:
    """Puts per second of `tasks` tasks of one event loop, one row per put."""

    @contextmanager
    def side(ctx: Ctx) -> Iterator[Round]:
        with opened(ctx) as put:

            async def run(seconds: float) -> float:
                done = itertools.count()
                began = time.perf_counter()

                async def task(first: int) -> None:
                    # Each task puts at least once: starting them all takes longer than a tiny run.
                    for number in itertools.count(first * 1_000_000):
                        await put(number)
                        next(done)
                        if time.perf_counter() >= began + seconds:
                            break

                await asyncio.gather(*(task(index) for index in range(tasks)))
                return next(done) / (time.perf_counter() - began)

            asyncio.run(run(ctx.seconds / 4))
            yield lambda: asyncio.run(run(ctx.seconds))

    return side


def table_tasks(shards: int) -> Callable[[Ctx], AbstractContextManager[APut]]:
    @contextmanager
    def opened(ctx: Ctx) -> Iterator[APut]:
        with _table(ctx, shards).writer() as writer:
            writer.put([row(number) for number in range(64)])
            yield lambda number: writer.aput([row(number)])

    return opened


@contextmanager
def shard_tasks(ctx: Ctx) -> Iterator[APut]:
    with one_shard(make_table(ctx)).writer() as writer:
        yield lambda number: writer.aput([row(number)])


@contextmanager
def floor_tasks(ctx: Ctx) -> Iterator[APut]:
    """One future per put and one object per group; no checks, no MemTable, no ordering."""
    store = object_store(ctx)
    numbers = itertools.count()
    waiting: list[tuple[dict[str, Any], asyncio.Future[None]]] = []
    wake, stop = threading.Event(), threading.Event()

    def finish(futures: list[asyncio.Future[None]]) -> None:
        for future in futures:
            future.set_result(None)

    def write() -> None:
        while not stop.is_set():
            wake.wait()
            wake.clear()
            group = waiting[:]
            del waiting[: len(group)]
            if group:
                rows = pa.RecordBatch.from_pylist([one for one, _ in group], data.SCHEMA)
                put_new(store, next(numbers), encode(rows))
                loop = group[0][1].get_loop()
                loop.call_soon_threadsafe(finish, [future for _, future in group])

    def put(number: int) -> Awaitable[None]:
        future = asyncio.get_running_loop().create_future()
        waiting.append((row(number), future))
        wake.set()
        return future

    writer = threading.Thread(target=write)
    writer.start()
    yield put
    stop.set()
    wake.set()
    writer.join()


def _threads(count: int) -> Workload:
    goal, goals = "0.9 of the shard's writer", [Goal("shard's writer", times=0.9)]
    if count >= 16:
        goal += ", 0.85 of ready batches"
        goals.append(Goal("shard's writer, ready batches", times=0.85))
    return Workload(
        f"front door, 1-row dicts, {_named(count)}",
        unit="puts/s",
        better="higher",
        goal=goal,
        goals=goals,
        sides={
            "weir": throughput(table_dicts(1), count),
            "shard's writer": throughput(shard_dicts, count),
            "shard's writer, ready batches": throughput(weir_put, count),
        },
        where=("local", "s3"),
        note="through `table.writer()`, one shard; the peers are weir's own other doors",
    )


def _named(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _four_shards(count: int) -> Workload:
    return Workload(
        f"front door, 4 shards, 1-row dicts, {_named(count)}",
        unit="puts/s",
        better="higher",
        goal="not slower than one shard",
        goals=[Goal("one shard", times=1.0)],
        sides={
            "weir": throughput(table_dicts(4), count),
            "one shard": throughput(table_dicts(1), count),
        },
        where=("local", "s3", "far"),
        note="through `table.writer()`; each put is of one shard",
    )


def _tasks(count: int) -> Workload:
    return Workload(
        f"front door, 1-row dicts, {count:,} tasks",
        unit="puts/s",
        better="higher",
        goal="within 2.5 of the floor",
        goals={"local": [Goal("floor", within=2.5)]},
        sides={
            "weir": by_tasks(table_tasks(1), count),
            "floor": by_tasks(floor_tasks, count),
            "4 shards": by_tasks(table_tasks(4), count),
            "shard's writer": by_tasks(shard_tasks, count),
            "shard's writer, 16 threads": throughput(shard_dicts, 16),
        },
        where=("local", "far"),
        note="the floor: one future a put, one object a group, in bare asyncio",
    )


def _latency(name: str, share: float) -> Workload:
    return Workload(
        f"front door, 1-row dicts, 16 threads, {name}",
        unit="ms",
        better="lower",
        goal="",
        sides={
            "weir": quantile(table_dicts(1), 16, share),
            "4 shards": quantile(table_dicts(4), 16, share),
            "shard's writer": quantile(shard_dicts, 16, share),
            "shard's writer, ready batches": quantile(weir_put, 16, share),
        },
        where=("local",),
    )


WORKLOADS = [
    *(_threads(count) for count in (1, 16, 64)),
    *(_four_shards(count) for count in (1, 16, 64)),
    *(_tasks(count) for count in (256, 2000)),
    *(_latency(name, share) for name, share in QUANTILES),
]
