"""Numbers of a shard that only rise: what may have been collected, what was certainly used.

Keeps
  G-6  the manifest floor: versions at or below it may be gone, and committing one of them is not
       a success
  G-7c the WAL floor: distinguishes a collected prefix of the log from a hole
  F-2  the used mark: positions a checkpoint refers to, also after the log itself was lost
  G-8  create-only marks whose maximum counts; they need no conditional overwrite, and reads
       bypass caches
  X-1  the place mark: the number of the log's place, for a manifest that does not name it
  P-8  the statement mark: even while a statement over several shards may be open, odd after it
One listing reads all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from weir.errors import CorruptEntry
from weir.format import paths
from weir.format.manifest import ShardManifest
from weir.log.site import ShardSite
from weir.records.marks import MARKS_KEPT, Marks
from weir.store.api import Meta, Store

FloorKind = Literal["wal", "manifest", "used", "place", "statement"]


@dataclass(frozen=True, slots=True)
class FloorValues:
    """The floors as one listing found them; 0 where none was ever raised."""

    wal: int = 0
    manifest: int = 0
    used: int = 0
    place: int = 0
    statement: int = 0
    superseded: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The marks that count no more: all but the highest two of each kind (G-8)."""

    def highest_used(self, manifest: ShardManifest | None) -> int:
        """The highest position that the manifest or any mark says was used (F-2)."""
        return max(self.wal, self.used, 0 if manifest is None else manifest.last_seen)

    def is_closed(self, manifest: ShardManifest) -> bool:
        """True when no row can be in the log beyond R: losing the log loses nothing (S-2).

        R alone does not prove that, whoever moved it: a log that has an owner may grow (S-7).
        The floors were read after the manifest.
        """
        # guard: S-7 first
        return manifest.is_left and manifest.replay_after >= max(manifest.last_seen, self.used)


_NONE: Final = FloorValues()
_HIGHEST: Final = 1 << 63
"""Far above what a shard counts to: positions, versions and statements begin at 1."""


def forged(store: Store, mark: str, why: str) -> CorruptEntry:
    """The error for a mark that weir cannot have made."""
    return CorruptEntry(
        f"{store.uri}/{mark} {why}. Another program put that mark there, or other objects of the"
        " shard were rolled back. Find out which; if it is the mark, delete it"
    )


def load_all(store: Store, folders: Sequence[str]) -> list[FloorValues]:
    """The floors in those folders, one folder per shard: a listing each, in one round."""
    return [_values(metas, store) if metas else _NONE for metas in store.list_many(folders)]


def _values(listed: Iterable[Meta], store: Store) -> FloorValues:
    found: dict[str, list[tuple[int, str]]] = {kind: [] for kind in get_args(FloorKind)}
    for meta in listed:
        folder, _, name = meta.path.rpartition("/")
        kind = folder.rpartition("/")[2]
        number = paths.parse_mark_name(name)
        if number is not None and kind in found:
            if number > _HIGHEST:  # guard: G-13 test_marks_of_strangers
                raise forged(store, meta.path, f"holds {number}, and no shard gets that far")
            found[kind].append((number, meta.path))
    for marks in found.values():
        marks.sort(reverse=True)
    highest = {kind: marks[0][0] for kind, marks in found.items() if marks}
    old = (path for marks in found.values() for _, path in marks[MARKS_KEPT:])
    return FloorValues(**highest, superseded=tuple(old))


class Floors:
    """The floor marks of one shard."""

    def __init__(self, site: ShardSite) -> None:
        self._site = site

    def load(self) -> FloorValues:
        """Read all floors with one listing."""
        metas = [*self._site.store.list(paths.floors_dir(self._site.shard))]
        return _values(metas, self._site.store) if metas else _NONE

    def raise_to(self, kind: FloorKind, number: int) -> None:
        """Make `number` a lower bound of that floor, durably. Idempotent; never lowers."""
        self._marks(kind).raise_to(number)

    def trim(self, seen: FloorValues) -> None:
        """Delete the marks that did not count any more when those floors were read."""
        if seen.superseded:
            self._site.store.delete(list(seen.superseded))

    def _marks(self, kind: FloorKind) -> Marks:
        return Marks(self._site.store, paths.floor_dir(self._site.shard, kind))
