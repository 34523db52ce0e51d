"""Values as SQL text for Lance's filters: keys, and parameters that users pass.

A pyarrow expression would be neater, but travels as Substrait, which has no unsigned integers and
no large strings or binaries: all of them key types.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import InvalidInput

_INT64_MIN: Final = -(2**63)
_UINT64_MAX: Final = 2**64 - 1
_DECIMAL_DIGITS: Final = (38, 76)
"""Most digits of Arrow's two decimal types."""


def quoted(column: str) -> str:
    """A column's name in a filter, whatever characters it holds."""
    if "`" in column:
        raise InvalidInput(f"column name {column!r} has a backtick and cannot be used in a filter")
    return f"`{column}`"


def literal(value: object) -> str:
    """The value as SQL, as a literal of its own type; an enum as its value.

    Exact: a float is the same double again, a datetime has microseconds in any year (Lance's own
    TIMESTAMP literals end in 2262), one with a zone is that moment. `InvalidInput` for others.
    """
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return _integer(int(value))
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else f"CAST('{value!s}' AS DOUBLE)"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes | bytearray):
        return f"X'{value.hex()}'"
    if isinstance(value, UUID):
        return f"X'{value.hex}'"
    if isinstance(value, Decimal):
        return _decimal(value)
    # Of these no subclass: pandas' have nanoseconds, and a value that is no time.
    if type(value) is datetime:
        return _moment(value)
    if type(value) is date:
        return f"DATE '{value.isoformat()}'"
    raise InvalidInput(
        f"a value of type {type(value).__module__}.{type(value).__name__} cannot be written in SQL;"
        " use str, bytes, int, float, bool, None, date, datetime, Decimal or UUID (for those of"
        " numpy and pandas .item() or .to_pydatetime())"
    )


def _integer(value: int) -> str:
    if value == _INT64_MIN:
        return f"({_INT64_MIN + 1} - 1)"  # Lance parses the minus apart, and 2**63 does not fit
    if not _INT64_MIN < value <= _UINT64_MAX:
        raise InvalidInput(f"{value} does not fit into 64 bits; use a Decimal")
    return str(value)


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise InvalidInput(f"{value} is no decimal that a column can hold")
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "finite"
    scale = max(0, -exponent)
    precision = max(len(digits) + max(0, exponent), scale, 1)
    small, large = _DECIMAL_DIGITS
    if precision > large:
        raise InvalidInput(f"{value} has {precision} digits; a column holds at most {large}")
    kind = "Decimal128" if precision <= small else "Decimal256"
    return f"arrow_cast('{value:f}', '{kind}({precision}, {scale})')"


def _moment(value: datetime) -> str:
    zone = "None"
    if value.tzinfo is not None:
        value, zone = value.astimezone(UTC).replace(tzinfo=None), 'Some("UTC")'
    text = value.isoformat(timespec="microseconds") + ("" if zone == "None" else "Z")
    return f"arrow_cast('{text}', 'Timestamp(Microsecond, {zone})')"


def comparable(value: object, dtype: pa.DataType) -> str | None:
    """The value as SQL, if Lance compares it with a column of `dtype` as Python, Spark and polars
    compare it; None if that is not certain.

    Not certain are numbers that the column cannot hold, 0.0 (-0.0 equals it elsewhere only),
    32-bit floats, which each engine compares as another number, and times that a column in
    milliseconds cannot hold, or in other units: Lance truncates them.
    """
    kinds = pa.types
    if isinstance(value, bool):
        return literal(value) if kinds.is_boolean(dtype) else None
    if isinstance(value, int):
        is_held = kinds.is_integer(dtype) and value in _numbers(dtype)
        return literal(value) if is_held else None
    if isinstance(value, float):
        is_exact = kinds.is_float64(dtype) and math.isfinite(value) and value != 0
        return literal(value) if is_exact else None
    if isinstance(value, str):
        return literal(value) if kinds.is_string(dtype) or kinds.is_large_string(dtype) else None
    if isinstance(value, Decimal) and kinds.is_decimal128(dtype):
        try:
            return literal(pa.scalar(value, dtype).as_py())
        except pa.ArrowInvalid:
            return None  # more digits than the column has
    if type(value) is datetime and kinds.is_timestamp(dtype):
        is_held = dtype.unit == "us" or (dtype.unit == "ms" and value.microsecond % 1000 == 0)
        is_alike = (value.tzinfo is None) == (dtype.tz is None)
        return literal(value) if is_held and is_alike else None
    return literal(value) if type(value) is date and kinds.is_date32(dtype) else None


def _numbers(dtype: pa.DataType) -> range:
    """The numbers of an integer type that a literal can be compared with."""
    if pa.types.is_unsigned_integer(dtype):
        return range(min(1 << dtype.bit_width, 1 << 63))  # a literal is a signed number of 64 bits
    # Without the least one: it is parsed as the negative of a number that is too large.
    return range(1 - (1 << (dtype.bit_width - 1)), 1 << (dtype.bit_width - 1))


def is_one_of(column: str, values: pa.Array | pa.ChunkedArray) -> str:
    """A filter that keeps the rows whose `column` is one of `values` (not null, at least one)."""
    name = quoted(column)
    items = pc.unique(values).to_pylist()
    if not items:
        raise InvalidInput(f"no value to look for in column {column!r}")
    # Lance parses the minus apart from the number, and 2**63 does not fit.
    lowest = _INT64_MIN in items if isinstance(items[0], int) else False
    texts = [literal(item) for item in items if not (lowest and item == _INT64_MIN)]
    parts = [f"{name} IN ({','.join(texts)})"] if len(texts) > 1 else []
    if len(texts) == 1:
        parts = [f"{name} = {texts[0]}"]
    if lowest:
        parts.append(f"{name} < {_INT64_MIN + 1}")
    return parts[0] if len(parts) == 1 else f"({' OR '.join(parts)})"


def key_filter(keys: pa.Table, names: Sequence[str]) -> str:
    """A filter that the rows of `keys` pass; with several key columns other rows may pass too."""
    return " AND ".join(is_one_of(name, keys.column(name)) for name in names)
