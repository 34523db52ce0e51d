"""L-6: by default a compaction folds every log whose rows no writer keeps in memory."""

import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

import weir
from weir.format.manifest import ShardManifest
from weir.read.survey import ShardSurvey
from weir.routing.core import Core
from weir.testing.seaweed import SeaweedServer
from weir.upkeep.compact import run
from weir.upkeep.compact.policy import CompactionPolicy

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
    assert "log entries" in str(CompactionPolicy(entries=2).due(table))
    assert "bytes" in str(CompactionPolicy(bytes=1).due(table))
    assert "waited" in str(CompactionPolicy(age=0).due(table))
    assert CompactionPolicy().due(table) is None
    report = table.compact()
    assert (report.rows_written, report.notes) == (12, [])
    assert CompactionPolicy(age=0, entries=1).due(table) is None
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
        writer.put(rows(20))
        report = weir.open(table.uri).compact()
        # Without a key, entries of the generation being filled look the same as later ones.
        assert report.rows_written == (3 if keyed else 0)
        assert ("until its writer closes" if keyed else "did not close") in report.notes[0]
        writer.put(rows(10))
    table.compact()
    wanted = Counter([*range(3), *range(10, 13), *range(20, 23)])
    assert seen(table, "base") == seen(table) == wanted


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


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("config", [None, WAL_ONLY], ids=["MemTable", "WAL-only"])
def test_l6_a_fold_of_all_logs_fences_their_writers(
    tmp_path: Path, config: weir.WriterConfig | None, keyed: bool
) -> None:
    """One word, one meaning: on every table, of every writer whose log holds rows."""
    table = make(tmp_path, keyed=keyed)
    writer = table.shard(0).writer(config)
    writer.put(rows(0))
    report = weir.open(table.uri).compact(fold_wal=True)
    assert (report.rows_written, report.notes) == (3, [])
    assert seen(weir.open(table.uri), "base") == Counter(range(3))
    with pytest.raises(weir.FencedError):
        writer.put(rows(10))
    assert seen(weir.open(table.uri)) == Counter(range(3))


def test_l6_a_fold_of_all_logs_fences_nobody_whose_log_is_empty(tmp_path: Path) -> None:
    table = make(tmp_path, keyed=True)
    with table.shard(0).writer(WAL_ONLY) as writer:
        assert not weir.open(table.uri).compact(fold_wal=True).rows_written
        writer.put(rows(0))
    assert seen(table) == Counter(range(3))


def test_l6_the_report_counts_the_entries_that_left_the_log(tmp_path: Path) -> None:
    """Entries of the generation that a writer is filling stay, and are not counted."""
    config = weir.WriterConfig(enable_memtable=False, max_memtable_rows=6)
    table = weir.create(str(tmp_path / "t"), SCHEMA, writer_defaults=config)
    with table.shard(0).writer() as writer:
        for start in range(0, 50, 3):
            writer.put(rows(start))
        before = table.shards()[0].manifest().replay_after
        report = weir.open(table.uri).compact()
        after = table.shards()[0].manifest().replay_after
        assert 0 < report.wal_entries == after - before
        assert "stay in the log" in report.notes[0]
        assert CompactionPolicy(age=0, entries=1).due(table) is None, "nothing that could be folded"


def test_l6_the_logs_of_several_shards_are_published_at_the_same_time(
    s3: SeaweedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, a compaction of many shards took the sum of their requests."""
    uri, options = f"s3://weir-test/{uuid.uuid4().hex}", s3.storage_options()
    table = weir.create(uri, SCHEMA, sharding=weir.Bucket("id", 4), storage_options=options)
    with table.writer(WAL_ONLY) as writer:
        writer.put(rows(0, 100))
    together = threading.Barrier(4, timeout=10)
    publish = run.publish_closed

    def met(core: Core, one: ShardSurvey) -> ShardManifest:
        together.wait()
        return publish(core, one)

    monkeypatch.setattr(run, "publish_closed", met)
    assert weir.open(uri, storage_options=options).compact().rows_written == 100
