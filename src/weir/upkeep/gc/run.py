"""What all steps of one collection share: its settings, its report, and how it deletes.

Objects go in batches of what one bulk request takes, several at a time, each alone (G-10), and
always in the process that decided: a store, not a processor, says how fast they go.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from weir.errors import WeirError
from weir.records.holds import Expired, HoldKind, Holds
from weir.records.statements import OpenStatement, StatementRecords
from weir.routing.core import Core
from weir.store.api import Store
from weir.upkeep.gc.plan import Ages
from weir.upkeep.gc.report import GcReport, Progress, Veto

logger = logging.getLogger("weir.gc")

BATCH_OBJECTS: Final = 1000
"""Objects that one bulk request of S3 takes."""
WORKERS: Final = 8

Item = tuple[str, int]
"""A path and its size."""


@dataclass
class GcRun:
    """One collection of one table."""

    core: Core
    ages: Ages
    kinds: frozenset[str]
    report: GcReport
    """What was seen, deleted and kept so far."""
    holds: Holds
    now: float
    """The table store's clock, read before anything was listed: nothing looks older than it is."""
    dry_run: bool = False
    """True when nothing may be written."""
    workers: int = WORKERS
    progress: Progress | None = None
    veto: Veto | None = None
    statements: tuple[OpenStatement, ...] = ()
    """Those that were open when the pins were read: their staged rows stay, and so does every
    entry of their shards, which tells what of them is in the log (P-8)."""
    _done: dict[str, int] = field(default_factory=dict)
    _total: dict[str, int] = field(default_factory=dict)
    _clocks: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """One report for all threads."""
        self._lock = self.core.env.threads.lock()

    @property
    def expired(self) -> Expired:
        """In a dry run, what has expired by then counts as ended: the real run ends it."""
        return dict.fromkeys(self.holding, self.now) if self.dry_run else {}

    @property
    def holding(self) -> list[HoldKind]:
        """The kinds that hold others, as far as they were chosen."""
        every: tuple[HoldKind, ...] = ("checkpoints", "consumers")
        return [kind for kind in every if kind in self.kinds]

    def look_for_statements(self) -> None:
        """Read which statements are open: after the floors rose, or after old files were listed.

        One that is proposed later claims its shards later, and so its entries are above every R
        that this collection has seen.
        """
        latest = StatementRecords(self.core.store, self.core.env).load()
        self.statements = latest.of(self.core.record.table_id)

    def clock(self, store: Store) -> float:
        """That store's time, read once, before the first of its logs is listed (G-3)."""
        if store.uri not in self._clocks:
            self._clocks[store.uri] = store.now()
        return self._clocks[store.uri]

    @contextmanager
    def task(self, name: str) -> Iterator[None]:
        """A task that is reported if it fails; the others go on (G-10)."""
        try:
            yield
        except WeirError as error:
            self.fail(name, error)

    def fail(self, name: str, error: WeirError) -> None:
        """Report a task that failed (G-10)."""
        logger.warning("gc.failed table=%s task=%s reason=%s", self.core.uri, name, error)
        self.report.errors.append(f"{name}: {type(error).__name__}: {error}")

    # -- counting, from any thread ---------------------------------------------------------------

    def count(self, kind: str, seen: int, size: int, kept: Mapping[str, int]) -> None:
        """Report objects that were seen, and why some stay."""
        with self._lock:
            part = self.report.kind(kind)
            part.seen += seen
            part.seen_bytes += size
            part.kept.update(kept)

    def pruned(self, tables: int) -> None:
        """Report SSTables that left a manifest."""
        with self._lock:
            self.report.pruned += tables

    # -- deleting ----------------------------------------------------------------------------

    def delete(
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
                lambda batch: self._delete_batch(store, kind, batch), window, workers=self.workers
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

    def _delete_batch(self, store: Store, kind: str, batch: list[Item]) -> str | None:
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
