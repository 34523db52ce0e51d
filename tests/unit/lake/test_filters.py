"""Filters over rows in memory."""

import pyarrow as pa
import pytest

from weir.errors import (
    InvalidInput,
)
from weir.lake.filters import filter_rows


def test_filters_over_rows_in_memory() -> None:
    rows = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    kept = pa.Table.from_batches(filter_rows(rows, "a > 1 AND b LIKE 'y%'", ["b"]))
    assert kept.to_pylist() == [{"b": "y"}]
    with pytest.raises(InvalidInput):
        list(filter_rows(rows, "a >", None))
