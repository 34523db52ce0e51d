"""Deleting: batches of paths as plain values, run here or on an engine (P-5), each alone (G-10).

Keeps
  S-8  a batch is deleted from the place it names, or not at all: the table's own by its id, since
       another table may be there by now, a log's by its folder, which never changes hands
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal

from weir.errors import WalStoreMismatch, WeirError
from weir.routing.core import Core
from weir.store.api import Store
from weir.upkeep.gc.report import GcReport, Progress, Veto
from weir.upkeep.tasks import Result, Run, Task

logger = logging.getLogger("weir.gc")

BATCH_OBJECTS: Final = 1000
"""Objects that one bulk request of S3 takes."""
WORKERS: Final = 8

Item = tuple[str, int]
"""A path and its size."""
Where = Literal["table", "wal"]
"""Which store: the table's, or one that its log is or was on."""


@dataclass(frozen=True)
class Batch:
    """One task: objects of one kind on one store. JSON-ready and small."""

    kind: str
    where: Where
    uri: str
    table_id: str | None
    """For the table's own store, the id of the table (S-8)."""
    paths: tuple[str, ...]
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {
            "kind": self.kind,
            "where": self.where,
            "uri": self.uri,
            "table_id": self.table_id,
            "paths": list(self.paths),
            "bytes": self.bytes,
        }

    @staticmethod
    def from_dict(value: dict[str, Any]) -> Batch:
        """Back from JSON."""
        return Batch(
            kind=value["kind"],
            where=value["where"],
            uri=value["uri"],
            table_id=value["table_id"],
            paths=tuple(value["paths"]),
            bytes=int(value["bytes"]),
        )


def delete_batch(store: Store, batch: Batch) -> int:
    """Delete the objects and return how many; a missing one counts as deleted (G-12).

    The plan settled for good what is in a batch: every object in it lies below a floor or can never
    be published.
    """
    store.delete(list(batch.paths))
    return len(batch.paths)


@dataclass
class Deleter:
    """Deletes in batches, `workers` at a time, and holds no more than those in memory."""

    core: Core
    report: GcReport
    dry_run: bool
    workers: int = WORKERS
    progress: Progress | None = None
    planned: list[Batch] | None = None
    """If set, batches are appended here instead of being run: for Spark."""
    veto: Veto | None = None
    _done: dict[str, int] = field(default_factory=dict)
    _total: dict[str, int] = field(default_factory=dict)

    @property
    def immediate(self) -> bool:
        """True when `run` deletes before it returns."""
        return self.planned is None

    def run(
        self, kind: str, items: Iterable[Item], *, total: int, wal: Store | None = None
    ) -> bool:
        """Delete those objects of the table's store, or of `wal`; False when one was vetoed or
        failed, which is reported while the others go on."""
        kept = self.report.kind(kind).kept
        before = len(self.report.errors), kept["vetoed"]
        work = self._batches(kind, items, wal)
        first = True
        while window := list(islice(work, self.workers)):
            if first:
                self._total[kind] = self._total.get(kind, 0) + total
                first = False
            if self.planned is not None:
                self.planned += window
                continue
            for batch, error in zip(window, self._window(wal, window), strict=True):
                if error is not None:
                    self.report.errors.append(error)
                    continue
                part = self.report.kind(kind)
                part.deleted += len(batch.paths)
                part.deleted_bytes += batch.bytes
                self._done[kind] = self._done.get(kind, 0) + len(batch.paths)
            if self.progress is not None:
                # Leftovers are listed while they are deleted: their number is not known before.
                done = self._done.get(kind, 0)
                self.progress(kind, done, max(done, self._total[kind]))
        return (len(self.report.errors), kept["vetoed"]) == before

    def _batches(self, kind: str, items: Iterable[Item], wal: Store | None) -> Iterator[Batch]:
        """Cut `items` into tasks, leaving out what is vetoed."""

        def allowed() -> Iterator[Item]:
            for path, size in items:
                if self.veto is not None and self.veto(kind, path):
                    self.report.kind(kind).kept["vetoed"] += 1
                else:
                    yield path, size

        rest = allowed()
        while chunk := list(islice(rest, BATCH_OBJECTS)):
            yield Batch(
                kind,
                "table" if wal is None else "wal",
                self._store(wal).uri,
                str(self.core.record.table_id) if wal is None else None,
                tuple(path for path, _ in chunk),
                sum(size for _, size in chunk),
            )

    def _store(self, wal: Store | None) -> Store:
        return self.core.store if wal is None else wal

    def _window(self, wal: Store | None, window: list[Batch]) -> list[str | None]:
        if self.dry_run:
            return [None] * len(window)
        store = self._store(wal)

        def one(batch: Batch) -> str | None:
            try:
                delete_batch(store, batch)
            except WeirError as error:
                logger.warning(
                    "gc.failed store=%s kind=%s first=%s reason=%s",
                    store.uri,
                    batch.kind,
                    batch.paths[0],
                    error,
                )
                return f"deleting {len(batch.paths)} {batch.kind}, first {batch.paths[0]}: {error}"
            return None

        return self.core.env.threads.map(one, list(window), workers=self.workers)


def delete(core: Core, task: Task) -> Result:
    """Delete one batch; a failure is returned, so that the other batches go on (G-10)."""
    batch = Batch.from_dict(task)
    try:
        return {"deleted": delete_batch(_store_of(core, batch), batch), "error": None}
    except WeirError as error:
        return {"deleted": 0, "error": f"deleting {batch.kind}, first {batch.paths[0]}: {error}"}


def _store_of(core: Core, batch: Batch) -> Store:
    """The store a batch names; `WalStoreMismatch` when another is there now."""
    if batch.where == "wal":
        return core.wal_stores.folder_at(batch.uri)
    # The record is read again: an engine keeps tables open longer than users keep them in place.
    # guard: S-8
    if batch.uri != core.store.uri or batch.table_id != str(core.refresh().table_id):
        raise WalStoreMismatch(
            f"{core.uri} holds another table now; this deletion was planned for {batch.uri}, id"
            f" {batch.table_id}. Nothing was deleted, run gc again"
        )
    return core.store


TASKS: Final[dict[str, Run]] = {"delete": delete}
