"""The order of routings: shards that a reshard sealed come before their heirs.

Keeps
  P-3  all of a routing's shards before those of the next, so a key's changes stay in order
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from weir.errors import MissingEntry
from weir.records.resharding import replacing
from weir.records.table import TableRecord
from weir.routing.core import Core


class Routings:
    """The routing under which each shard was made; it never changes (`shard_spec_id`).

    A routing begins when the shards of the previous one are sealed, so their entries are older.
    """

    def __init__(self) -> None:
        self._known: dict[UUID, int] = {}

    def of(self, core: Core, shards: Iterable[UUID]) -> dict[UUID, int]:
        """A number for each shard, higher for later routings. One request for each new shard."""
        found = {}
        for shard in shards:
            routing = self.find(core, shard)
            if routing is None:
                raise MissingEntry(
                    f"{core.uri} shard {shard} has no manifest; check the table with weir doctor"
                )
            found[shard] = routing
        return found

    def find(self, core: Core, shard: UUID) -> int | None:
        """The number of that shard's routing; None while it has no manifest."""
        if shard not in self._known:
            manifest = core.log(shard).latest()
            if manifest is None:
                return None
            self._known[shard] = manifest.shard_spec_id
        return self._known[shard]


class OrderedShards:
    """The shards of one table, in an order in which their logs can be read to their ends (P-3).

    The record names a routing only when every shard of the routings before it is sealed, so that
    the logs of those are final. A shard made for a later routing is left out until the record names
    that routing: while a reshard runs, rows may still come to shards that were read before it.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._record: TableRecord = core.record
        self._routings = Routings()

    def now(self) -> list[UUID]:
        """Former routings first. One listing; some requests more when a routing is new."""
        known = self._listed()
        if max(known.values(), default=0) > self._record.spec:
            self._record = self._core.records().load()
            # Listed after the record: every shard of the routings before it is in the listing.
            known = self._listed()
            # Read after the listing: without a change, no shard in it is of a routing to come. Such
            # a number is another program's.
            if replacing(self._core.store, self._record.routing_version) is not None:
                known = {s: routing for s, routing in known.items() if routing <= self._record.spec}
        return sorted(known, key=lambda shard: known[shard])

    def _listed(self) -> dict[UUID, int]:
        """Every shard with its routing; one that is being made has no rows, and counts as new."""
        found = {}
        for shard in self._core.all_shard_ids():
            routing = self._routings.find(self._core, shard)
            found[shard] = self._record.spec if routing is None else routing
        return found
