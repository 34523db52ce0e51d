"""Deleting: in batches of what one bulk request takes, several at a time, each alone (G-10).

Always in the process that decided: a store, not a processor, says how fast objects go.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from weir.errors import WeirError
from weir.routing.core import Core
from weir.store.api import Store
from weir.upkeep.gc.report import GcReport, Progress, Veto

logger = logging.getLogger("weir.gc")

BATCH_OBJECTS: Final = 1000
"""Objects that one bulk request of S3 takes."""
WORKERS: Final = 8

Item = tuple[str, int]
"""A path and its size."""


@dataclass
class Deleter:
    """Deletes in batches, `workers` at a time, and holds no more than those in memory."""

    core: Core
    report: GcReport
    dry_run: bool
    workers: int = WORKERS
    progress: Progress | None = None
    veto: Veto | None = None
    _done: dict[str, int] = field(default_factory=dict)
    _total: dict[str, int] = field(default_factory=dict)

    def run(
        self, kind: str, items: Iterable[Item], *, total: int, wal: Store | None = None
    ) -> bool:
        """Delete those objects of the table's store, or of `wal`; False when one was vetoed or
        failed, which is reported while the others go on. A missing one counts as deleted (G-12)."""
        store = self.core.store if wal is None else wal
        part, errors = self.report.kind(kind), self.report.errors
        before = len(errors), part.kept["vetoed"]
        rest = self._allowed(kind, items)
        work = iter(lambda: list(islice(rest, BATCH_OBJECTS)), [])
        while window := list(islice(work, self.workers)):
            self._total[kind], total = self._total.get(kind, 0) + total, 0
            found = self.core.env.threads.map(
                lambda batch: self._delete(store, kind, batch), window, workers=self.workers
            )
            for batch, error in zip(window, found, strict=True):
                if error is not None:
                    errors.append(error)
                    continue
                part.deleted += len(batch)
                part.deleted_bytes += sum(size for _, size in batch)
                self._done[kind] = self._done.get(kind, 0) + len(batch)
            if self.progress is not None:
                # Leftovers are listed while they are deleted: their number is not known before.
                done = self._done.get(kind, 0)
                self.progress(kind, done, max(done, self._total[kind]))
        return (len(errors), part.kept["vetoed"]) == before

    def _allowed(self, kind: str, items: Iterable[Item]) -> Iterator[Item]:
        for path, size in items:
            if self.veto is not None and self.veto(kind, path):
                self.report.kind(kind).kept["vetoed"] += 1
            else:
                yield path, size

    def _delete(self, store: Store, kind: str, batch: list[Item]) -> str | None:
        """Delete one batch; returns why that failed."""
        if self.dry_run:
            return None
        first = batch[0][0]
        try:
            store.delete([path for path, _ in batch])
        except WeirError as error:
            logger.warning(
                "gc.failed store=%s kind=%s first=%s reason=%s", store.uri, kind, first, error
            )
            return f"deleting {len(batch)} {kind}, first {first}: {error}"
        return None
