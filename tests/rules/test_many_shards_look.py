"""L-1: a handle repeats a kept round of requests to many shards and trusts only all of it."""

import contextlib

import pyarrow as pa
import pytest

import weir
from weir.log.floors import Floors
from weir.read import snapshot as snapshots
from weir.read.snapshot import take_snapshot

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


@pytest.fixture
def walked(monkeypatch):
    """The shards that reads follow from their manifest on, instead of asking for what is newer."""
    shards, cut = [], snapshots._walk

    def noted(core, shard, *, tail):
        shards.append(shard)
        return cut(core, shard, tail=tail)

    monkeypatch.setattr(snapshots, "_walk", noted)
    return shards


@pytest.mark.parametrize("kind", ["used", "manifest", "wal"])
def test_l1_a_floor_that_rose_refuses_what_is_known_of_its_shard_alone(table, kind, walked):
    reader = warm(table)
    walked.clear()
    values(reader)
    assert walked == []
    shard = table.shards()[SHARDS // 2]
    Floors(table.core.log(shard.id).current_site()).raise_to(kind, 9)
    with contextlib.suppress(weir.WeirError):  # the mark was raised without its cause
        take_snapshot(reader.core)
    assert set(walked) == {shard.id}


def test_l1_a_flush_of_one_shard_does_not_send_a_read_to_all_of_them(table, walked):
    reader = warm(table)
    walked.clear()
    shard = table.shards()[SHARDS // 2]
    with shard.writer() as writer:
        rows = [{"id": key, "v": 1} for key in writer.scan().read_all()["id"].to_pylist()]
        writer.put(rows)
        writer.flush()
        walked.clear()
        found = values(reader)
    assert {key for key, value in found.items() if value} == {row["id"] for row in rows}
    assert len(found) == 4 * SHARDS
    assert walked == [shard.id]


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
