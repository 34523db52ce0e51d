"""What errors report when a writer ends or is disturbed: F-16 own rows, true state.

Each broke once: a later put's error held rows of other callers and reported rows in the log as not
written; an interrupt after the store had applied a put made its rows "never durable"; a failing
callback of one caller stopped the pump, or was raised from another caller's put.
"""

import asyncio
import contextlib
import copy
import pickle
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from uuid import UUID

import pyarrow as pa
import pytest

import weir.log.rules
import weir.shard.commit
import weir.store.api
from tests.interrupts.points import Points
from tests.support.hooks import HookStore
from tests.support.interrupting import interrupt_each
from tests.support.moments import again, make, put, rows
from tests.support.one_shard import KEYLESS, open_writer, rows_on_store, site_on, table_on_store
from tests.support.threads import Caller, InterruptedLock, until_queued
from weir import errors
from weir.config import WriterConfig
from weir.errors import FencedError, StoreError, UnknownOutcome, WeirError, WriterClosed
from weir.log.manifests import Manifests
from weir.shard.state import fail
from weir.store.memory import MemoryStore
from weir.testing.fault_store import FaultStore

BUFFERED = WriterConfig(durable_write=False, max_wal_flush_interval="1h")
MODES = pytest.mark.parametrize("memtable", [True, False], ids=["memtable", "wal_only"])


def row(key: int) -> list[dict[str, int]]:
    return [{"k": key, "v": key}]


def keys(batches) -> list[int]:
    return [key for batch in batches for key in batch.column("k").to_pylist()]


def interrupt() -> None:
    raise KeyboardInterrupt


# -- own rows --------------------------------------------------------------------------------------


@MODES
def test_f16_a_later_put_gets_its_own_rows_back_and_nobody_elses(memtable: bool) -> None:
    store = MemoryStore()
    writer = open_writer(site_on(store), WriterConfig(**_buffered(memtable)))
    open_writer(site_on(store)).close()
    acks = [writer.put(row(key)) for key in (1, 2)]
    with pytest.raises(FencedError) as first:
        acks[0].wait()
    assert keys(first.value.unacknowledged) == [1]
    with pytest.raises(FencedError) as later:
        writer.put(row(3))
    assert (keys(later.value.unacknowledged), later.value.maybe_written) == ([3], False)
    with pytest.raises(FencedError) as closed:
        writer.close()
    assert keys(closed.value.unacknowledged) == [2]  # the other puts reported their own rows
    assert keys(closed.value.not_written) == [2]
    with pytest.raises(FencedError) as own:
        acks[1].wait()
    assert keys(own.value.unacknowledged) == [2]


def _buffered(memtable: bool) -> dict[str, object]:
    return {
        "durable_write": False,
        "max_wal_flush_interval": "1h",
        "enable_memtable": memtable,
    }


def test_f16_rows_in_the_log_are_never_told_as_not_written() -> None:
    """The guide's loop puts returned rows through the new owner: rows in the log would double."""
    store = MemoryStore()
    site = site_on(store)
    watched = HookStore(store, "put_if_absent", "/wal/", lambda: None)
    config = WriterConfig(**_buffered(memtable=True) | {"fence_ttl": 0})
    late = open_writer(site_on(watched), config, KEYLESS)
    taken = []
    watched.arm(lambda: taken.append(open_writer(site, schema=KEYLESS)))  # once the entry is there
    late.put(row(1))
    with pytest.raises(FencedError):
        late.put(row(2), wait=True)  # one entry for both puts
    with pytest.raises(FencedError) as later:
        late.put(row(3))
    assert (keys(later.value.not_written), later.value.perhaps_written) == ([3], [])
    with pytest.raises(FencedError) as closed:
        late.close()
    assert keys(closed.value.perhaps_written) == [1]
    assert (closed.value.not_written, closed.value.maybe_written) == ([], True)
    for error in (later.value, closed.value):
        for batch in error.not_written:
            taken[0].put(batch)
    taken[0].close()
    assert sorted(table_on_store(site, KEYLESS)["k"].to_pylist()) == [1, 2, 3]


def test_f16_each_thread_is_told_of_its_own_rows() -> None:
    store = FaultStore(MemoryStore())
    writer = open_writer(site_on(store))
    gate = store.on("put_if_absent", "*/wal/*").pause()
    first = Caller(lambda: writer.put(row(1)))
    gate.wait_reached()
    behind = [Caller(lambda key=key: writer.put(row(key))) for key in (2, 3)]
    until_queued(writer, 3)
    open_writer(site_on(store.inner)).close()
    gate.release()
    for key, caller in zip((1, 2, 3), (first, *behind), strict=True):
        with pytest.raises(FencedError) as told:
            caller.result()
        assert (keys(told.value.unacknowledged), told.value.maybe_written) == ([key], False)
    writer.close()  # raises nothing: every caller has its rows


def test_f16_a_reader_is_told_that_the_writer_ended_and_takes_nobodys_rows() -> None:
    store = MemoryStore()
    writer = open_writer(site_on(store), BUFFERED)
    writer.put(row(1))
    fail(writer._state, StoreError("out of reach"))
    with pytest.raises(WriterClosed) as read:
        writer.scan()
    assert read.value.unacknowledged == []
    with pytest.raises(WriterClosed) as closed:
        writer.close()
    assert keys(closed.value.not_written) == [1]


def test_f16_rows_behind_an_unknown_outcome_are_told_as_not_written() -> None:
    store = FaultStore(MemoryStore())
    writer = open_writer(site_on(store), WriterConfig(max_wal_buffer_size=1))
    gate = store.on("put_if_absent", "*/wal/*").pause()
    first = Caller(lambda: writer.put(row(1)))
    gate.wait_reached()
    second = Caller(lambda: writer.put(row(2)))
    until_queued(writer, 2)
    store.on("put_if_absent", "*/wal/*").fail_before(times=None)
    gate.release()
    first.result()
    with pytest.raises(UnknownOutcome) as unknown:
        second.result()
    assert keys(unknown.value.perhaps_written) == keys(unknown.value.unacknowledged)
    with pytest.raises(WriterClosed) as later:
        writer.put(row(3))
    assert keys(later.value.not_written) == [3]
    assert isinstance(later.value.__cause__, UnknownOutcome)


def test_f16_rows_whose_putter_gave_up_are_handed_back_by_close() -> None:
    store = FaultStore(MemoryStore())
    writer = open_writer(site_on(store))
    gate = store.on("put_if_absent", "*/wal/*").pause()
    first = Caller(lambda: writer.put(row(1)))
    gate.wait_reached()
    with pytest.raises(TimeoutError):
        writer.put(row(2), timeout=0.01)
    open_writer(site_on(store.inner)).close()
    gate.release()
    with pytest.raises(FencedError):
        first.result()
    with pytest.raises(FencedError) as closed:
        writer.close()
    assert keys(closed.value.not_written) == [2]


@pytest.mark.parametrize("fenced", [1, 3])
def test_f16_a_partial_write_says_of_the_others_what_is_true(tmp_path: Path, fenced: int) -> None:
    table = make(tmp_path / "t", 3)
    writer = table.writer()
    put(writer, range(30), "a")
    for shard in table.shards()[:fenced]:
        shard.writer().close()
    with pytest.raises(errors.PartialWrite) as told:
        put(writer, range(30), "b")
    said = str(told.value)
    assert f"{fenced} of 3 shards failed" in said
    assert ("the others are done" in said) == (fenced < 3)
    for shard, error in told.value.failures.items():
        assert error.not_written == told.value.by_shard[shard] != []
    left = {key for batch in told.value.not_written for key in batch.column("id").to_pylist()}
    found = rows(again(table))
    assert left == {key for key, text in found.items() if text == "a"}


# -- true state ------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("keyed", [True, False])
def test_f16_a_put_interrupted_after_the_store_applied_it_goes_on_and_is_in_once(
    memtable: bool, keyed: bool
) -> None:
    store = MemoryStore()
    schema = {} if keyed else {"schema": KEYLESS}
    watched = HookStore(store, "put_if_absent", "/wal/", lambda: None)
    writer = open_writer(site_on(watched), WriterConfig(enable_memtable=memtable), **schema)
    watched.arm(interrupt)
    with pytest.raises(KeyboardInterrupt) as told:
        writer.put(row(1))
    assert any("goes on" in note for note in told.value.__notes__)
    writer.put(row(2))
    writer.close()
    found = table_on_store(site_on(store), **schema)["k"].to_pylist()
    assert sorted(found) == [1, 2]


def test_f16_an_interrupt_changes_nobody_elses_outcome() -> None:
    store = MemoryStore()
    faults = FaultStore(store)
    watched = HookStore(faults, "put_if_absent", "/wal/", lambda: None)
    writer = open_writer(site_on(watched))
    gate = faults.on("put_if_absent", "*/wal/*").pause()
    first = Caller(lambda: writer.put(row(1)))
    gate.wait_reached()
    others = [Caller(lambda key=key: writer.put(row(key))) for key in (2, 3, 4)]
    until_queued(writer, 4)
    watched.arm(lambda: watched.arm(interrupt))  # at the entry of the others, not the first
    gate.release()
    first.result()
    outcomes = []
    for other in others:
        try:
            outcomes.append(other.result())
        except KeyboardInterrupt:
            outcomes.append(None)
    assert outcomes.count(None) <= 1
    assert all(ack.done and ack.position == 3 for ack in outcomes if ack is not None)
    writer.close()
    assert sorted(rows_on_store(site_on(store))) == [1, 2, 3, 4]


def test_f16_an_interrupted_close_leaves_the_rest_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    writer = open_writer(site_on(store))
    writer.put(row(1))

    def interrupted() -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(writer._committer, "drain", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.close()
    assert not Manifests(site_on(store)).require().sstables
    writer.close()
    manifest = Manifests(site_on(store)).require()
    assert len(manifest.sstables) == 1
    assert manifest.replay_after == 2, "every entry is in the SSTable (M-8)"


@pytest.mark.parametrize("strikes", [(False, True), (False, False, True)])
def test_f16_a_wait_interrupted_while_it_gives_up_hangs_nobody(strikes: tuple[bool, ...]) -> None:
    """The put timed out, and is interrupted as it takes the lock to leave: nobody waits for it."""
    store = MemoryStore()
    faults = FaultStore(store)
    writer = open_writer(site_on(faults))
    lock = writer._state.lock = InterruptedLock(writer._state.lock)
    gate = faults.on("put_if_absent", "*/wal/*").pause()
    first = Caller(lambda: writer.put(row(1)))
    gate.wait_reached()
    lock.arm(*strikes)  # to be queued, and then to leave
    with pytest.raises(KeyboardInterrupt):
        writer.put(row(2), timeout=0.01)
    lock.arm()
    gate.release()
    first.result()
    assert Caller(lambda: writer.put(row(3))).result().done
    Caller(writer.close).result()
    assert rows_on_store(site_on(store)) == {1: 1, 2: 2, 3: 3}


@pytest.mark.parametrize("when", ["before", "after"])
def test_f16_an_interrupted_append_is_settled_by_the_next(when: str) -> None:
    from weir.log.appender import WalAppender
    from weir.log.fence import claim_shard

    class Interrupting(MemoryStore):
        armed = False

        def put_if_absent(self, path, data):
            armed, self.armed = self.armed, False
            if armed and when == "before":
                raise KeyboardInterrupt
            super().put_if_absent(path, data)
            if armed:
                raise KeyboardInterrupt

    store = Interrupting()
    site = site_on(store)
    open_writer(site).close()
    manifests = Manifests(site)
    appender = WalAppender(site, KEYLESS, claim_shard(site, manifests), manifests=manifests)
    store.armed = True
    one, two = (pa.record_batch({"k": [key], "v": [key]}) for key in (1, 2))
    with pytest.raises(KeyboardInterrupt):
        appender.append([one])
    appender.append([two])
    assert sorted(rows_on_store(site)) == [1, 2]


def test_f16_a_put_that_cannot_be_booked_ends_the_writer_and_hangs_nobody() -> None:
    store = MemoryStore()
    writer = open_writer(site_on(store), WriterConfig(max_memtable_rows=2))
    writer.put(row(1))

    def fail() -> None:
        raise RuntimeError("no memory")

    writer._state.memtables.freeze = fail
    with pytest.raises(WriterClosed) as told:
        writer.put(pa.Table.from_pylist(row(2)))
    assert keys(told.value.not_written) == [2]
    Caller(writer.close).result()
    assert rows_on_store(site_on(store)) == {1: 1}


def test_f16_a_put_interrupted_while_it_is_booked_is_booked_once_by_the_next() -> None:
    store = MemoryStore()
    writer = open_writer(site_on(store), WriterConfig(max_memtable_rows=2))
    writer.put(row(1))
    real = writer._state.memtables.freeze

    def interrupted() -> None:
        writer._state.memtables.freeze = real
        raise KeyboardInterrupt

    writer._state.memtables.freeze = interrupted
    with pytest.raises(KeyboardInterrupt):
        writer.put(pa.Table.from_pylist(row(2)))
    Caller(lambda: writer.put(row(3))).result()
    Caller(writer.close).result()
    assert rows_on_store(site_on(store)) == {1: 1, 2: 2, 3: 3}
    assert writer.stats().rows_put == 3


class Strange(Exception):
    """An error that the store layer does not translate."""


def strange() -> None:
    raise Strange("what the library never said before")


def test_f16_an_error_nobody_translated_leaves_the_outcome_unknown() -> None:
    store = MemoryStore()
    watched = HookStore(store, "put_if_absent", "/wal/", lambda: None)
    writer = open_writer(site_on(watched), KEYLESS_CONFIG, KEYLESS)
    watched.arm(strange)
    with pytest.raises(UnknownOutcome) as told:
        writer.put(row(1))
    assert keys(told.value.perhaps_written) == [1]
    assert isinstance(told.value.__cause__, Strange)
    assert table_on_store(site_on(store), KEYLESS)["k"].to_pylist() == [1]  # so it was


KEYLESS_CONFIG = WriterConfig(enable_memtable=False)


def test_f16_a_refusal_after_a_lost_answer_settles_nothing() -> None:
    """The first attempt was applied and its answer lost; the second is refused."""

    class Failing(MemoryStore):
        attempts = 0

        def put_if_absent(self, path, data):
            if "/wal/" not in path or not self.attempts:
                return super().put_if_absent(path, data)
            self.attempts += 1
            if self.attempts == 2:
                super().put_if_absent(path, data)
                raise weir.store.api.LostAnswer("gone")
            raise errors.InvalidInput("there is no such bucket")

    store = Failing()
    writer = open_writer(site_on(store))
    store.attempts = 1
    with pytest.raises(UnknownOutcome):
        writer.put(row(1))


def test_f16_a_wait_that_times_out_as_the_writer_ends_hears_of_the_end(monkeypatch) -> None:
    """A close in between leaves the rows to the waiter, so the wait must report them."""
    writer = open_writer(site_on(MemoryStore()), BUFFERED)
    state = writer._state
    ack = writer.put(row(1))

    def time_is_up(_ack, _deadline) -> bool:
        fail(state, StoreError("the disk is full"))
        assert keys(state.ending.error().unacknowledged) == []
        return False

    monkeypatch.setattr(writer._committer, "_pass", time_is_up)
    with pytest.raises(WeirError, match="the disk is full") as told:
        ack.wait(0)
    assert keys(told.value.unacknowledged) == [1]


def test_f16_who_waits_on_beside_one_whose_time_is_up_gets_the_rows_alone(monkeypatch) -> None:
    """The one that left was counted for both: a close handed the rows back a second time."""
    writer = open_writer(site_on(MemoryStore()), BUFFERED)
    ack = writer.put(row(1))

    def goes_on(_ack, _deadline) -> bool:
        monkeypatch.setattr(writer._committer, "_pass", lambda _ack, _deadline: False)
        with pytest.raises(TimeoutError):
            ack.wait(0)
        fail(writer._state, StoreError("the disk is full"))
        return True

    monkeypatch.setattr(writer._committer, "_pass", goes_on)
    with pytest.raises(WeirError, match="the disk is full") as told:
        ack.wait()
    assert keys(told.value.unacknowledged) == [1]
    writer.close()  # owes nobody rows


def test_f16_rows_of_a_report_that_was_interrupted_are_in_the_next_one() -> None:
    def scenario(points: Points) -> None:
        store = MemoryStore()
        writer = open_writer(site_on(store), BUFFERED)
        open_writer(site_on(store)).close()
        writer.put(row(1))
        told: list[int] = []
        for around in (points, contextlib.nullcontext()):
            try:
                with around:
                    writer.close()
            except KeyboardInterrupt:
                assert not told
            except WeirError as error:
                told += keys(error.unacknowledged)
        assert told == [1]

    assert interrupt_each(scenario, r"Ending\.error:") >= 5


def test_f13_what_was_handed_back_is_not_written_by_who_waits_behind_it() -> None:
    """The leader is refused for good while another put, not yet shaped, waits behind it."""
    sent, queued = threading.Event(), threading.Event()

    class Failing(MemoryStore):
        is_open = True

        def put_if_absent(self, path, data):
            if self.is_open or "/wal/" not in path:
                return super().put_if_absent(path, data)
            self.is_open = True
            sent.set()
            queued.wait()
            raise errors.InvalidInput("there is no such bucket")

    store = Failing()
    writer = open_writer(site_on(store))
    store.is_open = False
    told: dict[int, WeirError] = {}

    def put(key: int) -> None:
        try:
            writer.put([{"k": key, "v": 0}])
        except WeirError as error:
            told[key] = error

    threads = [threading.Thread(target=put, args=(key,)) for key in (1, 2)]
    threads[0].start()
    sent.wait()
    threads[1].start()
    until_queued(writer, 2)
    queued.set()
    for thread in threads:
        thread.join()
    assert [keys(told[key].not_written) for key in (1, 2)] == [[1], [2]]
    assert table_on_store(site_on(store), KEYLESS)["k"].to_pylist() == []


def test_f16_an_owner_who_cannot_be_read_leaves_the_outcome_unknown() -> None:
    store = FaultStore(MemoryStore())
    writer = open_writer(site_on(store), WriterConfig(fence_ttl=0))

    def corrupt() -> None:
        raise errors.CorruptEntry("the manifest is torn")

    writer._appender.ownership.prove = corrupt
    with pytest.raises(UnknownOutcome) as told:
        writer.put(row(1))
    assert keys(told.value.perhaps_written) == [1]


# -- callbacks and loops ---------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_f16_a_failing_callback_stops_no_background_work(error: type[BaseException]) -> None:
    store = FaultStore(MemoryStore())
    writer = open_writer(site_on(store))
    told = []

    def fail(_) -> None:
        raise error("of somebody's")

    gate = store.on("put_if_absent", "*/wal/*").pause()
    ack = writer.put(row(1), wait=False)
    ack.add_done_callback(fail)
    ack.add_done_callback(told.append)
    gate.release()
    for key in range(2, 6):
        last = writer.put(row(key), wait=False)
        for _ in range(1000):
            if last.done:
                break
            time.sleep(0.01)
        assert last.done, "the pump is gone"
    assert told == [ack]
    writer.close()
    assert sorted(rows_on_store(site_on(store.inner))) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_f16_a_failing_callback_never_reaches_another_callers_put(
    error: type[BaseException],
) -> None:
    writer = open_writer(site_on(MemoryStore()), BUFFERED)
    told = SimpleQueue()

    def fail(_) -> None:
        raise error("of somebody's")

    ack = writer.put(row(1))
    ack.add_done_callback(fail)
    ack.add_done_callback(told.put)
    writer.put(row(2), wait=True)
    writer.close()
    assert told.get(timeout=20) is ack  # callbacks run in a thread of the writer
    assert told.empty()


def test_f16_a_loop_that_was_closed_meanwhile_reaches_nobody() -> None:
    store = FaultStore(MemoryStore())
    writer = open_writer(site_on(store))
    gate = store.on("put_if_absent", "*/wal/*").pause()

    async def give_up() -> None:
        task = asyncio.ensure_future(writer.aput(row(1)))
        await asyncio.to_thread(gate.wait_reached)
        task._log_destroy_pending = False  # left alone on purpose: nobody awaits it

    loop = asyncio.new_event_loop()
    loop.run_until_complete(give_up())
    loop.close()
    second = Caller(lambda: writer.put(row(2)))
    until_queued(writer, 2)
    gate.release()
    assert second.result().done
    writer.close()
    assert sorted(rows_on_store(site_on(store.inner))) == [1, 2]


def test_f16_tasks_are_told_although_the_thread_that_told_them_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = FaultStore(MemoryStore())
    writer = open_writer(site_on(store))
    gate = store.on("put_if_absent", "*/wal/*").pause()

    async def put_beside_a_thread() -> None:
        first = asyncio.get_running_loop().run_in_executor(None, writer.put, row(1))
        await asyncio.to_thread(gate.wait_reached)
        task = asyncio.ensure_future(writer.aput(row(2)))
        await asyncio.sleep(0)
        real = weir.shard.commit.run_callbacks

        def interrupted(acks) -> None:
            monkeypatch.setattr(weir.shard.commit, "run_callbacks", real)
            raise KeyboardInterrupt

        monkeypatch.setattr(weir.shard.commit, "run_callbacks", interrupted)
        gate.release()
        await first
        assert (await asyncio.wait_for(task, 10)).position == 3

    asyncio.run(put_beside_a_thread())
    writer.close()


class Panic(BaseException):
    """What a native library raises when it gives up; not an `Exception`."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_f16_a_panic_in_the_commit_thread_ends_the_writer_and_hangs_nobody() -> None:
    has_returned = threading.Event()

    class Panicking(MemoryStore):
        is_armed = False

        def put_if_absent(self, path, data):
            if self.is_armed and "/wal/" in path:
                has_returned.wait(10)  # a put that is told of the end itself has no receipt
                raise Panic("index out of range")
            return super().put_if_absent(path, data)

    store = Panicking()
    writer = open_writer(site_on(store))
    store.is_armed = True
    ack = writer.put(row(1), wait=False)  # written by the commit thread
    has_returned.set()
    with pytest.raises(UnknownOutcome) as told:
        Caller(ack.wait).result()
    assert keys(told.value.perhaps_written) == [1]
    with pytest.raises(WriterClosed):
        Caller(lambda: writer.put(row(2))).result()
    Caller(writer.close).result()


# -- errors travel ---------------------------------------------------------------------------------


def all_errors() -> list[type[WeirError]]:
    found, todo = [], [WeirError]
    while todo:
        kind = todo.pop()
        found.append(kind)
        todo += kind.__subclasses__()
    return sorted(set(found), key=lambda kind: kind.__name__)


def made(kind: type[WeirError]) -> WeirError:
    batch = pa.record_batch({"k": [1]})
    if issubclass(kind, FencedError):
        return kind("told", epoch=1, fenced_by=2, perhaps_written=[batch], not_written=[batch])
    if issubclass(kind, errors.PartialWrite):
        return kind("told", failures={UUID(int=1): made(FencedError)})
    if issubclass(kind, errors.NotOwner):
        return kind("told", shard=UUID(int=1), value=7)
    return kind("told", perhaps_written=[batch], not_written=[batch])


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "travel", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy]
)
def test_every_error_pickles_and_copies_with_all_it_says(kind, travel) -> None:
    error = made(kind)
    error.__cause__ = StoreError("the cause")
    error.add_note("a note")
    other = travel(error)
    assert (type(other), str(other), other.__notes__) == (kind, str(error), ["a note"])
    assert (other.perhaps_written, other.not_written) == (error.perhaps_written, error.not_written)
    assert other.unacknowledged == error.unacknowledged
    assert str(other.__cause__) == "the cause"
    if isinstance(error, FencedError):
        assert (other.epoch, other.fenced_by) == (1, 2)
    if isinstance(error, errors.NotOwner):
        assert (other.shard, other.value) == (UUID(int=1), 7)
    if isinstance(error, errors.PartialWrite):
        assert [str(e) for e in other.failures.values()] == ["told"]


# -- interrupted while others close ----------------------------------------------------------------


def _interrupted_while_others_close(writer, ack, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its caller waits, another thread closes the fenced writer; the wait is interrupted."""

    def wait(_ack, _deadline) -> bool:
        monkeypatch.undo()
        writer.close()  # a caller waits for the rows, and will get them
        raise KeyboardInterrupt

    monkeypatch.setattr(ack.committer, "_pass", wait)
    with pytest.raises(KeyboardInterrupt):
        ack.wait()


def _left_by(writer) -> list[int]:
    with pytest.raises(FencedError) as left:
        writer.close()
    writer.close()
    return keys([*left.value.not_written, *left.value.perhaps_written])


@MODES
def test_f16_a_put_interrupted_while_others_close_is_told_of_by_the_next_close(
    memtable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The close had left its rows to the waiting caller, and no later error named them. Found by
    seed 10319057."""
    store = MemoryStore()
    writer = open_writer(site_on(store), WriterConfig(**_buffered(memtable)))
    open_writer(site_on(store)).close()
    ack = writer.put(row(1))
    _interrupted_while_others_close(writer, ack, monkeypatch)
    assert _left_by(writer) == [1]


def test_f16_of_a_table_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = weir.create(str(tmp_path / "t"), KEYLESS.plain, sharding=weir.Bucket("k", 2))
    writer = table.writer(BUFFERED)
    receipt = writer.put(row(1), wait=False)
    with again(table).writer() as other:
        other.put([*row(1), *row(2), *row(3), *row(4)])
    ((_, ack),) = receipt._acks
    _interrupted_while_others_close(writer, ack, monkeypatch)
    assert _left_by(writer) == [1]
