"""Looks up the newest rows for conditional writes, in the callers' threads.

A lookup lists the base, whose latest version has the rule by which rows expire, and searches the
MemTables, the SSTables and the base: nothing that the commit thread may wait for. Few keys cost
what one costs, so callers that come at the same time look up once: the first waits until all
putters that were just woken have run, looks up the keys of all who wait by then, and queues their
requests together, so that they share an entry, too. An interrupted lookup leaves nothing behind:
each caller that it had taken along looks by itself.

Keeps
  O-2  where rows begin that come later is noted before anything is read
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from weir.log.intake import Intake
from weir.shard.ack import Ack, closed_gate, release
from weir.shard.decide import Decision, Found, key_columns
from weir.shard.memtable import Mark, MemTables
from weir.shard.own_reads import OwnReads
from weir.shard.request import Request, ScannedRows
from weir.shard.state import WriterState
from weir.shard.turns import GATHER_SECONDS

SHARED_KEYS: Final = 64
"""Most keys of a lookup that is shared."""


class Lookups:
    """The lookups of one writer. Safe to share between threads."""

    def __init__(
        self, state: WriterState, memtables: MemTables, intake: Intake, reads: OwnReads
    ) -> None:
        self._state = state
        self._memtables = memtables
        self._intake = intake
        self._reads = reads
        self._looking = state.env.threads.lock()
        self.callers: set[Ack] = set()
        """The puts of callers that look up, or wait for what they wrote after that."""
        self._is_looking = False
        """A hint: another caller looks up, and may do so for those who come."""
        self._waiting: deque[tuple[Ack, Decision]] = deque()

    def decision_of(self, request: Request) -> Decision:
        """The request, to be decided once its rows are looked up."""
        return Decision(request, self._columns_of(request), _distinct_keys(request))

    def find(self, ack: Ack) -> bool:
        """Look up the rows of a put that is to be decided. It may be queued when this returns.

        False when others are at it, too: then the commit thread wakes all together, and their next
        lookups are one.
        """
        decision = ack.decision
        assert decision is not None, "O-2: only what is decided is looked up"
        # A scan found its rows already; used once, since the rows may be lost.
        seen, decision.request.seen = decision.request.seen, None
        if seen is not None:
            self._keep(decision, seen)
        if decision.found is None and len(decision.keys) > SHARED_KEYS:
            self._look([decision])
        elif decision.found is None:
            self._share(ack, decision)
        self._state.env.failpoint("looking.looked")
        return len(self.callers) <= 1

    def _share(self, ack: Ack, decision: Decision) -> None:
        self._waiting.append((ack, decision))
        if self._is_served(ack, decision):
            return
        self._is_looking = True
        with self._looking:
            try:
                if decision.found is None:
                    self._serve(ack, decision)
            finally:
                self._is_looking = False
                self._wake_next()

    def _serve(self, ack: Ack, decision: Decision) -> None:
        """Look up for all who wait, and queue their requests. M-7: if it fails, each of the others
        looks by itself."""
        crowd = self._state.crowd
        if crowd.pace.is_quick:
            crowd.await_gathered()
        group = self._others(decision)
        self._look([decision, *(other for _, other in group)])
        if group:
            with self._state.lock:
                for one in (ack, *(other for other, _ in group)):
                    self._state.accept_decision(one)

    def _is_served(self, ack: Ack, decision: Decision) -> bool:
        """While another caller looks up, wait until it has done so for this one and the request is
        durable, but not for long: the lookup may be slow, or was interrupted. True when it is
        queued at least; else nobody is to wake this thread, which goes on to look up by itself."""
        if self._is_looking and ack.gate is not None:
            ack.pass_gate(ack.gate, GATHER_SECONDS)
        with self._state.lock:
            if not ack.is_accepted:
                ack.gate, ack.waiters, decision.is_counted = None, 0, False
            elif not ack.done and ack.gate is not None:
                # It may be open. A flush may wait there, too, and goes on to the new one.
                before, ack.gate = ack.gate, closed_gate(self._state.env)
                release(before)  # guard: F-16 test_simulator
            return ack.is_accepted

    def _wake_next(self) -> None:
        """Let the first of those look who came too late for this lookup."""
        for ack, _ in list(self._waiting)[:1]:
            if ack.gate is not None:
                release(ack.gate)

    def _others(self, decision: Decision) -> list[tuple[Ack, Decision]]:
        """Those that wait and can be looked up together with `decision`; takes them, and those
        that wait no more, off the list."""
        group, keys = [], len(decision.keys)
        for _ in range(len(self._waiting)):
            ack, other = self._waiting.popleft()
            if other is decision or other.found is not None or other.is_left:
                continue
            keys += len(other.keys)
            if keys <= SHARED_KEYS and other.columns == decision.columns:
                group.append((ack, other))
            else:
                self._waiting.append((ack, other))
        return group

    def _columns_of(self, request: Request) -> list[str]:
        """The key, and the columns that the verbs of the request read."""
        schema = self._intake.schema
        verbs = {id(step.verb): step.verb for step in request.steps}.values()
        read = {name for verb in verbs for name in verb.columns_read(schema)}
        read.update(schema.primary_key)
        return [name for name in schema.arrow.names if name in read]

    def _keep(self, decision: Decision, seen: ScannedRows) -> None:
        """Use the rows that a scan found, if the base is still the one it read."""
        known = self._reads.still(seen)
        if known is not None:
            rows, alive = known
            is_aligned = rows.num_rows == len(decision.keys) and len(decision.request.steps) == 1
            decision.found = Found(rows, alive, Mark(seen.generation, seen.batches), is_aligned)

    def _look(self, group: Sequence[Decision]) -> None:
        """Look up the keys of all of them at once."""
        first = group[0]
        keys = first.keys
        if len(group) > 1:
            keys = list(dict.fromkeys(key for decision in group for key in decision.keys))
        with self._state.lock:
            mark = self._memtables.mark()
        rows, alive = self._reads.lookup(
            keys, lambda: _distinct(group, keys, self._intake), first.columns
        )
        found = Found(rows, alive, mark)
        for decision in group:
            decision.found = found


def _distinct_keys(request: Request) -> Sequence[Any]:
    steps = request.steps
    if len(steps) == 1:
        return steps[0].keys
    return list(dict.fromkeys(key for step in steps for key in step.keys))


def _distinct(group: Sequence[Decision], keys: Sequence[object], intake: Intake) -> pa.Table:
    """The key columns of the requests, with each of `keys` once and in that order."""
    steps = [step for decision in group for step in decision.request.steps]
    table = key_columns(steps, intake.schema)
    if table.num_rows == len(keys):
        return table
    given = (key for step in steps for key in step.keys)
    places = {key: row for row, key in enumerate(given)}
    return table.take(pa.array([places[key] for key in keys]))
