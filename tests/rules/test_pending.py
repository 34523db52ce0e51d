"""Pending changes of Lance, as hand-made bytes: weir works, or stops with a clear error.

Flags and fields of later manifests: tests/rules/test_pending_bytes.py.
"""

import io
import shutil
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir
from tests.docs.facts import SOURCES
from weir.format import paths

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])
ROW_ID = pa.field("__wal_row_id", pa.uint64())


@pytest.fixture
def table(tmp_path: Path) -> weir.Table:
    return weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")


def rows(table: weir.Table, **how) -> dict[int, str]:
    found = weir.open(table.uri).scan(**how).to_table()
    assert found.schema.names == SCHEMA.names
    return {row["id"]: row["v"] for row in found.to_pylist()}


def sstable(table: weir.Table) -> Path:
    (shard,) = table.shards()
    return Path(table.uri) / paths.SHARDS / str(shard.id) / shard.manifest().sstables[-1].path


def test_x9_a_physical_row_id_in_the_log_is_passed_over(table: weir.Table) -> None:
    """lance#9150: `__wal_row_id` beside the columns of an entry, in front of `_tombstone`."""
    table.writer().put([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    (shard,) = table.shards()
    entry = Path(table.uri) / paths.wal_path(shard.id, shard.log.tip())
    with pa.ipc.open_stream(entry.read_bytes()) as stream:
        metadata, batches = stream.schema.metadata, list(stream)
    out = io.BytesIO()
    for number, batch in enumerate(batches):
        ids = pa.array(range(1 << 32, (1 << 32) + batch.num_rows), pa.uint64())
        at = batch.num_columns - 1
        fields = list(batch.schema)
        fields.insert(at, ROW_ID)
        columns = [*batch.columns[:at], ids, batch.columns[at]]
        wider = pa.record_batch(columns, schema=pa.schema(fields, metadata))
        if number == 0:
            writer = pa.ipc.new_stream(out, wider.schema)
        writer.write_batch(wider)
    writer.close()
    entry.write_bytes(out.getvalue())
    want = {1: "a", 2: "b"}
    assert rows(table) == want
    with weir.open(table.uri).writer() as again:  # replays the entry and flushes
        again.put([{"id": 3, "v": "c"}])
    assert rows(table) == want | {3: "c"}
    table.compact()
    assert rows(table, freshness="base") == want | {3: "c"}


def test_x9_a_physical_row_id_in_an_sstable_is_passed_over(table: weir.Table) -> None:
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    lance.dataset(str(sstable(table))).add_columns([ROW_ID])
    assert rows(table) == {1: "a", 2: "b"}
    assert weir.open(table.uri).get([2])["v"].to_pylist() == ["b"]
    weir.open(table.uri).compact()
    assert rows(table, freshness="base") == {1: "a", 2: "b"}


@pytest.mark.parametrize("left", ["nothing", "half a file"])
def test_x9_an_sstable_whose_key_file_is_not_complete_is_read(table: weir.Table, left) -> None:
    """lance#9035: an SSTable may be published before its key index is."""
    with table.writer() as writer:
        writer.put([{"id": n, "v": str(n)} for n in range(50)])
        writer.delete([3])
    keys = sstable(table) / "_pk_index"
    assert keys.is_dir()
    if left == "nothing":
        shutil.rmtree(keys)
    else:
        for file in keys.iterdir():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    want = {n: str(n) for n in range(50) if n != 3}
    assert rows(table) == want
    found = weir.open(table.uri).get([2, 3, 49])
    assert sorted(found["v"].to_pylist()) == ["2", "49"]
    weir.open(table.uri).compact()
    assert rows(table, freshness="base") == want


def test_x9_maintained_indexes_may_change_under_an_open_writer(table: weir.Table) -> None:
    """lance#9335: the set is replaced on a live table, even by one naming a missing index."""
    writer = table.writer()
    writer.put([{"id": 1, "v": "a"}])
    lake = table.core.lake
    for names in ((), ("id_idx",), ("gone",)):
        base = lake.open_base()
        assert base.mem_wal is not None
        changed = replace(base.mem_wal, maintain_all=False, maintained_indexes=names)
        lake.replace_mem_wal(changed, planned_at=base.version, properties={})
        writer.put([{"id": 2, "v": str(names)}])
        writer.flush()
        assert rows(table) == {1: "a", 2: str(names)}
    writer.close()
    table.compact()
    assert rows(table, freshness="base") == {1: "a", 2: "('gone',)"}


def test_x9_no_promise_rests_on_the_text_of_lances_fencing_error() -> None:
    """lance#7896 gives the error a type; weir detects fencing by its own reads of the store."""
    assert len(SOURCES) > 100
    assert not [path for path in SOURCES if "Writer fenced" in path.read_text(encoding="utf-8")]
