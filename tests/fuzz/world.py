"""The tables of one history, the handles and writers on them, and their comparison with the model.

Several handles of a table are in use at the same time: the first, some opened later, pickled ones.
Every read goes through one of them by chance.
"""

import pickle
import random
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa

import weir
from tests.fuzz.model import EXPIRES_AFTER, KEYS, SCHEMA, WORDS, Kind, Model, Row, Rows, comparable
from weir.config import WriterConfig
from weir.errors import WeirError
from weir.read.changes import Bookmark

HANDLES = 3
"""Most handles of one table in use."""


class MismatchError(AssertionError):
    """The table is not what the model says."""


@dataclass
class Place:
    """A table and its model."""

    name: str
    uri: str
    model: Model
    handles: list[weir.Table]
    parent: "Place | None" = None
    """The table whose files a shallow clone shares."""
    is_clone: bool = False
    writer: Any = None
    writer_config: WriterConfig = field(default_factory=WriterConfig)
    is_stale: bool = False
    """The open writer was fenced, or may have been: its next call may say so."""
    mirror: Rows | None = None
    """The change feed, applied in order to what the table was when the feed began."""
    bookmark: Bookmark | None = None
    copy: Rows | None = None
    """What the consumer `copy` has; None if there is no such consumer."""
    indexed: bool = False
    left: list[Any] = field(default_factory=list)
    """Writers that nobody closed, as a killed process leaves them; not garbage collected either."""
    forgotten: list[weir.Table] = field(default_factory=list)
    """Handles of a table that was dropped here."""

    @property
    def now(self) -> Rows:
        return self.model.now

    @property
    def kind(self) -> Kind:
        return self.now.kind

    def handle(self, rng: random.Random) -> weir.Table:
        return rng.choice(self.handles)

    def add_handle(self, table: weir.Table) -> None:
        self.handles = [self.handles[0], *[*self.handles[1:], table][1 - HANDLES :]]

    # -- writers ---------------------------------------------------------------------------------

    def open_writer(self, rng: random.Random, *, memtable: bool | None = None) -> Any:
        """The open writer, or a new one: of the table, or of its one shard."""
        wanted = self.kind.memtable if memtable is None else memtable
        if self.writer is not None and self.writer_config.enable_memtable == wanted:
            return self.writer
        self.close_writer()
        config = WriterConfig(
            enable_memtable=wanted,
            max_memtable_rows=rng.choice([4, 100]),
            durable_write=rng.random() < 0.8,
        )
        table = self.handle(rng)
        self.writer_config = config
        self.writer = table.writer(config)
        self.is_stale = False
        return self.writer

    def close_writer(self) -> None:
        writer, self.writer = self.writer, None
        if writer is None:
            return
        try:
            writer.close()
        except WeirError as error:
            if not self.is_stale or error.not_written or error.perhaps_written:
                raise  # every put was waited for: no row is left to hand back

    def flush_wal(self) -> None:
        """Everything put so far is durable."""
        if self.writer is not None:
            try:
                self.writer.flush_wal()
            except WeirError as error:
                if not self.is_stale or error.perhaps_written or error.not_written:
                    raise

    # -- the feed --------------------------------------------------------------------------------

    def follow(self, table: weir.Table) -> None:
        """Apply the changes since the last time to the mirror."""
        if self.mirror is None:
            return
        feed = table.changes(self.bookmark)
        for change in feed:
            self.mirror.apply(change)
        self.bookmark = feed.bookmark
        require_equal(f"{self.name}: the feed's mirror", self.mirror.rows, self.now.rows)

    def begin_feed(self, table: weir.Table) -> None:
        """Begin a mirror with the rows of now: what came to the base by another way is in no
        feed."""
        feed = table.changes(self.bookmark)
        for _ in feed:
            pass
        self.bookmark = feed.bookmark
        self.mirror = self.now.copy()
        if self.copy is not None:
            table.drop_consumer("copy")
            self.copy = None


class World:
    """All tables of one history."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.places: list[Place] = []
        self._names = 0
        self._pool: ProcessPoolExecutor | None = None
        rng = random.Random(seed)
        self.create(Kind.drawn(rng))

    def tell(self, what: str) -> None:
        """Note what happens, for people who read the history of a failure."""
        self.told.append(what)

    def new_name(self) -> str:
        self._names += 1
        return f"t{self._names}"

    def uri_of(self, name: str) -> str:
        return str(self.folder / f"{name}.lance")

    def create(self, kind: Kind, name: str = "") -> Place:
        """Make a table, and its model."""
        name = name or self.new_name()
        self.tell(f"{name}: create {kind}")
        table = weir.create(
            self.uri_of(name),
            SCHEMA,
            primary_key="id" if kind.keyed else None,
            sharding=kind.sharding,
            wal_uri=str(self.folder / f"{name}-wal") if kind.wal_elsewhere else None,
            expire=weir.Expire("at", EXPIRES_AFTER) if kind.expires else None,
        )
        place = Place(name, self.uri_of(name), Model(Rows(kind, expires=kind.expires)), [table])
        place.begin_feed(table)
        self.places.append(place)
        return place

    def forget(self, place: Place) -> None:
        """The table is gone."""
        self.places.remove(place)

    def shares_files(self, place: Place) -> bool:
        return any(other.parent is place for other in self.places)

    def elsewhere(self, table: weir.Table, rows: list[Row], ids: list[int]) -> None:
        """Put and delete in another process."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        self._pool.submit(write_elsewhere, pickle.dumps(table), rows, ids).result(60)

    def close(self) -> None:
        """End what the history began, whatever state it is in."""
        for place in self.places:
            if place.writer is not None:
                try:
                    place.writer.close()
                except Exception as error:
                    self.tell(f"{place.name}: closing at the end: {error!r}")
        if self._pool is not None:
            self._pool.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- comparing -------------------------------------------------------------------------------

    def check(self, rng: random.Random) -> None:
        """Compare every table, every checkpoint and every feed with the model."""
        for place in self.places:
            place.flush_wal()
            table = place.handle(rng)
            check_reads(f"{place.name}", table, place.now, rng, None)
            if place.kind.keyed:
                check_get(place.name, table, place.now, rng)
            check_search(place.name, table, place.now, rng)
            listed = {one.id for one in table.checkpoints()}
            for checkpoint, rows in place.model.checkpoints.items():
                if checkpoint not in listed:
                    raise MismatchError(f"{place.name}: checkpoint {checkpoint} is not listed")
                check_reads(f"{place.name} at {checkpoint}", table, rows, rng, checkpoint)
            place.follow(place.handle(rng))


def write_elsewhere(pickled: bytes, rows: list[Row], ids: list[int]) -> None:
    """In another process: put and delete through a pickled handle."""
    table: weir.Table = pickle.loads(pickled)
    with table.writer() as writer:
        if rows:
            writer.put(rows)
        if ids:
            writer.delete(ids)


def require_equal(what: str, found: list[Row], expected: list[Row]) -> None:
    have, want = comparable(found), comparable(expected)
    if have != want:
        missing = [row for row in want if want.count(row) > have.count(row)]
        extra = [row for row in have if have.count(row) > want.count(row)]
        raise MismatchError(f"{what}: missing {missing[:4]}, extra {extra[:4]}")


def check_reads(
    what: str, table: weir.Table, rows: Rows, rng: random.Random, checkpoint: Any
) -> None:
    require_equal(
        f"{what}: scan", table.scan(checkpoint=checkpoint).to_table().to_pylist(), rows.rows
    )
    at = rng.randrange(10)
    passing = [row for row in rows.rows if row["n"] is not None and row["n"] >= at]
    found = table.scan(filter=f"n >= {at}", checkpoint=checkpoint).to_table().to_pylist()
    require_equal(f"{what}: scan n >= {at}", found, passing)
    for filter, expected in ((None, len(rows.rows)), (f"n >= {at}", len(passing))):
        count = table.count(filter, checkpoint=checkpoint)
        if count != expected:
            raise MismatchError(f"{what}: count({filter}) is {count}, not {expected}")


def check_get(what: str, table: weir.Table, rows: Rows, rng: random.Random) -> None:
    keys = rng.sample(range(KEYS), KEYS)
    found = table.get(keys).to_pylist()
    expected = [row for key in keys if (row := rows.by_id(key)) is not None]
    require_equal(f"{what}: get", found, expected)
    if [row["id"] for row in found] != [row["id"] for row in expected]:
        raise MismatchError(f"{what}: get({keys}) is in another order: {found}")


def check_search(what: str, table: weir.Table, rows: Rows, rng: random.Random) -> None:
    word = rng.choice(WORDS)
    if "v" in rows.columns:
        found = table.search("v", word, k=1000).drop_columns(["_score"]).to_pylist()
        expected = [row for row in rows.rows if row["v"] and word in row["v"].split()]
        require_equal(f"{what}: search {word}", found, expected)
    if "vec" in rows.columns:
        near = [float(rng.randrange(5)), float(rng.randrange(5))]
        result = table.search("vec", near, k=3, exact=True)
        distances = sorted(
            sum((a - b) ** 2 for a, b in zip(row["vec"], near, strict=True))
            for row in rows.rows
            if row["vec"] is not None
        )
        if result["_distance"].to_pylist() != distances[:3]:
            found = result["_distance"].to_pylist()
            raise MismatchError(f"{what}: search near {near}: {found}, not {distances[:3]}")
        for row in result.drop_columns(["_distance"]).to_pylist():
            if row not in rows.rows:
                raise MismatchError(f"{what}: search near {near} shows {row}")


def as_arrow(rows: list[Row], table: weir.Table) -> pa.Table:
    """Rows in the table's own types."""
    return pa.Table.from_pylist(rows, schema=table.schema)
