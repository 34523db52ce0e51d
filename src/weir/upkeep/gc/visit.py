"""One shard in one collection: what was listed and read of it, and the verdict.

Keeps
  G-4  folders are listed before the manifest is read
  G-6, G-7c  floors rise before anything goes
  G-11 an object that cannot be read keeps everything it might name
  X-4  SSTables leave a manifest once the base has held their rows for `min_age`
  P-2  tokens are recorded before their entries go
`weir.upkeep.gc.shard` calls the steps in order, each for all shards before the next.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import numpy as np
import numpy.typing as npt

from weir.errors import CommitConflict, FencedError, WeirError
from weir.format import paths
from weir.format.manifest import (
    ShardManifest,
    Status,
    decode_hint,
    decode_manifest,
    encode_hint,
)
from weir.lake.api import Base
from weir.lake.index import released_generation
from weir.log.floors import FloorValues
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.store.api import ObjectMissing
from weir.types import Position, Version
from weir.upkeep.gc import contents
from weir.upkeep.gc.listing import NO_LOG, Listing, list_shard
from weir.upkeep.gc.pins import Pins
from weir.upkeep.gc.plan import (
    Roots,
    ShardPlan,
    ShardState,
    WalListing,
    plan_shard,
    replay_point,
    roots,
)
from weir.upkeep.gc.report import GcReport
from weir.upkeep.gc.run import GcRun
from weir.upkeep.gc.tasks import Holder, Item
from weir.upkeep.pruning import folded_tables, prunable, prune

logger = logging.getLogger("weir.gc")


@dataclass(frozen=True)
class Folded:
    """What the base holds of the shards, read after their manifests."""

    latest: Base
    settled: Base | None
    """The newest version that is at least `min_age` old; None: there is none."""

    def through(self, shard: UUID) -> int:
        """The last generation whose rows have been in the base for `min_age` (X-4)."""
        if self.settled is None:
            return 0
        return min(
            released_generation(self.latest, shard), released_generation(self.settled, shard)
        )


@dataclass(frozen=True)
class Doomed:
    """Objects of one kind in one store that may go."""

    kind: str
    holder: Holder
    items: Iterator[Item]
    total: int


class Visit:
    """One shard in one collection. Each step returns whether the shard goes on to the next."""

    def __init__(self, site: ShardSite, dry_run: bool) -> None:  # noqa: FBT001
        self.site = site
        self.error: WeirError | None = None
        self.doomed: list[Doomed] = []
        self.folders: list[str] = []
        """SSTables that may go."""
        self.folder_objects = 0
        self.finished_under: int | None = None
        """The routing of a sealed shard of which nothing is left that anybody could read (C-17)."""
        self._manifests = Manifests(site)
        self._report = GcReport(dry_run)
        self._listing = Listing(None)
        self._latest: ShardManifest | None = None
        self._floors = FloorValues()
        self._living = Roots(0, ())
        self._retained: list[ShardManifest] = []

    @property
    def listed(self) -> int:
        """Objects listed."""
        return len(self._listing)

    @property
    def has_sstables(self) -> bool:
        """True when the manifest names any."""
        return self._latest is not None and bool(self._latest.sstables)

    def tell(self, report: GcReport) -> None:
        """Add the findings since the last call to `report`."""
        report.add(self._report)
        self._report = GcReport(report.dry_run)

    # -- step by step ----------------------------------------------------------------------------

    def look(self, job: GcRun) -> bool:
        """List the shard, then read its manifest (G-4)."""
        self._listing = list_shard(
            self.site,
            job.former.get(self.site.shard, ()),
            job.clock,
            self._report.skipped,
            with_log="wal" in job.kinds,
        )
        job.env.failpoint("gc.listed")
        self._latest, self._floors = self._manifests.latest_with_floors()
        if self._latest is None:
            self._report.skipped.append(f"{self.site} has no manifest: nothing of it was collected")
        return self._latest is not None

    def prune_and_raise(self, job: GcRun, folded: Folded | None) -> bool:
        """Remove SSTables that the base holds from the manifest, and raise the floors."""
        assert self._latest is not None, "G-4: looked at first"
        if folded is not None:
            self._prune(folded, dry_run=job.dry_run)
        latest = self._latest
        self._living = roots(self._listing.versions, latest.version, job.now, job.ages.min_age)
        self._retained = [latest, *_load(self.site, self._living, latest)]
        job.env.failpoint("gc.read")
        if not job.dry_run:
            self._raise_floors(job)
        return True

    def decide(self, job: GcRun, pins: Pins) -> bool:
        """Decide what goes, by pins that were read after every floor had risen (K-1b)."""
        latest = self._latest
        assert latest is not None, "G-4: looked at first"
        # A restore may have named SSTables again that only a checkpoint held. If that checkpoint is
        # already gone from the pins, this read sees the restored manifest.
        again = self._manifests.latest()
        if again is not None and again.version > latest.version:
            self._retained.append(again)
        job.env.failpoint("gc.pinned")
        state = ShardState(
            now=job.now,
            wal=NO_LOG,
            versions=self._listing.versions,
            folders=self._listing.folders,
            latest=latest,
            retained=self._retained,
            floor=self._living.floor,
            pins=pins.of(self.site.shard),
            unread_from=pins.unread_from(self.site.shard),
        )
        for place, found in self._logs():
            # A position is never used twice, in any store, so the same verdict holds in each (F-2).
            self._decide_log(place, job, replace(state, wal=found))
        state = replace(state, native=contents.is_native(self.site, state, job.ages))
        self._decide_rest(job, state, plan_shard(state, job.ages))
        if len(self._retained) == 1 and self._is_finished(state):
            self.finished_under = state.latest.shard_spec_id
        return True

    def _is_finished(self, state: ShardState) -> bool:
        """By what was listed: a shard is finished in the collection after the one that emptied it.

        Its manifest stays, sealed, so that no program claims the id again, and with it the entry
        at R.
        """
        latest, listing = state.latest, self._listing
        is_ended = latest.status is Status.SEALED and not latest.sstables and not latest.dropped
        return (
            is_ended
            and self._floors.is_closed(latest)
            and not state.pins  # guard: C-17
            and not listing.folders
            and set(listing.versions) <= {latest.version}
            and listing.wal is not None
            and all(bool((log.positions >= latest.replay_after).all()) for log in listing.logs)
            # P-6: a clone gets the tokens of the shards that a checkpoint pins.
            # guard: C-17
            and next(iter(self.site.store.list(paths.tokens_dir(self.site.shard))), None) is None
        )

    # -- pruning ---------------------------------------------------------------------------------

    def _prune(self, folded: Folded, *, dry_run: bool) -> None:
        """Remove SSTables whose rows the base holds from the manifest; the epoch stays (L-2)."""
        current = self._latest
        assert current is not None, "G-4: looked at first"
        named = folded_tables(current, folded.through(self.site.shard))
        if not named:
            return
        if dry_run:
            self._report.pruned += len(named)
            pruned = prunable(current, named) or current
            # As pruning would leave it: a version of its own, which supersedes this one now.
            self._latest = replace(pruned, version=Version(current.version + 1))
            return

        try:
            after = prune(self.site, current, named)
        except (FencedError, CommitConflict) as lost:
            # G-12: another process changed the shard. The next collection prunes it.
            self._report.skipped.append(f"{self.site}: not pruned, the next gc does it: {lost}")
        else:
            self._report.pruned += max(0, len(current.sstables) - len(after.sstables))
            logger.info("gc.pruned %s sstables=%d", self.site.label, len(named))
        self._latest, self._floors = self._manifests.latest_with_floors()

    # -- floors ----------------------------------------------------------------------------------

    def _raise_floors(self, job: GcRun) -> None:
        """Raise the floors before the pins are read (K-1b) and before anything is deleted (G-6)."""
        kinds, floors, living = job.kinds, self._manifests.floors, self._living
        old = any(version <= living.floor for version in self._listing.versions)
        if living.floor > self._floors.manifest and (
            ("manifests" in kinds and old) or ("sstables" in kinds and self._listing.folders)
        ):
            # For SSTables too: a checkpointer that still holds a version naming them must fail.
            floors.raise_to("manifest", living.floor)  # guard: G-6 simulator:collection
            floors.trim("manifest")
        logs = [(place, found.positions) for place, found in self._logs()]
        highest = _highest([positions for _, positions in logs], replay_point(self._retained))
        if highest > self._floors.wal:
            # P-2: recorded before the floor rises; after that, a zombie's entry can be among them.
            for place, positions in logs:
                passed = positions[(positions > self._floors.wal) & (positions <= highest)]
                contents.record_tokens(place, passed.tolist())
            job.env.failpoint("gc.tokens")
            floors.raise_to("wal", highest)  # guard: G-7c simulator:collection
            floors.trim("wal")
        job.env.failpoint("gc.floors")

    def _logs(self) -> list[tuple[ShardSite, WalListing]]:
        """Every place that holds entries of the shard, and what was listed there."""
        listing = self._listing
        every = [(self.site.in_table, listing.in_table), *listing.former, (self.site, listing.wal)]
        return [(place, found) for place, found in every if found is not None]

    # -- the verdict -----------------------------------------------------------------------------

    def _decide_log(self, place: ShardSite, job: GcRun, state: ShardState) -> None:
        """Decide what goes of one log: the current one, or the entries that a move left behind."""
        state = replace(state, runs=contents.epoch_runs(place, state, job.ages))
        plan = plan_shard(state, job.ages)
        self._count("wal", len(state.wal), int(state.wal.sizes.sum()), plan.wal_kept)
        if len(plan.wal):
            holder = Holder.of_log(place, job.deleter.table_id)
            self.doomed.append(
                Doomed("wal", holder, _wal_items(place, state.wal, plan), len(plan.wal))
            )

    def _decide_rest(self, job: GcRun, state: ShardState, plan: ShardPlan) -> None:
        listing = self._listing
        if "manifests" in job.kinds:
            sizes = sum(stored.size for stored in listing.versions.values())
            self._count("manifests", len(listing.versions), sizes, plan.manifests_kept)
            if plan.manifests and not job.dry_run:
                _renew_hint(self.site, state)
            items = (
                (paths.manifest_path(self.site.shard, Version(v)), listing.versions[v].size)
                for v in plan.manifests
            )
            holder = Holder(self.site.store, table_id=job.deleter.table_id)
            self.doomed.append(Doomed("manifests", holder, items, len(plan.manifests)))
        if "sstables" in job.kinds:
            folders = [stored for _, stored in listing.folders.values()]
            objects, size = sum(f.objects for f in folders), sum(f.size for f in folders)
            self._count("sstables", objects, size, plan.sstables_kept)
            self.folders = plan.sstables
            self.folder_objects = sum(listing.folders[name][1].objects for name in plan.sstables)

    def _count(self, kind: str, seen: int, size: int, kept: dict[str, int]) -> None:
        part = self._report.kind(kind)
        part.seen += seen
        part.seen_bytes += size
        part.kept.update(kept)


def _load(site: ShardSite, living: Roots, latest: ShardManifest) -> list[ShardManifest]:
    """The living versions besides the latest; `CorruptEntry` when one cannot be read (G-11)."""
    wanted = [v for v in living.versions if v != latest.version]
    where = [paths.manifest_path(site.shard, Version(v)) for v in wanted]
    return [
        decode_manifest(data, path=path)
        for path, data in zip(where, site.store.get_many(where), strict=True)
        if data is not None  # deleted by another collector with less slack: no longer a root
    ]


def _highest(logs: Sequence[npt.NDArray[np.int64]], limit: int) -> int:
    """The highest position below `limit` in any of `logs`, or 0."""
    return max((int(found[found < limit].max(initial=0)) for found in logs), default=0)


def _wal_items(site: ShardSite, wal: WalListing, plan: ShardPlan) -> Iterator[Item]:
    for index in plan.wal:
        position = Position(int(wal.positions[index]))
        yield paths.wal_path(site.shard, position), int(wal.sizes[index])


def _renew_hint(site: ShardSite, state: ShardState) -> None:
    """Make the hint name a version that stays: native readers follow it and know no floor."""
    where = paths.manifest_hint_path(site.shard)
    try:
        hinted = decode_hint(site.store.get(where).data)
    except ObjectMissing:
        hinted = None
    if hinted is None or hinted <= state.floor:
        site.store.put(where, encode_hint(Version(state.latest.version)))
