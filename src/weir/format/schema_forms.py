"""The forms in which the columns of a new table may be given, each as a pyarrow schema.

A schema, or anything that has one (an Arrow table, a reader), is taken as it is. A DataFrame gives
its columns with the plain types of their values, since what pandas and polars use in memory (views,
large and dictionary types) says nothing about the data. A dict gives types as text, as pyarrow's or
as Python's, and a pydantic model its fields (`weir.format.models`).
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Protocol, TypeAlias

import pyarrow as pa

from weir.errors import InvalidInput
from weir.format.models import is_model, model_schema, python_type
from weir.format.pandas_frames import is_pandas, with_index
from weir.format.type_texts import parse_field
from weir.types import ArrowStream, ModelRow


class ArrowSchema(Protocol):
    """Anything that hands out its columns: a polars schema, an Arrow schema of another library."""

    def __arrow_c_schema__(self) -> object:
        """The Arrow PyCapsule interface."""
        ...


SchemaLike: TypeAlias = (
    pa.Schema | ArrowStream | ArrowSchema | Mapping[str, str | pa.DataType | type] | type[ModelRow]
)
"""The columns of a new table: a pyarrow schema, a DataFrame or Arrow table that has them, a dict of
names and types (`"int64"`, `"float32[768]"`, `"timestamp[us, UTC]"`, `int`), a pydantic model."""


def as_schema(given: SchemaLike) -> pa.Schema:
    """The columns as a pyarrow schema; `InvalidInput` for anything that has none.

    Of data only the columns are used, and no row.
    """
    if isinstance(given, pa.Schema):
        return given
    # A schema of polars is a dict too, of types of its own.
    if isinstance(given, Mapping) and not hasattr(given, "__arrow_c_schema__"):
        return pa.schema([_field(name, kind) for name, kind in given.items()])
    if is_model(given):
        return model_schema(given)
    if not hasattr(given, "collect_schema"):  # polars, where `schema` is something else
        found = getattr(given, "schema", None)
        if isinstance(found, pa.Schema):
            return _without_metadata(found)
    return _frame_schema(given)


def _field(name: object, kind: object) -> pa.Field:
    if not isinstance(name, str):
        raise InvalidInput(f"the name of a column must be text, got {name!r}")
    if isinstance(kind, pa.DataType):
        return pa.field(name, kind)
    if isinstance(kind, type) or typing.get_origin(kind) is not None:
        return pa.field(name, python_type(f"column {name!r}", kind))
    if not isinstance(kind, str):
        raise InvalidInput(
            f"column {name!r}: a type is text such as 'int64', a pyarrow type, or a Python type"
            f" such as int; got {kind!r}"
        )
    try:
        return parse_field(name, kind)
    except InvalidInput as error:
        raise InvalidInput(f"column {name!r}: {error}") from error


def _frame_schema(given: object) -> pa.Schema:
    collect = getattr(given, "collect_schema", None)  # a polars LazyFrame
    source = collect() if callable(collect) else given
    try:
        if is_pandas(source, "DataFrame"):
            source = with_index(source)
        if hasattr(source, "__arrow_c_schema__"):
            found = pa.schema(source)
        elif hasattr(source, "__arrow_c_stream__"):
            found = pa.RecordBatchReader.from_stream(source).schema
        else:
            raise InvalidInput(
                "schema must be a pyarrow.Schema, a DataFrame, an Arrow table, a dict of names and"
                f" types, or a pydantic model class; got {_told(given)}"
            )
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidInput(f"cannot read the columns of {_told(given)}: {error}") from error
    return pa.schema([_plain_field(field) for field in found])


def _plain_field(field: pa.Field) -> pa.Field:
    if pa.types.is_null(field.type):
        raise InvalidInput(
            f"column {field.name!r} holds nulls only, so its type is unknown; cast it, or give the"
            " columns as a pyarrow schema"
        )
    return pa.field(field.name, _plain(field.type), field.nullable)


def _plain(dtype: pa.DataType) -> pa.DataType:
    """The type of the same values without what is chosen for memory."""
    types = pa.types
    if types.is_dictionary(dtype):
        return _plain(dtype.value_type)
    if types.is_large_string(dtype) or dtype == pa.string_view():
        return pa.string()
    if types.is_large_binary(dtype) or dtype == pa.binary_view():
        return pa.binary()
    if types.is_struct(dtype):
        return pa.struct([_plain_field(dtype.field(i)) for i in range(dtype.num_fields)])
    if types.is_map(dtype):
        return pa.map_(_plain(dtype.key_type), _plain_field(dtype.item_field))
    if types.is_fixed_size_list(dtype):
        return pa.list_(_plain_field(dtype.value_field), dtype.list_size)
    if types.is_list(dtype) or types.is_large_list(dtype):
        return pa.list_(_plain_field(dtype.value_field))
    return dtype


def _without_metadata(schema: pa.Schema) -> pa.Schema:
    """Without that of the data it came with: of pandas, of other tables."""
    return pa.schema([field.remove_metadata() for field in schema])


def _told(given: object) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
