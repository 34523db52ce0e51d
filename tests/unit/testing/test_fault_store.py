"""The fault store does what its plan says, and records it."""

import contextlib
import random

import pytest

from weir.env import SYSTEM, Env
from weir.errors import StoreDenied, StoreError
from weir.store.api import LostAnswer, ObjectExists
from weir.store.memory import MemoryStore
from weir.testing.fault_store import Crash, Event, FaultStore


@pytest.fixture
def store():
    return FaultStore(MemoryStore())


def test_without_faults_it_only_records(store):
    store.put_if_absent("a/wal/1", b"1")
    with pytest.raises(ObjectExists):
        store.put_if_absent("a/wal/1", b"2")
    assert store.get_many(["a/wal/1", "a/wal/2"]) == [b"1", None]
    assert store.log == [
        Event("put_if_absent", "a/wal/1", "ok"),
        Event("put_if_absent", "a/wal/1", "ObjectExists"),
        Event("get", "a/wal/1", "ok"),
        Event("get", "a/wal/2", "ObjectMissing"),
    ]
    assert store.counts == {"put_if_absent": 2, "get": 2}
    assert store.mutations == 2
    assert len(store.events("write", "*/wal/*")) == 2


def test_fail_before_leaves_nothing_and_ends(store):
    store.on("put_if_absent", "*/wal/*").fail_before(times=2)
    store.put_if_absent("a/manifest/1", b"")
    for _ in range(2):
        with pytest.raises(LostAnswer):
            store.put_if_absent("a/wal/1", b"")
    assert store.inner.head("a/wal/1") is None
    store.put_if_absent("a/wal/1", b"")


def test_fail_after_applies(store):
    store.on("put_if_absent").fail_after()
    with pytest.raises(LostAnswer):
        store.put_if_absent("a", b"1")
    assert store.inner.get("a").data == b"1"
    with pytest.raises(ObjectExists):
        store.put_if_absent("a", b"1")


def test_fail_after_hides_a_collision_too(store):
    store.put_if_absent("a", b"1")
    store.on("put_if_absent").fail_after()
    with pytest.raises(LostAnswer):
        store.put_if_absent("a", b"2")


def test_reads_fail_without_doubt(store):
    store.on("read").fail_before()
    with pytest.raises(StoreError) as caught:
        store.get("a")
    assert not isinstance(caught.value, LostAnswer)


def test_refuse_and_deny(store):
    store.on("put").refuse()
    store.on("put").deny()
    with pytest.raises(StoreError) as caught:
        store.put("a", b"")
    assert type(caught.value) is StoreError
    with pytest.raises(StoreDenied):
        store.put("a", b"")
    store.put("a", b"")


def test_skip_lets_some_pass(store):
    store.on("put", skip=2).fail_before(times=None)
    store.put("a", b"")
    store.put("b", b"")
    for _ in range(5):
        with pytest.raises(LostAnswer):
            store.put("c", b"")


def test_hold_applies_when_released(store):
    late = store.on("put_if_absent", "a").hold()
    with pytest.raises(LostAnswer):
        store.put_if_absent("a", b"late")
    assert store.inner.head("a") is None
    assert len(late) == 1
    assert late.release() == 1
    assert store.inner.get("a").data == b"late"
    assert late.release() == 0


def test_held_request_that_comes_too_late_collides(store):
    late = store.on("put_if_absent", "a").hold()
    with pytest.raises(LostAnswer):
        store.put_if_absent("a", b"late")
    store.put_if_absent("a", b"newer")
    late.release()
    assert store.inner.get("a").data == b"newer"
    assert store.log[-1] == Event("put_if_absent", "a", "ObjectExists")


def test_duplicate_applies_twice(store):
    store.on("put_if_absent").duplicate()
    store.put_if_absent("a", b"1")
    assert [event.outcome for event in store.log] == ["ok", "ObjectExists"]
    store.on("put_if_absent").duplicate(answer="second")
    with pytest.raises(ObjectExists):
        store.put_if_absent("b", b"1")  # our own first attempt looks like a collision


def test_pause_waits_for_the_test(store):
    gate = store.on("put", "a").pause()
    thread = SYSTEM.threads.start(lambda: store.put("a", b"1"), name="putter")
    gate.wait_reached()
    assert store.inner.head("a") is None
    gate.release()
    thread.join(10)
    assert store.inner.get("a").data == b"1"


def test_delay_uses_the_clock_of_the_environment():
    naps = []

    class Clock:
        boottime = wall = staticmethod(lambda: 0.0)
        sleep = staticmethod(naps.append)

    store = FaultStore(MemoryStore(), env=Env(clock=Clock()))
    store.on("put").delay(2.5)
    store.on("put").fail_after()
    with pytest.raises(LostAnswer):
        store.put("a", b"")
    store.put("a", b"")
    assert naps == [2.5, 2.5]


@pytest.mark.parametrize("when", ["before", "after"])
def test_crash_ends_everything(store, when):
    store.put("a", b"")
    store.crash_at(2, when)
    store.put("b", b"")
    store.get("b")
    with pytest.raises(Crash):
        store.put("c", b"")
    for call in (lambda: store.get("a"), lambda: store.put("d", b""), lambda: store.list("")):
        with pytest.raises(Crash):
            call()
    assert (store.inner.head("c") is not None) == (when == "after")
    assert store.inner.head("d") is None


def test_a_crash_ends_the_folders_of_a_store_with_it(store):
    folder = store.around(MemoryStore())
    store.crash_at(2)
    store.put("a", b"")
    with pytest.raises(Crash):
        folder.put("b", b"")
    with pytest.raises(Crash):
        store.get("a")
    assert store.mutations == folder.mutations == 2


def test_rate_draws_from_the_environment():
    def outcomes(seed):
        env = Env(random=random.Random(seed))
        store = FaultStore(MemoryStore(), env=env)
        store.on("put", rate=0.5).fail_before(times=None)
        for i in range(40):
            with contextlib.suppress(LostAnswer):
                store.put(str(i), b"")
        return [event.outcome for event in store.log]

    assert outcomes(1) == outcomes(1) != outcomes(2)
    assert 5 < outcomes(1).count("fail_before") < 35


def test_plan_is_made_of_values(store):
    store.on("put_if_absent", "*/wal/*", skip=1).fail_after(times=3)
    again = FaultStore(MemoryStore(), store.plan)
    assert again.plan == store.plan
    again.put_if_absent("a/wal/1", b"")
    with pytest.raises(LostAnswer):
        again.put_if_absent("a/wal/2", b"")
    again.heal()
    again.put_if_absent("a/wal/3", b"")
