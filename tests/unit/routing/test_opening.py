"""create, open, enable: what is accepted, what is refused, and that a refusal writes nothing."""

from dataclasses import replace

import lance
import pyarrow as pa
import pytest

import weir
from weir.format import paths
from weir.records import codec
from weir.records.table import TableRecords
from weir.store.open import open_store

SCHEMA = pa.schema([("id", pa.int64()), ("tenant", pa.utf8()), ("x", pa.float64())])


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "t")


BAD = {
    "no such key": ({"primary_key": "nope"}, "'nope'"),
    "key twice": ({"primary_key": ["id", "id"]}, "twice"),
    "empty key": ({"primary_key": []}, "primary_key"),
    "float key": ({"primary_key": "x"}, "double"),
    "no such sharding column": ({"sharding": weir.Bucket("nope", 2)}, "'nope'"),
    "no buckets": ({"sharding": weir.Bucket("id", 0)}, "1 to 1024"),
    "too many buckets": ({"sharding": weir.Bucket("id", 1025)}, "1 to 1024"),
    "half a bucket": ({"sharding": weir.Bucket("id", 2.5)}, "1 to 1024"),
    "not a sharding": ({"sharding": "id"}, "Bucket"),
    "sharding outside the key": (
        {"primary_key": "id", "sharding": weir.Identity("tenant")},
        "part of the primary key",
    ),
    "identity of a float": ({"sharding": weir.Identity("x")}, "double"),
    "unknown option": ({"storage_options": {"aws_acess_key": "secret"}}, "aws_acess_key"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_writes_nothing(uri, tmp_path, case):
    options, text = BAD[case]
    with pytest.raises(weir.InvalidInput, match=text):
        weir.create(uri, SCHEMA, **options)
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("name", ["_tombstone", "_rowid", "a.b", ""])
def test_reserved_column_names_are_refused(uri, name):
    with pytest.raises(weir.InvalidInput, match="column name"):
        weir.create(uri, pa.schema([(name, pa.int64())]))


def test_create_twice_points_to_open(uri):
    weir.create(uri, SCHEMA, primary_key="id")
    with pytest.raises(weir.InvalidInput, match="open it"):
        weir.create(uri, SCHEMA, primary_key="id")


def test_create_over_a_lance_dataset_points_to_enable(uri):
    lance.write_dataset(pa.table({"id": [1]}), uri)
    with pytest.raises(weir.InvalidInput, match="`enable` makes"):
        weir.create(uri, SCHEMA)


def test_open_of_something_else(uri, tmp_path):
    with pytest.raises(weir.NotAWeirTable, match="`create` makes"):
        weir.open(uri)
    lance.write_dataset(pa.table({"id": [1]}), uri)
    with pytest.raises(weir.NotAWeirTable, match="`enable`"):
        weir.open(uri)


def test_open_finds_what_create_recorded(uri, tmp_path):
    config = weir.WriterConfig(max_memtable_rows=77)
    made = weir.create(
        uri,
        SCHEMA,
        primary_key=["tenant", "id"],
        sharding=weir.Bucket("id", 4),
        wal_uri=str(tmp_path / "wal"),
        writer_defaults=config,
    )
    table = weir.open(uri)
    assert table.primary_key == ("tenant", "id")
    assert table.sharding == weir.Bucket("id", 4)
    assert table.wal_uri == str(tmp_path / "wal")
    assert table.writer_defaults == replace(config, fence_ttl=60.0), "what held is written down"
    assert table.schema.names == SCHEMA.names
    assert [s.id for s in table.shards()] == [s.id for s in made.shards()]
    with table.writer() as writer:
        writer.put([{"id": 1, "tenant": "a", "x": 1.0}])
        assert weir.open(uri).scan().count() == 1
    assert list((tmp_path / "wal").rglob("*.arrow"))


def test_shard_ids_depend_on_nothing_but_the_sharding(tmp_path):
    ids = [
        [s.id for s in weir.create(str(tmp_path / n), SCHEMA, primary_key="id").shards()]
        for n in "ab"
    ]
    assert ids[0] == ids[1]


def test_credentials_are_not_stored_or_shown(uri, tmp_path):
    options = {"aws_secret_access_key": "sesame"}
    table = weir.create(uri, SCHEMA, storage_options=options)
    assert "sesame" not in repr(table)
    assert "sesame" not in repr(table.core)
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert files
    assert not [p for p in files if b"sesame" in p.read_bytes()]


def test_a_record_with_what_a_later_release_added_is_refused(uri):
    weir.create(uri, SCHEMA, primary_key="id")
    record = TableRecords(open_store(uri)).load()
    newer = codec.dumps(record).replace(b'{"created"', b'{"added_later":[1],"created"')
    open_store(uri).put_if_absent(paths.chain_path(paths.table_chain(), record.seq + 1), newer)
    with pytest.raises(weir.CorruptEntry, match=r"added_later.*upgrade weir"):
        weir.open(uri)


def test_damaged_record_is_named(uri):
    weir.create(uri, SCHEMA)
    open_store(uri).put_if_absent(paths.chain_path(paths.table_chain(), 2), b'{"format":99}')
    with pytest.raises(weir.CorruptEntry, match="upgrade"):
        weir.open(uri)


# -- enable ----------------------------------------------------------------------------------------


def test_enable_adopts_a_dataset_in_place(uri):
    lance.write_dataset(pa.table({"id": [1, 2], "tenant": ["a", "b"], "x": [1.0, 2.0]}), uri)
    table = weir.enable(uri, primary_key="id", sharding=weir.Bucket("id", 2))
    with table.writer() as writer:
        writer.put([{"id": 2, "tenant": "b", "x": 9.0}, {"id": 3, "tenant": "c", "x": 3.0}])
        writer.delete([1])
    rows = weir.open(uri).scan().to_table().sort_by("id")
    assert rows["x"].to_pylist() == [9.0, 3.0]


@pytest.mark.parametrize(
    ("column", "text"), [([1, 1], "different keys"), ([1, None], "null")], ids=["twice", "null"]
)
def test_enable_refuses_keys_that_are_none(uri, column, text):
    before = lance.write_dataset(pa.table({"id": pa.array(column, pa.int64())}), uri).version
    with pytest.raises(weir.WeirError, match=text):
        weir.enable(uri, primary_key="id")
    assert lance.dataset(uri).version == before
    with pytest.raises(weir.NotAWeirTable):
        weir.open(uri)


def test_enable_of_nothing(uri):
    with pytest.raises(weir.NotAWeirTable, match="`create` makes"):
        weir.enable(uri, primary_key="id")


def test_enable_refuses_another_key_or_sharding_than_declared(uri):
    first = lance.write_dataset(pa.table({"id": [1]}), uri)
    first.alter_columns({"path": "id", "nullable": False})
    first.update_field_metadata({"id": {"lance-schema:unenforced-primary-key": "true"}})
    first.initialize_mem_wal(bucket_column="id", num_buckets=3)
    with pytest.raises(weir.InvalidInput, match="primary key"):
        weir.enable(uri, primary_key="x")
    with pytest.raises(weir.InvalidInput, match="sharded by"):
        weir.enable(uri, sharding=weir.Bucket("id", 4))
    assert weir.enable(uri).sharding == weir.Bucket("id", 3)
