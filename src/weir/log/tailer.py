"""Reads one shard's log in order while it grows. Claims nothing, fences nobody, needs no writer.

Keeps
  F-7  an entry with rows whose epoch is lower than its predecessor's is damage
  F-12 fences are skipped for readers of rows, and shown to readers of raw entries
  G-7c the WAL floor separates a collected prefix from a hole; a hole is `MissingEntry`, never a
       silent skip. The floor is read after the entries and before they are handed out: an entry in
       a collected place is a zombie's, and nobody acknowledged it
  L-10 a round of gets is bounded in bytes, however large the entries are
  S-9  the log is followed from store to store, as `ShardLog` knows them
Entries are fetched concurrently ahead of the reader and handed out in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weir.errors import CorruptEntry
from weir.format import paths
from weir.format.wal_entry import WalEntry, decode_entry
from weir.log.floors import FloorValues
from weir.log.shard_log import ShardLog
from weir.log.site import HasSite, LogSegment, ShardSite
from weir.store.api import ObjectMissing, is_local
from weir.store.bounded import get_some
from weir.types import Position

PREFETCH_ENTRIES_FIRST = 8
PREFETCH_ENTRIES = 256
"""Entries in one round of concurrent gets: few at first and at the end of the log, where most would
be missing; otherwise twice as many each round. A round ends with its slowest get, so rounds of 32
leave a store idle a third of the time."""
PREFETCH_BYTES = 64 << 20
"""Target bytes of one round of concurrent gets, unless the reader's own limit is lower; the number
of gets adapts to the size of the entries seen."""
PREFETCH_BYTES_LOCAL = 1 << 20
"""The same for files, which are read one after the other: small enough to stay in the processor
cache until decoded. 500 entries of 41 kB took 88 us each in rounds of 256, 62 in rounds of 32."""


class WalTailer:
    """A reader of one shard's log that follows its moves. Not thread-safe."""

    def __init__(
        self,
        shard: ShardLog | ShardSite | HasSite,
        start: int | None = None,
        *,
        fences: bool = False,
        is_held: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Read from position `start` on; None starts at the first entry that may still exist.

        With `fences=True` iteration also yields fence entries. `is_held` is asked about positions
        below the floor, after their entries were read: whether they are kept for this reader.
        """
        self.log = ShardLog.of(shard)
        self._segment: LogSegment | None = None
        self._fences = fences
        self._is_held = is_held
        self._position = Position(start) if start is not None else None
        self._epoch = 0
        self._seen = 0
        """The highest position found: every position below it was written."""
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
        """The entry at that position, fences included; None when the log has not reached it.

        Raises `SnapshotExpired` when it was collected, `MissingEntry` when it should exist and does
        not, `CorruptEntry` when its bytes are not those of an entry. A get and a listing.
        """
        path = paths.wal_path(self.log.shard, Position(position))
        while True:
            try:
                store = self._where(position).site.wal
                data = store.get(path).data
                break
            except ObjectMissing:
                if not self._came_meanwhile(Position(position)):
                    return None
        self._require_uncollected(position, self.log.floors())
        return decode_entry(data, position=Position(position), path=f"{store.uri}/{path}")

    def __iter__(self) -> Iterator[WalEntry]:
        """Entries from the current position to the end of the log as it is when reached."""
        while True:
            entries = self._fetch(self._window())
            if entries:
                # guard: G-7c simulator:feeds
                self._require_uncollected(entries[0].position, self.log.floors())
                yield from self._accept(entries)
            elif not self._came_meanwhile(self.position):
                return

    def follow(
        self, poll: float = 0.1, *, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[WalEntry]:
        """Like iteration, but waits `poll` seconds at the end of the log and continues, until
        `stop()` is true."""
        while not stop():
            yield from self
            if not stop():
                self.log.env.clock.sleep(poll)

    def read_range(self, after: int, last: int, *, pinned: bool = False) -> Iterator[WalEntry]:
        """Every entry in `(after, last]`, fences included, in order; a missing one is an error.

        `pinned`: a checkpoint or a consumer holds the entries, so the floor may be above them.
        """
        self._position = Position(after + 1)
        while self.position <= last:
            # All of these must exist; but entries may be large, and their size is not known yet.
            self._ahead = max(self._ahead, 4 * PREFETCH_ENTRIES_FIRST)
            entries = self._fetch(min(self._window(), last - self.position + 1))
            if not entries:
                if not self._came_meanwhile(self.position):
                    raise self.log.hole(self.position)
                continue
            if not pinned:
                self.log.require_uncollected(entries[0].position, self.log.floors())
            for entry in entries:
                self._check_epoch(entry)
                self._position = Position(entry.position + 1)
                yield entry

    def _where(self, position: int) -> LogSegment:
        """The stretch of the log that contains the position; looked up once per stretch (S-9)."""
        if self._segment is None or not self._segment.holds(position):
            self._segment = self.log.segment(position)
        return self._segment

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
        entries: list[WalEntry] = []
        for offset, body in enumerate(data):
            assert body is not None, "G-9: a hole was cut off before decoding"
            entry = decode_entry(body, position=Position(first + offset), path=uris[offset])
            self._entry_bytes += (entry.size - self._entry_bytes) / 8
            entries.append(entry)
        return entries

    def _accept(self, entries: list[WalEntry]) -> Iterator[WalEntry]:
        for entry in entries:
            self._check_epoch(entry)
            self._position = Position(entry.position + 1)
            if self._fences or not entry.is_fence:  # guard: F-12 always
                yield entry

    def _check_epoch(self, entry: WalEntry) -> None:
        if entry.epoch >= self._epoch:
            self._epoch = entry.epoch
        elif not entry.is_fence:
            raise CorruptEntry(
                f"{self.log}: the entry at position {entry.position} has epoch {entry.epoch}, but"
                f" an entry before it has epoch {self._epoch}; find out who wrote"
                f" {self._where(entry.position).site.wal.uri}/"
                f"{paths.wal_path(self.log.shard, entry.position)}"
            )
        # A fence that fell behind holds no rows and owns nothing: a native claimant probes the tip
        # only after its claim, and if it slept in between, its fence lands above a newer one. It
        # learns that it is fenced before it serves.

    def _came_meanwhile(self, position: Position) -> bool:
        """After a miss at `position`: True if the entry was written since or is in another store.

        False if the log ends there. Raises when neither can be: `SnapshotExpired`, `MissingEntry`
        for a hole, and `WalStoreMismatch` when the log was moved to a folder that is gone (S-7).
        """
        looked = self._where(position)
        manifest, floors = self.log.state()
        self._require_uncollected(position, floors)
        # guard: S-9 test_s9_a_feed_that_was_open_before_follows_every_move
        self.log.site(manifest, floors)  # S-3: the manifest tells of a move
        self._segment = self.log.segment(position)
        if self._segment != looked:
            return True
        if position > max(self._seen, floors.highest_used(manifest)):
            return False
        # The manifest is newer than our read of the log: only a second read proves a hole.
        if looked.site.wal.head(paths.wal_path(self.log.shard, position)) is not None:
            return True
        self._require_uncollected(position, self.log.floors())
        raise self.log.hole(position)

    def _require_uncollected(self, position: int, floors: FloorValues) -> None:
        if position > floors.wal or not self._is_held(position):
            self.log.require_uncollected(position, floors)
