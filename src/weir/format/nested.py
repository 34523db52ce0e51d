"""Nested columns: which nulls they may hold, and how they change their type without a copy.

Keeps
  F-15 one rule of nulls for intake and for every reader
The rule is Arrow's: a field declared not null holds no null where its parents are not null. Below a
null parent it may hold anything; Spark puts nulls there, and so does a tombstone, of which only the
key counts. Arrow's own `cast` ignores parents and refuses such rows, so no reader may use it on a
nested column; use `as_type` instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, TypeVar

import pyarrow as pa

_Column = TypeVar("_Column", pa.Array, pa.ChunkedArray)

NESTING_MAX: Final = 60
"""Most levels of a column's type. Arrow reads no more than 64 from a stream, and the stream and the
batch around the column take some of them."""


def as_type(column: _Column, dtype: pa.DataType, *, safe: bool = True) -> _Column:
    """`column` as exactly `dtype`, the metadata and nullability of nested fields included.

    No copy where only those differ, else a cast. Does not check where nulls are: `find_null` does
    that when rows come in.
    """
    if column.type.equals(dtype, check_metadata=True):
        return column
    if not dtype.num_fields:
        return column.cast(dtype, safe=safe)
    if isinstance(column, pa.ChunkedArray):
        chunks = [as_type(chunk, dtype, safe=safe) for chunk in column.chunks]
        return pa.chunked_array(chunks, type=dtype)
    if not column.type.equals(dtype):
        loose = _loose(dtype)
        if not _loose(column.type).equals(loose):
            column = column.cast(loose, safe=safe)
    return pa.array(_Typed(column, dtype))


class _Typed:
    """An array exported through the Arrow C interface under another type of the same layout."""

    def __init__(self, array: pa.Array, dtype: pa.DataType) -> None:
        self._array = array
        self._dtype = dtype

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        return self._dtype.__arrow_c_schema__(), self._array.__arrow_c_array__()[1]


@lru_cache(maxsize=1024)
def _loose(dtype: pa.DataType) -> pa.DataType:
    """The type with every nested field nullable and without metadata."""
    fields = [
        pa.field(child.name, _loose(child.type))
        for child in (dtype.field(i) for i in range(dtype.num_fields))
    ]
    if pa.types.is_struct(dtype):
        return pa.struct(fields)
    if pa.types.is_list(dtype):
        return pa.list_(fields[0])
    if pa.types.is_large_list(dtype):
        return pa.large_list(fields[0])
    if pa.types.is_fixed_size_list(dtype):
        return pa.list_(fields[0], dtype.list_size)
    if pa.types.is_map(dtype):
        key, value = _loose(dtype.key_type), _loose(dtype.item_type)
        return pa.map_(key, pa.field(dtype.item_field.name, value), dtype.keys_sorted)
    return dtype


def nesting(dtype: pa.DataType) -> int:
    """Levels of the type; 1 for a plain one."""
    deepest, level = 0, [dtype]
    while level:
        deepest += 1
        level = [t.field(i).type for t in level for i in range(t.num_fields)]
    return deepest


def has_small_dictionary(dtype: pa.DataType) -> bool:
    """True for a dictionary whose index may be too small for the values of two batches together.

    Such rows could be written, entry by entry, but not read together.
    """
    if pa.types.is_dictionary(dtype):
        return int(dtype.index_type.bit_width) < 32
    return any(has_small_dictionary(dtype.field(i).type) for i in range(dtype.num_fields))


def is_strict(dtype: pa.DataType) -> bool:
    """True if a field inside is declared not null, so that `find_null` may find a null."""
    if pa.types.is_map(dtype):  # keys are never null; Arrow's own validation checks that
        return not dtype.item_field.nullable or is_strict(dtype.item_type)
    children = [dtype.field(i) for i in range(dtype.num_fields)]
    return any(not child.nullable or is_strict(child.type) for child in children)


def find_null(column: pa.Array, path: str) -> str | None:
    """The path of a nested field that is declared not null and holds a null below a parent that is
    not null; None if there is no such field."""
    for child, values in inner_values(column):
        where = f"{path}.{child.name}"
        if not child.nullable and values.null_count:
            return where
        found = find_null(values, where) if is_strict(child.type) else None
        if found is not None:
            return found
    return None


def inner_values(column: pa.Array) -> Iterator[tuple[pa.Field, pa.Array]]:
    """The fields directly inside, with their values where the parent is not null."""
    dtype = column.type
    if isinstance(dtype, pa.BaseExtensionType):
        yield from inner_values(column.storage)
    elif pa.types.is_struct(dtype):
        there = column.is_valid() if column.null_count else None
        for i in range(dtype.num_fields):
            values = column.field(i)
            yield dtype.field(i), values if there is None else values.filter(there)
    elif pa.types.is_map(dtype):
        pairs = pa.struct([dtype.key_field, dtype.item_field])
        as_list = pa.array(_Typed(column, pa.list_(pa.field("entries", pairs, nullable=False))))
        yield from inner_values(as_list.flatten())
    elif dtype.num_fields:  # lists of all kinds; flattening skips the values of null lists
        yield dtype.field(0), column.flatten()
