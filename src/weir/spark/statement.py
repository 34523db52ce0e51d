"""SQL statements that read rows and write them back: no update is lost between the two.

Keeps
  P-7  a statement carries the snapshot it read, and the routing of that time; another routing is a
       conflict. The writer of a shard claims it first, and then reads everything that was written
       to it since: if one of the statement's keys occurs there, the whole statement is refused on
       that shard. All shards are claimed and checked before the first is written
Within one statement a put of a key beats a delete of it (keys may be swapped). Two puts of one key
are refused: which of them would stay is left to chance. So is a put at a key whose row the
statement did not read as its own: that row would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import CommitConflict, InvalidInput, MissingEntry, SnapshotExpired
from weir.format.keys import pk_type, pk_values
from weir.format.sharding import Value
from weir.keys.keyset import KeySet
from weir.lake.base import history
from weir.lake.base.fold_commit import LOAD
from weir.log.intake import key_table
from weir.log.tailer import WalTailer
from weir.merge.merge import merge_lookup
from weir.read.positions import shown_through
from weir.read.reader import SnapshotReader
from weir.read.snapshot import Snapshot
from weir.routing.core import Core
from weir.routing.statements import deletes_of, without_put_keys
from weir.spark.shard_sink import Token

LOOKUP_KEYS: Final = 10_000
"""Keys looked up at once: the base is read once for so many, until it holds its keys in memory."""


@dataclass(frozen=True)
class Statement:
    """What one statement read, and the token of what it writes."""

    snapshot: Snapshot
    token: Token
    inserts: bool = False
    """Each row that the statement changes is also marked as deleted, so that a key which it only
    puts is meant to be a new one."""

    def require_unchanged(
        self, core: Core, shard: UUID, keys: KeySet, through: int | None = None
    ) -> None:
        """`CommitConflict` when one of `keys` was written to the shard after the snapshot, up to
        the fence of its owner, or to the end of its log.

        Called by the owner of the shard: no other writer gets in before the owner's own entry, and
        no large batch is published that is not by now.
        """
        cut = next((c for c in self.snapshot.cuts if c.shard == shard), None)
        log = core.log(shard)
        last = int(log.tip()) if through is None else through
        # What the snapshot held of a statement that was not in the log yet is no change since.
        seen = {self.token.app, None if cut is None or cut.staged is None else cut.staged.app}
        key = core.record.primary_key
        published = log.manifests.require().replay_after
        try:
            after = 0 if cut is None else shown_through(core, cut)
            for entry in WalTailer(log).read_range(after, last):
                if entry.is_fence or any(app in seen for app, _ in entry.tokens):
                    continue
                if entry.is_staged and entry.position > published:
                    continue  # of a large batch that was given up
                for batch in entry.batches:
                    changed = keys.find(pk_values(batch, key))
                    if len(changed):  # guard: P-7 test_statement
                        row = batch.select(list(key)).slice(int(changed[0]), 1).to_pylist()[0]
                        raise conflict(core, f"the row with {row} was written")
        except (MissingEntry, SnapshotExpired) as gone:
            raise conflict(core, f"the log of shard {shard} was collected ({gone})") from gone

    def require_base(self, core: Core) -> None:
        """`CommitConflict` after a load, a restore or a write of another program.

        They change rows without the logs. What another program commits after this check is not
        noticed: nothing that weir holds keeps it out of the base.
        """
        try:
            for commit in core.lake.commits(after=self.snapshot.base_version):
                what = _past_the_logs(commit)
                if what is not None:
                    raise conflict(core, f"{what} (version {commit.version})")
        except SnapshotExpired as gone:
            raise conflict(core, f"base versions were cleaned up ({gone})") from gone

    def require_new(self, core: Core, value: Value, keys: Sequence[pa.RecordBatch]) -> None:
        """`InvalidInput` when one of `keys` has a row in the snapshot."""
        reader = SnapshotReader(core, self.snapshot)
        routed = {route.shard for route in core.record.routing}
        own = core.route(value)
        # Shards outside the routing (native, sealed) may hold any key.
        shards = [c.shard for c in self.snapshot.cuts if c.shard == own or c.shard not in routed]
        levels = reader.levels(shards)
        for batch in keys:
            for start in range(0, batch.num_rows, LOOKUP_KEYS):
                wanted = key_table(
                    pa.Table.from_batches([batch.slice(start, LOOKUP_KEYS)]), reader.schema
                )
                found = merge_lookup(
                    wanted,
                    levels,
                    reader.base,
                    reader.schema,
                    wanted.column_names,
                    alive=reader.alive,
                )
                if found.num_rows:
                    raise InvalidInput(
                        f"{core.uri}: the statement puts a row at the key {found.to_pylist()[0]},"
                        " which another row has that it does not change; delete that row first, or"
                        " choose a key that is free. Nothing was written"
                    )


def _past_the_logs(commit: history.Commit) -> str | None:
    """What a commit of the base did to rows without the logs; None if it did nothing."""
    if commit.is_restore:
        return "the table was restored"
    if LOAD in commit.properties:
        return "the table was loaded into"
    if commit.is_foreign_rows:  # guard: P-7 test_statement
        return f"another program changed rows of the base by {commit.operation} of Lance"
    return None


def conflict(core: Core, what: str) -> CommitConflict:
    """The error of a statement after whose read that happened."""
    return CommitConflict(
        f"{core.uri}: {what} after this statement read the table, so its result may be out of"
        " date. Run the statement again"
    )


class ShardCheck:
    """What one statement does to the keys of one shard. Memory holds the keys of its rows."""

    def __init__(self, core: Core, value: Value, statement: Statement) -> None:
        self._core = core
        self._value = value
        self._statement = statement
        self._key = list(core.record.primary_key)
        dtype = pk_type(core.schema().key_schema, core.record.primary_key)
        self._puts = KeySet(dtype)
        self._deletes = KeySet(dtype)
        self._all = KeySet(dtype)

    def collect(self, rows: Iterator[pa.RecordBatch]) -> pa.Schema | None:
        """Take in the keys of all rows, and refuse those that one statement may not write.

        Returns the columns of the rows; None if there are none.
        """
        put: list[pa.RecordBatch] = []
        for batch in rows:
            deletes = deletes_of(batch)
            keys = pk_values(batch, self._key)
            self._all.add(keys)
            self._deletes.add(keys.filter(deletes))
            columns = batch.schema
            put.append(batch.select(self._key).filter(pc.invert(deletes)))
            puts = keys.filter(pc.invert(deletes))
            known = self._puts.new(puts)
            twice = len(puts) != len(pc.unique(puts)) or (known is not None and not known.all())
            if twice:
                raise InvalidInput(
                    f"{self._core.uri}: the statement writes one key twice; deduplicate the source"
                    " by key. Nothing was written"
                )
            self._puts.add(puts)
        if self._statement.inserts:
            fresh = [self._inserted(batch) for batch in put]
            given = [batch for batch in fresh if batch.num_rows]
            try:
                self._statement.require_new(self._core, self._value, given)
            except (MissingEntry, SnapshotExpired) as gone:
                raise conflict(self._core, f"what it read was collected ({gone})") from gone
        return columns if put else None

    def _inserted(self, put: pa.RecordBatch) -> pa.RecordBatch:
        """The keys that the statement puts without changing a row of that key."""
        fresh = self._deletes.new(pk_values(put, self._key))
        return put if fresh is None else put.filter(pa.array(fresh))

    def written(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows without deletes of keys that the statement also puts."""
        return without_put_keys(batch, self._puts, self._key)

    def guard(self, shard: UUID, through: int | None = None) -> None:
        """`CommitConflict` when another writer changed one of the keys; see `Statement`."""
        self._statement.require_unchanged(self._core, shard, self._all, through)
