"""The change feed as a stream: offsets are positions in the logs.

Keeps
  P-3  each entry once and in order within a shard, never a fence, and all entries of a routing
       before those of the next; what a named consumer has not read is kept for it; a start below
       the collected floor, and a load, which no entry tells of, are errors that say so
An offset is JSON, kept verbatim in Spark's checkpoint: {"v": 1, "positions": {shard: position},
"load": number of the last load before them}, and, for a stream that begins with a snapshot,
{"v": 1, "snapshot": ...} in the offset that ends its first batch. A replayed batch reads the same
positions, whatever was added since.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

import weir
from weir.durations import seconds
from weir.errors import CommitConflict, InvalidInput, SchemaMismatch, SnapshotExpired
from weir.format.schema import TOMBSTONE
from weir.format.wal_entry import WalEntry
from weir.log.shard_log import ShardLog
from weir.read.changes import range_rows
from weir.read.loads import load_number, require_same_load
from weir.read.positions import passed_by, positions_at, tips
from weir.read.snapshot import Snapshot
from weir.records.consumers import TTL, Consumer
from weir.routing.finishing import finish
from weir.routing.order import Routings
from weir.spark.failures import without_traceback
from weir.spark.feed_offsets import (
    advance,
    behind,
    held_positions,
    positions_of,
    starting_positions,
)
from weir.spark.feed_schema import (
    EPOCH,
    METADATA,
    POSITION,
    SHARD,
    require_columns,
    wants_metadata,
)
from weir.spark.moments import checkpoint_named, one_start, positions_since, time_of
from weir.spark.options import FEED, canonical_options, check_options
from weir.spark.places import Place, flag, number
from weir.spark.source import parts_of, read_part
from weir.spark.types import arrow_schema, require_typed, to_spark
from weir.upkeep.consumers import hold_from

logger = logging.getLogger("weir.spark")

POLL: Final = 0.2
"""Seconds for which the tips of the logs are cached: Spark polls 85 times a second."""


Offset = dict[str, Any]


class WeirFeed(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One `spark.readStream.format("weir")`."""

    metadata = METADATA
    kind_of_snapshot = "put"
    ends = staticmethod(tips)

    def __init__(
        self, options: Mapping[str, str], schema: StructType, *, place: Place | None = None
    ) -> None:
        """`place`: the table, if it is not to be opened as the options say."""
        options = canonical_options(options)
        check_options(options, FEED, "the change feed")
        one_start(options)
        self._place = place or Place.of(options)
        table = self._place.current()
        self._table_id = str(table.core.record.table_id)
        require_typed(schema, lambda: table.schema)
        self._schema = schema
        # By name a feed has all columns of the table; by path, those that it began with.
        named = "weir.name" in options
        self._columns = schema.fieldNames() if named else table.schema.names
        self._metadata = wants_metadata(options)
        if self._metadata:
            require_columns(schema, METADATA)
        self._loss = not flag(options, "failOnDataLoss", default=True)
        self._deletes = options.get("deletes", "error")
        if self._deletes not in ("error", "skip"):
            raise InvalidInput(f"option deletes must be error or skip, got {self._deletes!r}")
        self._version = options.get("startingversion")
        self._time = options.get("startingtimestamp")
        # As Delta's and Paimon's streams do: the rows of now, then every change.
        self._start = options.get("startingoffsets", "snapshot")
        if self._version in ("0", "earliest", "latest"):
            self._start, self._version = self._version.replace("0", "earliest"), None
        self._entries = number(options, "maxEntriesPerTrigger")
        self._bytes = number(options, "maxBytesPerTrigger")
        self._name = options.get("consumer")
        self._ttl = seconds(options.get("consumerttl", TTL), name="consumerTtl")
        self._first: Offset | None = None
        self._target: dict[UUID, int] | None = None
        self._reached: dict[UUID, int] = {}
        self._seen: tuple[float, dict[UUID, int]] | None = None
        self._load: tuple[float, int] | None = None
        self._waits: tuple[object, dict[str, dict[str, int]]] | None = None
        """What waits, for the ends of the logs and the positions that it was asked of."""
        self._routings = Routings()

    def _table(self) -> weir.Table:
        """The table that the query began with, in whatever process this is."""
        return self._place.planned(self._table_id)

    # -- planning, in one process that lives as long as the query --------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where to begin; every call returns the same offset."""
        if self._first is None:
            self._first = self._initial()
        return self._first

    def _initial(self) -> Offset:
        core = self._table().core
        at_moment = self._version is not None or self._time is not None
        if self._start == "snapshot" and not at_moment:
            return {"v": 1, "positions": None}
        consumer = self._consumer()
        if self._start == "latest" and consumer is None:
            raise InvalidInput(
                "startingOffsets=latest needs a named consumer: a query that fails in its first"
                " batch would restart at a later position. Set the option consumer, or use"
                " weir.spark.changes(since='latest')"
            )
        start, load = self._start, None
        if at_moment:
            begins, load = self._begins()
            start = json.dumps({str(shard): p for shard, p in begins.items()})
        if load is None:
            load = load_number(core)
        if consumer is not None:
            standing = held_positions(core, start, consumer, load)
            known = consumer.standing()
            return offset_of(standing, load if known is None or known.load is None else known.load)
        return offset_of(starting_positions(core, start), load)

    def _begins(self) -> tuple[dict[UUID, int], int | None]:
        """Positions of the starting checkpoint or time, the same on every call; and its load."""
        table = self._table()
        if self._version is not None:
            pinned = checkpoint_named(table, self._version, "startingVersion")
            positions = positions_at(table.core, pinned.shards, pinned.base_version)
            return positions, load_number(table.core, pinned.base_version)
        assert self._time is not None, "one of them was given"
        moment = time_of(self._time, "startingTimestamp")
        return positions_since(table.core, moment, loss=self._loss), None

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """How far the next batch goes."""
        table = self._table()
        if start["positions"] is None:
            return self._snapshot_offset(table)
        head = self._target if self._target is not None else self._tips()
        load = self._require_same_load(table, start)
        here = positions_of(start)
        end = self._towards(table, here, head, limit)
        return start if end == here and "load" in start else offset_of(end, load)

    def _require_same_load(self, table: weir.Table, start: Offset) -> int:
        """The number of the table's last load; `SnapshotExpired` when it is after `start`.

        Looked up after the ends of the logs: a batch then has no entry from after a load.
        """
        core = table.core
        now = core.env.clock.boottime()
        if self._load is None or now - self._load[0] > POLL:
            self._load = (now, load_number(core))
        require_same_load(core, start.get("load"), self._load[1], self._again)
        return self._load[1]

    @property
    def _again(self) -> str:
        """How to go on where this feed cannot."""
        named = "" if self._name is None else ", another consumer"
        return (
            f"Start a new query with a new checkpoint location{named}, into an emptied target: by"
            " default it begins with the rows of now (startingOffsets=snapshot)"
        )

    def _towards(
        self,
        table: weir.Table,
        start: Mapping[UUID, int],
        head: Mapping[UUID, int],
        limit: ReadLimit,
    ) -> dict[UUID, int]:
        """How far a batch goes from `start` towards `head`, within the limits."""
        whole = isinstance(limit, ReadAllAvailable)
        self._reached = advance(
            table.core,
            start,
            head,
            entries=None if whole else self._entries,
            nbytes=None if whole else self._bytes,
            routings=self._routings,
        )
        return self._reached

    def _snapshot_offset(self, table: weir.Table) -> Offset:
        """Take a snapshot that Spark's checkpoint keeps, so that a replay reads the same rows."""
        consumer = self._consumer()
        for _ in table.core.env.attempts():
            offset = self._taken(table)
            through, load = positions_of(offset), offset["load"]
            if consumer is not None:
                consumer.register(through, load=load)
                self._release(through, load)
            if consumer is None or not passed_by(table.core, through):
                break
        else:
            raise SnapshotExpired(
                f"{table.uri}: again and again gc collected entries after the"
                f" snapshot before consumer {self._name!r} could hold them; restart the query"
            )
        self._reached = through
        return offset

    def _taken(self, table: weir.Table) -> Offset:
        """The rows of now, as an offset to begin after."""
        for _ in table.core.env.attempts():
            snapshot = table.snapshot("durable")
            if all(cut.staged is None for cut in snapshot.cuts):
                break
            # Rows of a statement that are in no log yet would come again when they are (P-8).
            finish(table.core, lambda one: one.is_decided)
        else:
            raise CommitConflict(
                f"{table.uri}: again and again a statement was being written; restart the query"
            )
        through = positions_at(table.core, snapshot.cuts, snapshot.base_version)
        load = load_number(table.core, snapshot.base_version)
        return {**offset_of(through, load), "snapshot": snapshot.to_json()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit that the options set."""
        if self._entries is not None:
            return ReadMaxFiles(self._entries)
        if self._bytes is not None:
            return ReadMaxBytes(self._bytes)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """The tips of the logs, the table, and how far the last planned batch is behind them."""
        table, head = self._table(), self._tips()
        if self._waits is None or self._waits[0] != (head, self._reached):
            told = behind(table.core, self._reached, head)
            self._waits = ((head, dict(self._reached)), told)
        return {**offset_of(head), "table": table.uri, "behind": self._waits[1]}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the positions where the run ends."""
        self._target = self.ends(self._table().core, self._routings)

    def _tips(self) -> dict[UUID, int]:
        core = self._table().core
        now = core.env.clock.boottime()
        if self._seen is None or now - self._seen[0] > POLL:
            self._seen = (now, self.ends(core, self._routings))
        return self._seen[1]

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """One for each shard with entries to read, or those of the initial snapshot."""
        table = self._table()
        self._require_columns(table)
        if start["positions"] is None:
            snapshot = Snapshot.from_json(end["snapshot"])
            return [InputPartition(part) for part in parts_of(table, snapshot)]
        after, through = positions_of(start), positions_of(end)
        consumer = self._consumer()
        kept = None if consumer is None else consumer.positions()
        found = []
        for shard, last in sorted(through.items()):
            first = after.get(shard, 0)
            if last < first:
                raise InvalidInput(
                    f"{table.uri} shard {shard}: the batch would end at position {last}, before its"
                    f" start {first}: the query's checkpoint location belongs to another table. Use"
                    " a new one"
                )
            if last > first:
                # The floor does not apply to entries held for a consumer, now or in the task.
                held = kept is not None and kept.get(shard, 0) <= first  # guard: P-3 always
                if not held:
                    first = min(last, self._above_floor(table, shard, first))
                part = {"shard": str(shard), "after": first, "last": last, "held": held}
                found.append(InputPartition(part))
        return found

    def _require_columns(self, table: weir.Table) -> None:
        """`SchemaMismatch` when the table has a column that this query does not know.

        Read after the end of the batch is known: no entry of the batch has a newer column.
        """
        added = [name for name in table.schema.names if name not in self._columns]
        if added:
            raise SchemaMismatch(
                f"{table.uri} has a new column {added[0]!r}: this query began without it, and would"
                " lose its values. Nothing was passed over. Load the table again and restart the"
                " query from the same checkpoint location"
            )

    def _above_floor(self, table: weir.Table, shard: UUID, after: int) -> int:
        """The position to continue from: `after`, or the floor if data loss is allowed."""
        if not self._loss:
            require_above_floor(table, shard, after)
            return after
        floor = int(table.core.log(shard).floors().wal)
        if after < floor:
            logger.warning(
                "feed.lost table=%s shard=%s positions=%d-%d", table.uri, shard, after + 1, floor
            )
        return max(after, floor)

    def commit(self, end: Offset) -> None:
        """Spark has recorded everything up to `end`: the consumer releases it."""
        if self._name is not None and end["positions"] is not None:
            self._release(positions_of(end), end.get("load"))

    def _release(self, positions: Mapping[UUID, int], load: int | None) -> None:
        """Let go what lies before; `SnapshotExpired` when the consumer has ended."""
        consumer = self._named()
        if not consumer.save(positions, load=load).deleted:
            return
        if consumer.standing() is not None:  # guard: P-3 test_feed_positions
            raise SnapshotExpired(
                f"{self._place.uri}: consumer {self._name!r} was dropped, or expired, and what it"
                f" has not read may be collected. {self._again}"
            )
        # The query was restarted with a consumer that it did not have before.
        core = self._table().core
        hold_from(core, consumer, positions, is_exact=True, advice=self._again, load=load)

    def stop(self) -> None:
        """Nothing is held open; a named consumer's hold ends with its lifetime."""

    def _consumer(self) -> Consumer | None:
        return None if self._name is None else self._named()

    def _named(self) -> Consumer:
        assert self._name is not None, "whoever calls this has looked"
        return Consumer(self._table().core.store, self._name, self._ttl)

    # -- reading, in tasks -----------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, in order."""
        if partition.value is not None:
            yield from without_traceback(self._read(partition.value))

    def _read(self, part: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        table = self._table()
        target = arrow_schema(self._schema)
        if "snapshot" in part:
            yield from self._snapshot(table, part, target)
            return
        log = table.core.log(UUID(part["shard"]))
        # As it is now: the handle of this process may be older than a column of the query.
        schema = table.core.schema()
        found = range_rows(log, part["after"], part["last"], schema, pinned=part["held"])
        for entry, batch in found:
            rows = self._told(log, entry, batch)
            if rows.num_rows:
                yield to_spark(rows, target)

    def _snapshot(
        self, table: weir.Table, part: dict[str, Any], target: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        columns = [name for name in target.names if name in table.schema.names]
        for batch in read_part(table, part, columns=columns, filter=None):
            kinds = pa.repeat(self.kind_of_snapshot, batch.num_rows)
            yield to_spark(_with_metadata(batch, self.metadata, kinds), target)

    def _told(self, log: ShardLog, entry: WalEntry, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of an entry with what the feed tells of them."""
        deletes = batch.column(TOMBSTONE)
        if not self._metadata and deletes.true_count:
            if self._deletes == "error":
                raise InvalidInput(
                    f"{log}: the entry at position {entry.position} holds deletes; read the feed by"
                    " path with option metadataColumns=true to see them, or with deletes=skip to"
                    " pass over them"
                )
            batch = batch.filter(pc.invert(deletes))
        kinds = pc.if_else(batch.column(TOMBSTONE), "delete", "put")
        where = (str(log.shard), int(entry.position), int(entry.epoch))
        return _with_metadata(batch, METADATA, kinds, *where)


def require_above_floor(table: weir.Table, shard: UUID, after: int) -> None:
    """`SnapshotExpired` when entries after that position may be gone.

    Finding an entry proves nothing: a writer that slept may have put it at a collected position.
    """
    floor = table.core.log(shard).floors().wal
    if after < floor:
        raise SnapshotExpired(
            f"{table.uri} shard {shard}: the feed is at position {after}, but the log was collected"
            f" up to {floor}: entries {after + 1} to {floor} are gone. Start a new query, with"
            " startingOffsets=snapshot or at a newer checkpoint (startingVersion). The option"
            " consumer keeps entries until they are read. Without readChangeFeed,"
            " failOnDataLoss=false skips the lost entries"
        )


def _with_metadata(
    batch: pa.RecordBatch,
    fields: pa.Schema,
    kinds: pa.Array,
    shard: str | None = None,
    position: int | None = None,
    epoch: int | None = None,
) -> pa.RecordBatch:
    values = {
        fields.names[0]: kinds,
        SHARD: pa.array([shard] * batch.num_rows, pa.string()),
        POSITION: pa.array([position] * batch.num_rows, pa.int64()),
        EPOCH: pa.array([epoch] * batch.num_rows, pa.int64()),
    }
    for field in fields:
        batch = batch.append_column(field, values[field.name].cast(field.type))
    return batch


def offset_of(positions: Mapping[UUID, int], load: int | None = None) -> Offset:
    """Positions, and the last load before them, in the form that Spark's checkpoint stores."""
    told = {} if load is None else {"load": load}
    return {"v": 1, "positions": {str(s): p for s, p in sorted(positions.items())}, **told}
