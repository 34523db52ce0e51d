"""Many shards of a few rows: the cost of verbs by number of shards, and scans beside one shard."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import weir
from benchmarks.harness import Ctx, Goal, Round, Side, Workload
from benchmarks.peers import make_table

ROWS = 20
FEW, MANY = 128, 1_024
Verb = Callable[[weir.Table], Any]


def _count(ctx: Ctx, shards: int) -> int:
    """The number of shards; smaller runs have fewer, with the same ratio."""
    return max(1, shards // ctx.n(1, 4, 32))


def _rows(count: int) -> list[dict[str, Any]]:
    return [{"id": i, "v": i * 0.5, "s": "text of row 00000000"} for i in range(count)]


def filled(ctx: Ctx, shards: int, *, rows_of: int | None = None, checkpoints: int = 1) -> Any:
    """A table with `ROWS` flushed rows per shard, and its checkpoints."""
    count = _count(ctx, shards)
    sharding = weir.Bucket("id", count) if shards > 1 else weir.Unsharded()
    table = make_table(ctx, f"shards{shards}", sharding=sharding)
    with table.writer() as writer:
        writer.put(_rows(ROWS * _count(ctx, rows_of or shards)))
    for _ in range(checkpoints):
        table.checkpoint(scope="durable")
    return table


def costs(
    verb: Verb, shards: int, *, rows_of: int | None = None, checkpoints: int = 1, calls: int = 3
) -> Side:
    """The median latency of a verb in milliseconds, after one warm-up call."""

    @contextmanager
    def side(ctx: Ctx) -> Iterator[Round]:
        table = filled(ctx, shards, rows_of=rows_of, checkpoints=checkpoints)
        verb(table)

        def run() -> float:
            taken = []
            for _ in range(ctx.n(calls, calls, 1)):
                began = time.perf_counter()
                verb(table)
                taken.append(time.perf_counter() - began)
            return statistics.median(taken) * 1e3

        yield run

    return side


def _scan(table: weir.Table) -> Any:
    return table.scan().to_table()


def _checkpoint(table: weir.Table) -> Any:
    return table.delete_checkpoint(table.checkpoint())


def _open_and_close(table: weir.Table) -> Any:
    """Put rows to every shard, through writers that are opened and closed for it."""
    with table.writer() as writer:
        writer.put(_rows(ROWS * len(table.core.record.routing)))


def _compact(table: weir.Table) -> Any:
    _open_and_close(table)
    began = time.perf_counter()
    table.compact()
    return time.perf_counter() - began


def compacts(shards: int) -> Side:
    """Milliseconds to compact the rows that every shard flushed; the puts are not timed."""

    @contextmanager
    def side(ctx: Ctx) -> Iterator[Round]:
        table = filled(ctx, shards, checkpoints=0)
        _compact(table)
        yield lambda: _compact(table) * 1e3

    return side


def _by_number(name: str, side: Callable[[int], Side]) -> Workload:
    return Workload(
        f"{MANY:,} shards, {name}",
        unit="ms",
        better="lower",
        goal=f"12 times {FEW} shards",
        goals=[Goal(f"{FEW} shards", within=12)],
        sides={"weir": side(MANY), f"{FEW} shards": side(FEW)},
        where=("local",),
        rounds_max=3,
        note=f"{ROWS} rows a shard, one checkpoint",
    )


WORKLOADS = [
    Workload(
        f"{MANY:,} shards, warm scan",
        unit="ms",
        better="lower",
        goal="8 times one shard",
        goals=[Goal("one shard", within=8)],
        sides={
            "weir": costs(_scan, MANY, calls=7),
            "one shard": costs(_scan, 1, rows_of=MANY, calls=7),
            f"{FEW} shards": costs(_scan, FEW, calls=7),
        },
        where=("local",),
        rounds_max=3,
        note=f"{ROWS} rows a shard; the same rows in one shard; a durable read asks every shard",
    ),
    _by_number("stats", lambda n: costs(lambda table: table.stats(), n)),
    _by_number("checkpoint", lambda n: costs(_checkpoint, n)),
    _by_number("compact", compacts),
    _by_number("gc", lambda n: costs(lambda table: table.gc(), n)),
    _by_number("first put and close", lambda n: costs(_open_and_close, n, calls=1)),
    Workload(
        f"{FEW} shards, gc with 10 checkpoints",
        unit="ms",
        better="lower",
        goal="1.5 times with one",
        goals=[Goal("one checkpoint", within=1.5)],
        sides={
            "weir": costs(lambda table: table.gc(), FEW, checkpoints=10),
            "one checkpoint": costs(lambda table: table.gc(), FEW),
        },
        where=("local",),
        note="each checkpoint has a pin of every shard",
    ),
]
