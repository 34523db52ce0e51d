"""Writes that look first: the shard's owner reads the newest rows, decides, and logs whole rows.

Callers that look at the same time are decided together, by whichever of them comes first: one
lookup for all their keys, one pass over their rows. Nobody else is held up meanwhile: puts go on,
and when one of them brings a row of a key that was looked at, the decision is made again.

Keeps
  O-2  between the look and the acceptance nothing came to those keys: checked under the lock that
       accepts, and decided again if something did
  O-3  what writes rows follows those it rested on in the log; what writes none waits for them
  O-4  what writes none is answered by the shard's owner alone, proven after the decision
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
from weir.shard.asked import Request, WriteCounts, shape_all
from weir.shard.ending import tells_of_an_end, with_rows
from weir.shard.group import GroupCommit, for_sure
from weir.shard.once import ExactlyOnce
from weir.shard.own_reads import OwnReads
from weir.shard.requests import Requests
from weir.shard.round import Call, Round
from weir.shard.state import WriterState

TOGETHER_ROWS: Final = 10_000
"""Rows of requests that are decided together; one that has more is decided alone."""
TRIES: Final = 4
"""Decisions that puts may overtake before one is made where none can: under the lock."""


class Looking:
    """The writes of one writer that look first. Safe to share between threads."""

    def __init__(
        self, state: WriterState, intake: Intake, reads: OwnReads, group: GroupCommit
    ) -> None:
        self._state = state
        self._intake = intake
        self._reads = reads
        self._group = group
        self.requests = Requests(intake, reads)
        self._pending: list[Call] = []
        self._pending_lock = state.env.threads.lock()
        self._decider: Call | None = None
        """Who decides for all that are pending, or was chosen to."""

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
        """Decide what `make` makes of the rows unless that batch is in: None then (P-2).

        What is written and the token are one entry; where nothing is, the token is recorded alone.
        """
        request = Request()

        def accept(
            left: list[pa.RecordBatch], timeout: float | None, tokens: Sequence[Token]
        ) -> Ack | None:
            nonlocal request
            request = make(left)
            call = Call(request, tokens)
            if not request.is_empty:
                self._settle(call, timeout)
            if call.ack is None:
                self._group.promote()
                self._answer(call, wait=True, timeout=timeout)
            return call.ack

        applied = once.put(batches, app=app, version=version, timeout=timeout, enqueue=accept)
        return request.counts if applied else None

    # -- asking and answering --------------------------------------------------------------------

    def run(self, request: Request, *, wait: bool, timeout: float | None) -> WriteCounts:
        """Decide it, write what is to be written, and tell what became of it."""
        call = Call(request)
        if self._state.closing or self._state.ending.is_over:
            raise self._state.ending.refused(request.handed_back())
        if request.is_empty:
            return self._answer(call, wait=wait, timeout=timeout)
        try:
            self._settle(call, timeout)
            if call.ack is None:
                self._group.promote()
            return self._answer(call, wait=wait, timeout=timeout)
        except BaseException as error:
            self._group.promote()  # it decided for others, and does not come to lead them
            if tells_of_an_end(error) and not error.unacknowledged:
                failed = error if call.ack is None else call.ack.error or error
                raise with_rows(failed, request.handed_back()) from error.__cause__
            if call.ack is None and _tells_nothing(error):
                raise with_rows(error, request.handed_back(), sent=False) from error.__cause__
            raise

    def confirm(self, timeout: float | None) -> None:
        """Return when all that a read of this writer could see is durable, and the shard its own:
        whoever says that there is nothing to be done rests on that (O-3, O-4)."""
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
            if call.rests_on is not None:
                # O-3: what was found there may never become durable.
                self._finish(call.rests_on, request, ours=False, wait=True, timeout=timeout)
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
            self._group.wait(ack, timeout)  # done or not: the next in turn waits for our coming
        except BaseException:
            ack.claimed = False
            raise
        if isinstance(ack.error, WeirError):
            sent = None if ours else False
            raise with_rows(ack.error, request.handed_back(), sent=sent)

    def _settle(self, call: Call, timeout: float | None) -> None:
        """Have it decided and accepted, by this thread or by another that decides for all."""
        try:
            if self._is_first(call) or self._await(call, timeout):
                self._gather()
                while not call.settled:
                    self._decide(self._together(call), timeout)
        finally:
            if call.chosen or not call.settled:
                _, interrupt = for_sure(lambda: self._leave(call))
                if interrupt is not None:
                    raise interrupt

    def _is_first(self, call: Call) -> bool:
        """Join those who wait; True when nobody decides for them, and this one does."""
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
        """Return when everybody whose write is durable has run: they are about to ask again, and
        are decided together, with what would otherwise be done for each (`Turns`)."""
        state = self._state
        with state.lock:
            while not state.turns.is_settled and state.failure is None:
                state.turns.crowd.wait_for_calm()

    def _await(self, call: Call, timeout: float | None) -> bool:
        """Wait until it was decided (and is durable, or to lead), or is to decide itself: True."""
        assert call.gate is not None, "it waits at its gate"
        try:
            in_time = call.gate.acquire(timeout=-1 if timeout is None else timeout)
        except BaseException:
            is_settled, _ = for_sure(lambda: self._is_settled_for(call))
            if is_settled and call.ack is not None:
                self._group.abandon(call.ack)
            raise
        if in_time:
            call.gate.release()  # a turnstile: others may wait for the same ack, and rest on it
        elif not call.chosen and not self._is_settled_for(call):
            raise Backpressure(
                f"{self._state.name}: others are still being decided after {timeout} s; nothing of"
                " this write was accepted, try again"
            )
        return not call.settled

    def _is_settled_for(self, call: Call) -> bool:
        """Whether it was decided and accepted; if it was not, it will not be: its caller goes."""
        with self._state.lock:
            call.left = True
            return call.settled

    def _leave(self, call: Call) -> None:
        """Who decided, or was chosen to, passes that on to the first that still waits for it; who
        gives up just goes. Interrupted, and done again, it does no more than once."""
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
        """The calls that are decided now, this one among them, in the order they came."""
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
        """Decide those calls at once and have their rows accepted, all of them or none."""
        requests = [call.request for call in calls]
        shape_all(requests, self._intake.schema, self._state.env.limits)
        one = Round(self._state, self._intake, self._reads, self._group, calls)
        one.look()
        tries = 0
        while True:
            tries += 1
            one.decide()
            decided = one.acks_at_last if tries >= TRIES else one.acks_if_current
            if self._group.acceptor.accept_decided(one.nbytes, decided, timeout):
                one.settle()
                return
            if one.is_lost:
                one.look()


def _tells_nothing(error: BaseException) -> TypeGuard[WeirError]:
    """True when it says of no rows what became of them, and is no refusal of rows (F-16)."""
    if not isinstance(error, WeirError) or error.unacknowledged:
        return False
    return not isinstance(error, Backpressure | InvalidInput | KeyConflict)
