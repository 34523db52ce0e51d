"""Folders of a local store: made, scanned and emptied only where they really are.

Keeps
  G-13 no symbolic link leads a listing, a write or a deletion out of its folder: not out of the
       root, and not into another folder of it either, which would be another shard's. What was
       opened is asked where it is, not the path that led there, so nothing can change in between.
  G-8  nobody deletes from a folder while somebody scans it
The root itself may be a link: whoever opens a store chose it. Reads of single objects follow links.
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
MANY = 64
"""From so many paths on it pays to look at the folder they have in common first."""
_DELETED = " (deleted)"
"""What Linux adds to the name of a file, or folder, that has none any more."""


class Folders:
    """The folders below one root. Every method takes their paths relative to it."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._base = root.rstrip("/") + "/"
        self._real: str | None = None

    def scan(self, folder: str) -> Folder:
        """The folders and objects directly in it; `OSError` when it is not there."""
        folders: list[str] = []
        objects: list[Meta] = []
        lead = folder + "/" if folder else ""
        with (
            self._opened(folder) as file,
            _locked(file, fcntl.LOCK_SH),
            os.scandir(file) as entries,
        ):
            for entry in entries:
                if TEMPORARY.search(entry.name):
                    continue
                try:
                    if entry.is_dir():
                        folders.append(lead + entry.name)
                    else:
                        objects.append(meta_of(lead + entry.name, entry.stat()))
                except FileNotFoundError:
                    continue  # deleted by somebody who knows no locks, such as pylance
                except OSError as error:
                    if error.errno != errno.ELOOP:  # a link that leads nowhere is no object
                        raise
        return folders, objects

    @contextlib.contextmanager
    def for_looks(self, paths: int) -> Iterator[tuple[str, int | None]]:
        """What to put before each of so many paths, and the `dir_fd` to look for them from.

        Of many, the root is opened once: walking down to it is a fifth of a look.
        """
        root: int | None = None
        if paths >= MANY:
            with contextlib.suppress(OSError):
                root = os.open(self._root, _OPEN)
        try:
            yield (self._base, None) if root is None else ("", root)
        finally:
            if root is not None:
                os.close(root)

    def unlink(self, folder: str, names: Sequence[str]) -> None:
        """Delete from one folder, never while somebody scans it.

        A scan that runs beside deletions and creations can miss the newest of a sequence: it
        passes the place where the new one appears, and comes too late for the old one. A floor read
        that way would be too low (G-8). The lock is held for one file at a time.
        """
        with self._opened(folder) as file:
            for name in names:
                with _locked(file, fcntl.LOCK_EX), contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=file)

    def drop_empty(self, folder: str) -> None:
        """Remove it and the folders above it as far as they are empty."""
        while folder:
            try:
                os.rmdir(self._base + folder)
            except OSError:
                return  # not empty, a link, or somebody else's doing
            folder = folder.rpartition("/")[0]

    def make(self, folder: str) -> None:
        """Make it and those above it, beginning at one that is really there."""
        above = folder
        while above:
            with contextlib.suppress(FileNotFoundError), self._opened(above):
                break
            above = above.rpartition("/")[0]
        os.makedirs(self._base + folder, exist_ok=True)

    @contextlib.contextmanager
    def _opened(self, folder: str) -> Iterator[int]:
        file = os.open(self._base + folder, _OPEN)
        try:
            self._require(_place(file) or os.path.realpath(self._base + folder), folder)
            yield file
        finally:
            os.close(file)

    def require_in(self, file: int, folder: str) -> None:
        """`StoreDenied` unless the open file, made in that folder, really lies there."""
        place = _place(file)
        if place is None:
            self._require(os.path.realpath(self._base + folder), folder)
        else:
            self._require(place.rpartition("/")[0] or "/", folder)

    def _require(self, found: str, folder: str) -> None:
        lead = "/" + folder if folder else ""
        if self._real is not None and found == self._real + lead:
            return
        # The first time, or the root was moved meanwhile.
        self._real = os.path.realpath(self._root).rstrip("/")
        if found == (self._real + lead or "/"):
            return
        if found.endswith(_DELETED):
            raise FileNotFoundError(errno.ENOENT, "deleted while it was opened", folder)
        raise StoreDenied(
            f"{self._base}{folder} is, or lies behind, a symbolic link that leads to {found}: weir"
            " lists, writes and deletes nothing there, since it may be another's (G-13). Put the"
            " folder itself there, or remove the link"
        )


def _place(file: int) -> str | None:
    """Where an open file or folder really is; None without /proc: then its path must be resolved
    once more."""
    try:
        return os.readlink(f"/proc/self/fd/{file}")
    except OSError:
        return None


@contextlib.contextmanager
def _locked(file: int, kind: int) -> Iterator[None]:
    """Hold a lock on an open folder; a file system without locks gives what its scans give."""
    try:
        fcntl.flock(file, kind)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        yield
        return
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def meta_of(path: str, status: os.stat_result) -> Meta:
    """What a stat tells of the object at `path`."""
    etag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return Meta(path, status.st_size, status.st_mtime, etag)
