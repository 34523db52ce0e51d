"""Rows of one shard into its log, once: what tasks of a laid-out write and the driver both do.

Keeps
  P-1  whoever writes has claimed the shard; an older attempt is fenced, and finds the token
  P-2  rows and token are one WAL entry; the token is looked for before anything is written
  W-4  rows go through the log, always: a change feed misses nothing. SSTables come from flushing it
Up to `ENTRY_BYTES` of rows are one entry, so all or nothing. More become several entries, each with
a token of its own, the last with the batch's: a repeated attempt goes on where the first stopped.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from weir.config import WriterConfig
from weir.errors import FencedError, UnknownOutcome
from weir.shard.tokens import Tokens
from weir.shard.writer import ShardWriter
from weir.table.core import Core
from weir.table.sharding import Value
from weir.table.shards import Shard

log = logging.getLogger("weir.spark")

ENTRY_BYTES: Final = 256 << 20
"""Rows of one entry at most, as Arrow counts them: what a task holds in memory."""
GAP_ENTRIES: Final = 48
"""Entries in no SSTable from which on the next batch also flushes them: bounds replay and reads."""
ATTEMPTS: Final = 8
"""Times a shard is claimed anew when another attempt fenced this one."""
_DELAY: Final = 0.05


@dataclass(frozen=True)
class Token:
    """What makes a batch exactly-once: an application and its batch number."""

    app: str
    version: int

    def part(self, index: int) -> Token:
        """The token of one entry of a batch that needs several, all but the last."""
        return replace(self, app=f"{self.app}\x1f{index}")


class ShardSink:
    """Takes the rows of one shard and writes them as few entries as can be."""

    def __init__(
        self, core: Core, value: Value, token: Token, *, entry_bytes: int = ENTRY_BYTES
    ) -> None:
        self._core = core
        self._value = value
        self._token = token
        self._limit = entry_bytes
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._parts = 0
        self._writer: ShardWriter | None = None
        self.rows = 0
        self.applied = False

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows in; writes an entry whenever one is full."""
        if self._batches and self._bytes + batch.nbytes > self._limit:
            self._write(self._token.part(self._parts))
            self._parts += 1
        self._batches.append(batch)
        self._bytes += batch.nbytes
        self.rows += batch.num_rows

    def finish(self) -> None:
        """Write what is left, with the batch's own token: now all of it is in."""
        try:
            if self._batches:
                self.applied = self._write(self._token)
        finally:
            self.close()

    def close(self) -> None:
        """Give the shard back."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _write(self, token: Token) -> bool:
        """One entry, unless its token is in already; False then."""
        rows = pa.Table.from_batches(self._batches)
        self._batches, self._bytes = [], 0
        env = self._core.env
        for attempt in range(ATTEMPTS):
            try:
                if self._is_in(token):
                    return False
                if self._writer is None:
                    self._writer = self._open()
                return self._writer.put_once(rows, app=token.app, version=token.version)
            except (FencedError, UnknownOutcome) as lost:
                # Another attempt of this task, or a zombie of an older batch, claimed the shard.
                # Taking it back on purpose is safe: the token decides what counts (P-2).
                log.info("sink.again shard=%r attempt=%d reason=%s", self._value, attempt, lost)
                self._writer = None
                if attempt == ATTEMPTS - 1:
                    raise
                env.clock.sleep(_DELAY * 2**attempt * (0.5 + env.random.random()))
        raise AssertionError("F-13: the loop above returns or raises")

    def _is_in(self, token: Token) -> bool:
        """True when the record says so: then no claim is needed, and nobody is fenced."""
        recorded = Tokens(self._core.site(self._core.route(self._value))).load(token.app)
        return recorded is not None and recorded >= token.version

    def _open(self) -> ShardWriter:
        shard = self._core.ensure_shard(self._value)
        return Shard(self._core, shard, self._value).writer(self._config())

    def _config(self) -> WriterConfig:
        """WAL-only, until the gap is worth a flush: then this writer replays and flushes it."""
        core = self._core
        site = core.site(core.route(self._value))
        manifest, floors = core.tails.latest(site)
        gap = 0
        if manifest is not None:
            gap = core.tails.tip(site, manifest, floors) - manifest.replay_after
        defaults = core.record.writer_defaults
        return replace(
            defaults,
            enable_memtable=defaults.enable_memtable and gap >= GAP_ENTRIES,
            durable_write=True,
            index_configs=(),
            max_unflushed_memtable_bytes=max(
                defaults.max_unflushed_memtable_bytes, 2 * self._limit, 1 << 30
            ),
        )
