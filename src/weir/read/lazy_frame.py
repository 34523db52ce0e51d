"""A scan as a polars lazy frame, through polars' interface for IO plugins.

polars writes its predicates as pyarrow expressions, as it does for any dataset. Pushed down are
those on columns whose values polars, Lance and pyarrow compare alike; in polars NaN, for one, is
the largest number, and equals itself. Polars filters again, so what is left out only costs time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from polars.io.plugins import register_io_source

from weir.format.schema import no_rows
from weir.read.dataset import ScanDataset

if TYPE_CHECKING:
    from weir.read.scan import Scan


def lazy_frame(scan: Scan) -> pl.LazyFrame:
    """See `Scan.lazy`."""
    empty = pl.DataFrame(no_rows(scan.schema))

    def read(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        # polars limits before it filters: rows after the first n_rows must not be returned.
        # guard: L-3 last test_a_limit_comes_before_a_filter_that_follows_it
        pushed = None if predicate is None or n_rows is not None else as_arrow(predicate, scan)
        # The columns that polars knows, whatever the table has by now.
        names = empty.columns if with_columns is None else with_columns
        for batch in ScanDataset(scan).batches(names, pushed, batch_size, n_rows):
            frame = pl.DataFrame(batch)
            yield frame if predicate is None else frame.filter(predicate)

    return register_io_source(read, schema=empty.schema, explain_name="WEIR")


def as_arrow(predicate: pl.Expr, scan: Scan) -> pc.Expression | None:
    """An expression that passes every row that `predicate` does, perhaps more; None if there is
    none."""
    stored = scan.stored
    alike = {field.name for field in stored if _is_compared_alike(field.type)}
    never_null = {field.name for field in stored if not field.nullable}

    def is_alike(part: pl.Expr) -> bool:
        # L-3: polars, Lance and pyarrow answer differently whether null is in a list.
        same = alike & never_null if ".is_in(" in str(part) else alike
        named = part.meta.root_names()
        return bool(named) and same.issuperset(named)  # pyarrow refuses a condition that is null

    parts = [part for part in _parts(predicate) if is_alike(part)]
    if not parts:
        return None
    asked = _Asked(pa.schema([field for field in stored if field.name in alike]))
    dataset: Any = asked
    with suppress(_ToldError, pl.exceptions.PolarsError):
        pl.scan_pyarrow_dataset(dataset).filter(*parts).collect()
    return asked.filter


def _parts(predicate: pl.Expr) -> list[pl.Expr]:
    """The conditions of which every row must pass all."""
    parts = predicate.meta.pop()
    if len(parts) == 2 and (parts[1] & parts[0]).meta.eq(predicate):
        return [*_parts(parts[1]), *_parts(parts[0])]
    return [predicate]


def _is_compared_alike(dtype: pa.DataType) -> bool:
    kinds = pa.types
    is_text = kinds.is_string(dtype) or kinds.is_large_string(dtype)
    is_number = kinds.is_signed_integer(dtype) or kinds.is_boolean(dtype)
    is_time = kinds.is_date32(dtype) or dtype == pa.timestamp("us", "UTC")
    return bool(is_text or is_number or is_time)


class _ToldError(Exception):
    """Ends a query whose filter is known: users' functions in it are not called without rows."""


class _Asked:
    """A dataset that remembers the filter that it was asked for, and has nothing else."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.filter: pc.Expression | None = None

    def to_batches(
        self, *, filter: pc.Expression | None = None, **_: object
    ) -> Iterator[pa.RecordBatch]:
        self.filter = filter
        raise _ToldError
