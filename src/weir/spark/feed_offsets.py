"""Positions in the logs: where the logs end, where a feed begins, how far a batch goes.

Keeps
  P-3  shards of a former routing come before their heirs, so a key's changes stay in order
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from weir.errors import InvalidInput
from weir.read.positions import floors, shown_tips
from weir.records.consumers import Consumer
from weir.routing.core import Core
from weir.routing.order import Routings
from weir.upkeep.consumers import hold_from

_LOOKED_AT: Final = 32
"""Entries of a shard whose sizes are requested to estimate the bytes that wait."""


def starting_positions(core: Core, start: str) -> dict[UUID, int]:
    """Where a feed begins: earliest (all that was not collected), latest, or positions as JSON."""
    if start == "earliest":
        return floors(core)
    if start == "latest":
        return shown_tips(core)
    try:
        raw = json.loads(start)
        found = raw.get("positions", raw)
        return {UUID(shard): int(p) for shard, p in found.items() if shard != "v"}
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidInput(
            "startingOffsets must be earliest, latest, snapshot, or a JSON object of shard ids and"
            f" positions, got {start!r} ({error!r})"
        ) from error


def held_positions(core: Core, start: str, consumer: Consumer, load: int) -> dict[UUID, int]:
    """Where a named consumer begins, or already stands; later entries are kept for it (P-3).

    `load` is the number of the last load before `start`, and kept for it, too.
    """
    wanted = starting_positions(core, start)
    is_exact = start not in ("earliest", "latest")
    advice = "Use startingOffsets snapshot or earliest"
    return hold_from(core, consumer, wanted, is_exact=is_exact, advice=advice, load=load)


def positions_of(offset: Mapping[str, Any]) -> dict[UUID, int]:
    """The positions in an offset of the stream."""
    if offset.get("v") != 1:
        raise InvalidInput(
            f"offset {dict(offset)!r} was written by another release of weir; use that release, or"
            " a new checkpoint location"
        )
    return {UUID(shard): int(p) for shard, p in offset["positions"].items()}


def advance(
    core: Core,
    start: Mapping[UUID, int],
    head: Mapping[UUID, int],
    *,
    entries: int | None,
    nbytes: int | None,
    routings: Routings | None = None,
) -> dict[UUID, int]:
    """How far a batch goes from `start` towards `head`: bounded, fair to the shards of a routing.

    A batch never spans two routings: with entries of a sealed shard and of its heir it would have
    no order between two changes of one key (P-3).

    A bound on bytes costs requests for the sizes of the next entries. A batch holds at least one
    entry, however large.
    """
    end = {shard: max(start.get(shard, 0), last) for shard, last in head.items()}
    end |= {shard: p for shard, p in start.items() if shard not in head}
    behind = {s: last - start.get(s, 0) for s, last in end.items() if last > start.get(s, 0)}
    if not behind:
        return end
    known = (routings or Routings()).of(core, behind)
    first_routing = min(known.values())
    for shard in [s for s in behind if known[s] > first_routing]:
        end[shard] = start.get(shard, 0)
        del behind[shard]
    if entries is None and nbytes is None:
        return end
    sizes = _sizes(core, start, behind, entries or 1024) if nbytes is not None else None
    taken = dict.fromkeys(behind, 0)
    left, room = entries, nbytes
    while any(taken[s] < behind[s] for s in behind):
        for shard in sorted(behind):
            if taken[shard] == behind[shard]:
                continue
            size = 0
            if sizes is not None:
                if taken[shard] == len(sizes[shard]):
                    return _stopped(start, end, taken)
                size = sizes[shard][taken[shard]]
            first = not any(taken.values())
            if not first and (
                (left is not None and left <= 0) or (room is not None and size > room)
            ):
                return _stopped(start, end, taken)
            taken[shard] += 1
            left = None if left is None else left - 1
            room = None if room is None else room - size
    return _stopped(start, end, taken)


def behind(
    core: Core, reached: Mapping[UUID, int], head: Mapping[UUID, int]
) -> dict[str, dict[str, int]]:
    """Entries and bytes that a feed has not read, for each shard that has any.

    Bytes are extrapolated from the first entries.
    """
    waits = [shard for shard, last in head.items() if last > reached.get(shard, 0)]

    def ask(shard: UUID) -> dict[str, int]:
        return _behind(core, shard, reached.get(shard, 0), head[shard])

    found = core.env.threads.map(ask, waits, workers=core.workers)
    return {str(shard): told for shard, told in zip(waits, found, strict=True)}


def _behind(core: Core, shard: UUID, start: int, last: int) -> dict[str, int]:
    sizes = core.log(shard).sizes(start, min(last - start, _LOOKED_AT))
    return {"entries": last - start, "bytes": sum(sizes) * (last - start) // len(sizes)}


def _stopped(
    start: Mapping[UUID, int], end: Mapping[UUID, int], taken: Mapping[UUID, int]
) -> dict[UUID, int]:
    return {s: start.get(s, 0) + taken[s] if s in taken else last for s, last in end.items()}


def _sizes(
    core: Core, start: Mapping[UUID, int], behind: Mapping[UUID, int], most: int
) -> dict[UUID, list[int]]:
    """Sizes of the next entries of each shard that is behind."""
    found = {}
    for shard, count in behind.items():
        found[shard] = core.log(shard).sizes(start.get(shard, 0), min(count, most))
    return found
