"""`ShardWriter`: the high-level way to write to a shard. Each promise lives in its own module.

Opening is a write: probe, claim, fence, validate, replay, in that order (F-1 to F-8). Puts go
through one queue (commit.py) to the log; in MemTable mode rows also go to the MemTable and
from there to SSTables (flush.py). A WAL-only writer has only the log (M-2). The state that all of
them share, and the one lock over it, is `WriterState` (state.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self, cast, overload
from uuid import UUID

import pyarrow as pa

from weir.config import WriterConfig
from weir.durations import check_timeout
from weir.errors import FencedError, InvalidInput, WalOnlyMode, WeirError
from weir.format.manifest import ShardManifest
from weir.format.schema import TableSchema
from weir.lake.api import Lake
from weir.lake.params import bind_condition, bind_filter, bind_update, bind_when
from weir.log.appender import WalAppender
from weir.log.fence import claim_shard
from weir.log.intake import Intake, Owns
from weir.log.manifests import Manifests, State
from weir.log.ownership import Claim
from weir.log.site import ShardSite
from weir.log.tags import Bounds, begin_at, follow_log
from weir.search.memory import WriterIndexes
from weir.search.options import SearchOptions
from weir.search.words import Words
from weir.shard.ack import Ack, Taken, run_callbacks
from weir.shard.at_exit import watch
from weir.shard.commit import Committer
from weir.shard.conditional import ConditionalWrites
from weir.shard.ending import Ending, with_rows
from weir.shard.flush import Flusher
from weir.shard.lookups import Lookups
from weir.shard.memtable import MemTables
from weir.shard.once import ExactlyOnce, Noted
from weir.shard.own_reads import OwnReads
from weir.shard.puts import Puts
from weir.shard.replay import Replay
from weir.shard.request import WriteCounts
from weir.shard.request_builder import Missing, OnConflict, WriteSpec
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
from weir.types import Columns, Epoch, Filter, Keys, Params, Position, Rows, Vector

Belongs = Owns


class ShardWriter:
    """Writes to one shard it owns. Safe to share between threads, whose puts share entries.

    `update`, `insert`, `put` with `when`, `delete_where` and `update_where` look before they write
    (conditional.py). Each sees every row of its keys that this writer accepted before it, and none
    that comes after; concurrent calls on one key behave as if one came after the other. Keyed
    tables and MemTable mode only: else `InvalidInput` or `WalOnlyMode`.
    """

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
        self._state = state = WriterState(env, config, appender.site, memtables, crowd)
        watch(state)
        if memtables is None:
            state.tags = appender.tags.ahead()
        else:
            self._flusher = Flusher(state, memtables, appender, schema, lake, indexes)
            self._reads = OwnReads(state, memtables, appender, schema, lake, indexes, belongs)
        self._committer = Committer(state, self.intake, appender, self._flusher)
        self.puts = Puts(state, self.intake, self._committer)
        if memtables is not None and self._reads is not None and self._keyed:
            lookups = Lookups(state, memtables, self.intake, self._reads)
            self._conditional = ConditionalWrites(
                state, self.intake, self._reads, lookups, self._committer
            )
        self.once = ExactlyOnce(appender, state.ending.refused)

    @classmethod
    def open(
        cls,
        site: ShardSite,
        *,
        schema: TableSchema,
        lake: Lake,
        config: WriterConfig | None = None,
        belongs: Belongs | None = None,
        crowd: WaiterGroup | None = None,
        known: State | None = None,
        only_left: bool = False,
    ) -> ShardWriter:
        """Claim the shard, fence every older writer, replay what they left, and serve.

        Raises `SealedShard`, `FencedError` (a newer writer came while this one opened),
        `MissingEntry` or `CorruptEntry` (the log is damaged), `UnknownOutcome`, `StoreError`.
        Seventeen requests in nine round trips, plus one get for each entry replayed (concurrent).
        `crowd` is shared by writers that the same threads put to. `known` is what the caller has
        just read. `only_left`: see `claim_shard`.
        """
        config = config or WriterConfig()  # checked before the claim: misfits leave no trace (M-2)
        indexes = WriterIndexes.plan(lake, schema, config, env=site.env, name=site.label)
        manifests = Manifests(site, None if known is None else known[0])
        claim = claim_shard(
            site,
            manifests,
            fence_ttl=config.fence_ttl,
            wal_only=not config.enable_memtable,
            known=known,
            only_left=only_left,
        )
        began = site.env.clock.boottime()
        keyed, ends = bool(schema.primary_key), None
        replay = Replay(site, manifests, claim, keyed=keyed)
        followed = None if config.enable_memtable else follow_log(manifests, claim, keyed=keyed)
        if config.enable_memtable:
            claim = begin_at(manifests, claim, replay.begins())  # guard: F-14 test_tags
        elif followed is not None:
            claim, ends = followed
        else:
            # F-14: a MemTable writer flushes what others left before later entries are tagged.
            flushing = replace(config, enable_memtable=True)
            with cls.open(site, schema=schema, lake=lake, config=flushing) as first:
                first.flush()
            return cls.open(
                site,
                schema=schema,
                lake=lake,
                config=config,
                belongs=belongs,
                crowd=crowd,
                only_left=only_left,
            )
        writer = cls(
            WalAppender(
                site, schema, claim, manifests=manifests, bounds=Bounds.of(config), ends=ends
            ),
            schema=schema,
            lake=lake,
            config=config,
            indexes=indexes,
            belongs=belongs,
            crowd=crowd,
        )
        if config.enable_memtable:
            writer._replay(replay)
        writer._state.counters.replay_seconds = site.env.clock.boottime() - began
        return writer

    @overload
    def put(self, data: Rows, *, wait: bool | None = None, timeout: float | None = None) -> Ack: ...

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
    ) -> Ack | WriteCounts:
        """Upsert the rows (append, on a table without a key); returns when durable, or buffered.

        `data` is anything Arrow-shaped, a DataFrame, or a list of dicts. With `durable_write` it
        returns when the rows survive the loss of this process; with `wait=False`, or
        `durable_write=False`, it returns at once with an `Ack`. Rows are visible to this writer's
        own reads when it returns. Raises `SchemaMismatch` or `InvalidInput` with nothing
        written; `Backpressure` when `timeout` passes before there is room; `FencedError`,
        `UnknownOutcome` or `WriterClosed` with the rows not acknowledged. Costs a share of one put
        request to the store; a put of no rows costs none.

        With `when`, SQL over `current` (null when the key is new) and `incoming` rows, only rows
        for which it is true are put, the others are skipped; returns counts. See `update`. It may
        name `params`, or be a pyarrow expression, as in `delete_where`.
        """
        if when is not None or params is not None:
            return self._decide(data, WriteSpec("put", bind_when(when, params)), timeout)
        wait = self.config.durable_write if wait is None else wait
        return self.puts.put(self.puts.read(data, wait=wait), wait=wait, timeout=timeout)

    def delete(self, keys: Keys, *, wait: bool | None = None, timeout: float | None = None) -> Ack:
        """Delete the rows with those keys (values, tuples, dicts or an Arrow table); otherwise like
        a put."""
        wait = self.config.durable_write if wait is None else wait
        return self.puts.put_shaped(self.intake.tombstones(keys), wait=wait, timeout=timeout)

    def put_once(self, data: Rows, *, app: str, version: int, timeout: float | None = None) -> bool:
        """Put `data` as one entry unless batch `version` of `app`, or a later one, is in.

        Returns False when it was, or there is no row. Rows and token become durable together, in
        one conditional write.
        """
        return self.put_once_shaped(
            self.intake.rows(data), app=app, version=version, timeout=timeout, taken=[]
        )

    def put_once_shaped(
        self,
        batches: list[pa.RecordBatch],
        *,
        app: str,
        version: int,
        timeout: float | None,
        taken: Taken,
    ) -> bool:
        """`put_once` of rows that an `Intake` of the same schema has shaped."""
        self._check_open(batches)

        def accept(left: list[pa.RecordBatch], seconds: float | None, noted: Noted) -> Ack:
            put = self.puts.put_shaped
            return put(left, wait=False, timeout=seconds, taken=taken, noted=noted)

        checked = check_timeout(timeout)
        is_new = self.once.put(batches, app=app, version=version, timeout=checked, enqueue=accept)
        return is_new and bool(batches)

    def last_version(self, app: str) -> int:
        """The highest batch number of `app` that is in this shard, -1 before the first.

        Of a shard that a reshard made: the highest in any shard before it, too, since `put_once`
        skips the rows that such a shard took. Other rows of that batch may still be missing: put it
        again before the next one. Two requests for each of those shards.
        """
        return self.once.last_version(app)

    async def aput(self, data: Rows) -> Ack:
        """`put` for asyncio: returns when durable, without blocking the loop."""
        return await self.puts.aput(data)

    def update(
        self, rows: Rows, *, missing: Missing = "error", timeout: float | None = None
    ) -> WriteCounts:
        """Set some columns of rows: `rows` hold the key and those columns, the others keep theirs.

        A column given as null becomes null; one left out of a row stays. `missing` says what
        becomes of keys that do not exist: "error" (`KeyConflict`, and nothing is written), "skip",
        or "insert" (columns left out are null). Durable on return, with `durable_write`. Raises
        what `put` raises, with the rows as they were given. One lookup serves all concurrent calls:
        no request for keys in memory, else what `get` costs; then the cost of a put.
        """
        return self._decide(rows, WriteSpec("update", missing=missing), timeout)

    def _decide(self, rows: Rows, asked: WriteSpec, timeout: float | None) -> WriteCounts:
        shaper = self._conditional_writes(asked.verb).requests.shaper
        return self.decide(shaper.shape(rows, asked), asked, timeout, [])

    def decide(
        self,
        batches: list[pa.RecordBatch],
        asked: WriteSpec,
        timeout: float | None,
        taken: Taken,
    ) -> WriteCounts:
        """Do what `asked` says with rows that are shaped for it: the one way of `update`, `insert`
        and `put` with `when`."""
        looking = self._conditional_writes(asked.verb)
        self._require_all_seen(batches)
        request = looking.requests.of(batches, asked)
        wait = self.config.durable_write
        return looking.run(request, wait=wait, timeout=timeout, taken=taken)

    def insert(
        self, rows: Rows, *, on_conflict: OnConflict = "error", timeout: float | None = None
    ) -> WriteCounts:
        """Put rows whose keys do not exist.

        `on_conflict`: "error" writes nothing and raises `KeyConflict`, which names the keys; "skip"
        leaves rows that exist alone. Called again after an unknown outcome, "skip" tells what was
        written. Otherwise like `update`.
        """
        return self._decide(rows, WriteSpec("insert", on_conflict=on_conflict), timeout)

    def delete_where(
        self, filter: Filter, *, params: Params | None = None, timeout: float | None = None
    ) -> WriteCounts:
        """Delete the rows that pass a filter: SQL as in `scan`, or a pyarrow expression.

        `params` are values for names in the SQL: `"user = $u"` takes `{"u": user}`. They become
        literals of their types, never SQL; one that is missing or not used is refused.
        Keys are found while a scan runs, in bounded memory; each row is decided again when it is
        deleted, so one that changed and no longer passes is left alone (counted as skipped). Atomic
        for each row, not for all: rows that pass later are not found, and an error leaves those
        before it deleted.
        """
        return self._counted("delete_where", bind_condition(filter, params), None, timeout)

    def update_where(
        self,
        filter: Filter,
        assignments: Mapping[str, str],
        *,
        params: Params | None = None,
        timeout: float | None = None,
    ) -> WriteCounts:
        """Set columns of the rows that pass a filter: `{"price": "price * 1.1"}`, SQL over the row.

        A value that the column's type cannot hold exactly is refused: cast it. `params` are for the
        filter and the assignments together. Otherwise like `delete_where`.
        """
        bound, changes = bind_update(filter, assignments, params)
        return self._counted("update_where", bound, changes, timeout)

    def where(
        self,
        call: str,
        filter: Filter,
        assignments: Mapping[str, str] | None,
        timeout: float | None,
        written: Callable[[WriteCounts], object],
    ) -> None:
        """`update_where`, or `delete_where` without assignments. `written` is called with the
        counts of each portion of rows, so they are known when a later one fails."""
        looking = self._conditional_writes(call)
        self._require_all_seen()
        self._check_open()  # it reads before it has rows to hand back
        total = WriteCounts()
        for request in looking.requests.where(filter, assignments):
            counts = looking.run(request, wait=self.config.durable_write, timeout=timeout)
            written(counts)
            total += counts
        if total == WriteCounts() and self.config.durable_write:
            looking.confirm(timeout)  # guard: O-4

    def _counted(
        self,
        call: str,
        filter: Filter,
        assignments: Mapping[str, str] | None,
        timeout: float | None,
    ) -> WriteCounts:
        counts: list[WriteCounts] = []
        self.where(call, filter, assignments, timeout, counts.append)
        return sum(counts, WriteCounts())

    def decide_once(
        self, rows: Rows, asked: WriteSpec, *, app: str, version: int
    ) -> WriteCounts | None:
        """Do what `asked` says with those rows; None if batch `version` of `app`, or a later one,
        is in. For batches that may be sent again: the decision is made once."""
        looking = self._conditional_writes(asked.verb)
        requests = looking.requests
        batches = requests.shaper.shape(rows, asked)
        self._require_all_seen(batches)
        self._check_open(batches)
        return looking.run_once(
            self.once,
            batches,
            lambda left: requests.of(left, asked),
            app=app,
            version=version,
            timeout=None,
        )

    def flush_wal(self, timeout: float | None = None) -> Position:
        """Wait until everything put so far is durable; return the last durable position."""
        self._check_not_shut()
        self._committer.drain(timeout)
        return Position(self._appender.next_position - 1)

    def flush(self) -> ShardManifest:
        """Freeze the MemTable and publish it as an SSTable: no row is then in the log alone.

        Raises `WalOnlyMode` on a WAL-only writer. One SSTable and one manifest commit, or just a
        manifest commit when there was nothing but fences to cover, or nothing at all.
        """
        flusher = self._require_memtables("flush")
        self._check_not_shut()
        self._committer.book()
        return flusher.flush_all(self.flush_wal)

    def cut(self) -> ShardManifest:
        """`flush` for a checkpoint, also while another thread closes the writer.

        On a WAL-only writer everything put so far is durable before it raises.
        """
        # K-3: a checkpoint that found no other way would claim the shard, and fence that close.
        if self._closed or self._state.ending.home.is_forked:
            raise self._state.ending.refused()
        # guard: K-9 simulator:operators
        self._committer.drain()
        return self._require_memtables("flush").flush_all(self._committer.drain)

    def close(self) -> None:
        """Make every accepted row durable, flush (MemTable mode), close the gap.

        Raises the error that prevented it, with all rows left that no other call reported, each in
        its state; nothing if none are left and the writer was fenced, or a caller was told
        that it ended. Closing twice is harmless, and so is closing the copy of a handle in a forked
        child. After an interrupt close again: rows are still in flight, and the second close makes
        them durable, or reports what is left.
        """
        state = self._state
        if state.ending.home.is_forked:
            return
        if self._closed:
            state.ending.require_all_reported()  # guard: F-16
            return
        self._closing = True
        was_told = state.ending.is_told
        try:
            with state.lock:  # rows accepted so far are the ones made durable
                state.closing = True  # guard: M-8 test_closing_is_exact
                refused = state.refuse_waiting()
            run_callbacks(refused)
            self._committer.drain()
            if self._flusher is not None:
                self._flusher.flush_all(lambda: None)
            self.once.close()
            if self._flusher is None or not self._flusher.has_left:
                self._appender.leave()  # guard: L-6 test_compaction_logs
        except Exception as error:
            try:
                self._stop()
            except BaseException:
                state.ending.unreport(error)  # guard: F-16 test_interrupted_close
                raise
            if state.ending.is_owed_nothing(error, was_told=was_told):
                return
            raise
        self._stop()

    def see_through(self, timeout: float | None) -> WeirError | None:
        """Return when nothing accepted so far is on its way, or `timeout` seconds passed, and the
        error if the writer ended; its rows are still to be reported."""
        with contextlib.suppress(TimeoutError):
            self._committer.settle(timeout)
        return self._state.failure

    def hand_over(self) -> None:
        """Give up a shard that the routing has left: accept nothing more, and end. The puts that
        no caller waits for are left in `ending`, for the heirs."""
        state = self._state
        with state.lock:
            state.closing = True
            refused = state.refuse_waiting()
        run_callbacks(refused)
        self.see_through(None)
        if state.failure is None:
            with contextlib.suppress(WeirError):  # everything is durable
                self.close()
        else:
            self._closing = True
            self._stop()

    def scan(
        self,
        columns: Columns | None = None,
        filter: Filter | None = None,
        *,
        params: Params | None = None,
    ) -> pa.RecordBatchReader:
        """This shard's rows, the newest of each key, with everything this writer has put.

        A file collected while they are read raises `SnapshotExpired` (gc keeps it for `min_age`).
        """
        return self._readable("scan").scan(columns, bind_filter(filter, params))

    def get(self, keys: Keys, columns: Sequence[str] | None = None) -> pa.Table:
        """The newest rows of those keys. One listing of the base, which has the columns and the
        expiry rule of now; rows in the MemTable cost microseconds more."""
        return self._readable("get").get(keys, columns)

    def search(
        self,
        column: str,
        query: Words | Sequence[Words] | Vector | Sequence[Vector],
        k: int = 10,
        filter: Filter | None = None,
        columns: Sequence[str] | None = None,
        *,
        params: Params | None = None,
        metric: str | None = None,
        nprobes: int | None = None,
        refine_factor: int | None = None,
        exact: bool = False,
        offset: int = 0,
        distance_range: tuple[float | None, float | None] | None = None,
    ) -> pa.Table:
        """The `k` best rows of this shard, with all this writer has put; see `Table.search`."""
        passing = bind_filter(filter, params)
        options = SearchOptions(
            k, passing, columns, metric, nprobes, refine_factor, exact, offset, distance_range
        )
        return self._readable("search").search(column, query, options)

    @property
    def epoch(self) -> Epoch:
        """The epoch this writer owns."""
        return self._appender.epoch

    @property
    def shards(self) -> tuple[UUID, ...]:
        """The one shard that it writes to, as of every kind of writer."""
        return (self.site.shard,)

    @property
    def fenced(self) -> bool:
        """True once this writer has met a newer one; the handle is then finished."""
        return isinstance(self._state.failure, FencedError)

    @property
    def ending(self) -> Ending:
        """Why it ended, and the rows that it left."""
        return self._state.ending

    @property
    def has_rows_left(self) -> bool:
        """True when it ended with rows that are not written, or perhaps not; each is reported once,
        to the caller that waits for it or by `close`."""
        return self._state.ending.has_rows_left

    @property
    def is_open(self) -> bool:
        """True until it is closed, fenced or stopped."""
        return not self._closing and not self._state.ending.is_over

    @property
    def has_ended(self) -> bool:
        """True once it is closed, fenced or stopped; while `close` runs it still has the shard."""
        return self._closed or self._state.ending.is_over

    @property
    def claim(self) -> Claim:
        """What it found when it became the owner of the shard."""
        return self._appender.claim

    @property
    def site(self) -> ShardSite:
        """Where the shard is."""
        return self._appender.site

    @property
    def gap(self) -> int:
        """Entries that are in no SSTable as far as this writer knows: what the next one would
        replay. No request."""
        memtables = self._state.memtables
        manifest = self._appender.claim.manifest if memtables is None else memtables.manifest
        return self._appender.next_position - 1 - manifest.replay_after

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
        flusher, tags = self._require_memtables("replay"), self._appender.tags
        self.once.replayed(flusher.rebuild(replay, self.intake))
        active = flusher.active
        tags.landed(active.generation, active.filled, self._appender.claim.fence)
        if not replay.keeps_the_rule:  # guard: F-14 test_tags
            flusher.publish_replayed()
        with self._state.lock:
            flusher.attend()

    def _conditional_writes(self, call: str) -> ConditionalWrites:
        if self._conditional is None and not self.intake.schema.primary_key:
            raise InvalidInput(f"{self.site}: {call} needs a primary key; the table has none")
        self._require_memtables(call)
        return cast("ConditionalWrites", self._conditional)

    def _require_all_seen(self, batches: Sequence[pa.RecordBatch] = ()) -> None:
        """Raise `CommitConflict`, with those rows, while rows of this shard's keys are where its
        writer does not look: a reshard left them, and no compaction has folded them."""
        before_looking = self.before_looking  # another thread may be done with it at any moment
        if before_looking is not None and self.is_open:  # guard: C-11 test_looking_table
            try:
                before_looking()
            except WeirError as error:
                raise with_rows(error, batches, sent=False) from error.__cause__
            self.before_looking = None

    def _stop(self) -> None:
        with self._state.lock:
            self._state.stop()
        self._committer.join()
        if self._flusher is not None:
            self._flusher.join()
        if self._state.memtables is not None:
            self._state.memtables.warm = ()  # nothing is looked up any more
        self._closed = True

    def _readable(self, call: str) -> OwnReads:
        self._require_memtables(call)
        self._check_open()
        self._require_all_seen()
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
