"""A number that only rises (G-8)."""

import pytest

from weir.env import SYSTEM
from weir.errors import InvalidInput
from weir.records.marks import Marks
from weir.store.local import LocalStore
from weir.store.memory import MemoryStore
from weir.testing.fault_store import FaultStore


def test_g8_the_maximum_counts():
    markers = Marks(MemoryStore(), "floor")
    assert markers.highest() is None
    for n in (5, 3, 5, 12, 0):
        markers.raise_to(n)
    assert markers.highest() == 12


def test_g8_two_collectors_racing_leave_the_maximum(tmp_path):
    markers = Marks(LocalStore(str(tmp_path)), "floor")

    def collect(start):
        for n in range(start, 40, 2):
            markers.raise_to(n)
            markers.trim()
            assert markers.highest() >= n

    SYSTEM.threads.map(collect, [0, 1], workers=2)
    assert markers.highest() == 39


def test_g8_trim_never_changes_the_maximum():
    store = FaultStore(MemoryStore())
    markers = Marks(store, "floor")
    for n in (1, 2, 3, 4):
        markers.raise_to(n)
    assert markers.trim() == 2
    assert markers.highest() == 4
    assert len(list(store.list("floor"))) == 2
    assert markers.trim() == 0


def test_g8_reads_ask_the_store_every_time():
    store = FaultStore(MemoryStore())
    ours, theirs = Marks(store, "floor"), Marks(store.inner, "floor")
    ours.raise_to(1)
    assert ours.highest() == 1
    theirs.raise_to(2)
    assert ours.highest() == 2
    assert store.counts == {"put_if_absent": 1, "list_folder": 2}


def test_the_highest_is_listed_first():
    store = MemoryStore()
    markers = Marks(store, "floor")
    for n in (0, 7, 2**64 - 1, 9):
        markers.raise_to(n)
    names = [meta.path for meta in store.list("floor")]
    assert names[0] == "floor/00000000000000000000"
    assert names[-1] == "floor/18446744073709551615"


@pytest.mark.parametrize("n", [-1, 2**64])
def test_numbers_that_do_not_fit_are_refused(n):
    with pytest.raises(InvalidInput):
        Marks(MemoryStore(), "floor").raise_to(n)
