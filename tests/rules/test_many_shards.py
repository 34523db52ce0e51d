"""A table of many shards: rounds of requests, and one level for the rows of all shards."""

import pyarrow as pa
import pytest

import weir
from tests.support.tables import count_requests
from weir.merge.levels import MemLevel
from weir.read import common
from weir.read.reader import SnapshotReader
from weir.read.snapshot import take_snapshot

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


def make(path, shards, **settings):
    sharding = weir.Bucket("id", shards)
    return weir.create(str(path), SCHEMA, primary_key="id", sharding=sharding, **settings)


def put(writer, ids, v):
    writer.put([{"id": i, "v": v} for i in ids])


def found(table, **scan):
    return {row["id"]: row["v"] for row in table.scan(**scan).to_table().to_pylist()}


def opened(table):
    """A warm handle and a counter of its store calls, each one round of requests."""
    warm = weir.open(table.uri)
    counting = count_requests(warm)
    for _ in range(2):
        found(warm)
        warm.get([0])
    counting.reset()
    return warm, counting


@pytest.mark.parametrize("shards", [2, 24])
def test_l1_a_durable_read_of_a_warm_handle_takes_two_rounds_whatever_the_shards(tmp_path, shards):
    table = make(tmp_path / "t", shards)
    with table.writer() as writer:
        put(writer, range(shards * 4), 0)
        warm, counting = opened(table)
        put(writer, range(shards * 4), 1)
        assert set(found(warm).values()) == {1}
        # First manifests and entries after the known ones; then floors, shards and base together.
        assert counting.calls == {"get_many": 1, "list_many": 1, "list_folder": 1}
        assert counting.requests == 4 * shards + 1
        counting.reset()
        assert warm.get(list(range(shards * 4))).num_rows == shards * 4
        assert counting.calls == {"get_many": 1, "list_many": 1, "list_folder": 1}


def levels_of(table, shards=None):
    core = table.core
    reader = SnapshotReader(core, take_snapshot(core, "durable"), passing=False)
    return reader.merged_levels(shards)


def test_l2_what_many_shards_hold_is_one_level(tmp_path):
    table = make(tmp_path / "t", 6)
    with table.writer() as writer:
        put(writer, range(60), 0)
        writer.flush()
        put(writer, range(0, 60, 2), 1)
        (level,) = levels_of(table)
        assert isinstance(level, MemLevel)
        expected = {i: 1 - i % 2 for i in range(60)}
        assert found(table) == expected
        writer.delete([0, 1])
        put(writer, [2], 5)
        assert found(table) == {**{i: v for i, v in expected.items() if i > 1}, 2: 5}
        got = table.get([0, 2, 3, 4]).to_pylist()
        assert got == [{"id": 2, "v": 5}, {"id": 3, "v": 0}, {"id": 4, "v": 1}]
    table.compact()
    assert levels_of(table) == []
    assert found(table) == {**{i: v for i, v in expected.items() if i > 1}, 2: 5}


def test_l2_older_rows_stay_behind_a_level_that_is_too_large_to_join(tmp_path, monkeypatch):
    """A shard's newest SSTable is large: the older rows behind it must not come before it."""
    monkeypatch.setattr(common, "PART_ROWS", 40)
    table = make(tmp_path / "t", 2)
    with table.writer() as writer:
        put(writer, range(20), 0)
        writer.flush()
        put(writer, range(200), 1)  # about a hundred rows in each shard
        writer.flush()
        put(writer, range(5), 2)
        expected = {i: 2 if i < 5 else 1 for i in range(200)}
        assert found(table) == expected
        assert len(levels_of(table)) == 1 + 4, "the tails, and two SSTables of each shard"
        put(writer, range(200), 3)  # now the tails are too large as well
        assert found(table) == dict.fromkeys(range(200), 3)
        assert len(levels_of(table)) == 2 + 4


def test_l5_a_read_sees_its_own_cut_although_the_common_level_grew(tmp_path):
    table = make(tmp_path / "t", 4)
    core = table.core
    with table.writer() as writer:
        put(writer, range(40), 0)
        found(table)
        early = SnapshotReader(core, take_snapshot(core), passing=False)
        (old,) = early.merged_levels()
        put(writer, range(0, 40, 4), 1)
        assert set(found(table).values()) == {0, 1}
        rows = pa.Table.from_batches(old.scan())
        assert set(rows["v"].to_pylist()) == {0}, "a view of before does not grow"
        (again,) = early.merged_levels()
        assert set(pa.Table.from_batches(again.scan())["v"].to_pylist()) == {0}
        assert set(found(table).values()) == {0, 1}


def test_a_lookup_of_some_shards_leaves_a_scan_whole(tmp_path):
    table = make(tmp_path / "t", 8)
    with table.writer() as writer:
        put(writer, range(80), 0)
        assert table.get(list(range(10))).num_rows == 10
        assert len(found(table)) == 80
        put(writer, range(80), 1)
        assert set(table.get(list(range(10)))["v"].to_pylist()) == {1}
        assert set(found(table).values()) == {1}
        assert set(table.get(list(range(80)))["v"].to_pylist()) == {1}


def test_l2_heirs_of_a_reshard_are_read_before_what_they_took_over(tmp_path):
    table = make(tmp_path / "t", 3)
    with table.writer() as writer:
        put(writer, range(30), 0)
    found(table)
    table.reshard(weir.Bucket("id", 5))
    with table.writer() as writer:
        put(writer, range(0, 30, 3), 1)
        assert found(table) == {i: int(i % 3 == 0) for i in range(30)}
        assert found(weir.open(table.uri)) == {i: int(i % 3 == 0) for i in range(30)}


def test_a_column_that_is_added_meanwhile_is_in_the_common_level(tmp_path):
    import lance

    table = make(tmp_path / "t", 3)
    with table.writer() as writer:
        put(writer, range(12), 0)
    found(table)
    lance.dataset(table.uri).add_columns(pa.schema([("w", pa.string())]))
    rows = table.scan().to_table()
    assert rows.column_names == ["id", "v", "w"]
    assert rows["w"].null_count == rows.num_rows == 12


def test_an_append_only_table_keeps_every_row_of_every_shard(tmp_path):
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=weir.Bucket("id", 4))
    with table.writer() as writer:
        for turn in range(3):
            put(writer, range(20), turn)
            if turn == 1:
                writer.flush()
        rows = table.scan().to_table().to_pylist()
    assert sorted((row["id"], row["v"]) for row in rows) == [
        (i, turn) for i in range(20) for turn in range(3)
    ]
    assert table.scan().count() == 60


def test_l2_a_shard_that_has_nothing_in_a_cut_has_nothing_in_the_level(tmp_path):
    """Found by the random histories: a flushed read after a durable one on the same handle."""
    table = make(tmp_path / "t", 2)
    with table.writer() as writer:
        put(writer, range(20), 0)
        for _ in range(2):
            assert len(found(table)) == 20
            assert table.get(list(range(20))).num_rows == 20
            assert found(table, freshness="flushed") == {}
            assert table.get(list(range(20)), freshness="flushed").num_rows == 0
