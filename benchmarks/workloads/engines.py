"""Spark: where compaction on it starts to pay, and reading through it beside native Parquet."""

from __future__ import annotations

from benchmarks.harness import Workload

WORKLOADS: list[Workload] = []
