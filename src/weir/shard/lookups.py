"""Looks up the newest rows for conditional writes, in the callers' threads.

A lookup lists the base, whose latest version has the rule by which rows expire, and searches the
MemTables, the SSTables and the base: nothing that the commit thread may wait for. Few keys cost
what one costs, so whoever arrives while a lookup runs waits for its end, and the first of those
looks up the keys of all. An interrupted lookup leaves nothing behind: each caller that it had taken
along looks by itself.

Keeps
  O-2  where rows begin that come later is noted before anything is read
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from weir.log.intake import Intake
from weir.shard.decide import Decision, Found, key_columns
from weir.shard.memtable import Mark, MemTables
from weir.shard.own_reads import OwnReads
from weir.shard.request import Request, ScannedRows
from weir.shard.state import WriterState

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
        self._waiting: deque[Decision] = deque()

    def of(self, request: Request) -> Decision:
        """The request with its rows, to be decided."""
        decision = Decision(request, self._columns_of(request), _distinct_keys(request))
        # A scan found its rows already; used once, since the rows may be lost.
        seen, request.seen = request.seen, None
        if seen is not None:
            self._keep(decision, seen)
        if decision.found is None and len(decision.keys) > SHARED_KEYS:
            self._look([decision])
        elif decision.found is None:
            self._share(decision)
        self._state.env.failpoint("looking.looked")
        return decision

    def _share(self, decision: Decision) -> None:
        self._waiting.append(decision)
        with self._looking:
            if decision.found is not None:
                return
            group, keys = [decision], len(decision.keys)
            for _ in range(len(self._waiting)):
                other = self._waiting.popleft()
                if other is decision or other.found is not None:
                    continue
                keys += len(other.keys)
                if keys <= SHARED_KEYS and other.columns == decision.columns:
                    group.append(other)
                else:
                    self._waiting.append(other)
            self._look(group)  # M-7: if it fails, the others look by themselves

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
