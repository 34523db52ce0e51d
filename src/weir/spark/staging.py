"""Rows on their way from a task to the driver: Arrow files under fresh names.

Only the message of its task refers to a staged file. Orphans, left by losing attempts or dead jobs,
are collected by age.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from weir.errors import StoreError
from weir.format import paths
from weir.format.sharding import Value
from weir.routing.core import Core
from weir.routing.statements import StagedFiles
from weir.store.api import put_new

RESTAGED_BYTES: Final = 32 << 20
"""Bytes of one shard's rows in a file that the driver stages again: it holds all shards at once."""


WRITTEN_BYTES: Final = 512 << 20
"""Bytes of rows that the driver writes at once; it needs about four times as much memory."""
WRITTEN_SHARDS: Final = 8


@dataclass(frozen=True)
class Staged:
    """One file: rows of one shard."""

    value: Value
    path: str
    rows: int
    routing: int
    """The routing by which `value` was found: under another one the shard has other rows."""
    bytes: int = 0
    """Of its rows, as Arrow counts them."""


class Stage:
    """Stages the rows of one task; holds up to `limit` bytes of a shard, then writes a file."""

    def __init__(self, core: Core, job: str, partition: int, *, limit: int) -> None:
        self._core = core
        self._record = core.record  # kept: the handle's may be refreshed while rows come
        self._router = core.router
        self._job = job
        self._partition = partition
        self._limit = limit
        self._held: dict[Value, list[pa.RecordBatch]] = {}
        self._bytes: dict[Value, int] = {}
        self._files: list[Staged] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows in and split them by shard."""
        for value, rows in self._router.split(batch):
            self._held.setdefault(value, []).append(rows)
            self._bytes[value] = self._bytes.get(value, 0) + rows.nbytes
            if self._bytes[value] >= self._limit:
                self._write(value)

    def finish(self) -> list[Staged]:
        """Write the remaining rows; returns the files in the order of their rows."""
        for value in list(self._held):
            self._write(value)
        return self._files

    def _write(self, value: Value) -> None:
        batches = self._held.pop(value)
        size = self._bytes.pop(value)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        name = f"{self._partition:06d}-{self._core.env.new_id().hex}"
        path = paths.staged_path(self._job, name)
        put_new(self._core.store, path, memoryview(sink.getvalue()).cast("B"))
        rows = sum(batch.num_rows for batch in batches)
        self._files.append(Staged(value, path, rows, self._record.routing_version, size))


def shards_at_once(staged: Iterable[Sequence[Staged]], limit: int) -> int:
    """How many shards the driver writes at once, each in entries of up to `limit` bytes."""
    largest = max((min(limit, sum(file.bytes for file in files)) for files in staged), default=0)
    return max(1, min(WRITTEN_SHARDS, WRITTEN_BYTES // max(1, largest)))


def restage(core: Core, files: Sequence[Staged], job: str, partition: int) -> list[Staged]:
    """Stage the rows of a task again, by the current routing."""
    stage = Stage(core, job, partition, limit=RESTAGED_BYTES)
    for file in files:
        for batch in read_staged(core, file):
            stage.add(batch)
    return stage.finish()


def read_staged(core: Core, staged: Staged) -> Iterator[pa.RecordBatch]:
    """The rows of a file, or `MissingEntry` when it was collected."""
    yield from StagedFiles(core).read(staged.path)[1]


def remove_staged(core: Core, staged: Sequence[Staged]) -> None:
    """Delete staged files; any that remain on failure are collected later."""
    with contextlib.suppress(StoreError):
        core.store.delete([part.path for part in staged])
