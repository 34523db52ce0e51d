"""What do metrics cost at the door?

    python -m benchmarks.metrics_cost [--pairs 20] [--seconds 2] [--threads 16] [--otel]

Threads put single rows into one table on a local disk through one `table.writer()`. Rounds with
metrics on and off alternate, in pairs whose order alternates too, so that whatever else the machine
does meets both alike. `--otel` also sends every measurement to OpenTelemetry's own SDK, which keeps
it in memory.

Prints a line of JSON, and fails when the median of the pairs lost 3 % of the puts or more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable

import pyarrow as pa

import weir
from weir import otel
from weir.env import Env

COST_MAX = 0.03
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.float64())])


def puts_per_second(put: Callable[[int], object], threads: int, seconds: float) -> float:
    """How many puts all threads together get done."""
    done = [0] * threads
    start = threading.Barrier(threads + 1)
    is_over = threading.Event()

    def run(number: int) -> None:
        start.wait()
        while not is_over.is_set():
            put(number * 1_000_000 + done[number] % 1_000)
            done[number] += 1

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    start.wait()
    began = time.perf_counter()
    is_over.wait(seconds)
    is_over.set()
    for thread in running:
        thread.join()
    return sum(done) / (time.perf_counter() - began)


def run(pairs: int, seconds: float, threads: int, *, with_otel: bool = False) -> dict[str, object]:
    """Both rates in every pair, and what the pairs say together."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    env = Env()
    if with_otel:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        otel.instrument(MeterProvider([InMemoryMetricReader()]), env=env)
    with tempfile.TemporaryDirectory(prefix="weir-metrics-") as folder:
        table = weir.create(f"{folder}/t", SCHEMA, primary_key="id", env=env)
        with table.writer() as writer:

            def put(key: int) -> None:
                writer.put([{"id": key, "v": 0.5}])

            puts_per_second(put, threads, seconds)  # opens the shard
            for number in range(pairs):
                for is_on in (number % 2 == 0, number % 2 != 0):
                    env.meters.is_on = is_on
                    rates[is_on].append(puts_per_second(put, threads, seconds))
    costs = [1 - on / off for on, off in zip(rates[True], rates[False], strict=True)]
    return {
        "threads": threads,
        "pairs": pairs,
        "seconds": seconds,
        "otel": with_otel,
        "puts_per_second_on": round(statistics.median(rates[True])),
        "puts_per_second_off": round(statistics.median(rates[False])),
        "cost": round(statistics.median(costs), 4),
        "cost_quartiles": [round(q, 4) for q in statistics.quantiles(costs, n=4)],
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metrics_cost")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--otel", action="store_true", help="send everything to OpenTelemetry too")
    asked = parser.parse_args(argv)
    found = run(asked.pairs, asked.seconds, asked.threads, with_otel=asked.otel)
    print(json.dumps(found))
    cost = found["cost"]
    assert isinstance(cost, float)
    if cost >= COST_MAX:
        print(f"metrics cost {cost:.1%} of the puts, which is not below 3 %", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
