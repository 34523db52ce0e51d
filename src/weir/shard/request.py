"""Requests to a writer that looks first: rows, in steps, and their outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from weir.errors import WeirError
from weir.format.keys import pk_values
from weir.format.schema import TableSchema
from weir.log.small_put import Shaped
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
    """The rows that the caller passed, in WAL shape; it gets them back on failure. Whoever passed
    a condition gets none: the steps hold the keys that it found, and no rows to put again."""
    seen: ScannedRows | None = None
    """The rows that a scan found for it; then only rows that came since are checked."""
    rows: Sequence[pa.RecordBatch] = ()
    piece: Shaped | None = None
    """The rows to write, as a part of the batch they were decided in; replaces `rows`."""
    counts: WriteCounts = WriteCounts()
    error: WeirError | None = None

    @property
    def is_empty(self) -> bool:
        """True when there are no rows."""
        return not self.steps

    def forget(self) -> None:
        """Discard the outcome, before it is decided again."""
        self.piece, self.counts, self.error = None, NOTHING, None
        self.rows = ()


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
