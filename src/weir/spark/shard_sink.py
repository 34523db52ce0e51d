"""Write the rows of shards to their logs, once: in tasks of a laid-out write and on the driver.

Keeps
  P-1  the writer has claimed the shard; an older attempt is fenced, and finds the token
  P-2  rows and token are one WAL entry; the token is checked before anything is written
  W-4  rows always go through the log, so a change feed misses nothing
Up to `ENTRY_BYTES` of rows are one entry. More become SSTables that one manifest commit publishes
(`weir.shard.large_batch`). Either way the batch is written whole or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar
from uuid import UUID

import pyarrow as pa

from weir.errors import FencedError, InvalidInput, UnknownOutcome
from weir.format import paths
from weir.format.sharding import PerWriter, Value, value_of_app
from weir.routing.former import former_shards
from weir.shard.large_batch import LargeBatch
from weir.shard.request_builder import WriteSpec
from weir.shard.tokens import Tokens
from weir.shard.writer import ShardWriter
from weir.spark.writers import ShardWriters, end

logger = logging.getLogger("weir.spark")

_T = TypeVar("_T")

ENTRY_BYTES: Final = 256 << 20
"""Most bytes of rows, as Arrow counts them, in an entry or SSTable: what a task holds in memory."""
ATTEMPTS: Final = 8
"""Times a shard is claimed again after another attempt fenced this one."""


@dataclass(frozen=True)
class Token:
    """What makes a batch exactly-once: an application and its batch number."""

    app: str
    version: int

    @property
    def recurs(self) -> bool:
        """Whether another batch will follow: not after a job that gave no name."""
        return not self.app.startswith(paths.JOB_APP)


Guard = Callable[[UUID], None]
"""Called with a claimed shard; raises when its rows may not be written after all."""


class ShardSink:
    """Takes the rows of one shard and writes them in as few entries as possible."""

    def __init__(
        self,
        writers: ShardWriters,
        value: Value,
        token: Token,
        *,
        entry_bytes: int = ENTRY_BYTES,
        guard: Guard | None = None,
        asked: WriteSpec | None = None,
    ) -> None:
        """`guard` is called after every claim; it raises when the rows may not be written.

        `asked`: the shard's writer reads the existing rows and decides what to write.
        """
        self._core = writers.core
        self._writers = writers
        self._value = value
        if isinstance(self._core.record.sharding, PerWriter):
            # Its tasks and its driver find it by name. Jobs without one share a shard: they are
            # many, and each comes once.
            self._value = value_of_app(token.app if token.recurs else "")
        self._token = token
        self._limit = entry_bytes
        self._guard = guard
        self._asked = asked
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._writer: ShardWriter | None = None
        self._large_batch: LargeBatch | None = None
        self._skips = False
        """The batch was already written: its rows are skipped."""
        self.applied = False

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows in; more than fit in one entry go to SSTables, chunk by chunk."""
        if self._batches and self._bytes + batch.nbytes > self._limit:
            self._spill()
        self._batches.append(batch)
        self._bytes += batch.nbytes

    def claim(self, columns: pa.Schema) -> None:
        """Claim the shard now, before rows of these columns are written, unless the batch is in."""
        self._until_owned(lambda: self._own(columns))

    def finish(self) -> None:
        """Write the remaining rows, and make the batch visible with its token."""
        try:
            if self._large_batch is not None:
                rows = self._drop_applied(self._take())
                if rows.num_rows:
                    self._large_batch.add(rows)
                self._large_batch.publish(app=self._token.app, version=self._token.version)
                self.applied = True
            elif self._batches and not self._skips:
                self.applied = self._write(self._token)
            if self._writer is not None and self._token.recurs:
                kept, self._writer = self._writer, None
                self._writers.keep(kept)
        finally:
            self.close()

    def close(self) -> None:
        """Release the shard. What was written is durable, so that this fails harms nobody."""
        self._large_batch = None
        writer, self._writer = self._writer, None
        if writer is not None:
            end(writer)

    def _take(self) -> pa.Table:
        rows = pa.Table.from_batches(self._batches)
        self._batches, self._bytes = [], 0
        return rows

    def _drop_applied(self, rows: pa.Table) -> pa.Table:
        """Drop rows that shards of a former routing took in; `put_once` does so by itself."""
        former = former_shards(self._core)
        if former is None:
            return rows
        batches = former.unapplied(self._token.app, self._token.version, rows.to_batches())
        return pa.Table.from_batches(batches, rows.schema)

    def _spill(self) -> None:
        """Make the held rows, too many for one entry, a chunk of a load unless the batch is in.

        A sink that is fenced midway fails, and the whole batch is retried with its rows.
        """
        if self._asked is not None:
            raise InvalidInput(
                f"{self._core.uri}: more than {self._limit} bytes for the shard of {self._value!r}."
                " A write that depends on existing rows is one entry per shard: split it, or raise"
                " maxEntryBytes. Nothing was written to this shard"
            )
        rows = self._drop_applied(self._take())
        if not rows.num_rows:
            return
        if self._large_batch is None and not self._skips:
            self._skips = self._is_in()
            if not self._skips:
                self.close()
                self._writers.leave(self._value)  # the load would fence it
                load = self._writers.load(self._value, limit=self._limit)
                if self._guard is not None:
                    self._guard(self._core.route(self._value))
                # Checked again: opening the load recorded tokens that were only in the log.
                self._skips = self._is_in()
                self._large_batch = None if self._skips else load
        if self._large_batch is not None:
            self._large_batch.add(rows)

    def _write(self, token: Token) -> bool:
        """Write one entry; False if its token was already recorded."""
        rows = self._take()

        def write() -> bool:
            writer = self._own(rows.schema)
            if writer is None:
                return False
            if self._asked is None:
                return writer.put_once(rows, app=token.app, version=token.version)
            told = writer.decide_once(rows, self._asked, app=token.app, version=token.version)
            logger.info(
                "sink.decided table=%s shard=%r counts=%s", self._core.uri, self._value, told
            )
            return told is not None

        return self._until_owned(write)

    def _until_owned(self, act: Callable[[], _T]) -> _T:
        """The result of `act`, which claims the shard; repeated while others take it over."""
        for attempt in self._core.env.attempts(ATTEMPTS, first_delay=0.1, longest_delay=10.0):
            try:
                return act()
            except (FencedError, UnknownOutcome) as lost:
                # Another attempt of this task, or a zombie of an older batch, claimed the shard.
                # Claiming it back is safe: the token decides what counts (P-2).
                logger.info(
                    "sink.again table=%s shard=%r attempt=%d reason=%s",
                    self._core.uri,
                    self._value,
                    attempt,
                    lost,
                )
                self._writer = None
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("F-13: the loop above returns or raises")

    def _is_in(self) -> bool:
        """True when the batch is recorded: then no claim is needed, and no writer is fenced."""
        # Tokens lie beside the data: the store of the log need not be there for them (S-7).
        site = self._core.table_site(self._core.route(self._value))
        recorded = Tokens(site).load(self._token.app)
        return recorded is not None and recorded >= self._token.version

    def _own(self, columns: pa.Schema) -> ShardWriter | None:
        """The writer of the shard, kept from the batch before or opened; None: the batch is in."""
        if self._writer is not None:
            return self._writer
        decides, limit = self._asked is not None, self._limit
        writer = self._writers.take(self._value, columns, limit=limit, decides=decides)
        if writer is None:
            if self._is_in():
                return None
            writer = self._writers.open(self._value, limit=limit, decides=decides)
        try:
            if self._guard is not None:  # guard: P-7 test_statement
                self._guard(writer.site.shard)
        except BaseException:
            end(writer)
            raise
        self._writer = writer
        return writer
