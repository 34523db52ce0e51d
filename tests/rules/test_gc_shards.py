"""Collection does each step for all shards before the next: its safety and its savings."""

import pyarrow as pa
import pytest

import weir
from tests.support.tables import count_requests
from weir.format import paths
from weir.testing.fault_store import FaultStore
from weir.upkeep.gc import records as gc_records
from weir.upkeep.gc import shard as gc_shard
from weir.upkeep.gc.collect import collect

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


def flushed(path, shards):
    """A table in which every shard has entries, versions and SSTables to collect."""
    table = weir.create(str(path), SCHEMA, primary_key="id", sharding=weir.Bucket("id", shards))
    for turn in range(3):
        with table.writer() as writer:
            writer.put([{"id": i, "v": turn} for i in range(8 * shards)])
            writer.flush()
    table.compact()
    return table


def traced(table, **settings):
    """Collect everything; return the report and each request as (verb, path)."""
    core = weir.open(table.uri).core
    core.store = FaultStore(core.store)
    open_base = core.lake.open_base

    def noted(version=None):
        core.store.log.append(None)
        return open_base(version)

    core.lake.open_base = noted
    report = collect(core, 0, 120, keep_first_entries=False, **settings)
    assert report.ok, report.errors
    return report, [("base", "") if e is None else (e.op, str(e.path)) for e in core.store.log]


def places(trace, verbs, part):
    return [i for i, (verb, path) in enumerate(trace) if verb in verbs and part in path]


def raised(trace):
    return places(trace, ["put_if_absent"], "/floor/")


def doomed(trace):
    return places(trace, ["delete"], f"{paths.SHARDS}/")


def pin_reads(trace):
    """Listings of the checkpoints while shards are collected."""
    return [
        i
        for i in places(trace, ["list"], paths.CHECKPOINTS)
        if raised(trace)[0] < i < doomed(trace)[-1]
    ]


def test_k1b_pins_are_read_once_when_the_floors_of_every_shard_are_up(tmp_path):
    table = flushed(tmp_path / "t", 3)
    table.checkpoint()
    with table.writer() as writer:
        writer.put([{"id": i, "v": 9} for i in range(24)])
        writer.flush()
    table.compact()
    report, trace = traced(table)
    assert report.kind("wal").deleted, "there was something to collect"
    shards = {paths.shard_dir(s.id).rpartition("/")[2] for s in table.shards()}
    assert all(any(shard in trace[i][1] for i in raised(trace)) for shard in shards)
    (pins,) = pin_reads(trace)
    assert max(raised(trace)) < pins < min(doomed(trace))
    assert table.scan().to_table()["v"].to_pylist() == [9] * 24
    assert table.scan(checkpoint=table.checkpoints()[0]).to_table()["v"].to_pylist() == [2] * 24


def test_k1b_in_waves_too_the_floors_come_before_the_pins(tmp_path, monkeypatch):
    """With more listed objects than the bound, shards go in waves, here one at a time."""
    monkeypatch.setattr(gc_shard, "LISTED_MAX", 1)
    monkeypatch.setattr(gc_shard, "_FIRST_LISTED", 1)
    table = flushed(tmp_path / "t", 3)
    _, trace = traced(table)
    for shard in table.shards():
        mine = [i for i in raised(trace) if str(shard.id) in trace[i][1]]
        gone = [i for i in doomed(trace) if str(shard.id) in trace[i][1]]
        assert any(max(mine) < i < min(gone) for i in pin_reads(trace))
    assert len(pin_reads(trace)) == 3


def test_l2_the_base_is_read_once_and_after_every_manifest(tmp_path):
    """A restore claims before it names SSTables again; an older base would get them deleted."""
    table = flushed(tmp_path / "t", 3)
    report, trace = traced(table, kinds=["sstables"])
    assert report.pruned == 9
    looks = [i for i in places(trace, ["get"], "/manifest/") if i < min(raised(trace))]
    bases = [i for i, (verb, _) in enumerate(trace) if verb == "base"]
    assert len(bases) == 1
    first_look = [min(i for i in looks if str(s.id) in trace[i][1]) for s in table.shards()]
    assert max(first_look) < bases[0] < min(raised(trace))


@pytest.mark.parametrize("shards", [2, 6])
def test_a_checkpoint_is_read_as_often_whatever_the_number_of_shards(tmp_path, shards):
    table = flushed(tmp_path / "t", shards)
    for _ in range(3):
        table.checkpoint(scope="durable")
    _, trace = traced(table)
    firsts = [
        i for i in places(trace, ["get"], paths.CHECKPOINTS) if trace[i][1].endswith("0001.json")
    ]
    assert len(places(trace, ["list"], paths.CHECKPOINTS)) <= 12
    assert len(firsts) <= 3 * 3


@pytest.mark.parametrize("shards", [4, 96])
def test_a_collection_without_work_asks_seven_requests_of_a_shard(tmp_path, shards):
    """One listing; the manifest and the floors before the pins are read, and again after that; the
    end of the log; tokens."""
    table = weir.create(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=weir.Bucket("id", shards)
    )
    with table.writer() as writer:
        writer.put([{"id": i, "v": 1} for i in range(8 * shards)])
    table.compact()
    handle = weir.open(table.uri)
    counting = count_requests(handle)
    for _ in range(2):
        assert handle.gc(min_age=0).ok
    counting.reset()
    assert handle.gc(min_age=0).ok
    assert counting.requests <= 7 * shards + 40
    assert counting.calls["get_many"] + counting.calls["list_many"] <= 30 + shards // 8


def test_deletions_of_all_shards_share_requests(tmp_path):
    table = flushed(tmp_path / "t", 6)
    report, trace = traced(table, kinds=["wal", "manifests"])
    assert report.kind("wal").deleted >= 6
    assert len(doomed(trace)) == 2, "one for each kind"


@pytest.mark.parametrize("min_age", [0, 0.001, 3600])
def test_g10_a_dry_run_lists_what_the_real_run_deletes(tmp_path, min_age):
    """What pruning frees included; and what pruning supersedes, which a real run keeps."""
    table = flushed(tmp_path / "t", 2)
    dry = weir.open(table.uri).gc(min_age=min_age, dry_run=True)
    real = weir.open(table.uri).gc(min_age=min_age)
    assert dry.kinds == real.kinds
    assert (dry.pruned, dry.deleted) == (real.pruned, real.deleted)
    assert bool(real.kinds["sstables"].deleted) == (min_age == 0)


@pytest.mark.parametrize("kinds", [None, ["wal", "manifests", "sstables", "base"]])
def test_g10_a_dry_run_counts_what_an_expired_checkpoint_held(tmp_path, kinds):
    """Without the kind "checkpoints" a real run does not end it."""
    table = flushed(tmp_path / "t", 1)
    table.checkpoint(ttl=0)
    with table.writer() as writer:
        writer.put([{"id": i, "v": 9} for i in range(8)])
        writer.flush()
    table.compact()
    dry = weir.open(table.uri).gc(min_age=0, kinds=kinds, dry_run=True)
    real = weir.open(table.uri).gc(min_age=0, kinds=kinds)
    assert dry.ended == real.ended == int(kinds is None)
    assert dry.kinds["base"].kept == real.kinds["base"].kept
    assert {kind: part.deleted for kind, part in dry.kinds.items()} == {
        kind: part.deleted for kind, part in real.kinds.items()
    }


def test_g10_a_shard_that_fails_does_not_stop_the_others(tmp_path):
    table = flushed(tmp_path / "t", 2)
    broken, other = table.shards()
    latest = paths.manifest_path(broken.id, broken.manifest().version)
    table.core.store.put(latest, b"\xff\xff")
    report = weir.open(table.uri).gc(min_age=0)
    assert [str(broken.id) in error for error in report.errors] == [True]
    assert report.kinds["manifests"].deleted
    assert other.manifest().version > 1


def test_g10_progress_never_says_more_than_all(tmp_path, monkeypatch):
    monkeypatch.setattr(gc_records, "LEFTOVERS", {paths.PROBE: 0.0})
    table = flushed(tmp_path / "t", 2)
    told = []
    for number in range(3):
        table.core.store.put(f"{paths.PROBE}/{number}", b"x")
    report = collect(
        table.core,
        0,
        120,
        progress=lambda kind, done, total: told.append((kind, done, total)),
        keep_first_entries=False,
    )
    assert report.ok
    assert ("leftovers", 3, 3) in told
    assert all(0 < done <= total for _, done, total in told), told


def test_g9_the_report_says_why_the_end_of_the_log_stays(tmp_path):
    table = flushed(tmp_path / "t", 1)
    kept = table.gc(min_age=0).kinds["wal"].kept
    assert kept["end of the log"] == 1
    assert kept["not yet in an SSTable"] == 0
