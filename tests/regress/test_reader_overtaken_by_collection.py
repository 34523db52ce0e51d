"""After a read had planned, the log was flushed and collected, and its end mistaken for the tip.

The read then missed rows that were acknowledged before it began (L-1). And an opener called the
collected part a hole: `MissingEntry` on a healthy table (seed 10305 of the simulator).
"""

from tests.support.hooks import HookStore
from tests.support.one_shard import KEYED, open_writer, site_on
from tests.support.sim_table import collect_all, core_on
from weir.config import WriterConfig
from weir.read.scan import Scan
from weir.store.memory import MemoryStore

ALWAYS_PROVE = WriterConfig(fence_ttl=0)


def overtaken(store, writer, verb, part):
    def go_on():
        for key in range(10, 40):
            writer.put([{"k": key, "v": key}])
        writer.flush()
        writer.put([{"k": 50, "v": 50}])
        collect_all(site_on(store))

    return HookStore(store, verb, part, go_on)


def test_l1_a_read_overtaken_by_flush_and_collection_misses_nothing():
    store = MemoryStore()
    writer = open_writer(site_on(store), ALWAYS_PROVE)
    for key in range(5):
        writer.put([{"k": key, "v": key}])
    watched = overtaken(store, writer, "list", "floor")
    table = Scan(core_on(site_on(watched), KEYED)).to_table()
    assert set(table["k"].to_pylist()) >= set(range(5))
    assert table.num_rows == 36
    writer.close()


def test_f6_an_opener_overtaken_by_flush_and_collection_finds_no_hole():
    store = MemoryStore()
    writer = open_writer(site_on(store), ALWAYS_PROVE)
    for key in range(5):
        writer.put([{"k": key, "v": key}])
    watched = overtaken(store, writer, "list", "floor")
    newer = open_writer(site_on(watched), ALWAYS_PROVE)
    newer.close()
    table = Scan(core_on(site_on(store), KEYED)).to_table()
    assert table.num_rows == 36
