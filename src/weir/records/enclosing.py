"""Which table a place lies in. What is in a table's folder is collected and dropped with it (S-8),
so no table and no log is put there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import PurePath

from weir.errors import InvalidInput, StoreDenied
from weir.format import paths
from weir.records.table import TableRecords
from weir.store.api import Store
from weir.store.consent import real_place


def enclosing_table(uri: str, open_at: Callable[[str], Store]) -> str | None:
    """The weir table, or other Lance dataset, in a folder above that place; None: there is none.

    Two lists for each folder of the path.
    """
    for folder in _above(real_place(uri)):
        with contextlib.suppress(StoreDenied):  # the credentials may be for the place only
            store = open_at(folder)
            has_versions = bool(store.list_folder(paths.VERSIONS)[1])
            if has_versions or TableRecords(store).find() is not None:
                return folder
    return None


def enclosed_table(store: Store) -> str | None:
    """The dataset or log in a folder that a table at this place would write to, and a drop of it
    delete; None: there is none.

    One list, and one for each such folder that is there.
    """
    folders, _ = store.list_folder("")
    for folder in set(folders).intersection(paths.TABLE_FOLDERS):
        for found in store.list(folder):
            inside, _, name = found.path.rpartition("/")
            if name == paths.LOG_OWNER:
                return f"{store.uri}/{inside}"
            inside, is_version, _ = found.path.partition(f"/{paths.VERSIONS}/")
            if is_version and not _is_sstable(inside):
                return f"{store.uri}/{inside}"
    return None


def _is_sstable(folder: str) -> bool:
    """True for the folder of an SSTable: a dataset of the table's own, perhaps of a dropped one."""
    top, *rest = folder.split("/")
    if top != paths.SHARDS or len(rest) != 2:
        return False
    with contextlib.suppress(InvalidInput):
        paths.parse_shard_id(rest[0])
        return True
    return False


def is_within(place: str, table: str) -> bool:
    """True for the place of that table, or one inside it, whether or not the table exists yet."""
    own = real_place(table)
    return own in (real_place(place), *_above(real_place(place)))


def _above(uri: str) -> list[str]:
    """The folders that hold that place, the nearest first; the last is the bucket, or `/`."""
    scheme, separator, place = uri.partition("://")
    if not separator:
        return [str(folder) for folder in PurePath(uri).parents]
    if scheme == "memory":
        return []  # which holds logs only
    parts = place.split("/")
    return [f"{scheme}://{'/'.join(parts[:n])}" for n in range(len(parts) - 1, 0, -1)]
