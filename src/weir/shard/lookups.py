"""Looks up the newest rows for conditional writes.

The requests of one entry are looked up at once, by the thread that commits it: a lookup lists the
base, whose latest version has the rule by which rows expire, and searches the MemTables, which is
the same work for one key and for a few dozen. Where that takes longer than an entry may wait, since
the base is far or its files must be read, callers look up by themselves before their requests are
queued. `Pace` tells the two apart by the latest lookups.

Keeps
  O-2  where rows begin that come later is noted before anything is read
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from weir.errors import WeirError
from weir.log.intake import Intake
from weir.shard.decide import Decision, Found, key_columns
from weir.shard.ending import internal
from weir.shard.memtable import Mark, MemTables
from weir.shard.own_reads import OwnReads
from weir.shard.request import Request, ScannedRows
from weir.shard.state import WriterState
from weir.shard.turns import Pace

COMMITTER_KEYS: Final = 64
"""Most keys of a request that the committing thread looks up."""


class Lookups:
    """The lookups of one writer. Safe to share between threads."""

    def __init__(
        self, state: WriterState, memtables: MemTables, intake: Intake, reads: OwnReads
    ) -> None:
        self._state = state
        self._memtables = memtables
        self._intake = intake
        self._reads = reads
        self._pace = Pace()

    def begin(self, request: Request) -> Decision:
        """The request, to be decided; looked up here unless the committing thread can do it."""
        decision = Decision(request, self._columns_of(request), _distinct_keys(request))
        # A scan found its rows already; used once, since the rows may be lost.
        seen, request.seen = request.seen, None
        if seen is not None:
            self._keep(decision, seen)
        is_left_to_committer = self._pace.is_quick and len(decision.keys) <= COMMITTER_KEYS
        if decision.found is None and not is_left_to_committer:
            self._look([decision])
        if decision.found is not None:
            self._state.env.failpoint("looking.looked")
        return decision

    def look(self, decisions: Sequence[Decision]) -> None:
        """Look up the rows of requests that are on their way; an error is that of its request."""
        for _, alike in groupby(decisions, key=lambda decision: decision.columns):
            group = list(alike)
            try:
                self._look(group)
            except Exception as error:  # noqa: BLE001  M-7: the writer goes on
                for decision in group:
                    ours = error if isinstance(error, WeirError) else internal(error)
                    decision.request.error = ours

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
        first, clock = group[0], self._state.env.clock
        keys = first.keys
        if len(group) > 1:
            keys = list(dict.fromkeys(key for decision in group for key in decision.keys))
        began = clock.boottime()
        with self._state.lock:
            mark = self._memtables.mark()
        rows, alive = self._reads.lookup(
            keys, lambda: _distinct(group, keys, self._intake), first.columns
        )
        self._pace.record_latency(clock.boottime() - began)
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
