"""The manifest that a listing found was collected before it was read: the shard looked empty.

A read then returned no rows at all (seed 103457 of the simulator), and an opener claimed the shard
as a new one.
"""

from tests.support.hooks import HookStore
from tests.support.one_shard import KEYED, open_writer, site_on
from tests.support.sim_table import collect_all, core_on
from weir.config import WriterConfig
from weir.format.paths import manifest_hint_path
from weir.log.manifests import Manifests
from weir.read.scan import Scan
from weir.store.memory import MemoryStore


def test_g7d_a_reader_overtaken_after_its_listing_still_sees_the_shard():
    store = MemoryStore()
    writer = open_writer(site_on(store), WriterConfig(fence_ttl=0))
    writer.put([{"k": 1, "v": 1}])
    writer.flush()
    collect_all(site_on(store))
    store.delete([manifest_hint_path(site_on(store).shard)])  # it may be missing or late (G-7d)

    def overtake():
        writer.put([{"k": 2, "v": 2}])
        writer.flush()
        collect_all(site_on(store))
        store.delete([manifest_hint_path(site_on(store).shard)])

    watched = HookStore(store, "list", "/manifest", overtake)
    assert Manifests(site_on(watched)).latest() is not None
    watched = HookStore(store, "list", "/manifest", lambda: collect_all(site_on(store)))
    assert Scan(core_on(site_on(watched), KEYED)).to_table().num_rows == 2
    writer.close()
