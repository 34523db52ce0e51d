"""One shard on a store in memory that fails on request, with a clock that tests set."""

import itertools
import random
from dataclasses import dataclass, field, replace
from uuid import UUID

import pyarrow as pa

from weir.config import WriterConfig
from weir.env import Env, SystemThreads
from weir.format import paths
from weir.format.schema import TableSchema, table_schema
from weir.format.wal_entry import EntryEncoder, decode_entry, encode_fence
from weir.log.appender import WalAppender
from weir.log.intake import Intake
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.store.memory import MemoryStore
from weir.store.retry import RetryingStore, RetryPolicy
from weir.testing.fault_store import FaultStore
from weir.types import Epoch, Generation, Position

SHARD = UUID("00112233-4455-6677-8899-aabbccddeeff")


class HandClock:
    """A clock that moves when a test sets it, or when the code under test sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def boottime(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1.7e9 + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def schema(*, key: bool = True) -> TableSchema:
    """id, x, s, with field ids as Lance assigns them."""
    fields = [
        pa.field("id", pa.int64(), nullable=not key),
        pa.field("x", pa.float64()),
        pa.field("s", pa.string()),
    ]
    with_ids = [f.with_metadata({"lance:field_id": str(i)}) for i, f in enumerate(fields)]
    return table_schema(pa.schema(with_ids), ["id"] if key else [], 2)


@dataclass
class Bench:
    """A shard, the store behind it, and methods to break it."""

    key: bool = True
    raw: MemoryStore = field(default_factory=lambda: MemoryStore())
    clock: HandClock = field(default_factory=HandClock)
    shard: UUID = SHARD
    attempts: int = 4

    def __post_init__(self) -> None:
        self.env = Env(clock=self.clock, threads=SystemThreads(), random=random.Random(7))
        self.faults = FaultStore(self.raw, env=self.env)
        self.store = RetryingStore(self.faults, self.env, RetryPolicy(attempts=self.attempts))
        self.site = ShardSite(self.store, self.store, self.shard, self.env)
        self.table_schema = schema(key=self.key)
        self.intake = Intake(self.table_schema)
        self.numbers = itertools.count()

    def rows(self, *ids: int) -> list[pa.RecordBatch]:
        return self.intake.rows([{"id": i, "x": float(i), "s": str(i)} for i in ids])

    def open(self, *, fence_ttl: float | None = None) -> WalAppender:
        if fence_ttl is not None:  # the table's; infinity disables the second lock of G-7
            self.site = replace(self.site, fence_ttl=fence_ttl)
        return WalAppender.open(self)

    writer_defaults = WriterConfig()

    def site_for_writing(self, _schema: TableSchema) -> ShardSite:
        return self.site

    def schema_for_writing(self) -> TableSchema:
        return self.table_schema

    def manifests(self) -> Manifests:
        return Manifests(self.site)

    def log(self) -> list[tuple[int, int, list[int] | None]]:
        """(position, epoch, ids; None for a fence) of every entry on the store, by position."""
        found = []
        for meta in self.raw.list(paths.wal_dir(self.shard)):
            position = paths.parse_wal_name(meta.path.rpartition("/")[2])
            if position is None:
                continue
            entry = decode_entry(self.raw.get(meta.path).data, position=position, path=meta.path)
            ids = [i for b in entry.batches for i in b.column("id").to_pylist()]
            found.append((int(position), int(entry.epoch), None if entry.is_fence else ids))
        return sorted(found)

    def delete_entry(self, position: int) -> None:
        self.raw.delete([paths.wal_path(self.shard, Position(position))])

    def place_fence(self, position: int, epoch: int) -> None:
        self.raw.put_if_absent(
            paths.wal_path(self.shard, Position(position)),
            bytes(encode_fence(Epoch(epoch), "foreign")),
        )

    def place_rows(self, position: int, epoch: int, *ids: int) -> None:
        entry = EntryEncoder(self.table_schema).encode(
            self.rows(*ids), epoch=Epoch(epoch), generation=Generation(1), entry_id="foreign"
        )
        self.raw.put_if_absent(paths.wal_path(self.shard, Position(position)), bytes(entry))
