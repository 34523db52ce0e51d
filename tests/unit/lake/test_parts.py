"""The small parts: cache, literals, filters, key indexes, errors."""

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance.commit import CommitConflictError

from weir.env import SYSTEM
from weir.errors import (
    CommitConflict,
    InvalidInput,
    MissingEntry,
    NotAWeirTable,
    StoreDenied,
    StoreError,
)
from weir.keys.index import KeyIndex
from weir.keys.keyset import KeySet
from weir.keys.numbers import NumberSet
from weir.lake.cache import ByteCache
from weir.lake.filters import filter_rows
from weir.lake.lance_errors import lance_errors, translated
from weir.lake.literals import is_one_of, literal
from weir.lake.live_rows import has_dense_deletes, scan_past_deletes


def test_the_cache_drops_the_least_recently_used_beyond_its_bound() -> None:
    cache: ByteCache[str] = ByteCache(10, SYSTEM)
    cache.put("a", "A", 4)
    cache.put("b", "B", 4)
    assert cache.get("a") == "A"
    cache.put("c", "C", 4)
    assert (cache.get("b"), cache.get("a"), cache.get("c")) == (None, "A", "C")
    assert cache.bytes == 8
    assert cache.put("huge", "H", 11) == "H"
    assert cache.get("huge") is None
    cache.put("a", "A2", 2)
    assert cache.bytes == 6
    cache.drop("a")
    cache.drop("a")
    assert cache.bytes == 4
    assert cache.get_or_make("d", lambda: "D", lambda _: 1) == "D"
    assert cache.get_or_make("d", lambda: "other", lambda _: 1) == "D"


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (7, "7"), (-7, "-7"), ("it's", "'it''s'"), (b"\x00\xff", "X'00ff'")],
)
def test_literals(value: object, text: str) -> None:
    assert literal(value) == text


def test_what_has_no_literal_is_refused() -> None:
    with pytest.raises(InvalidInput, match="float"):
        literal(1.5)
    with pytest.raises(InvalidInput, match="backtick"):
        is_one_of("a`b", pa.array([1]))
    with pytest.raises(InvalidInput, match="no value"):
        is_one_of("a", pa.array([], pa.int64()))


def test_filters_over_rows_in_memory() -> None:
    rows = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    kept = pa.Table.from_batches(filter_rows(rows, "a > 1 AND b LIKE 'y%'", ["b"]))
    assert kept.to_pylist() == [{"b": "y"}]
    with pytest.raises(InvalidInput):
        list(filter_rows(rows, "a >", None))


NUMBERS = st.lists(st.integers(-50, 50) | st.integers(-(2**63), 2**63 - 1))


@given(NUMBERS, NUMBERS)
def test_key_index_and_set_equal_python(here: list[int], asked: list[int]) -> None:
    for dtype, cast in ((pa.int64(), int), (pa.utf8(), str)):
        keys = pa.array([cast(n) for n in here], dtype)
        wanted = pa.array([cast(n) for n in asked], dtype)
        found = KeyIndex(keys).find(wanted)
        assert found.tolist() == [i for i, n in enumerate(here) if n in set(asked)]
        expected = [i for i, n in enumerate(asked) if n in set(here)]
        assert KeySet.of([keys], dtype).find(wanted).tolist() == expected


FAR = st.integers(-(2**63), 2**63 - 1)
NEAR = st.builds(lambda at, by: max(-(2**63), min(2**63 - 1, at + by)), FAR, st.integers(-9, 9))


@given(
    st.lists(st.lists(st.integers(-300, 300), max_size=20) | st.lists(FAR | NEAR, max_size=3)),
    st.lists(st.integers(-400, 400) | FAR),
)
def test_a_set_of_numbers_equals_a_set(parts: list[list[int]], asked: list[int]) -> None:
    """Close together, far apart, and what becomes far apart when more numbers come."""
    numbers, model = NumberSet(), set[int]()
    asked += [n + by for part in parts for n in part for by in (-1, 0, 1) if abs(n + by) < 2**63]
    asked += [-(2**63), 2**63 - 1]
    for part in parts:
        numbers.add(np.array(part, np.int64))
        model.update(part)
        found = numbers.find(np.array(asked, np.int64)).tolist()
        assert found == [i for i, n in enumerate(asked) if n in model]


def test_a_set_of_numbers_makes_no_room_for_what_it_is_told_to_expect() -> None:
    numbers = NumberSet(1 << 40)  # a level that does not know its rows says so
    numbers.add(np.array([5, 1 << 60], np.int64))
    assert numbers.find(np.array([4, 5, 1 << 60], np.int64)).tolist() == [1, 2]


@pytest.mark.parametrize(("gone", "dense"), [("id % 3 > 0", True), ("id = 7", False), ("", False)])
def test_live_rows_are_the_same_past_their_deletes(tmp_path: Path, gone: str, dense: bool) -> None:
    rows = pa.table({"id": range(100), "v": [f"v{i}" for i in range(100)]})
    dataset = lance.write_dataset(rows, str(tmp_path / "t"), max_rows_per_file=40)
    if gone:
        dataset.delete(gone)
    assert has_dense_deletes(dataset) is dense
    middle = [dataset.get_fragment(1)]
    for fragments in (None, middle):
        plain = dataset.scanner(fragments=fragments, with_row_address=True).to_table()
        past = scan_past_deletes(
            dataset, None, fragments=fragments, batch_size=16, with_row_address=True
        )
        assert pa.Table.from_batches(past).to_pylist() == plain.to_pylist()
    parts = [
        batch.column("id").to_pylist()
        for within in ((0, 33), (33, 33), (66, 1 << 40))
        for batch in scan_past_deletes(dataset, ["id"], within=within, batch_size=16)
    ]
    assert [n for part in parts for n in part] == dataset.to_table()["id"].to_pylist()


def test_key_index_states_its_size() -> None:
    index = KeyIndex(pa.array(np.random.default_rng(0).permutation(1000)))
    assert len(index) == 1000
    assert 16_000 <= index.nbytes <= 17_000


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CommitConflictError("Retryable commit conflict for version 4"), CommitConflict),
        (OSError("Invalid user input: Stale SSTable compaction for shard x"), CommitConflict),
        (OSError("Too many concurrent writers. Attempted 0 retries."), CommitConflict),
        (ValueError("Dataset at path x was not found: Not found: x/_versions"), NotAWeirTable),
        (OSError("Object at location data/x.lance not found"), MissingEntry),
        (OSError("Generic S3 error: Access Denied"), StoreDenied),
        (OSError("connection reset"), StoreError),
        (OSError("Invalid user input: no such column"), InvalidInput),
        (ValueError("whatever"), InvalidInput),
    ],
)
def test_errors_of_pylance_are_told_apart(error: Exception, kind: type[Exception]) -> None:
    assert type(translated(error, "doing it")) is kind
    with pytest.raises(kind, match="doing it"), lance_errors("doing it"):
        raise error


def test_a_message_does_not_tell_where_in_lance_it_was_born() -> None:
    born = "Schema error: No field named nope., /home/x/rust/lance/src/dataset/scanner.rs:839:33"
    told = str(translated(ValueError(f"Invalid user input: {born}"), "scanning t"))
    assert told == "scanning t: Invalid user input: Schema error: No field named nope."


def test_our_own_errors_pass_unchanged() -> None:
    with pytest.raises(MissingEntry, match=r"^mine$"), lance_errors("doing it"):
        raise MissingEntry("mine")
