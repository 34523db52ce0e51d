"""A tailer called a fresh entry a hole: missing at its look, and covered by the manifest it read next.

Found by the simulator (seed 5 of the first run): `MissingEntry` on a healthy log.
"""

from tests.support.hooks import HookStore
from tests.support.one_shard import Place, open_writer, site_on
from weir.log.tailer import WalTailer
from weir.store.memory import MemoryStore


def write_and_flush(store):
    writer = open_writer(site_on(store))
    writer.put([{"k": 1, "v": 1}])
    writer.close()


def test_iteration_finds_an_entry_that_came_after_its_look():
    store = MemoryStore()
    watched = HookStore(store, "get_many", "/wal/", lambda: write_and_flush(store))
    entries = list(WalTailer(Place(site_on(watched)), 1))
    assert [row["v"] for e in entries for b in e.batches for row in b.to_pylist()] == [1]


def test_read_finds_an_entry_that_came_after_its_look():
    store = MemoryStore()
    watched = HookStore(store, "get", "/wal/", lambda: write_and_flush(store))
    entry = WalTailer(Place(site_on(watched))).read(1)
    assert entry is not None
    assert entry.is_fence
