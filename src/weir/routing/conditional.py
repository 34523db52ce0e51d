"""The verbs of a table's writer that read before they write: routed, then decided by shard."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from uuid import UUID

import pyarrow as pa

from weir.errors import InvalidInput, KeyConflict, PartialWrite
from weir.format.sharding import Value
from weir.log.intake import Intake
from weir.records.table import TableRecord
from weir.routing.core import CONCURRENCY, Core
from weir.routing.shards import all_shards
from weir.shard.ack import Ack
from weir.shard.request import WriteCounts
from weir.shard.request_builder import MISSING, Missing, OnConflict, PartialRows, check_choice
from weir.shard.writer import ShardWriter
from weir.types import Rows

Put = Callable[[ShardWriter, list[pa.RecordBatch]], Ack | None]


class ConditionalTableVerbs(ABC):
    """The verbs of `TableWriter` besides put and delete: those of `ShardWriter`, over all shards.

    Each shard decides its part concurrently and on its own: a write over several shards is not
    atomic. Raises `KeyConflict` when all failures are key conflicts, with the parts of the other
    shards written; otherwise `PartialWrite` as for a put.
    """

    _core: Core
    _intake: Intake

    @abstractmethod
    def _write_with(
        self, batches: list[pa.RecordBatch], put: Put, timeout: float | None
    ) -> dict[UUID, Ack]:
        """Route the rows and give each shard's writer its part."""

    @abstractmethod
    def _writer(self, shard: UUID, value: Value, record: TableRecord) -> ShardWriter:
        """The writer of that shard, opened if necessary."""

    def update(
        self, rows: Rows, *, missing: Missing = "error", timeout: float | None = None
    ) -> WriteCounts:
        """Set some columns of rows, given with their key; see `ShardWriter.update`."""
        check_choice(missing, MISSING, "missing")
        batches = PartialRows(self._keyed("update")).shape(rows)

        def update(writer: ShardWriter, part: list[pa.RecordBatch]) -> WriteCounts:
            return writer.update_shaped(part, missing=missing, timeout=timeout)

        return self._decide(batches, update, timeout)

    def insert(
        self, rows: Rows, *, on_conflict: OnConflict = "error", timeout: float | None = None
    ) -> WriteCounts:
        """Put rows whose keys do not exist; see `ShardWriter.insert`."""
        batches = self._keyed("insert").rows(rows)

        def insert(writer: ShardWriter, part: list[pa.RecordBatch]) -> WriteCounts:
            whole = pa.Table.from_batches(part)
            return writer.insert(whole, on_conflict=on_conflict, timeout=timeout)

        return self._decide(batches, insert, timeout)

    def delete_where(self, filter: str, *, timeout: float | None = None) -> WriteCounts:
        """Delete the rows that pass a filter; opens (claims) every shard. See
        `ShardWriter.delete_where`."""
        self._keyed("delete_where")
        return self._each_shard(lambda writer: writer.delete_where(filter, timeout=timeout))

    def update_where(
        self, filter: str, assignments: Mapping[str, str], *, timeout: float | None = None
    ) -> WriteCounts:
        """Set columns of the rows that pass a filter; opens (claims) every shard. See
        `ShardWriter.update_where`."""
        self._keyed("update_where")
        return self._each_shard(
            lambda writer: writer.update_where(filter, assignments, timeout=timeout)
        )

    def _put_when(self, rows: Rows, when: str, timeout: float | None) -> WriteCounts:
        batches = self._keyed("put").rows(rows)

        def put(writer: ShardWriter, part: list[pa.RecordBatch]) -> WriteCounts:
            return writer.put(pa.Table.from_batches(part), when=when, timeout=timeout)

        return self._decide(batches, put, timeout)

    def _keyed(self, call: str) -> Intake:
        if not self._core.record.primary_key:
            raise InvalidInput(
                f"{self._core.uri}: {call} needs a primary key; this table is append-only"
            )
        return self._intake

    def _decide(
        self,
        batches: list[pa.RecordBatch],
        run: Callable[[ShardWriter, list[pa.RecordBatch]], WriteCounts],
        timeout: float | None,
    ) -> WriteCounts:
        found: list[WriteCounts] = []

        def put(writer: ShardWriter, part: list[pa.RecordBatch]) -> None:
            found.append(run(writer, part))

        try:
            self._write_with(batches, put, timeout)
        except PartialWrite as failed:
            conflicts = [e for e in failed.failures.values() if isinstance(e, KeyConflict)]
            if len(conflicts) < len(failed.failures):
                raise
            keys = [key for conflict in conflicts for key in conflict.keys]
            rows = [batch for conflict in conflicts for batch in conflict.not_written]
            raise KeyConflict(str(failed), keys, not_written=rows) from failed
        return sum(found, WriteCounts())

    def _each_shard(self, run: Callable[[ShardWriter], WriteCounts]) -> WriteCounts:
        record = self._core.record
        routed = [shard for shard in all_shards(self._core) if shard.is_routed]
        writers = [self._writer(shard.id, shard.value, record) for shard in routed]
        return sum(self._core.env.threads.map(run, writers, workers=CONCURRENCY), WriteCounts())
