"""Modes of a writer: MemTable or WAL-only, indexes kept in the put or later; its own reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import lance
import pyarrow as pa

import weir
from benchmarks import data
from benchmarks.harness import Ctx, Round, Side, Workload
from benchmarks.peers import make_table, one_shard, threaded_puts
from benchmarks.workloads.doors import QUANTILES, timed
from benchmarks.workloads.puts import Open, Put, throughput

THREADS = 16
KEYS = 4_096
WAL_ONLY = weir.WriterConfig(enable_memtable=False)


def _rows(number: int) -> pa.RecordBatch:
    return data.batch(number % KEYS, 1)


def written(config: weir.WriterConfig | None = None) -> Open:
    """A shard whose writer has these settings."""

    @contextmanager
    def opened(ctx: Ctx, _rows_of: int) -> Iterator[Put]:
        with one_shard(make_table(ctx)).writer(config) as writer:
            yield lambda number: writer.put(_rows(number))

    return opened


@contextmanager
def both(ctx: Ctx, _rows_of: int) -> Iterator[Put]:
    """Two shards of one table, one with a MemTable and one without; puts alternate."""
    table = make_table(ctx, sharding=weir.Bucket("id", 2))
    bucket_of = table.core.router.finder(pa.int64())
    keys: list[list[int]] = [[], []]
    for key in range(KEYS):
        found = bucket_of(key)
        assert isinstance(found, int)
        keys[found].append(key)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(table.shard(bucket).writer(config))
            for bucket, config in enumerate((None, WAL_ONLY))
        ]
        turns = itertools.count()

        def put(number: int) -> Any:
            bucket = next(turns) % 2
            mine = keys[bucket]
            return writers[bucket].put(data.batch(mine[number % len(mine)], 1))

        yield put


def indexed(*, sync: bool) -> Open:
    """A shard that maintains a BTree of the table, in the put or in the background."""

    @contextmanager
    def opened(ctx: Ctx, _rows_of: int) -> Iterator[Put]:
        table = make_table(ctx)
        with table.writer() as writer:
            writer.put(data.batch(0, KEYS))
        table.compact()
        base = lance.dataset(table.uri, storage_options=ctx.options or None)
        base.create_scalar_index("v", "BTREE", name="by_v")
        config = weir.WriterConfig(
            index_configs=(weir.IndexConfig("by_v", "v", "btree"),), sync_indexed_write=sync
        )
        with one_shard(weir.open(table.uri, storage_options=ctx.options)).writer(config) as writer:
            yield lambda number: writer.put(_rows(number))

    return opened


MODES: dict[str, Open] = {
    "weir": written(),
    "WAL-only": written(WAL_ONLY),
    "one shard of each": both,
    "index kept by the put": indexed(sync=True),
    "index kept in the background": indexed(sync=False),
}


def _latency(opened: Open, share: float) -> Side:
    @contextmanager
    def side(ctx: Ctx) -> Iterator[Round]:
        with opened(ctx, 1) as put:
            threaded_puts(put, THREADS, ctx.seconds / 4)
            yield lambda: timed(put, THREADS, ctx.seconds, share)

    return side


def _own_reads(share: float, *, through: str) -> Side:
    """Lookups of unflushed rows, by the writer itself or through the table."""

    @contextmanager
    def side(ctx: Ctx) -> Iterator[Round]:
        table = make_table(ctx)
        with one_shard(table).writer() as writer:
            writer.put(data.batch(0, KEYS))
            get = writer.get if through == "writer" else table.get
            threaded_puts(lambda number: get([number % KEYS]), 1, ctx.seconds / 4)
            yield lambda: timed(lambda number: get([number % KEYS]), 1, ctx.seconds, share)

    return side


NOTE = "ready batches of one row; weir: with a MemTable, no index"
WORKLOADS = [
    Workload(
        f"modes of a writer, 1 row, {THREADS} threads",
        unit="puts/s",
        better="higher",
        goal="reported",
        sides={name: throughput(opened, THREADS) for name, opened in MODES.items()},
        note=NOTE,
    ),
    *(
        Workload(
            f"modes of a writer, 1 row, {THREADS} threads, {name}",
            unit="ms",
            better="lower",
            goal="reported",
            sides={mode: _latency(opened, share) for mode, opened in MODES.items()},
            where=("local",),
            note=NOTE,
        )
        for name, share in QUANTILES
    ),
    *(
        Workload(
            f"own read of 1 key, {name}",
            unit="ms",
            better="lower",
            goal="reported",
            sides={
                "weir": _own_reads(share, through="writer"),
                "through the table": _own_reads(share, through="table"),
            },
            note="the writer looks into its own MemTable and asks nobody",
        )
        for name, share in QUANTILES
    ),
]
