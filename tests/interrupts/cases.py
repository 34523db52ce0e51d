"""The calls that are interrupted, and the writers they are made on."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

import weir
from weir.config import WriterConfig
from weir.env import SYSTEM, Env
from weir.shard.request_builder import WriteSpec

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
SHARDS = 3
OLD = range(6)
"""Keys of every table that were there before, durable in its log or MemTable."""
QUEUED = range(100, 106)
"""Keys that were put without waiting before the interrupted call."""
NEW = range(200, 206)
"""Keys that the interrupted call puts."""

Row = dict[str, Any]
Call = Callable[[Any, "Batch"], object]


@dataclass(frozen=True)
class Batch:
    """The rows of a trial; their keys and values occur nowhere else."""

    mark: str
    base: int
    """Added to every key: each trial on a table has keys of its own."""

    def ids(self, keys: Iterable[int]) -> list[int]:
        return [self.base + key for key in keys]

    def rows(self, keys: Iterable[int], who: str = "call") -> list[Row]:
        return [{"id": i, "v": f"{self.mark}:{who}:{i}"} for i in self.ids(keys)]

    @property
    def number(self) -> int:
        """Higher than that of every batch before it."""
        return self.base

    @property
    def is_old(self) -> str:
        return f"id >= {self.base} AND id < {self.base + len(OLD)}"

    @property
    def new_value(self) -> str:
        return f"'{self.mark}:call:' || cast(id as string)"


@dataclass(frozen=True)
class Verb:
    """A call that is interrupted."""

    name: str
    call: Call
    writes: range = range(0)
    """Keys of rows that it may log, each at most once."""
    deletes: bool = False
    atomic: bool = True
    """A shard logs all of its rows or none."""
    needs_memtable: bool = False
    buffered: bool = False
    """The rows put before it wait for this call."""
    ends: bool = False
    """Afterwards the writer may refuse puts."""
    unopened: bool = False
    """No shard is open when it begins."""
    once: bool = False
    """It is sent again through the same writer, and then its rows are in the log exactly once."""
    strike: Literal["interrupt", "cancel", "timeout"] = "interrupt"
    """What ends it. A call that is cancelled is a coroutine of `weir.aio`'s writer."""


def _once(writer: Any, batch: Batch) -> object:
    return writer.put_once(batch.rows(NEW), app=batch.mark, version=batch.number)


def _late_once(writer: Any, batch: Batch) -> object:
    return writer.put_once(batch.rows(NEW), app=batch.mark, version=batch.number, timeout=30)


def _decided_once(writer: Any, batch: Batch) -> object:
    asked = WriteSpec("insert")
    return writer.decide_once(batch.rows(NEW), asked, app=batch.mark, version=batch.number)


def _arrow(batch: Batch) -> pa.Table:
    return pa.Table.from_pylist(batch.rows(NEW), SCHEMA)


async def _settled(writer: Any, batch: Batch) -> object:
    return await writer.settled(await writer.put(batch.rows(NEW), wait=False))


VERBS = [
    Verb("put", lambda w, b: w.put(b.rows(NEW)), NEW),
    Verb("put_arrow", lambda w, b: w.put(_arrow(b)), NEW),
    Verb("put_nowait", lambda w, b: w.put(b.rows(NEW), wait=False), NEW),
    Verb("put_timeout", lambda w, b: w.put(b.rows(NEW), timeout=30), NEW),
    Verb("delete", lambda w, b: w.delete(b.ids(OLD)), OLD, deletes=True),
    Verb("put_once", _once, NEW, once=True),
    Verb("decide_once", _decided_once, NEW, needs_memtable=True, once=True),
    Verb("insert", lambda w, b: w.insert(b.rows(NEW)), NEW, needs_memtable=True),
    Verb("update", lambda w, b: w.update(b.rows(OLD)), OLD, needs_memtable=True),
    Verb(
        "put_when",
        lambda w, b: w.put(b.rows(NEW), when="current IS NULL"),
        NEW,
        needs_memtable=True,
    ),
    Verb(
        "update_where",
        lambda w, b: w.update_where(b.is_old, {"v": b.new_value}),
        OLD,
        atomic=False,
        needs_memtable=True,
    ),
    Verb(
        "delete_where",
        lambda w, b: w.delete_where(b.is_old),
        OLD,
        deletes=True,
        atomic=False,
        needs_memtable=True,
    ),
    Verb("flush_wal", lambda w, _: w.flush_wal(), buffered=True),
    Verb("flush", lambda w, _: w.flush(), needs_memtable=True, buffered=True),
    Verb("close", lambda w, _: w.close(), buffered=True, ends=True),
    Verb("first_put", lambda w, b: w.put(b.rows(NEW)), NEW, unopened=True),
    Verb("cancelled_put", lambda w, b: w.put(b.rows(NEW)), NEW, strike="cancel"),
    Verb("cancelled_arrow", lambda w, b: w.put(_arrow(b)), NEW, strike="cancel"),
    Verb("cancelled_timed", lambda w, b: w.put(b.rows(NEW), timeout=30), NEW, strike="cancel"),
    Verb("cancelled_settle", _settled, NEW, strike="cancel"),
    Verb("cancelled_delete", lambda w, b: w.delete(b.ids(OLD)), OLD, True, strike="cancel"),
    Verb("cancelled_once", _once, NEW, once=True, strike="cancel"),
    Verb(
        "cancelled_insert",
        lambda w, b: w.insert(b.rows(NEW)),
        NEW,
        needs_memtable=True,
        strike="cancel",
    ),
    Verb("cancelled_first", lambda w, b: w.put(b.rows(NEW)), NEW, unopened=True, strike="cancel"),
    Verb("cancelled_flush", lambda w, _: w.flush_wal(), buffered=True, strike="cancel"),
    Verb("cancelled_close", lambda w, _: w.close(), buffered=True, ends=True, strike="cancel"),
    Verb("late_put", lambda w, b: w.put(b.rows(NEW), timeout=30), NEW, strike="timeout"),
    Verb(
        "late_receipt", lambda w, b: w.put(b.rows(NEW), wait=False).wait(30), NEW, strike="timeout"
    ),
    Verb("late_delete", lambda w, b: w.delete(b.ids(OLD), timeout=30), OLD, True, strike="timeout"),
    Verb("late_once", _late_once, NEW, once=True, strike="timeout"),
    Verb(
        "late_insert",
        lambda w, b: w.insert(b.rows(NEW), timeout=30),
        NEW,
        needs_memtable=True,
        strike="timeout",
    ),
    Verb(
        "late_update",
        lambda w, b: w.update(b.rows(OLD), timeout=30),
        OLD,
        needs_memtable=True,
        strike="timeout",
    ),
    Verb("late_flush", lambda w, _: w.flush_wal(timeout=30), buffered=True, strike="timeout"),
    Verb("get", lambda w, b: w.get(b.ids([*OLD, *QUEUED])), needs_memtable=True),
    Verb("scan", lambda w, _: w.scan().read_all(), needs_memtable=True),
]


@dataclass(frozen=True)
class Case:
    """One verb on one kind of writer, alone or beside two threads that put."""

    verb: Verb
    sharded: bool
    memtable: bool
    beside: bool

    @property
    def name(self) -> str:
        writer = "table" if self.sharded else "shard"
        mode = "memtable" if self.memtable else "wal"
        return f"{self.verb.name}-{writer}-{mode}-{'beside' if self.beside else 'alone'}"

    @property
    def of_table(self) -> bool:
        """The writer is a table's, also of one shard."""
        return self.sharded or self.verb.unopened or self.verb.strike == "cancel"

    def create(self, uri: str, env: Env = SYSTEM) -> weir.Table:
        sharding = weir.Bucket("id", SHARDS) if self.sharded else None
        config = WriterConfig(enable_memtable=self.memtable)
        options = {"primary_key": "id", "sharding": sharding, "writer_defaults": config}
        return weir.create(uri, SCHEMA, **options, env=env)

    def writer(self, table: weir.Table) -> Any:
        """The writer under test: of the one shard, or of the table; nothing is open in the latter.

        The first put of a shard's writer is one to a table's writer of one shard.
        """
        config = WriterConfig(enable_memtable=self.memtable)
        if self.verb.buffered:
            config = WriterConfig(
                enable_memtable=self.memtable, durable_write=False, max_wal_flush_interval="1h"
            )
        if self.of_table:
            return table.writer(config)
        return table.shards()[0].writer(config)


def cases(verb: str = "") -> Iterator[Case]:
    """Every case, or those of some verbs, with commas; a case's own name chooses that one."""
    chosen = set(verb.split(","))
    for each in VERBS:
        for sharded in (False, True):
            for memtable in (True, False):
                if each.needs_memtable and not memtable:
                    continue
                if each.name in ("get", "scan", "decide_once") and sharded:
                    continue  # a table's writer has none
                for beside in (False, True):
                    case = Case(each, sharded, memtable, beside)
                    if not verb or chosen & {each.name, case.name}:
                        yield case
