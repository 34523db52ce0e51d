"""Translate filters that Spark pushes down into SQL for Lance, to read fewer rows.

Only comparisons that mean exactly the same in both are translated: Spark evaluates the filters of a
read again, but those of a DELETE only Lance evaluates. The rest is left to Spark
(`weir.lake.literals.comparable`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

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

from weir.lake.literals import comparable, literal
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
        values = [comparable(value, dtype) for value in filter.value]
        if not values or len(values) > _MANY or None in values:
            return None
        return f"{name} IN ({', '.join(str(value) for value in values)})"
    value = comparable(getattr(filter, "value", None), dtype)
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
    return None if not start else f"starts_with({name}, {literal(start)})"
