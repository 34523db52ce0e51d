"""Deletion bitmaps, key index tables and refusals; interop checks how Lance reads them."""

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import CorruptEntry, InvalidInput
from weir.format.lance_manifest import (
    deletion_file_name,
    encode_deletion_bitmap,
    pk_index_tables,
    rewrite_sstable_manifest,
)


def test_the_bitmap_vector_of_the_format_sheet():
    want = bytes.fromhex("3a300000 01000000 0000 0000 10000000 0000")
    assert encode_deletion_bitmap([0]) == want


def _decode(raw):
    cookie, count = struct.unpack_from("<II", raw)
    assert cookie == 12346
    heads = [struct.unpack_from("<HH", raw, 8 + 4 * i) for i in range(count)]
    offsets = struct.unpack_from(f"<{count}I", raw, 8 + 4 * count)
    out = []
    end = 8 + 8 * count
    for (key, card), at in zip(heads, offsets, strict=True):
        assert at == end
        if card + 1 <= 4096:
            low = np.frombuffer(raw, "<u2", card + 1, at)
            end = at + 2 * (card + 1)
        else:
            bits = np.frombuffer(raw, np.uint8, 8192, at)
            low = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
            assert len(low) == card + 1
            end = at + 8192
        out.extend((key << 16) + int(v) for v in low)
    assert end == len(raw)
    return out


@given(st.sets(st.integers(0, 2**32 - 1)))
def test_bitmaps_hold_what_was_put_in(offsets):
    assert _decode(encode_deletion_bitmap(list(offsets))) == sorted(offsets)


@pytest.mark.parametrize("count", [4095, 4096, 4097, 65535, 65536, 65537, 200_000])
def test_bitmaps_switch_containers_at_the_right_size(count):
    offsets = np.arange(count) + 7
    assert _decode(encode_deletion_bitmap(offsets)) == offsets.tolist()
    repeated = np.concatenate([offsets, offsets])
    assert encode_deletion_bitmap(repeated) == encode_deletion_bitmap(offsets)


@pytest.mark.parametrize("offset", [-1, 2**32])
def test_an_offset_beyond_32_bits_is_refused(offset):
    with pytest.raises(InvalidInput, match="32 bits"):
        encode_deletion_bitmap([offset])


def test_the_deletion_file_has_the_native_name():
    assert deletion_file_name(77) == "_deletions/0-1-77.bin"


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


def test_a_deletion_vector_needs_the_one_fragment():
    with pytest.raises(InvalidInput, match="0 fragments"):
        rewrite_sstable_manifest(_manifest(TWO_FIELDS), field_ids={}, deletion=(1, 1))
    two = _manifest(TWO_FIELDS + bytes.fromhex("1200 12020801"))
    with pytest.raises(InvalidInput, match="2 fragments"):
        rewrite_sstable_manifest(two, field_ids={}, deletion=(1, 1))
