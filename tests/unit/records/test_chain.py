"""Compare-and-swap by numbered records."""

import pytest

from weir.env import SYSTEM
from weir.errors import InvalidInput, StoreError
from weir.records.chain import Chain
from weir.store.api import ObjectExists, ObjectMissing
from weir.store.local import LocalStore
from weir.store.memory import MemoryStore
from weir.testing.fault_store import FaultStore


@pytest.fixture
def store():
    return FaultStore(MemoryStore())


@pytest.fixture
def chain(store):
    return Chain(store, "_weir/things")


def test_records_follow_one_another(chain):
    assert chain.latest() is None
    assert chain.append(b"one", after=0) == 1
    assert chain.append(b"two", after=1) == 2
    latest = chain.latest()
    assert (latest.seq, latest.data) == (2, b"two")
    assert latest.last_modified > 0
    assert [(record.seq, record.data) for record in chain.all()] == [(1, b"one"), (2, b"two")]


def test_of_two_who_saw_the_same_record_one_loses(chain):
    chain.append(b"one", after=0)
    chain.append(b"mine", after=1)
    with pytest.raises(ObjectExists):
        chain.append(b"theirs", after=1)
    assert chain.latest().data == b"mine"


def test_counter_raised_by_many_threads_loses_nothing(tmp_path):
    chain = Chain(LocalStore(str(tmp_path)), "counter")

    def raise_once(worker):
        while True:
            latest = chain.latest()
            seq, value = (latest.seq, int(latest.data.split()[0])) if latest else (0, 0)
            try:
                chain.append(f"{value + 1} {worker}".encode(), after=seq)
            except ObjectExists:
                continue
            return

    SYSTEM.threads.map(raise_once, list(range(12)), workers=6)
    assert chain.latest().data.split()[0] == b"12"


def test_latest_costs_one_list_and_one_get(chain, store):
    for seq in range(50):
        chain.append(b"%d" % seq, after=seq)
    store.counts.clear()
    assert chain.latest().seq == 50
    assert store.counts == {"list_folder": 1, "get": 1}


def test_prune_keeps_the_latest(chain):
    for seq in range(5):
        chain.append(b"%d" % seq, after=seq)
    assert chain.prune(keep=2) == 3
    assert [record.seq for record in chain.all()] == [4, 5]
    assert chain.prune(keep=2) == 0
    with pytest.raises(InvalidInput):
        chain.prune(keep=0)


def test_latest_looks_again_when_its_record_was_pruned():
    class Pruned(MemoryStore):
        def get(self, path):
            if path.endswith("1.json"):
                self.put_if_absent("c/00000000000000000002.json", b"two")
                raise ObjectMissing(path)
            return super().get(path)

    store = Pruned()
    Chain(store, "c").append(b"one", after=0)
    assert Chain(store, "c").latest().data == b"two"


def test_records_that_always_vanish_end_in_an_error():
    class Vanishing(MemoryStore):
        def get(self, path):
            raise ObjectMissing(path)

    chain = Chain(Vanishing(), "c")
    chain.append(b"one", after=0)
    with pytest.raises(StoreError):
        chain.latest()
    assert chain.all() == []


def test_foreign_names_are_passed_over(chain, store):
    store.put("_weir/things/README", b"")
    store.put("_weir/things/1.json", b"")
    assert chain.latest() is None


def test_negative_after_is_refused(chain):
    with pytest.raises(InvalidInput):
        chain.append(b"", after=-1)
