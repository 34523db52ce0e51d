"""`TableWriter`: rows to their shards, shards side by side.

Keeps
  M-8  leaving the `with` block means durable, for every shard, or an error that says what is left
A put is not atomic over shards: each shard's part is acknowledged on its own, and `PartialWrite`
says which were not.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import pyarrow as pa

from weir.config import WriterConfig
from weir.errors import PartialWrite, WeirError, WriterClosed
from weir.log.intake import Intake
from weir.shard.ack import Ack
from weir.shard.writer import ShardWriter
from weir.table.core import CONCURRENCY, Core
from weir.table.sharding import Value
from weir.table.shards import Shard

Parts = dict[UUID, list[pa.RecordBatch]]


class TableWriter:
    """Writes to all shards of a table; opens (claims) each at its first row. Safe between threads.

    The lock guards the map of writers; no store call is made while holding it.
    """

    def __init__(self, core: Core, config: WriterConfig | None = None) -> None:
        """Use `Table.writer`."""
        self._core = core
        self._config = config
        self._schema = core.schema()
        self._intake = Intake(self._schema)
        self._lock = core.env.threads.lock()
        self._writers: dict[UUID, ShardWriter] = {}
        self._opening: dict[UUID, Any] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"TableWriter({self._core.uri}, shards open: {len(self._writers)})"

    def put(self, data: Any, *, timeout: float | None = None) -> None:
        """Upsert the rows (append, without a key); returns when every shard has its part.

        Durable on return, or buffered with `durable_write=False`. Raises `SchemaMismatch` or
        `InvalidInput` with nothing written, the shard's own error when all rows go to one shard,
        else `PartialWrite`. One put-request for each shard concerned, side by side.
        """
        self._write(self._intake.rows(data), timeout)

    def delete(self, keys: Any, *, timeout: float | None = None) -> None:
        """Delete the rows with those keys: values, tuples, dicts or an Arrow table."""
        self._write(self._intake.tombstones(keys), timeout)

    def flush(self) -> None:
        """Publish what the open shards hold in memory as SSTables."""
        self._each(dict(self._writers), lambda writer: writer.flush())

    def flush_wal(self) -> None:
        """Return when everything put so far is durable."""
        self._each(dict(self._writers), lambda writer: writer.flush_wal())

    def close(self) -> None:
        """Make every accepted row durable and give all shards back (M-8). Twice is harmless."""
        with self._lock:
            self._closed = True
            writers, self._writers = self._writers, {}
        self._each(writers, lambda writer: writer.close())

    def shard_writers(self) -> dict[UUID, ShardWriter]:
        """The writers open at the moment, by shard."""
        with self._lock:
            return dict(self._writers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except WeirError as failure:
            # The block's own error is the cause of the trouble; this one only comes along.
            error.add_note(f"closing the writer also failed: {failure}")

    def _write(self, batches: list[pa.RecordBatch], timeout: float | None) -> None:
        if self._closed:
            raise WriterClosed(f"{self._core.uri}: this writer was closed", unacknowledged=batches)
        values: dict[Value, list[pa.RecordBatch]] = {}
        router = self._core.router
        for batch in batches:
            for value, rows in router.split(batch):
                values.setdefault(value, []).append(rows)
        items = list(values.items())
        failures: dict[UUID, tuple[WeirError, list[pa.RecordBatch]]] = {}

        def write(item: tuple[Value, list[pa.RecordBatch]]) -> Ack | None:
            value, rows = item
            shard = self._core.route(value)
            try:
                writer = self._writer(shard, value)
                return writer.put(pa.Table.from_batches(rows), timeout=timeout)
            except WeirError as error:
                failures[shard] = (error, rows)
            return None

        self._core.env.threads.map(write, items, workers=CONCURRENCY)
        self._report(failures, parts=len(items))

    def _writer(self, shard: UUID, value: Value) -> ShardWriter:
        with self._lock:
            known = self._writers.get(shard)
            if known is not None:
                return known
            gate = self._opening.setdefault(shard, self._core.env.threads.lock())
        # One opener per shard: two of this process would fence each other.
        with gate:
            with self._lock:
                known = self._writers.get(shard)
            if known is not None:
                return known
            self._core.ensure_shard(value)
            opened = Shard(self._core, shard, value).writer(self._config)
            with self._lock:
                closed = self._closed
                if not closed:
                    self._writers[shard] = opened
            if closed:
                opened.close()
                raise WriterClosed(f"{self._core.uri}: this writer was closed")
            return opened

    def _each(self, writers: dict[UUID, ShardWriter], run: Callable[[ShardWriter], object]) -> None:
        failures: dict[UUID, tuple[WeirError, list[pa.RecordBatch]]] = {}

        def attempt(item: tuple[UUID, ShardWriter]) -> None:
            try:
                run(item[1])
            except WeirError as error:
                failures[item[0]] = (error, list(getattr(error, "unacknowledged", ())))

        self._core.env.threads.map(attempt, list(writers.items()), workers=CONCURRENCY)
        self._report(failures, parts=len(writers))

    def _report(
        self, failures: dict[UUID, tuple[WeirError, list[pa.RecordBatch]]], *, parts: int
    ) -> None:
        if not failures:
            return
        if parts == 1:
            raise next(iter(failures.values()))[0]
        raise PartialWrite(
            f"{self._core.uri}: {len(failures)} of {parts} shards failed, the others are done: "
            + "; ".join(f"shard {shard}: {error}" for shard, (error, _) in failures.items()),
            failures={shard: error for shard, (error, _) in failures.items()},
            unacknowledged={shard: rows for shard, (_, rows) in failures.items()},
        )
