"""Merged scans, point lookups, and how soon another process sees an acknowledged row."""

from __future__ import annotations

import itertools
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import lance
import obstore
import pyarrow as pa

import weir
from benchmarks.harness import ANYWHERE, Ctx, Goal, Round, Workload
from benchmarks.peers import make_table, object_store, timed_puts
from benchmarks.tables import fresh_keys, make_layers, snapshots


def _layers(ctx: Ctx, *, btree: bool) -> dict[str, Any]:
    return make_layers(
        ctx,
        base_rows=ctx.n(2_000_000, 200_000, 1000),
        generations=4,
        generation_rows=ctx.n(50_000, 5000, 50),
        btree=btree,
    )


def _open(ctx: Ctx) -> weir.Table:
    return weir.open(ctx.data["uri"], storage_options=ctx.options or None)


def _dataset(ctx: Ctx) -> Any:
    return lance.dataset(ctx.data["uri"], storage_options=ctx.options or None)


@contextmanager
def scan_weir(ctx: Ctx) -> Iterator[Round]:
    table = _open(ctx)
    counts: set[int] = set()

    def run() -> float:
        began = time.perf_counter()
        counts.add(table.scan().to_table().num_rows)
        took = time.perf_counter() - began
        assert len(counts) == 1
        return took * 1e3

    run()
    yield run


@contextmanager
def scan_pylance(ctx: Ctx) -> Iterator[Round]:
    from lance.mem_wal import LsmScanner

    table = _open(ctx)
    expected = table.scan().count()

    def run() -> float:
        began = time.perf_counter()
        scanner = LsmScanner.from_snapshots(_dataset(ctx), snapshots(table))
        rows = sum(batch.num_rows for batch in scanner.to_batches())
        took = time.perf_counter() - began
        assert rows == expected
        return took * 1e3

    yield run


@contextmanager
def scan_base(ctx: Ctx) -> Iterator[Round]:
    """Lance reads the base alone; no merge can be faster."""

    def run() -> float:
        began = time.perf_counter()
        _dataset(ctx).to_table()
        return (time.perf_counter() - began) * 1e3

    run()
    yield run


def _keys(ctx: Ctx) -> Callable[[], int]:
    """Draws keys, alternating between the newest generation and the base."""
    chance = random.Random(7)
    fresh = fresh_keys(ctx, ctx.n(50_000, 5000, 50))
    base_rows = ctx.data["base_rows"]
    turn = itertools.cycle((True, False))
    return lambda: chance.choice(fresh) if next(turn) else chance.randrange(base_rows)


@contextmanager
def _lookups(ctx: Ctx, get: Callable[[int], pa.Table], *, warm: int) -> Iterator[Round]:
    key = _keys(ctx)

    def one(_: int) -> None:
        assert get(key()).num_rows == 1

    for number in range(warm):
        one(number)
    yield lambda: statistics.median(timed_puts(one, ctx.seconds)) * 1e3


@contextmanager
def warm_weir(ctx: Ctx, freshness: Any = "durable") -> Iterator[Round]:
    table = _open(ctx)
    warm = ctx.n(200, 50, 2)
    with _lookups(ctx, lambda key: table.get([key], freshness=freshness), warm=warm) as run:
        yield run


@contextmanager
def warm_planner(ctx: Ctx) -> Iterator[Round]:
    from lance.mem_wal import LsmPointLookupPlanner

    planner = LsmPointLookupPlanner(_dataset(ctx), snapshots(_open(ctx)), ["id"])

    def get(key: int) -> pa.Table:
        return planner.plan_lookup(pa.array([key], pa.int64())).to_table()

    with _lookups(ctx, get, warm=ctx.n(20, 5, 1)) as run:
        yield run


@contextmanager
def _cold(ctx: Ctx, get: Callable[[int], pa.Table]) -> Iterator[Round]:
    key = _keys(ctx)

    def run() -> float:
        taken = []
        for _ in range(ctx.n(10, 4, 1)):
            wanted = key()
            began = time.perf_counter()
            found = get(wanted)
            taken.append(time.perf_counter() - began)
            assert found.num_rows == 1
        return statistics.median(taken) * 1e3

    get(key())
    yield run


@contextmanager
def cold_weir(ctx: Ctx) -> Iterator[Round]:
    with _cold(ctx, lambda key: _open(ctx).get([key])) as run:
        yield run


@contextmanager
def cold_planner(ctx: Ctx) -> Iterator[Round]:
    from lance.mem_wal import LsmPointLookupPlanner

    def get(key: int) -> pa.Table:
        # Opens the table with weir too: the planner cannot find the SSTables by itself.
        planner = LsmPointLookupPlanner(_dataset(ctx), snapshots(_open(ctx)), ["id"])
        return planner.plan_lookup(pa.array([key], pa.int64())).to_table()

    with _cold(ctx, get) as run:
        yield run


@contextmanager
def seen_weir(ctx: Ctx) -> Iterator[Round]:
    """Another process puts; this one reads each row right after its acknowledgement."""
    # Never flushed, so the reader always has a log to read.
    table = make_table(ctx, writer_defaults=weir.WriterConfig(max_memtable_batches=100_000))
    command = [sys.executable, "-m", "benchmarks.putter"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        say = partial(_say, writer)
        say({"uri": table.uri, "options": ctx.options})
        numbers = itertools.count(1)

        def run() -> float:
            taken = []
            end = time.perf_counter() + ctx.seconds
            while time.perf_counter() < end or len(taken) < 3:
                number = next(numbers)
                say(number)
                began = time.perf_counter()
                found = table.get([number])
                taken.append(time.perf_counter() - began)
                assert found.num_rows == 1
            return statistics.median(taken) * 1e3

        run()
        yield run
        writer.stdin.close()


def _say(process: Any, message: object) -> None:
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()
    if not process.stdout.readline():
        raise RuntimeError("the writing process ended")


@contextmanager
def round_trip(ctx: Ctx) -> Iterator[Round]:
    """One get of a small object."""
    store = object_store(ctx)
    obstore.put(store, "object", b"x" * 1024)

    def one(_: int) -> None:
        obstore.get(store, "object").bytes()

    timed_puts(one, ctx.seconds / 4)
    yield lambda: statistics.median(timed_puts(one, ctx.seconds)) * 1e3


WORKLOADS = [
    Workload(
        "merged scan, 2M base rows + 4 x 50k SSTables",
        unit="ms",
        better="lower",
        goal="20 x pylance's LsmScanner",
        goals=[Goal("LsmScanner", times=20)],
        prepare=partial(_layers, btree=False),
        sides={"weir": scan_weir, "floor": scan_base, "LsmScanner": scan_pylance},
        note="all columns into memory; the floor reads the base alone with pylance",
        rounds_max=3,
    ),
    Workload(
        "point lookup, warm",
        unit="ms",
        better="lower",
        goal="a tenth of pylance's planner",
        goals=[Goal("LsmPointLookupPlanner", times=10)],
        prepare=partial(_layers, btree=True),
        sides={"weir": warm_weir, "LsmPointLookupPlanner": warm_planner},
        note="one key a call, BTree on the base; weir takes a new snapshot for each call, the"
        " planner keeps the one it was made with",
    ),
    Workload(
        "point lookup, warm, SSTables and base only",
        unit="ms",
        better="lower",
        goal="a tenth of pylance's planner",
        goals=[Goal("LsmPointLookupPlanner", times=10)],
        prepare=partial(_layers, btree=True),
        sides={
            "weir": partial(warm_weir, freshness="flushed"),
            "LsmPointLookupPlanner": warm_planner,
        },
        note='freshness="flushed": what the planner sees too',
    ),
    Workload(
        "point lookup, cold",
        unit="ms",
        better="lower",
        goal="reported",
        prepare=partial(_layers, btree=True),
        sides={"weir": cold_weir, "LsmPointLookupPlanner": cold_planner},
        note="open the table, then one key; nothing of it in this process's memory",
    ),
    Workload(
        "durable read from another process, after the acknowledgement",
        unit="ms",
        better="lower",
        goal="within 3 store round trips",
        goals=[Goal("floor", within=3.0)],
        sides={"weir": seen_weir, "floor": round_trip},
        where=ANYWHERE,
        note="median of table.get of the row just put; the floor is one get of 1 KiB",
    ),
]
