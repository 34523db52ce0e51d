"""Ends a rival shard: an operator says whether its rows are the newer or the older ones (X-3).

    1. the shard is sealed (claimed, replayed, flushed) and takes no more writes. From here on its
       rows are older than the routing's, for reads and for compaction
    2. as newer: its rows and deletes are put again, through the routing; as older: the table's own
       rows of the same keys are, since these may be in the base, below the shard's SSTables
    3. compaction folds both into the base

After a crash, run it again to finish: a shard whose rows are all in the base is done.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal, get_args
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import InvalidInput
from weir.format.manifest import ShardManifest
from weir.format.schema import TOMBSTONE
from weir.merge.merge import merge_lookup
from weir.read.reader import SnapshotReader
from weir.read.scan import with_snapshot
from weir.routing.core import Core
from weir.routing.guard import known_rivals
from weir.routing.writer import TableWriter
from weir.upkeep.compact.run import CompactReport, compact
from weir.upkeep.owner import Owner
from weir.upkeep.unfinished import require_settled

logger = logging.getLogger("weir.upkeep")

Order = Literal["newer", "older"]


@dataclass(frozen=True)
class AdoptReport:
    """What the adoption of a shard did."""

    shard: UUID
    order: Order
    rows: int
    """Rows put again, deletes included: those of the shard, or those of the table that win."""
    compaction: CompactReport


def adopt_shard(core: Core, shard: UUID, order: Order) -> AdoptReport:
    """See `Table.adopt_shard`."""
    if order not in get_args(Order):
        raise InvalidInput(f"order must be 'newer' or 'older', got {order!r}")
    manifest = core.log(shard).latest()
    if manifest is None:
        raise InvalidInput(
            f"{core.uri} has no shard {shard}; table.shards(), or weir shards, lists those it has"
        )
    if core.is_routed(shard, manifest):
        raise InvalidInput(f"shard {shard} of {core.uri} is in its routing; nothing to adopt")
    require_settled(core, "adopt")  # guard: K-11
    Owner(core, shard).seal()
    known_rivals(core).pop(shard, None)
    core.env.failpoint("adopt.sealed")
    sealed = core.log(shard).manifests.require()
    count = _put_again(core, sealed, order)
    logger.info("shard.adopted table=%s shard=%s order=%s rows=%d", core.uri, shard, order, count)
    return AdoptReport(shard, order, count, compact(core))


def _put_again(core: Core, sealed: ShardManifest, order: Order) -> int:
    """Put the winning rows again through the routing, oldest first; returns how many.

    Rows of the shard that are already in the base stay as they are.
    """
    folded = core.base().compacted.get(sealed.shard_id, 0)
    schema, key = core.schema(), list(core.record.primary_key)
    waiting = [table for table in sealed.sstables if table.generation > folded]
    count = 0
    with TableWriter(core) as writer:
        for table in sorted(waiting, key=lambda t: t.generation):
            for batch in core.lake.open_sstable(sealed.shard_id, table.path, schema).scan():
                rows = pa.Table.from_batches([batch])
                if order == "older":  # guard: X-3 test_shared_tables
                    kept, deleted = _own_rows(core, sealed.shard_id, rows.select(key)), rows[:0]
                else:
                    gone = rows.column(TOMBSTONE)
                    kept = rows.filter(pc.invert(gone)).drop_columns([TOMBSTONE])
                    deleted = rows.filter(gone).select(key)
                if kept.num_rows:
                    writer.put(kept)
                if deleted.num_rows:
                    writer.delete(deleted)
                count += kept.num_rows + deleted.num_rows
    return count


def _own_rows(core: Core, shard: UUID, keys: pa.Table) -> pa.Table:
    """The table's rows of those keys, read without that shard.

    A row in one of the shard's SSTables would hide the row that is in the base.
    """

    def run(reader: SnapshotReader) -> pa.Table:
        levels = reader.levels()
        return merge_lookup(keys, levels, reader.base, reader.schema, None, alive=reader.alive)

    return with_snapshot(
        core, "durable", None, run, choose=lambda ids: [other for other in ids if other != shard]
    )
