"""INVARIANTS 10.2: the protocol of collection, every interleaving at small bounds."""

import contextlib
import functools
import itertools
import math
import random
from dataclasses import replace

import pytest

from simulator import interleave
from simulator.gc_model import NEVER, Bounds, Broken, explore, main
from simulator.interleave import InlineThreads, Scenario
from simulator.model_lake import ModelLake
from tests.support.shards import SHARD, HandClock, schema
from tests.support.sim_table import core_on
from weir.env import Env
from weir.errors import CheckpointNotFound, CommitConflict, FencedError
from weir.format import paths
from weir.format.manifest import SsTable
from weir.log.appender import WalAppender
from weir.log.fence import claim_shard
from weir.log.floors import Floors
from weir.log.intake import Intake
from weir.log.manifests import Manifests
from weir.log.rules import Evidence
from weir.log.site import ShardSite
from weir.records.checkpoints import Checkpoint
from weir.records.cut import ShardCut
from weir.records.holds import Holds
from weir.routing.core import Core
from weir.shard.replay import Replay
from weir.store.memory import MemoryStore
from weir.types import Generation, Position
from weir.upkeep.gc.collect import collect

# Both locks, each lock alone, and neither.
BOTH = {"retention": NEVER, "fence_ttl": 0}
FIRST_ENTRIES = {"retention": NEVER, "fence_ttl": NEVER}
STALE_OWNERSHIP = {"retention": 0, "fence_ttl": 0}
NEITHER = {"retention": 0, "fence_ttl": NEVER}


@pytest.mark.parametrize("locks", [BOTH, FIRST_ENTRIES, STALE_OWNERSHIP])
@pytest.mark.parametrize(
    ("roles", "collectors"), [(("w11", "w11"), 2), (("w10", "w10", "w01"), 1)], ids=str
)
def test_g7_either_lock_keeps_every_property(locks, roles, collectors) -> None:
    assert explore(Bounds(roles, collectors, **locks)) > 1000


def test_g7_without_locks_the_checker_finds_the_story() -> None:
    with pytest.raises(Broken) as found:
        explore(Bounds(("w11", "w11"), **NEITHER))
    assert found.value.name == "acked"
    told = " / ".join(found.value.trace)
    for part in ("claims epoch 2", "flushes through", "deletes 2", "acknowledges 2"):
        assert part in told
    assert told.index("deletes 2") < told.index("of epoch 1 acknowledges 2")


def test_g7b_a_retention_of_twice_the_ttl_is_enough_and_less_than_the_ttl_is_not() -> None:
    assert explore(Bounds(("w10", "w01"), ticks=3, retention=2, fence_ttl=1)) > 1000
    with pytest.raises(Broken, match="acked"):
        explore(Bounds(("w10", "w11"), ticks=3, retention=1, fence_ttl=2))


def test_g7a_alone_protects_native_writers() -> None:
    assert explore(Bounds(("n10", "w11"), **FIRST_ENTRIES)) > 500
    assert explore(Bounds(("n10", "n10", "w01"), **FIRST_ENTRIES)) > 1000
    with pytest.raises(Broken, match="acked"):
        explore(Bounds(("n10", "w11"), **STALE_OWNERSHIP))


def test_g7a_needs_the_entries_beside_a_silent_claim() -> None:
    """Found by this checker: a claimant asleep before its sentinel aims at no first entry."""
    roles = ("w30", "n10", "w01")
    with pytest.raises(Broken, match=r"twice|acked"):
        explore(Bounds(roles, **FIRST_ENTRIES, silent_claims=False))


@pytest.mark.slow
def test_g7a_with_them_nothing_breaks() -> None:
    assert explore(Bounds(("w30", "n10", "w01"), **FIRST_ENTRIES)) > 10_000


def test_the_command_prints_how_it_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["w11", "w11", "--retention", "0", "--fence-ttl", "inf"]) == 1
    assert "BROKEN acked" in capsys.readouterr().out
    assert main(["w11"]) == 0


# -- the real code under every schedule with few preemptions ---------------------------------------


class World:
    """One shard in memory, and the rows acknowledged to its writers."""

    def __init__(self, *, keep_first_entries: bool, fence_ttl: float) -> None:
        self.keep_first_entries = keep_first_entries
        self.fence_ttl = fence_ttl
        self.raw = MemoryStore()
        self.acked: set[int] = set()
        self.sstables: dict[str, frozenset[int]] = {}
        self.schema = schema()
        self.numbers = itertools.count(1)

    def site(self, store) -> ShardSite:
        env = Env(HandClock(), InlineThreads(), random.Random(next(self.numbers)))
        return ShardSite(store, store, SHARD, env, fence_ttl=self.fence_ttl)

    def core(self, store) -> Core:
        return core_on(self.site(store), self.schema, lake=ModelLake(store, self.schema))

    def writer(self, appends: int, flushes: int):
        def run(store) -> None:
            site = self.site(store)
            manifests = Manifests(site)
            claim = claim_shard(site, manifests)
            rows = set(self.replayed(site, manifests, claim))
            appender = WalAppender(site, self.schema, claim, manifests=manifests)
            for _ in range(appends):
                row = next(self.numbers)
                appender.append(Intake(self.schema).rows([{"id": row, "x": 0.0, "s": ""}]))
                self.acked.add(row)
                rows.add(row)
            for _ in range(flushes):
                self.flush(manifests, claim.epoch, appender.next_position - 1, frozenset(rows))

        def ended(store) -> None:
            with contextlib.suppress(FencedError, CommitConflict):
                run(store)

        return ended

    def flush(self, manifests, epoch, covered, rows) -> None:
        """Publish the rows as a named SSTable; if the answer is lost, the manifest shows it."""
        tag = next(self.numbers)

        def change(m):
            name = f"{tag:08x}_gen_{m.current_generation}"
            self.sstables[name] = rows
            following = replace(
                m,
                replay_after=Position(covered),
                last_seen=Position(covered),
                sstables=(*m.sstables, SsTable(m.current_generation, name)),
                current_generation=Generation(m.current_generation + 1),
            )
            return following, Evidence(covered=Position(covered))

        manifests.update(change, epoch=epoch)

    def replayed(self, site, manifests, claim):
        for _, entry in Replay(site, manifests, claim):
            for batch in entry.batches:
                yield from batch.column("id").to_pylist()

    def collector(self, store) -> None:
        report = collect(
            self.core(store),
            0,
            "7d",
            kinds=["wal", "manifests"],
            keep_first_entries=self.keep_first_entries,
        )
        assert report.ok, report.errors

    def check(self) -> None:
        """Open the shard again and check that every acknowledged row is there."""
        site = self.site(self.raw)
        manifests = Manifests(site)
        claim = claim_shard(site, manifests)
        seen = set(self.replayed(site, manifests, claim))
        seen.update(*(self.sstables[t.path] for t in claim.manifest.sstables))
        assert self.acked <= seen, f"acknowledged and lost: {self.acked - seen}"


def story(*writers: tuple[int, int], collectors: int = 1, **locks):
    def make() -> Scenario:
        world = World(**locks)
        processes = [world.writer(*w) for w in writers] + [world.collector] * collectors
        return Scenario(world.raw, processes, world.check)

    return make


REAL_LOCKS = [
    {"keep_first_entries": True, "fence_ttl": math.inf},
    {"keep_first_entries": False, "fence_ttl": 0.0},
    {"keep_first_entries": True, "fence_ttl": 60.0},
]


@pytest.mark.parametrize("locks", REAL_LOCKS, ids=["a", "b", "both"])
def test_g7_the_real_code_keeps_every_acknowledged_row(locks) -> None:
    assert interleave.explore(story((1, 0), (1, 1), **locks), preemptions=1) > 30


def test_g7_the_real_code_without_locks_loses_one() -> None:
    bare = {"keep_first_entries": False, "fence_ttl": math.inf}
    with pytest.raises(AssertionError, match="acknowledged and lost") as found:
        interleave.explore(story((1, 0), (1, 1), **bare), preemptions=1)
    assert any("put_if_absent" in note for note in found.value.__notes__)


@pytest.mark.slow
@pytest.mark.parametrize("locks", REAL_LOCKS[:2], ids=["a", "b"])
def test_g7_three_writers_and_two_collectors(locks) -> None:
    make = story((1, 0), (1, 1), (0, 1), collectors=2, **locks)
    assert interleave.explore(make, preemptions=2, runs_max=150) == 150


# -- K-1b: one checkpointer, one collector ---------------------------------------------------------


class Pinned(World):
    """A shard flushed twice; all versions but the last may be collected at any moment."""

    def __init__(self) -> None:
        super().__init__(keep_first_entries=False, fence_ttl=0.0)
        self.confirmed: list[Checkpoint] = []
        self.writer(2, 2)(self.raw)

    def checkpointer(self, store) -> None:
        """Follow the order of `weir.upkeep.pinning`: manifest, record, floors, confirmation."""
        site = self.site(store)
        manifest = Manifests(site).require()
        pin = ShardCut.of(manifest, Position(manifest.last_seen))
        records = Holds(store)
        draft = Checkpoint(site.env.new_id(), "durable", 0.0, 1, 1, (pin,))
        pending = records.announce(draft, pending_until=1e18)
        floors = Floors(site).load()
        if pin.manifest_version <= floors.manifest or pin.replay_after < floors.wal:
            records.end(pending)
            return
        with contextlib.suppress(CheckpointNotFound):
            self.confirmed.append(records.confirm(pending, expires=None))

    def check(self) -> None:
        for checkpoint in self.confirmed:
            pin = checkpoint.shards[0]
            wanted = [paths.manifest_path(SHARD, pin.manifest_version)]
            positions = range(pin.replay_after + 1, pin.wal_through + 1)
            wanted += [paths.wal_path(SHARD, Position(p)) for p in positions]
            gone = [path for path in wanted if self.raw.head(path) is None]
            assert not gone, f"a confirmed checkpoint lost {gone}"


def pinned(*, flusher: bool, collector=None):
    def make() -> Scenario:
        world = Pinned()
        others = [world.writer(1, 1)] if flusher else []
        return Scenario(
            world.raw,
            [functools.partial(collector or Pinned.collector, world), world.checkpointer, *others],
            world.check,
        )

    return make


def test_k1b_a_confirmed_checkpoint_keeps_what_it_names_in_every_interleaving() -> None:
    assert interleave.explore(pinned(flusher=False), preemptions=2) > 100
    assert interleave.explore(pinned(flusher=True), preemptions=2, runs_max=150) == 150


def test_k1b_a_collector_that_asks_before_it_raises_the_floor_breaks_it(monkeypatch) -> None:
    """Validates the test above: the pins are read too early."""

    read = Holds.pins

    def early(world, store) -> None:
        pins = read(Holds(store))
        monkeypatch.setattr(Holds, "pins", lambda *a, **k: pins)
        collect(world.core(store), 0, "7d", kinds=["wal", "manifests"])

    with pytest.raises(AssertionError, match="a confirmed checkpoint lost"):
        interleave.explore(pinned(flusher=True, collector=early), preemptions=1)
