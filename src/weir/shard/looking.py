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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from weir.env import Lock
from weir.errors import Backpressure, KeyConflict, WeirError
from weir.format.keys import pk_values
from weir.format.schema import TableSchema
from weir.log.intake import Intake, size_of
from weir.shard.ack import Ack
from weir.shard.asked import Request, Step, WriteCounts, joined_column, shape_all
from weir.shard.decide import Newest, decide_all, runs_of
from weir.shard.ending import tells_of_an_end, with_rows
from weir.shard.group import GroupCommit
from weir.shard.own_reads import OwnReads
from weir.shard.requests import Requests
from weir.shard.state import WriterState

TOGETHER_ROWS: Final = 10_000
"""Rows of requests that are decided together; one that has more is decided alone."""
SURELY_FITS: Final = 64 << 10
"""Bytes of rows that need not be measured before they go into an entry (F-15)."""
TRIES: Final = 4
"""Decisions that puts may overtake before one is made where none can: under the lock."""


@dataclass(eq=False, slots=True)
class Call:
    """A request on its way."""

    request: Request
    ack: Ack | None = None
    rests_on: Ack | None = None
    """Of a call that writes nothing the last put before it that was not durable."""
    is_decided: bool = False
    gate: Lock | None = None
    """Where its thread waits; released when it is to decide, when it is durable, or when it is to
    lead (`Turns`)."""
    chosen: bool = False
    """It decides next."""
    left: bool = False
    """Its caller has gone, told that nothing was written unless it was settled by then. Changed
    under the writer's lock, where rows are accepted: who left is not decided for any more."""

    @property
    def settled(self) -> bool:
        """True once it was decided, and its rows, if any, were accepted (F-16: an interrupt right
        after that does not have it decided again)."""
        return self.is_decided or (self.ack is not None and self.ack.generation is not None)


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
        self._deciding = False
        """Somebody decides for all that are pending, or was chosen to."""

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
            raise

    def _answer(self, call: Call, *, wait: bool, timeout: float | None) -> WriteCounts:
        request, ack = call.request, call.ack
        if request.refused is not None:
            raise request.refused
        if request.error is not None and not isinstance(request.error, KeyConflict):
            raise request.error
        if ack is not None:
            self._finish(ack, request, wait=wait, timeout=timeout)
        elif wait and request.steps:
            if call.rests_on is not None:
                # O-3: what was found there may never become durable.
                self._finish(call.rests_on, request, wait=True, timeout=timeout)
            self._reads.require_owner()  # O-4: a successor may have decided otherwise
        if request.error is not None:
            request.error.not_written = request.handed_back()
            raise request.error
        return request.counts

    def _finish(self, ack: Ack, request: Request, *, wait: bool, timeout: float | None) -> None:
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
            raise with_rows(ack.error, request.handed_back())

    def _settle(self, call: Call, timeout: float | None) -> None:
        """Have it decided and accepted, by this thread or by another that decides for all."""
        with self._pending_lock:
            self._pending.append(call)
            decides = not self._deciding
            self._deciding = True
            if not decides:
                call.gate = self._state.env.threads.lock()
                call.gate.acquire()
        try:
            if not decides:
                decides = self._await(call, timeout)
            if decides:
                self._gather()
            while decides and not call.settled:
                self._decide(self._together(call), timeout)
        finally:
            if decides or call.chosen or not call.settled:
                self._leave(call)

    def _gather(self) -> None:
        """Return when everybody whose write is durable has run: they are about to ask again, and
        are decided together, with what would otherwise be done for each (`Turns`)."""
        state = self._state
        with state.lock:
            while not state.turns.is_settled and state.failure is None:
                state.calm_wake.wait()

    def _await(self, call: Call, timeout: float | None) -> bool:
        """Wait until it was decided (and is durable, or to lead), or is to decide itself: True."""
        assert call.gate is not None, "it waits at its gate"
        try:
            in_time = call.gate.acquire(timeout=-1 if timeout is None else timeout)
        except BaseException:
            if self._is_settled_for(call) and call.ack is not None:
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
        gives up just goes."""
        with self._pending_lock:
            decides = call.gate is None or call.chosen
            self._pending = [c for c in self._pending if c is not call and not c.settled]
            if not decides:
                return
            self._deciding = bool(self._pending)
            if self._pending:
                following = self._pending[0]
                assert following.gate is not None, "only the first to come has no gate"
                following.chosen = True
                following.gate.release()

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
        one = _Round(self._state, self._intake, self._reads, self._group, calls)
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


class _Round:
    """One decision for some calls: what was looked at, what came since, and what is to be done."""

    def __init__(
        self,
        state: WriterState,
        intake: Intake,
        reads: OwnReads,
        group: GroupCommit,
        calls: Sequence[Call],
    ) -> None:
        assert state.memtables is not None, "M-2: a WAL-only writer does not look"
        self._state = state
        self._memtables = state.memtables
        self._intake = intake
        self._reads = reads
        self._group = group
        self._calls = calls
        self._waits = state.config.durable_write
        schema = intake.schema
        names = list(schema.primary_key)
        steps = [step for call in calls for step in call.request.steps]
        self._keys = _keys_of(steps, schema)
        verbs = dict.fromkeys(step.verb for step in steps)
        looked_at = {name for verb in verbs for name in verb.looks_at(schema)}
        self._columns = [n for n in schema.arrow.names if n in looked_at or n in names]
        self._generation = self._batches = 0
        self.is_lost = False
        """Rows that came since the look were flushed, and cannot be told any more."""

    def look(self) -> None:
        """The newest rows of the keys; from the moment before it on others may come."""
        with self._state.lock:
            active = self._memtables.active
            self._generation, self._batches = active.generation, active.level.count
        found, self._alive = self._reads.lookup(self._keys, self._columns)
        self._found = found
        self._since: list[pa.RecordBatch] = []
        self.is_lost = False
        self._state.env.failpoint("looking.looked")

    def decide(self) -> None:
        """What the requests do with what is there."""
        newest = Newest(self._found, self._intake.schema, self._alive)
        for rows in self._since:
            newest.take_in(rows)
        requests = [call.request for call in self._calls]
        decide_all(runs_of(requests, may_expire=self._alive is not None), newest, self._intake)

    def acks_if_current(self) -> list[Ack] | None:
        """The rows to be written, if the decision still holds. Lock held."""
        return self._acks() if self._is_current() else None

    def acks_at_last(self) -> list[Ack] | None:
        """The same; if it does not hold, decided anew here, where nothing can come between."""
        if not self._is_current():
            if self.is_lost:
                return None
            self.decide()
        return self._acks()

    def _is_current(self) -> bool:
        """True when no row of those keys came since the last decision, and nobody left who was
        decided for. Lock held."""
        there = [call for call in self._calls if not call.left]
        if len(there) < len(self._calls):
            self._calls = there
            return False
        since: list[pa.RecordBatch] = []
        tables = list(self._memtables)
        if tables[0].generation > self._generation:
            self.is_lost = True
            return False
        for table in tables:
            if table.generation >= self._generation:
                first = self._batches if table.generation == self._generation else 0
                since += table.level.since(first)
        known = len(self._since)
        self._since = [rows for batch in since if (rows := self._ours(batch)) is not None]
        return len(self._since) == known

    def _ours(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        key = self._intake.schema.primary_key
        mine = pc.is_in(pk_values(batch, key), value_set=pk_values(self._keys, key))
        return batch.filter(mine) if mine.true_count else None

    @property
    def nbytes(self) -> int:
        """About what is to be accepted."""
        return sum(_bytes_of(call.request) for call in self._calls)

    def _acks(self) -> list[Ack]:
        """The rows to be written, as puts."""
        acks = []
        for call in self._calls:
            request = call.request
            call.ack = None
            if request.piece is None and not request.rows:
                continue
            nbytes = _bytes_of(request)
            if nbytes > SURELY_FITS:
                nbytes = self._intake.fit(_rows_of(request), self._state.env.limits)
            if request.piece is not None:
                ack = Ack(self._group, (), rows=request.piece.rows, nbytes=nbytes)
                ack.shaped = request.piece
            else:
                count = sum(batch.num_rows for batch in request.rows)
                ack = Ack(self._group, request.rows, rows=count, nbytes=nbytes)
            ack.claimed = True
            call.ack = ack
            acks.append(ack)
        return acks

    def settle(self) -> None:
        """It was accepted."""
        with self._state.lock:
            last = self._state.queue[-1] if self._state.queue else None
            for call in self._calls:
                call.rests_on = last
                call.is_decided = True
                if call.gate is None or call.chosen or call.left:
                    continue
                if call.ack is None or call.ack.done or not self._waits:
                    call.gate.release()
                else:
                    # One waking for two waits: for the decision, and for the log.
                    self._state.turns.adopt(call.ack, call.gate)
        self._state.env.failpoint("looking.decided")


def _bytes_of(request: Request) -> int:
    if request.piece is not None:
        return request.piece.nbytes
    return sum(map(size_of, request.rows))


def _keys_of(steps: Sequence[Step], schema: TableSchema) -> pa.Table:
    """The keys of all of them, each once."""
    if not steps:
        return schema.key_schema.empty_table()  # what was asked could not be shaped
    columns = [joined_column(steps, name) for name in schema.primary_key]
    table = pa.Table.from_arrays(columns, schema=schema.key_schema)
    last = {key: index for index, key in enumerate(key for step in steps for key in step.keys)}
    return table if len(last) == table.num_rows else table.take(pa.array(list(last.values())))


def _rows_of(request: Request) -> Sequence[pa.RecordBatch]:
    return request.rows if request.piece is None else [request.piece.alone()]
