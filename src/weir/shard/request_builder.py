"""Makes the requests of writes that look first: rows in any form, as steps to be decided."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

import pyarrow as pa

from weir.errors import InvalidInput
from weir.format.schema import TOMBSTONE, TableSchema
from weir.lake.expressions import require_text
from weir.log.intake import Intake
from weir.log.small_put import SmallPut, as_small_put
from weir.shard.actions import (
    DeleteWhere,
    Insert,
    PutWhen,
    Update,
    UpdateWhere,
    Verb,
    check_assignments,
)
from weir.shard.own_reads import OwnReads
from weir.shard.request import Request, RequestKind, ScannedRows, Step, steps_of
from weir.types import Rows

Missing = Literal["error", "skip", "insert"]
"""What an update does with a key that does not exist."""
OnConflict = Literal["error", "skip"]
"""What an insert does with a key that exists."""
MISSING: Final[tuple[str, ...]] = get_args(Missing)
ON_CONFLICT: Final[tuple[str, ...]] = get_args(OnConflict)

VERBS: Final = ("put", "update", "insert")


@dataclass(frozen=True)
class WriteSpec:
    """A write that looks first, described by strings, for callers that pass it on as options."""

    verb: str
    when: str | None = None
    missing: Missing = "error"
    on_conflict: OnConflict = "error"

    def __post_init__(self) -> None:
        check_choice(self.verb, VERBS, "verb")
        check_choice(self.missing, MISSING, "missing")
        check_choice(self.on_conflict, ON_CONFLICT, "on_conflict")
        if (self.verb == "put") != (self.when is not None):
            raise InvalidInput("verb 'put' needs a condition (when); other verbs take none")


WHERE_ROWS: Final = 50_000
WHERE_BYTES: Final = 16 << 20
"""Most rows that `delete_where` and `update_where` decide at once, and most bytes read of them."""


class RequestBuilder:
    """Makes the requests of one writer. Safe to share between threads."""

    def __init__(self, intake: Intake, reads: OwnReads) -> None:
        self._intake = intake
        self._reads = reads
        self._partial = PartialRows(intake)
        self._updates: dict[tuple[frozenset[str], str], RequestKind] = {}
        self._inserts = {choice: RequestKind(Insert(choice), intake) for choice in ON_CONFLICT}

    def update(self, rows: Rows, missing: Missing) -> Request:
        """A request to update rows; they hold the key and some columns."""
        check_choice(missing, MISSING, "missing")
        put = as_small_put(rows)
        kind = None if put is None else self._update_of(put, missing)
        if kind is not None:
            return Request(unshaped=put, kind=kind)
        return self.update_shaped(self._partial.shape(rows), missing)

    def _update_of(self, put: SmallPut, missing: Missing) -> RequestKind | None:
        """The kind of an update of a few dicts with the same columns; None: take the slow path."""
        if not isinstance(put.data, list):
            return None
        names = put.data[0].keys()
        if put.rows > 1 and any(row.keys() != names for row in put.data):
            return None
        known = self._updates.get((frozenset(names), missing))
        if known is None or known.intake.owns is not self._intake.owns:
            known = RequestKind(*self._partial.update(names, missing))
            self._updates[frozenset(names), missing] = known
        return known

    def update_shaped(self, batches: Sequence[pa.RecordBatch], missing: Missing) -> Request:
        """`update` of rows that a `PartialRows` has shaped."""
        steps: list[Step] = []
        for batch in batches:
            steps += steps_of(_update(batch.schema.names, missing), [batch], self._schema)
        return Request(steps, batches)

    def insert(self, rows: Rows, on_conflict: OnConflict) -> Request:
        """A request to insert whole rows, whose keys must be new."""
        check_choice(on_conflict, ON_CONFLICT, "on_conflict")
        kind = self._inserts[on_conflict]
        put = as_small_put(rows)
        if put is not None and not put.names(TOMBSTONE):
            return Request(unshaped=put, kind=kind)
        batches = self._intake.rows(rows)
        if any(batch.column(TOMBSTONE).true_count for batch in batches):
            raise InvalidInput(f"insert takes no deletes (rows with {TOMBSTONE!r} set); use delete")
        return Request(steps_of(kind.verb, batches, self._schema), batches)

    def put_when(self, rows: Rows, when: str) -> Request:
        """A request to put whole rows, or deletes, where a condition holds."""
        require_text(when, "when")
        verb = PutWhen(when)
        put = as_small_put(rows)
        if put is not None:
            return Request(unshaped=put, kind=RequestKind(verb, self._intake))
        batches = self._intake.rows(rows)
        return Request(steps_of(verb, batches, self._schema), batches)

    def shaped(self, rows: Rows, asked: WriteSpec) -> list[pa.RecordBatch]:
        """Rows of any form, shaped for `of`."""
        return self._partial.shape(rows) if asked.verb == "update" else self._intake.rows(rows)

    def of(self, batches: Sequence[pa.RecordBatch], asked: WriteSpec) -> Request:
        """The request that `asked` describes, for rows that are shaped."""
        if asked.verb == "update":
            return self.update_shaped(batches, asked.missing)
        whole = pa.Table.from_batches(batches, self._schema.wal)
        if asked.when is not None:
            return self.put_when(whole, asked.when)
        return self.insert(whole, asked.on_conflict)

    def where(self, filter: str, assignments: Mapping[str, str] | None) -> Iterator[Request]:
        """Requests for the keys whose rows pass the filter, made while the scan runs."""
        require_text(filter, "the filter")
        verb: Verb = DeleteWhere(filter)
        if assignments is not None:
            changes = tuple(assignments.items())
            check_assignments(changes, self._schema)
            verb = UpdateWhere(filter, changes)
        key = list(self._schema.primary_key)
        looked_at = {*key, *verb.columns_read(self._schema)}
        names = [name for name in self._schema.arrow.names if name in looked_at]
        for seen in _portions(self._reads.find(names, filter)):
            keys = seen.rows.select(key).combine_chunks().to_batches()
            yield Request(steps_of(verb, keys, self._schema), seen=seen)

    @property
    def _schema(self) -> TableSchema:
        return self._intake.schema


def _portions(found: Iterable[ScannedRows]) -> Iterator[ScannedRows]:
    """The rows of one scan in portions, each decided at once: few portions where most rows pass,
    and not one for every batch where few do."""
    gathered: list[pa.Table] = []
    last: ScannedRows | None = None
    for last in found:
        gathered.append(last.rows)
        rows = sum(part.num_rows for part in gathered)
        nbytes = sum(part.nbytes for part in gathered)
        if rows >= WHERE_ROWS or nbytes >= WHERE_BYTES:
            yield from _cut(replace(last, rows=pa.concat_tables(gathered)), nbytes)
            gathered = []
    if last is not None and gathered:
        nbytes = sum(part.nbytes for part in gathered)
        yield from _cut(replace(last, rows=pa.concat_tables(gathered)), nbytes)


def _cut(seen: ScannedRows, nbytes: int) -> Iterator[ScannedRows]:
    rows = seen.rows.num_rows
    most = max(1, min(WHERE_ROWS, WHERE_BYTES * rows // max(1, nbytes)))
    for start in range(0, rows, most):
        yield replace(seen, rows=seen.rows.slice(start, most))


class PartialRows:
    """Shapes rows that have some columns of the table. Safe to share between threads."""

    def __init__(self, intake: Intake) -> None:
        """`intake` is that of whole rows."""
        self._intake = intake
        self._known: dict[tuple[str, ...], Intake] = {}

    def shape(self, rows: Rows) -> list[pa.RecordBatch]:
        """The rows in order, with the columns they have, `_tombstone` last."""
        return [batch for part in _same_columns(rows) for batch in self._shape(part)]

    def _shape(self, rows: Rows) -> list[pa.RecordBatch]:
        names = _names(rows)
        if names is None:
            rows = pa.table(rows) if hasattr(rows, "__arrow_c_stream__") else rows
            names = _names(rows)
        if names is None:
            return self._intake.rows(rows)
        if TOMBSTONE in names:
            raise _no_deletes()
        return self._intake_of(names).rows(rows)

    def update(self, names: Iterable[str], missing: Missing) -> tuple[Update, Intake]:
        """The verb that updates rows with those columns, and the intake that shapes them."""
        if TOMBSTONE in names:
            raise _no_deletes()
        intake = self._intake_of(names)
        return _update(intake.schema.wal.names, missing), intake

    def _intake_of(self, names: Iterable[str]) -> Intake:
        named = set(names)
        columns = tuple(name for name in self._intake.schema.arrow.names if name in named)
        partial = self._known.get(columns)
        if partial is None or partial.owns is not self._intake.owns:
            partial = Intake(_only(self._intake.schema, columns), self._intake.owns)
            self._known[columns] = partial
        return partial


def _update(names: Iterable[str], missing: Missing) -> Update:
    return Update(tuple(name for name in names if name != TOMBSTONE), missing)


def _no_deletes() -> InvalidInput:
    return InvalidInput(f"column {TOMBSTONE!r}: update cannot delete rows; use delete")


def check_choice(value: str, known: Sequence[str], name: str) -> None:
    """Raise `InvalidInput` unless it is one of the known ones."""
    if value not in known:
        raise InvalidInput(f"{name} must be one of {list(known)}, got {value!r}")


def _names(rows: Rows) -> Sequence[str] | None:
    """The columns of the rows, which all have the same; None if only reading them shows that."""
    if isinstance(rows, Mapping):
        return [str(name) for name in rows]
    if isinstance(rows, list | tuple):
        return [str(name) for row in rows for name in row]
    names: Sequence[str] | None = getattr(getattr(rows, "schema", None), "names", None)
    return names


def _same_columns(rows: Rows) -> list[Rows]:
    """Split dicts into runs with the same columns: a column left out is not a null one."""
    if not isinstance(rows, list | tuple) or not all(isinstance(row, Mapping) for row in rows):
        return [rows]
    parts: list[Rows] = []
    for _, group in itertools.groupby(rows, key=frozenset):
        parts.append(list(group))
    return parts


def _only(schema: TableSchema, columns: Sequence[str]) -> TableSchema:
    """The schema with those columns alone, and the key."""
    for name in schema.primary_key:
        if name not in columns:
            raise InvalidInput(f"key column {name!r} is missing from the data")
    fields = [schema.arrow.field(name) for name in columns]
    arrow = pa.schema(fields, metadata=schema.arrow.metadata)
    return TableSchema(arrow, schema.primary_key, schema.max_field_id)
