"""The tails of the logs as a reader process remembers them: each entry is fetched and decoded once.

Keeps
  F-12 fences are no rows
  G-9  a position once used stays used, so the next search begins at the remembered tip
Entries are keyed by their path, which never holds other bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final
from uuid import UUID

import pyarrow as pa

from weir.env import Env
from weir.errors import SnapshotExpired
from weir.format import paths
from weir.format.manifest import ShardManifest
from weir.format.schema import TableSchema
from weir.format.wal_entry import WalEntry, decode_entry
from weir.lake.cache import ByteCache
from weir.log.floors import FloorValues
from weir.log.manifests import Manifests
from weir.log.shard_log import ShardLog
from weir.log.site import ShardSite
from weir.log.tags import is_live
from weir.log.tailer import WalTailer
from weir.log.tip import find_tip
from weir.merge.common import COMMON_BYTES, CommonLevel
from weir.merge.tail_levels import TailLevels, is_same_schema
from weir.types import Position

_READS_KEPT: Final = 4
"""The decoded log entries kept by a table handle take at most as much as this many reads (L-10)."""
_ENTRY_OVERHEAD_BYTES: Final = 1024


class LogCache:
    """What one table handle knows of its shards' manifests and logs. Thread-safe."""

    def __init__(self, env: Env) -> None:
        self._lock = env.threads.lock()
        self._manifests: dict[UUID, Manifests] = {}
        self._tips: dict[UUID, Position] = {}
        self._floors: dict[UUID, FloorValues] = {}
        self._entries: ByteCache[WalEntry] = ByteCache(_READS_KEPT * env.limits.read_bytes, env)
        self.looks: dict[UUID, object] = {}
        """Per shard, the requests of the last `read.fast_snapshot`, for it to repeat."""
        self.look: object = None
        """Its requests for many shards together, if they found nothing changed."""
        self.plan: object = None
        """How `read.reader` last combined the levels of many shards."""
        self.levels = TailLevels(env)
        self.common = CommonLevel(env)
        self._small: ByteCache[tuple[TableSchema, pa.RecordBatch]] = ByteCache(COMMON_BYTES, env)
        self.base_version: int | None = None
        """The base version that the last durable read saw; an older one would do as well."""
        self.record_number: int | None = None
        """The number of the table's record that the last durable read of several shards saw."""
        self.shards: list[UUID] | None = None
        """The shards as the last durable read listed them."""

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

    def tip(self, site: ShardSite, manifest: ShardManifest, floors: FloorValues) -> Position:
        """The last position used. Seven requests when nothing was added.

        Raises `SnapshotExpired` when entries after the manifest's R were collected during the call.
        """
        known = max(self._tips.get(site.shard, 0), floors.highest_used(manifest))
        tip = find_tip(site, Position(known))
        # Entries may be flushed and collected while we probe, and a collected entry looks like the
        # end of the log. The floor rises before any deletion, so read it after the probes (G-7c).
        floor = self.manifests(site).floors.load().wal
        if floor > manifest.replay_after:
            raise SnapshotExpired(
                f"{site}: the log was collected through {floor} while a read planned on manifest "
                f"{manifest.version} with R={manifest.replay_after}; read again"
            )
        self.saw(site.shard, floors, tip)
        return tip

    def saw(self, shard: UUID, floors: FloorValues, tip: Position) -> None:
        """Remember the floors and the tip found for a shard."""
        with self._lock:
            self._floors[shard] = floors
            self._tips[shard] = max(tip, self._tips.get(shard, tip))

    def seen(self, shard: UUID) -> tuple[FloorValues | None, Position | None]:
        """The floors and the tip last found for a shard."""
        with self._lock:
            return self._floors.get(shard), self._tips.get(shard)

    def keep(self, site: ShardSite, position: Position, data: bytes) -> None:
        """Cache an entry that the caller fetched, so that it is not fetched again."""
        path = paths.wal_path(site.shard, position)
        entry = decode_entry(data, position=position, path=path)
        self._entries.put((site.shard, int(position)), entry, entry.size + _ENTRY_OVERHEAD_BYTES)

    def small(
        self, shard: UUID, name: str, schema: TableSchema, read: Callable[[], pa.RecordBatch]
    ) -> pa.RecordBatch:
        """The rows of a small SSTable in WAL shape, read once under each schema."""
        held = self._small.get((shard, name))
        if held is not None and is_same_schema(held[0], schema):
            return held[1]
        rows = read()
        self._small.put((shard, name), (schema, rows), rows.nbytes + _ENTRY_OVERHEAD_BYTES)
        return rows

    def entries(
        self, shard: ShardLog | ShardSite, after: int, last: int, *, pinned: bool
    ) -> Iterator[WalEntry]:
        """Every entry in `(after, last]`; one get for each entry not read before.

        Given the `ShardLog`, it follows a log that was moved since this handle last read it (S-9).

        `pinned` says that a checkpoint holds the entries. Otherwise each round of gets costs one
        more list: an entry found at a position that has been collected is a zombie's, and raises
        `SnapshotExpired` (G-7b).
        """
        log, start = ShardLog.of(shard), after
        while start < last:
            entry = self._entries.get((log.shard, start + 1))
            if entry is None:
                break
            yield entry
            start += 1
        if start == last:
            return
        for entry in WalTailer(log).read_range(start, last, pinned=pinned):
            size = entry.size + _ENTRY_OVERHEAD_BYTES
            yield self._entries.put((log.shard, int(entry.position)), entry, size)


def live_entries(
    entries: Iterable[WalEntry], current_generation: int, *, keyed: bool
) -> Iterator[WalEntry]:
    """The entries whose rows count; fences are left out (F-12)."""
    return (entry for entry in entries if is_live(entry, current_generation, keyed=keyed))
