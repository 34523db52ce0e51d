"""Puts with a maintained index, and searches, beside pylance's own.

Both sides write the same batches, durably, to the same kind of table with the same base index.
pylance has no search from Python that sees its MemTable, so only weir is measured over unflushed
rows; over flushed rows it is compared with pylance's planner.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import lance
import numpy as np
import pyarrow as pa

import weir
from benchmarks.harness import Ctx, Goal, Round, Workload

Kind = Literal["vector", "text"]
DIM = 128
BATCH_ROWS = 100
WORDS = np.array([f"word{i}" for i in range(5_000)])
KEY = {"lance-schema:unenforced-primary-key": "true"}


class Rows:
    """The same rows and queries for every side."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._chance = np.random.default_rng(0)

    def batch(self, first: int, count: int) -> pa.RecordBatch:
        ids = pa.array(np.arange(first, first + count))
        payload: pa.Array
        if self.kind == "vector":
            values = self._chance.normal(size=count * DIM).astype("f4")
            payload = pa.FixedSizeListArray.from_arrays(values, DIM)
        else:
            payload = pa.array([" ".join(self._chance.choice(WORDS, 20)) for _ in range(count)])
        fields = [pa.field("id", pa.int64(), nullable=False), pa.field("v", payload.type)]
        return pa.record_batch([ids, payload], schema=pa.schema(fields))

    def query(self) -> Any:
        if self.kind == "vector":
            return self._chance.normal(size=DIM).astype("f4")
        return " ".join(self._chance.choice(WORDS, 2))


def _make_base(ctx: Ctx, rows: Rows) -> tuple[Any, int]:
    count = ctx.n(2_000, 2_000, 300)
    made = rows.batch(0, count)
    keyed = pa.schema([made.schema.field(0).with_metadata(KEY), made.schema.field(1)])
    base = lance.write_dataset(pa.Table.from_batches([made]).cast(keyed), ctx.uri("search"))
    if rows.kind == "vector":
        base.create_index("v", "IVF_FLAT", name="i", num_partitions=8)
    else:
        base.create_scalar_index("v", "INVERTED", name="i", with_position=False)
    base.initialize_mem_wal(unsharded=True)
    return base, count


def _fresh_batches(ctx: Ctx, rows: Rows, first: int) -> list[pa.RecordBatch]:
    count = ctx.n(20_000, 4_000, 200)
    return [rows.batch(first + at, BATCH_ROWS) for at in range(0, count, BATCH_ROWS)]


@contextmanager
def _putting(ctx: Ctx, kind: Kind, open_writer: Callable[[Any], Any]) -> Iterator[Round]:
    """Rows per second of durable puts; the flush at the end is not timed."""
    rows = Rows(kind)

    def run() -> float:
        base, first = _make_base(ctx, rows)
        batches = _fresh_batches(ctx, rows, first)
        writer = open_writer(base)
        began = time.perf_counter()
        for batch in batches:
            writer.put(batch)
        took = time.perf_counter() - began
        writer.close()
        return sum(batch.num_rows for batch in batches) / took

    yield run


def put_weir(ctx: Ctx, kind: Kind) -> Any:
    return _putting(ctx, kind, lambda base: weir.enable(base.uri).shard(None).writer())


def put_pylance(ctx: Ctx, kind: Kind) -> Any:
    def opened(base: Any) -> Any:
        return base.mem_wal_writer(str(uuid.uuid4()), durable_write=True, stats_log_interval_ms=0)

    return _putting(ctx, kind, opened)


@contextmanager
def search_weir(ctx: Ctx, kind: Kind, *, flushed: bool) -> Iterator[Round]:
    """Search through a table handle; the fresh rows are in the log, or flushed."""
    rows = Rows(kind)
    base, first = _make_base(ctx, rows)
    table = weir.enable(base.uri)
    writer = table.shard(None).writer()
    for batch in _fresh_batches(ctx, rows, first):
        writer.put(batch)
    if flushed:
        writer.close()
    yield _latency(ctx, rows, lambda query: table.search("v", query, columns=["id"]))
    if not flushed:
        writer.close()


@contextmanager
def cold_search(ctx: Ctx, *, flushed: bool) -> Iterator[Round]:
    """The first search of a new handle over rows that are all in the log, or all flushed."""
    rows = Rows("vector")
    table = weir.create(ctx.uri("cold"), rows.batch(0, 1).schema, primary_key="id")
    # Without a MemTable nothing is flushed when the writer closes.
    config = weir.WriterConfig(enable_memtable=flushed)
    with table.writer(config) as writer:
        for batch in _fresh_batches(ctx, rows, 0):
            writer.put(batch)
        if flushed:
            writer.flush()

    def run() -> float:
        taken = []
        for _ in range(ctx.n(15, 5, 1)):
            again, query = weir.open(table.uri), rows.query()
            began = time.perf_counter()
            again.search("v", query, columns=["id"])
            taken.append(time.perf_counter() - began)
        return statistics.median(taken) * 1e3

    yield run


def _make_indexed(ctx: Ctx, kind: Kind) -> tuple[Any, Rows]:
    rows = Rows(kind)
    made = rows.batch(0, ctx.n(20_000, 5_000, 600))
    keyed = pa.schema([made.schema.field(0).with_metadata(KEY), made.schema.field(1)])
    base = lance.write_dataset(pa.Table.from_batches([made]).cast(keyed), ctx.uri("indexed"))
    if kind == "text":
        base.create_scalar_index("v", "INVERTED", name="i", with_position=False)
    else:
        parts = ctx.n(64, 16, 1)
        base.create_index("v", "IVF_PQ", name="i", num_partitions=parts, num_sub_vectors=16)
    return base, rows


@contextmanager
def indexed_text_weir(ctx: Ctx) -> Iterator[Round]:
    base, rows = _make_indexed(ctx, "text")
    table = weir.enable(base.uri)
    yield _latency(ctx, rows, lambda words: table.search("v", words, columns=["id"]))


@contextmanager
def indexed_text_pylance(ctx: Ctx) -> Iterator[Round]:
    base, rows = _make_indexed(ctx, "text")
    yield _latency(
        ctx, rows, lambda words: base.to_table(["id", "_score"], full_text_query=words, limit=10)
    )


@contextmanager
def recall(ctx: Ctx, *, exact: bool) -> Iterator[Round]:
    """The share of the ten nearest random vectors that a search with defaults finds."""
    base, rows = _make_indexed(ctx, "vector")
    table = weir.enable(base.uri)
    everything = table.scan(["id", "v"]).to_table()
    ids = everything["id"].to_numpy()
    values = everything["v"].combine_chunks().flatten().to_numpy().reshape(len(ids), DIM)

    def run() -> float:
        found = 0
        queries = [rows.query() for _ in range(ctx.n(30, 10, 2))]
        for query in queries:
            nearest = ids[np.argsort(((values - query) ** 2).sum(axis=1))[:10]]
            answer = table.search("v", query, columns=["id"], exact=exact)["id"].to_pylist()
            found += len(set(nearest.tolist()) & set(answer))
        return found / (10 * len(queries))

    yield run


@contextmanager
def search_pylance(ctx: Ctx, kind: Kind) -> Iterator[Round]:
    from lance.mem_wal import LsmVectorSearchPlanner, ShardSnapshot

    rows = Rows(kind)
    base, first = _make_base(ctx, rows)
    table = weir.enable(base.uri)
    shard = table.shards()[0]
    writer = base.mem_wal_writer(str(shard.id), durable_write=True, stats_log_interval_ms=0)
    for batch in _fresh_batches(ctx, rows, first):
        writer.put(batch)
    writer.close()
    manifest = shard.manifest()
    snapshot = ShardSnapshot(str(shard.id)).with_current_generation(manifest.current_generation)
    for sstable in manifest.sstables:
        snapshot = snapshot.with_sstable(sstable.generation, sstable.path)
    planner = LsmVectorSearchPlanner(base, [snapshot], "v")
    yield _latency(ctx, rows, lambda q: planner.plan_search(pa.array(q), columns=["id"]).to_table())


def _latency(ctx: Ctx, rows: Rows, search: Callable[[Any], Any]) -> Round:
    search(rows.query())

    def run() -> float:
        taken = []
        for _ in range(ctx.n(30, 10, 1)):
            query = rows.query()
            began = time.perf_counter()
            search(query)
            taken.append(time.perf_counter() - began)
        return statistics.median(taken) * 1e3

    return run


def _puts(kind: Kind, name: str) -> Workload:
    return Workload(
        f"puts with a maintained {name} index",
        unit="rows/s",
        better="higher",
        goal="not slower than pylance with the same index",
        goals=[Goal("pylance", times=1.0)],
        sides={"weir": partial(put_weir, kind=kind), "pylance": partial(put_pylance, kind=kind)},
        where=("local",),
        rounds_max=3,
        note="durable puts of 100 rows, one thread; found by a search when put returns",
    )


def _fresh(kind: Kind, name: str) -> Workload:
    return Workload(
        f"{name} search, 2k indexed + 20k rows in the log",
        unit="ms",
        better="lower",
        goal="reported",
        sides={"weir": partial(search_weir, kind=kind, flushed=False)},
        where=("local",),
        rounds_max=3,
        note="10 nearest, exact on the fresh rows; pylance has no such search from Python",
    )


WORKLOADS = [
    Workload(
        "first search of a new handle, 20k vectors in the log",
        unit="ms",
        better="lower",
        goal="within 3 of the same rows flushed",
        goals=[Goal("weir, flushed", within=3.0)],
        sides={
            "weir": partial(cold_search, flushed=False),
            "weir, flushed": partial(cold_search, flushed=True),
        },
        where=("local",),
        rounds_max=3,
        note="128 dimensions, 200 entries of 100 rows; a new handle for each search",
    ),
    Workload(
        "full-text search with an index, 20k rows",
        unit="ms",
        better="lower",
        goal="within 3 of pylance",
        goals=[Goal("pylance", within=3.0)],
        sides={"weir": indexed_text_weir, "pylance": indexed_text_pylance},
        where=("local",),
        rounds_max=3,
        note="two words, ten rows; all rows in the base",
    ),
    Workload(
        "recall of a vector search with nothing said",
        unit="of 1",
        better="higher",
        goal="at least 0.9 of an exact search",
        goals=[Goal("weir, exact", times=0.9)],
        sides={"weir": partial(recall, exact=False), "weir, exact": partial(recall, exact=True)},
        where=("local",),
        rounds_max=3,
        note="ten nearest of 20k random vectors (IVF_PQ, 64 partitions), against brute force",
    ),
    _puts("vector", "vector (128 dimensions)"),
    _puts("text", "full-text"),
    _fresh("vector", "vector"),
    _fresh("text", "full-text"),
    Workload(
        "vector search, 2k indexed + 20k flushed rows",
        unit="ms",
        better="lower",
        goal="reported",
        sides={
            "weir": partial(search_weir, kind="vector", flushed=True),
            "LsmVectorSearchPlanner": partial(search_pylance, kind="vector"),
        },
        where=("local",),
        rounds_max=3,
        note="each searches the SSTables of its own writer",
    ),
]
