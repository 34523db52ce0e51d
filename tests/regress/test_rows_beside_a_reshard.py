"""Rows in flight while the routing changes. Found by the simulator's reshards.

A put whose entry was already written when the shard was claimed went to the heir as well, so its
rows appeared twice. Buffered rows that a failing flush or close did not report were forgotten
(M-8). And a table with a `fence_ttl` below a minute could not be resharded at all.
"""

import pytest

import weir
from tests.support.hooks import HookStore
from tests.support.moments import again, expect, make, put, rows
from tests.support.one_shard import open_writer, site_on
from weir.config import WriterConfig
from weir.errors import FencedError, UnknownOutcome
from weir.store.memory import MemoryStore

A, B = range(10), range(5, 20)


def test_c11_a_table_with_a_short_fence_ttl_is_resharded(tmp_path):
    table = make(tmp_path / "t", 2, writer_defaults=WriterConfig(fence_ttl=1))
    with table.writer() as writer:
        put(writer, A, "a")
    table.reshard(weir.Bucket("id", 3))
    assert rows(again(table)) == expect((A, "a"))


def test_m8_a_failing_close_names_every_row_that_is_left():
    store = MemoryStore()
    writer = open_writer(site_on(store), WriterConfig(durable_write=False, fence_ttl=60))
    open_writer(site_on(store)).close()
    for key in range(4):
        writer.put([{"k": key, "v": key}])
    with pytest.raises(FencedError) as told:
        writer.close()
    left = [key for batch in told.value.unacknowledged for key in batch.column("k").to_pylist()]
    assert sorted(left) == list(range(4))


@pytest.mark.parametrize("call", ["flush_wal", "flush", "close"])
def test_m8_buffered_rows_follow_a_change_of_routing(tmp_path, call):
    table = make(tmp_path / "t", 1)
    config = WriterConfig(durable_write=False, max_wal_flush_interval=0)
    writer = table.writer(config)
    put(writer, A, "a")
    writer.flush_wal()
    again(table).reshard(weir.Bucket("id", 2), compact=False)
    for text in ("b", "c"):
        put(writer, B, text)
    getattr(writer, call)()
    assert rows(again(table)) == expect((A, "a"), (B, "c"))
    writer.close()


def test_o_rows_that_landed_before_the_claim_are_told_as_such():
    store = MemoryStore()
    site = site_on(store)
    taken = []

    def take():
        taken.append(open_writer(site))

    watched = HookStore(store, "put_if_absent", "/wal/", lambda: None)
    late = open_writer(site_on(watched), WriterConfig(fence_ttl=0))
    watched.arm(take)
    with pytest.raises(FencedError) as told:
        late.put([{"k": 1, "v": 1}])
    assert told.value.maybe_written
    with pytest.raises(FencedError) as later:
        late.put([{"k": 2, "v": 2}])
    assert not later.value.maybe_written
    taken[0].close()


def test_o_a_table_writer_does_not_put_them_again(tmp_path, monkeypatch):
    table = make(tmp_path / "t", 1, writer_defaults=WriterConfig(fence_ttl=0))
    writer = table.writer()
    put(writer, A, "a")
    shard = next(iter(writer.shard_writers().values()))
    real = shard._appender.ownership.require

    def seal_first(stored):
        monkeypatch.setattr(shard._appender.ownership, "require", real)
        again(table).reshard(weir.Bucket("id", 2), compact=False)
        real(stored)

    monkeypatch.setattr(shard._appender.ownership, "require", seal_first)
    with pytest.raises(UnknownOutcome, match="may be in the table"):
        put(writer, B, "b")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))  # the entry was written before the seal
    assert sum(c.batch.num_rows for c in again(table).changes()) == len(A) + len(B)
    put(writer, A, "c")
    writer.close()
    assert rows(again(table)) == expect((A, "a"), (B, "b"), (A, "c"))


def test_m8_buffered_rows_keep_their_order_when_the_routing_changes(tmp_path):
    table = make(tmp_path / "t", 1)
    writer = table.writer(WriterConfig(durable_write=False, max_wal_flush_interval="1h"))
    put(writer, A, "a")
    writer.flush_wal()
    put(writer, A, "b")  # buffered
    again(table).reshard(weir.Bucket("id", 2), compact=False)
    shard = next(iter(writer.shard_writers().values()))
    with pytest.raises(FencedError) as told:
        shard.put([{"id": i, "v": "another caller's"} for i in B], wait=True)  # it notices here
    assert sum(batch.num_rows for batch in told.value.unacknowledged) == len(B)
    put(writer, A, "c")
    writer.close()
    assert rows(again(table)) == expect((A, "c"))
