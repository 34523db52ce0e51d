"""Small sharded tables for the rules of checkpoints, clones and WAL stores."""

import dataclasses
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa

import weir
from tests.support.local_shard import QuickClock
from weir.env import Env
from weir.records.places import LogPlace
from weir.table import Table

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


class SteppedClock(QuickClock):
    """A clock that moves only when a test sets it or the code sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1_000_000.0

    def boottime(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def make(place: Any, shards: int = 2, **options: Any) -> Table:
    """A keyed table with that many shards."""
    sharding = weir.Bucket("id", shards) if shards > 1 else weir.Unsharded()
    options.setdefault("env", Env())
    return weir.create(str(place), SCHEMA, primary_key="id", sharding=sharding, **options)


def put(writer: Any, ids: Any, text: str) -> None:
    """Put rows with those ids, all with the value `text`."""
    writer.put([{"id": i, "v": text} for i in ids])


def rows(table: Table, **how: Any) -> dict[int, str]:
    """The rows of a scan, by key."""
    return {row["id"]: row["v"] for row in table.scan(**how).to_table().to_pylist()}


def expect(*parts: tuple[Any, str]) -> dict[int, str]:
    """The rows after a `put` of each part in order."""
    return {i: text for ids, text in parts for i in ids}


def again(table: Table, **options: Any) -> Table:
    """The same table as another process opens it."""
    options.setdefault("storage_options", dict(table.core.storage_options))
    return weir.open(table.uri, **options)


def wipe(place: Any) -> None:
    """Delete everything on a disk but the mount point."""
    import shutil

    shutil.rmtree(place)
    Path(place).mkdir(parents=True)


def at_time(table: Table, now: list[float]) -> Table:
    """The table with a store whose clock says `now[0]`."""
    store = _Clocked(table.core.store, now)
    return Table(dataclasses.replace(table.core, store=store))


class _Clocked:
    def __init__(self, inner: Any, now: list[float]) -> None:
        self._inner = inner
        self._now = now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def now(self) -> float:
        return self._now[0]


def log_place(table: Table, shard: UUID | None = None) -> LogPlace:
    """Where the log of a shard is, by default of the first, according to its manifest."""
    return table.core.log(shard or table.shards()[0].id).place()
