"""The arithmetic of docs/howto/sizing.md is what writers do on a simulated store."""

import re
from collections import Counter

import pytest

from simulator.env import make_actor
from simulator.scheduler import Scheduler, Settings
from tests.docs.blocks import ROOT
from tests.support.one_shard import open_writer, site_on
from weir.config import WriterConfig
from weir.store.memory import MemoryStore

PAGE = (ROOT / "docs/howto/sizing.md").read_text(encoding="utf-8")
PUT_SECONDS = 0.03
CONFIG = WriterConfig(stats_log_interval=0)


def load(**given):
    """The `Load` of the page."""
    names = {}
    exec(re.search(r"```python\n(.*?)\n\n\none =", PAGE, re.DOTALL)[1], names)
    return names["Load"](bytes_per_row=1_000, put_seconds=PUT_SECONDS, **given)


class SlowStore(MemoryStore):
    """Each entry takes that long; counts entries and the small reads that prove ownership."""

    def __init__(self, clock, calls):
        super().__init__()
        self.clock = clock
        self.calls = calls

    def put_if_absent(self, path, data):
        if "/wal/" in path:
            self.calls["entries"] += 1
            self.clock.sleep(PUT_SECONDS)
        return super().put_if_absent(path, data)

    def get(self, path):
        self.calls["reads"] += 1
        return super().get(path)

    def head(self, path):
        self.calls["reads"] += 1
        return super().head(path)

    def list(self, *arguments, **options):
        self.calls["reads"] += 1
        return super().list(*arguments, **options)


def simulate(story):
    """Run the story on one machine, with a way to open the writer of a new shard; its requests."""
    scheduler = Scheduler(1, Settings(stay=0.5, step_seconds=1e-7, steps_max=10**9))
    actor = make_actor(scheduler, "writer", "1")
    clock, calls = actor.env.clock, Counter()

    def opened():
        before = calls.copy()
        writer = open_writer(site_on(SlowStore(clock, calls), env=actor.env), CONFIG)
        calls.clear()
        calls.update(before)  # what it costs to open a shard is not meant here
        return writer

    scheduler.spawn(actor, lambda: story(opened, clock), name="main")
    scheduler.run()
    return calls


@pytest.mark.parametrize(("shards", "rows"), [(1, 1_000), (1, 20), (16, 1_000), (16, 160)])
def test_entries_and_rows_of_an_entry_are_those_of_the_page(shards, rows):
    seconds = 2.0

    def story(opened, clock):
        writers = [opened() for _ in range(shards)]
        for number in range(int(rows * seconds)):
            writers[number % shards].put([{"k": number, "v": 0}], wait=False)
            clock.sleep(1 / rows)
        for writer in writers:
            writer.close()

    entries = simulate(story)["entries"]
    expected = load(rows_per_second=rows, shards=shards)
    assert entries == pytest.approx(expected.entries_per_second() * seconds, rel=0.1)
    assert rows * seconds / entries == pytest.approx(expected.rows_per_entry(), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("shards", [16, 10_000])
def test_with_few_rows_for_each_shard_every_row_is_an_entry(shards):
    rows_per_second = shards / 60  # a row for each tenant and minute

    def story(opened, _clock):
        for _ in range(shards):
            with opened() as writer:
                writer.put([{"k": 1, "v": 0}])

    expected = load(rows_per_second=rows_per_second, shards=shards)
    entries = simulate(story)["entries"]
    assert entries == pytest.approx(expected.entries_per_second() * 60)


def test_a_busy_writer_proves_its_ownership_as_often_as_the_page_says():
    def story(opened, clock):
        writer = opened()
        for number in range(600):
            writer.put([{"k": number, "v": 0}])
            clock.sleep(1 - PUT_SECONDS)

    assert simulate(story)["reads"] == pytest.approx(3 * 600 / 60, rel=0.1)
