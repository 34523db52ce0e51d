"""When Spark's executors are worth it: compaction in process against compaction on Spark.

    python -m benchmarks.spark_engine [--base 2000000] [--changes 200000,2000000]
        [--own-cores 1] [--rivals 1]

For each number of changes, both engines fold four overlapping generations into the base; the
memory high-water mark of the Python workers that ran the tasks is printed too. `--own-cores` limits
the compaction in process to that many processors while Spark uses all of them: a driver and a
larger cluster, on one machine. With `--rivals` it shares each of its processors with that many busy
processes: with one core and one rival, Spark's two processors are four times what it has. Spark is
timed twice: for its first job, which starts the workers, and for a later one.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import weir
from benchmarks.compaction import make, rows

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


_BUSY = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


class Watch:
    """Peak memory of the largest Python worker of this process's Spark while it is open."""

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


@contextmanager
def on_cores(count: int, rivals: int = 0) -> Iterator[None]:
    """Pin this process's threads to `count` processors; Spark's processes are not pinned."""
    every = os.sched_getaffinity(0)
    chosen = sorted(every)[:count]
    busy = [
        subprocess.Popen([sys.executable, "-c", _BUSY, str(core)])
        for core in chosen
        for _ in range(rivals)
    ]
    _pin(set(chosen))
    try:
        yield
    finally:
        _pin(every)
        for process in busy:
            process.kill()
            process.wait()


def _pin(cores: set[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def change(table: weir.Table, count: int, changes: int) -> int:
    """Write four overlapping generations, a tenth of each deletes; the bytes that are unfolded."""
    rng = np.random.default_rng(7)
    for generation in range(4):
        ids = rng.integers(0, int(count * 1.05), changes // 4)
        with table.shard(0).writer() as writer:
            for part in np.array_split(ids, max(1, len(ids) // 500_000)):
                writer.put(rows(part, f"g{generation}"), wait=False)
            writer.delete(pa.table({"id": ids[: len(ids) // 10]}))
    return sum(s.in_memory_bytes or 0 for s in table.shard(0).manifest().sstables)


def session(master: str) -> Any:
    """A Spark session whose Python workers have not been started."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    import weir.spark

    parser = argparse.ArgumentParser()
    parser.add_argument("--base", type=int, default=2_000_000)
    parser.add_argument("--changes", default="200000,2000000")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--own-cores", type=int)
    parser.add_argument("--rivals", type=int, default=0)
    given = parser.parse_args()
    for changes in map(int, given.changes.split(",")):
        folder = Path(tempfile.mkdtemp())
        table = make(folder / "t", given.base, btree=False)
        waiting = change(table, given.base, changes)
        for copy in ("first", "later"):
            shutil.copytree(folder / "t", folder / copy)
        took = {}
        with on_cores(given.own_cores or os.cpu_count() or 1, given.rivals):
            began = time.perf_counter()
            table.compact(rewrite=False)
            took["in process"] = time.perf_counter() - began
        spark = session(given.master)
        with Watch() as watch:
            for copy in ("first", "later"):
                began = time.perf_counter()
                uri = str(folder / copy)
                report = weir.spark.compact(spark, uri, engine="spark", rewrite=False)
                took[f"Spark, {copy} job"] = time.perf_counter() - began
        times = "  ".join(f"{side} {seconds:.2f} s" for side, seconds in took.items())
        print(
            f"base {given.base}  changes {changes} ({waiting >> 20} MiB)  {times}"
            f"  ({report.tasks} tasks, largest worker {watch.peak >> 20} MiB)",
            flush=True,
        )
        spark.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
