"""weir's JSON records."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import CorruptEntry, InvalidInput
from weir.records import codec

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=10,
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(KEYS, JSON))
def test_records_round_trip(record):
    assert codec.loads(codec.dumps(record), "p") == record


def test_f9_equal_records_are_equal_bytes():
    assert codec.dumps({"b": 1, "a": "ü"}) == codec.dumps({"a": "ü", "b": 1})
    assert codec.dumps({"b": 1, "a": "ü"}) == '{"a":"ü","b":1}'.encode()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"x", {1, 2}, "\ud800"])
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises(InvalidInput):
        codec.dumps({"v": value})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1,"a":2}',
        b"\xff",
        b'{"a":' + b"[" * 100_000,
        b'{"a":1} x',
        b'{"a":' + b"1" * 5000 + b"}",
    ],
)
def test_damage_is_corrupt_entry_naming_the_object(data):
    with pytest.raises(CorruptEntry, match="_weir/table/1"):
        codec.loads(data, "_weir/table/1")


def test_a_record_beyond_the_bound_is_refused_unread(monkeypatch):
    monkeypatch.setattr(codec, "RECORD_BYTES_MAX", 10)
    with pytest.raises(CorruptEntry, match="more than"):
        codec.loads(b'{"a":"0123456789"}', "p")


@given(st.binary(max_size=100))
def test_random_bytes_never_raise_anything_else(data):
    with contextlib.suppress(CorruptEntry):
        codec.loads(data, "p")
