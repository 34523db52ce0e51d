"""Durable puts of 1 and 1,000 rows by 1, 16 and 64 threads; commits of small appends."""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from benchmarks import data
from benchmarks.harness import ANYWHERE, Ctx, Goal, Round, Side, Workload
from benchmarks.peers import (
    encode,
    make_table,
    object_store,
    one_shard,
    put_new,
    pylance_writer,
    slate,
    threaded_puts,
    timed_puts,
)

Put = Callable[[int], Any]
Open = Callable[[Ctx, int], AbstractContextManager[Put]]
FASTEST = {"max_wal_flush_interval_ms": 1}


def _rows(rows: int) -> Callable[[int], Any]:
    """Batches made beforehand, so no side is timed for making rows."""
    made = data.batches(512, rows)
    return lambda number: made[number % len(made)]


@contextmanager
def weir_put(ctx: Ctx, rows: int) -> Iterator[Put]:
    of = _rows(rows)
    with one_shard(make_table(ctx)).writer() as writer:
        yield lambda number: writer.put(of(number))


@contextmanager
def _pylance(ctx: Ctx, rows: int, settings: dict[str, Any]) -> Iterator[Put]:
    of = _rows(rows)
    writer = pylance_writer(ctx, make_table(ctx), **settings)
    yield lambda number: writer.put(of(number))
    writer.close()


def pylance_put(ctx: Ctx, rows: int) -> AbstractContextManager[Put]:
    return _pylance(ctx, rows, {})


def pylance_put_fastest(ctx: Ctx, rows: int) -> AbstractContextManager[Put]:
    return _pylance(ctx, rows, FASTEST)


@contextmanager
def floor_put(ctx: Ctx, rows: int) -> Iterator[Put]:
    of = _rows(rows)
    store = object_store(ctx)
    numbers = itertools.count()
    yield lambda number: put_new(store, next(numbers), encode(of(number)))


def latency(opened: Open, rows: int = 1) -> Side:
    """The median latency of one thread, in milliseconds."""

    @contextmanager
    def side(ctx: Ctx) -> Iterator[Round]:
        with opened(ctx, rows) as put:
            timed_puts(put, ctx.seconds / 4)
            yield lambda: statistics.median(timed_puts(put, ctx.seconds)) * 1e3

    return side


def throughput(opened: Open, threads: int) -> Side:
    """Puts per second of many threads, one row per put."""

    @contextmanager
    def side(ctx: Ctx) -> Iterator[Round]:
        with opened(ctx, 1) as put:
            threaded_puts(put, threads, ctx.seconds / 4)
            yield lambda: threaded_puts(put, threads, ctx.seconds)

    return side


def on_one_core(side: Side) -> Side:
    """The side with all threads of its process on one core; they share one interpreter anyway."""

    @contextmanager
    def pinned(ctx: Ctx) -> Iterator[Round]:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # inherited by new threads
        with side(ctx) as run:
            yield run

    return pinned


def slate_side(tasks: int, flush_interval: str | None = None) -> Side:
    """slatedb: median latency of one task in milliseconds, or puts per second of many."""

    @contextmanager
    def side(ctx: Ctx) -> Iterator[Round]:
        value = b"v" * 32
        with slate(ctx, flush_interval) as db:
            db.putters(tasks, ctx.seconds / 4, value)

            def run() -> float:
                latencies, took = db.putters(tasks, ctx.seconds, value)
                return statistics.median(latencies) * 1e3 if tasks == 1 else len(latencies) / took

            yield run

    return side


@contextmanager
def _append_loop(ctx: Ctx, append: Callable[[Any], Any]) -> Iterator[Round]:
    of = _rows(1)
    append(of(0))

    def run() -> float:
        taken = timed_puts(lambda number: append(of(number)), ctx.seconds)
        return len(taken) / sum(taken)

    yield run


def weir_appends(ctx: Ctx) -> AbstractContextManager[Round]:
    @contextmanager
    def side() -> Iterator[Round]:
        with (
            one_shard(make_table(ctx)).writer() as writer,
            _append_loop(ctx, writer.put) as run,
        ):
            yield run

    return side()


def lance_appends(ctx: Ctx) -> AbstractContextManager[Round]:
    import lance

    uri = ctx.uri("lance")

    def append(batch: Any) -> None:
        lance.write_dataset(batch, uri, mode="append", storage_options=ctx.options or None)

    lance.write_dataset(data.batch(0, 1), uri, storage_options=ctx.options or None)
    return _append_loop(ctx, append)


def delta_appends(ctx: Ctx) -> AbstractContextManager[Round]:
    import deltalake

    uri = ctx.uri("delta")
    options = {key.upper(): value for key, value in ctx.options.items()}
    if options:
        options["AWS_ALLOW_HTTP"] = options.pop("ALLOW_HTTP")
        options["conditional_put"] = "etag"

    def append(batch: Any) -> None:
        deltalake.write_deltalake(uri, batch, mode="append", storage_options=options or None)

    return _append_loop(ctx, append)


WORKLOADS = [
    Workload(
        "durable put, 1 row, 1 thread",
        unit="ms",
        better="lower",
        goal="within 1.25 of the floor; below every peer at any setting",
        goals=[Goal("floor", within=1.25), Goal("*", times=1.0)],
        sides={
            "weir": latency(weir_put),
            "floor": latency(floor_put),
            "pylance": latency(pylance_put),
            "pylance, 1 ms": latency(pylance_put_fastest),
            "slatedb": slate_side(1),
            "slatedb, 1 ms": slate_side(1, "1ms"),
        },
        where=ANYWHERE,
        note="median latency; the floor encodes Arrow IPC and puts it if absent",
    ),
    Workload(
        "durable put, 1 row, 16 threads",
        unit="puts/s",
        better="higher",
        goal="10 x pylance at its fastest, 5 x slatedb at 1 ms",
        goals=[Goal("pylance, 1 ms", times=10), Goal("slatedb, 1 ms", times=5)],
        sides={
            "weir": throughput(weir_put, 16),
            "weir, one core": on_one_core(throughput(weir_put, 16)),
            "floor": throughput(floor_put, 16),
            "pylance": throughput(pylance_put, 16),
            "pylance, 1 ms": throughput(pylance_put_fastest, 16),
            "slatedb": slate_side(16),
            "slatedb, 1 ms": slate_side(16, "1ms"),
        },
        note="the floor's threads write one object each, all at once, in no order",
    ),
    Workload(
        "durable put, 1 row, 64 threads",
        unit="puts/s",
        better="higher",
        goal="15 x pylance at its fastest, 5 x slatedb at 1 ms",
        goals=[Goal("pylance, 1 ms", times=15), Goal("slatedb, 1 ms", times=5)],
        sides={
            "weir": throughput(weir_put, 64),
            "weir, one core": on_one_core(throughput(weir_put, 64)),
            "floor": throughput(floor_put, 64),
            "pylance": throughput(pylance_put, 64),
            "pylance, 1 ms": throughput(pylance_put_fastest, 64),
            "slatedb, 1 ms": slate_side(64, "1ms"),
        },
    ),
    Workload(
        "durable put, 1,000 rows, 1 thread",
        unit="ms",
        better="lower",
        goal="within 1.25 of the floor",
        goals=[Goal("floor", within=1.25)],
        sides={
            "weir": latency(weir_put, 1000),
            "floor": latency(floor_put, 1000),
            "pylance": latency(pylance_put, 1000),
            "pylance, 1 ms": latency(pylance_put_fastest, 1000),
        },
    ),
    Workload(
        "commits of 1-row appends",
        unit="commits/s",
        better="higher",
        goal="10 x write_dataset append, 50 x deltalake",
        goals=[Goal("write_dataset append", times=10), Goal("deltalake append", times=50)],
        sides={
            "weir": weir_appends,
            "write_dataset append": lance_appends,
            "deltalake append": delta_appends,
        },
        note="one thread; each call returns when its row is durable",
    ),
]
