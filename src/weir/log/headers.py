"""Who wrote an entry of the log, and which entries are fences, asked without reading their rows.

The one place that reads the beginning of an entry: a schema of thousands of columns, or the
dictionaries of a column, can be longer than what is read at first, and "not seen" must never be
taken for "not there" (F-7, P-2).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

from weir.format import paths
from weir.format.ipc_guard import Truncated
from weir.format.wal_header import EntryHeader, read_header
from weir.log.site import ShardSite
from weir.store.api import Meta, Store
from weir.types import Position

FIRST_READ: Final = 8 << 10
"""Enough for the schema and first batch header of a few dozen columns."""
_GROWTH: Final = 16


def header_at(site: ShardSite, position: int) -> EntryHeader | None:
    """The header of the entry at `position`; None if that is damaged. Raises `ObjectMissing`.

    One ranged read, and another for each factor of 16 by which the schema exceeds 8 KiB.
    """
    path = paths.wal_path(site.shard, Position(position))
    size = FIRST_READ
    while True:
        try:
            data = site.wal.get_range(path, 0, size)
            return read_header(data)
        except Truncated:
            if len(data) < size:
                return None  # it ends before its epoch
            size *= _GROWTH
        except ValueError:
            return None


def fences_among(wal: Store, listed: Iterable[Meta]) -> set[str]:
    """The paths of the fences among these objects. A get for each entry that is small enough: a
    fence holds no rows, and weir's have less than 1 KiB."""
    small = [
        meta.path
        for meta in listed
        if meta.size <= FIRST_READ
        and paths.parse_wal_name(meta.path.rpartition("/wal/")[2]) is not None
    ]
    found = set()
    for path, data in zip(small, wal.get_many(small), strict=True):
        with contextlib.suppress(ValueError):
            if data is not None and read_header(data).is_fence:
                found.add(path)
    return found
