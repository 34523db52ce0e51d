"""S-7: disks that vanish or are exchanged in the middle of a call; found by the simulator."""

import shutil
import threading
from dataclasses import replace

import pytest

import weir
from tests.support.moments import again, expect, make, put, rows
from weir.env import Env
from weir.errors import WalStoreMismatch
from weir.store.open import open_store

A, B, C = range(10), range(5, 20), range(15, 30)


def test_s7_a_fence_in_the_hole_where_a_disk_was_counts_for_nothing(tmp_path):
    """It was recorded in the table as the last entry, which left a permanent hole in the log."""
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
    """The other disk has an id too: this log's own from before a move, or another table's."""
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


class Returning:
    """A store whose disk is mounted again right after the empty mount point was read."""

    def __init__(self, inner, there, place):
        self._inner = inner
        self._there, self._place = there, place

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def _look(self, found, paths):
        if self._there.exists() and any("/wal/" in path for path in paths):
            shutil.move(self._there, self._place)
        return found

    def head_many(self, paths):
        return self._look(self._inner.head_many(paths), paths)

    def get_many(self, paths, *, first=None):
        # The real store may read in any order; here the id comes last.
        asked = sorted(paths, key=lambda path: "/wal/" not in path)
        found = {}
        for path in asked:
            found[path] = self._look(self._inner.get_many([path], first=first), [path])[0]
        return [found[path] for path in paths]


class Beside:
    """`Places` where one store is watched."""

    def __init__(self, uri, wrap):
        self._uri, self._wrap = uri, wrap

    def store(self, uri):
        found = open_store(uri)
        return self._wrap(found) if uri == self._uri else found

    def lake(self, uri):
        return None


@pytest.mark.parametrize("looks", ["with care", "at a glance"])
def test_s7_a_disk_that_comes_back_while_a_read_looks_hides_nothing(tmp_path, looks):
    """The read probed entries in the empty mount point, then found the id on the remounted disk:
    the log seemed to end where it had ended before. Found by seed 60220 of "unmounts"."""
    place, there = tmp_path / "w", tmp_path / "there"
    table = make(tmp_path / "t", 1, wal_uri=str(place))
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    places = Beside(str(place), lambda store: Returning(store, there, place))
    reader = again(table, env=replace(Env(), places=places))
    if looks == "with care":
        reader.core.site(reader.shards()[0].id)  # opened, and never read
    else:
        assert rows(reader) == expect((A, "a"))
    put(writer, B, "b")
    shutil.move(place, there)
    try:
        found = rows(reader)
    except WalStoreMismatch:
        shutil.move(there, place)
        found = rows(reader)
    assert not there.exists()
    assert found == expect((A, "a"), (B, "b"))


class Died(BaseException):
    """The process ends here."""


def test_s3_a_log_given_up_for_the_disk_that_is_back_is_not_written_where_it_was(tmp_path):
    """One opener gave up its lost disk, skipped positions, and found the same disk again. The
    other had claimed in between, saw the same id, and wrote its rows to the skipped positions:
    acknowledged, and in no read. Found by seed 10223349."""
    place, there = tmp_path / "w", tmp_path / "there"
    table = make(tmp_path / "t", 1, wal_uri=str(place))
    table.shards()[0].writer().close()
    shutil.move(place, there)
    claimed, confirmed = threading.Event(), threading.Event()
    opened = []

    def pause(step):
        if step == "claim.claimed" and not claimed.is_set():
            claimed.set()
            assert confirmed.wait(30)

    def open_other():
        opened.append(again(table, env=replace(Env(), failpoint=pause)).shards()[0].writer())

    other = threading.Thread(target=open_other)

    def meet(step):
        if step == "move.claimed":
            shutil.rmtree(place)
            shutil.move(there, place)
        elif step == "move.proved":
            other.start()
            assert claimed.wait(30)
        elif step == "move.confirmed":
            raise Died

    with pytest.raises(Died):
        again(table, env=replace(Env(), failpoint=meet)).shards()[0].writer()
    confirmed.set()
    other.join()
    (writer,) = opened
    put(writer, A, "a")
    assert rows(again(table)) == expect((A, "a"))
    with again(table).shards()[0].writer() as following:
        put(following, B, "b")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))
