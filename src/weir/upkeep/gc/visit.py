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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import numpy as np
import numpy.typing as npt

from weir.errors import (
    CommitConflict,
    FencedError,
    StoreError,
    WalStoreMismatch,
    WeirError,
)
from weir.format import paths
from weir.format.manifest import (
    ShardManifest,
    Status,
    decode_hint,
    decode_manifest,
    encode_hint,
)
from weir.log.floors import Floors, FloorValues
from weir.log.manifests import State
from weir.log.site import ShardSite
from weir.records.holds import Pins
from weir.store.api import ObjectMissing, Store
from weir.types import Position, Version
from weir.upkeep.gc import contents
from weir.upkeep.gc.listing import NO_LOG, Listing, list_log, list_shard
from weir.upkeep.gc.plan import (
    ShardState,
    WalListing,
    floor_of,
    plan_manifests,
    plan_sstables,
    plan_wal,
    replay_point,
)
from weir.upkeep.gc.run import GcRun, Item
from weir.upkeep.pruning import folded_tables, prunable, prune

logger = logging.getLogger("weir.gc")


@dataclass(frozen=True)
class Doomed:
    """Objects of one kind that may go, in the table's store or in that of a log."""

    kind: str
    wal: Store | None
    items: Iterator[Item]
    total: int


class Visit:
    """One shard in one collection. Each step returns whether the shard goes on to the next."""

    def __init__(self, job: GcRun, shard: UUID) -> None:
        self.site = job.core.table_site(shard)
        self.error: WeirError | None = None
        self.doomed: list[Doomed] = []
        self.folders: list[str] = []
        """SSTables that may go."""
        self.folder_objects = 0
        self.finished_under: int | None = None
        """The routing of a sealed shard of which nothing is left that anybody could read (C-17)."""
        self._job = job
        self._listing = Listing()
        self._has_log = "wal" in job.kinds
        """True when the place where the log is now was listed."""
        self._latest: ShardManifest | None = None
        self._floors = FloorValues()
        self._floor = 0
        self._retained: list[ShardManifest] = []

    @property
    def listed(self) -> int:
        """Objects listed."""
        return len(self._listing)

    @property
    def is_apart(self) -> bool:
        """True when the log is in a store of its own, or was."""
        return bool(self._floors.place or (self._latest is not None and self._latest.log_place))

    @property
    def has_sstables(self) -> bool:
        """True when the manifest names any."""
        return self._latest is not None and bool(self._latest.sstables)

    # -- step by step ----------------------------------------------------------------------------

    def list_beside_the_data(self) -> bool:
        """List what the table's own store has of the shard."""
        self._listing = list_shard(self._job, self.site)
        return True

    def see(self, state: State) -> bool:
        """Take in the manifest, which was read when everything was listed (G-4)."""
        self._latest, self._floors = state
        if self._latest is None:
            self._job.report.skipped.append(
                f"{self.site} has no manifest: nothing of it was collected"
            )
        return self._latest is not None

    def list_elsewhere(self) -> bool:
        """List the log in stores of its own, where it is and where it was before moves (S-3)."""
        if "wal" not in self._job.kinds:
            return True
        job, shard, places = self._job, self.site.shard, self._job.core.wal_stores
        sites: list[ShardSite] = []
        self._has_log = False
        try:
            place = places.place(shard, self._latest, self._floors)
            sites, notes = places.former(shard, place)
            self._job.report.skipped += notes
            self.site = places.site_at(shard, place)
            self._has_log = place.uri is None
        except (WalStoreMismatch, StoreError) as error:
            # S-5: objects beside the data can still be collected.
            self._job.report.skipped.append(f"the log of shard {shard} was not collected: {error}")
        if self.site.is_apart:
            sites.append(self.site)
        for site in sites:
            found = list_log(job, site, self._job.report.skipped)
            if found is not None:
                self._listing.logs.append((site, found))
                self._has_log |= site is self.site
        return True

    def prune_and_raise(self, folded: Mapping[UUID, int]) -> bool:
        """Remove SSTables that the base holds from the manifest, and raise the floors.

        `folded`: by shard, the last generation whose rows have been in the base for `min_age`.
        """
        job = self._job
        self._prune(folded.get(self.site.shard, 0))
        assert self._latest is not None, "G-4: looked at first"
        latest, versions = self._latest, self._listing.versions
        self._floor = floor_of(versions, latest.version, job.now, job.ages.min_age)
        self._retained = [latest, *self._load_living(latest)]
        job.core.env.failpoint("gc.read")
        if not job.dry_run:
            self._raise_floors()
        return True

    def decide(self, pins: Pins, state: State) -> bool:
        """Decide what goes, by pins that were read after every floor had risen (K-1b), and by the
        manifest as it was after them."""
        job, latest = self._job, self._latest
        assert latest is not None, "G-4: looked at first"
        again, _ = state
        if again is not None and again.version > latest.version:
            self._retained.append(again)
        job.core.env.failpoint("gc.pinned")
        known = ShardState(
            now=job.now,
            wal=NO_LOG,
            versions=self._listing.versions,
            folders=self._listing.folders,
            latest=latest,
            retained=self._retained,
            floor=self._floor,
            pins=pins.of(self.site.shard),
            unread_from=pins.unread_from(self.site.shard),
        )
        has_statement = any(one.share_of(self.site.shard) for one in job.statements)
        if has_statement:
            self._job.report.skipped.append(f"{self.site}: a statement is not in its log yet")
        for place, found in self._listing.logs:
            if has_statement:  # guard: P-8 test_statements_over_shards
                continue
            # A position is never used twice, in any store, so the same verdict holds in each (F-2).
            self._decide_log(place, replace(known, wal=found))
        if "manifests" in job.kinds:
            self._decide_manifests(known)
        if "sstables" in job.kinds:
            self._decide_sstables(known)
        if len(self._retained) == 1 and not has_statement and self._is_finished(known):
            self.finished_under = latest.shard_spec_id
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
            and self._has_log
            and all((log.positions >= latest.replay_after).all() for _, log in listing.logs)
            # P-6: a clone gets the tokens of the shards that a checkpoint pins.
            # guard: C-17
            and next(iter(self.site.store.list(paths.tokens_dir(self.site.shard))), None) is None
        )

    # -- pruning ---------------------------------------------------------------------------------

    def _prune(self, through: int) -> None:
        """Remove SSTables whose rows the base holds from the manifest; the epoch stays (L-2)."""
        current = self._latest
        assert current is not None, "G-4: looked at first"
        named = folded_tables(current, through)
        if not named:
            return
        if self._job.dry_run:
            self._job.pruned(len(named))
            pruned = prunable(current, named) or current
            # As pruning would leave it: a version of its own, which supersedes this one now.
            self._latest = replace(pruned, version=Version(current.version + 1))
            return

        try:
            after = prune(self.site, current, named)
        except (FencedError, CommitConflict) as lost:
            # G-12: another process changed the shard. The next collection prunes it.
            self._job.report.skipped.append(f"{self.site}: not pruned, the next gc does it: {lost}")
            return
        self._latest = after
        self._job.pruned(max(0, len(current.sstables) - len(after.sstables)))
        logger.info("gc.pruned %s sstables=%d", self.site.label, len(named))

    # -- floors ----------------------------------------------------------------------------------

    def _raise_floors(self) -> None:
        """Raise the floors before the pins are read (K-1b) and before anything is deleted (G-6).

        Marks of every kind that count no more go: a durable checkpoint of an open log leaves one.
        """
        job, floors, listing = self._job, Floors(self.site), self._listing
        floors.trim(self._floors)
        old = any(version <= self._floor for version in listing.versions)
        if self._floor > self._floors.manifest and (
            ("manifests" in job.kinds and old) or ("sstables" in job.kinds and listing.folders)
        ):
            # For SSTables too: a checkpointer that still holds a version naming them must fail.
            floors.raise_to("manifest", self._floor)  # guard: G-6 simulator:collection
        logs = [(place, found.positions) for place, found in listing.logs]
        highest = _highest([positions for _, positions in logs], replay_point(self._retained))
        if highest > self._floors.wal:
            # P-2: recorded before the floor rises; after that, a zombie's entry can be among them.
            for place, positions in logs:
                passed = positions[(positions > self._floors.wal) & (positions <= highest)]
                contents.record_tokens(place, passed.tolist())
            job.core.env.failpoint("gc.tokens")
            floors.raise_to("wal", highest)  # guard: G-7c simulator:collection
        job.core.env.failpoint("gc.floors")

    def _load_living(self, latest: ShardManifest) -> list[ShardManifest]:
        """The living versions besides the latest; `CorruptEntry` if one cannot be read (G-11)."""
        living = [v for v in sorted(self._listing.versions) if self._floor < v < latest.version]
        if not living:
            return []
        where = [paths.manifest_path(self.site.shard, Version(v)) for v in living]
        return [
            decode_manifest(data, path=path)
            for path, data in zip(where, self.site.store.get_many(where), strict=True)
            if data is not None  # deleted by another collector with less slack: no longer a root
        ]

    # -- the verdict -----------------------------------------------------------------------------

    def _decide_log(self, place: ShardSite, state: ShardState) -> None:
        """Decide what goes of one log: the current one, or the entries that a move left behind."""
        ages = self._job.ages
        state = replace(state, runs=contents.epoch_runs(place, state, ages))
        doomed, kept = plan_wal(state, ages)
        self._job.count("wal", len(state.wal), int(state.wal.sizes.sum()), kept)
        if len(doomed):
            wal = place.wal if place.is_apart else None
            items = _wal_items(place.shard, state.wal, doomed)
            self.doomed.append(Doomed("wal", wal, items, len(doomed)))

    def _decide_manifests(self, state: ShardState) -> None:
        job, versions = self._job, state.versions
        state = replace(state, native=contents.is_native(self.site, state, job.ages))
        doomed, kept = plan_manifests(state, job.ages)
        self._job.count("manifests", len(versions), sum(v.size for v in versions.values()), kept)
        if doomed and not job.dry_run:
            _renew_hint(self.site, state)
        items = (
            (paths.manifest_path(self.site.shard, Version(v)), versions[v].size) for v in doomed
        )
        self.doomed.append(Doomed("manifests", None, items, len(doomed)))

    def _decide_sstables(self, state: ShardState) -> None:
        folders = [stored for _, stored in state.folders.values()]
        self.folders, kept = plan_sstables(state, self._job.ages)
        objects, size = sum(f.objects for f in folders), sum(f.size for f in folders)
        self._job.count("sstables", objects, size, kept)
        self.folder_objects = sum(state.folders[name][1].objects for name in self.folders)


def _highest(logs: Sequence[npt.NDArray[np.int64]], limit: int) -> int:
    """The highest position below `limit` in any of `logs`, or 0."""
    return max((int(found[found < limit].max(initial=0)) for found in logs), default=0)


def _wal_items(shard: UUID, wal: WalListing, doomed: npt.NDArray[np.intp]) -> Iterator[Item]:
    for index in doomed:
        position = Position(int(wal.positions[index]))
        yield paths.wal_path(shard, position), int(wal.sizes[index])


def _renew_hint(site: ShardSite, state: ShardState) -> None:
    """Make the hint name a version that stays: native readers follow it and know no floor."""
    where = paths.manifest_hint_path(site.shard)
    try:
        hinted = decode_hint(site.store.get(where).data)
    except ObjectMissing:
        hinted = None
    if hinted is None or hinted <= state.floor:
        site.store.put(where, encode_hint(Version(state.latest.version)))
