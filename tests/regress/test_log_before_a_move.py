"""The log moved to another store, and its earlier part was looked up in the new one.

A checkpoint of scope "durable" made before the move could not be read, cloned or restored by a
fresh handle (K-7), and a handle kept open since before the move compacted and collected the store
that the log had left (S-3). Found by the simulator's moves.
"""

import pytest

from simulator.steps import watched
from tests.support.moments import again, expect, log_place, make, put, rows
from weir.config import WriterConfig
from weir.errors import SnapshotExpired
from weir.format import paths
from weir.log.fence import claim_shard
from weir.log.manifests import Manifests
from weir.log.tip import find_tip
from weir.log.wal_store import WalMoved
from weir.types import Position
from weir.upkeep.checkpoint import create
from weir.upkeep.gc.collect import collect

A, B, C = range(10), range(5, 20), range(15, 30)


@pytest.fixture
def moved(tmp_path):
    """A table with a durable checkpoint in its first log store, and a handle of that time."""
    table = make(tmp_path / "t", 1)
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    held = create(again(table).core, "durable")
    assert not held.shards[0].closed
    rows(table)  # this handle now remembers where the log is
    with again(table, wal_uri=str(tmp_path / "w")).writer() as other:
        put(other, B, "b")
    return table, held


def test_k7_a_checkpoint_in_the_log_of_before_is_read(moved):
    table, held = moved
    assert rows(again(table), checkpoint=held) == expect((A, "a"))
    assert rows(table, checkpoint=held) == expect((A, "a"))


def test_k7_a_checkpoint_in_the_log_of_before_is_cloned(moved, tmp_path):
    table, held = moved
    assert rows(again(table).clone(str(tmp_path / "c"), held)) == expect((A, "a"))


def test_k7_a_checkpoint_in_the_log_of_before_is_restored(moved):
    table, held = moved
    again(table).restore(held)
    assert rows(again(table)) == expect((A, "a"))


def test_s3_an_old_handle_folds_the_log_where_it_is_now(tmp_path):
    table = make(tmp_path / "t", 1, writer_defaults=WriterConfig(enable_memtable=False))
    with table.shards()[0].writer() as writer:
        put(writer, A, "a")
    rows(table)
    table.compact()
    with again(table, wal_uri=str(tmp_path / "w")).shards()[0].writer() as writer:
        put(writer, C, "c")
    report = table.compact()
    assert report.wal_entries > 0
    assert rows(again(table)) == expect((A, "a"), (C, "c"))


def test_s3_an_old_handle_collects_where_the_log_is_now(moved, tmp_path):
    table, _ = moved
    there = tmp_path / "w" / log_place(table).folder
    before = sum(path.is_file() for path in there.rglob("*"))
    report = collect(table.core, 0, "2m", keep_first_entries=False)
    assert report.kind("wal").deleted
    assert sum(path.is_file() for path in there.rglob("*")) < before


def test_s3_an_opener_that_lost_to_a_move_leaves_no_fence_in_the_old_store(tmp_path):
    """Its fence counted as the tip, the position was marked as used, and the new log had a hole."""
    table = make(tmp_path / "t", 1)
    shard = table.shards()[0].id
    with table.writer() as writer:
        put(writer, A, "a")
    late = again(table).core.log(shard).current_site()

    def move(step):
        if step == "probed" and log_place(table).seq == 0:
            with again(table, wal_uri=str(tmp_path / "w")).writer() as other:
                put(other, B, "b")

    with pytest.raises(WalMoved):
        claim_shard(watched(late, "claim", move))
    left = log_place(table).after
    assert late.store.head(paths.wal_path(shard, Position(left))) is not None
    assert late.store.head(paths.wal_path(shard, Position(left + 1))) is None


def test_s3_a_log_that_went_away_and_came_back_has_no_hole(tmp_path):
    """A search for the end of the log during the move called a healthy table damaged."""
    table = make(tmp_path / "t", 1)
    shard = table.shards()[0].id
    with table.writer() as writer:
        put(writer, A, "a")
    before = again(table).core.log(shard).current_site()
    known = Manifests(before).require().last_seen
    for place in (str(tmp_path / "w"), table.uri):
        with again(table, wal_uri=place).writer() as writer:
            put(writer, B, "b")
    with pytest.raises(SnapshotExpired, match="moved"):
        find_tip(before, Position(known))
    assert rows(again(table)) == expect((A, "a"), (B, "b"))
