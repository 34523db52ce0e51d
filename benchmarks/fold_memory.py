"""Does a fold hold the keys of a log, and not the entries that they came from (L-10)?

    python -m benchmarks.fold_memory [--gib 0.5 1.5]

For each size a WAL-only writer leaves a log of that many rows of 1 KiB, all with keys of their own,
and a process of its own folds it. Prints a line of JSON for each: the peak resident set of that
process, and what it grew by in the fold. The keys of 1 GiB take some 30 MiB. Fails when the growth
of the largest log is more than `GROWTH_MAX` times that of the smallest.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

import weir
from benchmarks.worker import peak_mib

MiB = 1 << 20
GROWTH_MAX = 1.25
ROW_BYTES = 1024
ROWS = 10_000
"""Of each log entry."""
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())])


def write(uri: str, nbytes: int) -> None:
    """Leave a log of about that size, whose writer has left."""
    table = weir.create(uri, SCHEMA, primary_key="id")
    text = "x" * (ROW_BYTES - 8)
    texts = pa.array([text] * ROWS)
    with table.writer(weir.WriterConfig(enable_memtable=False)) as writer:
        for first in range(0, nbytes // ROW_BYTES, ROWS):
            ids = np.arange(first, first + ROWS)
            writer.put(pa.record_batch([pa.array(ids), texts], schema=SCHEMA))


def fold(uri: str) -> dict[str, float]:
    """Fold everything; the figures of this process."""
    table = weir.open(uri)
    before = psutil.Process().memory_info().rss / MiB
    began = time.monotonic()
    report = table.compact(indexes=False, rewrite=False)
    return {
        "rows": report.rows_written,
        "seconds": round(time.monotonic() - began, 1),
        "peak_mib": peak_mib(),
        "growth_mib": round(peak_mib() - before, 1),
    }


def main() -> int:
    """Measure each size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fold_memory", description=__doc__)
    parser.add_argument("--gib", type=float, nargs="+", default=[0.5, 1.5])
    grown = []
    spawned = multiprocessing.get_context("spawn")
    for size in sorted(parser.parse_args().gib):
        with tempfile.TemporaryDirectory(prefix="weir-fold-") as folder:
            uri = str(Path(folder) / "t")
            write(uri, int(size * 1024 * MiB))
            with ProcessPoolExecutor(1, mp_context=spawned) as pool:
                figures = pool.submit(fold, uri).result()
        print(json.dumps({"gib": size, **figures}), flush=True)
        grown.append(figures["growth_mib"])
    return 1 if grown[-1] > GROWTH_MAX * grown[0] else 0


if __name__ == "__main__":
    sys.exit(main())
