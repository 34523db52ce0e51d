"""Write the rows of one shard to its log, once: in tasks of a laid-out write and on the driver.

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
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

import pyarrow as pa

from weir.config import WriterConfig
from weir.errors import FencedError, InvalidInput, UnknownOutcome
from weir.format.sharding import Value
from weir.routing.core import Core
from weir.routing.former import unapplied_filter
from weir.routing.shards import Shard
from weir.shard.large_batch import LargeBatch
from weir.shard.request_builder import WriteSpec
from weir.shard.tokens import Tokens
from weir.shard.writer import ShardWriter

logger = logging.getLogger("weir.spark")

ENTRY_BYTES: Final = 256 << 20
"""Most bytes of rows, as Arrow counts them, in an entry or SSTable: what a task holds in memory."""
GAP_ENTRIES: Final = 48
"""From this many entries in no SSTable on, a batch also flushes them: bounds replay and reads."""
ATTEMPTS: Final = 8
"""Times a shard is claimed again after another attempt fenced this one."""
_DELAY: Final = 0.05


@dataclass(frozen=True)
class Token:
    """What makes a batch exactly-once: an application and its batch number."""

    app: str
    version: int


Guard = Callable[[UUID], None]
"""Called with a claimed shard; raises when its rows may not be written after all."""


class ShardSink:
    """Takes the rows of one shard and writes them in as few entries as possible."""

    def __init__(
        self,
        core: Core,
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
        self._core = core
        self._value = value
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
        self.rows = 0
        self.applied = False

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows in; more than fit in one entry go to SSTables, chunk by chunk."""
        if self._batches and self._bytes + batch.nbytes > self._limit:
            self._spill()
        self._batches.append(batch)
        self._bytes += batch.nbytes
        self.rows += batch.num_rows

    def claim(self) -> None:
        """Claim the shard now, before there are rows to write, unless the batch is in."""
        if not self._is_in(self._token):
            self._writer = self._open()

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
        finally:
            self.close()

    def close(self) -> None:
        """Release the shard."""
        self._large_batch = None
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _take(self) -> pa.Table:
        rows = pa.Table.from_batches(self._batches)
        self._batches, self._bytes = [], 0
        return rows

    def _drop_applied(self, rows: pa.Table) -> pa.Table:
        """Drop rows that shards of a former routing took in; `put_once` does so by itself."""
        left = unapplied_filter(self._core)
        if left is None:
            return rows
        batches = left(self._token.app, self._token.version, rows.to_batches())
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
            token = self._token
            shard = Shard(self._core, self._core.ensure_shard(self._value), self._value)
            self._skips = self._is_in(token)
            if not self._skips:
                if self._writer is not None:
                    self._writer.close()
                    self._writer = None
                load = shard.load(self._config())
                if self._guard is not None:
                    self._guard(shard.id)
                # Checked again: opening the load recorded tokens that were only in the log.
                self._skips = self._is_in(token)
                self._large_batch = None if self._skips else load
        if self._large_batch is not None:
            self._large_batch.add(rows)

    def _write(self, token: Token) -> bool:
        """Write one entry; False if its token was already recorded."""
        rows = self._take()
        env = self._core.env
        for attempt in range(ATTEMPTS):
            try:
                if self._is_in(token):
                    return False
                if self._writer is None:
                    self._writer = self._open()
                if self._asked is None:
                    return self._writer.put_once(rows, app=token.app, version=token.version)
                told = self._writer.decide_once(
                    rows, self._asked, app=token.app, version=token.version
                )
                logger.info(
                    "sink.decided table=%s shard=%r counts=%s", self._core.uri, self._value, told
                )
                return told is not None
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
                if attempt == ATTEMPTS - 1:
                    raise
                env.clock.sleep(_DELAY * 2**attempt * (0.5 + env.random.random()))
        raise AssertionError("F-13: the loop above returns or raises")

    def _is_in(self, token: Token) -> bool:
        """True when the batch is recorded: then no claim is needed, and no writer is fenced."""
        recorded = Tokens(self._core.site(self._core.route(self._value))).load(token.app)
        return recorded is not None and recorded >= token.version

    def _open(self) -> ShardWriter:
        shard = self._core.ensure_shard(self._value)
        writer = Shard(self._core, shard, self._value).writer(self._config())
        try:
            if self._guard is not None:
                self._guard(shard)
        except BaseException:
            writer.close()
            raise
        return writer

    def _config(self) -> WriterConfig:
        """WAL-only, until the gap is worth a flush: then this writer replays and flushes it.

        A writer that decides has to see all rows, so it replays too (M-2).
        """
        core = self._core
        site = core.site(core.route(self._value))
        manifest, floors = core.tails.latest(site)
        gap = 0
        if manifest is not None:
            gap = core.tails.tip(site, manifest, floors) - manifest.replay_after
        defaults = core.record.writer_defaults
        return replace(
            defaults,
            enable_memtable=self._asked is not None
            or (defaults.enable_memtable and gap >= GAP_ENTRIES),
            durable_write=True,
            index_configs=(),
            max_unflushed_memtable_bytes=max(
                defaults.max_unflushed_memtable_bytes, 2 * self._limit, 1 << 30
            ),
        )
