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

from decimal import Decimal
from functools import lru_cache
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import SchemaMismatch
from weir.format.nested import Spot, convert, decoded, inner_values

_Column = TypeVar("_Column", pa.Array, pa.ChunkedArray)

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


def cast_exactly(
    column: _Column, dtype: pa.DataType, name: str, *, in_list: bool = False
) -> _Column:
    """`column`, chunked or not, as `dtype`; `SchemaMismatch` when a value would change."""
    if not is_castable(column.type, dtype):
        raise SchemaMismatch(f"column {name!r}: {column.type} cannot be converted to {dtype}")
    try:
        return convert(column, dtype, _cast_plain, Spot(name, in_list))
    except SchemaMismatch:
        raise
    except ARROW_ERRORS as error:
        raise SchemaMismatch(f"column {name!r}: {error}") from error


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


def _cast_plain(column: pa.Array, want: pa.DataType, spot: Spot) -> pa.Array:
    """Values of a type without fields, in another one; see `nested.Cast`."""
    have = column.type
    if pa.types.is_dictionary(have) and not have.equals(want):
        to = want.value_type if pa.types.is_dictionary(want) else want
        # Arrow has no kernel to decode dictionaries of views, which polars' categories are.
        values = taken(convert(column.dictionary, to, _cast_plain, spot), column.indices)
        return _encoded(values, want) if pa.types.is_dictionary(want) else values
    if pa.types.is_dictionary(want):
        return _encoded(convert(column, want.value_type, _cast_plain, spot), want)
    if pa.types.is_boolean(have) and is_bool8(want):
        return column.cast(pa.int8()).cast(want)
    if pa.types.is_integer(have) and pa.types.is_decimal(want):
        # Arrow requires room for every number of the type, not only for the values present.
        wide = pa.decimal256(_DIGITS + max(want.scale, 0), max(want.scale, 0))
        return column.cast(wide).cast(want)
    # Arrow refuses integers above the precision of a float, also those that it holds exactly.
    is_to_float = pa.types.is_integer(have) and pa.types.is_floating(want)
    result = column.cast(want, safe=not is_to_float)
    wrong = _lost(column, result, in_list=spot.in_list)
    if wrong is not None and pc.any(wrong).as_py():
        value = column.filter(wrong)[0].as_py()
        raise SchemaMismatch(
            f"column {spot.path!r}: {want} cannot hold {value!r} ({have}) exactly; to accept the"
            f" loss, cast it first{_how_to_cast(want, value)}"
        )
    return result


def _how_to_cast(want: pa.DataType, value: object) -> str:
    """How a caller with Python numbers rounds one to a floating-point column; may be empty."""
    if not pa.types.is_floating(want) or not isinstance(value, int | float):
        return ""
    return f", as in numpy.{want.to_pandas_dtype().__name__}({value!r})"


def with_plain_dictionaries(column: pa.Array) -> pa.Array:
    """The column, encoded again where a dictionary holds a null, at any depth.

    That is valid Arrow, but Arrow cannot put two such batches together (F-15).
    """
    if not _has_null_in_dictionary(column):
        return column
    plain = convert(column, decoded(column.type), _cast_plain, Spot(""))
    return convert(plain, column.type, _cast_plain, Spot(""))


def _has_null_in_dictionary(column: pa.Array) -> bool:
    if pa.types.is_dictionary(column.type):
        return bool(column.dictionary.null_count)
    return any(_has_null_in_dictionary(values) for _, values in inner_values(column))


def _encoded(values: pa.Array, want: pa.DictionaryType) -> pa.DictionaryArray:
    """Plain values as a dictionary that holds no null."""
    encoded = values.dictionary_encode()
    return pa.DictionaryArray.from_arrays(
        encoded.indices.cast(want.index_type), encoded.dictionary, ordered=want.ordered
    )


def taken(column: pa.Array, indices: pa.Array) -> pa.Array:
    """`column.take` that also works for views."""
    plain = {"text": pa.large_string(), "bytes": pa.large_binary()}.get(family_of(column.type))
    if plain is None or pa.types.is_fixed_size_binary(column.type):
        return column.take(indices)
    return column.cast(plain).take(indices).cast(column.type)


def _lost(column: pa.Array, result: pa.Array, *, in_list: bool) -> pa.BooleanArray | None:
    """True for each number that a cast has rounded; None where Arrow's cast has checked that."""
    have, want = column.type, result.type
    if not (pa.types.is_floating(have) or pa.types.is_floating(want)):
        return None
    if pa.types.is_decimal(have) or pa.types.is_decimal(want):
        # Arrow would compare them by the digits with which a float is printed.
        pairs = zip(column.to_pylist(), result.to_pylist(), strict=True)
        return pa.array([old is not None and Decimal(old) != Decimal(new) for old, new in pairs])
    if in_list and pa.types.is_floating(have) and pa.types.is_floating(want):
        grew = pc.and_(pc.is_finite(column), pc.invert(pc.is_finite(result)))
        return pc.fill_null(grew, False)
    if pa.types.is_integer(have):
        return _rounded(column, result.cast(pa.float64()))
    before, after = _comparable(column), _comparable(result.cast(have, safe=False))
    different = pc.fill_null(pc.not_equal(before, after), False)
    both_nan = pc.fill_null(pc.and_(pc.is_nan(before), pc.is_nan(after)), False)
    return pc.and_not(different, both_nan)


def _rounded(integers: pa.Array, floats: pa.DoubleArray) -> pa.BooleanArray:
    """True for each integer that its float does not equal."""
    is_unsigned = pa.types.is_unsigned_integer(integers.type)
    wide, above = (pa.uint64(), 2.0**64) if is_unsigned else (pa.int64(), 2.0**63)
    fits = pc.less(floats, above)  # beyond that, a cast back to an integer is not defined
    back = pc.if_else(fits, floats, 0.0).cast(wide, safe=False)
    return pc.fill_null(pc.invert(pc.and_(fits, pc.equal(back, integers.cast(wide)))), False)


def _comparable(floats: pa.Array) -> pa.Array:
    """The same values in a type that Arrow compares; it has no kernel for half floats."""
    return floats.cast(pa.float32()) if pa.types.is_float16(floats.type) else floats
