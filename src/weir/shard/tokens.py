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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from weir.format import paths
from weir.format.manifest import ShardManifest
from weir.format.wal_entry import decode_entry
from weir.format.wal_header import Carries
from weir.log.floors import Floors
from weir.log.headers import header_at
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.records import codec
from weir.store.api import ObjectExists, ObjectMissing, put_new
from weir.store.bounded import get_some
from weir.types import Epoch, Position

_READS: Final = 16
_CHUNK: Final = 256
# Stored. Never change a value; add one.
_ANNOUNCED: Final = "load-"
_OPEN: Final = "open-"


def tokens_in_log(
    site: ShardSite, positions: Sequence[int], *, epoch: Epoch | None = None
) -> dict[str, int]:
    """Per application the highest batch number in the entries at these ascending positions.

    With `epoch`, entries of later epochs are not needed. One ranged read per entry, 16 in parallel,
    and a full read where a token was seen or could not be ruled out (P-2). A collected entry has
    none: its tokens were recorded by the collector, and an object in its place can only be a
    zombie's, whose rows are not in.
    """

    def look(position: int) -> tuple[int, bool]:
        """The epoch of an entry (0: not known), and whether its tokens must be read."""
        try:
            header = header_at(site, position)
        except ObjectMissing:
            return 0, False
        return (0, True) if header is None else (header.epoch, header.tokens is not Carries.NO)

    found: list[tuple[int, str, int]] = []
    for first in range(0, len(positions), _CHUNK):
        part = positions[first : first + _CHUNK]
        seen = site.env.threads.map(look, list(part), workers=_READS)
        found += _tokens_of(site, [p for p, (_, wanted) in zip(part, seen, strict=True) if wanted])
        if epoch is not None and max(of for of, _ in seen) > epoch:
            break
    return _above_floor(site, found)


def _tokens_of(site: ShardSite, positions: Sequence[int]) -> Iterator[tuple[int, str, int]]:
    """(position, application, number) of every token there, read in bounded memory (L-10)."""
    where = [(p, paths.wal_path(site.shard, Position(p))) for p in positions]
    while where:
        found = get_some(site.wal, [path for _, path in where], site.env.limits.read_bytes)
        for (position, path), data in zip(where, found, strict=False):
            if data is None:
                continue
            uri = f"{site.wal.uri}/{path}"
            entry = decode_entry(data, position=Position(position), path=uri)
            yield from ((position, app, number) for app, number in entry.tokens)
        where = where[len(found) :]


def _above_floor(site: ShardSite, found: Sequence[tuple[int, str, int]]) -> dict[str, int]:
    """The highest number of each application, of tokens at positions that were not collected.

    Called after the entries were read: a collector may have passed them since (G-7c).
    """
    highest: dict[str, int] = {}
    floor = Floors(site).load().wal if found else 0
    for position, app, number in found:
        if position > floor:  # guard: P-6 always test_token_of_a_zombie
            highest[app] = max(number, highest.get(app, number))
    return highest


class _Announced(codec.Record, frozen=True):
    """A batch that a manifest is about to publish."""

    KIND: ClassVar[str] = "token record"
    app: str
    number: int
    sstables: tuple[str, ...]
    epoch: Epoch


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


def _notes_before(epoch: Epoch, folders: Iterable[_Folder]) -> list[_Note]:
    """The notes of writers before `epoch`: they have left tokens in the log, or died."""
    return [note for folder in folders for note in folder.notes if note.epoch < epoch]


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

    def recovered(self, app: str, *, epoch: Epoch, through: Position) -> int | None:
        """`load` for the owner of `epoch`, after `recover`. One listing where no writer died."""
        found = self._list(app)
        if any(note.epoch < epoch for note in found.notes):
            self.recover(app, epoch=epoch, through=through)  # guard: P-6
        elif not found.announced:
            return max(found.numbers, default=None)
        return self.load(app)

    def recover(self, app: str | None, *, epoch: Epoch, through: Position) -> None:
        """Record the tokens that writers before `epoch` left in the log, up to `through`, the fence
        of that claim; for all applications if `app` is None. One listing, and one read of the log
        from the first note on."""
        folders = [self._list(app)] if app is not None else list(self._folders().values())
        notes = _notes_before(epoch, folders)
        for name, number in self._noted(notes, through).items():
            self.record(name, number)
        self.end([note.path for note in notes])

    def _noted(self, notes: Sequence[_Note], through: Position) -> dict[str, int]:
        """Per application the highest number in the entries up to `through` that notes tell of."""
        if not notes:
            return {}
        after, last = min(n.after for n in notes), max(n.epoch for n in notes)
        return tokens_in_log(self._site, range(after + 1, through + 1), epoch=last)

    def at(self, manifest: ShardManifest) -> dict[str, int]:
        """By folder, the highest number of each application that is in as of `manifest`.

        Includes all tokens of rows up to R, and those of later entries that are recorded by now.
        One listing, and a read of the log where a writer died before it recorded its own.
        """
        known: dict[str, int] = {}
        folders = self._folders()
        for name, folder in folders.items():
            numbers = [*folder.numbers, *self._named(folder.announced, manifest)]
            if numbers:
                known[name] = max(numbers)
        # The owner of the shard records its own tokens before R passes them.
        notes = _notes_before(Epoch(manifest.writer_epoch), folders.values())
        return merged(known, by_folder(self._noted(notes, manifest.replay_after)))

    def in_log(self, after: int, last: int) -> dict[str, int]:
        """Like `at`, but from the entries `(after, last]` alone."""
        return by_folder(tokens_in_log(self._site, range(after + 1, last + 1)))

    def carry(self, known: Mapping[str, int]) -> None:
        """Record what `at` returned for another table's shard. One put each; idempotent."""
        for folder, number in known.items():
            path = paths.mark_path(f"{paths.tokens_dir(self._site.shard)}/{folder}", number)
            with contextlib.suppress(ObjectExists):
                self._site.store.put_if_absent(path, b"")

    def record(self, app: str, number: int, *, prune: bool = True) -> None:
        """Record `number` for `app`, and keep only the highest two marks. Idempotent.

        One put; with `prune` a listing, and a delete if there are older marks.
        """
        folder = paths.token_dir(self._site.shard, app)
        try:
            self._site.store.put_if_absent(paths.mark_path(folder, number), app.encode())
        except ObjectExists:
            return
        if not prune:
            return
        below = sorted(self._list(app).numbers)[:-2]
        if below:
            self._site.store.delete([paths.mark_path(folder, n) for n in below])

    def announce(self, app: str, number: int, sstables: Sequence[str], *, epoch: Epoch) -> str:
        """Announce that `number` is in once a manifest names these SSTables; return the path."""
        folder = paths.token_dir(self._site.shard, app)
        path = f"{folder}/{_ANNOUNCED}{self._site.env.new_id().hex}"
        record = _Announced(app, number, tuple(sstables), epoch)
        put_new(self._site.store, path, codec.dumps(record))
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
            data = self._site.store.get(path).data
        except ObjectMissing:
            return None
        said = codec.loads(data, _Announced, f"{self._site.store.uri}/{path}")
        is_in = not {table.path for table in manifest.sstables}.isdisjoint(said.sstables)
        return said.app, said.number, said.epoch, is_in
