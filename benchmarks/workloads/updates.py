"""Writes that read first: updates by key or by filter, inserts, YCSB workloads A and F."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lance

import weir
from benchmarks import data
from benchmarks.harness import Ctx, Goal, Round, Side, Workload
from benchmarks.peers import make_table, one_shard, slate, threaded_puts
from benchmarks.tables import copy_table, drop_table, make_layers

WARM = 1_000
"""Keys that exist, all in the MemTable."""
THREADS = 16
Call = Callable[[int], Any]


def _key(number: int) -> int:
    return (number * 2_654_435_761 >> 11) % WARM


def _row(key: int) -> dict[str, Any]:
    return {"id": key, "v": key * 0.5, "s": f"text of row {key:08d}"}


def _side(make: Callable[[Any], Call], threads: int = THREADS) -> Side:
    """Calls per second of many threads on one shard whose keys are in the MemTable."""

    @contextmanager
    def side(ctx: Ctx) -> Iterator[Round]:
        with one_shard(make_table(ctx)).writer() as writer:
            writer.put(data.batch(0, WARM))
            call = make(writer)
            threaded_puts(call, threads, ctx.seconds / 4)
            yield lambda: threaded_puts(call, threads, ctx.seconds)

    return side


def update_one_column(writer: Any) -> Call:
    return lambda number: writer.update([{"id": _key(number), "v": 1.5}])


def put_whole_rows(writer: Any) -> Call:
    return lambda number: writer.put([_row(_key(number))])


def _fresh(write: Callable[[Any], Any]) -> Call:
    """Write keys that no earlier call used."""
    numbers = itertools.count(WARM)
    return lambda _: write([_row(next(numbers))])


def insert_new_keys(writer: Any) -> Call:
    return _fresh(writer.insert)


def put_new_keys(writer: Any) -> Call:
    return _fresh(writer.put)


def ycsb_a(writer: Any) -> Call:
    """Half reads, half updates of one field."""

    def call(number: int) -> None:
        if number % 2:
            writer.get([_key(number)])
        else:
            writer.update([{"id": _key(number), "v": float(number)}])

    return call


def ycsb_f(writer: Any) -> Call:
    """Half reads, half read-modify-writes."""

    def call(number: int) -> None:
        found = writer.get([_key(number)])["v"][0].as_py()
        if number % 2:
            writer.update([{"id": _key(number), "v": (found or 0.0) + 1}])

    return call


def slate_mix() -> Side:
    """slatedb: half reads, half a get followed by a put of the changed value."""

    @contextmanager
    def side(ctx: Ctx) -> Iterator[Round]:
        with slate(ctx, "1ms") as db:
            keys = [b"%020d" % key for key in range(WARM)]

            async def fill() -> None:
                await asyncio.gather(*(db.put(key, b"v" * 40) for key in keys))

            async def task(seed: int, end: float) -> int:
                rng, done = random.Random(seed), 0
                while time.perf_counter() < end:
                    key = keys[rng.randrange(WARM)]
                    found = await db.get(key)
                    if done % 2:
                        await db.put(key, (found or b"")[:-1] + b"w")
                    done += 1
                return done

            async def everyone(seconds: float) -> float:
                began = time.perf_counter()
                tasks = [task(seed, began + seconds) for seed in range(THREADS)]
                return sum(await asyncio.gather(*tasks)) / (time.perf_counter() - began)

            db.run(fill())
            db.run(everyone(ctx.seconds / 4))
            yield lambda: db.run(everyone(ctx.seconds))

    return side


WHERE = "id % 100 = 7"
"""One row in a hundred, spread over the whole table; no index helps to find them."""


def _large(ctx: Ctx) -> dict[str, Any]:
    rows = ctx.n(2_000_000, 200_000, 1000)
    return make_layers(ctx, base_rows=rows, generations=0, generation_rows=0, btree=False)


@contextmanager
def where_weir(ctx: Ctx) -> Iterator[Round]:
    """A writer's `update_where` with all rows in the base; durable on return."""

    def run() -> float:
        uri = copy_table(ctx, ctx.data["uri"])
        table = weir.open(uri, storage_options=ctx.options or None)
        with one_shard(table).writer() as writer:
            began = time.perf_counter()
            counts = writer.update_where(WHERE, {"v": "v * 1.1"})
            took = time.perf_counter() - began
        assert counts.updated == ctx.data["base_rows"] // 100
        drop_table(ctx, uri)
        return took * 1e3

    yield run


@contextmanager
def where_lance(ctx: Ctx) -> Iterator[Round]:
    """Lance's own update of the same rows of the base, in one commit."""

    def run() -> float:
        uri = copy_table(ctx, ctx.data["uri"])
        dataset = lance.dataset(uri, storage_options=ctx.options or None)
        began = time.perf_counter()
        dataset.update({"v": "v * 1.1"}, where=WHERE)
        took = time.perf_counter() - began
        drop_table(ctx, uri)
        return took * 1e3

    yield run


WORKLOADS = [
    Workload(
        "update_where, 1 % of 2M rows",
        unit="ms",
        better="lower",
        goal="within 1.5 of lance.update on the base",
        goals=[Goal("lance.update", within=1.5)],
        prepare=_large,
        sides={"weir": where_weir, "lance.update": where_lance},
        note="the same predicate and expression, no index; the log against one commit",
        rounds_max=9,
    ),
    Workload(
        "update of one column, 16 threads",
        unit="rows/s",
        better="higher",
        goal="0.5 of a put of the same rows",
        goals=[Goal("put of whole rows", times=0.5)],
        sides={"weir": _side(update_one_column), "put of whole rows": _side(put_whole_rows)},
        note="keys in the MemTable; rows as dicts, one a call",
    ),
    Workload(
        "insert of new keys, 16 threads",
        unit="rows/s",
        better="higher",
        goal="0.7 of a put of the same rows",
        goals=[Goal("put of new keys", times=0.7)],
        sides={"weir": _side(insert_new_keys), "put of new keys": _side(put_new_keys)},
        note="rows as dicts, one a call",
    ),
    Workload(
        "YCSB A, 16 threads",
        unit="operations/s",
        better="higher",
        goal="ahead of slatedb",
        goals=[Goal("slatedb, 1 ms", times=1.0)],
        sides={"weir": _side(ycsb_a), "slatedb, 1 ms": slate_mix()},
        note="half reads, half updates of one field; slatedb: get and put; durable",
    ),
    Workload(
        "YCSB F, 16 threads",
        unit="operations/s",
        better="higher",
        goal="ahead of slatedb",
        goals=[Goal("slatedb, 1 ms", times=1.0)],
        sides={"weir": _side(ycsb_f), "slatedb, 1 ms": slate_mix()},
        note="half reads, half read-modify-write; slatedb: get and put; durable",
    ),
]
