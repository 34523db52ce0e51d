"""Group commit: the first waiting put leads and writes one entry for all who wait.

No timer and no hand-over to a background thread on the durable path: whoever waits and finds nobody
leading writes the entry itself, for itself and everyone queued behind; while that entry is in
flight the next group forms. Only rows that nobody waits for are written by a background thread, the
pump.

Keeps
  F-10 one put in flight per shard: leading is exclusive, also during retries
  F-13 when the writer ends, every waiting and later caller is told, with what was not acknowledged
  F-16 an interrupt of whoever leads passes the same entry on to the next, and ends nobody's put
  M-3  rows leave the queue only when their entry is durable
  M-6  the rows held are bounded; over the bound, putters wait
  M-7  an ack is done exactly when the entry that holds its rows is durable

One lock guards everything here. No store call is made while it is held.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from weir.config import WriterConfig
from weir.env import Env, Lock, Thread
from weir.errors import StoreError, WeirError
from weir.log.entry import Entry, Token
from weir.shard.ack import Ack, DoneCallback, run_callbacks
from weir.shard.ending import Ending, internal
from weir.shard.persist import persist
from weir.shard.room import Room
from weir.shard.stats import Counters
from weir.shard.turns import Turns
from weir.types import Generation, Position

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("weir.shard")


class Prepare(Protocol):
    """Makes one entry of the log."""

    def __call__(
        self, batches: Sequence[pa.RecordBatch], *, generation: Generation, tokens: Sequence[Token]
    ) -> Entry:
        """The rows encoded, with their tag."""


class GroupCommit:
    """The queue between putters and one shard's log."""

    def __init__(
        self,
        env: Env,
        config: WriterConfig,
        *,
        prepare: Prepare,
        write: Callable[[Entry], Position],
        name: str,
        counters: Counters,
        on_durable: Callable[[list[Ack], Position], None],
    ) -> None:
        """`write` makes an entry durable; `on_durable` hears of each that is, under the lock."""
        self.lock: Lock = env.threads.lock()
        self._env = env
        self._config = config
        self._prepare = prepare
        self._append = write
        self._name = name
        self._counters = counters
        self._on_durable = on_durable
        self._queue: deque[Ack] = deque()
        self._turns = Turns(env.threads)
        self._leading = False
        self._leader: object = None
        """Which wait leads, if one does."""
        self._flying: list[Ack] = []
        """Whose rows are in the entry under way, or in one whose writing was interrupted."""
        self._entry: Entry | None = None
        """That entry, once it is encoded."""
        self.room = Room(env, config, self.lock, name=name, counters=counters)
        self._pump_wake = env.threads.condition(self.lock)
        self._pump_started = False
        self._pump: Thread | None = None
        self._closing = False
        self._stopping = False
        self.on_end: Callable[[], None] = lambda: None
        """Called under the lock when the writer fails, for those who wait for something else."""
        self.on_full: Callable[[], None] = lambda: None
        """Called under the lock by a put that waits for room; a MemTable may hold it all (M-6)."""
        self.queued_bytes = 0
        self.ending = Ending(name, env)
        self.refused = self.ending.refused
        self.ended = self.ending.error

    @property
    def failure(self) -> WeirError | None:
        """What ended the writer."""
        return self.ending.failure

    # -- putting ---------------------------------------------------------------------------------

    def enqueue(
        self, ack: Ack, tag: Callable[[Ack], Generation], timeout: float | None = None
    ) -> None:
        """Accept the rows of `ack`, waiting for room first; `tag` names their generation, under the
        lock."""
        with self.lock:
            if self.room.is_full(ack.nbytes) and not self._closing:
                self.room.wait(ack.nbytes, timeout, lambda: self._make_room(ack))
            if self.failure is not None or self._closing:
                raise self.refused(ack.batches)
            ack.enqueued_at = self._env.clock.boottime()
            try:
                ack.generation = tag(ack)
                self._queue.append(ack)
                self.room.held_bytes += ack.nbytes
                self.queued_bytes += ack.nbytes
                return
            except BaseException as error:  # noqa: BLE001  raised below
                # Half booked: rows in memory and in no entry, for which a flush would wait for ever
                # (W-4). An interrupt, or a system without another thread.
                broken = error
                ack.claimed = isinstance(error, Exception)
                failed = self._fail(internal(error), sent=True)
        run_callbacks(failed)
        raise self.refused(ack.batches) if ack.claimed else broken

    def nudge(self) -> None:
        """Rows were queued that nobody waits for: let the pump see to them."""
        with self.lock:
            if not self._pump_started and not self._stopping:
                self._pump_started = True
                self._pump = self._env.threads.start(self._run_pump, name=f"weir-wal-{self._name}")
            elif not self._leading:
                self._pump_wake.notify()

    def wait(self, ack: Ack, timeout: float | None = None) -> None:
        """Return when `ack` is done, leading as often as it takes; or `TimeoutError`."""
        deadline = None if timeout is None else self._env.clock.boottime() + timeout
        me = object()
        try:
            in_time = self._await(ack, deadline, me)
        except BaseException as interrupt:  # its turn, or the lead it had or was given, passes on
            self._stop_waiting(ack, me)
            interrupt.add_note(
                f"{self._name}: the wait was interrupted, not the put: it goes on, and its rows are"
                " perhaps durable; close() makes sure, or says what is left"
            )
            raise
        if not in_time and not self._stop_waiting(ack, me):
            what = f"{self._name}: not durable after {timeout} s"
            raise TimeoutError(f"{what}; the put goes on, wait again to learn more")

    def _await(self, ack: Ack, deadline: float | None, me: object) -> bool:
        """False when the deadline passed."""
        turns = self._turns
        while True:
            with self.lock:
                chosen = turns.arrived(ack)
                if ack.done:
                    if chosen and not self._leading:
                        self._promote()
                    return True
                lead = not self._leading and (chosen or turns.is_settled)
                if lead:
                    self._leader = me
                    group = self._take()
                else:
                    gate = turns.gate_for(ack)
            if lead:
                self._lead(group)
                continue
            if not gate.acquire(timeout=self._left(deadline)):
                return False
            gate.release()  # a turnstile: `flush_wal` may wait for the same ack as its putter

    def _left(self, deadline: float | None) -> float:
        return -1 if deadline is None else max(0.0, deadline - self._env.clock.boottime())

    def drain(self, timeout: float | None = None) -> None:
        """Return when everything accepted so far is durable (M-8)."""
        with self.lock:
            # An empty queue of a writer that ended means that rows were left, not that all is safe.
            if self.failure is not None:
                raise self.ended()
            last = self._queue[-1] if self._queue else None
        if last is not None:
            self.wait(last, timeout)
            if last.error is not None:
                raise self.ended()

    def add_callback(self, ack: Ack, callback: DoneCallback) -> bool:
        """Register `callback`; False when the ack is done already."""
        with self.lock:
            if not ack.done:
                ack.callbacks.append(callback)
            return not ack.done

    # -- ending ----------------------------------------------------------------------------------

    def refuse(self) -> None:
        """Accept no more rows; those accepted so far are the ones `close` makes durable (M-8)."""
        with self.lock:
            self._closing = True
            self.room.release()

    def stop(self) -> None:
        """Refuse new rows and let the pump end."""
        with self.lock:
            self._closing = self._stopping = True
            self._pump_wake.notify_all()
            self.room.release()
            pump = self._pump
        if pump is not None:
            pump.join()

    def fail(self, error: WeirError) -> None:
        """End the writer: every waiting and later caller gets `error`, or its like, with its rows
        (F-13)."""
        with self.lock:
            failed = self._fail(error, sent=True)
        run_callbacks(failed)

    # -- leading ---------------------------------------------------------------------------------

    def _take(self) -> list[Ack]:
        """Claim the lead and the longest prefix of the queue that fits one entry. Lock held."""
        self._leading = True
        if self._flying:
            return self._flying  # F-16: interrupted, so the same rows in the same entry once more
        group: list[Ack] = []
        nbytes = 0
        # Each fits an entry by itself (F-15); together they stay well below what one may have.
        most = min(self._config.max_wal_buffer_size, self._env.limits.entry_bytes // 4)
        for ack in self._queue:
            if group and (
                ack.generation != group[0].generation
                or nbytes + ack.nbytes > most
                or ack.tokens
                or group[0].tokens
            ):
                break
            group.append(ack)
            nbytes += ack.nbytes
        self._flying, self._entry = group, None
        return group

    def _lead(self, group: list[Ack]) -> None:
        """Write one entry for the group; the rows stay queued until it is durable (M-3)."""
        finished: list[Ack] = []
        try:
            if group:
                position = self._write(group)
                with self.lock:
                    finished = self._complete(group, position)
        except Exception as error:  # noqa: BLE001  rows nobody can encode must end the writer, not loop
            with self.lock:
                sent = self._entry is not None and self._entry.sent
                finished = self._fail(
                    error if isinstance(error, WeirError) else internal(error), sent=sent
                )
        finally:
            with self.lock:
                self._leading, self._leader = False, None
                self._promote()
            run_callbacks(finished)

    def _write(self, group: list[Ack]) -> Position:
        if self._entry is None:
            batches = [batch for ack in group for batch in ack.batches]
            tokens = [token for ack in group for token in ack.tokens]
            generation = group[0].generation
            assert generation is not None, "M-4: queued rows without a generation"
            self._entry = self._prepare(batches, generation=generation, tokens=tokens)
        entry = self._entry
        began = self._env.clock.boottime()

        def failed(attempt: int, error: StoreError) -> None:
            self._counters.append_failures += 1
            facts = (self._name, attempt, sum(ack.rows for ack in group), error)
            log.warning("wal.append.failed %s attempt=%d rows=%d reason=%s", *facts)

        position = persist(self._env, lambda: self._append(entry), delay=0.05, failed=failed)
        self._counters.appended(group, self._env.clock.boottime() - began)
        return position

    def _complete(self, group: list[Ack], position: Position) -> list[Ack]:
        """The group is durable: take it off the queue and let its waiters go. Lock held."""
        if self.failure is None:  # else the writer ended meanwhile, and they were told
            for ack in group:
                ack.position = position
                ack.done = True
                self._turns.wake(ack)
            while self._queue and self._queue[0].done:
                self.queued_bytes -= self._queue.popleft().nbytes
            self._on_durable(group, position)
        self._flying, self._entry = [], None
        return [ack for ack in group if ack.callbacks]

    def _promote(self) -> None:
        """Somebody who waits leads next; if nobody does, the pump. Lock held."""
        if not self._turns.is_settled:
            return  # the last of those woken promotes
        if not self._queue:
            self._turns.forget()
        elif not self._turns.wake_next() and self._pump_started:
            self._pump_wake.notify()

    def _fail(self, error: WeirError, *, sent: bool) -> list[Ack]:
        """`sent`: the entry under way, if any, may count (F-11). Lock held."""
        if self.failure is not None:
            return []
        failed = [ack for ack in self._queue if not ack.done]
        self.ending.begin(error, failed, sent=len(self._flying) if sent else 0)
        self._queue.clear()
        self.queued_bytes = 0
        for ack in failed:
            ack.done = True
            self._turns.wake(ack)
        self.room.release()
        self._pump_wake.notify_all()
        self.on_end()
        rows = sum(ack.rows for ack in failed)
        log.error("writer.ended %s rows_left=%d reason=%s", self._name, rows, error)
        return failed

    def _stop_waiting(self, ack: Ack, me: object) -> bool:
        """A waiter gave up; True if its ack is done after all. A lead given to it passes on."""
        with self.lock:
            self._turns.leave(ack)
            if self._leader is me:  # interrupted before it began, or after it was through
                self._leading, self._leader = False, None
            if not self._leading:
                self._promote()
            if ack.done:
                return True
        self.nudge()
        return False

    # -- room and pump ---------------------------------------------------------------------------

    def _make_room(self, ack: Ack) -> None:
        """A put waits for room: have written what can be. Lock held."""
        if self.failure is not None or self._closing:
            raise self.refused(ack.batches)
        if self._pump_started and not self._leading:
            self._pump_wake.notify()
        self.on_full()

    def _run_pump(self) -> None:
        while True:
            with self.lock:
                while not self._pump_should_lead():
                    if self._stopping or self.failure is not None:
                        return
                    self._pump_wake.wait(self._pump_patience())
                group = self._take()
            with contextlib.suppress(KeyboardInterrupt):  # a callback's: no signal comes here
                self._lead(group)

    def _pump_should_lead(self) -> bool:
        if self._leading or not self._queue or self.failure is not None:
            return False
        if self._config.durable_write or self._stopping:
            return True
        waited = self._env.clock.boottime() - self._queue[0].enqueued_at
        return (
            self.queued_bytes >= self._config.max_wal_buffer_size
            or waited >= self._config.flush_interval_s
            or self.room.is_full(1)
        )

    def _pump_patience(self) -> float | None:
        if self._config.durable_write or not self._queue or self._leading:
            return None
        waited = self._env.clock.boottime() - self._queue[0].enqueued_at
        return max(0.001, self._config.flush_interval_s - waited)
