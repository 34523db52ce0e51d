"""A table's schema in the shapes weir needs, and the conversion of old rows to the current one.

Columns are identified by Lance's field id, which survives a rename; the name counts only where data
carries no id. Lance reuses the id of a dropped column once no data file of the base holds it, even
if the log and SSTables still do. So each column also carries a mark in its metadata: the base
version that weir added it to, or at which it first saw it. Rows carry the mark of the column they
were written to, and are never read as values of another column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import pyarrow as pa

from weir.errors import InvalidInput, SchemaMismatch
from weir.format.nested import NESTING_MAX, as_type, children, nesting, with_children
from weir.lazy import Lazy

# Stored. Never change a value; add one.
FIELD_ID: Final = b"lance:field_id"
COLUMN_MARK: Final = b"weir:column"
TOMBSTONE: Final = "_tombstone"

TOMBSTONE_FIELD: Final = pa.field(TOMBSTONE, pa.bool_(), nullable=False)

_B = TypeVar("_B", pa.RecordBatch, pa.Table)


@dataclass(frozen=True)
class TableSchema:
    """The schema of one version of a base table. Built by `table_schema`, which checks it."""

    arrow: pa.Schema
    """The base columns, each field with its `lance:field_id`, and the base schema metadata."""
    primary_key: tuple[str, ...]
    """Names of the key columns in key order; empty for a keyless table."""
    max_field_id: int
    """The highest id ever used by the table, dropped columns included."""

    @Lazy
    def wal(self) -> pa.Schema:
        """What a WAL entry and an SSTable hold: non-key columns nullable, then `_tombstone`."""
        keys = set(self.primary_key)
        fields = [f if f.name in keys else f.with_nullable(True) for f in self.arrow]
        return pa.schema([*fields, TOMBSTONE_FIELD], metadata=self.arrow.metadata)

    @Lazy
    def plain(self) -> pa.Schema:
        """What users see: the base schema without field ids."""
        return pa.schema([_strip_ids(f) for f in self.arrow], metadata=self.arrow.metadata)

    @Lazy
    def marked(self) -> pa.Schema:
        """`plain`, and which column each is: rows that wait outside the log find it after a rename
        by `align_batch`, and not one that has taken its name (P-8)."""
        return pa.schema(
            [f.with_metadata(a.metadata) for f, a in zip(self.plain, self.arrow, strict=True)]
        )

    @Lazy
    def key_schema(self) -> pa.Schema:
        """The key columns alone, in key order, as users see them."""
        return pa.schema([self.plain.field(name) for name in self.primary_key])

    @Lazy
    def outputs(self) -> dict[tuple[str, ...], pa.Schema]:
        """Cache of the schemas users see, by the columns read; a lookup is faster than building
        a schema."""
        return {}

    @Lazy
    def levels(self) -> dict[tuple[str, ...] | None, pa.Schema]:
        """Cache of the schemas a merge sees, by the columns read."""
        return {}

    @Lazy
    def field_ids(self) -> dict[str, int]:
        """The id of each top-level column."""
        return {f.name: int(f.metadata[FIELD_ID]) for f in self.arrow}

    def is_same(self, other: TableSchema) -> bool:
        """True when rows of one schema are rows of the other without conversion."""
        return self is other or (
            self.primary_key == other.primary_key
            and self.arrow.equals(other.arrow, check_metadata=True)
        )

    def is_older_than(self, written: pa.Schema) -> bool:
        """True when rows of that schema have a column that the table got after this version."""
        return not written.equals(self.wal, check_metadata=True) and any(
            number > self.max_field_id for field in written for number in _ids(field)
        )

    @Lazy
    def unmarked(self) -> list[str]:
        """Columns without a mark: another program made them, and weir has not written to them."""
        return [f.name for f in self.arrow if not (f.metadata and COLUMN_MARK in f.metadata)]


def table_schema(
    arrow_with_ids: pa.Schema, primary_key: Iterable[str], max_field_id: int
) -> TableSchema:
    """A checked `TableSchema`; `InvalidInput` names a column that weir cannot hold."""
    key = tuple(primary_key)
    names = arrow_with_ids.names
    for name in names:
        if name == TOMBSTONE:
            raise InvalidInput(f"column name {TOMBSTONE!r} is reserved; rename the column")
        if names.count(name) > 1:
            raise InvalidInput(f"column {name!r} occurs twice")
    for name in key:
        if name not in names:
            raise InvalidInput(f"primary key column {name!r} is not a column of the table")
    if len(set(key)) != len(key):
        raise InvalidInput(f"primary key {key!r} names a column twice")
    seen: set[int] = set()
    for field in arrow_with_ids:
        check_nesting(field)
        if field_id(field) is None:
            raise InvalidInput(f"column {field.name!r} carries no {FIELD_ID.decode()} metadata")
        for number in _ids(field):
            if number in seen or number > max_field_id:
                raise InvalidInput(
                    f"column {field.name!r}: field id {number} occurs twice or exceeds the"
                    f" table's highest id {max_field_id}"
                )
            seen.add(number)
    return TableSchema(arrow_with_ids, key, max_field_id)


def check_nesting(field: pa.Field) -> None:
    """Raise `InvalidInput` for a column nested deeper than an entry can hold (F-15)."""
    levels = nesting(field.type)
    if levels > NESTING_MAX:
        raise InvalidInput(
            f"column {field.name!r} is nested {levels} levels deep; the maximum is {NESTING_MAX}"
        )


def no_rows(schema: pa.Schema) -> pa.Table:
    """No rows of these columns; pyarrow's own `empty_table` fails where a list holds UUIDs."""
    return pa.Table.from_batches([], schema=schema)


def without_views(schema: pa.Schema) -> pa.Schema:
    """The columns as Lance stores them: string and binary instead of Arrow's view types."""
    if not isinstance(schema, pa.Schema):
        return schema
    return pa.schema([f.with_type(_without_view(f.type)) for f in schema], schema.metadata)


def _without_view(dtype: pa.DataType) -> pa.DataType:
    if dtype == pa.string_view():
        return pa.string()
    return pa.binary() if dtype == pa.binary_view() else dtype


def field_id(field: pa.Field) -> int | None:
    """The Lance field id a field carries, or None."""
    raw = field.metadata.get(FIELD_ID) if field.metadata else None
    return int(raw) if raw is not None and raw.isdigit() else None


def is_same_column(written: pa.Field, column: pa.Field) -> bool:
    """Whether rows of `written` may be read as `column`, which has the same field id.

    Rows without a mark were written before the mark, or by another program: only the id counts.
    """
    mark = (written.metadata or {}).get(COLUMN_MARK)
    # guard: L-1 always test_columns
    return mark is None or mark == (column.metadata or {}).get(COLUMN_MARK)


def _ids(field: pa.Field) -> Iterable[int]:
    number = field_id(field)
    if number is not None:
        yield number
    for child in children(field.type):
        yield from _ids(child)


def _strip_ids(field: pa.Field) -> pa.Field:
    metadata = {k: v for k, v in (field.metadata or {}).items() if k != FIELD_ID}
    dtype = with_children(field.type, [_strip_ids(c) for c in children(field.type)])
    return pa.field(field.name, dtype, field.nullable, metadata or None)


def align_batch(batch: _B, target: pa.Schema) -> _B:
    """`batch` in the shape of `target`, or `SchemaMismatch` naming the column.

    Columns are paired by field id where both sides have one, else by name; a missing column is
    null, an extra one is dropped. This covers columns added, renamed or dropped since the rows were
    written. Equal schemas cost one comparison and return `batch` itself.
    """
    source = batch.schema
    if source.equals(target, check_metadata=True):
        return batch
    columns = [
        _missing(field, field.name, batch.num_rows)
        if index is None
        else _align(batch.column(index), source.field(index), field, field.name)
        for field, index in zip(target, _pair(list(source), list(target)), strict=True)
    ]
    return type(batch).from_arrays(columns, schema=target)


def _pair(source: Sequence[pa.Field], target: Sequence[pa.Field]) -> list[int | None]:
    """The index of each target field's source field; None where there is none."""
    by_id: dict[int, int] = {}
    by_name: dict[str, int] = {}
    for index, field in enumerate(source):
        number = field_id(field)
        if number is not None:
            by_id[number] = index
        by_name[field.name] = index
    pairs: list[int | None] = []
    for field in target:
        number = field_id(field)
        found = by_id.get(number) if number is not None else None
        if found is None:
            found = by_name.get(field.name)
            # A name proves nothing when both carry ids: the column was dropped and created again.
            if found is not None and number is not None and field_id(source[found]) is not None:
                found = None
        elif not is_same_column(source[found], field):
            found = None
        pairs.append(found)
    return pairs


def _missing(field: pa.Field, path: str, rows: int) -> pa.Array:
    if not field.nullable and rows:
        raise SchemaMismatch(f"column {path!r} is missing but declared not null")
    return pa.nulls(rows, field.type)


def _align(
    column: pa.Array | pa.ChunkedArray, source: pa.Field, target: pa.Field, path: str
) -> pa.Array | pa.ChunkedArray:
    if isinstance(column, pa.ChunkedArray):
        chunks = [_align(chunk, source, target, path) for chunk in column.chunks]
        return pa.chunked_array(chunks, type=target.type)
    if not target.nullable and column.null_count:
        raise SchemaMismatch(f"column {path!r} holds nulls but is declared not null")
    if source.type.equals(target.type, check_metadata=True):
        return column
    # Fields inside a list or struct are paired by id too; every other type must be the same.
    if pa.types.is_struct(source.type) and pa.types.is_struct(target.type):
        return _align_struct(column, target.type, path)
    for is_kind, array_class in (
        (pa.types.is_list, pa.ListArray),
        (pa.types.is_large_list, pa.LargeListArray),
    ):
        if is_kind(source.type) and is_kind(target.type):
            return _align_list(column, target.type, path, array_class)
    if source.type != target.type:
        raise SchemaMismatch(
            f"column {path!r} holds {source.type} and the table declares {target.type}"
        )
    return as_type(column, target.type) if column.type.num_fields else column


def _align_struct(column: pa.StructArray, target: pa.DataType, path: str) -> pa.StructArray:
    source_fields = [column.type.field(i) for i in range(column.type.num_fields)]
    target_fields = [target.field(i) for i in range(target.num_fields)]
    mask = column.is_null() if column.null_count else None
    children = []
    for field, index in zip(target_fields, _pair(source_fields, target_fields), strict=True):
        child_path = f"{path}.{field.name}"
        if index is None:
            children.append(_missing(field, child_path, len(column)))
        else:
            # Below a null struct a child may be null even if it is declared not null.
            checked = field if mask is None else field.with_nullable(True)
            child = _align(column.field(index), source_fields[index], checked, child_path)
            children.append(child)
    if not children:
        return as_type(column, target)
    return pa.StructArray.from_arrays(children, fields=target_fields, mask=mask)


def _align_list(
    column: pa.Array, target: pa.DataType, path: str, array_class: type[pa.Array]
) -> pa.Array:
    if column.offset:
        column = column.take(pa.array(range(len(column)), pa.int64()))
    values = _align(
        column.values,
        column.type.value_field,
        target.value_field,
        f"{path}.{target.value_field.name}",
    )
    mask = column.is_null() if column.null_count else None
    return array_class.from_arrays(column.offsets, values, type=target, mask=mask)
