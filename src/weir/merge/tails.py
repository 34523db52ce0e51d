"""The tails of the logs as a reader process remembers them: each entry is fetched and decoded once.

Keeps
  F-12 fences are no rows
  G-9  positions once used stay used, so that a remembered tip is where the next look begins
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
"""The decoded log entries kept by one table handle take as much as so many reads (L-10)."""
_ENTRY_OVERHEAD_BYTES: Final = 1024


class Tails:
    """What one table handle knows of its shards' manifests and logs. Safe between threads."""

    def __init__(self, env: Env) -> None:
        self._lock = env.threads.lock()
        self._manifests: dict[UUID, Manifests] = {}
        self._tips: dict[UUID, Position] = {}
        self._floors: dict[UUID, FloorValues] = {}
        self._entries: ByteCache[WalEntry] = ByteCache(_READS_KEPT * env.limits.read_bytes, env)
        self.looks: dict[UUID, object] = {}
        """What `read.fast_snapshot` asked when it last looked at a shard: it asks it again."""
        self.look: object = None
        """What it asked of many together, and found as it was."""
        self.plan: object = None
        """How `read.reader` last put the levels of many shards together."""
        self.levels = TailLevels(env)
        self.common = CommonLevel(env)
        self._small: ByteCache[tuple[TableSchema, pa.RecordBatch]] = ByteCache(COMMON_BYTES, env)
        self.base_version: int | None = None
        """The base as the last durable read saw it; older is as good."""
        self.record_number: int | None = None
        """The table's record as the last durable read of several shards saw it."""
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

        Raises `SnapshotExpired` when entries after the manifest's R were collected while we looked.
        """
        known = max(self._tips.get(site.shard, 0), floors.highest_used(manifest))
        tip = find_tip(site, Position(known))
        # Entries are flushed and collected while we probe, and what is gone looks like the end of
        # the log. The floor rises before anything goes: read after the probes, it tells (G-7c).
        floor = self.manifests(site).floors.load().wal
        if floor > manifest.replay_after:
            raise SnapshotExpired(
                f"{site}: the log was collected through {floor} while a read planned on manifest "
                f"{manifest.version} with R={manifest.replay_after}; read again"
            )
        self.saw(site.shard, floors, tip)
        return tip

    def saw(self, shard: UUID, floors: FloorValues, tip: Position) -> None:
        """Remember a look at a shard."""
        with self._lock:
            self._floors[shard] = floors
            self._tips[shard] = max(tip, self._tips.get(shard, tip))

    def seen(self, shard: UUID) -> tuple[FloorValues | None, Position | None]:
        """The floors and the tip of the last look."""
        with self._lock:
            return self._floors.get(shard), self._tips.get(shard)

    def keep(self, site: ShardSite, position: Position, data: bytes) -> None:
        """Take an entry somebody fetched: it is not asked for again."""
        path = paths.wal_path(site.shard, position)
        entry = decode_entry(data, position=position, path=path)
        self._entries.put((site.shard, int(position)), entry, entry.size + _ENTRY_OVERHEAD_BYTES)

    def small(
        self, shard: UUID, name: str, schema: TableSchema, read: Callable[[], pa.RecordBatch]
    ) -> pa.RecordBatch:
        """The rows of a small SSTable, WAL shape: read once under each schema."""
        held = self._small.get((shard, name))
        if held is not None and is_same_schema(held[0], schema):
            return held[1]
        rows = read()
        self._small.put((shard, name), (schema, rows), rows.nbytes + _ENTRY_OVERHEAD_BYTES)
        return rows

    def entries(
        self, shard: ShardLog | ShardSite, after: int, last: int, *, pinned: bool
    ) -> Iterator[WalEntry]:
        """Every entry in `(after, last]`; one get for each that was never read before.

        Given the `ShardLog`, it follows a log that was moved since this handle last looked (S-9).

        `pinned`: a checkpoint holds them. Else one list more for each round of gets: what is found
        where an entry was collected meanwhile is a sleeper's, and `SnapshotExpired` (G-7b).
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
