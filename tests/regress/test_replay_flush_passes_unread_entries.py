"""F-8: a flush during replay moved R to the fence, past entries that replay had not read yet.

Found by the simulator (seed 0 of the first run): a writer died with two generations in the log. The
next writer flushed the first during replay, published R = fence, and died; the rows of the second
were lost.
"""

import contextlib

import pytest

from tests.support.one_shard import open_writer, rows_on_store, site_on
from weir.config import WriterConfig
from weir.store.memory import MemoryStore
from weir.testing.fault_store import Crash, FaultStore


@pytest.mark.parametrize("crash", range(1, 12))
def test_f8_a_crash_between_flushes_of_a_replay_loses_nothing(crash: int) -> None:
    store = MemoryStore()
    writer = open_writer(site_on(store), WriterConfig(enable_memtable=False, max_memtable_rows=1))
    for key in range(4):  # four generations in the log, none flushed
        writer.put([{"k": key, "v": key}])
    writer.close()
    dying = FaultStore(store)
    dying.crash_at(crash, "after")
    with contextlib.suppress(Crash):
        open_writer(site_on(dying))
    assert rows_on_store(site_on(store)) == {k: k for k in range(4)}
    open_writer(site_on(store)).close()
    assert rows_on_store(site_on(store)) == {k: k for k in range(4)}
