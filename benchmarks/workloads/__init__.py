"""Every workload, by name, in the order of the results."""

from __future__ import annotations

from benchmarks.harness import Workload
from benchmarks.workloads import (
    bulk,
    clones,
    compaction,
    doors,
    engines,
    growth,
    logs,
    modes,
    names,
    puts,
    reads,
    search,
    shards,
    stores,
    streams,
    updates,
    upkeep,
)

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for module in (
        puts,
        doors,
        updates,
        bulk,
        logs,
        modes,
        reads,
        search,
        compaction,
        engines,
        names,
        streams,
        upkeep,
        clones,
        shards,
        stores,
        growth,
    )
    for workload in module.WORKLOADS
}
