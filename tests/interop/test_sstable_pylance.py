"""SSTables of weir under pylance's own readers, and vice versa."""

import uuid
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import LsmPointLookupPlanner, LsmScanner, ShardSnapshot

import weir
from weir.format.schema import TableSchema
from weir.lake.pylance_lake import PylanceLake
from weir.store.open import lance_options, open_store

pytestmark = pytest.mark.interop

SHARD = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [5, -128, 127, 0]),
    "int16": (pa.int16(), [5, -3, 300, 0]),
    "int32": (pa.int32(), [5, -3, 2**31 - 1, 0]),
    "int64": (pa.int64(), [5, -(2**63), 2**63 - 1, 0]),
    "uint8": (pa.uint8(), [5, 255, 7, 0]),
    "uint16": (pa.uint16(), [5, 65535, 7, 0]),
    "uint32": (pa.uint32(), [5, 2**32 - 1, 7, 0]),
    "uint64": (pa.uint64(), [5, 2**64 - 1, 2**63, 0]),
    "utf8": (pa.utf8(), ["b", "", "a'\"`", "日本\0x"]),
    "large_utf8": (pa.large_utf8(), ["b", "", "a'", "日本"]),
    "binary": (pa.binary(), [b"b", b"", b"\x00\xff", b"zz"]),
    "large_binary": (pa.large_binary(), [b"b", b"", b"\x00\xff", b"zz"]),
}


def make_lake(uri: str, schema: pa.Schema, options: dict[str, str] | None = None) -> PylanceLake:
    where = lance_options(uri, options)
    lance.write_dataset(schema.empty_table(), uri, storage_options=where).initialize_mem_wal()
    return PylanceLake(uri, where, open_store(uri, options))


def keyed(*columns: tuple[str, pa.DataType], payload: list[pa.Field]) -> pa.Schema:
    fields = [
        pa.field(
            name,
            dtype,
            nullable=False,
            metadata={
                "lance-schema:unenforced-primary-key": "true",
                "lance-schema:unenforced-primary-key:position": str(position),
            },
        )
        for position, (name, dtype) in enumerate(columns, 1)
    ]
    return pa.schema([*fields, *payload])


def batch(schema: TableSchema, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"_tombstone": False, **row} for row in rows], schema=schema.wal
    )


def snapshot(*names: str) -> ShardSnapshot:
    made = ShardSnapshot(str(SHARD)).with_current_generation(len(names) + 1)
    for generation, name in enumerate(names, 1):
        made = made.with_sstable(generation, name)
    return made


def scanned(lake: PylanceLake, *names: str) -> list[dict[str, Any]]:
    base = lake.open_base().dataset
    return LsmScanner.from_snapshots(base, [snapshot(*names)]).to_table().to_pylist()


def by(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row[key])


@pytest.mark.parametrize("kind", KEYS)
def test_each_key_type_is_read_by_scanner_and_point_lookup(tmp_path: Path, kind: str) -> None:
    dtype, values = KEYS[kind]
    lake = make_lake(str(tmp_path / "t"), keyed(("k", dtype), payload=[pa.field("v", pa.int32())]))
    schema = lake.open_base().schema
    rows = [{"k": value, "v": i} for i, value in enumerate(values)]
    rows += [{"k": values[0], "v": 100}, {"k": values[1], "v": None, "_tombstone": True}]
    lake.write_sstable(SHARD, "0000000a_gen_1", [batch(schema, rows)], schema)

    expected = [
        {"k": values[0], "v": 100},
        *({"k": v, "v": i + 2} for i, v in enumerate(values[2:])),
    ]
    assert by(scanned(lake, "0000000a_gen_1"), "k") == by(expected, "k")
    planner = LsmPointLookupPlanner(lake.open_base().dataset, [snapshot("0000000a_gen_1")])
    for value in values:
        found = planner.plan_lookup(pa.array([value], dtype)).to_table().to_pylist()
        assert found == [row for row in expected if row["k"] == value]

    ours = lake.open_sstable(SHARD, "0000000a_gen_1", schema)
    looked_up = ours.lookup(pa.table({"k": pa.array(values, dtype)})).to_pylist()
    live = [{**row, "_tombstone": False} for row in expected]
    dead = {"k": values[1], "v": None, "_tombstone": True}
    assert by(looked_up, "k") == by([*live, dead], "k")
    assert by(pa.Table.from_batches(ours.scan()).to_pylist(), "k") == by([*live, dead], "k")


def test_bool_keys(tmp_path: Path) -> None:
    payload = [pa.field("v", pa.int32())]
    lake = make_lake(str(tmp_path / "t"), keyed(("k", pa.bool_()), payload=payload))
    schema = lake.open_base().schema
    rows = [{"k": True, "v": 1}, {"k": False, "v": 2}, {"k": True, "v": 3}]
    lake.write_sstable(SHARD, "0000000a_gen_1", [batch(schema, rows)], schema)
    ours = lake.open_sstable(SHARD, "0000000a_gen_1", schema)
    assert ours.lookup(pa.table({"k": [True]})).column("v").to_pylist() == [3]
    assert by(scanned(lake, "0000000a_gen_1"), "k") == [rows[1], rows[2]]


def test_composite_keys_in_key_order(tmp_path: Path) -> None:
    fields = keyed(("b", pa.utf8()), ("a", pa.int64()), payload=[pa.field("v", pa.int32())])
    # `a` is stored before the other key column, though it is second in the key.
    lake = make_lake(str(tmp_path / "t"), pa.schema([fields.field(i) for i in (1, 0, 2)]))
    schema = lake.open_base().schema
    assert schema.primary_key == ("b", "a")
    rows = [
        {"a": 1, "b": "x", "v": 1},
        {"a": 2, "b": "x", "v": 2},
        {"a": 1, "b": "y\0", "v": 3},
        {"a": 1, "b": "x", "v": 4},
    ]
    lake.write_sstable(SHARD, "0000000a_gen_1", [batch(schema, rows)], schema)
    assert by(scanned(lake, "0000000a_gen_1"), "v") == rows[1:]
    planner = LsmPointLookupPlanner(lake.open_base().dataset, [snapshot("0000000a_gen_1")])
    key = pa.StructArray.from_arrays([pa.array(["x"]), pa.array([1])], names=["b", "a"])
    assert planner.plan_lookup(key).to_table().to_pylist() == [rows[3]]
    ours = lake.open_sstable(SHARD, "0000000a_gen_1", schema)
    found = ours.lookup(pa.table({"b": ["y\0", "x", "y\0"], "a": [1, 2, 2]}), ["v"])
    assert by(found.to_pylist(), "v") == [
        {"v": 2, "_tombstone": False},
        {"v": 3, "_tombstone": False},
    ]


NESTED = [
    pa.field("st", pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.utf8())])),
    pa.field("li", pa.list_(pa.field("item", pa.float32()))),
    pa.field("vec", pa.list_(pa.field("item", pa.float32()), 4)),
    pa.field("dict", pa.dictionary(pa.int32(), pa.utf8())),
    pa.field("ll", pa.list_(pa.field("item", pa.struct([pa.field("z", pa.int8())])))),
    pa.field("when", pa.timestamp("us", "UTC")),
    pa.field("dec", pa.decimal128(10, 2)),
]


def nested_row(key: int) -> dict[str, Any]:
    return {
        "id": key,
        "st": {"a": key, "b": f"s{key}"},
        "li": [float(i) for i in range(key)],
        "vec": [float(key)] * 4,
        "dict": f"d{key % 2}",
        "ll": [{"z": key}, {"z": None}],
        "when": None,
        "dec": None,
    }


@pytest.mark.parametrize("has_lost_a_column", [False, True])
def test_nested_list_vector_and_dictionary_payload(
    tmp_path: Path, *, has_lost_a_column: bool
) -> None:
    lost = [pa.field("old", pa.int16())]
    uri = str(tmp_path / "t")
    fields = keyed(("id", pa.int64()), payload=[*lost, *NESTED] if has_lost_a_column else NESTED)
    lake = make_lake(uri, fields)
    if has_lost_a_column:
        lance.dataset(uri).drop_columns(["old"])
    base = lake.open_base()
    assert (base.schema.field_ids["st"] == 1) != has_lost_a_column
    rows = [nested_row(key) for key in (1, 2, 3, 2)]
    lake.write_sstable(SHARD, "0000000a_gen_1", [batch(base.schema, rows)], base.schema)
    assert by(scanned(lake, "0000000a_gen_1"), "id") == [nested_row(key) for key in (1, 2, 3)]
    ours = lake.open_sstable(SHARD, "0000000a_gen_1", base.schema)
    looked_up = ours.lookup(pa.table({"id": [3, 9]})).to_pylist()
    assert looked_up == [{**nested_row(3), "_tombstone": False}]
    written = lance.dataset(f"{uri}/_mem_wal/{SHARD}/0000000a_gen_1")
    ids = [field.id() for field in written.lance_schema.fields()]
    assert ids == [*base.schema.field_ids.values(), base.schema.max_field_id + 1]


def test_a_table_passes_between_flushes_of_pylance_and_of_weir(tmp_path: Path) -> None:
    fields = keyed(("id", pa.int64()), payload=[pa.field("v", pa.utf8())])
    uri = str(tmp_path / "t")
    lake = make_lake(uri, fields)
    schema = lake.open_base().schema
    with lance.dataset(uri).mem_wal_writer(str(SHARD)) as writer:
        writer.put(pa.table({"id": [1, 2, 3], "v": ["p1", "p2", "p3"]}, schema=fields))
        writer.delete(pa.table({"id": [2]}, schema=pa.schema([fields.field("id")])))
    folder = tmp_path / "t" / "_mem_wal" / str(SHARD)
    (native,) = (path.name for path in folder.iterdir() if path.name.endswith("_gen_1"))
    rows = [{"id": 3, "v": "w3"}, {"id": 4, "v": "w4"}, {"id": 1, "v": None, "_tombstone": True}]
    lake.write_sstable(SHARD, "0000000b_gen_2", [batch(schema, rows)], schema)

    assert by(scanned(lake, native, "0000000b_gen_2"), "id") == [
        {"id": 3, "v": "w3"},
        {"id": 4, "v": "w4"},
    ]
    theirs = lake.open_sstable(SHARD, native, schema)
    assert by(pa.Table.from_batches(theirs.scan()).to_pylist(), "id") == [
        {"id": 1, "v": "p1", "_tombstone": False},
        {"id": 2, "v": None, "_tombstone": True},
        {"id": 3, "v": "p3", "_tombstone": False},
    ]
    assert by(theirs.lookup(pa.table({"id": [2, 3, 7]}), ["id"]).to_pylist(), "id") == [
        {"id": 2, "_tombstone": True},
        {"id": 3, "_tombstone": False},
    ]


def test_our_files_equal_the_native_ones(tmp_path: Path) -> None:
    """The key index byte by byte, the dataset by its content. No key repeats: pylance hides older
    rows, and weir leaves them out."""
    fields = keyed(("id", pa.int64()), payload=[pa.field("v", pa.float64())])
    uri = str(tmp_path / "t")
    lake = make_lake(uri, fields)
    data = pa.table(
        {"id": [(i * 7919) % 9000 for i in range(9_000)], "v": [float(i) for i in range(9_000)]},
        schema=fields,
    )
    with lance.dataset(uri).mem_wal_writer(str(SHARD)) as writer:
        writer.put(data)
    folder = tmp_path / "t" / "_mem_wal" / str(SHARD)
    (native,) = (path for path in folder.iterdir() if path.name.endswith("_gen_1"))
    schema = lake.open_base().schema
    rows = data.append_column("_tombstone", pa.array([False] * len(data)))
    batches = pa.Table.from_arrays(rows.columns, schema=schema.wal).to_batches()
    lake.write_sstable(SHARD, "0000000b_gen_2", batches, schema)
    ours = folder / "0000000b_gen_2"

    index = "_pk_index/page_data.lance"
    assert (ours / index).read_bytes() == (native / index).read_bytes()
    one, two = lance.dataset(native), lance.dataset(ours)
    assert one.lance_schema == two.lance_schema
    assert one.data_storage_version == two.data_storage_version
    assert one.version == two.version == 1
    assert one.to_table().equals(two.to_table())


def test_on_s3(s3: Any) -> None:
    uri = f"s3://weir-test/{uuid.uuid4().hex}"
    fields = keyed(("id", pa.int64()), payload=[pa.field("v", pa.utf8())])
    lake = make_lake(uri, fields, s3.storage_options())
    schema = lake.open_base().schema
    rows = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1, "v": "c"}]
    lake.write_sstable(SHARD, "0000000a_gen_1", [batch(schema, rows)], schema)
    assert by(scanned(lake, "0000000a_gen_1"), "id") == [{"id": 1, "v": "c"}, {"id": 2, "v": "b"}]
    ours = lake.open_sstable(SHARD, "0000000a_gen_1", schema)
    assert ours.lookup(pa.table({"id": [1]})).column("v").to_pylist() == ["c"]
    assert lake.open_base().compacted == {}


def test_a_dataset_in_lances_memory_is_seen_by_its_own_handle_only():
    """The reason why a table cannot be at memory://; if this test fails, it can."""
    made = lance.write_dataset(pa.table({"a": [1]}), "memory://shared/t")
    assert made.count_rows() == 1
    with pytest.raises(ValueError, match="not found"):
        lance.dataset("memory://shared/t", session=made.session())
    with pytest.raises(weir.InvalidInput, match="memory://"):
        weir.create("memory://shared/t", pa.schema([("a", pa.int64())]))
