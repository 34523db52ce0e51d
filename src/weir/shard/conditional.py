"""Conditional writes: the newest rows are looked up, and the committing thread decides.

Keeps
  O-2  no row of those keys comes between lookup and decision unseen: the thread that books all rows
       in order adds those that came since, or sends the caller back to look again
  O-3  rows are logged after those they rest on; a call that writes none has its place in the queue
       all the same, and is answered when the rows before it are durable
  O-4  a call that writes none is answered by the shard's owner alone, proven after the decision
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from weir.durations import deadline_after, seconds_until
from weir.errors import Backpressure, InvalidInput, KeyConflict, WeirError
from weir.log.intake import Intake
from weir.shard.ack import Ack, Taken
from weir.shard.commit import Committer
from weir.shard.ending import with_rows
from weir.shard.lookups import Lookups
from weir.shard.once import ExactlyOnce, Noted
from weir.shard.own_reads import OwnReads
from weir.shard.request import Request, WriteCounts
from weir.shard.request_builder import RequestBuilder
from weir.shard.state import WriterState


class ConditionalWrites:
    """The conditional writes of one writer. Safe to share between threads."""

    def __init__(
        self,
        state: WriterState,
        intake: Intake,
        reads: OwnReads,
        lookups: Lookups,
        committer: Committer,
    ) -> None:
        self._state = state
        self._intake = intake
        self._reads = reads
        self._lookups = lookups
        self._committer = committer
        self.requests = RequestBuilder(intake, reads)

    def run(
        self,
        request: Request,
        *,
        wait: bool,
        timeout: float | None,
        taken: Taken | None = None,
    ) -> WriteCounts:
        """Decide the request, write the rows that result, and return the counts."""
        if self._state.closing or self._state.ending.is_over:
            raise self._state.ending.refused(request.given)
        if not request.is_empty:
            try:
                ack = self._decide(request, wait=wait, timeout=timeout, taken=taken)
                self._prove(request, ack, wait=wait)
                return _answer(request)
            except WeirError as error:
                if isinstance(error, InvalidInput | KeyConflict):
                    raise
                if isinstance(error, Backpressure):
                    raise with_rows(error, request.given, sent=False) from error.__cause__
                raise with_rows(error, request.given) from error.__cause__
        return _answer(request)

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

        def accept(left: list[pa.RecordBatch], timeout: float | None, noted: Noted) -> Ack | None:
            nonlocal request
            request = make(left)
            if request.is_empty:
                return None
            ack = self._decide(request, noted, wait=False, timeout=timeout)
            if ack.rows:
                return ack
            ack.wait(timeout)
            self._prove(request, ack, wait=True)
            _answer(request)
            return None

        applied = once.put(batches, app=app, version=version, timeout=timeout, enqueue=accept)
        return _answer(request) if applied else None

    def confirm(self, timeout: float | None) -> None:
        """Return when all rows that this writer's reads could see are durable, and the shard is
        still its own: the answer that there was nothing to do rests on both (O-3, O-4)."""
        self._state.env.failpoint("looking.decided")
        if not self._committer.settle(timeout):  # guard: O-3
            raise self._state.ending.refused()  # F-16: close reports the rows, which are others'
        self._reads.require_owner()

    def _decide(
        self,
        request: Request,
        noted: Noted | None = None,
        *,
        wait: bool,
        timeout: float | None,
        taken: Taken | None = None,
    ) -> Ack:
        """Look up the rows and have the request decided; return when it is booked, or durable."""
        clock = self._state.env.clock
        deadline = deadline_after(timeout, clock)
        nbytes = _size_of(request, self._intake)
        while True:
            ack = Ack(self._committer, (), rows=0, nbytes=nbytes)
            ack.decision = decision = self._lookups.decision_of(request)
            if taken is not None:
                taken.append(ack)
            if noted is not None:
                noted(ack)
            left = seconds_until(deadline, clock)
            self._lookups.callers.add(ack)
            try:
                self._committer.put(ack, wait=wait, timeout=left, look=self._lookups.find)
            finally:
                self._lookups.callers.discard(ack)
            if not decision.is_stale:
                return ack

    def _prove(self, request: Request, ack: Ack, *, wait: bool) -> None:
        """O-4: a successor may have decided otherwise, if the call writes nothing."""
        if wait and not ack.rows and request.steps:
            self._reads.require_owner()


def _answer(request: Request) -> WriteCounts:
    error = request.error
    if error is not None:
        if isinstance(error, KeyConflict):
            error.not_written = list(request.given)
        raise error
    return request.counts


def _size_of(request: Request, intake: Intake) -> int:
    """Roughly the bytes of the rows that the request may write."""
    if request.seen is not None:
        return int(request.seen.rows.nbytes)
    return sum(map(intake.size_of, request.given))
