"""What the committing thread decides: the rows that were looked up, and those that came since.

A lookup notes where the rows that come later begin (`weir.shard.lookups`). The committing thread,
which books all rows in order, adds those that came since and decides, in one pass where possible:
nothing can come in between.

Keeps
  O-2  requests of one group see each other's rows, in order, as if they came one after the other
  M-7  a request that fails, fails alone
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from weir.env import Limits
from weir.errors import InvalidInput, KeyConflict, WeirError
from weir.format.expiry import Alive
from weir.format.keys import pk_values
from weir.format.schema import TOMBSTONE, TableSchema
from weir.lazy import Lazy
from weir.log.intake import Intake
from weir.log.small_put import Shaped
from weir.merge.levels import shaped
from weir.shard.actions import FoundRows, Mask, Verb, Verdict, as_mask, rows_where
from weir.shard.memtable import Mark, MemTables
from weir.shard.request import NOTHING, Request, Step, WriteCounts, joined, parts_of

SURELY_FITS: Final = 64 << 10
"""Bytes of rows that need not be measured before they go into an entry (F-15)."""
NAMED_KEYS: Final = 10
"""Most keys that the message of a conflict names; `KeyConflict.keys` has all."""


_ONE_UPDATED: Final = WriteCounts(updated=1)
_ONE_INSERTED: Final = WriteCounts(inserted=1)


class Newest:
    """The newest rows of some keys, as a group of requests sees and changes them."""

    def __init__(self, rows: pa.Table, schema: TableSchema, alive: Alive | None = None) -> None:
        """`rows` hold the key and the columns that the group reads; all of them are `alive`."""
        self._alive = alive
        self._schema = schema
        self._rows = rows
        self._aligned: Sequence[Any] | None = None

    def are_of(self, keys: Sequence[Any]) -> None:
        """Declare that the rows are those of `keys`, all of them and in this order: looking up
        those keys then needs no search."""
        self._aligned = keys

    @Lazy
    def _at(self) -> dict[Any, int]:
        """The row index of each key."""
        if not self._rows.num_rows:
            return {}
        keys = pk_values(self._rows, self._schema.primary_key).to_pylist()
        return {key: index for index, key in enumerate(keys)}

    def look(self, keys: Sequence[Any]) -> FoundRows:
        """The existing rows of those keys."""
        if keys is self._aligned:
            return FoundRows(self._rows, range(len(keys)))
        if not self._at:
            return FoundRows(self._rows, [None] * len(keys))
        return FoundRows(self._rows, list(map(self._at.get, keys)))

    def take_in(self, rows: pa.RecordBatch) -> None:
        """Add rows that came, or will be written, for the requests that follow."""
        if self._alive is not None:
            rows = self._alive.expired_to_tombstones(rows)  # L-11: expired rows count as deleted
        self._aligned, at = None, self._at
        keys = pk_values(rows, self._schema.primary_key).to_pylist()
        first = self._rows.num_rows
        columns = pa.schema([pa.field(f.name, f.type) for f in self._rows.schema])
        known = pa.Table.from_arrays(self._rows.columns, schema=columns)
        self._rows = pa.concat_tables([known, shaped(pa.Table.from_batches([rows]), columns)])
        gone = rows.column(TOMBSTONE).to_pylist()
        for index, (key, is_gone) in enumerate(zip(keys, gone, strict=True)):
            if is_gone:
                at.pop(key, None)
            else:
                at[key] = first + index

    def savepoint(self) -> dict[Any, int]:
        """A state to return to if a request fails halfway."""
        return dict(self._at)

    def rollback_to(self, mark: dict[Any, int]) -> None:
        """Restore the state that `mark` returned."""
        self._at = mark


def decide_all(runs: Sequence[list[Request]], newest: Newest, intake: Intake) -> None:
    """Decide the runs that `runs_of` returned; each request sees those before it."""
    for number, run in enumerate(runs, 1):
        for request in run:
            request.forget()
        _decide(run, newest, intake, more=number < len(runs))


def runs_of(
    requests: Sequence[Request], *, may_expire: bool, are_distinct: bool = False
) -> list[list[Request]]:
    """Split requests into runs of neighbours that can be decided at once: they have the same verb,
    and different keys unless `sees_own_writes` is False. With expiry keys must differ in any case,
    because a row that is written may have expired (L-11).

    `are_distinct`: it is known that no two have a key in common.
    """
    if are_distinct and _ask_the_same(requests):
        return [list(requests)]
    runs: list[list[Request]] = []
    verb: Verb | None = None
    taken: set[Any] = set()
    for request in requests:
        if not request.steps:
            continue  # refused
        step = request.steps[0]
        alone = len(request.steps) > 1
        if (
            not alone
            and verb is not None
            and step.verb == verb
            and (not (may_expire or verb.sees_own_writes) or taken.isdisjoint(step.keys))
        ):
            runs[-1].append(request)
        else:
            runs.append([request])
            verb = None if alone else step.verb
            taken.clear()
        taken.update(step.keys)
    return runs


def _ask_the_same(requests: Sequence[Request]) -> bool:
    """True when all have one step, and share the same verb."""
    verb: Verb | None = None
    for request in requests:
        if len(request.steps) != 1:
            return False
        asked = request.steps[0].verb
        if verb is not None and asked != verb:
            return False
        verb = asked
    return verb is not None


def _decide(run: list[Request], newest: Newest, intake: Intake, *, more: bool) -> None:
    if len(run) > 1:
        try:
            _decide_step(run, [one.steps[0] for one in run], newest, intake, more=more)
        except Exception:  # noqa: BLE001  M-7: one is at fault, and the others are not
            for request in run:
                request.forget()
                _decide([request], newest, intake, more=True)
        return
    (request,) = run
    mark = newest.savepoint() if len(request.steps) > 1 else None
    try:
        for number, step in enumerate(request.steps, 1):
            follows = more or number < len(request.steps)
            _decide_step([request], [step], newest, intake, more=follows)
            if request.error is not None:
                break
    except Exception as error:  # noqa: BLE001  M-7: functions of its caller may raise anything
        request.forget()
        told = f"cannot evaluate this write on these rows: {type(error).__name__}: {error}"
        request.error = error if isinstance(error, WeirError) else InvalidInput(told)
    if request.error is not None:
        request.rows, request.piece, request.counts = (), None, NOTHING
        if mark is not None:
            newest.rollback_to(mark)


def _decide_step(
    run: Sequence[Request],
    steps: Sequence[Step],
    newest: Newest,
    intake: Intake,
    *,
    more: bool,
) -> None:
    """Decide one step of each request of the run at once; a conflict fails its own request only.

    `more`: further steps or requests follow.
    """
    verb = steps[0].verb
    keys = steps[0].keys if len(steps) == 1 else [key for step in steps for key in step.keys]
    found = newest.look(keys)
    verdict = verb.decide(joined(steps), found, intake)
    had = found.present if verb.sees_own_writes else _had(keys, found.present, verdict)
    if verdict.is_plain and _note_plainly(run, steps, had, verdict, intake):
        if more:
            newest.take_in(verdict.rows)  # guard: O-2 test_looking
        return
    first = written = 0
    all_gone = as_mask(verdict.rows.column(TOMBSTONE))
    row_bytes = intake.size_of(verdict.rows) // max(1, verdict.rows.num_rows)
    for request, step in zip(run, steps, strict=True):
        rows_given = step.rows.rows
        here = slice(first, first + rows_given)
        writes = verdict.writes[here]
        count = int(writes.sum())
        gone = all_gone[written : written + count]
        piece = Shaped(verdict.rows, written, count, count * row_bytes)
        first, written = first + rows_given, written + count
        if verdict.conflicts is not None and verdict.conflicts[here].any():
            conflicts = verdict.conflicts[here]
            request.error = _conflict(step.rows.alone(), conflicts, verdict.reason, intake.schema)
            continue
        deleted = int(gone.sum())
        inserted = int((~(had[here][writes] | gone)).sum())
        request.counts += WriteCounts(
            inserted=inserted,
            updated=count - inserted - deleted,
            deleted=deleted,
            skipped=rows_given - count,  # guard: O-5 test_looking
        )
        if count:
            if len(request.steps) == 1:
                request.piece = piece
            else:
                request.rows = [*request.rows, piece.alone()]
            if more:
                newest.take_in(piece.alone())


def _had(keys: Sequence[Any], present: Mask, verdict: Verdict) -> Mask:
    """Which keys have a row when they are decided: one that was found, or was written before."""
    if present.all() or len(set(keys)) == len(keys):
        return present
    had = present.copy()
    seen: set[Any] = set()
    for index, key in enumerate(keys):
        if key in seen:
            had[index] = True  # guard: O-2
        elif verdict.writes[index]:
            seen.add(key)
    return had


def _note_plainly(
    run: Sequence[Request], steps: Sequence[Step], had: Mask, verdict: Verdict, intake: Intake
) -> bool:
    """Note the usual outcome, that every row is written; False if a request has several steps."""
    if len(run) == 1 and len(run[0].steps) > 1:
        return False
    row_bytes = intake.size_of(verdict.rows) // max(1, verdict.rows.num_rows)
    were = had.tolist()
    first = 0
    for request, step in zip(run, steps, strict=True):
        given = step.rows
        count = given.rows
        if given.batch is verdict.rows and given.nbytes:
            request.piece = given  # unchanged, in the batch they were shaped into
        else:
            request.piece = Shaped(verdict.rows, first, count, count * row_bytes)
        if count == 1:
            request.counts = _ONE_UPDATED if were[first] else _ONE_INSERTED
        else:
            updated = sum(were[first : first + count])
            request.counts = WriteCounts(inserted=count - updated, updated=updated)
        first += count
    return True


def _conflict(
    rows: pa.RecordBatch, conflicts: Mask, reason: str, schema: TableSchema
) -> KeyConflict:
    found = rows_where(rows, conflicts).select(list(schema.primary_key)).to_pylist()
    one = len(schema.primary_key) == 1
    keys = [next(iter(row.values())) if one else tuple(row.values()) for row in found]
    named = ", ".join(repr(key) for key in keys[:NAMED_KEYS])
    more = f" and {len(keys) - NAMED_KEYS} more" if len(keys) > NAMED_KEYS else ""
    return KeyConflict(
        f"{len(keys)} of {rows.num_rows} keys {reason}: {named}{more}; nothing was written", keys
    )


@dataclass(frozen=True, eq=False, slots=True)
class Found:
    """The newest rows of some keys; several requests may share one lookup."""

    rows: pa.Table
    alive: Alive | None
    """Which rows have not expired; None: rows do not expire."""
    mark: Mark
    """Where rows begin that came after the lookup."""
    is_aligned: bool = False
    """Every key of the one request has a row, in their order."""


@dataclass(eq=False, slots=True)
class Decision:
    """One request on its way to be decided."""

    request: Request
    columns: Sequence[str]
    """The columns to look up: the key, and those that its verbs read."""
    keys: Sequence[Any]
    """Each key once."""
    found: Found | None = None
    """None until its rows were looked up, or if that failed."""
    is_stale: bool = False
    """Rows that came since were flushed, and can no longer be told apart: look up again."""
    is_counted: bool = True
    """Its caller is among those that wait at the gate of its put."""
    is_left: bool = False
    """Its caller has left, and knows that nothing is written."""
    nbytes: int = 0
    """Bytes of the rows that were decided."""

    def is_current(self, memtables: MemTables) -> bool:
        """True when all rows that came since the lookup are in memory; lock held."""
        if self.found is None:
            return False
        self.is_stale = memtables.oldest.generation > self.found.mark.generation
        return not self.is_stale

    def refuse(self, error: WeirError) -> None:
        """Write no rows: this is what its caller gets."""
        self.request.forget()
        self.request.error, self.nbytes = error, 0

    @property
    def piece(self) -> Shaped | None:
        """The rows that were decided, as a part of a shared batch."""
        return self.request.piece

    @property
    def rows(self) -> Sequence[pa.RecordBatch]:
        """The rows that were decided."""
        piece = self.request.piece
        return self.request.rows if piece is None else (piece.alone(),)

    @property
    def row_count(self) -> int:
        """How many rows were decided."""
        piece = self.request.piece
        return sum(b.num_rows for b in self.request.rows) if piece is None else piece.rows


def decide_run(
    decisions: Sequence[Decision], since: Sequence[pa.RecordBatch], intake: Intake, limits: Limits
) -> None:
    """Decide those requests, each of which sees the ones before it; `since` are all rows that came
    after the oldest lookup, in order."""
    written: list[pa.RecordBatch] = []
    looked = [(decision, decision.found) for decision in decisions if decision.found is not None]
    for _, alike in groupby(looked, key=lambda d: (tuple(d[0].columns), d[1].alive is None)):
        run, fits = list(alike), False
        while run and not fits:  # guard: O-2 test_looking
            _decide_alike(run, [*since, *written], intake)
            # One that is refused now was seen by those after it: they are decided again.
            left = [one for one in run if _measure(one[0], intake, limits)]
            fits, run = len(left) == len(run), left
        for decision, _ in run:
            written += decision.rows


def _decide_alike(
    run: Sequence[tuple[Decision, Found]], since: Sequence[pa.RecordBatch], intake: Intake
) -> None:
    schema = intake.schema
    steps = [step for decision, _ in run for step in decision.request.steps]
    given = [key for step in steps for key in step.keys]
    # Of a key that was looked up twice the later row counts, unless `since` has a newer one.
    looked = {id(found): found for _, found in run}
    ordered = sorted(looked.values(), key=lambda found: found.mark)
    rows = pa.concat_tables([found.rows for found in ordered])
    newest = Newest(rows, schema, ordered[-1].alive)
    if ordered[0].is_aligned and len(run) == 1:
        newest.are_of(run[0][0].keys)
    if since:
        keys = pk_values(key_columns(steps, schema), schema.primary_key)
        recent = pa.Table.from_batches(since)
        ours = pc.is_in(pk_values(recent, schema.primary_key), value_set=keys)
        for batch in recent.filter(ours).combine_chunks().to_batches():
            newest.take_in(batch)
    runs = runs_of(
        [decision.request for decision, _ in run],
        may_expire=ordered[-1].alive is not None,
        are_distinct=len(set(given)) == len(given),
    )
    decide_all(runs, newest, intake)


def _measure(decision: Decision, intake: Intake, limits: Limits) -> bool:
    """Note the size of the rows; False for rows that do not fit one entry, refused here (F-15)."""
    request = decision.request
    piece = request.piece
    nbytes = sum(map(intake.size_of, request.rows)) if piece is None else piece.nbytes
    if nbytes > SURELY_FITS:
        try:
            nbytes = intake.fit(decision.rows, limits)
        except WeirError as error:
            decision.refuse(error)
            return False
    decision.nbytes = nbytes
    return True


def key_columns(steps: Sequence[Step], schema: TableSchema) -> pa.Table:
    """The key columns of the steps; a key may be there several times."""
    parts = parts_of(steps)
    columns = [
        pa.chunked_array([part.batch.column(name).slice(part.offset, part.rows) for part in parts])
        for name in schema.primary_key
    ]
    return pa.Table.from_arrays(columns, schema=schema.key_schema).combine_chunks()
