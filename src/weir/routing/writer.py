"""`TableWriter`: rows to their shards, shards side by side.

Keeps
  M-8  leaving the `with` block means durable, for every shard, or an error that says what is left
A put is not atomic over shards: each shard's part is acknowledged on its own, and `PartialWrite`
says which were not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final, Self
from uuid import UUID

import pyarrow as pa

from weir.config import WriterConfig
from weir.env import Home
from weir.errors import (
    FencedError,
    PartialWrite,
    SealedShard,
    UnknownOutcome,
    WeirError,
    WriterClosed,
)
from weir.format.manifest import Status
from weir.format.schema import TableSchema
from weir.format.sharding import Router, Value
from weir.log.intake import Intake
from weir.records.resharding import read_resharding
from weir.records.table import TableRecord
from weir.routing.core import CONCURRENCY, Core
from weir.routing.shards import Shard, schema_for_writing
from weir.shard.ack import Ack
from weir.shard.ending import forked
from weir.shard.writer import ShardWriter
from weir.types import Keys, Rows

Failures = dict[UUID, tuple[WeirError, list[pa.RecordBatch]]]

REROUTES: Final = 8
"""How often one put follows a change of routing."""
REROUTE_SECONDS: Final = 120.0
"""How long a put waits for the new routing when it met a sealed shard."""
REROUTE_POLL_SECONDS: Final = 0.05
REROUTE_POLL_SECONDS_MAX: Final = 2.0
REROUTE_POLL_GROWTH: Final = 1.5
"""It looks soon, because a change takes some tenths of a second, and less and less often after."""


class TableWriter:
    """Writes to all shards of a table; opens (claims) each at its first row. Safe between threads.

    The lock guards the map of writers; no store call is made while holding it.
    """

    def __init__(
        self, core: Core, config: WriterConfig | None = None, schema: TableSchema | None = None
    ) -> None:
        """Use `Table.writer`."""
        self._core = core
        self._config = config
        # For all shards, also those opened later: rows are shaped by it before they are routed.
        self._schema = schema or schema_for_writing(core)
        self._intake = Intake(self._schema)
        self._lock = core.env.threads.lock()
        self._writers: dict[UUID, ShardWriter] = {}
        self._opening: dict[UUID, Any] = {}
        self._closed = False
        self._home = Home(core.env)

    def __repr__(self) -> str:
        return f"TableWriter({self._core.uri}, shards open: {len(self._writers)})"

    def put(self, data: Rows, *, timeout: float | None = None) -> None:
        """Upsert the rows (append, without a key); returns when every shard has its part.

        Durable on return, or buffered with `durable_write=False`. Raises `SchemaMismatch` or
        `InvalidInput` with nothing written, the shard's own error when all rows go to one shard,
        else `PartialWrite`. One put-request for each shard concerned, side by side.
        """
        self._write(self._intake.rows(data), timeout)

    def delete(self, keys: Keys, *, timeout: float | None = None) -> None:
        """Delete the rows with those keys: values, tuples, dicts or an Arrow table."""
        self._write(self._intake.tombstones(keys), timeout)

    def flush(self) -> None:
        """Publish what the open shards hold in memory as SSTables."""
        self._each(dict(self._writers), lambda writer: writer.flush())

    def flush_wal(self) -> None:
        """Return when everything put so far is durable."""
        self._each(dict(self._writers), lambda writer: writer.flush_wal())

    def close(self) -> None:
        """Make every accepted row durable and give all shards back (M-8). Twice is harmless; after
        an interrupt, close again."""
        if self._home.is_left:
            return  # the rows are the parent's, and so are the locks
        with self._lock:
            self._closed = True
            writers = dict(self._writers)
        try:
            self._each(writers, lambda writer: writer.close())
        except Exception:
            self._writers = {}
            raise
        self._writers = {}  # not when interrupted: the next close goes on with them (F-16)

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
                raise  # M-8: rows that nobody else will name
            # The block's own error is the cause of the trouble; this one only comes along.
            error.add_note(f"closing the writer also failed: {failure}")

    def _write(self, batches: list[pa.RecordBatch], timeout: float | None) -> None:
        if self._home.is_left:
            raise forked(self._core.uri, batches)
        if self._closed:
            raise WriterClosed(f"{self._core.uri}: this writer was closed", not_written=batches)
        for _ in range(REROUTES):
            record = self._core.record
            failures, parts = self._write_once(batches, record, timeout)
            moved = [shard for shard, (error, _) in failures.items() if self._left(shard, error)]
            if not moved or len(moved) < len(failures):
                break
            # C-11: the shard was sealed under us. Not a fight over it: its heirs take the rows.
            if not self._await_routing(record.routing_version, timeout):
                self._explain(error for error, _ in failures.values())
                break
            # Rows nobody waits for were put before these.
            batches = [row for shard in moved for row in self._abandon(shard)]
            batches += [row for shard in moved for row in failures[shard][1]]
        self._report(failures, parts=parts)

    def _write_once(
        self, batches: list[pa.RecordBatch], record: TableRecord, timeout: float | None
    ) -> tuple[Failures, int]:
        """One attempt under one routing; what failed, and how many shards were concerned."""
        values: dict[Value, list[pa.RecordBatch]] = {}
        router = Router(record.sharding)
        for batch in batches:
            for value, rows in router.split(batch):
                values.setdefault(value, []).append(rows)
        items = list(values.items())
        for _, rows in items:  # before any shard takes its part (F-15)
            self._intake.fit(rows, self._core.env.limits)
        failures: Failures = {}

        def write(item: tuple[Value, list[pa.RecordBatch]]) -> Ack | None:
            value, rows = item
            shard = self._core.shard_of(value, record)
            try:
                writer = self._writer(shard, value, record)
                return writer.put(pa.Table.from_batches(rows), timeout=timeout)
            except WeirError as error:
                failures[shard] = (_settled(error, rows), rows)
            return None

        self._core.env.threads.map(write, items, workers=CONCURRENCY)
        return failures, len(items)

    def _left(self, shard: UUID, error: WeirError) -> bool:
        """True when the shard failed because the routing leaves it."""
        if isinstance(error, SealedShard):
            return True
        if not isinstance(error, FencedError):
            return False
        change = read_resharding(self._core.store)
        if change is not None and change.is_open:
            return True
        manifest = self._core.tails.manifests(self._core.beside(shard)).latest()
        return manifest is not None and manifest.status is Status.SEALED

    def _await_routing(self, left: int, timeout: float | None = None) -> bool:
        """Wait until the record shows a routing after `left`; False when it does not come in time.

        Whoever changes the routing may be busy flushing: to do the rest here would fence him, and
        he us (F-13).
        """
        clock = self._core.env.clock
        patience = REROUTE_SECONDS if timeout is None else min(timeout, REROUTE_SECONDS)
        until = clock.boottime() + patience
        pause = REROUTE_POLL_SECONDS
        while self._core.refresh().routing_version <= left:
            if clock.boottime() >= until:
                return False
            clock.sleep(pause)
            pause = min(pause * REROUTE_POLL_GROWTH, REROUTE_POLL_SECONDS_MAX)
        return True

    def _explain(self, errors: Iterable[WeirError]) -> None:
        """Tell what the rows were waiting for."""
        change = read_resharding(self._core.store)
        if change is None or not change.is_open:
            return
        for error in errors:
            error.add_note(
                f"{self._core.uri}: a change of its routing to {change.sharding} was begun and is"
                " not finished. If whoever began it died, finish it by"
                f" table.reshard({change.sharding}), then put the rows again"
            )

    def _abandon(self, shard: UUID) -> list[pa.RecordBatch]:
        """Give up the writer of a sealed shard; returns rows that nobody is waiting for."""
        with self._lock:
            writer = self._writers.pop(shard, None)
        if writer is None:
            return []
        try:
            writer.close()
        except WeirError as error:
            settled = _settled(error, error.unacknowledged)
            if isinstance(settled, UnknownOutcome):
                raise settled from error
            return settled.unacknowledged
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
            opened = Shard(self._core, shard, value).writer(self._config, schema=self._schema)
            opened.intake.owns = None  # rows come routed; hashing them twice would be for nothing
            with self._lock:
                closed = self._closed
                if not closed:
                    self._writers[shard] = opened
            if closed:
                opened.close()
                raise WriterClosed(f"{self._core.uri}: this writer was closed")
            return opened

    def _each(self, writers: dict[UUID, ShardWriter], run: Callable[[ShardWriter], object]) -> None:
        if self._home.is_left:
            raise forked(self._core.uri)
        failures: Failures = {}

        def attempt(item: tuple[UUID, ShardWriter]) -> None:
            try:
                run(item[1])
            except WeirError as error:
                left = error.unacknowledged
                failures[item[0]] = (_settled(error, left), left)

        self._core.env.threads.map(attempt, list(writers.items()), workers=CONCURRENCY)
        self._follow(writers, failures)
        self._report(failures, parts=len(writers))

    def _follow(self, writers: dict[UUID, ShardWriter], failures: Failures) -> None:
        """Take out of `failures` the shards the routing has left; their rows go to the heirs."""
        moved = [shard for shard, (error, _) in failures.items() if self._left(shard, error)]
        change = read_resharding(self._core.store) if moved else None
        if change is None or not self._await_routing(change.routing_version):
            self._explain(failures[shard][0] for shard in moved)
            return
        rows: list[pa.RecordBatch] = []
        for shard in moved:
            _, left = failures.pop(shard)  # nobody else was told of them
            try:
                rows += [*left, *self._abandon(shard)]
            except UnknownOutcome as unknown:
                failures[shard] = (unknown, unknown.unacknowledged)
        if rows:
            with TableWriter(self._core, self._config, self._schema) as heir:
                heir._write(rows, None)

    def _report(self, failures: Failures, *, parts: int) -> None:
        if not failures:
            return
        if parts == 1:
            raise next(iter(failures.values()))[0]
        rest = "" if len(failures) == parts else ", the others are done"
        raise PartialWrite(
            f"{self._core.uri}: {len(failures)} of {parts} shards failed{rest}: "
            + "; ".join(f"shard {shard}: {error}" for shard, (error, _) in failures.items()),
            failures={shard: error for shard, (error, _) in failures.items()},
        )


def _settled(error: WeirError, rows: list[pa.RecordBatch]) -> WeirError:
    """The error with the rows of the call, as `UnknownOutcome` when some may be in the shard that
    was taken from us.

    Those must not go to its heirs as well: each batch takes effect once.
    """
    if not error.unacknowledged:
        error.not_written = rows  # it failed before a writer had them: no shard was open yet
    if isinstance(error, FencedError) and error.maybe_written:
        unknown = UnknownOutcome(
            f"{error} These rows were on their way then, and may be in the table: look before you"
            " put them again.",
            not_written=error.not_written,
            perhaps_written=error.perhaps_written,
        )
        unknown.__cause__ = error
        return unknown
    return error
