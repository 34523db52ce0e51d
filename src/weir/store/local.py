"""Objects as files of a local folder; put-if-absent is a hard link, so each object appears whole.

Uses system calls directly because this is a hot path: a put-if-absent of 1.5 kB takes about 40 us
here and 65 us through obstore, a get 11 us against 45 us (ext4, two cores). A file without a name
(`O_TMPFILE`), linked once it is complete, takes 36 us; a temporary name, linked and removed, takes
48 and is used on file systems without unnamed files. The layout is obstore's, temporary names
included, so that pylance can work in the same folders and neither lists the other's half-written
files.

With `fsync` an object, and the folders that lead to it, have reached the disk before a write
returns; expect milliseconds per write instead of tens of microseconds. Without it a write survives
the death of the process, but not a power loss.
"""

# Paths stay text: pathlib would cost more than the system calls themselves.
# ruff: noqa: PTH105, PTH108, PTH110, PTH114, PTH116, PTH120

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence

from weir.env import SYSTEM, Env
from weir.errors import CorruptEntry, InvalidInput, StoreDenied, StoreError, StoreUnsuitable
from weir.store.api import (
    Blob,
    Bytes,
    Folder,
    LostAnswer,
    Meta,
    ObjectExists,
    ObjectMissing,
    Parts,
    RootMissing,
    Store,
)
from weir.store.folders import Folders, meta_of
from weir.store.paths import check, check_folder

Names = list[str]

_UNNAMED = os.O_WRONLY | getattr(os, "O_TMPFILE", 0) | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would block
_SYNC = os.O_RDONLY | os.O_CLOEXEC
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
_NOT_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS, errno.EXDEV)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
RECORD_BYTES_MAX = 64 << 20
"""Maximum bytes of a record or a shard manifest; weir writes kilobytes."""
_RECORDS = (".json", ".binpb")
_FOLDER_RACES = 8
"""How often a put recreates its folder after a concurrent delete has removed it as empty."""


class LocalStore(Store):
    """A folder of the local file system; safe for many threads and processes."""

    def __init__(
        self, root: str, *, fsync: bool = False, must_exist: bool = False, env: Env = SYSTEM
    ) -> None:
        """`must_exist`: no request creates the folder, and while it is gone every request fails.

        An unmounted disk then shows as `RootMissing`, never as an empty store (S-1).
        """
        self._root = root.rstrip("/") or "/"
        self._must_exist = must_exist
        self._base = self._root.rstrip("/") + "/"
        self._folders = Folders(self._root, must_exist=must_exist)
        self._fsync = fsync
        self._most_bytes = max(env.limits.entry_bytes, RECORD_BYTES_MAX)
        self._has_unnamed = hasattr(os, "O_TMPFILE")
        # Stores, processes and hosts start at different numbers; O_EXCL catches remaining clashes.
        self._numbers = itertools.count(env.random.getrandbits(48))

    def __repr__(self) -> str:
        return f"LocalStore({self._root!r}, fsync={self._fsync})"

    @property
    def uri(self) -> str:
        """The folder's absolute path."""
        return self._root

    def put_if_absent(self, path: str, data: Bytes) -> float:
        """Write an unnamed or temporary file, then link it to its path: the atomic step."""
        target = self._base + check(path)
        linked = self._link_unnamed(target, path, data) if self._has_unnamed else None
        linked = linked or self._link_temporary(target, path, data)
        if self._fsync:
            self._sync_folders(target, path)
        return linked

    def _link_unnamed(self, target: str, path: str, data: Bytes) -> float | None:
        """The time at which `target` was linked; None if the file system has no unnamed files."""
        file = self._open_unnamed(target)
        if file is None:
            return None
        try:
            self._folders.require_in(file, path.rpartition("/")[0])
            _write(file, data)
            if self._fsync:
                os.fsync(file)
            # With a directory descriptor Python follows the link in /proc to the file itself.
            os.link(f"/proc/self/fd/{file}", target, src_dir_fd=file, follow_symlinks=True)
            return os.fstat(file).st_ctime  # the time of the link; the mtime is earlier
        except FileExistsError:
            raise self._exists(target, path) from None
        except OSError as error:
            if error.errno not in (*_NOT_UNNAMED, errno.ENOENT, errno.EPERM):
                raise self._failed(error, path) from error
            # For example no /proc, or the folder was just removed as empty: use a temporary name.
            self._has_unnamed = error.errno == errno.ENOENT and os.path.exists("/proc/self/fd")
            return None
        finally:
            os.close(file)

    def _open_unnamed(self, target: str) -> int | None:
        folder = target.rpartition("/")[0]
        for _ in range(_FOLDER_RACES):
            try:
                return os.open(folder, _UNNAMED, 0o666)
            except FileNotFoundError:
                self._make_folder(target)
            except OSError as error:
                if error.errno not in _NOT_UNNAMED:
                    raise self._not_written(error, target) from error
                self._has_unnamed = False
                return None
        return None

    def _exists(self, target: str, path: str) -> ObjectExists:
        if self._fsync:  # an earlier attempt of ours may have linked it and failed to sync
            self._sync_folders(target, path)
        return ObjectExists(path)

    def _link_temporary(self, target: str, path: str, data: Bytes) -> float:
        temporary = self._write_temporary(target, (data,))
        try:
            os.link(temporary, target)
            return os.stat(temporary).st_ctime
        except FileExistsError:
            raise self._exists(target, path) from None
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EPERM, errno.EMLINK, errno.ENOSYS):
                raise StoreUnsuitable(
                    f"{self._root}: this file system has no hard links, so put-if-absent does not "
                    "work there; use a folder on another file system"
                ) from error
            raise self._failed(error, path) from error
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def put(self, path: str, data: Bytes) -> None:
        """Write a temporary file beside the target and rename it over it."""
        target = self._base + check(path)
        self._replace(path, target, (data,))

    def put_parts(self, path: str, parts: Parts) -> None:
        """The same, written part by part."""
        self._replace(path, self._base + check(path), parts())

    def _replace(self, path: str, target: str, parts: Iterable[Bytes]) -> None:
        temporary = self._write_temporary(target, parts)
        try:
            os.replace(temporary, target)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise self._failed(error, path) from error
        if self._fsync:
            self._sync_folders(target, path)

    def get(self, path: str) -> Blob:
        """Open, stat, read: the bytes and the metadata belong to the same file."""
        data, status = self._read(path, lambda status: (0, self._whole(status, path)))
        return Blob(data, meta_of(path, status))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """One positioned read."""
        # Python allocates the full length requested: a megabyte for an entry of 2 KB.
        return self._read(path, lambda s: (start, min(length, max(0, s.st_size - start))))[0]

    def _read(
        self, path: str, part: Callable[[os.stat_result], tuple[int, int]]
    ) -> tuple[bytes, os.stat_result]:
        """Where `part` says the wanted bytes are in the file, and how many, and the file's stat."""
        try:
            file, status = self._open_object(check(path))
            try:
                return _read_at(file, *part(status)), status
            finally:
                os.close(file)
        except OSError as error:
            if error.errno in _MISSING and not self._is_missing(path):
                return self._read(path, part)
            raise self._failed(error, path) from error

    def _open_object(self, path: str) -> tuple[int, os.stat_result]:
        """Open a file that is really there: not behind a link, which may lead to another table's
        rows, and no pipe or device, which may never end (G-13). The caller closes it."""
        file = os.open(self._base + path, _READ)
        try:
            status = os.fstat(file)
            self._folders.require_in(file, path.rpartition("/")[0])
            self._require_file(status, path)
            if stat.S_ISDIR(status.st_mode):
                raise ObjectMissing(path)
        except BaseException:
            os.close(file)
            raise
        return file, status

    def _require_file(self, status: os.stat_result, path: str) -> None:
        """`StoreDenied` unless this is a file, or a folder, which is no object."""
        kind = stat.S_IFMT(status.st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFDIR):  # guard: G-13 test_inside_the_table
            raise self._no_file(self._base + path, is_link=kind == stat.S_IFLNK)

    def _no_file(self, where: str, *, is_link: bool) -> StoreDenied:
        if not is_link:
            return StoreDenied(
                f"{where} is a pipe, a socket or a device, not a file; weir does not read it."
                " Remove it, and find out who put it there"
            )
        return StoreDenied(
            f"{where} is a symbolic link. weir does not read through links below {self._root},"
            " because the target may belong to another table. Replace the link with the file"
            " itself, or remove it"
        )

    def _whole(self, status: os.stat_result, path: str) -> int:
        """The size of an object to be read whole, before memory is taken for it (L-10)."""
        most = RECORD_BYTES_MAX if path.endswith(_RECORDS) else self._most_bytes
        if status.st_size > most:
            raise CorruptEntry(
                f"{self._base}{path} has {status.st_size:,} bytes, and weir writes at most"
                f" {most:,} there: it is damaged, or another program wrote it. It was not read;"
                " restore it from a copy of the table"
            )
        return status.st_size

    def head(self, path: str) -> Meta | None:
        """One stat."""
        try:
            status = os.lstat(self._base + check(path))
        except OSError as error:
            if error.errno not in _MISSING:
                raise self._failed(error, path) from error
            return None if self._is_missing(path) else self.head(path)
        self._require_file(status, path)
        return meta_of(path, status) if stat.S_ISREG(status.st_mode) else None

    def list(self, prefix: str) -> Iterator[Meta]:
        """Walk the folder; objects that vanish during the walk are left out."""
        pending = [check_folder(prefix)]
        while pending:
            folders, objects = self._scan(pending.pop())
            yield from objects
            pending.extend(folders)

    def list_folder(self, prefix: str) -> Folder:
        """One folder."""
        folders, objects = self._scan(check_folder(prefix))
        return [folder.rpartition("/")[2] for folder in folders], objects

    def delete(self, paths: Sequence[str]) -> None:
        """Unlink each, and remove emptied folders: other stores have no empty folders either."""
        by_folder: dict[str, Names] = {}
        for path in paths:
            folder, _, name = check(path).rpartition("/")
            by_folder.setdefault(folder, []).append(name)
        refused: StoreDenied | None = None
        for folder in sorted(by_folder, key=len, reverse=True):
            try:
                self._folders.unlink(folder, by_folder[folder])
            except StoreDenied as error:
                refused = error  # raised after the others are deleted (G-10)
                continue
            except OSError as error:
                if error.errno not in _MISSING:
                    raise self._failed(error, folder) from error
                self._is_missing(folder)
            self._folders.drop_empty(folder)
        if refused is not None:
            raise refused

    def now(self) -> float:
        """The timestamp of a file created now; on a network mount it is the server's time."""
        temporary = self._write_temporary(self._base + "clock", ())
        try:
            return os.stat(temporary).st_mtime
        except OSError as error:
            raise self._failed(error, "clock") from error
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def _write_temporary(self, target: str, parts: Iterable[Bytes]) -> str:
        """Write a new file beside `target`, synced if `fsync` is set; its name is never listed."""
        for _ in range(_FOLDER_RACES):
            temporary = f"{target}#{next(self._numbers)}"
            try:
                file = os.open(temporary, _CREATE, 0o666)
            except FileExistsError:
                continue
            except FileNotFoundError:
                self._make_folder(target)
                continue
            except OSError as error:
                raise self._not_written(error, target) from error
            try:
                try:
                    self._folders.require_in(file, self._folder_of(target))
                    for data in parts:
                        _write(file, data)
                    if self._fsync:
                        os.fsync(file)
                finally:
                    os.close(file)
            except BaseException as error:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                if not isinstance(error, OSError):
                    raise
                raise self._failed(error, target) from error
            return temporary
        raise StoreError(
            f"{target}: its folder could not be created, or was removed again at once; check the"
            " path and what else deletes folders there, then try again"
        )

    def _folder_of(self, target: str) -> str:
        return target[len(self._base) :].rpartition("/")[0]

    def _is_missing(self, path: str) -> bool:
        """After a miss: True when the path is missing below a root that is there.

        A folder that is gone, or came back since, proves nothing about what is in it (S-1): the
        path is looked up again from the root as it is now. Two system calls, where it must exist.
        """
        if not self._must_exist:  # guard: S-1 always test_unmounts
            return True
        try:
            root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise RootMissing(
                f"{self._root} is gone: {error.strerror}. Its disk is not mounted, or was wiped or"
                " replaced; mount the right one"
            ) from error
        try:
            os.stat(path or ".", dir_fd=root)
        except OSError:
            return True
        finally:
            os.close(root)
        return False

    def _make_folder(self, target: str) -> None:
        self._is_missing("")  # never create a root that must exist
        try:
            self._folders.make(self._folder_of(target))
        except FileNotFoundError:
            return  # a folder above it was just removed as empty; the caller retries
        except OSError as error:
            raise self._not_written(error, target) from error

    def _sync_folders(self, target: str, path: str) -> None:
        """Make the name durable: sync its folder and each folder above, up to the root's parent."""
        folder = os.path.dirname(target)
        top = os.path.dirname(self._root)
        try:
            while True:
                file = os.open(folder, _SYNC)
                try:
                    os.fsync(file)
                finally:
                    os.close(file)
                if folder in (top, "/"):
                    return
                folder = os.path.dirname(folder)
        except OSError as error:
            # It exists, but might not survive a power loss: neither success nor failure (F-11).
            raise LostAnswer(f"{self._root}: {path} was written but not synced: {error}") from error

    def _scan(self, folder: str) -> Folder:
        try:
            return self._folders.scan(folder)
        except OSError as error:
            if error.errno not in _MISSING:
                raise self._failed(error, folder) from error
            # The slash: a file in its place is a missing folder, however often one looks.
            is_missing = self._is_missing(folder and f"{folder}/")
            return ([], []) if is_missing else self._scan(folder)

    def _not_written(self, error: OSError, target: str) -> Exception:
        if error.errno in (errno.ENOTDIR, errno.EEXIST):  # to a read, nothing is there
            return InvalidInput(
                f"{self._root}: a file is where a folder must be; choose another folder"
            )
        return self._failed(error, target)

    def _failed(self, error: OSError, path: str) -> Exception:
        """The one place that turns an `OSError` into an error of weir."""
        where = path if path.startswith("/") else self._base + path
        if error.errno in _MISSING:
            return ObjectMissing(path)
        if error.errno in _DENIED:
            return StoreDenied(
                f"{where}: {error.strerror}; give this user access to the folder or choose another"
            )
        if error.errno == errno.ENXIO:
            return self._no_file(where, is_link=False)
        if error.errno == errno.ELOOP and os.path.islink(where):
            return self._no_file(where, is_link=True)
        if error.errno in (errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP):
            return InvalidInput(f"{where}: {error.strerror}; choose another folder")
        return StoreError(f"{where}: {error.strerror}; fix the cause, then try again")


def _write(file: int, data: Bytes) -> None:
    rest = memoryview(data)
    # Signals and full disks can cause short writes; they are rare, but allowed.
    while (written := os.write(file, rest)) < len(rest):
        rest = rest[written:]


def _read_at(file: int, start: int, length: int) -> bytes:
    data = os.pread(file, length, start)
    while len(data) < length and (part := os.pread(file, length - len(data), start + len(data))):
        data += part
    return data
