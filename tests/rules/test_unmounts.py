"""S-7: disks that vanish or are exchanged in the middle of a call; found by the simulator."""

import os
import shutil
import subprocess
from dataclasses import replace

import pytest

import weir
from simulator.steps import Died
from tests.support.local_shard import QuickClock
from tests.support.moments import again, expect, make, put, rows
from weir.env import Env
from weir.errors import MissingEntry, StoreError
from weir.store.local import LocalStore

A, B, C = range(10), range(5, 20), range(15, 30)


def test_s7_a_claim_whose_disk_is_gone_leaves_no_fence_anywhere(tmp_path):
    """A fence in the empty mount point was taken for the last entry: a permanent hole."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    alive = table.shards()[0].writer()
    put(alive, A, "a")

    def unmount(step):
        if step == "claim.claimed":
            shutil.move(tmp_path / "w", tmp_path / "there")
            (tmp_path / "w").mkdir()

    with pytest.raises(MissingEntry, match="is not there"):
        again(table, env=replace(Env(), failpoint=unmount)).shards()[0].writer()
    assert list((tmp_path / "w").rglob("*")) == []
    shutil.rmtree(tmp_path / "w")
    shutil.move(tmp_path / "there", tmp_path / "w")
    assert rows(again(table)) == expect((A, "a"))
    with again(table).shards()[0].writer() as writer:
        put(writer, B, "b")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


def test_s7_nothing_is_written_to_another_disk_in_the_same_place(tmp_path):
    """The other disk holds logs too: another table's."""
    env = replace(Env(), clock=QuickClock())
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"), env=env)
    other = make(tmp_path / "other", 1, wal_uri=str(tmp_path / "w2"))
    other.shards()[0].writer().close()
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    shutil.move(tmp_path / "w", tmp_path / "there")
    shutil.move(tmp_path / "w2", tmp_path / "w")
    found = sorted((tmp_path / "w").rglob("*"))
    with pytest.raises(weir.WriterClosed, match="is gone"):
        put(writer, B, "b")
    assert sorted((tmp_path / "w").rglob("*")) == found
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
    with pytest.raises(StoreError, match="is gone"):
        rows(reader, checkpoint=held)


@pytest.mark.parametrize("looks", ["with care", "at a glance"])
def test_s7_a_disk_that_comes_back_while_a_read_looks_hides_nothing(tmp_path, monkeypatch, looks):
    """The read found nothing in the empty mount point, and then the disk: the log seemed to end
    where it had ended before. Found by seed 60220 of "unmounts"."""
    place, there = tmp_path / "w", tmp_path / "there"
    table = make(tmp_path / "t", 1, wal_uri=str(place))
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    reader = again(table)
    if looks == "with care":
        reader.core.log(reader.shards()[0].id).current_site()  # opened, and never read
    else:
        assert rows(reader) == expect((A, "a"))
    put(writer, B, "b")
    shutil.move(place, there)
    is_missing = LocalStore._is_missing

    def after_the_miss(self, path):
        if there.exists():
            shutil.move(there, place)
        return is_missing(self, path)

    monkeypatch.setattr(LocalStore, "_is_missing", after_the_miss)
    assert rows(reader) == expect((A, "a"), (B, "b"))
    assert not there.exists()


def test_s1_a_disk_that_goes_while_a_folder_is_made_is_not_made_anew(tmp_path, monkeypatch):
    """The fence was taken for durable in the empty mount point."""
    place, there = tmp_path / "w", tmp_path / "there"
    table = make(tmp_path / "t", 1, wal_uri=str(place))
    is_missing = LocalStore._is_missing

    def unmount_after_the_look(self, path):
        found = is_missing(self, path)
        if path == "" and self.uri.startswith(str(place)) and not there.exists():
            shutil.move(place, there)
            place.mkdir()
        return found

    monkeypatch.setattr(LocalStore, "_is_missing", unmount_after_the_look)
    with pytest.raises(MissingEntry, match="is not there"):
        table.shards()[0].writer()
    assert there.exists()
    assert list(place.rglob("*")) == []


def test_s2_a_log_that_was_replaced_does_not_count_again_when_its_disk_is_back(tmp_path):
    """Two folders would then hold one log."""
    place, there = tmp_path / "w", tmp_path / "there"
    table = make(tmp_path / "t", 1, wal_uri=str(place))
    with table.shards()[0].writer() as writer:
        put(writer, A, "a")
    shutil.move(place, there)

    def meet(step):
        if step == "move.replaced":
            for folder in there.iterdir():
                shutil.move(folder, place)
            raise Died

    with pytest.raises(Died):
        again(table, env=replace(Env(), failpoint=meet)).shards()[0].writer()
    assert len(list(place.iterdir())) == 2
    with again(table).shards()[0].writer() as following:
        put(following, B, "b")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


def _may_mount():
    return os.geteuid() == 0 and shutil.which("mount") is not None


@pytest.mark.skipif(not _may_mount(), reason="only root can mount")
@pytest.mark.slow
def test_s7_a_real_disk_that_is_unmounted_under_a_writer(tmp_path):
    env = replace(Env(), clock=QuickClock())
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "weir", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("this machine does not let its root mount")
    kept = tmp_path / "kept"
    try:
        table = make(tmp_path / "t", 1, wal_uri=str(disk), env=env)
        writer = table.shards()[0].writer()
        put(writer, A, "a")
        shutil.copytree(disk, kept)
        subprocess.run(["umount", str(disk)], check=True)
        with pytest.raises(weir.WriterClosed, match="is gone") as closed:
            put(writer, B, "b")
        assert sum(batch.num_rows for batch in closed.value.not_written) == len(B)
        with pytest.raises(StoreError, match="is gone"):
            rows(table)
        assert list(disk.iterdir()) == []
        subprocess.run(["mount", "-t", "tmpfs", "weir", str(disk)], check=True)
        shutil.copytree(kept, disk, dirs_exist_ok=True)
        assert rows(table) == rows(again(table)) == expect((A, "a"))
        with again(table).writer() as following:
            put(following, B, "b")
        assert rows(table) == expect((A, "a"), (B, "b"))
    finally:
        subprocess.run(["umount", str(disk)], check=False, stderr=subprocess.DEVNULL)
