"""Exactly-once tokens of a shard: per application the highest batch number that is in (P-2).

A token rides in the log entry (or beside the SSTable) that holds its rows, so it is atomic with
them. Before whatever carries it stops being read, it is recorded here for good: a create-only
marker, the highest number counts. Neither collection nor compaction nor a native writer touches
these.
"""

from __future__ import annotations

from weir.format import paths
from weir.log.site import ShardSite
from weir.store.api import ObjectExists


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
