"""Two threads waited for one ack (a put and `flush_wal`), and only one of them was ever woken.

Found by the simulator as a deadlock (seed 6 of the first run). When one waiter timed out, the other
one's wake-up was lost (seed 158).
"""

import contextlib

import pytest

from tests.support.one_shard import open_writer, site_on
from tests.support.threads import Caller
from weir.store.memory import MemoryStore
from weir.testing.fault_store import FaultStore


@pytest.fixture
def held():
    """A writer with one entry stuck in the store, and the gate that releases it."""
    store = FaultStore(MemoryStore())
    writer = open_writer(site_on(store))
    gate = store.on("put_if_absent", "*/wal/*").pause()
    leader = Caller(lambda: writer.put([{"k": 1, "v": 1}]))
    gate.wait_reached()
    yield writer, gate
    gate.release()
    leader.result()
    writer.close()


def test_every_waiter_of_an_ack_is_woken(held):
    writer, gate = held
    ack = writer.put([{"k": 2, "v": 2}], wait=False)
    waiters = [Caller(ack.wait) for _ in range(4)] + [Caller(writer.flush_wal)]
    gate.release()
    for waiter in waiters:
        waiter.result()


def test_a_waiter_that_gives_up_leaves_the_others_waiting_well(held):
    writer, gate = held
    ack = writer.put([{"k": 2, "v": 2}], wait=False)
    patient = Caller(ack.wait)
    hasty = Caller(lambda: ack.wait(timeout=0.05))
    with pytest.raises(TimeoutError):
        hasty.result()
    gate.release()
    assert patient.result() == ack.position
    with contextlib.suppress(TimeoutError):
        assert ack.wait(timeout=0) == ack.position
