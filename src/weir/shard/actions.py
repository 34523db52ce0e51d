"""What each verb that looks first writes: pure functions of the rows given and the rows found.

Keeps
  O-1  resolved before the log: whole rows come out, and nothing else is ever written
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import CommitConflict, InvalidInput, SchemaMismatch
from weir.format.nested import as_type
from weir.format.schema import TOMBSTONE, TableSchema
from weir.lake.expressions import condition_columns, filter_mask, new_values, when_mask
from weir.lazy import Lazy
from weir.log.intake import Intake
from weir.types import Filter

Mask = npt.NDArray[np.bool_]
AddedColumns = Callable[[], Sequence[str]]
"""The columns of the base, as it was last read, that the writer does not know."""


@dataclass(frozen=True)
class Verdict:
    """Which of the given rows are written (`writes`), and the `rows` to write, in WAL shape."""

    rows: pa.RecordBatch
    writes: Mask
    conflicts: Mask | None = None
    """Rows that make the whole request fail."""
    reason: str = ""

    @property
    def is_plain(self) -> bool:
        """True when every row is written, and none is a delete."""
        if self.conflicts is not None and self.conflicts.any():
            return False
        return bool(self.writes.all()) and not self.rows.column(TOMBSTONE).true_count


class FoundRows:
    """The existing rows of the keys of some given rows, row by row."""

    def __init__(self, rows: pa.Table, places: list[int | None] | range) -> None:
        """`places`: the row index of each key; a range: all have one, in the order of keys."""
        self._rows = rows
        self._places = places
        if isinstance(places, range):
            self.present: Mask = np.ones(len(places), np.bool_)
        else:
            self.present = np.array([place is not None for place in places], np.bool_)

    @Lazy
    def rows(self) -> pa.Table:
        """The rows, null where there is none; built for verbs that need more than `present`."""
        if isinstance(self._places, range) or self._places == list(range(self._rows.num_rows)):
            return self._rows  # every key has a row, in this order
        return self._rows.take(pa.array(self._places, pa.int64()))


class Verb(Protocol):
    """The operation of a request; requests with equal verbs are decided together."""

    @property
    def sees_own_writes(self) -> bool:
        """False when its result for a row does not depend on rows that the same verb wrote just
        before: requests on one key can then be decided at once."""

    def columns_read(self, schema: TableSchema) -> Sequence[str]:
        """The columns of existing rows that it needs, besides the key."""

    def decide(self, given: pa.RecordBatch, found: FoundRows, intake: Intake) -> Verdict:
        """Decide what to write of the rows given, from those that were found."""


@dataclass(frozen=True)
class Update:
    """Some columns get new values, the others keep theirs."""

    columns: tuple[str, ...]
    missing: str
    added: AddedColumns

    sees_own_writes: ClassVar[bool] = False  # it keeps the columns that it does not write

    def columns_read(self, schema: TableSchema) -> Sequence[str]:
        """All columns that are not given."""
        return [name for name in schema.arrow.names if name not in self.columns]

    def decide(self, given: pa.RecordBatch, found: FoundRows, intake: Intake) -> Verdict:
        """See `Verb`."""
        schema, present = intake.schema, found.present
        require_all_known(self.added)
        if self.missing == "insert" and not present.all():
            for column in schema.arrow:
                if not column.nullable and column.name not in self.columns:
                    raise SchemaMismatch(
                        f"column {column.name!r} is declared not null and is missing from a row"
                        " whose key is new"
                    )
        current = found.rows
        columns = [
            given.column(column.name)
            if column.name in self.columns  # guard: O-1 never
            else as_type(_whole(current.column(column.name)), column.type)
            for column in schema.wal
            if column.name != TOMBSTONE
        ]
        columns.append(given.column(TOMBSTONE))
        rows = pa.RecordBatch.from_arrays(columns, schema=schema.wal)
        if self.missing == "insert":
            return Verdict(rows, np.ones(given.num_rows, np.bool_))
        conflicts = ~present if self.missing == "error" else None
        return Verdict(rows_where(rows, present), present, conflicts, "do not exist")


@dataclass(frozen=True)
class Insert:
    """Write only rows whose key is new."""

    on_conflict: str

    sees_own_writes: ClassVar[bool] = True

    def columns_read(self, schema: TableSchema) -> Sequence[str]:
        """None: only the existence of the rows matters."""
        del schema
        return ()

    def decide(self, given: pa.RecordBatch, found: FoundRows, intake: Intake) -> Verdict:
        """See `Verb`."""
        del intake
        present = found.present
        if not present.any():
            return Verdict(given, ~present)
        conflicts = present if self.on_conflict == "error" else None
        return Verdict(rows_where(given, ~present), ~present, conflicts, "already exist")


class _Filtered:
    """Verbs with a condition are equal if their texts are; pyarrow's expressions have no `==`."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return all(
            # Compared with text too, an expression gives another expression.
            one is another or (not _has_expression(one, another) and one == another)
            for one, another in pairs
        )

    def __hash__(self) -> int:
        return hash(type(self))


@dataclass(frozen=True, eq=False)
class PutWhen(_Filtered):
    """Write only rows for which a condition holds."""

    when: Filter

    sees_own_writes: ClassVar[bool] = True

    def columns_read(self, schema: TableSchema) -> Sequence[str]:
        """The columns that the condition names."""
        return condition_columns(self.when, schema.arrow.names)

    def decide(self, given: pa.RecordBatch, found: FoundRows, intake: Intake) -> Verdict:
        """See `Verb`."""
        names = intake.schema.arrow.names
        rows = pa.Table.from_batches([given])
        holds = as_mask(when_mask(self.when, found.rows, rows, pa.array(~found.present), names))
        return Verdict(rows_where(given, holds), holds)


@dataclass(frozen=True, eq=False)
class DeleteWhere(_Filtered):
    """Delete the rows of some keys that still pass a filter."""

    filter: Filter

    sees_own_writes: ClassVar[bool] = True

    def columns_read(self, schema: TableSchema) -> Sequence[str]:
        """The columns that the filter names."""
        return condition_columns(self.filter, schema.arrow.names)

    def decide(self, given: pa.RecordBatch, found: FoundRows, intake: Intake) -> Verdict:
        """See `Verb`."""
        passing = _passing(self.filter, found)
        batches = intake.tombstones(rows_where(given, passing))
        return Verdict(_together(batches, intake.schema), passing)


@dataclass(frozen=True, eq=False)
class UpdateWhere(_Filtered):
    """The rows of some keys that still pass a filter get new values."""

    filter: Filter
    assignments: tuple[tuple[str, str], ...]
    added: AddedColumns

    sees_own_writes: ClassVar[bool] = True

    def columns_read(self, schema: TableSchema) -> Sequence[str]:
        """Everything: whole rows are written."""
        names: list[str] = schema.arrow.names
        return names

    def decide(self, given: pa.RecordBatch, found: FoundRows, intake: Intake) -> Verdict:
        """See `Verb`."""
        del given
        require_all_known(self.added)
        passing = _passing(self.filter, found)
        rows = found.rows.filter(pa.array(passing))
        if rows.num_rows:
            for name, values in new_values(dict(self.assignments), rows).items():
                rows = rows.set_column(rows.schema.get_field_index(name), name, values)
        return Verdict(_together(intake.rows(rows), intake.schema), passing)


def require_all_known(added: AddedColumns) -> None:
    """Raise `CommitConflict` when whole rows, made of the rows found, would lack a column."""
    names = added()
    if names:
        raise CommitConflict(
            f"the columns {names} were added to the table since this writer was opened, and updates"
            " through it would lose their values; nothing was written. Open a new writer"
        )


def _has_expression(*values: object) -> bool:
    return any(isinstance(value, pc.Expression) for value in values)


def _passing(filter: Filter, found: FoundRows) -> Mask:
    """Which rows exist and pass the filter."""
    present = found.present
    passing = present.copy()
    if present.any():
        passing[present] = as_mask(filter_mask(filter, found.rows.filter(pa.array(present))))
    return passing


def as_mask(mask: pa.BooleanArray) -> Mask:
    """The mask as a numpy array."""
    return np.asarray(mask.to_numpy(zero_copy_only=False), np.bool_)


def rows_where(rows: pa.RecordBatch, mask: Mask) -> pa.RecordBatch:
    """The rows that are marked."""
    return rows if mask.all() else rows.filter(pa.array(mask))


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _together(batches: Sequence[pa.RecordBatch], schema: TableSchema) -> pa.RecordBatch:
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=schema.wal)
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def check_assignments(assignments: Sequence[tuple[str, str]], schema: TableSchema) -> None:
    """Raise `InvalidInput` unless each is for a column that may change."""
    if not assignments:
        raise InvalidInput("update_where needs at least one column to set")
    for name, _ in assignments:
        if name not in schema.arrow.names:
            raise InvalidInput(f"the table has no column {name!r}; it has {schema.arrow.names}")
        if name in schema.primary_key:
            raise InvalidInput(f"column {name!r} is part of the primary key and cannot be set")
