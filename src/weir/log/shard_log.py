"""`ShardLog`: one shard's manifest and log through one handle.

It knows where the log is and where it was before moves, its floors, and the highest position used.
Feeds, tailers, replays, collectors and copies use it instead of a store.

Keeps
  S-9  entries from before a move are read from the store that took them, by every reader
  G-7c the WAL floor separates a collected prefix from a hole, and a zombie's entry from a valid one
  F-2  the highest position known used is computed in one place (`FloorValues.highest_used`)
  S-7  a log whose store is gone ends at R if it provably holds nothing more; otherwise it is an
       error
  G-9  a position once used stays used, so the next search begins at the remembered tip
"""

from __future__ import annotations

from uuid import UUID

from weir.env import Env
from weir.errors import MissingEntry, SnapshotExpired, StoreError, WalStoreMismatch
from weir.format import paths
from weir.format.manifest import ShardManifest
from weir.log.floors import FloorValues
from weir.log.manifests import Manifests
from weir.log.site import HasSite, LogSegment, ShardSite
from weir.log.tip import find_tip
from weir.log.wal_store import WalStores
from weir.records.places import BESIDE_THE_DATA, LogPlace
from weir.types import Position


class ShardLog:
    """A handle of one shard's manifest and log. Claims nothing; safe to share between threads."""

    def __init__(self, site: ShardSite, stores: WalStores | None = None) -> None:
        """With `stores` the log is looked up in the records; otherwise it is at `site`.

        Only the holder of the shard's claim knows without a request that its log stays (S-3).
        """
        self._site = site
        self._stores = stores
        self._newest: int | None = None
        """The number of the newest place of the log that was seen here."""
        self.manifests = Manifests(site)
        self.seen: tuple[FloorValues, Position] | None = None
        """The floors and the tip last found. None: no tip was found, or these were found to be old
        in a way that only the manifest explains."""

    @staticmethod
    def of(shard: ShardLog | ShardSite | HasSite) -> ShardLog:
        """The log of anything that represents a shard."""
        if isinstance(shard, ShardLog):
            return shard
        if isinstance(shard, ShardSite):
            return ShardLog(shard)
        log = getattr(shard, "log", None)
        return log if isinstance(log, ShardLog) else ShardLog(shard.site)

    def __str__(self) -> str:
        return str(self._site)

    @property
    def shard(self) -> UUID:
        """The shard's id."""
        return self._site.shard

    @property
    def env(self) -> Env:
        """Clocks and threads."""
        return self._site.env

    def state(self) -> tuple[ShardManifest | None, FloorValues]:
        """The latest manifest and the floors right after it. Two requests when nothing changed.

        None for a shard that has none, and for one of a dropped table: nothing of it counts (C-16).
        """
        found, floors = self.manifests.latest_with_floors()
        return (None if found is None or found.dropped else found), floors

    def latest(self) -> ShardManifest | None:
        """The latest manifest, or None for a shard that has none. Costs what `state` costs."""
        return self.state()[0]

    def floors(self) -> FloorValues:
        """All floors. One listing."""
        return self.manifests.floors.load()

    # -- where ------------------------------------------------------------------------------------

    def site(self, manifest: ShardManifest | None, floors: FloorValues) -> ShardSite:
        """Where the log is by that manifest; `floors` were read after it.

        Raises `WalStoreMismatch` when its folder is not there, or names another table (S-1, S-8).
        """
        if self._stores is None:
            return self._site
        return self._stores.site_at(self.shard, self._place(self._stores, manifest, floors))

    def place(self) -> LogPlace:
        """Where the manifest says that the log is, reachable or not. Costs what `state` costs."""
        if self._stores is None:
            return BESIDE_THE_DATA
        return self._place(self._stores, *self.state())

    def _place(
        self, stores: WalStores, manifest: ShardManifest | None, floors: FloorValues
    ) -> LogPlace:
        place = stores.place(self.shard, manifest, floors)
        self._newest = max(place.seq, self._newest or 0)
        return place

    def current_site(self) -> ShardSite:
        """Where the log is now. Costs what `state` costs."""
        return self.site(*self.state())

    def segment(self, position: int) -> LogSegment:
        """Where the entry at that position is, or will be. No request above the last known move.

        Raises `WalStoreMismatch` when the folder that took it is gone.
        """
        if self._stores is None:
            return LogSegment(self._site)
        newest = self.place().seq if self._newest is None else self._newest
        return self._stores.segment(self.shard, newest, position)

    # -- how far ----------------------------------------------------------------------------------

    def end(
        self, manifest: ShardManifest, floors: FloorValues, *, vouched: bool = True
    ) -> tuple[ShardSite, Position]:
        """Where the log is by that manifest, and the last position used in it. Seven requests when
        nothing was added.

        `floors` were read after the manifest. A missing log is an error (S-7), unless they prove
        that no row is missing (S-2): then it ends at R. Raises `SnapshotExpired` when entries after
        R were collected during the call. Not `vouched`: one request less, and the caller reads the
        floors after it to see that.
        """
        known = max(self.seen[1] if self.seen else 0, floors.highest_used(manifest))
        try:
            site = self.site(manifest, floors)
            tip = find_tip(site, Position(known))
        except (WalStoreMismatch, StoreError):
            if not floors.is_closed(manifest):  # guard: S-7 always
                raise
            # guard: S-7 test_error_is_no_end_of_the_log
            if self._stores is None or self._stores.place(self.shard, manifest, floors).uri is None:
                raise  # a log beside the data is never lost alone
            return self._site, manifest.replay_after
        # Entries may be flushed and collected while we probe, and a collected entry looks like the
        # end of the log. The floor rises before any deletion, so read it after the probes (G-7c).
        floor = self.floors().wal if vouched else 0
        if floor > manifest.replay_after:  # guard: L-1 test_reader_overtaken_by_collection
            raise SnapshotExpired(
                f"{self}: the log was collected through {floor} while a read planned on manifest "
                f"{manifest.version} with R={manifest.replay_after}; read again"
            )
        self.saw(floors, tip)
        return site, tip

    def saw(self, floors: FloorValues, tip: Position) -> None:
        """Remember the floors and the tip. Of two threads that do so, either one counts."""
        before = self.seen
        self.seen = floors, tip if before is None else max(tip, before[1])

    def tip(self) -> Position:
        """The last position used, 0 for an empty log. Ten requests when little was added."""
        last: SnapshotExpired | None = None
        for _ in self.env.attempts(first_delay=0):
            manifest, floors = self.state()
            try:
                if manifest is not None:
                    return self.end(manifest, floors)[1]
                return find_tip(self.site(None, floors), Position(floors.highest_used(None)))
            except SnapshotExpired as moved:
                last = moved
        raise SnapshotExpired(
            f"{self}: its log was moved or collected again and again during the search for its"
            " tip; try again"
        ) from last

    def lost_through(self, position: int) -> int | None:
        """For an entry whose store is gone, the position through which only feeds miss entries.

        None: rows may be missing (S-7), or the log has left that store, which may come back.
        """
        manifest, floors = self.state()
        if manifest is None or not floors.is_closed(manifest):
            return None
        return None if position <= self.place().after else int(manifest.replay_after)

    def sizes(self, after: int, count: int) -> list[int]:
        """Bytes of the next `count` entries after a position; 0 for a missing one."""
        found: list[int] = []
        while len(found) < count:
            first = after + len(found) + 1
            where = self.segment(first)
            wanted = [
                paths.wal_path(self.shard, Position(first + i))
                for i in range(where.count(first, count - len(found)))
            ]
            metas = where.site.wal.head_many(wanted)
            found += [0 if meta is None else meta.size for meta in metas]
        return found

    def require_uncollected(self, position: int, floors: FloorValues) -> None:
        """Raise `SnapshotExpired` when `floors` say that the position was collected.

        An entry found there proves nothing: a writer that slept may have put it there, and nobody
        acknowledged it (G-7b). Floors rise before anything is deleted, so floors read *after* an
        entry vouch for it.
        """
        if position <= floors.wal:
            raise SnapshotExpired(
                f"{self}: position {position} was collected; the log now starts after position"
                f" {floors.wal}. Start there, or read the table at a checkpoint"
            )

    def hole(self, position: int) -> MissingEntry:
        """The error for an entry that must exist and does not."""
        return MissingEntry(
            f"{self}: the log has a hole at position {position}, "
            f"{paths.wal_path(self.shard, Position(position))} does not exist although later "
            "entries were written. "
            "Rows may be lost; restore that object or clone from a checkpoint."
        )
