"""What `weir doctor` reports about other programs' work on a table (X-6)."""

from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir
from tests.support.moments import at_time
from weir import making
from weir.format.bucket import bucket
from weir.format.sharding import FIRST_ROUTING, shard_id
from weir.routing.shards import Shard
from weir.upkeep import health
from weir.upkeep.health import find_problems

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])


def make(tmp_path: Path, sharding=None, **options) -> weir.Table:
    return weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=sharding, **options)


def told(table: weir.Table, state: str) -> str:
    return "\n".join(f.detail for f in find_problems(weir.open(table.uri).core) if f.state == state)


def test_x6_a_table_of_our_own_is_well(tmp_path):
    table = make(tmp_path, weir.Bucket("id", 2))
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "a"}])
    assert told(table, "bad") == told(table, "note") == ""
    assert told(table, "ok") == "LanceDB may write here"


def test_x6_unflushed_entries_are_told(tmp_path):
    table = make(tmp_path)
    writer = table.writer()
    writer.put([{"id": 1, "v": "a"}])
    assert "1 shards have unflushed entries" in told(table, "note")
    writer.close()
    assert told(table, "note") == ""


@pytest.mark.parametrize("why", ["resharded", "a store of its own"])
def test_x6_it_says_why_lancedb_may_not_write(tmp_path, monkeypatch, why):
    table = make(tmp_path, weir.Bucket("id", 1))
    if why == "resharded":
        table.reshard(weir.Bucket("id", 2))
    else:
        table.move_wal(str(tmp_path / "wal"))
    assert why in told(table, "note")
    assert told(table, "bad") == ""


def test_x6_a_rival_is_bad_and_the_way_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(making, "FIRST_ROUTING", 1)
    table = make(tmp_path)
    rival = shard_id(weir.Unsharded(), None, FIRST_ROUTING)
    with Shard(table.core, rival, None, is_routed=False).writer() as writer:
        writer.put([{"id": 1, "v": "theirs"}])
    assert f"adopt-shard {table.uri} {rival} --as newer|older" in told(table, "bad")
    assert "have rows in more than one" not in told(table, "bad")
    with Shard(table.core, table.shard(0).id, None, is_routed=False).writer() as writer:
        writer.put([{"id": n, "v": "ours"} for n in (1, 2)])
    assert "1 keys have rows in more than one of the shards" in told(table, "bad")
    with monkeypatch.context() as few:
        few.setattr(health, "ROWS_CHECKED_MAX", 2)
        assert "not checked for keys in two shards" in told(table, "note")
        assert "more than one of the shards" not in told(table, "bad")
    table.adopt_shard(rival, "newer")
    assert told(table, "bad") == ""


def test_x6_an_index_of_another_sharding_is_bad(tmp_path):
    table = make(tmp_path, weir.Bucket("id", 2))
    base = table.core.lake.open_base()
    spec = base.mem_wal.sharding_specs[0]
    field = replace(spec.fields[0], parameters={"num_buckets": "7"})
    other = replace(base.mem_wal, sharding_specs=(replace(spec, fields=(field,)),))
    table.core.lake.replace_mem_wal(other, planned_at=base.version, properties={})
    assert "it says Bucket(column='id', num=7)" in told(table, "bad")
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "a"}])
    table.compact()
    assert told(table, "bad") == ""


def test_x6_a_wrong_spec_and_a_missing_index_name_are_told(tmp_path):
    table = make(tmp_path)
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "a"}])
    table.compact()
    lance.dataset(table.uri).create_scalar_index("id", "BTREE")
    assert "id_idx: not yet listed" in told(table, "note")
    base = table.core.lake.open_base()
    spec = base.mem_wal.sharding_specs[0]
    other = replace(base.mem_wal, sharding_specs=(replace(spec, spec_id=5),))
    table.core.lake.replace_mem_wal(other, planned_at=base.version, properties={})
    assert "specs [5] instead of [1]" in told(table, "bad")


def test_x6_rows_in_another_values_shard_are_counted(tmp_path):
    table = make(tmp_path, weir.Bucket("id", 2))
    ids = list(range(8))
    ones = [n for n, b in zip(ids, bucket(pa.array(ids, pa.int64()), 2), strict=True) if b == 1]
    with Shard(table.core, table.shard(0).id, 0, is_routed=False).writer() as writer:
        writer.put([{"id": n, "v": "astray"} for n in ones])
    found = told(table, "bad")
    assert f"{len(ones)} rows of other values are in shard {table.shard(0).id}" in found
    table.compact()
    assert told(table, "bad") == ""
    assert table.get(ones).num_rows == len(ones)


def test_x6_keys_that_the_base_has_twice_are_counted(tmp_path):
    table = make(tmp_path)
    with table.writer() as writer:
        writer.put([{"id": n, "v": "a"} for n in range(3)])
    table.compact()
    assert told(table, "bad") == ""
    lance.write_dataset(pa.table({"id": [1, 2], "v": ["b", "b"]}), table.uri, mode="append")
    assert "2 rows have the key of another row" in told(table, "bad")
    with table.writer() as writer:  # the remedy that it names
        writer.put([{"id": n, "v": "c"} for n in (1, 2)])
    table.compact()
    assert told(table, "bad") == ""
    assert table.scan().to_table().num_rows == 3


def test_x6_a_base_without_its_index_is_bad(tmp_path):
    table = make(tmp_path)
    lance.write_dataset(pa.table({"id": [1], "v": ["b"]}), table.uri, mode="overwrite")
    assert "its MemWAL index is gone" in told(table, "bad")


def test_x6_old_tags_are_told(tmp_path):
    table = make(tmp_path)
    now = [table.core.store.now() - 8 * 86_400]
    at_time(table, now).checkpoint("all")
    assert "1 checkpoints are older than seven days" in told(table, "note")


def test_x6_progress_that_went_back_is_bad(tmp_path):
    table = make(tmp_path)
    first = 0
    for n in (1, 2):
        with table.writer() as writer:
            writer.put([{"id": n, "v": "a"}])
        table.compact()
        first = first or lance.dataset(table.uri).version
    now = [table.core.store.now() + 16 * 60]
    assert at_time(table, now).gc().pruned == 2
    assert told(table, "bad") == ""
    lance.dataset(table.uri, version=first).restore()
    found = told(table, "bad")
    assert "the base went back from generation 2" in found
    assert "generations 2 are no longer in any SSTable" in found


def test_x6_progress_that_went_back_with_its_sstables_there_is_no_loss(tmp_path):
    table = make(tmp_path)
    first = lance.dataset(table.uri).version
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "a"}])
    table.compact()
    lance.dataset(table.uri, version=first).restore()
    assert told(table, "bad") == ""
    assert weir.open(table.uri).scan().count() == 1


def test_x6_what_is_pinned_is_told_and_what_is_pinned_for_ever_is_named(tmp_path):
    table = make(tmp_path)
    table.checkpoint(name="day", ttl="1d")
    assert "1 keep files from collection" in told(table, "ok").splitlines()
    for n in range(7):
        table.checkpoint(name=f"kept-{n}")
    expected = "8 keep files from collection; 7 of them for ever: kept-0, kept-1, kept-2, kept-3,"
    assert f"{expected} kept-4, ..." in told(table, "ok").splitlines()
