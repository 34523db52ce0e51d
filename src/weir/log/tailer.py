"""Reads one shard's log, in order, while it grows. Takes nothing, fences nobody, asks no writer.

Keeps
  F-7  an entry with rows whose epoch is lower than its predecessor's is damage
  F-12 fences are passed over for readers of rows, and shown to those who ask for raw entries
  G-7c the WAL floor tells a collected prefix from a hole; a hole is `MissingEntry`, never a silent
       skip
Entries are fetched concurrently ahead of the reader and handed out in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weir.errors import CorruptEntry, MissingEntry, SnapshotExpired
from weir.format import paths
from weir.format.wal_entry import WalEntry, decode_entry
from weir.log.appender import HasSite
from weir.log.floors import FloorValues
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.log.tip import find_tip
from weir.store.api import ObjectMissing, is_local
from weir.types import Position

PREFETCH_ENTRIES_FIRST = 8
PREFETCH_ENTRIES = 256
"""Entries asked for in one round of concurrent gets: few at first and at the end of the log, where
most would be missing; then twice as many each round. A round ends with its slowest get, so that
rounds of 32 leave a store idle a third of the time."""
PREFETCH_BYTES = 64 << 20
"""Aim of one round of concurrent gets; adapts to the size of the entries seen."""
PREFETCH_BYTES_LOCAL = 1 << 20
"""The same for files, which are read one after the other: what stays in the processor's cache until
it is decoded. 500 entries of 41 kB took 88 us each in rounds of 256, 62 in rounds of 32."""


class WalTailer:
    """A reader of one shard's log. Not for use by several threads at once."""

    def __init__(
        self,
        shard: HasSite | ShardSite,
        start: int | None = None,
        *,
        fences: bool = False,
    ) -> None:
        """Read from position `start` on; None starts at the first entry that may still exist.

        With `fences=True` iteration also yields fence entries.
        """
        self.site = shard if isinstance(shard, ShardSite) else shard.site
        self._manifests = Manifests(self.site)
        self.floors: FloorValues | None = None
        """The floors as last read, at the end of the log; they tell whether it was moved (S-3)."""
        self._is_local = is_local(self.site.wal)
        self._fences = fences
        self._start = start
        self._position = Position(start) if start is not None else None
        self._epoch = 0
        self._entry_bytes = 4096.0
        self._ahead = PREFETCH_ENTRIES_FIRST

    @property
    def position(self) -> Position:
        """The position the next iteration step will read."""
        if self._position is None:
            self._position = Position(self._manifests.floors.load().wal + 1)
        return self._position

    def tip(self) -> Position:
        """The last position used, 0 for an empty log. Two or three requests when little was
        added."""
        manifest, floors = self._manifests.latest_with_floors()
        known = max(floors.wal, floors.used, manifest.last_seen if manifest else 0)
        return find_tip(self.site, Position(known))

    def read(self, position: int) -> WalEntry | None:
        """The entry at that position, fences included; None when the log has not got there yet.

        Raises `SnapshotExpired` when it was collected, `MissingEntry` when it should exist and does
        not, `CorruptEntry` when its bytes are not those of an entry. One request.
        """
        path = paths.wal_path(self.site.shard, Position(position))
        try:
            data = self.site.wal.get(path).data
        except ObjectMissing:
            if not self._came_meanwhile(Position(position)):
                return None
            data = self._reread(Position(position), path)
        return decode_entry(data, position=Position(position), path=path)

    def __iter__(self) -> Iterator[WalEntry]:
        """Entries from the current position to the end of the log as it is when reached."""
        while True:
            entries = self._fetch(self._window())
            if not entries:
                if self._came_meanwhile(self.position):
                    continue
                return
            yield from self._accept(entries)

    def follow(
        self, poll: float = 0.1, *, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[WalEntry]:
        """Like iteration, but waits `poll` seconds at the end of the log and goes on, until
        `stop()` is true."""
        while not stop():
            yield from self
            if not stop():
                self.site.env.clock.sleep(poll)

    def read_range(self, after: int, last: int) -> Iterator[WalEntry]:
        """Every entry in `(after, last]`, fences included, in order; a missing one is an error."""
        self._position = Position(after + 1)
        while self.position <= last:
            # All of these must be there; but entries may be large, and their size is not known yet.
            self._ahead = max(self._ahead, 4 * PREFETCH_ENTRIES_FIRST)
            want = min(self._window(), last - self.position + 1)
            entries = self._fetch(want)
            if not entries:
                if self._came_meanwhile(self.position):
                    continue
                raise self._hole(self.position)
            for entry in entries:
                self._check_epoch(entry)
                self._position = Position(entry.position + 1)
                yield entry

    def _window(self) -> int:
        aim = PREFETCH_BYTES_LOCAL if self._is_local else PREFETCH_BYTES
        return max(4, min(self._ahead, int(aim / self._entry_bytes)))

    def _fetch(self, count: int) -> list[WalEntry]:
        """Up to `count` entries from the current position, ending before the first missing one."""
        first = self.position
        wanted = [paths.wal_path(self.site.shard, Position(first + i)) for i in range(count)]
        data = self.site.wal.get_many(wanted)
        self._ahead = min(2 * self._ahead, PREFETCH_ENTRIES)
        if None in data:
            self._ahead = PREFETCH_ENTRIES_FIRST
            end = data.index(None)
            if any(later is not None for later in data[end:]):
                # Perhaps it was only written after we looked: the later one proves it exists by
                # now.
                data[end] = self._reread(Position(first + end), wanted[end])
                return self._decode(first, wanted[: end + 1], data[: end + 1])
            data = data[:end]
        return self._decode(first, wanted, data)

    def _decode(
        self, first: Position, wanted: list[str], data: list[bytes | None]
    ) -> list[WalEntry]:
        entries = []
        for offset, body in enumerate(data):
            assert body is not None, "G-9: a hole was cut off before decoding"
            self._entry_bytes += (len(body) - self._entry_bytes) / 8
            entries.append(
                decode_entry(body, position=Position(first + offset), path=wanted[offset])
            )
        return entries

    def _reread(self, position: Position, path: str) -> bytes:
        try:
            return self.site.wal.get(path).data
        except ObjectMissing:
            self._came_meanwhile(position)
            raise self._hole(position) from None

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
                f"{self.site}: the entry at position {entry.position} has epoch {entry.epoch} "
                f"below the epoch {self._epoch} before it (F-7); look at "
                f"{paths.wal_path(self.site.shard, entry.position)}"
            )
        # A fence that fell behind holds no rows and owns nothing: a native claimant looks for the
        # tip only after its claim, and one that slept in between leaves its fence above a newer
        # one. It finds itself fenced before it serves.

    def _came_meanwhile(self, position: Position) -> bool:
        """Nothing was found at `position`: False if the log just ends there, True if it was written
        since.

        Raises when neither can be: `SnapshotExpired`, or `MissingEntry` for a hole.
        """
        manifest, floors = self._manifests.latest_with_floors()
        self.floors = floors
        if position <= floors.wal:
            raise SnapshotExpired(
                f"{self.site}: position {position} was collected, the log now starts after "
                f"{floors.wal}; "
                "start there, or read the table at a checkpoint"
            )
        known = max(floors.used, manifest.last_seen if manifest else 0)
        if position > known:
            return False
        # The manifest is younger than our look at the log: only a second look tells a hole.
        if self.site.wal.head(paths.wal_path(self.site.shard, position)) is None:
            raise self._hole(position)
        return True

    def _hole(self, position: Position) -> MissingEntry:
        return MissingEntry(
            f"{self.site}: the log has a hole at position {position}, "
            f"{paths.wal_path(self.site.shard, position)} does not exist although later entries "
            "were written. "
            "Rows may be lost; restore that object or clone from a checkpoint."
        )
