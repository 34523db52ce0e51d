"""G-7b, F-18: how long a writer trusts its ownership, by which clock, and who decides."""

import random

import pyarrow as pa
import pytest

import weir
from tests.support.shards import Bench, HandClock
from weir.config import WriterConfig
from weir.env import Env
from weir.errors import FencedError, InvalidInput
from weir.format import paths
from weir.log.appender import WalAppender
from weir.log.ownership import LONG_AGO, ClockReading
from weir.store.api import SOMETIME
from weir.store.memory import MemoryStore
from weir.types import Position
from weir.upkeep.loads import close_logs

SHAPE = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
WEEK = 7 * 86400.0


class Undated(MemoryStore):
    """Answers a put as obstore does: without saying when it was applied."""

    def put_if_absent(self, path, data):
        super().put_if_absent(path, data)


class Snapshotted:
    """Two machines on one store; the first is a virtual machine whose clocks can stand still."""

    def __init__(self, store_class=MemoryStore, *, wall_is_set_right=False):
        self.outside = HandClock()
        world = Env(clock=self.outside)
        self.raw = store_class(env=world)
        self.clock = HandClock()
        if wall_is_set_right:
            self.clock.wall = self.outside.wall
        self.victim = Bench(raw=self.raw, clock=self.clock)
        self.taker = Bench(raw=self.raw, clock=self.outside)

    def is_restored_after(self, seconds):
        """Advance all clocks but the victim's, which show the time of the snapshot."""
        self.outside.now += seconds

    def take_over_and_collect(self):
        """The taker fences and writes, and its fence in the victim's way is collected."""
        taker = self.taker.open()
        taker.append(self.taker.rows(2))
        collected = taker.claim.fence
        self.is_restored_after(WEEK)
        self.raw.delete([paths.wal_path(self.taker.shard, Position(collected))])

    def stalled_put(self):
        """An appender that slept through the takeover and the collection puts a row."""
        appender = self.victim.open()
        appender.append(self.victim.rows(1))
        self.take_over_and_collect()
        return appender.append(self.victim.rows(99))


def test_f18_a_machine_restored_from_a_snapshot_is_told_by_the_store_that_it_slept():
    with pytest.raises(FencedError):
        Snapshotted().stalled_put()


def test_f18_a_wall_clock_set_right_tells_it_where_puts_bear_no_date():
    with pytest.raises(FencedError):
        Snapshotted(Undated, wall_is_set_right=True).stalled_put()


def test_f18_a_put_that_had_to_be_repeated_counts_as_late_where_puts_bear_no_date():
    world = Snapshotted(Undated)
    # Its connections did not survive the restore.
    path = paths.wal_path(world.victim.shard, Position(3))
    world.victim.faults.on("put_if_absent", path).refuse(times=1)
    with pytest.raises(FencedError):
        world.stalled_put()


def test_f18_steady_puts_cost_no_request_but_one_proof_for_each_lifetime():
    for store_class in (MemoryStore, Undated):
        world = Snapshotted(store_class)
        appender = world.victim.open()
        store = world.victim.store
        for second in range(1, 240):
            world.clock.now += 1
            world.outside.now += 1
            before = store.requests.total()
            appender.append(world.victim.rows(second))
            cost = store.requests.total() - before
            proof = second % 60 == 0
            assert (cost > 1) == proof, f"{cost} requests after {second} s"


@pytest.mark.parametrize(
    ("later", "is_within"),
    [
        (ClockReading(101.0, 501.0, 901.0), True),
        (ClockReading(101.0, 501.0), True),
        (ClockReading(160.0, 501.0, 901.0), False),
        (ClockReading(101.0, 560.0, 901.0), False),
        (ClockReading(101.0, 501.0, 960.0), False),
        (ClockReading(101.0, 440.0, 901.0), False),
        (ClockReading(101.0, 501.0, 899.0), False),
        (ClockReading(101.0, 501.0, SOMETIME), False),
    ],
)
def test_f18_every_clock_must_agree_that_little_time_has_passed(later, is_within):
    proof = ClockReading(100.0, 500.0, 900.0)
    assert proof.is_within(60.0, later) == is_within
    assert not proof.is_within(0.0, later), "0 proves it after every put"
    assert not LONG_AGO.is_within(60.0, later)
    undated = proof._replace(stored=None)
    assert undated.is_within(60.0, later) == (is_within and later.stored is None)


def test_f18_local_files_are_dated_by_their_link(tmp_path):
    table = weir.create(str(tmp_path / "t"), SHAPE, primary_key=["id"])
    appender = WalAppender.open(table.shards()[0])
    stored = appender.claim.proof.stored
    assert stored is not None
    assert abs(stored - table.core.store.now()) < 60


@pytest.mark.parametrize("wanted", [61, "2m", "7d"])
def test_g7b_no_door_lets_a_writer_trust_its_ownership_longer_than_the_table(tmp_path, wanted):
    table = weir.create(str(tmp_path / "t"), SHAPE, primary_key=["id"])
    shard = table.shards()[0]
    before = shard.manifest()
    config = WriterConfig(fence_ttl=wanted)
    for opened in (
        lambda: WalAppender.open(shard, fence_ttl=wanted),
        lambda: shard.writer(config),
        lambda: shard.load(config),
        lambda: table.writer(config).put([{"id": 1, "v": "a"}]),
    ):
        with pytest.raises(InvalidInput, match="fence_ttl"):
            opened()
    assert shard.manifest() == before, "refused before the shard was claimed"


def test_g7b_without_a_wish_the_table_decides_at_every_door(tmp_path):
    clock = HandClock()
    env = Env(clock=clock, random=random.Random(1))
    uri = str(tmp_path / "t")
    weir.create(uri, SHAPE, primary_key=["id"], writer_defaults=WriterConfig(fence_ttl=5), env=env)
    shard = weir.open(uri, env=env).shards()[0]
    rows = pa.table({"id": [1], "v": ["a"]})
    for opened in (
        lambda: WalAppender.open(shard),
        lambda: shard.writer(WriterConfig(durable_write=True))._appender,
        lambda: shard.load(WriterConfig())._appender,
        lambda: WalAppender.open(shard, fence_ttl="5s"),
    ):
        appender = opened()
        assert appender.claim.fence_ttl == 5
        clock.now += 5
        before = shard.site.store.requests.total()
        appender.append(rows.to_batches())
        assert shard.site.store.requests.total() - before > 1, "proved again after five seconds"
    assert WalAppender.open(shard, fence_ttl=1).claim.fence_ttl == 1


def test_g7b_a_record_made_without_a_wish_says_what_held(tmp_path):
    record = WriterConfig().to_record()
    assert record["fence_ttl"] == 60.0, "releases before this one read a number"
    assert WriterConfig.from_record(record).fence_ttl_s == 60.0


def test_g7b_a_replacing_load_works_on_a_table_with_a_short_fence_ttl(tmp_path):
    defaults = WriterConfig(fence_ttl=1)
    uri = str(tmp_path / "t")
    table = weir.create(uri, SHAPE, primary_key=["id"], writer_defaults=defaults)
    with table.writer(WriterConfig(enable_memtable=False)) as writer:
        writer.put([{"id": 1, "v": "a"}])
    (cut,) = close_logs(weir.open(uri).core)
    assert cut.shard == table.shards()[0].id
    assert len(cut.sstables) == 1
