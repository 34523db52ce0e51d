"""Python values as Arrow: first in their natural type, then cast without loss (`exact`).

Many values are converted in pieces: a conversion holds Python's global lock, so that an event loop
would stand still until it ends, even when the conversion is done in another thread.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from weir.errors import SchemaMismatch
from weir.format.exact import (
    ARROW_ERRORS,
    cast_exactly,
    family_of,
    is_bool8,
    is_castable,
    taken,
)
from weir.format.nested import has_dictionary

_NONE: Final = type(None)
_PYTHON_NUMBERS: Final = frozenset({float, int, _NONE})
_FLOATS: Final = frozenset({float, np.float16, np.float32, np.float64, _NONE})
_TIMES: Final = frozenset({"instant", "date", "time", "span"})
_NUMPY_FLOATS: Final = frozenset(map(np.dtype, ("f2", "f4", "f8")))

_LISTS: Final = (list, tuple, range, pa.Array, pa.ChunkedArray)
_FEW: Final = 16
"""So few values are converted at once, whatever they are: most puts are small."""
_AT_ONCE: Final = 50_000
"""Numbers converted at once; takes about 3 ms, less than Python lets a thread run undisturbed."""


def from_python(values: Sequence[Any], dtype: pa.DataType, name: str) -> pa.Array:
    """Python values as an array of exactly `dtype`; `SchemaMismatch` names what does not fit."""
    if len(values) > _FEW and (pieces := _pieces(values, dtype)):
        return _joined([from_python(piece, dtype, name) for piece in pieces], dtype, name)
    kinds = set(map(type, values))
    kinds.discard(_NONE)
    if kinds <= _taken_exactly(dtype):  # guard: M-9 always test_exact
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
        return cast_exactly(from_python(values, dtype.value_type, name), dtype, name)
    family = family_of(dtype)
    if family == "struct":
        return _struct(values, dtype, name)
    if family == "map":
        return _map(values, dtype, name)
    if family == "list":
        return _list(values, dtype, name)
    return _natural(values, dtype, name)


def rows_at_once(numbers: int) -> int:
    """How many rows of so many numbers, or other items, are converted at once."""
    return max(_AT_ONCE // max(numbers, 1), 1)


def maker(dtype: pa.DataType, name: str) -> Callable[[Sequence[Any]], pa.Array]:
    """`from_python` for one column; looks up only once which values its type takes."""
    exactly = _taken_exactly(dtype) | {_NONE}

    def make(values: Sequence[Any]) -> pa.Array:
        if len(values) <= _AT_ONCE and exactly.issuperset(map(type, values)):
            try:
                return pa.array(values, dtype)
            except ARROW_ERRORS as error:
                raise SchemaMismatch(f"column {name!r} ({dtype}): {error}") from error
        return from_python(values, dtype, name)

    return make


def _pieces(values: Sequence[Any], dtype: pa.DataType) -> list[Sequence[Any]]:
    """The values in pieces of about `_AT_ONCE` numbers or other items; empty: one will do."""
    if has_dictionary(dtype):  # each piece would have a dictionary of its own
        return []
    if pa.types.is_fixed_size_list(dtype):
        starts = list(range(0, len(values), rows_at_once(dtype.list_size)))
    elif family_of(dtype) != "list":
        starts = list(range(0, len(values), _AT_ONCE))
    else:
        starts, items = [0], 0
        for index, value in enumerate(values):
            items += 1 + (len(value) if isinstance(value, _LISTS) else 0)
            if items >= _AT_ONCE and index + 1 < len(values):
                starts.append(index + 1)
                items = 0
    if len(starts) == 1:
        return []
    return [values[a:b] for a, b in pairwise([*starts, len(values)])]


def _joined(parts: list[pa.Array], dtype: pa.DataType, name: str) -> pa.Array:
    try:
        return pa.concat_arrays(parts)
    except ARROW_ERRORS as error:
        raise SchemaMismatch(
            f"column {name!r} ({dtype}): its values exceed what one column can hold in one call,"
            f" write them in parts ({error})"
        ) from error


@lru_cache(maxsize=1024)
def _taken_exactly(dtype: pa.DataType) -> frozenset[type]:
    """Python types whose values pyarrow converts to `dtype` exactly, or refuses."""
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
    """Convert each kind of value to its Arrow type, then cast it like Arrow input; keeps order."""
    if family_of(dtype) in _TIMES:
        values = [None if _is_nat(value) else value for value in values]
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


def _is_nat(value: Any) -> bool:
    """True for the null of numpy's and pandas' times; it has no time zone, or any."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return type(value).__name__ == "NaTType"


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
    if hasattr(first, "to_datetime64"):  # pandas' Timestamp, which has nanoseconds
        column = pa.array(np.array([v.to_datetime64() for v in values]))
        return (
            column if first.tzinfo is None else column.cast(pa.timestamp(column.type.unit, "UTC"))
        )
    if hasattr(first, "to_timedelta64"):
        return pa.array(np.array([v.to_timedelta64() for v in values]))
    if isinstance(first, time) and any(v.tzinfo is not None for v in values):
        raise TypeError("Arrow's time of day has no time zone; remove the tzinfo")
    if isinstance(first, UUID):
        return pa.array([v.bytes for v in values], pa.binary(16))
    return pa.array(values)


def _hint(have: pa.DataType, want: pa.DataType) -> str:
    if pa.types.is_timestamp(have) and pa.types.is_timestamp(want):
        if want.tz is None:
            return ": it has a time zone, but the column has none; .replace(tzinfo=None) drops it"
        return f": it has no time zone, but the column is in {want.tz}; set its tzinfo"
    return f", which is {have} in Arrow"


def _list(values: Sequence[Any], dtype: pa.DataType, name: str) -> pa.Array:
    vectors = _vectors(values, dtype)
    if vectors is not None:
        return vectors
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


def _vectors(values: Sequence[Any], dtype: pa.DataType) -> pa.Array | None:
    """Lists of floating-point numbers in one conversion; None if a value needs the slow path.

    Arrow reads Python's numbers as doubles. That hides only whole numbers that the column cannot
    hold and would round; these are searched for. Bools and numpy numbers among Python's numbers
    have rules of their own (M-9).
    """
    read_as = _numbers_in(values) if pa.types.is_floating(dtype.value_type) else None
    if read_as is None:
        return None
    try:
        wide = pa.array(values, _list_of(read_as.type, dtype))
    except ARROW_ERRORS:
        return None
    items = wide.values
    if items.null_count or items.offset:
        return None
    result = items.cast(dtype.value_type)
    numbers, kept = items.to_numpy(), result.to_numpy().astype(np.float64)
    if (np.isinf(kept) & ~np.isinf(numbers)).any():
        return None
    if read_as.is_python:
        is_whole = (kept != numbers) & (np.floor(numbers) == numbers)
        if is_whole.any():
            return None
    missing = wide.is_null() if wide.null_count else None
    if pa.types.is_fixed_size_list(dtype):
        return pa.FixedSizeListArray.from_arrays(result, type=dtype, mask=missing)
    kind = pa.LargeListArray if pa.types.is_large_list(dtype) else pa.ListArray
    return kind.from_arrays(wide.offsets, result, type=dtype, mask=missing)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """The type as which lists of numbers are read."""

    type: pa.DataType
    is_python: bool


def _numbers_in(values: Sequence[Any]) -> _Numbers | None:
    """How to read lists or numpy arrays of floating-point numbers; None for anything else."""
    kinds = set(map(type, values))
    if kinds <= {list, tuple, _NONE}:
        numbers = chain.from_iterable(value for value in values if value is not None)
        is_python = _PYTHON_NUMBERS.issuperset(map(type, numbers))
        return _Numbers(pa.float64(), is_python=True) if is_python else None
    if not kinds <= {np.ndarray, _NONE}:
        return None
    (first, *others) = {(v.dtype, v.ndim) for v in values if v is not None}
    number, dimensions = first
    if others or dimensions != 1 or number not in _NUMPY_FLOATS:
        return None
    return _Numbers(pa.from_numpy_dtype(number), is_python=False)


@lru_cache(maxsize=256)
def _list_of(items: pa.DataType, dtype: pa.DataType) -> pa.DataType:
    """The same kind of list, with other items."""
    if pa.types.is_fixed_size_list(dtype):
        return pa.list_(items, dtype.list_size)
    return pa.large_list(items) if pa.types.is_large_list(dtype) else pa.list_(items)


def _as_list(value: Any, dtype: pa.DataType, name: str) -> Sequence[Any] | None:
    if value is None or isinstance(value, list | tuple | range):
        return value
    if isinstance(value, np.ndarray) and value.ndim > 0:
        return value.tolist() if value.dtype.kind in "biuf" else list(value)
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return value.to_pylist()  # type: ignore[no-any-return]
    raise SchemaMismatch(f"column {name!r} is {dtype} and cannot hold {value!r}; give a list")


def _items(values: list[Any], field: pa.Field, name: str) -> pa.Array:
    dtype, path = field.type, f"{name}.{field.name}"
    kinds = set(map(type, values)) if pa.types.is_floating(dtype) else {object}
    if float in kinds and int in kinds and kinds <= _PYTHON_NUMBERS:
        # Whole numbers in a vector must be held exactly; the rule for the others is unchanged.
        from_python([value for value in values if type(value) is int], dtype, path)
        return _items([float(v) if type(v) is int else v for v in values], field, name)
    if kinds <= _FLOATS:
        # Vectors: rounded to the precision of the column, never to infinity.
        return cast_exactly(pa.array(values, pa.float64()), dtype, path, in_list=True)
    return from_python(values, dtype, path)


def _struct(values: Sequence[Any], dtype: pa.DataType, name: str) -> pa.Array:
    fields = [dtype.field(i) for i in range(dtype.num_fields)]
    names = {field.name for field in fields}
    for value in values:
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise SchemaMismatch(
                f"column {name!r} is a struct and cannot hold {value!r}; give a dict"
            )
        if not names.issuperset(value):
            extra = sorted(str(key) for key in value if key not in names)
            raise SchemaMismatch(
                f"column {name!r} has no field {extra[0]!r}; it has {[f.name for f in fields]}"
            )
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
        if isinstance(value, pa.Scalar):
            value = value.as_py()  # noqa: PLW2901  pyarrow's own maps are no mappings
        pairs = value.items() if isinstance(value, Mapping) else value
        if value is not None and not _is_pairs(pairs):
            raise SchemaMismatch(
                f"column {name!r} is a map and cannot hold {value!r}; give a dict or a list of"
                " pairs"
            )
        offsets.append(None if value is None else len(keys))
        for key, item in pairs or ():
            keys.append(key)
            items.append(item)
    built = from_python(keys, dtype.key_type, f"{name}.key")
    if built.null_count:
        raise SchemaMismatch(f"column {name!r} is a map, and a key of it is null")
    return pa.MapArray.from_arrays(
        pa.array([*offsets, len(keys)], pa.int32()),
        built,
        from_python(items, dtype.item_type, f"{name}.value"),
        type=dtype,
    )


def _is_pairs(pairs: Any) -> bool:
    if isinstance(pairs, list | tuple):
        return all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs)
    return isinstance(pairs, ItemsView)
