"""Folders of a local store: created, scanned and emptied only at their real location.

Keeps
  G-13 no symbolic link leads a read, a listing, a write or a deletion out of its folder: not out
       of the root, and not into another folder of it either, which would be another shard's. The
       location is that of the open descriptor, not of the path, so nothing can change in between.
  G-8  nothing is deleted from a folder while it is scanned
The root itself may be a link: the caller that opens a store chose it.
"""

# Paths stay text: pathlib would cost more than the system calls themselves.
# ruff: noqa: PTH103, PTH106, PTH115

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence

from weir.errors import StoreDenied
from weir.store.api import Folder, Meta
from weir.store.paths import TEMPORARY

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DELETED = " (deleted)"
"""What Linux appends to the name of a file or folder that was deleted while open."""


class Folders:
    """The folders below one root. Every method takes paths relative to the root."""

    def __init__(self, root: str, *, must_exist: bool = False) -> None:
        """`must_exist`: the root itself is never made."""
        self._root = root
        self._must_exist = must_exist
        self._base = root.rstrip("/") + "/"
        self._real: str | None = None

    def scan(self, folder: str) -> Folder:
        """The folders and objects directly in `folder`; `OSError` if it does not exist."""
        folders: list[str] = []
        objects: list[Meta] = []
        lead = folder + "/" if folder else ""
        with self._opened(folder) as file, os.scandir(file) as entries:
            _lock(file, fcntl.LOCK_SH)  # before the first entry is read
            for entry in entries:
                if TEMPORARY.search(entry.name):
                    continue
                try:
                    if entry.is_dir():
                        folders.append(lead + entry.name)
                    else:
                        objects.append(meta_of(lead + entry.name, entry.stat()))
                except FileNotFoundError:
                    continue  # deleted by a program that takes no locks, such as pylance
                except OSError as error:
                    if error.errno != errno.ELOOP:  # a link that leads nowhere is not an object
                        raise
        return folders, objects

    def unlink(self, folder: str, names: Sequence[str]) -> None:
        """Delete files from one folder, never while it is being scanned.

        A scan concurrent with creations and deletions can miss the newest object of a sequence: it
        passes the place of the new one before it appears, and reaches the old one after it is gone.
        A floor read that way would be too low (G-8). The lock is held for one file at a time.
        """
        with self._opened(folder) as file:
            for name in names:
                _lock(file, fcntl.LOCK_EX)  # guard: G-8
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=file)
                _lock(file, fcntl.LOCK_UN)

    def drop_empty(self, folder: str) -> None:
        """Remove `folder` and the folders above it as long as they are empty."""
        while folder:
            try:
                os.rmdir(self._base + folder)
            except OSError:
                return  # not empty, a link, or changed by another process
            folder = folder.rpartition("/")[0]

    def make(self, folder: str) -> None:
        """Create `folder` and its parents, each in one that is at its real location.

        `FileNotFoundError` if the root, which must exist, is gone.
        """
        if not folder:
            if self._must_exist:  # guard: S-1 test_unmounts
                raise FileNotFoundError(errno.ENOENT, "the root is gone", self._root)
            os.makedirs(self._root, exist_ok=True)
            return
        above, _, name = folder.rpartition("/")
        try:
            self._make_in(above, name)
        except FileNotFoundError:
            self.make(above)
            self._make_in(above, name)

    def _make_in(self, above: str, name: str) -> None:
        with self._opened(above) as file, contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=file)

    @contextlib.contextmanager
    def _opened(self, folder: str) -> Iterator[int]:
        file = os.open(self._base + folder, _OPEN)
        try:
            self._require(_place(file) or os.path.realpath(self._base + folder), folder)
            yield file
        finally:
            os.close(file)

    def require_in(self, file: int, folder: str) -> None:
        """Raise `StoreDenied` unless the open file of `folder` is really there."""
        place = _place(file)
        if place is None:
            self._require(os.path.realpath(self._base + folder), folder)
        else:
            self._require(place.rpartition("/")[0] or "/", folder)

    def _require(self, found: str, folder: str) -> None:
        lead = "/" + folder if folder else ""
        if self._real is not None and found == self._real + lead:
            return
        # The first call, or the root was moved since.
        self._real = os.path.realpath(self._root).rstrip("/")
        if found == (self._real + lead or "/"):  # guard: G-13 always test_inside_the_table
            return
        if found.endswith(_DELETED):
            raise FileNotFoundError(errno.ENOENT, "deleted while it was opened", folder)
        raise StoreDenied(
            f"{self._base}{folder} is, or is below, a symbolic link to {found}. weir does not read,"
            f" list, write or delete through links below {self._root}, because the target may"
            " belong to another table. Replace the link with the folder itself, or remove it"
        )


def _place(file: int) -> str | None:
    """The real location of an open file or folder; None without /proc, where the caller must
    resolve the path once more."""
    try:
        return os.readlink(f"/proc/self/fd/{file}")
    except OSError:
        return None


def _lock(file: int, kind: int) -> None:
    """Take or release the lock of an open folder, which is released with the folder at the latest;
    does nothing on a file system without locks.

    Not a context manager: after an interrupt that would release, when it is collected, the lock of
    whatever has the number of the closed file by then.
    """
    try:
        fcntl.flock(file, kind)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise


def meta_of(path: str, status: os.stat_result) -> Meta:
    """The metadata of the object at `path`, from its stat."""
    etag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return Meta(path, status.st_size, status.st_mtime, etag)
