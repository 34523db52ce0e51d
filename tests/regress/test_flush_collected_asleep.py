"""W-5: a writer slept after its flush until the flush was folded and its manifest collected.

It found its version below the floor, as a version in a collected place also is, and mistook its own
R for that of a fold of the log. It stopped with "a compaction folded the log". Found by seed
10313779.
"""

import pytest

from simulator.keepers import ModelRunner
from tests.rules.test_snapshot_rounds import keys_of, put
from tests.support.hooks import HookStore
from tests.support.one_shard import KEYED, KEYLESS, open_writer, site_on
from tests.support.sim_table import collect_all, core_on
from weir.config import WriterConfig
from weir.log.manifests import Manifests
from weir.store.memory import MemoryStore
from weir.upkeep.compact.run import compact


@pytest.mark.parametrize("schema", [KEYED, KEYLESS], ids=["keyed", "keyless"])
def test_w5_a_writer_that_slept_until_its_flush_was_collected_goes_on(schema):
    store = MemoryStore()
    hooked = HookStore(store, "put_if_absent", "nothing", lambda: None)
    writer = open_writer(site_on(hooked), WriterConfig(fence_ttl=0), schema=schema)
    put(writer, 1, 2)

    def go_on():
        assert compact(core_on(site_on(store), schema), engine=ModelRunner()).job
        for _ in range(2):
            collect_all(site_on(store), schema)
        assert not Manifests(site_on(store)).require().sstables, "the story needs them gone"
        assert Manifests(site_on(store)).floors.load().manifest >= published

    published = Manifests(site_on(store)).require().version + 1
    hooked.wait_for("/manifest/")
    hooked.arm(go_on)
    writer.flush()
    put(writer, 3)
    writer.close()
    assert keys_of(core_on(site_on(store), schema)) == [1, 2, 3]
