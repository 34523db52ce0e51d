"""State that all steps of one collection share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from weir.errors import WeirError
from weir.records.holds import Expired, HoldKind, Holds
from weir.records.statements import OpenStatement, StatementRecords
from weir.routing.core import Core
from weir.store.api import Store
from weir.upkeep.gc.plan import Ages
from weir.upkeep.gc.report import GcReport
from weir.upkeep.gc.tasks import Deleter

logger = logging.getLogger("weir.gc")


@dataclass
class GcRun:
    """One collection of one table."""

    core: Core
    ages: Ages
    kinds: frozenset[str]
    deleter: Deleter
    holds: Holds
    now: float
    """The table store's clock, read before anything was listed: nothing looks older than it is."""
    statements: tuple[OpenStatement, ...] = ()
    """Those that were open when the pins were read: their staged rows stay, and so does every
    entry of their shards, which tells what of them is in the log (P-8)."""
    _clocks: dict[str, float] = field(default_factory=dict)

    @property
    def report(self) -> GcReport:
        """What was seen, deleted and kept so far."""
        return self.deleter.report

    @property
    def dry_run(self) -> bool:
        """True when nothing may be written."""
        return self.deleter.dry_run

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
