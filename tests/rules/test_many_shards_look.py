"""L-1: a handle repeats a kept round of requests to many shards and trusts only all of it."""

import pyarrow as pa
import pytest

import weir
from weir.log.floors import Floors
from weir.read.fast_snapshot import fast_snapshot

SHARDS = 80
"""Enough shards that the store checks the folder above the floors before the floors."""
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


@pytest.fixture
def table(tmp_path):
    made = weir.create(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=weir.Bucket("id", SHARDS)
    )
    with made.writer() as writer:
        writer.put([{"id": n, "v": 0} for n in range(4 * SHARDS)])
    return made


def warm(table):
    """A handle that has read the table repeatedly and found it unchanged."""
    reader = weir.open(table.uri)
    for _ in range(3):
        values(reader)
    assert reader.core.tails.look is not None, "kept"
    assert fast_snapshot(reader.core, list) is not None
    return reader


def values(reader):
    return dict(zip(*reader.scan().to_table().to_pydict().values(), strict=True))


def test_l1_rows_of_one_shard_are_seen_by_a_look_at_many(table):
    reader = warm(table)
    with table.writer() as writer:
        for n in range(3):
            writer.put([{"id": n, "v": 1}])
            found = values(reader)
            assert [found[key] for key in range(4)] == [1] * (n + 1) + [0] * (3 - n)
            assert len(found) == 4 * SHARDS
            assert values(reader) == found
        writer.delete([{"id": 0}])
        assert 0 not in values(reader)
    assert 0 not in values(reader)


def test_l1_what_is_flushed_folded_and_collected_is_seen_by_a_look_at_many(table):
    reader = warm(table)
    for n in range(1, 3):
        with table.writer() as writer:
            writer.put([{"id": key, "v": n} for key in range(SHARDS)])
        assert values(reader)[0] == n
        table.compact()
        table.gc(min_age=0)
        assert set(values(reader).values()) == {0, n}
        assert set(values(reader).values()) == {0, n}


@pytest.mark.parametrize("kind", ["used", "manifest", "wal", "store"])
def test_l1_a_floor_that_rose_refuses_a_kept_look_at_many(table, kind):
    reader = warm(table)
    shard = table.shards()[SHARDS // 2]
    Floors(table.core.site(shard.id)).raise_to(kind, 9)
    assert fast_snapshot(reader.core, list) is None
    assert reader.core.tails.look is None


def test_l1_a_look_at_many_sees_a_new_shard(table):
    reader = warm(table)
    table.reshard(weir.Bucket("id", SHARDS + 1))
    with table.writer() as writer:
        writer.put([{"id": 0, "v": 7}])
    assert values(reader)[0] == 7
    assert len(values(reader)) == 4 * SHARDS


def test_l5_readers_of_other_shards_do_not_disturb_each_other(table):
    reader = warm(table)
    assert reader.get([1]).to_pylist() == [{"id": 1, "v": 0}]
    with table.writer() as writer:
        writer.put([{"id": 1, "v": 5}])
        assert reader.get([1]).to_pylist() == [{"id": 1, "v": 5}]
        assert values(reader)[1] == 5
        assert reader.get([2, 1]).num_rows == 2


def test_l2_rows_folded_since_a_look_at_many_are_not_read_twice(tmp_path):
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=weir.Bucket("id", SHARDS))
    with table.writer() as writer:
        writer.put([{"id": n, "v": 0} for n in range(4 * SHARDS)])
    reader = weir.open(table.uri)
    for _ in range(3):
        assert reader.scan().to_table().num_rows == 4 * SHARDS
    before = [shard.manifest() for shard in table.shards()]
    table.compact()
    assert [shard.manifest() for shard in table.shards()] == before, "the story needs the same cuts"
    assert reader.scan().to_table().num_rows == 4 * SHARDS
