"""Which columns a scan hands out: some of the table's, or computed ones, each by its SQL.

Computed from winners, after the merge and the filter, so that no row that is hidden is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from weir.errors import InvalidInput
from weir.format.schema import TableSchema
from weir.keys.keyset import gathered
from weir.lake.expressions import new_values, require_text
from weir.lake.filters import filter_columns
from weir.merge.merge import output_schema
from weir.types import Columns

_GROUP_ROWS: Final = 65_536
"""Rows computed at a time: what a batch of the base has."""


@dataclass(frozen=True)
class Projection:
    """The columns of a scan: names of the table's, or None for all; or SQL by name."""

    names: tuple[str, ...] | None = None
    sql: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, columns: Columns | None) -> Projection:
        """What a caller said, checked as far as no schema is needed."""
        if columns is None:
            return cls()
        if isinstance(columns, str) or not list(columns):
            raise InvalidInput(f"columns must be a list of at least one column, got {columns!r}")
        if not isinstance(columns, Mapping):
            return cls(tuple(columns))
        for name, text in columns.items():
            require_text(name, "the name of a computed column")
            require_text(text, f"column {name!r}")
        return cls(tuple(columns), tuple(columns.items()))

    def __str__(self) -> str:
        if self.names is None:
            return "all"
        return str(dict(self.sql) if self.sql else list(self.names))

    @property
    def asked(self) -> Columns | None:
        """As a caller says it."""
        return dict(self.sql) or self.names

    def read(self, schema: TableSchema) -> list[str] | None:
        """The table's columns that have to be read; None: all."""
        if not self.sql:
            return None if self.names is None else list(self.names)
        known = schema.plain.names
        read: dict[str, None] = {}
        for _, text in self.sql:
            read.update(dict.fromkeys([text] if text in known else filter_columns(text, known)))
        return list(read) or known[:1]

    def schema(self, schema: TableSchema) -> pa.Schema:
        """What comes out."""
        read = self.read(schema)
        if not self.sql:
            return output_schema(schema, read)
        return self._table(output_schema(schema, read).empty_table()).schema

    def narrowed(self, names: Sequence[str]) -> Projection:
        """Some of these columns."""
        if not self.sql:
            return Projection(tuple(names))
        sql = dict(self.sql)
        return Projection(tuple(names), tuple((name, sql[name]) for name in names))

    def also(self, names: Sequence[str], schema: TableSchema) -> Projection:
        """These, and columns of the table."""
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
        """The rows, which have the columns of `read`, as they come out."""
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
