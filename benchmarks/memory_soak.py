"""Does the memory of a writer stay flat over minutes at full speed, in both modes?

    python -m benchmarks.memory_soak --minutes 10

Four threads put 1,000-row batches as fast as the store accepts them. Another process compacts the
table and collects garbage the whole time, as in production, which keeps disk usage flat too. In
WAL-only mode the log grows faster than two processors can fold it, so above 2 GiB on disk the
threads pause until usage is below half of that. Prints one line of JSON for each mode: the median
resident set of the second and of the last tenth of the run, its maximum, how often the table was
tidied, and for how many seconds the threads paused.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import weir

MiB = 1 << 20
DISK_BYTES = 2048 * MiB


def batch(rng: np.random.Generator, keys: int, rows: int) -> pa.RecordBatch:
    """Random upserts over a bounded key space."""
    return pa.record_batch(
        {
            "id": pa.array(rng.integers(0, keys, rows)),
            "x": pa.array(rng.random(rows)),
            "s": pa.array([f"row {n:08d}" for n in rng.integers(0, 10**8, rows)]),
        }
    )


def soak(folder: str, *, memtable: bool, seconds: float) -> dict[str, float | str]:
    """Run one mode for `seconds`; returns the figures."""
    schema = pa.schema([pa.field("id", pa.int64(), False), ("x", pa.float64()), ("s", pa.string())])
    before = shutil.disk_usage(Path(folder).parent).used
    config = weir.WriterConfig(
        enable_memtable=memtable,
        max_unflushed_memtable_bytes=256 * MiB,
        max_memtable_size=64 * MiB,
        max_memtable_rows=10_000_000,
    )
    table = weir.create(folder, schema, primary_key="id", writer_defaults=config)
    stop, go = threading.Event(), threading.Event()
    go.set()
    paused = 0
    rows_put = [0] * 4
    samples: list[float] = []
    tidied = multiprocessing.get_context("spawn").Value("i", 0)
    other = multiprocessing.get_context("spawn").Process(
        target=tidy, args=(folder, memtable, tidied), daemon=True
    )
    other.start()
    with table.shards()[0].writer(config) as writer:

        def put(n: int) -> None:
            rng = np.random.default_rng(n)
            batches = [batch(rng, 1_000_000, 1000) for _ in range(20)]
            while not stop.is_set():
                go.wait()
                for one in batches:
                    writer.put(one, wait=False)
                    rows_put[n] += one.num_rows
                writer.flush_wal()

        threads = [threading.Thread(target=put, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        process = psutil.Process()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(1)
            samples.append(process.memory_info().rss / MiB)
            on_disk = shutil.disk_usage(folder).used - before
            if on_disk > DISK_BYTES:
                go.clear()
            elif on_disk < DISK_BYTES // 2:
                go.set()
            paused += not go.is_set()
        stop.set()
        go.set()
        for thread in threads:
            thread.join()
    other.kill()
    other.join()
    tenth = max(1, len(samples) // 10)
    return {
        "mode": "memtable" if memtable else "wal-only",
        "seconds": seconds,
        "rows": sum(rows_put),
        "rss_second_tenth_mib": round(statistics.median(samples[tenth : 2 * tenth] or samples)),
        "rss_last_tenth_mib": round(statistics.median(samples[-tenth:])),
        "rss_max_mib": round(max(samples)),
        "tidied": tidied.value,
        "paused_seconds": paused,
    }


def tidy(folder: str, memtable: bool, times: Any) -> None:
    """Compact and collect until killed, in a separate process as in production."""
    while True:
        table = weir.open(folder)
        table.compact(fold_wal=not memtable)
        table.gc(min_age=0, fence_retention="10m")
        times.value += 1
        time.sleep(2)


def main() -> None:
    """Run both modes, each for half of the time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    minutes = parser.parse_args().minutes
    for memtable in (True, False):
        with tempfile.TemporaryDirectory(prefix="weir-soak-") as folder:
            figures = soak(str(Path(folder) / "t"), memtable=memtable, seconds=minutes * 30)
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
