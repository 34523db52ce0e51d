"""Finds the open writer that takes all rows of a put.

A put whose rows go to one shard is that shard's put; finding the shard is the only extra cost. What
depends on the record alone is computed once for each record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

import pyarrow as pa

from weir.format.sharding import Router, Value
from weir.log.small_put import as_small_put
from weir.records.table import TableRecord
from weir.routing.core import Core
from weir.routing.writer_shard import WriterShard
from weir.shard.writer import ShardWriter
from weir.types import Rows

CachedRoute = tuple[TableRecord, UUID, ShardWriter]
"""The record that the routing follows, the shard, and its writer."""

KNOWN_MAX: Final = 4096
"""Maximum number of cached values of identity sharding."""


class RouteCache:
    """The ways to the open writers of one `TableWriter`. Used by any thread, without a lock.

    A writer is given up when the routing has left its shard (C-11), and by then there is a new
    record. A put that found the writer earlier is refused by it, and follows the new routing.
    """

    def __init__(
        self,
        core: Core,
        schema: pa.Schema,
        writers: Mapping[UUID, ShardWriter],
        lone: WriterShard | None = None,
    ) -> None:
        self._core = core
        self._lone = lone
        self._types = dict(zip(schema.names, schema.types, strict=True))
        self._writers = writers
        self._of = _RecordRoutes(core.record, self._types)

    def find(self, data: Rows) -> CachedRoute | None:
        """The way of `data`; None: take the slow path."""
        if self._lone is not None:
            return self._own_way(self._lone.shard)
        of = self._of
        if of.record is not self._core.record:
            of = self._of = _RecordRoutes(self._core.record, self._types)
        value: Value = None
        if of.column is not None:
            found = of.value(data)
            if found is None:
                return None
            value = found[0]
        way = of.known.get((type(value), value))
        return self._look_up(of, value) if way is None else way

    def _own_way(self, shard: UUID | None) -> CachedRoute | None:
        writer = None if shard is None else self._writers.get(shard)
        return None if shard is None or writer is None else (self._core.record, shard, writer)

    def _look_up(self, of: _RecordRoutes, value: Value) -> CachedRoute | None:
        shard = self._core.shard_of(value, of.record)
        writer = self._writers.get(shard)
        if writer is None:
            return None
        if len(of.known) >= KNOWN_MAX:
            of.known.clear()
        way = of.known[type(value), value] = (of.record, shard, writer)
        return way


class _RecordRoutes:
    """The ways under one record."""

    def __init__(self, record: TableRecord, types: Mapping[str, pa.DataType]) -> None:
        self.record = record
        self._router = Router(record.sharding)
        self.column = self._router.column_name
        self._type = None if self.column is None else types.get(self.column)
        self._find = self._router.finder(pa.null() if self._type is None else self._type)
        self.known: dict[tuple[type, Value], CachedRoute] = {}

    def value(self, data: Rows) -> tuple[Value] | None:
        """The value of the one shard of all rows; None: several shards, or rows to refuse."""
        column, dtype = self.column, self._type
        if column is None or dtype is None:
            return None  # renamed since: the slow path reports it
        row = data[0] if type(data) is list and len(data) == 1 else data
        if type(row) is dict:
            value = self._find(row.get(column))
            if value is not None:
                return (value,)
        put = as_small_put(data)
        found = put and put.column(column, dtype)
        return None if found is None else self._router.one_value(found)
