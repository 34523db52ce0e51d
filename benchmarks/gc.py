"""Collection of many obsolete WAL entries against the store's own bulk delete of the same objects.

    python benchmarks/gc.py [--where local] [--objects 100000] [--rounds 3]

Entries of several epochs below R, as flushes leave them. "listing" and "bulk delete" are what the
store takes for them alone, in the batches and with the concurrency that collection uses.
"""

import argparse
import contextlib
import os
import resource
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

import weir
from benchmarks.places import open_place
from weir.format import paths
from weir.format.wal_entry import EntryEncoder
from weir.log.manifests import Manifests
from weir.log.rules import Evidence
from weir.types import Epoch, Generation, Position
from weir.upkeep.collect import collect, target_of
from weir.upkeep.gc.tasks import BATCH_OBJECTS, WORKERS

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.utf8())])


def fill(table: weir.Table, objects: int, epochs: int = 10) -> None:
    """`objects` entries in the log, all covered by R."""
    shard = table.shards()[0]
    site = shard.site
    with shard.writer():
        pass
    encoder = EntryEncoder(shard.table_schema)
    batch = pa.RecordBatch.from_pylist(
        [{"id": i, "s": "x" * 20, "_tombstone": False} for i in range(10)],
        schema=shard.table_schema.wal,
    )
    bodies = [
        bytes(encoder.encode([batch], epoch=Epoch(e), generation=Generation(1), entry_id="x"))
        for e in range(1, epochs + 1)
    ]

    def put(position: int) -> None:
        body = bodies[position * epochs // (objects + 2)]
        with contextlib.suppress(Exception):
            site.store.put_if_absent(paths.wal_path(site.shard, Position(position)), body)

    if "://" in table.uri:
        table.core.env.threads.map(put, list(range(2, objects + 2)), workers=32)
    else:
        folder = Path(table.uri, paths.wal_dir(site.shard))
        for position in range(2, objects + 2):
            name = paths.wal_path(site.shard, Position(position)).rpartition("/")[2]
            (folder / name).write_bytes(bodies[position * epochs // (objects + 2)])
    manifests = Manifests(site)
    last = Position(objects + 1)
    manifests.update(
        lambda m: (replace(m, replay_after=last, last_seen=last), Evidence(covered=last)),
        epoch=manifests.require().writer_epoch,
    )


def bare(table: weir.Table) -> tuple[int, float, float]:
    """Listing and bulk delete of everything in the log."""
    site = table.shards()[0].site
    began = time.perf_counter()
    found = [meta.path for meta in site.store.list(paths.wal_dir(site.shard))]
    listed = time.perf_counter()
    batches = [found[i : i + BATCH_OBJECTS] for i in range(0, len(found), BATCH_OBJECTS)]
    site.env.threads.map(site.store.delete, batches, workers=WORKERS)
    return len(found), listed - began, time.perf_counter() - listed


def run(where: str, objects: int, rounds: int) -> None:
    with open_place(where) as place:
        for number in range(rounds):
            tables = [
                weir.create(
                    f"{place.root}/{name}{number}",
                    SCHEMA,
                    primary_key="id",
                    storage_options=place.options,
                )
                for name in ("bare", "gc")
            ]
            for table in tables:
                fill(table, objects)
            os.sync()
            count, listing, deleting = bare(tables[0])
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            began = time.perf_counter()
            report = collect(target_of(tables[1]), 0, "7d")
            took = time.perf_counter() - began
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert report.ok, report.errors
            deleted = report.kind("wal").deleted
            print(
                f"{where}: {deleted} of {count} deleted in {took:.2f} s,"
                f" {deleted / took:,.0f}/s; bare listing {listing:.2f} s + bulk delete"
                f" {deleting:.2f} s, {count / (listing + deleting):,.0f}/s;"
                f" ratio {(listing + deleting) / took * deleted / count:.2f};"
                f" peak memory +{grown / 1024:.0f} MB"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--where", default="local", choices=["local", "s3"])
    parser.add_argument("--objects", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    run(chosen.where, chosen.objects, chosen.rounds)


if __name__ == "__main__":
    main()
