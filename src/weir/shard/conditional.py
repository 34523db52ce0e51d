"""Conditional writes: the caller looks up the newest rows, the committing thread decides.

Keeps
  O-2  no row of those keys comes between lookup and decision unseen: the thread that books all rows
       in order adds those that came since, or sends the caller back to look again
  O-3  rows are logged after those they rest on; a call that writes none has its place in the queue
       all the same, and is answered when the rows before it are durable
  O-4  a call that writes none is answered by the shard's owner alone, proven after the decision
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from weir.durations import deadline_after, seconds_until
from weir.errors import Backpressure, InvalidInput, KeyConflict, WeirError
from weir.log.intake import Intake
from weir.shard.ack import Ack, Taken
from weir.shard.commit import Committer
from weir.shard.decide import Decision, key_columns
from weir.shard.ending import with_rows
from weir.shard.memtable import Mark
from weir.shard.once import ExactlyOnce, Noted
from weir.shard.own_reads import OwnReads
from weir.shard.request import Request, WriteCounts
from weir.shard.request_builder import RequestBuilder
from weir.shard.state import WriterState


class ConditionalWrites:
    """The conditional writes of one writer. Safe to share between threads."""

    def __init__(
        self, state: WriterState, intake: Intake, reads: OwnReads, committer: Committer
    ) -> None:
        assert state.memtables is not None, "M-2: a WAL-only writer does not look"
        self._state = state
        self._memtables = state.memtables
        self._intake = intake
        self._reads = reads
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
            except WeirError as error:
                if isinstance(error, Backpressure | InvalidInput | KeyConflict):
                    raise
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
            ack.decision = decision = self._look(request)
            if taken is not None:
                taken.append(ack)
            if noted is not None:
                noted(ack)
            self._committer.put(ack, wait=wait, timeout=seconds_until(deadline, clock))
            if not decision.is_stale:
                return ack

    def _look(self, request: Request) -> Decision:
        """Look up the newest rows of the keys; note first where rows that come later begin."""
        schema, steps = self._intake.schema, request.steps
        verbs = {id(step.verb): step.verb for step in steps}.values()
        read = {name for verb in verbs for name in verb.columns_read(schema)}
        read.update(schema.primary_key)
        columns = [name for name in schema.arrow.names if name in read]
        keys = steps[0].keys
        if len(steps) > 1:
            keys = list(dict.fromkeys(key for step in steps for key in step.keys))
        # A scan found its rows already; used once, since the rows may be lost.
        seen, request.seen = request.seen, None
        known = None if seen is None else self._reads.still(seen)
        if seen is not None and known is not None:
            mark = Mark(seen.generation, seen.batches)
            decision = Decision(request, columns, *known, mark)
            if known[0].num_rows == len(keys) and len(steps) == 1:
                decision.keys = keys
        else:
            self._committer.book()  # M-1: rows accepted before this call are seen by the lookup
            with self._state.lock:
                mark = self._memtables.mark()
            found, alive = self._reads.lookup(
                keys, lambda: _distinct(request, keys, self._intake), columns
            )
            decision = Decision(request, columns, found, alive, mark)
        self._state.env.failpoint("looking.looked")
        return decision

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


def _distinct(request: Request, keys: Sequence[object], intake: Intake) -> pa.Table:
    """The key columns of the request, with each of `keys` once and in that order."""
    table = key_columns(request.steps, intake.schema)
    if table.num_rows == len(keys):
        return table
    given = (key for step in request.steps for key in step.keys)
    places = {key: row for row, key in enumerate(given)}
    return table.take(pa.array([places[key] for key in keys]))
