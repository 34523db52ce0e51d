"""What a table handle believes of the table, and the requests that check it.

Of a shard whose manifest, floors and tip are known, a read asks only what would be newer: the next
manifest and the next two entries. It asks all shards in one round. If nothing is newer, or only
entries are, and the floors read afterwards agree, the known manifest was the latest while the log
was read. Any other finding is no error: that shard is read from its manifest on (`snapshot`).

Keeps
  L-1  no newer manifest, and no floor afterwards that reached it. Entries that were collected,
       rather than never written, show as a WAL floor above R (G-7c), collected manifests as a
       manifest floor (G-7d). Floors rise before anything is deleted
  S-7  a log whose own store does not answer is not taken for one that ends there
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from weir.env import Env
from weir.errors import StoreError, WalStoreMismatch
from weir.format import paths
from weir.format.manifest import ShardManifest
from weir.log.floors import FloorValues
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.log.tip import find_tip
from weir.read.cache import ReadCache
from weir.records.cut import ShardCut
from weir.routing.core import Core
from weir.store.api import Store
from weir.types import Position, Version

Choice = Callable[[list[UUID]], list[UUID]]
"""Picks the shards that a read needs from all shards."""

_AHEAD: Final = 2
"""Entries fetched after the known tip. A reader that follows a writer usually finds one; the second
distinguishes the end of the log from a hole."""


@dataclass(frozen=True, slots=True)
class KnownShard:
    """What a handle remembers of one shard, and the paths it reads to check that."""

    site: ShardSite
    manifests: Manifests
    manifest: ShardManifest
    floors: FloorValues
    tip: Position
    newer: str
    """Path of the next manifest."""
    entries: Sequence[str]
    """Paths of the next entries."""
    marks: str
    """The folder of the floors."""

    def is_all(self, floors: FloorValues, tip: Position) -> bool:
        """True if the handle has learned nothing newer since."""
        return self.floors is floors and self.tip == tip and self.manifests.known is self.manifest

    def is_refuted(self, floors: FloorValues, tip: Position) -> bool:
        """True if floors read after the tip show that the manifest or the tip may be old (L-1)."""
        return (
            floors.manifest >= self.manifest.version  # guard: L-1 test_snapshot_rounds
            or floors.wal > self.manifest.replay_after
            or floors.used > tip
        )


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """The requests for all chosen shards together; reused as long as nothing changed.

    It need not be the newest state that the handle knows: every read checks it again.
    """

    ids: list[UUID]
    shards: Sequence[KnownShard]
    unknown: Sequence[UUID]
    """Shards of which the handle knows too little to ask for what is newer."""
    asked: Mapping[Store, list[str]]
    """The paths to get, by store."""
    marks: list[str]
    """The folders of the floors of the known shards."""
    floors: list[FloorValues]
    cuts: list[ShardCut]
    """The cuts of the known shards if nothing has moved."""


class Probes:
    """What one handle believes of its table, the base version and the shards first.

    Safe to share between threads: each belief is replaced as a whole, and checked by every read.
    """

    def __init__(self, env: Env) -> None:
        del env
        self.table: tuple[int, list[UUID]] | None = None
        """The base version and the shards, as the last durable read saw them."""
        self.closed: int | None = None
        """How many statements were closed when the handle last had to ask (P-8)."""
        self._shards: dict[UUID, KnownShard] = {}
        self._kept: ProbePlan | None = None
        """The plan for all shards, if the last read of them found nothing changed."""

    def plan(self, core: Core, chosen: list[UUID]) -> ProbePlan:
        """The requests for the chosen shards."""
        kept = self._kept
        if kept is not None and kept.ids == chosen:
            return kept
        known: list[KnownShard] = []
        unknown: list[UUID] = []
        asked: dict[Store, list[str]] = {}
        for shard in chosen:
            one = self._remembered(core, shard)
            if one is None:
                unknown.append(shard)
                continue
            known.append(one)
            asked.setdefault(one.site.store, []).append(one.newer)
            asked.setdefault(one.site.wal, []).extend(one.entries)
        return ProbePlan(
            chosen,
            known,
            unknown,
            asked,
            [one.marks for one in known],
            [one.floors for one in known],
            [ShardCut.of(one.manifest, one.tip) for one in known],
        )

    def keep(self, plan: ProbePlan | None) -> None:
        """Keep the plan for the next read. Lookups of a few shards leave that of all in place."""
        if plan is None or (self.table is not None and len(plan.ids) == len(self.table[1])):
            self._kept = plan

    def _remembered(self, core: Core, shard: UUID) -> KnownShard | None:
        seen = core.log(shard).seen
        if seen is None:
            return None
        floors, tip = seen
        held = self._shards.get(shard)
        if held is not None and held.is_all(floors, tip):
            return held
        try:
            manifests = core.log(shard).manifests
            manifest = manifests.known
            if manifest is None:
                return None
            site = core.site(manifest, floors)
        except WalStoreMismatch:
            return None
        if tip < max(manifest.replay_after, site.wal_after):
            return None
        known = self._shards[shard] = KnownShard(
            site,
            manifests,
            manifest,
            floors,
            tip,
            newer=paths.manifest_path(shard, Version(manifest.version + 1)),
            entries=[paths.wal_path(shard, Position(tip + n)) for n in range(1, _AHEAD + 1)],
            marks=paths.floors_dir(shard),
        )
        return known


def ask_tips(core: Core, plan: ProbePlan) -> Sequence[Position | None]:
    """The tips of the plan's known shards; None for a shard that must be read from its manifest on.

    One round of requests. Each object gets a share of the bytes a read may hold (L-10).
    """
    asked, stores = plan.asked, list(plan.asked)

    def ask(store: Store) -> list[bytes | None] | None:
        try:
            return store.get_many(asked[store], first=share)
        except StoreError:
            if store is core.store:
                raise
            return None  # the shard may need no log at all (S-2)

    share = max(1, core.env.limits.read_bytes // max(1, sum(map(len, asked.values()))))
    answers = core.env.threads.map(ask, stores, workers=core.workers)
    # guard: L-1 last test_many_shards_look
    if all(answer is not None and answer.count(None) == len(answer) for answer in answers):
        return [one.tip for one in plan.shards]
    found: dict[str, bytes | None] = {}
    gone: set[Store] = set()
    for store, answer in zip(stores, answers, strict=True):
        if answer is None:
            gone.add(store)
        else:
            found.update(zip(asked[store], answer, strict=True))
    cache = core.attached.of(ReadCache)
    tips: list[Position | None] = []
    for one in plan.shards:
        if one.site.wal in gone:
            tips.append(None)
        else:
            tips.append(_tip(cache, one, found, share))
    return tips


def _tip(
    cache: ReadCache, one: KnownShard, found: Mapping[str, bytes | None], share: int
) -> Position | None:
    """The tip of one shard, its new entries cached; None if there is more to find out."""
    if found[one.newer] is not None:
        return None
    entries = [found[path] for path in one.entries]
    if entries.count(None) == len(entries):
        return one.tip  # the case for nearly all of a thousand shards
    if not one.manifest.writer_epoch:  # guard: C-11
        return None  # C-11: claimed since, perhaps after a predecessor was read
    there = [data for data in entries if data is not None]
    if any(data is not None for data in entries[len(there) :]):
        return None  # a hole, or a log that is being collected
    if any(len(data) >= share for data in there):
        return None
    for position, data in enumerate(there, int(one.tip) + 1):
        cache.keep(one.site, Position(position), data)
    tip = Position(one.tip + len(there))
    return find_tip(one.site, tip) if len(there) == len(entries) else tip
