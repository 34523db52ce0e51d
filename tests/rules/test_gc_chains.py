"""Collection trims every chain of the table's own records, and leaves those that count (G-9)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa

import weir
from weir.format import paths
from weir.log.floors import Floors
from weir.records.lineage import read_lineage
from weir.records.marks import MARKS_KEPT
from weir.upkeep.gc.records import RECORDS_KEPT

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def test_g9_the_records_of_many_restores_are_trimmed_and_the_last_one_counts(
    tmp_path: Path,
) -> None:
    config = weir.WriterConfig(fence_ttl=0)
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults=config)
    with table.writer() as writer:
        writer.put([{"id": 1}])
    checkpoint = table.checkpoint()
    for _ in range(RECORDS_KEPT // 2 + 2):
        table.restore(checkpoint)
    store, last = table.core.store, read_lineage(table.core.store)

    def records() -> set[str]:
        return {meta.path for meta in store.list(paths.clone_chain())}

    before = records()
    dry = table.gc(min_age=0, fence_retention=0, kinds=["leftovers"], dry_run=True)
    assert records() == before
    real = table.gc(min_age=0, fence_retention=0, kinds=["leftovers"])
    assert real.errors == []
    assert dry.kind("leftovers").deleted == real.kind("leftovers").deleted > 0
    assert len(records()) == RECORDS_KEPT < len(before)
    assert read_lineage(store) == last
    assert table.restore(checkpoint).checkpoint == checkpoint.id
    assert table.scan().to_table().to_pylist() == [{"id": 1}]


def test_g8_marks_of_every_kind_are_trimmed_and_the_highest_counts(tmp_path: Path) -> None:
    """A durable checkpoint of an open log leaves a mark, and so does each move of the log."""
    config = weir.WriterConfig(fence_ttl=0)
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults=config)
    shard = table.shards()[0].id
    floors = Floors(table.core.table_site(shard))

    def marks() -> Counter[str]:
        listed = table.core.store.list(paths.floors_dir(shard))
        return Counter(meta.path.split("/")[-2] for meta in listed)

    for turn in range(5):
        table.move_wal(str(tmp_path / f"wal-{turn}"))
    with table.writer() as writer:
        for key in range(5):
            writer.put([{"id": key}])
            table.delete_checkpoint(table.checkpoint("durable"))
        before = floors.load()
        assert {kind: count for kind, count in marks().items() if count > MARKS_KEPT} == {
            "place": 5,
            "used": 5,
        }
        assert table.gc(min_age=0, fence_retention=0, dry_run=True).ok
        assert marks()["used"] == 5
        assert table.gc(min_age=0, fence_retention=0).ok
        after = floors.load()
        assert (after.used, after.place) == (before.used, before.place)
        assert marks()["used"] == marks()["place"] == MARKS_KEPT
    assert table.count() == 5


def test_g11_beside_a_damaged_record_the_older_ones_stay(tmp_path: Path) -> None:
    """They are what the table can be repaired from."""
    config = weir.WriterConfig(fence_ttl=0)
    table = weir.create(str(tmp_path / "t"), SCHEMA, writer_defaults=config)
    store = table.core.store
    chain = [paths.chain_path(paths.keep_chain(), n) for n in range(1, RECORDS_KEPT + 4)]
    for path in chain:
        store.put(path, b"{}")
    store.put(chain[-1], b"{")
    report = table.gc(min_age=0, fence_retention=0, kinds=["leftovers"])
    assert [chain[-1] in error for error in report.errors] == [True]
    assert sorted(meta.path for meta in store.list(paths.keep_chain())) == chain
    store.put(chain[-1], b"{}")
    assert table.gc(min_age=0, fence_retention=0, kinds=["leftovers"]).ok
    assert len(list(store.list(paths.keep_chain()))) == RECORDS_KEPT
