"""What one table handle knows of its shards' manifests and logs: a later look begins there.

Keeps
  G-9  a position once used stays used, so the next search begins at the remembered tip
  G-7c the WAL floor is read after the search: what was collected is not the end of the log
"""

from __future__ import annotations

from uuid import UUID

from weir.env import Env
from weir.errors import SnapshotExpired
from weir.format.manifest import ShardManifest
from weir.log.floors import FloorValues
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.log.tip import find_tip
from weir.types import Position


class LogCache:
    """The manifests, floors and tips last seen. Safe to share between threads."""

    def __init__(self, env: Env) -> None:
        self._lock = env.threads.lock()
        self._manifests: dict[UUID, Manifests] = {}
        self._seen: dict[UUID, tuple[FloorValues, Position]] = {}

    def manifests(self, site: ShardSite) -> Manifests:
        """The shard's manifests, remembering the latest seen."""
        with self._lock:
            found = self._manifests.get(site.shard)
            if found is None:
                found = self._manifests[site.shard] = Manifests(site)
            return found

    def latest(self, site: ShardSite) -> tuple[ShardManifest | None, FloorValues]:
        """The latest manifest and the floors. Two requests when nothing changed."""
        return self.manifests(site).latest_with_floors()

    def tip(
        self, site: ShardSite, manifest: ShardManifest, floors: FloorValues, *, vouched: bool = True
    ) -> Position:
        """The last position used. Seven requests when nothing was added.

        Raises `SnapshotExpired` when entries after the manifest's R were collected during the call.
        Not `vouched`: one request less, and the caller reads the floors after it to see that.
        """
        seen = self.seen(site.shard)
        known = max(0 if seen is None else seen[1], floors.highest_used(manifest))
        tip = find_tip(site, Position(known))
        # Entries may be flushed and collected while we probe, and a collected entry looks like the
        # end of the log. The floor rises before any deletion, so read it after the probes (G-7c).
        floor = self.manifests(site).floors.load().wal if vouched else 0
        if floor > manifest.replay_after:  # guard: L-1 test_reader_overtaken_by_collection
            raise SnapshotExpired(
                f"{site}: the log was collected through {floor} while a read planned on manifest "
                f"{manifest.version} with R={manifest.replay_after}; read again"
            )
        self.saw(site.shard, floors, tip)
        return tip

    def saw(self, shard: UUID, floors: FloorValues, tip: Position) -> None:
        """Remember the floors and the tip found for a shard."""
        with self._lock:
            before = self._seen.get(shard)
            self._seen[shard] = floors, tip if before is None else max(tip, before[1])

    def seen(self, shard: UUID) -> tuple[FloorValues, Position] | None:
        """The floors and the tip last found for a shard; None before its tip was found."""
        with self._lock:
            return self._seen.get(shard)

    def forget(self, shard: UUID) -> None:
        """Forget both: they were found to be old in a way that only the manifest explains."""
        with self._lock:
            self._seen.pop(shard, None)
