"""Writes that look first: the shard's owner reads the newest rows, decides, and logs whole rows.

Concurrent calls are decided together, by the thread of the first of them: one lookup for all their
keys, one pass over their rows. No other caller is held up: puts go on, and when one of them brings
a row of a key that was looked up, the decision is made again.

Keeps
  O-2  no row of those keys came between lookup and acceptance: checked under the lock that accepts,
       and decided again if one did
  O-3  rows are logged after those they rest on; a call that writes none waits for those to be
       durable
  O-4  a call that writes none is answered by the shard's owner alone, proven after the decision
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final, TypeGuard

import pyarrow as pa

from weir.errors import Backpressure, InvalidInput, KeyConflict, WeirError
from weir.log.entry import Token
from weir.log.intake import Intake
from weir.shard.ack import Ack
from weir.shard.decision import Call, DecisionBatch
from weir.shard.ending import is_writer_end, with_rows
from weir.shard.group import GroupCommit, run_uninterrupted
from weir.shard.once import ExactlyOnce
from weir.shard.own_reads import OwnReads
from weir.shard.request import Request, WriteCounts, shape_all
from weir.shard.request_builder import RequestBuilder
from weir.shard.state import WriterState

TOGETHER_ROWS: Final = 10_000
"""Most rows of requests that are decided together; a larger request is decided alone."""
TRIES: Final = 4
"""Attempts to decide. On the last, a decision that puts overtook is made again under the lock."""


class ConditionalWrites:
    """The writes of one writer that look first. Safe to share between threads."""

    def __init__(
        self, state: WriterState, intake: Intake, reads: OwnReads, group: GroupCommit
    ) -> None:
        self._state = state
        self._intake = intake
        self._reads = reads
        self._group = group
        self.requests = RequestBuilder(intake, reads)
        self._pending: list[Call] = []
        self._pending_lock = state.env.threads.lock()
        self._decider: Call | None = None
        """The call that decides for all pending ones, or was chosen to."""

    def run_once(
        self,
        once: ExactlyOnce,
        batches: list[pa.RecordBatch],
        make: Callable[[list[pa.RecordBatch]], Request],
        *,
        app: str,
        version: int,
        timeout: float | None,
    ) -> WriteCounts | None:
        """Decide the request that `make` builds from the rows; None if that batch is in (P-2).

        Rows and token go into one entry; when no rows are written, the token is recorded alone.
        """
        request = Request()

        def accept(
            left: list[pa.RecordBatch], timeout: float | None, tokens: Sequence[Token]
        ) -> Ack | None:
            nonlocal request
            request = make(left)
            call = Call(request, tokens)
            if not request.is_empty:
                self._await_decision(call, timeout)
            if call.ack is None:
                self._group.promote()
                self._answer(call, wait=True, timeout=timeout)
            return call.ack

        applied = once.put(batches, app=app, version=version, timeout=timeout, enqueue=accept)
        return request.counts if applied else None

    # -- asking and answering --------------------------------------------------------------------

    def run(self, request: Request, *, wait: bool, timeout: float | None) -> WriteCounts:
        """Decide the request, write the rows that result, and return the counts."""
        call = Call(request)
        if self._state.closing or self._state.ending.is_over:
            raise self._state.ending.refused(request.handed_back())
        if request.is_empty:
            return self._answer(call, wait=wait, timeout=timeout)
        try:
            self._await_decision(call, timeout)
            if call.ack is None:
                self._group.promote()
            return self._answer(call, wait=wait, timeout=timeout)
        except BaseException as error:
            self._group.promote()  # it may have decided for calls that need a leader now
            if is_writer_end(error) and not error.unacknowledged:
                failed = error if call.ack is None else call.ack.error or error
                raise with_rows(failed, request.handed_back()) from error.__cause__
            if call.ack is None and _reports_no_rows(error):
                raise with_rows(error, request.handed_back(), sent=False) from error.__cause__
            raise

    def confirm(self, timeout: float | None) -> None:
        """Return when all rows that this writer's reads could see are durable, and the shard is
        still its own: the answer that there was nothing to do rests on both (O-3, O-4)."""
        with self._state.lock:
            last = self._state.queue[-1] if self._state.queue else None
        self._state.env.failpoint("looking.decided")
        if last is not None:
            self._finish(last, Request(), ours=False, wait=True, timeout=timeout)
        self._reads.require_owner()

    def _answer(self, call: Call, *, wait: bool, timeout: float | None) -> WriteCounts:
        request, ack = call.request, call.ack
        if request.refused is not None:
            raise request.refused
        if request.error is not None and not isinstance(request.error, KeyConflict):
            raise request.error
        if ack is not None:
            self._finish(ack, request, ours=True, wait=wait, timeout=timeout)
        elif wait and request.steps:
            if call.depends_on is not None:
                # O-3: the rows it found may never become durable.
                self._finish(call.depends_on, request, ours=False, wait=True, timeout=timeout)
            self._reads.require_owner()  # O-4: a successor may have decided otherwise
        if request.error is not None:
            request.error.not_written = request.handed_back()
            raise request.error
        return request.counts

    def _finish(
        self, ack: Ack, request: Request, *, ours: bool, wait: bool, timeout: float | None
    ) -> None:
        """Wait for the rows of the request, or (not `ours`) for those it rests on."""
        if not wait:
            if not ack.done:
                self._group.nudge()
            return
        try:
            self._group.wait(ack, timeout)  # even if done: the next to wake waits until we have run
        except BaseException:
            ack.claimed = False
            raise
        if isinstance(ack.error, WeirError):
            sent = None if ours else False
            raise with_rows(ack.error, request.handed_back(), sent=sent)

    def _await_decision(self, call: Call, timeout: float | None) -> None:
        """Get the call decided and accepted, by this thread or by the one that decides for all."""
        try:
            if self._is_first(call) or self._await(call, timeout):
                self._gather()
                while not call.settled:
                    self._decide(self._together(call), timeout)
        finally:
            if call.chosen or not call.settled:
                _, interrupt = run_uninterrupted(lambda: self._leave(call))
                if interrupt is not None:
                    raise interrupt

    def _is_first(self, call: Call) -> bool:
        """Join the pending calls; True when none of them decides, and so this one does."""
        with self._pending_lock:
            if self._decider is None:
                call.chosen = True
                self._decider = call
            else:
                call.gate = self._state.env.threads.lock()
                call.gate.acquire()
            self._pending.append(call)
        return call.chosen

    def _gather(self) -> None:
        """Return when every thread whose write is durable has run: they are about to call again,
        and deciding them together saves work that would be done for each (`Turns`)."""
        state = self._state
        with state.lock:
            while not state.turns.has_no_wakeups and state.failure is None:
                state.turns.crowd.wait_for_wakeups()

    def _await(self, call: Call, timeout: float | None) -> bool:
        """Wait until the call was decided (and is durable, or should lead); True: it decides."""
        assert call.gate is not None, "it waits at its gate"
        try:
            in_time = call.gate.acquire(timeout=-1 if timeout is None else timeout)
        except BaseException:
            is_settled, _ = run_uninterrupted(lambda: self._abandon(call))
            if is_settled and call.ack is not None:
                self._group.abandon(call.ack)
            raise
        if in_time:
            call.gate.release()  # a turnstile: others may wait for the same ack, and rest on it
        elif not call.chosen and not self._abandon(call):
            raise Backpressure(
                f"{self._state.name}: earlier writes were still in progress after {timeout} s;"
                " nothing of this write was accepted, try again"
            )
        return not call.settled

    def _abandon(self, call: Call) -> bool:
        """Note that the caller leaves; True if the call was settled, else it never will be."""
        with self._state.lock:
            call.abandoned = True
            return call.settled

    def _leave(self, call: Call) -> None:
        """Remove the call. If it decided, or was chosen to, the first call still pending is chosen
        instead. Running it again after an interrupt has no further effect."""
        with self._pending_lock:
            self._pending = [c for c in self._pending if c is not call and not c.settled]
            if self._decider is not call:
                return
            following = self._pending[0] if self._pending else None
            if following is not None:
                assert following.gate is not None, "only the first to come has no gate"
                following.chosen = True
                with contextlib.suppress(RuntimeError):  # released before the interrupt
                    following.gate.release()
            self._decider = following

    def _together(self, first: Call) -> list[Call]:
        """The calls to decide now, `first` among them, in arrival order."""
        with self._pending_lock:
            waiting = [call for call in self._pending if not call.settled]
        rows = first.request.row_count
        calls: list[Call] = []
        for call in waiting:
            more = 0 if call is first else call.request.row_count
            if rows + more <= TOGETHER_ROWS or call is first:
                calls.append(call)
                rows += more
        return calls

    def _decide(self, calls: list[Call], timeout: float | None) -> None:
        """Decide those calls together and accept their rows, all of them or none."""
        requests = [call.request for call in calls]
        shape_all(requests, self._intake.schema, self._state.env.limits)
        one = DecisionBatch(self._state, self._intake, self._reads, self._group, calls)
        one.look()
        tries = 0
        while True:
            tries += 1
            one.decide()
            decided = one.acks_under_lock if tries >= TRIES else one.acks_if_current
            if self._group.acceptor.accept_decided(one.nbytes, decided, timeout):
                one.settle()
                return
            if one.is_lost:
                one.look()


def _reports_no_rows(error: BaseException) -> TypeGuard[WeirError]:
    """True when the error reports the state of no rows, and does not refuse rows (F-16)."""
    if not isinstance(error, WeirError) or error.unacknowledged:
        return False
    return not isinstance(error, Backpressure | InvalidInput | KeyConflict)
