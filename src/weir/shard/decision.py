"""What the committing thread decides: the rows that were looked up, and those that came since.

A lookup notes where the rows that come later begin (`weir.shard.lookups`). The committing thread,
which books all rows in order, adds those that came since and decides: nothing can come in between
(O-2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from weir.env import Limits
from weir.errors import WeirError
from weir.format.expiry import Alive
from weir.format.keys import pk_values
from weir.format.schema import TableSchema
from weir.log.intake import Intake
from weir.log.small_put import Shaped
from weir.shard.decide import Newest, decide_all, runs_of
from weir.shard.memtable import Mark, MemTables
from weir.shard.request import Request, Step, parts_of

SURELY_FITS: Final = 64 << 10
"""Bytes of rows that need not be measured before they go into an entry (F-15)."""


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
    nbytes: int = 0
    """Bytes of the rows that were decided."""

    def is_current(self, memtables: MemTables) -> bool:
        """True when all rows that came since the lookup are in memory; lock held."""
        if self.found is None:
            return False
        self.is_stale = memtables.oldest.generation > self.found.mark.generation
        return not self.is_stale

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
        run = list(alike)
        _decide(run, [*since, *written], intake)
        for decision, _ in run:
            _measure(decision, intake, limits)
            written += decision.rows


def _decide(
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


def _measure(decision: Decision, intake: Intake, limits: Limits) -> None:
    """Note the size of the rows, or refuse rows that do not fit one entry (F-15)."""
    request = decision.request
    piece = request.piece
    nbytes = sum(map(intake.size_of, request.rows)) if piece is None else piece.nbytes
    if nbytes > SURELY_FITS:
        try:
            nbytes = intake.fit(decision.rows, limits)
        except WeirError as error:
            request.forget()
            request.error = error
            nbytes = 0
    decision.nbytes = nbytes


def key_columns(steps: Sequence[Step], schema: TableSchema) -> pa.Table:
    """The key columns of the steps; a key may be there several times."""
    parts = parts_of(steps)
    columns = [
        pa.chunked_array([part.batch.column(name).slice(part.offset, part.rows) for part in parts])
        for name in schema.primary_key
    ]
    return pa.Table.from_arrays(columns, schema=schema.key_schema).combine_chunks()
