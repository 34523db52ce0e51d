"""Requests to a writer that looks first: rows, in steps, and their outcome.

Keeps
  M-7  a request whose rows cannot be shaped is refused alone
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
from weir.log.small_put import Shaped, SmallPut, shape_together
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
    """Rows with distinct keys, and the verb to apply to them."""

    verb: Verb
    rows: Shaped
    keys: list[Any]


@dataclass(frozen=True, slots=True)
class RequestKind:
    """A verb, and the intake that shapes its rows; requests of one kind are shaped at once."""

    verb: Verb
    intake: Intake


@dataclass(frozen=True, slots=True)
class ScannedRows:
    """The newest rows of the keys of a request, as a scan found them, and when that was."""

    rows: pa.Table
    columns: Sequence[str]
    """The columns asked for; `rows` may also have the time that decides whether a row expired."""
    generation: int
    """The active MemTable at that moment; `batches` is how many batches it had."""
    batches: int
    base_version: int


@dataclass(slots=True)
class Request:
    """One call: rows, in steps that are decided one after the other, and their outcome."""

    steps: Sequence[Step] = ()
    given: Sequence[pa.RecordBatch] = ()
    """The rows that the caller passed, and gets back on failure; if empty, those of the steps."""
    unshaped: SmallPut | None = None
    """The same, until the deciding thread has shaped them."""
    kind: RequestKind | None = None
    seen: ScannedRows | None = None
    """The rows that a scan found for it; then only rows that came since are checked."""
    refused: Exception | None = None
    """Why the rows could not be shaped."""
    rows: Sequence[pa.RecordBatch] = ()
    piece: Shaped | None = None
    """The rows to write, as a part of the batch they were decided in; replaces `rows`."""
    counts: WriteCounts = WriteCounts()
    error: WeirError | None = None

    @property
    def is_empty(self) -> bool:
        """True when there are no rows."""
        return not self.steps and self.unshaped is None

    @property
    def row_count(self) -> int:
        """Rows that the caller passed."""
        if self.unshaped is not None:
            return self.unshaped.rows
        return sum([step.rows.rows for step in self.steps])

    def handed_back(self) -> list[pa.RecordBatch]:
        """The rows that the caller passed, in WAL shape."""
        if self.unshaped is not None and self.kind is not None:
            return self.kind.intake.rows(self.unshaped.data)
        return list(self.given) or [step.rows.alone() for step in self.steps]

    def take_shape(self, rows: Shaped, keys: list[Any]) -> None:
        """Take the rows as the deciding thread has shaped them."""
        assert self.kind is not None, "only rows of a kind are left to others to shape"
        verb = self.kind.verb
        self.steps = (Step(verb, rows, keys),) if len(keys) == 1 else _steps(verb, rows, keys)
        self.unshaped = None  # last: if interrupted before, they are shaped again

    def refuse(self, error: Exception) -> None:
        """Refuse the request: its rows cannot be shaped."""
        self.refused = error
        self.unshaped = None

    def forget(self) -> None:
        """Discard the outcome, before it is decided again."""
        self.piece, self.counts, self.error = None, NOTHING, None
        self.rows = ()


def shape_all(requests: Sequence[Request], schema: TableSchema, limits: Limits) -> None:
    """Shape the rows that are still unshaped, neighbours of one kind in one conversion."""
    kind: RequestKind | None = None
    run: list[tuple[Request, SmallPut]] = []
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
    run: Sequence[tuple[Request, SmallPut]],
    kind: RequestKind | None,
    schema: TableSchema,
    limits: Limits,
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
    """The rows of those steps; rows that were shaped together are not copied."""
    batches = [part.alone() for part in parts_of(steps)]
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def parts_of(steps: Sequence[Step]) -> list[Shaped]:
    """The rows of those steps, with neighbours in one batch as one part."""
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
