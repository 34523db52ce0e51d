"""Convert between the types of the table and those of Spark.

Spark has no vectors, no unsigned numbers, no half floats and no time finer than a microsecond. On
the way out a column takes the nearest type that holds its values; on the way in it is cast back.
Values that do not fit are refused both ways: a statement that changes another column of a row reads
the whole row and writes it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

from weir.errors import InvalidInput, SchemaMismatch
from weir.format.exact import cast_exactly, is_castable
from weir.format.nested import Spot, convert
from weir.format.schema import TOMBSTONE
from weir.merge.projection import Projection
from weir.spark.places import resolved

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)

_ZONE = "UTC"
_DIGITS_MAX: Final = 38
UNTYPED: Final = "weir.untyped"
"""In the metadata of a column that Spark has no type for: its type. The JVM looks for it, too."""
_INSTEAD: Final = (
    "what leaves it out works: SELECT, INSERT and DELETE by name, a read by path with the option"
    " columns, a stream by path with a schema, weir.spark.scan with columns, a write of a DataFrame"
    " without it, which puts null. What needs whole rows (SELECT *, UPDATE, MERGE) does not: use"
    " weir without Spark, or keep the value in another column, as text or bytes"
)


class _NoType(Exception):
    """Spark has no type for a column, or for what it is made of."""


def portable(dtype: pa.DataType, name: str) -> pa.DataType:
    """The Arrow type that Spark accepts for `dtype`; `InvalidInput` where there is none."""
    try:
        return _portable(dtype)
    except _NoType:
        raise InvalidInput(
            f"column {name!r} is {dtype}, which Spark has no type for; {_INSTEAD}"
        ) from None


def _portable(dtype: pa.DataType) -> pa.DataType:
    types = pa.types
    simple = {
        pa.large_string(): pa.string(),
        pa.string_view(): pa.string(),
        pa.large_binary(): pa.binary(),
        pa.binary_view(): pa.binary(),
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
        pa.date64(): pa.date32(),
    }
    if dtype in simple:
        return simple[dtype]
    if types.is_fixed_size_binary(dtype):
        return pa.binary()
    if types.is_timestamp(dtype):
        return pa.timestamp("us", None if dtype.tz is None else _ZONE)
    if types.is_dictionary(dtype):
        return _portable(dtype.value_type)
    if types.is_list(dtype) or types.is_large_list(dtype) or types.is_fixed_size_list(dtype):
        value = dtype.value_field
        return pa.list_(pa.field("element", _portable(value.type), value.nullable))
    if types.is_struct(dtype):
        return pa.struct([pa.field(f.name, _portable(f.type), f.nullable) for f in dtype])
    if types.is_map(dtype):
        return pa.map_(_portable(dtype.key_type), _portable(dtype.item_type))
    if types.is_decimal256(dtype) and dtype.precision <= _DIGITS_MAX:
        return pa.decimal128(dtype.precision, dtype.scale)
    if (
        types.is_time(dtype)
        or types.is_null(dtype)
        or types.is_union(dtype)
        or types.is_decimal256(dtype)
        or isinstance(dtype, pa.BaseExtensionType)
    ):
        raise _NoType
    return dtype


def spark_schema(schema: pa.Schema, columns: Sequence[str] | None = None) -> StructType:
    """The table's columns, or at least one of them, as Spark's types."""
    asked = Projection.of(columns).names
    wanted = schema.names if asked is None else [resolved(c, schema.names) for c in asked]
    for name in wanted:
        if name not in schema.names:
            raise InvalidInput(f"the table has no column {name!r}; it has {schema.names}")
    fields = [schema.field(name) for name in wanted]
    plain = pa.schema([pa.field(f.name, portable(f.type, f.name), f.nullable) for f in fields])
    found: StructType = from_arrow_schema(plain)
    return found


def typed_columns(schema: pa.Schema) -> list[str]:
    """The columns that Spark has a type for."""
    return [field.name for field in schema if _has_type(field.type)]


def _has_type(dtype: pa.DataType) -> bool:
    try:
        _portable(dtype)
    except _NoType:
        return False
    return True


def named_schema(schema: pa.Schema) -> StructType:
    """The columns of a table by name; a marked BINARY for one that Spark has no type for.

    A statement that leaves such a column out must work, and Spark asks for the columns before it
    tells which of them it needs: `require_typed` refuses the others then. VOID would not do: Spark
    takes every value of it for null, and drops it from the plan.
    """
    known = typed_columns(schema)
    typed = {field.name: field for field in spark_schema(schema, known)} if known else {}
    return StructType([typed.get(field.name) or _untyped(field) for field in schema])


def _untyped(field: pa.Field) -> StructField:
    told = {UNTYPED: str(field.type), "comment": f"{field.type}, which Spark has no type for"}
    return StructField(field.name, BinaryType(), field.nullable, told)


def require_typed(read: StructType, schema: Callable[[], pa.Schema]) -> None:
    """`InvalidInput` when a read needs a column of the table that Spark has no type for."""
    untyped = [field.name for field in read if UNTYPED in field.metadata]
    if untyped:
        spark_schema(schema(), untyped[:1])


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow shape in which Spark takes rows of `schema`."""
    return to_arrow_schema(schema, timezone=_ZONE)


def require_storable(schema: StructType) -> None:
    """`InvalidInput` for a column that would come back as another type, or without its clauses."""
    for field in schema.fields:
        if UNTYPED in field.metadata:
            told = field.metadata[UNTYPED]
            raise InvalidInput(
                f"column {field.name!r} is {told}, which Spark has no type for: create the table"
                " with weir.create and a pyarrow schema"
            )
        for word, key in (("COMMENT", "comment"), ("DEFAULT", "CURRENT_DEFAULT")):
            if key in field.metadata:
                raise InvalidInput(
                    f"column {field.name!r} has a {word}, which weir does not keep; leave it out"
                )
        told = field.dataType.simpleString()
        try:
            back = spark_schema(arrow_schema(StructType([field])))[field.name].dataType
        except (PySparkException, InvalidInput):
            back = None
        if back is None or back.simpleString() != told:
            raise InvalidInput(
                f"column {field.name!r} is {told}, which weir has no type for; use another type"
                " (STRING for CHAR, VARCHAR and collations), or cast it in the query"
            )


def with_columns(rows: Rows, schema: pa.Schema) -> Rows:
    """The columns of `schema`; nulls for those that the rows lack."""
    columns = [
        rows.column(f.name) if f.name in rows.schema.names else pa.nulls(rows.num_rows, f.type)
        for f in schema
    ]
    return type(rows).from_arrays(columns, schema=schema)


def to_spark(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Rows of the table in the types that Spark expects."""
    for name in target.names:
        if name not in batch.schema.names:
            raise SchemaMismatch(
                f"column {name!r} was dropped or renamed since this query began; load the table"
                " again"
            )
    columns = [_cast(batch.column(field.name), field) for field in target]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type.equals(field.type):
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return convert(column, field.type, _cast_plain, Spot(field.name))


def _cast_plain(column: pa.Array, want: pa.DataType, spot: Spot) -> pa.Array:
    """Values that Spark holds exactly: what a query reads, it may write back (M-9)."""
    try:
        return column.cast(want)
    except pa.ArrowInvalid as error:
        raise SchemaMismatch(
            f"column {spot.path!r} is {column.type} and holds a value that Spark's {want} cannot"
            f" hold ({error}); nothing is truncated, since the rows may be written back. Leave the"
            " column out of the query, change such rows with a writer of weir, or keep the value in"
            " a column that Spark can hold, such as nanoseconds as int64"
        ) from error


def check_written(
    given: StructType,
    schema: pa.Schema,
    key: Sequence[str],
    delete_column: str | None,
    *,
    some_columns: bool = False,
) -> None:
    """Refuse a DataFrame that cannot be rows of the table, before any task runs.

    `some_columns`: it is an update, in which any column but the key's may be missing.
    Names match as in Spark: a name that differs from a table's column only in case is that column.
    """
    there = columns_of(given.fieldNames(), schema, delete_column)
    extra = sorted(set(there) - set(schema.names) - {delete_column})
    if extra:
        raise SchemaMismatch(
            f"the table has no column {extra[0]!r}; it has {schema.names}. Drop it, name it in the"
            " option deleteColumn if it marks deletes, or add it with the option mergeSchema"
        )
    if delete_column is not None and delete_column not in given.fieldNames():
        raise SchemaMismatch(f"deleteColumn {delete_column!r} is not a column of the DataFrame")
    for field in schema:
        required = field.name in key or not (field.nullable or some_columns)
        if field.name not in there and required:
            raise SchemaMismatch(f"column {field.name!r} is missing and may not be null")
    arrow = arrow_schema(given)
    for name, field in zip(there, arrow, strict=True):
        if name in schema.names:
            require_castable(name, field.type, schema.field(name).type)


def require_castable(name: str, have: pa.DataType, want: pa.DataType) -> None:
    """`SchemaMismatch` unless every value keeps its meaning: nothing is parsed (M-7)."""
    if pa.types.is_null(have):
        return
    if pa.types.is_binary(have) and not _has_type(want):
        return  # what a statement puts into a column that it leaves out: `_back` allows only null
    if not (have.equals(portable(want, name)) or is_castable(have, portable(want, name))):
        raise SchemaMismatch(
            f"column {name!r} is {have}, but {want} in the table; cast it in Spark: weir neither"
            " parses nor rounds values"
        )


def columns_of(given: Sequence[str], schema: pa.Schema, delete_column: str | None) -> list[str]:
    """The table's name of each column of a DataFrame; `SchemaMismatch` when two are the same."""
    if TOMBSTONE in given and delete_column != TOMBSTONE:
        raise SchemaMismatch(
            f"the DataFrame has a column {TOMBSTONE!r}, a name that weir keeps for itself; drop it,"
            " or name it in the option deleteColumn if it marks deletes"
        )
    names = [n if n == delete_column else resolved(n, schema.names) for n in given]
    for name in names:
        if names.count(name) > 1:
            raise SchemaMismatch(
                f"column {name!r} occurs twice in the DataFrame (case is ignored); drop or rename"
                " one"
            )
    return names


def from_spark(
    batch: pa.RecordBatch, schema: pa.Schema, delete_column: str | None
) -> pa.RecordBatch:
    """Rows of a DataFrame in the table's types; with `_tombstone` if a column marks deletes."""
    fields: list[pa.Field] = []
    columns: list[Any] = []
    names = columns_of(batch.schema.names, schema, delete_column)
    for field in schema:
        if field.name in names:
            index = names.index(field.name)
            columns.append(_back(batch.column(index), field))
            fields.append(pa.field(field.name, field.type, metadata=field.metadata))
    if delete_column is not None:
        deletes = batch.column(delete_column)
        if not pa.types.is_boolean(deletes.type):
            raise SchemaMismatch(f"deleteColumn {delete_column!r} is {deletes.type}, not boolean")
        columns.append(deletes.fill_null(False))
        fields.append(pa.field(TOMBSTONE, pa.bool_()))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _back(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type.equals(field.type):
        return column
    if not _has_type(field.type):
        if column.null_count < len(column):
            portable(field.type, field.name)  # says so
        return pa.nulls(len(column), field.type)
    return cast_exactly(column, field.type, field.name)
