"""Rows on their way from a task to the driver: Arrow files under fresh names.

Only the message of its task refers to a staged file. Orphans, left by losing attempts or dead jobs,
are collected by age.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from weir.errors import MissingEntry, StoreError
from weir.format import paths
from weir.format.sharding import Value
from weir.routing.core import Core
from weir.store.api import ObjectMissing


@dataclass(frozen=True)
class Staged:
    """One file: rows of one shard."""

    value: Value
    path: str
    rows: int


class Stage:
    """Stages the rows of one task; holds up to `limit` bytes of a shard, then writes a file."""

    def __init__(self, core: Core, job: str, partition: int, *, limit: int) -> None:
        self._core = core
        self._job = job
        self._partition = partition
        self._limit = limit
        self._held: dict[Value, list[pa.RecordBatch]] = {}
        self._bytes: dict[Value, int] = {}
        self._files: list[Staged] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows in and split them by shard."""
        for value, rows in self._core.router.split(batch):
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
        self._bytes.pop(value)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        name = f"{self._partition:06d}-{self._core.env.new_id().hex}"
        path = paths.staged_path(self._job, name)
        self._core.store.put_if_absent(path, memoryview(sink.getvalue()).cast("B"))
        self._files.append(Staged(value, path, sum(batch.num_rows for batch in batches)))


def read_staged(core: Core, staged: Staged) -> Iterator[pa.RecordBatch]:
    """The rows of a file, or `MissingEntry` when it was collected."""
    try:
        data = core.store.get(staged.path).data
    except ObjectMissing:
        raise MissingEntry(
            f"{core.uri}/{staged.path}: staged rows of this job are gone; gc collects them after a"
            " day. This shard was not written, others may have been. Run the job again"
        ) from None
    yield from pa.ipc.open_stream(data)


def remove_staged(core: Core, staged: Sequence[Staged]) -> None:
    """Delete staged files; any that remain on failure are collected later."""
    with contextlib.suppress(StoreError):
        core.store.delete([part.path for part in staged])
