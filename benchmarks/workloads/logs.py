"""Reading the log from end to end, and replaying it at open."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import obstore
import pyarrow as pa

import weir
from benchmarks import data
from benchmarks.harness import ANYWHERE, Ctx, Goal, Round, Workload
from benchmarks.peers import make_table, obstore_at, one_shard, pylance_writer
from weir.format import paths
from weir.types import Position

UNFLUSHED = weir.WriterConfig(max_memtable_rows=100_000_000, max_memtable_batches=100_000_000)


def _fill(ctx: Ctx, entries: int, rows: int) -> weir.Table:
    """A table whose log holds `entries` entries, none flushed: its writer is never closed."""
    table = make_table(ctx, "log", writer_defaults=UNFLUSHED)
    writer = one_shard(table).writer()
    for batch in data.batches(entries, rows):
        writer.put(batch)
    return table


def _make_log(ctx: Ctx, *, small: bool) -> dict[str, Any]:
    entries = ctx.n(2000, 500, 10) if small else ctx.n(500, 100, 4)
    table = _fill(ctx, entries, 1 if small else 1000)
    return {"uri": table.uri, "entries": entries}


@contextmanager
def tail_weir(ctx: Ctx, rows: int) -> Iterator[Round]:
    table = weir.open(ctx.data["uri"], storage_options=ctx.options or None)
    shard = one_shard(table)

    def run() -> float:
        began = time.perf_counter()
        found = sum(entry.num_rows for entry in shard.tailer())
        took = time.perf_counter() - began
        assert found == ctx.data["entries"] * rows
        return found / took

    yield run


@contextmanager
def tail_floor(ctx: Ctx, rows: int) -> Iterator[Round]:
    """Get and decode the same objects, one after the other; the first object is a fence."""
    uri = ctx.data["uri"]
    shard = one_shard(weir.open(uri, storage_options=ctx.options or None)).id
    store = obstore_at(uri, ctx.options)
    entries = ctx.data["entries"]
    names = [paths.wal_path(shard, Position(i)) for i in range(1, entries + 2)]

    def run() -> float:
        began = time.perf_counter()
        found = 0
        for name in names:
            body = obstore.get(store, name).bytes()
            found += pa.ipc.open_stream(pa.py_buffer(body)).read_all().num_rows
        took = time.perf_counter() - began
        assert found == entries * rows
        return found / took

    yield run


@contextmanager
def replay_weir(ctx: Ctx) -> Iterator[Round]:
    entries = ctx.n(500, 100, 3)
    shard = one_shard(_fill(ctx, entries, 1000))
    shown: list[Any] = []

    def run() -> float:
        began = time.perf_counter()
        writer = shard.writer()
        took = time.perf_counter() - began
        assert writer.memtable_stats().rows == entries * 1000
        shown[:] = [writer]
        return took * 1e3

    yield run


@contextmanager
def replay_pylance(ctx: Ctx) -> Iterator[Round]:
    entries = ctx.n(500, 100, 3)
    table = _fill(ctx, entries, 1000)
    shown: list[Any] = []

    def run() -> float:
        began = time.perf_counter()
        writer = pylance_writer(
            ctx, table, max_memtable_rows=100_000_000, max_memtable_batches=100_000_000
        )
        took = time.perf_counter() - began
        assert writer.memtable_stats()["row_count"] == entries * 1000
        shown[:] = [writer]
        return took * 1e3

    yield run


def _tail(name: str, rows: int, *, small: bool) -> Workload:
    return Workload(
        f"tailer, {name}",
        unit="entries/s" if small else "rows/s",
        better="higher",
        goal="local: within 1.2 of the floor; S3: 4 x the serial floor",
        goals={"local": [Goal("floor", within=1.2)], "s3": [Goal("floor", times=4)]},
        prepare=partial(_make_log, small=small),
        sides={"weir": partial(tail_weir, rows=rows), "floor": partial(tail_floor, rows=rows)},
        where=ANYWHERE,
        note="the floor gets and decodes the same objects one after the other",
    )


WORKLOADS = [
    _tail("1-row entries", 1, small=True),
    _tail("1,000-row entries", 1000, small=False),
    Workload(
        "replay at open, 500 entries of 1,000 rows",
        unit="ms",
        better="lower",
        goal="local: 1.2 x pylance; S3: 5 x",
        goals={"local": [Goal("pylance", times=1.2)], "s3": [Goal("pylance", times=5)]},
        sides={"weir": replay_weir, "pylance": replay_pylance},
        where=ANYWHERE,
        note="claim, fence and replay; both open a log that weir wrote",
        rounds_max=5,
    ),
]
