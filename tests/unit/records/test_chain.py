"""Compare-and-swap by numbered records."""

import pytest

from tests.support.tables import CountingStore
from weir.env import SYSTEM, Env, SystemClock
from weir.errors import CommitConflict, CorruptEntry, InvalidInput, StoreError
from weir.records import codec
from weir.records.chain import RecordChain
from weir.records.codec import Record
from weir.store.api import ObjectExists, ObjectMissing
from weir.store.local import LocalStore
from weir.store.memory import MemoryStore
from weir.testing.fault_store import FaultStore


class Word(Record, frozen=True):
    """A record of one word and one number."""

    word: str
    number: int = 0


@pytest.fixture
def store():
    return FaultStore(MemoryStore())


@pytest.fixture
def chain(store):
    return RecordChain(store, "_weir/things", Word)


def test_records_follow_one_another(chain):
    assert chain.latest() is None
    one = chain.append(Word("one"))
    assert chain.append(Word("two", seq=one.seq)).seq == 2
    latest = chain.latest()
    assert (latest.seq, latest.word) == (2, "two")
    assert latest.written > 0
    assert [(record.seq, record.word) for record in chain.all()] == [(1, "one"), (2, "two")]
    assert chain.all()[-1].written == latest.written


def test_of_two_who_saw_the_same_record_one_loses(chain):
    chain.append(Word("one"))
    chain.append(Word("mine", seq=1))
    with pytest.raises(ObjectExists):
        chain.append(Word("theirs", seq=1))
    assert chain.latest().word == "mine"


def test_counter_raised_by_many_threads_loses_nothing(tmp_path):
    chain = RecordChain(LocalStore(str(tmp_path)), "counter", Word)

    def raise_once(worker):
        chain.update(
            lambda found: Word(str(worker), found.number + 1 if found else 1), SYSTEM, "busy"
        )

    SYSTEM.threads.map(raise_once, list(range(12)), workers=6)
    assert chain.latest().number == 12
    assert chain.latest().seq == 12


def test_an_update_that_changes_nothing_writes_nothing(chain):
    assert chain.update(lambda found: found, SYSTEM, "busy") is None
    chain.append(Word("one"))
    assert chain.update(lambda found: found, SYSTEM, "busy").word == "one"
    assert chain.update(lambda _found: None, SYSTEM, "busy").word == "one"
    assert chain.last_number() == 1


class NoWait(SystemClock):
    """A clock whose sleeps are over at once."""

    def sleep(self, seconds):
        assert 0 <= seconds <= 1


def test_an_update_that_others_always_outrun_says_who_to_blame(chain):
    def outrun(found):
        chain.append(Word("theirs", seq=found.seq if found else 0))
        return Word("mine")

    with pytest.raises(CommitConflict, match="_weir/things: others were faster"):
        chain.update(outrun, Env(clock=NoWait()), "others were faster")
    assert {record.word for record in chain.all()} == {"theirs"}


def test_a_record_that_cannot_be_read_is_named(chain, store):
    store.put("_weir/things/00000000000000000001.json", b'{"word":')
    with pytest.raises(CorruptEntry, match=r"_weir/things/0+1\.json"):
        chain.latest()


def test_latest_costs_one_list_and_one_get(chain, store):
    for seq in range(50):
        chain.append(Word("w", seq=seq))
    store.counts.clear()
    assert chain.latest().seq == 50
    assert store.counts == {"list_folder": 1, "get": 1}


def test_all_records_are_read_in_few_rounds_however_many_there_are():
    store = CountingStore(MemoryStore())
    chain = RecordChain(store, "c", Word)
    for seq in range(150):
        chain.append(Word(f"w{seq}", seq=seq))
    store.reset()
    assert [record.word for record in chain.all()] == [f"w{seq}" for seq in range(150)]
    assert store.calls == {"list_folder": 1, "get_many": 3}
    assert store.requests == 151


def test_prune_keeps_the_latest(chain):
    for seq in range(5):
        chain.append(Word("w", seq=seq))
    assert chain.prune(keep=2) == 3
    assert [record.seq for record in chain.all()] == [4, 5]
    assert chain.prune(keep=2) == 0
    with pytest.raises(InvalidInput):
        chain.prune(keep=0)


def test_latest_looks_again_when_its_record_was_pruned():
    class Pruned(MemoryStore):
        def get(self, path):
            if path.endswith("1.json"):
                self.put_if_absent("c/00000000000000000002.json", codec.dumps(Word("two")))
                raise ObjectMissing(path)
            return super().get(path)

    chain = RecordChain(Pruned(), "c", Word)
    chain.append(Word("one"))
    assert chain.latest().word == "two"


def test_records_that_always_vanish_end_in_an_error():
    class Vanishing(MemoryStore):
        def get(self, path):
            raise ObjectMissing(path)

        def get_many(self, paths, *, first=None):
            return [None for _ in paths]

    chain = RecordChain(Vanishing(), "c", Word)
    chain.append(Word("one"))
    with pytest.raises(StoreError):
        chain.latest()
    assert chain.all() == []


def test_foreign_names_are_passed_over(chain, store):
    store.put("_weir/things/README", b"")
    store.put("_weir/things/1.json", b"")
    assert chain.latest() is None


def test_a_negative_number_is_refused(chain):
    with pytest.raises(InvalidInput):
        chain.append(Word("w", seq=-1))
