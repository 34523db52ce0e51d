"""Translate filters that Spark pushes down into SQL for Lance, to read fewer rows.

Spark evaluates every filter again, so the SQL may keep a row too many, but never one too few: only
comparisons that mean the same in both are translated. Floating-point numbers (NaN is greater than
all others in Spark), times (zones) and everything else are left to Spark.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
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
        if self._filter is not None:
            texts.append(f"({self._filter})")
        self._filter = " AND ".join(texts) or None
        return filters


def as_sql(filter: Filter, schema: pa.Schema) -> str | None:
    """The filter for Lance, or None where it might mean something else."""
    column: tuple[str, ...] = getattr(filter, "attribute", ())
    if len(column) != 1 or column[0] not in schema.names:
        return None
    dtype = schema.field(column[0]).type
    name = "`" + column[0].replace("`", "``") + "`"
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
    return None if sign is None else f"{name} {sign} {value}"


def _prefix(name: str, start: str) -> str | None:
    return None if not start else f"starts_with({name}, {_quoted(start)})"


def _literal(value: Any, dtype: pa.DataType) -> str | None:
    if pa.types.is_boolean(dtype) and isinstance(value, bool):
        return str(value).lower()
    if pa.types.is_integer(dtype) and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if _is_text(dtype) and isinstance(value, str):
        return _quoted(value)
    if pa.types.is_date32(dtype) and type(value) is dt.date:
        return f"date '{value.isoformat()}'"
    return None


def _is_text(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
