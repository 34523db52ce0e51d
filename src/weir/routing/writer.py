"""`TableWriter`: routes rows to their shards and writes to several shards at once.

A put whose rows all go to one open shard is that shard's put and costs no more. Any other put is
shaped here, split by shard, and written to its shards concurrently.

Keeps
  M-8  leaving the `with` block means durable, for every shard, or an error that says what is left
A put is not atomic over shards: each shard's part is acknowledged on its own, and `PartialWrite`
says which were not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self, overload
from uuid import UUID

import pyarrow as pa

from weir.config import WriterConfig
from weir.env import ForkGuard
from weir.errors import PartialWrite, UnknownOutcome, WeirError, WriterClosed
from weir.format.schema import TableSchema
from weir.format.sharding import Value
from weir.log.intake import Intake
from weir.records.table import TableRecord
from weir.routing.conditional import ConditionalTableVerbs
from weir.routing.core import CONCURRENCY, Core
from weir.routing.receipt import Failures, Receipt, report, settled
from weir.routing.reroute import REROUTES, Parts, Rerouter, split
from weir.routing.route_cache import RouteCache
from weir.routing.shards import Shard, registered_writer, schema_for_writing
from weir.shard.ack import Ack
from weir.shard.ending import forked
from weir.shard.request import WriteCounts
from weir.shard.stats import WriterStats
from weir.shard.turns import WaiterGroup
from weir.shard.writer import ShardWriter
from weir.types import Keys, Rows


class TableWriter(ConditionalTableVerbs):
    """Writes to all shards of a table; opens (claims) each at its first row.

    Thread-safe; puts of several threads share entries. The lock guards the map of writers; no store
    call is made while holding it.
    """

    def __init__(
        self, core: Core, config: WriterConfig | None = None, schema: TableSchema | None = None
    ) -> None:
        """Use `Table.writer`."""
        self._core = core
        self._config = config
        self._waits = (config or core.record.writer_defaults).durable_write
        # One for all shards, also those opened later: rows are shaped before they are routed.
        self._schema = schema or schema_for_writing(core)
        self._intake = Intake(self._schema)
        self._lock = core.env.threads.lock()
        self._crowd = WaiterGroup(core.env.threads)
        self._writers: dict[UUID, ShardWriter] = {}
        self._route_cache = RouteCache(core, self._schema.plain, self._writers)
        self._opening: dict[UUID, Any] = {}
        self._closed = False
        self._failed: dict[UUID, ShardWriter] = {}
        """Writers that were closed with rows left."""
        self._fork_guard = ForkGuard(core.env)
        self._rerouter = Rerouter(core, self._abandon)

    def __repr__(self) -> str:
        return f"TableWriter({self._core.uri}, shards open: {len(self._writers)})"

    @overload
    def put(
        self, data: Rows, *, wait: bool | None = None, timeout: float | None = None
    ) -> Receipt: ...

    @overload
    def put(self, data: Rows, *, when: str, timeout: float | None = None) -> WriteCounts: ...

    def put(
        self,
        data: Rows,
        *,
        when: str | None = None,
        wait: bool | None = None,
        timeout: float | None = None,
    ) -> Receipt | WriteCounts:
        """Upsert the rows (append, without a key); returns when every shard has its part.

        Durable on return, or buffered with `wait=False` or `durable_write=False`; the receipt tells
        when it is durable, and where. Raises `SchemaMismatch` or `InvalidInput` with nothing
        written, the shard's own error when all rows go to one shard, else `PartialWrite`. One
        put request for each shard concerned, concurrently. `when`: see `ShardWriter.put`.
        """
        if when is not None:
            return self._put_when(data, when, timeout)
        wait = self._waits if wait is None else wait
        way = None if self._is_over else self._route_cache.find(data)
        if way is None:
            return self._write(self._intake.rows(data), wait, timeout)
        record, shard, writer = way
        try:
            ack = writer.puts.put(data, wait=wait, timeout=timeout)
            return Receipt(self._core.uri, ((shard, ack),))
        except WeirError as error:
            return self._follow_put(record, {shard: error}, timeout)

    async def aput(self, data: Rows) -> Receipt:
        """`put` for asyncio: returns when durable, without blocking the loop.

        Thousands of tasks share entries, and wait for room instead of failing. A task that is
        cancelled leaves its put under way: `flush_wal` or `close` makes it durable or raises.
        """
        way = None if self._is_over else self._route_cache.find(data)
        if way is None:
            return await self._awrite(self._intake.rows(data))
        record, shard, writer = way
        try:
            return Receipt(self._core.uri, ((shard, await writer.puts.aput(data)),))
        except WeirError as error:
            follow = partial(self._follow_put, record, {shard: error}, None)
            return await asyncio.get_running_loop().run_in_executor(None, follow)

    async def adelete(self, keys: Keys) -> Receipt:
        """`delete` for asyncio."""
        return await self._awrite(self._intake.tombstones(keys))

    def delete(
        self, keys: Keys, *, wait: bool | None = None, timeout: float | None = None
    ) -> Receipt:
        """Delete the rows with those keys: values, tuples, dicts or an Arrow table; otherwise like
        a put."""
        wait = self._waits if wait is None else wait
        return self._write(self._intake.tombstones(keys), wait, timeout)

    def put_once(self, data: Rows, *, app: str, version: int, timeout: float | None = None) -> bool:
        """Put `data` unless batch `version` of `app`, or a later one, is in (P-2).

        Each shard takes its part once, as one entry: after a crash put the same rows again, and
        shards that have their part are skipped. Returns False when every shard had its part.
        """
        taken: list[bool] = []

        def put(writer: ShardWriter, rows: list[pa.RecordBatch]) -> Ack | None:
            taken.append(writer.once.put(rows, app=app, version=version, timeout=timeout))
            return None

        self._write_with(self._intake.rows(data), put, timeout)
        return any(taken)

    def flush(self) -> None:
        """Publish what the open shards hold in memory as SSTables."""
        self._each(self.shard_writers(), lambda writer: writer.flush())

    def flush_wal(self) -> None:
        """Return when everything put so far is durable."""
        self._each(self.shard_writers(), lambda writer: writer.flush_wal())

    def stats(self) -> dict[UUID, WriterStats]:
        """What the open writers have counted, by shard. No request."""
        return {shard: writer.stats() for shard, writer in self.shard_writers().items()}

    def close(self) -> None:
        """Make every accepted row durable and release all shards (M-8). Closing twice is harmless;
        after an interrupt, close again."""
        if self._fork_guard.is_forked:
            return  # the rows and the locks are the parent's
        with self._lock:
            self._closed = True
            writers = self._failed | self._writers
        try:
            self._each(writers, lambda writer: writer.close())
        except Exception:
            self._failed = writers  # the next close reports a put that was interrupted since
            self._writers.clear()
            raise
        self._writers.clear()  # not on an interrupt: the next close continues with them (F-16)

    @property
    def _is_over(self) -> bool:
        return self._closed or self._fork_guard.is_forked

    def shard_writers(self) -> dict[UUID, ShardWriter]:
        """The writers open at the moment, by shard."""
        with self._lock:
            return dict(self._writers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except WeirError as failure:
            if failure.not_written or failure.perhaps_written:
                raise  # M-8: rows that no other error reports
            # The block's own error is the one to raise; this one is added as a note.
            error.add_note(f"closing the writer also failed: {failure}")

    # -- any number of shards --------------------------------------------------------------------

    def _write(
        self,
        batches: list[pa.RecordBatch],
        wait: bool,  # noqa: FBT001
        timeout: float | None,
    ) -> Receipt:
        def put(writer: ShardWriter, rows: list[pa.RecordBatch]) -> Ack:
            return writer.puts.put_shaped(rows, wait=wait, timeout=timeout)

        acks = self._write_with(batches, put, timeout)
        return Receipt(self._core.uri, tuple(acks.items()))

    async def _awrite(self, batches: list[pa.RecordBatch]) -> Receipt:
        loop, record = asyncio.get_running_loop(), self._core.record
        accept = partial(self._write, batches, wait=False, timeout=None)
        receipt = await loop.run_in_executor(None, accept)
        errors = await receipt.settle()
        if errors:
            follow = partial(self._follow_put, record, errors, None)
            return await loop.run_in_executor(None, follow)
        return receipt

    def _write_with(
        self,
        batches: list[pa.RecordBatch],
        put: Callable[[ShardWriter, list[pa.RecordBatch]], Ack | None],
        timeout: float | None,
    ) -> dict[UUID, Ack]:
        if self._fork_guard.is_forked:
            raise forked(self._core.uri, batches)
        if self._closed:
            raise WriterClosed(
                f"{self._core.uri}: the writer is closed; open a new one", not_written=batches
            )
        acks: dict[UUID, Ack] = {}
        for _ in range(REROUTES):
            record = self._core.record
            parts = split(self._core, self._intake, batches, record)
            failures = self._write_parts(parts, record, put, acks)
            left = self._rerouter.heirs_of(record, failures, timeout) if failures else None
            if left is None:
                break
            batches = left
        report(self._core.uri, failures, parts=len(parts))
        return acks

    def _write_parts(
        self,
        parts: Parts,
        record: TableRecord,
        put: Callable[[ShardWriter, list[pa.RecordBatch]], Ack | None],
        acks: dict[UUID, Ack],
    ) -> Failures:
        """Make one attempt under one routing; return what failed."""
        failures: Failures = {}

        def write(shard: UUID) -> None:
            value, rows = parts[shard]
            try:
                ack = put(self._writer(shard, value, record), rows)
                if ack is not None:
                    acks[shard] = ack
            except WeirError as error:
                failures[shard] = (settled(error, rows), rows)

        self._core.env.threads.map(write, list(parts), workers=CONCURRENCY)
        return failures

    def _follow_put(
        self, record: TableRecord, errors: dict[UUID, WeirError], timeout: float | None
    ) -> Receipt:
        """A put failed at those shards: follow the routing if it has left them, or raise."""
        failures: Failures = {}
        for shard, error in errors.items():
            rows = error.unacknowledged
            if not rows:
                raise error  # refused: nothing to send elsewhere
            failures[shard] = (settled(error, rows), rows)
        left = self._rerouter.heirs_of(record, failures, timeout)
        if left is None:
            report(self._core.uri, failures, parts=len(failures))
        return self._write(left or [], wait=True, timeout=timeout)

    def _abandon(self, shard: UUID) -> list[pa.RecordBatch]:
        """Give up the writer of a sealed shard; returns rows that nobody is waiting for."""
        with self._lock:
            writer = self._writers.pop(shard, None)
        if writer is None:
            return []
        try:
            writer.close()
        except WeirError as error:
            final = settled(error, error.unacknowledged)
            if isinstance(final, UnknownOutcome):
                raise final from error
            return final.unacknowledged
        return []

    def _writer(self, shard: UUID, value: Value, record: TableRecord) -> ShardWriter:
        with self._lock:
            known = self._writers.get(shard)
            if known is not None:
                return known
            gate = self._opening.setdefault(shard, self._core.env.threads.lock())
        # One opener per shard: two of this process would fence each other.
        with gate:
            with self._lock:
                known = self._writers.get(shard)
            if known is not None:
                return known
            self._core.ensure_shard(value, record)
            of = Shard(self._core, shard, value)
            opened = registered_writer(self._core, of, self._config, self._schema, self._crowd)
            opened.intake.owns = None  # rows come routed and need not be hashed twice
            with self._lock:
                closed = self._closed
                if not closed:
                    self._writers[shard] = opened
            if closed:
                opened.close()
                raise WriterClosed(f"{self._core.uri}: the writer is closed; open a new one")
            return opened

    def _each(self, writers: dict[UUID, ShardWriter], run: Callable[[ShardWriter], object]) -> None:
        if self._fork_guard.is_forked:
            raise forked(self._core.uri)
        failures: Failures = {}

        def attempt(item: tuple[UUID, ShardWriter]) -> None:
            try:
                run(item[1])
            except WeirError as error:
                left = error.unacknowledged
                failures[item[0]] = (settled(error, left), left)

        self._core.env.threads.map(attempt, list(writers.items()), workers=CONCURRENCY)
        self._follow(failures)
        report(self._core.uri, failures, parts=max(len(writers), len(failures)))

    def _follow(self, failures: Failures) -> None:
        """Take out of `failures` the shards the routing has left; their rows go to the heirs."""
        failed = list(failures)
        rows = self._rerouter.take(failures)
        if not rows:
            return
        try:
            with TableWriter(self._core, self._config, self._schema) as heir:
                heir._write(rows, wait=True, timeout=None)
        except PartialWrite as error:
            failures |= {s: (e, e.unacknowledged) for s, e in error.failures.items()}
        except WeirError as error:
            failures[failed[0]] = (settled(error, rows), error.unacknowledged)
