"""K-1b: another program rewrites shard manifests while a checkpoint is made, refreshed or deleted.

pylance writes manifests of its own, drops what it does not know, checks no floor and asks nobody.
Here a process issues exactly the requests of pylance's writer (claim, sentinel, entry, SSTable,
manifest), and the tests run every interleaving of them with the real checkpoint code, with and
without a collector. The real pylance runs before every request of weir's side.
"""

import dataclasses
import itertools
import random
from dataclasses import replace

import lance
import pyarrow as pa
import pytest

from simulator.interleave import InlineThreads, Scenario, explore
from simulator.model_lake import ModelLake
from tests.support.moments import expect, make, put, rows
from tests.support.one_shard import KEYED, SHARD
from tests.support.shards import HandClock
from tests.support.sim_table import core_on
from weir.env import Env
from weir.errors import MissingEntry
from weir.format import paths
from weir.format.manifest import SsTable, decode_manifest, encode_manifest
from weir.format.wal_entry import EntryEncoder, decode_entry, encode_fence
from weir.log.appender import WalAppender
from weir.log.fence import claim_shard
from weir.log.intake import Intake
from weir.log.manifests import Manifests
from weir.log.rules import Evidence
from weir.log.site import ShardSite
from weir.records.holds import Holds
from weir.records.table import TableRecords
from weir.store.api import ObjectExists, ObjectMissing
from weir.store.memory import MemoryStore
from weir.table import Table
from weir.types import Epoch, Generation, Position, Version
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep import pinning
from weir.upkeep.gc.collect import collect

HOUR = 3600.0


class World:
    """A shard with row 1 in an SSTable and row 2 in the log; the native writer adds row 3."""

    def __init__(self) -> None:
        self.raw = MemoryStore()
        self.numbers = itertools.count(1)
        self.made = []
        table = self.table(self.raw)
        TableRecords(self.raw).create(table.core.record)
        site = self.site(self.raw)
        manifests = Manifests(site)
        claim = claim_shard(site, manifests)
        appender = WalAppender(site, KEYED, claim, manifests=manifests)
        first = Intake(KEYED).rows([{"k": 1, "v": 1}])
        appender.append(first)
        self.flush(manifests, claim.epoch, appender.next_position - 1, first)
        appender.append(Intake(KEYED).rows([{"k": 2, "v": 2}]), generation=Generation(2))

    def site(self, store) -> ShardSite:
        env = Env(HandClock(), InlineThreads(), random.Random(next(self.numbers)))
        return ShardSite(store, store, SHARD, env, fence_ttl=0.0)

    def table(self, store) -> Table:
        return Table(core_on(self.site(store), KEYED))

    def flush(self, manifests, epoch, covered, batches) -> None:
        name = "00000001_gen_1"
        ModelLake(self.raw, KEYED).write_sstable(SHARD, name, batches, KEYED)
        manifests.update(
            lambda m: (
                replace(
                    m,
                    replay_after=Position(covered),
                    last_seen=Position(covered),
                    sstables=(SsTable(Generation(1), name),),
                    current_generation=Generation(2),
                ),
                Evidence(covered=Position(covered)),
            ),
            epoch=epoch,
        )

    def native(self, store) -> None:
        """Open, replay, put row 3 and flush as pylance's writer does, without weir's code."""
        try:
            self._native(store)
        except ObjectExists:
            return  # fenced

    def _native(self, store) -> None:
        latest = max(
            paths.parse_manifest_name(m.path.rpartition("/")[2]) or 0
            for m in store.list(paths.manifest_dir(SHARD))
        )
        path = paths.manifest_path(SHARD, Version(latest))
        manifest = decode_manifest(store.get(path).data, path=path)
        claimed = replace(
            manifest,
            version=Version(latest + 1),
            writer_epoch=Epoch(manifest.writer_epoch + 1),
            commit_id=b"",
        )
        self._write(store, claimed)
        found = {
            paths.parse_wal_name(m.path.rpartition("/")[2])
            for m in store.list(paths.wal_dir(SHARD))
        }
        tip = max(p for p in found if p is not None)
        epoch = claimed.writer_epoch
        fence = bytes(encode_fence(epoch, "native"))
        store.put_if_absent(paths.wal_path(SHARD, Position(tip + 1)), fence)
        batches = []
        for position in range(manifest.replay_after + 1, tip + 1):
            where = paths.wal_path(SHARD, Position(position))
            entry = decode_entry(store.get(where).data, position=Position(position), path=where)
            batches += entry.batches
        own = Intake(KEYED).rows([{"k": 3, "v": 3}])
        data = EntryEncoder(KEYED).encode(
            own, epoch=epoch, generation=claimed.current_generation, entry_id="native", tokens=()
        )
        store.put_if_absent(paths.wal_path(SHARD, Position(tip + 2)), bytes(data))
        name = f"00000002_gen_{claimed.current_generation}"
        ModelLake(store, KEYED).write_sstable(SHARD, name, [*batches, *own], KEYED)
        flushed = replace(
            claimed,
            version=Version(latest + 2),
            replay_after=Position(tip + 2),
            last_seen=Position(tip + 2),
            sstables=(*claimed.sstables, SsTable(claimed.current_generation, name)),
            current_generation=Generation(claimed.current_generation + 1),
        )
        self._write(store, flushed)

    def _write(self, store, manifest) -> None:
        store.put_if_absent(paths.manifest_path(SHARD, manifest.version), encode_manifest(manifest))

    def collector(self, store) -> None:
        site = self.site(store)
        report = collect(
            core_on(site, KEYED, lake=ModelLake(store, KEYED)),
            0,
            "7d",
            keep_first_entries=False,
        )
        assert report.ok, report.errors

    def creator(self, store) -> None:
        self.made.append(checkpoints.create(self.table(store).core, scope="durable"))

    def check(self) -> None:
        """Each checkpoint is complete, and stays complete after everything else is collected."""
        first = [self.read(made) for made in self.made]
        assert all(keys in ({1, 2}, {1, 2, 3}) for keys in first), first
        for _ in range(2):
            self.collector(self.raw)
        assert [self.read(made) for made in self.made] == first
        for made in self.made:
            checkpoints.delete(self.table(self.raw).core, made)
        assert not list(self.raw.list(paths.CHECKPOINTS))

    def read(self, made) -> set[int]:
        [pin] = made.shards
        for position in range(pin.replay_after + 1, pin.wal_through + 1):
            path = paths.wal_path(SHARD, Position(position))
            entry = decode_entry(self.raw.get(path).data, position=Position(position), path=path)
            assert entry.epoch <= pin.epoch, "C-7: an entry of a later epoch belongs to it"
        found = self.table(self.raw).scan(checkpoint=made.id).to_table()["k"].to_pylist()
        assert len(found) == len(set(found))
        return set(found)


def story(*processes: str, world=World):
    def make_one() -> Scenario:
        made = world()
        return Scenario(made.raw, [getattr(made, name) for name in processes], made.check)

    return make_one


@pytest.mark.slow
def test_k1b_a_checkpoint_made_while_manifests_are_rewritten_is_whole() -> None:
    assert explore(story("creator", "native"), preemptions=2) > 400


@pytest.mark.slow
def test_k1b_with_a_collector_too() -> None:
    assert explore(story("creator", "native", "collector"), preemptions=1) > 100
    sample = story("native", "collector", "creator")
    assert explore(sample, preemptions=2, runs_max=60) == 60


def test_k1b_without_the_handshake_a_checkpoint_loses_what_it_names(monkeypatch) -> None:
    """Validates the tests above."""
    monkeypatch.setattr(pinning, "_check_floors", lambda *_: None)
    with pytest.raises((ObjectMissing, MissingEntry, AssertionError)):
        explore(story("creator", "native", "collector"), preemptions=1)


class Held(World):
    """A checkpoint exists, and is refreshed or deleted while manifests are rewritten."""

    def __init__(self) -> None:
        super().__init__()
        self.made = [checkpoints.create(self.table(self.raw).core, scope="durable", ttl=HOUR)]

    def refresher(self, store) -> None:
        self.made = [checkpoints.refresh(self.table(store).core, self.made[0].id, 10 * HOUR)]
        standing = Holds(store).load(self.made[0].id)
        assert standing is not None
        assert standing.expires == self.made[0].expires

    def deleter(self, store) -> None:
        checkpoints.delete(self.table(store).core, self.made[0].id)
        self.made = []


@pytest.mark.slow
@pytest.mark.parametrize("change", ["refresher", "deleter"])
def test_k1b_a_checkpoint_changed_while_manifests_are_rewritten(change) -> None:
    assert explore(story(change, "native", world=Held), preemptions=2) > 100
    both = story(change, "native", "collector", world=Held)
    assert explore(both, preemptions=1, runs_max=60) == 60


# -- a full run of the real pylance before every request of weir's side ----------------------------


class Stepping:
    """A store that does something before its n-th call."""

    def __init__(self, inner, at, act) -> None:
        self._inner, self._at, self._act, self.calls = inner, at, act, 0

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if name not in ("put_if_absent", "put", "get", "get_many", "head", "head_many", "list",
                        "list_folder", "delete"):  # fmt: skip
            return found

        def call(*args, **options):
            self.calls += 1
            if self.calls == self._at:
                self._act()
            return found(*args, **options)

        return call


@pytest.mark.slow
@pytest.mark.interop
def test_k1b_pylance_rewrites_manifests_before_every_request_of_a_checkpoint(tmp_path) -> None:
    table = make(tmp_path / "t", 1)
    [shard] = table.shards()
    with table.writer() as writer:
        put(writer, range(5), "a")
        writer.flush()
    wanted, number = expect((range(5), "a")), 100
    checked = 0
    for do in ("make", "refresh", "delete"):
        for at in itertools.count(1):
            number += 1

            def rewrite(number: int = number) -> None:
                native = lance.dataset(table.uri).mem_wal_writer(str(shard.id))
                native.put(pa.table({"id": pa.array([number]), "v": ["native"]}))
                native.close()

            standing = None if do == "make" else table.checkpoint(scope="durable", ttl=HOUR)
            store = Stepping(table.core.store, at, rewrite)
            stepped = Table(dataclasses.replace(table.core, store=store, wal=store))
            if do == "make":
                standing = checkpoints.create(stepped.core, scope="durable")
            elif do == "refresh":
                standing = checkpoints.refresh(stepped.core, standing, 10 * HOUR)
            else:
                checkpoints.delete(stepped.core, standing)
            happened = store.calls >= at
            after = wanted | ({number: "native"} if happened else {})
            assert rows(table) == after
            if do != "delete":
                found = rows(table, checkpoint=standing)
                assert found in ((wanted, after) if do == "make" else (wanted,))
                table.delete_checkpoint(standing)
            assert not table.checkpoints()
            wanted = after
            checked += 1
            if not happened:
                break
    assert checked > 20
