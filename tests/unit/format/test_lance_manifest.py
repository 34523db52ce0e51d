"""Key index tables and refusals; interop checks how Lance reads them."""

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import CorruptEntry, InvalidInput
from weir.format.lance_manifest import pk_index_tables, rewrite_sstable_manifest


@given(st.lists(st.integers(-5, 5), max_size=50))
def test_key_index_lists_every_row_sorted_by_value_then_id(values):
    data, lookup = pk_index_tables(pa.array(values, pa.int64()))
    rows = list(zip(data["values"].to_pylist(), data["ids"].to_pylist(), strict=True))
    assert rows == sorted((v, i) for i, v in enumerate(values))
    assert lookup.num_rows == (1 if values else 0)


def test_key_index_has_one_page_per_8192_rows():
    values = np.random.default_rng(1).permutation(20_000)
    data, lookup = pk_index_tables(pa.chunked_array([values[:5], values[5:]]))
    assert data["values"].to_pylist() == list(range(20_000))
    assert lookup.to_pydict() == {
        "min": [0, 8192, 16384],
        "max": [8191, 16383, 19999],
        "null_count": [0, 0, 0],
        "page_idx": [0, 1, 2],
    }
    assert lookup.schema.metadata == {b"batch_size": b"8192", b"range_partitioned": b"false"}


def test_key_index_refuses_null_keys():
    with pytest.raises(InvalidInput, match="null"):
        pk_index_tables(pa.array([1, None]))


@pytest.mark.parametrize("raw", [b"", b"LANC", b"x" * 40 + b"LANC", b"\xff" * 12 + b"\0\0\2\0LANC"])
def test_a_damaged_manifest_is_not_rewritten(raw):
    with pytest.raises(CorruptEntry):
        rewrite_sstable_manifest(raw, field_ids={}, path="x")


def _manifest(body):
    return struct.pack("<I", len(body)) + body + struct.pack("<QHH", 0, 0, 2) + b"LANC"


TWO_FIELDS = bytes.fromhex("0a021800 0a021801")


def test_colliding_ids_are_refused():
    with pytest.raises(InvalidInput, match="distinct"):
        rewrite_sstable_manifest(_manifest(TWO_FIELDS), field_ids={0: 1})
    with pytest.raises(InvalidInput, match="distinct"):
        rewrite_sstable_manifest(_manifest(TWO_FIELDS), field_ids={0: -1})


def test_a_swap_of_ids_is_no_collision():
    swapped = rewrite_sstable_manifest(_manifest(TWO_FIELDS), field_ids={0: 1, 1: 0})
    again = rewrite_sstable_manifest(swapped, field_ids={0: 1, 1: 0})
    assert again == rewrite_sstable_manifest(_manifest(TWO_FIELDS), field_ids={})
    assert swapped != again
