"""Translate filters that Spark pushes down into SQL for Lance, to read fewer rows.

Only comparisons that mean exactly the same in both are translated: Spark evaluates the filters of a
read again, but those of a DELETE only Lance evaluates. Left to Spark are numbers that the column
cannot hold, comparisons with 0.0 (-0.0 equals it in Spark only), 32-bit floats, times in other
units than Spark's, and everything else.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from weir.spark.source import WeirReader

_SIGNS: Final = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
_MANY: Final = 1000
"""Most values of an IN that is still pushed down."""


class PushdownReader(WeirReader):
    """A read through the catalog, whose bridge serves only this scan, so push-down is safe."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Keep the filters that Lance can use; Spark still evaluates all of them."""
        schema = self._place.current().schema
        texts = [text for text in (as_sql(f, schema) for f in filters) if text is not None]
        self._pushed = " AND ".join(texts) or None
        return filters


def as_sql(filter: Filter, schema: pa.Schema) -> str | None:
    """The filter for Lance, or None where it might mean something else."""
    column: tuple[str, ...] = getattr(filter, "attribute", ())
    dtype = _type_of(column, schema)
    if dtype is None or any("`" in part for part in column):
        return None  # Lance has no way to write a name with a backquote
    name = ".".join(f"`{part}`" for part in column)
    if isinstance(filter, IsNull):
        return f"{name} IS NULL"
    if isinstance(filter, IsNotNull):
        return f"{name} IS NOT NULL"
    if isinstance(filter, In):
        values = [_literal(value, dtype) for value in filter.value]
        if not values or len(values) > _MANY or None in values:
            return None
        return f"{name} IN ({', '.join(str(value) for value in values)})"
    value = _literal(getattr(filter, "value", None), dtype)
    if value is None:
        return None
    if isinstance(filter, EqualNullSafe):
        return f"{name} = {value}"
    if isinstance(filter, StringStartsWith):
        return _prefix(name, filter.value)
    sign = _SIGNS.get(type(filter))
    if sign is None:
        return None
    text = f"{name} {sign} {value}"
    if not pa.types.is_float64(dtype) or sign == "=":
        return text
    # To Spark every NaN is greater than all numbers, to Lance one with its sign bit set is less.
    return f"({text} OR isnan({name}))" if ">" in sign else f"({text} AND NOT isnan({name}))"


def _type_of(column: tuple[str, ...], schema: pa.Schema) -> pa.DataType | None:
    """The type of a column, or of a field of a struct; None where there is no such field."""
    if not column or column[0] not in schema.names:
        return None
    dtype = schema.field(column[0]).type
    for part in column[1:]:
        if not pa.types.is_struct(dtype) or dtype.get_field_index(part) < 0:
            return None
        dtype = dtype.field(part).type
    return dtype


def _prefix(name: str, start: str) -> str | None:
    return None if not start else f"starts_with({name}, {_quoted(start)})"


def _literal(value: Any, dtype: pa.DataType) -> str | None:
    if pa.types.is_boolean(dtype) and isinstance(value, bool):
        return str(value).lower()
    if pa.types.is_integer(dtype) and isinstance(value, int) and not isinstance(value, bool):
        return str(value) if value in _numbers(dtype) else None
    if _is_text(dtype) and isinstance(value, str):
        return _quoted(value)
    if pa.types.is_date32(dtype) and type(value) is dt.date:
        return f"date '{value.isoformat()}'"
    if pa.types.is_float64(dtype) and isinstance(value, float):
        return repr(value) if math.isfinite(value) and value else None
    if pa.types.is_decimal128(dtype) and isinstance(value, Decimal):
        return _decimal(value, dtype)
    if pa.types.is_timestamp(dtype) and isinstance(value, dt.datetime):
        return _time(value, dtype)
    return None


def _decimal(value: Decimal, dtype: pa.Decimal128Type) -> str | None:
    try:
        told = pa.scalar(value, dtype).as_py()
    except pa.ArrowInvalid:
        return None  # more digits than the column has
    return f"cast('{told:f}' as decimal({dtype.precision},{dtype.scale}))"


def _time(value: dt.datetime, dtype: pa.TimestampType) -> str | None:
    """Spark's times are microseconds; those with a zone arrive in it, with the offset."""
    if dtype.unit != "us" or (value.tzinfo is None) != (dtype.tz is None):
        return None
    told = value if value.tzinfo is None else value.astimezone(dt.UTC)
    return f"timestamp '{told.isoformat(sep=' ', timespec='microseconds')}'"


def _numbers(dtype: pa.DataType) -> range:
    """The numbers of an integer type that can be written as literals of it."""
    if pa.types.is_unsigned_integer(dtype):
        # A literal is a signed number of 64 bits.
        return range(min(1 << dtype.bit_width, 1 << 63))
    # Without the least one: it is parsed as the negative of a number that is too large.
    return range(1 - (1 << (dtype.bit_width - 1)), 1 << (dtype.bit_width - 1))


def _is_text(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
