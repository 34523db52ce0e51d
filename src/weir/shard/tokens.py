"""Exactly-once tokens of a shard: per application the highest batch number that is in (P-2).

A token rides in the log entry that holds its rows, so it is atomic with them. A batch too large for
one entry is published by a manifest (`weir.shard.load`): its token is announced here, together with
the SSTables, before that manifest, and counts once a manifest has named them. Before whatever
carries a token stops being read, it is recorded here for good: a create-only marker, the highest
number counts. Neither collection nor compaction nor a native writer touches these, but for those of
jobs that gave no application's name: such a token only has to outlive the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weir.errors import CorruptEntry
from weir.format import paths
from weir.format.manifest import ShardManifest
from weir.format.wal_entry import decode_entry
from weir.format.wal_header import HEADER_BYTES, read_header
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.records import codec
from weir.store.api import ObjectExists, ObjectMissing
from weir.types import Epoch, Position

_READS: Final = 16
# Stored. Never change a value; add one.
_ANNOUNCED: Final = "load-"


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
        """The highest batch number recorded for `app`, or None. One listing.

        More only while a batch of several SSTables is on its way, or its writer died.
        """
        numbers, announced = self._list(app)
        if announced:
            manifest = Manifests(self._site).latest()
            if manifest is not None:
                self._settle(announced, manifest)
            # Again: somebody else may have settled it, and pruned the manifest, meanwhile.
            numbers, _ = self._list(app)
        return max(numbers, default=None)

    def record(self, app: str, number: int) -> None:
        """Record `number` for `app`; keeps only the highest two markers. Idempotent."""
        folder = paths.token_dir(self._site.shard, app)
        try:
            self._site.store.put_if_absent(paths.marker_path(folder, number), app.encode())
        except ObjectExists:
            return
        below = sorted(self._list(app)[0])[:-2]
        if below:
            self._site.store.delete([paths.marker_path(folder, n) for n in below])

    def announce(self, app: str, number: int, sstables: Sequence[str], *, epoch: Epoch) -> str:
        """Say that `number` is in as soon as a manifest names these SSTables; where it is said."""
        folder = paths.token_dir(self._site.shard, app)
        path = f"{folder}/{_ANNOUNCED}{self._site.env.new_id().hex}"
        told = {"app": app, "number": number, "sstables": list(sstables), "epoch": int(epoch)}
        self._site.store.put_if_absent(path, codec.dumps(told))
        return path

    def settle(self, manifest: ShardManifest) -> None:
        """Record what `manifest` proves to be in: called before SSTables leave it. Two lists."""
        shard = self._site.shard
        for folder in (paths.tokens_dir(shard), paths.job_tokens_dir(shard)):
            found = [meta.path for meta in self._site.store.list(folder)]
            self._settle([path for path in found if _is_announced(path)], manifest)

    def _list(self, app: str) -> tuple[list[int], list[str]]:
        numbers, announced = [], []
        for meta in self._site.store.list(paths.token_dir(self._site.shard, app)):
            number = paths.parse_marker_name(meta.path.rpartition("/")[2])
            if number is not None:
                numbers.append(number)
            elif _is_announced(meta.path):
                announced.append(meta.path)
        return numbers, announced

    def _settle(self, announced: Sequence[str], manifest: ShardManifest) -> None:
        """Turn announcements into markers, and drop those that nobody can make true any more."""
        named = {table.path for table in manifest.sstables}
        for path in announced:
            try:
                raw = codec.loads(self._site.store.get(path).data, path)
            except ObjectMissing:
                continue
            try:
                app, number, epoch = str(raw["app"]), int(raw["number"]), int(raw["epoch"])
                is_in = not named.isdisjoint(raw["sstables"])
            except (KeyError, TypeError, ValueError) as error:
                raise CorruptEntry(f"{path} announces no token: {error!r}") from error
            if is_in:
                self.record(app, number)
            if is_in or manifest.writer_epoch > epoch:
                self._site.store.delete([path])


def _is_announced(path: str) -> bool:
    return path.rpartition("/")[2].startswith(_ANNOUNCED)
