"""Retries are bounded, and a lost answer is settled by reading back."""

import logging
import random

import pytest

from weir.env import Env
from weir.errors import InvalidInput, StoreDenied, StoreError
from weir.store.api import LostAnswer, ObjectExists, ObjectMissing
from weir.store.memory import MemoryStore
from weir.store.retry import RetryingStore, RetryPolicy
from weir.testing.fault_store import FaultStore


class Clock:
    """Time that passes only during sleep."""

    def __init__(self):
        self.time = 0.0
        self.naps = []

    def boottime(self):
        return self.time

    wall = boottime

    def sleep(self, seconds):
        self.naps.append(seconds)
        self.time += seconds


@pytest.fixture
def env():
    return Env(clock=Clock(), random=random.Random(7))


@pytest.fixture
def faults(env):
    return FaultStore(MemoryStore(env=env), env=env)


@pytest.fixture
def store(faults, env):
    return RetryingStore(faults, env, RetryPolicy(attempts=4))


def test_f9_lost_answer_that_was_applied_is_success(store, faults, caplog):
    faults.on("put_if_absent").fail_after()
    with caplog.at_level(logging.INFO, "weir.store"):
        store.put_if_absent("a", b"mine")
    assert faults.get("a").data == b"mine"
    assert [record.getMessage() for record in caplog.records] == [
        "store.put.settled path=memory:/a attempts=2"
    ]


def test_f9_lost_answer_that_was_not_applied_is_repeated(store, faults):
    faults.on("put_if_absent").fail_before(times=2)
    store.put_if_absent("a", b"mine")
    assert faults.get("a").data == b"mine"
    assert store.requests == {"put_if_absent": 3}


def test_f9_lost_answer_then_somebody_elses_object_is_a_collision(store, faults):
    faults.on("put_if_absent").fail_before()
    faults.inner.put_if_absent("a", b"theirs")
    with pytest.raises(ObjectExists):
        store.put_if_absent("a", b"mine")
    assert faults.get("a").data == b"theirs"


def test_clean_collision_is_passed_on_without_a_read(store, faults):
    faults.put_if_absent("a", b"mine")  # equal bytes, but this call cannot have written them
    with pytest.raises(ObjectExists):
        store.put_if_absent("a", b"mine")
    assert store.requests == {"put_if_absent": 1}


@pytest.mark.parametrize("fault", ["fail_before", "fail_after"])
def test_f11_outcome_that_stays_unknown_is_a_lost_answer(store, faults, fault):
    getattr(faults.on("put_if_absent"), fault)(times=None)
    faults.on("get").fail_before(times=None)
    with pytest.raises(LostAnswer):
        store.put_if_absent("a", b"mine")
    assert store.requests["put_if_absent"] == 4
    assert faults.events("delete") == []  # nothing is deleted on that path
    assert (faults.inner.head("a") is not None) == (fault == "fail_after")


def test_f11_collision_that_cannot_be_read_back_is_unknown(store, faults):
    faults.on("put_if_absent").fail_after()
    faults.on("get").fail_before(times=None)
    with pytest.raises(LostAnswer):
        store.put_if_absent("a", b"mine")


def test_f11_refusal_after_a_lost_answer_is_still_unknown(store, faults):
    faults.on("put_if_absent").fail_after()
    faults.on("put_if_absent").deny()
    with pytest.raises(LostAnswer):
        store.put_if_absent("a", b"mine")


def test_known_refusals_stay_a_store_error(store, faults):
    faults.on("put_if_absent").refuse(times=None)
    with pytest.raises(StoreError) as caught:
        store.put_if_absent("a", b"mine")
    assert not isinstance(caught.value, LostAnswer)


def test_denied_is_not_retried(store, faults):
    faults.on().deny(times=None)
    for call in (
        lambda: store.put_if_absent("a", b""),
        lambda: store.get("a"),
        lambda: store.head("a"),
        lambda: list(store.list("")),
    ):
        with pytest.raises(StoreDenied):
            call()
    assert sum(store.requests.values()) == 4


def test_missing_is_not_retried(store):
    with pytest.raises(ObjectMissing):
        store.get("a")
    assert store.requests == {"get": 1}


def test_reads_are_repeated(store, faults):
    faults.put_if_absent("d/a", b"12")
    faults.on("read").fail_before(times=None)
    with pytest.raises(StoreError):
        store.get("d/a")
    assert store.requests["get"] == 4
    for call, expected in (
        (lambda: store.get("d/a").data, b"12"),
        (lambda: store.get_range("d/a", 1, 1), b"2"),
        (lambda: store.get_many(["d/a"]), [b"12"]),
        (lambda: store.head("d/a").size, 2),
        (lambda: [meta.size for meta in store.head_many(["d/a"])], [2]),
        (lambda: [meta.path for meta in store.list("d")], ["d/a"]),
        (lambda: store.list_folder("")[0], ["d"]),
        (lambda: store.now() >= 0, True),
    ):
        faults.heal()
        faults.on("read").fail_before(times=2)
        assert call() == expected


@pytest.mark.parametrize("verb", ["get_many", "head_many", "list_many"])
def test_of_many_requests_only_the_failed_ones_are_repeated(env, verb):
    """1 % of requests fail: repeated as a whole, 512 of them would hardly ever succeed."""
    faults = FaultStore(MemoryStore(env=env), env=env)
    for i in range(512):
        faults.put_if_absent(f"d{i}/a", b"1")
    op = verb.removesuffix("_many")
    faults.on(op, rate=0.01).fail_before(times=None)
    store = RetryingStore(faults, env)
    names = [f"d{i}" if op == "list" else f"d{i}/a" for i in range(512)]
    for _ in range(5):
        before = faults.counts[op]
        found = getattr(store, verb)(names)
        assert len(found) == 512
        assert all(found)
        assert faults.counts[op] - before < 2 * 512


@pytest.mark.parametrize("verb", ["get_many", "head_many", "list_many"])
def test_many_requests_to_a_store_that_is_down_are_few(env, verb):
    faults = FaultStore(MemoryStore(env=env), env=env)
    op = verb.removesuffix("_many")
    faults.on(op).fail_before(times=None)
    store = RetryingStore(faults, env)
    with pytest.raises(StoreError):
        getattr(store, verb)([f"d{i}" for i in range(512)])
    assert faults.counts[op] < 256


def test_many_reads_answer_missing_objects_and_beginnings_after_a_failure(store, faults):
    faults.put_if_absent("d/a", b"123")
    faults.on("get").fail_before(times=1)
    assert store.get_many(["d/a", "d/b"], first=2) == [b"12", None]
    faults.on("head").fail_before(times=1)
    assert [meta and meta.size for meta in store.head_many(["d/a", "d/b"])] == [3, None]


def test_many_requests_that_are_denied_are_not_repeated(store, faults):
    faults.on("get").deny()
    with pytest.raises(StoreDenied):
        store.get_many(["a", "b"])
    assert faults.counts["get"] == 1


def test_safe_writes_are_repeated(store, faults):
    for call in (
        lambda: store.put("a", b"1"),
        lambda: store.delete(["a"]),
    ):
        faults.on("write").fail_after()
        call()
    assert list(store.list("")) == []


def test_list_that_breaks_off_names_each_object_once(env):
    class Breaks(MemoryStore):
        broken = False

        def list(self, prefix):
            for meta in super().list(prefix):
                yield meta
                if not self.broken:
                    self.broken = True
                    raise StoreError("page two failed")

    inner = Breaks()
    for i in range(3):
        inner.put(f"d/{i}", b"")
    store = RetryingStore(inner, env)
    assert [meta.path for meta in store.list("d")] == ["d/0", "d/1", "d/2"]


def test_backoff_doubles_jitters_and_ends(faults, env):
    faults.on("get").fail_before(times=None)
    store = RetryingStore(faults, env, RetryPolicy(attempts=8, first_delay=1, longest_delay=4))
    with pytest.raises(StoreError):
        store.get("a")
    naps = env.clock.naps
    assert len(naps) == 7
    assert all(0 <= nap <= bound for nap, bound in zip(naps, (1, 2, 4, 4, 4, 4, 4), strict=True))
    assert len(set(naps)) == 7


def test_deadline_ends_the_retries_early(faults, env):
    faults.on("get").delay(10)
    faults.on("get").fail_before(times=None)
    store = RetryingStore(faults, env, RetryPolicy(attempts=100, deadline=35))
    with pytest.raises(StoreError):
        store.get("a")
    assert store.requests["get"] < 10


@pytest.mark.parametrize("bad", [{"attempts": 0}, {"deadline": -1}, {"first_delay": -0.1}])
def test_policy_refuses_nonsense(bad):
    with pytest.raises(InvalidInput):
        RetryPolicy(**bad)
