"""weir's JSON records."""

import contextlib
import subprocess
import sys
from collections.abc import Mapping
from typing import ClassVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import CorruptEntry, InvalidInput
from weir.records import codec
from weir.records.codec import Record

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


class Thing(Record, frozen=True, tag_field="format", tag=2):
    """A record with a value of every kind."""

    KIND: ClassVar[str] = "thing record"
    name: str
    size: float | None = None
    counts: Mapping[UUID, int] = {}
    pairs: tuple[tuple[str, bytes], ...] = ()


THINGS = st.builds(
    Thing,
    name=TEXT,
    size=st.none() | NUMBERS,
    counts=st.dictionaries(st.uuids(), st.integers(0, 2**64 - 1), max_size=3),
    pairs=st.lists(st.tuples(TEXT, st.binary(max_size=9)), max_size=3).map(tuple),
)


@given(THINGS)
def test_records_round_trip(thing):
    assert codec.loads(codec.dumps(thing), Thing, "p") == thing


def test_f9_equal_records_are_equal_bytes():
    one, other = UUID(int=1), UUID(int=2)
    data = codec.dumps(Thing("ü", counts={one: 1, other: 2}))
    assert data == codec.dumps(Thing("ü", counts={other: 2, one: 1}))
    assert data.decode() == f'{{"counts":{{"{one}":1,"{other}":2}},"format":2,"name":"ü"}}'


def test_the_number_of_a_record_is_in_its_name_alone():
    assert codec.dumps(Thing("a", seq=7, written=3.0)) == codec.dumps(Thing("a"))


@pytest.mark.parametrize(
    "thing", [Thing("a", float("nan")), Thing("a", float("inf")), Thing("\ud800")]
)
def test_what_json_cannot_hold_is_refused(thing):
    with pytest.raises(InvalidInput):
        codec.dumps(thing)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"{}",
        b"\xff",
        b'{"name":1}',
        b'{"name":"a","size":NaN}',
        b'{"name":"a","size":true}',
        b'{"name":"a","counts":{"x":1}}',
        b'{"name":"a","counts":' + b"[" * 100_000,
        b'{"name":"a","later":' + b"[" * 100_000,
        b'{"name":"a"} x',
    ],
)
def test_damage_is_corrupt_entry_naming_the_object_and_its_kind(data):
    with pytest.raises(CorruptEntry, match=r"_weir/table/1 is not a thing record.*copy of the"):
        codec.loads(data, Thing, "_weir/table/1")


@pytest.mark.parametrize("data", [b'{"name":"a","later":1}', b'{"name":"a","format":3}'])
def test_what_a_later_release_wrote_is_refused_not_ignored(data):
    with pytest.raises(CorruptEntry, match="upgrade weir"):
        codec.loads(data, Thing, "p")


def test_a_record_beyond_the_bound_is_refused_unread(monkeypatch):
    monkeypatch.setattr(codec, "RECORD_BYTES_MAX", 10)
    with pytest.raises(CorruptEntry, match="more than"):
        codec.loads(b'{"name":"0123456789"}', Thing, "p")


@given(st.binary(max_size=100))
def test_random_bytes_never_raise_anything_else(data):
    with contextlib.suppress(CorruptEntry):
        codec.loads(data, Thing, "p")


def test_a_kind_of_record_may_be_read_for_the_first_time_by_several_threads() -> None:
    """msgspec died (a segmentation fault), in a stream's commit beside others."""
    code = """
import sys, threading, msgspec
from weir.records.codec import Record, loads
sys.setswitchinterval(1e-6)
def kind(number):
    part = msgspec.defstruct(f"Part{number}", [("a", int), ("b", list[int])])
    fields = [("x", part), ("y", dict[str, part]), ("z", list[part])]
    return msgspec.defstruct(f"Kind{number}", fields, bases=(Record,), kw_only=True, frozen=True)
kinds = [kind(number) for number in range(300)]
data = b'{"x":{"a":1,"b":[1]},"y":{"k":{"a":1,"b":[]}},"z":[{"a":2,"b":[]}]}'
together = threading.Barrier(8)
def run():
    for each in kinds:
        together.wait()
        loads(data, each, "path")
threads = [threading.Thread(target=run) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
