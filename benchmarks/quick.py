"""A few seconds of puts and reads on your own store: `python -m benchmarks.quick s3://lake/scratch`.

Measures this store only, weir beside the bare requests. Storage options are those of the command
line: -o NAME=VALUE, the configuration file, WEIR_STORAGE_OPTIONS.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa

import weir
from weir.cli import settings
from weir.store.api import Store
from weir.store.open import open_store

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("value", pa.float64()),
        pa.field("text", pa.string()),
    ]
)


MANY: Final = 16
"""Threads that call the bare store at once."""
Calls = Mapping[str, Callable[[], object]]


@dataclass(frozen=True)
class Line:
    """One measurement; times in seconds."""

    name: str
    per_second: float
    p50: float
    p99: float
    p999: float
    calls: int


@dataclass(frozen=True)
class Report:
    """All of them."""

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

    "store alone" is a call to the same store without weir: a put, a put-if-absent, a get. The two
    puts alternate with the durable put of one row, which contains one of them, so that other load
    on the store affects all three alike. The table is deleted afterwards, also on failure. Takes
    about nine times `seconds`.
    """
    place = f"{uri.rstrip('/')}/bench-{uuid4().hex[:8]}"
    is_new = "://" not in uri and not Path(uri).exists()
    try:
        table = weir.create(place, SCHEMA, primary_key="id", storage_options=storage_options)
        bare = _Bare(open_store(place, storage_options))
        with table.shard(0).writer() as writer:
            one, group = _batch(0, 1), _batch(0, rows)
            floors: Calls = {
                "store alone: put": bare.put,
                "store alone: put-if-absent": bare.put_if_absent,
            }
            lines = _in_turn(
                {**floors, "durable puts of 1 row": lambda: writer.put(one)}, seconds, 1
            )
            many = {f"{name}, {MANY} threads": call for name, call in floors.items()}
            lines += _in_turn(many, seconds, MANY)
            puts = f"durable puts of {rows} rows, {putters} threads"
            lines += _in_turn({puts: lambda: writer.put(group)}, seconds, putters)
            lines += _in_turn(
                {"store alone: get": bare.get, "fresh lookups of 1 key": lambda: table.get([0])},
                seconds,
                1,
            )
            lines += _in_turn({"fresh counts": lambda: table.scan().count()}, seconds, 1)
        return Report(table.uri, tuple(lines))
    finally:
        store = open_store(place, storage_options)
        store.delete([meta.path for meta in store.list("")])
        if "://" not in store.uri:
            shutil.rmtree(store.uri, ignore_errors=True)  # the empty folders
            if is_new:
                Path(store.uri).parent.rmdir()


class _Bare:
    """The store without weir, called with a body like that of an entry of one row."""

    def __init__(self, store: Store) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            writer.write_batch(_batch(0, 1))
        self._body = sink.getvalue().to_pybytes()
        self._store = store
        self._numbers = itertools.count()

    def put(self) -> None:
        """Put a new object unconditionally."""
        self._store.put(f"bare/{next(self._numbers)}", self._body)

    def put_if_absent(self) -> None:
        """Put a new object if nothing is there."""
        self._store.put_if_absent(f"bare/{next(self._numbers)}", self._body)

    def get(self) -> None:
        """Get the first of the objects."""
        self._store.get("bare/0")


def _batch(start: int, rows: int) -> pa.RecordBatch:
    ids = range(start, start + rows)
    columns = [pa.array(ids), pa.array([float(i) for i in ids]), pa.array(["x" * 64] * rows)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _in_turn(calls: Calls, seconds: float, threads: int) -> list[Line]:
    """Make the calls in turn, in `threads` threads, for `seconds` seconds per kind of call."""
    for call in calls.values():
        call()  # opens connections and files
    until = time.perf_counter() + seconds * len(calls)

    def work(_: int) -> dict[str, list[float]]:
        took: dict[str, list[float]] = {name: [] for name in calls}
        while time.perf_counter() < until:
            for name, call in calls.items():
                began = time.perf_counter()
                call()
                took[name].append(time.perf_counter() - began)
        return took

    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(work, range(threads)))
    return [_line(name, sorted(t for part in parts for t in part[name]), threads) for name in calls]


def _line(name: str, times: list[float], threads: int) -> Line:
    if not times:
        return Line(name, 0.0, 0.0, 0.0, 0.0, 0)
    count = len(times)
    p50, p99, p999 = (times[min(count - 1, int(count * share))] for share in (0.5, 0.99, 0.999))
    # The rate as if the threads had made only this call: the times of the others do not count.
    return Line(name, threads * count / sum(times), p50, p99, p999, count)


def main() -> None:
    """Measure, and print one line for each kind of call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uri", help="a folder for a scratch table, deleted at the end")
    parser.add_argument("-o", "--option", action="append", metavar="NAME=VALUE")
    parser.add_argument("--seconds", type=float, default=5.0, help="per kind of call")
    parser.add_argument("--putters", type=int, default=8, help="threads that put at once")
    parser.add_argument("--rows", type=int, default=10, help="rows of a put")
    asked = parser.parse_args()
    report = run(
        asked.uri,
        storage_options=settings.storage_options(asked.uri, asked.option),
        seconds=asked.seconds,
        putters=asked.putters,
        rows=asked.rows,
    )
    print(f"{'':44}{'per second':>12}{'median':>10}{'99 %':>10}{'99.9 %':>10}   (ms)")
    for line in report.lines:
        times = "".join(f"{1000 * share:10.2f}" for share in (line.p50, line.p99, line.p999))
        print(f"{line.name:44}{line.per_second:12,.0f}{times}")


if __name__ == "__main__":
    main()
