"""A scan as a polars lazy frame, through polars' interface for IO plugins.

A predicate that polars pushes down is translated to SQL only where Lance is sure to pass every row
that polars would. Polars filters again, so an untranslated part costs time but changes no result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from weir.format.schema import no_rows
from weir.lake.literals import comparable, quoted

if TYPE_CHECKING:
    from weir.read.scan import Scan

_COMPARE: Final = {"Eq": "=", "NotEq": "<>", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_MIRRORED: Final = {"Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
_BOUNDS: Final = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<=")}
_MICROS: Final = {"Milliseconds": 1000, "Microseconds": 1}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def lazy_frame(scan: Scan) -> pl.LazyFrame:
    """See `Scan.lazy`."""

    def read(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        # polars limits before it filters: rows after the first n_rows must not be returned.
        # guard: L-3 last test_a_limit_comes_before_a_filter_that_follows_it
        pushed = None if predicate is None or n_rows is not None else as_sql(predicate, scan)
        rows = scan.narrowed(with_columns, pushed, batch_size, n_rows)
        for batch in rows.to_batches():
            frame = pl.DataFrame(batch)
            yield frame if predicate is None else frame.filter(predicate)

    empty = pl.DataFrame(no_rows(scan.schema))
    return register_io_source(read, schema=empty.schema, explain_name="WEIR")


def as_sql(predicate: pl.Expr, scan: Scan) -> str | None:
    """SQL that passes every row that `predicate` does, perhaps more; None if there is none."""
    if not scan.takes_sql:
        return None
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
    except (pl.exceptions.PolarsError, ValueError):  # a function, or not representable
        return None
    return _sql(tree, scan.stored)


def _sql(tree: Any, schema: pa.Schema) -> str | None:
    match tree:
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
            both = [text for text in (_sql(left, schema), _sql(right, schema)) if text]
            return " AND ".join(f"({text})" for text in both) or None
        case {"BinaryExpr": {"left": left, "op": "Or" | "LogicalOr", "right": right}}:
            one, other = _sql(left, schema), _sql(right, schema)
            return f"({one}) OR ({other})" if one and other else None
        case {"BinaryExpr": {"left": {"Column": str(name)}, "op": str(op), "right": value}}:
            return _compared(name, op, value, schema)
        case {"BinaryExpr": {"left": value, "op": str(op), "right": {"Column": str(name)}}}:
            return _compared(name, _MIRRORED.get(op, op), value, schema)
        case {"Function": {"input": [{"Column": str(name)}], "function": {"Boolean": str(what)}}}:
            words = {"IsNull": "IS NULL", "IsNotNull": "IS NOT NULL"}.get(what)
            return f"{quoted(name)} {words}" if words and name in schema.names else None
        case {
            "Function": {
                "input": [{"Column": str(name)}, low, high],
                "function": {"Boolean": {"IsBetween": {"closed": str(closed)}}},
            }
        } if closed in _BOUNDS:
            lower, upper = _BOUNDS[closed]
            ends = [_against(name, lower, low, schema), _against(name, upper, high, schema)]
            return " AND ".join(f"({text})" for text in ends if text) or None
    return None


def _compared(name: str, op: str, value: Any, schema: pa.Schema) -> str | None:
    return _against(name, _COMPARE[op], value, schema) if op in _COMPARE else None


def _against(name: str, sign: str, value: Any, schema: pa.Schema) -> str | None:
    if name not in schema.names or "`" in name:
        return None
    dtype = schema.field(name).type
    said = _literal(value, dtype)
    if said is None:
        return None
    text = f"{quoted(name)} {sign} {said}"
    # In polars NaN is the largest number and equals itself; in Lance it depends on its sign.
    return f"{text} OR isnan({quoted(name)})" if pa.types.is_floating(dtype) else text


def _literal(value: Any, dtype: pa.DataType) -> str | None:
    """A value as SQL, if polars and Lance compare it the same way with values of `dtype`."""
    match value:
        case {"Literal": {"Dyn": dict(said)}} | {"Literal": {"Scalar": dict(said)}} if said:
            kind, found = next(iter(said.items()))
        case _:
            return None
    try:
        return comparable(_value(kind, found, dtype), dtype)
    except OverflowError:
        return None  # a time that Python does not have


def _value(kind: str, found: Any, dtype: pa.DataType) -> object:
    """The value in Python's types."""
    if kind == "Date" and isinstance(found, int):
        return (_EPOCH + timedelta(days=found)).date()
    if kind == "Datetime" and isinstance(found, list):
        number, unit, zone = found
        if unit not in _MICROS:
            return None
        moment = _EPOCH + timedelta(microseconds=number * _MICROS[unit])
        return moment.replace(tzinfo=None) if zone is None else moment
    if isinstance(found, bool | str):
        return found
    if not kind.startswith(("Int", "UInt", "Float")):
        return None
    # polars compares a whole number with a double as a double.
    return float(found) if pa.types.is_float64(dtype) and isinstance(found, int) else found
