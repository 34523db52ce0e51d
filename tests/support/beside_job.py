"""A driver that runs streams and statements at once; tests/spark/test_beside.py kills it.

    python -m tests.support.beside_job ROOT STATEMENTS

Two streams write each file of ROOT/in, one by key into `both`, whose counters the statements
change, and one into the append-only `log`. Then a third copies the feed of `log` into `copy`. A
line of ROOT/done acknowledges a statement, one of ROOT/failed tells what had to be tried again.
"""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import weir
import weir.spark
from tests.support.spark import SHORT_LIVED

COUNTERS = 40
FIRST_STREAMED = 1_000_000
"""Ids of the stream begin here, those of rows that a MERGE inserts below it."""
TRIES = 20
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64())])

Rows = dict[int, int]


def make(root: Path) -> None:
    """The tables, and the counters in `both`."""
    lake = weir.connect(root / "lake")
    for name, key in (("both", "id"), ("log", None), ("copy", None)):
        table = lake.create_table(
            ["db", name], SCHEMA, primary_key=key, sharding=weir.Bucket("id", 4)
        )
        if key is not None:
            with table.writer() as writer:
                writer.put([{"id": number, "n": 0} for number in range(COUNTERS)])
    (root / "in").mkdir()


def opened(root: Path, name: str) -> weir.Table:
    """The table of that name, by a handle of its own."""
    return weir.open(f"{root}/lake/db/{name}.lance")


def lines(root: Path, name: str) -> list[str]:
    """The whole lines of a file of the job."""
    path = root / name
    return path.read_text().splitlines() if path.exists() else []


def inserted(number: int) -> range:
    """The ids that the statement of that number inserts."""
    return range(1000 + 10 * number, 1008 + 10 * number)


def statement(number: int) -> str:
    """An UPDATE, a MERGE or a DELETE over all shards; the id makes a rerun harmless."""
    target = f"lake.db.both {{}} WITH ('statementId' = 's{number}')"
    if number % 3 == 0:
        return f"UPDATE {target.format('')} SET n = n + 1 WHERE id < {COUNTERS}"
    if number % 3 == 1:
        new = inserted(number)
        ids = f"range({COUNTERS}) UNION ALL SELECT id FROM range({new.start}, {new.stop})"
        return (
            f"MERGE INTO {target.format('AS t')} USING (SELECT id FROM {ids}) s ON t.id = s.id"
            " WHEN MATCHED THEN UPDATE SET n = t.n + 1"
            f" WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, -{number})"
        )
    return f"DELETE FROM {target.format('')} WHERE n = -{number - 1}"


def after(count: int) -> Rows:
    """What the statements have made of `both` when so many of them are done."""
    changes = sum(number % 3 != 2 for number in range(count))
    rows = dict.fromkeys(range(COUNTERS), changes)
    if count % 3 == 2:
        rows |= dict.fromkeys(inserted(count - 1), -(count - 1))
    return rows


def main() -> None:
    root, wanted = Path(sys.argv[1]), int(sys.argv[2])
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "700m")
        .config("spark.driver.extraJavaOptions", SHORT_LIVED)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    weir.spark.register(spark, catalog="lake", root=str(root / "lake"))
    files = spark.readStream.schema("id long, n long").option("maxFilesPerTrigger", "1")

    def stream(rows: DataFrame, name: str) -> None:
        query = (
            rows.writeStream.option("checkpointLocation", str(root / "checkpoints" / name))
            .trigger(availableNow=True)
            .toTable(f"lake.db.{name}")
        )
        query.awaitTermination()

    def copy() -> None:
        feed = spark.readStream.option("consumer", "copy").option("maxEntriesPerTrigger", "4")
        stream(feed.table("lake.db.log"), "copy")

    def insist(name: str, run: Callable[[], object]) -> None:
        for _ in range(TRIES):
            try:
                run()
                return
            except Exception as failed:
                _append(root / "failed", f"{name}: {' '.join(str(failed).split())}")
        os._exit(1)

    def load(name: str) -> None:
        insist(f"stream {name}", lambda: stream(files.json(str(root / "in")), name))

    threads = [threading.Thread(target=load, args=(name,)) for name in ("both", "log")]
    for thread in threads:
        thread.start()
    for number in range(len(lines(root, "done")), wanted):
        text = statement(number)
        insist(f"statement {number}", lambda text=text: spark.sql(text))  # type: ignore[misc]
        _append(root / "done", str(number))
    for thread in threads:
        thread.join()
    insist("stream copy", copy)
    spark.stop()


def _append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")


if __name__ == "__main__":
    main()
