"""A base version written at a collected number counted as a commit, and a pin lost its base.

A compactor slept between planning and its put, and collection removed the version whose number it
was about to use. The put succeeded, and the generations were marked, pruned and collected:
acknowledged rows were lost (seed 514273 of the simulator). Also, a checkpoint was confirmed while
collection, which had read the tags before, removed the base version it pins (seeds 503014, 516028).
"""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from simulator.keepers import ModelRunner
from simulator.steps import watched
from tests.support.one_shard import KEYED, lake_on, open_writer, site_on
from tests.support.sim_table import collect_all, core_on
from weir.config import WriterConfig
from weir.errors import CommitConflict
from weir.lake.base.versions import Cleaned
from weir.read.scan import Scan
from weir.records.table import TableRecords
from weir.store.memory import MemoryStore
from weir.upkeep.checkpoint import create
from weir.upkeep.compact.run import compact
from weir.upkeep.pinning import base_marks

ALWAYS_PROVE = WriterConfig(fence_ttl=0)


def handle_on(store):
    return SimpleNamespace(
        core=core_on(site_on(store), KEYED, ALWAYS_PROVE), writer_defaults=ALWAYS_PROVE
    )


def rows(store):
    return sorted(Scan(core_on(site_on(store), KEYED)).to_table()["k"].to_pylist())


class Sleeper:
    """A store that runs `action` once, right before the put of the named object."""

    def __init__(self, inner, name, action):
        self._inner, self._name, self._action = inner, name, action

    def __getattr__(self, verb):
        return getattr(self._inner, verb)

    def put_if_absent(self, path, data):
        if self._name in path and self._action is not None:
            action, self._action = self._action, None
            action()
        return self._inner.put_if_absent(path, data)


def test_g6_a_fold_committed_into_a_collected_place_is_no_fold():
    store = MemoryStore()
    writer = open_writer(site_on(store))
    for key in range(3):
        writer.put([{"k": key, "v": key}])
    writer.close()

    def overtake():  # others commit, and the version that the sleeper aims at is cleaned up
        lake = lake_on(site_on(store))
        for token in ("a", "b", "c"):
            lake.fence_base(token)
        lake.cleanup_old_versions(timedelta(0))
        base_marks(handle_on(store).core).raise_to(lake.open_base().version - 1)

    # Version 1 is the empty base, 2 the sleeper's own fence, 3 its fold.
    sleepy = Sleeper(store, "_versions/00000000000000000003", overtake)
    with pytest.raises(CommitConflict, match="floor"):
        compact(handle_on(sleepy).core, engine=ModelRunner())
    assert rows(store) == [0, 1, 2]
    compact(handle_on(store).core, engine=ModelRunner(), lease=0)
    assert collect_all(site_on(store)).ok
    assert rows(store) == [0, 1, 2]


class CleansUpLater:
    """Lance's clean-up, which reads the tags some time before it deletes."""

    def __init__(self, lake):
        self._lake = lake
        self.doomed = []

    def __getattr__(self, name):
        return getattr(self._lake, name)

    def cleanup_old_versions(self, older_than, *, keep_from=None, dry_run=False, released=()):
        kept = set(self._lake.protected_versions().values())
        known = range(1, self._lake.open_base().version)
        self.doomed = [v for v in known if v not in kept and (keep_from is None or v < keep_from)]
        return Cleaned(len(self.doomed), 0)


def test_k1b_a_checkpoint_whose_base_is_being_cleaned_up_is_made_anew():
    store = MemoryStore()
    writer = open_writer(site_on(store))
    writer.put([{"k": 1, "v": 1}])
    writer.close()
    handle = handle_on(store)
    TableRecords(handle.core.store).create(handle.core.record)
    site = site_on(store)
    lake = CleansUpLater(lake_on(site))
    before = lake.open_base().version

    def look_at_the_tags(step):
        if step == "announced" and not lake.doomed:
            lake.fence_base("newer")
            assert collect_all(site, lake=lake).ok

    made = create(watched(handle.core, "checkpoint", look_at_the_tags), "durable")
    assert before in lake.doomed
    store.delete([lake._path(version) for version in lake.doomed])
    assert made.base_version > before
    assert Scan(handle.core, pinned=made).to_table().num_rows == 1
