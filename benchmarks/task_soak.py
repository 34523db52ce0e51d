"""Does memory stay flat while 2,000 tasks put through one table's writer for minutes?

    python -m benchmarks.task_soak --minutes 5

Tasks of one event loop put rows as dicts; about one put in 997 is cancelled while it is under way.
Prints a line of JSON: puts, and the median resident set of the second and of the last fifth of the
run. Fails when that of the last fifth is more than 1.25 times that of the second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time

import psutil
import pyarrow as pa

import weir

MiB = 1 << 20
GROWTH_MAX = 1.25
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.float64()),
        pa.field("s", pa.string()),
    ]
)


async def soak(uri: str, *, tasks: int, seconds: float, shards: int) -> dict[str, float]:
    """Put for `seconds`; the counts, and the memory early and late in the run."""
    sharding = weir.Bucket("id", shards) if shards > 1 else weir.Unsharded()
    table = weir.create(uri, SCHEMA, primary_key="id", sharding=sharding)
    process = psutil.Process()
    sizes: list[float] = []
    counts = {"puts": 0, "cancelled": 0}
    began = time.monotonic()

    async def put_all(first: int) -> None:
        number = first
        while time.monotonic() < began + seconds:
            number += tasks
            row = {"id": number % 100_000, "v": number * 0.5, "s": f"text of row {number:08d}"}
            put = asyncio.ensure_future(writer.aput([row]))
            if number % 997 == 0:
                await asyncio.sleep(0)
                put.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await put
            counts["cancelled" if put.cancelled() else "puts"] += 1

    async def watch() -> None:
        while time.monotonic() < began + seconds:
            sizes.append(process.memory_info().rss / MiB)
            await asyncio.sleep(seconds / 100)

    with table.writer() as writer:
        await asyncio.gather(watch(), *(put_all(index) for index in range(tasks)))
    fifth = max(1, len(sizes) // 5)
    early = statistics.median(sizes[fifth : 2 * fifth] or sizes)
    late = statistics.median(sizes[-fifth:])
    return {**counts, "rows": table.scan().count(), "early_mib": early, "late_mib": late}


def main(argv: list[str] | None = None) -> int:
    """Run the soak, print the figures, and fail if memory grew."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.task_soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--tasks", type=int, default=2_000)
    parser.add_argument("--shards", type=int, default=1)
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as place:
        run = soak(f"{place}/t", tasks=asked.tasks, seconds=asked.minutes * 60, shards=asked.shards)
        found = asyncio.run(run)
    print(json.dumps(found))
    return 0 if found["late_mib"] <= GROWTH_MAX * found["early_mib"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
