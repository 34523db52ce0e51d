"""`TableWriter`: routes rows to their shards and writes to several shards at once.

A put whose rows all go to one open shard is that shard's put and costs no more. Any other call is
checked and split by shard here, and made at its shards concurrently (fan_out.py).

Keeps
  M-8  leaving the `with` block means durable, for every shard, or an error that says what is left
A put is not atomic over shards: each shard's part is acknowledged on its own, and `PartialWrite`
says which were not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Self, TypeVar, overload
from uuid import UUID

import pyarrow as pa

from weir.config import WriterConfig, chosen_config
from weir.durations import deadline_after, seconds_until
from weir.env import ForkGuard
from weir.errors import (
    InvalidInput,
    KeyConflict,
    PartialWrite,
    WalOnlyMode,
    WeirError,
)
from weir.format.schema import TableSchema
from weir.format.sharding import Identity, Router, makes_shards, value_of_app
from weir.format.wal_entry import check_token
from weir.lake.params import bind_condition, bind_update, bind_when
from weir.log.small_put import as_small_put
from weir.records.table import TableRecord
from weir.routing.core import CONCURRENCY, Core
from weir.routing.fan_out import FanOut, Part, Run, is_of_interrupts
from weir.routing.open_writers import OpenWriters
from weir.routing.own import OwnShards
from weir.routing.receipt import Receipt
from weir.routing.reroute import REROUTES, Parts
from weir.routing.route_cache import RouteCache
from weir.routing.shards import all_shards, require_folded, schema_for_writing
from weir.routing.sql_checks import SqlChecks
from weir.shard.ack import Ack, Taken
from weir.shard.ending import closed, forked
from weir.shard.puts import Given, Puts, off_the_loop
from weir.shard.request import WriteCounts
from weir.shard.request_builder import AskedRows, Missing, OnConflict, WriteSpec
from weir.shard.stats import WriterStats
from weir.shard.writer import ShardWriter
from weir.types import Filter, Keys, Params, Rows

T = TypeVar("T")


class TableWriter:
    """Writes to all shards of a table; opens (claims) each at its first row.

    Thread-safe; puts of several threads share entries.

    `update`, `insert`, `put` with `when`, `delete_where` and `update_where` read before they write.
    Each shard decides its part concurrently and on its own. They raise `KeyConflict` when all
    failures are key conflicts, with the parts of the other shards written; otherwise `PartialWrite`
    as a put does.

    With `PerWriter` it has one shard of its own, and one for each application of `put_once`.

    A writer with shards of its own (`Table.writer(shards=...)`) raises `NotOwner` for a call with a
    row of another shard, before anything is claimed or written. After a reshard it raises
    `SealedShard`, with the rows, and takes no other shard instead: open a new one.
    """

    def __init__(
        self,
        core: Core,
        config: WriterConfig | None = None,
        schema: TableSchema | None = None,
        own: OwnShards | None = None,
    ) -> None:
        """Use `Table.writer`."""
        self._core = core
        self._config = chosen_config(config, core.record.writer_defaults)
        self._waits = self._config.durable_write
        # One for all shards, also those opened later: rows are shaped before they are routed.
        schema = schema or schema_for_writing(core)
        self._writers = OpenWriters(core, config, schema, own)
        self.unheard = self._writers.unheard
        self._own = own
        self._intake = self._writers.intake
        self._asked = AskedRows(self._intake)
        self._sql = SqlChecks(schema)
        writers = self._writers
        self._route_cache = RouteCache(core, schema.plain, writers.open, writers.lone)
        self._closed = False
        self._fork_guard = ForkGuard(core.env)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            f"{self._core.uri}: a writer cannot be pickled; pass the table, and call table.writer()"
            " where it arrives"
        )

    def __repr__(self) -> str:
        return f"TableWriter({self._core.uri}, shards open: {len(self._writers.open)})"

    # -- putting ---------------------------------------------------------------------------------

    @overload
    def put(
        self, data: Rows, *, wait: bool | None = None, timeout: float | None = None
    ) -> Receipt: ...

    @overload
    def put(
        self,
        data: Rows,
        *,
        when: Filter,
        params: Params | None = None,
        timeout: float | None = None,
    ) -> WriteCounts: ...

    def put(
        self,
        data: Rows,
        *,
        when: Filter | None = None,
        params: Params | None = None,
        wait: bool | None = None,
        timeout: float | None = None,
    ) -> Receipt | WriteCounts:
        """Upsert the rows (append, without a key); returns when every shard has its part.

        Durable on return, or buffered with `wait=False` or `durable_write=False`; the receipt tells
        when it is durable, and where. Raises `SchemaMismatch` or `InvalidInput` with nothing
        written, the shard's own error when all rows go to one shard, else `PartialWrite`;
        `TimeoutError` when nothing failed and a shard was not durable within `timeout`: its rows go
        on, and `flush_wal` or `close` waits for them. One put request for each shard concerned,
        concurrently. `when`: see `ShardWriter.put`.
        """
        if when is not None or params is not None:
            return self._decide(data, WriteSpec("put", bind_when(when, params)), timeout)
        wait = self._waits if wait is None else wait
        way = None if self._is_over else self._route_cache.find(data)
        if way is None:
            return self._write(self._intake.rows(data), wait, timeout)
        record, shard, writer = way
        given = writer.puts.read(data, wait=wait)
        taken: Taken = []
        try:
            ack = writer.puts.put(given, wait=wait, timeout=timeout, taken=taken)
            return self._receipt(((shard, ack),))
        except WeirError as error:
            call: FanOut[Ack] | None = None
            try:
                call = self._failed_put(shard, error, timeout)
                return self._receipt(call.follow(self._split, record).items())
            except Exception:
                raise
            except BaseException as interrupt:  # F-16: the error has the rows until the call does
                if call is None:
                    self.unheard.keep(error, shard)
                else:
                    call.leave(interrupt)
                raise
        except Exception:
            raise
        except BaseException:
            self._keep_untaken(shard, writer.puts, given, taken)
            raise

    def _keep_untaken(self, shard: UUID, puts: Puts, given: Given, taken: Taken) -> None:
        """The caller of a put of one shard is interrupted: rows that its writer has not accepted
        are handed back by a flush or close (F-16)."""
        with contextlib.suppress(WeirError):  # rows that it would have refused
            self.unheard.left(shard, puts.rows_of(given), taken)

    async def aput(self, data: Rows) -> Receipt:
        """`put` for asyncio: returns when durable, without blocking the loop.

        Thousands of tasks share entries, and wait for room instead of failing. A task that is
        cancelled leaves its put under way: `flush_wal` or `close` makes it durable or raises.
        """
        small = None if self._is_over else as_small_put(data)
        way = None if small is None else self._route_cache.find(data)
        if small is None or way is None:
            return await self._awrite(await off_the_loop(self._intake.rows, data))
        record, shard, writer = way
        ack: Ack | None = None
        try:
            ack = writer.puts.small_ack(small)
            await writer.puts.asee_through(ack)
            return self._receipt(((shard, ack),))
        except WeirError as error:
            call = self._failed_put(shard, error, None)
            follow = partial(call.follow, self._split, record)
            acks = await self.unheard.in_thread(follow, must_run=True)
            return self._receipt(acks.items())
        except Exception:
            raise
        except BaseException:
            self._keep_untaken(shard, writer.puts, small, [] if ack is None else [ack])
            raise

    async def adelete(self, keys: Keys) -> Receipt:
        """`delete` for asyncio."""
        return await self._awrite(await off_the_loop(self._intake.tombstones, keys))

    def delete(
        self, keys: Keys, *, wait: bool | None = None, timeout: float | None = None
    ) -> Receipt:
        """Delete the rows with those keys: values, tuples, dicts or an Arrow table; otherwise like
        a put."""
        wait = self._waits if wait is None else wait
        return self._write(self._intake.tombstones(keys), wait, timeout)

    def put_once(self, data: Rows, *, app: str, version: int, timeout: float | None = None) -> bool:
        """Put `data` unless batch `version` of `app`, or a later one, is in.

        Each shard takes its part once, as one entry: after a crash put the same rows again, and
        shards that have their part are skipped. Returns False when every shard had its part, or
        there is no row.
        """
        check_token(app, version)

        def put(writer: ShardWriter, part: Part) -> bool:
            return writer.put_once_shaped(
                part.rows, app=app, version=version, timeout=timeout, taken=part.taken
            )

        batches = self._intake.rows(data)
        self._require_open(batches)
        plan = self._split if self._writers.lone is None else partial(self._of_app, app)
        call = FanOut(self._writers, put, timeout, batch=(app, version))
        is_new = any(call.over(plan, batches).values())
        self._writers.forget((app, version))
        return is_new

    # -- writes that look first ------------------------------------------------------------------

    def update(
        self, rows: Rows, *, missing: Missing = "error", timeout: float | None = None
    ) -> WriteCounts:
        """Set some columns of rows, given with their key; see `ShardWriter.update`."""
        return self._decide(rows, WriteSpec("update", missing=missing), timeout)

    def insert(
        self, rows: Rows, *, on_conflict: OnConflict = "error", timeout: float | None = None
    ) -> WriteCounts:
        """Put rows whose keys do not exist; see `ShardWriter.insert`."""
        return self._decide(rows, WriteSpec("insert", on_conflict=on_conflict), timeout)

    def delete_where(
        self, filter: Filter, *, params: Params | None = None, timeout: float | None = None
    ) -> WriteCounts:
        """Delete the rows that pass a filter; opens (claims) every shard. See
        `ShardWriter.delete_where`. A writer with shards of its own deletes in those only."""
        self._require_keyed("delete_where")
        bound = bind_condition(filter, params)
        self._sql.check_filter(bound)
        return self._where("delete_where", bound, None, timeout)

    def update_where(
        self,
        filter: Filter,
        assignments: Mapping[str, str],
        *,
        params: Params | None = None,
        timeout: float | None = None,
    ) -> WriteCounts:
        """Set columns of the rows that pass a filter; opens (claims) every shard. See
        `ShardWriter.update_where`. A writer with shards of its own updates in those only."""
        self._require_keyed("update_where")
        bound, changes = bind_update(filter, assignments, params)
        self._sql.check_filter(bound)
        self._sql.check_assignments(changes)
        return self._where("update_where", bound, changes, timeout)

    def _require_keyed(self, call: str) -> None:
        """Raise unless there can be a call that looks first."""
        if not self._core.record.primary_key:
            raise InvalidInput(
                f"{self._core.uri}: {call} needs a primary key; this table is append-only"
            )
        self._require_memtables(call)

    def _require_memtables(self, call: str) -> None:
        """Also before any shard is open: the answer does not depend on how many are."""
        if not self._config.enable_memtable:
            raise WalOnlyMode(
                f"{self._core.uri}: {call}() needs a MemTable, and this writer was opened with"
                " enable_memtable=False; open one with enable_memtable=True"
            )

    def _decide(self, rows: Rows, asked: WriteSpec, timeout: float | None) -> WriteCounts:
        self._require_keyed(asked.verb)
        batches = self._asked.shape(rows, asked)
        if asked.when is not None:
            self._sql.check_condition(asked.when)

        def run(writer: ShardWriter, part: Part) -> WriteCounts:
            return writer.decide(part.rows, asked, timeout, part.taken)

        try:
            found = self._fan_out(run, batches, timeout)
        except PartialWrite as failed:
            conflicts = [e for e in failed.failures.values() if isinstance(e, KeyConflict)]
            if failed.under_way or len(conflicts) < len(failed.failures):
                raise  # which also names the shards that are not durable yet
            keys = [key for conflict in conflicts for key in conflict.keys]
            raise KeyConflict(str(failed), keys, not_written=failed.not_written) from failed
        return sum(found.values(), WriteCounts())

    def _where(
        self,
        call: str,
        filter: Filter,
        assignments: Mapping[str, str] | None,
        timeout: float | None,
    ) -> WriteCounts:
        self._require_open()
        counts: list[WriteCounts] = []

        def run(writer: ShardWriter, _: Part) -> None:
            writer.where(call, filter, assignments, timeout, counts.append)

        def may_follow() -> bool:
            # Rows cannot be told apart that were updated before the routing changed.
            return assignments is None or not any(portion.updated for portion in counts)

        def plan(record: TableRecord, _: list[pa.RecordBatch]) -> Parts:
            parts = self._every_shard(record)
            if isinstance(record.sharding, Identity):
                parts = {**self._unmade(record, filter), **parts}
            if not parts:
                require_folded(self._core, record.routing_version)  # O-2: no shard asks
            return parts

        FanOut(self._writers, run, timeout, may_follow=may_follow).over(plan, [])
        return sum(counts, WriteCounts())

    def _every_shard(self, record: TableRecord) -> Parts:
        if self._own is not None:
            self._own.require_routing(record)
            return {shard: (value, []) for shard, value in self._own.existing().items()}
        return {s.id: (s.value, []) for s in all_shards(self._core) if s.is_routed}

    def _unmade(self, record: TableRecord, filter: Filter) -> Parts:
        """The shards of values that rows of the base have, perhaps before any was put: other
        programs, loads and reshards bring them. They are made as a put would make them."""
        router = Router(record.sharding)
        column = router.column_name
        assert column is not None, "Identity has a column"
        values = {
            value
            for batch in self._core.base().scan([column], filter=filter)
            for value, _ in router.split(batch)
            if value is not None
        }
        found: Parts = {self._core.shard_of(value, record): (value, []) for value in values}
        own = self._own
        return found if own is None else {s: part for s, part in found.items() if s in own.values}

    # -- all open shards -------------------------------------------------------------------------

    def flush(self) -> None:
        """Publish what the open shards hold in memory as SSTables; `WalOnlyMode` on a WAL-only
        writer."""
        self._require_open()
        self._require_memtables("flush")
        self._follow_buffered()
        self._each(lambda writer: writer.flush())

    def flush_wal(self, timeout: float | None = None) -> None:
        """Return when everything put so far is durable.

        Raises `TimeoutError` when nothing failed and a shard was not done within `timeout` seconds:
        its rows go on, and may be waited for again.
        """
        self._require_open()
        clock = self._core.env.clock
        deadline = deadline_after(timeout, clock)
        self._follow_buffered(deadline)
        self._each(lambda writer: writer.flush_wal(seconds_until(deadline, clock)))

    def stats(self) -> dict[UUID, WriterStats]:
        """What the open writers have counted, by shard. No request."""
        return {shard: writer.stats() for shard, writer in self.shard_writers().items()}

    @property
    def shards(self) -> tuple[UUID, ...]:
        """The shards whose rows it takes: those that it was opened for, or all of the routing.
        Where shards are made as rows come (`Identity`, `PerWriter`), those that it has open. No
        request."""
        if self._own is not None:
            return tuple(self._own.values)
        record = self._core.record
        if makes_shards(record.sharding):
            return tuple(self._writers.all())
        return tuple(route.shard for route in record.routing)

    @property
    def fenced(self) -> tuple[UUID, ...]:
        """The shards that a newer writer took from this one; it is refused there for good.

        An idle writer learns of it at its next put. With `PerWriter` only shards of applications:
        instead of its own it takes another. During a reshard its shards may be listed for a
        moment, until a call follows to the new ones. No request.
        """
        return tuple(self._writers.fenced())

    def shard_writers(self) -> dict[UUID, ShardWriter]:
        """The writers open at the moment, by shard."""
        return self._writers.all()

    def close(self) -> None:
        """Make every accepted row durable and release all shards.

        Raises nothing when it owes nobody rows, also if it was fenced. Closing twice is harmless;
        after an interrupt, close again.
        """
        if self._fork_guard.is_forked:
            return  # the rows and the locks are the parent's
        self._closed = True
        self._follow_buffered()
        call = FanOut(self._writers, lambda writer, _: writer.close())
        call.over_all(closes=True)

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
            if not isinstance(error, Exception) and is_of_interrupts(failure):
                # It stays an interrupt: a cancelled task must end cancelled. The rows come with it.
                error.__cause__ = failure
                return
            if failure.not_written or failure.perhaps_written:
                raise  # M-8: rows that no other error reports
            # The block's own error is the one to raise; this one is added as a note.
            error.add_note(f"closing the writer also failed: {failure}")

    def _each(self, run: Callable[[ShardWriter], object]) -> None:
        FanOut(self._writers, lambda writer, _: run(writer)).over_all()

    def _follow_buffered(self, deadline: float | None = None) -> None:
        """See rows through that nobody waits for; those of shards that the routing has left are on
        their way at the heirs afterwards. Raises nothing: whoever is asked next reports, also what
        is not done by the deadline."""
        if self._own is not None:
            return  # its rows have no heirs that it may write to: close hands them back
        self._writers.move_again()  # before the heirs are asked: they are asked for these rows too
        for _ in range(REROUTES):
            if not self._follow_once(deadline):
                return

    def _follow_once(self, deadline: float | None) -> bool:
        core = self._core
        clock = core.env.clock
        if self._writers.is_behind:  # guard: C-11 test_reroute
            self._writers.follow(core.record)  # resharded by this handle: no newer one will come
            return True
        record, writers = core.record, self._writers.all()

        def ended_with(writer: ShardWriter) -> WeirError | None:
            return writer.see_through(seconds_until(deadline, clock))

        ended = core.env.threads.map(ended_with, list(writers.values()), workers=CONCURRENCY)
        left = {
            shard: error
            for (shard, writer), error in zip(writers.items(), ended, strict=True)
            if error is not None and writer.has_rows_left
        }
        moved = {shard: left[shard] for shard in self._writers.routed_away(left)}
        left_for = seconds_until(deadline, clock)
        if not moved or not self._writers.await_heirs(record.routing_version, moved, left_for):
            return False
        self._writers.follow(core.record)
        return True

    # -- any number of shards --------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        return self._closed or self._fork_guard.is_forked

    def _require_open(self, batches: list[pa.RecordBatch] | None = None) -> None:
        """Raise, with those rows, unless the writer can be used; asked before anything is
        claimed."""
        if self._fork_guard.is_forked:
            raise forked(self._core.uri, batches or ())
        if self._closed:
            raise closed(self._core.uri, batches or ())

    def _fan_out(
        self, run: Run[T], batches: list[pa.RecordBatch], timeout: float | None
    ) -> dict[UUID, T]:
        """Route the rows and give each shard's writer its part."""
        self._require_open(batches)
        return FanOut(self._writers, run, timeout).over(self._split, batches)

    def _split(self, record: TableRecord, batches: list[pa.RecordBatch]) -> Parts:
        if self._own is not None:
            self._own.require_routing(record, batches)
        parts = self._writers.parts(record, batches)
        if self._own is not None:
            self._own.require_all(parts, batches, record)
        return parts

    def _of_app(self, app: str, record: TableRecord, batches: list[pa.RecordBatch]) -> Parts:
        """All rows, in the shard that every writer finds by the application's name: there its
        batches are counted (P-2)."""
        if not batches:
            return {}
        value = value_of_app(app)
        self._intake.fit(batches, self._core.env.limits)
        return {self._core.shard_of(value, record): (value, batches)}

    def _write(
        self,
        batches: list[pa.RecordBatch],
        wait: bool,  # noqa: FBT001
        timeout: float | None,
    ) -> Receipt:
        acks = self._fan_out(_put(wait=wait, timeout=timeout), batches, timeout)
        return self._receipt(acks.items())

    async def _awrite(self, batches: list[pa.RecordBatch]) -> Receipt:
        """`_write` for a task."""
        self._require_open(batches)
        call = FanOut(self._writers, _put(wait=True, timeout=None))
        acks = await call.over_tasks(self._split, batches, _aput)
        return self._receipt(acks.items())

    def _failed_put(self, shard: UUID, error: WeirError, timeout: float | None) -> FanOut[Ack]:
        """The call of a put of one shard that failed, to follow the routing if it has left the
        shard; raises an error without rows, of a put that was refused."""
        if not error.unacknowledged:
            raise error
        call = FanOut(self._writers, _put(wait=True, timeout=timeout), timeout)
        call.fail(shard, error, error.unacknowledged)
        return call

    def _receipt(self, acks: Iterable[tuple[UUID, Ack]]) -> Receipt:
        return Receipt(self._writers, tuple(acks))


def _put(*, wait: bool, timeout: float | None) -> Run[Ack]:
    def put(writer: ShardWriter, part: Part) -> Ack:
        return writer.puts.put_shaped(part.rows, wait=wait, timeout=timeout, taken=part.taken)

    return put


async def _aput(writer: ShardWriter, part: Part) -> Ack:
    return await writer.puts.aput_shaped(part.rows, part.taken)
