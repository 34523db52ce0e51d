"""weir for asyncio: the same tables, verbs and types, each call awaited.

    table = await aio.open("s3://lake/events")
    async with table.writer() as writer:
        await writer.put(rows)
    async for batch in table.scan(filter="x > 0.5"):
        ...

Puts of any number of tasks share log entries, and a put occupies no thread: the task waits in its
loop for the entry that holds its rows, and for room when memory is full. Everything else runs in
the loop's own thread pool, which is bounded. Cancelling a task leaves the table and the writer
intact: a put that was accepted goes on, and `flush_wal` or `close` makes it durable, or says what
is left.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from itertools import islice
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload
from uuid import UUID

import pyarrow as pa

from weir import making
from weir.config import WriterConfig
from weir.errors import InvalidInput
from weir.format.sharding import Sharding
from weir.read.changes import Bookmark, Change
from weir.read.changes import Changes as SyncChanges
from weir.read.scan import OrderBy
from weir.read.scan import Scan as SyncScan
from weir.read.snapshot import Freshness, Pinned
from weir.records.checkpoints import Ref
from weir.routing.opening import Options
from weir.routing.receipt import Receipt
from weir.routing.writer import TableWriter as SyncWriter
from weir.shard.request import WriteCounts
from weir.shard.request_builder import Missing, OnConflict
from weir.shard.stats import WriterStats
from weir.table import Table as SyncTable
from weir.types import Columns, Filter, Keys, Rows

__all__ = ["Changes", "Scan", "Table", "TableWriter", "create", "enable", "open"]

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def _awaited(
    verb: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[Any, P], Awaitable[T]]:
    """The verb of the blocking object, run by a thread of the loop's pool."""

    @functools.wraps(verb)
    async def run(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        return await asyncio.to_thread(verb, self.sync, *args, **options)

    return run


def _opened(make: Callable[P, SyncTable]) -> Callable[P, Awaitable[Table]]:
    @functools.wraps(make)
    async def run(*args: P.args, **options: P.kwargs) -> Table:
        return Table(await asyncio.to_thread(make, *args, **options))

    return run


class Scan:
    """A read of the table: iterate over its batches, or await all of its rows."""

    def __init__(self, sync: SyncScan) -> None:
        """Use `Table.scan`."""
        self.sync = sync

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        batches = await asyncio.to_thread(lambda: iter(self.sync.to_batches()))
        async for batch in _each(batches):
            yield batch

    to_table = _awaited(SyncScan.to_table)
    to_pandas = _awaited(SyncScan.to_pandas)
    count = _awaited(SyncScan.count)
    explain = _awaited(SyncScan.explain)


class Changes:
    """The change feed: an asynchronous iterator of `Change`; `bookmark` says where to resume."""

    def __init__(self, sync: SyncChanges, *, follow: bool, poll: float) -> None:
        """Use `Table.changes`."""
        self.sync = sync
        self._follow = follow
        self._poll = poll

    @property
    def bookmark(self) -> Bookmark:
        """Everything handed out before the current change."""
        return self.sync.bookmark

    async def __aiter__(self) -> AsyncIterator[Change]:
        while True:
            async for change in _each(self.sync.poll()):
                yield change
            if not self._follow:
                return
            # A waiting follower occupies no thread.
            await asyncio.sleep(self._poll)  # noqa: TID251  the loop's own time


class TableWriter:
    """Writes to all shards of a table, in an `async with` block. Safe to share between tasks."""

    def __init__(self, make: Callable[[], SyncWriter]) -> None:
        """Use `Table.writer`."""
        self._make = make
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
    async def put(self, data: Rows, *, wait: bool = True) -> Receipt: ...

    @overload
    async def put(self, data: Rows, *, when: str) -> WriteCounts: ...

    async def put(
        self, data: Rows, *, when: str | None = None, wait: bool = True
    ) -> Receipt | WriteCounts:
        """Upsert the rows (append, without a key); returns when durable on every shard.

        With `wait=False` it returns when they are accepted, and `settled` waits until they are
        durable. Raises as `weir.TableWriter.put` does; waits for room without a timeout. Costs a
        share of one put request for each shard concerned. `when`: see `weir.ShardWriter.put`.
        """
        if when is not None:
            return await asyncio.to_thread(self.sync.put, data, when=when)
        if wait:
            return await self.sync.aput(data)
        return await asyncio.to_thread(self.sync.put, data, wait=False)

    async def settled(self, receipt: Receipt) -> Receipt:
        """Return the receipt when its rows are durable; raises as `Receipt.wait` does."""
        await receipt.settle()
        receipt.wait()
        return receipt

    async def delete(self, keys: Keys) -> Receipt:
        """Delete the rows with those keys; otherwise like `put`."""
        return await self.sync.adelete(keys)

    async def put_once(self, data: Rows, *, app: str, version: int) -> bool:
        """Put `data` unless batch `version` of `app`, or a later one, is in (P-2)."""
        return await asyncio.to_thread(self.sync.put_once, data, app=app, version=version)

    async def update(self, rows: Rows, *, missing: Missing = "error") -> WriteCounts:
        """Set some columns of rows, given with their key; see `weir.ShardWriter.update`."""
        return await asyncio.to_thread(self.sync.update, rows, missing=missing)

    async def insert(self, rows: Rows, *, on_conflict: OnConflict = "error") -> WriteCounts:
        """Put rows whose keys do not exist; see `weir.ShardWriter.insert`."""
        return await asyncio.to_thread(self.sync.insert, rows, on_conflict=on_conflict)

    async def delete_where(self, filter: str) -> WriteCounts:
        """Delete the rows that pass a filter; see `weir.ShardWriter.delete_where`."""
        return await asyncio.to_thread(self.sync.delete_where, filter)

    async def update_where(self, filter: str, assignments: Mapping[str, str]) -> WriteCounts:
        """Set columns of rows that pass a filter; see `weir.ShardWriter.update_where`."""
        return await asyncio.to_thread(self.sync.update_where, filter, assignments)

    flush = _awaited(SyncWriter.flush)
    flush_wal = _awaited(SyncWriter.flush_wal)

    def stats(self) -> dict[UUID, WriterStats]:
        """What the open writers have counted, by shard. No request."""
        return self.sync.stats()

    async def close(self) -> None:
        """Make every accepted row durable and release all shards (M-8); harmless to repeat."""
        if self._sync is not None:
            await asyncio.to_thread(self._sync.close)

    async def __aenter__(self) -> Self:
        self._sync = await asyncio.to_thread(self._make)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.shield(asyncio.to_thread(self.sync.__exit__, kind, error, trace))


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

    async def schema(self) -> pa.Schema:
        """The columns, as of the latest base version. One listing."""
        return await asyncio.to_thread(lambda: self.sync.schema)

    def writer(self, config: WriterConfig | None = None) -> TableWriter:
        """A writer, for use with `async with`; it claims a shard at its first row."""
        return TableWriter(functools.partial(self.sync.writer, config))

    def scan(
        self,
        columns: Columns | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        freshness: Freshness = "durable",
        checkpoint: Pinned | str | None = None,
        *,
        batch_size: int | None = None,
        offset: int = 0,
        order_by: OrderBy | None = None,
    ) -> Scan:
        """A read of the newest row of each key: `async for batch in table.scan()`, or
        `await table.scan().to_table()`. See `weir.Table.scan`."""
        return Scan(
            self.sync.scan(
                columns,
                filter,
                limit,
                freshness,
                checkpoint,
                batch_size=batch_size,
                offset=offset,
                order_by=order_by,
            )
        )

    def changes(
        self,
        since: Bookmark | str | None = None,
        follow: bool = False,  # noqa: FBT001, FBT002  the contract's spelling
        *,
        poll: float = 0.1,
        expired: bool = False,
    ) -> Changes:
        """The log of all shards as an asynchronous iterator of `Change`, from `since` on.

        With `follow` it waits for more, until it is closed or its task cancelled. See
        `weir.Table.changes`.
        """
        feed = self.sync.changes(since, follow, expired=expired)
        return Changes(feed, follow=follow, poll=poll)

    async def clone(
        self,
        destination: str,
        checkpoint: Ref | None = None,
        wal_uri: str | None = None,
        *,
        storage_options: Options = None,
        deep: bool = False,
        accept_loss: bool = False,
    ) -> Table:
        """Make a table that holds exactly the checkpoint's rows; see `weir.Table.clone`."""
        made = await asyncio.to_thread(
            self.sync.clone,
            destination,
            checkpoint,
            wal_uri,
            storage_options=storage_options,
            deep=deep,
            accept_loss=accept_loss,
        )
        return Table(made)

    get = _awaited(SyncTable.get)
    search = _awaited(SyncTable.search)
    hybrid_search = _awaited(SyncTable.hybrid_search)
    shards = _awaited(SyncTable.shards)
    stats = _awaited(SyncTable.stats)
    set_expire = _awaited(SyncTable.set_expire)
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
    upgrade = _awaited(SyncTable.upgrade)


async def _each(blocking: Iterator[T]) -> AsyncIterator[T]:
    """The items of a blocking iterator, each fetched by a thread of the pool."""
    while True:
        # StopIteration cannot be raised out of a thread; an empty list stands for it.
        found = await asyncio.to_thread(lambda: list(islice(blocking, 1)))
        if not found:
            return
        yield found[0]


create = _opened(making.create)
enable = _opened(making.enable)
open = _opened(making.open)
