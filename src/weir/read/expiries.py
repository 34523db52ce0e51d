"""Which rows have expired since a feed last checked.

Expiry writes nothing to the log, so expired rows are found by scanning the table. A feed remembers
the time, as a value of the rule's column, through which it has reported. The next check reports the
rows between that time and the current limit, considering only the newest row of each key.

Keeps
  L-11 the newest row decides: a consumer that applies the feed in order holds what a read shows
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from weir.format.expiry import Alive, Expire, alive_at
from weir.format.keys import pk_values
from weir.format.schema import TableSchema
from weir.keys.keyset import newest_rows
from weir.merge.levels import shaped
from weir.merge.merge import merge_scan
from weir.read.reader import SnapshotReader
from weir.read.scan import with_snapshot
from weir.routing.core import Core

PAUSE_S: Final = 10.0
"""Seconds between two checks of a following feed: each is a scan filtered by time."""


class Expiries:
    """The rows of one table that expire while a feed reads it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.through: float | None = None
        """Rows whose time is at or before this, in seconds since 1970, were reported; a feed that
        resumes another sets how far that got."""
        self._rule: Expire | None = None
        self._looked_at: float | None = None

    def go_back(self, through: float | None) -> None:
        """Go on where a feed stands, without a pause: what the last look found may not be told."""
        self.through, self._looked_at = through, None

    def begin(self) -> None:
        """Call before reading the log. Rows that had expired when the feed was made are reported
        only if the feed also reports them as put."""
        self._rule = self._core.base().expire
        if self.through is None:
            self.through = self._now()

    def late(self, rows: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch | None:
        """The put rows that the feed reports that had already expired; None if there are none.

        Rows that a later one of them replaces do not count: the consumer has that one.
        """
        alive, key = self._alive(self.through, schema), schema.primary_key
        if alive is None:
            return None
        if key:  # guard: L-11 test_expiry
            rows = rows.take(pa.array(newest_rows(pk_values(rows, key))))
        expired = pc.invert(alive.mask(rows))
        return _told(rows.filter(expired), schema) if pc.any(expired).as_py() else None

    def since(self) -> Iterator[tuple[UUID, pa.RecordBatch]]:
        """The rows expired since, by shard: keys only, or all columns in a table without a key."""
        clock, now = self._core.env.clock, self._now()
        if now is None or self.through is None:
            self.through = now  # there is no rule now, or there was none before
            return
        if self._looked_at is not None and clock.boottime() - self._looked_at < PAUSE_S:
            return
        self._looked_at = clock.boottime()
        if now <= self.through:
            return  # the rule now keeps rows for longer
        after = self.through
        schema, found = with_snapshot(
            self._core, "durable", None, lambda reader: self._find(reader, after, now)
        )
        for batch in found:
            for value, part in self._core.router.split(batch):
                yield self._core.route(value), _told(part, schema)
        self.through = now  # guard: L-11

    def _find(
        self, reader: SnapshotReader, after: float, through: float
    ) -> tuple[TableSchema, list[pa.RecordBatch]]:
        """The rows that expired between those times. The merge hides none that has expired."""
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
        """The time through which rows have expired by now; None if there is no rule."""
        rule = self._rule
        return None if rule is None else self._core.env.clock.wall() - rule.after_s

    def _alive(self, through: float | None, schema: TableSchema) -> Alive | None:
        rule = self._rule
        if rule is None or through is None or rule.column not in schema.plain.names:
            return None
        return alive_at(rule, through + rule.after_s, schema.plain.field(rule.column))


def _told(rows: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
    return shaped(rows, schema.key_schema if schema.primary_key else schema.plain)
