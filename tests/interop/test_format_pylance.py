"""Every stored byte compared with pylance: what it computes, writes and accepts."""

from pathlib import Path
from uuid import UUID

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileReader, LanceFileWriter
from lance.mem_wal import CompactedSsTable
from lance.schema import LanceSchema

from weir.format import paths
from weir.format.base_manifest import read_mem_wal
from weir.format.bucket import bucket
from weir.format.keys import check_key_type, encode_composite_keys, pk_values
from weir.format.lance_file import parse_version_name, version_name
from weir.format.lance_manifest import pk_index_tables, rewrite_sstable_manifest
from weir.format.lance_messages import read_manifest
from weir.format.manifest import (
    ShardManifest,
    Status,
    decode_hint,
    decode_manifest,
    encode_hint,
    encode_manifest,
)
from weir.format.schema import FIELD_ID, TOMBSTONE, align_batch, table_schema
from weir.format.wal_entry import EntryEncoder, decode_entry, encode_fence

pytestmark = pytest.mark.interop

SHARD = UUID("00112233-4455-6677-8899-aabbccddeeff")
PK = {b"lance-schema:unenforced-primary-key": b"true"}
BASE = pa.schema(
    [pa.field("id", pa.int64(), False, PK), pa.field("name", pa.string())],
    metadata={b"table": b"facts"},
)
IDS = pa.schema(
    [f.with_metadata({**(f.metadata or {}), FIELD_ID: b"%d" % i}) for i, f in enumerate(BASE)],
    metadata=BASE.metadata,
)
TABLE = table_schema(IDS, ["id"], 1)


def rows(ids, names, deleted=None):
    marks = pa.array(deleted or [False] * len(ids))
    columns = [pa.array(ids, pa.int64()), pa.array(names, pa.string()), marks]
    return pa.record_batch(columns, schema=TABLE.wal)


def table(ids, names):
    return pa.table([pa.array(ids, pa.int64()), pa.array(names, pa.string())], schema=BASE)


@pytest.fixture
def base(tmp_path):
    dataset = lance.write_dataset(table([0], ["base"]), str(tmp_path / "t"))
    dataset.initialize_mem_wal()
    return dataset


def write(dataset, path, data):
    target = Path(dataset.uri) / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def names(folder):
    return [path.name for path in folder.iterdir()]


def shard_manifests(dataset):
    folder = Path(dataset.uri) / paths.manifest_dir(SHARD)
    found = {}
    for name in names(folder):
        version = paths.parse_manifest_name(name)
        if version is not None:
            path = paths.manifest_path(SHARD, version)
            found[version] = decode_manifest((folder / name).read_bytes(), path=path)
    return found


def wal_entries(dataset):
    folder = Path(dataset.uri) / paths.wal_dir(SHARD)
    found = {}
    for name in names(folder):
        position = paths.parse_wal_name(name)
        assert position is not None
        data = (folder / name).read_bytes()
        found[position] = decode_entry(data, position=position, path=name)
    return found


def latest_base_manifest(dataset):
    """The path and the bytes of the latest version's file."""
    folder = Path(dataset.uri) / "_versions"
    versions = {parse_version_name(name): name for name in names(folder)}
    versions.pop(None, None)
    name = versions[max(versions)]
    return f"_versions/{name}", (folder / name).read_bytes()


def latest_mem_wal(dataset):
    path, raw = latest_base_manifest(dataset)
    return read_mem_wal(raw, path=path)


def latest_fields(dataset):
    path, raw = latest_base_manifest(dataset)
    return read_manifest(raw, path=path).fields


# Bucket hash


def evaluate(array, num_buckets):
    batch = pa.record_batch([array], names=["c"])
    field = {
        "field_id": "bucket",
        "source_ids": [0],
        "transform": "bucket",
        "expression": None,
        "result_type": "int32",
        "parameters": {"num_buckets": str(num_buckets)},
    }
    spec = {"spec_id": 1, "fields": [field]}
    return lance.evaluate_sharding_spec(batch, spec, LanceSchema.from_pyarrow(batch.schema))[0]


RANDOM = np.random.default_rng(7)
BITS = RANDOM.integers(0, 256, 8 * 3000, dtype=np.uint8).tobytes()
TEXTS = [
    "".join(RANDOM.choice(list("abcz0 é日\0\x7f😀"), RANDOM.integers(0, 24))) for _ in range(3000)
]


def _random(dtype, count=3000):
    if dtype == pa.bool_():
        return pa.array(np.frombuffer(BITS, np.uint8)[:count] % 2 == 1)
    width = dtype.bit_width // 8
    return pa.Array.from_buffers(dtype, count, [None, pa.py_buffer(BITS[: count * width])])


@pytest.mark.parametrize("num_buckets", [1, 7, 8, 1024])
@pytest.mark.parametrize(
    "dtype",
    [
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.bool_(), pa.float32(), pa.float64(), pa.date32()),
        *(pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.timestamp("s")),
        *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    ],
    ids=str,
)
def test_buckets_of_fixed_width_types_equal_pylance(dtype, num_buckets):
    array = _random(dtype)
    assert bucket(array, num_buckets).tolist() == evaluate(array, num_buckets).to_pylist()


@pytest.mark.parametrize("dtype", [pa.string(), pa.large_string()], ids=str)
def test_buckets_of_texts_equal_pylance(dtype):
    array = pa.array([*TEXTS, None, "", "x" * 1000], dtype)
    assert bucket(array, 1024).tolist() == evaluate(array, 1024).to_pylist()


def test_buckets_of_nulls_and_special_floats_equal_pylance():
    for array in (
        pa.array([None, 1, None, -1], pa.int64()),
        pa.array([0.0, -0.0, float("nan"), float("inf"), -float("inf"), None, 5e-324]),
        pa.array([0.0, -0.0, float("nan"), float("inf"), None], pa.float32()),
    ):
        assert bucket(array, 1024).tolist() == evaluate(array, 1024).to_pylist()


# Key index


def sidecar(folder, batch, key):
    folder.mkdir()
    lance.lance._write_pk_sidecar(str(folder), pa.Table.from_batches([batch]).to_reader(), key)
    return [folder / "_pk_index" / n for n in ("page_data.lance", "page_lookup.lance")]


def _some(dtype, count):
    numbers = RANDOM.integers(0, 100, count)
    if dtype == pa.bool_():
        return pa.array(numbers % 2 == 0)
    if pa.types.is_integer(dtype):
        return pa.array(numbers).cast(dtype)
    texts = [TEXTS[i] for i in numbers]
    as_text = pa.types.is_string(dtype) or pa.types.is_large_string(dtype)
    return pa.array(texts if as_text else [t.encode() for t in texts], dtype)


KEY_TYPES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
]
KEYS = [[t] for t in KEY_TYPES] + [
    [pa.int64(), pa.string()],
    [pa.binary(), pa.bool_(), pa.uint32()],
    [pa.int8(), pa.uint64(), pa.large_string()],
    [pa.large_binary(), pa.int16()],
]


@pytest.mark.parametrize("types", KEYS, ids=lambda types: "-".join(map(str, types)))
@pytest.mark.parametrize("count", [1, 20_000])
def test_the_key_index_equals_the_one_pylance_makes(tmp_path, types, count):
    key = [f"k{i}" for i in range(len(types))]
    batch = pa.record_batch([_some(t, count) for t in types], names=key)
    native = sidecar(tmp_path / "sst", batch, key)
    for path, made in zip(native, pk_index_tables(pk_values(batch, key)), strict=True):
        want = LanceFileReader(str(path)).read_all().to_table()
        assert made.equals(want)
        assert made.schema.equals(want.schema, check_metadata=True)
    ours = tmp_path / "ours.lance"
    page_data = pk_index_tables(pk_values(batch, key))[0]
    with LanceFileWriter(str(ours), page_data.schema, version="2.0") as writer:
        writer.write_batch(page_data)
    assert ours.read_bytes() == native[0].read_bytes()


@pytest.mark.parametrize("dtype", [*KEY_TYPES, pa.binary(4), pa.date32(), pa.float64()], ids=str)
def test_the_check_of_key_types_is_the_one_of_pylance(tmp_path, dtype):
    schema = pa.schema([pa.field("k", dtype, False, PK), pa.field("v", pa.int8())])
    dataset = lance.write_dataset(schema.empty_table(), str(tmp_path / "t"))
    ours = theirs = None
    try:
        dataset.initialize_mem_wal()
    except (ValueError, OSError) as error:
        theirs = error
    try:
        check_key_type(schema.field("k"))
    except Exception as error:
        ours = error
    assert (ours is None) == (theirs is None), theirs


# What pylance writes


NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), False, PK),
        pa.field(
            "st", pa.struct([pa.field("a", pa.int32(), False), pa.field("b", pa.string())]), False
        ),
        pa.field("l", pa.list_(pa.field("item", pa.int32(), False)), False),
        pa.field("ll", pa.large_list(pa.string())),
        pa.field("f", pa.list_(pa.float32(), 4)),
        pa.field("ls", pa.list_(pa.struct([pa.field("x", pa.int8())]))),
        pa.field("d", pa.dictionary(pa.int32(), pa.string())),
        pa.field("n", pa.null()),
    ],
    metadata={"k": "v"},
)
NESTED_ROW = {
    "id": 1, "st": {"a": 1, "b": "x"}, "l": [1], "ll": ["q"], "f": [1.0, 2, 3, 4],
    "ls": [{"x": 1}], "d": "a", "n": None,
}  # fmt: skip


def with_ids(field, ids):
    metadata = {**(field.metadata or {}), FIELD_ID: b"%d" % next(ids)}
    dtype = field.type
    if pa.types.is_struct(dtype):
        dtype = pa.struct([with_ids(dtype.field(i), ids) for i in range(dtype.num_fields)])
    elif pa.types.is_list(dtype):
        dtype = pa.list_(with_ids(dtype.value_field, ids))
    elif pa.types.is_large_list(dtype):
        dtype = pa.large_list(with_ids(dtype.value_field, ids))
    return pa.field(field.name, dtype, field.nullable, metadata)


def test_the_wal_schema_of_nested_columns_is_the_one_pylance_writes(tmp_path):
    data = pa.Table.from_pylist([NESTED_ROW], schema=NESTED)
    dataset = lance.write_dataset(data, str(tmp_path / "t"))
    dataset.initialize_mem_wal()
    ids = iter([f.id for f in latest_fields(dataset)])
    schema = table_schema(
        pa.schema([with_ids(f, ids) for f in NESTED], metadata=NESTED.metadata),
        ["id"],
        dataset.max_field_id,
    )
    with dataset.mem_wal_writer(str(SHARD)) as writer:
        writer.put(data)
        entry = wal_entries(dataset)[1]
    (batch,) = entry.batches
    assert batch.schema.equals(schema.wal, check_metadata=True)
    assert align_batch(batch, schema.wal) is batch
    assert batch.drop_columns([TOMBSTONE]).to_pylist() == [NESTED_ROW]
    ours = EntryEncoder(schema).encode([batch], epoch=1, generation=1, entry_id="x")
    assert decode_entry(bytes(ours), position=1, path="p").batches == entry.batches


def test_what_a_pylance_writer_leaves_is_read(base):
    with base.mem_wal_writer(str(SHARD)) as writer:
        writer.put(table([1, 2], ["a", "b"]))
        writer.delete(pa.table({"id": pa.array([1], pa.int64())}))
        entries = wal_entries(base)
    assert sorted(entries) == [1, 2]
    assert all((e.epoch, e.generation, e.entry_id) == (1, 1, None) for e in entries.values())
    assert entries[1].batches[0].to_pydict() == {
        "id": [1, 2], "name": ["a", "b"], TOMBSTONE: [False, False]
    }  # fmt: skip
    assert entries[2].batches[0].to_pydict() == {"id": [1], "name": [None], TOMBSTONE: [True]}
    assert entries[1].batches[0].schema.equals(TABLE.wal, check_metadata=True)
    manifests = shard_manifests(base)
    latest = manifests[max(manifests)]
    (sstable,) = latest.sstables
    assert (latest.replay_after, latest.current_generation) == (2, 2)
    assert (sstable.generation, sstable.physical_rows) == (1, 3)
    assert paths.parse_sstable_name(sstable.path)[1] == 1
    hint = (Path(base.uri) / paths.manifest_hint_path(SHARD)).read_bytes()
    assert decode_hint(hint) == max(manifests)
    assert encode_hint(max(manifests)) == hint
    for version, manifest in manifests.items():
        stored = (Path(base.uri) / paths.manifest_path(SHARD, version)).read_bytes()
        assert encode_manifest(manifest) == stored, "byte for byte without a commit id"


def test_a_reopened_shard_has_a_fence_that_is_seen_as_one(base):
    with base.mem_wal_writer(str(SHARD)) as writer:
        writer.put(table([1], ["a"]))
    with base.mem_wal_writer(str(SHARD)):
        pass
    fence = wal_entries(base)[2]
    assert (fence.is_fence, fence.epoch, fence.generation, fence.batches) == (True, 2, None, ())


# What pylance accepts


def test_f9_pylance_opens_and_continues_a_manifest_with_a_commit_id(base):
    manifest = ShardManifest(1, 0, 0, 0, 1, (), 0, SHARD, (), Status.ACTIVE, b"c" * 16)
    write(base, paths.manifest_path(SHARD, 1), encode_manifest(manifest))
    write(base, paths.manifest_hint_path(SHARD), encode_hint(1))
    with base.mem_wal_writer(str(SHARD)) as writer:
        writer.put(table([1], ["a"]))
    manifests = shard_manifests(base)
    assert manifests[1] == manifest
    assert (manifests[2].writer_epoch, manifests[2].commit_id) == (1, b"")
    assert manifests[max(manifests)].current_generation == 2


def test_pylance_replays_entries_and_fences_that_carry_private_facts(base):
    manifest = ShardManifest(1, 1, 0, 0, 1, (), 0, SHARD, (), Status.ACTIVE, b"c" * 16)
    write(base, paths.manifest_path(SHARD, 1), encode_manifest(manifest))
    encoder = EntryEncoder(TABLE)
    common = {"epoch": 1, "generation": 1, "tokens": [("app", 3)]}
    first = encoder.encode([rows([1, 2], ["a", "b"])], entry_id="x", **common)
    small = [rows([2], [None], [True]), rows([3], ["c"]), rows([1], ["new"])]
    write(base, paths.wal_path(SHARD, 1), first)
    write(base, paths.wal_path(SHARD, 2), encode_fence(1, "fence"))
    write(base, paths.wal_path(SHARD, 3), encoder.encode(small, entry_id="y", **common))
    with base.mem_wal_writer(str(SHARD)) as writer:
        got = writer.lsm_scanner().to_table().sort_by("id")
        assert got.to_pydict() == {"id": [0, 1, 3], "name": ["base", "new", "c"]}
    latest = max(shard_manifests(base).items())[1]
    assert latest.sstables[0].physical_rows == 5


def test_pylance_reads_an_sstable_with_a_rewritten_manifest(tmp_path):
    schema = pa.schema([*TABLE.wal, pa.field("dict", pa.dictionary(pa.int8(), pa.string()))])
    data = pa.Table.from_pylist(
        [
            {"id": 2, "name": None, TOMBSTONE: True, "dict": None},
            {"id": 1, "name": "new", TOMBSTONE: False, "dict": "q"},
        ],
        schema=schema,
    )
    dataset = lance.write_dataset(data, str(tmp_path / "sst"))
    path = Path(dataset.uri) / "_versions" / version_name(1)
    raw = path.read_bytes()
    new_ids = {0: 0, 1: 5, 2: 9, 3: 7}
    changed = rewrite_sstable_manifest(raw, field_ids=new_ids, path=str(path))
    path.write_bytes(changed)
    again = lance.dataset(dataset.uri)
    assert [f.id() for f in again.lance_schema.fields()] == [0, 5, 9, 7]
    assert again.to_table()["name"].to_pylist() == [None, "new"]
    assert again.to_table()["dict"].to_pylist() == [None, "q"]
    assert not again.schema.field("id").nullable
    again.validate()
    parsed = read_manifest(changed, path=str(path))
    assert [(f.id, f.name) for f in parsed.fields] == [
        (0, "id"), (5, "name"), (9, TOMBSTONE), (7, "dict")
    ]  # fmt: skip


# The base manifest


def test_compaction_progress_is_read_from_a_real_manifest(base):
    assert latest_mem_wal(base).compacted == {}
    other = UUID(int=2**127 + 1)
    for shard, generation in ((SHARD, 1), (other, 2), (SHARD, 4)):
        merge = base.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.mark_sstables_as_compacted([CompactedSsTable(str(shard), generation)])
        merge.execute(table([generation], ["x"]))
    assert latest_mem_wal(base).compacted == {SHARD: 4, other: 2}


def test_details_of_a_sharded_table_with_writer_defaults(tmp_path):
    dataset = lance.write_dataset(table([0], ["base"]), str(tmp_path / "t"))
    assert latest_mem_wal(dataset) is None
    dataset.initialize_mem_wal(
        bucket_column="id",
        num_buckets=8,
        maintained_indexes=[],
        durable_write=False,
    )
    details = latest_mem_wal(dataset)
    (spec,) = details.sharding_specs
    (field,) = spec.fields
    assert (details.num_shards, spec.spec_id, field.transform) == (8, 1, "bucket")
    assert (field.field_id, field.source_ids, field.result_type) == ("bucket", (0,), "int32")
    assert field.parameters == {"num_buckets": "8"}
    assert not details.maintain_all
    assert details.writer_defaults["durable_write"] == "false"


@pytest.mark.parametrize(
    ("change", "ids"),
    [
        (lambda ds: None, [0, 1, 2]),
        (lambda ds: ds.drop_columns(["extra"]), [0, 1]),
        (lambda ds: ds.drop_columns(["name"]), [0, 2]),
        (lambda ds: ds.add_columns(pa.field("later", pa.int8())), [0, 1, 2, 3]),
    ],
    ids=["as made", "last dropped", "middle dropped", "added"],
)
def test_the_tombstone_follows_the_highest_id_of_todays_schema(tmp_path, change, ids):
    wide = table([0], ["x"]).append_column("extra", pa.array([1]))
    dataset = lance.write_dataset(wide, str(tmp_path / "t"))
    dataset.initialize_mem_wal()
    change(dataset)
    assert [f.id for f in latest_fields(dataset)] == ids
    with dataset.mem_wal_writer(str(SHARD)) as writer:
        writer.put(pa.Table.from_pylist([{"id": 1}], schema=dataset.schema))
    (native,) = Path(dataset.uri).glob("_mem_wal/*/*_gen_1/_versions/*.manifest")
    fields = read_manifest(native.read_bytes(), path=native.name).fields
    assert [f.id for f in fields][:-1] == ids
    assert fields[-1].name == TOMBSTONE


def test_composite_values_in_a_flushed_key_index_are_ours(tmp_path):
    key = b"lance-schema:unenforced-primary-key"
    schema = pa.schema(
        [
            pa.field("a", pa.int64(), False, {key: b"true", key + b":position": b"2"}),
            pa.field("b", pa.string(), False, {key: b"true", key + b":position": b"1"}),
        ]
    )
    data = pa.table([pa.array([7, -1], pa.int64()), pa.array(["k", "a\0b"])], schema=schema)
    dataset = lance.write_dataset(schema.empty_table(), str(tmp_path / "t"))
    dataset.initialize_mem_wal()
    with dataset.mem_wal_writer(str(SHARD)) as writer:
        writer.put(data)
    (native,) = Path(dataset.uri).glob("_mem_wal/*/*_gen_1/_pk_index/page_data.lance")
    stored = LanceFileReader(str(native)).read_all().to_table()
    ours = encode_composite_keys([data["b"], data["a"]])
    assert stored.equals(pk_index_tables(ours)[0])
