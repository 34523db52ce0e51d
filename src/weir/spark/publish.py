"""Staged rows become the table's, shard by shard: the one way of puts, statements and overwrites.

Keeps
  P-1  every row is written to its shard of the current routing
  P-7  rows of a statement that read under another routing are refused
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import pyarrow as pa

from weir.errors import SealedShard
from weir.format.sharding import Value
from weir.routing.core import Core
from weir.routing.statements import StagedFiles
from weir.shard.request_builder import WriteSpec
from weir.spark.deciding import write_whole
from weir.spark.shard_sink import ShardSink, Token
from weir.spark.staging import Staged, restage, shards_at_once
from weir.spark.statement import ShardCheck, Statement, conflict
from weir.spark.writers import ShardWriters

StagedRows = Mapping[Value, Sequence[Staged]]
"""The files of each shard of the current routing, in the order of partitions."""


def by_shard(
    core: Core, tasks: Sequence[tuple[int, Sequence[Staged]]], job: str, *, read: int | None
) -> StagedRows:
    """The files of `tasks`, each with its partition, for the shards of the current routing.

    The one place that decides about a reshard in between: rows staged under another routing are
    routed again. Those of a statement that `read` under another routing are refused instead: other
    writers' rows since then are in shards that nobody would look at (P-7).
    """
    routing = core.record.routing_version
    if read is not None and read != routing:
        raise conflict(core, "the table was resharded")
    found: dict[Value, list[Staged]] = {}
    for partition, staged in sorted(tasks, key=lambda task: task[0]):
        is_current = all(file.routing == routing for file in staged)
        for file in staged if is_current else restage(core, staged, job, partition):
            found.setdefault(file.value, []).append(file)
    return found


def publish(
    writers: ShardWriters,
    staged: StagedRows,
    token: Token,
    *,
    entry_bytes: int,
    asked: WriteSpec | None = None,
    statement: Statement | None = None,
    name: str | None = None,
) -> None:
    """Write the rows of every shard; of a `statement` all, or raise `CommitConflict` with nothing
    written. One with a `name` is done once, however often it is run.

    A statement over one shard is one entry, or one manifest commit. If another writer takes the
    shard over between check and write, it is claimed and checked again.
    """
    core = writers.core
    # A statement is checked before it is written. What fits into an entry is read once for both.
    fits = sum(file.bytes for file in chain(*staged.values())) <= entry_bytes
    reading = StagedFiles(core, holds=statement is not None and fits)
    if statement is not None and (len(staged) > 1 or name is not None):
        write_whole(writers, reading, dict(staged), statement, entry_bytes=entry_bytes, name=name)
        return
    workers = shards_at_once(staged.values(), entry_bytes)
    shares = []
    for value, files in staged.items():
        check = None if statement is None else ShardCheck(core, value, statement)
        guard = None if check is None else check.guard
        sink = ShardSink(writers, value, token, entry_bytes=entry_bytes, guard=guard, asked=asked)
        shares.append(_Share(reading, files, sink, check))
    try:
        if statement is not None:
            statement.require_base(core)
            try:
                core.env.threads.map(_Share.prepare, shares, workers=workers)
            except SealedShard as sealed:
                raise conflict(core, f"the table was resharded ({sealed})") from sealed
        core.env.threads.map(_Share.write, shares, workers=workers)
    finally:
        for share in shares:
            share.sink.close()


class _Share:
    """The rows of one shard, and what a statement demands of them."""

    def __init__(
        self,
        reading: StagedFiles,
        files: Sequence[Staged],
        sink: ShardSink,
        check: ShardCheck | None,
    ) -> None:
        self._reading = reading
        self._files = files
        self._check = check
        self.sink = sink

    def prepare(self) -> None:
        """Collect the keys, claim the shard and check it."""
        assert self._check is not None, "P-7: only a statement is checked"
        columns = self._check.collect(self._rows())
        if columns is not None:
            self.sink.claim(columns)

    def write(self) -> None:
        """Write the rows, and give the shard back."""
        for batch in self._rows():
            rows = batch if self._check is None else self._check.written(batch)
            if rows.num_rows:
                self.sink.add(rows)
        self.sink.finish()

    def _rows(self) -> Iterator[pa.RecordBatch]:
        for file in self._files:
            yield from self._reading.read(file.path)[1]
