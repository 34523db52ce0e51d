"""One decision for all concurrent calls: the lookup, the verdict, the acceptance.

Keeps
  O-2  rows that came between lookup and acceptance are seen: checked under the lock that accepts
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from weir.env import Lock
from weir.format.keys import pk_values
from weir.format.schema import TableSchema
from weir.log.entry import Token
from weir.log.intake import Intake, size_of
from weir.shard.ack import Ack
from weir.shard.decide import Newest, decide_all, runs_of
from weir.shard.group import GroupCommit
from weir.shard.own_reads import OwnReads
from weir.shard.request import Request, Step, parts_of
from weir.shard.state import WriterState

SURELY_FITS: Final = 64 << 10
"""Bytes of rows that need not be measured before they go into an entry (F-15)."""


@dataclass(eq=False, slots=True)
class Call:
    """A request being processed."""

    request: Request
    tokens: Sequence[Token] = ()
    """The exactly-once tokens of its rows."""
    ack: Ack | None = None
    depends_on: Ack | None = None
    """For a call that writes nothing: the last put before it that was not durable yet."""
    is_decided: bool = False
    gate: Lock | None = None
    """Where its thread waits; released when the thread should decide or lead (`Turns`), or when the
    call is durable."""
    chosen: bool = False
    """Its thread decides next."""
    abandoned: bool = False
    """Its caller has left, and knows that nothing was written unless the call was settled by then.
    Changed under the writer's lock, where rows are accepted: calls whose caller left are skipped.
    """

    @property
    def settled(self) -> bool:
        """True once it was decided and its rows, if any, were accepted (F-16: after an interrupt
        right then it is not decided again)."""
        return self.is_decided or (self.ack is not None and self.ack.generation is not None)


class DecisionBatch:
    """One decision for some calls: the rows found, the rows that came since, and the outcome."""

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
        self._steps = steps
        given = steps[0].keys if len(steps) == 1 else [key for step in steps for key in step.keys]
        # No key occurs twice within a step.
        self._values = given if len(steps) == 1 else list(dict.fromkeys(given))
        self._are_distinct = len(self._values) == len(given)
        verbs = {id(step.verb): step.verb for step in steps}.values()
        looked_at = {name for verb in verbs for name in verb.columns_read(schema)}
        self._columns = [n for n in schema.arrow.names if n in looked_at or n in names]
        self._generation = self._batches = 0
        self.is_lost = False
        """Rows that came since the lookup were flushed, and can no longer be identified."""

    @cached_property
    def _keys(self) -> pa.Table:
        """The key columns, with each key once, in the order of `_values`."""
        return _key_columns(self._steps, self._values, self._intake.schema)

    def look(self) -> None:
        """Look up the newest rows of the keys; note first where rows that come later begin."""
        self._is_aligned = False
        if not self._reuse_scan():
            with self._state.lock:
                active = self._memtables.active
                self._generation, self._batches = active.generation, active.level.count
            keys = self._values
            self._found, self._alive = self._reads.lookup(keys, lambda: self._keys, self._columns)
        self._since: list[pa.RecordBatch] = []
        self.is_lost = False
        self._state.env.failpoint("looking.looked")

    def _reuse_scan(self) -> bool:
        """True when the only call brings the rows its scan found, and the base has not changed
        since. Rows that came since are checked in any case, at acceptance (O-2)."""
        if len(self._calls) != 1:
            return False
        request = self._calls[0].request
        seen, request.seen = request.seen, None  # used once: the round may be lost
        known = None if seen is None else self._reads.still(seen)
        if seen is None or known is None:
            return False
        self._generation, self._batches = seen.generation, seen.batches
        self._found, self._alive = known
        self._is_aligned = self._found.num_rows == len(self._values)
        return True

    def decide(self) -> None:
        """Decide what the requests do with the rows that exist."""
        newest = Newest(self._found, self._intake.schema, self._alive)
        if self._is_aligned:
            newest.are_of(self._values)
        for rows in self._since:
            newest.take_in(rows)
        requests = [call.request for call in self._calls]
        may_expire = self._alive is not None
        runs = runs_of(requests, may_expire=may_expire, are_distinct=self._are_distinct)
        decide_all(runs, newest, self._intake)

    def acks_if_current(self) -> list[Ack] | None:
        """The rows to write, if the decision still holds; else None. Lock held."""
        return self._acks() if self._is_current() else None

    def acks_under_lock(self) -> list[Ack] | None:
        """The same, but a stale decision is made again here, where no row can come between."""
        if not self._is_current():
            if self.is_lost:
                return None
            self.decide()
        return self._acks()

    def _is_current(self) -> bool:
        """True when no row of those keys came since the last decision, and no caller has left that
        it was made for. Lock held."""
        there = [call for call in self._calls if not call.abandoned]
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
        """Approximate size of the rows to be accepted."""
        return sum([_bytes_of(call.request) for call in self._calls])

    def _acks(self) -> list[Ack]:
        """The rows to write, as puts."""
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
                rows, tokens = request.piece.rows, call.tokens
                ack = Ack(self._group, (), rows=rows, nbytes=nbytes, tokens=tokens)
                ack.shaped = request.piece
            else:
                count = sum(batch.num_rows for batch in request.rows)
                ack = Ack(self._group, request.rows, rows=count, nbytes=nbytes, tokens=call.tokens)
            ack.claimed = self._waits  # else nobody waits, and a failing close reports it (F-16)
            call.ack = ack
            acks.append(ack)
        return acks

    def settle(self) -> None:
        """Mark the calls as decided once their rows were accepted, and wake their threads."""
        with self._state.lock:
            last = self._state.queue[-1] if self._state.queue else None
            for call in self._calls:
                call.depends_on = last
                call.is_decided = True
                if call.gate is None or call.chosen or call.abandoned:
                    continue  # no thread waits at the gate
                if call.ack is None or call.ack.done or not self._waits:
                    call.gate.release()
                else:
                    # One wake-up ends two waits, the one for the decision and the one for the log.
                    self._state.turns.adopt(call.ack, call.gate)
        self._state.env.failpoint("looking.decided")


def _bytes_of(request: Request) -> int:
    if request.piece is not None:
        return request.piece.nbytes
    return sum(map(size_of, request.rows))


def _key_columns(steps: Sequence[Step], keys: Sequence[Any], schema: TableSchema) -> pa.Table:
    """The key columns of the steps, with each of `keys` once."""
    if not steps:
        return schema.key_schema.empty_table()  # the requests could not be shaped
    parts = parts_of(steps)
    columns = [
        parts[0].batch.column(name).slice(parts[0].offset, parts[0].rows)
        if len(parts) == 1
        else pa.concat_arrays([p.batch.column(name).slice(p.offset, p.rows) for p in parts])
        for name in schema.primary_key
    ]
    table = pa.Table.from_arrays(columns, schema=schema.key_schema)
    if table.num_rows == len(keys):
        return table
    places = {key: row for row, key in enumerate(key for step in steps for key in step.keys)}
    return table.take(pa.array([places[key] for key in keys]))


def _rows_of(request: Request) -> Sequence[pa.RecordBatch]:
    return request.rows if request.piece is None else [request.piece.alone()]
