"""What the committing thread decides: the rows a caller has looked up, and those that came since.

The caller looks up the newest rows of its keys in its own thread, without a lock, and notes where
the rows that come later begin. The committing thread, which books all rows in order, adds those
that came since and decides: nothing can come in between (O-2).
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


@dataclass(eq=False, slots=True)
class Decision:
    """One request on its way to be decided, with the rows that its lookup found."""

    request: Request
    columns: Sequence[str]
    """The columns that were looked up: the key, and those that its verbs read."""
    found: pa.Table
    alive: Alive | None
    """Which rows have not expired; None: rows do not expire."""
    mark: Mark
    """Where rows begin that came after the lookup."""
    keys: Sequence[Any] = ()
    """If every key has a row, in this order, in `found`: the keys."""
    is_stale: bool = False
    """Rows that came since were flushed, and can no longer be told apart: look up again."""
    nbytes: int = 0
    """Bytes of the rows that were decided."""

    def is_current(self, memtables: MemTables) -> bool:
        """True when all rows that came since the lookup are in memory; lock held."""
        self.is_stale = memtables.oldest.generation > self.mark.generation
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
    for _, alike in groupby(decisions, key=lambda d: (tuple(d.columns), d.alive is None)):
        run = list(alike)
        _decide(run, [*since, *written], intake)
        for decision in run:
            _measure(decision, intake, limits)
            written += decision.rows


def _decide(run: Sequence[Decision], since: Sequence[pa.RecordBatch], intake: Intake) -> None:
    schema = intake.schema
    steps = [step for decision in run for step in decision.request.steps]
    given = [key for step in steps for key in step.keys]
    if len(run) == 1:
        newest = Newest(run[0].found, schema, run[0].alive)
        if run[0].keys:
            newest.are_of(run[0].keys)
    else:
        # Of a key that was looked up twice the later row counts, unless `since` has a newer one.
        ordered = sorted(run, key=lambda decision: decision.mark)
        found = pa.concat_tables([decision.found for decision in ordered])
        newest = Newest(found, schema, ordered[-1].alive)
    if since:
        keys = pk_values(key_columns(steps, schema), schema.primary_key)
        for batch in since:
            ours = pc.is_in(pk_values(batch, schema.primary_key), value_set=keys)
            if ours.true_count:
                newest.take_in(batch.filter(ours))
    runs = runs_of(
        [decision.request for decision in run],
        may_expire=run[0].alive is not None,
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
