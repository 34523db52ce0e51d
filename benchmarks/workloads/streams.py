"""A stream of micro-batches on Spark: how long one takes, what it asks of the store, what stays.

Every round streams the same files into a table of its own: one file is one micro-batch. It fails
unless all rows are in the table afterwards.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import weir
from benchmarks.harness import Better, Ctx, Round, Side, Where, Workload
from benchmarks.places import counted
from benchmarks.workloads.engines import session

ROWS = 1_000
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
RECENT = "spark.sql.streaming.numRecentProgressUpdates"


@dataclass(frozen=True)
class Streamed:
    """What one stream did."""

    seconds: list[float]
    """Of each micro-batch."""
    requests: int
    """To the store, of all processes; 0 where they are not counted."""
    objects: int
    """Left of the table after compaction and collection."""


def _batches(ctx: Ctx) -> int:
    return ctx.n(200, 20, 3)


def _prepare(ctx: Ctx) -> dict[str, Any]:
    """The files of the stream, on the local disk wherever the table is."""
    folder = Path(tempfile.mkdtemp(prefix="weir-bench-stream-"))
    for number in range(_batches(ctx)):
        ids = np.arange(number * ROWS, (number + 1) * ROWS, dtype=np.int64)
        rows = pa.table({"id": ids, "v": pa.array(ids).cast(pa.string())}, schema=SCHEMA)
        pq.write_table(rows, folder / f"{number:06d}.parquet")
    return {"files": str(folder)}


def _run(spark: Any, ctx: Ctx, target: Callable[[Any], Any]) -> list[float]:
    """Stream all files to what `target` makes of a stream's writer; seconds of each batch."""
    spark.conf.set(RECENT, str(2 * _batches(ctx)))
    rows = (
        spark.readStream.schema("id long, v string")
        .option("maxFilesPerTrigger", "1")
        .parquet(ctx.data["files"])
    )
    checkpoint = tempfile.mkdtemp(prefix="weir-bench-checkpoint-")
    try:
        writer = rows.writeStream.option("checkpointLocation", checkpoint)
        query = target(writer.trigger(availableNow=True))
        query.awaitTermination()
        told = [batch["durationMs"] for batch in query.recentProgress if batch["numInputRows"]]
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
    assert len(told) == _batches(ctx), f"{len(told)} micro-batches"
    return [times["triggerExecution"] / 1e3 for times in told]


@contextmanager
def _weir(ctx: Ctx, *, figure: Callable[[Streamed], float]) -> Iterator[Round]:
    with session() as spark, counted(ctx.options) as (options, requests):

        def run() -> float:
            there = replace(ctx, options=options)
            table = weir.create(
                there.uri("stream"),
                SCHEMA,
                primary_key="id",
                sharding=weir.Bucket("id", 4),
                storage_options=options or None,
            )
            before = requests()

            def start(writer: Any) -> Any:
                for name, value in options.items():
                    writer = writer.option(f"storage.{name}", value)
                return writer.format("weir").start(table.uri)

            seconds = _run(spark, ctx, start)
            asked = requests() - before
            assert table.scan().count() == ROWS * _batches(ctx)
            table.compact(fold_wal=True)
            table.gc(min_age=0)
            return figure(Streamed(seconds, asked, sum(1 for _ in table.core.store.list(""))))

        spark.range(10).selectExpr("sum(id)").collect()
        yield run


@contextmanager
def _parquet(ctx: Ctx, *, figure: Callable[[Streamed], float]) -> Iterator[Round]:
    with session() as spark:

        def run() -> float:
            folder = ctx.uri("parquet")
            seconds = _run(spark, ctx, lambda writer: writer.format("parquet").start(folder))
            assert spark.read.parquet(folder).count() == ROWS * _batches(ctx)
            left = sum(1 for path in Path(folder).rglob("*") if path.is_file())
            return figure(Streamed(seconds, 0, left))

        spark.range(10).selectExpr("sum(id)").collect()
        yield run


def _median(done: Streamed) -> float:
    return statistics.median(done.seconds) * 1e3


def _worst(done: Streamed) -> float:
    return float(np.quantile(done.seconds, 0.99)) * 1e3


def _requests(done: Streamed) -> float:
    return done.requests / len(done.seconds)


def _objects(done: Streamed) -> float:
    return float(done.objects)


def _workloads(
    what: str, unit: str, figure: Callable[[Streamed], float], note: str
) -> list[Workload]:
    """Beside Parquet on the local disk, where Spark can write it; alone on the other stores."""
    better: Better = "lower"
    sides: dict[str, Side] = {"weir": partial(_weir, figure=figure)}
    both = {**sides, "Spark, Parquet": partial(_parquet, figure=figure)}
    away: tuple[Where, ...] = ("s3", "far")
    made = []
    for name, where, chosen in (
        (f"Spark stream, 200 x 1k rows, {what}", ("local",), both),
        (f"Spark stream to a store, 200 x 1k rows, {what}", away, sides),
    ):
        if figure is _requests and where == ("local",):
            continue  # a local folder has no server to count at
        made.append(
            Workload(
                name,
                unit=unit,
                better=better,
                goal="reported",
                prepare=_prepare,
                sides=chosen,
                where=where,  # type: ignore[arg-type]
                rounds_max=1,
                needs_spark=True,
                note=note,
            )
        )
    return made


WORKLOADS = [
    *_workloads("p50 of a batch", "ms", _median, "by key, into four shards; Parquet appends"),
    *_workloads("p99 of a batch", "ms", _worst, "the same; the first batch is among them"),
    *_workloads(
        "requests of a batch", "requests", _requests, "of all processes, counted at the server"
    ),
    *_workloads(
        "objects left", "objects", _objects, "after a compaction, and a collection without min_age"
    ),
]
