"""Which objects of a log are fences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from weir.errors import CorruptEntry
from weir.format import paths
from weir.format.wal_entry import decode_entry
from weir.store.api import Meta, Store

_FENCE_BYTES_MAX: Final = 8192
"""A fence holds no rows; weir's have less than 1 KiB."""


def fences_among(wal: Store, listed: Iterable[Meta]) -> set[str]:
    """The paths of the fences among these objects. A get for each entry that is small enough."""
    small = {}
    for meta in listed:
        folder, _, name = meta.path.rpartition("/")
        position = paths.parse_wal_name(name)
        if position is not None and folder.endswith("/wal") and meta.size <= _FENCE_BYTES_MAX:
            small[meta.path] = position
    found = set()
    for (path, position), data in zip(small.items(), wal.get_many(list(small)), strict=True):
        try:
            is_fence = (
                data is not None and decode_entry(data, position=position, path=path).is_fence
            )
        except CorruptEntry:
            continue
        if is_fence:
            found.add(path)
    return found
