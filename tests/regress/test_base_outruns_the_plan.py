"""A read planned on the log, which was then flushed and folded before the read opened the base.

On an append-only table each of those rows was returned twice, and rows written after the cut were
shown beside older ones (L-5). Found by the simulator (scenario stream, seeds 18 and 227).
"""

from dataclasses import replace
from types import SimpleNamespace

from simulator.keepers import ModelRunner
from tests.support.hooks import HookStore
from tests.support.one_shard import KEYLESS, open_writer, site_on
from tests.support.sim_table import core_on
from weir.config import WriterConfig
from weir.read.scan import Scan
from weir.store.memory import MemoryStore
from weir.upkeep.compact.run import compact


def fold(store):
    handle = SimpleNamespace(core=core_on(site_on(store), KEYLESS), writer_defaults=WriterConfig())
    assert compact(handle.core, engine=ModelRunner()).job


def test_l5_rows_folded_while_a_read_is_planned_are_read_once():
    store = MemoryStore()
    writer = open_writer(site_on(store), schema=KEYLESS)
    for key in range(3):
        writer.put([{"k": key, "v": key}])

    def go_on():
        writer.put([{"k": 3, "v": 3}])
        writer.flush()
        fold(store)

    site = site_on(store)
    watched = HookStore(site.store, "head_many", "/wal/", go_on)
    rows = Scan(core_on(replace(site, store=watched, wal=watched), KEYLESS)).to_table()
    assert sorted(rows["k"].to_pylist()) == [0, 1, 2, 3]
    writer.close()


def test_l5_a_writer_reads_its_own_rows_once_while_they_are_folded():
    store = MemoryStore()
    # The scan opens the base first to see what was folded, and reads its rows later.
    folding = HookStore(store, "get", "_versions/", lambda: None)
    writer = open_writer(site_on(folding), schema=KEYLESS)
    for key in range(3):
        writer.put([{"k": key, "v": key}])
    writer.flush()
    folding.arm(lambda: fold(store))
    for _ in range(2):
        rows = writer.scan().read_all()
        assert sorted(rows["k"].to_pylist()) == [0, 1, 2]
    writer.close()
