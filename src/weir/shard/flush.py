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

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from weir.env import Thread
from weir.errors import CommitConflict, FencedError, StoreDenied, StoreError, WeirError
from weir.format import paths
from weir.format.manifest import ShardManifest, SsTable
from weir.format.schema import TableSchema
from weir.format.wal_entry import Fill, WalEntry
from weir.lake.api import Lake
from weir.log.appender import WalAppender
from weir.log.intake import Intake
from weir.log.rules import Evidence
from weir.meters import FLUSH, FLUSH_AGE, FLUSH_FAILURES, FLUSH_ROWS, FLUSH_SECONDS, Facts
from weir.search.memory import WriterIndexes
from weir.shard.ack import Ack
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
    """Publishes the MemTables of one writer; its thread starts when one is frozen, and ends when
    it was idle for a while."""

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
        self._age = state.config.memtable_age_s
        self._thread: Thread | None = None
        self._right = self._env.threads.lock()
        """The right to flush: held by the thread, or by a caller in its place. An interrupt while a
        thread is started may leave two of them (F-16)."""
        self._under_way: _Flush | None = None

    @property
    def active(self) -> MemTable:
        """The MemTable that receives rows."""
        return self._memtables.active

    # -- called with the lock held ---------------------------------------------------------------

    def wake(self) -> None:
        """There is a frozen MemTable: let the thread flush it once the log has its rows."""
        if self._thread is None and not self._state.stopping:
            self._thread = self._state.start(self._run, f"weir-flush-{self._state.name}")
        self._state.flush_bell.ring()

    def make_room(self) -> None:
        """Puts wait for room: flush the active MemTable although it is not full, because nothing
        else would (M-6)."""
        if self._memtables.active.rows and not self._memtables.frozen:
            self._memtables.freeze()
        if self._memtables.frozen:
            self.wake()

    def attend(self) -> None:
        """Rows may have become durable in the active MemTable: flush it when they are too old."""
        table = self._memtables.active
        if table.first_position is None:
            return
        if table.since is None:
            table.since = self._env.clock.boottime()
        ages = self._state.crowd.ages
        if self._age is not None and self not in ages:
            ages.add(self, table.since + self._age, self._env)

    def flush_aged(self, now: float) -> float | None:
        """Freeze the active MemTable if it is too old; otherwise return when it will be, if it
        holds rows."""
        since = self._memtables.active.since
        is_over = self._state.stopping or self._state.failure is not None
        if since is None or self._age is None or is_over:
            return None
        if since + self._age > now:
            return since + self._age
        self._memtables.active.is_aged = True
        self._memtables.freeze()
        self.wake()
        return None

    # -- called without it -----------------------------------------------------------------------

    def flush_all(self, make_durable: Callable[[], object]) -> ShardManifest:
        """Publish every row put so far and close the gap; `make_durable` drains the log first.

        Returns a manifest that holds exactly those rows and none put later (K-3).
        """
        state, memtables = self._state, self._memtables
        with state.lock:
            if memtables.active.rows:  # guard: K-3
                memtables.freeze()
            if memtables.frozen:
                self.wake()
            following = memtables.active.generation
        make_durable()
        self._await_flushed(following)
        self.close_gap()
        with state.lock:
            return memtables.cut(following)

    def _await_flushed(self, following: Generation) -> None:
        """Return when every generation before `following` is an SSTable."""
        state, memtables = self._state, self._memtables
        while True:
            self.help()
            with state.lock:
                if state.failure is not None:
                    raise state.ending.error()
                if not memtables.frozen or memtables.frozen[0].generation >= following:
                    return
                self.wake()
                gate = state.flush_gate()
            if not self._has_no_thread:
                gate.acquire()

    @property
    def _has_no_thread(self) -> bool:
        # No thread yet is not enough: a put may start it while a caller flushes in its place.
        return self._state.has_no_threads and self._thread is None  # guard: F-16 first

    def help(self) -> None:
        """Flush what is due in this thread, if no other thread can do it (F-16)."""
        if self._has_no_thread:
            self._state.log_events()
            with self._right:
                while self._is_due():
                    self._flush_first(is_interruptible=True)

    def help_to_room(self, ack: Ack) -> None:
        """`help` for a put that waits for room; if there is a thread for it, wait until that has
        published what is due (F-16)."""
        state, gate = self._state, None
        with state.lock:
            self.make_room()
            is_waiting = state.is_flush_due and not (ack.is_accepted or ack.done)
            if is_waiting and not self._has_no_thread:  # guard: F-16 test_process
                gate = state.flush_gate()
        if gate is None:
            self.help()
        else:
            gate.acquire()

    def _is_due(self) -> bool:
        with self._state.lock:
            return self._state.is_flush_due

    def close_gap(self) -> None:
        """Move R up to all that is covered; free when it is there already (W-2, W-3)."""
        with self._publishing:
            with self._state.lock:
                behind = self._memtables.covered() > self._memtables.manifest.replay_after
            if behind:  # guard: W-2
                self._publish(None)

    @property
    def has_left(self) -> bool:
        """True when the last commit said that nothing of this writer will follow."""
        return self._memtables.manifest.is_left

    def join(self) -> None:
        """Return when the threads that work for a stopped writer have ended."""
        with self._state.lock:
            watcher = self._state.crowd.ages.remove(self)
        self._state.flush_bell.ring()
        for thread in (self._thread, watcher):
            if thread is not None:
                thread.join()

    def rebuild(
        self,
        entries: Iterator[tuple[Generation, WalEntry]],
        intake: Intake,
    ) -> dict[str, int]:
        """Load the replayed entries before the writer serves; return the tokens they hold.

        A generation that replay finds closed is published with its own R before the next begins
        (F-8): a crash in between loses nothing, and at most one generation is in memory.
        """
        memtables, tokens = self._memtables, dict[str, int]()
        for generation, entry in entries:
            memtables.durable = Position(entry.position - 1)  # guard: F-8 simulator
            while memtables.active.generation < generation:
                self._publish_active()
            batches = [intake.stored(batch) for batch in entry.batches]
            nbytes = sum(map(intake.size_of, batches))
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
        """Flush what is due. For a frozen MemTable the thread waits without a limit, until the log
        has its rows: `WriterState` rings then."""
        state, is_idle = self._state, False
        while True:
            with self._right:
                while self._is_due():
                    self._flush_first()
            with state.lock:
                if state.is_flush_due:
                    continue
                is_unneeded = not self._memtables.frozen
                is_over = state.stopping or state.failure is not None
                if is_over or (is_idle and is_unneeded):
                    if not is_over:
                        self._thread = None
                    state.flush_bell.ring()  # an interrupt may have left a second thread
                    return
            patience = state.crowd.idle_seconds if is_unneeded else None
            is_idle = not state.flush_bell.wait(patience)

    def _flush_first(self, *, is_interruptible: bool = False) -> None:
        self._state.is_flushing = True
        try:
            self._flush(self._memtables.frozen[0])
        except BaseException as error:
            if is_interruptible and not isinstance(error, Exception):
                raise  # the next helper continues it
            if (
                isinstance(error, StoreError)
                and not isinstance(error, StoreDenied)
                and self._is_unattended()
            ):
                return  # the log has the rows: an outage ends no writer that nobody uses
            # No other thread sees the error, whatever it is, and waiters would wait for ever.
            fail(self._state, error if isinstance(error, WeirError) else internal(error))
            if not isinstance(error, Exception):
                raise
        finally:
            self._state.is_flushing = False

    def _is_unattended(self) -> bool:
        """True when only the age of its rows was the reason to flush, and nobody waits for it."""
        with self._state.lock:
            is_aged = self._memtables.frozen[0].is_aged
            return is_aged and not self._state.closing and not self._state.awaits_flush

    def _flush(self, table: MemTable) -> None:
        began = self._env.clock.boottime()
        if self._under_way is None or self._under_way.table is not table:  # guard: F-16 always
            self._under_way = _Flush(table)
        flush = self._under_way

        def failed(attempt: int, error: StoreError) -> None:
            self._counters.flush_failures += 1
            self._env.meters.add(FLUSH_FAILURES)
            logger.warning(
                "flush.failed %s generation=%d attempt=%d reason=%s",
                self._appender.site.label,
                table.generation,
                attempt,
                error,
            )

        def act() -> None:
            if flush.entry is None:
                flush.entry = self._write(table)
            for app, version in table.tokens.items():
                self._tokens.record(app, version)
            with self._publishing:  # guard: M-1 test_reads_beside_flushes
                self._publish(table, flush.entry, flush.tried)

        def repeated() -> None:
            retry_outage(self._env, act, delay=0.1, failed=failed)

        def facts() -> Facts:
            counts = {"weir.generation": table.generation, "weir.rows": table.rows}
            return {**self._appender.site.facts(self._appender.epoch), **counts}

        self._env.meters.traced(FLUSH, repeated, facts, self._env.clock)
        self._under_way = None
        now = self._env.clock.boottime()
        took = now - began
        self._counters.flushes += 1
        self._counters.flushed_rows += table.rows
        self._counters.flush_seconds += took
        self._env.meters.add(FLUSH_SECONDS, took)
        self._env.meters.add(FLUSH_AGE, now - (began if table.since is None else table.since))
        self._env.meters.add(FLUSH_ROWS, table.rows)
        logger.info(
            "flush.published %s generation=%d rows=%d seconds=%.3f",
            self._appender.site.label,
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

    def _remove_if_dropped(self, entry: SsTable) -> None:
        """Delete an SSTable that was written after its table was dropped: nobody collects there,
        and no rows may stay (C-16). Its name is this flush's own (F-17)."""
        site = self._appender.site
        with contextlib.suppress(StoreError):  # the writer's own error says what happened
            latest = self._appender.manifests.latest()
            if latest is not None and latest.dropped:  # guard: C-16 test_drop
                folder = paths.sstable_dir(site.shard, entry.path)
                site.store.delete([found.path for found in site.store.list(folder)])

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
            # guard: W-5 never test_flush_published_before_its_error
            if entry is not None and self._appender.manifests.published(entry, current, tried):
                return None  # an earlier attempt was applied, and failed only after that
            tried.append(Version(current.version + 1))
            with self._state.lock:
                covered = self._memtables.covered(published=table)
                first = self._memtables.first_position()
                is_empty = self._memtables.first_position(but=table) is None
                is_last = is_empty and self._state.is_drained  # guard: S-7 last
            self._check_not_folded(current, first)
            reached = Position(max(covered, current.replay_after))
            following = replace(
                current,
                replay_after=reached,
                last_seen=Position(max(current.last_seen, reached)),
                closed_epoch=self._appender.epoch if is_last else current.closed_epoch,
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
            if entry is not None:
                self._remove_if_dropped(entry)
            raise fenced.at(appender.next_position) from None
        self._appender.ownership.proven(began)
        with self._state.lock:
            self._state.published(table, committed)
            if self._state.room:
                self.make_room()
        if table is not None:
            table.level.forget_derived()

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
