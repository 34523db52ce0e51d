"""Python values as Arrow: each in its own natural type first, then cast without loss (`exact`)."""

from __future__ import annotations

from collections.abc import ItemsView, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from weir.errors import SchemaMismatch
from weir.format.exact import (
    ARROW_ERRORS,
    cast_exactly,
    family_of,
    find_loss,
    is_bool8,
    is_castable,
    taken,
)

_NONE: Final = type(None)


def from_python(values: Sequence[Any], dtype: pa.DataType, name: str) -> pa.Array:
    """Python values as an array of exactly `dtype`; `SchemaMismatch` names what does not fit."""
    kinds = set(map(type, values))
    kinds.discard(_NONE)
    if kinds <= _taken_exactly(dtype):
        try:
            return pa.array(values, dtype)
        except ARROW_ERRORS as error:
            raise SchemaMismatch(f"column {name!r} ({dtype}): {error}") from error
    if isinstance(dtype, pa.BaseExtensionType):
        if is_bool8(dtype):
            return cast_exactly(from_python(values, pa.bool_(), name), dtype, name)
        storage = from_python(_in_storage(values, dtype), dtype.storage_type, name)
        return pa.ExtensionArray.from_storage(dtype, storage)
    if pa.types.is_dictionary(dtype):
        plain = from_python(values, dtype.value_type, name)
        return cast_exactly(plain.dictionary_encode(), dtype, name)
    family = family_of(dtype)
    if family == "struct":
        return _struct(values, dtype, name)
    if family == "map":
        return _map(values, dtype, name)
    if family == "list":
        return _list(values, dtype, name)
    return _natural(values, dtype, name)


@lru_cache(maxsize=1024)
def _taken_exactly(dtype: pa.DataType) -> frozenset[type]:
    """Python types whose values pyarrow takes into `dtype` exactly, or refuses."""
    types = pa.types
    if types.is_integer(dtype):
        return frozenset({int})
    if types.is_float64(dtype):
        return frozenset({float})
    if types.is_boolean(dtype):
        return frozenset({bool})
    if types.is_decimal(dtype):
        return frozenset({Decimal})
    if types.is_date32(dtype):
        return frozenset({date})
    family = family_of(dtype)
    if family == "text":
        return frozenset({str})
    if family == "bytes":
        return frozenset({bytes, bytearray, memoryview})
    return frozenset()


def _in_storage(values: Sequence[Any], dtype: pa.BaseExtensionType) -> list[Any]:
    known = dtype.extension_name
    if known == "arrow.uuid":
        return [v.bytes if isinstance(v, UUID) else v for v in values]
    return list(values)


def _natural(values: Sequence[Any], dtype: pa.DataType, name: str) -> pa.Array:
    """Each kind of value in Arrow's type for it, then cast as Arrow input is; order kept."""
    groups: dict[object, list[int]] = {}
    for index, value in enumerate(values):
        groups.setdefault(_kind(value), []).append(index)
    parts = []
    for places in groups.values():
        try:
            found = _inferred([values[i] for i in places])
        except ARROW_ERRORS as error:
            raise SchemaMismatch(f"column {name!r} ({dtype}): {error}") from error
        if not is_castable(found.type, dtype):
            value = values[places[0]]
            raise SchemaMismatch(
                f"column {name!r} is {dtype} and cannot hold {value!r}{_hint(found.type, dtype)}"
            )
        parts.append(cast_exactly(found, dtype, name))
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate([np.array(p) for p in groups.values()]), kind="stable")
    return taken(pa.concat_arrays(parts), pa.array(order)) if parts else pa.array([], dtype)


def _kind(value: Any) -> object:
    if isinstance(value, datetime):
        return type(value), value.tzinfo is None
    if isinstance(value, np.datetime64 | np.timedelta64):
        return value.dtype
    return type(value)


def _inferred(values: list[Any]) -> pa.Array:
    first = values[0]
    if isinstance(first, np.generic):
        return pa.array(np.array(values))
    if hasattr(first, "to_datetime64"):  # pandas' Timestamp, which has nanoseconds, and NaT
        column = pa.array(np.array([v.to_datetime64() for v in values]))
        return (
            column if first.tzinfo is None else column.cast(pa.timestamp(column.type.unit, "UTC"))
        )
    if hasattr(first, "to_timedelta64"):
        return pa.array(np.array([v.to_timedelta64() for v in values]))
    if isinstance(first, time) and any(v.tzinfo is not None for v in values):
        raise TypeError("a time of day with a time zone: Arrow's has none")
    if isinstance(first, UUID):
        return pa.array([v.bytes for v in values], pa.binary(16))
    return pa.array(values)


def _hint(have: pa.DataType, want: pa.DataType) -> str:
    if pa.types.is_timestamp(have) and pa.types.is_timestamp(want):
        if want.tz is None:
            return ": it has a time zone and the column none; .replace(tzinfo=None) drops it"
        return f": it has no time zone and the column's is {want.tz}; say which it is in"
    return f", which is {have} in Arrow"


def _list(values: Sequence[Any], dtype: pa.DataType, name: str) -> pa.Array:
    lists = [_as_list(value, dtype, name) for value in values]
    missing = pa.array([value is None for value in lists], pa.bool_())
    if pa.types.is_fixed_size_list(dtype):
        size = dtype.list_size
        wrong = next((len(v) for v in lists if v is not None and len(v) != size), None)
        if wrong is not None:
            raise SchemaMismatch(f"column {name!r} holds lists of {size} items, got one of {wrong}")
        blank = (None,) * size
        flat = list(chain.from_iterable(blank if value is None else value for value in lists))
        items = _items(flat, dtype.field(0), name)
        return pa.FixedSizeListArray.from_arrays(items, type=dtype, mask=missing)
    items = _items(list(chain.from_iterable(v or () for v in lists)), dtype.field(0), name)
    ends = np.cumsum([0, *(len(value or ()) for value in lists)])
    if pa.types.is_large_list(dtype):
        return pa.LargeListArray.from_arrays(pa.array(ends), items, type=dtype, mask=missing)
    offsets = pa.array(ends, pa.int32())
    return pa.ListArray.from_arrays(offsets, items, type=dtype, mask=missing)


def _as_list(value: Any, dtype: pa.DataType, name: str) -> Sequence[Any] | None:
    if value is None or isinstance(value, list | tuple | range):
        return value
    if isinstance(value, np.ndarray) and value.ndim > 0:
        return list(value)
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return value.to_pylist()  # type: ignore[no-any-return]
    raise SchemaMismatch(f"column {name!r} is {dtype} and cannot hold {value!r}; give a list")


def _items(values: list[Any], field: pa.Field, name: str) -> pa.Array:
    dtype = field.type
    if pa.types.is_floating(dtype) and set(map(type, values)) <= {float, _NONE}:
        # Vectors: rounded to the precision of the column, never to infinity.
        wide = pa.array(values, pa.float64())
        result = wide.cast(dtype)
        lost = find_loss(wide, result, f"{name}.{field.name}", in_list=True)
        if lost is not None:
            raise SchemaMismatch(lost)
        return result
    return from_python(values, dtype, f"{name}.{field.name}")


def _struct(values: Sequence[Any], dtype: pa.DataType, name: str) -> pa.Array:
    fields = [dtype.field(i) for i in range(dtype.num_fields)]
    names = {field.name for field in fields}
    for value in values:
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise SchemaMismatch(f"column {name!r} is a struct and cannot hold {value!r}")
        if not value.keys() <= names:
            extra = sorted(str(key) for key in value.keys() - names)
            raise SchemaMismatch(f"column {name!r} has no field {extra[0]!r}")
    columns = [
        from_python(
            [None if v is None else v.get(f.name) for v in values], f.type, f"{name}.{f.name}"
        )
        for f in fields
    ]
    missing = pa.array([v is None for v in values], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=fields, mask=missing)


def _map(values: Sequence[Any], dtype: pa.DataType, name: str) -> pa.Array:
    keys: list[Any] = []
    items: list[Any] = []
    offsets: list[int | None] = []
    for value in values:
        pairs = value.items() if isinstance(value, Mapping) else value
        if value is not None and not _is_pairs(pairs):
            raise SchemaMismatch(f"column {name!r} is a map and cannot hold {value!r}")
        offsets.append(None if value is None else len(keys))
        for key, item in pairs or ():
            keys.append(key)
            items.append(item)
    return pa.MapArray.from_arrays(
        pa.array([*offsets, len(keys)], pa.int32()),
        from_python(keys, dtype.key_type, f"{name}.key"),
        from_python(items, dtype.item_type, f"{name}.value"),
        type=dtype,
    )


def _is_pairs(pairs: Any) -> bool:
    if isinstance(pairs, list | tuple):
        return all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs)
    return isinstance(pairs, ItemsView)
