"""A request repeated on the way met its own first copy, and the put was reported as a conflict.

The rows were durable. Found by the simulator once it required that a conflict be a real one (fault
"echo", row 8 of the fault matrix).
"""

from tests.support.one_shard import open_writer, rows_on_store, site_on
from weir.store.memory import MemoryStore
from weir.testing.fault_store import FaultStore


def test_f11_an_entry_that_meets_its_own_copy_is_acknowledged_once():
    store = FaultStore(MemoryStore())
    writer = open_writer(site_on(store))
    store.on("put_if_absent", "*/wal/*").duplicate(times=None, answer="second")
    positions = [writer.put([{"k": k, "v": k}]).position for k in range(3)]
    assert positions == [2, 3, 4]
    writer.close()
    assert rows_on_store(site_on(store.inner)) == {0: 0, 1: 1, 2: 2}
