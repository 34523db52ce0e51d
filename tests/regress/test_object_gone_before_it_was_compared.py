"""A put lost its answer, and its retry met an object that was collected before it was compared.

The object was called another writer's, so the rows went to the shard's heir as well, although they
had been applied, flushed and folded (F-9, F-11; seed 3007953 of the simulator, scenario reshards).
An object that is gone is neither ours nor another's: the outcome is unknown.
"""

import pytest

from tests.support.hooks import HookStore
from tests.support.one_shard import QUICK, open_writer, site_on
from weir.env import SYSTEM
from weir.errors import FencedError, UnknownOutcome
from weir.format import paths
from weir.store.api import LostAnswer, ObjectExists
from weir.store.memory import MemoryStore
from weir.store.retry import RetryingStore
from weir.types import Position


class LosesAndCollects:
    """Applies the first put and loses its answer; deletes the object after the second."""

    def __init__(self):
        self._inner = MemoryStore()
        self.puts = 0

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def put_if_absent(self, path, data):
        self.puts += 1
        if self.puts == 1:
            self._inner.put_if_absent(path, data)
            raise LostAnswer("no answer")
        try:
            self._inner.put_if_absent(path, data)
        finally:
            self._inner.delete([path])


def test_f9_an_object_that_is_gone_is_not_called_somebody_elses():
    with pytest.raises(LostAnswer, match="was deleted before"):
        RetryingStore(LosesAndCollects(), SYSTEM, QUICK).put_if_absent("a", b"1")


class Echoes(HookStore):
    """Repeats the put as a proxy would: the second answer is returned, and the entry is gone."""

    def put_if_absent(self, path, data):
        self._inner.put_if_absent(path, data)
        if self._action is not None and "/wal/" in path:
            action, self._action = self._action, None
            action(path)
            raise ObjectExists(path)


def test_f11_an_entry_gone_before_it_was_compared_leaves_the_put_unknown():
    store = MemoryStore()
    echoing = Echoes(store, "none", "", lambda _path: None)
    echoing._action = None
    writer = open_writer(site_on(echoing))
    echoing._action = lambda path: store.delete([path])
    with pytest.raises(UnknownOutcome):
        writer.put([{"k": 1, "v": 1}])


def test_f11_a_fenced_writer_says_that_its_rows_may_be_in():
    store = MemoryStore()
    echoing = Echoes(store, "none", "", lambda _path: None)
    echoing._action = None
    site = site_on(echoing)
    writer = open_writer(site)

    def taken_over(_path):
        open_writer(site_on(store)).close()
        store.delete([paths.wal_path(site.shard, Position(2))])

    echoing._action = taken_over
    with pytest.raises((FencedError, UnknownOutcome)) as told:
        writer.put([{"k": 1, "v": 1}])
    assert isinstance(told.value, UnknownOutcome) or told.value.maybe_written
