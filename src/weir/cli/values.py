"""Values of every column type as text and as JSON, and back: what is written is read again exactly.

JSON has numbers, text, lists and objects. Whatever it lacks is text: bytes are base64, times ISO
8601, decimals their digits, NaN and infinities their names; a duration is a count of its unit, a
map a list of pairs. A cell of CSV holds the same, and lists and structs as JSON.

Text says digits and not a type, so a number is rounded to the nearest one that its column has. All
else that a column cannot hold is refused: `ValueError` says what.
"""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from collections.abc import Callable
from math import isfinite, isnan
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from weir.format.exact import family_of
from weir.format.nested import Spot, convert, with_inner

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A value of JSON."""
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
_FIRST_SECOND: Final = -62_135_596_800
_PAST_LAST_SECOND: Final = 253_402_300_800
"""The years 1 to 9999, all that ISO 8601 can write. A time outside of them is `@` and a count of
its column's unit from 1970."""
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY: Final = 86_400


class Digits(str):
    """A number of JSON as it is written: its column decides which number that is."""

    __slots__ = ()


# -- out -------------------------------------------------------------------------------------------


def to_json(array: pa.Array) -> list[Json]:
    """The values in a form that JSON can hold."""
    written = convert(array, _written(array.type), lambda leaves, _, __: _in_json(leaves), Spot(""))
    found: list[Json] = written.to_pylist()
    return [_named(value) for value in found] if _has_floats(array.type) else found


def _written(dtype: pa.DataType) -> pa.DataType:
    """The type with leaves that JSON has: truth values, numbers and text."""
    if isinstance(dtype, pa.BaseExtensionType) and dtype.storage_type.num_fields:
        return _written(dtype.storage_type)
    if dtype.num_fields:
        return with_inner(dtype, _written)
    return _in_json(pa.nulls(0, dtype)).type


def _in_json(array: pa.Array) -> pa.Array:
    dtype = array.type
    if pa.types.is_floating(dtype):
        return array.cast(pa.float64())
    if pa.types.is_duration(dtype):
        return array.cast(pa.int64())
    if pa.types.is_integer(dtype) or pa.types.is_boolean(dtype) or pa.types.is_null(dtype):
        return array
    if pa.types.is_dictionary(dtype):
        return _in_json(array.dictionary_decode())
    return _to_text(array)


def _has_floats(dtype: pa.DataType) -> bool:
    children = (_has_floats(dtype.field(i).type) for i in range(dtype.num_fields))
    return pa.types.is_floating(dtype) or any(children)


def _named(value: Json) -> Json:
    """The value, with names for the numbers that JSON does not have."""
    if isinstance(value, list | tuple):
        return [_named(item) for item in value]
    if isinstance(value, dict):
        return {name: _named(item) for name, item in value.items()}
    if not isinstance(value, float) or isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def to_cells(array: pa.Array) -> pa.Array:
    """The values as numbers, truth values or text, which a CSV writer prints exactly."""
    if array.type.num_fields:
        texts = [None if v is None else json.dumps(v, allow_nan=False) for v in to_json(array)]
        return pa.array(texts, pa.string())
    if pa.types.is_float32(array.type) or pa.types.is_decimal(array.type):
        return array  # as text, it has as few digits as it needs
    return _in_json(array)


def _to_text(array: pa.Array) -> pa.Array:
    dtype = array.type
    if isinstance(dtype, pa.UuidType):
        return _each(lambda raw: str(uuid.UUID(bytes=raw)), array.storage)
    if isinstance(dtype, pa.BaseExtensionType):
        return _to_text(array.storage)
    if family_of(dtype) == "bytes":
        return _each(lambda raw: base64.b64encode(raw).decode(), array)
    if pa.types.is_timestamp(dtype) or pa.types.is_date(dtype):
        return _moments_to_text(array)
    return array.cast(pa.string())


def _moments_to_text(array: pa.Array) -> pa.Array:
    dtype = array.type
    if pa.types.is_timestamp(dtype) and dtype.tz is not None:
        # A former offset of a zone may have seconds, which its text would not show.
        array = array.cast(pa.timestamp(dtype.unit, "UTC"))
    counts = _counts(array)
    texts = pc.replace_substring(array.cast(pa.string()), " ", "T", max_replacements=1)
    marked = pc.binary_join_element_wise("@", counts.cast(pa.string()), "")
    return pc.if_else(_is_in_years(counts, dtype), texts, marked)


def _counts(array: pa.Array) -> pa.Array:
    storage = pa.int32() if pa.types.is_date32(array.type) else pa.int64()
    return array.cast(storage).cast(pa.int64())


def _is_in_years(counts: pa.Array, dtype: pa.DataType) -> pa.Array:
    """True for a count of the type's unit that is within the years 1 to 9999, and whose text can be
    read: of the first second of all nanoseconds, only a part is a number of them."""
    if pa.types.is_date32(dtype):
        first, past = _FIRST_SECOND // _DAY, _PAST_LAST_SECOND // _DAY
    else:
        scale = _PER_SECOND["ms" if pa.types.is_date64(dtype) else dtype.unit]
        first, past = _FIRST_SECOND * scale, _PAST_LAST_SECOND * scale
    if past > 2**63 - 1:  # nanoseconds reach from 1677 to 2262
        return pc.greater_equal(counts, -(2**63 // scale) * scale)
    return pc.and_(pc.greater_equal(counts, first), pc.less(counts, past))


# -- in --------------------------------------------------------------------------------------------


def loads(text: str | bytes) -> Json:
    """The JSON value in `text`; `ValueError` for text that is not JSON, or is nested more deeply
    than Python can read."""
    try:
        found: Json = json.loads(text, parse_float=Digits, parse_int=Digits, parse_constant=Digits)
    except RecursionError:
        raise ValueError("its lists and objects are nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg}, at character {error.pos + 1}") from None
    return found


def from_json(values: list[Json], dtype: pa.DataType) -> pa.Array:
    """An array of JSON values; `ValueError` for one that the type cannot hold."""
    missing = pa.array([value is None for value in values], pa.bool_())
    if pa.types.is_struct(dtype):
        return _structs(values, dtype, missing)
    if pa.types.is_map(dtype):
        found, offsets = _flat(values, dtype)
        pairs = [pair for pair in found if isinstance(pair, list) and len(pair) == 2]
        if len(pairs) < len(found):
            raise ValueError(f"a {dtype} is a list of [key, value] pairs")
        keys = from_json([key for key, _ in pairs], dtype.key_type)
        items = from_json([item for _, item in pairs], dtype.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=dtype, mask=missing)
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        flat, offsets = _flat(values, dtype)
        made = pa.ListArray if pa.types.is_list(dtype) else pa.LargeListArray
        items = from_json(flat, dtype.value_type)
        return made.from_arrays(offsets, items, type=dtype, mask=missing)
    if pa.types.is_fixed_size_list(dtype):
        size = dtype.list_size
        filled: list[Json] = [[None] * size if v is None else v for v in values]
        flat, _ = _flat(filled, dtype)
        if any(isinstance(value, list) and len(value) != size for value in filled):
            raise ValueError(f"a list of another length than {size}")
        items = from_json(flat, dtype.value_type)
        return pa.FixedSizeListArray.from_arrays(items, type=dtype, mask=missing)
    return _leaves(values, dtype)


def _structs(values: list[Json], dtype: pa.DataType, missing: pa.Array) -> pa.Array:
    names = {field.name for field in dtype}
    rows: list[dict[str, Json]] = []
    for value in values:
        row = {} if value is None else value
        if not isinstance(row, dict):
            raise _unfit(value, dtype)
        unknown = row.keys() - names
        if unknown:
            raise ValueError(f"{dtype} has no field {min(unknown)!r}")
        rows.append(row)
    columns = [from_json([row.get(field.name) for row in rows], field.type) for field in dtype]
    return pa.StructArray.from_arrays(columns, fields=list(dtype), mask=missing)


def _flat(values: list[Json], dtype: pa.DataType) -> tuple[list[Json], pa.Array]:
    """The items of all lists, and where each list begins and ends."""
    items: list[Json] = []
    offsets = [0]
    for value in values:
        if value is not None:
            if not isinstance(value, list):
                raise _unfit(value, dtype)
            items += value
        offsets.append(len(items))
    return items, pa.array(offsets, pa.int64() if pa.types.is_large_list(dtype) else pa.int32())


def _leaves(values: list[Json], dtype: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(dtype):
        return from_json(values, dtype.value_type).dictionary_encode().cast(dtype)
    kinds = _kinds(dtype)
    for value in values:
        is_name = isinstance(value, str) and value in _NOT_FINITE and pa.types.is_floating(dtype)
        if value is not None and type(value) not in kinds and not is_name:
            raise _unfit(value, dtype)
    if kinds == (bool,):
        return pa.array(values, dtype)
    return from_text(pa.array(values, pa.string()), dtype)


def _kinds(dtype: pa.DataType) -> tuple[type, ...]:
    """The Python types of the values of JSON that stand for a value of the type."""
    if pa.types.is_boolean(dtype):
        return (bool,)
    if pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_duration(dtype):
        return (Digits,)
    return (str, Digits) if pa.types.is_decimal(dtype) else (str,)


def from_text(texts: pa.Array, dtype: pa.DataType) -> pa.Array:
    """An array of cells of CSV, or of text in JSON; `ValueError` for one that does not fit."""
    if family_of(dtype) == "text":
        return texts.cast(dtype)
    if isinstance(dtype, pa.UuidType):
        return _wrapped(_each(lambda text: uuid.UUID(text).bytes, texts, pa.binary(16)), dtype)
    if isinstance(dtype, pa.BaseExtensionType):
        return _wrapped(from_text(texts, dtype.storage_type), dtype)
    if family_of(dtype) == "bytes":
        return _each(_unbase64, texts, dtype)
    if pa.types.is_dictionary(dtype):
        return from_text(texts, dtype.value_type).dictionary_encode().cast(dtype)
    texts = pc.utf8_trim_whitespace(texts)
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    if pa.types.is_null(dtype):
        _refuse(texts, pc.is_valid(texts), dtype)
        return pa.nulls(len(texts))
    if pa.types.is_nested(dtype):
        return from_json([None if t is None else loads(t) for t in texts.to_pylist()], dtype)
    if pa.types.is_floating(dtype):
        numbers = texts.cast(dtype)
        named = pc.match_substring_regex(texts, "(?i)^[+-]?inf")
        overflown = pc.and_(pc.is_inf(numbers.cast(pa.float64())), pc.invert(named))
        _refuse(texts, overflown, dtype)
        return numbers
    if pa.types.is_duration(dtype):
        return texts.cast(pa.int64()).cast(dtype)
    if pa.types.is_time(dtype):
        moments = pc.binary_join_element_wise("1970-01-01", texts, "T")
        count = pa.int32() if pa.types.is_time32(dtype) else pa.int64()
        return moments.cast(pa.timestamp(dtype.unit)).cast(pa.int64()).cast(count).cast(dtype)
    if pa.types.is_timestamp(dtype) or pa.types.is_date(dtype):
        return _moments(texts, dtype)
    return texts.cast(dtype)


def _moments(texts: pa.Array, dtype: pa.DataType) -> pa.Array:
    is_count = pc.starts_with(texts, "@")
    nothing = pa.scalar(None, pa.string())
    moments = pc.if_else(is_count, nothing, texts).cast(dtype)
    if not pc.any(is_count).as_py():
        return moments
    counts = pc.utf8_slice_codeunits(pc.if_else(is_count, texts, nothing), 1)
    storage = pa.int32() if pa.types.is_date32(dtype) else pa.int64()
    return pc.coalesce(moments, counts.cast(storage).cast(dtype))


def _refuse(values: pa.Array, wrong: pa.Array, dtype: pa.DataType) -> None:
    """Raise for the first value that is wrong."""
    first = pc.index(wrong, value=True).as_py()
    if first >= 0:
        raise _unfit(values[first].as_py(), dtype)


def _unfit(value: Json, dtype: pa.DataType) -> ValueError:
    shown = value if isinstance(value, Digits) else json.dumps(value)
    shown = shown if len(shown) <= 60 else shown[:59] + "…"
    return ValueError(f"{dtype} cannot hold {shown}")


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error


def _each(
    change: Callable[..., object], array: pa.Array, dtype: pa.DataType | None = None
) -> pa.Array:
    changed = [None if value is None else change(value) for value in array.to_pylist()]
    return pa.array(changed, dtype or pa.string())


def _wrapped(storage: pa.Array, dtype: pa.DataType) -> pa.Array:
    return pa.ExtensionArray.from_storage(dtype, storage)
