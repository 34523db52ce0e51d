"""Collects one shard: list, read, raise the floors, read the pins, decide, delete. In this order.

Keeps
  G-4  folders are listed before the manifest is read
  G-6, G-7c, K-1b  floors rise before the pins are read and before anything is deleted
  G-11 what cannot be read keeps everything it might name
  S-6  a WAL store that cannot be listed is left alone, and the report says so
  P-2  tokens in entries that go are recorded first
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import numpy as np
import numpy.typing as npt

from weir.env import Env
from weir.errors import CommitConflict, FencedError, StoreError
from weir.format import paths
from weir.format.manifest import ShardManifest, decode_hint, decode_manifest, encode_hint
from weir.lake.api import Lake
from weir.lake.index import released_generation
from weir.log.floors import FloorValues
from weir.log.manifests import Manifests
from weir.log.rules import Evidence
from weir.log.site import ShardSite
from weir.shard.tokens import Tokens
from weir.store.api import ObjectMissing
from weir.types import Position, Version
from weir.upkeep.gc import contents
from weir.upkeep.gc.pins import Pins
from weir.upkeep.gc.plan import (
    Ages,
    Roots,
    ShardPlan,
    ShardState,
    Stored,
    WalListing,
    plan_shard,
    prunable,
    replay_point,
    roots,
)
from weir.upkeep.gc.report import GcReport, Veto
from weir.upkeep.gc.tasks import Deleter, Holder, Item, batches

log = logging.getLogger("weir.gc")


@dataclass
class Job:
    """What all shards of one collection share."""

    lake: Lake | None
    ages: Ages
    kinds: frozenset[str]
    report: GcReport
    deleter: Deleter
    env: Env
    pins: Callable[[], Pins]
    veto: Veto | None = None
    former: Mapping[UUID, Sequence[ShardSite]] = field(default_factory=dict)
    """By shard, places that its log was moved away from (S-3)."""

    @property
    def dry_run(self) -> bool:
        """True when nothing may be written."""
        return self.deleter.dry_run


@dataclass
class Listing:
    """One shard as listed."""

    wal: WalListing | None
    beside: WalListing | None = None
    """What an earlier log left beside the data when the log is on a store of its own now (S-3)."""
    former: list[tuple[ShardSite, WalListing]] = field(default_factory=list)
    """The same on stores of its own that it was moved away from."""
    versions: dict[int, Stored] = field(default_factory=dict)
    folders: dict[str, tuple[int, Stored]] = field(default_factory=dict)


def collect_shard(site: ShardSite, job: Job) -> None:
    """Collect what is dead in one shard. Raises only what concerns the whole shard."""
    listing = list_shard(site, job)
    now = site.store.now()
    job.env.failpoint("gc.listed")
    manifests = Manifests(site)
    if "sstables" in job.kinds:
        _prune(manifests, job, now)
    latest, floors = manifests.latest_with_floors()
    if latest is None:
        job.report.skipped.append(f"{site} has no manifest: nothing of it is known to be dead")
        return
    if job.dry_run:
        latest = _as_pruned(latest, job, now)
    living = roots(listing.versions, latest.version, now, job.ages.min_age)
    retained = [latest, *_load(site, living, latest)]
    job.env.failpoint("gc.read")
    _raise_floors(manifests, job, listing, living, retained, floors)
    pins = job.pins()
    # A restore may have named SSTables again that only a checkpoint held, and that checkpoint may
    # be gone from the pins by now: then this reading sees the restored manifest.
    again = manifests.latest()
    if again is not None and again.version != latest.version:
        retained.append(again)
    job.env.failpoint("gc.pinned")
    state = ShardState(
        now=now,
        wal=_EMPTY,
        versions=listing.versions,
        folders=listing.folders,
        latest=latest,
        retained=retained,
        floor=living.floor,
        pins=pins.of(site.shard),
        unread_from=pins.unread_from(site.shard),
    )
    if listing.beside is not None:
        _delete_wal(site.beside, job, replace(state, wal=listing.beside))
    for place, left in listing.former:
        # A position is never used twice, wherever the log is: the same verdict holds (F-2).
        _delete_wal(place, job, replace(state, wal=left))
    if listing.wal is not None:
        _delete_wal(site, job, replace(state, wal=listing.wal))
    state = replace(state, native=contents.is_native(site, state, job.ages))
    _delete_rest(site, job, listing, state, plan_shard(state, job.ages))


_EMPTY = WalListing(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float64))


def list_shard(site: ShardSite, job: Job) -> Listing:
    """Every object of the shard, folded into numbers."""
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
    if "wal" not in job.kinds:
        return listing
    for place in job.former.get(site.shard, ()):
        left = _list_log(place, job)
        if left is not None:
            listing.former.append((place, left))
    if not separate:
        listing.wal = wal.sorted()
        return listing
    listing.beside = wal.sorted()
    listing.wal = _list_log(site, job)
    return listing


def _list_log(site: ShardSite, job: Job) -> WalListing | None:
    """The log on a store of its own; None, and a note, when that cannot be listed (S-6).

    With the clock of that store: between two clocks a fence that a stalled writer must meet could
    look old on the day it was written (G-3).
    """
    folder = paths.wal_dir(site.shard)
    found = _Log()
    try:
        for meta in site.wal.list(folder):
            found.add(meta.path[len(folder) + 1 :], meta.size, meta.last_modified)
        now = site.wal.now()
    except StoreError as error:
        job.report.skipped.append(
            f"{site}: its WAL store could not be listed; its log was left alone (S-6): {error}"
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


def _load(site: ShardSite, living: Roots, latest: ShardManifest) -> list[ShardManifest]:
    """The living versions besides the latest; `CorruptEntry` when one cannot be read (G-11)."""
    wanted = [v for v in living.versions if v != latest.version]
    where = [paths.manifest_path(site.shard, Version(v)) for v in wanted]
    return [
        decode_manifest(data, path=path)
        for path, data in zip(where, site.store.get_many(where), strict=True)
        if data is not None  # another collector, with less slack, took it: it is no root any more
    ]


def _folded(job: Job, shard: UUID, now: float) -> int:
    """The last generation whose rows have been in the base for `min_age` (X-4).

    Who holds an older version of the base, LanceDB's handles for as long as they live, reads
    manifests afresh: a row that left them would be in neither.
    """
    assert job.lake is not None, "asked for a table without a base"
    # The base is read after the manifest and in its epoch: a restore claims the shard before it
    # names again what was folded since, so a mark from before it cannot be used after it.
    latest = released_generation(job.lake.open_base(), shard)
    if not latest or not job.ages.min_age:
        return latest
    settled = job.lake.base_before(now - job.ages.min_age)
    return 0 if settled is None else min(latest, released_generation(settled, shard))


def _prune(manifests: Manifests, job: Job, now: float) -> None:
    """Take SSTables out of the manifest whose rows the base holds; the epoch stays (L-2)."""
    current = manifests.latest()
    if current is None or job.lake is None or not current.sstables or job.dry_run:
        return
    compacted = _folded(job, manifests.site.shard, now)
    named = {table.path for table in current.sstables if table.generation <= compacted}
    if not named:
        return

    def change(latest: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
        pruned = prunable(latest, named)
        if pruned is None:
            return None
        Tokens(manifests.site).settle(latest)  # P-2: the SSTables may be what makes a token true
        return pruned, Evidence()

    before = len(current.sstables)
    try:
        after = manifests.update(change, epoch=current.writer_epoch)
    except (FencedError, CommitConflict) as lost:
        # G-12: somebody is busy there. What was not pruned now is pruned next time.
        job.report.skipped.append(f"{manifests.site}: not pruned this time: {lost}")
        return
    job.report.pruned += max(0, before - len(after.sstables))
    log.info("gc.pruned shard=%s sstables=%d", manifests.site.shard, len(named))


def _as_pruned(latest: ShardManifest, job: Job, now: float) -> ShardManifest:
    """Dry run: the manifest as pruning would leave it."""
    if job.lake is None or "sstables" not in job.kinds:
        return latest
    compacted = _folded(job, latest.shard_id, now)
    named = {table.path for table in latest.sstables if table.generation <= compacted}
    job.report.pruned += len(named)
    return prunable(latest, named) or latest


def _raise_floors(
    manifests: Manifests,
    job: Job,
    listing: Listing,
    living: Roots,
    retained: Sequence[ShardManifest],
    floors: FloorValues,
) -> None:
    """Say what may go before asking who holds it (K-1b) and before any of it goes (G-6)."""
    if job.dry_run:
        return
    kinds = job.kinds
    old = any(version <= living.floor for version in listing.versions)
    if living.floor > floors.manifest and (
        ("manifests" in kinds and old) or ("sstables" in kinds and listing.folders)
    ):
        # For SSTables too: a checkpointer that still holds a version which named them must not
        # succeed.
        manifests.floors.raise_to("manifest", living.floor)
        manifests.floors.trim("manifest")
    logs = _logs(manifests.site, listing)
    limit = replay_point(retained)
    highest = max((int(p[p < limit].max(initial=0)) for _, p in logs), default=0)
    if highest > floors.wal:
        # P-2: while an entry of a zombie cannot be among them. Once the floor has passed, it can.
        for site, positions in logs:
            passed = positions[(positions > floors.wal) & (positions <= highest)]
            contents.record_tokens(site, passed.tolist())
        job.env.failpoint("gc.tokens")
        manifests.floors.raise_to("wal", highest)
        manifests.floors.trim("wal")
        manifests.floors.trim("left")
    job.env.failpoint("gc.floors")


def _logs(site: ShardSite, listing: Listing) -> list[tuple[ShardSite, npt.NDArray[np.int64]]]:
    """Every place that holds entries of the shard, and their positions."""
    every = [(site, listing.wal), (site.beside, listing.beside), *listing.former]
    return [(where, log.positions) for where, log in every if log is not None]


def _delete_wal(site: ShardSite, job: Job, state: ShardState) -> None:
    """Delete from one log: the shard's own, or what it left where it was before."""
    state = replace(state, runs=contents.epoch_runs(site, state, job.ages))
    plan = plan_shard(state, job.ages)
    _count(job, "wal", len(state.wal), int(state.wal.sizes.sum()), plan.wal_kept)
    if not len(plan.wal):
        return
    items = _wal_items(site, state.wal, plan)
    holder = Holder.of_log(site, job.deleter.table_id)
    work = batches("wal", holder, items, job.report, job.veto)
    job.deleter.run(site.wal, work, total=len(plan.wal))


def _delete_rest(
    site: ShardSite, job: Job, listing: Listing, state: ShardState, plan: ShardPlan
) -> None:
    def run(kind: str, items: Iterator[Item], total: int) -> None:
        holder = Holder(site.store, store_id=job.deleter.table_id)
        work = batches(kind, holder, items, job.report, job.veto)
        job.deleter.run(site.store, work, total=total)

    if "manifests" in job.kinds:
        sizes = sum(stored.size for stored in listing.versions.values())
        _count(job, "manifests", len(listing.versions), sizes, plan.manifests_kept)
        if plan.manifests and not job.dry_run:
            _renew_hint(site, state)
        items = (
            (paths.manifest_path(site.shard, Version(v)), listing.versions[v].size)
            for v in plan.manifests
        )
        run("manifests", items, len(plan.manifests))
    if "sstables" in job.kinds:
        folders = listing.folders.values()
        objects = sum(stored.objects for _, stored in folders)
        _count(
            job, "sstables", objects, sum(stored.size for _, stored in folders), plan.sstables_kept
        )
        total = sum(listing.folders[name][1].objects for name in plan.sstables)
        run("sstables", _folder_items(site, plan), total)


def _count(job: Job, kind: str, seen: int, size: int, kept: dict[str, int]) -> None:
    part = job.report.kind(kind)
    part.seen += seen
    part.seen_bytes += size
    part.kept.update(kept)


def _wal_items(site: ShardSite, wal: WalListing, plan: ShardPlan) -> Iterator[Item]:
    for index in plan.wal:
        position = Position(int(wal.positions[index]))
        yield paths.wal_path(site.shard, position), int(wal.sizes[index])


def _folder_items(site: ShardSite, plan: ShardPlan) -> Iterator[Item]:
    for name in plan.sstables:
        for meta in site.store.list(paths.sstable_dir(site.shard, name)):
            yield meta.path, meta.size


def _renew_hint(site: ShardSite, state: ShardState) -> None:
    """Native readers follow the hint and know no floor: it must name a version that stays."""
    where = paths.manifest_hint_path(site.shard)
    try:
        hinted = decode_hint(site.store.get(where).data)
    except ObjectMissing:
        hinted = None
    if hinted is None or hinted <= state.floor:
        site.store.put(where, encode_hint(Version(state.latest.version)))
