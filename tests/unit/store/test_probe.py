"""The probe passes good stores and refuses those that only seem good."""

import random
import threading
from collections import Counter

import pytest

from weir.env import Env
from weir.errors import StoreDenied, StoreUnsuitable
from weir.store.api import Blob, ObjectExists
from weir.store.local import LocalStore
from weir.store.memory import MemoryStore
from weir.store.probe import probe, require_put_if_absent
from weir.store.retry import RetryingStore, RetryPolicy
from weir.testing.fault_store import FaultStore


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_good_stores_pass_and_are_left_as_they_were(kind, tmp_path):
    store = MemoryStore() if kind == "memory" else LocalStore(str(tmp_path / "root"))
    report = probe(store)
    assert report.passed
    assert report.failures == ()
    assert {"put_if_absent", "get", "list", "delete"} <= report.latencies.keys()
    assert list(store.list("")) == []


class Ignores(MemoryStore):
    """Reports success and overwrites."""

    def put_if_absent(self, path, data):
        self.put(path, data)


class LooksFirst(MemoryStore):
    """Checks, then writes: correct for one caller, wrong in a race."""

    def __init__(self) -> None:
        super().__init__()
        self._looked = threading.Condition()
        self._looks = Counter()

    def put_if_absent(self, path, data):
        if self.head(path) is not None:
            raise ObjectExists(path)
        if "/race-" in path:  # on any machine, two callers have checked before one writes
            with self._looked:
                self._looks[path] += 1
                self._looked.notify_all()
                self._looked.wait_for(lambda: self._looks[path] > 1, timeout=2)
        self.put(path, data)


class RefusesButWrites(MemoryStore):
    """The answer is right, but the object is overwritten."""

    def put_if_absent(self, path, data):
        exists = self.head(path) is not None
        self.put(path, data)
        if exists:
            raise ObjectExists(path)


class Swallows(MemoryStore):
    """Reports success for a second create and keeps the first object."""

    def put_if_absent(self, path, data):
        if self.head(path) is None:
            self.put(path, data)


class RemembersAbsence(MemoryStore):
    """A negative cache in front: an object missing once stays missing for a while."""

    def __init__(self):
        super().__init__()
        self.missing = set()

    def get(self, path) -> Blob:
        if self.head(path) is None or path in self.missing:
            self.missing.add(path)
            return super().get(path + ".never")
        return super().get(path)


class ListsLate(MemoryStore):
    def list(self, prefix):
        return iter(()) if prefix.endswith("listed") else super().list(prefix)


class NeverDeletes(MemoryStore):
    def delete(self, paths):
        pass


@pytest.mark.parametrize(
    ("kind", "failed"),
    [
        (Ignores, "race of creates"),
        (LooksFirst, "race of creates"),
        (RefusesButWrites, "second create refused"),
        (Swallows, "second create refused"),
        (RemembersAbsence, "read after write"),
        (ListsLate, "list after write"),
        (NeverDeletes, "delete"),
    ],
)
def test_broken_stores_are_found_out_and_refused(kind, failed):
    report = probe(kind())
    assert failed in [check.name for check in report.failures]
    with pytest.raises(StoreUnsuitable, match=failed):
        require_put_if_absent(kind())


def test_lost_answers_do_not_make_a_store_unsuitable():
    env = Env(random=random.Random(3))
    faults = FaultStore(MemoryStore(), env=env)
    faults.on("put_if_absent", "*/race-*", rate=0.3).fail_after(times=None)
    assert probe(faults, env).passed
    faults.heal()
    faults.on("put_if_absent", rate=0.3).fail_after(times=10)
    faults.on("put_if_absent", rate=0.3).fail_before(times=10)
    retrying = RetryingStore(faults, env, RetryPolicy(first_delay=0.0, attempts=25))
    assert require_put_if_absent(retrying, env).passed


def test_denied_is_not_unsuitable():
    faults = FaultStore(MemoryStore())
    faults.on("put_if_absent").deny(times=None)
    with pytest.raises(StoreDenied):
        probe(faults)
