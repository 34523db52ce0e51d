"""Batches that were applied, in whole or in part, before the table was resharded (P-2, P-6).

Tokens are kept by shard, and resharding makes new shards without any. So the rows of a batch are
looked up where the former routings put them, and those that such a shard took in are skipped. Those
shards are sealed: their tokens never change, and a handle reads them once.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import pyarrow as pa

from weir.format import paths
from weir.format.sharding import Router, Sharding, Unsharded
from weir.records.table import TableRecord, TableRecords
from weir.routing.core import Core
from weir.shard.once import UnappliedFilter
from weir.shard.tokens import Tokens

_KNOWN_MAX: Final = 10_000


def former_routings(core: Core, record: TableRecord) -> tuple[tuple[int, Sharding], ...]:
    """Every routing before that of `record`, with its sharding, oldest first.

    The record names them; if an older release wrote it, earlier records are read instead.
    """
    known = dict(record.former)
    for version in range(record.first_routing, record.routing_version):
        if version not in known:
            older = TableRecords(core.store).at_routing(version)
            if older is not None:
                known[version] = older.sharding
    return tuple(sorted(known.items()))


def unapplied_filter(core: Core) -> UnappliedFilter | None:
    """A filter for the rows that no shard of a former routing took in; None: keep all rows."""
    if core.record.routing_version == core.record.first_routing:
        return None
    record = core.record
    former: list[tuple[int, Sharding]] = []  # read when the first batch comes

    def rows(app: str, version: int, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        if app.startswith(paths.JOB_APP):
            return batches  # a job writes under one routing only
        if not former:
            former.extend(former_routings(core, record))
        for number, sharding in former:
            batches = [
                part
                for batch in batches
                for part in _unapplied(core, record, sharding, number, app, version, batch)
            ]
        return batches

    return rows


def _unapplied(
    core: Core,
    record: TableRecord,
    sharding: Sharding,
    number: int,
    app: str,
    version: int,
    batch: pa.RecordBatch,
) -> list[pa.RecordBatch]:
    if not isinstance(sharding, Unsharded) and sharding.column not in batch.schema.names:
        return [batch]  # the column is gone: its shard cannot be known
    dtype = _type(batch, sharding)
    return [
        part
        for value, part in Router(sharding).split(batch)
        if _highest(core, record.shard_at(number, sharding, value, dtype), app) < version
    ]


def _type(batch: pa.RecordBatch, sharding: Sharding) -> pa.DataType | None:
    return None if isinstance(sharding, Unsharded) else batch.schema.field(sharding.column).type


def _highest(core: Core, shard: UUID, app: str) -> int:
    known = core.sealed_tokens
    if (shard, app) not in known:
        if len(known) >= _KNOWN_MAX:
            known.clear()
        recorded = Tokens(core.table_site(shard)).load(app)
        known[shard, app] = -1 if recorded is None else recorded
    return known[shard, app]
