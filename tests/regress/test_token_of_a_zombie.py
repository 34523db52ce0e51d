"""A zombie's exactly-once entry landed in a collected place, and collection recorded its token.

The zombie was fenced and its rows are rightly nowhere (G-7b), but the batch was then reported as
applied, and so it was lost (P-2; seed 4003709 of the simulator, scenario stream). Tokens are read
before the floor passes their entries; below the floor only zombies write.
"""

from tests.support.hooks import HookStore
from tests.support.one_shard import KEYED, open_writer, site_on
from tests.support.sim_table import collect_all
from weir.config import WriterConfig
from weir.format import paths
from weir.format.wal_entry import EntryEncoder
from weir.log.floors import Floors
from weir.log.intake import Intake
from weir.shard.tokens import Tokens
from weir.store.memory import MemoryStore
from weir.types import Epoch, Generation, Position


def put_batch(site, version, app="s"):
    writer = open_writer(site, WriterConfig(fence_ttl=0))
    assert writer.put_once([{"k": version, "v": version}], app=app, version=version)
    writer.close()


def entry_with(version):
    rows = Intake(KEYED).rows([{"k": 99, "v": 99}])
    return bytes(
        EntryEncoder(KEYED).encode(
            rows,
            epoch=Epoch(1),
            generation=Generation(1),
            entry_id="0" * 32,
            tokens=[("s", version)],
        )
    )


def test_p2_the_token_of_an_entry_in_a_collected_place_is_not_recorded():
    store = MemoryStore()
    site = site_on(store)
    put_batch(site, 1)
    put_batch(site, 2)
    collect_all(site)
    floor = Floors(site).load().wal
    assert floor >= 2
    place = paths.wal_path(site.shard, Position(floor))
    store.delete([place])
    store.put_if_absent(place, entry_with(9))
    put_batch(site, 3)
    collect_all(site)
    assert store.head(place) is None, "the zombie's entry is collected again"
    assert Tokens(site).load("s") == 3


def test_p2_an_entry_another_collector_passed_meanwhile_is_a_zombies_too():
    store = MemoryStore()
    site = site_on(store)
    put_batch(site, 1)
    put_batch(site, 2)
    last = Position(2)

    def pass_it():
        collect_all(site)
        place = paths.wal_path(site.shard, last)
        store.delete([place])
        store.put(place, entry_with(9))

    # Runs between the read of the floors and the read of the entries.
    slow = site_on(HookStore(store, "list_folder", "/tokens", pass_it))
    collect_all(slow)
    assert Tokens(site).load("s") == 2


def test_p6_a_dead_writers_note_does_not_lead_to_a_zombies_entry_in_a_collected_place():
    """Found by the simulator (seed 521) soon after such notes were introduced."""
    store = MemoryStore()
    site = site_on(store)
    Tokens(site).begin("s", Position(0), Epoch(1))  # the note of a writer that died
    for version in (1, 2):
        put_batch(site, version, app="other")
    collect_all(site)
    place = paths.wal_path(site.shard, Position(Floors(site).load().wal))
    store.delete([place])
    store.put_if_absent(place, entry_with(9))
    with open_writer(site, WriterConfig(fence_ttl=0)) as writer:
        assert writer.last_version("s") == -1
