"""One shard of a real Lance table on local disk, behind a store that fails on request."""

import random
import uuid
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from weir.config import WriterConfig
from weir.env import Env
from weir.format import paths
from weir.format.manifest import ShardManifest
from weir.format.schema import TableSchema
from weir.format.wal_entry import decode_entry
from weir.lake.pylance_lake import PylanceLake
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.shard.writer import ShardWriter
from weir.store.open import open_store
from weir.store.retry import RetryingStore, RetryPolicy
from weir.testing.fault_store import FaultStore

KEY = {"lance-schema:unenforced-primary-key": "true"}


class QuickClock:
    """The real clocks, but a sleep returns at once."""

    def __init__(self) -> None:
        self.slept = 0.0
        self.offset = 0.0

    def boottime(self) -> float:
        import time

        return time.monotonic() + self.offset

    def wall(self) -> float:
        import time

        return time.time()

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


class LocalShard:
    """A table with one shard, ready for writers."""

    def __init__(self, folder: Path, *, key: bool = True) -> None:
        self.uri = str(folder)
        field = pa.field("id", pa.int64(), nullable=not key, metadata=KEY if key else None)
        schema = pa.schema([field, pa.field("x", pa.float64()), pa.field("s", pa.string())])
        lance.write_dataset(schema.empty_table(), self.uri)
        lance.dataset(self.uri).initialize_mem_wal()
        self.clock = QuickClock()
        self.env = Env(clock=self.clock, random=random.Random(11))
        self.raw = open_store(self.uri)
        self.faults = FaultStore(self.raw, env=self.env)
        self.store = RetryingStore(self.faults, self.env, RetryPolicy(attempts=3))
        self.lake = PylanceLake(self.uri, None, self.store)
        self.shard = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
        self.site = ShardSite(self.store, self.store, self.shard, self.env)
        self.table_schema = self.lake.open_base().schema

    writer_defaults = WriterConfig()

    def site_for_writing(self, _schema: TableSchema) -> ShardSite:
        return self.site

    def schema_for_writing(self) -> TableSchema:
        return self.table_schema

    def writer(self, **settings: Any) -> ShardWriter:
        return ShardWriter.open(
            self.site, schema=self.table_schema, lake=self.lake, config=WriterConfig(**settings)
        )

    def manifest(self) -> ShardManifest:
        return Manifests(self.site).require()

    def log(self) -> list[tuple[int, int, int | None, list[int] | None]]:
        """(position, epoch, generation, ids; None for a fence) of each entry, by position."""
        found = []
        for meta in self.raw.list(paths.wal_dir(self.shard)):
            position = paths.parse_wal_name(meta.path.rpartition("/")[2])
            if position is not None:
                entry = decode_entry(
                    self.raw.get(meta.path).data, position=position, path=meta.path
                )
                ids = [i for b in entry.batches for i in b.column("id").to_pylist()]
                found.append(
                    (
                        int(position),
                        int(entry.epoch),
                        entry.generation,
                        None if entry.is_fence else ids,
                    )
                )
        return sorted(found, key=lambda e: e[0])

    def logged_ids(self) -> list[int]:
        return [i for _, _, _, ids in self.log() if ids is not None for i in ids]


def row(i: int, x: float = 0.0) -> dict[str, Any]:
    return {"id": i, "x": x, "s": f"s{i}"}


def ids(writer: ShardWriter, **scan: Any) -> list[int]:
    return sorted(writer.scan(**scan).read_all().column("id").to_pylist())
