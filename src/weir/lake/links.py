"""Lance follows symbolic links on a local disk; weir does not let it (G-13).

A link in place of one of Lance's folders, or of a file in them, leads reads to another table's
rows, and writes into its files. `weir.store` guards what weir reads and writes itself; this guards
what Lance opens and writes. A few `lstat` each time a handle is opened or a commit is made, and a
scan of the folders each time a version is opened (30 us, and 1 to 2 us for each file); none for a
read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Final

from weir.errors import StoreDenied
from weir.format import paths

_LANCE: Final = tuple(f for f in paths.TABLE_FOLDERS if f not in (paths.SHARDS, paths.WEIR))
"""The folders in which Lance keeps a dataset."""


def require_own_folders(root: str, dataset: str = "") -> None:
    """`StoreDenied` when a folder of the dataset, a path below the table `root`, is a link.

    The root itself may be one: the caller chose it. No check on object stores, which have no links.
    """
    if not root.startswith("/"):
        return
    parts = dataset.split("/") if dataset else []
    below = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    lead = f"{dataset}/" if dataset else ""
    for folder in (*below, *(lead + name for name in _LANCE)):
        path = f"{root}/{folder}"
        try:
            is_link = stat.S_ISLNK(os.lstat(path).st_mode)
        except OSError:
            continue  # not there, or Lance will say why it cannot be read
        if is_link:
            raise _refused(path, "folder", root)


def require_own_files(root: str, dataset: str = "") -> None:
    """`StoreDenied` when a folder of the dataset, or anything in one, is a link, or when there is
    a pipe or a device, for which Lance would wait.

    Lance reads files later: a link that is planted after this is followed until the next version.
    """
    require_own_folders(root, dataset)
    if not root.startswith("/"):
        return
    lead = f"{root}/{dataset}" if dataset else root
    for folder in _LANCE:
        for path in _strange_in(f"{lead}/{folder}"):
            _require_file(path, root)


def _strange_in(folder: str) -> Iterator[str]:
    """What is no file in a folder and those below it. No system call for a file: the listing says
    what it is."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield from _strange_in(entry.path)
                else:
                    yield entry.path
    except OSError:
        return  # not there, or Lance will say why it cannot be read


def _require_file(path: str, root: str) -> None:
    try:
        kind = stat.S_IFMT(os.lstat(path).st_mode)
    except OSError:
        return  # deleted since
    if kind == stat.S_IFLNK:
        raise _refused(path, "file", root)
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        raise StoreDenied(
            f"{path} is a pipe, a socket or a device, not a file; weir does not read it. Remove it,"
            " and find out who put it there"
        )


def _refused(path: str, what: str, root: str) -> StoreDenied:
    return StoreDenied(
        f"{path} is a symbolic link. weir neither reads nor writes through links below"
        f" {root}, because the target may belong to another table. Replace the link"
        f" with the {what} itself, or remove it"
    )
