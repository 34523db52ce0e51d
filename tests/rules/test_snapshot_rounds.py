"""A read in two rounds of requests counts only if nothing moved between them (L-1, L-5).

Each test changes the table right after round 1, when the reader has read the log but not yet the
floors, the base and the shards. The reader is warm: it asks only for what would be newer.
"""

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest

import weir
from simulator.keepers import ModelRunner
from tests.support.hooks import HookStore
from tests.support.one_shard import KEYED, KEYLESS, open_writer, site_on
from tests.support.sim_table import collect_all, core_on
from weir.config import WriterConfig
from weir.errors import MissingEntry
from weir.format import paths
from weir.read import snapshot as snapshots
from weir.read.probes import Probes
from weir.read.scan import Scan
from weir.read.snapshot import take_snapshot
from weir.store.memory import MemoryStore
from weir.types import Position
from weir.upkeep.compact.run import compact

ALWAYS_PROVE = WriterConfig(fence_ttl=0)


def put(writer, *keys):
    for key in keys:
        writer.put([{"k": key, "v": key}])


def keys_of(core):
    return sorted(Scan(core).to_table()["k"].to_pylist())


def walks(core):
    """Whether a read follows the shard from its manifest on, instead of asking for what is newer.

    It fails where a test has raised a mark without its cause.
    """
    walked, cut = [], snapshots._walk

    def noted(core, shard, *, tail):
        walked.append(shard)
        return cut(core, shard, tail=tail)

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(weir.WeirError):
        patch.setattr(snapshots, "_walk", noted)
        take_snapshot(core)
    return bool(walked)


class Warm:
    """A writer with three acknowledged rows, and a reader that has seen two of them."""

    def __init__(self, schema=KEYED):
        self.store = MemoryStore()
        self.writer = open_writer(site_on(self.store), ALWAYS_PROVE, schema=schema)
        put(self.writer, 0, 1)
        # Round 1 is the only get_many call that requests log entries and a manifest.
        site = site_on(self.store)
        self.hooked = HookStore(site.store, "get_many", "/manifest/", lambda: None)
        self.core = core_on(replace(site, store=self.hooked, wal=self.hooked), schema)
        assert keys_of(self.core) == [0, 1]
        assert keys_of(self.core) == [0, 1]
        put(self.writer, 2)

    def then(self, action):
        """Read again, and run `action` after round 1."""
        self.hooked.arm(action)
        try:
            return keys_of(self.core)
        finally:
            self.writer.close()


def test_l1_an_entry_behind_the_known_tip_is_seen_in_two_rounds():
    warm = Warm()
    assert not walks(warm.core)
    seen = take_snapshot(warm.core)
    assert [cut.wal_through for cut in seen.cuts] == [4]  # the fence of the open, and three puts
    assert warm.then(lambda: None) == [0, 1, 2]


def test_l1_many_entries_behind_the_known_tip_are_seen_in_two_rounds():
    warm = Warm()
    put(warm.writer, *range(3, 60))
    assert warm.then(lambda: None) == list(range(60))


def test_l1_a_flush_and_collection_after_round_one_is_noticed():
    warm = Warm()

    def go_on():
        put(warm.writer, 3)
        warm.writer.flush()
        collect_all(site_on(warm.store))

    assert set(warm.then(go_on)) >= {0, 1, 2}


def test_l1_a_collected_end_of_the_log_is_not_taken_for_its_tip():
    """The entries and the newer manifest were collected before round 1."""
    warm = Warm()
    warm.writer.flush()
    for key in range(3, 8):
        put(warm.writer, key)
        warm.writer.flush()
    collect_all(site_on(warm.store))
    known = warm.core.log(site_on(warm.store).shard).manifests.known
    assert known is not None
    newer = paths.manifest_path(known.shard_id, known.version + 1)
    assert warm.store.head(newer) is None, "the story needs it gone"
    assert walks(warm.core)
    assert warm.then(lambda: None) == list(range(8))


def test_l5_a_fold_after_round_one_is_noticed():
    warm = Warm(KEYLESS)

    def go_on():
        put(warm.writer, 3)
        warm.writer.flush()
        core = core_on(site_on(warm.store), KEYLESS)
        handle = SimpleNamespace(core=core, writer_defaults=WriterConfig())
        assert compact(handle.core, engine=ModelRunner()).job

    assert warm.then(go_on) == [0, 1, 2, 3]


def test_l5_a_slower_read_of_the_handle_does_not_hide_that_the_base_moved():
    """It stores the older table that it saw, right after this read stored the newer one."""
    warm = Warm(KEYLESS)
    probes = warm.core.attached.of(Probes)
    old = probes.table

    class Beside(Probes):
        is_over = False

        def __setattr__(self, name, value):
            object.__setattr__(self, name, value)
            if name == "table" and value != old and not self.is_over:
                self.is_over = True
                self.table = old

    probes.__class__ = Beside

    def go_on():
        put(warm.writer, 3)
        warm.writer.flush()
        core = core_on(site_on(warm.store), KEYLESS)
        assert compact(core, engine=ModelRunner()).job

    assert warm.then(go_on) == [0, 1, 2, 3]


def test_l1_a_hole_is_an_error_in_two_rounds_too():
    warm = Warm()
    put(warm.writer, 3)
    warm.store.delete([paths.wal_path(warm.core.shard_ids()[0], Position(4))])
    with pytest.raises(MissingEntry, match="hole at position 4"):
        keys_of(warm.core)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("used", 9),  # F-2: a checkpoint refers to entries that this log no longer has
        ("manifest", 2),  # G-7d: the known manifest may be gone, and newer ones with it
        ("wal", 1),  # G-7c: what looks like the end of the log may be collected
    ],
)
def test_l1_a_floor_that_passed_what_is_known_refuses_it(kind, number):
    warm = Warm()
    assert not walks(warm.core)
    warm.core.log(site_on(warm.store).shard).manifests.floors.raise_to(kind, number)
    assert walks(warm.core)


def test_l2_a_newer_manifest_refuses_it():
    """The newer manifest may seal the shard, whose rows are then older than its heirs'."""
    warm = Warm()
    warm.writer.flush()
    assert walks(warm.core)
    assert warm.then(lambda: None) == [0, 1, 2]


def test_l1_a_new_shard_is_seen_in_the_next_read(tmp_path):
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
    sharding = weir.Identity("k")
    table = weir.create(str(tmp_path / "t"), schema, primary_key="k", sharding=sharding)
    with table.writer() as writer:
        put(writer, 1)
        reader = weir.open(table.uri)
        assert keys_of(reader.core) == [1]
        put(writer, 2)
        assert keys_of(reader.core) == [1, 2]


def test_s3_a_log_that_moved_is_sought_in_its_new_store(tmp_path):
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
    table = weir.create(str(tmp_path / "t"), schema, primary_key="k")
    with table.writer() as writer:
        put(writer, 1)
    reader = weir.open(table.uri)
    assert keys_of(reader.core) == [1]
    assert keys_of(reader.core) == [1]
    moved = weir.open(table.uri, wal_uri=str(tmp_path / "log"))
    with moved.writer() as writer:
        put(writer, 2)
        assert keys_of(reader.core) == [1, 2]
