"""The way of rows to the log: one queue, and one thread at a time that commits.

Whoever holds the right to commit, a plain lock, takes the head of the queue, writes it as one entry
and books the outcome. Usually that is the commit thread of the writer, which starts with the first
put that finds another one on its way, and ends when it was idle for a while. A thread that puts
while nothing else is on its way commits by itself, without a hand-over. Where no thread can be
started, callers commit (F-16).

The commit thread takes the next group when every putter that it woke has run: they are about to
return and put again, and their rows belong in the next entry, not in the one after it. Without this
rule one thread on a fast store keeps the interpreter for its whole switch interval (5 ms) and
writes entry after entry alone while 15 others wait.

Signals interrupt only a caller's thread. What it was doing is in the state of the writer: the rows
being booked, the entry on its way, the acks to be finished. The next thread that commits finishes
it, so an interrupted one has nothing to clean up.

Keeps
  F-10 one put in flight per shard: the right to commit is exclusive, also during retries
  F-16 an interrupted entry is written again, the same bytes to the same place, before any other
  M-6  puts over the bound wait in the order in which they came
  M-7  an error in a put is reported to its putter, and to no other caller
"""

from __future__ import annotations

import contextlib
import logging
from asyncio import Future
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby, takewhile
from threading import get_ident

from weir.durations import deadline_after, seconds_until
from weir.env import Lock, Thread
from weir.errors import Backpressure, StoreError, WeirError
from weir.format.wal_entry import Fill
from weir.log.appender import WalAppender
from weir.log.intake import Intake
from weir.log.small_put import shape_together
from weir.meters import (
    APPEND_FAILURES,
    APPEND_SECONDS,
    ENTRIES,
    ENTRY_BYTES,
    ENTRY_PUTS,
    PUT_GROUP,
    PUTS,
    ROWS,
    Facts,
)
from weir.shard.ack import Ack, DoneCallback, closed_gate, release, rows_of, run_callbacks
from weir.shard.decide import decide_run
from weir.shard.ending import Ending, internal
from weir.shard.flush import Flusher
from weir.shard.outages import retry_outage
from weir.shard.state import EntrySlot, WriterState, fail
from weir.shard.stats import writer_stats
from weir.shard.turns import GATHER_SECONDS
from weir.types import Position

logger = logging.getLogger("weir.shard")


class Committer:
    """Commits the puts of one writer. Safe to share between threads."""

    def __init__(
        self,
        state: WriterState,
        intake: Intake,
        appender: WalAppender,
        flusher: Flusher | None,
    ) -> None:
        self.intake = intake
        self._state = state
        self._appender = appender
        self._flusher = flusher
        self._env = state.env
        threads = state.env.threads
        self._right = threads.lock()
        """The right to commit."""
        self._booking = threads.lock()
        """Held while rows are shaped and decided, so that they are booked in order."""
        self._thread: Thread | None = None
        self._apart: dict[int, Thread] = {}
        """Commit threads that run callbacks, by their own ids; another may be started meanwhile,
        and then they end."""
        self._is_awake = False
        """The commit thread looks at the queue before it waits again."""
        self._is_timed = False
        """The commit thread wakes by itself to write what is queued. A buffered put calls a thread
        that does not: nobody else would, until its writer closes."""
        self._finished: deque[Sequence[Ack]] = deque()
        """Acks that are done, those of an entry together, whose callbacks and tasks are still to be
        told."""
        self._logged_at = self._env.clock.boottime()
        self._log_interval = state.config.stats_log_interval_s

    # -- called by putters -----------------------------------------------------------------------

    def put(
        self,
        ack: Ack,
        *,
        wait: bool,
        timeout: float | None = None,
        look: Callable[[Ack], bool] | None = None,
    ) -> None:
        """Accept the rows and, with `wait`, return when they are durable.

        `look` comes first, for rows that are to be decided. It may accept those of other callers
        with them, and says whether this thread may commit by itself. Raises `Backpressure` when
        `timeout` passes before they are accepted, `TimeoutError` when it passes before they are
        durable, or what ended the writer.
        """
        deadline = deadline_after(timeout, self._env.clock)
        ack.waits_for_room = not wait

        def run() -> None:
            may_commit = True
            if look is not None:
                ack.gate, ack.waiters = closed_gate(self._env), 1
                may_commit = look(ack)
            self._put(ack, deadline, wait=wait, may_commit=may_commit)

        self._attend(ack, run, wait=wait)

    def _attend(self, ack: Ack, run: Callable[[], None], *, wait: bool) -> None:
        """Put or wait for a caller, which gets the outcome unless it leaves before: it does not
        `wait`, its time is up, or it is interrupted."""
        ack.callers += 1
        is_there = True
        try:
            run()
            if not (wait and ack.done):
                # Atomic with the end of a writer: a close in between would count the rows as
                # reported, while their caller only got a timeout (F-16).
                with self._state.lock:
                    self._step_back(ack)
                    if not (ack.is_refused or (wait and ack.done)):
                        ack.callers -= 1  # F-16: no call between this and the next line
                        is_there = False
            if is_there and (error := ack.error) is not None:
                raise error
            if wait and not is_there:
                raise TimeoutError(self._late())
        except Exception:
            raise
        except BaseException as interrupt:
            if is_there:  # first: from here on a flush or close reports the rows
                ack.callers -= 1
            self.interrupted(ack, interrupt)
            raise

    def _put(
        self, ack: Ack, deadline: float | None, *, wait: bool, may_commit: bool = True
    ) -> None:
        state = self._state
        with state.lock:
            # guard: M-7 last test_waiters
            is_lone = wait and may_commit and state.crowd.is_idle and deadline is None
            if not ack.is_accepted:  # else: by another caller, whose lookup found its rows
                state.submit(ack)
            is_lone = is_lone and ack.is_accepted
            is_counted = ack.decision is not None and ack.decision.is_counted
            if not (is_lone or is_counted or ack.done):
                if ack.gate is None:
                    ack.gate = closed_gate(self._env)
                ack.waiters += 1
        if is_lone:
            self._commit_here(ack)
            return
        if not ack.is_accepted:
            self._make_room(ack)
        if wait:
            self._await(ack, deadline)
        else:
            self._accept(ack, deadline)

    def offer(self, ack: Ack) -> None:
        """`put` for a task, which then awaits the future of the ack; never blocks."""
        state = self._state
        with state.lock:
            state.submit(ack)
        if not ack.is_accepted:
            self._make_room(ack)
        is_called = self._hurry()
        if ack.is_accepted and not is_called:  # guard: F-16 test_process
            self._commit_here(ack)

    def wait(self, ack: Ack, timeout: float | None = None) -> None:
        """Return when `ack` is done; raise what became of it, if it is not durable."""
        self._require_home(ack)
        deadline = deadline_after(timeout, self._env.clock)

        def wait() -> None:
            if self._enter(ack):
                self._await(ack, deadline)

        self._attend(ack, wait, wait=True)

    def add_callback(self, ack: Ack, callback: DoneCallback) -> bool:
        """Register `callback`; False when the ack is done already."""
        self._require_home(ack)
        with self._state.lock:
            if not ack.done:
                ack.call_when_done(callback)
            return not ack.done

    def add_future(self, ack: Ack, future: Future[None]) -> bool:
        """Complete `future` when the ack is done; False when it is done already."""
        self._require_home(ack)
        with self._state.lock:
            if not ack.done:
                waiting = [
                    one
                    for one in ack.futures or ()
                    if not one.done()  # guard: M-6 test_waiters
                ]
                ack.futures = [*waiting, future]
            return not ack.done

    def _require_home(self, ack: Ack) -> None:
        """Raise in a forked child, unless the outcome was known before: nobody there finishes it,
        and a lock of the parent's may be taken for ever."""
        ending = self._state.ending
        if ending.home.is_forked and not ack.done:  # guard: F-16 test_process
            raise ending.refused()

    def drain(self, timeout: float | None = None) -> None:
        """Return when everything accepted so far is durable (M-8)."""
        state = self._state
        # Once the writer has ended, an empty queue means rows left over, not all durable.
        if state.failure is not None or not self.settle(timeout):
            raise state.ending.error()

    def settle(self, timeout: float | None = None) -> bool:
        """Return when everything accepted so far is durable, or never will be; True: durable.

        Callers that wait for those puts get their outcome themselves.
        """
        state = self._state
        self.book()
        with state.lock:
            last = state.last_under_way
        if last is None:
            self._finish_interrupted()
        elif not self.watch(last, timeout):
            raise TimeoutError(self._late())
        return state.failure is None

    def watch(self, ack: Ack, timeout: float | None = None) -> bool:
        """Wait until `ack` is done; False when `timeout` passed. Others get the outcome."""
        deadline = deadline_after(timeout, self._env.clock)
        if not self._enter(ack):
            return True
        self._hurry()
        is_done = self._pass(ack, deadline)
        with self._state.lock:
            self._step_back(ack)
        return is_done

    def join(self) -> None:
        """Return when the commit threads of a stopped writer have ended."""
        self._state.bell.ring()
        with self._state.lock:
            threads = [] if self._thread is None else [self._thread]
            if get_ident() not in self._apart:  # two callbacks that close: neither waits
                threads += self._apart.values()  # guard: F-16 test_waiters
        for thread in threads:
            thread.join()
        self._finish_interrupted()

    @property
    def ending(self) -> Ending:
        """Who gets the rows of puts that failed."""
        return self._state.ending

    def refusal_of(self, ack: Ack) -> Exception:
        """The error of a put whose rows the writer did not take before it ended."""
        try:
            return self._state.ending.refused(ack.batches)
        except Exception as error:  # noqa: BLE001  rows that nobody had shaped, and nobody can
            return error

    # -- waiting ---------------------------------------------------------------------------------

    def _enter(self, ack: Ack) -> bool:
        """One more thread waits at the gate; False when the ack is done."""
        with self._state.lock:
            if ack.done:
                return False
            if ack.gate is None:
                ack.gate = closed_gate(self._env)
            ack.waiters += 1
            return True

    def _step_back(self, ack: Ack) -> None:
        """One thread less waits at the gate; lock held."""
        ack.waiters -= 1
        if not ack.done and not ack.waiters:
            ack.gate = None

    def _await(self, ack: Ack, deadline: float | None) -> None:
        """Return when `ack` is done, or at the deadline; raise `Backpressure` if it was not even
        accepted by then."""
        if deadline is not None:
            self._state.is_urgent = True
        self._hurry()
        if not self._pass(ack, deadline):
            self._give_up(ack)
            # Now: the caller may change its rows, reads them (M-1), is told of errors.
            self.book()

    def _give_up(self, ack: Ack) -> None:
        """The time of a caller is up: raise `Backpressure` if nothing of its put was accepted."""
        with self._state.lock:
            is_withdrawn = self._state.withdraw(ack)
        if is_withdrawn:
            raise self._no_room(ack)

    def interrupted(self, ack: Ack, interrupt: BaseException) -> None:
        """A caller stops waiting because it was interrupted, or its task was cancelled; what it
        waited for goes on, unless it was not accepted yet."""
        with self._state.lock:
            is_withdrawn = self._state.withdraw(ack)
            # One that was refused while it waited for room is in no report: nothing went in.
            # guard: F-16 last test_waiters
            does_go_on = ack.is_accepted and not is_withdrawn
        goes_on = (
            "only the wait was interrupted. The put goes on, and its rows may become durable;"
            " close() waits for it, or raises with unwritten rows"
        )
        said = goes_on if does_go_on else "nothing of the put was accepted"
        interrupt.add_note(f"{self._state.name}: {said}")
        self._call()

    @property
    def label(self) -> str:
        """The writer in a log event."""
        return self._state.label

    def take_back(self, ack: Ack) -> bool:
        """Make certain that a put whose caller has left, perhaps before it was submitted, is never
        accepted; False if it was."""
        with self._state.lock:
            return self._state.withdraw(ack)

    def _pass(self, ack: Ack, deadline: float | None, *, for_room: bool = False) -> bool:
        """Wait until `ack` is done or, `for_room`, accepted; False when the deadline passed.

        The gate of an ack that is done is passed, too: whoever passes it wakes the next thread.
        """

        def is_over() -> bool:
            return ack.done or (for_room and ack.is_accepted)

        while not (for_room and is_over()):
            if self._state.has_no_threads:
                if ack.done:
                    return True
                (self._make_room if for_room else self._commit_here)(ack)
                continue
            gate, left = ack.gate, seconds_until(deadline, self._env.clock)
            if gate is None or not ack.pass_gate(gate, left) or is_over():
                return is_over()
        return True

    def _accept(self, ack: Ack, deadline: float | None) -> None:
        """Return when the rows of a put that nobody waits for are accepted and visible (M-1)."""
        state = self._state
        if not self._pass(ack, deadline, for_room=True):
            self._give_up(ack)
        self.book()
        config = state.config
        if (
            config.durable_write
            or not self._is_timed
            or state.queued_bytes >= config.max_wal_buffer_size
            or state.is_room_wanted
        ) and not (self._is_awake or self._call()):
            self._commit_here(ack)

    def _no_room(self, ack: Ack) -> Backpressure:
        state = self._state
        if ack.is_accepted:
            return Backpressure(
                f"{state.name}: earlier writes were still in progress when the time was up;"
                " nothing of this write was accepted, try again"
            )  # a decision: whoever asked for it has the rows
        return Backpressure(
            f"{state.name}: {state.held_bytes} bytes are in memory, and"
            f" max_unflushed_memtable_bytes is {state.config.max_unflushed_memtable_bytes};"
            " nothing of this put was accepted, try again",
            not_written=ack.batches,
        )

    def _late(self) -> str:
        return (
            f"{self._state.name}: the rows are not durable in time. They are still being written:"
            " flush_wal() and close() wait for them"
        )

    def _hurry(self) -> bool:
        """Somebody waits: let the commit thread write what is queued, now; False if no thread can
        be started (F-16)."""
        if not self._state.config.durable_write:
            self._state.is_hurried = True
        elif self._is_awake:
            return True
        return self._call()

    def _make_room(self, ack: Ack) -> None:
        """Puts wait for room: write and flush what is in memory, here if there is no thread."""
        state, flusher = self._state, self._flusher
        state.log_events()
        is_called = self._call()
        if flusher is not None:
            with state.lock:
                flusher.make_room()
        if is_called and not state.has_no_threads:
            return
        # The flush thread may be the one that could not be started.
        while not ack.is_accepted and not ack.done:
            self._commit_once()
            if flusher is not None:
                flusher.help_to_room(ack)

    # -- booking ---------------------------------------------------------------------------------

    def book(self) -> None:
        """Shape and decide what was accepted, in order, and book it: then reads find it."""
        state = self._state
        if state.booked == len(state.queue):
            return
        with self._booking:
            while state.booked < len(state.queue) and self._book_some():
                pass

    def _book_some(self) -> bool:
        """Book the first unbooked puts of one kind; False when there are none."""
        state = self._state
        with state.lock:
            waiting = [] if state.failure is not None else state.unbooked()
            run = list(takewhile(_is_shaped, waiting))
            if run:
                self._book_each(run)
        if not waiting:
            return False
        if not run:
            is_decided, run = waiting[0].decision is not None, waiting
            if len(waiting) > 1:
                run = list(takewhile(lambda ack: (ack.decision is not None) is is_decided, waiting))
            if is_decided:
                self._decide(run)
            else:
                self._shape(run)
        self._booked(sum([ack.rows for ack in run]))
        return True

    def _shape(self, run: Sequence[Ack]) -> None:
        """Shape the rows of small puts in one conversion, and book the rows of all (M-7)."""
        state = self._state
        unshaped = [(ack, ack.unshaped) for ack in run if ack.unshaped is not None]
        puts = [put for _, put in unshaped]
        shaped = shape_together(self.intake, puts, self._env.limits) if puts else []
        refused = []
        with state.lock:
            if state.failure is not None:
                return
            for (ack, _), result in zip(unshaped, shaped, strict=True):
                if isinstance(result, Exception):
                    ack.error, ack.rows = result, 0
                    ack.done = True
                    refused.append(ack)
                else:
                    state.resize(ack, result.nbytes)
                    ack.shaped = result
                ack.unshaped = None
            self._book_each(run)
        if refused:
            self._tell(refused)

    def _decide(self, run: Sequence[Ack]) -> None:
        """Decide those writes together and book the rows that result (O-2)."""
        state = self._state
        memtables = state.memtables
        assert memtables is not None, "M-2: a WAL-only writer does not look"
        decisions = [(ack, ack.decision) for ack in run if ack.decision is not None]
        with state.lock:
            there = [(ack, decision) for ack, decision in decisions if not ack.done]
            fresh = [d for _, d in there if d.is_current(memtables)]
            since = memtables.since(min((d.found.mark for d in fresh if d.found), default=None))
        try:
            decide_run(fresh, since, self.intake, self._env.limits)
        except WeirError as error:  # guard: M-7 test_looking
            for decision in fresh:
                decision.refuse(error)
        with state.lock:
            # guard: O-2 last test_looking
            if state.failure is not None or any(ack.done for ack, _ in there):
                return  # a caller has left: decide again without it
            for ack, decision in there:
                rows = decision.rows
                if decision.is_stale or not rows:
                    state.resize(ack, 0)
                    ack.take_rows((), None, 0)  # an interrupted attempt may have left some
                else:
                    state.resize(ack, decision.nbytes)
                    ack.take_rows(rows, decision.piece, decision.row_count)
            self._book_each(run)
        self._env.failpoint("looking.decided")

    def _book_each(self, run: Sequence[Ack]) -> None:
        """Book puts in order, lock held; neighbours whose rows share a batch in one step."""
        state = self._state
        if len(run) == 1:
            self._book_one(run[0])
            return
        for key, shared in groupby(run, key=_batch_of):
            acks = list(shared)
            if key is not None and state.memtables is not None and len(acks) > 1:
                more = Fill(sum([a.rows for a in acks]), len(acks), sum([a.nbytes for a in acks]))
                if state.memtables.holds(more):
                    state.book(acks, rows_of(acks), more)
                    continue
            for ack in acks:
                self._book_one(ack)

    def _book_one(self, ack: Ack) -> None:
        if ack.rows and not ack.done:
            self._state.book([ack], ack.batches, ack.fill)
        else:
            self._state.skip(ack)

    def _booked(self, rows: int) -> None:
        flusher, memtables = self._flusher, self._state.memtables
        if flusher is None or memtables is None:
            return
        if memtables.frozen or self._state.room:
            with self._state.lock:
                if self._state.room:
                    flusher.make_room()
                elif memtables.frozen:
                    flusher.wake()
        if rows:
            flusher.indexes.rows_added(flusher.active.level, rows)

    # -- committing ------------------------------------------------------------------------------

    def _commit_here(self, ack: Ack) -> None:
        """Commit in the caller's thread until `ack` is done."""
        while not ack.done:
            self._commit_once()

    def _finish_interrupted(self) -> None:
        """Finish what an interrupted thread had begun."""
        if self._state.slot is not None:
            self._commit_once()
        self._run_finished()

    def _commit_once(self) -> None:
        """Write one entry, in a caller's thread: its waiters are woken all at once."""
        with self._right:
            for ack in self._commit():
                release_gate(ack)
            self._state.slot = None
        self._run_finished()

    def _commit(self) -> Sequence[Ack]:
        """Write one entry for the first puts of the queue, or finish the one that was interrupted.

        The right to commit is held. Returns the acks that are done; the caller wakes their threads
        and then empties the slot.
        """
        state = self._state
        try:
            slot = self._take()
            if slot is None:
                return ()
            if not slot.is_sent:
                self._write(slot)
            with state.lock:
                done = state.landed(slot)
                if self._flusher is not None:
                    self._flusher.attend()
        except Exception as error:  # noqa: BLE001  rows nobody can encode must end the writer
            with state.lock:
                slot = state.slot
                sent = slot is not None and slot.entry is not None and slot.entry.sent
                ours = error if isinstance(error, WeirError) else internal(error)
                done = state.end(ours, sent=sent)
            state.log_events()
        told = [ack for ack in done if ack.callbacks or ack.futures]
        if told:
            self._finished.append(told)
        return done

    def _take(self) -> EntrySlot | None:
        state = self._state
        if state.failure is None and state.slot is None:
            self.book()
        with state.lock:
            if state.failure is not None:
                # F-13: the callers got their rows back, and may have put them elsewhere.
                if ended := state.finish_end():
                    self._finished.append(ended)
                return None
            if state.slot is None:
                group = state.take()
                if not group:
                    return None
                state.slot = EntrySlot(group)
            return state.slot

    def _write(self, slot: EntrySlot) -> None:
        """Make the entry durable; rows stay queued until it is (M-3)."""
        state = self._state
        writing = [ack for ack in slot.group if ack.rows and not ack.done]
        if not writing:
            slot.is_sent = True
            return
        if slot.entry is None:
            batches = rows_of(writing)
            tokens = [token for ack in writing for token in ack.tokens]
            generation = writing[0].generation
            assert generation is not None, "M-4: queued rows without a generation"
            # Use the counts made at acceptance: measuring a batch takes 20 us.
            rows, nbytes = sum([ack.rows for ack in writing]), sum([ack.nbytes for ack in writing])
            more = Fill(rows, len(batches), nbytes)
            slot.entry = self._appender.prepare(
                batches, generation=generation, tokens=tokens, more=more
            )
        began = self._env.clock.boottime()
        entry = slot.entry

        def append() -> Position:
            return self._appender.write(entry)

        def repeated() -> Position:
            return retry_outage(self._env, append, delay=0.05, failed=self._append_failed)

        def facts() -> Facts:
            place = self._appender.site.facts(self._appender.epoch)
            counts = {"weir.puts": len(writing), "weir.rows": sum([ack.rows for ack in writing])}
            return {**place, **counts, "weir.bytes": len(entry.data)}

        self._env.meters.traced(PUT_GROUP, repeated, facts, self._env.clock)
        now = self._env.clock.boottime()
        slot.seconds = now - began
        slot.is_sent = True
        state.crowd.pace.record_latency(slot.seconds)
        state.counters.appended(writing, slot.seconds)
        if self._env.meters.is_on:
            self._measure(writing, len(entry.data), slot.seconds)
        if self._log_interval and now - self._logged_at >= self._log_interval:
            self._logged_at = now
            logger.info("writer.stats %s %s", state.label, writer_stats(state, self._appender))

    def _measure(self, group: Sequence[Ack], nbytes: int, seconds: float) -> None:
        puts, rows = len(group), sum([ack.rows for ack in group])
        self._env.meters.record(
            (ENTRIES, 1),
            (ENTRY_BYTES, nbytes),
            (PUTS, puts),
            (ROWS, rows),
            (ENTRY_PUTS, puts),
            (APPEND_SECONDS, seconds),
        )

    def _append_failed(self, attempt: int, error: StoreError) -> None:
        state, slot = self._state, self._state.slot
        state.counters.append_failures += 1
        self._env.meters.add(APPEND_FAILURES)
        rows = 0 if slot is None else sum(ack.rows for ack in slot.group)
        facts = (state.label, attempt, rows, error)
        logger.warning("wal.append.failed %s attempt=%d rows=%d reason=%s", *facts)
        state.crowd.pace.forget()  # no other shard waits for the store to recover

    def _tell(self, acks: Sequence[Ack]) -> None:
        """Wake those who wait for acks that are done."""
        for ack in acks:
            release_gate(ack)
            ack.gate = None  # it is woken: the next entry wakes others
        if acks:
            self._finished.append(acks)
            self._call()

    def _run_finished(self) -> None:
        """Wake the tasks and run the callbacks of acks that are done; no lock is held. Acks stay
        listed until they were told: after an interrupt the next thread tells them again (F-16)."""
        for acks in list(self._finished):
            run_callbacks(acks)
            with contextlib.suppress(ValueError):  # another thread told them too
                self._finished.remove(acks)

    # -- the commit thread -----------------------------------------------------------------------

    def _call(self) -> bool:
        """Wake the commit thread, or start it; False if no thread can be started (F-16)."""
        if self._thread is None and not self._start():
            return False
        self._state.bell.ring()
        return True

    def _start(self) -> bool:
        state = self._state
        with state.lock:
            if self._thread is None:
                # An interrupt in here at worst leaves a thread that nobody knows: it commits
                # like any other, and ends when it is idle.
                self._is_awake = False
                self._thread = state.start(self._run, f"weir-wal-{state.name}")
            is_there = self._thread is not None
        state.log_events()
        return is_there

    def _run(self) -> None:
        try:
            while self._await_work():
                try:
                    if not self._commit_and_gather():
                        return
                except KeyboardInterrupt:  # raised by a store: no signal reaches this thread
                    continue
        except BaseException as error:  # a panic of a library: nobody else would hear of it
            fail(self._state, internal(error))
            raise
        finally:
            self._is_awake = False
            self._apart.pop(get_ident(), None)

    def _commit_and_gather(self) -> bool:
        """Write one entry; False when another thread commits by now."""
        state = self._state
        is_in_charge = True
        has_turn = state.crowd.begin_turn(state.queued_bytes, is_urgent=state.is_urgent)
        try:
            with self._right:
                gathered = closed_gate(self._env)
                woken = self._wake_in_order(self._commit(), gathered)
                state.slot = None
            if self._finished:
                is_in_charge = self._run_finished_apart()
            if woken:
                self._gather(woken, gathered)
        finally:
            if has_turn:
                state.crowd.end_turn()
        return is_in_charge

    def _wake_in_order(self, done: Sequence[Ack], gathered: Lock) -> list[Ack]:
        """Wake the first of the threads that wait for those acks; each wakes the next, and the last
        one opens `gathered`."""
        state = self._state
        with state.lock:
            woken = [ack for ack in done if ack.gate is not None]
            if not woken:
                return woken
            gates = [ack.gate for ack in woken if ack.gate is not None]
            for ack, following in zip(woken, gates[1:], strict=False):
                ack.wakes = following
            woken[-1].wakes = gathered
            state.crowd.gathering += 1
        release(gates[0])
        return woken

    def _gather(self, woken: Sequence[Ack], gathered: Lock) -> None:
        """Return when the putters that were woken have run. One that was interrupted may have woken
        nobody, or out of turn: whoever was passed over is woken here."""
        gathered.acquire(True, GATHER_SECONDS)
        for ack in woken:
            if ack.wakes is not None:
                release_gate(ack)
        with self._state.lock:
            self._state.crowd.end_gathering()

    def _run_finished_apart(self) -> bool:
        """Run callbacks. They may put through this writer and wait: another commit thread is
        started if one is needed meanwhile, and goes on in place of this one (then False)."""
        if not any(ack.callbacks for acks in self._finished for ack in acks):
            self._run_finished()
            return True
        self._step_aside()
        try:
            self._run_finished()
        except KeyboardInterrupt:  # from a callback, not a signal
            logger.exception("ack.callback.failed %s", self._state.label)
        with self._state.lock:
            if self._thread is not None:
                return False
            self._thread = self._apart.pop(get_ident(), None)
            return True

    def _step_aside(self) -> None:
        with self._state.lock:
            if self._thread is not None:
                self._apart[get_ident()] = self._thread
            self._thread, self._is_awake, self._is_timed = None, False, False

    def _await_work(self) -> bool:
        """Wait until there is an entry to write; False when the thread should end. While puts wait
        for room it waits without a limit: `WriterState` rings when there is room, and when they
        have left."""
        state, is_idle = self._state, False
        while True:
            self._is_awake = True
            with state.lock:
                if state.room and self._flusher is not None:
                    self._flusher.make_room()  # whoever booked rows may have been interrupted
                delay = self._delay()
                self._is_timed = delay is not None
                if delay == 0.0:
                    return True
                self._is_awake = False
                is_unneeded = delay is None and not state.room
                is_over = state.stopping and not state.queue and state.slot is None
                if is_over or (is_idle and is_unneeded):
                    if not is_over:
                        self._thread = None
                    state.bell.ring()  # an interrupt may have left a second thread
                    return False
            was_rung = state.bell.wait(state.crowd.idle_seconds if is_unneeded else delay)
            is_idle = is_unneeded and not was_rung

    def _delay(self) -> float | None:
        """Seconds until the next entry should be written; None: there is nothing to write."""
        state, config = self._state, self._state.config
        if state.slot is not None or self._finished:
            return 0.0
        if not state.queue and not (state.room and state.failure is not None):
            return None
        if config.durable_write or state.stopping or state.is_hurried:
            return 0.0
        if state.failure is not None or state.is_room_wanted:
            return 0.0
        if state.queued_bytes >= config.max_wal_buffer_size:
            return 0.0
        waited = self._env.clock.boottime() - state.queue[0].enqueued_at
        return max(0.0, config.flush_interval_s - waited)


def release_gate(ack: Ack) -> None:
    """Let the threads run that wait for `ack`."""
    gate = ack.gate
    if gate is not None:
        release(gate)


def _is_shaped(ack: Ack) -> bool:
    """Whether the rows of a put can be booked as they are."""
    return ack.unshaped is None and ack.decision is None


def _batch_of(ack: Ack) -> int | None:
    # One that was refused meanwhile may still have rows, of a decision that was interrupted.
    if ack.done:  # guard: F-16 test_looking
        return None
    return None if ack.shaped is None else id(ack.shaped.batch)
