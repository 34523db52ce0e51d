"""Collection of many obsolete WAL entries, beside the store's own listing and bulk delete."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import weir
from benchmarks import data
from benchmarks.harness import Ctx, Goal, Round, Workload
from benchmarks.peers import make_table, obstore_at, one_shard
from benchmarks.workloads.growth import put_all
from weir.format import paths
from weir.format.wal_entry import EntryEncoder
from weir.log.intake import Intake
from weir.log.manifests import Manifests
from weir.log.rules import Evidence
from weir.types import Epoch, Generation, Position
from weir.upkeep.gc.collect import collect
from weir.upkeep.gc.run import BATCH_OBJECTS, WORKERS

EPOCHS = 10


def _obsolete_log(ctx: Ctx) -> weir.Table:
    """A log of several epochs, all of it below R as after flushes."""
    count = ctx.n(100_000, 5_000, 50) if ctx.where == "local" else ctx.n(10_000, 1_000, 50)
    table = make_table(ctx, "gc")
    shard = one_shard(table)
    with shard.writer():
        pass
    encoder = EntryEncoder(shard.table_schema)
    rows = Intake(shard.table_schema).rows(data.batch(0, 10))
    bodies = [
        bytes(encoder.encode(rows, epoch=Epoch(e), generation=Generation(1), entry_id="0" * 32))
        for e in range(1, EPOCHS + 1)
    ]
    items = [
        (paths.wal_path(shard.id, Position(p)), bodies[p * EPOCHS // (count + 2)])
        for p in range(2, count + 2)
    ]
    asyncio.run(put_all(obstore_at(table.uri, ctx.options), items))
    manifests = Manifests(shard.site)
    last = Position(count + 1)
    manifests.update(
        lambda m: (replace(m, replay_after=last, last_seen=last), Evidence(covered=last)),
        epoch=manifests.require().writer_epoch,
    )
    return table


@contextmanager
def gc_weir(ctx: Ctx) -> Iterator[Round]:
    def run() -> float:
        table = _obsolete_log(ctx)
        began = time.perf_counter()
        report = collect(table.core, 0, "7d")
        took = time.perf_counter() - began
        assert report.ok, report.errors
        return report.kind("wal").deleted / took

    yield run


@contextmanager
def gc_floor(ctx: Ctx) -> Iterator[Round]:
    """List and delete the log, with the batch size and the concurrency of the collector."""

    def run() -> float:
        site = one_shard(_obsolete_log(ctx)).site
        began = time.perf_counter()
        found = [meta.path for meta in site.store.list(paths.wal_dir(site.shard))]
        batches = [found[i : i + BATCH_OBJECTS] for i in range(0, len(found), BATCH_OBJECTS)]
        site.env.threads.map(site.store.delete, batches, workers=WORKERS)
        return len(found) / (time.perf_counter() - began)

    yield run


WORKLOADS = [
    Workload(
        "garbage collection of 100k (S3: 10k) WAL entries",
        unit="objects/s",
        better="higher",
        goal="close to the store's own listing and bulk delete: within 1.5",
        goals=[Goal("floor", within=1.5)],
        sides={"weir": gc_weir, "floor": gc_floor},
        rounds_max=3,
        note="entries of 10 epochs below R; the floor lists and deletes as many, nothing else",
    ),
]
