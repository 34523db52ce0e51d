"""S-8: a log move is recorded for the whole table, followed by new shards, and resumable."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import pyarrow as pa
import pytest

import weir
from simulator.steps import Died, dies_at, watched
from tests.support.dying import die_at_every_write
from tests.support.moments import again, expect, log_place, make, put, rows, wipe
from weir.env import Env
from weir.errors import CommitConflict, MissingEntry, WalStoreMismatch
from weir.read.reader import SnapshotReader
from weir.read.snapshot import Snapshot, take_snapshot
from weir.routing.natives import wanted_mem_wal_index
from weir.upkeep import exclusive
from weir.upkeep import move_wal as moving
from weir.upkeep.gc.collect import collect
from weir.upkeep.move_wal import move_wal

A, B, C = range(10), range(5, 20), range(15, 30)


def places(table):
    """Where the log of each shard is, according to its manifest."""
    return {log_place(table, shard).uri for shard in table.core.shard_ids()}


@pytest.mark.parametrize("start", [None, "w1"])
def test_s8_the_log_of_a_whole_table_moves_and_the_table_says_so(tmp_path, start):
    first = None if start is None else str(tmp_path / start)
    table = make(tmp_path / "t", 3, wal_uri=first)
    writer = table.writer()
    put(writer, A, "a")
    for target in (str(tmp_path / "w2"), str(tmp_path / "w3"), None):
        report = again(table).move_wal(target)
        assert report.wal_uri == target
        assert len(report.moved) == 3
        assert places(table) == {target}
        opened = again(table)
        assert opened.wal_uri == target
        assert opened.stats().wal_uri == target
        assert {s.wal_uri for s in opened.stats().shards} == {target}
        assert opened.stats().moving == ()
        assert rows(opened) == expect((A, "a"))
    with pytest.raises((weir.FencedError, weir.PartialWrite), match="fenced"):
        put(writer, B, "never")
    with again(table).writer() as after:
        put(after, B, "b")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))
    assert rows(table) == expect((A, "a"), (B, "b")), "a handle of before follows"


def test_s8_moving_where_the_log_is_disturbs_nobody(tmp_path):
    table = make(tmp_path / "t", 2, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
        report = again(table).move_wal(str(tmp_path / "w"))
        assert report.moved == ()
        assert len(report.already_there) == 2
        put(writer, B, "b")  # nobody was fenced


def test_s8_shards_that_are_made_later_follow_the_table(tmp_path):
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    table = weir.create(
        str(tmp_path / "t"), schema, primary_key=["v", "id"], sharding=weir.Identity("v")
    )
    before = again(table)
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "a"}])
    again(table).move_wal(str(tmp_path / "w"))
    # This also holds for a handle that was opened before the move.
    with before.writer() as writer:
        writer.put([{"id": 2, "v": "b"}])
    with again(table).writer() as writer:
        writer.put([{"id": 3, "v": "c"}])
    assert places(table) == {str(tmp_path / "w")}
    again(table).reshard(weir.Bucket("id", 2))
    fresh = again(table)
    with fresh.writer() as writer:
        writer.put([{"id": n, "v": "d"} for n in range(10)])
    assert not fresh.stats().moving
    assert {s.wal_uri for s in fresh.stats().shards if s.is_routed} == {str(tmp_path / "w")}


def test_s8_a_writer_that_was_told_another_place_moves_the_table_too(tmp_path):
    """`weir.open(..., wal_uri=...)` and a writer: shards left behind are listed, and can follow."""
    table = make(tmp_path / "t", 2)
    with table.writer() as writer:
        put(writer, A, "a")
    with again(table, wal_uri=str(tmp_path / "w")).shards()[0].writer():
        pass
    found = again(table)
    assert found.wal_uri == str(tmp_path / "w")
    assert [s.wal_uri for s in found.stats().moving] == [None]
    assert len(found.move_wal(str(tmp_path / "w")).moved) == 1
    assert places(table) == {str(tmp_path / "w")}
    # Using the same store under another name is no move, and is not recorded as one.
    shutil.move(tmp_path / "w", tmp_path / "mount")
    with again(table, wal_uri=str(tmp_path / "mount")).writer() as writer:
        put(writer, B, "b")
    assert again(table).wal_uri == str(tmp_path / "w")


def test_s8_one_wal_store_serves_every_table(tmp_path):
    other = make(tmp_path / "other", 2, wal_uri=str(tmp_path / "w"))
    living = other.writer()
    put(living, A, "other")
    table = make(tmp_path / "t", 2)
    with table.writer() as writer:
        put(writer, A, "a")
    again(table).move_wal(str(tmp_path / "w"))
    with again(table).writer() as writer:
        put(writer, B, "b")
    put(living, B, "other")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))
    assert rows(again(other)) == expect((A, "other"), (B, "other"))
    folders = {path.name for path in (tmp_path / "w").iterdir()}
    assert folders == {found.core.record.wal_folder for found in (again(table), again(other))}


def test_s8_a_place_inside_the_table_is_refused(tmp_path):
    table = make(tmp_path / "t", 2)
    with pytest.raises(WalStoreMismatch, match="inside the table"):
        table.move_wal(str(tmp_path / "t" / "wal"))
    assert again(table).wal_uri is None


def test_s8_a_move_that_was_interrupted_goes_on_where_it_stopped(tmp_path):
    table = make(tmp_path / "t", 3, wal_uri=str(tmp_path / "w1"))
    with table.writer() as writer:
        put(writer, A, "a")

    with pytest.raises(Died):
        move_wal(watched(again(table).core, "move", dies_at("moved")), str(tmp_path / "w2"))
    found = again(table)
    assert found.wal_uri == str(tmp_path / "w2")
    assert found.stats().moving or len(places(table)) == 1
    assert rows(found) == expect((A, "a"))
    with found.writer() as writer:
        put(writer, B, "b")
    again(table).move_wal(str(tmp_path / "w2"))
    assert places(table) == {str(tmp_path / "w2")}
    assert not again(table).stats().moving
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


def test_s8_a_move_dies_at_every_write_and_is_finished_by_the_next(tmp_path):
    table = make(tmp_path / "t", 2)
    with table.writer() as writer:
        put(writer, A, "a")
        table.core.wal_stores.place_for(str(tmp_path / "w"), is_named=True)
        put(writer, B, "b")

    def run(life):
        life.table(again(table)).move_wal(str(tmp_path / "w"))

    def check(_deaths, finished):
        opened = again(table)
        assert rows(opened) == expect((A, "a"), (B, "b"))
        if finished:
            assert places(opened) == {str(tmp_path / "w")}
            assert not opened.stats().moving

    assert die_at_every_write(run, check) > 8
    with again(table).writer() as writer:
        put(writer, C, "c")
    assert rows(again(table)) == expect((A, "a"), (B, "b"), (C, "c"))


def test_s8_a_wal_only_table_moves_with_its_rows(tmp_path):
    table = make(tmp_path / "t", 2, writer_defaults=weir.WriterConfig(enable_memtable=False))
    with table.writer() as writer:
        put(writer, A, "a")
    again(table).move_wal(str(tmp_path / "w"))
    with again(table).writer() as writer:
        put(writer, B, "b")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


def test_s8_the_handle_that_moved_the_log_writes_to_the_new_place(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w1"))
    asked = again(table, wal_uri=str(tmp_path / "w1"))
    asked.move_wal(str(tmp_path / "w2"))
    assert asked.wal_uri == str(tmp_path / "w2")
    with asked.writer() as writer:
        put(writer, A, "a")
    assert places(table) == {str(tmp_path / "w2")}


@pytest.mark.parametrize("back", [False, True])
def test_s9_a_task_whose_handle_is_older_than_a_move_reads_what_was_planned_after_it(
    tmp_path, back
):
    """Spark's workers keep old handles, while the plan comes from a driver with a newer view."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w1"))
    with table.writer() as writer:
        put(writer, A, "a")
    worker = again(table)
    assert rows(worker) == expect((A, "a"))
    again(table).move_wal(str(tmp_path / "w2"))
    if back:
        again(table).move_wal(str(tmp_path / "w1"))
    open_writer = again(table).writer()
    put(open_writer, B, "b")
    planned = Snapshot.from_json(take_snapshot(again(table).core).to_json())
    reader = SnapshotReader(worker.core, planned)
    found = [
        row["v"] for level in reader.levels() for batch in level.scan() for row in batch.to_pylist()
    ]
    assert found.count("b") == len(B)
    open_writer.close()


def test_s3_a_mover_that_slept_past_another_moves_the_log_from_where_it_is(tmp_path):
    """It named its own place, the lower number, and a feed that had seen the higher stayed there.

    Nobody has claimed the shard, so no epoch keeps the late commit out.
    """
    table = make(tmp_path / "t", 1)
    (shard,) = table.core.shard_ids()
    feed = again(table).changes(follow=True, stop=lambda: True)
    named = []

    def note():
        assert list(feed.poll()) == []
        named.append(table.core.log(shard).latest().log_place)

    def overtaken(point):
        if point == "move.placed" and not named:
            note()
            again(table).move_wal(str(tmp_path / "w2"))
            note()
            collect(again(table).core, 0, "2m", keep_first_entries=False)

    slept = again(table, env=Env(failpoint=overtaken))
    with pytest.raises(CommitConflict, match="another process moved it"):
        slept.move_wal(str(tmp_path / "w1"))
    note()
    assert places(table) == {again(table).wal_uri} == {str(tmp_path / "w2")}
    slept.move_wal(str(tmp_path / "w1"))
    with again(table).writer() as writer:
        put(writer, A, "a")
    assert sum(change.batch.num_rows for change in feed.poll()) == len(A)
    note()
    assert named == [0, 2, 2, 3], "the number of the place only rises"
    assert places(table) == {again(table).wal_uri} == {str(tmp_path / "w1")}
    assert rows(again(table)) == expect((A, "a"))


def test_s8_a_move_after_which_another_moved_the_log_says_so(tmp_path):
    table, others = make(tmp_path / "t", 1), []

    def overtaken(point):
        if point.startswith("move.moved") and not others:
            others.append(again(table).move_wal(str(tmp_path / "w2")))

    slept = again(table, env=Env(failpoint=overtaken))
    with pytest.raises(CommitConflict, match="another process moved it"):
        slept.move_wal(str(tmp_path / "w1"))
    assert places(table) == {again(table).wal_uri} == {str(tmp_path / "w2")}


def test_s3_a_move_beside_a_reshard_passes_the_shards_that_it_seals(tmp_path, monkeypatch):
    """It raised what a writer of a sealed shard is told."""
    table, move = make(tmp_path / "t", 1), moving.move_log
    with table.writer() as writer:
        put(writer, A, "a")

    def overtaken(*args, **options):
        monkeypatch.setattr(moving, "move_log", move)
        again(table).reshard(weir.Bucket("id", 2), compact=False)
        return move(*args, **options)

    monkeypatch.setattr(moving, "move_log", overtaken)
    place = str(tmp_path / "w")
    report = again(table).move_wal(place)
    assert len({*report.moved, *report.already_there, *report.sealed}) == 3
    with again(table).writer() as writer:
        put(writer, B, "b")
    assert again(table).wal_uri == place
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


def test_x1_a_move_whose_claim_a_compaction_takes_over_goes_on(tmp_path, monkeypatch):
    """It raised what a compactor is told that was overtaken."""
    table, update = make(tmp_path / "t", 1), exclusive.update_mem_wal_index
    with table.writer() as writer:
        put(writer, A, "a")

    def overtaken(*args, **options):
        monkeypatch.setattr(exclusive, "update_mem_wal_index", update)
        again(table).compact(lease=0)
        return update(*args, **options)

    monkeypatch.setattr(exclusive, "update_mem_wal_index", overtaken)
    place = str(tmp_path / "w")
    assert len(again(table).move_wal(place).moved) == 1
    assert again(table).wal_uri == place
    assert wanted_mem_wal_index(again(table).core) is None


def test_s3_moves_and_reshards_at_one_moment_all_end(tmp_path):
    start = Barrier(2)

    def run(call):
        start.wait()
        return call()

    with ThreadPoolExecutor(2) as pool:
        for number in range(5):
            table = make(tmp_path / str(number), 3)
            with table.writer() as writer:
                put(writer, A, "a")
            place, one, other = str(tmp_path / "w"), again(table), again(table)
            calls = [
                partial(one.move_wal, place),
                partial(other.reshard, weir.Bucket("id", 2), compact=False),
            ]
            list(pool.map(run, calls))
            assert again(table).wal_uri == place
            assert again(table).sharding == weir.Bucket("id", 2)
            assert rows(again(table)) == expect((A, "a"))


def test_s8_a_handle_of_before_a_move_does_not_undo_it(tmp_path):
    """Its first writer took the log, and the table's record, back to the store that was left."""
    table = make(tmp_path / "t", 3, wal_uri=str(tmp_path / "w"))
    old = again(table)
    again(table).move_wal(None)
    shutil.rmtree(tmp_path / "w")
    with old.writer() as writer:  # the first of each shard
        put(writer, A, "a")
    assert places(table) == {again(table).wal_uri} == {None}
    assert not (tmp_path / "w").exists()
    assert rows(again(table)) == expect((A, "a"))


def test_s8_a_lost_log_goes_on_where_the_table_was_moved_to(tmp_path):
    """A move was interrupted, then the store that it had begun to leave was wiped."""
    table = make(tmp_path / "t", 2, wal_uri=str(tmp_path / "w1"))
    with table.writer() as writer:
        put(writer, A, "a")

    with pytest.raises(Died):
        again(table, env=Env(failpoint=dies_at("move.recorded"))).move_wal(str(tmp_path / "w2"))
    wipe(tmp_path / "w1")
    with again(table).writer() as writer:
        put(writer, B, "b")
    assert places(table) == {again(table).wal_uri} == {str(tmp_path / "w2")}
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


def test_s8_a_move_to_another_mount_point_is_recorded_for_every_shard(tmp_path):
    """It reported the log as there, where a handle without that `wal_uri` did not find it."""
    table = make(tmp_path / "t", 2, wal_uri=str(tmp_path / "w"))
    put(table.writer(), A, "a")
    shutil.move(tmp_path / "w", tmp_path / "mount")
    place = str(tmp_path / "mount")
    assert len(again(table, wal_uri=place).move_wal(place).moved) == 2
    assert places(table) == {again(table).wal_uri} == {place}
    assert rows(again(table)) == expect((A, "a"))


def test_s8_a_second_mount_point_is_no_move_for_a_shard_without_a_log_either(tmp_path):
    table = make(tmp_path / "t", 3, wal_uri=str(tmp_path / "w"))
    with table.shards()[0].writer():
        pass
    shutil.move(tmp_path / "w", tmp_path / "mount")
    with again(table, wal_uri=str(tmp_path / "mount")).writer() as writer:
        put(writer, A, "a")
    shutil.move(tmp_path / "mount", tmp_path / "w")
    assert places(table) == {again(table).wal_uri} == {str(tmp_path / "w")}
    assert rows(again(table)) == expect((A, "a"))


def test_s7_a_move_to_where_a_lost_log_was_says_that_it_is_lost(tmp_path):
    """It reported that the log was there already."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    put(table.writer(), A, "a")  # and dies
    wipe(tmp_path / "w")
    with pytest.raises(MissingEntry, match="accept-loss"):
        again(table).move_wal(str(tmp_path / "w"))


@pytest.mark.parametrize("change", ["move", "reshard"])
def test_x1_a_handle_of_before_a_change_lets_no_native_writer_in_where_none_may_write(
    tmp_path, change
):
    """Its compaction told them to write as it was when the handle was opened."""
    table = make(tmp_path / "t", 2)
    with table.writer() as writer:
        put(writer, A, "a")
    old = again(table)
    if change == "move":
        again(table).move_wal(str(tmp_path / "w"))
    else:
        again(table).reshard(weir.Bucket("id", 3))
    with again(table).writer() as writer:
        put(writer, B, "b")
    assert old.compact().rows_written
    assert wanted_mem_wal_index(again(table).core) is None


def test_x1_a_handle_that_takes_the_log_away_again_shuts_native_writers_out(tmp_path):
    """It did not when the log was brought back after the handle was opened."""
    place = str(tmp_path / "w")
    table = make(tmp_path / "t", 1, wal_uri=place)
    old = again(table, wal_uri=place)
    again(table).move_wal(None)
    with old.writer() as writer:
        put(writer, A, "a")
    assert again(table).wal_uri == place
    assert wanted_mem_wal_index(again(table).core) is None
