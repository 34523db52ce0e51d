"""Nested columns: which nulls they may hold, and how they change their type without a copy.

Keeps
  F-15 one rule of nulls for intake and for every reader
The rule is Arrow's: a field declared not null holds no null where its parents are not null. Below a
null parent it may hold anything; Spark puts nulls there, and so does a tombstone, of which only the
key counts. Arrow's own `cast` ignores parents and refuses such rows, so no reader may use it on a
nested column; use `as_type` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_Column = TypeVar("_Column", pa.Array, pa.ChunkedArray)

NESTING_MAX: Final = 60
"""Most levels of a column's type. Arrow reads no more than 64 from a stream, and the stream and the
batch around the column take some of them."""


class Spot(NamedTuple):
    """Where values are in a column: the path of names, and whether they are items of a list."""

    path: str
    in_list: bool = False


Cast = Callable[[pa.Array, pa.DataType, Spot], pa.Array]
"""Casts plain values at some spot to a type."""


def as_type(column: _Column, dtype: pa.DataType, *, safe: bool = True) -> _Column:
    """`column` as exactly `dtype`, the metadata and nullability of nested fields included.

    No copy where only those differ, else a cast. Does not check where nulls are: `find_null` does
    that when rows come in.
    """
    if column.type.equals(dtype, check_metadata=True):
        return column
    if not dtype.num_fields and not isinstance(dtype, pa.BaseExtensionType):
        return column.cast(dtype, safe=safe)
    return convert(column, dtype, lambda plain, to, _: plain.cast(to, safe=safe), Spot(""))


def convert(column: _Column, dtype: pa.DataType, cast: Cast, spot: Spot) -> _Column:
    """`column` as exactly `dtype`, with `cast` applied to the plain values at every depth.

    Arrow's own cast is used for plain values only: inside lists it ends the process when a list of
    nulls, read from a stream, becomes one of fixed size.
    """
    have = column.type
    if have.equals(dtype, check_metadata=True):
        return column
    if isinstance(column, pa.ChunkedArray):
        chunks = [convert(chunk, dtype, cast, spot) for chunk in column.chunks]
        return pa.chunked_array(chunks, type=dtype)
    if pa.types.is_null(have):
        return pa.nulls(len(column), dtype)
    if isinstance(have, pa.BaseExtensionType) and have.storage_type.num_fields:
        return convert(column.storage, dtype, cast, spot)
    if isinstance(dtype, pa.BaseExtensionType) and dtype.storage_type.num_fields:
        inside = convert(column, dtype.storage_type, cast, spot)
        return pa.ExtensionArray.from_storage(dtype, inside)
    if have.num_fields and loose(have).equals(loose(dtype)):
        return pa.array(_Typed(column, dtype))
    if pa.types.is_struct(have) and pa.types.is_struct(dtype) and dtype.num_fields:
        return _convert_struct(column, dtype, cast, spot)
    if pa.types.is_map(have) and pa.types.is_map(dtype):
        entries = pa.array(_Typed(column, _entries(have)))
        return pa.array(_Typed(convert(entries, _entries(dtype), cast, spot), dtype))
    if _is_list(have) and _is_list(dtype):
        return _convert_list(column, dtype, cast, spot)
    return cast(column, dtype, spot)


def _convert_struct(
    column: pa.StructArray, dtype: pa.DataType, cast: Cast, spot: Spot
) -> pa.StructArray:
    fields = [dtype.field(i) for i in range(dtype.num_fields)]
    children = []
    for field in fields:
        index = column.type.get_field_index(field.name)
        if index < 0:
            children.append(pa.nulls(len(column), field.type))
        else:
            inside = Spot(f"{spot.path}.{field.name}")
            children.append(convert(column.field(index), field.type, cast, inside))
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _convert_list(column: pa.Array, dtype: pa.DataType, cast: Cast, spot: Spot) -> pa.Array:
    field = dtype.value_field
    inside = Spot(f"{spot.path}.{field.name}", in_list=True)
    items = convert(_flattened(column), field.type, cast, inside)
    missing = column.is_null() if column.null_count else None
    lengths = pc.list_value_length(column)
    if not pa.types.is_fixed_size_list(dtype):
        ends = np.concatenate(([0], np.cumsum(pc.fill_null(lengths, 0).to_numpy(), dtype=np.int64)))
        if pa.types.is_large_list(dtype):
            return pa.LargeListArray.from_arrays(pa.array(ends), items, type=dtype, mask=missing)
        offsets = pa.array(ends, pa.int32())
        return pa.ListArray.from_arrays(offsets, items, type=dtype, mask=missing)
    other = pc.fill_null(pc.not_equal(lengths, dtype.list_size), False)
    if pc.any(other).as_py():
        wrong = lengths.filter(other)[0]
        raise pa.ArrowInvalid(
            f"{spot.path} holds lists of {dtype.list_size} items, got one of {wrong}"
        )
    if column.null_count == len(column):
        return pa.nulls(len(column), dtype)
    there = pa.FixedSizeListArray.from_arrays(items, type=dtype)
    if missing is None:
        return there
    places = pc.subtract(pc.cumulative_sum(pc.invert(missing).cast(pa.int64())), 1)
    return there.take(pc.if_else(missing, pa.scalar(None, pa.int64()), places))


def _flattened(column: pa.Array) -> pa.Array:
    """The items of the lists that are not null; where none is, Arrow cannot make an empty array of
    an extension type."""
    plain = _stored(column.type)
    if not column.null_count or loose(column.type).equals(plain):
        return column.flatten()
    items = pa.array(_Typed(column, plain)).flatten()
    return pa.array(_Typed(items, column.type.field(0).type))


def _is_list(dtype: pa.DataType) -> bool:
    types = pa.types
    return types.is_list(dtype) or types.is_large_list(dtype) or types.is_fixed_size_list(dtype)  # type: ignore[no-any-return]


def _entries(dtype: pa.MapType) -> pa.DataType:
    """A list of pairs, which has the layout of a map. Its names do not say which pair is meant."""
    pairs = [dtype.key_field.with_name("key"), dtype.item_field.with_name("value")]
    return pa.list_(pa.field("entries", pa.struct(pairs), nullable=False))


class _Typed:
    """An array exported through the Arrow C interface under another type of the same layout."""

    def __init__(self, array: pa.Array, dtype: pa.DataType) -> None:
        self._array = array
        self._dtype = dtype

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        return self._dtype.__arrow_c_schema__(), self._array.__arrow_c_array__()[1]


@lru_cache(maxsize=1024)
def loose(dtype: pa.DataType) -> pa.DataType:
    """The type with every nested field nullable and without metadata."""
    return with_inner(dtype, loose)


@lru_cache(maxsize=1024)
def decoded(dtype: pa.DataType) -> pa.DataType:
    """The type with plain values in place of dictionaries, at any depth."""
    if pa.types.is_dictionary(dtype):
        return dtype.value_type
    return with_inner(dtype, decoded)


@lru_cache(maxsize=1024)
def _stored(dtype: pa.DataType) -> pa.DataType:
    """The type with the storage of extension types in their place, at any depth."""
    if isinstance(dtype, pa.BaseExtensionType):
        return _stored(dtype.storage_type)
    return with_inner(dtype, _stored)


def with_inner(dtype: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with other types inside, nullable (but the keys of a map) and without metadata."""
    is_map = pa.types.is_map(dtype)
    fields = [
        pa.field(child.name, change(child.type), nullable=index > 0 or not is_map)
        for index, child in enumerate(children(dtype))
    ]
    return with_children(dtype, fields)


def children(dtype: pa.DataType) -> list[pa.Field]:
    """The fields directly inside; of a map its key and its item."""
    if pa.types.is_map(dtype):
        return [dtype.key_field, dtype.item_field]
    return [dtype.field(i) for i in range(dtype.num_fields)]


def with_children(dtype: pa.DataType, fields: Sequence[pa.Field]) -> pa.DataType:
    """The same kind of type around other fields."""
    if pa.types.is_struct(dtype):
        return pa.struct(fields)
    if pa.types.is_list(dtype):
        return pa.list_(fields[0])
    if pa.types.is_large_list(dtype):
        return pa.large_list(fields[0])
    if pa.types.is_fixed_size_list(dtype):
        return pa.list_(fields[0], dtype.list_size)
    if pa.types.is_map(dtype):
        return pa.map_(fields[0], fields[1], dtype.keys_sorted)
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


def has_dictionary(dtype: pa.DataType) -> bool:
    """True for a dictionary, at any depth."""
    return pa.types.is_dictionary(dtype) or any(
        has_dictionary(dtype.field(i).type) for i in range(dtype.num_fields)
    )


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
        if not child.nullable and values.null_count:  # guard: F-15 test_written_is_readable
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
        yield from inner_values(pa.array(_Typed(column, _entries(dtype))).flatten())
    elif dtype.num_fields:  # lists of all kinds; flattening skips the values of null lists
        yield dtype.field(0), _flattened(column)
