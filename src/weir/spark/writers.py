"""The shard writers of a process, some of which stay open between the batches of an application.

Opening and closing a shard costs some forty requests and an epoch, a batch through an open writer
two (F-1, P-2). Spark commits one micro-batch after the other in a few processes that it reuses,
and ends a process that was idle for a minute without a word. So a writer that another batch may
need is kept, and closed by a timer after `IDLE_SECONDS`. Another process that commits meanwhile
fences it; the next batch here notices, claims the shard again, and finds by its token what is in.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

import pyarrow as pa

from weir.config import WriterConfig
from weir.env import Bell
from weir.errors import WeirError
from weir.format.schema import TOMBSTONE
from weir.format.sharding import Value
from weir.routing.core import Core
from weir.routing.shards import Shard, checking_writer
from weir.shard.large_batch import LargeBatch
from weir.shard.writer import ShardWriter

logger = logging.getLogger("weir.spark")

IDLE_SECONDS: Final = 30.0
"""Half of what Spark grants an idle process."""
KEPT_MAX: Final = 64
"""Writers kept at most: each has a thread, and an identity column may have many values."""
GAP_ENTRIES: Final = 48
"""From this many entries in no SSTable on, a batch also flushes them: bounds replay and reads."""


@dataclass(frozen=True)
class _Kept:
    writer: ShardWriter
    until: float
    """The moment, by the clock that never goes back, at which it is closed."""


class ShardWriters:
    """Opens the writers of one table for batches, and keeps those that are given back."""

    def __init__(self, core: Core, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self.core = core
        self._idle_seconds = idle_seconds
        self._kept: dict[UUID, _Kept] = {}
        """By shard, the longest unused first. Guarded by the lock."""
        self._lock = core.env.threads.lock()
        self._bell = Bell(core.env.threads)
        self._is_timed = False
        """True while a thread closes what was idle for too long."""

    def take(
        self, value: Value, columns: pa.Schema, *, limit: int, decides: bool
    ) -> ShardWriter | None:
        """The kept writer of that shard for rows of these columns, or None. No request, but where
        entries piled up: then another takes its place."""
        kept = self._pop(value)
        if kept is None or _fits(kept, columns, decides=decides):
            return kept if kept is None else self._flushing(kept, value, limit)
        end(kept)
        return None

    def open(self, value: Value, *, limit: int, decides: bool) -> ShardWriter:
        """Claim that shard. WAL-only, until so many entries piled up that a flush is worth it.

        A writer that `decides` has to see all rows, so it has a MemTable, too (M-2).
        """
        opened = self._shard(value).writer(self._config(limit, memtable=decides))
        return self._flushing(opened, value, limit)

    def checker(self, value: Value, *, limit: int) -> ShardWriter:
        """Claim that shard for a statement over several shards, which is open in it (P-8)."""
        self.leave(value)
        return checking_writer(self.core, self._shard(value), self._config(limit, memtable=False))

    def leave(self, value: Value) -> None:
        """Close the kept writer of that shard, if there is one."""
        kept = self._pop(value)
        if kept is not None:
            end(kept)

    def load(self, value: Value, *, limit: int) -> LargeBatch:
        """Claim that shard for a batch of several SSTables."""
        return self._shard(value).load(self._config(limit, memtable=True))

    def keep(self, writer: ShardWriter) -> None:
        """Keep a writer, whose batches are all in, for the next batch of its shard."""
        try:
            if writer.config.enable_memtable and writer.gap >= GAP_ENTRIES:
                writer.flush()
        except WeirError as failed:
            logger.info("sink.flush.failed %s reason=%s", writer.site.label, failed)
            end(writer)
            return
        now = self.core.env.clock.boottime()
        with self._lock:
            before = self._kept.pop(writer.site.shard, None)
            self._kept[writer.site.shard] = _Kept(writer, now + self._idle_seconds)
            over = [before] if before is not None else []
            if len(self._kept) > KEPT_MAX:
                over.append(self._kept.pop(next(iter(self._kept))))
            if not self._is_timed:
                started = self.core.env.threads.start(self._close_idle, name="weir-spark-idle")
                self._is_timed = started is not None
            if not self._is_timed:  # nobody would close them
                over += self._kept.values()
                self._kept.clear()
        for kept in over:
            end(kept.writer)

    def close(self) -> None:
        """Close all that are kept."""
        with self._lock:
            kept = list(self._kept.values())
            self._kept.clear()
        self._bell.ring()
        for one in kept:
            end(one.writer)

    def _close_idle(self) -> None:
        """Close each when its time has come; ends when none is kept."""
        while True:
            with self._lock:
                now = self.core.env.clock.boottime()
                due = [shard for shard, kept in self._kept.items() if kept.until <= now]
                ended = [self._kept.pop(shard).writer for shard in due]
                if not due and not self._kept:
                    self._is_timed = False
                    return
                pause = min((k.until for k in self._kept.values()), default=now) - now
            for writer in ended:
                end(writer)
            if not ended:
                self._bell.wait(pause)

    def _flushing(self, writer: ShardWriter, value: Value, limit: int) -> ShardWriter:
        """That writer, or one with a MemTable if entries pile up that it cannot flush."""
        flushes = self.core.record.writer_defaults.enable_memtable
        if not flushes or writer.config.enable_memtable or writer.gap < GAP_ENTRIES:
            return writer
        end(writer)
        return self._shard(value).writer(self._config(limit, memtable=True))

    def _pop(self, value: Value) -> ShardWriter | None:
        with self._lock:
            kept = self._kept.pop(self.core.route(value), None)
        return None if kept is None else kept.writer

    def _shard(self, value: Value) -> Shard:
        return Shard(self.core, self.core.ensure_shard(value), value)

    def _config(self, limit: int, *, memtable: bool) -> WriterConfig:
        defaults = self.core.record.writer_defaults
        return replace(
            defaults,
            enable_memtable=memtable,
            durable_write=True,
            index_configs=(),
            max_unflushed_memtable_bytes=max(
                defaults.max_unflushed_memtable_bytes, 2 * limit, 1 << 30
            ),
        )


def end(writer: ShardWriter) -> None:
    """Close a writer whose batches are all in: that it fails, or was fenced, harms nobody."""
    try:
        writer.close()
    except WeirError as failed:
        logger.info("sink.close.failed %s reason=%s", writer.site.label, failed)


def _fits(writer: ShardWriter, columns: pa.Schema, *, decides: bool) -> bool:
    """Whether it is open, and can take such rows: a column may have been added since it opened."""
    known = writer.intake.schema.plain
    return (
        writer.is_open
        and (writer.config.enable_memtable or not decides)
        and all(
            field.name == TOMBSTONE
            or (field.name in known.names and field.type == known.field(field.name).type)
            for field in columns
        )
    )
