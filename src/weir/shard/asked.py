"""What is asked of a writer that looks first: rows, in steps, and what became of them.

Keeps
  M-7  rows that cannot be shaped are refused to their caller alone
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from weir.env import Limits
from weir.errors import WeirError
from weir.format.keys import pk_values
from weir.format.schema import TableSchema
from weir.log.intake import Intake
from weir.log.tiny import Shaped, Tiny, shape_together
from weir.shard.actions import Verb


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


NOTHING: Final = WriteCounts()


class Step(NamedTuple):
    """Rows of which no two have the same key, and what is asked of them."""

    verb: Verb
    rows: Shaped
    keys: list[Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """What is asked of some rows, and what shapes them: those of one kind are shaped at once."""

    verb: Verb
    intake: Intake


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest rows of the keys of a request, as a scan found them, and when that was."""

    rows: pa.Table
    generation: int
    """The active MemTable of then, and the batches that it had."""
    batches: int
    base_version: int


@dataclass(slots=True)
class Request:
    """One call: rows, in steps that are decided one after the other, and what becomes of them."""

    steps: Sequence[Step] = ()
    given: Sequence[pa.RecordBatch] = ()
    """What the caller handed over, and gets back if it fails; empty: the rows of the steps."""
    unshaped: Tiny | None = None
    """The same before whoever decides has shaped it."""
    kind: Kind | None = None
    seen: Seen | None = None
    """What was found when it was made; then only what came since is to be looked at."""
    refused: Exception | None = None
    """Why the rows could not be shaped."""
    rows: Sequence[pa.RecordBatch] = ()
    piece: Shaped | None = None
    """The rows to write within the batch they were decided in, instead of `rows`."""
    counts: WriteCounts = WriteCounts()
    error: WeirError | None = None

    @property
    def is_empty(self) -> bool:
        """True when there are no rows."""
        return not self.steps and self.unshaped is None

    @property
    def row_count(self) -> int:
        """Rows that were handed over."""
        if self.unshaped is not None:
            return self.unshaped.rows
        return sum([step.rows.rows for step in self.steps])

    def handed_back(self) -> list[pa.RecordBatch]:
        """What the caller handed over, in the shape of the log."""
        if self.unshaped is not None and self.kind is not None:
            return self.kind.intake.rows(self.unshaped.data)
        return list(self.given) or [step.rows.alone() for step in self.steps]

    def take_shape(self, rows: Shaped, keys: list[Any]) -> None:
        """Whoever decides has shaped its rows."""
        assert self.kind is not None, "only rows of a kind are left to others to shape"
        verb = self.kind.verb
        self.steps = (Step(verb, rows, keys),) if len(keys) == 1 else _steps(verb, rows, keys)
        self.unshaped = None  # last: an interrupt before it has them shaped again

    def refuse(self, error: Exception) -> None:
        """Its rows cannot be shaped."""
        self.refused = error
        self.unshaped = None

    def forget(self) -> None:
        """Before it is decided again."""
        self.piece, self.counts, self.error = None, NOTHING, None
        self.rows = ()


def shape_all(requests: Sequence[Request], schema: TableSchema, limits: Limits) -> None:
    """Shape the rows that were left to whoever decides, those of one kind in one conversion."""
    kind: Kind | None = None
    run: list[tuple[Request, Tiny]] = []
    for request in requests:
        if request.unshaped is None:
            continue
        if request.kind is not kind and request.kind != kind:
            _shape_run(run, kind, schema, limits)
            run = []
        kind = request.kind
        run.append((request, request.unshaped))
    _shape_run(run, kind, schema, limits)


def _shape_run(
    run: Sequence[tuple[Request, Tiny]], kind: Kind | None, schema: TableSchema, limits: Limits
) -> None:
    if not run or kind is None:
        return
    batch: pa.RecordBatch | None = None
    keys: list[Any] = []
    found = shape_together(kind.intake, [put for _, put in run], limits)
    for (request, _), one in zip(run, found, strict=True):
        if isinstance(one, Exception):
            request.refuse(one)
            continue
        if one.batch is not batch:
            batch = one.batch
            keys = pk_values(batch, schema.primary_key).to_pylist()
        request.take_shape(one, keys[one.offset : one.offset + one.rows])


def steps_of(verb: Verb, batches: Iterable[pa.RecordBatch], schema: TableSchema) -> list[Step]:
    """The rows in their order, cut so that within a step no key occurs twice."""
    steps: list[Step] = []
    for batch in batches:
        keys = pk_values(batch, schema.primary_key).to_pylist()
        steps += _steps(verb, Shaped(batch, 0, batch.num_rows, 0), keys)
    return steps


def _steps(verb: Verb, rows: Shaped, keys: list[Any]) -> list[Step]:
    if len(set(keys)) == len(keys):
        return [Step(verb, rows, keys)]
    steps: list[Step] = []
    seen: set[Any] = set()
    start = 0

    def cut(end: int) -> None:
        part = Shaped(rows.batch, rows.offset + start, end - start, 0)
        steps.append(Step(verb, part, keys[start:end]))

    for index, key in enumerate(keys):
        if key in seen:
            cut(index)
            start = index
            seen.clear()
        seen.add(key)
    cut(len(keys))
    return steps


def joined(steps: Sequence[Step]) -> pa.RecordBatch:
    """The rows of those steps; what was shaped together is not copied."""
    batches = [part.alone() for part in parts_of(steps)]
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def parts_of(steps: Sequence[Step]) -> list[Shaped]:
    """Their rows, with neighbours in one batch as one."""
    if not steps:
        return []
    parts: list[Shaped] = []
    batch, start = steps[0].rows.batch, steps[0].rows.offset
    end = start
    for step in steps:
        one = step.rows
        if one.batch is not batch or one.offset != end:
            parts.append(Shaped(batch, start, end - start, 0))
            batch, start = one.batch, one.offset
        end = one.offset + one.rows
    parts.append(Shaped(batch, start, end - start, 0))
    return parts
