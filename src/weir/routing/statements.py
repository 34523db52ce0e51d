"""The rows of a statement over several shards, until they are in every log (P-8).

Keeps
  P-8  the rows of a decided statement count from the position at which their shard was checked:
       rows that others wrote after it are newer, and the statement's rows of their keys are left
       out, by reads and by whoever puts the rest into the log
  P-8  the owner of a shard settles what is open in it before its first put: an undecided statement
       is waited for shortly and then aborted, a decided one is put into the log, by its tokens
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import MissingEntry
from weir.format.keys import pk_type, pk_values
from weir.format.schema import TOMBSTONE, TableSchema, align_batch
from weir.keys.keyset import KeySet
from weir.lazy import Lazy
from weir.log.tailer import WalTailer
from weir.records.statements import (
    OpenStatement,
    Share,
    StatementRecords,
    Statements,
    is_open_mark,
)
from weir.routing.core import Core
from weir.shard.writer import ShardWriter
from weir.store.api import ObjectMissing

logger = logging.getLogger("weir.routing")

PATIENCE_SECONDS: Final = 2.0
"""How long others wait for a statement that is not decided, or not done, before they act."""
_POLL_SECONDS: Final = 0.02
_POLL_SECONDS_MAX: Final = 0.3


@dataclass(frozen=True)
class StagedFiles:
    """Reads staged files; one that `holds` asks the store for each of them once."""

    core: Core
    holds: bool = False
    _held: dict[str, tuple[float, list[pa.RecordBatch]]] = field(default_factory=dict, repr=False)

    def read(self, path: str) -> tuple[float, list[pa.RecordBatch]]:
        """When a file was staged, and its rows; `MissingEntry` when it was collected."""
        found = self._held.get(path)
        if found is not None:
            return found
        try:
            blob = self.core.store.get(path)
        except ObjectMissing:
            raise MissingEntry(
                f"{self.core.uri}/{path}: staged rows of this job are gone; gc collects them after"
                " a day. This shard was not written, others may have been. Run the job again"
            ) from None
        found = blob.meta.last_modified, list(pa.ipc.open_stream(blob.data))
        if self.holds:
            self._held[path] = found
        return found


def deletes_of(batch: pa.RecordBatch) -> pa.BooleanArray:
    """Which of the staged rows are deletes."""
    if TOMBSTONE in batch.schema.names:
        return batch.column(TOMBSTONE)
    return pa.repeat(False, batch.num_rows)


def _with_deletes(batch: pa.RecordBatch) -> pa.RecordBatch:
    if TOMBSTONE in batch.schema.names:
        return batch
    return batch.append_column(TOMBSTONE, deletes_of(batch))


def without_put_keys(batch: pa.RecordBatch, puts: KeySet, key: Sequence[str]) -> pa.RecordBatch:
    """The rows without deletes of keys that the statement also puts."""
    deletes = deletes_of(batch)
    if not deletes.true_count:
        return batch
    there = np.zeros(batch.num_rows, np.bool_)
    there[puts.find(pk_values(batch, key))] = True
    gone = pc.and_(deletes, pa.array(there))
    return batch.filter(pc.invert(gone))  # guard: P-7 test_statement


@dataclass(frozen=True)
class Remaining:
    """What of a share counts at a position of the log, and is not in it."""

    files: StagedFiles
    share: Share
    through: int

    @Lazy
    def pieces(self) -> list[int]:
        """The numbers of the pieces that are not in the log."""
        in_log, _ = self._since
        return [number for number in range(len(self.share.pieces)) if number not in in_log]

    @Lazy
    def _since(self) -> tuple[set[int], KeySet]:
        """The pieces that are in the log, and the keys that others wrote after the check.

        gc keeps these entries while the statement is open, whatever the floor says.
        """
        in_log: set[int] = set()
        newer = self._no_keys()
        if self.through <= self.share.checked:
            return in_log, newer
        key = self.files.core.record.primary_key
        log = WalTailer(self.files.core.log(self.share.shard))
        for entry in log.read_range(self.share.checked, self.through, pinned=True):
            own = [number for app, number in entry.tokens if app == self.share.app]
            in_log.update(own)
            if not own and not entry.is_fence and not entry.is_staged:
                for batch in entry.batches:
                    newer.add(pk_values(batch, key))
        return in_log, newer

    @Lazy
    def _puts(self) -> KeySet:
        """The keys that the share puts. Reads all of it."""
        puts, key = self._no_keys(), self.files.core.record.primary_key
        for number in range(len(self.share.pieces)):
            for batch in self._staged(number):
                puts.add(pk_values(batch, key).filter(pc.invert(deletes_of(batch))))
        return puts

    def rows(self, number: int, schema: TableSchema) -> list[pa.RecordBatch]:
        """The rows of that piece as a log holds them, in the columns of now: some may have been
        renamed or dropped since the rows were staged."""
        return [align_batch(_with_deletes(batch), schema.wal) for batch in self._left_of(number)]

    def _left_of(self, number: int) -> list[pa.RecordBatch]:
        _, newer = self._since
        key, found = self.files.core.record.primary_key, []
        for batch in self._staged(number):
            rows = batch
            if deletes_of(batch).true_count:
                rows = without_put_keys(batch, self._puts, key)
            if len(newer):  # guard: P-8 test_statements_over_shards
                kept = np.ones(rows.num_rows, np.bool_)
                kept[newer.find(pk_values(rows, key))] = False
                rows = rows.filter(pa.array(kept))
            if rows.num_rows:
                found.append(rows)
        return found

    def _staged(self, number: int) -> Iterator[pa.RecordBatch]:
        for path in self.share.pieces[number]:
            yield from self.files.read(path)[1]

    def _no_keys(self) -> KeySet:
        key_schema = self.files.core.known_schema().key_schema
        return KeySet(pk_type(key_schema, self.files.core.record.primary_key))


def apply(files: StagedFiles, share: Share, writer: ShardWriter) -> None:
    """Put what remains of a decided statement into the shard's log, as its owner."""
    left = Remaining(files, share, writer.claim.fence)
    for number in left.pieces:
        batches = left.rows(number, writer.intake.schema)
        if batches:
            rows = pa.Table.from_batches(batches)
            writer.put_once(rows, app=share.app, version=number)
            files.core.env.failpoint("statement.piece")


def settle_shard(core: Core, writer: ShardWriter) -> None:
    """Settle what is open in the shard of a writer that has just claimed it.

    No request, unless the mark that was read after its fence says that something may be open.
    """
    mark, shard = writer.claim.statement, writer.site.shard
    if not is_open_mark(mark):  # guard: P-8 test_statements_over_shards
        return
    latest = await_ended(
        core,
        lambda one: not one.is_decided and one.share_of(shard) is not None,
        lambda one: abort(core, one),
    )
    touching = latest.touching(core.record.table_id, [shard])
    for one in touching:
        share = one.share_of(shard)
        assert share is not None, "P-8: it touches the shard"
        logger.info("statement.applied table=%s shard=%s id=%s", core.uri, shard, one.id)
        apply(StagedFiles(core), share, writer)
    if not touching:
        raise_mark(core, shard, mark + 1)


def raise_mark(core: Core, shard: UUID, mark: int) -> None:
    """Raise a shard's mark of statements, and drop the old ones once it is over."""
    floors = core.log(shard).manifests.floors
    floors.raise_to("statement", mark)
    if not is_open_mark(mark):
        floors.trim(floors.load())


def await_ended(
    core: Core, concerns: Callable[[OpenStatement], bool], end: Callable[[OpenStatement], object]
) -> Statements:
    """The latest record, in which no open statement of the table `concerns` the caller any more;
    `end` is called for those that still do after `PATIENCE_SECONDS`. One list when none does."""
    records, clock = StatementRecords(core.store, core.env), core.env.clock
    until, pause = clock.boottime() + PATIENCE_SECONDS, _POLL_SECONDS
    while True:
        latest = records.load()
        left = [one for one in latest.of(core.record.table_id) if concerns(one)]
        if not left:
            return latest
        if clock.boottime() < until:
            clock.sleep(pause)
            pause = min(2 * pause, _POLL_SECONDS_MAX)
            continue
        for one in left:
            end(one)


def abort(core: Core, one: OpenStatement) -> bool:
    """Withdraw an undecided statement; False if it was decided by now."""
    logger.warning("statement.aborted table=%s id=%s", core.uri, one.id)
    return StatementRecords(core.store, core.env).abort(one)
