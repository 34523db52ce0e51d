"""The Spark half of the demo, a process of its own: `python -m weir.demo.spark_job`.

Takes orders as lines of JSON on standard input and answers each with lines of JSON, the last of
them holding "done". One Spark session in local mode serves all of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import weir
from weir.spark.session import session

SCHEMA = (
    "id BIGINT, customer STRING, status STRING, cents BIGINT, revision INT, updated TIMESTAMP,"
    " embedding ARRAY<FLOAT>, _tombstone BOOLEAN"
)


def start(scratch: str) -> SparkSession:
    """Start a small session that writes only below `scratch`."""
    made = session(
        "weir-demo",
        {
            "spark.master": "local[2]",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={scratch}",
            "spark.local.dir": scratch,
            "spark.sql.warehouse.dir": f"{scratch}/warehouse",
            "spark.sql.shuffle.partitions": "4",
        },
    )
    weir.spark.register(made)
    return made


def main() -> int:
    """Serve until standard input is closed."""
    scratch = json.loads(sys.stdin.readline())["scratch"]
    spark = start(scratch)
    _say(done="session", version=spark.version)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if order["do"] == "stream":
                _stream(spark, order)
            else:
                _compact(spark, order)
        except Exception as error:  # noqa: BLE001  told to the other side, which raises it
            _say(done="failed", error=f"{type(error).__name__}: {error}")
    spark.stop()
    return 0


def _stream(spark: SparkSession, order: Mapping[str, Any]) -> None:
    """Stream each file as a micro-batch, then the last one again, as after a lost commit."""
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    batches = _run(source.parquet(order["folder"]), order, tell=True)
    commits = Path(order["checkpoint"]) / "commits"
    last = max((p for p in commits.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)
    again = _run(source.parquet(order["folder"]), order, tell=False)
    _say(done="stream", batches=batches, again=again)


def _run(frame: DataFrame, order: Mapping[str, Any], *, tell: bool) -> int:
    writer = frame.writeStream.format("weir").option("checkpointLocation", order["checkpoint"])
    for name, value in order["storage_options"].items():
        writer = writer.option(f"storage.{name}", value)
    query = writer.trigger(availableNow=True).start(order["uri"])
    seen: set[int] = set()
    while not query.awaitTermination(1):
        for progress in query.recentProgress:
            if progress["numInputRows"] and progress["batchId"] not in seen:
                seen.add(progress["batchId"])
                if tell:
                    _say(batch=progress["batchId"] + 1)
    seen |= {p["batchId"] for p in query.recentProgress if p["numInputRows"]}
    return len(seen)


def _compact(spark: SparkSession, order: Mapping[str, Any]) -> None:
    storage = order["storage_options"]
    report = weir.spark.compact(spark, order["uri"], engine="spark", storage_options=storage)
    rows = weir.spark.scan(spark, order["uri"], storage_options=storage).count()
    _say(
        done="compact",
        report={"sstables": report.sstables, "rows_written": report.rows_written},
        rows=rows,
    )


def _say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
