"""The survey of all shards: what a job asks of the store, and that the rounds do not grow."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import weir
from tests.support.tables import count_requests
from weir.read.stats import collect_stats
from weir.read.survey import survey
from weir.upkeep.compact.policy import CompactionPolicy

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
TABLE = 16
"""Requests of a compaction that do not depend on the shards: its chain, records, the base."""


def make(path: Path, shards: int, *, keyed: bool = True, memtable: bool = True) -> weir.Table:
    return weir.create(
        str(path),
        SCHEMA,
        primary_key="id" if keyed else None,
        sharding=weir.Bucket("id", shards),
        writer_defaults=weir.WriterConfig(enable_memtable=memtable),
    )


def fill(table: weir.Table, shards: int) -> weir.TableWriter:
    writer = table.writer()
    writer.put([{"id": n, "v": 0} for n in range(shards * 16)])
    return writer


@pytest.mark.parametrize("memtable", [True, False])
@pytest.mark.parametrize("keyed", [True, False])
def test_l4_a_compaction_without_work_asks_ten_requests_of_an_open_shard(
    tmp_path: Path, keyed: bool, memtable: bool
) -> None:
    table = make(tmp_path / "t", 16, keyed=keyed, memtable=memtable)
    with fill(table, 16):
        handle = weir.open(table.uri)
        counting = count_requests(handle)
        handle.compact()
        counting.reset()
        report = handle.compact()
    assert report.job is None
    assert counting.requests <= 10 * 16 + TABLE


def test_l4_a_compaction_without_work_asks_two_requests_of_a_sealed_shard(tmp_path: Path) -> None:
    table = make(tmp_path / "t", 32)
    fill(table, 32).close()
    table.reshard(weir.Bucket("id", 2))
    table.compact()
    handle = weir.open(table.uri)
    counting = count_requests(handle)
    handle.compact()
    counting.reset()
    assert handle.compact().job is None
    assert counting.requests <= 2 * 32 + 10 * 2 + TABLE


def test_l4_a_compaction_without_work_asks_two_requests_of_a_shard_whose_writer_has_left(
    tmp_path: Path,
) -> None:
    table = make(tmp_path / "t", 32)
    fill(table, 32).close()
    handle = weir.open(table.uri)
    counting = count_requests(handle)
    handle.compact()
    counting.reset()
    assert handle.compact().job is None
    assert counting.requests <= 2 * 32 + TABLE


def test_l4_the_sstables_of_a_shard_add_no_more_than_six_requests_to_a_compaction(
    tmp_path: Path,
) -> None:
    table = make(tmp_path / "t", 16)
    fill(table, 16).close()
    handle = weir.open(table.uri)
    counting = count_requests(handle)
    handle.compact()
    with handle.writer() as writer:
        writer.put([{"id": n, "v": 1} for n in range(256)])
    counting.reset()
    assert handle.compact().rows_written == 256
    assert counting.requests <= 16 * 16 + 2 * TABLE


def rounds(path: Path, shards: int) -> dict[str, int]:
    """Calls of the store, each one round of requests, by a handle that knows the table."""
    table = make(path, shards)
    fill(table, shards).close()
    handle = weir.open(table.uri)
    counting = count_requests(handle)
    handle.compact()
    taken = {}
    for name, job in (
        ("survey", lambda: survey(handle.core)),
        ("compact", handle.compact),
        ("stats", lambda: collect_stats(handle.core)),
        ("due", lambda: CompactionPolicy().due(handle)),
        ("warm scan", lambda: handle.scan().to_table()),
    ):
        job()
        counting.reset()
        job()
        taken[name] = counting.calls.total()
        assert counting.requests <= 10 * shards + TABLE, name
    return taken


def test_l4_more_shards_take_more_requests_but_no_more_rounds(tmp_path: Path) -> None:
    assert rounds(tmp_path / "few", 4) == rounds(tmp_path / "many", 96)


def requests(path: Path, shards: int) -> dict[str, tuple[int, int]]:
    """Requests and rounds of jobs on a table where 64 shards have rows, by a handle that knows
    it. A collection lists each shard, and looks into its log, many at once: those requests are
    counted, the others are its rounds."""
    table = weir.create(str(path), SCHEMA, primary_key="id", sharding=weir.Identity("id"))
    with table.writer() as writer:
        writer.put([{"id": n, "v": 0} for n in range(64)])
    for value in range(64, shards):
        table.core.ensure_shard(value)
    handle = weir.open(table.uri)
    counting = count_requests(handle)
    taken = {}
    for name, job in (
        ("survey", lambda: survey(handle.core)),
        ("compact", handle.compact),
        ("gc", lambda: handle.gc(min_age=0)),
        ("stats", lambda: collect_stats(handle.core)),
        ("warm scan", lambda: handle.scan().to_table()),
    ):
        job()
        counting.reset()
        job()
        alone = ("list", "get_range") if name == "gc" else ()
        taken[name] = (
            counting.requests,
            sum(times for verb, times in counting.calls.items() if verb not in alone),
        )
    return taken


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_l4_ten_thousand_shards_take_ten_times_the_requests_of_a_thousand(tmp_path: Path) -> None:
    few, many = requests(tmp_path / "few", 1_000), requests(tmp_path / "many", 10_000)
    for name, (asked, rounds_of_few) in few.items():
        assert many[name][0] <= 10 * asked, (few, many)
        assert many[name][1] == rounds_of_few, (few, many)


@pytest.mark.parametrize("keyed", [True, False])
def test_l6_rows_in_logs_make_a_table_due_whether_it_has_a_key_or_not(
    tmp_path: Path, keyed: bool
) -> None:
    table = make(tmp_path / "t", 2, keyed=keyed, memtable=False)
    fill(table, 2).close()
    policy = CompactionPolicy(entries=1)
    assert "log entries" in (policy.due(table) or "")
    table.compact()
    assert policy.due(table) is None
