"""Columns added, renamed, dropped and made anew while rows are in the log and in SSTables."""

import lance
import pyarrow as pa
import pytest

import weir
from weir.errors import CommitConflict
from weir.format.schema import COLUMN_MARK
from weir.lake.base import adopt
from weir.lake.pylance_lake import PylanceLake

SCHEMA = pa.schema([("id", pa.int64()), ("c", pa.int64())])


@pytest.fixture
def table(tmp_path):
    return weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")


def ids_of(table):
    return {f.name(): f.id() for f in lance.dataset(table.uri).lance_schema.fields()}


def fill(table, where):
    """Write row 1 with c = 11 to the SSTable or the log."""
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
    # The hazard itself: no file of the base uses the field id, so Lance assigns it again.
    assert ids_of(table)[name] == before

    def check(reader):
        assert reader.scan().to_table().to_pylist() == [{"id": 1, name: None}]
        assert reader.get([1]).to_pylist() == [{"id": 1, name: None}]
        assert reader.scan(filter=f"{name} = 11").count() == 0

    check(weir.open(table.uri))
    if where == "log":
        # A writer that still has the old column keeps writing.
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
    with monkeypatch.context() as patch:
        patch.setattr(PylanceLake, "schema_for_writing", lambda lake: lake.open_base().schema)
        table = weir.enable(uri, primary_key="id")
        writer = fill(table, where)
    assert table.core.schema().unmarked
    lance.dataset(uri).alter_columns({"path": "c", "name": "renamed"})
    with weir.open(uri).writer() as newer:
        newer.put([{"id": 2, "renamed": 22}])
        found = {r["id"]: r["renamed"] for r in table.scan().to_table().to_pylist()}
        assert found == {1: 11, 2: 22}
    assert not table.core.schema().unmarked
    del writer


POINTS = pa.schema(
    [
        ("id", pa.int64()),
        ("c", pa.int64()),
        ("p", pa.struct([("a", pa.int64()), ("b", pa.utf8())])),
        ("v", pa.list_(pa.float32(), 2)),
    ]
)


@pytest.mark.parametrize("change", ["rename", "drop", "add", "swap"])
def test_a_writer_reads_under_the_columns_it_was_opened_with_or_says_so(tmp_path, change):
    """Base, SSTable and MemTable, while the base's columns change under it."""
    table = weir.create(str(tmp_path / "t"), POINTS, primary_key="id")
    rows = [
        {"id": i, "c": 10 * i, "p": {"a": i, "b": str(i)}, "v": [float(i), 0.0]} for i in range(6)
    ]
    with table.writer() as first:
        first.put(rows[:2])
    table.compact()
    writer = table.shards()[0].writer()
    writer.put(rows[2:4])
    writer.flush()
    writer.put(rows[4:])
    base = lance.dataset(table.uri)
    if change == "rename":
        base.alter_columns({"path": "c", "name": "renamed"})
        base.alter_columns({"path": "p", "name": "q"}, {"path": "p.a", "name": "z"})
    elif change == "drop":
        base.drop_columns(["c"])
    elif change == "add":
        base.add_columns(pa.schema([("d", pa.int64())]))
    else:
        base.alter_columns({"path": "c", "name": "old"})
        base.add_columns(pa.schema([("c", pa.int64())]))

    def search():
        return writer.search("v", [0.0, 0.0], k=9, columns=["id", "c"])

    calls = (
        lambda: writer.scan(),
        lambda: writer.get([5]),
        search,
        lambda: writer.insert([rows[5]]),
        lambda: writer.put([rows[5]], when="current.c = 50"),
        lambda: writer.delete_where("c = 7"),
    )
    if change == "add":
        found = writer.scan().read_all().to_pylist()
        assert sorted(found, key=lambda r: r["id"]) == rows
        some = writer.scan(columns=["c"], filter="c >= 10 and p.a < 5").read_all()["c"].to_pylist()
        assert sorted(some) == [10, 20, 30, 40]
        assert writer.get([0, 1, 3, 5, 9]).to_pylist() == [rows[i] for i in (0, 1, 3, 5)]
        assert writer.get([1], columns=["c"]).to_pylist() == [{"c": 10}]
        assert sorted(search()["id"].to_pylist()) == [0, 1, 2, 3, 4, 5]
    else:
        for call in calls:
            with pytest.raises(CommitConflict, match="open a new writer"):
                call()
    writer.put([rows[5]])
    writer.close()
    other = weir.open(table.uri)
    assert other.scan().count() == 6
    other.compact()
    found = {r["id"]: r for r in other.scan().to_table().to_pylist()}
    name = {"rename": "renamed", "drop": None, "add": "c", "swap": "old"}[change]
    if name is not None:
        assert [found[i][name] for i in range(6)] == [r["c"] for r in rows]


@pytest.mark.parametrize("change", ["rename", "drop", "add"])
def test_a_table_writer_goes_on_in_shards_it_opens_after_a_change(tmp_path, change):
    sharding = weir.Bucket("id", 4)
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=sharding)
    with table.writer() as writer:
        writer.put([{"id": 0, "c": 0}])
        assert len(writer.shard_writers()) == 1
        base = lance.dataset(table.uri)
        if change == "rename":
            base.alter_columns({"path": "c", "name": "renamed"})
        elif change == "drop":
            base.drop_columns(["c"])
        else:
            base.add_columns(pa.schema([("d", pa.int64())]))
        writer.put([{"id": i, "c": i} for i in range(1, 12)])
        assert len(writer.shard_writers()) == 4
    found = weir.open(table.uri).scan().to_table().sort_by("id")
    assert found["id"].to_pylist() == list(range(12))
    if change != "drop":
        name = "renamed" if change == "rename" else "c"
        assert found[name].to_pylist() == list(range(12))


def test_a_table_without_a_key_whose_sharding_column_was_renamed_says_so(tmp_path):
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=weir.Bucket("c", 2))
    with table.writer() as writer:
        writer.put([{"id": 1, "c": 1}])
        lance.dataset(table.uri).alter_columns({"path": "c", "name": "renamed"})
        writer.put([{"id": 2, "c": 2}])
    other = weir.open(table.uri)
    with other.writer() as writer, pytest.raises(weir.InvalidInput, match="sharded by 'c'"):
        writer.put([{"id": 3, "renamed": 3}])
    other.reshard(weir.Bucket("renamed", 3))
    with other.writer() as writer:
        writer.put([{"id": 3, "renamed": 3}])
    assert sorted(r["renamed"] for r in other.scan().to_table().to_pylist()) == [1, 2, 3]


@pytest.mark.parametrize("where", ["base", "memtable"])
def test_an_open_writer_does_not_null_columns_that_were_added(table, where):
    with table.writer() as first:
        first.put([{"id": n, "c": n} for n in (1, 2, 3)])
    table.compact()
    writer = table.writer()
    if where == "memtable":
        writer.put([{"id": 1, "c": 1}])
    assert writer.update([{"id": 1, "c": 5}]).updated == 1
    base = lance.dataset(table.uri)
    base.add_columns(pa.schema([("note", pa.string())]))
    base.update({"note": "'filled'"})
    with pytest.raises(CommitConflict, match=r"\['note'\].*Open a new writer"):
        writer.update([{"id": 2, "c": 6}])
    with pytest.raises(CommitConflict, match=r"\['note'\].*Open a new writer"):
        writer.update([{"id": 9, "c": 6}], missing="insert")
    with pytest.raises(weir.WeirError, match=r"\['note'\].*Open a new writer"):
        writer.update_where("c = 3", {"c": "7"})
    # What writes whole rows of the caller's goes on.
    assert writer.put([{"id": 3, "c": 8}], when="current.c = 3").updated == 1
    assert writer.insert([{"id": 4, "c": 4}]).inserted == 1
    writer.close()
    with weir.open(table.uri).writer() as writer:
        assert writer.update([{"id": 2, "c": 6}]).updated == 1
        assert writer.update_where("id = 2", {"c": "c + 1"}).updated == 1
    rows = {row["id"]: (row["c"], row["note"]) for row in table.scan().to_table().to_pylist()}
    assert rows == {1: (5, None), 2: (7, "filled"), 3: (8, None), 4: (4, None)}
