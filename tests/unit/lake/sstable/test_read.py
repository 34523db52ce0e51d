"""SSTables across schema changes, with caches, and without optional parts."""

import uuid
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from tests.unit.lake.conftest import SCHEMA, MakeLake, table
from weir.errors import InvalidInput, MissingEntry
from weir.format.schema import TableSchema
from weir.lake.api import SsTableInfo
from weir.lake.pylance_lake import PylanceLake

SHARD = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
NAME = "0000000a_gen_1"


def flush(lake: PylanceLake, rows: list[dict[str, Any]], name: str = NAME) -> SsTableInfo:
    schema = lake.open_base().schema
    full = [{"_tombstone": False, **row} for row in rows]
    batch = pa.RecordBatch.from_pylist(full, schema=schema.wal)
    return lake.write_sstable(SHARD, name, [batch], schema)


def rows_of(batches: Any) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def test_last_row_of_a_key_wins_and_the_manifest_is_told(make_lake: MakeLake) -> None:
    lake = make_lake()
    info = flush(lake, [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1, "v": "c"}])
    assert (info.rows, info.primary_key_bytes) == (2, 16)
    assert info.in_memory_bytes > 16
    sstable = lake.open_sstable(SHARD, NAME, lake.open_base().schema)
    assert sstable.rows == 2
    assert rows_of(sstable.scan(["v"])) == [
        {"v": "b", "_tombstone": False},
        {"v": "c", "_tombstone": False},
    ]


def test_without_a_key_every_row_stays(make_lake: MakeLake) -> None:
    lake = make_lake(SCHEMA, ())
    info = flush(lake, [{"id": 1, "v": "a"}, {"id": 1, "v": "a"}])
    assert info.primary_key_bytes is None
    sstable = lake.open_sstable(SHARD, NAME, lake.open_base().schema)
    assert rows_of(sstable.scan(["id", "v"])) == [{"id": 1, "v": "a", "_tombstone": False}] * 2
    folder = f"_mem_wal/{SHARD}/{NAME}"
    assert lake.store.head(f"{folder}/_pk_index/page_data.lance") is None


def test_nothing_to_flush_is_refused(make_lake: MakeLake) -> None:
    with pytest.raises(InvalidInput, match="at least one row"):
        flush(make_lake(), [])


def test_m4_nothing_names_the_directory(make_lake: MakeLake) -> None:
    lake = make_lake()
    flush(lake, [{"id": 1, "v": "a"}])
    assert lake.store.list_folder(f"_mem_wal/{SHARD}/manifest") == ([], [])


def evolved(lake: PylanceLake) -> TableSchema:
    """The schema after renaming v, dropping w and adding x, which gets the id `_tombstone` had."""
    dataset = lance.dataset(lake.uri)
    dataset.alter_columns({"path": "v", "name": "renamed"})
    dataset.drop_columns(["w"])
    dataset.add_columns(pa.field("x", pa.int32()))
    return lake.open_base().schema


def test_old_sstables_take_the_shape_of_todays_schema(make_lake: MakeLake) -> None:
    # A row in the base keeps the id of a dropped column from being reused.
    wide = SCHEMA.append(pa.field("w", pa.float64()))
    lake = make_lake(wide, ("id",), pa.table({"id": [0], "v": ["-"], "w": [0.0]}, schema=wide))
    flush(
        lake, [{"id": 1, "v": "a", "w": 0.5}, {"id": 2, "v": None, "w": None, "_tombstone": True}]
    )
    old = lake.open_base().schema
    new = evolved(lake)
    assert new.field_ids == {"id": 0, "renamed": 1, "x": 3}
    sstable = lake.open_sstable(SHARD, NAME, new)
    expected = [
        {"id": 1, "renamed": "a", "x": None, "_tombstone": False},
        {"id": 2, "renamed": None, "x": None, "_tombstone": True},
    ]
    assert rows_of(sstable.scan()) == expected
    assert rows_of(sstable.scan(["x", "renamed"]))[0] == {
        "x": None,
        "renamed": "a",
        "_tombstone": False,
    }
    assert rows_of(sstable.scan(["x"])) == [
        {"x": None, "_tombstone": False},
        {"x": None, "_tombstone": True},
    ]
    assert sstable.lookup(pa.table({"id": [2]})).to_pylist() == expected[1:]
    assert sstable.lookup(pa.table({"id": [9]}), ["x"]).num_rows == 0
    # An SSTable of the new schema, whose ids have a gap, beside the old one.
    flush(lake, [{"id": 3, "renamed": "c", "x": 7}], "0000000b_gen_2")
    newer = lake.open_sstable(SHARD, "0000000b_gen_2", new)
    assert rows_of(newer.scan()) == [{"id": 3, "renamed": "c", "x": 7, "_tombstone": False}]
    assert rows_of(lake.open_sstable(SHARD, "0000000b_gen_2", old).scan()) == [
        {"id": 3, "v": "c", "w": None, "_tombstone": False}
    ]


def test_a_dataset_without_tombstones_or_side_files_is_read(make_lake: MakeLake) -> None:
    lake = make_lake()
    plain = pa.Table.from_arrays(
        table({1: "a", 2: "b"}).columns, schema=lake.open_base().dataset.schema
    )
    lance.write_dataset(plain, f"{lake.uri}/_mem_wal/{SHARD}/{NAME}")
    sstable = lake.open_sstable(SHARD, NAME, lake.open_base().schema)
    assert rows_of(sstable.scan()) == [
        {"id": 1, "v": "a", "_tombstone": False},
        {"id": 2, "v": "b", "_tombstone": False},
    ]
    assert sstable.lookup(pa.table({"id": [2]}), ["v"]).to_pylist() == [
        {"v": "b", "_tombstone": False}
    ]


def test_a_missing_sstable_is_missing_data(make_lake: MakeLake) -> None:
    lake = make_lake()
    with pytest.raises(MissingEntry, match="read the table again"):
        lake.open_sstable(SHARD, NAME, lake.open_base().schema)


@pytest.mark.parametrize("dtype", [pa.int64(), pa.utf8()])
def test_the_keys_of_an_sstable_are_read_once(make_lake: MakeLake, dtype: pa.DataType) -> None:
    schema = pa.schema([pa.field("id", dtype, nullable=False), pa.field("v", pa.utf8())])
    lake = make_lake(schema, ("id",))
    have = pa.array(range(100)).cast(dtype).to_pylist()
    flush(lake, [{"id": key, "v": "x"} for key in have])
    sstable = lake.open_sstable(SHARD, NAME, lake.open_base().schema)
    absent = pa.table({"id": pa.array([1000, 1001]).cast(dtype)})
    assert sstable.lookup(absent).num_rows == 0
    warm = sstable.dataset.io_stats_snapshot().read_iops
    for _ in range(3):
        assert sstable.lookup(absent).num_rows == 0
    again = lake.open_sstable(SHARD, NAME, lake.open_base().schema)
    assert again.lookup(absent).num_rows == 0
    assert sstable.dataset.io_stats_snapshot().read_iops == warm
    mixed = pa.table({"id": pa.array([7, 1000, 99]).cast(dtype)})
    assert sorted(sstable.lookup(mixed)["id"].to_pylist()) == sorted([have[7], have[99]])
    assert sstable.lookup(pa.table({"id": pa.array([7]).cast(dtype)})).num_rows == 1


def test_lookup_of_many_keys_equals_a_filter(make_lake: MakeLake) -> None:
    schema = pa.schema([pa.field("id", pa.utf8(), nullable=False), pa.field("v", pa.int64())])
    lake = make_lake(schema, ("id",))
    numbers = np.random.default_rng(7).integers(0, 500, 2000).tolist()
    flush(lake, [{"id": f"key-{n}", "v": i} for i, n in enumerate(numbers)])
    newest = {f"key-{n}": i for i, n in enumerate(numbers)}
    sstable = lake.open_sstable(SHARD, NAME, lake.open_base().schema)
    asked = [f"key-{n}" for n in range(0, 1000, 3)]
    found = sstable.lookup(pa.table({"id": asked}), ["v", "id"]).to_pylist()
    assert {row["id"]: row["v"] for row in found} == {
        key: newest[key] for key in asked if key in newest
    }


def test_indexes_may_be_built_before_anybody_sees_the_sstable(make_lake: MakeLake) -> None:
    lake = make_lake()
    schema = lake.open_base().schema
    rows = [{"id": i % 50, "v": str(i), "_tombstone": False} for i in range(100)]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema.wal)
    lake.write_sstable(
        SHARD,
        NAME,
        [batch],
        schema,
        after_write=lambda dataset: dataset.create_scalar_index("v", "BTREE"),
    )
    sstable = lake.open_sstable(SHARD, NAME, schema)
    assert sstable.rows == 50
    assert "ScalarIndexQuery" in sstable.dataset.scanner(filter="v = '70'").explain_plan()
