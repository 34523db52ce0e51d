"""Columns added, renamed, dropped and made anew while rows are in the log and in SSTables."""

import lance
import pyarrow as pa
import pytest

import weir
from weir.errors import CommitConflict
from weir.format.schema import COLUMN_MARK
from weir.lake import adopt
from weir.table.shards import Shard

SCHEMA = pa.schema([("id", pa.int64()), ("c", pa.int64())])


@pytest.fixture
def table(tmp_path):
    return weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")


def ids_of(table):
    return {f.name(): f.id() for f in lance.dataset(table.uri).lance_schema.fields()}


def fill(table, where):
    """Row 1 with c = 11, in the place asked for."""
    writer = table.writer()
    writer.put([{"id": 1, "c": 11}])
    if where == "sstable":
        writer.close()
    return writer


@pytest.mark.parametrize("where", ["sstable", "log"])
@pytest.mark.parametrize("name", ["d", "c"])
def test_rows_of_a_dropped_column_are_not_read_as_the_one_that_got_its_id(table, where, name):
    before = ids_of(table)["c"]
    writer = fill(table, where)
    base = lance.dataset(table.uri)
    base.drop_columns(["c"])
    base.add_columns(pa.schema([(name, pa.int64())]))
    # The hazard itself: no file of the base holds the id, and Lance gives it away again.
    assert ids_of(table)[name] == before

    def check(reader):
        assert reader.scan().to_table().to_pylist() == [{"id": 1, name: None}]
        assert reader.get([1]).to_pylist() == [{"id": 1, name: None}]
        assert reader.scan(filter=f"{name} = 11").count() == 0

    check(weir.open(table.uri))
    if where == "log":
        # A writer of the old column goes on, unaware.
        writer.put([{"id": 1, "c": 12}])
        check(weir.open(table.uri))
        writer.close()
        check(weir.open(table.uri))
    table.compact()
    check(weir.open(table.uri))
    with weir.open(table.uri).writer() as writer:  # marks the new column
        check(weir.open(table.uri))
        writer.put([{"id": 2, name: 22}])
        writer.flush()
        writer.put([{"id": 3, name: 33}])
        found = weir.open(table.uri).scan().to_table().to_pylist()
        assert sorted(r[name] or 0 for r in found) == [0, 22, 33]


@pytest.mark.parametrize("where", ["sstable", "log"])
def test_a_renamed_column_keeps_its_rows(table, where):
    writer = fill(table, where)
    lance.dataset(table.uri).alter_columns({"path": "c", "name": "renamed"})
    assert weir.open(table.uri).scan().to_table().to_pylist() == [{"id": 1, "renamed": 11}]
    if where == "log":
        writer.close()
    table.compact()
    assert weir.open(table.uri).scan().to_table().to_pylist() == [{"id": 1, "renamed": 11}]


def test_a_column_added_by_another_program_is_marked_by_the_first_writer_that_sees_it(table):
    fill(table, "sstable")
    base = lance.dataset(table.uri)
    base.add_columns(pa.schema([("d", pa.int64())]))
    assert table.core.schema().unmarked == ["d"]
    with table.writer() as writer:
        writer.put([{"id": 2, "c": 1, "d": 2}])
        marks = {f.name: f.metadata[COLUMN_MARK] for f in lance.dataset(table.uri).schema}
        assert marks == {"id": b"1", "c": b"1", "d": str(base.version).encode()}
    version = table.core.lake.open_base().version
    table.shards()[0].writer().close()
    assert table.core.lake.open_base().version == version, "marked once"
    found = table.scan().to_table().to_pylist()
    assert {r["id"]: r["d"] for r in found} == {1: None, 2: 2}


def test_of_two_that_mark_a_column_one_is_told_and_no_mark_is_replaced(table):
    lance.dataset(table.uri).add_columns(pa.schema([("d", pa.int64())]))
    first, second = lance.dataset(table.uri), lance.dataset(table.uri)
    adopt.mark_columns(first)
    with pytest.raises(CommitConflict):
        adopt.mark_columns(second)


@pytest.mark.parametrize("where", ["sstable", "log"])
def test_rows_written_before_there_were_marks_are_kept(tmp_path, where, monkeypatch):
    uri = str(tmp_path / "t")
    lance.write_dataset(
        pa.schema([pa.field("id", pa.int64(), False), SCHEMA[1]]).empty_table(), uri
    )
    table = weir.enable(uri, primary_key="id")
    with monkeypatch.context() as patch:
        patch.setattr(Shard, "_schema_for_writing", lambda shard: shard.table_schema)
        writer = fill(table, where)
    assert table.core.schema().unmarked
    lance.dataset(uri).alter_columns({"path": "c", "name": "renamed"})
    with weir.open(uri).writer() as newer:
        newer.put([{"id": 2, "renamed": 22}])
        found = {r["id"]: r["renamed"] for r in table.scan().to_table().to_pylist()}
        assert found == {1: 11, 2: 22}
    assert not table.core.schema().unmarked
    del writer
