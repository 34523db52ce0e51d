"""Exactly-once tokens of a shard: per application the highest batch number that is in (P-2, P-6).

A token is in the log entry that holds its rows, so it is atomic with them. A batch too large for
one entry is published by a manifest (`weir.shard.large_batch`): its token is announced here, with
the SSTables, before that manifest, and counts once a manifest has named them. Before the entry or
manifest that carries a token stops being read, the token is recorded here for good, as a
create-only mark of which the highest number counts. Neither collection nor compaction nor a
native writer touches the marks, except those of jobs that gave no application name: such a token
only has to outlive its job.

A native writer flushes entries without knowing of tokens. So a writer notes here, before its first
token of an application, from which position on its entries may hold tokens, and deletes the note
when it closes with all of them recorded. The note of a writer that died tells the next writer which
part of the log to read for tokens, above R or below.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from weir.errors import CorruptEntry
from weir.format import paths
from weir.format.manifest import ShardManifest
from weir.format.wal_entry import decode_entry
from weir.format.wal_header import HEADER_BYTES, read_header
from weir.log.floors import Floors
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.records import codec
from weir.store.api import ObjectExists, ObjectMissing
from weir.types import Epoch, Position

_READS: Final = 16
_CHUNK: Final = 256
# Stored. Never change a value; add one.
_ANNOUNCED: Final = "load-"
_OPEN: Final = "open-"


def tokens_in_log(
    site: ShardSite, after: int, last: int, *, epoch: Epoch | None = None
) -> dict[str, int]:
    """Per application the highest batch number in the entries `(after, last]`.

    With `epoch`, entries of later epochs are not needed. One ranged read per entry, 16 in parallel,
    and a full read where there may be a token. A collected entry has none: its tokens were recorded
    by the collector, and an object in its place can only be a zombie's, whose rows are not in.
    """

    def look(position: int) -> tuple[int, list[tuple[int, str, int]]]:
        path = paths.wal_path(site.shard, Position(position))
        try:
            header = read_header(site.wal.get_range(path, 0, HEADER_BYTES))
            if header is not None and not header.may_hold_tokens:
                return header.epoch, []
            uri = f"{site.wal.uri}/{path}"
            entry = decode_entry(site.wal.get(path).data, position=Position(position), path=uri)
        except ObjectMissing:
            return 0, []
        return entry.epoch, [(position, app, number) for app, number in entry.tokens]

    found: list[tuple[int, str, int]] = []
    for first in range(after + 1, last + 1, _CHUNK):
        wanted = list(range(first, min(first + _CHUNK, last + 1)))
        entries = site.env.threads.map(look, wanted, workers=_READS)
        found += [token for _, tokens in entries for token in tokens]
        if epoch is not None and max(seen for seen, _ in entries) > epoch:
            break
    return above_floor(site, found)


def above_floor(site: ShardSite, found: Sequence[tuple[int, str, int]]) -> dict[str, int]:
    """The highest number of each application, of tokens at positions that were not collected.

    Called after the entries were read: a collector may have passed them since (G-7c).
    """
    highest: dict[str, int] = {}
    floor = Floors(site).load().wal if found else 0
    for position, app, number in found:
        if position > floor:
            highest[app] = max(number, highest.get(app, number))
    return highest


@dataclass(frozen=True, slots=True)
class _Note:
    """Entries of `epoch` after `after` may hold tokens that are recorded nowhere else."""

    path: str
    epoch: Epoch
    after: Position


@dataclass(slots=True)
class _Folder:
    """The token objects of one application, as listed."""

    numbers: list[int] = field(default_factory=list)
    announced: list[str] = field(default_factory=list)
    notes: list[_Note] = field(default_factory=list)

    def add(self, path: str) -> None:
        name = path.rpartition("/")[2]
        number = paths.parse_mark_name(name)
        if number is not None:
            self.numbers.append(number)
        elif name.startswith(_ANNOUNCED):
            self.announced.append(path)
        elif name.startswith(_OPEN):
            epoch, _, after = name.removeprefix(_OPEN).partition("-")
            if epoch.isdigit() and after.isdigit():
                self.notes.append(_Note(path, Epoch(int(epoch)), Position(int(after))))


def by_folder(tokens: Mapping[str, int]) -> dict[str, int]:
    """Numbers by the folder of their application; those of single jobs are left out."""
    return {
        paths.token_folder(app): number
        for app, number in tokens.items()
        if not app.startswith(paths.JOB_APP)
    }


def merged(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """The higher number for each name."""
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {*one, *other}}


class Tokens:
    """The recorded tokens of one shard."""

    def __init__(self, site: ShardSite) -> None:
        self._site = site

    def load(self, app: str) -> int | None:
        """The highest batch number recorded for `app`, or None. One listing.

        More requests only while a batch of several SSTables is in flight, or if its writer died.
        """
        found = self._list(app)
        if found.announced:
            manifest = Manifests(self._site).latest()
            if manifest is not None:
                self._settle(found.announced, manifest)
            # Again: another process may have settled it, and pruned the manifest, since.
            found = self._list(app)
        return max(found.numbers, default=None)

    def begin(self, app: str, after: Position, epoch: Epoch) -> str:
        """Note that entries of `epoch` after `after` may hold tokens of `app`; return the path.

        Called before the first such entry is written (P-6). One put.
        """
        path = f"{paths.token_dir(self._site.shard, app)}/{_OPEN}{epoch:020d}-{after:020d}"
        with contextlib.suppress(ObjectExists):
            self._site.store.put_if_absent(path, app.encode())
        return path

    def end(self, notes: Sequence[str]) -> None:
        """Delete notes: all tokens they stand for are recorded."""
        if notes:
            self._site.store.delete(list(notes))

    def recover(self, app: str | None, *, epoch: Epoch, through: Position) -> None:
        """Record the tokens that writers before `epoch` left in the log, up to `through`, the fence
        of that claim; for all applications if `app` is None. One listing, and a read of the log
        from the first note on."""
        folders = self._folders() if app is None else {"": self._list(app)}
        for folder in folders.values():
            notes = [note for note in folder.notes if note.epoch < epoch]
            if not notes:
                continue
            after, last = min(n.after for n in notes), max(n.epoch for n in notes)
            for name, number in tokens_in_log(self._site, after, through, epoch=last).items():
                self.record(name, number)
            self.end([note.path for note in notes])

    def at(self, manifest: ShardManifest) -> dict[str, int]:
        """By folder, the highest number of each application that is in as of `manifest`.

        Includes all tokens of rows up to R, and those of later entries that are recorded by now.
        One listing, and a read of the log where a writer died before it recorded its own.
        """
        known: dict[str, int] = {}
        for name, folder in self._folders().items():
            numbers = [*folder.numbers, *self._named(folder.announced, manifest)]
            if numbers:
                known[name] = max(numbers)
            notes = [note for note in folder.notes if note.epoch < manifest.writer_epoch]
            if not notes:
                continue  # the owner of the shard records its tokens before R passes them
            after, last = min(n.after for n in notes), max(n.epoch for n in notes)
            known = merged(known, self.in_log(after, manifest.replay_after, epoch=last))
        return known

    def in_log(self, after: int, last: int, *, epoch: Epoch | None = None) -> dict[str, int]:
        """Like `at`, but from the entries `(after, last]` alone."""
        return by_folder(tokens_in_log(self._site, after, last, epoch=epoch))

    def carry(self, known: Mapping[str, int]) -> None:
        """Record what `at` returned for another table's shard. One put each; idempotent."""
        for folder, number in known.items():
            path = paths.mark_path(f"{paths.tokens_dir(self._site.shard)}/{folder}", number)
            with contextlib.suppress(ObjectExists):
                self._site.store.put_if_absent(path, b"")

    def record(self, app: str, number: int) -> None:
        """Record `number` for `app`; keeps only the highest two marks. Idempotent."""
        folder = paths.token_dir(self._site.shard, app)
        try:
            self._site.store.put_if_absent(paths.mark_path(folder, number), app.encode())
        except ObjectExists:
            return
        below = sorted(self._list(app).numbers)[:-2]
        if below:
            self._site.store.delete([paths.mark_path(folder, n) for n in below])

    def announce(self, app: str, number: int, sstables: Sequence[str], *, epoch: Epoch) -> str:
        """Announce that `number` is in once a manifest names these SSTables; return the path."""
        folder = paths.token_dir(self._site.shard, app)
        path = f"{folder}/{_ANNOUNCED}{self._site.env.new_id().hex}"
        record = {"app": app, "number": number, "sstables": list(sstables), "epoch": int(epoch)}
        self._site.store.put_if_absent(path, codec.dumps(record))
        return path

    def settle(self, manifest: ShardManifest) -> None:
        """Record tokens that `manifest` proves are in, before SSTables leave it. Two listings."""
        shard = self._site.shard
        for folder in (paths.tokens_dir(shard), paths.job_tokens_dir(shard)):
            found = _Folder()
            for meta in self._site.store.list(folder):
                found.add(meta.path)
            self._settle(found.announced, manifest)

    def _list(self, app: str) -> _Folder:
        found = _Folder()
        for meta in self._site.store.list(paths.token_dir(self._site.shard, app)):
            found.add(meta.path)
        return found

    def _folders(self) -> dict[str, _Folder]:
        """The folders of all applications except single jobs."""
        found: dict[str, _Folder] = {}
        for meta in self._site.store.list(paths.tokens_dir(self._site.shard)):
            name = meta.path.rpartition("/")[0].rpartition("/")[2]
            found.setdefault(name, _Folder()).add(meta.path)
        return found

    def _settle(self, announced: Sequence[str], manifest: ShardManifest) -> None:
        """Turn announcements into marks, and delete those that can no longer become true."""
        for path in announced:
            said = self._read(path, manifest)
            if said is None:
                continue
            app, number, epoch, is_in = said
            if is_in:
                self.record(app, number)
            if is_in or manifest.writer_epoch > epoch:
                self._site.store.delete([path])

    def _named(self, announced: Sequence[str], manifest: ShardManifest) -> list[int]:
        """Numbers announced whose SSTables `manifest` names."""
        said = [self._read(path, manifest) for path in announced]
        return [one[1] for one in said if one is not None and one[3]]

    def _read(self, path: str, manifest: ShardManifest) -> tuple[str, int, int, bool] | None:
        """Application, number and epoch of an announcement, and whether it is true by now."""
        try:
            raw = codec.loads(self._site.store.get(path).data, f"{self._site.store.uri}/{path}")
        except ObjectMissing:
            return None
        named = {table.path for table in manifest.sstables}
        try:
            is_in = not named.isdisjoint(raw["sstables"])
            return str(raw["app"]), int(raw["number"]), int(raw["epoch"]), is_in
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptEntry(
                f"{self._site.store.uri}/{path} is not a token record: {error!r}. {codec.COPY}"
            ) from error
