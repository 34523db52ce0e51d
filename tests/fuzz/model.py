"""What a table must hold: dictionaries, with no idea of logs, SSTables or versions."""

import copy
import datetime as dt
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import pyarrow as pa

import weir

Row = dict[str, Any]
KEYS = 12
WORDS = ["red", "green", "blue", "white", "black"]
EXPIRES_AFTER = dt.timedelta(days=30)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.utf8()),
        pa.field("n", pa.int64()),
        pa.field("at", pa.timestamp("us")),
        pa.field("vec", pa.list_(pa.float32(), 2)),
    ]
)


@dataclass(frozen=True)
class Kind:
    """What a table was made as."""

    keyed: bool
    expires: bool
    shards: int
    memtable: bool
    """Its writers keep a MemTable; else they are WAL-only."""
    wal_elsewhere: bool
    silent_after: str | None = None
    """Each writer has a shard of its own, which is sealed when it was silent for that long."""

    @staticmethod
    def drawn(rng: random.Random) -> "Kind":
        drawn = Kind(
            keyed=rng.random() < 0.75,
            expires=rng.random() < 0.3,
            shards=rng.choice([1, 1, 2, 3]),
            memtable=rng.random() < 0.7,
            wal_elsewhere=rng.random() < 0.3,
        )
        if drawn.keyed or rng.random() < 0.4:
            return drawn
        return replace(drawn, shards=1, silent_after=rng.choice(["0s", "1h"]))

    @property
    def sharding(self) -> weir.Bucket | weir.PerWriter | weir.Unsharded:
        if self.silent_after is not None:
            return weir.PerWriter(silent_after=self.silent_after)
        return weir.Bucket("id", self.shards) if self.shards > 1 else weir.Unsharded()


@dataclass
class Rows:
    """The rows of one moment, with the columns that existed then."""

    kind: Kind
    expires: bool = False
    """There is a rule by which rows expire."""
    routing: int = 0
    """How often the table had been resharded."""
    columns: list[str] = field(default_factory=lambda: SCHEMA.names)
    rows: list[Row] = field(default_factory=list)
    hidden: bool = False
    """Rows were put that had expired before: a table without its rule would show some of them."""

    def copy(self) -> "Rows":
        return copy.deepcopy(self)

    def put(self, rows: Iterable[Row]) -> None:
        for given in rows:
            row = {name: given.get(name) for name in self.columns}
            if self.kind.keyed:
                self.delete([row["id"]])
            if self.is_alive(row):
                self.rows.append(row)
            else:
                self.hidden = True

    def delete(self, ids: Iterable[int]) -> None:
        gone = set(ids)
        self.rows = [row for row in self.rows if row["id"] not in gone]

    def apply(self, change: weir.Change) -> None:
        if change.kind == "put":
            self.put(change.batch.to_pylist())
        else:
            self.delete(change.batch.column("id").to_pylist())

    def is_alive(self, row: Row) -> bool:
        return not self.expires or row["at"] is None or row["at"] > expired_before()

    def set_expiry(self, *, expires: bool) -> None:
        self.expires = expires
        alive = [row for row in self.rows if self.is_alive(row)]
        self.hidden = self.hidden or len(alive) < len(self.rows)
        self.rows = alive

    def by_id(self, key: int) -> Row | None:
        return next((row for row in self.rows if row["id"] == key), None)

    @property
    def ids(self) -> set[int]:
        return {row["id"] for row in self.rows}

    def change(self, holds: Callable[[Row], bool], to: Callable[[Row], Row]) -> None:
        self.put([{**row, **to(row)} for row in list(self.rows) if holds(row)])

    def add_column(self, name: str) -> None:
        self.columns = [*self.columns, name]
        self.rows = [{**row, name: None} for row in self.rows]

    def drop_column(self, name: str) -> None:
        self.columns = [one for one in self.columns if one != name]
        self.rows = [{k: v for k, v in row.items() if k != name} for row in self.rows]

    def rename_column(self, old: str, new: str) -> None:
        self.columns = [new if one == old else one for one in self.columns]
        self.rows = [{(new if k == old else k): v for k, v in row.items()} for row in self.rows]


@dataclass
class Model:
    """A table over time: its rows now, and at each checkpoint."""

    now: Rows
    checkpoints: dict[UUID, Rows] = field(default_factory=dict)


def expired_before() -> dt.datetime:
    """The time before which rows have expired; drawn times are days away from it."""
    return dt.datetime.now(dt.UTC).replace(tzinfo=None) - EXPIRES_AFTER


def draw_row(rng: random.Random, key: int, columns: Iterable[str]) -> Row:
    """A whole row, with every column or with some left out."""
    age = rng.choice([0, 1, 10, 40])
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None, microsecond=rng.randrange(1_000_000))
    row: Row = {
        "id": key,
        "v": " ".join(rng.sample(WORDS, rng.randrange(0, 4))),
        "n": rng.choice([None, rng.randrange(10)]),
        "at": rng.choice([None, now - dt.timedelta(days=age)]),
        "vec": rng.choice([None, [float(rng.randrange(5)), float(rng.randrange(5))]]),
    }
    row |= {name: rng.randrange(10) for name in columns if name not in row}
    return row


def comparable(rows: Iterable[Row]) -> list[str]:
    """Rows in an order and a form that can be compared."""
    return sorted(repr(sorted(row.items())) for row in rows)
