"""M-1 to M-8, and the parts of W and F that a writer keeps: one ShardWriter, two modes."""

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.support.local_shard import LocalShard, ids, row
from tests.support.threads import until_queued
from weir.errors import (
    Backpressure,
    FencedError,
    InvalidInput,
    SchemaMismatch,
    StoreDenied,
    UnknownOutcome,
    WalOnlyMode,
    WeirError,
    WriterClosed,
)
from weir.shard.ack import Ack
from weir.testing.fault_store import Crash


@pytest.fixture
def shard(tmp_path) -> LocalShard:
    return LocalShard(tmp_path / "t")


@pytest.fixture
def append_only(tmp_path) -> LocalShard:
    return LocalShard(tmp_path / "a", key=False)


MODES = pytest.mark.parametrize("memtable", [True, False], ids=["memtable", "wal-only"])


def test_m1_a_put_is_visible_when_it_returns_and_the_newest_row_wins(shard: LocalShard) -> None:
    with shard.writer() as w:
        w.put([row(1, 1.0), row(2, 2.0)])
        w.put([row(1, 5.0)])
        assert w.get([1]).to_pylist() == [row(1, 5.0)]
        w.delete([2])
        assert ids(w) == [1]
        assert w.get([2]).num_rows == 0
        w.put([row(2, 7.0)])
        assert w.get([2, 1]).column("x").to_pylist() == [7.0, 5.0]


def test_m1_reads_are_the_same_before_during_and_after_flush(shard: LocalShard) -> None:
    with shard.writer() as w:
        w.put([row(i) for i in range(5)])
        w.flush()
        w.delete([0])
        w.put([row(1, 9.0)])
        gate = shard.faults.on("put_if_absent", "*/manifest/*").pause()
        flusher = threading.Thread(target=w.flush)
        flusher.start()
        gate.wait_reached()
        assert ids(w) == [1, 2, 3, 4]  # the SSTable is written, not yet published
        assert w.get([1]).column("x").to_pylist() == [9.0]
        gate.release()
        flusher.join()
        assert ids(w) == [1, 2, 3, 4]
        assert w.get([0, 1]).column("x").to_pylist() == [9.0]


def test_m2_a_wal_only_writer_has_no_memtable_and_says_so(shard: LocalShard) -> None:
    with shard.writer(enable_memtable=False) as w:
        w.put([row(1)])
        for call in (lambda: w.scan(), lambda: w.get([1]), w.memtable_stats, w.flush):
            with pytest.raises(WalOnlyMode):
                call()
        assert w._state.memtables is None
        assert w.stats().memtable is None
    assert shard.logged_ids() == [1]
    assert shard.manifest().sstables == ()


def test_m2_index_settings_on_a_wal_only_writer_are_refused_before_anything_is_written(
    shard: LocalShard,
) -> None:
    from weir.config import IndexConfig

    with pytest.raises(InvalidInput, match="index_configs"):
        shard.writer(enable_memtable=False, index_configs=(IndexConfig("i", "x", "btree"),))
    assert not shard.faults.events("write")


@MODES
@pytest.mark.parametrize("failures", [1, 5])
def test_m3_a_failed_append_drops_nothing_and_keeps_the_order(
    shard: LocalShard, memtable: bool, failures: int
) -> None:
    with shard.writer(enable_memtable=memtable) as w:
        shard.faults.on("put_if_absent", "*/wal/*").refuse(times=3 * failures)
        for i in range(10):
            w.put([row(i)], wait=False)
        w.flush_wal()
        assert shard.logged_ids() == list(range(10))
        assert w.wal_stats().append_failures >= failures


@MODES
def test_m3_a_store_that_stays_down_gives_everything_back(
    shard: LocalShard, memtable: bool
) -> None:
    w = shard.writer(enable_memtable=memtable, durable_write=False, max_wal_flush_interval="1h")
    w.put([row(0)], wait=True)
    shard.faults.on("put_if_absent", "*/wal/*").refuse(times=None)
    acks = [w.put([row(i)], wait=False) for i in (1, 2)]
    with pytest.raises(WriterClosed) as closed:
        acks[0].wait()
    assert closed.value.unacknowledged[0].column("id").to_pylist() == [1]
    with pytest.raises(WriterClosed) as closed:
        w.close()
    assert [b.column("id").to_pylist() for b in closed.value.not_written] == [[2]]  # 1 was reported
    assert shard.logged_ids() == [0]


def test_m4_puts_go_on_during_a_flush_and_a_flush_is_one_commit(shard: LocalShard) -> None:
    with shard.writer() as w:
        w.put([row(1)])
        before = shard.manifest().version
        gate = shard.faults.on("put_if_absent", "*/manifest/*").pause()
        flusher = threading.Thread(target=w.flush)
        flusher.start()
        gate.wait_reached()
        w.put([row(2)])
        assert ids(w) == [1, 2]
        gate.release()
        flusher.join()
        manifest = shard.manifest()
        assert manifest.version == before + 1
        assert [t.generation for t in manifest.sstables] == [1]
        assert manifest.replay_after == 2  # the entry of row 1, not of row 2
        assert ids(w) == [1, 2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("when", ["before", "after"])
def test_m4_a_crash_at_any_write_of_a_flush_loses_nothing(tmp_path, when: str) -> None:
    for k in range(1, 30):
        shard = LocalShard(tmp_path / f"{when}{k}")
        w = shard.writer()
        w.put([row(1), row(2)])
        w.delete([2])
        shard.faults.crash_at(k, when)
        crashed = threading.Thread(target=_flush_until_crash, args=(w,))
        crashed.start()
        crashed.join(10)
        done = not any("crash" in event.outcome for event in shard.faults.log)
        fresh = LocalShard.__new__(LocalShard)
        fresh.__dict__.update(shard.__dict__)
        _reconnect(fresh)
        with fresh.writer() as again:
            assert ids(again) == [1]
        manifest = fresh.manifest()
        assert manifest.replay_after == manifest.last_seen
        if done:
            return
    pytest.fail("the flush never finished without a crash")


def _flush_until_crash(w) -> None:
    with contextlib.suppress(Crash, WeirError):
        w.flush()


def _reconnect(shard: LocalShard) -> None:
    """Act as a new process on the same table: no fault plan, nothing cached."""
    from weir.lake.pylance_lake import PylanceLake
    from weir.log.site import ShardSite
    from weir.testing.fault_store import FaultStore

    shard.faults = FaultStore(shard.raw)
    shard.store = shard.faults
    shard.lake = PylanceLake(shard.uri, None, shard.store)
    shard.site = ShardSite(shard.store, shard.store, shard.shard, shard.env)


@MODES
def test_statistics_are_true_right_after_reopen(shard: LocalShard, memtable: bool) -> None:
    w = shard.writer(enable_memtable=False)
    for i in range(3):
        w.put([row(i)])
    w.close()
    again = shard.writer(enable_memtable=memtable)
    assert again.wal_stats().next_position == 6
    assert again.wal_stats().epoch == 2
    assert again.stats().replayed_rows == (3 if memtable else 0)
    again.close()


@MODES
def test_m6_a_put_that_does_not_fit_has_written_what_nobody_waits_for(
    shard: LocalShard, memtable: bool
) -> None:
    """Below the bound but without room, the put used to wait a whole flush interval."""
    w = shard.writer(
        enable_memtable=memtable,
        durable_write=False,
        max_wal_flush_interval="1h",
        max_wal_buffer_size=2000,
        max_unflushed_memtable_bytes=2000,
    )
    for i in range(3):
        w.put([row(i) | {"s": "x" * 1200}], timeout=10)
    w.close()
    assert sorted(shard.logged_ids()) == [0, 1, 2]


@MODES
def test_m6_memory_is_bounded_and_a_put_waits_or_says_backpressure(
    shard: LocalShard, memtable: bool
) -> None:
    limit = 4000
    w = shard.writer(
        enable_memtable=memtable,
        max_wal_buffer_size=1000,
        max_unflushed_memtable_bytes=limit,
        max_memtable_rows=10,
    )
    path = "*/manifest/*" if memtable else "*/wal/*"
    gate = shard.faults.on("put_if_absent", path).pause()

    def fill() -> None:
        for i in range(10_000):
            w.put([row(i)], wait=memtable, timeout=0.05)
            assert w.stats().held_bytes <= limit

    with pytest.raises(Backpressure, match="bytes is 4000") as full:
        fill()
    assert sum(batch.num_rows for batch in full.value.not_written) == 1  # the rows come back
    assert w.stats().backpressure_waits >= 1
    held = w.stats().held_bytes
    waiting = threading.Thread(target=lambda: w.put([row(99_999)]))
    waiting.start()
    gate.release()
    waiting.join()
    w.close()
    assert held <= limit
    assert 99_999 in shard.logged_ids()


def test_m8_a_flush_waits_for_rows_before_a_decision_that_was_taken_back(
    shard: LocalShard,
) -> None:
    """The last in the queue was an insert whose time was up, and the flush took it for done."""
    w = shard.writer()
    gate = shard.faults.on("put_if_absent", "*/wal/*").pause()
    w.put([row(1)], wait=False)
    gate.wait_reached()
    w.put([row(2)], wait=False)
    with pytest.raises((Backpressure, TimeoutError)):
        w.insert([row(3)], timeout=0.01)
    with pytest.raises(TimeoutError):
        w.flush_wal(timeout=0.01)
    gate.release()
    w.flush_wal()
    assert sorted(shard.logged_ids()) == [1, 2]
    w.close()


def test_m6_a_flush_waits_for_a_put_that_waited_for_room_without_spinning(
    shard: LocalShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate that had opened when the put was accepted was the one that the flush waited at."""
    w = shard.writer(
        enable_memtable=False,
        durable_write=False,
        max_wal_buffer_size=1,
        max_unflushed_memtable_bytes=2000,
    )
    first = shard.faults.on("put_if_absent", "*/wal/*").pause()
    second = shard.faults.on("put_if_absent", "*/wal/*").pause()
    w.put([row(0) | {"s": "x" * 1200}])
    first.wait_reached()
    entered, may_return = threading.Event(), threading.Event()
    was_open: list[bool] = []
    passing = Ack.pass_gate

    def pass_gate(ack: Ack, gate: Any, timeout: float | None) -> bool:
        if threading.current_thread() is flushing:
            was_open.append(not gate.locked())
            entered.set()
            return passing(ack, gate, timeout)
        in_time = passing(ack, gate, timeout)
        may_return.wait()  # the putter is slow to run on
        return in_time

    monkeypatch.setattr(Ack, "pass_gate", pass_gate)
    waiting = threading.Thread(target=lambda: w.put([row(1) | {"s": "x" * 1200}]))
    flushing = threading.Thread(target=w.flush_wal)
    waiting.start()
    while w.stats().backpressure_waits == 0:
        threading.Event().wait(0.001)
    first.release()
    second.wait_reached()
    flushing.start()
    entered.wait()
    may_return.set()
    second.release()
    waiting.join()
    flushing.join()
    assert was_open[0] is False
    assert w.stats().backpressure_seconds > 0
    w.close()
    assert sorted(shard.logged_ids()) == [0, 1]


def test_m7_concurrent_puts_share_an_entry_and_each_is_acknowledged_when_it_is_durable(
    shard: LocalShard,
) -> None:
    with shard.writer() as w:
        gate = shard.faults.on("put_if_absent", "*/wal/*").pause(times=1)
        with ThreadPoolExecutor(17) as pool:
            first = pool.submit(w.put, [row(0)])
            gate.wait_reached()
            rest = [pool.submit(w.put, [row(i)]) for i in range(1, 17)]
            until_queued(w, 17)
            assert not any(f.done() for f in rest)
            gate.release()
            positions = {f.result().position for f in rest}
        assert first.result().position == 2
        assert positions == {3}
        assert w.wal_stats().group_puts_mean == pytest.approx(17 / 2)


@MODES
@pytest.mark.parametrize("durable", [True, False])
def test_m8_close_means_durable(shard: LocalShard, memtable: bool, durable: bool) -> None:
    w = shard.writer(enable_memtable=memtable, durable_write=durable, max_wal_flush_interval="1h")
    for i in range(20):
        w.put([row(i)], wait=False)
    w.close()
    assert shard.logged_ids() == list(range(20))
    w.close()
    with pytest.raises(WriterClosed):
        w.put([row(1)])
    with shard.writer() as again:
        assert ids(again) == list(range(20))


def test_m8_close_says_what_is_left_when_it_cannot_be_durable(shard: LocalShard) -> None:
    w = shard.writer(durable_write=False, max_wal_flush_interval="1h")
    w.put([row(1)])
    shard.faults.on("put_if_absent", "*/wal/*").deny(times=None)
    with pytest.raises(WriterClosed) as closed:
        w.close()
    assert isinstance(closed.value.__cause__, StoreDenied)
    assert [b.column("id").to_pylist() for b in closed.value.unacknowledged] == [[1]]


def test_buffered_rows_are_written_when_the_buffer_is_full_or_the_interval_passed(
    shard: LocalShard,
) -> None:
    with shard.writer(
        durable_write=False, max_wal_buffer_size=200, max_wal_flush_interval="1h"
    ) as w:
        acks = [w.put([row(i)]) for i in range(30)]
        acks[20].wait(5)
    with shard.writer(durable_write=False, max_wal_flush_interval="1ms") as w:
        w.put([row(99)]).wait(5)


def test_w2_a_clean_close_leaves_no_gap_however_little_happened(shard: LocalShard) -> None:
    for _ in range(5):
        shard.writer().close()
        manifest = shard.manifest()
        assert manifest.replay_after == manifest.last_seen == shard.log()[-1][0]
    with shard.writer() as w:
        w.flush()
        manifest = shard.manifest()
        assert manifest.replay_after == manifest.last_seen == shard.log()[-1][0]


def test_w3_closing_the_gap_needs_no_row_and_no_generation(shard: LocalShard) -> None:
    w = shard.writer()
    entries = len(shard.log())
    w.flush()
    assert len(shard.log()) == entries
    assert shard.manifest().sstables == ()
    w.close()


def test_w4_nothing_is_published_before_its_rows_are_in_the_log(shard: LocalShard) -> None:
    w = shard.writer(durable_write=False, max_wal_flush_interval="1h", max_memtable_rows=2)
    gate = shard.faults.on("put_if_absent", "*/wal/*").pause()
    version = shard.manifest().version
    for i in range(3):
        w.put([row(i)])
    flusher = threading.Thread(target=w.flush_wal)
    flusher.start()
    gate.wait_reached()
    assert shard.manifest().version == version
    gate.release()
    flusher.join()
    w.close()
    assert [t.generation for t in shard.manifest().sstables] == [1, 2]


def test_f8_replay_publishes_each_closed_generation_with_its_own_end(shard: LocalShard) -> None:
    w = shard.writer(enable_memtable=False, max_memtable_rows=2)
    for i in range(7):
        w.put([row(i)])
    w.close()
    assert [g for _, _, g, found in shard.log() if found] == [1, 1, 2, 2, 3, 3, 4]
    again = shard.writer()
    manifest = shard.manifest()
    assert [t.generation for t in manifest.sstables] == [1, 2, 3]
    assert manifest.replay_after == 7
    assert ids(again) == list(range(7))
    again.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("when", ["before", "after"])
def test_f8_a_crash_during_replay_loses_nothing(tmp_path, when: str) -> None:
    for k in range(1, 60):
        shard = LocalShard(tmp_path / f"{when}{k}")
        w = shard.writer(enable_memtable=False, max_memtable_rows=2)
        for i in range(5):
            w.put([row(i)])
        w.close()
        shard.faults.crash_at(k, when)
        with contextlib.suppress(Crash, WeirError):
            shard.writer().close()
        done = not any("crash" in event.outcome for event in shard.faults.log)
        _reconnect(shard)
        with shard.writer() as again:
            assert ids(again) == list(range(5))
        if done:
            return
    pytest.fail("the replay never finished without a crash")


@MODES
def test_f13_fence_a_writer_with_puts_waiting_and_a_queue(
    shard: LocalShard, memtable: bool
) -> None:
    w = shard.writer(enable_memtable=memtable, durable_write=False, max_wal_flush_interval="1h")
    w.put([row(0)], wait=True)
    other = shard.writer(enable_memtable=memtable)
    acks = [w.put([row(i)], wait=False) for i in (1, 2, 3)]
    handed_back = []
    for ack in acks:
        with pytest.raises(FencedError) as fenced:
            ack.wait()
        assert (fenced.value.epoch, fenced.value.fenced_by) == (1, 2)
        handed_back += [i for b in fenced.value.unacknowledged for i in b.column("id").to_pylist()]
    assert handed_back == [1, 2, 3]
    assert w.fenced
    calls = len(shard.faults.log)
    with pytest.raises(FencedError) as later:
        w.put([row(4)])
    assert [i for b in later.value.not_written for i in b.column("id").to_pylist()] == [4]
    with pytest.raises(FencedError):
        w.flush_wal()
    w.close()  # raises nothing: every caller has its rows
    if memtable:
        with pytest.raises(FencedError):
            w.get([0])
    assert len(shard.faults.log) == calls
    other.put([row(5)])
    other.close()
    assert shard.logged_ids() == [0, 5]


def test_f13_a_flush_of_a_fenced_writer_publishes_nothing(shard: LocalShard) -> None:
    w = shard.writer()
    w.put([row(1)])
    other = shard.writer()
    version = shard.manifest().version
    with pytest.raises(FencedError):
        w.flush()
    assert shard.manifest().version == version
    other.close()
    assert [t.physical_rows for t in shard.manifest().sstables] == [1]


def test_g7b_a_stale_proof_is_renewed_before_the_acknowledgement(shard: LocalShard) -> None:
    """The newer epoch's fence was collected, so put-if-absent cannot stop the stalled writer."""
    w = shard.writer(fence_ttl=60)
    w.put([row(1)])
    other = shard.writer()
    other.close()
    manifest = shard.manifest()
    assert manifest.replay_after == 3
    from weir.format import paths
    from weir.types import Position

    shard.raw.delete([paths.wal_path(shard.shard, Position(p)) for p in (1, 2, 3)])
    shard.clock.offset += 61
    with pytest.raises(FencedError) as fenced:
        w.put([row(2)])
    assert fenced.value.fenced_by == 2
    assert fenced.value.unacknowledged[0].column("id").to_pylist() == [2]


def test_g7b_in_steady_state_a_put_is_one_request(shard: LocalShard) -> None:
    with shard.writer() as w:
        w.put([row(0)])
        before = len(shard.faults.log)
        for i in range(10):
            w.put([row(i)])
        assert len(shard.faults.log) - before == 10
        shard.clock.offset += 61
        w.put([row(1)])
        # The put; then the manifest it knew, a probe for the next one, and the floors.
        assert len(shard.faults.log) - before == 14


def test_f11_unknown_outcome_ends_the_writer_and_hands_the_rows_back(shard: LocalShard) -> None:
    w = shard.writer()
    shard.faults.on("put_if_absent", "*/wal/*").fail_before(times=None)
    with pytest.raises(UnknownOutcome) as unknown:
        w.put([row(1)])
    assert unknown.value.unacknowledged[0].column("id").to_pylist() == [1]
    with pytest.raises(WriterClosed, match="not known") as later:
        w.scan()
    assert isinstance(later.value.__cause__, UnknownOutcome)
    shard.faults.heal()
    with shard.writer() as again:
        assert ids(again) == []


def test_every_shape_of_input_is_understood(shard: LocalShard) -> None:
    batch = pa.record_batch({"id": [1], "x": [1.0], "s": ["a"]})
    table = pa.table({"id": [2], "x": [1.0], "s": ["a"]})
    with shard.writer() as w:
        w.put(batch)
        w.put(table)
        w.put(pa.RecordBatchReader.from_batches(table.schema, table.to_batches()))
        w.put(pd.DataFrame({"id": [3], "x": [1.0], "s": ["a"]}))
        w.put(pl.DataFrame({"id": [4], "x": [1.0], "s": ["a"]}))
        w.put([{"id": 5}])
        w.put({"id": 6})
        w.put(pa.record_batch({"id": pa.array([7], pa.int8())}))
        assert ids(w) == [1, 2, 3, 4, 5, 6, 7]
        w.put([])
        assert w.put([]).done


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        ([{"id": None}], InvalidInput, "id"),
        ([{"x": 1.0}], InvalidInput, "id"),
        ([{"id": 1, "y": 2}], SchemaMismatch, "y"),
        ([{"id": 1, "s": 5}], SchemaMismatch, "'s'"),
        (pa.table({"id": [1], "s": [5]}), SchemaMismatch, "'s'"),
        (pa.table({"id": [1.5]}), SchemaMismatch, "id"),
        (pa.table({"id": [1], "x": ["1.0"]}), SchemaMismatch, "'x'"),
        (pa.table([[1], [2]], names=["id", "id"]), SchemaMismatch, "twice"),
        (pa.table({"id": pa.array([2**63], pa.uint64())}), SchemaMismatch, "id"),
        (pa.table({"id": [1], "_tombstone": ["no"]}), SchemaMismatch, "_tombstone"),
        (object(), InvalidInput, "object"),
    ],
)
def test_bad_input_is_refused_by_column_with_nothing_written(
    shard: LocalShard, data, error, text: str
) -> None:
    with shard.writer() as w:
        before = len(shard.faults.events("write"))
        with pytest.raises(error, match=text):
            w.put(data)
        assert len(shard.faults.events("write")) == before
        assert ids(w) == []


def test_aput_groups_and_returns_durable(shard: LocalShard) -> None:
    async def main(w) -> list[int]:
        acks = await asyncio.gather(*(w.aput([row(i)]) for i in range(50)))
        return [ack.position for ack in acks]

    with shard.writer() as w:
        positions = asyncio.run(main(w))
        assert all(positions)
        assert len(set(positions)) < 50
        assert ids(w) == list(range(50))


def test_an_append_only_table_keeps_every_row(append_only: LocalShard) -> None:
    with append_only.writer() as w:
        w.put([row(1), row(1)])
        w.flush()
        w.put([row(1)])
        assert ids(w) == [1, 1, 1]
        with pytest.raises(InvalidInput, match="append-only"):
            w.delete([1])


def test_p2_a_batch_put_once_is_in_once_through_flush_reopen_and_retry(
    append_only: LocalShard,
) -> None:
    with append_only.writer() as w:
        assert w.put_once([row(1)], app="q", version=0)
        assert not w.put_once([row(1)], app="q", version=0)
    with append_only.writer() as w:
        assert not w.put_once([row(1)], app="q", version=0)
        assert w.put_once([row(2)], app="q", version=1)
        assert w.put_once([row(3)], app="other", version=0)
        assert ids(w) == [1, 2, 3]


def test_an_ack_that_is_not_awaited_goes_on_and_can_be_awaited_again(shard: LocalShard) -> None:
    with shard.writer() as w:
        gate = shard.faults.on("put_if_absent", "*/wal/*").pause(times=1)
        lead = threading.Thread(target=lambda: w.put([row(1)]))
        lead.start()
        gate.wait_reached()
        ack = w.put([row(2)], wait=False)
        with pytest.raises(TimeoutError):
            ack.wait(0.01)
        gate.release()
        lead.join()
        assert ack.wait(10) == 3


@MODES
def test_m8_closing_a_fenced_writer_that_owes_no_rows_raises_nothing(
    shard: LocalShard, memtable: bool
) -> None:
    idle = shard.writer(enable_memtable=memtable)
    told = shard.writer(enable_memtable=memtable)
    told.put([row(1)])
    shard.writer(enable_memtable=memtable).close()
    with pytest.raises(FencedError):
        told.put([row(2)])
    told.close()
    idle.close()  # it learns here that it was fenced
    with pytest.raises((FencedError, WriterClosed)):
        told.put([row(3)])


@pytest.mark.parametrize("verb", ["put", "insert"])
def test_m6_single_rows_are_counted_with_what_their_columns_take(tmp_path: Path, verb: str) -> None:
    """A row of a hundred numbers took 51 kB of memory, and counted as 864 bytes."""
    names = [f"c{number}" for number in range(100)]
    schema = pa.schema([pa.field(name, pa.int64()) for name in names])
    table = weir.create(tmp_path / "t", schema, primary_key="c0")
    with table.writer() as writer:
        for key in range(5):
            getattr(writer, verb)([dict.fromkeys(names, key)])
        (stats,) = writer.stats().values()
        assert 45_000 < stats.held_bytes / 5 < 60_000
    with table.writer() as writer:
        writer.put([dict.fromkeys(names, 0)])  # replays nothing: all of it is flushed
        (stats,) = writer.stats().values()
        assert 45_000 < stats.held_bytes < 60_000
