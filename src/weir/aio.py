"""weir for asyncio: the same tables, verbs and types, each call awaited.

    table = await aio.open("s3://lake/events")
    async with table.writer() as writer:
        await writer.put(rows)
    async for batch in table.scan(filter="x > 0.5"):
        ...

Puts of any number of tasks share log entries, and a small put occupies no thread: the task waits in
its loop for the entry that holds its rows, and for room when memory is full. Everything else runs
in the loop's own thread pool, which is bounded: requests, and the conversion of large inputs.
Objects that other libraries consume (a `Shard`, a `Loader`, a dataset, a lazy frame, a reader) are
those of `weir`, with blocking calls: use them in threads. Cancelling a task leaves the table and
the writer intact: a put that was accepted goes on, and `flush_wal` or `close` makes it durable, or
says what is left.
"""

# ruff: noqa: ASYNC109  the verbs have the parameters of the blocking ones

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from itertools import islice
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast, overload
from uuid import UUID

import pyarrow as pa

from weir import making
from weir.config import WriterConfig, chosen_config
from weir.database import Database as SyncDatabase
from weir.database import Name
from weir.database import connect as sync_connect
from weir.env import SYSTEM, Env, takes_env
from weir.errors import InvalidInput
from weir.format.expiry import Expire
from weir.format.sharding import Sharding
from weir.lazy import Lazy
from weir.log.entry import Token
from weir.read.changes import Bookmark, Change
from weir.read.changes import Changes as SyncChanges
from weir.read.scan import Scan as SyncScan
from weir.routing.core import Core
from weir.routing.own import ShardName
from weir.routing.placing import placing
from weir.routing.receipt import Receipt
from weir.routing.shards import Shard
from weir.routing.writer import TableWriter as SyncWriter
from weir.shard.request import WriteCounts
from weir.shard.stats import WriterStats
from weir.table import Table as SyncTable
from weir.types import Filter, Key, Keys, Params, Row, Rows
from weir.upkeep.due import KeepPolicy, Upkeep
from weir.upkeep.due import due as sync_due

__all__ = [
    "Changes",
    "Database",
    "Scan",
    "Table",
    "TableWriter",
    "connect",
    "create",
    "drop",
    "due",
    "enable",
    "exists",
    "open",
]

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def _awaited(
    verb: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[Any, P], Awaitable[T]]:
    """The verb of the blocking object, run by a thread of the loop's pool."""

    @functools.wraps(verb)
    async def run(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        return await asyncio.to_thread(lambda: verb(self.sync, *args, **options))

    return run


def _written(
    verb: Callable[Concatenate[SyncWriter, P], T],
) -> Callable[Concatenate[TableWriter, P], Awaitable[T]]:
    """A verb of the writer, run by a thread; its rows are reported if its task is cancelled."""

    @functools.wraps(verb)
    async def run(self: TableWriter, /, *args: P.args, **options: P.kwargs) -> T:
        batch = (options["app"], options["version"]) if "app" in options else None
        return await self.sync.unheard.in_thread(
            lambda: verb(self.sync, *args, **options), batch=cast("Token | None", batch)
        )

    return run


def _reported(
    verb: Callable[Concatenate[SyncWriter, P], None],
) -> Callable[Concatenate[TableWriter, P], Awaitable[None]]:
    """A verb of the writer that reports rows nobody waits for, run by a thread."""

    @functools.wraps(verb)
    async def run(self: TableWriter, /, *args: P.args, **options: P.kwargs) -> None:
        await self.sync.unheard.report(lambda: verb(self.sync, *args, **options))

    return run


def _opened(make: Callable[P, SyncTable]) -> Callable[P, Awaitable[Table]]:
    @functools.wraps(make)
    async def run(*args: P.args, **options: P.kwargs) -> Table:
        return Table(await asyncio.to_thread(make, *args, **options))

    return run


def _made(
    verb: Callable[Concatenate[S, P], SyncTable],
) -> Callable[Concatenate[Any, P], Awaitable[Table]]:
    """A verb that makes or opens a table, run by a thread of the loop's pool."""

    @functools.wraps(verb)
    async def run(self: Any, /, *args: P.args, **options: P.kwargs) -> Table:
        return Table(await asyncio.to_thread(verb, self.sync, *args, **options))

    return run


def _scanned(
    verb: Callable[Concatenate[SyncTable, P], SyncScan],
) -> Callable[Concatenate[Table, P], Scan]:
    """A verb that makes a scan, in the thread that reads: finding its checkpoint makes requests."""

    @functools.wraps(verb)
    def scan(self: Table, /, *args: P.args, **options: P.kwargs) -> Scan:
        return Scan(lambda: verb(self.sync, *args, **options))

    return scan


class _Unbegun(SyncTable):
    """The verbs of a table's feeds, without a request: these begin with their first change."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def _begun(self, feed: SyncChanges) -> SyncChanges:
        return feed


def _fed(
    verb: Callable[Concatenate[SyncTable, P], SyncChanges],
) -> Callable[Concatenate[Table, P], Changes]:
    """A verb that makes a feed."""

    @functools.wraps(verb)
    def feed(self: Table, /, *args: P.args, **options: P.kwargs) -> Changes:
        core = self.sync.core
        return Changes(verb(_Unbegun(core), *args, **options), core.env)

    return feed


class Scan:
    """A read of the table: iterate over its batches, or await all of its rows."""

    def __init__(self, make: Callable[[], SyncScan]) -> None:
        """Use `Table.scan`."""
        self._make = make

    @Lazy
    def sync(self) -> SyncScan:
        """The same scan with blocking calls; finding its checkpoint makes requests."""
        return self._make()

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self.to_batches()

    async def to_batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows as a stream of batches."""
        batches = await asyncio.to_thread(lambda: iter(self.sync.to_batches()))
        async for batch in _each(batches):
            yield batch

    async def schema(self) -> pa.Schema:
        """The columns of the result; at a checkpoint, those of the checkpoint. One listing."""
        return await asyncio.to_thread(lambda: self.sync.schema)

    snapshot = _awaited(SyncScan.snapshot)
    to_table = _awaited(SyncScan.to_table)
    to_reader = _awaited(SyncScan.to_reader)
    to_pandas = _awaited(SyncScan.to_pandas)
    to_polars = _awaited(SyncScan.to_polars)
    to_dataset = _awaited(SyncScan.to_dataset)
    lazy = _awaited(SyncScan.lazy)
    loader = _awaited(SyncScan.loader)
    count = _awaited(SyncScan.count)
    explain = _awaited(SyncScan.explain)


class Changes:
    """The change feed: an asynchronous iterator of `Change`; `bookmark` says where to resume.

    It begins when it is first asked for a change, or by `await changes.begin()`: "now" is then. It
    may be left, by `break`, a timeout, a cancelled task or an error, and taken up again: it
    continues after the last change handed out. `stop` is called in the loop and in threads.
    """

    def __init__(self, sync: SyncChanges, env: Env) -> None:
        """Use `Table.changes`."""
        self.sync = sync
        self._lock = env.threads.lock()
        self._fetched: list[Change | Bookmark] = []
        """What a thread has read and no task was given yet: its task may be gone (P-3)."""
        self._fetching: asyncio.Future[None] | None = None
        self._has_ended = False

    @property
    def bookmark(self) -> Bookmark:
        """Everything handed out before the current change; `Change.bookmark` is after it."""
        return self.sync.bookmark

    @property
    def failed_polls(self) -> int:
        """Rounds of a following feed that failed with a store error and were repeated."""
        return self.sync.failed_polls

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        while not self._has_ended:
            change = await self._next()
            if change is not None:
                return change
            pause = self.sync.pause
            if pause is None:
                await self._threaded(functools.partial(self.sync.settle, self.sync.handed_out))
                self._has_ended = True
            else:
                # A waiting follower occupies no thread.
                await asyncio.sleep(pause)  # noqa: TID251  the loop's own time
        raise StopAsyncIteration

    async def poll(self) -> AsyncIterator[Change]:
        """The changes available now, without waiting for more; call it repeatedly."""
        rounds = self.sync.rounds_to_poll
        while rounds:
            change = await self._next()
            if change is None:
                rounds -= 1
            else:
                yield change
        await self._threaded(functools.partial(self.sync.settle, self.sync.handed_out))

    async def begin(self) -> None:
        """Find out where the feed begins, with the requests that takes; the first change does it
        otherwise."""
        await self._threaded(self.sync.begin)

    async def commit(self) -> Bookmark:
        """Save that the consumer is done with every change handed out so far; see
        `weir.Changes.commit`."""
        # P-3: a task that is cancelled may go on with the next change before its thread gets here.
        return await self._threaded(functools.partial(self.sync.commit_at, self.sync.handed_out))

    async def _next(self) -> Change | None:
        loop = asyncio.get_running_loop()
        while not self._fetched:
            # A thread that a task left behind goes on; its change is the next one.
            running = self._fetching
            if running is None or running.done() or running.get_loop() is not loop:
                running = self._fetching = loop.run_in_executor(None, self._fetch)
                running.add_done_callback(_retrieved)
            await asyncio.shield(running)
        return self.sync.hand_over(self._fetched.pop())

    async def _threaded(self, call: Callable[[], T]) -> T:
        """Run a call that nothing else of this feed runs beside, in a thread."""

        def run() -> T:
            with self._lock:
                return call()

        return await asyncio.to_thread(run)

    def _fetch(self) -> None:
        with self._lock:
            if not self._fetched:
                self._fetched.append(self.sync.fetch())


class TableWriter:
    """Writes to all shards of a table, in an `async with` block. Safe to share between tasks."""

    def __init__(self, make: Callable[[], SyncWriter], *, waits: bool) -> None:
        """Use `Table.writer`; `waits` is its `durable_write`."""
        self._make = make
        self._waits = waits
        self._sync: SyncWriter | None = None

    @property
    def sync(self) -> SyncWriter:
        """The blocking writer, which threads may share."""
        if self._sync is None:
            raise InvalidInput(
                "the writer is not open: use it inside `async with table.writer() as writer`"
            )
        return self._sync

    @overload
    async def put(
        self, data: Rows, *, wait: bool | None = None, timeout: float | None = None
    ) -> Receipt: ...

    @overload
    async def put(
        self,
        data: Rows,
        *,
        when: Filter,
        params: Params | None = None,
        timeout: float | None = None,
    ) -> WriteCounts: ...

    async def put(
        self,
        data: Rows,
        *,
        when: Filter | None = None,
        params: Params | None = None,
        wait: bool | None = None,
        timeout: float | None = None,
    ) -> Receipt | WriteCounts:
        """Upsert the rows (append, without a key); returns when durable on every shard.

        With `wait=False` (the default of a writer with `durable_write=False`) it returns when they
        are accepted, and `settled` waits until they are durable. Raises as `weir.TableWriter.put`
        does. Costs a share of one put request for each shard concerned. `when`: see
        `weir.ShardWriter.put`.
        """
        if when is not None or params is not None:
            decide = functools.partial(self.sync.put, when=when, params=params, timeout=timeout)
            return await self._run(functools.partial(decide, data))
        waits = self._waits if wait is None else wait
        if waits and self._waits and timeout is None:
            return await self.sync.aput(data)
        put = functools.partial(self.sync.put, wait=waits, timeout=timeout)
        return await self._run(functools.partial(put, data))

    async def delete(
        self, keys: Keys, *, wait: bool | None = None, timeout: float | None = None
    ) -> Receipt:
        """Delete the rows with those keys; otherwise like `put`."""
        waits = self._waits if wait is None else wait
        if waits and self._waits and timeout is None:
            return await self.sync.adelete(keys)
        delete = functools.partial(self.sync.delete, wait=waits, timeout=timeout)
        return await self._run(functools.partial(delete, keys))

    async def _run(self, call: Callable[[], T]) -> T:
        """Run a call in a thread. What it raises after its task was cancelled is not lost: the next
        flush or close raises it (F-16)."""
        return await self.sync.unheard.in_thread(call)

    async def settled(self, receipt: Receipt) -> Receipt:
        """Return the receipt when its rows are durable; raises as `Receipt.wait` does."""
        if self._waits:
            await receipt.settle()
        else:
            # Nothing writes the log of such a writer at once, unless a thread waits for it.
            await self._run(receipt.wait)
        return receipt

    put_once = _written(SyncWriter.put_once)
    update = _written(SyncWriter.update)
    insert = _written(SyncWriter.insert)
    delete_where = _written(SyncWriter.delete_where)
    update_where = _written(SyncWriter.update_where)
    flush = _reported(SyncWriter.flush)
    flush_wal = _reported(SyncWriter.flush_wal)

    @property
    def shards(self) -> tuple[UUID, ...]:
        """The shards whose rows it takes; see `weir.TableWriter.shards`. No request."""
        return self.sync.shards

    @property
    def fenced(self) -> tuple[UUID, ...]:
        """The shards that a newer writer took; see `weir.TableWriter.fenced`. No request."""
        return self.sync.fenced

    def stats(self) -> dict[UUID, WriterStats]:
        """What the open writers have counted, by shard. No request."""
        return self.sync.stats()

    async def close(self) -> None:
        """Make every accepted row durable and release all shards; harmless to repeat."""
        if self._sync is not None:
            await self._sync.unheard.report(self._sync.close, closes=True)

    async def __aenter__(self) -> Self:
        self._sync = await asyncio.to_thread(self._make)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave = functools.partial(self.sync.__exit__, kind, error, trace)
        await self.sync.unheard.report(leave, closes=True)


class Table:
    """A table on object storage, for asyncio. Made by `aio.create`, `aio.open` or `aio.enable`."""

    def __init__(self, sync: SyncTable) -> None:
        """Use `aio.open`."""
        self.sync = sync
        """The same table with blocking calls."""

    def __repr__(self) -> str:
        return f"aio.{self.sync!r}"

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self.sync.uri

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Names of the key columns, in key order; empty for an append-only table."""
        return self.sync.primary_key

    @property
    def sharding(self) -> Sharding:
        """How rows find their shard."""
        return self.sync.sharding

    @property
    def wal_uri(self) -> str | None:
        """The second store that holds the log, or None when it is beside the data."""
        return self.sync.wal_uri

    @property
    def writer_defaults(self) -> WriterConfig:
        """What every writer starts from."""
        return self.sync.writer_defaults

    async def schema(self) -> pa.Schema:
        """The columns, as of the latest base version. One listing."""
        return await asyncio.to_thread(lambda: self.sync.schema)

    async def expire(self) -> Expire | None:
        """The rule by which rows expire; None: they never do. One listing."""
        return await asyncio.to_thread(lambda: self.sync.expire)

    def writer(
        self, config: WriterConfig | None = None, *, shards: Iterable[ShardName] | None = None
    ) -> TableWriter:
        """A writer, for use with `async with`; it claims a shard at its first row. `shards`: see
        `weir.Table.writer`; what is wrong with them is raised by `async with`."""
        waits = chosen_config(config, self.sync.writer_defaults).durable_write
        make = functools.partial(self.sync.writer, config, shards=shards)
        return TableWriter(make, waits=waits)

    async def shard_of(self, row_or_key: Row | Key) -> Shard:
        """The shard that takes a row, in the loop; see `weir.Table.shard_of`. The first call of a
        handle makes a request, in a thread."""
        if placing(self.sync.core).is_ready:
            return self.sync.shard_of(row_or_key)
        return await asyncio.to_thread(self.sync.shard_of, row_or_key)

    scan = _scanned(SyncTable.scan)
    changes = _fed(SyncTable.changes)
    follow = _fed(SyncTable.follow)
    clone = _made(SyncTable.clone)
    shards_of = _awaited(SyncTable.shards_of)
    refresh = _awaited(SyncTable.refresh)
    get = _awaited(SyncTable.get)
    count = _awaited(SyncTable.count)
    snapshot = _awaited(SyncTable.snapshot)
    shard = _awaited(SyncTable.shard)
    search = _awaited(SyncTable.search)
    hybrid_search = _awaited(SyncTable.hybrid_search)
    sql = _awaited(SyncTable.sql)
    shards = _awaited(SyncTable.shards)
    stats = _awaited(SyncTable.stats)
    drop_consumer = _awaited(SyncTable.drop_consumer)
    history = _awaited(SyncTable.history)
    set_expire = _awaited(SyncTable.set_expire)
    add_columns = _awaited(SyncTable.add_columns)
    drop_columns = _awaited(SyncTable.drop_columns)
    rename_column = _awaited(SyncTable.rename_column)
    create_index = _awaited(SyncTable.create_index)
    create_fts_index = _awaited(SyncTable.create_fts_index)
    indexes = _awaited(SyncTable.indexes)
    drop_index = _awaited(SyncTable.drop_index)
    checkpoint = _awaited(SyncTable.checkpoint)
    checkpoints = _awaited(SyncTable.checkpoints)
    delete_checkpoint = _awaited(SyncTable.delete_checkpoint)
    refresh_checkpoint = _awaited(SyncTable.refresh_checkpoint)
    release_clone = _awaited(SyncTable.release_clone)
    discard_clone = _awaited(SyncTable.discard_clone)
    compact = _awaited(SyncTable.compact)
    gc = _awaited(SyncTable.gc)
    move_wal = _awaited(SyncTable.move_wal)
    restore = _awaited(SyncTable.restore)
    reshard = _awaited(SyncTable.reshard)
    adopt_shard = _awaited(SyncTable.adopt_shard)


class Database:
    """The tables below one prefix, by name; made by `aio.connect`."""

    def __init__(self, sync: SyncDatabase) -> None:
        """Use `aio.connect`."""
        self.sync = sync
        """The same database with blocking calls."""

    def __repr__(self) -> str:
        return f"aio.{self.sync!r}"

    @property
    def uri(self) -> str:
        """The prefix."""
        return self.sync.uri

    def table_uri(self, name: Name) -> str:
        """Where the table of that name is, or would be; see `weir.Database.table_uri`."""
        return self.sync.table_uri(name)

    create_table = _made(SyncDatabase.create_table)
    open_table = _made(SyncDatabase.open_table)
    namespaces = _awaited(SyncDatabase.namespaces)
    exists = _awaited(SyncDatabase.exists)
    tables = _awaited(SyncDatabase.tables)
    drop_table = _awaited(SyncDatabase.drop_table)


@takes_env
def connect(
    uri: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    env: Env = SYSTEM,
) -> Database:
    """The tables below `uri`, by name. Contacts nothing; see `weir.connect`."""
    return Database(sync_connect(uri, storage_options=storage_options, env=env))


def _retrieved(running: asyncio.Future[None]) -> None:
    """Asyncio logs an error that nobody heard; if it lasts, the next call meets it again."""
    if not running.cancelled():
        running.exception()


async def _each(blocking: Iterator[T]) -> AsyncIterator[T]:
    """The items of a blocking iterator, each fetched by a thread of the pool."""
    while True:
        # StopIteration cannot be raised out of a thread; an empty list stands for it.
        found = await asyncio.to_thread(lambda: list(islice(blocking, 1)))
        if not found:
            return
        yield found[0]


def _threaded(verb: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    @functools.wraps(verb)
    async def run(*args: P.args, **options: P.kwargs) -> T:
        return await asyncio.to_thread(verb, *args, **options)

    return run


create = _opened(making.create)
enable = _opened(making.enable)
open = _opened(making.open)
exists = _threaded(making.exists)
drop = _threaded(making.drop)


async def due(table: Table, policy: KeepPolicy | None = None) -> Upkeep:
    """Which upkeep the table needs now, and why; see `weir.due`."""
    return await asyncio.to_thread(sync_due, table.sync, policy)
