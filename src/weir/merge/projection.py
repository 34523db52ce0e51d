"""The columns that a scan returns: some of the table's, or computed ones, each with its SQL.

Columns are computed from winners, after the merge and the filter, so hidden rows are not evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from weir.errors import InvalidInput
from weir.format.schema import TableSchema, no_rows
from weir.keys.keyset import gathered
from weir.lake.expressions import new_values, require_name
from weir.lake.filters import filter_columns
from weir.lake.params import require_text
from weir.merge.merge import output_schema
from weir.types import Columns, require_names

_GROUP_ROWS: Final = 65_536
"""Rows computed at once: as many as in a batch of the base."""


@dataclass(frozen=True)
class Projection:
    """The columns of a scan: names of the table's columns, None for all, or SQL by name."""

    names: tuple[str, ...] | None = None
    sql: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, columns: Columns | None) -> Projection:
        """The projection a caller passed, with the checks that need no schema."""
        if columns is None:
            return cls()
        if not isinstance(columns, Mapping) or not columns:
            require_names(columns)
            return cls(tuple(columns))
        for name, text in columns.items():
            require_name(name)
            require_text(text, f"column {name!r}")
        return cls(tuple(columns), tuple(columns.items()))

    def __str__(self) -> str:
        if self.names is None:
            return "all"
        return str(dict(self.sql) if self.sql else list(self.names))

    @property
    def asked(self) -> Columns | None:
        """In the form that callers pass."""
        return dict(self.sql) or self.names

    def read(self, schema: TableSchema) -> list[str] | None:
        """The table's columns that must be read; None means all."""
        if not self.sql:
            return None if self.names is None else list(self.names)
        known = schema.plain.names
        read: dict[str, None] = {}
        for _, text in self.sql:
            read.update(dict.fromkeys([text] if text in known else filter_columns(text, known)))
        return list(read) or known[:1]

    def schema(self, schema: TableSchema) -> pa.Schema:
        """The schema of the output."""
        read = self.read(schema)
        if not self.sql:
            return output_schema(schema, read)
        return self._table(no_rows(output_schema(schema, read))).schema

    def narrowed(self, names: Sequence[str]) -> Projection:
        """This projection restricted to `names`."""
        if not self.sql:
            return Projection(tuple(names))
        sql = dict(self.sql)
        return Projection(tuple(names), tuple((name, sql[name]) for name in names))

    def also(self, names: Sequence[str], schema: TableSchema) -> Projection:
        """This projection plus columns of the table."""
        if not names:
            return self
        if not self.sql:
            return Projection((*(schema.plain.names if self.names is None else self.names), *names))
        unknown = [name for name in names if name not in schema.plain.names]
        if unknown:
            known = [*schema.plain.names, *dict(self.sql)]
            raise InvalidInput(f"there is no column {unknown[0]!r} to order by; there are {known}")
        return Projection(
            (*(self.names or ()), *names), (*self.sql, *((name, name) for name in names))
        )

    def apply(
        self, batches: Iterator[pa.RecordBatch], batch_size: int | None
    ) -> Iterator[pa.RecordBatch]:
        """The output rows, given rows with the columns of `read`."""
        if not self.sql:
            yield from batches
            return
        for group in gathered(batches, rows=_GROUP_ROWS):
            yield from self._table(pa.Table.from_batches(group)).to_batches(batch_size)

    def _table(self, rows: pa.Table) -> pa.Table:
        stored = {name: text for name, text in self.sql if text in rows.column_names}
        made = new_values({n: text for n, text in self.sql if n not in stored}, rows)
        fields = [
            rows.schema.field(stored[name]).with_name(name)
            if name in stored
            else pa.field(name, made[name].type)
            for name, _ in self.sql
        ]
        columns = [rows.column(text) if name in stored else made[name] for name, text in self.sql]
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))
