"""A batch that was written in part before the table was resharded, and is written again (P-2).

Tokens are kept by shard, and resharding makes new shards without any. So the rows of a batch are
looked up where the former routings put them: what such a shard had taken in is passed over. Those
shards are sealed: what they know never changes, and is asked for once in a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final
from uuid import UUID

import pyarrow as pa

from weir.format import paths
from weir.format.sharding import Router, Unsharded, shard_id
from weir.records.table import TableRecord, TableRecords
from weir.routing.core import Core
from weir.shard.tokens import Tokens
from weir.spark.publish import Token

_KNOWN_MAX: Final = 10_000

Rows = Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]


def not_yet_in(core: Core, token: Token | None) -> Rows:
    """Gives the rows of a batch that no shard of a former routing took in under `token`."""
    version = core.record.routing_version
    if token is None or version == 1 or token.app.startswith(paths.JOB_APP):
        return lambda batch: iter((batch,))
    former = _former(core, version)

    def rows(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        parts = [batch]
        for record in former:
            parts = [left for part in parts for left in _left(core, record, token, part)]
        return iter(parts)

    return rows


def _left(
    core: Core, record: TableRecord, token: Token, batch: pa.RecordBatch
) -> list[pa.RecordBatch]:
    sharding = record.sharding
    if not isinstance(sharding, Unsharded) and sharding.column not in batch.schema.names:
        return [batch]  # the column is gone, and with it the way to tell
    return [
        part
        for value, part in Router(sharding).split(batch)
        if _highest(core, shard_id(sharding, value, record.routing_version), token.app)
        < token.version
    ]


def _former(core: Core, version: int) -> list[TableRecord]:
    """The records of all routings before `version` that are still there."""
    key = (core.uri, version)
    if key not in _FORMER:
        records = TableRecords(core.store)
        found = [records.at_routing(number) for number in range(version - 1, 0, -1)]
        _FORMER[key] = [record for record in found if record is not None]
    return _FORMER[key]


def _highest(core: Core, shard: UUID, app: str) -> int:
    key = (core.uri, shard, app)
    if key not in _HIGHEST:
        if len(_HIGHEST) >= _KNOWN_MAX:
            _HIGHEST.clear()
        recorded = Tokens(core.beside(shard)).load(app)
        _HIGHEST[key] = -1 if recorded is None else recorded
    return _HIGHEST[key]


_FORMER: dict[tuple[str, int], list[TableRecord]] = {}
_HIGHEST: dict[tuple[str, UUID, str], int] = {}
