"""One shard as a listing shows it: entries, manifest versions, folders of SSTables.

Keeps
  G-3  entries on a WAL store are aged by that store's own clock
  S-6  a WAL store that cannot be listed is left alone, and the report says so
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from weir.errors import StoreError
from weir.format import paths
from weir.log.site import ShardSite
from weir.store.api import Store
from weir.upkeep.gc.plan import Stored, WalListing

Clock = Callable[[Store], float]
"""The time of a store, read before anything in it is listed, so that nothing looks older than it
is."""


@dataclass
class Listing:
    """One shard as listed."""

    wal: WalListing | None
    in_table: WalListing | None = None
    """Entries left beside the data by a log that is now on a store of its own (S-3)."""
    former: list[tuple[ShardSite, WalListing]] = field(default_factory=list)
    """Entries left on WAL stores that the log was moved away from."""
    versions: dict[int, Stored] = field(default_factory=dict)
    folders: dict[str, tuple[int, Stored]] = field(default_factory=dict)

    @property
    def logs(self) -> list[WalListing]:
        """Every listing of entries."""
        every = [self.wal, self.in_table, *(left for _, left in self.former)]
        return [log for log in every if log is not None]

    def __len__(self) -> int:
        return len(self.versions) + len(self.folders) + sum(map(len, self.logs))


def list_shard(
    site: ShardSite,
    former: Sequence[ShardSite],
    clock: Clock,
    skipped: list[str],
    *,
    with_log: bool,
) -> Listing:
    """List every object of the shard, reduced to numbers.

    `with_log` adds its log, and the entries left in the places it was moved away from (`former`).
    """
    separate = site.wal is not site.store
    wal = _Log()
    listing = Listing(None)
    lead = len(paths.shard_dir(site.shard)) + 1
    for meta in site.store.list(paths.shard_dir(site.shard)):
        head, _, name = meta.path[lead:].partition("/")
        if head == "wal":
            wal.add(name, meta.size, meta.last_modified)
        elif head == "manifest":
            version = paths.parse_manifest_name(name)
            if version is not None:
                listing.versions[version] = Stored(meta.size, meta.last_modified)
        elif (parsed := paths.parse_sstable_name(head)) is not None:
            _, old = listing.folders.get(head, (0, Stored(0, 0.0, 0)))
            listing.folders[head] = (
                parsed[1],
                Stored(old.size + meta.size, max(old.time, meta.last_modified), old.objects + 1),
            )
    if not with_log:
        return listing
    for place in former:
        left = _list_log(place, clock, skipped)
        if left is not None:
            listing.former.append((place, left))
    if not separate:
        listing.wal = wal.sorted()
        return listing
    listing.in_table = wal.sorted()
    listing.wal = _list_log(site, clock, skipped)
    return listing


def _list_log(site: ShardSite, clock: Clock, skipped: list[str]) -> WalListing | None:
    """List a log on a store of its own; None, and a note, when it cannot be listed (S-6).

    Ages use that store's clock: by another clock, a fence that a stalled writer must meet could
    look old on the day it was written (G-3).
    """
    folder = paths.wal_dir(site.shard)
    found = _Log()
    try:
        now = clock(site.wal)
        for meta in site.wal.list(folder):
            found.add(meta.path[len(folder) + 1 :], meta.size, meta.last_modified)
    except StoreError as error:  # guard: S-6
        skipped.append(
            f"{site}: its WAL store could not be listed; its log was not collected: {error}"
        )
        return None
    return replace(found.sorted(), now=now)


class _Log:
    """Collects a listing of the log in three columns."""

    def __init__(self) -> None:
        self._positions, self._sizes, self._times = array("q"), array("q"), array("d")

    def add(self, name: str, size: int, time: float) -> None:
        position = paths.parse_wal_name(name)
        if position is not None and position < 2**63:
            self._positions.append(position)
            self._sizes.append(size)
            self._times.append(time)

    def sorted(self) -> WalListing:
        positions = np.array(self._positions, np.int64)
        order = np.argsort(positions)
        return WalListing(
            positions[order],
            np.array(self._sizes, np.int64)[order],
            np.array(self._times, np.float64)[order],
        )


NO_LOG = WalListing(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float64))
