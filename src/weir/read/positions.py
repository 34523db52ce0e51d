"""Positions in all logs of a table: where they end, and up to where they were collected.

Keeps
  P-3  the tips of later routings are read first, so that nothing comes to a shard after its tip was
       read while its heir's was not; a feed that goes on after some rows begins before the entries
       of a large batch that was not published when they were read
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from weir.format.sharding import PerWriter
from weir.format.wal_header import Carries
from weir.log.headers import header_at
from weir.log.shard_log import ShardLog
from weir.log.tailer import WalTailer
from weir.records.cut import ShardCut
from weir.routing.core import CONCURRENCY, Core
from weir.routing.order import Routings
from weir.store.api import ObjectMissing
from weir.types import Position


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
    return _of_each(core, ids, lambda log: log.tip())


def _floors(core: Core, ids: list[UUID]) -> dict[UUID, int]:
    return _of_each(core, ids, lambda log: log.floors().wal)


def _of_each(core: Core, ids: list[UUID], ask: Callable[[ShardLog], int]) -> dict[UUID, int]:
    found = core.env.threads.map(lambda one: int(ask(core.log(one))), ids, workers=CONCURRENCY)
    return dict(zip(ids, found, strict=True))


def shown_tips(core: Core, routings: Routings | None = None) -> dict[UUID, int]:
    """Where a feed of all that comes after the rows of now begins: the tips, or before a large
    batch that is under way. Up to three requests a shard beside those of the tips."""

    def seen(shard: UUID, tip: int) -> int:
        manifest = core.log(shard).latest()
        if manifest is None or tip <= manifest.replay_after:
            return tip
        return shown_through(core, ShardCut.of(manifest, Position(tip)))

    found = tips(core, routings)
    shown = core.env.threads.map(lambda one: seen(*one), list(found.items()), workers=CONCURRENCY)
    return dict(zip(found, shown, strict=True))


def shown_through(core: Core, cut: ShardCut) -> int:
    """The position up to which the rows of all entries are in the cut, or will never count.

    The entries of a large batch lie in the log before a manifest publishes all of them. Those at
    the end of the cut may be published later, at positions that the cut covers. The beginning of an
    entry or two; none if the cut needs no entry. `MissingEntry` if they were collected.
    """
    log = core.log(cut.shard)
    shown = last = int(cut.wal_through)
    while last > cut.replay_after:
        try:
            header = header_at(log.segment(last).site, last)
        except ObjectMissing:
            raise log.hole(Position(last)) from None
        last -= 1
        if header is not None and header.is_fence:
            continue
        # Damage is for those who need the rows. An older epoch is fenced, and its batch is over.
        if header is None or header.staged is Carries.NO or header.epoch < cut.epoch:
            break
        (entry,) = WalTailer(log).read_range(last, last + 1, pinned=True)
        if not entry.is_staged:
            break
        shown = last
    return shown


def positions_at(core: Core, cuts: Iterable[ShardCut], base_version: int) -> dict[UUID, int]:
    """Where a feed goes on after the rows of those cuts, which are of all shards, and of the base.

    Shards that were finished before (C-17) are in none of them: nothing follows there, so they are
    read to their ends. Those that were made since, and finished, are not.
    """
    found = {cut.shard: shown_through(core, cut) for cut in cuts}
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


def passed_by(core: Core, positions: Mapping[UUID, int]) -> dict[UUID, int]:
    """Floors that collection raised above `positions`, where a consumer began; empty if none.

    Collection raises its floors, then reads what consumers hold, then deletes. Floors read after
    the consumer's record was written therefore cover everything deleted without regard to it.
    """
    return {shard: f for shard, f in floors(core).items() if f > positions.get(shard, 0)}
