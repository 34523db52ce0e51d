"""`close` and `flush_wal` reported success although some rows were not durable (M-8).

Found by reading the code and confirmed by the simulator. A writer that fails empties its queue, and
an empty queue was mistaken for a durable one. A put between the last check of the queue and the end
was accepted and forgotten.
"""

import pytest

from tests.support.one_shard import open_writer, rows_on_store, site_on
from tests.support.threads import Caller
from weir.config import WriterConfig
from weir.errors import FencedError, StoreError, WriterClosed
from weir.shard.state import fail
from weir.store.memory import MemoryStore
from weir.testing.fault_store import FaultStore

BUFFERED = WriterConfig(enable_memtable=False, durable_write=False, max_wal_flush_interval=3600)


def test_m8_what_waits_for_the_last_row_hears_that_the_writer_failed():
    writer = open_writer(site_on(MemoryStore()), BUFFERED)
    writer.put([{"k": 1, "v": 1}])
    fail(writer._state, StoreError("out of reach"))  # this also empties the queue
    with pytest.raises(WriterClosed) as raised:
        writer.flush_wal()
    assert sum(batch.num_rows for batch in raised.value.unacknowledged) == 1


def test_m8_a_put_during_close_is_refused_or_durable():
    store = FaultStore(MemoryStore())
    writer = open_writer(site_on(store), WriterConfig(enable_memtable=False))
    gate = store.on("put_if_absent", "*/wal/*").pause()
    writer.put([{"k": 1, "v": 1}], wait=False)
    closing = Caller(writer.close)
    gate.wait_reached()
    while not writer._state.closing:
        pass
    with pytest.raises(WriterClosed):
        writer.put([{"k": 2, "v": 2}], wait=False)
    gate.release()
    closing.result()
    assert rows_on_store(site_on(store.inner)) == {1: 1}


def test_f13_a_flush_hears_that_the_writer_was_fenced_meanwhile():
    store = FaultStore(MemoryStore())
    writer = open_writer(site_on(store))
    gate = store.on("put_if_absent", "*/data.arrow").pause()
    writer.put([{"k": 1, "v": 1}])
    flushing = Caller(writer.flush)
    gate.wait_reached()
    open_writer(site_on(store.inner))
    with pytest.raises(FencedError):
        writer.put([{"k": 2, "v": 2}])
    with pytest.raises(FencedError):
        flushing.result()
    gate.release()
    writer.close()


def test_m6_a_memory_bound_below_the_memtable_size_waits_for_a_flush_and_not_for_ever():
    store = MemoryStore()
    tight = WriterConfig(max_wal_buffer_size=1, max_unflushed_memtable_bytes=50)
    writer = open_writer(site_on(store), tight)
    Caller(lambda: [writer.put([{"k": k, "v": k}]) for k in range(8)]).result()
    writer.close()
    assert len(rows_on_store(site_on(store))) == 8
