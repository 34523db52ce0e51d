"""A durable cut in two rounds of requests, while little changed since this handle last looked.

The careful way (`snapshot.take_snapshot`) looks at manifests, floors, tips, floors and the base one
after the other, because each can move under the next look. Here everything is asked for at once and
the answer only believed if nothing had moved:

    round 1   of each shard the manifest after the known one, the two entries after the known tip,
              the id of a log on a store of its own; of one on a disk also before and after
    round 2   the floors of each shard, the latest version of the base, the list of shards

Keeps
  L-1  no newer manifest in round 1, and no floor in round 2 that reached it: the known manifest was
       the latest while the log was looked at. Entries that were collected rather than never written
       show as a WAL floor above R (G-7c), collected manifests as a manifest floor (G-7d); floors
       rise before anything is deleted, so a look at them after round 1 tells.
  C-11 a shard that was not sealed when it was looked at has no heir that was claimed before; the
       first claim of one is a newer manifest, if its rows are seen
  L-5  the base is the known version before and after the tips were found, so nothing was folded
       meanwhile
Whatever else is found is no error: None, and the caller looks the careful way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from weir.errors import WalStoreMismatch
from weir.format import paths
from weir.format.manifest import ShardManifest
from weir.log.floors import FloorValues, load_all
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.log.stamp import check_mounted, stamp_in
from weir.log.tip import find_tip
from weir.routing.core import Core
from weir.store.api import Store
from weir.types import Position, Version

Choice = Callable[[list[UUID]], list[UUID]]
"""Which of the shards a read is about."""

_AHEAD: Final = 2
"""Entries fetched after the known tip. One is what a reader who follows a writer finds; the second
tells an end from a hole."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One shard as it stood while the base did."""

    manifest: ShardManifest
    tip: Position


@dataclass(frozen=True, slots=True)
class _Known:
    """What this handle remembers of one shard, and what it asks to learn whether it is still so."""

    site: ShardSite
    manifests: Manifests
    manifest: ShardManifest
    floors: FloorValues
    tip: Position
    newer: str
    """Where the next manifest would be."""
    entries: Sequence[str]
    """Where the next entries would be."""
    identity: Sequence[str]
    """What proves that a log on a store of its own is there; nothing for one beside the data."""
    marks: str
    """The folder of the floors."""

    def is_all(self, floors: FloorValues, tip: Position) -> bool:
        """True when the handle has not learned more since."""
        return self.floors is floors and self.tip == tip and self.manifests.known is self.manifest


def fast_snapshot(core: Core, choose: Choice) -> tuple[int, list[Seen]] | None:
    """The version of the base and the chosen shards as they are now; None: look carefully."""
    ids, version = core.tails.shards, core.tails.base_version
    if ids is None or version is None:
        return None
    known = [_remembered(core, shard) for shard in choose(ids)]
    shards = [one for one in known if one is not None]
    if len(shards) < len(known):
        return None
    # In one round the id may be read of a disk that is back, and the entries in the hole before.
    tips = _tips(core, shards) if _are_mounted(shards) else None
    if tips is None or not _are_mounted(shards):
        return None
    asked: list[Callable[[], Any]] = [
        core.shard_ids,
        lambda: core.lake.open_base().version,
        lambda: load_all(core.store, [one.marks for one in shards]),
    ]
    answers = core.env.threads.map(lambda ask: ask(), asked, workers=core.workers)
    if answers[0] != ids or answers[1] != version:
        return None
    floors: list[FloorValues] = answers[2]
    for one, tip, found in zip(shards, tips, floors, strict=True):
        if (
            found.manifest >= one.manifest.version
            or found.wal > one.manifest.replay_after
            or found.used > tip
            or found.store != one.floors.store
        ):
            return None
    for one, tip, found in zip(shards, tips, floors, strict=True):
        if tip != one.tip or found != one.floors:
            core.tails.saw(one.site.shard, found, tip)
    return version, [Seen(one.manifest, tip) for one, tip in zip(shards, tips, strict=True)]


def _remembered(core: Core, shard: UUID) -> _Known | None:
    floors, tip = core.tails.seen(shard)
    if floors is None or tip is None:
        return None
    held = core.tails.looks.get(shard)
    if isinstance(held, _Known) and held.is_all(floors, tip):
        return held
    try:
        site = core.site(shard, floors)
    except WalStoreMismatch:
        return None
    manifests = core.tails.manifests(site)
    manifest = manifests.known
    if manifest is None or tip < max(manifest.replay_after, site.wal_after):
        return None
    known = core.tails.looks[shard] = _Known(
        site,
        manifests,
        manifest,
        floors,
        tip,
        newer=paths.manifest_path(shard, Version(manifest.version + 1)),
        entries=[paths.wal_path(shard, Position(tip + n)) for n in range(1, _AHEAD + 1)],
        identity=[] if site.wal_id is None else [paths.store_id_path(shard)],
        marks=paths.floors_dir(shard),
    )
    return known


def _tips(core: Core, shards: Sequence[_Known]) -> list[Position] | None:
    """Round 1; None when a manifest moved or the log looks odd."""
    asked: dict[Store, list[str]] = {}
    for one in shards:
        asked.setdefault(one.site.store, []).append(one.newer)
        asked.setdefault(one.site.wal, []).extend([*one.entries, *one.identity])
    stores = list(asked)
    # Each has its share of what a read may hold; a larger one is read with care (L-10).
    share = max(1, core.env.limits.read_bytes // max(1, sum(map(len, asked.values()))))
    answers = core.env.threads.map(
        lambda store: store.get_many(asked[store], first=share), stores, workers=core.workers
    )
    found: dict[str, bytes | None] = {}
    for store, answer in zip(stores, answers, strict=True):
        found.update(zip(asked[store], answer, strict=True))
    if any(body is not None and len(body) >= share for body in found.values()):
        return None
    tips = []
    for one in shards:
        if found[one.newer] is not None:
            return None
        stamps = [(found[path], path) for path in one.identity]
        if any(d is None or stamp_in(d, p).store_id != one.site.wal_id for d, p in stamps):
            return None  # what is not in it may be in the log all the same (S-7)
        tip = _advance(core, one, [found[path] for path in one.entries])
        if tip is None:
            return None
        tips.append(tip)
    return tips


def _are_mounted(shards: Sequence[_Known]) -> bool:
    """True when every disk that holds a log is there; asks nothing of object stores (S-7)."""
    try:
        for one in shards:
            if one.identity:  # beside the data it is there as long as they are
                check_mounted(one.site)
    except WalStoreMismatch:
        return False
    return True


def _advance(core: Core, one: _Known, entries: Sequence[bytes | None]) -> Position | None:
    """The tip, the entries on the way to it kept; None when there is one beyond a missing one."""
    if entries.count(None) == len(entries):
        return one.tip  # of a thousand shards nearly all
    there = [data for data in entries if data is not None]
    if any(data is not None for data in entries[len(there) :]):
        return None
    for position, data in enumerate(there, int(one.tip) + 1):
        core.tails.keep(one.site, Position(position), data)
    tip = Position(one.tip + len(there))
    return find_tip(one.site, tip) if len(there) == len(entries) else tip
