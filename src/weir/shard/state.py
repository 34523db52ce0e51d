"""The state of one writer: the queue to the log, MemTables, who waits for room, its end.

One lock, `WriterState.lock`, guards all of it, and every method here is called with it held. Only
bookkeeping is done under the lock: no store call, no user callback, no wait. The slow work is done
without it, in two roles that one thread each holds at any moment: the committing thread writes the
head of the queue to the log (commit.py), and the flusher makes an SSTable of the oldest frozen
MemTable (flush.py). Each takes its work in one locked step, and reports the outcome in another.

An interrupt may end a caller's thread between any two calls (F-16), so every step here can be
repeated: it says what it is about to do before it does it, or changes plain fields and then makes
one call that takes effect as a whole.

Keeps
  F-13 when the writer ends, every waiting and later caller gets its unacknowledged rows back
  M-3  rows leave the queue only when their entry is durable
  M-6  the rows held are bounded; over the bound, putters wait, first come, first served
  M-7  an ack is done exactly when the entry that holds its rows is durable
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from weir.config import WriterConfig
from weir.env import Bell, Env, Lock, Thread
from weir.errors import FencedError, WeirError
from weir.format.manifest import ShardManifest
from weir.format.wal_entry import Fill
from weir.log.entry import Entry
from weir.log.site import ShardSite
from weir.log.tags import GenerationTags
from weir.meters import BACKPRESSURE, BACKPRESSURE_SECONDS, ENDED, FENCED
from weir.shard.ack import Ack, release, run_callbacks
from weir.shard.ending import Ending
from weir.shard.memtable import MemTable, MemTables
from weir.shard.stats import Counters
from weir.shard.turns import WaiterGroup
from weir.types import Generation, Position

logger = logging.getLogger("weir.shard")


@dataclass(slots=True, eq=False)
class EntrySlot:
    """The entry on its way to the log, and how far it has come. Filled before anything is sent:
    whoever takes the right to commit finishes it first, the same bytes to the same place (F-16)."""

    group: list[Ack]
    entry: Entry | None = None
    """None while it is not encoded, and for decisions that write nothing."""
    is_sent: bool = False
    """True once it is durable, or there was nothing to write."""
    seconds: float = 0.0
    is_landed: bool = False
    """True once the outcome is booked; its waiters are to be woken."""


@dataclass(slots=True, eq=False)
class _Booking:
    """Rows that are being added to a MemTable."""

    run: Sequence[Ack]
    batches: Sequence[pa.RecordBatch]
    more: Fill
    table: MemTable | None
    """None for a WAL-only writer."""
    count: int
    """Batches that the MemTable held before."""
    generation: Generation
    filled: Fill
    """What the generation holds with these rows."""


class WriterState:
    """Everything that the threads of one writer share."""

    def __init__(
        self,
        env: Env,
        config: WriterConfig,
        site: ShardSite,
        memtables: MemTables | None,
        crowd: WaiterGroup | None = None,
    ) -> None:
        """`crowd`: shared, with its lock, by the writers that the same threads put to."""
        self.env = env
        self.config = config
        self.name = str(site)
        self.label = site.label
        """The writer in a log event."""
        self.crowd = crowd or WaiterGroup(env.threads)
        self.crowd.writers += 1
        self.lock: Lock = self.crowd.lock
        self.counters = Counters()
        self.ending = Ending(self.name, env)
        self.closing = False
        """No more rows are accepted."""
        self.stopping = False
        """The threads end when they finish their current work."""
        self.held_bytes = 0
        """Bytes of rows in memory: queued, in MemTables, being flushed."""
        self.room: deque[Ack] = deque()
        """Puts that wait for room, in the order in which they came."""
        self._warned_at = -1e9
        self.queue: deque[Ack] = deque()
        """Accepted puts that are not durable, in order. The first `booked` have their rows in a
        generation; the others are still to be shaped or decided."""
        self.booked = 0
        self.queued_bytes = 0
        self.is_hurried = False
        """Somebody waits for rows of the queue, or of the room, although puts are buffered."""
        self.is_urgent = False
        """The time of somebody that waits for such rows is limited."""
        self.slot: EntrySlot | None = None
        self.bell = Bell(env.threads)
        """Wakes the commit thread."""
        self.flush_bell = Bell(env.threads)
        """Wakes the flush thread."""
        self._under_way: _Booking | None = None
        self.memtables = memtables
        """None for a WAL-only writer."""
        self.tags: GenerationTags | None = None
        """Assigns the generations when there are no MemTables."""
        self.is_flushing = False
        """True while a MemTable is being flushed, also of a writer that was fenced meanwhile."""
        self._flush_waiters: list[Lock] = []
        self.has_no_threads = False
        """A thread could not be started, and callers do its work."""
        self._events: deque[Callable[[], None]] = deque()
        """What is to be logged once no lock is held."""

    def start(self, run: Callable[[], None], name: str) -> Thread | None:
        """Start a thread for background work; None if the process cannot (F-16).

        From then on callers that put, flush or close do that work.
        """
        counted = partial(self.crowd.run_counted, run)
        thread = None if self.has_no_threads else self.env.threads.start(counted, name=name)
        if thread is None and not self.has_no_threads:
            self.has_no_threads = True
            self._events.append(
                lambda: logger.warning("writer.alone %s: no background thread", self.label)
            )
        return thread

    def log_events(self) -> None:
        """Log what has happened. Called without the lock: a handler may look at the writer."""
        with contextlib.suppress(IndexError):  # another thread took the last one
            while self._events:
                self._events.popleft()()

    @property
    def failure(self) -> WeirError | None:
        """The error that ended the writer."""
        return self.ending.failure

    @property
    def waiting(self) -> int:
        """Puts that wait for the log."""
        return len(self.queue)

    # -- accepting -------------------------------------------------------------------------------

    def is_full(self, nbytes: int) -> bool:
        """True when a put of that size has to wait for room."""
        # A put larger than the whole bound is let in alone rather than refused for ever.
        limit = self.config.max_unflushed_memtable_bytes
        return self.held_bytes > 0 and self.held_bytes + nbytes > limit

    @property
    def is_room_wanted(self) -> bool:
        """True when a put waits for room, or the next one would."""
        return bool(self.room) or self.is_full(1)

    @property
    def last_under_way(self) -> Ack | None:
        """The last accepted put that is not done. One that was withdrawn is done, and may still be
        in the queue behind others."""
        for ack in reversed(self.queue):
            if not ack.done:  # guard: M-8 always test_writer
                return ack
        return None

    @property
    def is_drained(self) -> bool:
        """True when no entry will follow: no more puts are accepted, and the log has all rows."""
        in_flight = self.slot is not None and not self.slot.is_landed
        return self.closing and not self.queue and not in_flight

    def submit(self, ack: Ack) -> None:
        """Accept the rows of `ack`, or let them wait for room. Raises, with the rows, when the
        writer accepts no more."""
        if self.closing or self.ending.failure is not None:
            raise self.ending.refused(ack.batches)
        if self.room or self.is_full(ack.nbytes):  # guard: M-6
            ack.enqueued_at = self._count_backpressure()
            self.room.append(ack)
            return
        if not self.config.durable_write:
            ack.enqueued_at = self.env.clock.boottime()
        self._accept(ack)

    def accept_decision(self, ack: Ack) -> None:
        """Accept the request of another caller, unless it left, or has to wait for room."""
        decision = ack.decision
        if decision is None or decision.is_left:  # guard: F-16 test_looking
            return
        if ack.is_accepted or self.closing:
            return
        if self.ending.failure is None and not self.room and not self.is_full(ack.nbytes):
            self.submit(ack)
            self._admitted(ack)

    def _accept(self, ack: Ack) -> None:
        ack.is_accepted = True
        self.held_bytes += ack.nbytes
        self.queued_bytes += ack.nbytes
        self.crowd.unsettled += 1
        self.queue.append(ack)

    def withdraw(self, ack: Ack) -> bool:
        """Take back a put whose caller leaves; False if its rows are booked, and it goes on.

        Only for puts that wait for room, and for decisions that were not made."""
        if ack.is_accepted:
            self.finish_booking()  # of rows that an interrupted thread was booking
            if ack.decision is None or ack.generation is not None or ack.done:
                return False
            ack.take_rows((), None, 0)  # guard: F-16 test_looking
            ack.done = True  # skipped when its turn comes
            return True
        if ack.decision is not None:
            ack.decision.is_left = True  # F-16: a lookup for several callers may still have it
        if ack in self.room:
            self.bell.ring()  # first: an interrupt leaves no thread waiting for nobody (H-4)
            self.room.remove(ack)
        return not ack.done

    def admit_waiting(self) -> None:
        """Accept puts that waited for room, in order, as far as there is room."""
        while self.room and (self.room[0].is_accepted or not self.is_full(self.room[0].nbytes)):
            ack = self.room[0]
            if not ack.is_accepted:
                now = self.env.clock.boottime()
                waited, ack.enqueued_at = now - ack.enqueued_at, now
                self.counters.backpressure_seconds += waited
                self.env.meters.add(BACKPRESSURE_SECONDS, waited)
                self._accept(ack)
            self._admitted(ack)
            self.room.popleft()

    def _admitted(self, ack: Ack) -> None:
        """Wake a caller that waits until its put is accepted, and no longer."""
        if ack.waits_for_room and ack.gate is not None:
            release(ack.gate)
            ack.gate = None  # open from now on: whoever waits for durable rows needs another

    def _count_backpressure(self) -> float:
        """Count a put that waits for room from now on; returns the time."""
        began, counters = self.env.clock.boottime(), self.counters
        counters.backpressure_waits += 1
        self.env.meters.add(BACKPRESSURE)
        if began - self._warned_at >= float(self.config.backpressure_log_interval):  # type: ignore[arg-type]
            self._warned_at = began
            limit = self.config.max_unflushed_memtable_bytes
            facts = (self.label, self.held_bytes, limit, counters.backpressure_waits)
            self._events.append(
                lambda: logger.warning(
                    "writer.backpressure %s held_bytes=%d limit=%d waits=%d", *facts
                )
            )
        return began

    # -- booking ---------------------------------------------------------------------------------

    def unbooked(self) -> list[Ack]:
        """Accepted puts whose rows are in no generation yet, in order."""
        self.finish_booking()
        return list(itertools.islice(self.queue, self.booked, None))

    def resize(self, ack: Ack, nbytes: int) -> None:
        """The size of the rows is known now; it was a guess when they were accepted."""
        more = nbytes - ack.nbytes
        self.held_bytes += more
        self.queued_bytes += more
        ack.nbytes = nbytes

    def skip(self, ack: Ack) -> None:
        """The next unbooked put has no rows to book: it was refused, or a decision wrote none."""
        generation = self._generation
        ack.generation = generation
        self.booked += 1

    @property
    def _generation(self) -> Generation:
        if self.memtables is not None:
            return self.memtables.active.generation
        assert self.tags is not None, "M-2: a WAL-only writer tags by size"
        return self.tags.generation

    def book(self, run: Sequence[Ack], batches: Sequence[pa.RecordBatch], more: Fill) -> None:
        """Put the rows of the next unbooked puts, in `batches`, where reads find them, in one
        generation. Several puts at once only if the active generation has room for all."""
        table, count = None, 0
        if self.memtables is not None:
            table = self.memtables.table_for(more)
            count, generation = table.level.count, table.generation
            filled = table.filled + more
        else:
            assert self.tags is not None, "M-2: a WAL-only writer tags by size"
            generation, filled = self.tags.following(more)
        self._under_way = _Booking(run, batches, more, table, count, generation, filled)
        self.finish_booking()
        if self.memtables is not None:
            self.memtables.freeze_if_full()

    def finish_booking(self) -> None:
        """Finish what `book` began; it may have been interrupted."""
        booking = self._under_way
        if booking is None:
            return
        table, tags, counters = booking.table, self.tags, self.counters
        if table is not None and table.level.count == booking.count:
            table.level.append(booking.batches)
        for ack in booking.run:
            ack.generation = booking.generation
        puts = len(booking.run)
        rows = booking.more.rows
        deleted = sum([batch.column(batch.num_columns - 1).true_count for batch in booking.batches])
        # From here to the end only plain fields change, which no interrupt can come between.
        if table is not None:
            table.filled = booking.filled
            table.puts += puts
        elif tags is not None:
            tags.generation, tags.filled = booking.generation, booking.filled
        counters.puts += puts
        counters.rows_put += rows
        counters.rows_deleted += deleted
        self.booked += puts
        self._under_way = None

    # -- committing ------------------------------------------------------------------------------

    def take(self) -> list[Ack]:
        """The longest prefix of the booked puts that fits one entry."""
        group: list[Ack] = []
        nbytes = 0
        # Each put fits an entry by itself (F-15); a group stays well below the limit of an entry.
        most = min(self.config.max_wal_buffer_size, self.env.limits.entry_bytes // 4)
        first: Ack | None = None
        for ack in itertools.islice(self.queue, self.booked):
            if not ack.rows or ack.done:
                group.append(ack)
                continue
            if first is not None and (
                ack.generation != first.generation
                or nbytes + ack.nbytes > most
                or ack.tokens
                or first.tokens
            ):
                break
            first = first or ack
            group.append(ack)
            nbytes += ack.nbytes
        return group

    def landed(self, slot: EntrySlot) -> list[Ack]:
        """The entry is durable: take its puts out of the queue; return those that are done by it,
        in order, for their waiters to be woken."""
        if slot.is_landed:
            return slot.group  # whoever booked it was interrupted before it woke them
        entry = slot.entry
        position = None if entry is None else entry.position
        if self.ending.failure is None:  # else the writer has ended, and they have its error
            if position is not None:
                self._book_durable(slot.group, position)
            for ack in slot.group:
                if not ack.done:
                    if ack.rows:
                        ack.position = position
                        ack.drop_rows()  # guard: M-6 test_put_once_sent_again
                    ack.done = True
            self._drop_done()
            if self.memtables is None or self.room:
                self.admit_waiting()
        if self.is_flush_due:
            self.flush_bell.ring()
        slot.is_landed = True
        return slot.group

    def _drop_done(self) -> None:
        queue = self.queue
        while queue and queue[0].done and self.booked:
            ack = queue[0]
            nbytes = ack.nbytes
            self.queued_bytes -= nbytes
            if self.memtables is None or not ack.rows:
                self.held_bytes -= nbytes
            self.booked -= 1
            self.crowd.unsettled -= 1
            queue.popleft()
        if not queue and not self.room:  # guard: M-6 last test_waiters
            self.is_hurried = self.is_urgent = False

    def _book_durable(self, group: Sequence[Ack], position: Position) -> None:
        """May be called again: every step sets what it sets."""
        if self.memtables is not None:
            first = [ack for ack in group if ack.rows][0]  # noqa: RUF015  see F-16
            assert first.generation is not None, "M-4: an entry without a generation"
            # P-2: those of the entry. A batch of which nothing was written is not in.
            tokens = [token for ack in group if ack.rows for token in ack.tokens]
            self.memtables.landed(first.generation, position, tokens)

    # -- the flusher -----------------------------------------------------------------------------

    @property
    def is_flush_due(self) -> bool:
        """True when there is a MemTable to flush, and the log has all of its rows (W-4)."""
        if self.memtables is None or not self.memtables.frozen or self.failure is not None:
            return False
        if self._under_way is not None:
            return False
        oldest = self.queue[0].generation if self.booked else None
        # guard: W-4 always simulator
        return oldest is None or oldest > self.memtables.frozen[0].generation

    def published(self, table: MemTable | None, manifest: ShardManifest) -> None:
        """The manifest was committed, with the SSTable of `table`, if any."""
        assert self.memtables is not None, "M-2: a WAL-only writer publishes nothing"
        self.memtables.published(table, manifest)
        if table is not None:
            self.held_bytes -= table.nbytes
        if self.room:
            self.admit_waiting()
            self.bell.ring()
        self.wake_flush_waiters()

    @property
    def awaits_flush(self) -> bool:
        """True when a caller waits for a publication, or a put for room."""
        return bool(self._flush_waiters) or self.is_room_wanted

    def flush_gate(self) -> Lock:
        """A gate that opens at the next publication, or when the writer ends."""
        gate = self.env.threads.lock()
        gate.acquire()
        self._flush_waiters.append(gate)
        return gate

    def wake_flush_waiters(self) -> None:
        """Let those that wait for a publication look again."""
        while self._flush_waiters:
            release(self._flush_waiters[0])
            self._flush_waiters.pop(0)

    # -- the end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Accept nothing more, and let the threads end."""
        self.closing = self.stopping = True

    def end(self, error: WeirError, *, sent: bool) -> list[Ack]:
        """End the writer with `error`; return the acks that are done by it.

        `sent`: the entry in flight, if any, may have become durable (F-11).
        """
        if self.failure is None:
            slot = self.slot
            in_flight = slot.group if slot is not None and sent and not slot.is_landed else []
            self.ending.begin(error, [ack for ack in in_flight if ack.rows and not ack.done])
            rows = sum(ack.rows for ack in self.queue if not ack.done)
            self.env.meters.add(FENCED if isinstance(error, FencedError) else ENDED)
            facts = (self.label, rows, error)
            self._events.append(
                lambda: logger.error("writer.ended %s rows_left=%d reason=%s", *facts)
            )
        return self.finish_end()

    def finish_end(self) -> list[Ack]:
        """Finish every put of a writer that has ended; may be repeated."""
        left = [*self.queue, *self.refuse_waiting()]
        for ack in self.queue:
            if not ack.done:
                self.ending.refuse(ack)
                ack.done = True
            if ack.gate is not None:
                release(ack.gate)
        self.wake_flush_waiters()
        self.flush_bell.ring()
        accepted = len(self.queue)
        self._under_way = self.slot = None
        self.booked = self.queued_bytes = 0
        self.crowd.unsettled -= accepted
        self.queue.clear()
        return left

    def refuse_waiting(self) -> list[Ack]:
        """Refuse the puts that wait for room: the writer accepts no more. Their callers, which
        wait, hand the rows back; may be repeated."""
        waiting = list(self.room)
        for ack in waiting:
            if not ack.is_accepted:
                ack.is_refused = True
                ack.done = True
            if ack.gate is not None:
                release(ack.gate)
        if waiting:
            self.bell.ring()
        self.room.clear()
        return waiting


def fail(state: WriterState, error: WeirError) -> None:
    """End the writer: every waiting and later caller gets `error`, or a similar one, with its rows
    (F-13). Called without the lock."""
    with state.lock:
        left = state.end(error, sent=True)
    state.log_events()
    run_callbacks(left)
