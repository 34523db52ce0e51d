"""SQL statements that read rows and write them back: no update is lost between the two.

Keeps
  P-7  a statement carries the snapshot it read. The writer of a shard claims it first, and then
       reads everything that was written to it since: if one of the statement's keys occurs there,
       the whole statement is refused on that shard. All shards are claimed and checked before the
       first is written
Within one statement a put of a key beats a delete of it (keys may be swapped). Two puts of one key
are refused: which of them would stay is left to chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import CommitConflict, InvalidInput, MissingEntry, SnapshotExpired
from weir.format.keys import pk_type, pk_values
from weir.format.schema import TOMBSTONE
from weir.format.sharding import Value
from weir.keys.keyset import KeySet
from weir.lake.base import history
from weir.lake.pylance_lake import PylanceLake
from weir.log.tailer import WalTailer
from weir.read.snapshot import Snapshot
from weir.routing.core import CONCURRENCY, Core
from weir.spark.shard_sink import ShardSink, Token
from weir.spark.staging import Staged, read_staged

LOADED = "weir.bulk"
"""Property of base commits whose rows bypassed the logs."""


@dataclass(frozen=True)
class Statement:
    """What one statement read, and the token of what it writes."""

    snapshot: Snapshot
    token: Token
    entry_bytes: int

    def publish(self, core: Core, staged: dict[Value, list[Staged]], routing: int) -> None:
        """Write the rows of every shard, or raise `CommitConflict` before the first is written.

        If another writer takes a shard over between check and write, the shard is claimed and
        checked again. Shards written before that stay: all or nothing holds for each shard.
        """
        if core.record.routing_version != routing:
            raise self._conflict(core, "the table was resharded")
        self._require_base(core)
        shares = [_Share(core, value, parts, self) for value, parts in staged.items()]
        try:
            core.env.threads.map(_Share.prepare, shares, workers=CONCURRENCY)
            core.env.threads.map(_Share.write, shares, workers=CONCURRENCY)
        finally:
            for share in shares:
                share.close()

    def require_unchanged(self, core: Core, shard: UUID, keys: KeySet) -> None:
        """`CommitConflict` when one of `keys` was written to the shard after the snapshot.

        Called by the owner of the shard: no other writer gets in before the owner's own entry.
        """
        after = next((c.wal_through for c in self.snapshot.cuts if c.shard == shard), 0)
        log = core.log(shard)
        last = int(log.tip())
        if last <= after:
            return
        if log.floors().wal > after:
            raise self._conflict(core, f"the log of shard {shard} was collected")
        own = (self.token.app, self.token.version)
        key = core.record.primary_key
        try:
            for entry in WalTailer(log).read_range(after, last):
                if entry.is_fence or own in entry.tokens:
                    continue
                for batch in entry.batches:
                    changed = keys.find(pk_values(batch, key))
                    if len(changed):
                        row = batch.select(list(key)).slice(int(changed[0]), 1).to_pylist()[0]
                        raise self._conflict(core, f"the row with {row} was written")
        except (MissingEntry, SnapshotExpired) as gone:
            raise self._conflict(core, f"the log of shard {shard} was collected ({gone})") from gone

    def _require_base(self, core: Core) -> None:
        """`CommitConflict` after a load or a restore: they change rows without the logs."""
        lake = cast("PylanceLake", core.lake)
        try:
            for commit in history.commits(lake.datasets, after=self.snapshot.base_version):
                if commit.is_restore or LOADED in commit.properties:
                    what = "restored" if commit.is_restore else "loaded into"
                    raise self._conflict(core, f"the table was {what} (version {commit.version})")
        except SnapshotExpired as gone:
            raise self._conflict(core, f"base versions were cleaned up ({gone})") from gone

    @staticmethod
    def _conflict(core: Core, what: str) -> CommitConflict:
        return CommitConflict(
            f"{core.uri}: {what} after this statement read the table, so its result may be out of"
            " date. Run the statement again"
        )


class _Share:
    """The rows of one statement that belong to one shard."""

    def __init__(
        self, core: Core, value: Value, parts: Sequence[Staged], statement: Statement
    ) -> None:
        self._core = core
        self._parts = parts
        self._value = value
        key = core.record.primary_key
        dtype = pk_type(core.schema().key_schema, key)
        self._puts = KeySet(dtype)
        self._all = KeySet(dtype)
        self._sink = ShardSink(
            core, value, statement.token, entry_bytes=statement.entry_bytes, guard=self._guard
        )
        self._statement = statement

    def prepare(self) -> None:
        """Collect the keys, claim the shard and check it. Memory holds the keys of its rows."""
        key = self._core.record.primary_key
        for batch in self._rows():
            deletes = _deletes(batch)
            keys = pk_values(batch, key)
            self._all.add(keys)
            puts = keys.filter(pc.invert(deletes))
            known = self._puts.new(puts)
            twice = len(puts) != len(pc.unique(puts)) or (known is not None and not known.all())
            if twice:
                raise InvalidInput(
                    f"{self._core.uri}: the statement writes one key twice; deduplicate the source"
                    " by key. Nothing was written"
                )
            self._puts.add(puts)
        self._sink.claim()

    def write(self) -> None:
        """Write the rows, without deletes of keys that the statement also puts."""
        key = self._core.record.primary_key
        for batch in self._rows():
            deletes = _deletes(batch)
            if deletes.true_count:
                there = np.zeros(batch.num_rows, np.bool_)
                there[self._puts.find(pk_values(batch, key))] = True
                gone = pc.and_(deletes, pa.array(there))
                batch = batch.filter(pc.invert(gone))  # noqa: PLW2901
            if batch.num_rows:
                self._sink.add(batch)
        self._sink.finish()

    def close(self) -> None:
        """Release the shard."""
        self._sink.close()

    def _rows(self) -> Iterator[pa.RecordBatch]:
        for part in self._parts:
            yield from read_staged(self._core, part)

    def _guard(self, shard: UUID) -> None:
        self._statement.require_unchanged(self._core, shard, self._all)


def _deletes(batch: pa.RecordBatch) -> pa.BooleanArray:
    if TOMBSTONE in batch.schema.names:
        return batch.column(TOMBSTONE)
    return pa.repeat(False, batch.num_rows)
