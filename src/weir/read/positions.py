"""Positions in all logs of a table: where they end, and up to where they were collected.

Keeps
  P-3  the tips of later routings are read first, so that nothing comes to a shard after its tip was
       read while its heir's was not
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from weir.format.sharding import PerWriter
from weir.records.cut import ShardCut
from weir.routing.core import CONCURRENCY, Core
from weir.routing.order import Routings


def tips(core: Core, routings: Routings | None = None) -> dict[UUID, int]:
    """The last position used in each shard. One listing, and ten requests a shard.

    Reads later routings first: once an heir has an entry, the tip of its sealed shard is final.
    A shard without a manifest has no row: it is being made, or was left of a table that was dropped
    here, whose log ends at the floor (C-16).
    """
    order = routings or Routings()
    routing_of = {shard: order.find(core, shard) for shard in core.all_shard_ids()}
    empty = [shard for shard, routing in routing_of.items() if routing is None]
    found = _floors(core, empty)
    known = {shard: routing for shard, routing in routing_of.items() if routing is not None}
    for routing in sorted(set(known.values()), reverse=True):
        ids = [shard for shard in known if known[shard] == routing]
        found |= _tips(core, ids)
    return found


def _tips(core: Core, ids: list[UUID]) -> dict[UUID, int]:
    def tip(shard: UUID) -> int:
        return int(core.log(shard).tip())

    return dict(zip(ids, core.env.threads.map(tip, ids, workers=CONCURRENCY), strict=True))


def positions_at(core: Core, cuts: Iterable[ShardCut], base_version: int) -> dict[UUID, int]:
    """Where a feed goes on after the rows of those cuts, which are of all shards, and of the base.

    Shards that were finished before (C-17) are in none of them: nothing follows there, so they are
    read to their ends. Those that were made since, and finished, are not.
    """
    found = {cut.shard: int(cut.wal_through) for cut in cuts}
    finished = [shard for shard in core.record.finished if shard not in found]
    if finished:
        before = _finished_before(core, finished, list(found), base_version)
        found.update(_tips(core, before))  # guard: C-17 test_finished_shards
    return found


def _finished_before(
    core: Core, finished: list[UUID], cut: list[UUID], base_version: int
) -> list[UUID]:
    """Of the finished shards those whose rows were all in that version of the base."""
    if isinstance(core.record.sharding, PerWriter):
        then, now = core.base(base_version).compacted, core.base().compacted
        # guard: C-18 test_per_writer
        return [shard for shard in finished if then.get(shard, 0) >= now.get(shard, 0)]
    # Shards of a later routing were made since: a reshard may drop what the base says of old ones.
    routings = Routings()
    newest = max((routings.find(core, shard) or 0 for shard in cut), default=0)
    return [shard for shard in finished if (routings.find(core, shard) or 0) < newest]


def floors(core: Core) -> dict[UUID, int]:
    """The position up to which each log was collected."""
    return _floors(core, core.all_shard_ids())


def _floors(core: Core, ids: list[UUID]) -> dict[UUID, int]:
    def floor(shard: UUID) -> int:
        return int(core.log(shard).floors().wal)

    return dict(zip(ids, core.env.threads.map(floor, ids, workers=CONCURRENCY), strict=True))


def passed_by(core: Core, positions: Mapping[UUID, int]) -> dict[UUID, int]:
    """Floors that collection raised above `positions`, where a consumer began; empty if none.

    Collection raises its floors, then reads what consumers hold, then deletes. Floors read after
    the consumer's record was written therefore cover everything deleted without regard to it.
    """
    return {shard: f for shard, f in floors(core).items() if f > positions.get(shard, 0)}
