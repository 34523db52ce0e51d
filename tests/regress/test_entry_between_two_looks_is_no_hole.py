"""A tailer called a new entry a hole: its probe missed it, and the next manifest covered it.

Found by the simulator (seed 5 of the first run): `MissingEntry` on a healthy log.
"""

from dataclasses import replace

import pytest

from tests.support.hooks import HookStore
from tests.support.one_shard import Place, open_writer, site_on
from weir.errors import MissingEntry
from weir.format.paths import wal_path
from weir.log.tailer import WalTailer
from weir.store.memory import MemoryStore


def write_and_flush(store):
    writer = open_writer(site_on(store))
    writer.put([{"k": 1, "v": 1}])
    writer.close()


def test_iteration_finds_an_entry_that_came_after_its_look():
    store = MemoryStore()
    site = site_on(store)
    watched = HookStore(site.wal, "get_many", "/wal/", lambda: write_and_flush(store))
    entries = list(WalTailer(Place(replace(site, wal=watched)), 1))
    assert [row["v"] for e in entries for b in e.batches for row in b.to_pylist()] == [1]


def test_read_finds_an_entry_that_came_after_its_look():
    store = MemoryStore()
    watched = HookStore(store, "get", "/wal/", lambda: write_and_flush(store))
    entry = WalTailer(Place(site_on(watched))).read(1)
    assert entry is not None
    assert entry.is_fence


@pytest.mark.parametrize("hole", [[2], [3], [4], [2, 3, 4, 5]])
def test_f6_a_true_hole_is_still_one(hole):
    store = MemoryStore()
    site = site_on(store)
    writer = open_writer(site)
    for key in range(4):
        writer.put([{"k": key, "v": key}])
    writer.flush()
    store.delete([wal_path(site.shard, position) for position in hole])
    with pytest.raises(MissingEntry):
        list(WalTailer(Place(site)).read_range(1, 5))
    writer.close()
