"""A level that grows with the log shows each reader its own cut, and is dropped when too large."""

import pyarrow as pa
import pytest

import weir
from weir.env import Env, Limits
from weir.merge.levels import MemView
from weir.read import cache
from weir.read.cache import ReadCache
from weir.read.reader import SnapshotReader
from weir.read.snapshot import take_snapshot

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])


@pytest.fixture
def table(tmp_path):
    return weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")


def read(table, reader):
    (level,) = reader.levels()
    rows = pa.Table.from_batches(level.scan())
    return dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))


def test_l5_a_reader_keeps_its_cut_while_the_level_grows(table):
    with table.shard(0).writer() as writer:
        writer.put([{"id": 1, "v": 1}, {"id": 2, "v": 1}])
        early = SnapshotReader(table.core, take_snapshot(table.core))
        (level,) = early.levels()
        writer.put([{"id": 1, "v": 2}, {"id": 3, "v": 2}])
        writer.delete([2])
        late = SnapshotReader(table.core, take_snapshot(table.core))
        assert read(table, late)[1] == 2
        # The level under both readers has grown; the early reader still sees the cut it planned on.
        assert read(table, early) == {1: 1, 2: 1}
        keys = pa.table({"id": [1, 2, 3]})
        found = level.lookup(keys).sort_by("id")
        assert found["id"].to_pylist() == [1, 2]
        assert found["v"].to_pylist() == [1, 1]
        assert found["_tombstone"].to_pylist() == [False, False]


def test_only_what_is_new_is_read(table, monkeypatch):
    with table.shard(0).writer() as writer:
        taken = []
        plus = MemView.plus

        def counted(self, batches):
            taken.extend(batches)
            return plus(self, batches)

        reader = weir.open(table.uri)
        for number in range(20):
            writer.put([{"id": number, "v": number}])
        assert reader.get([3])["v"].to_pylist() == [3]
        monkeypatch.setattr(MemView, "plus", counted)
        writer.put([{"id": 3, "v": 33}])
        assert reader.get([3])["v"].to_pylist() == [33]
        assert len(taken) == 1


def test_a_tail_too_large_to_be_held_is_read_in_pieces(table):
    with table.shard(0).writer() as writer:
        for number in range(10):
            writer.put([{"id": number, "v": number}])
        reader = weir.open(table.uri, env=Env(limits=Limits(read_bytes=2000)))
        for _ in range(2):
            assert reader.scan().count() == 10
            assert reader.get([7])["v"].to_pylist() == [7]
        tails = reader.core.attached.of(ReadCache)._tails
        assert tails.bytes == cache._OVERHEAD_BYTES, "known to be too large, without its rows"


def test_tails_are_dropped_when_all_together_are_too_large(table, monkeypatch):
    monkeypatch.setattr(cache, "_READS_KEPT", 0)
    with table.shard(0).writer() as writer:
        reader = weir.open(table.uri)
        for number in range(4):
            writer.put([{"id": number, "v": number}])
            assert reader.scan().count() == 4 if number == 3 else True
            writer.flush()
            assert reader.scan().count() == number + 1
    assert reader.core.attached.of(ReadCache)._tails.bytes == 0


def test_a_changed_schema_gives_a_new_level(table):
    with table.shard(0).writer() as writer:
        writer.put([{"id": 1, "v": 1}])
        kept = table.core.attached.of(ReadCache)
        (cut,) = take_snapshot(table.core).cuts
        log, schema = table.core.log(cut.shard), table.core.known_schema()
        level = kept.tail(log, cut, schema, pinned=False)
        again = kept.tail(log, cut, schema, pinned=False)
        assert again._level is level._level
        other = type(schema)(schema.arrow.remove(1), schema.primary_key, schema.max_field_id)
        (rows,) = kept.tail(log, cut, other, pinned=False).scan()
        assert rows.schema.names == ["id", "_tombstone"]
