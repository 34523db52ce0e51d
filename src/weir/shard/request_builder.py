"""Makes the requests of writes that look first: rows in any form, as steps to be decided."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

import pyarrow as pa

from weir.errors import InvalidInput
from weir.format.schema import TOMBSTONE, TableSchema
from weir.lake.params import require_filter
from weir.log.inputs import row_parts
from weir.log.intake import Intake
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
from weir.shard.request import Request, ScannedRows, Step, steps_of
from weir.types import Filter, Rows

Missing = Literal["error", "skip", "insert"]
"""What an update does with a key that does not exist."""
OnConflict = Literal["error", "skip"]
"""What an insert does with a key that exists."""
MISSING: Final[tuple[str, ...]] = get_args(Missing)
ON_CONFLICT: Final[tuple[str, ...]] = get_args(OnConflict)

KNOWN_MAX: Final = 64
"""Sets of columns whose intake is remembered: callers may give any."""
VERBS: Final = ("put", "update", "insert")


@dataclass(frozen=True)
class WriteSpec:
    """What a write that looks first does with its rows. Checked when it is made."""

    verb: str
    when: Filter | None = None
    missing: Missing = "error"
    on_conflict: OnConflict = "error"

    def __post_init__(self) -> None:
        check_choice(self.verb, VERBS, "verb")
        check_choice(self.missing, MISSING, "missing")
        check_choice(self.on_conflict, ON_CONFLICT, "on_conflict")
        if self.when is not None:
            require_filter(self.when, "when")
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
        self.shaper = AskedRows(intake)

    def of(self, batches: Sequence[pa.RecordBatch], asked: WriteSpec) -> Request:
        """The request that `asked` describes, for rows that an `AskedRows` has shaped for it."""
        steps: list[Step] = []
        for batch in batches:
            steps += steps_of(self._verb(batch.schema.names, asked), [batch], self._schema)
        return Request(steps, batches)

    def _verb(self, names: Iterable[str], asked: WriteSpec) -> Verb:
        if asked.when is not None:
            return PutWhen(asked.when)
        if asked.verb == "insert":
            return Insert(asked.on_conflict)
        columns = tuple(name for name in names if name != TOMBSTONE)
        return Update(columns, asked.missing, self._reads.added_columns)

    def where(self, filter: Filter, assignments: Mapping[str, str] | None) -> Iterator[Request]:
        """Requests for the keys whose rows pass the filter, made while the scan runs."""
        require_filter(filter, "the filter")
        verb: Verb = DeleteWhere(filter)
        if assignments is not None:
            changes = tuple(assignments.items())
            check_assignments(changes, self._schema)
            verb = UpdateWhere(filter, changes, self._reads.added_columns)
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


class AskedRows:
    """Shapes the rows of writes that look first. Safe to share between threads."""

    def __init__(self, intake: Intake) -> None:
        """`intake` is that of whole rows; an update has some of their columns."""
        self._intake = intake
        self._known: dict[tuple[str, ...], Intake] = {}

    def shape(self, rows: Rows, asked: WriteSpec) -> list[pa.RecordBatch]:
        """The rows in order, in any form given, `_tombstone` last."""
        if asked.verb == "update":
            return self._partial(rows)
        batches = self._intake.rows(rows)
        if asked.verb == "insert" and any(b.column(TOMBSTONE).true_count for b in batches):
            raise InvalidInput(f"insert takes no deletes (rows with {TOMBSTONE!r} set); use delete")
        return batches

    def _partial(self, rows: Rows) -> list[pa.RecordBatch]:
        """Whole columns, those that the rows have."""
        shaped: list[pa.RecordBatch] = []
        for part in row_parts(rows):
            if isinstance(part, pa.RecordBatch):
                shaped += self.intake_of(part.schema.names).rows(part)
                continue
            # Runs with the same columns: a column left out is not a null one.
            for names, run in itertools.groupby(part, key=frozenset):
                shaped += self.intake_of(names).rows(list(run))
        return shaped

    def intake_of(self, names: Iterable[str]) -> Intake:
        """The intake of rows that have those columns."""
        named = set(names)
        if TOMBSTONE in named:
            raise InvalidInput(f"column {TOMBSTONE!r}: update cannot delete rows; use delete")
        self._intake.require_known(named)
        columns = tuple(name for name in self._intake.schema.arrow.names if name in named)
        partial = self._known.get(columns)
        if len(self._known) > KNOWN_MAX:
            self._known.clear()  # guard: M-6 test_update_forms
        if partial is None or partial.owns is not self._intake.owns:
            partial = Intake(_only(self._intake.schema, columns), self._intake.owns)
            self._known[columns] = partial
        return partial


def check_choice(value: str, known: Sequence[str], name: str) -> None:
    """Raise `InvalidInput` unless it is one of the known ones."""
    if value not in known:
        raise InvalidInput(f"{name} must be one of {list(known)}, got {value!r}")


def _only(schema: TableSchema, columns: Sequence[str]) -> TableSchema:
    """The schema with those columns alone, and the key."""
    for name in schema.primary_key:
        if name not in columns:
            raise InvalidInput(f"key column {name!r} is missing from the data")
    fields = [schema.arrow.field(name) for name in columns]
    arrow = pa.schema(fields, metadata=schema.arrow.metadata)
    return TableSchema(arrow, schema.primary_key, schema.max_field_id)
