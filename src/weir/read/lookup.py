"""Lookups by key in a whole table: a snapshot of the shards that can hold the keys, one merge.

Keeps
  L-1  the shards are chosen by one routing, also when another thread learns of a newer one: by two
       of them, the shard that takes a key now would be left out as one that the key never had
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa

from weir.errors import InvalidInput
from weir.format.sharding import Router
from weir.log.intake import key_table
from weir.merge.levels import Level
from weir.merge.merge import merge_lookup
from weir.read.reader import SnapshotReader
from weir.read.scan import with_snapshot
from weir.read.snapshot import Freshness, Pinned, check_freshness
from weir.records.table import TableRecord
from weir.routing.core import Core
from weir.types import require_names


def get_rows(
    core: Core,
    keys: Any,
    *,
    columns: Sequence[str] | None,
    freshness: Freshness,
    pinned: Pinned | None,
) -> pa.Table:
    """The newest rows of `keys`, in their order. Reads only the shards that can hold a key."""
    check_freshness(freshness)
    require_names(columns)
    schema = core.known_schema()
    if not schema.primary_key:
        raise InvalidInput(
            f"{core.uri} is append-only and has no key to get rows by; use scan with a filter"
        )
    wanted = key_table(keys, schema)
    known: tuple[TableRecord | None, set[UUID]] = (None, set())

    def choose(ids: list[UUID]) -> list[UUID]:
        nonlocal known
        while True:
            record = core.record
            if known[0] is not record:
                values = Router(record.sharding).values(wanted)
                known = record, {core.shard_of(value, record) for value, _ in values}
            of_routing, takers = core.routed(ids), known[1]
            if core.record is record:
                # Shards outside the routing (native, sealed) may hold any key.
                return [shard for shard in ids if shard in takers or shard not in of_routing]

    def run(reader: SnapshotReader) -> pa.Table:
        levels: list[Level] = reader.merged_levels(choose([c.shard for c in reader.snapshot.cuts]))
        return merge_lookup(wanted, levels, reader.base, reader.schema, columns, alive=reader.alive)

    return with_snapshot(core, freshness, pinned, run, choose=choose, verb="get")
