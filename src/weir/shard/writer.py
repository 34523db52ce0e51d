"""`ShardWriter`: the high-level way to write to a shard. Each promise lives in its own module.

Opening is a write: probe, claim, fence, validate, replay, in that order (F-1 to F-8). Puts go
through the group commit (group.py) to the log; in MemTable mode rows also go to the MemTable and
from there to SSTables (flush.py). A WAL-only writer has only the log (M-2). The state that all of
them share, and the one lock over it, is `WriterState` (state.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self, cast, overload

import pyarrow as pa

from weir.config import WriterConfig
from weir.errors import FencedError, InvalidInput, WalOnlyMode, WeirError
from weir.format.manifest import ShardManifest
from weir.format.schema import TableSchema
from weir.lake.api import Lake
from weir.log.appender import WalAppender
from weir.log.fence import claim_shard
from weir.log.intake import Intake
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.log.tags import Bounds, LogEnds
from weir.search.memory import WriterIndexes
from weir.search.options import SearchOptions
from weir.search.words import Words
from weir.shard.accept import Acceptor
from weir.shard.ack import Ack
from weir.shard.at_exit import watch
from weir.shard.conditional import ConditionalWrites
from weir.shard.conditional_verbs import ConditionalVerbs
from weir.shard.flush import Flusher
from weir.shard.group import GroupCommit
from weir.shard.memtable import MemTables
from weir.shard.once import ExactlyOnce
from weir.shard.own_reads import OwnReads
from weir.shard.puts import Puts
from weir.shard.replay import Progress, Replay
from weir.shard.request import WriteCounts
from weir.shard.state import WriterState
from weir.shard.stats import (
    MemtableStats,
    WalStats,
    WriterStats,
    memtable_stats,
    wal_stats,
    writer_stats,
)
from weir.shard.turns import WaiterGroup
from weir.types import Columns, Epoch, Filter, Keys, Position, Rows, Vector

Belongs = Callable[[pa.RecordBatch], pa.Array]


class ShardWriter(ConditionalVerbs):
    """Writes to one shard it owns. Safe to share between threads, whose puts share entries."""

    def __init__(
        self,
        appender: WalAppender,
        *,
        schema: TableSchema,
        lake: Lake,
        config: WriterConfig,
        indexes: WriterIndexes,
        belongs: Belongs | None = None,
        crowd: WaiterGroup | None = None,
    ) -> None:
        """Use `ShardWriter.open` or `Shard.writer`, which claim and replay first."""
        self._appender = appender
        self._keyed = bool(schema.primary_key)
        self.config = config
        self.intake = Intake(schema, belongs)
        self._closing = self._closed = False  # after an interrupted close the next one finishes
        env, claim = appender.site.env, appender.claim
        self._flusher: Flusher | None = None
        self._reads: OwnReads | None = None
        self._conditional: ConditionalWrites | None = None
        self.before_looking: Callable[[], None] | None = None
        """Raises while rows of this shard's keys are where its lookups do not search (O-2)."""
        memtables = None
        if config.enable_memtable:
            bounds = Bounds.of(config)
            memtables = MemTables(schema, env, bounds, claim.manifest, claim.fence)
        self._state = state = WriterState(env, config, str(appender.site), memtables, crowd)
        watch(state)
        if memtables is not None:
            self._flusher = Flusher(state, memtables, appender, schema, lake, indexes)
            self._reads = OwnReads(state, memtables, appender, schema, lake, indexes, belongs)
        acceptor = Acceptor(state, self.intake, self._flusher)
        self._group = GroupCommit(state, acceptor, appender)
        self.puts = Puts(state, self.intake, acceptor, self._group)
        if self._reads is not None and self._keyed:
            self._conditional = ConditionalWrites(state, self.intake, self._reads, self._group)
        self.once = ExactlyOnce(appender, self.puts.accept)

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
        crowd: WaiterGroup | None = None,
    ) -> ShardWriter:
        """Claim the shard, fence every older writer, replay what they left, and serve.

        Raises `SealedShard`, `FencedError` (a newer writer came while this one opened),
        `MissingEntry` or `CorruptEntry` (the log is damaged), `UnknownOutcome`, `StoreError`.
        Seventeen requests in nine round trips, plus one get for each entry replayed (concurrent).
        `progress(done, total)` is called for each replayed entry. `crowd` is shared by writers that
        the same threads put to.
        """
        config = config or WriterConfig()
        # Before the claim: settings that do not fit the table leave no trace (M-2).
        indexes = WriterIndexes.plan(lake, schema, config, env=site.env, name=str(site.shard))
        manifests = Manifests(site)
        announces = not config.enable_memtable
        claim = claim_shard(site, manifests, fence_ttl=config.fence_ttl, announces=announces)
        appender = WalAppender(site, schema, claim, manifests=manifests, bounds=Bounds.of(config))
        began = site.env.clock.boottime()
        keyed = bool(schema.primary_key)
        replay = Replay(site, manifests, claim, progress, keyed=keyed)
        if config.enable_memtable:
            appender.tagging.begin_at(replay.begins())
        writer = cls(
            appender,
            schema=schema,
            lake=lake,
            config=config,
            indexes=indexes,
            belongs=belongs,
            crowd=crowd,
        )
        if config.enable_memtable:
            writer._replay(replay)
        elif appender.tagging.follow_log(keyed=keyed):
            writer._state.tags = appender.tagging.without_memtable()
        else:
            # F-14: a MemTable writer flushes what others left before later entries are tagged.
            flushing = replace(config, enable_memtable=True)
            cls.open(site, schema=schema, lake=lake, config=flushing, progress=progress).close()
            return cls.open(
                site, schema=schema, lake=lake, config=config, belongs=belongs, crowd=crowd
            )
        writer._state.counters.replay_seconds = site.env.clock.boottime() - began
        return writer

    @overload
    def put(self, data: Rows, *, wait: bool | None = None, timeout: float | None = None) -> Ack: ...

    @overload
    def put(self, data: Rows, *, when: str, timeout: float | None = None) -> WriteCounts: ...

    def put(
        self,
        data: Rows,
        *,
        when: str | None = None,
        wait: bool | None = None,
        timeout: float | None = None,
    ) -> Ack | WriteCounts:
        """Upsert the rows (append, on a table without a key); returns when durable, or buffered.

        `data` is anything Arrow-shaped, a DataFrame, or a list of dicts. With `durable_write` it
        returns when the rows survive the loss of this process; with `wait=False`, or
        `durable_write=False`, it returns at once with an `Ack`. Rows are visible to this writer's
        own reads when it returns (M-1). Raises `SchemaMismatch` or `InvalidInput` with nothing
        written; `Backpressure` when `timeout` passes before there is room; `FencedError`,
        `UnknownOutcome` or `WriterClosed` with the rows not acknowledged. Costs a share of one put
        request to the store; a put of no rows costs none.

        With `when`, SQL over `current` (null when the key is new) and `incoming` rows, only rows
        for which it is true are put, the others are skipped; returns counts. See `update`.
        """
        if when is not None:
            return self._put_when(data, when, timeout)
        wait = self.config.durable_write if wait is None else wait
        return self.puts.put(data, wait=wait, timeout=timeout)

    def delete(self, keys: Keys, *, wait: bool | None = None, timeout: float | None = None) -> Ack:
        """Delete the rows with those keys (values, tuples, dicts or an Arrow table); otherwise like
        a put."""
        wait = self.config.durable_write if wait is None else wait
        ack = self.puts.put_shaped(self.intake.tombstones(keys), wait=wait, timeout=timeout)
        self._state.counters.rows_deleted += ack.rows
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
        return await self.puts.aput(data)

    def flush_wal(self, timeout: float | None = None) -> Position:
        """Wait until everything put so far is durable; return the last durable position."""
        self._check_not_shut()
        self._group.drain(timeout)
        return Position(self._appender.next_position - 1)

    def flush(self) -> ShardManifest:
        """Freeze the MemTable, publish it as an SSTable, and leave no gap: afterwards R = L (W-2).

        Raises `WalOnlyMode` on a WAL-only writer. One SSTable and one manifest commit, or just a
        manifest commit when there was nothing but fences to cover, or nothing at all.
        """
        flusher = self._require_memtables("flush")
        self._check_not_shut()
        self.puts.settle()
        return flusher.flush_all(self.flush_wal)

    def close(self) -> None:
        """Make every accepted row durable, flush (MemTable mode), close the gap (M-8).

        Raises the error that prevented it, with all rows left that no other call reported, each in
        its state (F-16). Closing twice is harmless, and so is closing the copy of a handle in a
        forked child. After an interrupt close again: rows are still in flight, and the second close
        makes them durable, or reports what is left.
        """
        state = self._state
        if state.ending.home.is_forked:
            return
        if self._closed:
            state.ending.require_all_reported()
            return
        self._closing = True
        try:
            with state.lock:  # rows accepted so far are the ones made durable
                state.closing = True
                state.wake_all()
            self._group.drain()
            if self._flusher is not None:
                self._flusher.flush_all(lambda: None)
            self._appender.shut()
            if state.tags is not None and not self._keyed:
                self._appender.ownership.leave()
            self.once.close()
        except Exception:
            self._stop()
            raise
        self._stop()

    def scan(
        self, columns: Columns | None = None, filter: Filter | None = None
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
        query: Words | Sequence[Words] | Vector | Sequence[Vector],
        k: int = 10,
        filter: Filter | None = None,
        columns: Sequence[str] | None = None,
        *,
        metric: str | None = None,
        nprobes: int | None = None,
        refine_factor: int | None = None,
        exact: bool = False,
        offset: int = 0,
        distance_range: tuple[float | None, float | None] | None = None,
    ) -> pa.Table:
        """The `k` best rows of this shard, with all this writer has put; see `Table.search`."""
        options = SearchOptions(metric, nprobes, refine_factor, exact, offset, distance_range)
        return self._readable("search").search(column, query, k, filter, columns, options)

    @property
    def epoch(self) -> Epoch:
        """The epoch this writer owns."""
        return self._appender.epoch

    @property
    def fenced(self) -> bool:
        """True once this writer has met a newer one; the handle is then finished (F-13)."""
        return isinstance(self._state.failure, FencedError)

    @property
    def is_open(self) -> bool:
        """True until it is closed, fenced or stopped."""
        return not self._closing and not self._state.ending.is_over

    @property
    def site(self) -> ShardSite:
        """Where the shard is."""
        return self._appender.site

    def wal_stats(self) -> WalStats:
        """The log side: positions, entries, group sizes, latencies. No request."""
        return wal_stats(self._state, self._appender)

    def memtable_stats(self) -> MemtableStats:
        """The MemTable side; `WalOnlyMode` on a WAL-only writer. No request."""
        self._require_memtables("memtable_stats")
        stats = memtable_stats(self._state)
        assert stats is not None, "M-2: a writer with MemTables counts them"
        return stats

    def stats(self) -> WriterStats:
        """Everything counted since opening. No request."""
        return writer_stats(self._state, self._appender)

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

    def _replay(self, replay: Replay) -> None:
        """Load the rows that older writers left in the log."""
        flusher, tagging = self._require_memtables("replay"), self._appender.tagging
        self.once.replayed(flusher.rebuild(replay, self.intake.stored))
        active = flusher.active
        tagging.go_on(LogEnds(active.generation, active.filled, self._appender.claim.fence))
        if not replay.keeps_the_rule:
            flusher.publish_replayed()

    def _conditional_writes(self, call: str) -> ConditionalWrites:
        if self._conditional is not None and self.before_looking is None:
            return self._conditional  # every call but the first
        if not self.intake.schema.primary_key:
            raise InvalidInput(f"{self.site}: {call} needs a primary key; the table has none")
        self._require_memtables(call)
        if self.before_looking is not None and self.is_open:
            self.before_looking()
            self.before_looking = None
        return cast("ConditionalWrites", self._conditional)

    def _stop(self) -> None:
        with self._state.lock:
            self._state.stop()
        self._group.join()
        if self._flusher is not None:
            self._flusher.join()
        self._closed = True

    def _readable(self, call: str) -> OwnReads:
        self._require_memtables(call)
        self._check_open()
        assert self._reads is not None, "M-1: a writer with MemTables reads them"
        return self._reads

    def _require_memtables(self, call: str) -> Flusher:
        if self._flusher is None:
            raise WalOnlyMode(
                f"{self._appender.site}: {call}() needs a MemTable, and this writer was opened "
                "with enable_memtable=False; read the table, or open with enable_memtable=True"
            )
        return self._flusher

    def _check_not_shut(self) -> None:
        if self._closing or self._state.ending.home.is_forked:
            raise self._state.ending.refused()

    def _check_open(self, batches: Sequence[pa.RecordBatch] = ()) -> None:
        if not self.is_open:
            raise self._state.ending.refused(batches)
