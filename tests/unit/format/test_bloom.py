"""The Bloom filter: vectors of the format sheet, no false negatives, the trap."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import CorruptEntry
from weir.format.bloom import BLOOM_BYTES, BloomFilter, key_hashes, trusted
from weir.format.columns import var_values
from weir.format.siphash import siphash13

VECTORS = [
    ([pa.array([42], pa.int64())], "002a00000000000000", 0x93C45F51B62F6D54, 591),
    ([pa.array([0], pa.int64())], "000000000000000000", 0x66B1B52B4F6EF1C4, 410),
    ([pa.array([-1], pa.int64())], "00ffffffffffffffff", 0xFDE5E622403F1D9F, 1015),
    ([pa.array([42], pa.int32())], "002a000000", 0x9ADC48355B551F40, 619),
    ([pa.array(["abc"])], "00616263ff", 0xFDE4B1F7E5502580, 1015),
    ([pa.array([""])], "00ff", 0xDA5735E7144B8D9F, 873),
    ([pa.array([b"\x00\xffab"])], "00 0400000000000000 00ff6162", 0xC2C8D98AC15A239F, 779),
    (
        [pa.array([42], pa.int64()), pa.array(["abc"])],
        "002a00000000000000 00616263ff",
        0x195305EFA3C59639,
        101,
    ),
]


def _blocks(data):
    words = np.frombuffer(data, "<u4").reshape(1024, 8)
    return {int(b): [int(w) for w in words[b]] for b in np.flatnonzero(words.any(axis=1))}


@pytest.mark.parametrize(("columns", "message", "value", "block"), VECTORS)
def test_vectors_of_the_format_sheet(columns, message, value, block):
    assert siphash13(var_values(pa.array([bytes.fromhex(message)]))).tolist() == [value]
    assert key_hashes(columns).tolist() == [value]
    filled = BloomFilter()
    filled.insert(columns)
    assert list(_blocks(filled.to_bytes())) == [block]


def test_the_bits_of_one_key_are_those_of_the_format_sheet():
    filled = BloomFilter()
    filled.insert([pa.array([42])])
    want = [0x4, 0x100, 0x2000000, 0x4000, 0x8000000, 0x200, 0x10000, 0x100]
    assert _blocks(filled.to_bytes()) == {591: want}


def _siphash13(data: bytes) -> int:
    mask = 2**64 - 1

    def rotate(x, b):
        return (x << b | x >> (64 - b)) & mask

    v0, v1, v2, v3 = (
        0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573
    )  # fmt: skip

    def rounds(n):
        nonlocal v0, v1, v2, v3
        for _ in range(n):
            v0 = (v0 + v1) & mask
            v1 = rotate(v1, 13) ^ v0
            v0 = rotate(v0, 32)
            v2 = (v2 + v3) & mask
            v3 = rotate(v3, 16) ^ v2
            v0 = (v0 + v3) & mask
            v3 = rotate(v3, 21) ^ v0
            v2 = (v2 + v1) & mask
            v1 = rotate(v1, 17) ^ v2
            v2 = rotate(v2, 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for i in range(0, len(padded), 8):
        word = int.from_bytes(padded[i : i + 8], "little")
        v3 ^= word
        rounds(1)
        v0 ^= word
    v2 ^= 0xFF
    rounds(3)
    return v0 ^ v1 ^ v2 ^ v3


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(0, 3))
def test_siphash_equals_the_reference_row_by_row(values, start):
    rows = var_values(pa.array(values, pa.binary()).slice(start))
    assert siphash13(rows).tolist() == [_siphash13(v) for v in values[start:]]


def test_siphash_of_a_few_very_long_rows_among_short_ones():
    values = [b"x" * 5000, b"y" * 3001, b"", b"z", *[b"abcdefghij"] * 10]
    assert siphash13(var_values(pa.array(values))).tolist() == [_siphash13(v) for v in values]


KEYS = st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text(max_size=9)), max_size=30)


@given(KEYS, KEYS)
def test_a_key_that_was_inserted_is_always_found(first, second):
    filled = BloomFilter()
    for keys in (first, second):
        filled.insert(
            [
                pa.array([k[0] for k in keys], pa.int64()),
                pa.array([k[1] for k in keys], pa.string()),
            ]
        )
    stored = BloomFilter.from_bytes(filled.to_bytes())
    keys = first + second
    columns = [
        pa.array([k[0] for k in keys], pa.int64()),
        pa.array([k[1] for k in keys], pa.string()),
    ]
    assert stored.might_contain(columns).all()
    assert stored.to_bytes() == filled.to_bytes()


def test_few_other_keys_are_found():
    filled = BloomFilter()
    filled.insert([pa.array(np.arange(8192))])
    others = filled.might_contain([pa.array(np.arange(1_000_000, 1_100_000))])
    assert others.mean() < 0.005
    assert not BloomFilter().might_contain([pa.array([1, 2])]).any()


def test_inserting_in_parts_is_inserting_at_once():
    whole, parts = BloomFilter(), BloomFilter()
    whole.insert([pa.array(range(1000))])
    for start in range(0, 1000, 100):
        parts.insert([pa.array(range(1000)).slice(start, 100)])
    assert whole.to_bytes() == parts.to_bytes()


HASHED = [pa.int32(), pa.int64(), pa.string(), pa.binary()]
NOT_HASHED = [
    *(pa.int8(), pa.int16(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.bool_(), pa.large_string(), pa.large_binary()),
]


def test_which_key_types_a_filter_says_anything_about():
    assert all(trusted([dtype]) for dtype in HASHED)
    assert not any(trusted([dtype]) for dtype in NOT_HASHED)
    assert trusted([pa.int64(), pa.string()])
    assert not trusted([pa.int64(), pa.large_string()])


@pytest.mark.parametrize("dtype", NOT_HASHED, ids=str)
def test_the_trap_other_types_share_one_place_and_are_always_perhaps(dtype):
    values = {pa.bool_(): [True, False]}.get(dtype, [1, 2])
    if dtype in (pa.large_string(), pa.large_binary()):
        values = ["a", "b"]
    column = pa.array(values, dtype)
    filled = BloomFilter()
    filled.insert([column])
    assert list(_blocks(filled.to_bytes())) == [418]
    assert BloomFilter().might_contain([column]).all(), "a native filter must not hide such a key"


def test_a_filter_of_another_size_is_refused():
    for size in (0, BLOOM_BYTES - 1, BLOOM_BYTES + 1):
        with pytest.raises(CorruptEntry, match=r"x/bloom_filter\.bin"):
            BloomFilter.from_bytes(bytes(size), path="x/bloom_filter.bin")


def test_an_empty_insert_changes_nothing():
    filled = BloomFilter()
    filled.insert([pa.array([], pa.int64())])
    assert filled.to_bytes() == bytes(BLOOM_BYTES)
    assert filled.might_contain([pa.array([], pa.string())]).tolist() == []


def test_nulls_hash_their_flag_alone():
    assert key_hashes([pa.array([None, 1], pa.int64())]).tolist()[0] == _siphash13(b"\1")
    assert key_hashes([pa.array([None, "x"])]).tolist()[0] == _siphash13(b"\1")
    assert key_hashes([pa.array([None, b"x"])]).tolist()[0] == _siphash13(b"\1")
