"""L-1, L-2, L-3, L-5, F-12: what a reader sees. Random histories: `test_reads_model`."""

import json
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from simulator.steps import Died, dies_at
from tests.support.tables import compact_with_pylance, count_requests
from weir.env import Env
from weir.format import paths
from weir.format.manifest import Status
from weir.format.wal_entry import WalEntry
from weir.log.manifests import Manifests
from weir.log.rules import Evidence
from weir.merge.merge import PLAN_ATTEMPTS
from weir.read import scan as scan_module
from weir.read import snapshot as snapshots
from weir.read.cache import live_entries
from weir.routing.shards import Shard
from weir.types import Epoch, Position

SCHEMA = pa.schema(
    [pa.field("id", pa.int64()), pa.field("x", pa.int64()), pa.field("s", pa.utf8())]
)


FIRST = f"{paths.bit_reversed(1)}.arrow"
"""Where the fence of the first writer is."""


def make(uri, buckets=1, **options):
    sharding = weir.Bucket("id", buckets)
    return weir.create(uri, SCHEMA, primary_key="id", sharding=sharding, **options)


def row(i, x=0, s="a"):
    return {"id": i, "x": x, "s": s}


def ids(table, **options):
    return sorted(table.scan(**options).to_table()["id"].to_pylist())


@pytest.fixture
def table(tmp_path):
    return make(str(tmp_path / "t"), 2)


# -- L-3 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("predicate", ["x > 5", pc.field("x") > 5])
def test_l3_an_old_version_never_comes_back_through_a_filter(table, predicate):
    with table.writer() as writer:
        writer.put([row(i, 9) for i in range(6)])
        writer.flush()
        compact_with_pylance(table)
        writer.put([row(0, 1)])  # outside the range, replaces a base row
        writer.delete([1])
        writer.flush()
        writer.put([row(2, 1)])  # the same, in the log only
        writer.delete([3])
        assert ids(table, filter=predicate) == [4, 5]
        assert ids(table, filter=predicate, freshness="flushed") == [2, 3, 4, 5]
        assert ids(table, filter=predicate, freshness="base") == [0, 1, 2, 3, 4, 5]
        assert table.scan(filter=predicate).count() == 2
        assert table.get([0, 1, 2, 3, 4])["x"].to_pylist() == [1, 1, 9]


# -- L-1 and L-5: what happens between the steps of a plan -----------------------------------------


def test_l1_rows_folded_into_the_base_while_planning_are_seen_once(table, monkeypatch):
    with table.writer() as writer:
        writer.put([row(i) for i in range(4)])
        writer.flush()
        writer.put([row(4)])
    reader = weir.open(table.uri)
    opened = reader.core.lake.open_base
    steps = []

    def compact_first(version=None):
        if version is None and not steps:
            steps.append("compacted")
            compact_with_pylance(table)
        return opened(version)

    reader.core.lake.open_base = compact_first
    assert ids(reader) == [0, 1, 2, 3, 4]
    assert steps == ["compacted"]


def test_l1_base_is_opened_after_every_manifest_and_tail(table):
    with table.writer() as writer:
        writer.put([row(i) for i in range(4)])
        reader = weir.open(table.uri)
        counting = count_requests(reader)
        seen = []
        opened = reader.core.lake.open_base

        def note(version=None):
            if version is None:
                seen.append(counting.requests)
            return opened(version)

        reader.core.lake.open_base = note
        reader.core.lake.open_base(1)
        reader.snapshot()
        # Once at the start, to detect changes, and once after all other requests.
        assert len(seen) == 2
        assert seen[-1] == counting.requests
        assert counting.requests > seen[0]


def test_l1_a_plan_that_was_collected_is_made_anew(table, monkeypatch):
    with table.writer() as writer:
        writer.put([row(1)])
    plans = []
    real = scan_module.take_snapshot

    def expiring(core, freshness, **options):
        plans.append(1)
        if len(plans) < 3:
            raise weir.SnapshotExpired("collected")
        return real(core, freshness, **options)

    monkeypatch.setattr(scan_module, "take_snapshot", expiring)
    assert ids(table) == [1]
    assert len(plans) == 3


def test_l1_planning_gives_up_after_a_bounded_number_of_attempts(table, monkeypatch):
    plans = []

    def expiring(core, freshness, **options):
        plans.append(1)
        raise weir.SnapshotExpired("collected")

    monkeypatch.setattr(scan_module, "take_snapshot", expiring)
    with pytest.raises(weir.SnapshotExpired, match="checkpoint"):
        ids(table)
    assert len(plans) == PLAN_ATTEMPTS


def test_l5_a_stream_in_progress_keeps_its_snapshot(table):
    with table.writer() as writer:
        writer.put([row(i) for i in range(100)])
        writer.flush()
        stream = table.scan(batch_size=10).to_batches()
        first = next(stream)
        writer.put([row(i, 1) for i in range(200)])
        writer.flush()
        rest = list(stream)
    rows = pa.Table.from_batches([first, *rest])
    assert sorted(rows["id"].to_pylist()) == list(range(100))
    assert set(rows["x"].to_pylist()) == {0}


@pytest.mark.slow
def test_l5_a_reader_in_a_loop_is_right_while_rows_are_put_flushed_and_folded(tmp_path):
    """Each put is one entry: a reader sees all keys at one version, which never goes back."""
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    keys, rounds = range(20), 40
    with table.writer() as writer:
        writer.put([row(i, 0) for i in keys])
        failed = []

        def write():
            try:
                for version in range(1, rounds):
                    writer.put([row(i, version) for i in keys])
                    writer.put([row(99)])
                    writer.delete([99])
                    if version % 3 == 0:
                        writer.flush()
                    if version % 9 == 0:
                        compact_with_pylance(table)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        reader, newest, reads = weir.open(table.uri), 0, 0
        while thread.is_alive() or newest < rounds - 1:
            rows = reader.scan(filter="id < 50").to_table()
            assert sorted(rows["id"].to_pylist()) == list(keys)
            [version] = set(rows["x"].to_pylist())
            assert version >= newest, "a reader went back"
            newest, reads = version, reads + 1
            assert len(reader.get([3, 7])) == 2
            assert not failed, failed
        thread.join()
    assert reads > 3


# -- L-2, F-12 -------------------------------------------------------------------------------------


def test_l2_compacted_generations_are_skipped(table):
    with table.writer() as writer:
        writer.put([row(i, 1) for i in range(4)])
        writer.flush()
    compact_with_pylance(table)
    import lance

    # Only the base has this value; a reader that still merged the SSTable would return 1.
    lance.dataset(table.uri).update({"x": "7"})
    assert set(table.scan().to_table()["x"].to_pylist()) == {7}
    assert set(table.get([0, 1])["x"].to_pylist()) == {7}
    assert "skipped" in table.scan().explain()


def test_l2_rows_of_a_sealed_shard_are_older_than_those_of_its_heirs(tmp_path):
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer() as writer:
        writer.put([row(1, 1), row(2, 1)])
    [old] = table.shards()
    manifests = Manifests(old.site)
    sealed = replace(manifests.latest(), status=Status.SEALED)
    manifests.update(lambda _: (sealed, Evidence()), epoch=sealed.writer_epoch)
    heir = UUID("ffffffff-0000-4000-8000-000000000000")
    with Shard(table.core, heir, None, is_routed=False).writer() as writer:
        writer.put([row(1, 2)])
        reader = weir.open(table.uri)
        assert sorted((r["id"], r["x"]) for r in reader.scan().to_table().to_pylist()) == [
            (1, 2),
            (2, 1),
        ]
        assert reader.get([1, 2])["x"].to_pylist() == [2, 1]


def test_l2_entries_already_in_an_sstable_are_not_read_again():
    """pylance may leave R behind the entries it flushed; without a key, rows would be duplicated.
    With a key they are the same rows, and a tag alone hides nothing (F-14)."""
    batch = pa.record_batch({"id": [1]})

    def entry(position, generation, *, rows=(batch,), fence=False, staged=False):
        return WalEntry(
            Position(position),
            Epoch(1),
            generation,
            fence,
            rows,
            entry_id=None,
            tokens=(),
            size=0,
            is_staged=staged,
        )

    entries = [
        entry(1, 1),
        entry(2, 2),
        entry(3, None, rows=(), fence=True),
        entry(4, None),
        entry(5, 3),
        entry(6, 1, staged=True),
    ]
    assert [e.position for e in live_entries(entries, 2, keyed=False)] == [2, 4, 5]
    assert [e.position for e in live_entries(entries, 2, keyed=True)] == [1, 2, 4, 5]


def test_f12_fences_are_no_rows(table):
    for i in range(3):
        with table.writer() as writer:
            writer.put([row(i), row(i + 10)])
        for shard in table.shards():
            shard.writer().close()
    assert ids(table) == [0, 1, 2, 10, 11, 12]
    kinds = [(c.kind, c.batch.num_rows) for c in table.changes()]
    assert sum(rows for _, rows in kinds) == 6
    assert {kind for kind, _ in kinds} == {"put"}


# -- another process -------------------------------------------------------------------------------

CHILD = """
import json, sys
sys.path.insert(0, sys.argv[3])
import weir
from tests.support.tables import count_requests
table = weir.open(sys.argv[1], storage_options=json.loads(sys.argv[2]))
counting = count_requests(table)
table.scan().to_table()
counting.reset()
print("ready", flush=True)
for line in sys.stdin:
    counting.reset()
    rows = table.scan().to_table()
    print(json.dumps({"ids": sorted(rows["id"].to_pylist()), "requests": counting.requests,
                      "calls": dict(counting.calls)}), flush=True)
"""


@pytest.mark.slow
def test_l1_another_process_sees_an_acknowledged_row_in_its_next_read(store_kind, request):
    uri = store_kind.uri_factory()
    table = make(uri, 1, storage_options=store_kind.storage_options)
    with table.writer() as writer:
        writer.put([row(1)])
        child = subprocess.Popen(
            [
                sys.executable,
                "-c",
                textwrap.dedent(CHILD),
                uri,
                json.dumps(store_kind.storage_options),
                str(request.config.rootpath),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert child.stdout.readline() == "ready\n"
            writer.put([row(2)])  # returns when acknowledged; only the test signals the child
            child.stdin.write("read\n")
            child.stdin.flush()
            answer = json.loads(child.stdout.readline())
            child.stdin.write("read\n")
            child.stdin.flush()
            idle = json.loads(child.stdout.readline())
        finally:
            child.stdin.close()
            child.wait(timeout=20)
            child.stdout.close()
    assert answer["ids"] == [1, 2]
    # Two rounds (`weir.read.snapshot`): the manifest after the known one and two entries after
    # the known tip; then the floors and the shards (and Lance's listing of its versions, which is
    # not counted here). The new entry arrived in the first round.
    assert answer["requests"] == 5, answer
    assert answer["calls"] == {"get_many": 1, "list_many": 1, "list_folder": 1}, answer
    # A read that finds nothing new costs the same.
    assert idle["requests"] == 5, idle


def test_g7b_a_scan_shows_nothing_of_a_sleeper_in_a_collected_place(tmp_path, monkeypatch):
    """After the scan is planned, its entries are flushed and collected, and a sleeping writer puts
    its own entry at one of their positions. That put was never acknowledged."""
    table, sleeper = make(str(tmp_path / "t")), make(str(tmp_path / "s"))
    with sleeper.writer() as writer:
        writer.put([row(666)])
    with table.writer() as writer:
        writer.put([row(1)])
        wal = paths.wal_dir(table.shards()[0].id)
        (name,) = {p.name for p in (tmp_path / "t" / wal).iterdir()} - {FIRST}
        stray = (tmp_path / "s" / wal / name).read_bytes()
        take, taken = scan_module.take_snapshot, []

        def overtaken(*args, **options):
            found = take(*args, **options)
            if not taken:
                writer.flush()
                # The entry is collected after the floor rises, and the sleeper's put succeeds.
                table.core.log(table.shards()[0].id).manifests.floors.raise_to("wal", 2)
                (tmp_path / "t" / wal / name).write_bytes(stray)
            taken.append(found)
            return found

        monkeypatch.setattr(scan_module, "take_snapshot", overtaken)
        assert ids(weir.open(table.uri)) == [1]
    assert len(taken) == 2


@pytest.mark.parametrize("way", ["careful", "fast", "torn", "flushed"])
def test_c11_a_read_across_a_reshard_sees_new_rows_only_with_all_old_ones(table, monkeypatch, way):
    """Read the old shard, run a whole reshard with puts before and after, read its heir.

    "torn": of the heir, only the requests for its log are answered after the reshard.
    """

    def reshard_until(last):
        with pytest.raises(Died):
            weir.open(table.uri, env=Env(failpoint=dies_at(last))).reshard(weir.Unsharded())

    reshard_until("reshard.made")
    reader, steps = weir.open(table.uri), []

    def meanwhile():
        if not steps:
            steps.append("resharded")
            with weir.open(table.uri).writer() as writer:
                writer.put([row(i, 1) for i in range(8)])
            reshard_until("reshard.routed")
            with weir.open(table.uri).writer() as writer:
                writer.put([row(8, 2)])

    if way in ("fast", "torn"):
        assert ids(reader) == []
        store = reader.core.store
        get_many = store.get_many

        def is_early(path):
            return way == "torn" and "/manifest/" in path

        def slowly(paths, *, first=None):
            old = [path for path in paths if heir not in path or is_early(path)]
            found = dict(zip(old, get_many(old, first=first), strict=True))
            meanwhile()
            late = [path for path in paths if path not in old]
            found |= zip(late, get_many(late, first=first), strict=True)
            return [found[path] for path in paths]

        routed = {route.shard for route in reader.core.record.routing}
        (heir,) = (str(shard) for shard in reader.core.shard_ids() if shard not in routed)
        monkeypatch.setattr(reader.core, "store", Wrapped(store, get_many=slowly))
        monkeypatch.setattr(reader.core.wal_stores, "_table", lambda: reader.core.store)
    else:
        cut = snapshots._walk

        def slowly(core, shard, *, tail):
            found = cut(core, shard, tail=tail)
            meanwhile()
            return found

        monkeypatch.setattr(snapshots, "_walk", slowly)
    freshness = "flushed" if way == "flushed" else "durable"  # closing the writers flushed
    assert ids(reader, freshness=freshness) == list(range(9))
    assert steps == ["resharded"]


class Wrapped:
    """A store with some of its verbs replaced."""

    def __init__(self, inner, **verbs):
        self._inner = inner
        self.__dict__.update(verbs)

    def __getattr__(self, name):
        return getattr(self._inner, name)
