"""F-1 to F-13: one writer per shard, enforced by the store itself."""

import threading
import time
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pytest

from simulator.steps import watched
from tests.support.shards import Bench
from weir.errors import (
    CommitConflict,
    CorruptEntry,
    FencedError,
    InvalidInput,
    MissingEntry,
    SealedShard,
    StoreError,
    UnknownOutcome,
    WeirError,
    WriterClosed,
)
from weir.format import paths
from weir.format.manifest import Status
from weir.log.fence import claim_shard
from weir.log.floors import Floors
from weir.log.rules import Evidence, RuleBroken
from weir.log.tailer import WalTailer
from weir.shard.replay import Replay
from weir.types import Position, Version


@pytest.fixture
def bench() -> Bench:
    return Bench()


def move_replay_point(bench: Bench, position: int) -> None:
    """Pretend the owner flushed everything up to `position`."""
    manifests = bench.manifests()

    def change(current):
        moved = replace(
            current,
            replay_after=Position(position),
            last_seen=Position(max(position, current.last_seen)),
        )
        return moved, Evidence(covered=Position(position))

    manifests.update(change, epoch=manifests.require().writer_epoch)


def replayed(bench: Bench) -> list[int]:
    claim = claim_shard(bench.site)
    ids = []
    for _, entry in Replay(bench.site, bench.manifests(), claim):
        ids += [i for b in entry.batches for i in b.column("id").to_pylist()]
    return ids


def test_f1_after_a_second_open_the_first_appender_can_never_write_again(bench: Bench) -> None:
    first = bench.open()
    first.append(bench.rows(1))
    second = bench.open()
    writes = len(bench.faults.events("write"))
    for _ in range(3):
        with pytest.raises(FencedError) as fenced:
            first.append(bench.rows(2))
        assert (fenced.value.epoch, fenced.value.fenced_by) == (first.epoch, second.epoch)
        assert fenced.value.unacknowledged == bench.rows(2)
    tried = bench.faults.events("write")[writes:]
    assert [event.outcome for event in tried] == [
        "ObjectExists"
    ]  # and no further request follows (F-13)
    assert second.append(bench.rows(3)) == second.claim.fence + 1
    assert [ids for _, _, ids in bench.log()] == [None, [1], None, [3]]


def test_f1_a_claim_writes_the_epoch_and_a_fence(bench: Bench) -> None:
    claim = claim_shard(bench.site)
    assert bench.manifests().require().writer_epoch == claim.epoch == 1
    assert bench.log() == [(1, 1, None)]


@pytest.mark.parametrize("lost", ["everything", "nothing"])
def test_f2_a_position_is_never_used_twice_even_when_the_log_is_wiped(
    bench: Bench, lost: str
) -> None:
    appender = bench.open()
    for i in range(3):
        appender.append(bench.rows(i))
    move_replay_point(bench, 4)
    if lost == "everything":
        for position in range(1, 5):
            bench.delete_entry(position)
    assert claim_shard(bench.site).fence == 5


def test_f2_the_fence_goes_above_positions_a_checkpoint_refers_to(bench: Bench) -> None:
    appender = bench.open()
    appender.append(bench.rows(1))
    Floors(bench.site).raise_to("used", 9)
    for position in (1, 2):
        bench.delete_entry(position)
    assert claim_shard(bench.site).fence == 10


@pytest.mark.parametrize(
    ("field", "value", "broken"),
    [
        ("replay_after", 1, "R must not fall"),
        ("last_seen", 8, "L must not fall"),
        ("current_generation", 1, "generations must not fall"),
        ("version", 9, "versions must rise by one"),
    ],
)
def test_f3_a_manifest_that_goes_back_is_refused_before_it_reaches_the_store(
    bench: Bench, field: str, value: int, broken: str
) -> None:
    appender = bench.open()
    for i in range(3):
        appender.append(bench.rows(i))
    move_replay_point(bench, 4)
    manifests = bench.manifests()
    current = manifests.require()
    current = manifests.commit(
        replace(
            current,
            version=Version(current.version + 1),
            last_seen=Position(9),
            current_generation=3,
        ),
        current,
        Evidence(renumbers=True),
    )
    before = len(bench.faults.events("write"))
    with pytest.raises(RuleBroken, match=broken):
        manifests.commit(
            replace(current, **{"version": Version(current.version + 1), field: value}),
            current,
            Evidence(covered=Position(value)) if field == "replay_after" else Evidence(),
        )
    assert len(bench.faults.events("write")) == before


def test_f3_the_replay_point_moves_only_with_proof(bench: Bench) -> None:
    bench.open().append(bench.rows(1))
    manifests = bench.manifests()
    current = manifests.require()
    ahead = replace(
        current,
        version=Version(current.version + 1),
        replay_after=Position(2),
        last_seen=Position(2),
    )
    with pytest.raises(RuleBroken, match="W-1"):
        manifests.commit(ahead, current, Evidence())
    with pytest.raises(RuleBroken, match="W-2"):
        manifests.commit(ahead, current, Evidence(covered=Position(1)))


@pytest.mark.parametrize("step", ["probed", "claimed", "fenced"])
@pytest.mark.parametrize("third", [False, True])
@pytest.mark.parametrize("collect", [False, True])
def test_f4_the_fence_is_validated_whatever_happened_while_opening(
    bench: Bench, step: str, third: bool, collect: bool
) -> None:
    """At each step the old writer appends and flushes, GC collects, and a third writer opens."""
    old = bench.open()
    old.append(bench.rows(1))
    acked: list[int] = [1]
    disturbed: list[str] = []

    def disturb(reached: str) -> None:
        if reached != step or disturbed:
            return
        disturbed.append(reached)
        for i in (2, 3):
            try:
                old.append(bench.rows(i))
                acked.append(i)
            except FencedError:
                break
        manifests = bench.manifests()
        try:
            position = Position(old.next_position - 1)

            def change(current):
                moved = replace(current, replay_after=position, last_seen=position)
                return (
                    (moved, Evidence(covered=position)) if position > current.replay_after else None
                )

            manifests.update(change, epoch=old.epoch)
            if collect:
                Floors(bench.site).raise_to("wal", position - 1)
                for p in range(1, position):
                    bench.delete_entry(p)
        except FencedError:
            pass
        if third:
            claim_shard(bench.site)

    try:
        claim = claim_shard(watched(bench.site, "claim", disturb))
    except FencedError:
        claim = None
    manifest = bench.manifests().require()
    log = bench.log()
    above = [(p, e) for p, e, _ in log if p > manifest.replay_after]
    assert [p for p, _ in above] == list(
        range(manifest.replay_after + 1, manifest.replay_after + 1 + len(above))
    )
    assert all(a[1] <= b[1] for a, b in pairwise(log))
    if claim is not None:
        assert claim.epoch == manifest.writer_epoch
        assert claim.fence > manifest.replay_after
        with pytest.raises(FencedError):
            old.append(bench.rows(9))
    else:
        assert third or collect


def test_f5_an_entry_landing_while_we_open_is_replayed(bench: Bench) -> None:
    old = bench.open()

    def land(step: str) -> None:
        if step == "claimed":
            old.append(bench.rows(7))

    claim = claim_shard(watched(bench.site, "claim", land))
    assert claim.epoch == 2
    ids = [
        i
        for _, entry in Replay(bench.site, bench.manifests(), claim)
        for b in entry.batches
        for i in b.column("id").to_pylist()
    ]
    assert ids == [7]
    with pytest.raises(FencedError):
        old.append(bench.rows(8))


def test_f5_a_collision_on_the_append_path_ends_the_writer_even_without_a_newer_epoch(
    bench: Bench,
) -> None:
    appender = bench.open()
    bench.place_fence(appender.next_position, epoch=appender.epoch)
    with pytest.raises(CommitConflict, match="position 2"):
        appender.append(bench.rows(1))
    with pytest.raises(WeirError):
        appender.append(bench.rows(1))
    assert bench.log() == [(1, 1, None), (2, 1, None)]


def test_f6_a_hole_inside_the_replay_range_is_missing_data(bench: Bench) -> None:
    appender = bench.open()
    for i in range(4):
        appender.append(bench.rows(i))
    claim = claim_shard(bench.site)
    bench.delete_entry(3)
    with pytest.raises(MissingEntry, match="position 3"):
        list(Replay(bench.site, bench.manifests(), claim))


@pytest.mark.parametrize("hole", [2, 3, 4, 7, 9])
def test_f6_a_hole_anywhere_in_the_log_stops_the_open(bench: Bench, hole: int) -> None:
    appender = bench.open()
    for i in range(9):
        appender.append(bench.rows(i))
    bench.delete_entry(hole)
    with pytest.raises(MissingEntry, match=f"position {hole}"):
        replayed(bench)


def test_f6_a_hole_while_a_newer_writer_claims_is_a_fence(bench: Bench) -> None:
    appender = bench.open()
    for i in range(4):
        appender.append(bench.rows(i))
    claim = claim_shard(bench.site)
    claim_shard(bench.site)
    bench.delete_entry(3)
    with pytest.raises(FencedError):
        list(Replay(bench.site, bench.manifests(), claim))


def test_f6_replay_ends_at_our_fence_not_at_a_later_tip(bench: Bench) -> None:
    bench.open().append(bench.rows(1))
    claim = claim_shard(bench.site)
    bench.open().append(bench.rows(2))
    entries = list(Replay(bench.site, bench.manifests(), claim))
    assert [entry.position for _, entry in entries] == [2]


def test_f7_a_newer_epoch_met_in_replay_means_fenced(bench: Bench) -> None:
    bench.open().append(bench.rows(1))
    claim = claim_shard(bench.site)
    bench.delete_entry(claim.fence - 1)
    bench.place_fence(claim.fence - 1, epoch=claim.epoch + 5)
    with pytest.raises(FencedError, match="only on purpose") as fenced:
        list(Replay(bench.site, bench.manifests(), claim))
    assert fenced.value.fenced_by == claim.epoch + 5


def test_f7_rows_of_an_epoch_that_fell_are_damage(bench: Bench) -> None:
    bench.open()
    second = bench.open()
    second.append(bench.rows(1))
    bench.place_rows(second.next_position, 1, 7)
    with pytest.raises(CorruptEntry, match="epoch 1, but an entry before it has epoch 2"):
        list(WalTailer(bench))
    with pytest.raises(CorruptEntry):
        replayed(bench)


def test_f7_a_late_fence_of_an_older_epoch_is_passed_over(bench: Bench) -> None:
    """A native claimant that slept between its claim and its search for the tip leaves one."""
    bench.open()
    second = bench.open()
    second.append(bench.rows(1))
    bench.place_fence(second.next_position, epoch=1)
    assert replayed(bench) == [1]
    third = bench.open()
    third.append(bench.rows(2))
    assert replayed(bench) == [1, 2]


@pytest.mark.parametrize("applied", [True, False])
def test_f9_append_after_lost_answer_is_not_written_twice(bench: Bench, applied: bool) -> None:
    appender = bench.open()
    fault = bench.faults.on("put_if_absent", "*/wal/*")
    if applied:
        fault.fail_after(times=2)
    else:
        fault.fail_before(times=2)
    assert appender.append(bench.rows(1)) == 2
    assert appender.append(bench.rows(2)) == 3
    assert [ids for _, _, ids in bench.log()] == [None, [1], [2]]


def test_f9_somebody_elses_entry_after_a_lost_answer_is_not_taken_for_ours(bench: Bench) -> None:
    appender = bench.open()
    bench.faults.on("put_if_absent", "*/wal/*").fail_before()
    # The put was lost in transit; a newer writer takes its position before the retry.
    original = bench.clock.sleep

    def newer_writer_comes(seconds: float) -> None:
        bench.clock.sleep = original  # type: ignore[method-assign]
        bench.open()

    bench.clock.sleep = newer_writer_comes  # type: ignore[method-assign]
    with pytest.raises(FencedError) as fenced:
        appender.append(bench.rows(1))
    assert fenced.value.unacknowledged == bench.rows(1)
    assert [ids for _, _, ids in bench.log()] == [None, None]


def test_f9_two_claimants_of_one_version_never_both_win(bench: Bench) -> None:
    """Without an id in the manifest, two claims of one epoch would have the same bytes."""
    first = claim_shard(bench.site)
    other = bench.manifests()
    current = other.require()
    bench.faults.on("put_if_absent", "*/manifest/*").fail_before()
    original = bench.clock.sleep

    def other_claims(seconds: float) -> None:
        bench.clock.sleep = original  # type: ignore[method-assign]
        other.claim(current)

    bench.clock.sleep = other_claims  # type: ignore[method-assign]
    with pytest.raises(CommitConflict):
        bench.manifests().claim(current)
    assert bench.manifests().require().writer_epoch == first.epoch + 1


def test_f10_one_put_in_flight_however_many_threads_append() -> None:
    bench = Bench(attempts=20)
    appender = bench.open()
    flying = 0
    worst = 0
    inner = bench.raw.put_if_absent
    lock = threading.Lock()

    def slow_put(path: str, data: bytes) -> None:
        nonlocal flying, worst
        with lock:
            flying += 1
            worst = max(worst, flying)
        try:
            time.sleep(0)  # where a slow store lets other threads run
            inner(path, data)
        finally:
            with lock:
                flying -= 1

    bench.raw.put_if_absent = slow_put  # type: ignore[method-assign]
    bench.faults.on("put_if_absent", "*/wal/*", rate=0.3).fail_after(times=None)
    threads = [
        threading.Thread(target=lambda n=n: [appender.append(bench.rows(n)) for _ in range(20)])
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worst == 1
    assert [p for p, _, _ in bench.log()] == list(range(1, 162))


@pytest.mark.parametrize("applied", [True, False])
def test_f11_an_outcome_that_stays_unknown_is_its_own_answer(bench: Bench, applied: bool) -> None:
    appender = bench.open()
    appender.append(bench.rows(1))
    if applied:
        bench.faults.on("put_if_absent", "*/wal/*").fail_after(times=None)
        bench.faults.on("get", "*/wal/*").fail_before(times=None)
        bench.faults.on("head", "*/wal/*").fail_before(times=None)
    else:
        bench.faults.on("put_if_absent", "*/wal/*").fail_before(times=None)
    with pytest.raises(UnknownOutcome) as unknown:
        appender.append(bench.rows(2))
    assert unknown.value.unacknowledged == bench.rows(2)
    with pytest.raises(WriterClosed) as later:  # these rows were certainly never sent
        appender.append(bench.rows(3))
    assert later.value.not_written == bench.rows(3)
    assert not bench.faults.events("delete")
    bench.faults.heal()
    assert replayed(bench) == ([1, 2] if applied else [1])


def test_f11_a_failure_that_says_it_did_nothing_lets_the_appender_go_on(bench: Bench) -> None:
    appender = bench.open()
    bench.faults.on("put_if_absent", "*/wal/*").refuse(times=None)
    with pytest.raises(StoreError):
        appender.append(bench.rows(1))
    bench.faults.heal()
    assert appender.append(bench.rows(1)) == 2


def test_f12_fences_are_invisible_to_readers_of_rows(bench: Bench) -> None:
    for i in range(6):
        bench.open().append(bench.rows(i))
        bench.open()
    seen = list(WalTailer(bench))
    assert not any(entry.is_fence for entry in seen)
    rows = [i for e in seen for b in e.batches for i in b.column("id").to_pylist()]
    assert rows == list(range(6))
    assert sum(entry.is_fence for entry in WalTailer(bench, fences=True)) == 12
    assert WalTailer(bench).read(1).is_fence


def test_f13_a_fenced_appender_asks_the_store_nothing_more(bench: Bench) -> None:
    first = bench.open()
    bench.open()
    with pytest.raises(FencedError):
        first.append(bench.rows(1))
    calls = len(bench.faults.log)
    with pytest.raises(FencedError):
        first.append(bench.rows(2))
    assert len(bench.faults.log) == calls
    assert first.fenced


def test_a_sealed_shard_is_not_claimed(bench: Bench) -> None:
    claim_shard(bench.site)
    manifests = bench.manifests()
    manifests.update(lambda m: (replace(m, status=Status.SEALED), Evidence()), epoch=1)
    before = bench.log()
    with pytest.raises(SealedShard, match=str(bench.shard)):
        claim_shard(bench.site)
    assert bench.log() == before


def test_an_entry_without_rows_is_refused(bench: Bench) -> None:
    appender = bench.open()
    with pytest.raises(InvalidInput):
        appender.append([])
    with pytest.raises(InvalidInput):
        appender.append([pa.RecordBatch.from_pylist([], schema=bench.table_schema.wal)])
    assert bench.log() == [(1, 1, None)]


def test_an_appender_takes_rows_as_the_table_has_them(bench: Bench) -> None:
    appender = bench.open()
    appender.append([pa.record_batch({"id": [1, 2], "x": [1.0, 2.0]})])
    with pytest.raises(InvalidInput, match="null"):
        appender.append([pa.record_batch({"id": pa.array([None], pa.int64())})])
    assert bench.log() == [(1, 1, None), (2, 1, [1, 2])]


def test_manifest_hint_that_points_too_high_or_is_garbage_is_survived(bench: Bench) -> None:
    for _ in range(3):
        bench.open()
    hint = paths.manifest_hint_path(bench.shard)
    for text in (b'{"version":999}', b"junk", b'{"version":1}', b'{"version":0}'):
        bench.raw.put(hint, text)
        assert bench.manifests().require().version == 3


@pytest.mark.parametrize("entries", [0, 1, 2, 3, 7, 8, 63, 64, 65, 300])
def test_the_tip_is_found_in_few_requests(bench: Bench, entries: int) -> None:
    appender = bench.open()
    for i in range(entries):
        appender.append(bench.rows(i))
    tailer = WalTailer(bench)
    heads = bench.faults.counts["head"]
    assert tailer.tip() == entries + 1
    assert bench.faults.counts["head"] - heads <= 12 + 4 * (entries + 1).bit_length()


@pytest.mark.parametrize("racers", [2, 3, 16])
def test_racing_appenders_never_share_a_position(bench: Bench, racers: int) -> None:
    acked: dict[int, int] = {}
    fenced: list[int] = []
    finished: list[int] = []
    barrier = threading.Barrier(racers)

    def race(n: int) -> None:
        barrier.wait()
        try:
            appender = bench.open()
            for k in range(60):
                position = appender.append(bench.rows(n * 1000 + k))
                assert acked.setdefault(position, n * 1000 + k) == n * 1000 + k
            finished.append(n)
        except (FencedError, CommitConflict):
            fenced.append(n)

    threads = [threading.Thread(target=race, args=(n,)) for n in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log = bench.log()
    assert [p for p, _, _ in log] == list(range(1, len(log) + 1))
    assert all(a[1] <= b[1] for a, b in pairwise(log))
    stored = {p: ids[0] for p, _, ids in log if ids is not None}
    assert acked.items() <= stored.items()
    assert len(fenced) + len(finished) == racers
