"""pylance reads a table written by weir, and weir one written by pylance, with the same rows."""

import uuid

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import LsmScanner, ShardSnapshot

import weir
from tests.support.tables import compact_with_pylance

pytestmark = pytest.mark.interop

SCHEMA = pa.schema(
    [pa.field("id", pa.int64()), pa.field("x", pa.float64()), pa.field("s", pa.utf8())]
)


def pylance_rows(table, **options):
    """The rows that pylance's scanner returns, given snapshots built from our manifests."""
    snapshots = []
    compacted = table.core.lake.open_base().compacted
    for shard in table.shards():
        manifest = shard.manifest()
        snapshot = ShardSnapshot(str(shard.id)).with_current_generation(manifest.current_generation)
        for sstable in manifest.sstables:
            if sstable.generation > compacted.get(shard.id, 0):
                snapshot = snapshot.with_sstable(sstable.generation, sstable.path)
        snapshots.append(snapshot)
    scanner = LsmScanner.from_snapshots(lance.dataset(table.uri, **options), snapshots)
    return sorted(scanner.to_table().select(SCHEMA.names).to_pylist(), key=lambda r: r["id"])


def weir_rows(table):
    return sorted(table.scan().to_table().to_pylist(), key=lambda r: r["id"])


@pytest.mark.parametrize("buckets", [1, 4])
def test_pylance_scanner_gives_the_same_rows(tmp_path, buckets):
    table = weir.create(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=weir.Bucket("id", buckets)
    )
    with table.writer() as writer:
        for round_ in range(3):
            rows = [{"id": i, "x": float(round_), "s": f"r{round_}"} for i in range(round_, 40, 3)]
            writer.put(rows)
            writer.put(rows[:5])
            writer.delete([round_ * 7, 39])
            writer.flush()
            if round_ == 0:
                compact_with_pylance(table)
    assert len(weir_rows(table)) > 20
    assert pylance_rows(table) == weir_rows(table)


def test_rows_of_a_live_pylance_writer_are_seen_without_asking_it(tmp_path):
    uri = str(tmp_path / "t")
    table = weir.create(uri, SCHEMA, primary_key="id")
    writer = lance.dataset(uri).mem_wal_writer(str(table.shards()[0].id))
    writer.put(pa.table({"id": [1, 2], "x": [1.0, 2.0], "s": ["a", "b"]}, schema=table.schema))
    assert [r["id"] for r in weir_rows(table)] == [1, 2]
    writer.put(pa.table({"id": [1], "x": [9.0], "s": ["z"]}, schema=table.schema))
    assert [(r["id"], r["x"]) for r in weir_rows(table)] == [(1, 9.0), (2, 2.0)]
    writer.close()
    assert [(r["id"], r["x"]) for r in weir_rows(table)] == [(1, 9.0), (2, 2.0)]


def test_pre_created_shards_keep_their_field_entries_under_a_pylance_writer(tmp_path):
    uri = str(tmp_path / "t")
    table = weir.create(uri, SCHEMA, primary_key="id", sharding=weir.Bucket("id", 4))
    shard = table.shard(3)
    before = shard.manifest()
    assert before.field_entries == (("bucket", (3).to_bytes(4, "little")),)
    lance.dataset(uri).mem_wal_writer(str(shard.id)).close()
    after = weir.open(uri).shard(3).manifest()
    assert after.field_entries == before.field_entries
    assert after.shard_spec_id == 1


def test_enable_keeps_the_shards_pylance_made(tmp_path):
    uri = str(tmp_path / "t")
    marked = pa.schema(
        [
            pa.field(
                "id",
                pa.int64(),
                nullable=False,
                metadata={"lance-schema:unenforced-primary-key": "true"},
            ),
            SCHEMA.field("x"),
            SCHEMA.field("s"),
        ]
    )
    first = pa.table({"id": [1, 2], "x": [1.0, 2.0], "s": ["a", "b"]}, schema=marked)
    dataset = lance.write_dataset(first, uri)
    dataset.initialize_mem_wal()
    native = uuid.uuid4()
    with lance.dataset(uri).mem_wal_writer(str(native)) as writer:
        writer.put(pa.table({"id": [2, 3], "x": [7.0, 3.0], "s": ["n", "c"]}, schema=marked))
    table = weir.enable(uri)
    assert table.primary_key == ("id",)
    assert [(r["id"], r["x"]) for r in weir_rows(table)] == [(1, 1.0), (2, 7.0), (3, 3.0)]
    strange = table.shard(native)
    assert not strange.is_routed
    with table.writer() as writer:
        writer.put([{"id": 4, "x": 4.0, "s": "d"}])
    assert [r["id"] for r in weir_rows(table)] == [1, 2, 3, 4]
    assert table.get([2, 4])["x"].to_pylist() == [7.0, 4.0]
