"""A durable cut in two rounds of requests, if little changed since this handle's last read.

The slow path (`snapshot.take_snapshot`) reads manifests, floors, tips, floors and the base one
after the other, because each can move while the next is read. Here each round sends its requests
concurrently, and the result is used only if nothing had moved:

    round 1   of each shard, the manifest after the known one, the two entries after the known tip,
              and the id of a log on its own store (a disk is also checked before and after)
    round 2   the floors of each shard, the latest version of the base, the list of shards

Keeps
  L-1  no newer manifest in round 1, and no floor in round 2 that reached it: the known manifest was
       the latest while the log was read. Entries that were collected, rather than never written,
       show as a WAL floor above R (G-7c), collected manifests as a manifest floor (G-7d). Floors
       rise before anything is deleted, so reading them after round 1 detects both.
  C-11 a shard that was not sealed when it was read has no heir that was claimed before; the first
       claim of an heir is a newer manifest, if its rows are seen
  L-5  the base is at the known version before and after the tips were found, so nothing was folded
       in between
Any other finding is not an error: the result is None, and the caller takes the slow path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from weir.records.cut import ShardCut
from weir.routing.core import Core
from weir.store.api import Store
from weir.types import Position, Version

Choice = Callable[[list[UUID]], list[UUID]]
"""Picks the shards that a read needs from all shards."""

_MANY: Final = 8
"""From this many shards on, the requests for all of them are kept for the next read."""
_AS_KNOWN: Final[Sequence[Position]] = ()
"""Result of round 1 when no tip has moved."""
_AHEAD: Final = 2
"""Entries fetched after the known tip. A reader that follows a writer usually finds one; the second
distinguishes the end of the log from a hole."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What this handle remembers of one shard, and the paths it reads to check that."""

    site: ShardSite
    manifests: Manifests
    manifest: ShardManifest
    floors: FloorValues
    tip: Position
    newer: str
    """Path of the next manifest."""
    entries: Sequence[str]
    """Paths of the next entries."""
    identity: Sequence[str]
    """Path of the id that proves a log on its own store is there; empty if beside the data."""
    marks: str
    """The folder of the floors."""

    def is_all(self, floors: FloorValues, tip: Position) -> bool:
        """True if the handle has learned nothing newer since."""
        return self.floors is floors and self.tip == tip and self.manifests.known is self.manifest


@dataclass(frozen=True, slots=True)
class _ProbePlan:
    """The requests for all chosen shards together; reused as long as nothing changed.

    It need not be the newest state that the handle knows: every read checks it again.
    """

    ids: list[UUID]
    shards: Sequence[_Known]
    apart: Sequence[_Known]
    """Shards whose log is on its own store."""
    asked: Mapping[Store, list[str]]
    """The paths to get in round 1, by store."""
    marks: list[str]
    """The folders of the floors, listed in round 2."""
    floors: list[FloorValues]
    cuts: list[ShardCut]
    """The cuts of the shards if nothing has moved."""


def fast_snapshot(core: Core, choose: Choice) -> tuple[int, list[ShardCut]] | None:
    """The current base version and cuts of the chosen shards; None: take the slow path."""
    ids, version = core.tails.shards, core.tails.base_version
    if ids is None or version is None:
        return None
    chosen = choose(ids)
    known = core.tails.look
    is_known = isinstance(known, _ProbePlan) and known.ids == chosen
    look = known if isinstance(known, _ProbePlan) and is_known else _plan_probe(core, chosen)
    if look is None:
        return None
    # Round 1 alone may read entries while a disk is gone, and the id after the disk is back.
    tips = _tips(core, look) if _are_mounted(look.apart) else None
    if tips is None or not _are_mounted(look.apart):
        core.tails.look = None
        return None
    asked: list[Callable[[], Any]] = [
        core.shard_ids,
        lambda: core.lake.open_base().version,
        lambda: load_all(core.store, look.marks),
    ]
    answers = core.env.threads.map(lambda ask: ask(), asked, workers=core.workers)
    if answers[0] != ids or answers[1] != version:
        return None
    floors: list[FloorValues] = answers[2]
    if is_known and tips is _AS_KNOWN and floors == look.floors:
        return version, look.cuts
    core.tails.look = None
    return _learned(core, look, tips, floors, version)


def _learned(
    core: Core, look: _ProbePlan, tips: Sequence[Position], floors: list[FloorValues], version: int
) -> tuple[int, list[ShardCut]] | None:
    """Remember what both rounds found and return it; None if it cannot be relied on."""
    tips = [one.tip for one in look.shards] if tips is _AS_KNOWN else tips
    for one, tip, found in zip(look.shards, tips, floors, strict=True):
        if (
            found.manifest >= one.manifest.version
            or found.wal > one.manifest.replay_after
            or found.used > tip
            or found.store != one.floors.store
        ):
            return None
    is_as_known = True
    for one, tip, found in zip(look.shards, tips, floors, strict=True):
        if tip != one.tip or found != one.floors:
            core.tails.saw(one.site.shard, found, tip)
            is_as_known = False
    if is_as_known:
        if len(look.shards) >= _MANY:
            core.tails.look = look
        return version, look.cuts
    shards = zip(look.shards, tips, strict=True)
    return version, [ShardCut.of(one.manifest, tip) for one, tip in shards]


def _plan_probe(core: Core, chosen: list[UUID]) -> _ProbePlan | None:
    """The requests for the chosen shards; None if the handle does not know one of them."""
    shards: list[_Known] = []
    asked: dict[Store, list[str]] = {}
    for shard in chosen:
        one = _remembered(core, shard)
        if one is None:
            return None
        shards.append(one)
        asked.setdefault(one.site.store, []).append(one.newer)
        asked.setdefault(one.site.wal, []).extend([*one.entries, *one.identity])
    return _ProbePlan(
        chosen,
        shards,
        [one for one in shards if one.identity],
        asked,
        [one.marks for one in shards],
        [one.floors for one in shards],
        [ShardCut.of(one.manifest, one.tip) for one in shards],
    )


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


def _tips(core: Core, look: _ProbePlan) -> Sequence[Position] | None:
    """Round 1; None if a manifest moved or a log needs the slow path."""
    asked, stores = look.asked, list(look.asked)
    # Each object gets a share of the bytes a read may hold; larger ones take the slow path (L-10).
    share = max(1, core.env.limits.read_bytes // max(1, sum(map(len, asked.values()))))
    answers = core.env.threads.map(
        lambda store: store.get_many(asked[store], first=share), stores, workers=core.workers
    )
    if not look.apart and all(answer.count(None) == len(answer) for answer in answers):
        return _AS_KNOWN
    found: dict[str, bytes | None] = {}
    for store, answer in zip(stores, answers, strict=True):
        found.update(zip(asked[store], answer, strict=True))
    if any(body is not None and len(body) >= share for body in found.values()):
        return None
    tips = []
    for one in look.shards:
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
    """True if every disk that holds a log is mounted; no request to object stores (S-7)."""
    try:
        for one in shards:
            if one.identity:  # a log beside the data is there if the data is
                check_mounted(one.site)
    except WalStoreMismatch:
        return False
    return True


def _advance(core: Core, one: _Known, entries: Sequence[bytes | None]) -> Position | None:
    """Find the tip and cache the entries up to it; None if an entry follows a missing one."""
    if entries.count(None) == len(entries):
        return one.tip  # the case for nearly all of a thousand shards
    there = [data for data in entries if data is not None]
    if any(data is not None for data in entries[len(there) :]):
        return None
    for position, data in enumerate(there, int(one.tip) + 1):
        core.tails.keep(one.site, Position(position), data)
    tip = Position(one.tip + len(there))
    return find_tip(one.site, tip) if len(there) == len(entries) else tip
