"""Reads one shard's log, in order, while it grows. Takes nothing, fences nobody, asks no writer.

Keeps
  F-7  an entry with rows whose epoch is lower than its predecessor's is damage
  F-12 fences are passed over for readers of rows, and shown to those who ask for raw entries
  G-7c the WAL floor tells a collected prefix from a hole; a hole is `MissingEntry`, never a silent
       skip. It is read after the entries and before they are handed out: what lies in a collected
       place is a zombie's, and nobody acknowledged it
  L-10 a round of gets is bounded in bytes, however large the entries are
  S-2  positions that were passed over when a store was lost are read as fences, no store is asked
  S-9  the log is followed from store to store, as `ShardLog` knows them
Entries are fetched concurrently ahead of the reader and handed out in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weir.errors import CorruptEntry
from weir.format import paths
from weir.format.wal_entry import WalEntry, decode_entry
from weir.log.shard_log import ShardLog
from weir.log.site import HasSite, ShardSite, Stretch
from weir.log.stamp import check_identity
from weir.store.api import ObjectMissing, is_local
from weir.store.bounded import get_some
from weir.types import Epoch, Position

PREFETCH_ENTRIES_FIRST = 8
PREFETCH_ENTRIES = 256
"""Entries asked for in one round of concurrent gets: few at first and at the end of the log, where
most would be missing; then twice as many each round. A round ends with its slowest get, so that
rounds of 32 leave a store idle a third of the time."""
PREFETCH_BYTES = 64 << 20
"""Aim of one round of concurrent gets, unless the reader's own limit is less; how many there are
adapts to the size of the entries seen."""
PREFETCH_BYTES_LOCAL = 1 << 20
"""The same for files, which are read one after the other: what stays in the processor's cache until
it is decoded. 500 entries of 41 kB took 88 us each in rounds of 256, 62 in rounds of 32."""


def passed_over(position: Position) -> WalEntry:
    """What is read at a position that holds nothing (S-2): a fence that fences nobody."""
    return WalEntry(position, Epoch(0), None, True, (), None, (), 0)


class WalTailer:
    """A reader of one shard's log, wherever it was moved. Not for several threads at once."""

    def __init__(
        self,
        shard: ShardLog | ShardSite | HasSite,
        start: int | None = None,
        *,
        fences: bool = False,
    ) -> None:
        """Read from position `start` on; None starts at the first entry that may still exist.

        With `fences=True` iteration also yields fence entries.
        """
        self.log = ShardLog.of(shard)
        self._stretch: Stretch | None = None
        self._fences = fences
        self._position = Position(start) if start is not None else None
        self._epoch = 0
        self._seen = 0
        """The highest position found: whatever lies below it was written."""
        self._entry_bytes = 4096.0
        self._ahead = PREFETCH_ENTRIES_FIRST

    @property
    def position(self) -> Position:
        """The position the next iteration step will read."""
        if self._position is None:
            self._position = Position(self.log.floors().wal + 1)
        return self._position

    def tip(self) -> Position:
        """The last position used, 0 for an empty log. Three rounds of requests when little was
        added."""
        return self.log.tip()

    def read(self, position: int) -> WalEntry | None:
        """The entry at that position, fences included; None when the log has not got there yet.

        Raises `SnapshotExpired` when it was collected, `MissingEntry` when it should exist and does
        not, `CorruptEntry` when its bytes are not those of an entry. A get and a listing.
        """
        path = paths.wal_path(self.log.shard, Position(position))
        while True:
            try:
                where = self._where(position)
                if where.is_empty:
                    return passed_over(Position(position))
                store = where.site.wal
                data = store.get(path).data
                break
            except ObjectMissing:
                if not self._came_meanwhile(Position(position)):
                    return None
        self.log.require_uncollected(position, self.log.floors())
        return decode_entry(data, position=Position(position), path=f"{store.uri}/{path}")

    def __iter__(self) -> Iterator[WalEntry]:
        """Entries from the current position to the end of the log as it is when reached."""
        while True:
            entries = self._fetch(self._window())
            if entries:
                self.log.require_uncollected(entries[0].position, self.log.floors())
                yield from self._accept(entries)
            elif not self._came_meanwhile(self.position):
                return

    def follow(
        self, poll: float = 0.1, *, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[WalEntry]:
        """Like iteration, but waits `poll` seconds at the end of the log and goes on, until
        `stop()` is true."""
        while not stop():
            yield from self
            if not stop():
                self.log.env.clock.sleep(poll)

    def read_range(self, after: int, last: int, *, pinned: bool = False) -> Iterator[WalEntry]:
        """Every entry in `(after, last]`, fences included, in order; a missing one is an error.

        `pinned` says that a checkpoint or a consumer holds them, so that the floor may have passed.
        """
        self._position = Position(after + 1)
        while self.position <= last:
            # All of these must be there; but entries may be large, and their size is not known yet.
            self._ahead = max(self._ahead, 4 * PREFETCH_ENTRIES_FIRST)
            entries = self._fetch(min(self._window(), last - self.position + 1))
            if not entries:
                if pinned:
                    # What is held is not collected, but its disk may be gone (S-7).
                    check_identity(self._where(self.position).site)
                if not self._came_meanwhile(self.position):
                    raise self.log.hole(self.position)
                continue
            if not pinned:
                self.log.require_uncollected(entries[0].position, self.log.floors())
            for entry in entries:
                self._check_epoch(entry)
                self._position = Position(entry.position + 1)
                yield entry

    def _where(self, position: int) -> Stretch:
        """The part of the log that the position lies in; asked for once for each part (S-9)."""
        if self._stretch is None or not self._stretch.holds(position):
            self._stretch = self.log.stretch(position)
        return self._stretch

    def _window(self) -> int:
        aim = self._aim(self._where(self.position).site)
        return max(4, min(self._ahead, int(aim / self._entry_bytes)))

    def _aim(self, site: ShardSite) -> int:
        aim = PREFETCH_BYTES_LOCAL if is_local(site.wal) else PREFETCH_BYTES
        return min(aim, site.env.limits.read_bytes)

    def _fetch(self, count: int) -> list[WalEntry]:
        """Up to `count` entries from the current position, ending before the first missing one."""
        first = self.position
        where = self._where(first)
        if where.is_empty:
            return [passed_over(Position(first + i)) for i in range(where.count(first, count))]
        wanted = [
            paths.wal_path(self.log.shard, Position(first + i))
            for i in range(where.count(first, count))
        ]
        data = get_some(where.site.wal, wanted, self._aim(where.site))
        self._ahead = min(2 * self._ahead, PREFETCH_ENTRIES)
        found = [offset for offset, body in enumerate(data) if body is not None]
        if found:
            self._seen = max(self._seen, first + found[-1])
        if len(found) < len(data):
            self._ahead = PREFETCH_ENTRIES_FIRST
            data = data[: data.index(None)]
        uris = [f"{where.site.wal.uri}/{path}" for path in wanted]
        return self._decode(first, uris, data, 4 * self._aim(where.site))

    def _decode(
        self, first: Position, uris: list[str], data: list[bytes | None], room: int
    ) -> list[WalEntry]:
        entries: list[WalEntry] = []
        for offset, body in enumerate(data):
            assert body is not None, "G-9: a hole was cut off before decoding"
            entry = decode_entry(body, position=Position(first + offset), path=uris[offset])
            self._entry_bytes += (entry.size - self._entry_bytes) / 8
            room -= entry.size
            if entries and room < 0:
                break  # compressed entries are small until they are read; the rest comes later
            entries.append(entry)
        return entries

    def _accept(self, entries: list[WalEntry]) -> Iterator[WalEntry]:
        for entry in entries:
            self._check_epoch(entry)
            self._position = Position(entry.position + 1)
            if self._fences or not entry.is_fence:
                yield entry

    def _check_epoch(self, entry: WalEntry) -> None:
        if entry.epoch >= self._epoch:
            self._epoch = entry.epoch
        elif not entry.is_fence:
            raise CorruptEntry(
                f"{self.log}: the entry at position {entry.position} has epoch {entry.epoch} "
                f"below the epoch {self._epoch} before it (F-7); look at "
                f"{self._where(entry.position).site.wal.uri}/"
                f"{paths.wal_path(self.log.shard, entry.position)}, and who wrote it"
            )
        # A fence that fell behind holds no rows and owns nothing: a native claimant looks for the
        # tip only after its claim, and one that slept in between leaves its fence above a newer
        # one. It finds itself fenced before it serves.

    def _came_meanwhile(self, position: Position) -> bool:
        """Nothing was found at `position`: False if the log just ends there, True if it was written
        since, or goes on in another store.

        Raises when neither can be: `SnapshotExpired`, or `MissingEntry` for a hole; and
        `WalStoreMismatch` when the log's own store is not there (S-7).
        """
        looked = self._where(position)
        manifest, floors = self.log.state()
        self.log.require_uncollected(position, floors)
        self.log.site(floors)  # S-3: the floors tell of a move
        self._stretch = self.log.stretch(position)
        if self._stretch != looked:
            return True
        check_identity(looked.site)
        if position > max(self._seen, floors.highest_used(manifest)):
            return False
        # The manifest is younger than our look at the log: only a second look tells a hole.
        if looked.site.wal.head(paths.wal_path(self.log.shard, position)) is not None:
            return True
        self.log.require_uncollected(position, self.log.floors())
        raise self.log.hole(position)
