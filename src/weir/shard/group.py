"""Group commit: the first waiting put leads and writes one entry for all waiting puts.

The durable path has no timer and no hand-off to a background thread: a waiting thread that finds
no leader writes the entry itself, for its own put and all puts queued behind it. While that entry
is in flight the next group forms. Only rows that no thread waits for are written by a background
thread, the pump.

Keeps
  F-10 one put in flight per shard: leading is exclusive, also during retries
  F-16 an interrupt of the leader passes the same entry on to the next leader, and ends no put
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from weir.env import Thread
from weir.errors import StoreError, WeirError
from weir.format.wal_entry import Fill
from weir.log.appender import WalAppender
from weir.shard.accept import Acceptor
from weir.shard.ack import Ack, DoneCallback, rows_of, run_callbacks
from weir.shard.ending import internal
from weir.shard.outages import retry_outage
from weir.shard.state import WriterState
from weir.shard.stats import writer_stats
from weir.shard.turns import Waiter
from weir.types import Position

logger = logging.getLogger("weir.shard")
T = TypeVar("T")

LEAVE_TRIES: Final = 100
"""How many interrupts in a row a wait survives while it is being given up."""


def run_uninterrupted(step: Callable[[], T]) -> tuple[T, BaseException | None]:
    """Run `step`, again after each interrupt, because other threads depend on it (F-16). Return its
    result and the last interrupt, for callers that are not handling one already."""
    interrupt: BaseException | None = None
    for _ in range(LEAVE_TRIES):
        try:
            return step(), interrupt
        except BaseException as error:  # noqa: BLE001  returned when the step is done
            interrupt = error
    return step(), interrupt


class GroupCommit:
    """The path from putters to one shard's log."""

    def __init__(self, state: WriterState, acceptor: Acceptor, appender: WalAppender) -> None:
        self._state = state
        self._appender = appender
        self.acceptor = acceptor
        self._env = state.env
        self._pump: Thread | None = None
        self._logged_at = self._env.clock.boottime()
        self._log_interval = state.config.stats_log_interval_s

    @property
    def is_attended(self) -> bool:
        """True when the queue will be checked anyway: by the leader, once its entry is written, or
        by the pump, which was called and has not checked yet. Each of thousands of tasks reads this
        to avoid taking the lock; a nudge does no harm in either case."""
        state = self._state
        return self._pump is not None and (state.leading or state.is_pump_called)

    def nudge(self) -> None:
        """Rows were queued that no thread waits for: let the pump write them, or write them here if
        no pump can be started (F-16)."""
        state = self._state
        self._wake_pump()
        with state.lock:
            last = state.last_put if self._pump is None else None
        if last is not None:
            self.wait(last)

    def _wake_pump(self) -> None:
        state = self._state
        with state.lock:
            if self._pump is None and not state.stopping:
                self._pump = state.start(self._run_pump, f"weir-wal-{state.name}")
            elif not state.leading:
                state.call_pump()

    def add_callback(self, ack: Ack, callback: DoneCallback) -> bool:
        """Register `callback`; False when the ack is done already."""
        with self._state.lock:
            if not ack.done:
                ack.callbacks.append(callback)
            return not ack.done

    # -- waiting ---------------------------------------------------------------------------------

    def wait(self, ack: Ack, timeout: float | None = None) -> None:
        """Return when `ack` is done, leading as often as it takes; or raise `TimeoutError`."""
        deadline = None if timeout is None else self._env.clock.boottime() + timeout
        me = Waiter()
        try:
            if self._await(ack, deadline, me) or self._leave(ack, me):
                return
        except BaseException as interrupt:  # pass on its turn, and the lead it had or was given
            # A gate without a waiter would be chosen to lead, and all other threads would wait.
            run_uninterrupted(lambda: self._leave(ack, me))
            interrupt.add_note(
                f"{self._state.name}: only the wait was interrupted. The put goes on, and its"
                " rows may become durable; close() waits for it, or raises with unwritten rows"
            )
            raise
        what = f"{self._state.name}: the put is not durable after {timeout} s"
        raise TimeoutError(f"{what}; it continues, call wait() again for its outcome")

    def _await(self, ack: Ack, deadline: float | None, me: Waiter) -> bool:
        """False when the deadline passed."""
        state = self._state
        turns, crowd = state.turns, state.turns.crowd
        patience = crowd.patience
        while True:
            with state.lock:
                chosen = turns.arrived(ack)
                lead = not ack.done and turns.lead(me, chosen=chosen)
                if not ack.done and not lead:
                    gate = turns.gate_for(ack)
                if chosen:
                    crowd.promote(turns)
                if ack.done:
                    return True
            if lead:
                self._lead()
                if ack.is_settled:
                    return True
                continue
            left = -1 if deadline is None else max(0.0, deadline - self._env.clock.boottime())
            if patience is not None and (left < 0 or left > patience):
                if not gate.acquire(timeout=patience):
                    self._lose_patience()
                    patience *= 2  # do not poll a store that does not answer
                    continue
            elif not gate.acquire(timeout=left):
                if self._goes_alone():
                    continue
                return False
            gate.release()  # a turnstile: `flush_wal` may wait for the same ack as its putter

    def _lose_patience(self) -> None:
        with self._state.lock:
            self._state.turns.crowd.suspend_turns()

    def _goes_alone(self) -> bool:
        """True when the deadline passed during another shard's turn: no thread writes our entry, so
        this one leads, as it would have without turns."""
        state = self._state
        with state.lock:
            crowd = state.turns.crowd
            if not crowd.takes_turns or state.leading:
                return False
            crowd.suspend_turns()
            return True

    def _leave(self, ack: Ack, me: Waiter) -> bool:
        """Give up waiting; True if the ack is done after all. May be called several times."""
        state = self._state
        if ack.unshaped is not None:
            self.acceptor.shape()  # fix the rows now: their caller may change them afterwards
        with state.lock:
            state.turns.leave(ack)
            if me.leads is not None and me.leads.leader is me:
                me.leads.give_up_lead()  # interrupted before it began, or after it finished
            state.turns.ask()
            if ack.done:
                return True
        self._wake_pump()  # without a pump the next waiter writes it, `close` at the latest
        return False

    def promote(self) -> None:
        """Let a waiting thread lead, if none does."""
        with self._state.lock:
            self._state.turns.ask()

    def unclaim(self, ack: Ack) -> bool:
        """Stop waiting for the ack; False when it is done, and the caller gets its outcome.

        Atomic with the end of a writer: a close in between would count the rows as reported, while
        their caller only got a timeout (F-16).
        """
        with self._state.lock:
            ack.claimed = ack.done
        return not ack.done

    def abandon(self, ack: Ack) -> None:
        """Give up an ack whose gate `Turns` adopted: no thread will come for it."""
        run_uninterrupted(lambda: self._leave(ack, Waiter()))

    def drain(self, timeout: float | None = None) -> None:
        """Return when everything accepted so far is durable (M-8)."""
        state = self._state
        self.acceptor.shape()
        with state.lock:
            # Once the writer has ended, an empty queue means rows left over, not all durable.
            if state.failure is not None:
                raise state.ending.error()
            last = state.queue[-1] if state.queue else None
        if last is not None:
            self.wait(last, timeout)
            if last.error is not None:
                raise state.ending.error()

    def join(self) -> None:
        """Return when the pump of a stopped writer has ended."""
        if self._pump is not None:
            self._pump.join()

    # -- leading ---------------------------------------------------------------------------------

    def _lead(self) -> None:
        """Write one entry for the waiting puts; rows stay queued until it is durable (M-3)."""
        state = self._state
        finished: list[Ack] = []
        try:
            self.acceptor.shape()
            with state.lock:
                group = state.take()
            if group:
                position, seconds = self._write(group)
                with state.lock:
                    finished = state.landed(group, position, seconds)
        except Exception as error:  # noqa: BLE001  rows nobody can encode must end the writer
            with state.lock:
                sent = state.entry is not None and state.entry.sent
                ours = error if isinstance(error, WeirError) else internal(error)
                finished = state.end(ours, sent=sent)
        finally:
            with state.lock:
                state.give_up_lead()
            if finished:
                run_callbacks(finished)

    def _write(self, group: list[Ack]) -> tuple[Position, float]:
        """Write the entry; return its position, and how long it took."""
        state = self._state
        if state.entry is None:
            batches = rows_of(group)
            tokens = [token for ack in group for token in ack.tokens]
            first = group[0]
            generation = first.generation
            assert generation is not None, "M-4: queued rows without a generation"
            # Use the counts made at acceptance: measuring a batch takes 20 us.
            rows, nbytes = sum([ack.rows for ack in group]), sum([ack.nbytes for ack in group])
            more = Fill(rows, len(batches), nbytes)
            state.entry = self._appender.prepare(
                batches, generation=generation, tokens=tokens, more=more
            )
        began = self._env.clock.boottime()
        position = retry_outage(self._env, self._append, delay=0.05, failed=self._append_failed)
        now = self._env.clock.boottime()
        state.counters.appended(group, now - began)
        if self._log_interval and now - self._logged_at >= self._log_interval:
            self._logged_at = now
            shard = self._appender.site.shard
            logger.info("writer.stats shard=%s %s", shard, writer_stats(state, self._appender))
        return position, now - began

    def _append(self) -> Position:
        entry = self._state.entry
        assert entry is not None, "F-16: the entry under way is kept until it landed"
        return self._appender.write(entry)

    def _append_failed(self, attempt: int, error: StoreError) -> None:
        state = self._state
        state.counters.append_failures += 1
        facts = (state.name, attempt, sum(ack.rows for ack in state.in_flight), error)
        logger.warning("wal.append.failed %s attempt=%d rows=%d reason=%s", *facts)
        self._lose_patience()  # no other shard waits for the store to recover

    # -- pump ------------------------------------------------------------------------------------

    def _run_pump(self) -> None:
        while self._pump_takes_the_lead():
            with contextlib.suppress(KeyboardInterrupt):  # from a callback, not a signal
                self._lead()
        self.acceptor.shape()  # the rows of tasks, which are handed back

    def _pump_takes_the_lead(self) -> bool:
        """Wait until the pump should lead, and take the lead; False when the writer ends."""
        state = self._state
        with state.lock:
            while not self._pump_should_lead():
                if state.stopping or state.failure is not None:
                    return False
                state.is_pump_called = False
                state.pump_wake.wait(self._pump_patience())
            state.leading = True
            return True

    def _pump_should_lead(self) -> bool:
        state, config = self._state, self._state.config
        if state.leading or not state.waiting or state.failure is not None:
            return False
        if config.durable_write or state.stopping:
            return True
        return (
            state.queued_bytes >= config.max_wal_buffer_size
            or self._oldest_waited() >= config.flush_interval_s
            or state.is_room_wanted
        )

    def _pump_patience(self) -> float | None:
        state, config = self._state, self._state.config
        if config.durable_write or not state.waiting or state.leading:
            return None
        return max(0.001, config.flush_interval_s - self._oldest_waited())

    def _oldest_waited(self) -> float:
        oldest = (self._state.queue or self._state.unshaped)[0]
        return self._env.clock.boottime() - oldest.enqueued_at
