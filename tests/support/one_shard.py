"""One shard on any store, with the model of Lance; for regressions and crash points."""

import contextlib
from typing import Any
from uuid import UUID

import pyarrow as pa

from simulator.model_lake import ModelLake
from weir.config import WriterConfig
from weir.env import SYSTEM, Env
from weir.format.schema import FIELD_ID, TableSchema, table_schema
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.log.tailer import WalTailer
from weir.merge.levels import Level, MemLevel
from weir.merge.merge import merge_scan
from weir.shard.writer import ShardWriter
from weir.store.api import ObjectExists, Store
from weir.store.retry import RetryingStore, RetryPolicy

SHARD = UUID(int=0xA1, version=4)
QUICK = RetryPolicy(attempts=4, first_delay=0.0, longest_delay=0.0)


def small_schema(*, keyed: bool = True) -> TableSchema:
    """A key and a value."""
    fields = [
        pa.field(name, pa.int64(), name != "k", {FIELD_ID: str(i).encode()})
        for i, name in enumerate(("k", "v"))
    ]
    return table_schema(pa.schema(fields), ("k",) if keyed else (), 1)


KEYED = small_schema()
KEYLESS = small_schema(keyed=False)


def site_on(
    store: Store, wal: Store | None = None, *, env: Env = SYSTEM, shard: UUID = SHARD
) -> ShardSite:
    """The shard on that store, with retries as in the product; `lake_on` makes an empty base."""
    retrying = RetryingStore(store, env, QUICK)
    log = retrying if wal is None else RetryingStore(wal, env, QUICK)
    return ShardSite(retrying, log, shard, env)


def open_writer(
    site: ShardSite, config: WriterConfig | None = None, schema: TableSchema = KEYED
) -> ShardWriter:
    """A writer that uses the model of Lance."""
    return ShardWriter.open(site, schema=schema, lake=lake_on(site, schema), config=config)


def lake_on(site: ShardSite, schema: TableSchema = KEYED) -> ModelLake:
    """The model of Lance on the shard's store; creates an empty base if there is none."""
    lake = ModelLake(site.store, schema)
    if not lake._versions():
        with contextlib.suppress(ObjectExists):
            lake.create_base()
    return lake


class Place:
    """The part of a shard that the tailer uses."""

    def __init__(self, site: ShardSite, schema: TableSchema = KEYED) -> None:
        self.site = site
        self.table_schema = schema


def table_on_store(site: ShardSite, schema: TableSchema = KEYED) -> pa.Table:
    """A durable read as another process does it, without access to the writer."""
    lake = lake_on(site, schema)
    manifest = Manifests(site).latest()
    after = manifest.replay_after if manifest else 0
    tail = [b for e in WalTailer(Place(site, schema), after + 1) for b in e.batches]
    levels: list[Level] = [MemLevel(tail, schema)]
    tables = sorted(manifest.sstables, key=lambda s: -s.generation) if manifest else []
    levels += [lake.open_sstable(site.shard, table.path, schema) for table in tables]
    _, rows = merge_scan(levels, lake.open_base(), schema)
    return pa.Table.from_batches(rows, schema.plain)


def rows_on_store(site: ShardSite) -> dict[Any, Any]:
    """A durable read, as a dict from key to value."""
    table = table_on_store(site)
    return dict(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True))
