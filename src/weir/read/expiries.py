"""Which rows have expired since a feed looked last.

Expiry writes nothing, so this is not in the log: it is found in the table. A feed remembers the
time through which it has told, as the column of the rule counts it; what lies between that and the
time through which rows have expired now is told next, of the newest row of each key.

Keeps
  L-11 the newest row decides: who applies the feed in its order holds what a read would show
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from weir.format.expiry import Alive, Expire, alive_at
from weir.format.schema import TableSchema
from weir.merge.levels import shaped
from weir.merge.merge import merge_scan, replanned
from weir.read.reader import SnapshotReader
from weir.read.snapshot import take_snapshot
from weir.routing.core import Core

PAUSE_S: Final = 10.0
"""A feed that follows looks for rows that expired so often: it is a scan by time."""


class Expiries:
    """The rows of one table that expire while a feed reads it."""

    def __init__(self, core: Core, through: float | None) -> None:
        """`through`: what an earlier feed reached."""
        self._core = core
        self.through = through
        """Rows whose time, in seconds since 1970, is not after this were told."""
        self._rule: Expire | None = None
        self._looked_at: float | None = None

    def begin(self) -> None:
        """Before the log is read. What had expired when a feed was made is told only of rows that
        it tells as put."""
        self._rule = self._core.base().expire
        if self.through is None:
            self.through = self._now()

    def late(self, rows: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch | None:
        """Of rows that are told as put those that had expired when they were; None: no one."""
        alive = self._alive(self.through, schema)
        if alive is None:
            return None
        expired = pc.invert(alive.mask(rows))
        return _told(rows.filter(expired), schema) if pc.any(expired).as_py() else None

    def since(self) -> Iterator[tuple[UUID, pa.RecordBatch]]:
        """The rows that have expired since, by shard: their keys, or all columns without a key."""
        clock, now = self._core.env.clock, self._now()
        if now is None or self.through is None:
            self.through = now  # there is no rule, or there was none
            return
        if self._looked_at is not None and clock.boottime() - self._looked_at < PAUSE_S:
            return
        self._looked_at = clock.boottime()
        if now <= self.through:
            return  # the rule is a longer one now
        schema, found = replanned(lambda: self._find(self.through, now), self._core.uri)
        for batch in found:
            for value, part in self._core.router.split(batch):
                yield self._core.route(value), _told(part, schema)
        self.through = now

    def _find(
        self, after: float | None, through: float
    ) -> tuple[TableSchema, list[pa.RecordBatch]]:
        # As of 1970 nothing has expired: a read of then hides nothing.
        snapshot = replace(take_snapshot(self._core, "durable"), at=0.0)
        reader = SnapshotReader(self._core, snapshot, passing=False)
        told, gone = (self._alive(at, reader.schema) for at in (after, through))
        if told is None or gone is None:
            return reader.schema, []
        route = self._core.router.column_name
        names = list(dict.fromkeys((*reader.schema.primary_key, *([route] if route else []))))
        _, rows = merge_scan(
            reader.merged_levels(),
            reader.base,
            reader.schema,
            columns=names if reader.schema.primary_key else None,
            filter=f"{gone.expired_sql()} AND NOT ({told.expired_sql()})",
            env=self._core.env,
        )
        return reader.schema, [batch for batch in rows if batch.num_rows]

    def _now(self) -> float | None:
        """The time through which rows have expired by now; None: there is no rule."""
        rule = self._rule
        return None if rule is None else self._core.env.clock.wall() - rule.after_s

    def _alive(self, through: float | None, schema: TableSchema) -> Alive | None:
        rule = self._rule
        if rule is None or through is None or rule.column not in schema.plain.names:
            return None
        return alive_at(rule, through + rule.after_s, schema.plain.field(rule.column))


def _told(rows: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
    return shaped(rows, schema.key_schema if schema.primary_key else schema.plain)
