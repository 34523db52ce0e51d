"""F-15: pylance can replay whatever weir leaves in a log, with the table's own settings."""

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import weir
from weir.config import WriterConfig
from weir.format.wal_entry import EntryEncoder

pytestmark = pytest.mark.interop

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.int64())])


def make(folder: Path, **defaults: Any) -> weir.Table:
    return weir.create(
        str(folder / "t"),
        SCHEMA,
        primary_key="id",
        sharding=None,
        writer_defaults=WriterConfig(**defaults),
    )


def rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "x": pa.array(ids, pa.int64())})


def count_natively(table: weir.Table) -> int:
    """Count what a native writer with the table's settings replays; it closes cleanly."""
    stored = table.writer_defaults  # pylance's Python interface does not read them by itself
    writer = lance.dataset(table.uri).mem_wal_writer(
        str(table.shards()[0].id),
        max_memtable_rows=stored.max_memtable_rows,
        max_memtable_batches=stored.max_memtable_batches,
    )
    found: int = writer.lsm_scanner().to_table().num_rows
    writer.put(rows(10_000_000, 1))
    writer.close()
    assert weir.open(table.uri).scan().count() == found + 1
    return found


def test_f15_pylance_opens_what_two_large_puts_and_a_death_left(tmp_path: Path) -> None:
    table = make(tmp_path)
    writer = table.shards()[0].writer()
    writer.put(rows(0, 60_000))
    writer.put(rows(60_000, 60_000))
    assert count_natively(table) == 120_000


@pytest.mark.parametrize("memtable", [True, False], ids=["memtable", "wal-only"])
def test_f15_a_writer_with_larger_settings_keeps_to_the_tables(
    tmp_path: Path, memtable: bool
) -> None:
    table = make(tmp_path, max_memtable_rows=10, max_memtable_batches=4)
    large = WriterConfig(
        enable_memtable=memtable,
        max_memtable_rows=1_000,
        max_memtable_batches=1_000,
        durable_write=False,
        max_wal_flush_interval="1h",
    )
    for life in range(4):  # each writer dies and leaves its rows in the log
        writer = table.shards()[0].writer(large)
        for n in range(4):
            writer.put(rows(life * 16 + n * 4, 4))
            writer.flush_wal()
    assert count_natively(table) == 64


@pytest.mark.parametrize("memtable", [True, False], ids=["memtable", "wal-only"])
def test_f15_a_put_of_many_batches_is_replayed_in_the_room_there_is(
    tmp_path: Path, memtable: bool
) -> None:
    table = make(tmp_path, max_memtable_rows=100_000, max_memtable_batches=3)
    writer = table.shards()[0].writer(WriterConfig(enable_memtable=memtable))
    writer.put(pa.Table.from_batches(rows(0, 12_000).to_batches(max_chunksize=2_000)))
    writer.put(rows(12_000, 5))
    assert count_natively(table) == 12_005


def test_f15_an_adopted_tables_bounds_are_those_pylance_goes_by(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    key = {"lance-schema:unenforced-primary-key": "true"}
    schema = pa.schema([SCHEMA.field("id").with_metadata(key), SCHEMA.field("x")])
    lance.write_dataset(schema.empty_table(), uri)
    lance.dataset(uri).initialize_mem_wal(unsharded=True, max_memtable_rows=5)
    table = weir.enable(uri, writer_defaults=WriterConfig(max_memtable_rows=500))
    assert table.writer_defaults.max_memtable_rows == 5
    writer = table.shards()[0].writer()
    for n in range(4):
        writer.put(rows(n * 4, 4))
    assert count_natively(table) == 16


@pytest.mark.parametrize("tagged", [True, False])
def test_f14_the_generation_stays_where_pylance_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tagged: bool
) -> None:
    """Why weir writes no entries that LanceDB 0.40 could replay: pylance's rows would be lost.

    Two acknowledged puts of a pylance writer follow weir's entries. A writer with too little room
    opens the shard and fails; one with enough room continues. Weir does not run in between. If the
    second case begins to fail, an option for tables shared only with LanceDB has become possible.
    """
    plain = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])
    table = weir.create(str(tmp_path / "t"), plain, primary_key="id")
    shard = str(table.shards()[0].id)
    if not tagged:
        with_tag = EntryEncoder._stream_schema

        def without(self: EntryEncoder, *args: object) -> pa.Schema:
            found = with_tag(self, *args)  # type: ignore[arg-type]
            kept = {k: v for k, v in found.metadata.items() if k != b"generation"}
            return found.with_metadata(kept)

        monkeypatch.setattr(EntryEncoder, "_stream_schema", without)
    writer = table.writer()
    for n in range(10):
        writer.put([{"id": n, "v": "weir"}])

    def native(*pairs: tuple[int, str], room: int) -> Any:
        opened = lance.dataset(table.uri).mem_wal_writer(shard, max_memtable_rows=room)
        for key, value in pairs:
            opened.put(pa.table({"id": [key], "v": [value]}, schema=plain))
        return opened

    left = native((0, "acknowledged"), (100, "acknowledged"), room=1000)  # never closed
    with pytest.raises(OSError, match="past what the memtable"):
        native((200, "no"), room=2)
    native((201, "last"), room=1000).close()
    found = {row["id"]: row["v"] for row in weir.open(table.uri).scan().to_table().to_pylist()}
    kept = (found[0], found.get(100)) == ("acknowledged", "acknowledged")
    assert kept is tagged
    assert found[201] == "last"
    del left
