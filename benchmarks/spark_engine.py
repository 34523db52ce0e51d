"""Where Spark's executors begin to pay: compaction in process against compaction on Spark.

    python benchmarks/spark_engine.py [--base 2000000] [--changes 200000,2000000]

For each number of changes: four overlapping generations into the base, both engines, and the
memory high-water mark of the Python workers that ran the tasks.
"""

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from benchmarks.compaction import change, make

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


class Watch:
    """The largest Python worker of this process's Spark while it is open."""

    def __enter__(self):
        self._stop = threading.Event()
        self.peak = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def _run(self):
        me = psutil.Process()
        while not self._stop.wait(0.05):
            for child in me.children(recursive=True):
                try:
                    if "pyspark.daemon" in " ".join(child.cmdline()):
                        self.peak = max(self.peak, child.memory_info().rss)
                except psutil.Error:
                    continue

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def main() -> None:
    from pyspark.sql import SparkSession

    import weir.spark

    parser = argparse.ArgumentParser()
    parser.add_argument("--base", type=int, default=2_000_000)
    parser.add_argument("--changes", default="200000,2000000")
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    spark = (
        SparkSession.builder.master(given.master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    for changes in map(int, given.changes.split(",")):
        folder = Path(tempfile.mkdtemp())
        table = make(folder / "t", given.base, btree=False)
        change(table, given.base, changes)
        shutil.copytree(folder / "t", folder / "copy")
        shutil.copytree(folder / "t", folder / "warm")
        weir.spark.compact(spark, str(folder / "warm"), engine="spark", rewrite=False)
        began = time.perf_counter()
        table.compact(rewrite=False)
        local = time.perf_counter() - began
        with Watch() as watch:
            began = time.perf_counter()
            report = weir.spark.compact(spark, str(folder / "copy"), engine="spark", rewrite=False)
            remote = time.perf_counter() - began
        print(
            f"base {given.base:>9}  changes {changes:>8}  local {local:6.2f} s"
            f"  spark {remote:6.2f} s in {report.tasks} tasks,"
            f" largest worker {watch.peak >> 20} MiB",
            flush=True,
        )
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
