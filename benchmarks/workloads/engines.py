"""Spark: when compaction on it is worth it, and reads through it beside native Parquet."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import weir
from benchmarks.harness import Ctx, Goal, Round, Workload
from benchmarks.tables import copy_table, drop_table, make_layers

JAVA_HOME = Path(sys.prefix) / ".weir-java-home"


@contextmanager
def session() -> Iterator[Any]:
    """A local Spark session on all processors; an active one is reused and not stopped."""
    if "JAVA_HOME" not in os.environ and JAVA_HOME.exists():
        os.environ["JAVA_HOME"] = JAVA_HOME.read_text().strip()
    from pyspark.sql import SparkSession

    from weir.spark.session import session as weir_session

    there = SparkSession.getActiveSession() is not None
    spark = weir_session("weir-bench", {"spark.driver.memory": "2g"})
    yield spark
    if not there:
        spark.stop()


def _layers(ctx: Ctx, *, base_rows: int) -> dict[str, Any]:
    scale = ctx.n(1, 10, 1000)
    return make_layers(
        ctx,
        base_rows=base_rows // scale,
        generations=4,
        generation_rows=50_000 // scale,
        btree=False,
    )


@contextmanager
def fold_spark(ctx: Ctx) -> Iterator[Round]:
    from weir import spark as on_spark

    with session() as spark:

        def run() -> float:
            uri = copy_table(ctx, ctx.data["uri"])
            began = time.perf_counter()
            report = on_spark.compact(
                spark,
                uri,
                engine="spark",
                storage_options=ctx.options or None,
                indexes=False,
                rewrite=False,
            )
            took = time.perf_counter() - began
            assert report.sstables == ctx.data["generations"]
            drop_table(ctx, uri)
            return took * 1e3

        spark.range(10).selectExpr("sum(id)").collect()
        yield run


@contextmanager
def fold_here(ctx: Ctx) -> Iterator[Round]:
    def run() -> float:
        uri = copy_table(ctx, ctx.data["uri"])
        table = weir.open(uri, storage_options=ctx.options or None)
        began = time.perf_counter()
        table.compact(indexes=False, rewrite=False)
        took = time.perf_counter() - began
        drop_table(ctx, uri)
        return took * 1e3

    yield run


def _base_and_parquet(ctx: Ctx) -> dict[str, Any]:
    """The same rows as a weir table and as Parquet files."""
    import lance
    import pyarrow.parquet as pq

    made = make_layers(
        ctx,
        base_rows=ctx.n(5_000_000, 500_000, 5000),
        generations=1,
        generation_rows=ctx.n(50_000, 5000, 50),
        btree=False,
    )
    table = weir.open(made["uri"])
    table.compact()
    folder = Path(ctx.uri("parquet"))
    folder.mkdir(parents=True)
    batches = lance.dataset(made["uri"]).to_batches(batch_size=131_072)
    rows = 0
    writer = None
    for number, batch in enumerate(batches):
        if number % 8 == 0:
            if writer is not None:
                writer.close()
            writer = pq.ParquetWriter(folder / f"part-{number:05d}.parquet", batch.schema)
        assert writer is not None
        writer.write_batch(batch)
        rows += batch.num_rows
    if writer is not None:
        writer.close()
    return {**made, "parquet": str(folder), "rows": rows}


@contextmanager
def _reading(ctx: Ctx, *, parquet: bool) -> Iterator[Round]:
    from weir import spark as on_spark

    with session() as spark:

        def frame() -> Any:
            if parquet:
                return spark.read.parquet(ctx.data["parquet"])
            return on_spark.scan(spark, ctx.data["uri"])

        def run() -> float:
            began = time.perf_counter()
            frame().write.format("noop").mode("overwrite").save()
            return (time.perf_counter() - began) * 1e3

        assert frame().count() == ctx.data["rows"]
        run()
        yield run


def _fold(rows: str, base_rows: int, rounds: int) -> Workload:
    return Workload(
        f"compaction on Spark, 4 x 50k rows into {rows}",
        unit="ms",
        better="lower",
        goal="reported: where Spark starts to pay",
        prepare=partial(_layers, base_rows=base_rows),
        sides={"weir": fold_spark, "weir in process": fold_here},
        where=("local",),
        rounds_max=rounds,
        needs_spark=True,
        note="local Spark on the same processors, its session open already; its peak memory is that"
        " of the largest task",
    )


WORKLOADS = [
    _fold("2M", 2_000_000, 3),
    _fold("20M", 20_000_000, 1),
    _fold("50M", 50_000_000, 1),
    Workload(
        "Spark reads 5M rows",
        unit="ms",
        better="lower",
        goal="within 1.5 of native Parquet",
        goals=[Goal("Spark, Parquet", within=1.5)],
        prepare=_base_and_parquet,
        sides={
            "weir": partial(_reading, parquet=False),
            "Spark, Parquet": partial(_reading, parquet=True),
        },
        where=("local",),
        rounds_max=5,
        needs_spark=True,
        note="every column of every row into Spark's noop sink",
    ),
]
