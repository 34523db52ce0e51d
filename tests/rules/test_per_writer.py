"""C-18: with a shard for each writer (`weir.PerWriter`), any number append side by side."""

import asyncio
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pyarrow as pa
import pytest

import weir
from tests.support.appending import Appending
from tests.support.hooks import HookStore
from tests.support.moments import again, at_time
from tests.support.tables import count_requests
from weir.env import Env
from weir.format.manifest import Status
from weir.log.fence import NotLeft
from weir.read.positions import passed_by, positions_at
from weir.routing.open_writers import OpenWriters
from weir.routing.shards import schema_for_writing
from weir.testing.faulty import FaultyStores
from weir.upkeep.gc.collect import collect
from weir.upkeep.owner import Owner

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
LAZY = weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h")
HOUR = 3600.0


def make(place, silent_after: float | str = "1h", **options) -> weir.Table:
    sharding = weir.PerWriter(silent_after=silent_after)
    return weir.create(str(place), SCHEMA, sharding=sharding, **options)


def append(writer, *ids, text="x", **how):
    return writer.put([{"id": i, "v": text} for i in ids], **how)


def ids(table, **how) -> list[int]:
    return sorted(row["id"] for row in table.scan(**how).to_table().to_pylist())


def told_ids(batches) -> list[int]:
    return [n for batch in batches for n in batch.column("id").to_pylist()]


def only(writer) -> UUID:
    (shard,) = writer.shards
    return shard


def seal(table, shard: UUID) -> None:
    """What upkeep of another process does with a silent shard."""
    Owner(again(table).core, shard).seal()


def statuses(table) -> list[bool]:
    return [shard.is_sealed for shard in again(table).stats().shards]


def later(table, seconds: float = 2 * HOUR) -> weir.Table:
    """The table on a store whose clock is ahead."""
    opened = again(table)
    return at_time(opened, [opened.core.store.now() + seconds])


# -- side by side ----------------------------------------------------------------------------------


def test_c18_threads_append_side_by_side_and_none_is_fenced(tmp_path):
    table = make(tmp_path / "t")
    writers = [table.writer() for _ in range(4)]

    def run(number: int) -> None:
        for n in range(10):
            append(writers[number], 10 * number + n)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    assert len({only(writer) for writer in writers}) == 4
    assert [writer.fenced for writer in writers] == [()] * 4
    for writer in writers:
        writer.close()
    assert ids(again(table)) == list(range(40))


def test_c18_threads_of_one_writer_share_its_shard(tmp_path):
    table = make(tmp_path / "t")
    with table.writer() as writer, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: append(writer, n), range(20)))
        shard = only(writer)
    assert [s.id for s in table.shards()] == [shard]
    assert ids(table) == list(range(20))


def test_c18_processes_append_side_by_side_and_a_killed_one_loses_nothing(tmp_path):
    table = make(tmp_path / "t")
    with Appending(table, 0, 5) as one, Appending(table, 5, 5) as two, table.writer() as own:
        append(own, 10)
        first, second = one.done(), two.done()
        assert len({*first, *second, str(only(own))}) == 3
        os.kill(one.process.pid, signal.SIGKILL)
        one.process.wait()
        assert two.leave() == []
        assert ids(again(table)) == list(range(11))
        # Nobody takes the shard of the dead one over, for it might live ...
        with again(table).writer() as next_one:
            append(next_one, 11)
            assert str(only(next_one)) == second[0]
        assert again(table).compact().notes
        assert not any(statuses(table))
        # ... until it was silent for the table's time.
        later(table).compact()
    assert Status.SEALED is again(table).shard(UUID(first[0])).manifest().status
    assert ids(table, freshness="base") == ids(again(table)) == list(range(12))


def test_c18_a_frozen_process_that_was_sealed_goes_on_in_another_shard(tmp_path):
    table = make(tmp_path / "t", silent_after=0)
    program = """
import sys, weir
with weir.open(sys.argv[1]).writer() as writer:
    for line in sys.stdin:
        writer.put([{"id": int(line), "v": "frozen"}])
        print(*writer.shards, *writer.fenced, flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, table.uri],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write("1\n")
        process.stdin.flush()
        before = process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        assert again(table).compact().rows_written == 1
        os.kill(process.pid, signal.SIGCONT)
        told, _ = process.communicate("2\n3\n")
    finally:
        process.kill()
    assert process.returncode == 0
    second, third = told.split()
    assert before.strip() != second == third
    assert ids(again(table)) == [1, 2, 3]


# -- which shard -----------------------------------------------------------------------------------


def test_c18_a_closed_shard_is_used_again_and_no_other(tmp_path):
    table = make(tmp_path / "t")
    first, second = table.writer(), table.writer()
    append(first, 1)
    append(second, 2)
    shard = only(first)
    first.close()
    with again(table).writer() as third:
        append(third, 3)
        assert only(third) == shard
        with again(table).writer() as fourth:
            append(fourth, 4)
            assert only(fourth) not in (shard, only(second))
    append(second, 5)
    second.close()
    assert len(again(table).shards()) == 3
    assert ids(table) == [1, 2, 3, 4, 5]


def test_c18_of_two_writers_that_want_one_shard_the_slower_takes_another(tmp_path):
    """Neither is fenced: the claim is a commit on top of the manifest that says `left`."""
    table = make(tmp_path / "t")
    with table.writer() as writer:
        append(writer, 1)
        shard = only(writer)
    faster = again(table).writer()

    def act(point: str) -> None:
        if point == "claim.probed" and not faster.shards:
            append(faster, 2)

    with again(table, env=Env(failpoint=act)).writer() as slower:
        append(slower, 3)
        assert only(faster) == shard
        assert only(slower) != shard
    append(faster, 4)
    assert faster.fenced == ()
    faster.close()
    assert ids(table) == [1, 2, 3, 4]


def test_c18_writers_that_come_and_go_never_take_a_shard_from_each_other(tmp_path):
    table = make(tmp_path / "t")

    def run(number: int) -> None:
        for n in range(6):
            with again(table).writer() as writer:
                append(writer, 10 * number + n)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    assert ids(again(table)) == sorted(10 * number + n for number in range(4) for n in range(6))
    # Each writer claimed one shard: none had to go on in another.
    assert sum(shard.manifest().writer_epoch for shard in again(table).shards()) == 24


def test_c18_a_shard_that_a_writer_gave_up_is_not_its_own_again(tmp_path):
    """A call that chose the shard before it was lost must not open it beside the next one."""
    table = make(tmp_path / "t")
    writers = OpenWriters(table.core, None, schema_for_writing(table.core))
    row = pa.RecordBatch.from_pylist([{"id": 1, "v": "x"}], schema=SCHEMA)
    record = table.core.record
    ((shard, (value, _)),) = writers.parts(record, [row]).items()
    Owner(again(table).core, shard).flush()  # fences it, and leaves: anybody may take it now
    lost = weir.FencedError("taken", epoch=1, fenced_by=2)
    assert writers.routed_away({shard: lost}) == [shard]
    assert writers.await_heirs(record.routing_version, {shard: lost})
    with pytest.raises(NotLeft):
        writers.get(shard, value, record)
    assert shard not in writers.parts(record, [row])
    for writer in writers.all().values():
        writer.close()


def test_c18_a_writer_that_puts_nothing_makes_no_shard(tmp_path):
    table = make(tmp_path / "t")
    with table.writer() as writer:
        append(writer)
        with pytest.raises(weir.WeirError):
            writer.put([{"id": None, "v": "no id"}])
    assert table.shards() == []


def test_c18_a_failing_store_hands_the_rows_back_before_a_shard_is_chosen(tmp_path):
    faulty = FaultyStores()
    table = make(tmp_path / "t", env=faulty.env)
    writer = table.writer()
    faulty.at(table.uri).on("list_folder", "*").fail_before(times=None)
    with pytest.raises(weir.StoreError) as told:
        append(writer, 1)
    assert told_ids(told.value.not_written) == [1]
    faulty.at(table.uri).heal()
    append(writer, 1)
    writer.close()
    assert ids(table) == [1]


# -- a shard that was sealed -----------------------------------------------------------------------

NEXT = {
    "put": (lambda writer: append(writer, 3, wait=True), [3]),
    "put buffered": (lambda writer: append(writer, 3, wait=False), [3]),
    "flush": (lambda writer: writer.flush(), []),
    "flush_wal": (lambda writer: writer.flush_wal(), []),
    "close": (lambda writer: writer.close(), []),
}


@pytest.mark.parametrize(("call", "more"), NEXT.values(), ids=NEXT.keys())
def test_c18_buffered_rows_of_a_sealed_shard_go_on_in_another(tmp_path, call, more):
    table = make(tmp_path / "t")
    writer = again(table).writer(LAZY)
    append(writer, 1)
    writer.flush_wal()
    shard = only(writer)
    receipt = append(writer, 2)
    seal(table, shard)
    call(writer)
    assert writer.fenced == ()
    writer.close()
    assert set(receipt.wait()) == set(receipt.positions) != {shard}
    assert ids(table) == [1, 2, *more]


def test_c18_tasks_go_on_in_another_shard(tmp_path):
    table = make(tmp_path / "t")

    async def run() -> None:
        writer = again(table).writer()
        await asyncio.gather(*(writer.aput([{"id": n, "v": "x"}]) for n in range(10)))
        seal(table, only(writer))
        await asyncio.gather(*(writer.aput([{"id": 10 + n, "v": "x"}]) for n in range(10)))
        writer.close()

    asyncio.run(run())
    assert ids(table) == list(range(20))
    assert len(again(table).shards()) == 2


def test_c18_rows_that_may_be_in_the_sealed_shard_are_handed_back(tmp_path):
    table = make(tmp_path / "t")
    opened = again(table)
    hook = HookStore(opened.core.store, "put_if_absent", "no such object", lambda: None)
    opened.core.store = opened.core.wal = hook
    writer = opened.writer(weir.WriterConfig(fence_ttl=0))
    append(writer, 1)
    shard = only(writer)
    hook.arm(lambda: seal(table, shard))
    hook.wait_for("/wal/")
    with pytest.raises(weir.UnknownOutcome) as told:
        append(writer, 2)
    assert told_ids(told.value.perhaps_written) == [2]
    assert not told.value.not_written
    assert writer.fenced == ()  # no reason to replace it: it goes on
    append(writer, 3)
    assert only(writer) != shard
    writer.close()
    assert ids(table) == [1, 2, 3]  # it was in: putting it again would have doubled it


def test_c18_an_explicit_takeover_is_survived_as_well(tmp_path):
    table = make(tmp_path / "t")
    writer = table.writer()
    append(writer, 1)
    shard = only(writer)
    with again(table).shard(shard).writer() as other:
        append(other, 2)
        append(writer, 3)
        append(other, 4)
    assert only(writer) != shard
    writer.close()
    assert ids(again(table)) == [1, 2, 3, 4]


# -- upkeep ----------------------------------------------------------------------------------------


def sweep(table, times: int = 3) -> None:
    for _ in range(times):
        later(table).compact()
        report = collect(again(table).core, 0, 120, keep_first_entries=False)
        assert report.ok, report.errors


def dead_writer(table, *ids_) -> UUID:
    """A writer that never closes, as if its process was killed."""
    writer = again(table).writer()
    append(writer, *ids_)
    return only(writer)


def test_c18_only_silent_shards_are_sealed_and_due_says_so(tmp_path):
    table = make(tmp_path / "t", "30m")
    shard = dead_writer(table, 1)
    policy = weir.KeepPolicy(compact=weir.CompactionPolicy(age=None), gc=None)
    for seconds, is_sealed in [(0, False), (1790, False), (1810, True)]:
        look = later(table, seconds)
        found = weir.due(look, policy)
        assert [job.job for job in found] == ["compact"] * is_sealed
        assert found.left == ()  # nobody need do anything
        notes = look.compact().notes
        assert statuses(table) == [is_sealed]
        assert bool(notes) == (not is_sealed)
    assert weir.open(table.uri).sharding == weir.PerWriter(silent_after=1800)
    assert again(table).shard(shard).manifest().status is Status.SEALED
    assert ids(table, freshness="base") == [1]
    assert list(weir.due(later(table), policy)) == []


def test_c18_a_writer_that_flushed_everything_is_sealed_when_it_is_silent(tmp_path):
    table = make(tmp_path / "t")
    writer = again(table).writer()
    append(writer, 1)
    writer.flush()
    again(table).compact()
    assert again(table).gc(min_age=0).ok
    later(table).compact()
    assert statuses(table) == [True]
    append(writer, 2)
    writer.close()
    assert ids(again(table)) == [1, 2]


def test_c18_reads_visit_unfinished_shards_only(tmp_path):
    table = make(tmp_path / "t")
    with table.writer() as writer:
        append(writer, 0)
    counts = []
    for n in range(1, 4):
        sweep(table)
        reader = again(table)
        store = count_requests(reader)
        assert ids(reader) == list(range(2 * n - 1))
        counts.append(store.requests)
        with again(table).writer() as living:  # has the closed shard, so the dead one gets its own
            append(living, 2 * n)
            dead_writer(table, 2 * n - 1)
        assert len(again(table).stats().shards) == 2
    sweep(table)
    assert len(again(table).core.record.finished) == 3
    assert len(again(table).stats().shards) == len(again(table).shards()) == 1
    assert counts[0] == counts[1] == counts[2], counts
    assert ids(again(table)) == list(range(7))


def die_and_finish(table, *ids_: int) -> None:
    """Writers that nobody closes; upkeep seals and folds their shards, and collection ends them."""
    for n in ids_:
        append(table.writer(), n)
    for _ in range(4):
        later(table).compact()
        assert collect(again(table).core, 0, 120, keep_first_entries=False).ok


@pytest.mark.parametrize("consumer", [None, "mirror"])
def test_c18_a_feed_begins_with_the_rows_of_shards_that_are_finished(tmp_path, consumer):
    table = make(tmp_path / "t")
    die_and_finish(table, 1, 2, 3)
    assert len(again(table).core.record.finished) == 3
    feed = again(table).follow(consumer=consumer, once=True)
    first = [n for change in feed for n in change.batch.column("id").to_pylist()]
    assert sorted(first) == [1, 2, 3]
    with again(table).writer() as writer:
        append(writer, 4)
    since = feed.bookmark if consumer is None else None
    more = again(table).changes(since, consumer=consumer)
    assert [n for change in more for n in change.batch.column("id").to_pylist()] == [4]


def test_c18_a_feed_from_before_a_shard_that_came_and_went_is_told_so(tmp_path):
    table = make(tmp_path / "t")
    die_and_finish(table, 1)
    pinned = again(table).checkpoint("durable", name="held")
    die_and_finish(table, 2)
    core = again(table).core
    assert len(core.record.finished) == 2
    (gone,) = passed_by(core, positions_at(core, pinned.shards, pinned.base_version))
    assert gone in core.record.finished


def test_c18_a_feed_shows_every_row_once_across_seals(tmp_path):
    table = make(tmp_path / "t")
    feed = table.changes()
    writer = again(table).writer()
    append(writer, 1)
    seal(table, only(writer))
    append(writer, 2)
    with again(table).writer() as other:
        append(other, 3)
    writer.close()
    seen = [row["id"] for change in feed for row in change.batch.to_pylist()]
    assert sorted(seen) == [1, 2, 3]


# -- exactly once ----------------------------------------------------------------------------------


def test_p2_two_processes_of_one_application_apply_each_batch_once(tmp_path):
    table = make(tmp_path / "t")
    with table.writer() as writer:
        for n in range(3):
            assert writer.put_once([{"id": n, "v": "x"}], app="job", version=n)
        (shard,) = writer.shards
    with Appending(table, 0, 6, "job") as process:
        assert process.done() == [str(shard)]
        assert process.leave() == []
    with again(table).writer() as writer:
        assert not writer.put_once([{"id": 5, "v": "x"}], app="job", version=5)
        assert writer.put_once([{"id": 6, "v": "x"}], app="other", version=5)
        assert len(writer.shards) == 2
        append(writer, 7)  # its own shard is no application's
        assert len(writer.shards) == 3
    assert ids(table) == list(range(8))


def test_c18_the_shard_of_an_application_is_taken_over_and_never_sealed(tmp_path):
    table = make(tmp_path / "t")
    old, new = again(table).writer(), again(table).writer()
    assert old.put_once([{"id": 1, "v": "x"}], app="job", version=1)
    later(table).compact()
    assert statuses(table) == [False]
    assert new.put_once([{"id": 2, "v": "x"}], app="job", version=2)
    with pytest.raises(weir.FencedError) as told:
        old.put_once([{"id": 3, "v": "x"}], app="job", version=3)
    assert told_ids(told.value.not_written) == [3]
    assert old.fenced == new.shards
    old.close()
    new.close()
    assert ids(again(table)) == [1, 2]


# -- moments ---------------------------------------------------------------------------------------


def test_c18_checkpoint_clone_and_restore(tmp_path):
    table = make(tmp_path / "t")
    living, dead = again(table).writer(), dead_writer(table, 1)
    append(living, 2)
    with table.writer() as writer:
        writer.put_once([{"id": 3, "v": "x"}], app="job", version=1)
    held = again(table).checkpoint(scope="durable", name="held")
    later(table).compact()
    assert again(table).shard(dead).manifest().status is Status.SEALED
    append(living, 4)
    copy = again(table).clone(str(tmp_path / "copy"), held)
    assert ids(copy) == ids(table, checkpoint="held") == [1, 2, 3]
    assert copy.sharding == table.sharding
    with copy.writer() as writer:
        append(writer, 5)
        assert not writer.put_once([{"id": 3, "v": "x"}], app="job", version=1)
    copy.compact()
    assert ids(weir.open(copy.uri), freshness="base") == [1, 2, 3, 5]
    again(table).restore("held")
    assert ids(again(table)) == [1, 2, 3]
    append(living, 6)  # fenced by the restore: a row put after it counts
    living.close()
    sweep(table)
    assert ids(again(table)) == [1, 2, 3, 6]


def test_k3_a_checkpoint_of_everything_flushes_the_writers_of_others(tmp_path):
    table = make(tmp_path / "t")
    writer = again(table).writer()
    append(writer, 1)
    table.checkpoint(scope="all", name="all")
    append(writer, 2)
    writer.close()
    assert ids(again(table), checkpoint="all", freshness="flushed") == [1]
    assert ids(again(table)) == [1, 2]


def test_c16_the_writer_of_a_dropped_table_is_told_and_keeps_its_rows(tmp_path):
    table = make(tmp_path / "t")
    writer = again(table).writer()
    append(writer, 1)
    weir.drop(table.uri)
    with pytest.raises(weir.NotAWeirTable) as told:
        append(writer, 2)
    assert told_ids(told.value.not_written) == [2]
    writer.close()
    new = make(tmp_path / "t")
    with pytest.raises(weir.NotAWeirTable):
        append(table.writer(), 2)
    with new.writer() as other:
        append(other, 3)
    assert ids(new) == [3]


def test_s3_logs_in_a_store_of_their_own(tmp_path):
    wal = tmp_path / "wal"
    table = make(tmp_path / "t", wal_uri=str(wal))
    living, dead = again(table).writer(), dead_writer(table, 1)
    append(living, 2)
    later(table).compact()
    append(living, 3)
    living.close()
    assert again(table).shard(dead).manifest().status is Status.SEALED
    again(table).move_wal(None)
    assert table.core.lake.open_base().mem_wal.sharding_specs == ()
    with again(table).writer() as writer:
        append(writer, 4)
    assert ids(again(table)) == [1, 2, 3, 4]


# -- what has no meaning ---------------------------------------------------------------------------


def test_c18_a_keyed_table_is_refused_and_nothing_is_written(tmp_path):
    place = tmp_path / "t"
    with pytest.raises(weir.InvalidInput, match="append-only"):
        weir.create(str(place), SCHEMA, primary_key="id", sharding=weir.PerWriter())
    assert not place.exists()
    with pytest.raises(weir.InvalidInput, match="silent_after"):
        weir.PerWriter(silent_after="soon")


REFUSED = {
    "shard_of": lambda table: table.shard_of({"id": 1}),
    "shards_of": lambda table: table.shards_of([{"id": 1}]),
    "writer of shards": lambda table: table.writer(shards=[0]),
    "reshard": lambda table: table.reshard(weir.Bucket("id", 2)),
    "shard by value": lambda table: table.shard(0),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED.keys())
def test_c18_what_needs_a_routing_is_refused(tmp_path, call):
    table = make(tmp_path / "t")
    with table.writer() as writer:
        append(writer, 1)
    (shard,) = table.shards()
    assert table.shard(shard.id) == table.shard(shard.value) == shard
    with pytest.raises(weir.InvalidInput, match="PerWriter"):
        call(table)


def test_c18_no_table_is_resharded_to_it(tmp_path):
    table = weir.create(str(tmp_path / "t"), SCHEMA)
    with pytest.raises(weir.InvalidInput, match="from its beginning"):
        table.reshard(weir.PerWriter())
    assert again(table).sharding == weir.Unsharded()
