"""How often a micro-batch finds the writers of the batch before still open.

    python -m benchmarks.spark_warm [--batches 30]

Spark hands each commit to the worker that has been idle longest, so streams that run at the same
time take workers from each other. An epoch of a shard is one opening: with `e` epochs after `b`
batches, `b - e` of them were warm.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
ROWS = 100
SHARDS = 2


def main() -> None:
    from pyspark.sql import SparkSession

    import weir

    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=30)
    batches = parser.parse_args().batches
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    folder = Path(tempfile.mkdtemp())
    (folder / "in").mkdir()
    for number in range(batches):
        ids = range(number * ROWS, (number + 1) * ROWS)
        rows = pa.table({"id": ids, "v": [number] * ROWS}, SCHEMA)
        pq.write_table(rows, folder / "in" / f"{number:04d}.parquet")
    for streams, tables in ((1, 1), (2, 2), (2, 1), (3, 3)):
        found = [
            weir.create(
                f"{folder}/{streams}-{tables}-{number}",
                SCHEMA,
                sharding=weir.Bucket("id", SHARDS),
            )
            for number in range(tables)
        ]
        queries = [
            spark.readStream.schema("id long, v long")
            .option("maxFilesPerTrigger", "1")
            .parquet(str(folder / "in"))
            .writeStream.format("weir")
            .option("checkpointLocation", f"{folder}/checkpoints/{streams}-{tables}-{number}")
            .trigger(availableNow=True)
            .start(found[number % tables].uri)
            for number in range(streams)
        ]
        for query in queries:
            query.awaitTermination()
        opened = sum(shard.manifest().writer_epoch for table in found for shard in table.shards())
        count = streams * batches * SHARDS
        assert sum(table.count() for table in found) == streams * batches * ROWS
        print(
            f"{streams} streams into {tables} tables: {count} batches of a shard, {opened}"
            f" openings, {100 * (count - opened) / count:.0f} % warm",
            flush=True,
        )
    spark.stop()


if __name__ == "__main__":
    main()
