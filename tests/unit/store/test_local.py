"""Local files: whole objects, no leftovers, clear errors."""

import errno
import fcntl
import multiprocessing
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import obstore
import pytest
from obstore.store import LocalStore as ObstoreLocal

from weir.errors import InvalidInput, StoreDenied, StoreError, StoreUnsuitable
from weir.store import folders
from weir.store.api import LostAnswer, ObjectExists, ObjectMissing
from weir.store.local import LocalStore


@pytest.fixture
def store(tmp_path):
    return LocalStore(str(tmp_path / "root"))


def files(store):
    return sorted(str(p.relative_to(store.uri)) for p in Path(store.uri).rglob("*"))


def test_no_temporary_file_stays(store):
    store.put_if_absent("d/a", b"1")
    with pytest.raises(ObjectExists):
        store.put_if_absent("d/a", b"2")
    store.put("d/b", b"3")
    store.now()
    assert files(store) == ["d", "d/a", "d/b"]


def test_a_file_in_the_making_is_seen_by_nobody(store):
    store.put_if_absent("d/a", b"1")
    Path(store.uri, "d", "a#17").write_bytes(b"half")
    assert [meta.path for meta in store.list("")] == ["d/a"]
    assert [meta.path for meta in store.list_folder("d")[1]] == ["d/a"]
    theirs = [item["path"] for page in obstore.list(ObstoreLocal(store.uri)) for item in page]
    assert theirs == ["d/a"]  # nor by obstore, and therefore by pylance


def test_obstore_reads_what_we_write_and_the_other_way_round(store):
    store.put_if_absent("d/a b", b"1")
    other = ObstoreLocal(store.uri)
    assert obstore.get(other, "d/a b").bytes() == b"1"
    obstore.put(other, "d/c", b"2", mode="create")
    with pytest.raises(ObjectExists):
        store.put_if_absent("d/c", b"3")
    assert store.get("d/c").data == b"2"


def _race(root, body, rounds, barrier, won):
    store = LocalStore(root)
    for i in range(rounds):
        barrier.wait()
        try:
            store.put_if_absent(f"wal/{i}", body * 5000)
            won.put((i, body))
        except ObjectExists:
            pass


@pytest.mark.parametrize("count", [8, 128])
def test_one_object_among_many_missing_ones_is_found(store, count):
    wanted = [f"d{i}/{i}" for i in range(count)]
    assert store.get_many(wanted) == [None] * count, "not even the root is there"
    store.put_if_absent(wanted[5], b"12")
    assert store.get_many(wanted, first=1) == [None] * 5 + [b"1"] + [None] * (count - 6)


@pytest.mark.parametrize("count", [8, 128])
def test_an_object_that_cannot_be_looked_at_is_not_taken_for_missing(store, count):
    store.put_if_absent("d/a", b"1")
    (Path(store.uri) / "loop").symlink_to("loop")
    with pytest.raises(InvalidInput, match="symbolic links"):
        store.get_many([*(f"d/{i}" for i in range(count)), "loop/x"])


@pytest.mark.parametrize("must_exist", [False, True])
def test_a_folder_in_place_of_an_object_is_no_object(tmp_path, must_exist):
    store = LocalStore(str(tmp_path), must_exist=must_exist)
    (tmp_path / "d").mkdir()
    with pytest.raises(ObjectMissing):
        store.get("d")
    assert store.get_many(["d"]) == [None]
    assert store.head("d") is None


@pytest.mark.parametrize("must_exist", [False, True])
def test_an_object_in_place_of_a_folder_is_an_empty_folder(tmp_path, must_exist):
    store = LocalStore(str(tmp_path), must_exist=must_exist)
    store.put_if_absent("a", b"1")
    assert list(store.list("a")) == []
    assert store.list_folder("a") == ([], [])
    store.delete(["a/b"])
    assert store.get("a").data == b"1"


def test_processes_that_race_have_one_winner_each_time(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, won = context.Barrier(3), context.Queue()
    racers = [
        context.Process(target=_race, args=(str(tmp_path), body, 40, barrier, won))
        for body in (b"a", b"b", b"c")
    ]
    for racer in racers:
        racer.start()
    winners = [won.get(timeout=20) for _ in range(40)]
    for racer in racers:
        racer.join()
    assert won.empty()
    store = LocalStore(str(tmp_path))
    assert sorted(i for i, _ in winners) == list(range(40))
    assert all(store.get(f"wal/{i}").data == body * 5000 for i, body in winners)


def test_folder_goes_with_its_last_object(store):
    store.put_if_absent("a/b/c", b"")
    store.put_if_absent("a/d", b"")
    store.delete(["a/b/c"])
    assert files(store) == ["a", "a/d"]
    store.delete(["a/d"])
    assert files(store) == []
    assert Path(store.uri).is_dir()


def test_folder_removed_under_a_put_is_made_again(store, monkeypatch):
    store.put_if_absent("d/a", b"")
    real = os.open

    def remove_then_open(path, flags, *rest, **more):
        if "#" in path and Path(store.uri, "d").exists():
            monkeypatch.setattr(os, "open", real)
            store.delete(["d/a"])
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", remove_then_open)
    store.put_if_absent("d/b", b"2")
    assert store.get("d/b").data == b"2"


@pytest.mark.parametrize("unnamed", [True, False])
def test_folder_above_removed_while_one_is_made_is_made_again(store, monkeypatch, unnamed):
    """Two callers delete the last object of neighbouring folders while a third writes there."""
    real, removed = os.makedirs, []

    def makedirs(path, **options):
        if len(removed) < 2:
            removed.append(path)
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        real(path, **options)

    monkeypatch.setattr(os, "makedirs", makedirs)
    monkeypatch.setattr(store, "_has_unnamed", unnamed)
    store.put_if_absent("a/b/c", b"there")
    assert store.get("a/b/c").data == b"there"
    assert len(removed) == 2


def test_short_writes_are_continued(store, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:7]))
    store.put_if_absent("a", b"0123456789" * 10)
    monkeypatch.undo()
    assert store.get("a").data == b"0123456789" * 10


def test_full_disk_leaves_nothing(store, monkeypatch):
    def full(file, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreError, match="No space left") as caught:
        store.put_if_absent("d/a", b"1")
    assert not isinstance(caught.value, LostAnswer)
    assert files(store) == ["d"]


def test_file_system_without_hard_links_is_refused(store, monkeypatch):
    def no_links(source, target, **_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(StoreUnsuitable, match="hard links"):
        store.put_if_absent("a", b"1")
    assert files(store) == []


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EISDIR])
def test_file_system_without_unnamed_files_gets_temporary_names(store, monkeypatch, number):
    opened = os.open

    def no_unnamed(path, flags, *mode):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(number, "no such thing here")
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", no_unnamed)
    store.put_if_absent("d/a", b"1")
    with pytest.raises(ObjectExists):
        store.put_if_absent("d/a", b"2")
    assert store.get("d/a").data == b"1"
    assert files(store) == ["d", "d/a"]


def test_machine_without_proc_gets_temporary_names(store, monkeypatch):
    link, exists = os.link, os.path.exists

    def no_proc(source, target, **how):
        if source.startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, "no /proc")
        link(source, target, **how)

    monkeypatch.setattr(os, "link", no_proc)
    monkeypatch.setattr(os.path, "exists", lambda p: not p.startswith("/proc") and exists(p))
    store.put_if_absent("a", b"1")
    store.put_if_absent("b", b"2")
    assert files(store) == ["a", "b"]


@contextmanager
def an_ordinary_user():
    """Root may write anywhere, so drop privileges during the test."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def read_only():
    # Not below tmp_path, whose parents are accessible only to their owner.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        root = Path(folder, "fixed")
        root.mkdir()
        Path(root, "a").write_bytes(b"1")
        Path(root, "a").chmod(0o644)
        root.chmod(0o555)
        yield root
        root.chmod(0o755)


def test_read_only_folder_is_denied_and_nothing_written(read_only):
    store = LocalStore(str(read_only))
    with an_ordinary_user():
        for write in (
            lambda: store.put_if_absent("b", b"2"),
            lambda: store.put_if_absent("d/b", b"2"),
            lambda: store.put("b", b"2"),
            lambda: store.delete(["a"]),
        ):
            with pytest.raises(StoreDenied, match="fixed"):
                write()
        assert store.get("a").data == b"1"
    assert files(store) == ["a"]


def test_name_too_long_is_invalid(store):
    with pytest.raises(InvalidInput):
        store.put_if_absent("x" * 300, b"")


def synced(monkeypatch):
    """Record the paths that are synced."""
    seen = []
    real = os.fsync

    def fsync(file):
        seen.append(Path(f"/proc/self/fd/{file}").readlink())
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    return seen


def test_fsync_covers_file_and_folders_before_success(tmp_path, monkeypatch):
    seen = synced(monkeypatch)
    LocalStore(str(tmp_path / "root"), fsync=True).put_if_absent("d/e/a", b"1")
    assert "#" in seen[0].name  # the bytes are synced before the name
    root = tmp_path / "root"
    assert seen[1:] == [root / "d" / "e", root / "d", root, tmp_path]


def test_no_fsync_unless_asked_for(store, monkeypatch):
    seen = synced(monkeypatch)
    store.put_if_absent("d/a", b"1")
    store.put("d/b", b"1")
    assert seen == []


def test_f11_failed_folder_sync_is_a_lost_answer_until_synced(tmp_path, monkeypatch):
    store = LocalStore(str(tmp_path / "root"), fsync=True)
    store.put_if_absent("d/first", b"")
    real, fail = os.fsync, [False, True]

    def fsync(file):
        if fail and fail.pop(0):
            raise OSError(5, "Input/output error")
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(LostAnswer):
        store.put_if_absent("d/a", b"1")
    monkeypatch.undo()
    seen = synced(monkeypatch)
    with pytest.raises(ObjectExists):
        store.put_if_absent("d/a", b"1")
    assert tmp_path / "root" / "d" in seen  # so a read-back that finds it ours may report success


def test_repeated_temporary_number_is_skipped(store, monkeypatch):
    numbers = iter([5, 5, 6])
    monkeypatch.setattr(store, "_numbers", numbers)
    Path(store.uri).mkdir()
    Path(store.uri, "a#5").write_bytes(b"another process's")
    store.put_if_absent("a", b"1")
    assert store.get("a").data == b"1"
    assert Path(store.uri, "a#5").exists()


def is_free(folder, kind):
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


def test_g8_no_deletion_runs_beside_a_scan(store, monkeypatch):
    for name in "abc":
        store.put_if_absent(f"d/{name}", b"")
    folder = Path(store.uri, "d")
    real_meta, real_unlink, free = folders.meta_of, os.unlink, []

    def scanning(path, status):
        free.append((is_free(folder, fcntl.LOCK_EX), is_free(folder, fcntl.LOCK_SH)))
        return real_meta(path, status)

    def deleting(name, **more):
        free.append((is_free(folder, fcntl.LOCK_EX), is_free(folder, fcntl.LOCK_SH)))
        real_unlink(name, **more)

    monkeypatch.setattr(folders, "meta_of", scanning)
    assert len(list(store.list("d"))) == 3
    assert set(free) == {(False, True)}  # other scans may run, deletions wait
    free.clear()
    monkeypatch.setattr(os, "unlink", deleting)
    store.delete(["d/a", "d/b"])
    assert set(free) == {(False, False)}
    assert is_free(folder, fcntl.LOCK_EX)


def test_object_that_vanishes_while_listed_is_left_out(store, monkeypatch):
    for name in "abc":
        store.put_if_absent(name, b"")
    real = folders.meta_of

    def vanish(path, status):
        if path == "b":
            raise FileNotFoundError
        return real(path, status)

    monkeypatch.setattr(folders, "meta_of", vanish)
    assert sorted(meta.path for meta in store.list("")) == ["a", "c"]
