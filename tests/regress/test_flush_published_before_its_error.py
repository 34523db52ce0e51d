"""A manifest was committed, the read after it failed, and the retry published the SSTable again.

This raised RuleBroken. Found by the simulator (seed 2 of the first run).
"""

import pytest

from tests.support.hooks import HookStore
from tests.support.one_shard import open_writer, rows_on_store, site_on
from weir.store.memory import MemoryStore
from weir.testing.fault_store import FaultStore


@pytest.mark.parametrize("failures", [4, 8])
def test_f9_a_flush_that_failed_after_its_commit_is_not_published_twice(failures):
    store = MemoryStore()
    faulty = FaultStore(store)
    hook = HookStore(faulty, "put_if_absent", "/manifest/", lambda: None)
    writer = open_writer(site_on(hook))
    writer.put([{"k": 1, "v": 1}])
    hook.arm(lambda: faulty.on("list", "*/floor*").fail_before(times=failures))
    writer.flush()
    assert writer.stats().memtable.flush_failures
    writer.put([{"k": 2, "v": 2}])
    writer.close()
    assert rows_on_store(site_on(store)) == {1: 1, 2: 2}
