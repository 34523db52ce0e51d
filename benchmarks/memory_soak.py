"""Memory of a writer at full speed over minutes, in both modes: does it stay flat?

    python -m benchmarks.memory_soak --minutes 10

Four threads put 1,000-row batches as fast as the store takes them; the table is compacted and
collected every few seconds so that the disk stays flat too. Prints one line of JSON for each mode:
the median resident set of the second and of the last tenth of the run, and its highest value.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

import weir

MiB = 1 << 20


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
    """One mode for `seconds`; returns the figures."""
    schema = pa.schema([pa.field("id", pa.int64(), False), ("x", pa.float64()), ("s", pa.string())])
    table = weir.create(folder, schema, primary_key="id")
    config = weir.WriterConfig(
        enable_memtable=memtable, max_unflushed_memtable_bytes=256 * MiB, max_memtable_size=64 * MiB
    )
    stop = threading.Event()
    rows_put = [0] * 4
    samples: list[float] = []
    with table.shards()[0].writer(config) as writer:

        def put(n: int) -> None:
            rng = np.random.default_rng(n)
            batches = [batch(rng, 1_000_000, 1000) for _ in range(20)]
            while not stop.is_set():
                for one in batches:
                    writer.put(one, wait=False)
                    rows_put[n] += one.num_rows
                writer.flush_wal()

        def tidy() -> None:
            while not stop.wait(5):
                table.compact(fold_wal=not memtable)
                table.gc(min_age=0, fence_retention="10m")

        threads = [threading.Thread(target=put, args=(n,)) for n in range(4)]
        threads.append(threading.Thread(target=tidy))
        for thread in threads:
            thread.start()
        process = psutil.Process()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(1)
            samples.append(process.memory_info().rss / MiB)
        stop.set()
        for thread in threads:
            thread.join()
    tenth = max(1, len(samples) // 10)
    return {
        "mode": "memtable" if memtable else "wal-only",
        "seconds": seconds,
        "rows": sum(rows_put),
        "rss_second_tenth_mib": round(statistics.median(samples[tenth : 2 * tenth] or samples)),
        "rss_last_tenth_mib": round(statistics.median(samples[-tenth:])),
        "rss_max_mib": round(max(samples)),
    }


def main() -> None:
    """Both modes, each in half the time."""
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
