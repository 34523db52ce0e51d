"""Finds the tip: the last position used in a shard's log, with few requests.

Above R the log has no holes (G-9), so existence is monotonic: doubling finds a missing position,
bisection the border. A few probes beyond the border catch a damaged log before anything is built on
it (F-6). The common case, nothing new, is one round trip.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir.errors import MissingEntry, SnapshotExpired
from weir.format import paths
from weir.log.floors import Floors
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.types import Position

_STEPS_PER_ROUND = 6
AHEAD = (1, 2, 3, 5, 9, 17)
"""How far beyond a known tip is probed."""


def find_tip(site: ShardSite, after: Position) -> Position:
    """The highest position used, given that all up to `after` are.

    Raises `MissingEntry` when entries are seen beyond a missing one, `SnapshotExpired` when the log
    was moved away and back during the search, `StoreError` when its folder is gone. O(log n)
    requests in O(log n / 6) round trips.
    """
    # A caller that planned on a manifest from before a move passes too low a position (S-3).
    tip = max(int(after), site.wal_after)
    while True:
        found = _exists(site, [tip + offset for offset in AHEAD])
        if all(found):
            tip = _border(site, tip + AHEAD[-1])
            continue
        shown = offset_of_tip(found)
        if shown is not None:
            return Position(tip + shown)
        missing = found.index(False)
        border = tip + (AHEAD[missing - 1] if missing else 0)
        if not any(found[missing:]):
            # The probes were too far apart: positions right beyond the border are unchecked (F-6).
            tip = _bisect(site, border, tip + AHEAD[missing])
            continue
        tip = border
        if not _exists(site, [tip + 1])[0]:  # else a writer appended while we probed
            floor = Floors(site).load().wal
            if floor > tip:  # flushed and collected since the caller read the manifest (G-7c)
                tip = floor
                continue
            latest, floors = Manifests(site).latest_with_floors()
            number = 0 if latest is None else latest.log_place or floors.place
            if number != site.place:  # guard: S-3
                raise SnapshotExpired(
                    f"{site}: its log was moved to another place during the search for its tip; try"
                    " again"
                )
            raise MissingEntry(
                f"{site}: the log has a hole at position {tip + 1}, "
                f"{paths.wal_path(site.shard, Position(tip + 1))} does not exist although later "
                "entries do. "
                "Rows may be lost; restore that object or clone from a checkpoint."
            )


def offset_of_tip(found: Sequence[bool]) -> int | None:
    """How far beyond a used position the tip is, by probes of `AHEAD`; None: they do not show it.

    They do if all beyond the tip were missing, the one right after it included (F-6).
    """
    missing = found.index(False) if False in found else len(found)
    if missing == len(found) or any(found[missing:]):
        return None
    border = AHEAD[missing - 1] if missing else 0
    return border if AHEAD[missing] - border == 1 else None


def _border(site: ShardSite, low: int) -> int:
    """The last position used after `low`, by doubling and bisection."""
    reach = AHEAD[-1]
    while True:
        offsets = [reach << i for i in range(_STEPS_PER_ROUND)]
        found = _exists(site, [low + offset for offset in offsets])
        if not all(found):
            first_missing = found.index(False)
            high = low + offsets[first_missing]
            return _bisect(site, low + (offsets[first_missing - 1] if first_missing else 0), high)
        low += offsets[-1]
        reach = offsets[-1] * 2


def _bisect(site: ShardSite, present: int, missing: int) -> int:
    """Narrow down to the last position used, four probes a round."""
    while missing - present > 1:
        step = max(1, (missing - present) // 5)
        probes = list(range(present + step, missing, step))[:4]
        for probe, exists in zip(probes, _exists(site, probes), strict=True):
            if exists:
                present = probe
            else:
                missing = probe
                break
    return present


def _exists(site: ShardSite, positions: list[int]) -> list[bool]:
    wanted = [paths.wal_path(site.shard, Position(p)) for p in positions]
    return [meta is not None for meta in site.wal.head_many(wanted)]
