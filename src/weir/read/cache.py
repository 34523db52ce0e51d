"""What one table handle remembers of its reads, so that the next one pays only for what is new.

Keeps
  F-12 fences are no rows
  L-5  a read sees the entries of its own cut, also while another read extends the level
  L-10 what is kept is bounded: entries and tails in bytes, the common level as `common` says
A lookup right after a put costs the one entry that was added, not the whole tail: 0.8 ms instead of
8 ms behind 400 entries (local disk). A tail too long to be kept is read in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

import pyarrow as pa

from weir.env import Env
from weir.format import paths
from weir.format.schema import TableSchema, align_batch
from weir.format.wal_entry import WalEntry, decode_entry
from weir.lake.cache import ByteCache
from weir.log.shard_log import ShardLog
from weir.log.site import ShardSite
from weir.log.tags import is_live
from weir.log.tailer import WalTailer
from weir.merge.levels import MemLevel, MemView
from weir.read.common import COMMON_BYTES, CommonLevel
from weir.records.cut import ShardCut
from weir.types import Position

HELD_ENTRIES: Final = 10_000
"""The longest tail held as one level, unless it has more bytes than a read may hold; the default
MemTable is flushed after 8000 puts."""
_READS_KEPT: Final = 4
"""The entries kept by a table handle take at most as much memory as this many reads (L-10), and so
do the tails."""
_OVERHEAD_BYTES: Final = 1024
_TAKEN_BYTES: Final = 4 << 20
"""Bytes of entries added to a kept tail per step, so that one too large is dropped early."""


class ReadCache:
    """Found by `core.attached.of(ReadCache)`. Safe to share between threads."""

    def __init__(self, env: Env) -> None:
        self._env = env
        kept = _READS_KEPT * env.limits.read_bytes
        self.common: CommonLevel | None = None
        """The last one; of two reads at once the later one's stays."""
        # Entries are keyed by their place, which never holds other bytes.
        self._entries: ByteCache[WalEntry] = ByteCache(kept, env, "entries")
        self._tails: ByteCache[_HeldTail] = ByteCache(kept, env, "tails")
        self._small: ByteCache[tuple[TableSchema, pa.RecordBatch]] = ByteCache(COMMON_BYTES, env)

    def keep(self, site: ShardSite, position: Position, data: bytes) -> None:
        """Cache an entry that the caller fetched, so that it is not fetched again."""
        path = paths.wal_path(site.shard, position)
        self._keep(site.shard, decode_entry(data, position=position, path=path))

    def _keep(self, shard: UUID, entry: WalEntry) -> WalEntry:
        return self._entries.put((shard, int(entry.position)), entry, entry.size + _OVERHEAD_BYTES)

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
            yield self._keep(log.shard, entry)

    def small(
        self, shard: UUID, name: str, schema: TableSchema, read: Callable[[], pa.RecordBatch]
    ) -> pa.RecordBatch:
        """The rows of a small SSTable in WAL shape, read once under each schema."""
        held = self._small.get((shard, name))
        if held is not None and held[0].is_same(schema):
            return held[1]
        rows = read()
        self._small.put((shard, name), (schema, rows), rows.nbytes + _OVERHEAD_BYTES)
        return rows

    def tail(
        self, log: ShardLog, cut: ShardCut, schema: TableSchema, *, pinned: bool
    ) -> MemView | None:
        """The tail of a cut as a level that grows with the log; None if it is too large to keep."""
        if cut.wal_through - cut.replay_after > HELD_ENTRIES:
            return None
        tail = self._held(cut, schema)
        if tail is None:
            return None
        fresh: list[WalEntry] = []
        nbytes = 0
        missing = self.entries(log, tail.last, cut.wal_through, pinned=pinned)
        for entry in missing if tail.last < cut.wal_through else ():
            fresh.append(entry)
            nbytes += entry.size
            if nbytes > min(_TAKEN_BYTES, self._env.limits.read_bytes):
                self._extend(cut, tail, fresh)
                fresh, nbytes = [], 0
            if tail.is_too_large:
                return None
        if fresh:
            self._extend(cut, tail, fresh)
        return tail.view(cut)

    def _held(self, cut: ShardCut, schema: TableSchema) -> _HeldTail | None:
        """What is held of the tail, perhaps nothing yet; None if it is known to be too large."""
        tail = self._tails.get(_key(cut))
        if tail is None or not tail.schema.is_same(schema):
            return _HeldTail(schema, cut, self._env)
        return None if tail.is_too_large else tail

    def _extend(self, cut: ShardCut, tail: _HeldTail, entries: Sequence[WalEntry]) -> None:
        tail.extend(entries)
        # Again for each size: it counts as much as it holds.
        self._tails.put(_key(cut), tail, tail.nbytes + _OVERHEAD_BYTES)


def _key(cut: ShardCut) -> tuple[UUID, int, int]:
    return cut.shard, int(cut.replay_after), int(cut.current_generation)


class _Reached(NamedTuple):
    """The tail up to one position."""

    view: MemView
    nbytes: int


class _HeldTail:
    """One tail: the entries after R, as far as they were read. Safe to share between threads."""

    def __init__(self, schema: TableSchema, cut: ShardCut, env: Env) -> None:
        self.schema = schema
        self._limit = env.limits.read_bytes
        self._lock = env.threads.lock()
        self._after = int(cut.replay_after)
        self._generation = cut.current_generation
        # One item for each position after R, appended in one step: an interrupt leaves the tail
        # with the whole entry or without it (F-16).
        self._reached: list[_Reached] = [_Reached(MemLevel((), schema, env).now(), 0)]
        self.is_too_large = False
        """Remembered without the rows, so that no read gathers them again."""

    @property
    def last(self) -> int:
        """The last position that was read."""
        return self._after + len(self._reached) - 1

    @property
    def nbytes(self) -> int:
        """Size of the entries held."""
        return self._reached[-1].nbytes

    def extend(self, entries: Sequence[WalEntry]) -> None:
        """Append the entries that follow; others were appended by another read."""
        with self._lock:
            for entry in entries:
                if entry.position == self.last + 1 and not self.is_too_large:
                    self._take(entry)

    def _take(self, entry: WalEntry) -> None:
        view, nbytes = self._reached[-1]
        if is_live(entry, self._generation, keyed=bool(self.schema.primary_key)):
            view = view.plus([align_batch(batch, self.schema.wal) for batch in entry.batches])
            nbytes += entry.size
        if nbytes > self._limit:  # guard: L-10 simulator:limits
            self.is_too_large = True
            self._reached = self._reached[:1]
        else:
            self._reached.append(_Reached(view, nbytes))

    def view(self, cut: ShardCut) -> MemView | None:
        """The tail as that cut sees it; None when it is too large."""
        with self._lock:
            if self.is_too_large:
                return None
            return self._reached[cut.wal_through - self._after].view


def live_entries(
    entries: Iterable[WalEntry], current_generation: int, *, keyed: bool
) -> Iterator[WalEntry]:
    """The entries whose rows count; fences are left out (F-12)."""
    return (entry for entry in entries if is_live(entry, current_generation, keyed=keyed))
