"""Every workload, by name, in the order of the results."""

from __future__ import annotations

from benchmarks.harness import Workload
from benchmarks.workloads import bulk, compaction, engines, growth, logs, puts, reads, stores

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for module in (puts, bulk, logs, reads, compaction, engines, stores, growth)
    for workload in module.WORKLOADS
}
