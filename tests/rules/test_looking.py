"""Writes that look first: O-1 to O-5.

O-1 the log holds whole rows; O-2 a decision sees every row accepted before it and none after; O-3
it fails with the rows it rests on; O-4 it fails with its owner; O-5 its outcome can be resolved.
"""

import itertools
import pickle
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.one_shard import (
    KEYED,
    KEYLESS,
    Place,
    open_writer,
    rows_on_store,
    site_on,
)
from tests.support.threads import Caller, until_queued
from weir.config import WriterConfig
from weir.env import SYSTEM, Env, Limits
from weir.errors import (
    Backpressure,
    FencedError,
    InvalidInput,
    KeyConflict,
    SchemaMismatch,
    StoreError,
    UnknownOutcome,
    WalOnlyMode,
    WeirError,
    WriterClosed,
)
from weir.log.tailer import WalTailer
from weir.shard import commit
from weir.shard.ack import Ack
from weir.shard.decide import decide_run
from weir.shard.own_reads import OwnReads
from weir.shard.request import WriteCounts
from weir.shard.request_builder import WriteSpec
from weir.shard.state import WriterState
from weir.shard.writer import ShardWriter
from weir.store.memory import MemoryStore
from weir.testing.fault_store import FaultStore

BUFFERED = WriterConfig(durable_write=False, max_wal_flush_interval="1h")


def row(key: int, value: int | None) -> dict[str, int | None]:
    return {"k": key, "v": value}


def have(writer: ShardWriter) -> dict[int, int | None]:
    rows = writer.scan().read_all()
    return dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))


class Points:
    """Runs the next queued action each time the failpoint is reached."""

    def __init__(self) -> None:
        self.actions: list[Callable[[], object]] = []
        self.met = 0

    def __call__(self, point: str) -> None:
        if point == "looking.looked":
            self.met += 1
            if self.actions:
                self.actions.pop(0)()


def watched() -> tuple[ShardWriter, Points]:
    """A writer, and control of the point between its lookups and its decisions."""
    points = Points()
    site = site_on(MemoryStore(), env=Env(failpoint=points))
    return open_writer(site), points


# -- O-1 -------------------------------------------------------------------------------------------


def test_o1_the_log_holds_whole_rows_and_no_condition() -> None:
    site = site_on(MemoryStore())
    with open_writer(site) as writer:
        writer.put([row(1, 10), row(2, 20)])
        writer.update([{"k": 1}])
        writer.update([{"k": 2, "v": 21}])
        writer.put([row(1, 11), row(3, 30)], when="current IS NULL")
        writer.update_where("v = 21", {"v": "v + 1"})
        writer.delete_where("v = 30")
        batches = [b for e in WalTailer(Place(site)) for b in e.batches]
    told = [tuple(r.values()) for b in batches for r in b.to_pylist()]
    assert all(b.schema.names == ["k", "v", "_tombstone"] for b in batches)
    assert told == [
        (1, 10, False), (2, 20, False),
        (1, 10, False), (2, 21, False), (3, 30, False), (2, 22, False), (3, None, True),
    ]  # fmt: skip
    assert rows_on_store(site) == {1: 10, 2: 22}


# -- O-2 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["queued", "memtable", "frozen", "sstable"])
def test_o2_a_decision_sees_rows_wherever_they_are(level: str) -> None:
    config = WriterConfig(max_memtable_rows=1) if level == "frozen" else WriterConfig()
    with open_writer(site_on(MemoryStore()), config) as writer:
        writer.put([row(1, 10)], wait=level != "queued")
        if level == "sstable":
            writer.flush()
        assert writer.update([{"k": 1, "v": 11}]) == WriteCounts(updated=1)
        with pytest.raises(KeyConflict):
            writer.insert([row(1, 0)])
        writer.delete([1])
        assert writer.insert([row(1, 12)]) == WriteCounts(inserted=1)
        assert have(writer) == {1: 12}


def test_o2_a_put_between_look_and_decision_is_seen() -> None:
    writer, points = watched()
    with writer:
        writer.put([row(1, 10)])
        points.actions = [lambda: writer.put([row(1, 99)])]
        assert writer.put([row(1, 50)], when="incoming.v > current.v") == WriteCounts(skipped=1)
        assert have(writer) == {1: 99}
        points.actions = [lambda: writer.delete([1])]
        with pytest.raises(KeyConflict, match="do not exist: 1"):
            writer.update([{"k": 1, "v": 3}])
        points.actions = [lambda: writer.put([row(1, 7)])]
        with pytest.raises(KeyConflict, match="already exist: 1"):
            writer.insert([row(1, 8)])
        assert have(writer) == {1: 7}


def test_o2_a_put_of_another_key_does_not_have_it_decided_again() -> None:
    writer, points = watched()
    with writer:
        writer.put([row(1, 10)])
        points.actions = [lambda: writer.put([row(2, 20)])]
        writer.update([{"k": 1, "v": 11}])
        assert points.met == 1
        assert have(writer) == {1: 11, 2: 20}


def test_o2_puts_that_never_stop_do_not_hold_a_decision_up() -> None:
    writer, _ = watched()
    with writer:
        writer.put([row(1, 0)])
        stop = threading.Event()

        def put_on() -> None:
            value = 0
            while not stop.is_set():
                value += 1
                writer.put([row(1, value)])

        putting = Caller(put_on)
        try:
            for _ in range(20):
                assert writer.update([{"k": 1}]) == WriteCounts(updated=1)
        finally:
            stop.set()
            putting.result()


def test_o2_rows_that_came_and_were_flushed_between_are_seen() -> None:
    writer, points = watched()

    def put_and_flush() -> None:
        writer.put([row(1, 99)])
        writer.flush()

    with writer:
        writer.put([row(1, 10)])
        points.actions = [put_and_flush, put_and_flush]
        assert writer.put([row(1, 50)], when="incoming.v > current.v") == WriteCounts(skipped=1)
        assert have(writer) == {1: 99}


@pytest.mark.parametrize("then", ["in memory", "flushed", "gone from the base"])
def test_o2_a_row_that_changed_since_its_key_was_found_is_decided_again(
    monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setattr("weir.shard.request_builder.WHERE_ROWS", 1)
    writer, points = watched()

    def change() -> None:
        writer.put([row(2, 500)])
        writer.delete([3])
        writer.put([row(4, 40)])
        if then != "in memory":
            writer.flush()

    with writer:
        writer.put([row(1, 10), row(2, 20), row(3, 30)])
        if then == "gone from the base":
            writer.flush()
        points.actions = [change]  # all three were found; only the first still matches
        assert writer.update_where("v < 100", {"v": "v + 1"}) == WriteCounts(updated=1, skipped=2)
        assert have(writer) == {1: 11, 2: 500, 4: 40}
        points.actions = [lambda: writer.put([row(4, 400)])]
        assert writer.delete_where("v < 100") == WriteCounts(deleted=1, skipped=1)
        assert have(writer) == {2: 500, 4: 400}


def test_o2_two_of_one_group_on_one_key_are_as_if_one_came_after_the_other() -> None:
    writer, gate, first = held()
    with writer:
        late = [
            Caller(lambda: writer.put([row(1, 5)], when="current.v = 1 AND incoming.v = 5"))
            for _ in range(4)
        ]
        until_queued(writer, 5)
        late.append(Caller(lambda: writer.insert([row(1, 9)], on_conflict="skip")))
        late.append(Caller(lambda: writer.update([{"k": 2, "v": 8}], missing="insert")))
        until_queued(writer, 7)
        gate.release()
        first.result()
        told = [caller.result() for caller in late]
        assert sorted(t.updated for t in told[:4]) == [0, 0, 0, 1]
        assert told[4:] == [WriteCounts(skipped=1), WriteCounts(inserted=1)]
        assert have(writer) == {1: 5, 2: 8, 9: 9}


def held(env: Env = SYSTEM) -> tuple[ShardWriter, Any, Caller]:
    """A writer whose entry is held up, so that later writes are gathered behind it."""
    faults = FaultStore(MemoryStore())
    writer = open_writer(site_on(faults, env=env))
    writer.put([row(1, 1)])
    gate = faults.on("put_if_absent", "*/wal/*").pause()
    first = Caller(lambda: writer.put([row(9, 9)]))
    gate.wait_reached()
    return writer, gate, first


def test_o2_updates_of_one_key_are_decided_at_once_and_each_told_of_its_own() -> None:
    writer, gate, first = held()
    late: list[Caller] = []
    with writer:
        for value in (5, 6, 7):
            rows = [{"k": 4, "v": value}]
            late.append(Caller(lambda rows=rows: writer.update(rows, missing="insert")))
            until_queued(writer, 1 + len(late))
        gate.release()
        first.result()
        told = [caller.result() for caller in late]
        assert told == [WriteCounts(inserted=1), WriteCounts(updated=1), WriteCounts(updated=1)]
        assert have(writer) == {1: 1, 4: 7, 9: 9}


def test_o2_callers_that_arrive_during_a_lookup_share_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[Any]] = []
    lookup, arrived, go_on = OwnReads.lookup, threading.Event(), threading.Event()

    def look(reads: OwnReads, keys: Any, *rest: Any) -> Any:
        asked.append(sorted(keys))
        if len(asked) == 1:
            arrived.set()
            go_on.wait(10)
        return lookup(reads, keys, *rest)

    with open_writer(site_on(MemoryStore())) as writer:
        writer.put([row(1, 1)])
        monkeypatch.setattr(OwnReads, "lookup", look)
        first = Caller(lambda: writer.update([row(1, 2)]))
        arrived.wait(10)
        late = [
            Caller(lambda key=key: writer.update([row(key, 7)], missing="insert"))
            for key in (1, 4, 5)
        ]
        while len(writer._conditional._lookups._waiting) < len(late):  # type: ignore[union-attr]
            pass
        go_on.set()
        first.result()
        told = [caller.result() for caller in late]
        assert asked == [[1], [1, 4, 5]]
        assert [t.updated for t in told] == [1, 0, 0]
        assert have(writer) == {1: 7, 4: 7, 5: 7}


def test_f16_a_caller_that_left_during_the_lookup_of_another_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lookup, began, go_on = OwnReads.lookup, threading.Event(), threading.Event()

    def look(reads: OwnReads, keys: Any, *rest: Any) -> Any:
        found = lookup(reads, keys, *rest)
        began.set()
        go_on.wait(10)
        return found

    with open_writer(site_on(MemoryStore())) as writer:
        conditional = writer._conditional
        assert conditional is not None
        lookups, committer = conditional._lookups, writer._committer
        spec = WriteSpec("update", missing="insert")
        request = conditional.requests.of(writer.intake.rows([row(5, 5)]), spec)
        left = Ack(committer, (), rows=0, nbytes=8)
        left.decision = lookups.decision_of(request)
        lookups._waiting.append((left, left.decision))  # its caller waits for its turn
        monkeypatch.setattr(OwnReads, "lookup", look)
        leader = Caller(lambda: writer.update([row(4, 4)], missing="insert"))
        began.wait(10)
        assert committer.take_back(left)
        go_on.set()
        assert leader.result() == WriteCounts(inserted=1)
        assert not left.is_accepted
        assert have(writer) == {4: 4}


def test_f16_an_update_that_is_interrupted_as_it_is_booked_is_with_its_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book = WriterState.book

    def interrupt(*_: Any) -> None:
        monkeypatch.setattr(WriterState, "book", book)
        raise KeyboardInterrupt

    taken: list[Ack] = []
    with open_writer(site_on(MemoryStore())) as writer:
        monkeypatch.setattr(WriterState, "book", interrupt)
        spec = WriteSpec("update", missing="insert")
        with pytest.raises(KeyboardInterrupt):
            writer.decide(writer.intake.rows([row(4, 4)]), spec, None, taken)
        writer.put([row(9, 9)])  # passes it over
        assert [ack.is_taken for ack in taken] == [False]
        assert have(writer) == {9: 9}


def test_m7_a_decision_that_cannot_be_made_fails_its_requests_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer, gate, first = held()

    def fail(*_: Any) -> None:
        raise StoreError("the store's clock cannot be read")

    with writer:
        update = Caller(lambda: writer.update([row(1, 5)]))
        until_queued(writer, 2)
        put = Caller(lambda: writer.put([row(2, 2)]))
        until_queued(writer, 3)
        monkeypatch.setattr(commit, "decide_run", fail)
        writer.put([row(3, 3)], wait=False)
        gate.release()
        first.result()
        put.result()
        with pytest.raises(StoreError, match="clock cannot be read") as failed:
            update.result()
        assert [batch.to_pylist() for batch in failed.value.not_written] == [
            [{"k": 1, "v": 5, "_tombstone": False}]
        ]
        monkeypatch.setattr(commit, "decide_run", decide_run)
        assert writer.update([row(1, 6)]) == WriteCounts(updated=1)
        assert have(writer) == {1: 6, 2: 2, 3: 3, 9: 9}


def test_o2_a_write_that_is_too_large_is_seen_by_none_that_is_decided_with_it() -> None:
    env = replace(SYSTEM, limits=Limits(entry_bytes=200_000))
    writer, gate, first = held(env)
    many = [row(key, 0) for key in range(100, 30_000)]
    with writer:
        large = Caller(lambda: writer.insert(many))
        until_queued(writer, 2)
        small = Caller(lambda: writer.insert([row(100, 1)], on_conflict="skip"))
        until_queued(writer, 3)
        gate.release()
        first.result()
        with pytest.raises(InvalidInput, match="othing was written"):
            large.result()
        assert small.result() == WriteCounts(inserted=1)
        with pytest.raises(InvalidInput, match="othing was written"):
            writer.insert(many[1:])
        assert have(writer) == {1: 1, 9: 9, 100: 1}


def test_f16_rows_of_an_interrupted_decision_go_when_their_call_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer, gate, first = held()
    resize, calls = WriterState.resize, itertools.count(1)

    def interrupt(state: WriterState, ack: Ack, nbytes: int) -> None:
        if next(calls) == 3:
            raise KeyboardInterrupt
        resize(state, ack, nbytes)

    with writer:
        late = []
        for key, timeout in ((3, 0.5), (4, 0.5), (5, None)):
            given = [row(key, key)]
            late.append(Caller(lambda g=given, t=timeout: writer.insert(g, timeout=t)))
            until_queued(writer, 1 + len(late))
        monkeypatch.setattr(WriterState, "resize", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer._committer.book()
        monkeypatch.setattr(WriterState, "resize", resize)
        for caller in late[:2]:
            with pytest.raises(Backpressure) as refused:
                caller.result()
            assert refused.value.not_written
        gate.release()
        first.result()
        late[2].result()
        assert have(writer) == {1: 1, 5: 5, 9: 9}


def test_o2_a_call_that_gave_up_is_not_decided_for() -> None:
    writer, gate, first = held()
    with writer:
        insert = Caller(lambda: writer.insert([row(3, 3)]))
        until_queued(writer, 2)
        with pytest.raises(Backpressure, match="nothing of this write was accepted"):
            writer.insert([row(4, 4)], timeout=0.05)
        gate.release()
        first.result()
        assert insert.result() == WriteCounts(inserted=1)
        assert have(writer) == {1: 1, 3: 3, 9: 9}


@pytest.mark.parametrize("missing", ["insert", "skip"])
def test_o2_calls_that_are_decided_together_see_those_before_them(missing: Any) -> None:
    points = Points()
    writer, gate, first = held(Env(failpoint=points))
    earlier: list[Caller] = []

    def overtake() -> None:
        earlier.append(Caller(lambda: writer.update([row(4, 4)], missing="insert")))
        until_queued(writer, 2)

    with writer:
        points.actions = [overtake]
        later = Caller(lambda: writer.update([row(4, 5)], missing=missing))
        until_queued(writer, 3)
        gate.release()
        first.result()
        assert earlier[0].result() == WriteCounts(inserted=1)
        assert later.result() == WriteCounts(updated=1)
        assert have(writer) == {1: 1, 4: 5, 9: 9}


def test_o2_nothing_rests_on_the_rows_of_a_call_that_gave_up_while_it_was_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = Points()
    writer, gate, first = held(Env(failpoint=points))
    time_is_up, gave_up = threading.Event(), threading.Event()
    late: list[Caller] = []
    wait = writer._committer._pass

    def decide_beside_one_that_gives_up(*args: Any) -> None:
        decide_run(*args)
        time_is_up.set()
        gave_up.wait(10)

    def wait_until_it_is_up(ack: Ack, deadline: float | None) -> bool:
        return wait(ack, None) if deadline is None else not time_is_up.wait(10)

    def insert_in_time() -> None:
        try:
            writer.insert([row(4, 4)], timeout=60)
        finally:
            gave_up.set()

    def overtake() -> None:
        late.append(Caller(insert_in_time))
        until_queued(writer, 2)

    monkeypatch.setattr(commit, "decide_run", decide_beside_one_that_gives_up)
    monkeypatch.setattr(writer._committer, "_pass", wait_until_it_is_up)
    with writer:
        points.actions = [overtake]
        other = Caller(lambda: writer.insert([row(4, 5)], on_conflict="skip"))
        until_queued(writer, 3)
        gate.release()
        first.result()
        with pytest.raises(Backpressure):
            late[0].result()
        assert other.result() == WriteCounts(inserted=1)
        assert have(writer) == {1: 1, 4: 5, 9: 9}


def test_o2_a_lookup_that_flushes_overtook_is_made_again() -> None:
    """Rows that came since the lookup are no longer in memory: they cannot be told apart."""
    writer, points = watched()
    with writer:
        writer.put([row(1, 1)])

        def overtake() -> None:
            writer.put([row(1, 7)])
            writer.flush()
            writer.put([row(2, 2)])

        points.actions = [overtake]
        assert writer.put([row(1, 9)], when="current.v = 1") == WriteCounts(skipped=1)
        assert points.met == 2
        assert have(writer) == {1: 7, 2: 2}


def test_o2_a_key_twice_in_one_call_is_decided_in_the_order_of_the_rows() -> None:
    with open_writer(site_on(MemoryStore())) as writer:
        counts = writer.insert([row(1, 1), row(2, 2), row(1, 3)], on_conflict="skip")
        assert counts == WriteCounts(inserted=2, skipped=1)
        with pytest.raises(KeyConflict) as met:
            writer.insert([row(5, 1), row(6, 2), row(5, 3)])
        assert met.value.keys == [5]
        assert have(writer) == {1: 1, 2: 2}  # no row of the failed insert
        rows = [row(1, 5), row(1, 4), row(1, 6)]
        counts = writer.put(rows, when="incoming.v > current.v")
        assert counts == WriteCounts(updated=2, skipped=1)
        assert have(writer) == {1: 6, 2: 2}


def test_o2_concurrent_increments_of_hot_keys_lose_none() -> None:
    with open_writer(site_on(MemoryStore())) as writer:
        writer.put([row(key, 0) for key in range(3)])
        done: list[int] = []

        def count(seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(15):
                key = rng.randrange(3)
                while True:
                    now = writer.get([key])["v"][0].as_py()
                    told = writer.put([row(key, now + 1)], when=f"current.v = {now}")
                    if told.updated:
                        done.append(key)
                        break

        callers = [Caller(lambda seed=seed: count(seed)) for seed in range(4)]
        for caller in callers:
            caller.result(60)
        assert have(writer) == {key: done.count(key) for key in range(3)}


# -- O-3 -------------------------------------------------------------------------------------------


LOOKS = pytest.mark.parametrize(
    "look",
    [
        lambda w: w.insert([row(1, 5)]),
        lambda w: w.insert([row(1, 5)], on_conflict="skip"),
        lambda w: w.update([{"k": 1, "v": 6}]),
        lambda w: w.update([{"k": 7, "v": 6}], missing="skip"),
        lambda w: w.put([row(1, 6)], when="current IS NULL"),
        lambda w: w.update_where("v > 1000", {"v": "0"}),
    ],
    ids=["conflict", "skip", "update", "missing", "when", "filter"],
)


@LOOKS
def test_o3_a_decision_on_rows_that_fail_fails_too(look: Callable[[ShardWriter], Any]) -> None:
    raw = MemoryStore()
    faults = FaultStore(raw)
    writer = open_writer(site_on(faults))
    gate = faults.on("put_if_absent", "*wal*").pause()
    first = writer.put([row(1, 1)], wait=False)
    gate.wait_reached()
    looking = Caller(lambda: look(writer))
    while writer._state.waiting < 2 and not writer._state.queue[0].waiters:
        pass
    open_writer(site_on(raw)).close()  # its fence takes the position of the entry in flight
    gate.release()
    with pytest.raises(FencedError):
        looking.result()
    with pytest.raises(FencedError):
        first.wait()
    assert rows_on_store(site_on(raw)) == {}


def test_o3_an_error_hands_back_the_rows_as_they_were_given() -> None:
    store = MemoryStore()
    writer = open_writer(site_on(store))
    writer.put([row(1, 1)])
    open_writer(site_on(store)).close()
    with pytest.raises(FencedError) as fenced:
        writer.update([{"k": 1, "v": 9}])
    assert [b.to_pylist() for b in fenced.value.not_written + fenced.value.perhaps_written] == [
        [{"k": 1, "v": 9, "_tombstone": False}]
    ]


@pytest.mark.parametrize("how", ["fenced", "closed"])
def test_f16_a_writer_that_has_ended_hands_back_the_rows_of_every_verb(how: str) -> None:
    """A row in neither list counts as written; these rows used to be in neither."""
    store = MemoryStore()
    writer = open_writer(site_on(store))
    writer.put([row(1, 1)])
    if how == "closed":
        writer.close()
    else:
        open_writer(site_on(store)).close()
        with pytest.raises(FencedError):
            writer.put([row(1, 2)])
    calls = (writer.update, writer.insert, lambda rows: writer.put(rows, when="true"))
    for call in calls:
        with pytest.raises((FencedError, WriterClosed)) as ended:
            call([row(1, 9)])
        assert [b.to_pylist() for b in ended.value.not_written] == [
            [{"k": 1, "v": 9, "_tombstone": False}]
        ]
    with pytest.raises((FencedError, WriterClosed)):
        writer.delete_where("k = 1")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_f16_a_decision_broken_off_while_it_is_booked_is_told_truly(
    error: type[BaseException],
) -> None:
    store = MemoryStore()
    writer = open_writer(site_on(store))
    writer.put([row(1, 1)])
    real = writer._state.finish_booking

    def fail() -> None:
        if writer._state._under_way is not None:
            writer._state.finish_booking = real
            raise error("broken off")

    writer._state.finish_booking = fail
    with pytest.raises((WriterClosed, error)) as ended:
        writer.update([row(1, 9)])
    if isinstance(ended.value, WriterClosed):
        assert [b.to_pylist() for b in ended.value.not_written] == [
            [{"k": 1, "v": 9, "_tombstone": False}]
        ]
    else:
        assert "The put goes on" in ended.value.__notes__[0]
    Caller(writer.close).result()
    assert rows_on_store(site_on(store)) == {1: 1 if error is RuntimeError else 9}


def test_f16_a_decision_interrupted_before_it_is_made_writes_nothing() -> None:
    store = MemoryStore()
    writer = open_writer(site_on(store))
    writer.put([row(1, 1)])
    real = writer._committer._decide

    def interrupt(run: Any) -> None:
        writer._committer._decide = real  # type: ignore[method-assign]
        raise KeyboardInterrupt

    writer._committer._decide = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt) as ended:
        writer.update([row(1, 9)])
    assert "nothing of the put was accepted" in ended.value.__notes__[0]
    assert writer.put([row(2, 2)]).position
    Caller(writer.close).result()
    assert rows_on_store(site_on(store)) == {1: 1, 2: 2}


def test_f16_a_look_that_fails_hands_back_what_was_given() -> None:
    faults = FaultStore(MemoryStore())
    given = [[{"k": 1, "v": 9, "_tombstone": False}]]
    writer = open_writer(site_on(faults))
    writer.put([row(1, 1)])
    writer.flush()
    writer._reads._lake.open_base = failing  # type: ignore[union-attr, method-assign]
    with pytest.raises(StoreError) as met:
        writer.update([row(1, 9)])
    assert [b.to_pylist() for b in met.value.not_written] == given
    writer.close()


def failing(version: int | None = None) -> Any:
    raise StoreError("the base cannot be read")


@pytest.mark.parametrize("call", ["delete_where", "update_where"])
def test_f16_a_call_that_changes_nothing_hands_back_no_rows_of_others(call: str) -> None:
    """It waits for what it has seen, and took the rows of a put that failed. Seed 31400162."""
    faults = FaultStore(MemoryStore())
    writer = open_writer(site_on(faults))
    gate = faults.on("put_if_absent", "*/wal/*").pause()
    writer.put([row(1, 1)], wait=False)
    gate.wait_reached()
    open_writer(site_on(faults.inner)).close()
    changes = [{"v": "9"}] if call == "update_where" else []
    asked = Caller(lambda: getattr(writer, call)("k = 2", *changes))
    gate.release()
    with pytest.raises(FencedError) as met:
        asked.result()
    assert not met.value.unacknowledged
    with pytest.raises(FencedError) as ended:
        writer.close()
    assert [batch.num_rows for batch in ended.value.not_written] == [1]


def test_f16_rows_that_nobody_waits_for_are_told_of_by_close() -> None:
    store = MemoryStore()
    writer = open_writer(site_on(store), BUFFERED)
    assert writer.insert([row(1, 1)]).inserted == 1
    open_writer(site_on(store)).close()
    with pytest.raises(FencedError) as met:
        writer.close()
    left = met.value.not_written + met.value.perhaps_written
    assert [b.column("k").to_pylist() for b in left] == [[1]]


# -- O-4 -------------------------------------------------------------------------------------------


@LOOKS
def test_o4_a_fenced_owner_decides_nothing(look: Callable[[ShardWriter], Any]) -> None:
    store = MemoryStore()
    writer = open_writer(site_on(store))
    writer.put([row(1, 1)])
    with open_writer(site_on(store)) as successor:
        successor.delete([1])
        successor.put([row(7, 7)])
    with pytest.raises(FencedError):  # the rows it looked at have changed
        look(writer)
    assert writer.fenced
    assert rows_on_store(site_on(store)) == {7: 7}


def test_o4_the_successor_decides_on_what_the_log_holds() -> None:
    store = MemoryStore()
    writer = open_writer(site_on(store))
    writer.insert([row(1, 1)])
    with open_writer(site_on(store)) as successor:
        with pytest.raises(KeyConflict):
            successor.insert([row(1, 2)])
        assert successor.update([{"k": 1, "v": 3}]).updated == 1


# -- O-5 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [True, False])
def test_o5_the_outcome_of_an_unknown_insert_can_be_asked_for(applied: bool) -> None:
    faults = FaultStore(MemoryStore())
    writer = open_writer(site_on(faults))
    rule = faults.on("put_if_absent", "*wal*")
    rule.fail_after(times=None) if applied else rule.fail_before(times=None)
    reads = faults.on("get", "*wal*")
    reads.fail_before(times=None)
    with pytest.raises(WeirError) as met:
        writer.insert([row(1, 1)], timeout=5)
    assert isinstance(met.value, UnknownOutcome)
    assert [b.column("k").to_pylist() for b in met.value.perhaps_written] == [[1]]
    faults.heal()
    with open_writer(site_on(faults)) as again:
        told = again.insert([row(1, 1)], on_conflict="skip")
        assert told == (WriteCounts(skipped=1) if applied else WriteCounts(inserted=1))
    assert rows_on_store(site_on(faults)) == {1: 1}


@pytest.mark.parametrize(
    ("asked", "rows", "told", "after"),
    [
        (WriteSpec("insert"), [row(5, 5)], WriteCounts(inserted=1), {1: 1, 5: 5}),
        (WriteSpec("insert", on_conflict="skip"), [row(1, 9)], WriteCounts(skipped=1), {1: 1}),
        (WriteSpec("update"), [{"k": 1, "v": 6}], WriteCounts(updated=1), {1: 6}),
        (WriteSpec("put", when="current.v = 1"), [row(1, 7)], WriteCounts(updated=1), {1: 7}),
        (WriteSpec("put", when="current.v = 2"), [row(1, 7)], WriteCounts(skipped=1), {1: 1}),
    ],
)
def test_p2_a_batch_is_decided_once_whatever_came_of_it(
    asked: WriteSpec, rows: list[Any], told: WriteCounts, after: dict[int, int]
) -> None:
    store = MemoryStore()
    first = open_writer(site_on(store))
    first.put([row(1, 1)])
    assert first.decide_once(rows, asked, app="job", version=3) == told
    assert first.decide_once(rows, asked, app="job", version=3) is None
    assert have(first) == after
    # The writer dies silently. Every row it could rest on changes; the batch is sent again.
    with open_writer(site_on(store)) as second:
        second.delete([1, 5])
        for version in (2, 3):
            assert second.decide_once(rows, asked, app="job", version=version) is None
        assert have(second) == {}
        entries = [e for e in WalTailer(Place(site_on(store))) if e.tokens]
        assert [list(e.tokens) for e in entries] == [[("job", 3)]] * (told.skipped == 0)


def test_p2_a_conflict_takes_no_number() -> None:
    with open_writer(site_on(MemoryStore())) as writer:
        writer.put([row(1, 1)])
        with pytest.raises(KeyConflict):
            writer.decide_once([row(1, 2), row(2, 2)], WriteSpec("insert"), app="job", version=0)
        writer.delete([1])
        told = writer.decide_once([row(1, 2), row(2, 2)], WriteSpec("insert"), app="job", version=0)
        assert told == WriteCounts(inserted=2)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "look",
    [
        lambda w: w.update([{"k": 1}]),
        lambda w: w.insert([row(1, 1)]),
        lambda w: w.put([row(1, 1)], when="true"),
        lambda w: w.delete_where("v = 1"),
        lambda w: w.update_where("v = 1", {"v": "2"}),
    ],
)
def test_wal_only_writers_and_append_only_tables_refuse(look: Callable[[ShardWriter], Any]) -> None:
    wal_only = WriterConfig(enable_memtable=False)
    with open_writer(site_on(MemoryStore()), wal_only) as writer, pytest.raises(WalOnlyMode):
        look(writer)
    with (
        open_writer(site_on(MemoryStore()), schema=KEYLESS) as writer,
        pytest.raises(InvalidInput, match="needs a primary key"),
    ):
        look(writer)


def test_what_is_wrong_is_said_and_nothing_is_written() -> None:
    site = site_on(MemoryStore())
    with open_writer(site) as writer:
        writer.put([row(1, 1)])
        wrong: list[tuple[Callable[[], Any], str]] = [
            (lambda: writer.update([{"v": 1}]), "key column 'k' is missing"),
            (lambda: writer.update([{"k": 1, "w": 1}]), "no column 'w'"),
            (lambda: writer.update([{"k": 1, "v": "x"}]), "column 'v'"),
            (lambda: writer.update([{"k": 1, "_tombstone": True}]), "update cannot delete"),
            (lambda: writer.update([{"k": 1}], missing="create"), "missing must be one of"),
            (lambda: writer.insert([{"k": 9, "v": 1, "_tombstone": True}]), "takes no deletes"),
            (lambda: writer.insert([row(2, 2)], on_conflict="do"), "on_conflict must be one of"),
            (lambda: writer.put([row(2, 2)], when="incoming.w > 1"), "condition 'incoming.w > 1'"),
            (lambda: writer.put([row(2, 2)], when="incoming.v"), "must be boolean"),
            (lambda: writer.put([row(2, 2)], when=" "), "must be SQL text"),
            (lambda: writer.put([row(2, 2)], when="incoming.v / 0 = 1"), "Divide by zero"),
            (lambda: writer.update_where("v = 1", {"k": "2"}), "cannot be set"),
            (lambda: writer.update_where("v = 1", {"w": "2"}), "no column 'w'"),
            (lambda: writer.update_where("v = 1", {}), "at least one column"),
            (lambda: writer.update_where("v = 1", {"v": "v * 1.5"}), "column 'v'"),
            (lambda: writer.delete_where("w = 1"), "w"),
        ]
        for call, message in wrong:
            with pytest.raises(InvalidInput, match=message.replace("(", ".")):
                call()
        assert have(writer) == {1: 1}


def test_m7_a_request_that_fails_fails_alone_in_its_group() -> None:
    writer, gate, first = held()
    condition = "10 / incoming.v > 0"
    with writer:
        late = [Caller(lambda v=v: writer.put([row(v, v)], when=condition)) for v in (5, 0, 6)]
        late.append(Caller(lambda: writer.insert([row(7, 7)])))
        until_queued(writer, 5)
        with pytest.raises(SchemaMismatch, match="column 'v' is int64 and cannot hold 'eight'"):
            writer.insert([{"k": 8, "v": "eight"}])
        gate.release()
        first.result()
        assert late[0].result().inserted == 1
        assert late[2].result().inserted == 1
        with pytest.raises(InvalidInput, match="Divide by zero"):
            late[1].result()
        assert late[3].result().inserted == 1
        assert have(writer) == {1: 1, 5: 5, 6: 6, 7: 7, 9: 9}


def test_m7_conditions_in_sql_and_as_expressions_are_decided_side_by_side() -> None:
    writer, gate, first = held()
    newer = pc.field("incoming", "v") > 4
    conditions: list[Any] = [newer, "incoming.v > 4", newer, pc.field("incoming", "v") > 4]
    with writer:
        late: list[Caller] = []
        for key, when in enumerate(conditions, 5):
            rows = [row(key, key)]
            late.append(Caller(lambda rows=rows, when=when: writer.put(rows, when=when)))
            until_queued(writer, 1 + len(late))
        gate.release()
        first.result()
        assert [caller.result() for caller in late] == [WriteCounts(inserted=1)] * 4
        assert have(writer) == {1: 1, 5: 5, 6: 6, 7: 7, 8: 8, 9: 9}


def test_a_conflict_names_keys_and_travels() -> None:
    with open_writer(site_on(MemoryStore())) as writer:
        writer.put([row(key, key) for key in range(30)])
        with pytest.raises(KeyConflict) as met:
            writer.insert([row(key, 0) for key in range(25, 45)])
        assert met.value.keys == [25, 26, 27, 28, 29]
        assert met.value.kind == "conflict"
        assert len(met.value.not_written) == 1
        again = pickle.loads(pickle.dumps(met.value))
        assert (again.keys, str(again)) == (met.value.keys, str(met.value))


def test_an_update_of_a_new_key_needs_every_column_that_may_not_be_null() -> None:
    fields = [pa.field(f.name, f.type, nullable=False, metadata=f.metadata) for f in KEYED.arrow]
    strict = type(KEYED)(pa.schema(fields), KEYED.primary_key, KEYED.max_field_id)
    with open_writer(site_on(MemoryStore()), schema=strict) as writer:
        with pytest.raises(SchemaMismatch, match="column 'v' is declared not null"):
            writer.update([{"k": 1}], missing="insert")
        assert writer.update([{"k": 1, "v": 2}], missing="insert").inserted == 1
        assert writer.update([{"k": 1}], missing="insert").updated == 1


def test_a_closed_writer_decides_nothing() -> None:
    writer = open_writer(site_on(MemoryStore()))
    writer.close()
    with pytest.raises(WriterClosed):
        writer.update([{"k": 1}])


def test_a_flush_does_not_cool_a_key_down() -> None:
    faults = FaultStore(MemoryStore())
    with open_writer(site_on(faults), WriterConfig(max_memtable_rows=3)) as writer:
        for value in range(1, 12):
            writer.put([row(1, value), row(value + 10, value)])
            if value == 6:
                writer.delete([11])
        writer.flush()
        before = len(faults.events())
        assert writer.update([{"k": 1, "v": 50}, {"k": 13, "v": 51}]).updated == 2
        assert writer.insert([row(11, 7)]).inserted == 1
        assert writer.get([1, 13, 14, 11])["v"].to_pylist() == [50, 51, 4, 7]
        reads = [e for e in faults.events()[before:] if e.op.startswith("get")]
        assert not [e for e in reads if "_gen_" in e.path]
    assert rows_on_store(site_on(faults))[1] == 50


def test_calls_of_no_rows_cost_nothing() -> None:
    faults = FaultStore(MemoryStore())
    with open_writer(site_on(faults)) as writer:
        before = len(faults.events())
        assert writer.update([]) == writer.insert([]) == WriteCounts()
        assert len(faults.events()) == before


@pytest.mark.parametrize("beside_sstables", [False, True])
def test_a_hot_key_costs_a_look_at_the_base_and_no_read_of_rows(beside_sstables: bool) -> None:
    faults = FaultStore(MemoryStore())
    with open_writer(site_on(faults)) as writer:
        writer.put([row(1, 1)])
        if beside_sstables:
            writer.flush()
        writer.update([{"k": 1, "v": 2}])
        before = len(faults.events())
        for value in range(10):
            writer.update([{"k": 1, "v": value}])
        # The model opens the base by a listing and a read, Lance by a listing alone.
        assert [e.op for e in faults.events()[before:]] == [
            "list_folder",
            "get",
            "put_if_absent",
        ] * 10
