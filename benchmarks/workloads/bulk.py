"""Loads of several 100,000 rows, puts not awaited, until all are in SSTables or in the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import weir
from benchmarks import data
from benchmarks.harness import Ctx, Goal, Round, Side, Workload
from benchmarks.peers import (
    encode,
    make_table,
    object_store,
    one_shard,
    put_new,
    pylance_writer,
)


def _batches(ctx: Ctx, rows: int) -> list[Any]:
    return data.batches(ctx.n(500_000, 100_000, 4000) // rows or 2, rows)


def bulk_side(rows: int, load: Callable[[Ctx, list[Any]], float]) -> Side:
    """Rows per second; every round fills a new table."""

    @contextmanager
    def side(ctx: Ctx) -> Iterator[Round]:
        batches = _batches(ctx, rows)
        total = sum(batch.num_rows for batch in batches)
        yield lambda: total / load(ctx, batches)

    return side


def weir_load(ctx: Ctx, batches: list[Any]) -> float:
    shard = one_shard(make_table(ctx))
    writer = shard.writer(weir.WriterConfig(durable_write=False))
    began = time.perf_counter()
    for batch in batches:
        writer.put(batch)
    writer.close()
    return time.perf_counter() - began


def weir_load_wal(ctx: Ctx, batches: list[Any]) -> float:
    shard = one_shard(make_table(ctx))
    writer = shard.writer(weir.WriterConfig(durable_write=False, enable_memtable=False))
    began = time.perf_counter()
    for batch in batches:
        writer.put(batch)
    writer.close()
    return time.perf_counter() - began


def pylance_load(**settings: Any) -> Callable[[Ctx, list[Any]], float]:
    def load(ctx: Ctx, batches: list[Any]) -> float:
        writer = pylance_writer(ctx, make_table(ctx), durable_write=False, **settings)
        began = time.perf_counter()
        for batch in batches:
            writer.put(batch)
        writer.close()
        return time.perf_counter() - began

    return load


def floor_load(ctx: Ctx, batches: list[Any]) -> float:
    store = object_store(ctx)
    began = time.perf_counter()
    for number, batch in enumerate(batches):
        put_new(store, number, encode(batch))
    return time.perf_counter() - began


def _bulk(name: str, rows: int) -> Workload:
    return Workload(
        f"bulk load with flush, {name} batches",
        unit="rows/s",
        better="higher",
        goal="1.5 x pylance",
        goals=[Goal("pylance", times=1.5), Goal("pylance, 1 ms", times=1.5)],
        sides={
            "weir": bulk_side(rows, weir_load),
            "pylance": bulk_side(rows, pylance_load()),
            "pylance, 1 ms": bulk_side(rows, pylance_load(max_wal_flush_interval_ms=1)),
        },
        note="puts not awaited; the time includes close, after which all rows are in SSTables",
        rounds_max=5,
    )


WORKLOADS = [
    _bulk("1,000-row", 1000),
    _bulk("10,000-row", 10_000),
    Workload(
        "bulk load, WAL only, 10,000-row batches",
        unit="rows/s",
        better="higher",
        goal="within 1.1 of the floor",
        goals=[Goal("floor", within=1.1)],
        sides={
            "weir": bulk_side(10_000, weir_load_wal),
            "floor": bulk_side(10_000, floor_load),
        },
        note="the floor writes one object for each batch; the time includes close",
    ),
]
