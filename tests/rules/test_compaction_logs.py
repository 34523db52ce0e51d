"""L-6: by default a compaction folds every log whose rows no writer keeps in memory."""

import uuid
from collections import Counter
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

import weir
from weir.upkeep.compact.run import CompactionPolicy

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])
WAL_ONLY = weir.WriterConfig(enable_memtable=False)


def make(tmp_path: Path, *, keyed: bool) -> weir.Table:
    return weir.create(
        str(tmp_path / uuid.uuid4().hex), SCHEMA, primary_key="id" if keyed else None
    )


def rows(start: int, count: int = 3) -> list[dict[str, object]]:
    return [{"id": start + n, "v": "x"} for n in range(count)]


def seen(table: weir.Table, freshness: Literal["base", "durable"] = "durable") -> Counter[int]:
    return Counter(table.scan(["id"], freshness=freshness).to_table()["id"].to_pylist())


@pytest.mark.parametrize("keyed", [True, False])
def test_l6_what_writers_without_a_memtable_left_is_folded_unasked(
    tmp_path: Path, keyed: bool
) -> None:
    table = make(tmp_path, keyed=keyed)
    for start in (0, 10):
        with table.shard(0).writer(WAL_ONLY) as writer:
            writer.put(rows(start))
            writer.put(rows(start + 3))
    assert CompactionPolicy(entries=2).due(table) is not None or not keyed
    report = table.compact()
    assert (report.rows_written, report.notes) == (12, [])
    assert seen(table, "base") == seen(table) == Counter([*range(6), *range(10, 16)])
    # Later writers continue above the rows in the base, and their rows are folded too.
    with table.shard(0).writer(WAL_ONLY) as writer:
        writer.put(rows(20))
    with table.shard(0).writer() as writer:
        writer.put(rows(30))
    table.compact()
    assert seen(table, "base") == seen(table)
    assert seen(table).total() == 18
    assert max(seen(table).values()) == 1


@pytest.mark.parametrize("keyed", [True, False])
def test_l6_a_live_writer_without_a_memtable_goes_on_beside_a_fold(
    tmp_path: Path, keyed: bool
) -> None:
    table = make(tmp_path, keyed=keyed)
    with table.shard(0).writer(WAL_ONLY) as writer:
        writer.put(rows(0))
        report = weir.open(table.uri).compact()
        # Without a key, entries of the generation being filled look the same as later ones.
        assert report.rows_written == (3 if keyed else 0)
        assert keyed or "did not close" in report.notes[0]
        writer.put(rows(10))
    table.compact()
    assert seen(table, "base") == seen(table) == Counter([*range(3), *range(10, 13)])


@pytest.mark.parametrize("keyed", [True, False])
def test_l6_what_a_memtable_writer_holds_is_left_and_said(tmp_path: Path, keyed: bool) -> None:
    table = make(tmp_path, keyed=keyed)
    with table.shard(0).writer() as writer:
        writer.put(rows(0))
        report = weir.open(table.uri).compact()
        assert report.rows_written == 0
        assert "rows up to position 2 stay in the log" in report.notes[0]
        assert "holds them in memory" in report.notes[0]
        writer.put(rows(10))
        writer.flush()
    table.compact()
    assert seen(table, "base") == seen(table) == Counter([*range(3), *range(10, 13)])


@pytest.mark.parametrize("keyed", [True, False])
def test_l6_what_a_dead_writer_left_is_folded_when_asked(tmp_path: Path, keyed: bool) -> None:
    table = make(tmp_path, keyed=keyed)
    table.shard(0).writer(WAL_ONLY).put(rows(0))  # never closed
    weir.open(table.uri).compact(fold_wal=True)
    assert seen(weir.open(table.uri), "base") == Counter(range(3))


def test_l6_a_writer_that_left_does_not_speak_for_its_successor(tmp_path: Path) -> None:
    table = make(tmp_path, keyed=False)
    with table.shard(0).writer(WAL_ONLY) as first:
        first.put(rows(0))
    with table.shard(0).writer(WAL_ONLY) as second:
        second.put(rows(10))
        weir.open(table.uri).compact()
        second.put(rows(20))
        assert seen(weir.open(table.uri)) == Counter([*range(3), *range(10, 13), *range(20, 23)])
    table.compact()
    assert seen(table, "base") == Counter([*range(3), *range(10, 13), *range(20, 23)])
