"""Keys held in memory never return a row of another version or another column."""

import lance
import pyarrow as pa
import pytest

from tests.unit.lake.conftest import SCHEMA, MakeLake, compact_files, table
from weir.lake.base import view
from weir.lake.pylance_lake import PylanceLake

OLD = table({key: chr(97 + key) for key in range(12)})


def get(lake: PylanceLake, *keys: int) -> list[tuple[int, str]]:
    """The rows, looked up until they are served from memory."""
    answers = [lake.open_base().lookup(pa.table({"id": list(keys)})) for _ in range(4)]
    assert all(answer.equals(answers[0]) for answer in answers)
    return sorted((row["id"], row["v"]) for row in answers[0].to_pylist())


def test_without_an_index_keys_are_read_once_per_fragment(make_lake: MakeLake) -> None:
    lake = make_lake(rows=OLD)
    dataset = lake.open_base().dataset
    assert get(lake, 1, 7, 99) == [(1, "b"), (7, "h")]
    before = dataset.io_stats_snapshot().read_iops
    assert get(lake, 98, 99) == []
    assert dataset.io_stats_snapshot().read_iops == before


def test_deletes_and_new_rows_are_seen_at_once(make_lake: MakeLake) -> None:
    lake = make_lake(rows=OLD)
    old = lake.open_base()
    assert get(lake, 1, 2) == [(1, "b"), (2, "c")]
    lance.dataset(lake.uri).delete("id IN (0, 1)")
    assert get(lake, 1, 2, 3) == [(2, "c"), (3, "d")]
    stored = pa.Table.from_arrays(table({1: "new"}).columns, schema=old.dataset.schema)
    lance.write_dataset(stored, lake.uri, mode="append")
    assert get(lake, 1) == [(1, "new")]
    compact_files(lake)
    assert get(lake, 1, 11) == [(1, "new"), (11, "l")]
    assert old.lookup(pa.table({"id": [1]})).column("v").to_pylist() == ["b"]


def test_a_name_given_to_another_column_shows_that_column(make_lake: MakeLake) -> None:
    lake = make_lake(rows=OLD)
    key = pa.table({"id": [3]})
    for _ in range(4):
        assert lake.open_base().lookup(key, ["v"]).to_pylist() == [{"v": "d"}]
    dataset = lance.dataset(lake.uri)
    dataset.alter_columns({"path": "v", "name": "was"})
    dataset.add_columns(pa.field("v", pa.utf8()))
    assert lake.open_base().lookup(key, ["v"]).to_pylist() == [{"v": None}]
    assert lake.open_base().lookup(key, ["was"]).to_pylist() == [{"was": "d"}]


def test_with_an_index_keys_are_held_only_when_asked_often(
    make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "_ROWS_PER_LOOKUP", 4)
    lake = make_lake(rows=OLD)
    lance.dataset(lake.uri).create_scalar_index("id", "BTREE")
    base = lake.open_base()
    asked = [base.holds_keys(lookups) for lookups in (1, 2, 3, 4)]
    assert asked == [False, False, True, True]
    for _ in range(5):
        assert get(lake, 4) == [(4, "e")]
    monkeypatch.setattr(view, "HELD_KEYS_MAX", 11)
    assert not base.holds_keys(1000)


@pytest.mark.parametrize("key", [("v",), ("v", "id")])
def test_hashed_keys_are_compared(make_lake: MakeLake, key: tuple[str, ...]) -> None:
    fields = [field.with_nullable(False) for field in SCHEMA]
    lake = make_lake(pa.schema(fields), key, OLD)
    asked = OLD.slice(3, 2).select(list(key))
    found = lake.open_base().lookup(asked, ["id"])
    assert sorted(found.column("id").to_pylist()) == [3, 4]
    assert found.column_names == ["id"]
