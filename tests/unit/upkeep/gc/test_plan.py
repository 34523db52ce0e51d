"""The pure part of collection against a model that follows references one by one."""

from collections import Counter
from dataclasses import replace
from uuid import UUID

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.format.manifest import ShardManifest, SsTable, Status
from weir.records.cut import ShardCut
from weir.types import Position
from weir.upkeep.gc.epochs import find_runs
from weir.upkeep.gc.plan import (
    Ages,
    Run,
    ShardState,
    Stored,
    WalListing,
    floor_of,
    plan_manifests,
    plan_sstables,
    plan_wal,
)

SHARD = UUID("00112233-4455-6677-8899-aabbccddeeff")
NOW = 1000.0


def manifest(
    version: int, replay_after: int, generation: int, names: set[str], epoch: int = 1
) -> ShardManifest:
    tables = sorted((int(name.rpartition("_")[2]), name) for name in names)
    return ShardManifest(
        version=version,
        writer_epoch=epoch,
        replay_after=replay_after,
        last_seen=replay_after,
        current_generation=generation,
        sstables=tuple(SsTable(g, name) for g, name in tables),
        shard_spec_id=0,
        shard_id=SHARD,
        field_entries=(),
        status=Status.ACTIVE,
    )


@st.composite
def histories(draw):
    """A shard's life: rising versions, R and generations, a log with rising epochs and times."""
    count = draw(st.integers(1, 7))
    steps = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    ages = sorted(draw(st.lists(st.floats(0, 100), min_size=count, max_size=count)), reverse=True)
    manifests, times, names, replay, generation = [], {}, set(), 0, 1
    for version, step in enumerate(steps, 1):
        replay += step
        if step:
            names = names | {f"{draw(st.integers(0, 9)):08x}_gen_{generation}"}
            generation += 1
        if names and draw(st.booleans()):
            names = names - {min(names)}
        manifests.append(manifest(version, replay, generation, names))
        times[version] = NOW - ages[version - 1]
    tip = replay + draw(st.integers(0, 3))
    jumps = draw(st.lists(st.integers(0, 2), min_size=tip, max_size=tip))
    epochs = list(np.cumsum([1, *jumps])[1:]) if tip else []
    newest = max([1, *map(int, epochs)]) + draw(st.integers(0, 2))
    manifests[-1] = replace(manifests[-1], writer_epoch=newest)
    wal_ages = sorted(draw(st.lists(st.floats(0, 100), min_size=tip, max_size=tip)), reverse=True)
    present = [p for p in range(1, tip + 1) if p > replay or draw(st.booleans())]
    pins = [
        ShardCut.of(m, Position(draw(st.integers(m.replay_after, tip))))
        for m in manifests
        if draw(st.integers(0, 3)) == 0
    ]
    orphans = {f"ffffffff_gen_{g}" for g in range(1, generation + 2) if draw(st.booleans())}
    unread = draw(st.none() | st.integers(0, tip + 1))
    return manifests, times, present, epochs, wal_ages, pins, orphans, unread


def state_of(history, min_age: float) -> tuple[ShardState, dict[int, int], dict[int, float]]:
    manifests, times, present, epochs, wal_ages, pins, orphans, unread = history
    latest = manifests[-1]
    versions = {v: Stored(10, t) for v, t in times.items()}
    floor = floor_of(versions, latest.version, NOW, min_age)
    folders = {
        t.path: (t.generation, Stored(5, NOW - 100, 3)) for m in manifests for t in m.sstables
    }
    folders |= {n: (int(n.rpartition("_")[2]), Stored(5, NOW - 100, 1)) for n in orphans}
    epoch_of = {p: int(epochs[p - 1]) for p in present}
    time_of = {p: NOW - wal_ages[p - 1] for p in present}
    wal = WalListing(
        np.array(present, np.int64),
        np.ones(len(present), np.int64),
        np.array([time_of[p] for p in present], np.float64),
    )
    runs = find_runs(0, len(present) - 1, lambda ix: [epoch_of[present[i]] for i in ix])
    state = ShardState(
        now=NOW,
        wal=wal,
        versions=versions,
        folders=folders,
        latest=latest,
        retained=[m for m in manifests if m.version > floor],
        floor=floor,
        pins=pins,
        unread_from=unread,
        runs=runs,
    )
    return state, epoch_of, time_of


@given(histories(), st.sampled_from([0.0, 10.0, 50.0]), st.sampled_from([50.0, 200.0]))
def test_g1_nothing_reachable_goes_and_nothing_else_stays(history, min_age, retention) -> None:
    state, epoch_of, time_of = state_of(history, min_age)
    manifests, times, present, *_, pins, _orphans, unread = history
    ages = Ages(min_age, retention)
    latest = manifests[-1]
    ended = {m.version: times[m.version + 1] for m in manifests[:-1]}
    living = [m for m in manifests if m is latest or NOW - ended[m.version] < min_age]

    pinned_versions = {pin.manifest_version for pin in pins}
    expected = {m.version for m in manifests if m in living or m.version in pinned_versions}
    assert set(times) - set(plan_manifests(state, ages)[0]) == expected

    named = {t.path for m in living for t in m.sstables} | {
        t.path for p in pins for t in p.sstables
    }
    gone, _ = plan_sstables(state, ages)
    for name, (generation, _) in state.folders.items():
        keep = name in named or generation >= latest.current_generation
        assert (name not in gone) == keep, name

    doomed = {present[i] for i in plan_wal(state, ages)[0]}
    for position in present:
        after = [p for p in present if p > position and epoch_of[p] > epoch_of[position]]
        before = [p for p in present if p < position]
        first = not before or epoch_of[max(before)] < epoch_of[position]
        following = epoch_of[min(after)] if after else latest.writer_epoch
        silent = following > epoch_of[position] + 1
        keep = (
            any(position >= m.replay_after for m in living)
            or any(p.replay_after < position <= p.wal_through for p in pins)
            or (unread is not None and position >= unread)
            or ((first or silent) and NOW - time_of[position] < retention)
        )
        assert (position not in doomed) == keep, position


@given(histories(), st.sampled_from([0.0, 10.0, 50.0]))
def test_g9_the_entry_at_r_and_the_latest_manifest_stay_at_zero_age(history, min_age) -> None:
    state, *_ = state_of(history, min_age)
    ages = Ages(0, 0, keep_first_entries=False)
    assert state.latest.version not in plan_manifests(state, ages)[0]
    assert all(state.wal.positions[i] < state.latest.replay_after for i in plan_wal(state, ages)[0])


@given(histories())
def test_every_object_is_either_kept_with_a_reason_or_deleted(history) -> None:
    state, *_ = state_of(history, 10.0)
    entries, kept = plan_wal(state, Ages(10, 50))
    assert len(entries) + kept.total() == len(state.wal)
    versions, kept = plan_manifests(state, Ages(10, 50))
    assert len(versions) + kept.total() == len(state.versions)
    names, kept = plan_sstables(state, Ages(10, 50))
    objects = sum(stored.objects for _, stored in state.folders.values())
    gone = sum(state.folders[name][1].objects for name in names)
    assert gone + kept.total() == objects


def test_g7a_entries_of_unknown_epoch_stay_while_they_are_young() -> None:
    wal = WalListing(np.arange(1, 6), np.ones(5, np.int64), np.array([0.0, 0, 990, 990, 990]))
    latest = manifest(3, 5, 2, set())
    state = ShardState(NOW, wal, {3: Stored(1, 0)}, {}, latest, [latest], 2, runs=[Run(0, 4, None)])
    entries, kept = plan_wal(state, Ages(0, 100))
    assert [int(wal.positions[i]) for i in entries] == [1, 2]
    assert kept == Counter({"epoch not known": 2, "end of the log": 1})


def test_native_versions_stay_for_the_retention() -> None:
    latest = manifest(4, 0, 1, set())
    versions = {v: Stored(1, NOW - age) for v, age in ((1, 900), (2, 50), (3, 40), (4, 30))}
    wal = WalListing(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    state = ShardState(NOW, wal, versions, {}, latest, [latest], 3, native=True)
    assert plan_manifests(state, Ages(0, 100))[0] == [1]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=300), st.sets(st.integers(0, 299)))
def test_runs_are_those_of_reading_everything(jumps, unreadable) -> None:
    epochs = [int(e) for e in np.cumsum(jumps)]
    reads: list[int] = []

    def read(indexes):
        reads.extend(indexes)
        return [None if i in unreadable else epochs[i] for i in indexes]

    runs = find_runs(0, len(epochs) - 1, read)
    assert len(reads) == len(set(reads)), "nothing is asked twice"
    covered = [i for run in runs for i in range(run.first, run.last + 1)]
    assert covered == list(range(len(epochs)))
    for run in runs:
        if run.epoch is None:
            continue
        assert {epochs[i] for i in range(run.first, run.last + 1)} == {run.epoch}
    if not unreadable:
        assert all(run.epoch is not None for run in runs)
        firsts = [i for i in range(len(epochs)) if i == 0 or epochs[i] != epochs[i - 1]]
        assert [run.first for run in runs] == firsts


def test_few_reads_find_the_changes_of_epoch_in_a_long_log() -> None:
    epochs = np.searchsorted([10_000, 50_000, 50_001], np.arange(100_000), side="right")
    reads = []
    runs = find_runs(0, 99_999, lambda ix: [reads.extend(ix), [int(epochs[i]) for i in ix]][1])
    assert [run.first for run in runs] == [0, 10_000, 50_000, 50_001]
    assert len(reads) < 70


@given(st.integers(0, 40))
def test_a_spent_budget_leaves_the_rest_unknown(budget) -> None:
    epochs = list(range(100))
    runs = find_runs(0, 99, lambda ix: [epochs[i] for i in ix], budget)
    known = sum(run.epoch is not None for run in runs)
    assert known <= budget
    assert sum(run.last - run.first + 1 for run in runs) == 100
