"""Composite keys: vectors of the format sheet, and order."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import InvalidInput
from weir.format.keys import check_key_type, encode_composite_keys, pk_values

SEVEN = pa.array([7], pa.int64())
SEVEN_HEX = "01 8000000000000007"


def one(value, dtype):
    return pa.array([value], dtype)


@pytest.mark.parametrize(
    ("columns", "hex_bytes"),
    [
        ([one(42, pa.int64()), one("abc", pa.string())], "01 800000000000002a 01 616263 0000"),
        *(
            ([one(-3, dtype), SEVEN], f"01 7ffffffffffffffd {SEVEN_HEX}")
            for dtype in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
        ),
        *(
            ([one(200, dtype), SEVEN], f"01 00000000000000c8 {SEVEN_HEX}")
            for dtype in (pa.uint8(), pa.uint16(), pa.uint32())
        ),
        ([one(2**63 + 1, pa.uint64()), SEVEN], f"01 8000000000000001 {SEVEN_HEX}"),
        ([one(True, pa.bool_()), SEVEN], f"01 01 {SEVEN_HEX}"),
        ([one("a\0b", pa.string()), SEVEN], f"01 6100ff62 0000 {SEVEN_HEX}"),
        ([one("a\0b", pa.large_string()), SEVEN], f"01 6100ff62 0000 {SEVEN_HEX}"),
        ([one(b"\x00\xff\x01", pa.binary()), SEVEN], f"01 00ffff01 0000 {SEVEN_HEX}"),
        ([one(b"\x00\xff\x01", pa.large_binary()), SEVEN], f"01 00ffff01 0000 {SEVEN_HEX}"),
        (
            [one("k", pa.string()), one(False, pa.bool_()), one(2**32 - 1, pa.uint32())],
            "01 6b 0000 01 00 01 00000000ffffffff",
        ),
        ([one("k", pa.string()), SEVEN], f"01 6b 0000 {SEVEN_HEX}"),
        ([one(None, pa.string()), SEVEN], f"00 {SEVEN_HEX}"),
        ([one(None, pa.int64()), one(None, pa.bool_()), SEVEN], f"00 00 {SEVEN_HEX}"),
    ],
)
def test_vectors_of_the_format_sheet(columns, hex_bytes):
    assert encode_composite_keys(columns).to_pylist() == [bytes.fromhex(hex_bytes)]


def test_pk_values_follows_the_order_of_the_key_not_of_the_columns():
    batch = pa.record_batch({"a": SEVEN, "b": ["k"]})
    assert pk_values(batch, ["b", "a"])[0].as_py().hex() == "016b0000018000000000000007"
    assert pk_values(batch, ["b"]).equals(pa.array(["k"]))
    assert pk_values(pa.Table.from_batches([batch, batch]), ["a"]).equals(pa.array([7, 7]))


def _reference(row):
    out = b""
    for value in row:
        if value is None:
            out += b"\0"
        elif isinstance(value, bool):
            out += b"\1" + bytes([value])
        elif isinstance(value, int):
            out += b"\1" + (value + 2**63).to_bytes(8, "big")
        else:
            raw = value.encode() if isinstance(value, str) else value
            out += b"\1" + raw.replace(b"\0", b"\0\xff") + b"\0\0"
    return out


TEXT = st.text(st.sampled_from("\0\1ab\xff"), max_size=6)
RAW = st.binary(max_size=6) | st.lists(st.sampled_from([0, 1, 255]), max_size=6).map(bytes)
I64 = st.integers(-(2**63), 2**63 - 1)
ROW = st.tuples(st.none() | I64, st.none() | TEXT, st.none() | st.booleans(), st.none() | RAW)
TYPES = [pa.int64(), pa.string(), pa.bool_(), pa.binary()]


def _columns(rows, types=TYPES):
    return [pa.array([row[i] for row in rows], dtype) for i, dtype in enumerate(types)]


@given(st.lists(ROW, max_size=20), st.integers(0, 3))
def test_keys_equal_the_reference_row_by_row(rows, start):
    columns = [column.slice(start) for column in _columns(rows)]
    assert encode_composite_keys(columns).to_pylist() == [_reference(r) for r in rows[start:]]
    chunked = [pa.chunked_array([c, c]) for c in columns]
    assert encode_composite_keys(chunked).to_pylist() == [_reference(r) for r in rows[start:]] * 2


@given(st.lists(st.tuples(I64, RAW, I64), min_size=2, max_size=20))
def test_encoded_keys_sort_as_the_tuples_do(rows):
    encoded = encode_composite_keys(_columns(rows, [pa.int64(), pa.binary(), pa.int64()]))
    pairs = sorted(zip(encoded.to_pylist(), rows, strict=True))
    assert [row for _, row in pairs] == sorted(rows)
    assert len(set(encoded.to_pylist())) == len(set(rows))


@pytest.mark.parametrize(
    "dtype",
    [
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    ],
    ids=str,
)
def test_key_types_that_pylance_takes(dtype):
    check_key_type(pa.field("k", dtype))
    assert encode_composite_keys([pa.array([], dtype), pa.array([], dtype)]).to_pylist() == []


@pytest.mark.parametrize(
    "dtype",
    [pa.binary(4), pa.date32(), pa.date64(), pa.timestamp("us"), pa.float64(), pa.decimal128(5, 1)],
    ids=str,
)
def test_key_types_that_pylance_refuses(dtype):
    with pytest.raises(InvalidInput, match=r"'k' is .*; Lance supports only"):
        check_key_type(pa.field("k", dtype))
    with pytest.raises(InvalidInput):
        encode_composite_keys([pa.nulls(1, dtype), SEVEN])


def test_a_key_without_columns_is_refused():
    with pytest.raises(InvalidInput):
        encode_composite_keys([])
