"""The flusher: frozen MemTables to SSTables, in order, in the background; one manifest commit each.

Keeps
  M-4  the SSTable is complete before a single manifest version names it and moves R
  W-2  every manifest written here carries the largest R the log allows
  W-3  closing the gap needs neither a row nor an SSTable
  W-4  no rows are published before they are durable in the log
  W-5  generations are published in order
  P-2  tokens of the rows are recorded before R passes them
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from weir.env import Thread
from weir.errors import CommitConflict, FencedError, StoreError, WeirError
from weir.format import paths
from weir.format.manifest import ShardManifest, SsTable
from weir.format.schema import TableSchema
from weir.format.wal_entry import Fill, WalEntry
from weir.lake.api import Lake
from weir.log.appender import WalAppender
from weir.log.rules import Evidence
from weir.search.memory import WriterIndexes
from weir.shard.ending import internal
from weir.shard.memtable import MemTable, MemTables
from weir.shard.outages import retry_outage
from weir.shard.state import WriterState, fail
from weir.shard.tokens import Tokens
from weir.types import Generation, Position, Version

logger = logging.getLogger("weir.shard")


@dataclass(eq=False)
class _Flush:
    """One MemTable being flushed, kept until it is published: if the thread is interrupted, the
    next one continues it (F-16)."""

    table: MemTable
    entry: SsTable | None = None
    """Its SSTable, once that is written."""
    tried: list[Version] = field(default_factory=list)
    """Manifest versions that may name it already."""


class Flusher:
    """Publishes the MemTables of one writer; its thread starts when the first is frozen."""

    def __init__(
        self,
        state: WriterState,
        memtables: MemTables,
        appender: WalAppender,
        schema: TableSchema,
        lake: Lake,
        indexes: WriterIndexes,
    ) -> None:
        self._state = state
        self._memtables = memtables
        self._appender = appender
        self._schema = schema
        self._lake = lake
        self.indexes = indexes
        self._env = state.env
        self._counters = state.counters
        self._tokens = Tokens(appender.site)
        self._publishing = self._env.threads.lock()
        """Held from a commit until readers see it. Otherwise the commit that is booked later could
        set the manifest back and hide the other's rows (M-1), or mistake it for a fold (L-6)."""
        self._thread: Thread | None = None
        self._helping = self._env.threads.lock()
        """Held by a caller that flushes in place of the thread."""
        self._under_way: _Flush | None = None

    @property
    def active(self) -> MemTable:
        """The MemTable that receives rows."""
        return self._memtables.active

    # -- called with the lock held ---------------------------------------------------------------

    def wake(self) -> None:
        """A MemTable was frozen."""
        if self._thread is None and not self._state.stopping:
            name = f"weir-flush-{self._appender.site.shard}"
            self._thread = self._state.start(self._run, name)
        self._state.flush_wake.notify_all()

    def make_room(self) -> None:
        """Puts wait for room: flush the active MemTable although it is not full, because nothing
        else would (M-6)."""
        if self._memtables.active.rows and not self._memtables.frozen:
            self._memtables.freeze()
            self.wake()

    # -- called without it -----------------------------------------------------------------------

    def flush_all(self, make_durable: Callable[[], object]) -> ShardManifest:
        """Publish every row put so far and close the gap; `make_durable` drains the log first.

        Returns a manifest that holds exactly those rows and none put later (K-3).
        """
        state, memtables = self._state, self._memtables
        with state.lock:
            if memtables.active.rows:
                memtables.freeze()
                self.wake()
            following = memtables.active.generation
        make_durable()
        self.help()
        with state.lock:
            while memtables.frozen and memtables.frozen[0].generation < following:
                if state.failure is not None:
                    break
                state.flush_wake.wait()
            if state.failure is not None:
                raise state.ending.error()
        self.close_gap()
        with state.lock:
            return memtables.cut(following)

    @property
    def must_flush_inline(self) -> bool:
        """True when there is something to flush and no thread can be started (F-16). Lock held."""
        return self._has_no_thread and bool(self._memtables.frozen)

    @property
    def _has_no_thread(self) -> bool:
        # No thread yet is not enough: a put may start it while a caller flushes in its place.
        return self._state.has_no_threads and self._thread is None

    def help(self) -> None:
        """Flush what is due in this thread, if no other thread can do it (F-16)."""
        if self._has_no_thread:
            with self._helping:
                while self._state.is_flush_due:
                    self._flush_first(is_interruptible=True)

    def close_gap(self) -> None:
        """Move R up to all that is covered; free when it is there already (W-2, W-3)."""
        with self._publishing:
            with self._state.lock:
                behind = self._memtables.covered() > self._memtables.manifest.replay_after
            if behind:
                self._publish(None)

    def join(self) -> None:
        """Return when the threads of a stopped writer have ended."""
        if self._thread is not None:
            self._thread.join()
        self.indexes.stop()

    def rebuild(
        self,
        entries: Iterator[tuple[Generation, WalEntry]],
        shape: Callable[[pa.RecordBatch], pa.RecordBatch],
    ) -> dict[str, int]:
        """Load the replayed entries before the writer serves; return the tokens they hold.

        A generation that replay finds closed is published with its own R before the next begins
        (F-8): a crash in between loses nothing, and at most one generation is in memory.
        """
        memtables, tokens = self._memtables, dict[str, int]()
        for generation, entry in entries:
            memtables.durable = Position(entry.position - 1)
            while memtables.active.generation < generation:
                self._publish_active()
            batches = [shape(batch) for batch in entry.batches]
            nbytes = sum(batch.nbytes for batch in batches)
            memtables.active.append(batches, Fill(entry.num_rows, len(batches), nbytes))
            memtables.active.landed(entry.position, entry.tokens)
            self._state.held_bytes += nbytes
            for app, version in entry.tokens:
                tokens[app] = max(version, tokens.get(app, version))
            self._counters.replayed_entries += 1
            self._counters.replayed_rows += entry.num_rows
        memtables.durable = self._appender.claim.fence
        return tokens

    def publish_replayed(self) -> None:
        """Publish all replayed rows before the writer serves (F-14).

        Done here and not by the thread: a caller whose open fails has no writer to close.
        """
        if self._memtables.active.rows:
            self._publish_active()
        self.close_gap()

    def _publish_active(self) -> None:
        assert self._memtables.active.rows, "W-5: an empty generation cannot be published"
        self._memtables.freeze()
        self._flush(self._memtables.frozen[0])

    def _run(self) -> None:
        state = self._state
        while True:
            with state.lock:
                while not state.is_flush_due:
                    if state.stopping or state.failure is not None:
                        return
                    state.flush_wake.wait()
            self._flush_first()

    def _flush_first(self, *, is_interruptible: bool = False) -> None:
        try:
            self._flush(self._memtables.frozen[0])
        except BaseException as error:
            if is_interruptible and not isinstance(error, Exception):
                raise  # the next helper continues it
            # No other thread sees the error, whatever it is, and waiters would wait for ever.
            fail(self._state, error if isinstance(error, WeirError) else internal(error))
            if not isinstance(error, Exception):
                raise

    def _flush(self, table: MemTable) -> None:
        began = self._env.clock.boottime()
        if self._under_way is None or self._under_way.table is not table:
            self._under_way = _Flush(table)
        flush = self._under_way

        def failed(attempt: int, error: StoreError) -> None:
            self._counters.flush_failures += 1
            logger.warning(
                "flush.failed shard=%s generation=%d attempt=%d reason=%s",
                self._appender.site.shard,
                table.generation,
                attempt,
                error,
            )

        def act() -> None:
            if flush.entry is None:
                flush.entry = self._write(table)
            for app, version in table.tokens.items():
                self._tokens.record(app, version)
            with self._publishing:
                self._publish(table, flush.entry, flush.tried)

        retry_outage(self._env, act, delay=0.1, failed=failed)
        self._under_way = None
        took = self._env.clock.boottime() - began
        self._counters.flushes += 1
        self._counters.flushed_rows += table.rows
        self._counters.flush_seconds += took
        logger.info(
            "flush.published shard=%s generation=%d rows=%d seconds=%.3f",
            self._appender.site.shard,
            table.generation,
            table.rows,
            took,
        )

    def _write(self, table: MemTable) -> SsTable:
        tag = f"{self._env.random.getrandbits(32):08x}"
        name = paths.sstable_name(table.generation, tag)
        info = self._lake.write_sstable(
            self._appender.site.shard,
            name,
            table.batches,
            self._schema,
            after_write=self.indexes.build,
        )
        return info.listed_as(table.generation, name)

    def _publish(
        self,
        table: MemTable | None,
        entry: SsTable | None = None,
        tried: list[Version] | None = None,
    ) -> None:
        """Commit one manifest: the SSTable if any, and the R it allows; `tried`: see `_Flush`.

        `_publishing` is held.
        """
        tried = [] if tried is None else tried
        began = self._appender.ownership.clock_reading()

        def change(current: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
            if entry is not None and self._appender.manifests.published(entry, current, tried):
                return None  # an earlier attempt was applied, and failed only after that
            tried.append(Version(current.version + 1))
            with self._state.lock:
                covered = self._memtables.covered(published=table)
                first = self._memtables.first_position()
            self._check_not_folded(current, first)
            reached = Position(max(covered, current.replay_after))
            self._appender.shut(reached)
            following = replace(
                current,
                replay_after=reached,
                last_seen=Position(max(current.last_seen, reached)),
            )
            if entry is not None:
                following = replace(
                    following,
                    sstables=(*current.sstables, entry),
                    current_generation=Generation(entry.generation + 1),
                )
            return following, Evidence(covered=covered)

        appender = self._appender
        try:
            committed = appender.manifests.update(change, epoch=appender.epoch)
        except FencedError as fenced:
            raise fenced.at(appender.next_position) from None
        self._appender.ownership.proven(began)
        with self._state.lock:
            self._state.published(table, committed)
        if table is not None:
            self.indexes.published(table.level)

    def _check_not_folded(self, current: ShardManifest, first: Position | None) -> None:
        """Raise when a compaction folded entries whose rows, from `first` on, are still in memory
        (L-6).

        Publishing them again would duplicate the rows of a table without a key.
        """
        if first is not None and current.replay_after >= first:
            raise CommitConflict(
                f"{self._appender.site}: a compaction folded the log up to position"
                f" {current.replay_after} while this writer held the rows from position {first} on"
                " in memory. Every row is durable. Open a new writer, and use"
                " compact(fold_wal=True) only while no writer with a MemTable is open"
            )
