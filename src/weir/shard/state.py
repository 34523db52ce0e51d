"""The state of one writer: waiting rows, the queue to the log, MemTables, turns, its end.

One lock, `WriterState.lock`, guards all of it, and every method here is called with it held. Only
bookkeeping is done under the lock: no store call, no user callback, and no wait except on one of
its conditions. The slow work is done without the lock, in two roles that one thread each holds at
any moment: the leader writes the head of the queue to the log (group.py), and the flusher makes an
SSTable of the oldest frozen MemTable (flush.py). Each takes its work in one locked step, and
reports the outcome in another.

Keeps
  F-13 when the writer ends, every waiting and later caller gets its unacknowledged rows back
  M-3  rows leave the queue only when their entry is durable
  M-6  the rows held are bounded; over the bound, putters wait
  M-7  an ack is done exactly when the entry that holds its rows is durable
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence

import pyarrow as pa

from weir.config import WriterConfig
from weir.env import Env, Lock, Thread
from weir.errors import Backpressure, WeirError
from weir.format.manifest import ShardManifest
from weir.format.wal_entry import Fill
from weir.log.entry import Entry
from weir.log.small_put import Shaped
from weir.log.tags import GenerationTags
from weir.shard.ack import Ack, finish_all, rows_of, run_callbacks
from weir.shard.ending import Ending
from weir.shard.memtable import MemTable, MemTables
from weir.shard.stats import Counters
from weir.shard.turns import Turns, Waiter, WaiterGroup
from weir.types import Position

logger = logging.getLogger("weir.shard")


class WriterState:
    """Everything that the threads of one writer share."""

    def __init__(
        self,
        env: Env,
        config: WriterConfig,
        name: str,
        memtables: MemTables | None,
        crowd: WaiterGroup | None = None,
    ) -> None:
        """`crowd`: shared, with its lock, by the writers that the same threads put to."""
        self.env = env
        self.config = config
        self.name = name
        crowd = crowd or WaiterGroup(env.threads)
        self.lock: Lock = crowd.lock
        self.counters = Counters()
        self.ending = Ending(name, env)
        self.closing = False
        """No more rows are accepted."""
        self.stopping = False
        """The threads end when they finish their current work."""
        self.held_bytes = 0
        """Bytes of rows in memory: queued, in MemTables, being flushed."""
        self.room_waiters = 0
        """Threads that wait for room."""
        self.room_wake = env.threads.condition(self.lock)
        self.room_tasks: list[asyncio.Future[None]] = []
        """Futures of the tasks that wait for room."""
        self._warned_at = -1e9
        self.unshaped: deque[Ack] = deque()
        """Puts whose rows the next leader shapes; then they are accepted, in this order."""
        self.queue: deque[Ack] = deque()
        self.queued_bytes = 0
        self.turns = Turns(crowd, self)
        self.leading = False
        self.leader: Waiter | None = None
        """The thread that leads, if one does."""
        self.in_flight: list[Ack] = []
        """Puts whose rows are in the entry in flight, or in one whose write was interrupted."""
        self.entry: Entry | None = None
        """That entry, once it is encoded."""
        self.was_single_put = False  # the last entry held one put: the next likely does too
        self.pump_wake = env.threads.condition(self.lock)
        self.is_pump_called = False
        """The pump was woken, and will check the queue before it waits again."""
        self.memtables = memtables
        """None for a WAL-only writer."""
        self.tags: GenerationTags | None = None
        """Assigns the generations when there are no MemTables."""
        self.flush_wake = env.threads.condition(self.lock)
        self.wakeups_done = crowd.wakeups_done
        self.has_no_threads = False
        """A thread could not be started, and putters do its work."""

    def start(self, run: Callable[[], None], name: str) -> Thread | None:
        """Start a thread for work that no caller waits for; None if the process cannot (F-16).

        From then on callers that put, flush or close do that work.
        """
        thread = None if self.has_no_threads else self.env.threads.start(run, name=name)
        if thread is None and not self.has_no_threads:
            self.has_no_threads = True
            logger.warning("writer.alone %s: no thread for background work", self.name)
        return thread

    @property
    def failure(self) -> WeirError | None:
        """The error that ended the writer."""
        return self.ending.failure

    # -- putting ---------------------------------------------------------------------------------

    def is_full(self, nbytes: int) -> bool:
        """True when a put of that size has to wait for room."""
        # A put larger than the whole bound is let in alone rather than refused for ever.
        limit = self.config.max_unflushed_memtable_bytes
        return self.held_bytes > 0 and self.held_bytes + nbytes > limit

    @property
    def is_room_wanted(self) -> bool:
        """True when a put waits for room, or the next one would."""
        return bool(self.room_waiters or self.room_tasks) or self.is_full(1)

    @property
    def waiting(self) -> int:
        """Puts that wait for the log, shaped or not."""
        return len(self.queue) + len(self.unshaped)

    @property
    def last_put(self) -> Ack | None:
        """The last of the puts that wait for the log."""
        if self.unshaped:
            return self.unshaped[-1]
        return self.queue[-1] if self.queue else None

    def wait_for_room(
        self, ack: Ack, timeout: float | None, make: Callable[[float | None], bool]
    ) -> None:
        """Return when the rows of `ack` may be accepted, or raise the error that prevents it.

        `make` is called before each wait, with the time left, and returns whether it wrote
        something itself. Raises `Backpressure` when `timeout` passes first.
        """
        if self.is_full(ack.nbytes) and not self.closing:
            began = self._count_backpressure()
            self.room_waiters += 1
            try:
                while self.is_full(ack.nbytes) and self.failure is None and not self.closing:
                    left = None if timeout is None else began + timeout - self.env.clock.boottime()
                    if left is not None and left <= 0:
                        raise Backpressure(
                            f"{self.name}: {self.held_bytes} bytes are in memory, and"
                            " max_unflushed_memtable_bytes is"
                            f" {self.config.max_unflushed_memtable_bytes}; nothing of this put was"
                            " accepted, try again"
                        )
                    if not make(left):
                        self.room_wake.wait(left)
            finally:
                self.room_waiters -= 1
                self.counters.backpressure_seconds += self.env.clock.boottime() - began
        self.require_open(ack)

    def require_open(self, ack: Ack) -> None:
        """Raise, with the rows of `ack`, when the writer accepts no more."""
        if self.closing or self.ending.failure is not None:
            raise self.ending.refused(ack.batches)

    def _count_backpressure(self) -> float:
        began, counters = self.env.clock.boottime(), self.counters
        counters.backpressure_waits += 1
        if began - self._warned_at >= float(self.config.backpressure_log_interval):  # type: ignore[arg-type]
            self._warned_at = began
            limit = self.config.max_unflushed_memtable_bytes
            facts = (self.name, self.held_bytes, limit, counters.backpressure_waits)
            logger.warning("writer.backpressure %s held_bytes=%d limit=%d waits=%d", *facts)
        return began

    def release(self, nbytes: int) -> None:
        """Subtract rows that left memory, and wake those that wait for room."""
        self.held_bytes -= nbytes
        self.wake_for_room()

    def wake_for_room(self) -> None:
        """Wake the threads and tasks that wait for room."""
        self.room_wake.notify_all()
        while self.room_tasks:
            future = self.room_tasks.pop()
            with contextlib.suppress(RuntimeError):  # the loop was closed
                future.get_loop().call_soon_threadsafe(finish_all, [future])

    def accept(self, acks: Sequence[Ack], batches: Sequence[pa.RecordBatch], more: Fill) -> None:
        """Put the rows of those puts, in `batches`, where reads find them, assign a generation, and
        queue them. Several puts at once only if the active generation has room for all."""
        self.counters.puts += len(acks)
        self.counters.rows_put += more.rows
        if self.memtables is not None:
            generation = self.memtables.book(batches, more, puts=len(acks))
        else:
            assert self.tags is not None, "M-2: a WAL-only writer tags by size"
            generation = self.tags.tag(more)
        now = self.env.clock.boottime()
        for ack in acks:
            ack.generation, ack.enqueued_at = generation, now
        self.queue.extend(acks)
        self.held_bytes += more.nbytes
        self.queued_bytes += more.nbytes

    def queue_unshaped(self, ack: Ack) -> None:
        """Take in a put whose rows the next leader shapes; its size is a guess until then."""
        ack.enqueued_at = self.env.clock.boottime()
        self.held_bytes += ack.nbytes
        self.unshaped.append(ack)

    def accept_shaped(self, acks: Sequence[Ack], shaped: Sequence[Shaped | Exception]) -> list[Ack]:
        """Accept the oldest unshaped puts, given their shaping results; return those refused."""
        for ack in acks:
            self.unshaped.popleft()
            self.held_bytes -= ack.nbytes
            ack.unshaped = None
        accepted: list[Ack] = []
        refused: list[Ack] = []
        has_ended = self.failure is not None
        for ack, result in zip(acks, shaped, strict=True):
            if isinstance(result, Exception):
                self.refuse(ack, result)
                refused.append(ack)
                continue
            ack.shaped, ack.nbytes = result, result.nbytes
            if has_ended:
                self.refuse(ack, self.ending.leave(ack))
                refused.append(ack)
                continue
            accepted.append(ack)
        self.accept_each(accepted)
        self.wake_for_room()  # the guessed sizes were larger than the real ones
        return refused

    def accept_each(self, acks: Sequence[Ack]) -> None:
        """Accept puts in order; neighbours whose rows share a batch are accepted in one step."""
        for key, run in itertools.groupby(acks, key=_batch_of):
            if key is None:
                for ack in run:
                    self.accept([ack], ack.batches, ack.fill)
            else:
                self._accept_run(list(run))

    def _accept_run(self, run: list[Ack]) -> None:
        """Accept puts that were shaped together."""
        more = Fill(sum([a.rows for a in run]), len(run), sum([a.nbytes for a in run]))
        if self.memtables is not None and self.memtables.holds(more):
            self.accept(run, rows_of(run), more)
        else:
            for ack in run:
                self.accept([ack], ack.batches, ack.fill)

    def refuse(self, ack: Ack, error: Exception) -> None:
        """Finish `ack` with `error`: its rows were not written."""
        ack.error = error
        ack.done = True
        self.turns.wake(ack)

    # -- the leader ------------------------------------------------------------------------------

    def take(self) -> list[Ack]:
        """Return the longest prefix of the queue that fits one entry, for the leader to write."""
        self.leading = True
        if self.ending.failure is not None:
            return []  # F-13: the callers got their rows back, and may have put them elsewhere
        if self.in_flight:
            return self.in_flight  # F-16: interrupted, so write the same entry again
        group: list[Ack] = []
        nbytes = 0
        # Each put fits an entry by itself (F-15); a group stays well below the limit of an entry.
        most = min(self.config.max_wal_buffer_size, self.env.limits.entry_bytes // 4)
        for ack in self.queue:
            if group and (
                ack.generation != group[0].generation
                or nbytes + ack.nbytes > most
                or ack.tokens
                or group[0].tokens
            ):
                break
            group.append(ack)
            nbytes += ack.nbytes
        self.in_flight, self.entry = group, None
        return group

    def landed(self, group: list[Ack], position: Position, seconds: float) -> list[Ack]:
        """The group became durable in `seconds`: dequeue it and wake its waiters; return the acks
        with a callback or a future."""
        self.turns.crowd.record_latency(seconds)
        if self.ending.failure is None:  # else the writer has ended, and they have its error
            for ack in group:
                ack.position = position
                ack.done = True
                if ack.gate is not None:
                    self.turns.wake(ack)
            queue = self.queue
            while queue and queue[0].done:
                self.queued_bytes -= queue.popleft().nbytes
            self._book_durable(group, position)
        self.in_flight, self.entry, self.was_single_put = [], None, len(group) == 1
        return [ack for ack in group if ack.callbacks or ack.future is not None]

    def _book_durable(self, group: list[Ack], position: Position) -> None:
        generation, memtables = group[0].generation, self.memtables
        assert generation is not None, "M-4: an entry without a generation"
        if memtables is None:
            self.release(sum(ack.nbytes for ack in group))
            return
        tokens = [token for ack in group for token in ack.tokens]
        memtables.landed(generation, position, len(group), tokens)
        if self.is_flush_due:
            self.flush_wake.notify_all()

    def give_up_lead(self) -> None:
        """Release the lead; another thread may take it."""
        if self.leader is not None:
            self.turns.crowd.end_turn(self.leader)
        self.leading, self.leader = False, None
        self.turns.ask()

    def call_pump(self) -> None:
        """Wake the pump to check the queue."""
        self.is_pump_called = True
        self.pump_wake.notify()

    # -- the flusher -----------------------------------------------------------------------------

    @property
    def is_flush_due(self) -> bool:
        """True when there is a MemTable to flush, and the log has all of its rows (W-4)."""
        if self.memtables is None or not self.memtables.frozen or self.failure is not None:
            return False
        return self.memtables.frozen[0].waiting == 0

    def published(self, table: MemTable | None, manifest: ShardManifest) -> None:
        """The manifest was committed, with the SSTable of `table`, if any."""
        assert self.memtables is not None, "M-2: a WAL-only writer publishes nothing"
        self.memtables.published(table, manifest)
        if table is not None:
            self.release(table.nbytes)
        self.flush_wake.notify_all()

    # -- the end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Accept nothing more, and let the threads end."""
        self.closing = self.stopping = True
        self.wake_all()

    def end(self, error: WeirError, *, sent: bool) -> list[Ack]:
        """End the writer with `error`; return the acks whose rows were not acknowledged.

        `sent`: the entry in flight, if any, may have become durable (F-11).
        """
        if self.failure is not None:
            return []
        failed = [ack for ack in self.queue if not ack.done]
        self.ending.begin(error, failed, sent=len(self.in_flight) if sent else 0)
        self.queue.clear()
        self.queued_bytes = 0
        for ack in failed:
            ack.done = True
            self.turns.wake(ack)
        for ack in self.unshaped:
            self.turns.wake(ack)  # its thread shapes the rows, which are handed back
        self.wake_all()
        rows = sum(ack.rows for ack in failed)
        logger.error("writer.ended %s rows_left=%d reason=%s", self.name, rows, error)
        return failed

    def wake_all(self) -> None:
        """Wake all threads that wait for something other than their own put."""
        self.wake_for_room()
        self.wakeups_done.notify_all()
        self.pump_wake.notify_all()
        self.flush_wake.notify_all()


def _batch_of(ack: Ack) -> int | None:
    return None if ack.shaped is None else id(ack.shaped.batch)


def fail(state: WriterState, error: WeirError) -> None:
    """End the writer: every waiting and later caller gets `error`, or a similar one, with its rows
    (F-13). Called without the lock."""
    with state.lock:
        failed = state.end(error, sent=True)
    run_callbacks(failed)
