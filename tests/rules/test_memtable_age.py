"""Rows that wait too long in a MemTable become an SSTable without a put (`max_memtable_age`).

On a simulated machine: time is virtual, so a story of minutes takes none, and only the mechanism
decides when something happens.
"""

from collections.abc import Callable
from typing import Any

import pytest

from simulator.env import make_actor
from simulator.scheduler import Actor, Scheduler, Settings
from tests.support.one_shard import KEYED, lake_on, open_writer, rows_on_store, site_on
from weir.config import WriterConfig
from weir.errors import InvalidInput, StoreError
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.shard.turns import IDLE_SECONDS, WaiterGroup
from weir.shard.writer import ShardWriter
from weir.store.memory import MemoryStore

AGE = WriterConfig(max_memtable_age="5m", stats_log_interval=0)


class Machine:
    """One simulated process and the shard it writes."""

    def __init__(self, store: Any = None) -> None:
        settings = Settings(stay=0.5, step_seconds=1e-6, steps_max=10**6)
        self.scheduler = Scheduler(1, settings)
        self.actor: Actor = make_actor(self.scheduler, "writer", "1")
        self.site: ShardSite = site_on(store or MemoryStore(), env=self.actor.env)
        self.threads: list[str] = []

    def run(self, story: Callable[[], None]) -> None:
        self.scheduler.spawn(self.actor, story, name="main")
        self.scheduler.run()

    def pass_time(self, seconds: float) -> None:
        self.actor.env.clock.sleep(seconds)

    def sstables(self) -> int:
        return len(Manifests(self.site).require().sstables)

    def alive(self) -> list[str]:
        """Background threads of the process."""
        found = [task for task in self.scheduler.tasks if not task.done]
        return sorted(task.name for task in found if not task.name.endswith("main"))


def put(writer: ShardWriter, *keys: int) -> None:
    writer.put([{"k": key, "v": key} for key in keys])


def test_rows_of_an_idle_writer_are_flushed_when_they_are_too_old() -> None:
    machine = Machine()

    def story() -> None:
        with open_writer(machine.site, AGE) as writer:
            put(writer, 1)
            machine.pass_time(290)
            put(writer, 2)  # younger, and in the same MemTable
            assert machine.sstables() == 0
            machine.pass_time(11)
            assert machine.sstables() == 1
            assert writer.gap == 0
            assert rows_on_store(machine.site) == {1: 1, 2: 2}

    machine.run(story)


def test_a_writer_without_rows_has_no_threads() -> None:
    machine = Machine()

    def story() -> None:
        with open_writer(machine.site, AGE) as writer:
            put(writer, 1)
            assert machine.alive() == ["writer/weir-age"]
            machine.pass_time(301 + 2 * IDLE_SECONDS)
            assert machine.sstables() == 1
            assert machine.alive() == []
            put(writer, 2)
            machine.pass_time(301)
            assert machine.sstables() == 2

    machine.run(story)
    assert machine.alive() == []


def test_the_age_counts_from_the_first_row_of_each_memtable() -> None:
    machine = Machine()

    def story() -> None:
        with open_writer(machine.site, AGE) as writer:
            put(writer, 1)
            machine.pass_time(200)
            writer.flush()
            put(writer, 2)
            machine.pass_time(200)  # 400 s after the first row, 200 s after this one
            assert machine.sstables() == 1
            machine.pass_time(101)
            assert machine.sstables() == 2

    machine.run(story)


def test_replayed_rows_are_flushed_when_they_are_too_old() -> None:
    machine = Machine()

    def story() -> None:
        put(open_writer(machine.site, AGE), 1)  # its process dies
        with open_writer(machine.site, AGE):
            assert machine.sstables() == 0
            machine.pass_time(301)
            assert machine.sstables() == 1

    machine.run(story)


def test_the_shards_of_one_writer_share_the_thread() -> None:
    machine = Machine()
    sites = [site_on(machine.site.store, env=machine.actor.env)]
    sites += [
        site_on(machine.site.store, env=machine.actor.env, shard=machine.actor.env.new_id())
        for _ in range(3)
    ]

    def story() -> None:
        crowd, lake = WaiterGroup(machine.actor.env.threads), lake_on(sites[0])
        writers = [
            ShardWriter.open(site, schema=KEYED, lake=lake, config=AGE, crowd=crowd)
            for site in sites
        ]
        for key, writer in enumerate(writers):
            put(writer, key)
            machine.pass_time(10)
        assert machine.alive() == ["writer/weir-age"]
        writers[0].close()
        machine.pass_time(301)
        assert [len(Manifests(site).require().sstables) for site in sites] == [1, 1, 1, 1]
        put(writers[1], 7)
        for writer in writers:
            writer.close()

    machine.run(story)
    assert machine.alive() == []


def test_closing_does_not_wait_for_the_age() -> None:
    machine = Machine()

    def story() -> None:
        writer = open_writer(machine.site, AGE)
        put(writer, 1)
        began = machine.scheduler.now
        writer.close()
        assert machine.scheduler.now - began < 1

    machine.run(story)


@pytest.mark.parametrize(
    "config",
    [WriterConfig(max_memtable_age=None), WriterConfig(enable_memtable=False)],
    ids=["off", "wal-only"],
)
def test_a_writer_without_the_setting_or_a_memtable_flushes_nothing_by_age(
    config: WriterConfig,
) -> None:
    machine = Machine()

    def story() -> None:
        with open_writer(machine.site, config) as writer:
            put(writer, 1)
            machine.pass_time(100_000)
            assert machine.sstables() == 0
            assert machine.alive() == []

    machine.run(story)


class Outage:
    """A store that fails every write of an SSTable or manifest while it is `down`."""

    def __init__(self) -> None:
        self._inner = MemoryStore()
        self.down = False
        self.failed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put_if_absent(self, path: str, data: Any) -> Any:
        if self.down and "/manifest/" in path:
            self.failed += 1
            raise StoreError(f"{path}: down")
        return self._inner.put_if_absent(path, data)


def test_an_outage_ends_no_idle_writer() -> None:
    store = Outage()
    machine = Machine(store)

    def story() -> None:
        with open_writer(machine.site, AGE) as writer:
            put(writer, 1)
            store.down = True
            machine.pass_time(1200)
            assert store.failed
            store.down = False
            machine.pass_time(100)
            assert machine.sstables() == 1
            put(writer, 2)

    machine.run(story)
    assert rows_on_store(machine.site) == {1: 1, 2: 2}


def test_where_no_thread_can_be_started_the_next_entry_looks_at_the_age() -> None:
    machine = Machine()

    def story() -> None:
        writer = open_writer(machine.site, AGE)
        machine.actor.is_ending = True  # no thread can be started any more
        put(writer, 1)
        machine.pass_time(301)
        put(writer, 2)
        put(writer, 3)
        writer.flush_wal()
        assert writer.memtable_stats().generation == 2
        writer.close()

    machine.run(story)
    assert rows_on_store(machine.site) == {1: 1, 2: 2, 3: 3}


def test_an_age_of_zero_is_refused() -> None:
    with pytest.raises(InvalidInput, match="max_memtable_age must be above 0; None turns it off"):
        WriterConfig(max_memtable_age=0)
