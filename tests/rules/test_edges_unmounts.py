"""S-7: disks that go or are exchanged in the middle of a call; found by the simulator."""

import shutil
from dataclasses import replace

import pytest

import weir
from tests.support.moments import again, expect, make, put, rows
from weir.env import Env
from weir.errors import WalStoreMismatch

A, B, C = range(10), range(5, 20), range(15, 30)


def test_s7_a_fence_in_the_hole_where_a_disk_was_counts_for_nothing(tmp_path):
    """It was told to the table as the last entry, and the log had a hole there for good."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    alive = table.shards()[0].writer()
    put(alive, A, "a")

    def unmount(step):
        if step == "claim.settled":
            shutil.move(tmp_path / "w", tmp_path / "there")

    with pytest.raises(WalStoreMismatch, match="does not hold that id"):
        again(table, env=replace(Env(), failpoint=unmount)).shards()[0].writer()
    shutil.rmtree(tmp_path / "w")
    shutil.move(tmp_path / "there", tmp_path / "w")
    assert rows(again(table)) == expect((A, "a"))
    with again(table).shards()[0].writer() as writer:
        put(writer, B, "b")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


def test_s7_nothing_is_acknowledged_into_another_disk_in_the_same_place(tmp_path):
    """It bears an id too: the log's own, of before a move, or another table's."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    other = make(tmp_path / "other", 1, wal_uri=str(tmp_path / "w2"))
    other.shards()[0].writer().close()
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    shutil.move(tmp_path / "w", tmp_path / "there")
    shutil.move(tmp_path / "w2", tmp_path / "w")
    with pytest.raises(weir.UnknownOutcome, match="another disk"):
        put(writer, B, "b")
    shutil.move(tmp_path / "w", tmp_path / "w2")
    shutil.move(tmp_path / "there", tmp_path / "w")
    assert rows(again(table)) == expect((A, "a"))


def test_s7_a_checkpoint_without_its_disk_is_not_called_collected(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    with table.shards()[0].writer() as writer:
        put(writer, A, "a")
        held = again(table).checkpoint(scope="durable")
        writer.flush()
        put(writer, B, "b")
    table.gc(min_age=0, fence_retention="2m")
    reader = again(table)
    assert rows(reader) == expect((A, "a"), (B, "b"))
    shutil.move(tmp_path / "w", tmp_path / "there")
    with pytest.raises(WalStoreMismatch, match="does not hold that id"):
        rows(reader, checkpoint=held)
