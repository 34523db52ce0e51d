"""The bucket hash: vectors of the format sheet, and equality with a row-by-row reference."""

import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import InvalidInput
from weir.format.bucket import bucket, bucket_finder

NAN = float("nan")
MOST = 2**31 - 1


def _most(hashed: int) -> int:
    """The bucket of that hash among as many as there can be."""
    return (hashed & MOST) % MOST


@pytest.mark.parametrize(
    ("dtype", "value", "hash_hex", "mod8", "mod1024"),
    [
        (pa.int32(), 1, "fbf1402a", 2, 42),
        (pa.int32(), 2, "40b23b7f", 7, 895),
        (pa.int32(), 3, "32850971", 1, 369),
        (pa.int32(), -1, "76293b50", 0, 848),
        (pa.int32(), 2147483647, "9d6eb342", 2, 834),
        (pa.int32(), None, "00000000", 0, 0),
        (pa.int8(), -1, "76293b50", 0, 848),
        (pa.int16(), -1, "76293b50", 0, 848),
        (pa.int8(), 5, "0e1bbb7e", 6, 894),
        (pa.int16(), 5, "0e1bbb7e", 6, 894),
        (pa.uint8(), 5, "0e1bbb7e", 6, 894),
        (pa.uint16(), 5, "0e1bbb7e", 6, 894),
        (pa.uint32(), 4294967295, "76293b50", 0, 848),
        (pa.int64(), 1, "53075d44", 4, 324),
        (pa.int64(), 2, "c61fa2f4", 4, 756),
        (pa.int64(), 3, "a33b57b3", 3, 947),
        (pa.int64(), -1, "627564e8", 0, 232),
        (pa.int64(), 42, "6f8f913e", 6, 318),
        (pa.int64(), 2**40, "a9f62f22", 2, 802),
        (pa.uint64(), 2**64 - 1, "627564e8", 0, 232),
        (pa.bool_(), True, "fbf1402a", 2, 42),
        (pa.bool_(), False, "2362f9de", 6, 478),
        (pa.float32(), 1.25, "61b31248", 0, 584),
        (pa.float32(), 0.0, "2362f9de", 6, 478),
        (pa.float32(), -0.0, "2362f9de", 6, 478),
        (pa.float32(), NAN, "72e0cd53", 3, 339),
        (pa.float64(), 1.25, "312bdf78", 0, 888),
        (pa.float64(), 0.0, "63852afc", 4, 764),
        (pa.float64(), -0.0, "63852afc", 4, 764),
        (pa.float64(), NAN, "5529940d", 5, 13),
        (pa.float64(), 3.14, "7a1a18e3", 3, 227),
        (pa.date32(), 1, "fbf1402a", 2, 42),
        (pa.date32(), 18262, "683a657f", 7, 383),
        (pa.timestamp("us"), 1_000_000, "6382f726", 6, 806),
        (pa.time32("s"), 7, "501a90f1", 1, 241),
        (pa.time64("us"), 7_000_000, "9d5babe8", 0, 1000),
        (pa.string(), "", "00000000", 0, 0),
        (pa.string(), "a", "2b038801", 1, 1),
        (pa.string(), "b", "ce94ae25", 5, 549),
        (pa.string(), "abcd", "43ed676a", 2, 874),
        (pa.string(), "abcde", "94015d5c", 4, 348),
        (pa.string(), "hello world", "aff10c58", 0, 88),
        (pa.string(), "é", "f6d63f31", 1, 817),
        (pa.string(), "日本語", "cdf88741", 1, 833),
        (pa.large_string(), "hello world", "aff10c58", 0, 88),
        (pa.string_view(), "hello world", "aff10c58", 0, 88),
        (pa.string(), None, "00000000", 0, 0),
    ],
)
def test_vectors_of_the_format_sheet(dtype, value, hash_hex, mod8, mod1024):
    array = pa.array([value], dtype)
    assert bucket(array, MOST).tolist() == [_most(int(hash_hex, 16))]
    assert bucket(array, 8).tolist() == [mod8]
    assert bucket(array, 1024).tolist() == [mod1024]


def test_all_nans_are_one_value():
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001], np.uint64)
    assert len(set(bucket(pa.array(bits.view(np.float64)), MOST).tolist())) == 1


def _reference(data: bytes) -> int:
    def mix(h, k):
        k = k * 0xCC9E2D51 & 0xFFFFFFFF
        k = (k << 15 | k >> 17) & 0xFFFFFFFF
        h ^= k * 0x1B873593 & 0xFFFFFFFF
        h = (h << 13 | h >> 19) & 0xFFFFFFFF
        return (h * 5 + 0xE6546B64) & 0xFFFFFFFF

    h = 0
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        h = mix(h, int.from_bytes(data[i : i + 4], "little"))
    for byte in data[whole:]:
        h = mix(h, byte if byte < 128 else byte | 0xFFFFFF00)
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return _most(h ^ h >> 16)


@given(st.lists(st.none() | st.text(max_size=40), max_size=30), st.integers(0, 5))
def test_texts_equal_the_reference_row_by_row(values, start):
    array = pa.array(values, pa.string()).slice(start)
    want = [0 if v is None else _reference(v.encode()) for v in values[start:]]
    assert bucket(array, MOST).tolist() == want
    assert bucket(array.cast(pa.large_string()), MOST).tolist() == want
    assert bucket(pa.chunked_array([array, array]), MOST).tolist() == want * 2
    assert bucket(array.dictionary_encode(), MOST).tolist() == want


def test_a_few_very_long_texts_among_short_ones():
    values = ["x" * 5000, "y" * 4999, "z", "", "w" * 3, *["abcdefg"] * 20]
    assert bucket(pa.array(values), MOST).tolist() == [_reference(v.encode()) for v in values]


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=30), st.integers(0, 5))
def test_integers_equal_the_reference_row_by_row(values, start):
    array = pa.array(values, pa.int64()).slice(start)
    want = [
        0 if v is None else _reference(v.to_bytes(8, "little", signed=True)) for v in values[start:]
    ]
    assert bucket(array, MOST).tolist() == want


@pytest.mark.parametrize(
    "array",
    [
        pa.array([b"x"]),
        pa.array([b"abc"], pa.binary(3)),
        pa.array([1], pa.date64()),
        pa.array([1.5], pa.float16()),
        pa.array([1], pa.decimal128(5, 1)),
        pa.array([1], pa.duration("s")),
        pa.array([[1]]),
        pa.nulls(1),
    ],
    ids=lambda a: str(a.type),
)
def test_types_without_a_bucket_hash_are_refused(array):
    with pytest.raises(InvalidInput, match="cannot be bucketed"):
        bucket(array, 8)


@pytest.mark.parametrize("count", [0, -1, 2**31])
def test_a_bucket_count_out_of_range_is_refused(count):
    with pytest.raises(InvalidInput, match="num_buckets"):
        bucket(pa.array([1]), count)


def test_empty_columns():
    assert bucket(pa.array([], pa.int64()), 8).tolist() == []
    assert bucket(pa.array([], pa.string()), 8).tolist() == []
    assert bucket(pa.chunked_array([], pa.string()), 8).tolist() == []


def test_the_input_is_not_changed():
    array = pa.array([0.0, -0.0, 1.5])
    bucket(array, 8)
    assert str(array[1].as_py()) == "-0.0"


def test_a_million_integers_are_hashed_without_a_python_step_each():
    """Counted, not timed: the number of calls does not grow with the rows (benchmarks time it)."""

    def calls(rows: int) -> int:
        array = pa.array(np.arange(rows, dtype=np.int64) * 2_654_435_761)
        counted = 0

        def count(frame, event, arg):
            nonlocal counted
            counted += 1

        sys.setprofile(count)
        try:
            bucket(array, 64)
        finally:
            sys.setprofile(None)
        return counted

    calls(10)
    assert calls(1_000_000) < calls(1000) + 1000


INTEGERS = [
    *(make() for make in (pa.int8, pa.int16, pa.int32, pa.int64)),
    *(make() for make in (pa.uint8, pa.uint16, pa.uint32, pa.uint64)),
]


@pytest.mark.parametrize("dtype", [*INTEGERS, pa.string(), pa.large_string()])
def test_the_bucket_of_one_value_is_that_of_its_column(dtype):
    values = ["", "a", "abc", "abcd", "abcde" * 9, "\x7f", "ü"]
    if pa.types.is_integer(dtype):
        low = -(2 ** (dtype.bit_width - 1)) if pa.types.is_signed_integer(dtype) else 0
        high = low + 2**dtype.bit_width - 1
        values = [low, low + 1, 0, 1, 77, high - 1, high]
        assert bucket_finder(dtype, 7)(low - 1) is bucket_finder(dtype, 7)(high + 1) is None
    for number in (1, 7, 1024):
        for value in values:
            one = bucket_finder(dtype, number)(value)
            assert one in (bucket(pa.array([value], dtype), number)[0], None)
            assert one is not None or value == "ü"
    found = bucket_finder(dtype, 7)
    assert found(True) is found(None) is found(1.0) is None
