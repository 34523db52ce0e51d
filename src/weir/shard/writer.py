"""`ShardWriter`: the high-level way to write to a shard. Each promise lives in its own module.

Opening is a write: probe, claim, fence, validate, replay, in that order (F-1 to F-8). Puts go
through the group commit (group.py) to the log; with a MemTable also to SSTables (flush.py, M-2).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

import pyarrow as pa

from weir.config import WriterConfig
from weir.errors import FencedError, WalOnlyMode, WeirError
from weir.format.manifest import ShardManifest
from weir.format.schema import TableSchema
from weir.format.wal_entry import Fill
from weir.lake.api import Lake
from weir.log.appender import WalAppender
from weir.log.entry import Entry
from weir.log.fence import claim_shard
from weir.log.intake import Intake
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.log.tags import Bounds, GenerationTags, LogEnds
from weir.search.lance import PROBES, REFINE
from weir.search.memory import WriterIndexes
from weir.search.plan import SearchOptions
from weir.shard.ack import Ack, put_and_await
from weir.shard.flush import MemTables
from weir.shard.group import GroupCommit
from weir.shard.once import Once
from weir.shard.own_reads import OwnReads
from weir.shard.replay import Progress, Replay
from weir.shard.stats import (
    Counters,
    MemtableStats,
    WalStats,
    WriterStats,
    memtable_stats,
    wal_stats,
    writer_stats,
)
from weir.types import Epoch, Filter, Generation, Keys, Position, Rows, Vector

log = logging.getLogger("weir.shard")

Belongs = Callable[[pa.RecordBatch], pa.Array]


class ShardWriter:
    """Writes to one shard it owns. Safe to share between threads, whose puts share entries."""

    def __init__(
        self,
        appender: WalAppender,
        *,
        schema: TableSchema,
        lake: Lake,
        config: WriterConfig,
        belongs: Belongs | None = None,
    ) -> None:
        """Use `ShardWriter.open` or `Shard.writer`, which claim and replay first."""
        self._appender = appender
        self._schema = schema
        self._lake = lake
        self._belongs = belongs
        self.config = config
        self.intake = Intake(schema, belongs)
        self._counters = Counters()
        self._closing = self._closed = False  # an interrupted close has begun, and the next ends it
        self._group = GroupCommit(
            appender.site.env,
            config,
            prepare=appender.prepare,
            write=self._append,
            name=str(appender.site),
            counters=self._counters,
            on_durable=self._on_durable,
        )
        self._bounds = Bounds.of(config)
        self._memtables: MemTables | None = None
        self._reads: OwnReads | None = None
        self._tags: GenerationTags | None = None
        self.once = Once(appender, self._enqueue)
        self._told_at = self.site.env.clock.boottime()

    @classmethod
    def open(
        cls,
        site: ShardSite,
        *,
        schema: TableSchema,
        lake: Lake,
        config: WriterConfig | None = None,
        belongs: Belongs | None = None,
        progress: Progress | None = None,
    ) -> ShardWriter:
        """Claim the shard, fence every older writer, replay what they left, and serve.

        Raises `SealedShard`, `FencedError` (a newer writer came while this one opened),
        `MissingEntry` or `CorruptEntry` (the log is damaged), `UnknownOutcome`, `StoreError`.
        Seventeen requests in nine round trips, plus one get for each entry replayed (concurrent).
        `progress(done, total)` is called for each replayed entry.
        """
        config = config or WriterConfig()
        # Before the claim: settings that do not fit the table leave no trace (M-2).
        indexes = WriterIndexes.plan(lake, schema, config, env=site.env, name=str(site.shard))
        manifests = Manifests(site)
        announces = not config.enable_memtable
        claim = claim_shard(site, manifests, fence_ttl=config.fence_ttl, announces=announces)
        appender = WalAppender(site, schema, claim, manifests=manifests, bounds=Bounds.of(config))
        writer = cls(appender, schema=schema, lake=lake, config=config, belongs=belongs)
        began = site.env.clock.boottime()
        if config.enable_memtable:
            writer._start_memtables(progress, indexes)
        elif appender.tagging.follow_log(keyed=bool(schema.primary_key)):
            writer._tags = appender.tagging.without_memtable()
        else:
            # F-14: a MemTable writer flushes what others left before anything is tagged after it.
            flushing = replace(config, enable_memtable=True)
            cls.open(site, schema=schema, lake=lake, config=flushing, progress=progress).close()
            return cls.open(site, schema=schema, lake=lake, config=config, belongs=belongs)
        writer._counters.replay_seconds = site.env.clock.boottime() - began
        return writer

    def put(self, data: Rows, *, wait: bool | None = None, timeout: float | None = None) -> Ack:
        """Upsert the rows (append, on a table without a key); returns when durable, or buffered.

        `data` is anything Arrow-shaped, a DataFrame, or a list of dicts. With `durable_write` it
        returns when the rows survive the loss of this process; with `wait=False`, or
        `durable_write=False`, it returns at once with an `Ack`. Rows are visible to this writer's
        own reads when it returns (M-1). Raises `SchemaMismatch` or `InvalidInput` with nothing
        written; `Backpressure` when `timeout` passes before there is room; `FencedError`,
        `UnknownOutcome` or `WriterClosed` with the rows not acknowledged. Share of one put-request
        to the store; a put of no rows costs none.
        """
        return self._put(self.intake.rows(data), wait=wait, timeout=timeout)

    def delete(self, keys: Keys, *, wait: bool | None = None, timeout: float | None = None) -> Ack:
        """Delete the rows with those keys (values, tuples, dicts or an Arrow table); like a put
        otherwise."""
        ack = self._put(self.intake.tombstones(keys), wait=wait, timeout=timeout)
        self._counters.rows_deleted += ack.rows
        return ack

    def put_once(self, data: Rows, *, app: str, version: int, timeout: float | None = None) -> bool:
        """Put `data` as one entry unless batch `version` of `app`, or a later one, is in (P-2).

        Returns False when it was. Rows and token become durable together, in one conditional write.
        """
        batches = self.intake.rows(data)
        self._check_open(batches)
        return self.once.put(batches, app=app, version=version, timeout=timeout)

    def last_version(self, app: str) -> int:
        """The highest batch number of `app` that is in this shard, -1 before the first."""
        return self.once.last_version(app)

    async def aput(self, data: Rows) -> Ack:
        """`put` for asyncio: returns when durable, without blocking the loop."""
        batches = self.intake.rows(data)
        return await put_and_await(partial(self._enqueue, batches, claimed=True), self._group.nudge)

    def flush_wal(self, timeout: float | None = None) -> Position:
        """Return when everything put so far is durable; the last durable position."""
        self._check_not_shut()
        self._group.drain(timeout)
        return Position(self._appender.next_position - 1)

    def flush(self) -> ShardManifest:
        """Freeze the MemTable, publish it as an SSTable, and leave no gap: afterwards R = L (W-2).

        Raises `WalOnlyMode` on a WAL-only writer. One SSTable and one manifest commit, or just a
        manifest commit when there was nothing but fences to cover, or nothing at all.
        """
        memtables = self._require_memtables("flush")
        self._check_not_shut()
        return memtables.flush_all(self.flush_wal)

    def close(self) -> None:
        """Make every accepted row durable, flush (MemTable mode), close the gap (M-8).

        Raises what prevented it, with all rows left that no other call was told of, each in its
        state (F-16). Twice is harmless, and so is the copy of a handle in a forked child. After an
        interrupt close again: rows are on their way, and that makes sure, or says what is left.
        """
        if self._closed or self._group.ending.home.is_left:
            return
        self._closing = True
        try:
            self._group.refuse()
            self._group.drain()
            if self._memtables is not None:
                self._memtables.flush_all(lambda: None)
            self._appender.shut()
            if self._tags is not None and not self._schema.primary_key:
                self._appender.ownership.leave()
            self.once.close()
        except Exception:
            self._stop()
            raise
        self._stop()

    def scan(
        self, columns: Sequence[str] | None = None, filter: Filter | None = None
    ) -> pa.RecordBatchReader:
        """This shard's rows, the newest of each key, with everything this writer has put (M-1).

        A file collected while they are read raises `SnapshotExpired` (gc keeps it for `min_age`).
        """
        return self._readable("scan").scan(columns, filter)

    def get(self, keys: Keys, columns: Sequence[str] | None = None) -> pa.Table:
        """The newest rows of those keys; one in the MemTable costs microseconds, no request."""
        return self._readable("get").get(keys, columns)

    def search(
        self,
        column: str,
        query: str | Vector,
        k: int = 10,
        filter: Filter | None = None,
        columns: Sequence[str] | None = None,
        *,
        metric: str | None = None,
        nprobes: int = PROBES,
        refine_factor: int = REFINE,
        exact: bool = False,
    ) -> pa.Table:
        """The `k` best rows of this shard, with all this writer has put; see `Table.search`."""
        options = SearchOptions(metric, nprobes, refine_factor, exact)
        return self._readable("search").search(column, query, k, filter, columns, options)

    @property
    def epoch(self) -> Epoch:
        """The epoch this writer owns."""
        return self._appender.epoch

    @property
    def fenced(self) -> bool:
        """True once a newer writer was met; this handle is then finished (F-13)."""
        return isinstance(self._group.failure, FencedError)

    @property
    def is_open(self) -> bool:
        """True until it is closed, fenced or stopped."""
        return not self._closing and not self._group.ending.is_over

    @property
    def site(self) -> ShardSite:
        """Where the shard is."""
        return self._appender.site

    def wal_stats(self) -> WalStats:
        """The log side: positions, entries, group sizes, latencies. No request."""
        return wal_stats(self._counters, self._appender, queued_bytes=self._group.queued_bytes)

    def memtable_stats(self) -> MemtableStats:
        """The MemTable side; `WalOnlyMode` on a WAL-only writer. No request."""
        memtables = self._require_memtables("memtable_stats")
        with self._group.lock:
            return memtable_stats(self._counters, memtables)

    def stats(self) -> WriterStats:
        """Everything counted since opening. No request."""
        shard, held = str(self.site.shard), self._group.room.held_bytes
        memtable = self.memtable_stats() if self._memtables else None
        return writer_stats(shard, self._counters, self.wal_stats(), memtable, held_bytes=held)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except WeirError as failure:
            if error is None or failure.unacknowledged:
                raise
            error.add_note(f"closing the writer also failed: {failure}")

    def __repr__(self) -> str:
        return f"ShardWriter({self._appender.site}, epoch={self.epoch})"

    def _enqueue(
        self,
        batches: list[pa.RecordBatch],
        timeout: float | None = None,
        tokens: Sequence[tuple[str, int]] = (),
        *,
        claimed: bool = False,
    ) -> Ack:
        self._check_open(batches)
        rows = sum(batch.num_rows for batch in batches)
        if not rows:
            return Ack(None, (), rows=0, nbytes=0)
        more = Fill(rows, len(batches), self.intake.fit(batches, self.site.env.limits))
        ack = Ack(self._group, batches, rows=rows, nbytes=more.nbytes, tokens=tokens)
        ack.claimed = claimed
        self._group.enqueue(ack, lambda ack: self._book(ack, more), timeout)
        if self._memtables is not None:
            self._memtables.indexes.rows_added(self._memtables.active.level, rows)
        return ack

    def _put(
        self, batches: list[pa.RecordBatch], *, wait: bool | None, timeout: float | None
    ) -> Ack:
        wait = self.config.durable_write if wait is None else wait
        ack = self._enqueue(batches, timeout, claimed=wait)
        if wait:
            ack.wait(timeout)
        elif not ack.done:
            self._group.nudge()
        return ack

    def _book(self, ack: Ack, more: Fill) -> Generation:
        """Put accepted rows where reads find them and name their generation. Queue lock held."""
        self._counters.puts += 1
        self._counters.rows_put += ack.rows
        if self._memtables is None:
            assert self._tags is not None, "M-2: a WAL-only writer tags by size"
            return self._tags.tag(more)
        if not self._bounds.has_room(self._memtables.active.filled, more):
            self._memtables.freeze()  # before: a generation never outgrows its bounds (F-15)
        active = self._memtables.active
        active.append(ack.batches, more)
        active.waiting += 1
        if active.is_due(self._bounds):
            self._memtables.freeze()
        return active.generation

    def _append(self, entry: Entry) -> Position:
        position = self._appender.write(entry)
        interval, now = self.config.stats_log_interval_s, self.site.env.clock.boottime()
        if interval and now - self._told_at >= interval:
            self._told_at = now
            log.info("writer.stats shard=%s %s", self.site.shard, self.stats())
        return position

    def _on_durable(self, group: list[Ack], position: Position) -> None:
        generation = group[0].generation
        assert generation is not None, "M-4: an entry without a generation"
        if self._memtables is None:
            self._group.room.release(sum(ack.nbytes for ack in group))
            return
        tokens = [token for ack in group for token in ack.tokens]
        self._memtables.landed(generation, position, puts=len(group), tokens=tokens)

    def _start_memtables(self, progress: Progress | None, indexes: WriterIndexes) -> None:
        appender, schema = self._appender, self._schema
        keyed = bool(schema.primary_key)
        replay = Replay(appender.site, appender.manifests, appender.claim, progress, keyed=keyed)
        appender.tagging.begin_at(replay.begins())
        memtables = MemTables(schema, self._lake, appender, self._counters, indexes)
        memtables.attach(self._group)
        self._memtables = memtables
        self._reads = OwnReads(memtables, self._group, appender, schema, self._lake, self._belongs)
        self.once.replayed(memtables.rebuild(replay, self.intake.stored))
        active = memtables.active
        appender.tagging.go_on(LogEnds(active.generation, active.filled, appender.claim.fence))
        if not replay.keeps_the_rule:
            memtables.publish_replayed()

    def _stop(self) -> None:
        self._group.stop()
        if self._memtables is not None:
            self._memtables.stop()
        self._closed = True

    def _readable(self, call: str) -> OwnReads:
        self._require_memtables(call)
        self._check_open()
        assert self._reads is not None, "M-1: a writer with MemTables reads them"
        return self._reads

    def _require_memtables(self, call: str) -> MemTables:
        if self._memtables is None:
            raise WalOnlyMode(
                f"{self._appender.site}: {call}() needs a MemTable, and this writer was opened "
                "with enable_memtable=False; read the table, or open with enable_memtable=True"
            )
        return self._memtables

    def _check_not_shut(self) -> None:
        if self._closing or self._group.ending.home.is_left:
            raise self._group.refused()

    def _check_open(self, batches: Sequence[pa.RecordBatch] = ()) -> None:
        if not self.is_open:
            raise self._group.refused(batches)
