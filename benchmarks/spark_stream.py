"""A stream of a million rows in micro-batches through the sink, with updates and deletes.

    python benchmarks/spark_stream.py [--rows 1000000] [--batches 20]

Spark, weir and, after compaction, pylance read the table back; the program fails unless all three
see the expected rows.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])


def main() -> None:
    from pyspark.sql import SparkSession

    import weir.spark

    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=20)
    given = parser.parse_args()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    folder = Path(tempfile.mkdtemp())
    (folder / "in").mkdir()
    rng = np.random.default_rng(1)
    model: dict[int, int] = {}
    each = given.rows // given.batches
    for number in range(given.batches):
        ids = rng.choice(given.rows // 2, each, replace=False)
        dead = rng.random(each) < 0.05
        rows = {"id": ids, "v": np.full(each, number), "dead": dead}
        pq.write_table(pa.table(rows), folder / "in" / f"{number:04d}.parquet")
        for key, gone in zip(ids.tolist(), dead.tolist(), strict=True):
            model.pop(key, None)
            if not gone:
                model[key] = number
    sharding = weir.Bucket("id", 2)
    table = weir.create(str(folder / "t"), SCHEMA, primary_key="id", sharding=sharding)
    source = (
        spark.readStream.schema("id long, v long, dead boolean")
        .option("maxFilesPerTrigger", "1")
        .parquet(str(folder / "in"))
    )
    rows, how = weir.spark.layout(source, table.uri)
    began = time.perf_counter()
    query = (
        rows.writeStream.format("weir")
        .option("layout", how)
        .option("deleteColumn", "dead")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(table.uri)
    )
    query.awaitTermination()
    took = time.perf_counter() - began
    expected = pa.table({"id": sorted(model), "v": [model[k] for k in sorted(model)]})

    def check(what: str, found: pa.Table) -> None:
        got = found.select(["id", "v"]).sort_by("id")
        assert got.column("id").to_pylist() == expected.column("id").to_pylist(), what
        assert got.column("v").to_pylist() == expected.column("v").to_pylist(), what

    check("Spark", spark.read.format("weir").load(table.uri).toArrow())
    check("weir", table.scan().to_table())
    table.compact(fold_wal=True)
    check("pylance", lance.dataset(table.uri).to_table())
    print(
        f"{given.rows} rows in {given.batches} micro-batches: {took:.1f} s,"
        f" {given.rows / took:,.0f} rows/s; {len(model)} rows left; Spark, weir and pylance agree"
    )
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
