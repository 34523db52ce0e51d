"""What is held, read once for collection and for users, however many there are."""

from uuid import UUID

import pytest

from tests.support.hooks import HookStore
from tests.support.tables import CountingStore
from weir.env import SYSTEM
from weir.errors import CorruptEntry
from weir.format import paths
from weir.records.checkpoints import Checkpoint
from weir.records.consumers import Consumer
from weir.records.cut import ShardCut
from weir.records.holds import Holds
from weir.store.memory import MemoryStore
from weir.types import Epoch, Generation, Position, Version

SHARD = UUID(int=7)


def cut() -> ShardCut:
    return ShardCut(
        shard=SHARD,
        manifest_version=Version(1),
        epoch=Epoch(1),
        replay_after=Position(2),
        wal_through=Position(5),
        current_generation=Generation(1),
        sstables=(),
        shard_spec_id=0,
        field_entries=(),
    )


def made(store, number: int, *, expires: float | None = None) -> Checkpoint:
    draft = Checkpoint(UUID(int=number), "all", float(number), 1, 1, (cut(),))
    holds = Holds(store)
    return holds.confirm(holds.announce(draft, pending_until=1e12), expires=expires)


def test_everything_held_is_read_in_one_round_of_each_kind():
    store = CountingStore(MemoryStore())
    for number in range(1, 30):
        made(store, number)
        Consumer(store, f"c{number}", 60.0).register({SHARD: number})
    holds = Holds(store)
    store.reset()
    assert len(holds.consumers()) == len(holds.checkpoints()) == 29
    assert store.calls == {"list": 2, "get_many": 2}
    assert store.requests == 2 + 29 + 2 * 29
    store.reset()
    pins = holds.pins()
    assert len(pins.of(SHARD)) == 29
    assert pins.unread_from(SHARD) == 1
    assert store.requests == 2 + 29 + 29, "first records are known by now"


def pinned_cuts(holds: Holds) -> list[ShardCut]:
    return holds.pins().of(SHARD)


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("read", [Holds.checkpoints, pinned_cuts])
def test_a_checkpoint_that_goes_while_it_is_read_is_gone_and_no_error(read, is_whole):
    store = MemoryStore()
    going, _ = made(store, 1), made(store, 2)

    def erase():
        assert Holds(store).end(going)
        if is_whole:
            Holds(store).erase(going.id)
        else:
            store.delete([paths.chain_path(paths.checkpoint_chain(going.id), 1)])

    assert len(read(Holds(HookStore(store, "list", paths.CHECKPOINTS, erase)))) == 1


def test_a_consumer_whose_record_is_pruned_while_it_is_read_is_found_where_it_is_now():
    store = MemoryStore()
    consumer = Consumer(store, "c", 60.0)
    consumer.register({SHARD: 1})

    def prune():
        consumer.save({SHARD: 9})
        store.delete([paths.chain_path(paths.consumer_chain("c"), 1)])

    assert Holds(HookStore(store, "list", paths.CONSUMERS, prune)).pins().unread_from(SHARD) == 9


def test_g2_what_was_refreshed_since_it_was_read_does_not_end():
    store = MemoryStore()
    pinned = made(store, 1, expires=1.0)
    Consumer(store, "c", 60.0).register({SHARD: 1})
    holds = Holds(store)
    found = [*holds.all("checkpoints"), *holds.all("consumers")]
    assert found[0].is_expired(1.0)
    holds.refresh(pinned, expires=1e12, env=SYSTEM)
    Consumer(store, "c", 60.0).save({SHARD: 2})
    assert [holds.end(hold, "expired") for hold in found] == [False, False]
    assert [c.id for c in holds.checkpoints()] == [pinned.id]
    assert list(holds.consumers()) == ["c"]
    again = [*holds.all("checkpoints"), *holds.all("consumers")]
    assert [holds.end(hold, "expired") for hold in again] == [True, True]
    assert holds.pins().of(SHARD) == []
    assert holds.pins().unread_from(SHARD) is None


def test_g11_a_damaged_first_record_stops_collection_until_its_checkpoint_has_ended():
    store = MemoryStore()
    pinned = made(store, 1)
    store.put(paths.chain_path(paths.checkpoint_chain(pinned.id), 1), b"{")
    with pytest.raises(CorruptEntry):
        Holds(store).pins()
    assert Holds(store).end(pinned)
    assert Holds(store).pins().of(SHARD) == []
