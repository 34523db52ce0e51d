"""A few seconds of puts and reads on somebody's own store; behind `weir bench`.

Says what this store gives; comparisons with other systems are in `benchmarks/`.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa

import weir
from weir.format import paths
from weir.store.api import Store
from weir.store.open import open_store

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("value", pa.float64()),
        pa.field("text", pa.string()),
    ]
)


@dataclass(frozen=True)
class Line:
    """One measurement; times in seconds."""

    name: str
    per_second: float
    p50: float
    p99: float
    calls: int


@dataclass(frozen=True)
class Report:
    """What `weir bench` shows."""

    uri: str
    lines: tuple[Line, ...]


def run(
    uri: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    seconds: float = 5.0,
    putters: int = 8,
    rows: int = 10,
) -> Report:
    """Measure durable puts, fresh lookups and fresh scans in a scratch table below `uri`.

    The first two lines are the floor: the same store asked directly, without weir; a put of one row
    cannot take less than the first of them. The table is deleted afterwards, also when something
    fails. Takes about six times `seconds`.
    """
    place = f"{uri.rstrip('/')}/weir-bench-{uuid4().hex[:8]}"
    try:
        table = weir.create(place, SCHEMA, primary_key="id", storage_options=storage_options)
        lines = _floor(open_store(place, storage_options), seconds)
        with table.shard(0).writer() as writer:
            one = _batch(0, 1)
            group = _batch(0, rows)
            lines.append(_measure("durable puts of 1 row", lambda: writer.put(one), seconds, 1))
            lines.append(
                _measure(
                    f"durable puts of {rows} rows, {putters} threads",
                    lambda: writer.put(group),
                    seconds,
                    putters,
                )
            )
            lines.append(_measure("fresh lookups of 1 key", lambda: table.get([0]), seconds, 1))
            lines.append(_measure("fresh counts", lambda: table.scan().count(), seconds, 1))
        return Report(table.uri, tuple(lines))
    finally:
        store = open_store(place, storage_options)
        store.delete([meta.path for meta in store.list("")])
        if "://" not in store.uri:
            shutil.rmtree(store.uri, ignore_errors=True)  # the empty folders


def _floor(store: Store, seconds: float) -> list[Line]:
    """What one request takes: a conditional put of a small entry, and a get of it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(_batch(0, 1))
    body = sink.getvalue().to_pybytes()
    numbers = itertools.count()
    first = paths.bench_path(0)

    def put() -> None:
        store.put_if_absent(paths.bench_path(next(numbers)), body)

    return [
        _measure("floor: bare put-if-absent", put, seconds, 1),
        _measure("floor: bare get", lambda: store.get(first), seconds, 1),
    ]


def _batch(start: int, rows: int) -> pa.RecordBatch:
    ids = range(start, start + rows)
    columns = [pa.array(ids), pa.array([float(i) for i in ids]), pa.array(["x" * 64] * rows)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _measure(name: str, call: Callable[[], object], seconds: float, threads: int) -> Line:
    call()  # opens connections and files
    until = time.perf_counter() + seconds

    def work(_: int) -> list[float]:
        took = []
        while (began := time.perf_counter()) < until:
            call()
            took.append(time.perf_counter() - began)
        return took

    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        times = sorted(t for part in pool.map(work, range(threads)) for t in part)
    elapsed = time.perf_counter() - began
    count = len(times)
    if not count:
        return Line(name, 0.0, 0.0, 0.0, 0)
    return Line(name, count / elapsed, times[count // 2], times[int(count * 0.99)], count)
