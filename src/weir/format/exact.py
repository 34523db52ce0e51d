"""One rule for every incoming value: the column's type holds it exactly, or it is refused.

Keeps
  M-9  a value that does not fit is refused here, with its column's name, before it is accepted
Python values first become Arrow values of their natural type (`python_values.from_python`), and
Arrow casts to another type only without loss (`cast_exactly`): dicts, keys and DataFrames follow
one rule, however deep a value is nested. Nothing is rounded, wrapped, parsed, truncated or moved to
another time zone, with one exception: floating-point numbers inside a list are rounded to the
precision of its items, because embeddings are passed in as doubles and stored as floats. A finite
number never becomes infinite.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import SchemaMismatch
from weir.format.nested import as_type, inner_values

ARROW_ERRORS: Final = (
    pa.ArrowException,
    ValueError,
    TypeError,
    NotImplementedError,
    ArithmeticError,
)
"""What pyarrow raises for a value that it cannot convert; a lone surrogate is a `ValueError`."""
_DIGITS: Final = 20
"""Decimal digits of the largest integer."""


def cast_exactly(column: pa.Array, dtype: pa.DataType, name: str) -> pa.Array:
    """`column`, chunked or not, as `dtype`; `SchemaMismatch` when a value would change."""
    if not is_castable(column.type, dtype):
        raise SchemaMismatch(f"column {name!r}: {column.type} cannot be converted to {dtype}")
    try:
        source = _prepared(column, dtype)
        result = as_type(source, dtype)
        lost = find_loss(source, result, name, in_list=False)
    except ARROW_ERRORS as error:
        raise SchemaMismatch(f"column {name!r}: {error}") from error
    if lost is not None:
        raise SchemaMismatch(lost)
    return result


def is_castable(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether some values of one type fit the other; `cast_exactly` checks each value."""
    if pa.types.is_null(have) or have.equals(want):
        return True
    if is_bool8(want):
        return bool(pa.types.is_boolean(have))
    if isinstance(want, pa.BaseExtensionType):
        return is_castable(_storage(have), want.storage_type)
    have = _storage(have)
    if pa.types.is_dictionary(have):
        have = have.value_type
    if pa.types.is_dictionary(want):
        want = want.value_type
    family = family_of(have)
    if family != family_of(want):
        return False
    if family == "instant":
        return (have.tz is None) == (want.tz is None)
    if family == "list":
        return is_castable(have.value_type, want.value_type)
    if family == "map":
        return is_castable(have.key_type, want.key_type) and is_castable(
            have.item_type, want.item_type
        )
    if family == "struct":
        names = {want.field(i).name for i in range(want.num_fields)}
        return all(
            have.field(i).name in names
            and is_castable(have.field(i).type, want.field(have.field(i).name).type)
            for i in range(have.num_fields)
        )
    return True


def _storage(dtype: pa.DataType) -> pa.DataType:
    return dtype.storage_type if isinstance(dtype, pa.BaseExtensionType) else dtype


def is_bool8(dtype: pa.DataType) -> bool:
    """Whether the type is Arrow's boolean stored in a byte."""
    return isinstance(dtype, pa.BaseExtensionType) and dtype.extension_name == "arrow.bool8"


@lru_cache(maxsize=1024)
def family_of(dtype: pa.DataType) -> str:
    """The group of a type; a checked cast can be exact between types of one group."""
    checks = (
        ("number", pa.types.is_integer),
        ("number", pa.types.is_floating),
        ("number", pa.types.is_decimal),
        ("text", lambda t: pa.types.is_string(t) or pa.types.is_large_string(t)),
        ("text", pa.types.is_string_view),
        ("bytes", lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t)),
        ("bytes", lambda t: pa.types.is_binary_view(t) or pa.types.is_fixed_size_binary(t)),
        ("instant", pa.types.is_timestamp),
        ("date", pa.types.is_date),
        ("time", pa.types.is_time),
        ("span", pa.types.is_duration),
        ("truth", pa.types.is_boolean),
        ("list", lambda t: pa.types.is_list(t) or pa.types.is_large_list(t)),
        ("list", pa.types.is_fixed_size_list),
        ("struct", pa.types.is_struct),
        ("map", pa.types.is_map),
    )
    return next((name for name, is_type in checks if is_type(dtype)), str(dtype))


def _prepared(column: pa.Array, want: pa.DataType) -> pa.Array:
    """The same values in a type that Arrow can cast to `want`."""
    have = column.type
    if pa.types.is_dictionary(have) and not pa.types.is_dictionary(want):
        if isinstance(column, pa.ChunkedArray):
            return pa.chunked_array([_prepared(c, want) for c in column.chunks], type=want)
        # Arrow has no kernel to decode dictionaries of views, which polars' categories are.
        return taken(cast_exactly(column.dictionary, want, ""), column.indices)
    if pa.types.is_boolean(have) and is_bool8(want):
        return column.cast(pa.int8())
    if pa.types.is_integer(have) and pa.types.is_decimal(want):
        # Arrow requires room for every number of the type, not only for the values present.
        return column.cast(pa.decimal256(_DIGITS + max(want.scale, 0), max(want.scale, 0)))
    return column


def taken(column: pa.Array, indices: pa.Array) -> pa.Array:
    """`column.take` that also works for views."""
    plain = {"text": pa.large_string(), "bytes": pa.large_binary()}.get(family_of(column.type))
    if plain is None or pa.types.is_fixed_size_binary(column.type):
        return column.take(indices)
    return column.cast(plain).take(indices).cast(column.type)


def find_loss(column: pa.Array, result: pa.Array, path: str, *, in_list: bool) -> str | None:
    """The error for a rounded number, or None; the cast checks only overflow and truncation."""
    have, want = column.type, result.type
    if isinstance(column, pa.ChunkedArray):
        pairs = zip(column.chunks, result.chunks, strict=True)
        found = (find_loss(old, new, path, in_list=in_list) for old, new in pairs)
        return next((text for text in found if text is not None), None)
    if have.equals(want) or pa.types.is_dictionary(have):
        return None
    if pa.types.is_floating(have) or pa.types.is_floating(want):
        if pa.types.is_decimal(have) or pa.types.is_decimal(want):
            # Arrow would compare them by the digits with which a float is printed.
            pairs = zip(column.to_pylist(), result.to_pylist(), strict=True)
            wrong = pa.array(
                [old is not None and Decimal(old) != Decimal(new) for old, new in pairs]
            )
        elif in_list and pa.types.is_floating(have) and pa.types.is_floating(want):
            grew = pc.and_(pc.is_finite(column), pc.invert(pc.is_finite(result)))
            wrong = pc.fill_null(grew, False)
        else:
            wrong = _differs(column, result.cast(have, safe=False))
        if not pc.any(wrong).as_py():
            return None
        value = column.filter(wrong)[0].as_py()
        return (
            f"column {path!r}: {want} cannot hold {value!r} ({have}) exactly; to accept the loss,"
            " cast it first"
        )
    is_list = in_list or family_of(want) == "list"
    for name, old, new in _pairs(column, result):
        lost = find_loss(old, new, f"{path}.{name}", in_list=is_list)
        if lost is not None:
            return lost
    return None


def _differs(left: pa.Array, right: pa.Array) -> pa.Array:
    different = pc.fill_null(pc.not_equal(left, right), False)
    if pa.types.is_floating(left.type):
        both_nan = pc.fill_null(pc.and_(pc.is_nan(left), pc.is_nan(right)), False)
        return pc.and_not(different, both_nan)
    return different


def _pairs(column: pa.Array, result: pa.Array) -> Iterator[tuple[str, pa.Array, pa.Array]]:
    old, new = list(inner_values(column)), list(inner_values(result))
    by_name = {field.name: values for field, values in new}
    for index, (field, values) in enumerate(old):
        is_struct = pa.types.is_struct(column.type)
        yield field.name, values, by_name[field.name] if is_struct else new[index][1]
