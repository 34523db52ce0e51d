"""Exactly-once tokens of a shard: per application the highest batch number that is in (P-2).

A token rides in the log entry (or beside the SSTable) that holds its rows, so it is atomic with
them. Before whatever carries it stops being read, it is recorded here for good: a create-only
marker, the highest number counts. Neither collection nor compaction nor a native writer touches
these.
"""

from __future__ import annotations

from typing import Final

from weir.format import paths
from weir.format.wal_entry import decode_entry
from weir.format.wal_header import HEADER_BYTES, read_header
from weir.log.site import ShardSite
from weir.store.api import ObjectExists, ObjectMissing
from weir.types import Position

_READS: Final = 16


def tokens_in_log(site: ShardSite, after: int, last: int) -> dict[str, int]:
    """Per application the highest batch number in the entries `(after, last]`.

    A ranged read an entry, 16 at a time, and a whole one where there is a token. A collected entry
    has none: whoever collected it recorded them.
    """

    def look(position: int) -> tuple[tuple[str, int], ...]:
        path = paths.wal_path(site.shard, Position(position))
        try:
            header = read_header(site.wal.get_range(path, 0, HEADER_BYTES))
            if header is not None and not header.may_hold_tokens:
                return ()
            data = site.wal.get(path).data
        except ObjectMissing:
            return ()
        return decode_entry(data, position=Position(position), path=path).tokens

    highest: dict[str, int] = {}
    for tokens in site.env.threads.map(look, list(range(after + 1, last + 1)), workers=_READS):
        for app, number in tokens:
            highest[app] = max(number, highest.get(app, number))
    return highest


class Tokens:
    """The recorded tokens of one shard."""

    def __init__(self, site: ShardSite) -> None:
        self._site = site

    def load(self, app: str) -> int | None:
        """The highest batch number recorded for `app`, or None. One listing."""
        numbers = []
        for meta in self._site.store.list(paths.token_dir(self._site.shard, app)):
            number = paths.parse_marker_name(meta.path.rpartition("/")[2])
            if number is not None:
                numbers.append(number)
        return max(numbers, default=None)

    def record(self, app: str, number: int) -> None:
        """Record `number` for `app`; keeps only the highest two markers. Idempotent."""
        folder = paths.token_dir(self._site.shard, app)
        try:
            self._site.store.put_if_absent(paths.marker_path(folder, number), app.encode())
        except ObjectExists:
            return
        numbers = []
        for meta in self._site.store.list(folder):
            n = paths.parse_marker_name(meta.path.rpartition("/")[2])
            if n is not None:
                numbers.append(n)
        below = sorted(numbers)[:-2]
        if below:
            self._site.store.delete([paths.marker_path(folder, n) for n in below])
