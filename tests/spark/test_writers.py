"""Writers that stay open between micro-batches: what a batch costs, and who closes them."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import weir
from tests.support.spark import SCHEMA, in_weir, make_table, once
from tests.support.tables import CountingStore, count_requests
from weir.format import paths
from weir.spark import writers
from weir.spark.options import write_spec_of
from weir.spark.places import Place
from weir.spark.shard_sink import ShardSink, Token
from weir.spark.sink import stream_writer
from weir.spark.types import spark_schema
from weir.spark.writers import ShardWriters
from weir.testing.faulty import FaultyStores


def batch(rows: dict[int, str]) -> pa.RecordBatch:
    columns = {"id": list(rows), "v": list(rows.values())}
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def put(kept: ShardWriters, number: int, rows: dict[int, str], **options: str) -> None:
    """One batch of a table of one shard."""
    asked = write_spec_of(options) if options else None
    sink = ShardSink(kept, 0, Token("app", number), asked=asked)
    sink.add(batch(rows))
    sink.finish()


def epochs(table: weir.Table) -> set[int]:
    return {shard.manifest().writer_epoch for shard in weir.open(table.uri).shards()}


class Stream:
    """Micro-batches of one query, as Spark runs them: a task, and a commit in another process."""

    def __init__(self, table: weir.Table) -> None:
        self.table = table
        self.place = Place(table.uri)
        self.store: CountingStore = count_requests(self.place.current())

    def writer(self) -> Any:
        options = {"path": self.table.uri}
        return stream_writer(options, spark_schema(self.table.schema), overwrite=False)

    def commit(self, number: int, rows: dict[int, str]) -> int:
        """Requests of the commit, beside those for its staged files."""
        done = self.writer()._sink.write(iter([batch(rows)]), None)
        self.store.reset()
        self.writer().commit([replace(done, query="q")], number)
        return self.store.requests - len(done.staged) - 1  # a get each, and one delete of all


@pytest.mark.parametrize("shards", [1, 4])
def test_p2_a_batch_through_writers_that_are_open_costs_six_requests_a_shard(
    tmp_path: Path, shards: int
) -> None:
    table = make_table(tmp_path, buckets=shards)
    stream, rows = Stream(table), dict.fromkeys(range(50), "v")
    costs = [stream.commit(number, rows) for number in range(5)]
    assert max(costs[1:]) <= 6 * shards
    assert epochs(table) == {1}
    stream.place.writers().close()
    stream.store.reset()
    cold = stream.commit(5, rows | {99: "last"})
    stream.place.writers().close()
    assert cold <= 30 * shards + 2  # and the record of the table
    assert epochs(table) == {2}
    assert in_weir(table) == once(rows | {99: "last"})


def test_p2_processes_that_commit_in_turn_fence_each_other_and_lose_nothing(tmp_path: Path) -> None:
    table = make_table(tmp_path, keyed=False, buckets=1)
    kept = [ShardWriters(weir.open(table.uri).core) for _ in range(2)]
    for number, turn in enumerate([0, 0, 1, 0, 0, 1, 1]):
        put(kept[turn], number, {number: "x"})
        put(kept[1 - turn], number, {number: "x"})  # the same batch again, by a zombie
    assert in_weir(table) == once(dict.fromkeys(range(7), "x"))


def test_a_kept_writer_is_closed_by_its_timer(tmp_path: Path) -> None:
    table = make_table(tmp_path, buckets=1)
    kept = ShardWriters(table.core, idle_seconds=0.0)
    put(kept, 0, {1: "a"})
    for thread in threading.enumerate():
        if thread.name == "weir-spark-idle":
            thread.join(timeout=60)
    writer = table.core.registered_writers[table.shard(0).id]
    assert not writer.is_open
    put(kept, 1, {2: "b"})
    assert in_weir(table) == once({1: "a", 2: "b"})


def test_a_job_without_a_name_leaves_no_writer_open(tmp_path: Path) -> None:
    table = make_table(tmp_path, buckets=1)
    kept = ShardWriters(table.core)
    sink = ShardSink(kept, 0, Token(f"{paths.JOB_APP}1", 0))
    sink.add(batch({1: "a"}))
    sink.finish()
    assert table.core.live_writer(table.shard(0).id) is None


def test_p1_a_job_whose_rows_are_in_does_not_fail_when_its_writer_cannot_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run again, a job without a name would double the rows of an append-only table."""
    monkeypatch.setattr(writers, "GAP_ENTRIES", 1)  # the writer flushes at its close
    table = make_table(tmp_path, buckets=1, keyed=False)
    faulty = FaultyStores()
    kept = ShardWriters(weir.open(table.uri, env=faulty.env).core)
    for number in range(3):
        sink = ShardSink(kept, 0, Token(f"{paths.JOB_APP}{number}", 0))
        sink.add(batch({number: "x"}))
        sink.claim(SCHEMA)
        faulty.at(table.uri).on("put_if_absent", "*/manifest/*").refuse(times=None)
        sink.finish()
        assert sink.applied
        faulty.at(table.uri).heal()
    assert in_weir(table) == once(dict.fromkeys(range(3), "x"))


def test_a_kept_writer_bounds_the_log_without_a_new_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "GAP_ENTRIES", 6)
    table = make_table(tmp_path, buckets=1)
    kept = ShardWriters(table.core)
    for number in range(40):
        put(kept, number, {number: "x"})
        manifest = table.shard(0).manifest()
        assert table.shard(0).tailer().tip() - manifest.replay_after <= 7
    assert epochs(table) == {2}  # the first was WAL-only; the second flushes by itself
    assert in_weir(table) == once(dict.fromkeys(range(40), "x"))


def test_o2_a_stream_that_decides_keeps_its_writer_too(tmp_path: Path) -> None:
    table = make_table(tmp_path, buckets=1)
    kept = ShardWriters(table.core)
    put(kept, 0, {1: "a"})
    for number in range(1, 5):
        rows = {1: f"b{number}", number + 1: "new"}
        put(kept, number, rows, **{"weir.write": "insert", "onconflict": "skip"})
    assert epochs(table) == {2}
    assert in_weir(table) == once({1: "a"} | dict.fromkeys(range(2, 6), "new"))


def test_a_column_added_between_two_batches_reaches_the_table(tmp_path: Path) -> None:
    table = make_table(tmp_path, buckets=1)
    kept = ShardWriters(weir.open(table.uri).core)
    put(kept, 0, {1: "a"})
    lance.dataset(table.uri).add_columns(pa.schema([("w", pa.int64())]))
    wide = pa.table({"id": [2], "v": ["b"], "w": pa.array([7], pa.int64())})
    sink = ShardSink(kept, 0, Token("app", 1))
    sink.add(wide.to_batches()[0])
    sink.finish()
    found = weir.open(table.uri).scan().to_table().sort_by("id").to_pylist()
    assert found == [{"id": 1, "v": "a", "w": None}, {"id": 2, "v": "b", "w": 7}]
