"""How requests of one group are decided: each in the light of those before it, at once if they can.

Keeps
  O-2  requests of one group see each other's rows, in their order, as if one came after the other
  M-7  a request that fails, fails alone
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import InvalidInput, KeyConflict, WeirError
from weir.format.expiry import Alive
from weir.format.keys import pk_values
from weir.format.schema import TOMBSTONE, TableSchema
from weir.log.intake import Intake, size_of
from weir.log.tiny import Shaped
from weir.merge.levels import shaped
from weir.shard.actions import Mask, Verb, marked, marks

NAMED_KEYS: Final = 10
"""Keys that the message of a conflict names; `KeyConflict.keys` has all."""


@dataclass(frozen=True)
class WriteCounts:
    """What became of the rows of a write that looked first."""

    inserted: int = 0
    """Rows whose key was new."""
    updated: int = 0
    """Rows that replaced another."""
    deleted: int = 0
    """Rows that are gone."""
    skipped: int = 0
    """Rows that were left as they are."""

    def __add__(self, other: WriteCounts) -> WriteCounts:
        return WriteCounts(
            self.inserted + other.inserted,
            self.updated + other.updated,
            self.deleted + other.deleted,
            self.skipped + other.skipped,
        )


@dataclass(frozen=True)
class Step:
    """Rows of which no two have the same key, and what is asked of them."""

    verb: Verb
    rows: pa.RecordBatch


@dataclass
class Request:
    """One call: rows, in steps that are decided one after the other, and what becomes of them."""

    steps: list[Step]
    given: Sequence[pa.RecordBatch] = ()
    """What the caller handed over, and gets back if it fails."""
    rows: list[pa.RecordBatch] = field(default_factory=list)
    piece: Shaped | None = None
    """The same within the batch they were decided in, where all of them are."""
    counts: WriteCounts = WriteCounts()
    error: WeirError | None = None

    def forget(self) -> None:
        """Before it is decided again."""
        self.rows, self.piece, self.counts, self.error = [], None, WriteCounts(), None


class Newest:
    """The newest rows of some keys, as a group of requests sees and changes them."""

    def __init__(self, rows: pa.Table, schema: TableSchema, alive: Alive | None = None) -> None:
        """`rows` hold the key and whatever else the group looks at; all of them are `alive`."""
        self._alive = alive
        self._schema = schema
        self._columns = pa.schema([pa.field(f.name, f.type) for f in rows.schema])
        self._rows = pa.Table.from_arrays(rows.combine_chunks().columns, schema=self._columns)
        keys = pk_values(rows, schema.primary_key).to_pylist()
        self._at: dict[Any, int] = {key: index for index, key in enumerate(keys)}

    def look(self, keys: Sequence[Any]) -> tuple[pa.Table, Mask]:
        """The rows of those keys, null where there is none, and where there is one."""
        places = [self._at.get(key) for key in keys]
        present = np.array([place is not None for place in places], np.bool_)
        if places == list(range(self._rows.num_rows)):
            return self._rows, present  # all that was looked for is there, in this order
        return self._rows.take(pa.array(places, pa.int64())), present

    def take_in(self, rows: pa.RecordBatch) -> None:
        """Rows that came, or are to be written, for the requests that come after."""
        if self._alive is not None:
            rows = self._alive.bury(rows)  # L-11: as if it were deleted
        keys = pk_values(rows, self._schema.primary_key).to_pylist()
        first = self._rows.num_rows
        self._rows = pa.concat_tables(
            [self._rows, shaped(pa.Table.from_batches([rows]), self._columns)]
        )
        gone = rows.column(TOMBSTONE).to_pylist()
        for index, (key, is_gone) in enumerate(zip(keys, gone, strict=True)):
            if is_gone:
                self._at.pop(key, None)
            else:
                self._at[key] = first + index

    def mark(self) -> dict[Any, int]:
        """To come back to, should a request fail halfway."""
        return dict(self._at)

    def back_to(self, mark: dict[Any, int]) -> None:
        """As it was then."""
        self._at = mark


def decide_all(requests: Sequence[Request], newest: Newest, intake: Intake) -> None:
    """Decide them, each in the light of those before it."""
    runs = list(_runs(requests, intake.schema))
    for number, run in enumerate(runs, 1):
        _decide(run, newest, intake, more=number < len(runs))


def steps_of(verb: Verb, batches: Iterable[pa.RecordBatch], schema: TableSchema) -> list[Step]:
    """The rows in their order, cut so that within a step no key occurs twice."""
    steps: list[Step] = []
    for batch in batches:
        keys = pk_values(batch, schema.primary_key)
        if batch.num_rows == 1 or pc.count_distinct(keys).as_py() == batch.num_rows:
            steps.append(Step(verb, batch))
            continue
        seen: set[Any] = set()
        start = 0
        for index, key in enumerate(keys.to_pylist()):
            if key in seen:
                steps.append(Step(verb, batch.slice(start, index - start)))
                start, seen = index, set()
            seen.add(key)
        steps.append(Step(verb, batch.slice(start)))
    return steps


def _runs(requests: Sequence[Request], schema: TableSchema) -> Iterator[list[Request]]:
    """Neighbours that ask for the same of different keys: they are decided at once."""
    run: list[Request] = []
    taken: set[Any] = set()
    for request in requests:
        request.forget()
        keys = set(_keys_of(request, schema)) if len(request.steps) == 1 else None
        fits = bool(run) and keys is not None and len(run[0].steps) == 1
        if fits:
            fits = run[0].steps[0].verb == request.steps[0].verb and taken.isdisjoint(keys or ())
        if not fits:
            if run:
                yield run
            run, taken = [], set()
        run.append(request)
        taken |= keys or set()
    if run:
        yield run


def _keys_of(request: Request, schema: TableSchema) -> list[Any]:
    keys = (pk_values(step.rows, schema.primary_key) for step in request.steps)
    return [key for array in keys for key in array.to_pylist()]


def _decide(run: list[Request], newest: Newest, intake: Intake, *, more: bool) -> None:
    if len(run) > 1:
        try:
            _decide_step(run, [one.steps[0] for one in run], newest, intake, more=more)
        except (WeirError, pa.ArrowException):  # one is at fault: M-7, the others are not
            for request in run:
                request.forget()
                _decide([request], newest, intake, more=True)
        return
    (request,) = run
    mark = newest.mark() if len(request.steps) > 1 else None
    try:
        for number, step in enumerate(request.steps, 1):
            follows = more or number < len(request.steps)
            _decide_step([request], [step], newest, intake, more=follows)
            if request.error is not None:
                break
    except WeirError as error:
        request.forget()
        request.error = error
    except pa.ArrowException as error:
        request.forget()
        request.error = InvalidInput(f"the rows cannot be decided on: {error}")
    if request.error is not None:
        request.rows, request.piece, request.counts = [], None, WriteCounts()
        if mark is not None:
            newest.back_to(mark)


def _decide_step(
    run: Sequence[Request],
    steps: Sequence[Step],
    newest: Newest,
    intake: Intake,
    *,
    more: bool,
) -> None:
    """One step of each request of the run, at once. What fails alone is noted in its request.

    `more`: something comes after it.
    """
    given = [step.rows for step in steps]
    batch = given[0] if len(given) == 1 else pa.concat_batches(given)
    keys = pk_values(batch, intake.schema.primary_key).to_pylist()
    current, present = newest.look(keys)
    verdict = steps[0].verb.decide(batch, current, present, intake)
    first = written = 0
    all_gone = marks(verdict.rows.column(TOMBSTONE))
    row_bytes = size_of(verdict.rows) // max(1, verdict.rows.num_rows)
    for request, part in zip(run, given, strict=True):
        here = slice(first, first + part.num_rows)
        writes = verdict.writes[here]
        count = int(writes.sum())
        rows = verdict.rows.slice(written, count)
        gone = all_gone[written : written + count]
        piece = Shaped(verdict.rows, written, count, count * row_bytes)
        first, written = first + part.num_rows, written + count
        if verdict.conflicts is not None and verdict.conflicts[here].any():
            request.error = _conflict(part, verdict.conflicts[here], verdict.reason, intake.schema)
            continue
        had = present[here][writes]
        deleted = int(gone.sum())
        inserted = int((~(had | gone)).sum())
        request.counts += WriteCounts(
            inserted=inserted,
            updated=count - inserted - deleted,
            deleted=deleted,
            skipped=part.num_rows - count,
        )
        if count:
            request.rows.append(rows)
            request.piece = piece if len(request.steps) == 1 else None
            if more:
                newest.take_in(rows)


def _conflict(
    rows: pa.RecordBatch, conflicts: Mask, reason: str, schema: TableSchema
) -> KeyConflict:
    found = marked(rows, conflicts).select(list(schema.primary_key)).to_pylist()
    one = len(schema.primary_key) == 1
    keys = [next(iter(row.values())) if one else tuple(row.values()) for row in found]
    named = ", ".join(repr(key) for key in keys[:NAMED_KEYS])
    more = f" and {len(keys) - NAMED_KEYS} more" if len(keys) > NAMED_KEYS else ""
    return KeyConflict(
        f"{len(keys)} of {rows.num_rows} keys: {named}{more} {reason}; nothing was written", keys
    )
