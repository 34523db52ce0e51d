"""The open writers of one `TableWriter`, and what becomes of those whose shard the routing left.

Keeps
  C-11 rows that nobody waits for go from a sealed shard to its heirs, before any other row does
  F-16 rows that do not reach their heir stay with the writer that accepted them, which reports them
  O-4  rows that a decision made go to no heir: only the owner that decided may write them
  C-18 with a shard for each writer, the heir of a shard that was lost is another of this writer's
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import pyarrow as pa

from weir.config import WriterConfig
from weir.errors import FencedError, SealedShard, WeirError
from weir.format.schema import TableSchema
from weir.format.sharding import PerWriter, Value, is_of_writer
from weir.log.entry import Token
from weir.log.fence import NotLeft
from weir.log.intake import Intake
from weir.records.table import TableRecord
from weir.routing.core import CONCURRENCY, Core
from weir.routing.own import OwnShards
from weir.routing.reroute import REROUTES, Parts, await_heirs, routed_away, split
from weir.routing.shards import Shard, registered_writer
from weir.routing.unheard import Unheard
from weir.routing.writer_shard import WriterShard
from weir.shard.ack import Ack
from weir.shard.ending import closed, with_rows
from weir.shard.turns import WaiterGroup
from weir.shard.writer import ShardWriter


class OpenWriters:
    """The writers of one table's writer, by shard; each shard is opened (claimed) when it is first
    asked for. Safe to share; no store call is made with the lock held."""

    def __init__(
        self,
        core: Core,
        config: WriterConfig | None,
        schema: TableSchema,
        own: OwnShards | None = None,
    ) -> None:
        self.core = core
        self.own = own
        """The shards it may open; None: all. Those of a writer with shards of its own have no
        heirs: which of the new ones are its own, only its owner can say."""
        per_writer = isinstance(core.record.sharding, PerWriter)
        self.lone = WriterShard(core) if per_writer else None
        """The one shard that takes all rows but those of applications; None: rows are routed."""
        self.intake = Intake(schema)
        self.unheard = Unheard(core)
        self.open: dict[UUID, ShardWriter] = {}
        self.given_up: dict[UUID, ShardWriter] = {}
        """Writers that ended with rows, in the order in which they ended."""
        self._fenced: dict[UUID, None] = {}
        """Shards whose writer was fenced and is closed."""
        self._config = config
        self._schema = schema
        self._crowd = WaiterGroup(core.env.threads)
        self._lock = core.env.threads.lock()
        self._routings: dict[UUID, int] = {}
        """The routing that each open writer was opened under."""
        self._routing = core.record.routing_version
        """The newest routing that was followed."""
        self._moving = core.env.threads.lock()
        self._stuck: dict[UUID, WeirError] = {}
        """Heirs that could not be opened for older rows. Nothing is put there before them."""
        self._is_shut = False

    def get(self, shard: UUID, value: Value, record: TableRecord) -> ShardWriter:
        """The writer of that shard, opened if necessary."""
        known = self.open.get(shard)
        if known is None:
            self.follow(record)  # older rows first: nothing overtakes them at an heir
            if shard in self._stuck:
                with self._moving:
                    self._move(self.core.record)
                if shard in self._stuck:
                    raise with_rows(self._stuck[shard], [])
            known = self._open(shard, value, record)
        return known

    def parts(self, record: TableRecord, batches: Sequence[pa.RecordBatch]) -> Parts:
        """The rows by shard. With a shard for each writer it is open then: others may want it."""
        if self.lone is None or not batches:
            return split(self.core, self.intake, batches, record)
        rows = list(batches)
        self.intake.fit(rows, self.core.env.limits)  # before anything is claimed (F-15)
        try:
            shard, value = self._own_shard(self.lone, record)
        except WeirError as error:
            raise with_rows(error, rows, sent=False) from error
        return {shard: (value, rows)}

    def _own_shard(self, lone: WriterShard, record: TableRecord) -> tuple[UUID, Value]:
        """The writer's shard, opened; another one while somebody is faster."""
        for attempt in range(REROUTES):
            shard, value = lone.at()
            try:
                self.get(shard, value, record)
            except (FencedError, NotLeft, SealedShard) as lost:
                lone.give_up(shard, lost)
                if attempt == REROUTES - 1:
                    raise
            else:
                lone.opened()
                return shard, value
        raise AssertionError("C-18: the loop above returns or raises")

    def routed_away(self, failures: Mapping[UUID, WeirError]) -> list[UUID]:
        """The shards that failed and whose rows go on elsewhere."""
        if self.lone is None:
            return routed_away(self.core, failures)
        return [shard for shard, error in failures.items() if self.lone.has_lost(shard, error)]

    def await_heirs(
        self, after: int, failures: Mapping[UUID, WeirError], timeout: float | None = None
    ) -> bool:
        """Return when there can be heirs of those shards; False, with a note on the errors, when
        there will be none. `after`: the routing they were opened under."""
        if self.lone is None:
            return await_heirs(self.core, after, failures.values(), timeout)
        with self._moving:
            for shard, error in failures.items():
                self.lone.give_up(shard, error)  # the next row finds another
            self._end(list(failures))
            self._move(self.core.record)
        return True

    def all(self) -> dict[UUID, ShardWriter]:
        """Those that are open."""
        with self._lock:
            return dict(self.open)

    def fenced(self) -> list[UUID]:
        """Shards whose writer met a newer one."""
        lone = None if self.lone is None else self.lone.shard  # which gives it up, and goes on
        met = [s for s, writer in self.all().items() if writer.fenced and s != lone]
        return [*self._fenced, *met]

    def shut(self) -> bool:
        """Open no more; False while some are open."""
        with self._lock:
            self._is_shut = not self.open
        return self._is_shut

    def retire(self, shard: UUID, *, is_moved: bool = False) -> None:
        """Forget a writer that has ended; it is kept while a caller may lack its rows. A shard that
        `is_moved` was fenced by a reshard, which is no takeover."""
        writer = self.open.get(shard)
        if writer is None:
            return
        if writer.has_rows_left:  # F-16: before it is forgotten, as an interrupt may come between
            self.given_up[shard] = writer
        else:
            self.core.unregister(shard, writer)
        with self._lock:
            if writer.fenced and not is_moved:
                self._fenced[shard] = None
            self.open.pop(shard, None)

    def follow(self, record: TableRecord) -> None:
        """Give up the shards that the routing of `record` has left, and take to their heirs what no
        caller waits for. Every shard of an older routing was sealed before the record changed."""
        if record.routing_version <= self._routing or self.own is not None:
            return
        with self._moving:
            if record.routing_version <= self._routing:
                return
            self._end([s for s, at in self._routings.items() if at < record.routing_version])
            self._move(record)
            self._routing = record.routing_version

    @property
    def is_behind(self) -> bool:
        """True when the handle knows of a routing that this writer has not followed."""
        return self.core.record.routing_version > self._routing

    def forget(self, batch: Token) -> None:
        """That batch was sent again and is in: no rows of an earlier try are left (P-2)."""
        self.unheard.forget(batch)
        for writer in list(self.given_up.values()):
            writer.ending.forget(batch)

    def _end(self, shards: Sequence[UUID]) -> None:
        """Give up those shards; what no caller waits for is in `given_up` then."""
        writers = [self.open[shard] for shard in shards if shard in self.open]
        self.core.env.threads.map(ShardWriter.hand_over, writers, workers=CONCURRENCY)
        for shard in shards:
            self.retire(shard, is_moved=True)

    def move_again(self) -> None:
        """Try once more to take rows to their heirs that did not get there."""
        if self.given_up and self.own is None:
            with self._moving:
                self._move(self.core.record)

    def send_on(self, shard: UUID, ack: Ack, error: WeirError, timeout: float | None) -> None:
        """Take the rows of one put, whose caller waits for it and was told that error, to the heirs
        of its shard, if it has some; `ack.heirs` says where they are then."""
        failures = {shard: error}
        if self.own is not None or ack.committer is None or not self.routed_away(failures):
            return
        after = self._routings[shard]
        if self.await_heirs(after, failures, timeout) and ack.committer.ending.give(ack):
            self.follow(self.core.record)
            self.move_again()

    def _move(self, record: TableRecord) -> None:
        stuck: dict[UUID, WeirError] = {}
        for shard, writer in list(self.given_up.items()):
            is_lost = self.lone is not None and self.lone.is_given_up(shard)
            if self._routings[shard] >= record.routing_version and not is_lost:
                continue  # another writer took it, which is no reason to send its rows elsewhere
            try:
                for ack, error in writer.ending.hand_over():
                    self._to_heirs(writer, ack, error, record, stuck)
            except BaseException:
                writer.ending.stay()
                raise
            if not writer.has_rows_left:
                self.given_up.pop(shard, None)
        self._stuck = stuck

    def _to_heirs(
        self,
        writer: ShardWriter,
        ack: Ack,
        error: WeirError,
        record: TableRecord,
        stuck: dict[UUID, WeirError],
    ) -> None:
        """Put the rows of one put into the queues of their heirs; goes on after an interrupt."""
        heirs = ack.heirs
        assert heirs is not None, "C-11: set when it was handed over"
        try:
            if heirs.plan is None:
                heirs.plan = self.parts(record, error.not_written)
        except WeirError as unsplit:
            writer.ending.take_back(ack, with_rows(unsplit, error.not_written, sent=False))
            return
        for shard, (value, rows) in heirs.plan.items():
            if shard in heirs.parts_taken:
                continue
            if heirs.begun == shard:  # interrupted: the heir may have them
                part = _put_of(rows)
                writer.ending.keep(part, with_rows(error, rows, sent=True))
            else:
                heirs.begun = shard
                part = self._to_heir(writer, record, shard, value, rows, stuck)
            heirs.parts_taken[shard] = part
        writer.ending.moved(ack)

    def _to_heir(
        self,
        writer: ShardWriter,
        record: TableRecord,
        shard: UUID,
        value: Value,
        rows: list[pa.RecordBatch],
        stuck: dict[UUID, WeirError],
    ) -> Ack:
        try:
            heir = self._heir(record, shard, value, stuck)
            return heir.puts.put_shaped(rows, wait=False, timeout=None)
        except WeirError as failed:
            # In the state that the error reports: the heir may have sent them (F-16).
            part = _put_of(rows)
            writer.ending.keep(part, with_rows(failed, rows))
            return part

    def _heir(
        self, record: TableRecord, shard: UUID, value: Value, stuck: dict[UUID, WeirError]
    ) -> ShardWriter:
        """The writer of an heir. One that could not be opened takes no rows of later puts either:
        they would overtake the older ones."""
        if shard in stuck:
            raise stuck[shard]
        try:
            return self.open.get(shard) or self._open(shard, value, record)
        except WeirError as failed:
            if self.lone is None:  # else no row replaces another
                stuck[shard] = with_rows(failed, [])
            raise

    def _open(self, shard: UUID, value: Value, record: TableRecord) -> ShardWriter:
        with self.core.opening(shard):
            known = self.open.get(shard)
            if known is not None:
                return known
            self._require_unshut()
            if self.lone is not None and self.lone.is_given_up(shard):
                # Rows of its former writer may still be reported under its name.
                raise NotLeft(f"{self.core.uri}: shard {shard} was given up by this writer")
            assert self.own is None or shard in self.own.values, (
                "rows are checked as they are split"
            )
            self.core.ensure_shard(value, record)
            handle = Shard(self.core, shard, value)
            # A writer's own shard is never taken from another; that of an application is.
            only_left = is_of_writer(record.sharding, value)
            opened = registered_writer(
                self.core, handle, self._config, self._schema, self._crowd, only_left=only_left
            )
            opened.intake.owns = None  # rows come routed and need not be hashed twice
            with self._lock:
                if not self._is_shut:
                    self._routings[shard] = record.routing_version
                    self.open[shard] = opened
                    return opened
            opened.close()
            raise closed(self.core.uri)

    def _require_unshut(self) -> None:
        if self._is_shut:
            raise closed(self.core.uri)


def _put_of(rows: list[pa.RecordBatch]) -> Ack:
    """A finished put of those rows."""
    return Ack(None, rows, rows=sum(batch.num_rows for batch in rows), nbytes=0)
