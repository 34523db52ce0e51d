"""One shard as a listing shows it: entries, manifest versions, folders of SSTables.

Keeps
  G-3  entries on a WAL store are aged by that store's own clock
  S-5  a WAL store that cannot be listed is left alone, and the report says so
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace

import numpy as np

from weir.errors import StoreError
from weir.format import paths
from weir.log.site import ShardSite
from weir.upkeep.gc.plan import Stored, WalListing
from weir.upkeep.gc.run import GcRun


@dataclass
class Listing:
    """One shard as listed."""

    versions: dict[int, Stored] = field(default_factory=dict)
    folders: dict[str, tuple[int, Stored]] = field(default_factory=dict)
    logs: list[tuple[ShardSite, WalListing]] = field(default_factory=list)
    """Every place that holds entries of the shard: beside the data, stores that the log was moved
    away from (S-3), and where it is now."""

    def __len__(self) -> int:
        return len(self.versions) + len(self.folders) + sum(len(log) for _, log in self.logs)


def list_shard(job: GcRun, site: ShardSite) -> Listing:
    """List every object of the shard beside the data, reduced to numbers; if logs are collected,
    its entries too."""
    wal = _Log()
    listing = Listing()
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
    if "wal" in job.kinds:
        listing.logs.append((site, wal.sorted()))
    return listing


def list_log(job: GcRun, site: ShardSite, skipped: list[str]) -> WalListing | None:
    """List a log on a store of its own; None, and a note, when it cannot be listed (S-5).

    Ages use that store's clock: by another clock, a fence that a stalled writer must meet could
    look old on the day it was written (G-3).
    """
    folder = paths.wal_dir(site.shard)
    found = _Log()
    try:
        now = job.clock(site.wal)
        for meta in site.wal.list(folder):
            found.add(meta.path[len(folder) + 1 :], meta.size, meta.last_modified)
    except StoreError as error:  # guard: S-5
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
