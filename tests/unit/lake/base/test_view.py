"""The base table: what a version shows, and how cheaply a newer version is noticed."""

import dataclasses
import datetime as dt
import uuid
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from tests.unit.lake.conftest import SCHEMA, MakeLake, compact_files, content, table
from weir.errors import (
    CommitConflict,
    InvalidInput,
    MissingEntry,
    NotAWeirTable,
    SnapshotExpired,
    StoreDenied,
)
from weir.format.base_manifest import ShardingField, ShardingSpec
from weir.lake.base import adopt
from weir.lake.pylance_lake import PylanceLake
from weir.store.open import lance_options, open_store

OLD = table({1: "a", 2: "b", 3: "c", 4: "d", 5: "e", 6: "f"})


def rows_of(batches: Any) -> list[dict[str, Any]]:
    return pa.Table.from_batches(batches).to_pylist()


def test_scan_projects_filters_limits_and_takes_fragments(make_lake: MakeLake) -> None:
    base = make_lake(rows=OLD, rows_per_file=2).open_base()
    assert base.fragments() == [(0, 2), (1, 2), (2, 2)]
    assert rows_of(base.scan(["v"], filter="id > 4")) == [{"v": "e"}, {"v": "f"}]
    assert rows_of(base.scan(["id"], fragments=[1])) == [{"id": 3}, {"id": 4}]
    assert len(rows_of(base.scan(limit=3))) == 3
    assert [b.num_rows for b in base.scan(batch_size=1, fragments=[0])] == [1, 1]
    address = rows_of(base.scan(["id"], fragments=[2], with_row_address=True))
    assert address[1] == {"id": 6, "_rowaddr": (2 << 32) + 1}
    assert base.count() == 6
    assert base.count("v < 'c'") == 2
    with pytest.raises(MissingEntry, match="no fragment 9"):
        list(base.scan(fragments=[9]))
    with pytest.raises(InvalidInput, match="nonsense"):
        list(base.scan(filter="nonsense = 1"))


def test_lookup_with_and_without_an_index(make_lake: MakeLake) -> None:
    lake = make_lake(rows=OLD)
    for has_index in (False, True):
        if has_index:
            lance.dataset(lake.uri).create_scalar_index("id", "BTREE")
        base = lake.open_base()
        assert base.has_key_index is has_index
        found = base.lookup(pa.table({"id": [6, 2, 77]}), ["v"])
        assert sorted(found.column("v").to_pylist()) == ["b", "f"]
        assert base.lookup(pa.table({"id": pa.array([], pa.int64())})).num_rows == 0


def test_lookup_of_the_lowest_integer_and_of_more_keys_than_one_query(make_lake: MakeLake) -> None:
    rows = table({-(2**63): "low", 2**63 - 1: "high", **{i: str(i) for i in range(25_000)}})
    base = make_lake(rows=rows, rows_per_file=10_000).open_base()
    lowest = base.lookup(pa.table({"id": [-(2**63)]})).to_pylist()
    assert lowest == [{"id": -(2**63), "v": "low"}]
    both = base.lookup(pa.table({"id": [-(2**63), 3]}), ["v"])
    assert sorted(both.column("v").to_pylist()) == ["3", "low"]
    assert base.lookup(rows.select(["id"])).num_rows == rows.num_rows


def test_a_new_version_is_seen_at_once_and_an_old_one_stays(make_lake: MakeLake) -> None:
    lake = make_lake(rows=OLD)
    before = lake.open_base()
    assert lake.open_base() is before
    lance.dataset(lake.uri).delete("id = 1")
    after = lake.open_base()
    assert (after.version, after.count()) == (before.version + 1, 5)
    assert before.count() == 6
    assert lake.open_base(before.version) is before


def test_field_ids_of_nested_columns_and_the_highest_id_ever(make_lake: MakeLake) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("gone", pa.int8()),
            pa.field("st", pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.utf8())])),
            pa.field("m", pa.map_(pa.utf8(), pa.int32())),
            pa.field("vec", pa.list_(pa.float32(), 3)),
            pa.field("li", pa.list_(pa.int8())),
        ]
    )
    lake = make_lake(schema)
    lance.dataset(lake.uri).drop_columns(["gone"])
    known = lake.open_base().schema
    assert known.field_ids == {"id": 0, "st": 2, "m": 5, "vec": 9, "li": 10}
    assert known.max_field_id == 11
    assert known.primary_key == ("id",)
    assert known.plain.field("st").type == schema.field("st").type


def test_a_base_is_made_once(make_lake: MakeLake, tmp_path: Path) -> None:
    lake = make_lake()
    with pytest.raises(CommitConflict, match="another process is making a table"):
        adopt.create_base(lake.uri, SCHEMA, ("id",), None)
    with pytest.raises(InvalidInput, match="'nope' is not a column"):
        adopt.create_base(str(tmp_path / "other"), SCHEMA, ("nope",), None)


def test_sharding_and_writer_defaults_are_recorded(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lake = PylanceLake(uri, None, open_store(uri))
    with pytest.raises(NotAWeirTable):
        lake.open_base()
    made = adopt.create_base(uri, SCHEMA, ("id",), None)
    assert lake.open_base().mem_wal is None
    adopt.initialize_mem_wal(
        made, {"bucket_column": "id", "num_buckets": 8, "max_memtable_rows": 500}
    )
    recorded = lake.open_base().mem_wal
    assert recorded is not None
    assert recorded.num_shards == 8
    assert recorded.sharding_specs[0].fields[0].transform == "bucket"
    assert recorded.writer_defaults["max_memtable_rows"] == "500"


def test_c11_sharding_is_replaced_in_one_commit(make_lake: MakeLake) -> None:
    lake = make_lake(rows=OLD)
    shard = uuid.uuid4()
    lake.mark_compacted({shard: 4})
    base = lake.open_base()
    assert base.mem_wal is not None
    by_bucket = ShardingField("bucket", (0,), "bucket", None, "int32", {"num_buckets": "16"})
    details = dataclasses.replace(
        base.mem_wal,
        num_shards=16,
        sharding_specs=(ShardingSpec(2, (by_bucket,)),),
        writer_defaults={"max_memtable_rows": "7"},
    )
    version = lake.replace_mem_wal(details, planned_at=base.version, properties={"weir.r": "1"})
    assert version == base.version + 1
    after = lake.open_base()
    assert after.mem_wal == details
    assert after.compacted == {shard: 4}
    assert content(lake) == sorted(zip(*OLD.to_pydict().values(), strict=True))
    native = after.dataset.mem_wal_index_details()
    assert native["sharding_specs"][0]["spec_id"] == 2
    assert native["writer_config_defaults"] == {"max_memtable_rows": "7"}
    with pytest.raises(CommitConflict):
        lake.replace_mem_wal(details, planned_at=base.version, properties={})
    lake.mark_compacted({shard: 5})
    assert lake.open_base().compacted == {shard: 5}


def test_a_key_may_be_given_to_an_existing_dataset(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    made = lance.write_dataset(OLD, uri)
    adopt.mark_key(made, ["id"])
    adopt.initialize_mem_wal(made, {})
    assert PylanceLake(uri, None, open_store(uri)).open_base().schema.primary_key == ("id",)


def test_protected_versions_survive_the_clean_up(make_lake: MakeLake) -> None:
    lake = make_lake(rows=OLD)
    kept = lake.open_base().version
    lake.protect_version("cp-1", kept)
    lake.protect_version("cp-1", kept)
    with pytest.raises(CommitConflict, match="protects version"):
        lake.protect_version("cp-1", kept - 1)
    for key in (1, 2, 3):
        lance.dataset(lake.uri).delete(f"id = {key}")
    latest = lake.open_base().version
    none = dt.timedelta(0)
    assert lake.cleanup_old_versions(none, keep_from=kept).versions == kept - 1
    lake.check_version(latest - 1)
    cleaned = lake.cleanup_old_versions(none)
    assert cleaned.versions == latest - kept - 1
    assert PylanceLake(lake.uri, None, lake.store).open_base(kept).count() == 6
    with pytest.raises(SnapshotExpired, match="cleaned up"):
        lake.check_version(latest - 1)
    with pytest.raises(SnapshotExpired):
        lake.find_commit("a", "b", after=kept)
    assert lake.protected_versions() == {"cp-1": kept}
    lake.release_version("cp-1")
    lake.release_version("cp-1")
    assert lake.protected_versions() == {}
    with pytest.raises(MissingEntry):
        lake.protect_version("cp-2", latest - 1)


def test_a_version_that_cannot_be_reached_is_not_reported_as_cleaned_up(
    make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake(rows=OLD)

    def denied(*_: Any) -> lance.LanceDataset:
        raise StoreDenied("no access")

    monkeypatch.setattr(lake.datasets, "own", denied)
    with pytest.raises(StoreDenied):
        lake.check_version(lake.open_base().version)


def test_restore_brings_an_old_version_back(make_lake: MakeLake) -> None:
    lake = make_lake(rows=OLD)
    version = lake.open_base().version
    shard = uuid.uuid4()
    lance.dataset(lake.uri).delete("id > 1")
    lake.mark_compacted({shard: 4})
    assert lake.restore(version, "a checkpoint") == lake.open_base().version
    assert lake.open_base().count() == 6
    assert lake.open_base().compacted == {}


def test_clone_shares_files_and_goes_its_own_way(make_lake: MakeLake, tmp_path: Path) -> None:
    lake = make_lake(rows=OLD)
    shard = uuid.uuid4()
    lake.mark_compacted({shard: 2})
    uri = str(tmp_path / "clone")
    place = open_store(uri)
    version = lake.open_base().version
    assert lake.shallow_clone(place, version) == lake.shallow_clone(place, version) == version
    with pytest.raises(CommitConflict, match="already there"):
        lake.shallow_clone(place, version - 1)
    clone = PylanceLake(uri, None, open_store(uri))
    assert content(clone) == content(lake)
    assert clone.open_base().compacted == {shard: 2}
    assert not (tmp_path / "clone" / "data").exists()
    lance.dataset(uri).delete("id = 1")
    assert (clone.open_base().count(), lake.open_base().count()) == (5, 6)


def test_a_clone_of_a_clone_shares_files_of_both(make_lake: MakeLake, tmp_path: Path) -> None:
    lake = make_lake(rows=OLD)
    lance.dataset(lake.uri).create_scalar_index("id", "BTREE")
    lance.dataset(lake.uri).delete("id = 6")
    uris = [str(tmp_path / name) for name in ("child", "grandchild")]
    lake.shallow_clone(open_store(uris[0]), lake.open_base().version)
    child = PylanceLake(uris[0], None, open_store(uris[0]))
    lance.dataset(uris[0]).delete("id = 1")
    stored = pa.Table.from_arrays(table({7: "g"}).columns, schema=child.open_base().dataset.schema)
    lance.write_dataset(stored, uris[0], mode="append")
    child.shallow_clone(open_store(uris[1]), child.open_base().version)
    grandchild = PylanceLake(uris[1], None, open_store(uris[1]))
    assert content(grandchild) == content(child)
    assert len(grandchild.open_base().dataset.base_paths()) == 2
    for key in (2, 7):
        assert grandchild.open_base()._query(pa.table({"id": [key]}), ["id"]).num_rows == 1
    assert [index.name for index in grandchild.indexes()] == ["id_idx"]
    lance.dataset(uris[1]).delete("id = 2")
    assert [len(content(t)) for t in (lake, child, grandchild)] == [5, 5, 4]


@pytest.mark.parametrize("to_s3", [False, True])
def test_a_clone_may_be_on_another_kind_of_store(
    make_lake: MakeLake, tmp_path: Path, s3: Any, *, to_s3: bool
) -> None:
    options = s3.storage_options()
    there = f"s3://weir-test/{uuid.uuid4().hex}"
    remote = lance_options(there, options)
    if to_s3:
        lake, uri = make_lake(rows=OLD), there
    else:
        lake, uri = PylanceLake(there, remote, open_store(there, options)), str(tmp_path / "c")
        adopt.initialize_mem_wal(adopt.create_base(there, SCHEMA, ("id",), remote), {})
        stored = pa.Table.from_arrays(OLD.columns, schema=lake.open_base().dataset.schema)
        lance.write_dataset(stored, there, mode="append", storage_options=remote)
    lake.shallow_clone(open_store(uri, options), lake.open_base().version)
    clone = PylanceLake(uri, remote, open_store(uri, options))
    assert content(clone) == content(lake)
    clone.datasets.own().delete("id = 1")
    assert (clone.open_base().count(), lake.open_base().count()) == (5, 6)


def test_compact_files_and_indexes(make_lake: MakeLake) -> None:
    lake = make_lake(rows=OLD, rows_per_file=2)
    lance.dataset(lake.uri).create_scalar_index("id", "BTREE")
    compact_files(lake, 100)
    assert len(lake.open_base().fragments()) == 1
    lance.write_dataset(lake.open_base().dataset.to_table(limit=1), lake.uri, mode="append")
    lake.optimize_indices()
    (index,) = (i for i in lake.open_base().dataset.describe_indices() if i.name == "id_idx")
    assert index.num_rows_indexed == 7
