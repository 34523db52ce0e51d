"""Filters over rows in memory."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from weir.errors import (
    InvalidInput,
)
from weir.lake.filters import filter_columns, filter_rows


def test_filters_over_rows_in_memory() -> None:
    rows = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    kept = pa.Table.from_batches(filter_rows(rows, "a > 1 AND b LIKE 'y%'", ["b"]))
    assert kept.to_pylist() == [{"b": "y"}]
    with pytest.raises(InvalidInput):
        list(filter_rows(rows, "a >", None))


def test_the_columns_a_filter_reads_are_whole_words_of_it() -> None:
    names = ["c", "Current", "n", "rev", "odd name", "ä"]
    always = ["odd name", "ä"]  # too odd to be found in SQL
    for text, found in {
        "incoming.n > current.n": ["Current", "n"],
        "C = 1 OR `rev`=2": ["c", "rev"],
        '"c"=1e5': ["c"],
        "reverse(x) = 'n'": ["n"],
        "abs(-c)>0": ["c"],
    }.items():
        assert filter_columns(text, names) == [*found, *always]
    assert filter_columns(pc.field("c") + pc.field("rev") > 1, names) == ["c", "rev", *always]
    assert filter_columns(pc.field(("c", "x")) > 1, names) == ["c", *always]
    assert filter_columns(None, names) == []
